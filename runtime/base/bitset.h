/*
 * bitset.h: a set of small numbers that answers "the greatest at or below n", and the least at or
 * above: a bitmap of words, and above it bitmaps that say which words have a bit. A lookup reads
 * one word a level; a level holds 64 times what the one below does.
 */
#ifndef PLEAT_RUNTIME_BASE_BITSET_H
#define PLEAT_RUNTIME_BASE_BITSET_H

#include <internal/arena.h>

#define PLEAT__BITS_LEVELS 6 /* 64^6 numbers (D199) */
#define PLEAT__BITS_NONE   UINT64_MAX

typedef struct pleat__bits {
    uint64_t *levels[PLEAT__BITS_LEVELS]; /* levels[0] has a bit a number; one block of memory */
    int depth;
    uint64_t count;
} pleat__bits;

/* For numbers below `count`. */
PLEAT_NODISCARD pleat_result pleat__bits_create(pleat__arena *arena, uint64_t count,
                                                pleat__bits *bits);
void pleat__bits_destroy(pleat__arena *arena, pleat__bits *bits);
void pleat__bits_set(pleat__bits *bits, uint64_t number);
void pleat__bits_clear(pleat__bits *bits, uint64_t number);
/* The greatest number at or below `number` in the set, or PLEAT__BITS_NONE. */
uint64_t pleat__bits_at_most(const pleat__bits *bits, uint64_t number);
/* The least one at or above it, or PLEAT__BITS_NONE. */
uint64_t pleat__bits_at_least(const pleat__bits *bits, uint64_t number);

#endif
