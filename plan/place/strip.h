/*
 * strip.h: a placement problem made ready for packing: what cannot be chosen is out of the way, and
 * time is ranks.
 *
 * A strip holds the items of one stream that live part of the time. Items that live always and
 * items with a fixed place only take address ranges away; `free` is what they leave. Memory does
 * not pass from one stream to another (fold.h says why), so the range another stream uses is taken
 * away too.
 *
 * RANKS    The allocations and frees of the strip's spans in order of time, frees first where they
 *          coincide: a span lives in [begin, end) of them, and two spans meet exactly when those
 *          overlap. A circular problem is cut where the fewest bytes are live; a span that is live
 *          across the cut is a wrap: end <= begin, live in [begin, ranks) and [0, end).
 */
#ifndef PLEAT_PLAN_PLACE_STRIP_H
#define PLEAT_PLAN_PLACE_STRIP_H

#include <plan/place/place.h>

typedef struct pleat__span {
    uint64_t size;
    uint32_t begin;
    uint32_t end;
} pleat__span;

typedef struct pleat__strip {
    pleat__arena *arena;
    const pleat__problem *problem;
    pleat__span *spans; /* in order of begin */
    uint32_t *items;    /* the problem's item of each span */
    uint32_t count;
    uint32_t *events; /* rank -> span * 2 + (1 when it is the free) */
    uint32_t ranks;
    uint32_t *wraps; /* spans live across the cut, by end descending */
    uint32_t wrap_count;
    const pleat__range *free; /* ascending, apart; the last ends at UINT64_MAX */
    uint32_t free_count;
    uint64_t max_live; /* of the spans */
    uint64_t floor;    /* no placement is lower: where `free` has held max_live bytes */
} pleat__strip;

/* The items that strips hold, by stream and then in order; from `arena`. */
PLEAT_NODISCARD pleat_result pleat__strip_members(const pleat__problem *problem,
                                                  pleat__arena *arena, uint32_t **members,
                                                  uint32_t *count);
/* The strip of some members, all of one stream. `free` must outlive it. */
PLEAT_NODISCARD pleat_result pleat__strip_make(const pleat__problem *problem,
                                               const uint32_t *members, uint32_t count,
                                               const pleat__range *free, uint32_t free_count,
                                               pleat__arena *arena, pleat__strip *out);
/* The same of all members, where the problem has one stream. */
PLEAT_NODISCARD pleat_result pleat__strip_make_whole(const pleat__problem *problem,
                                                     const pleat__range *free, uint32_t free_count,
                                                     pleat__arena *arena, pleat__strip *out);
void pleat__strip_free(pleat__strip *strip);

static inline bool pleat__span_wraps(const pleat__span *span)
{
    return span->end <= span->begin;
}

/* Lifetime of a span in ranks. */
static inline uint32_t pleat__span_life(const pleat__strip *strip, const pleat__span *span)
{
    return pleat__span_wraps(span) ? span->end + (strip->ranks - span->begin)
                                   : span->end - span->begin;
}

static inline bool pleat__spans_meet(const pleat__span *a, const pleat__span *b)
{
    if (pleat__span_wraps(a))
        return pleat__span_wraps(b) || b->begin < a->end || b->end > a->begin;
    if (pleat__span_wraps(b))
        return a->begin < b->end || a->end > b->begin;
    return a->begin < b->end && b->begin < a->end;
}

#endif
