/*
 * sweep.c: spans are placed in the order in which they are born (or, backward, in which they
 * die), each low or high as it lives long or not, so that only what is live at the moment has to be
 * looked at.
 *
 * The two-ended form, long-lived spans low and short-lived ones high, keeps what comes and goes out
 * of the holes that long-lived spans leave, and is the strongest of the cheap heuristics
 * (portfolio.c tries it over quantiles of the lifetime). First fit in birth order is online
 * allocation with knowledge of lifetimes; its theory is in Buchsbaum et al., "OPT versus LOAD in
 * dynamic storage allocation" (2004).
 *
 * WRAPS   Spans that are live across the cut of the circle are placed before the walk begins, the
 *         one that stays longest lowest, and hold their place again from their birth on: a span
 *         that is still live then keeps clear of them.
 */
#include <plan/place/sweep.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/search.h>
#include <plan/base/sort.h>

/* A wrap that comes back, where it lies; wraps are apart. */
struct wrap {
    uint64_t begin, end;
    uint32_t returns; /* rank */
};

struct sweep {
    const pleat__strip *strip;
    const pleat__strip_sweep_options *options;
    pleat__gaps *gaps;
    uint64_t *places;
    uint64_t height;
    uint32_t *by_place; /* wraps in order of place, and room to sort them */
    struct wrap *wraps; /* the same ones */
    uint32_t rewrap;    /* the first rank at which one comes back */
};

/* A span's life as the walk sees it. */
static uint32_t last_rank(const struct sweep *sweep, const pleat__span *span)
{
    return sweep->options->backward ? sweep->strip->ranks - span->begin : span->end;
}

static uint32_t return_rank(const struct sweep *sweep, const pleat__span *wrap)
{
    return sweep->options->backward ? sweep->strip->ranks - wrap->end : wrap->begin;
}

static pleat_result take(struct sweep *sweep, uint32_t span, uint64_t place)
{
    uint64_t end = place + sweep->strip->spans[span].size;
    PLEAT_TRY(pleat__gaps_take(sweep->gaps, (pleat__range){place, end}));
    sweep->places[span] = place;
    if (end > sweep->height)
        sweep->height = end;
    return PLEAT_OK;
}

static pleat_result give(struct sweep *sweep, uint32_t span)
{
    uint64_t place = sweep->places[span];
    return pleat__gaps_give(sweep->gaps,
                            (pleat__range){place, place + sweep->strip->spans[span].size});
}

/* There always is one: the last range has no end. */
static uint64_t lowest(const struct sweep *sweep, uint64_t size)
{
    uint64_t place = 0;
    PLEAT_CHECK(pleat__gaps_lowest(sweep->gaps, size, &place));
    return place;
}

/* The lowest place in a hole that no wrap comes back to while the span lives. */
static uint64_t lowest_clear(const struct sweep *sweep, const pleat__span *span)
{
    uint32_t last = last_rank(sweep, span), count = sweep->strip->wrap_count, w;
    pleat__gap_at at;
    for (bool any = pleat__gaps_from(sweep->gaps, 0, &at); any;
         any = pleat__gaps_next(sweep->gaps, &at)) {
        pleat__range hole = pleat__gaps_get(sweep->gaps, at);
        uint64_t place = hole.begin;
        sweep->gaps->work++;
        if (hole.end - place < span->size)
            continue;
        PLEAT__FIRST(w, count, sweep->wraps[w].end > place);
        for (; w < count && hole.end - place >= span->size; w++) {
            const struct wrap *wrap = &sweep->wraps[w];
            if (wrap->begin >= place + span->size)
                break;
            if (wrap->returns < last)
                place = wrap->end < hole.end ? wrap->end : hole.end;
        }
        if (hole.end - place >= span->size)
            return place;
    }
    return lowest(sweep, span->size);
}

static uint64_t choose(const struct sweep *sweep, uint32_t index)
{
    const pleat__span *span = &sweep->strip->spans[index];
    if (last_rank(sweep, span) > sweep->rewrap)
        return lowest_clear(sweep, span);
    uint64_t place;
    bool low = pleat__span_life(sweep->strip, span) >= sweep->options->long_life;
    return !low && pleat__gaps_highest_below(sweep->gaps, span->size, sweep->strip->floor, &place)
               ? place
               : lowest(sweep, span->size);
}

/* Wraps first, the one that stays longest lowest. */
static pleat_result place_wraps(struct sweep *sweep)
{
    const pleat__strip *strip = sweep->strip;
    uint32_t count = strip->wrap_count;
    uint32_t *by_place = pleat__arena_alloc(strip->arena, 2 * (uint64_t)count * sizeof *by_place);
    sweep->by_place = by_place;
    sweep->wraps = pleat__arena_alloc(strip->arena, count * sizeof *sweep->wraps);
    if (by_place == NULL || sweep->wraps == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t span = strip->wraps[sweep->options->backward ? count - 1 - i : i];
        uint64_t place = lowest(sweep, strip->spans[span].size);
        PLEAT_TRY(take(sweep, span, place));
        by_place[i] = span;
    }
    pleat__sort_by_key(by_place, by_place + count, count, sweep->places);
    for (uint32_t i = 0; i < count; i++) {
        const pleat__span *span = &strip->spans[by_place[i]];
        uint64_t place = sweep->places[by_place[i]];
        uint32_t returns = return_rank(sweep, span);
        sweep->wraps[i] = (struct wrap){place, place + span->size, returns};
        sweep->rewrap = returns < sweep->rewrap ? returns : sweep->rewrap;
    }
    return PLEAT_OK;
}

static pleat_result walk(struct sweep *sweep)
{
    const pleat__strip *strip = sweep->strip;
    bool backward = sweep->options->backward;
    for (uint32_t i = 0; i < strip->ranks; i++) {
        uint32_t event = strip->events[backward ? strip->ranks - 1 - i : i], span = event / 2;
        bool leaves = (event % 2 == 1) != backward;
        if (leaves) {
            PLEAT_TRY(give(sweep, span));
            continue;
        }
        uint64_t place =
            pleat__span_wraps(&strip->spans[span]) ? sweep->places[span] : choose(sweep, span);
        PLEAT_TRY(take(sweep, span, place));
        if (sweep->height >= sweep->options->limit)
            return PLEAT_OK;
    }
    return PLEAT_OK;
}

pleat_result pleat__strip_sweep(const pleat__strip *strip,
                                const pleat__strip_sweep_options *options, pleat__gaps *gaps,
                                uint64_t *places, uint64_t *height)
{
    struct sweep sweep = {
        .strip = strip, .options = options, .gaps = gaps, .places = places, .rewrap = UINT32_MAX};
    pleat__gaps_clear(gaps);
    for (uint32_t i = 0; i < strip->free_count; i++)
        PLEAT_TRY(pleat__gaps_give(gaps, strip->free[i]));
    pleat_result result = place_wraps(&sweep);
    if (result == PLEAT_OK)
        result = walk(&sweep);
    pleat__arena_free(strip->arena, sweep.by_place);
    pleat__arena_free(strip->arena, sweep.wraps);
    *height = sweep.height >= options->limit ? UINT64_MAX : sweep.height;
    gaps->work += strip->ranks;
    return result;
}
