/*
 * pack.h: msgpack streams of records, as traces and plans are kept in.
 *
 * A stream is a sequence of msgpack objects, its records. msgpack-c decodes them, but reserves as
 * many objects as an array says it has; so each record is first walked without allocating: it must
 * lie whole in the bytes there are, an element takes at least one byte of them, nesting and length
 * are bounded. Decoding a record then costs at most PLEAT__PACK_RECORD_BYTES * 24 of host memory,
 * and it is given back at the next one.
 *
 * The first record is a header: [name, version, number, ...]. The last one is a checksum over all
 * bytes before it: [CRC-32 as zlib has it], always 6 bytes. It is looked at last, so that what is
 * no sound stream is reported by its place.
 */
#ifndef PLEAT_PLAN_BASE_PACK_H
#define PLEAT_PLAN_BASE_PACK_H

#include <internal/arena.h>
#include <msgpack.h>
#include <stdbool.h>

#define PLEAT__PACK_RECORD_BYTES (4u << 20) /* the longest record that is read */
#define PLEAT__PACK_RECORD_ITEMS 32768u     /* about as many numbers as are written into one */
#define PLEAT__PACK_DEPTH        4
#define PLEAT__PACK_TEXT_BYTES   65535u /* the longest text */

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

/* The header: `count` numbers behind the name and the version. PLEAT_E_INPUT when it is another
 * file, PLEAT_E_ABI when it is of another version. */
PLEAT_NODISCARD pleat_result pleat__pack_header(pleat__pack_reader *reader, const char *name,
                                                uint32_t version, uint64_t *numbers,
                                                uint32_t count);
/* The same for versions `oldest` to *version, which becomes the file's. */
PLEAT_NODISCARD pleat_result pleat__pack_versions(pleat__pack_reader *reader, const char *name,
                                                  uint32_t oldest, uint32_t *version,
                                                  uint64_t *numbers, uint32_t count);

/* Decodes the next record, which must be an array; it is there until the next call. */
PLEAT_NODISCARD pleat_result pleat__pack_array(pleat__pack_reader *reader,
                                               msgpack_object_array *array);
/* Takes rows of `width` numbers (at most 16), `count` of them, in as many records as it takes, each
 * row whole in one. `take` gets each with its index; where it fails, the place is put in front of
 * its text. */
typedef pleat_result (*pleat__row_taker)(void *context, uint64_t index, const uint64_t *row);
PLEAT_NODISCARD pleat_result pleat__pack_rows(pleat__pack_reader *reader, uint64_t count,
                                              uint32_t width, pleat__row_taker take, void *context);
/* The same for texts. They are not zero-terminated. */
typedef pleat_result (*pleat__text_taker)(void *context, uint64_t index, const char *text,
                                          size_t length);
PLEAT_NODISCARD pleat_result pleat__pack_texts(pleat__pack_reader *reader, uint64_t count,
                                               pleat__text_taker take, void *context);
/* Takes a number by itself, at most `most`: how many rows follow. `of` says what, for its text. */
PLEAT_NODISCARD pleat_result pleat__pack_count(pleat__pack_reader *reader, uint32_t most,
                                               const char *of, uint32_t *count);
/* The checksum of a stream's bytes. */
uint32_t pleat__pack_checksum(const uint8_t *bytes, size_t size);
/* It, and nothing behind it. */
PLEAT_NODISCARD pleat_result pleat__pack_finish(pleat__pack_reader *reader);

/* PLEAT_E_INPUT with the file, the record and its byte in front of the text. */
PLEAT_PRINTF(2, 3)
pleat_result pleat__pack_fail(const pleat__pack_reader *reader, const char *format, ...);
/* Puts the file and the record's item in front of the text of a failure. */
pleat_result pleat__pack_refused(const pleat__pack_reader *reader, pleat_result result,
                                 uint32_t item);

/* false unless the object is a whole number from 0 to `most`. */
bool pleat__pack_u64(const msgpack_object *object, uint64_t most, uint64_t *out);
/* false unless it is a whole number of 64 bits with a sign. */
bool pleat__pack_i64(const msgpack_object *object, int64_t *out);

/* A stream being written; memory that runs out on the way is reported at the end. */
typedef struct pleat__pack_writer {
    msgpack_packer packer;
    pleat__arena *arena;
    uint8_t *bytes;
    size_t size;
    size_t capacity;
    bool failed;
} pleat__pack_writer;

/* The writer refers to itself: it must not move. */
void pleat__pack_open(pleat__pack_writer *writer, pleat__arena *arena);
void pleat__pack_put_header(pleat__pack_writer *writer, const char *name, uint32_t version,
                            const uint64_t *numbers, uint32_t count);
/* As pleat__pack_rows and pleat__pack_texts take them. */
typedef void (*pleat__row_giver)(const void *context, uint64_t index, uint64_t *row);
/* A number by itself, as pleat__pack_count takes it. */
void pleat__pack_put_count(pleat__pack_writer *writer, uint64_t count);
void pleat__pack_put_rows(pleat__pack_writer *writer, uint64_t count, uint32_t width,
                          pleat__row_giver give, const void *context);
typedef const char *(*pleat__text_giver)(const void *context, uint64_t index);
void pleat__pack_put_texts(pleat__pack_writer *writer, uint64_t count, pleat__text_giver give,
                           const void *context);
/* Adds the checksum and writes the file. PLEAT_E_NO_MEMORY, PLEAT_E_IO. */
PLEAT_NODISCARD pleat_result pleat__pack_save(pleat__pack_writer *writer, const char *path);

#endif
