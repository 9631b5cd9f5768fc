/*
 * key_set.h: an ordered set of 64-bit keys, none of them 0, in sorted blocks of at most
 * PLEAT__KEY_BLOCK keys, with the blocks' lowest keys in one sorted array.
 *
 * A search halves that array and then a block. An insertion or a removal moves at most a block of
 * keys, 1 KiB; one that splits or joins blocks moves the array as well, 16 bytes for at least 32
 * keys of the set. Two neighbouring blocks hold more than half a block of keys together, so that a
 * set of n keys has at most 4 n / PLEAT__KEY_BLOCK + 1 blocks.
 *
 * The keys of a few hundred runs lie in some lines of cache next to each other, where a tree of
 * nodes reads a line at each step (D273 in docs/decisions.md).
 */
#ifndef PLEAT_RUNTIME_BASE_KEY_SET_H
#define PLEAT_RUNTIME_BASE_KEY_SET_H

#include <internal/arena.h>
#include <stdbool.h>
#include <stdint.h>

#define PLEAT__KEY_BLOCK 128u

typedef struct pleat__key_block {
    uint64_t low;   /* its lowest key */
    uint32_t block; /* its keys begin at keys[block * PLEAT__KEY_BLOCK] */
    uint32_t count;
} pleat__key_block;

typedef struct pleat__key_set {
    pleat__arena *arena;
    uint64_t *keys;
    pleat__key_block *index; /* in order; behind the last, the blocks that are free */
    uint32_t blocks;         /* in use */
    uint32_t capacity;       /* blocks there are */
    uint32_t count;          /* keys */
} pleat__key_set;

void pleat__key_set_init(pleat__key_set *set, pleat__arena *arena);
/* Leaves it empty, without memory. */
void pleat__key_set_release(pleat__key_set *set);
/* Makes room for so many keys more than it holds: their insertions cannot fail then. */
PLEAT_NODISCARD pleat_result pleat__key_set_reserve(pleat__key_set *set, uint32_t keys);

/* pre: not in the set; room was made. */
void pleat__key_set_insert(pleat__key_set *set, uint64_t key);
/* pre: in the set. */
void pleat__key_set_remove(pleat__key_set *set, uint64_t key);
/* Puts `key` in the place of `old`. pre: `old` is in the set, `key` is not, and room was made. */
void pleat__key_set_replace(pleat__key_set *set, uint64_t old, uint64_t key);

/* The greatest key at or below `key`, and the lowest above it; 0: none. */
uint64_t pleat__key_set_at_most(const pleat__key_set *set, uint64_t key);
uint64_t pleat__key_set_above(const pleat__key_set *set, uint64_t key);

/* Between two neighbouring keys of a set, until the set changes. */
typedef struct pleat__key_gap {
    uint32_t at;   /* in the order of the blocks */
    uint32_t rank; /* of that block's keys, how many are below */
} pleat__key_gap;

/* Both neighbours of `key` with one search, and the gap between them. What is done there needs no
 * other search. */
pleat__key_gap pleat__key_set_around(const pleat__key_set *set, uint64_t key, uint64_t *at_most,
                                     uint64_t *above);
/* pre: the key belongs there; room was made. */
void pleat__key_set_insert_at(pleat__key_set *set, pleat__key_gap gap, uint64_t key);
/* The neighbour below, or the one `above`, goes. pre: there is one. */
void pleat__key_set_remove_at(pleat__key_set *set, pleat__key_gap gap, bool above);
/* Another key in the neighbour's place. pre: the order stays as it is. */
void pleat__key_set_put_at(pleat__key_set *set, pleat__key_gap gap, bool above, uint64_t key);

/* Whether order, counts and the blocks' number are as they must be; prints what is not. */
bool pleat__key_set_audit(const pleat__key_set *set);

#endif
