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

/* Largest sum of sizes live at once. */
PLEAT_NODISCARD pleat_result pleat__max_live(const pleat__problem *problem, pleat__arena *scratch,
                                             uint64_t *bytes);

#endif
