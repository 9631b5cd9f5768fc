/*
 * timeline.h: which addresses are taken when, for placement in any order: a span goes where the
 * spans placed before it, and live with it, leave room.
 *
 * Time is cut into blocks of PLEAT__TIMELINE_BLOCK ranks under a binary tree. Each node lists, as
 * ranges of addresses grown together where they touch,
 *   cover   what spans take that live through all of its blocks but not through its parent's
 *   any     what spans take that live at some time in its blocks, those in the covers above aside
 * A span's life falls into O(log n) nodes that it covers and at most two blocks that it begins or
 * ends in; those are looked through event by event, one a rank. What is taken in that life is the
 * `any` of the nodes covered and the `cover` of all above them. First fit packs densely, so that
 * the lists stay far shorter than the number of spans: a query looks at hundreds of ranges where
 * the spans themselves are tens of thousands.
 */
#ifndef PLEAT_PLAN_PLACE_TIMELINE_H
#define PLEAT_PLAN_PLACE_TIMELINE_H

#include <plan/place/strip.h>

#define PLEAT__TIMELINE_BLOCK 32
#define PLEAT__NOT_PLACED     UINT64_MAX

/* Disjoint ranges in ascending order. */
typedef struct pleat__range_list {
    pleat__range *ranges;
    uint32_t count;
    uint32_t capacity;
} pleat__range_list;

/* A list as a query walks it: what lies before `next` ends at or below the address looked at. */
typedef struct pleat__timeline_cursor {
    const pleat__range *next;
    const pleat__range *end;
} pleat__timeline_cursor;

typedef struct pleat__timeline {
    const pleat__strip *strip;
    uint64_t *places; /* of the spans; PLEAT__NOT_PLACED */
    pleat__range_list *cover;
    pleat__range_list *any;
    uint32_t leaves;     /* a power of two */
    pleat__range *taken; /* the complement of the strip's free ranges */
    uint32_t taken_count;
    pleat__timeline_cursor cursors[160];
    uint32_t cursor_count;
    pleat__range edge[4 * PLEAT__TIMELINE_BLOCK]; /* found in the blocks at both ends of a life */
    uint32_t edge_count;
    uint64_t height;
    uint64_t work; /* steps, about 10 ns each */
} pleat__timeline;

/* `places` belongs to the caller and is overwritten: nothing is placed yet. */
PLEAT_NODISCARD pleat_result pleat__timeline_create(pleat__timeline *timeline,
                                                    const pleat__strip *strip, uint64_t *places);
/* Nothing needs to have been created. */
void pleat__timeline_destroy(pleat__timeline *timeline);

/* The lowest place for a span; nothing is placed yet. There always is one. */
uint64_t pleat__timeline_find(pleat__timeline *timeline, uint32_t span);
/* The lowest place at or above `address` that the strip may use, whatever is placed. */
uint64_t pleat__timeline_above(const pleat__timeline *timeline, uint64_t address, uint64_t size);
PLEAT_NODISCARD pleat_result pleat__timeline_put(pleat__timeline *timeline, uint32_t span,
                                                 uint64_t place);

/* Places all spans in the order given, until the work reaches `budget`; then *height is UINT64_MAX.
 * pre: nothing is placed. */
PLEAT_NODISCARD pleat_result pleat__timeline_run(pleat__timeline *timeline,
                                                 const uint32_t *sequence, uint64_t budget,
                                                 uint64_t *height);

#endif
