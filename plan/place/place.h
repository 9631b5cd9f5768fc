/*
 * place.h: the problem every placement algorithm solves, and its answer.
 *
 * An item is a request of one sequence with its life as half-open event positions. Time is a circle
 * of `horizon` positions when the problem repeats (the steady iteration): an item with end <= begin
 * then lives in [begin, horizon) and [0, end). An item whose life covers everything has begin 0 and
 * end horizon. Sizes are multiples of 512; an item of size 0 or of an empty life takes no room and
 * is placed at 0.
 *
 * Every algorithm is a pure function of the problem: equal items give equal places; ties are broken
 * by item index.
 */
#ifndef PLEAT_PLAN_PLACE_PLACE_H
#define PLEAT_PLAN_PLACE_PLACE_H

#include <internal/arena.h>
#include <internal/range.h>
#include <stdbool.h>

typedef struct pleat__item {
    uint64_t size;
    uint64_t fixed; /* its place when it cannot be chosen (already in memory), else UINT64_MAX */
    uint32_t begin;
    uint32_t end;
    uint16_t begin_phase;
    uint16_t end_phase;
    uint16_t stream;
    uint16_t flags;
} pleat__item;

typedef struct pleat__problem {
    const pleat__item *items;
    uint32_t count;
    uint32_t horizon;
    bool circular;
} pleat__problem;

/* Whether an item lives all the time; whether it lives across the end of the circle; whether it
 * takes no room: its size is 0, or its life is empty. */
static inline bool pleat__item_always(const pleat__problem *problem, const pleat__item *item)
{
    return item->size != 0 && item->begin == 0 && item->end >= problem->horizon;
}

static inline bool pleat__item_wraps(const pleat__problem *problem, const pleat__item *item)
{
    return problem->circular && item->end <= item->begin;
}

static inline bool pleat__item_empty(const pleat__problem *problem, const pleat__item *item)
{
    if (pleat__item_wraps(problem, item))
        return item->size == 0 || (item->begin >= problem->horizon && item->end == 0);
    return item->size == 0 || item->end <= item->begin;
}

static inline bool pleat__item_comes_and_goes(const pleat__problem *problem,
                                              const pleat__item *item)
{
    return !pleat__item_empty(problem, item) && !pleat__item_always(problem, item);
}

/* Largest sum of sizes live at once. */
PLEAT_NODISCARD pleat_result pleat__max_live(const pleat__problem *problem, pleat__arena *scratch,
                                             uint64_t *bytes);

#endif
