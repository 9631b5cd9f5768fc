/*
 * next_use.h: when is free memory wanted next? For each chunk, the followed sequence's slots that
 * touch it, in order. An unplanned request that takes what a slot needs soon displaces the slot,
 * which then displaces another; so the heap asks this before it chooses among its holes. The memory
 * of a lane is wanted by each of its requests.
 */
#ifndef PLEAT_RUNTIME_FOLLOW_NEXT_USE_H
#define PLEAT_RUNTIME_FOLLOW_NEXT_USE_H

#include <runtime/follow/lane.h>
#include <runtime/follow/matcher.h>

typedef struct pleat__foresee {
    pleat__arena *arena;
    const pleat__match *match;
    uint32_t shift;       /* of granules in a chunk */
    uint32_t chunks;      /* those beyond are wanted by nobody */
    uint32_t *first;      /* chunk -> its first entry; one more at the end */
    uint32_t *items;      /* of the slots and lanes */
    pleat__extent *never; /* runs of chunks that none of them touches, in granules; the last one has
                             no end: what is made later */
    uint32_t never_count;
} pleat__foresee;

/* From the items of `match` and the lanes they name; the items stay. */
PLEAT_NODISCARD pleat_result pleat__foresee_init(pleat__foresee *foresee, pleat__arena *arena,
                                                 const pleat__match *match,
                                                 const pleat__lane_space *lanes,
                                                 uint32_t lane_count, const pleat__pool *pool);
void pleat__foresee_release(pleat__foresee *foresee);
/* Requests from the cursor to the first whose slot touches the run. */
uint32_t pleat__foresee_wanted(const void *foresee, pleat__extent run);

#endif
