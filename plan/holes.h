/*
 * holes.h: the free ranges of an address space, by address, with the queries placement asks.
 *
 * The last hole has no end. Holes lie in blocks of up to 64 behind a directory of the blocks' first
 * address and largest hole: a query looks through the directory, then one block. With h holes that
 * is h/64 + 64 steps of a scan over packed arrays, which up to a million holes is faster than a
 * balanced tree's chain of misses.
 */
#ifndef PLEAT_PLAN_HOLES_H
#define PLEAT_PLAN_HOLES_H

#include <internal/arena.h>
#include <internal/range.h>

#define PLEAT__HOLE_BLOCK 64

typedef struct pleat__hole_block {
    uint32_t count;
    uint64_t begin[PLEAT__HOLE_BLOCK];
    uint64_t size[PLEAT__HOLE_BLOCK];
} pleat__hole_block;

typedef struct pleat__holes {
    pleat__arena *arena;
    pleat__hole_block *blocks;
    size_t block_capacity;
    uint32_t block_count; /* ever taken from `blocks` */
    uint32_t spare_count;
    uint32_t *spares; /* blocks given back */
    /* The directory, in order of address. */
    uint32_t *order;
    uint64_t *first;
    uint64_t *largest;
    uint32_t order_count;
    uint32_t order_capacity;
    uint64_t work; /* steps taken so far, about 10 ns each */
} pleat__holes;

/* Where a hole is; valid until the next change. */
typedef struct pleat__hole {
    uint32_t slot; /* in the directory; UINT32_MAX: no hole */
    uint32_t index;
    uint64_t begin;
    uint64_t size;
} pleat__hole;
#define PLEAT__NO_HOLE UINT32_MAX

void pleat__holes_create(pleat__holes *holes, pleat__arena *arena);
void pleat__holes_destroy(pleat__holes *holes);
/* Starts again with these ranges, ascending and apart; the last ends at UINT64_MAX. */
PLEAT_NODISCARD pleat_result pleat__holes_reset(pleat__holes *holes, const pleat__range *ranges,
                                                uint32_t count);

/* The lowest hole of at least `size`; there always is one. */
pleat__hole pleat__holes_lowest(pleat__holes *holes, uint64_t size);
/* The smallest hole of at least `size` that lies below `cap`, the lowest of equals; else the
 * lowest. */
pleat__hole pleat__holes_tightest(pleat__holes *holes, uint64_t size, uint64_t cap);
/* The place of `size` bytes at the upper end of the highest hole below `cap`; UINT64_MAX when none
 * holds it. */
uint64_t pleat__holes_highest(pleat__holes *holes, uint64_t size, uint64_t cap);

/* The first hole, and the one after. slot is PLEAT__NO_HOLE at the end. */
pleat__hole pleat__holes_begin(const pleat__holes *holes);
pleat__hole pleat__holes_next(const pleat__holes *holes, pleat__hole hole);

/* Takes a range that lies within one hole. PLEAT_E_NO_MEMORY; false in *taken when it is not free
 * (then nothing changed). */
PLEAT_NODISCARD pleat_result pleat__holes_take(pleat__holes *holes, uint64_t begin, uint64_t size,
                                               bool *taken);
/* Gives a range back that is not free. */
PLEAT_NODISCARD pleat_result pleat__holes_give(pleat__holes *holes, uint64_t begin, uint64_t size);

#endif
