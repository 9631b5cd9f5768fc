/*
 * schedule.h: a sequence of requests that a job is expected to repeat, with a place for each: from
 * a plan file, from what the job did in the iteration before (learn.h), or from a plan made of its
 * last iterations (draft.h). The policy follows one and
 * keeps some others for shapes that come back.
 */
#ifndef PLEAT_RUNTIME_FOLLOW_SCHEDULE_H
#define PLEAT_RUNTIME_FOLLOW_SCHEDULE_H

#include <runtime/follow/lane.h>
#include <runtime/follow/matcher.h>
#include <runtime/follow/next_use.h>

/* A phase of the sequence and its first item. */
typedef struct pleat__follow_phase {
    const char *name; /* the plan's, which stays */
    uint32_t item;
} pleat__follow_phase;

typedef struct pleat__follow {
    pleat__arena *arena;
    pleat__expected *items;
    uint32_t count;
    bool learned;         /* its places may be changed, its views are pinned */
    bool file;            /* a plan file's: it is never dropped */
    pleat__runs *several; /* a plan's: the places of more than one run */
    pleat__extent *runs;
    pleat__lane_space *lanes; /* a plan's */
    uint32_t lane_count;
    uint32_t lane_base;          /* number of the first among all that are kept */
    pleat__follow_phase *phases; /* a plan's */
    uint32_t phase_count;
    uint32_t *lasting; /* a plan's: the items of its beginning that stay as long as the job runs */
    uint32_t lasting_count;
    uint64_t adopted; /* the policy's count of requests when it was taken up last */
    uint64_t made;    /* the same when it was taken up first */
    uint32_t agreed;  /* learned: of its items, how many the iteration before had too */
    bool loose; /* learned: less than half of them. It takes most of any iteration for its own */
    uint64_t looped; /* and when the first of those was that it took the place of, and that were
                        not much shorter */
    pleat__match match;
    pleat__foresee foresee; /* a plan's with dynamic requests */
    pleat__place *second;   /* learned: where items lay before they were replaced; NULL: none was */
} pleat__follow;

/* The plan's slots as places in the pool, which holds the plan's memory. */
PLEAT_NODISCARD pleat_result pleat__follow_plan(pleat__arena *arena, const pleat__pool *pool,
                                                const pleat_plan *plan, pleat__follow **out);
/* The same of a plan made for the pool as it is: pages[page of the window] is the chunk that will
 * be there. Of the pool only what never changes is read, and its counts. */
PLEAT_NODISCARD pleat_result pleat__follow_draft(pleat__arena *arena, const pleat__pool *pool,
                                                 const pleat_plan *plan, const uint32_t *pages,
                                                 pleat__follow **out);
/* An iteration as it went; takes over `items`, whose views are pinned. On failure they stay the
 * caller's. */
PLEAT_NODISCARD pleat_result pleat__follow_learned(pleat__arena *arena, pleat__expected *items,
                                                   uint32_t count, pleat__follow **out);
/* NULL is allowed. */
void pleat__follow_free(pleat__follow *follow);
/* A slot was not free and its request went elsewhere: there from now on. The old place is kept as
 * the second, for what lives a little longer than an iteration (a batch of data is freed when the
 * next one is there) and must alternate between two, and for all that then does so too. */
void pleat__follow_replace(pleat__follow *follow, uint32_t item, const pleat__place *place);
/* The same for an instance, whose slots stay: the new place is the second. */
void pleat__follow_keep(pleat__follow *follow, uint32_t item, const pleat__place *place);

/* The slot, if one is free, of a tensor that stays, for a request of its size: what a job made in
 * its first step is there from its start where it was saved and is loaded again. Occupied. */
bool pleat__follow_in_lasting(const pleat__follow *follow, pleat__heap *heap, uint64_t bytes,
                              uint16_t stream, pleat__place *place);

/* schedule_lanes.c: places a request that has no slot, or whose slot is taken, in a lane, and marks
 * it occupied: the lane of the item that it is (PLEAT__NO_ITEM: none), or of its neighbours, or any
 * whose time it is. false: none has room. */
bool pleat__follow_in_lane(pleat__follow *follow, pleat__heap *heap, uint32_t item,
                           uint32_t granules, uint16_t stream, pleat__place *place);
/* The slot nearby of an item that looks the same, when it is free: where layers or experts are
 * alike, one of them may be taken for the next. */
bool pleat__follow_in_like(const pleat__follow *follow, pleat__heap *heap, uint32_t item,
                           uint16_t stream, pleat__place *place);

/* The lane of that number, or NULL. */
static inline pleat__lane_space *pleat__follow_lane(const pleat__follow *follow, uint32_t lane)
{
    return lane - follow->lane_base < follow->lane_count ? &follow->lanes[lane - follow->lane_base]
                                                         : NULL;
}

/* The job enters a phase: where the sequence has it, nearest to where the matcher is. */
void pleat__follow_enter(pleat__follow *follow, const char *name);

/* An item's second place; NULL when it has none. */
static inline const pleat__place *pleat__follow_second(const pleat__follow *follow, uint32_t item)
{
    return follow->second != NULL && follow->second[item].granules != 0 ? &follow->second[item]
                                                                        : NULL;
}

#endif
