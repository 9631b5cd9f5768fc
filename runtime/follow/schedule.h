/*
 * schedule.h: the requests that a job is expected to repeat, in order, each with a slot, a lane or
 * nothing. A schedule comes from a plan file, from a plan laid out for a larger size
 * (layout_job.h), or from the iteration that the job did last (recording.h). The policy follows at
 * most one at a time.
 */
#ifndef PLEAT_RUNTIME_FOLLOW_SCHEDULE_H
#define PLEAT_RUNTIME_FOLLOW_SCHEDULE_H

#include <runtime/follow/lane.h>
#include <runtime/follow/matcher.h>

/* Of a page table: no chunk is mapped at this page. */
#define PLEAT__NO_CHUNK UINT32_MAX

typedef struct pleat__schedule {
    pleat__arena *arena;
    pleat__expected *items;
    uint32_t count;
    bool learned;         /* from a recording: its places may change, and its views are pinned */
    pleat__runs *several; /* a plan's: the places of more than one run */
    uint32_t several_count;
    pleat__run *runs;
    pleat__lane_space *lanes; /* a plan's */
    uint32_t *lane_starts;    /* of their runs, one lane's behind the other */
    uint32_t lane_count;
    uint32_t lane_base; /* number of its first lane among those of all schedules */
    pleat__matcher matcher;
    pleat__place **second; /* a plan's: by PLEAT__SECONDS items, where they lie besides; or NULL */
} pleat__schedule;

/* Items whose second places are together (D468). */
#define PLEAT__SECONDS 1024u

/* Where a plan's pages are in the window. */
typedef struct pleat__plan_pages {
    const uint32_t *chunks; /* page of the plan -> chunk number, or PLEAT__NO_CHUNK */
    uint64_t moved_from;    /* the plan's pages from this one on ... */
    uint64_t moved_by;      /* ... are so many pages further up */
} pleat__plan_pages;

/* The plan's slots as places in the pool, which was made with the plan. */
PLEAT_NODISCARD pleat_result pleat__schedule_plan(pleat__arena *arena,
                                                  const pleat__chunk_pool *pool,
                                                  const pleat_plan *plan, pleat__schedule **out);
/* The same where the plan's memory lies elsewhere. A slot without a chunk behind each of its pages
 * has no place, such a lane is gone. */
PLEAT_NODISCARD pleat_result pleat__schedule_layout(pleat__arena *arena,
                                                    const pleat__chunk_pool *pool,
                                                    const pleat_plan *plan,
                                                    const pleat__plan_pages *pages,
                                                    pleat__schedule **out);
/* An iteration as it went; takes over `items`, whose views are pinned. On failure they stay the
 * caller's. They are not read before the first request: the caller may write them until then. */
PLEAT_NODISCARD pleat_result pleat__schedule_learned(pleat__arena *arena, pleat__expected *items,
                                                     uint32_t count, pleat__schedule **out);
/* NULL is allowed. */
void pleat__schedule_free(pleat__schedule *schedule);
/* A slot was not free and its request went elsewhere: a learned one is there from now on, a plan's
 * has that as its second place. */
void pleat__schedule_replace(pleat__schedule *schedule, uint32_t item, const pleat__place *place);

/* schedule_lanes.c: places a request that has no slot, or whose slot is taken, in a lane, and marks
 * it occupied: the lane of the item that it is (PLEAT__NO_ITEM: none), or of its neighbours.
 * false: none has room, or what room there is *rests: *place is where it would lie then, and its
 * list of runs, if it has one, is the caller's to free. */
bool pleat__schedule_in_lane(pleat__schedule *schedule, pleat__heap *heap, uint32_t item,
                             uint32_t granules, uint16_t stream, pleat__place *place, bool *rests);

/* The lane of that number, or NULL. */
static inline pleat__lane_space *pleat__schedule_lane(const pleat__schedule *schedule,
                                                      uint32_t lane)
{
    return lane - schedule->lane_base < schedule->lane_count
               ? &schedule->lanes[lane - schedule->lane_base]
               : NULL;
}

/* An item's second place; NULL when it has none. */
static inline const pleat__place *pleat__schedule_second(const pleat__schedule *schedule,
                                                         uint32_t item)
{
    const pleat__place *block =
        schedule->second != NULL ? schedule->second[item / PLEAT__SECONDS] : NULL;
    return block != NULL && block[item % PLEAT__SECONDS].granules != 0
               ? &block[item % PLEAT__SECONDS]
               : NULL;
}

#endif
