/*
 * widen.c: what idle bytes behind a lane can be added to it. See lanes.h.
 *
 * A lane's margin is worth having and not worth a chunk. Where a lane came to lie, the chunks
 * behind it are often idle as long as it lives: tails of folded chunks, and all that lies above the
 * other tensors outside the iteration's peak.
 */
#include <plan/lanes/lanes.h>

#include <internal/error.h>
#include <plan/fold/fold_internal.h>

/* Every lane is held against every item: about half a second of that. */
#define MOST_LOOKS 100000000u

/* The lowest and the highest of some chunks; none where the first is above the last. */
typedef struct reach {
    uint32_t first;
    uint32_t last;
} reach;

#define NO_REACH ((reach){UINT32_MAX, 0})

/* The pages behind a lane that it might grow over: chunk -> bytes of the window at which it is, or
 * PLEAT__NOWHERE. */
typedef struct widening {
    const pleat__problem *problem;
    const pleat__layout *layout;
    uint64_t chunk;
    uint64_t *at;   /* by chunk */
    reach *reaches; /* of the chunks that each item lies on */
    uint64_t begin;
    uint64_t end; /* grows to here at most */
    reach ahead;  /* of the chunks that are in `at` */
} widening;

static void reach_out(reach *all, uint32_t chunk)
{
    all->first = chunk < all->first ? chunk : all->first;
    all->last = chunk > all->last ? chunk : all->last;
}

/* To the chunks behind so many bytes of the window. */
static void reach_over(const widening *w, reach *all, uint64_t place, uint64_t size)
{
    for (uint64_t page = place / w->chunk; page * w->chunk < place + size; page++)
        reach_out(all, w->layout->pages[page]);
}

/* Cuts the growth where an item's bytes are behind it. Base pages show the chunks of their numbers,
 * of which only those ahead need be looked at. */
static void keep_clear_of(widening *w, uint64_t place, uint64_t size)
{
    uint64_t at = place, end = place + size;
    if (end <= w->layout->base_pages * w->chunk) {
        at = w->ahead.first * w->chunk > at ? w->ahead.first * w->chunk : at;
        end = (w->ahead.last + 1ull) * w->chunk < end ? (w->ahead.last + 1ull) * w->chunk : end;
    }
    while (at < end) {
        uint64_t page = at / w->chunk, next = (page + 1) * w->chunk;
        uint64_t seen = w->at[w->layout->pages[page]];
        if (seen != PLEAT__NOWHERE) {
            uint64_t last = next < end ? next : end;
            uint64_t low = seen + at % w->chunk, high = low + (last - at);
            if (low < w->end && high > w->begin)
                w->end = low > w->begin ? low : w->begin;
        }
        at = next;
    }
}

/* Marks the pages from the lane's end on; the first that shows nothing, or a chunk again, ends it.
 */
static void mark_pages(widening *w)
{
    uint64_t page = w->begin / w->chunk;
    for (; page * w->chunk < w->end && page < w->layout->page_count; page++) {
        uint32_t chunk = w->layout->pages[page];
        if (chunk == PLEAT__NO_CHUNK || w->at[chunk] != PLEAT__NOWHERE)
            break;
        w->at[chunk] = page * w->chunk;
        reach_out(&w->ahead, chunk);
    }
    if (page * w->chunk < w->end)
        w->end = page * w->chunk > w->begin ? page * w->chunk : w->begin;
}

static void unmark_pages(widening *w, uint64_t end)
{
    for (uint64_t page = w->begin / w->chunk; page * w->chunk < end && page < w->layout->page_count;
         page++)
        if (w->layout->pages[page] != PLEAT__NO_CHUNK)
            w->at[w->layout->pages[page]] = PLEAT__NOWHERE;
}

static void widen(widening *w, uint32_t item, pleat_plan *plan, uint32_t first, double margin)
{
    const pleat__problem *problem = w->problem;
    pleat__lane *lane = &plan->lanes[item - first];
    w->begin = lane->place + lane->bytes;
    w->end = w->begin + pleat__rounded((uint64_t)((double)lane->bytes * (margin - 1)));
    uint64_t wanted = w->end;
    w->ahead = NO_REACH;
    mark_pages(w);
    keep_clear_of(w, lane->place, lane->bytes);
    for (uint32_t i = 0; i < problem->count && w->end > w->begin; i++) {
        const reach *lies = &w->reaches[i];
        if (i == item || lies->last < w->ahead.first || lies->first > w->ahead.last ||
            pleat__item_empty(problem, &problem->items[i]) ||
            (problem->items[i].stream == problem->items[item].stream &&
             !pleat__items_meet(problem, i, item)))
            continue;
        uint64_t size = i >= first ? plan->lanes[i - first].bytes : problem->items[i].size;
        keep_clear_of(w, w->layout->places[i], size);
    }
    unmark_pages(w, wanted);
    reach_over(w, &w->reaches[item], w->begin, w->end - w->begin);
    lane->bytes += w->end - w->begin;
}

pleat_result pleat__lanes_widen(const pleat__problem *problem, const pleat__layout *layout,
                                uint32_t first, double margin, pleat__arena *scratch,
                                pleat_plan *plan)
{
    widening w = {.problem = problem, .layout = layout, .chunk = plan->chunk_bytes};
    w.at = pleat__arena_alloc(scratch, (layout->page_count + 1ull) * sizeof *w.at);
    w.reaches = pleat__arena_alloc(scratch, (problem->count + 1ull) * sizeof *w.reaches);
    if (w.at == NULL || w.reaches == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of %u pages",
                           layout->page_count);
    for (uint32_t page = 0; page <= layout->page_count; page++)
        w.at[page] = PLEAT__NOWHERE;
    for (uint32_t l = 0; l < plan->lane_count; l++)
        plan->lanes[l].place = layout->places[first + l];
    for (uint32_t i = 0; i < problem->count; i++) {
        w.reaches[i] = NO_REACH;
        if (!pleat__item_empty(problem, &problem->items[i]))
            reach_over(&w, &w.reaches[i], layout->places[i], problem->items[i].size);
    }
    uint64_t lanes = MOST_LOOKS / (problem->count + 1ull);
    for (uint32_t l = 0; l < plan->lane_count && l < lanes; l++)
        widen(&w, first + l, plan, first, margin);
    pleat__arena_free(scratch, w.at);
    pleat__arena_free(scratch, w.reaches);
    return PLEAT_OK;
}
