/*
 * lane.h: a plan's lanes at run time: a stretch of the window each, over memory that no slot needs
 * while the lane's requests are there. A request is the best fit in its lane's free bytes; no
 * search through the pool, no driver call. Occupancy has the last word, as everywhere.
 *
 * BOUND  O(log n) in the lane's free holes and in its physical runs, of which there may be one for
 *        each chunk; and so many steps as a request has runs, for at most TRIES holes of STEPS
 *        strays (lane.c).
 */
#ifndef PLEAT_RUNTIME_FOLLOW_LANE_H
#define PLEAT_RUNTIME_FOLLOW_LANE_H

#include <runtime/memory/heap.h>

/* Granules here are counted from the lane's start. */
typedef struct pleat__lane_space {
    pleat_va address;
    uint32_t granules;
    pleat__run *runs;       /* its physical memory, in order */
    const uint32_t *starts; /* for each run, the granules before it */
    uint32_t run_count;
    pleat__free_runs free; /* empty until the first request: all of it is free then */
    uint32_t live;         /* requests */
    bool gone;             /* nothing is mapped there any more */
} pleat__lane_space;

/* `runs` stay the caller's, and so does `starts`, which is filled: a number for each of them. */
void pleat__lane_init(pleat__lane_space *lane, pleat__arena *arena, pleat_va address,
                      uint32_t granules, pleat__run *runs, uint32_t *starts, uint32_t run_count);
void pleat__lane_release(pleat__lane_space *lane);

/* Whether nothing was placed in it yet: the sets of what is free in it have no memory. That by size
 * gets its memory last. */
static inline bool pleat__lane_is_new(const pleat__lane_space *lane)
{
    return lane->free.by_size.capacity == 0;
}

/* The best fit of its free bytes; count 0: none. */
static inline pleat__run pleat__lane_best(const pleat__lane_space *lane, uint32_t granules)
{
    if (pleat__lane_is_new(lane))
        return (pleat__run){0, granules <= lane->granules ? lane->granules : 0};
    return pleat__free_runs_best(&lane->free, granules).run;
}

/* Places a request and marks it occupied; false when the lane has no room for it. */
bool pleat__lane_alloc(pleat__lane_space *lane, pleat__heap *heap, uint32_t granules,
                       uint16_t stream, pleat__place *place);
/* The place that is tried first, without taking it. `place->several` is the caller's to free. */
bool pleat__lane_hole(const pleat__lane_space *lane, pleat__arena *arena, uint32_t granules,
                      pleat__place *place);
/* Gives it back. Cannot fail. */
void pleat__lane_give(pleat__lane_space *lane, pleat__heap *heap, const pleat__place *place);

#endif
