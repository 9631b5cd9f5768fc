/*
 * free_ranges.h: the free bytes of an address space, as ranges in ascending order, never touching.
 *
 * A placement sweep asks for the lowest or the highest range that is large enough some times a
 * request, so both must be far cheaper than a walk over all ranges: ranges are kept in blocks of
 * at most PLEAT__GAP_BLOCK, each with the size of its largest. A job has hundreds to a few thousand
 * ranges at a time, for which two short scans beat a balanced tree.
 */
#ifndef PLEAT_PLAN_BASE_FREE_RANGES_H
#define PLEAT_PLAN_BASE_FREE_RANGES_H

#include <internal/arena.h>
#include <internal/range.h>

#define PLEAT__GAP_BLOCK 64u

typedef struct pleat__gap_block {
    uint64_t first;   /* where its first range begins */
    uint64_t largest; /* bytes of its largest range */
    uint32_t count;   /* not 0 */
    uint32_t id;      /* index of its ranges in `ranges`, in blocks */
} pleat__gap_block;

typedef struct pleat__gaps {
    pleat__arena *arena;
    pleat__gap_block *blocks; /* in ascending order */
    pleat__range *ranges;     /* PLEAT__GAP_BLOCK a block */
    uint32_t *spare;          /* ids that no block has */
    uint32_t block_count;
    uint32_t capacity; /* of blocks, ranges and spare */
    uint32_t spare_count;
    uint64_t work; /* units of work spent, for whoever limits it */
} pleat__gaps;

/* Where a range is: valid until the next give or take. */
typedef struct pleat__gap_at {
    uint32_t block;
    uint32_t index;
} pleat__gap_at;

/* An empty set. Nothing is allocated before the first give. */
void pleat__gaps_init(pleat__gaps *gaps, pleat__arena *arena);
void pleat__gaps_done(pleat__gaps *gaps);
/* Forgets all ranges and keeps the memory. */
void pleat__gaps_clear(pleat__gaps *gaps);

/* Adds a range; pre: none of it is in the set. Empty ranges are allowed. PLEAT_E_NO_MEMORY leaves
 * the set as it was. */
PLEAT_NODISCARD pleat_result pleat__gaps_give(pleat__gaps *gaps, pleat__range range);
/* Removes a range; pre: all of it is in the set. The same errors. */
PLEAT_NODISCARD pleat_result pleat__gaps_take(pleat__gaps *gaps, pleat__range range);

/* The lowest and the highest place where `size` bytes are free; false when there is none. */
bool pleat__gaps_lowest(pleat__gaps *gaps, uint64_t size, uint64_t *place);
bool pleat__gaps_highest(pleat__gaps *gaps, uint64_t size, uint64_t *place);
/* The highest place that ends at or below `cap`; and the place in the smallest range of at least
 * `size`, the lowest of equals. */
bool pleat__gaps_highest_below(pleat__gaps *gaps, uint64_t size, uint64_t cap, uint64_t *place);
bool pleat__gaps_tightest(pleat__gaps *gaps, uint64_t size, uint64_t *place);
/* The lowest free part of the range; false: nothing of it is free. */
bool pleat__gaps_part(pleat__gaps *gaps, pleat__range range, pleat__range *part);
/* All of the range is free. */
bool pleat__gaps_holds(pleat__gaps *gaps, pleat__range range);

/* Walks: the first range that ends above `from`, and the one behind; false at the end. */
bool pleat__gaps_from(pleat__gaps *gaps, uint64_t from, pleat__gap_at *at);
bool pleat__gaps_next(pleat__gaps *gaps, pleat__gap_at *at);

static inline pleat__range pleat__gaps_get(const pleat__gaps *gaps, pleat__gap_at at)
{
    return gaps->ranges[(uint64_t)gaps->blocks[at.block].id * PLEAT__GAP_BLOCK + at.index];
}

/* Re-derives order, blocks and largest; prints what disagrees. */
bool pleat__gaps_audit(const pleat__gaps *gaps);

#endif
