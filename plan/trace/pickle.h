/*
 * pickle.h: decodes Python pickles of protocols 2 to 5 that hold built-in types only. Nothing in a
 * pickle is looked up or called: an opcode that would is refused.
 */
#ifndef PLEAT_PLAN_TRACE_PICKLE_H
#define PLEAT_PLAN_TRACE_PICKLE_H

#include <internal/arena.h>
#include <stdbool.h>

typedef enum pleat__pickle_type {
    PLEAT__PICKLE_NONE,
    PLEAT__PICKLE_BOOL,
    PLEAT__PICKLE_NUMBER,   /* whole, 0 to 2^64 - 1 */
    PLEAT__PICKLE_NEGATIVE, /* whole, -2^63 to -1, as int64_t in `number` */
    PLEAT__PICKLE_BIG,      /* whole, of more bits; its value is not kept */
    PLEAT__PICKLE_FLOAT,    /* its value is not kept */
    PLEAT__PICKLE_TEXT,     /* lies in the pickle's bytes; not zero-terminated */
    PLEAT__PICKLE_BYTES,
    PLEAT__PICKLE_LIST,
    PLEAT__PICKLE_TUPLE,
    PLEAT__PICKLE_DICT,
    PLEAT__PICKLE_SET,
} pleat__pickle_type;

typedef struct pleat__pickle_node pleat__pickle_node;

typedef struct pleat__pickle_value {
    uint8_t type;    /* pleat__pickle_type */
    uint8_t word;    /* TEXT: its index in the caller's words, from 1; 0 for any other text */
    uint32_t length; /* TEXT, BYTES */
    union {
        uint64_t number;
        const char *text;
        pleat__pickle_node *node; /* may be shared, and may contain itself: walk to a fixed depth */
    };
} pleat__pickle_value;

/* What a LIST, TUPLE, SET or DICT holds. A DICT has a key at each even item and its value behind
 * it, in the order they were set: of two equal keys the later one counts. */
struct pleat__pickle_node {
    pleat__pickle_value *items;
    uint32_t count;
    uint32_t capacity;
};

#define PLEAT__PICKLE_MEMORY (4ull << 30) /* the most a decoded pickle may take */

/* Decodes `bytes`, of which there are less than 2^32. Texts equal to one of the `word_count` words
 * (at most 255) are marked with it. The values live in `arena` and refer to `bytes`. PLEAT_E_INPUT
 * with `path`, the byte and the opcode. */
PLEAT_NODISCARD pleat_result pleat__pickle_decode(const char *path, const uint8_t *bytes,
                                                  size_t size, const char *const *words,
                                                  size_t word_count, pleat__arena *arena,
                                                  pleat__pickle_value *out);

#endif
