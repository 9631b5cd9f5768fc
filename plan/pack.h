/*
 * pack.h: msgpack streams of records, as traces and plans are kept in.
 *
 * A stream is a sequence of msgpack objects, its records. msgpack-c decodes them, but reserves as
 * many objects as an array says it has; so each record is first walked without allocating: it must
 * lie whole in the bytes there are, an element takes at least one byte of them, nesting and length
 * are bounded. Decoding a record then costs at most PACK_RECORD_BYTES * 24 of host memory, and it
 * is given back at the next one.
 */
#ifndef PLEAT_PLAN_PACK_H
#define PLEAT_PLAN_PACK_H

#include <internal/arena.h>
#include <msgpack.h>
#include <stdbool.h>

#define PLEAT__PACK_RECORD_BYTES (4u << 20) /* the longest record that is read */
#define PLEAT__PACK_RECORD_ITEMS 32768u     /* about as many numbers as are written into one */
#define PLEAT__PACK_DEPTH        4
#define PLEAT__PACK_FILE_BYTES   (2ull << 30)

typedef struct pleat__pack_reader {
    const char *path; /* for messages */
    const uint8_t *bytes;
    size_t size;
    size_t at;        /* the next record's first byte */
    size_t record;    /* number of the record last read, from 0 */
    size_t record_at; /* its first byte */
    msgpack_unpacked unpacked;
} pleat__pack_reader;

void pleat__pack_begin(pleat__pack_reader *reader, const char *path, const uint8_t *bytes,
                       size_t size);
/* Gives back what the last record took. */
void pleat__pack_end(pleat__pack_reader *reader);
/* Decodes the next record; it is there until the next call. */
PLEAT_NODISCARD pleat_result pleat__pack_next(pleat__pack_reader *reader, msgpack_object *record);
/* The same for a record that must be an array. */
PLEAT_NODISCARD pleat_result pleat__pack_array(pleat__pack_reader *reader,
                                               msgpack_object_array *array);
/* PLEAT_E_INPUT with the file, the record and its byte in front of the text. */
PLEAT_PRINTF(2, 3)
pleat_result pleat__pack_fail(const pleat__pack_reader *reader, const char *format, ...);
/* Nothing may follow the last record. */
PLEAT_NODISCARD pleat_result pleat__pack_at_end(pleat__pack_reader *reader);

/* Checks the first two items of a header record: the format's name and its version. PLEAT_E_INPUT
 * when it is another file, PLEAT_E_ABI when it is of another version. */
PLEAT_NODISCARD pleat_result pleat__pack_header(const pleat__pack_reader *reader,
                                                const msgpack_object_array *header,
                                                const char *name, uint32_t version, uint32_t items);

/* false unless the object is a whole number from 0 to `most`. */
bool pleat__pack_u64(const msgpack_object *object, uint64_t most, uint64_t *out);
/* false unless it is a whole number of 64 bits with a sign. */
bool pleat__pack_i64(const msgpack_object *object, int64_t *out);

/* Bytes being written; `failed` once memory ran out. */
typedef struct pleat__pack_buffer {
    pleat__arena *arena;
    uint8_t *bytes;
    size_t size;
    size_t capacity;
    bool failed;
} pleat__pack_buffer;

/* For msgpack_packer_init: `buffer` is a pleat__pack_buffer. */
int pleat__pack_put(void *buffer, const char *bytes, size_t size);
void pleat__pack_text(msgpack_packer *packer, const char *text, size_t length);
/* The end of writing: PLEAT_E_NO_MEMORY when it failed on the way, else the file is written. */
PLEAT_NODISCARD pleat_result pleat__pack_save(const pleat__pack_buffer *buffer, const char *path);

#endif
