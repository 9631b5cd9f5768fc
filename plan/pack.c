/*
 * pack.c: see pack.h.
 */
#include <plan/pack.h>

#include <internal/error.h>
#include <plan/file.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
            return "the file ends inside it";
        if (!read_head(bytes + at, size - at, &next))
            return bytes[at] == 0xc1 ? "not msgpack" : "the file ends inside it";
        if (next.bytes > size - at || next.children > size - at - next.bytes)
            return "it says that it is longer than the file";
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

pleat_result pleat__pack_next(pleat__pack_reader *reader, msgpack_object *record)
{
    reader->record++;
    reader->record_at = reader->at;
    if (reader->at == reader->size)
        return pleat__pack_fail(reader, "the file ends where a record should be");
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
    pleat_result result = pleat__pack_next(reader, &record);
    if (result != PLEAT_OK)
        return result;
    if (record.type != MSGPACK_OBJECT_ARRAY)
        return pleat__pack_fail(reader, "not an array");
    *array = record.via.array;
    return PLEAT_OK;
}

pleat_result pleat__pack_at_end(pleat__pack_reader *reader)
{
    if (reader->at == reader->size)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_INPUT, "'%s': %zu bytes follow the last record at byte %zu",
                       reader->path, reader->size - reader->at, reader->at);
}

pleat_result pleat__pack_header(const pleat__pack_reader *reader,
                                const msgpack_object_array *header, const char *name,
                                uint32_t version, uint32_t items)
{
    uint64_t found;
    if (header->size < 2 || header->ptr[0].type != MSGPACK_OBJECT_STR ||
        header->ptr[0].via.str.size != strlen(name) ||
        memcmp(header->ptr[0].via.str.ptr, name, strlen(name)) != 0 ||
        !pleat__pack_u64(&header->ptr[1], UINT32_MAX, &found))
        return pleat__pack_fail(reader, "this is not a %s file", name);
    if (found != version)
        return pleat__fail(PLEAT_E_ABI,
                           "'%s': a %s file of version %llu, and this Pleat reads version %u: make "
                           "the file again with this Pleat",
                           reader->path, name, (unsigned long long)found, version);
    if (header->size != items)
        return pleat__pack_fail(reader, "the header has %u items, not %u", header->size, items);
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

int pleat__pack_put(void *data, const char *bytes, size_t size)
{
    pleat__pack_buffer *buffer = data;
    if (buffer->failed)
        return -1;
    if (size > buffer->capacity - buffer->size) {
        size_t capacity = buffer->capacity ? buffer->capacity * 2 : 65536;
        while (capacity - buffer->size < size)
            capacity *= 2;
        uint8_t *grown = pleat__arena_realloc(buffer->arena, buffer->bytes, capacity);
        if (grown == NULL) {
            buffer->failed = true;
            return -1;
        }
        buffer->bytes = grown;
        buffer->capacity = capacity;
    }
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
    return 0;
}

void pleat__pack_text(msgpack_packer *packer, const char *text, size_t length)
{
    msgpack_pack_str(packer, length);
    msgpack_pack_str_body(packer, text, length);
}

pleat_result pleat__pack_save(const pleat__pack_buffer *buffer, const char *path)
{
    if (buffer->failed)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its %zu bytes", path,
                           buffer->size);
    return pleat__file_write(path, buffer->bytes, buffer->size);
}
