/*
 * pack.c: see pack.h.
 */
#include <plan/base/pack.h>

#include <internal/error.h>
#include <plan/base/file.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

/* One msgpack object's head: its own bytes with payload, and how many objects follow inside it. */
typedef struct head {
    uint64_t bytes;
    uint64_t children;
} head;

static uint64_t big_endian(const uint8_t *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

/* Heads 0xc0 .. 0xdf by the msgpack specification: `length` bytes of a count follow the head; the
 * count is of payload bytes, objects or pairs; `extra` bytes are there in any case. */
typedef struct form {
    uint8_t length;
    uint8_t extra;
    uint8_t children; /* objects for each one counted */
    bool known;
} form;

static const form forms[32] = {
    [0x00] = {0, 0, 0, true}, /* nil */
    [0x02] = {0, 0, 0, true}, /* false */
    [0x03] = {0, 0, 0, true}, /* true */
    [0x04] = {1, 0, 0, true}, /* bin 8, 16, 32 */
    [0x05] = {2, 0, 0, true}, [0x06] = {4, 0, 0, true},
    [0x07] = {1, 1, 0, true}, /* ext 8, 16, 32 */
    [0x08] = {2, 1, 0, true}, [0x09] = {4, 1, 0, true},
    [0x0a] = {0, 4, 0, true},                           /* float 32, 64 */
    [0x0b] = {0, 8, 0, true}, [0x0c] = {0, 1, 0, true}, /* uint 8 .. 64 */
    [0x0d] = {0, 2, 0, true}, [0x0e] = {0, 4, 0, true},
    [0x0f] = {0, 8, 0, true}, [0x10] = {0, 1, 0, true}, /* int 8 .. 64 */
    [0x11] = {0, 2, 0, true}, [0x12] = {0, 4, 0, true},
    [0x13] = {0, 8, 0, true}, [0x14] = {0, 2, 0, true}, /* fixext 1 .. 16 */
    [0x15] = {0, 3, 0, true}, [0x16] = {0, 5, 0, true},
    [0x17] = {0, 9, 0, true}, [0x18] = {0, 17, 0, true},
    [0x19] = {1, 0, 0, true}, /* str 8, 16, 32 */
    [0x1a] = {2, 0, 0, true}, [0x1b] = {4, 0, 0, true},
    [0x1c] = {2, 0, 1, true},                           /* array 16, 32 */
    [0x1d] = {4, 0, 1, true}, [0x1e] = {2, 0, 2, true}, /* map 16, 32 */
    [0x1f] = {4, 0, 2, true},
};

/* false: no such head, or it is cut off. */
static bool read_head(const uint8_t *bytes, size_t size, head *out)
{
    if (size == 0)
        return false;
    uint8_t first = bytes[0];
    *out = (head){1, 0};
    if (first < 0x80 || first >= 0xe0)
        return true;
    if (first < 0xc0) {
        if (first >= 0xa0)
            out->bytes += first & 0x1f;
        else
            out->children = (uint64_t)(first & 0x0f) << (first < 0x90);
        return true;
    }
    const form *shape = &forms[first & 0x1f];
    if (!shape->known || size < 1u + shape->length)
        return false;
    uint64_t count = big_endian(bytes + 1, shape->length);
    out->bytes += shape->length + shape->extra;
    if (shape->children)
        out->children = count * shape->children;
    else
        out->bytes += count;
    return true;
}

/* Length of the object at `bytes`, or a text that says why there is none. */
static const char *walk(const uint8_t *bytes, size_t size, size_t *length)
{
    uint64_t left[PLEAT__PACK_DEPTH + 1] = {1}; /* objects still to come at each depth */
    int depth = 0;
    size_t at = 0;
    for (;;) {
        while (left[depth] == 0) {
            if (depth-- == 0) {
                *length = at;
                return NULL;
            }
        }
        left[depth]--;
        head next;
        if (at >= size)
            return "the file ends inside it: it is cut off";
        if (!read_head(bytes + at, size - at, &next))
            return bytes[at] == 0xc1 ? "not msgpack" : "the file ends inside it: it is cut off";
        if (next.bytes > size - at || next.children > size - at - next.bytes)
            return "it says that it is longer than the file, which is cut off or damaged";
        at += next.bytes;
        if (at > PLEAT__PACK_RECORD_BYTES)
            return "it is too long";
        if (next.children == 0)
            continue;
        if (depth == PLEAT__PACK_DEPTH)
            return "it is nested too deep";
        left[++depth] = next.children;
    }
}

#define CHECKSUM_BYTES 6u

/* In pieces, as zlib counts bytes in 32 bits. */
uint32_t pleat__pack_checksum(const uint8_t *bytes, size_t size)
{
    uLong sum = crc32(0, NULL, 0);
    for (size_t done = 0; done < size;) {
        size_t part = size - done < 1u << 30 ? size - done : 1u << 30;
        sum = crc32(sum, bytes + done, (uInt)part);
        done += part;
    }
    return (uint32_t)sum;
}

void pleat__pack_begin(pleat__pack_reader *reader, const char *path, const uint8_t *bytes,
                       size_t size)
{
    *reader = (pleat__pack_reader){.path = path, .bytes = bytes, .size = size, .record = SIZE_MAX};
    msgpack_unpacked_init(&reader->unpacked);
}

void pleat__pack_end(pleat__pack_reader *reader)
{
    msgpack_unpacked_destroy(&reader->unpacked);
}

pleat_result pleat__pack_fail(const pleat__pack_reader *reader, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return pleat__fail(PLEAT_E_INPUT, "'%s': record %zu at byte %zu: %s", reader->path,
                       reader->record, reader->record_at, text);
}

/* Decodes the next record; it is there until the next call. */
static pleat_result next_record(pleat__pack_reader *reader, msgpack_object *record)
{
    reader->record++;
    reader->record_at = reader->at;
    if (reader->at == reader->size)
        return pleat__pack_fail(reader, "the file ends where a record should be: it is cut off");
    size_t length = 0;
    const char *why = walk(reader->bytes + reader->at, reader->size - reader->at, &length);
    if (why != NULL)
        return pleat__pack_fail(reader, "%s", why);
    size_t used = 0;
    msgpack_unpack_return got = msgpack_unpack_next(
        &reader->unpacked, (const char *)reader->bytes + reader->at, length, &used);
    if (got == MSGPACK_UNPACK_NOMEM_ERROR)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for record %zu", reader->path,
                           reader->record);
    if (got != MSGPACK_UNPACK_SUCCESS || used != length)
        return pleat__pack_fail(reader, "not msgpack");
    reader->at += length;
    *record = reader->unpacked.data;
    return PLEAT_OK;
}

pleat_result pleat__pack_array(pleat__pack_reader *reader, msgpack_object_array *array)
{
    msgpack_object record;
    PLEAT_TRY(next_record(reader, &record));
    if (record.type != MSGPACK_OBJECT_ARRAY)
        return pleat__pack_fail(reader, "not an array");
    *array = record.via.array;
    return PLEAT_OK;
}

pleat_result pleat__pack_refused(const pleat__pack_reader *reader, pleat_result result,
                                 uint32_t item)
{
    return pleat__context(result, "'%s': record %zu at byte %zu, item %u", reader->path,
                          reader->record, reader->record_at, item);
}

pleat_result pleat__pack_header(pleat__pack_reader *reader, const char *name, uint32_t version,
                                uint64_t *numbers, uint32_t count)
{
    uint32_t found = version;
    return pleat__pack_versions(reader, name, version, &found, numbers, count);
}

/* Whether an array begins with this byte. */
static bool is_array(uint8_t byte)
{
    return (byte & 0xf0) == 0x90 || byte == 0xdc || byte == 0xdd;
}

static bool is_text(const msgpack_object *object, const char *text)
{
    return object->type == MSGPACK_OBJECT_STR && object->via.str.size == strlen(text) &&
           memcmp(object->via.str.ptr, text, strlen(text)) == 0;
}

/* Says what a file is that is not one of `name`, as far as it says so itself. */
static pleat_result other_kind(const pleat__pack_reader *reader, const msgpack_object_array *header,
                               const char *name)
{
    static const char *const kinds[] = {"pleat trace", "pleat plan", "pleat log"};
    for (size_t i = 0; header->size > 0 && i < sizeof kinds / sizeof *kinds; i++)
        if (is_text(&header->ptr[0], kinds[i]) && strcmp(kinds[i], name) != 0)
            return pleat__pack_fail(reader, "this is not a %s file, but a %s", name, kinds[i]);
    return pleat__pack_fail(reader, "this is not a %s file", name);
}

pleat_result pleat__pack_versions(pleat__pack_reader *reader, const char *name, uint32_t oldest,
                                  uint32_t *version, uint64_t *numbers, uint32_t count)
{
    msgpack_object_array header;
    if (reader->size == 0)
        return pleat__fail(PLEAT_E_INPUT, "'%s': byte 0: the file is empty, and no %s",
                           reader->path, name);
    if (reader->at < reader->size && !is_array(reader->bytes[reader->at]))
        return pleat__fail(PLEAT_E_INPUT, "'%s': byte %zu: this is not a %s file", reader->path,
                           reader->at, name);
    PLEAT_TRY(pleat__pack_array(reader, &header));
    uint64_t found;
    if (header.size < 2 || !is_text(&header.ptr[0], name) ||
        !pleat__pack_u64(&header.ptr[1], UINT32_MAX, &found))
        return other_kind(reader, &header, name);
    if (found < oldest || found > *version)
        return pleat__fail(PLEAT_E_ABI,
                           "'%s': a %s file of version %llu, and this Pleat reads version %u: make "
                           "the file again with this Pleat",
                           reader->path, name, (unsigned long long)found, *version);
    *version = (uint32_t)found;
    if (header.size != 2 + count)
        return pleat__pack_fail(reader, "the header has %u items, not %u", header.size, 2 + count);
    for (uint32_t i = 0; i < count; i++) {
        if (!pleat__pack_u64(&header.ptr[2 + i], UINT64_MAX, &numbers[i]))
            return pleat__pack_fail(reader, "item %u is not a whole number from 0", 2 + i);
    }
    return PLEAT_OK;
}

#define WIDTH_MOST 16u

/* The next record of a table that has `left` rows to come; *rows is how many it has. */
static pleat_result next_rows(pleat__pack_reader *reader, uint64_t left, uint32_t width,
                              msgpack_object_array *array, uint32_t *rows)
{
    /* A number takes a byte or more. */
    if (left > (reader->size - reader->at) / width)
        return pleat__fail(
            PLEAT_E_INPUT,
            "'%s': byte %zu: the file is cut off: %llu rows of %u should follow, and "
            "it has %zu bytes more",
            reader->path, reader->at, (unsigned long long)left, width, reader->size - reader->at);
    PLEAT_TRY(pleat__pack_array(reader, array));
    *rows = array->size / width;
    if (*rows == 0 || array->size % width != 0 || *rows > left)
        return pleat__pack_fail(reader, "%u items are not 1 to %llu rows of %u", array->size,
                                (unsigned long long)left, width);
    return PLEAT_OK;
}

pleat_result pleat__pack_rows(pleat__pack_reader *reader, uint64_t count, uint32_t width,
                              pleat__row_taker take, void *context)
{
    uint64_t row[WIDTH_MOST];
    for (uint64_t done = 0; done < count;) {
        msgpack_object_array array;
        uint32_t rows;
        PLEAT_TRY(next_rows(reader, count - done, width, &array, &rows));
        for (uint32_t i = 0; i < rows; i++, done++) {
            for (uint32_t k = 0; k < width; k++) {
                if (!pleat__pack_u64(&array.ptr[i * width + k], UINT64_MAX, &row[k]))
                    return pleat__pack_fail(reader, "item %u is not a whole number from 0",
                                            i * width + k);
            }
            pleat_result result = take(context, done, row);
            if (result != PLEAT_OK)
                return pleat__pack_refused(reader, result, i * width);
        }
    }
    return PLEAT_OK;
}

typedef struct counted {
    const char *of;
    uint32_t most, count;
} counted;

static pleat_result take_count(void *context, uint64_t index, const uint64_t *row)
{
    counted *c = context;
    (void)index;
    if (row[0] > c->most)
        return pleat__fail(PLEAT_E_INPUT, "%llu %s", (unsigned long long)row[0], c->of);
    c->count = (uint32_t)row[0];
    return PLEAT_OK;
}

pleat_result pleat__pack_count(pleat__pack_reader *reader, uint32_t most, const char *of,
                               uint32_t *count)
{
    counted c = {.of = of, .most = most};
    PLEAT_TRY(pleat__pack_rows(reader, 1, 1, take_count, &c));
    *count = c.count;
    return PLEAT_OK;
}

pleat_result pleat__pack_texts(pleat__pack_reader *reader, uint64_t count, pleat__text_taker take,
                               void *context)
{
    for (uint64_t done = 0; done < count;) {
        msgpack_object_array array;
        uint32_t rows;
        PLEAT_TRY(next_rows(reader, count - done, 1, &array, &rows));
        for (uint32_t i = 0; i < rows; i++, done++) {
            if (array.ptr[i].type != MSGPACK_OBJECT_STR)
                return pleat__pack_fail(reader, "item %u is no text", i);
            msgpack_object_str text = array.ptr[i].via.str;
            if (text.size == 0)
                text.ptr = ""; /* which may be NULL */
            if (text.size > PLEAT__PACK_TEXT_BYTES || memchr(text.ptr, '\0', text.size) != NULL)
                return pleat__pack_fail(reader, "item %u has %u bytes or a zero byte", i,
                                        text.size);
            pleat_result result = take(context, done, text.ptr, text.size);
            if (result != PLEAT_OK)
                return pleat__pack_refused(reader, result, i);
        }
    }
    return PLEAT_OK;
}

pleat_result pleat__pack_finish(pleat__pack_reader *reader)
{
    msgpack_object_array array;
    uint64_t found;
    uint32_t computed = pleat__pack_checksum(reader->bytes, reader->at);
    PLEAT_TRY(pleat__pack_array(reader, &array));
    if (array.size != 1 || reader->at - reader->record_at != CHECKSUM_BYTES ||
        !pleat__pack_u64(&array.ptr[0], UINT32_MAX, &found))
        return pleat__pack_fail(reader, "not a checksum");
    if (reader->at != reader->size)
        return pleat__fail(PLEAT_E_INPUT, "'%s': %zu bytes follow the last record at byte %zu",
                           reader->path, reader->size - reader->at, reader->at);
    if (found != computed)
        return pleat__pack_fail(reader,
                                "the checksum is %08llx, and the bytes before give %08x: the file "
                                "is damaged",
                                (unsigned long long)found, computed);
    return PLEAT_OK;
}

bool pleat__pack_u64(const msgpack_object *object, uint64_t most, uint64_t *out)
{
    if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER || object->via.u64 > most)
        return false;
    *out = object->via.u64;
    return true;
}

bool pleat__pack_i64(const msgpack_object *object, int64_t *out)
{
    if (object->type == MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        *out = object->via.i64;
        return true;
    }
    uint64_t value;
    if (!pleat__pack_u64(object, INT64_MAX, &value))
        return false;
    *out = (int64_t)value;
    return true;
}

/* For msgpack_packer_init. */
static int append(void *data, const char *bytes, size_t size)
{
    pleat__pack_writer *writer = data;
    if (writer->failed)
        return -1;
    if (size > writer->capacity - writer->size) {
        size_t capacity = writer->capacity ? writer->capacity * 2 : 65536;
        while (capacity - writer->size < size)
            capacity *= 2;
        uint8_t *grown = pleat__arena_realloc(writer->arena, writer->bytes, capacity);
        if (grown == NULL) {
            writer->failed = true;
            return -1;
        }
        writer->bytes = grown;
        writer->capacity = capacity;
    }
    memcpy(writer->bytes + writer->size, bytes, size);
    writer->size += size;
    return 0;
}

void pleat__pack_open(pleat__pack_writer *writer, pleat__arena *arena)
{
    *writer = (pleat__pack_writer){.arena = arena};
    msgpack_packer_init(&writer->packer, writer, append);
}

static void put_text(pleat__pack_writer *writer, const char *text)
{
    msgpack_pack_str(&writer->packer, strlen(text));
    msgpack_pack_str_body(&writer->packer, text, strlen(text));
}

void pleat__pack_put_header(pleat__pack_writer *writer, const char *name, uint32_t version,
                            const uint64_t *numbers, uint32_t count)
{
    msgpack_pack_array(&writer->packer, 2 + count);
    put_text(writer, name);
    msgpack_pack_uint64(&writer->packer, version);
    for (uint32_t i = 0; i < count; i++)
        msgpack_pack_uint64(&writer->packer, numbers[i]);
}

/* Begins a record where a multiple of `most` is done of `count`. */
static void begin_record(pleat__pack_writer *writer, uint64_t done, uint64_t count, uint32_t most,
                         uint32_t width)
{
    if (done % most != 0)
        return;
    uint64_t rows = count - done < most ? count - done : most;
    msgpack_pack_array(&writer->packer, rows * width);
}

void pleat__pack_put_rows(pleat__pack_writer *writer, uint64_t count, uint32_t width,
                          pleat__row_giver give, const void *context)
{
    uint64_t row[WIDTH_MOST];
    for (uint64_t i = 0; i < count; i++) {
        begin_record(writer, i, count, PLEAT__PACK_RECORD_ITEMS / WIDTH_MOST, width);
        give(context, i, row);
        for (uint32_t k = 0; k < width; k++)
            msgpack_pack_uint64(&writer->packer, row[k]);
    }
}

static void give_count(const void *context, uint64_t index, uint64_t *row)
{
    (void)index;
    row[0] = *(const uint64_t *)context;
}

void pleat__pack_put_count(pleat__pack_writer *writer, uint64_t count)
{
    pleat__pack_put_rows(writer, 1, 1, give_count, &count);
}

void pleat__pack_put_texts(pleat__pack_writer *writer, uint64_t count, pleat__text_giver give,
                           const void *context)
{
    const uint32_t most = PLEAT__PACK_RECORD_BYTES / (PLEAT__PACK_TEXT_BYTES + 16);
    for (uint64_t i = 0; i < count; i++) {
        begin_record(writer, i, count, most, 1);
        put_text(writer, give(context, i));
    }
}

pleat_result pleat__pack_save(pleat__pack_writer *writer, const char *path)
{
    uint32_t sum = pleat__pack_checksum(writer->bytes, writer->size);
    msgpack_pack_array(&writer->packer, 1);
    msgpack_pack_fix_uint32(&writer->packer, sum);
    if (writer->failed)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its %zu bytes", path,
                           writer->size);
    return pleat__file_write(path, writer->bytes, writer->size);
}
