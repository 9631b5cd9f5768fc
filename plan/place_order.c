/*
 * place_order.c: see order.h. First fit and best fit over spans ordered by size, area or lifetime
 * are the classical greedy algorithms for dynamic storage allocation (Sekiyama et al. 2018; the
 * "greedy by size" of Pisarchyk and Lee 2020).
 *
 * Which placed spans are live with a new one is asked of a tree over the spans in order of birth
 * that keeps the latest end: those born before the new one ends, with an end behind its birth. That
 * costs O(found * log n); the ranges found are then sorted by address.
 */
#include <plan/order.h>

#include <internal/error.h>
#include <plan/sort.h>
#include <string.h>

pleat_result pleat__order_create(pleat__order *order, const pleat__strip *strip, uint64_t *places)
{
    *order = (pleat__order){.strip = strip, .places = places, .leaves = 1};
    while (order->leaves < strip->count)
        order->leaves *= 2;
    order->ends = pleat__arena_alloc(strip->arena, 2 * (uint64_t)order->leaves * sizeof(uint32_t));
    if (order->ends == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order %u requests", strip->count);
    pleat__order_reset(order);
    return PLEAT_OK;
}

void pleat__order_destroy(pleat__order *order)
{
    if (order->strip == NULL)
        return;
    pleat__arena_free(order->strip->arena, order->ends);
    pleat__arena_free(order->strip->arena, order->nearby);
    *order = (pleat__order){0};
}

void pleat__order_reset(pleat__order *order)
{
    memset(order->ends, 0, 2 * (size_t)order->leaves * sizeof *order->ends);
    for (uint32_t i = 0; i < order->strip->count; i++)
        order->places[i] = PLEAT__NOT_PLACED;
    order->height = 0;
    order->work += order->strip->count / 4;
}

static pleat_result note(pleat__order *order, uint32_t span)
{
    PLEAT_TRY(pleat__arena_grow(order->strip->arena, &order->nearby, &order->nearby_capacity,
                                order->nearby_count, sizeof *order->nearby));
    uint64_t place = order->places[span];
    order->nearby[order->nearby_count++] =
        (pleat__range){place, place + order->strip->spans[span].size};
    return PLEAT_OK;
}

/* Notes the placed spans below `node`, which covers spans [first, first + width), that are among
 * the first `count` and end behind `after`. Wraps are not in the tree. */
static pleat_result visit(pleat__order *order, uint32_t node, uint32_t first, uint32_t width,
                          uint32_t count, uint32_t after)
{
    if (first >= count || order->ends[node] <= after)
        return PLEAT_OK;
    order->work++;
    if (width == 1)
        return note(order, first);
    PLEAT_TRY(visit(order, 2 * node, first, width / 2, count, after));
    return visit(order, 2 * node + 1, first + width / 2, width / 2, count, after);
}

/* The number of spans born before a rank. */
static uint32_t born_before(const pleat__strip *strip, uint32_t rank)
{
    uint32_t low = 0, high = strip->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strip->spans[middle].begin < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static pleat_result find_nearby(pleat__order *order, uint32_t index)
{
    const pleat__strip *strip = order->strip;
    const pleat__span *span = &strip->spans[index];
    order->nearby_count = 0;
    if (pleat__span_wraps(span)) {
        PLEAT_TRY(visit(order, 1, 0, order->leaves, strip->count, span->begin));
        PLEAT_TRY(visit(order, 1, 0, order->leaves, born_before(strip, span->end), 0));
    } else {
        PLEAT_TRY(visit(order, 1, 0, order->leaves, born_before(strip, span->end), span->begin));
    }
    for (uint32_t i = 0; i < strip->wrap_count; i++) {
        uint32_t wrap = strip->wraps[i];
        if (order->places[wrap] != PLEAT__NOT_PLACED &&
            pleat__spans_meet(span, &strip->spans[wrap]))
            PLEAT_TRY(note(order, wrap));
    }
    order->work += 4 + strip->wrap_count / 4;
    return PLEAT_OK;
}

static void sort_nearby(pleat__order *order)
{
    /* Most queries find a handful, and neighbours by birth are often neighbours by address: an
     * insertion sort first, a heap sort where that does not end soon. */
    pleat__range *ranges = order->nearby;
    uint32_t count = order->nearby_count;
    uint64_t moves = 0, most = 8 * (uint64_t)count + 64;
    uint32_t i = 1;
    for (; i < count && moves < most; i++) {
        pleat__range range = ranges[i];
        uint32_t at = i;
        for (; at > 0 && ranges[at - 1].begin > range.begin; at--, moves++)
            ranges[at] = ranges[at - 1];
        ranges[at] = range;
    }
    order->work += (moves + count) / 8;
    if (i >= count)
        return;
    for (uint32_t size = count, root = count / 2; size > 1;) {
        pleat__range range;
        if (root > 0) {
            range = ranges[--root];
        } else {
            range = ranges[--size];
            ranges[size] = ranges[0];
        }
        uint32_t hole = root;
        for (uint32_t child; (child = 2 * hole + 1) < size; hole = child) {
            child += child + 1 < size && ranges[child + 1].begin > ranges[child].begin;
            if (ranges[child].begin <= range.begin)
                break;
            ranges[hole] = ranges[child];
        }
        ranges[hole] = range;
    }
    order->work += count;
}

/* The gaps between the ranges found, within what the strip may use. */
typedef struct gap_search {
    uint64_t size;
    pleat__fit fit;
    uint64_t place;
    uint64_t slack;
} gap_search;

/* true: no later gap can be better. */
static bool offer(gap_search *search, uint64_t begin, uint64_t end)
{
    if (begin >= end || end - begin < search->size)
        return false;
    bool last = end == UINT64_MAX;
    if (search->place == PLEAT__NOT_PLACED ||
        (!last && end - begin - search->size < search->slack)) {
        search->place = begin;
        search->slack = end - begin - search->size;
    }
    return search->fit == PLEAT__FIT_LOWEST || search->slack == 0 || last;
}

static uint64_t best_gap(const pleat__order *order, uint64_t size, pleat__fit fit)
{
    const pleat__strip *strip = order->strip;
    gap_search search = {.size = size, .fit = fit, .place = PLEAT__NOT_PLACED};
    uint32_t n = 0;
    for (uint32_t f = 0; f < strip->free_count; f++) {
        uint64_t at = strip->free[f].begin;
        for (; n < order->nearby_count && order->nearby[n].begin < strip->free[f].end; n++) {
            if (offer(&search, at, order->nearby[n].begin))
                return search.place;
            at = order->nearby[n].end > at ? order->nearby[n].end : at;
        }
        if (offer(&search, at, strip->free[f].end))
            return search.place;
    }
    return search.place;
}

pleat_result pleat__order_find(pleat__order *order, uint32_t span, pleat__fit fit, uint64_t *place)
{
    PLEAT_TRY(find_nearby(order, span));
    sort_nearby(order);
    *place = best_gap(order, order->strip->spans[span].size, fit);
    order->work += order->nearby_count / 4;
    return PLEAT_OK;
}

pleat_result pleat__order_is_free(pleat__order *order, uint32_t span, uint64_t place, bool *is_free)
{
    PLEAT_TRY(find_nearby(order, span));
    pleat__range range = {place, place + order->strip->spans[span].size};
    *is_free = false;
    for (uint32_t i = 0; i < order->nearby_count; i++)
        if (pleat__range_overlaps(range, order->nearby[i]))
            return PLEAT_OK;
    for (uint32_t i = 0; i < order->strip->free_count; i++)
        if (pleat__range_contains(order->strip->free[i], range))
            *is_free = true;
    return PLEAT_OK;
}

static void set_end(pleat__order *order, uint32_t span, uint32_t end)
{
    uint32_t node = order->leaves + span;
    order->ends[node] = end;
    while (node > 1) {
        uint32_t left = order->ends[node & ~1u], right = order->ends[node | 1u];
        uint32_t latest = left > right ? left : right;
        node /= 2;
        if (order->ends[node] == latest)
            break;
        order->ends[node] = latest;
        order->work++;
    }
}

void pleat__order_put(pleat__order *order, uint32_t span, uint64_t place)
{
    const pleat__span *life = &order->strip->spans[span];
    order->places[span] = place;
    if (!pleat__span_wraps(life))
        set_end(order, span, life->end);
    if (place + life->size > order->height)
        order->height = place + life->size;
}

void pleat__order_remove(pleat__order *order, uint32_t span)
{
    order->places[span] = PLEAT__NOT_PLACED;
    if (!pleat__span_wraps(&order->strip->spans[span]))
        set_end(order, span, 0);
}

pleat_result pleat__order_run(pleat__order *order, const uint32_t *sequence, pleat__fit fit,
                              uint64_t limit, uint64_t budget, uint64_t *height)
{
    uint64_t end = order->work + budget;
    *height = UINT64_MAX;
    pleat__order_reset(order);
    for (uint32_t i = 0; i < order->strip->count; i++) {
        uint64_t place;
        PLEAT_TRY(pleat__order_find(order, sequence[i], fit, &place));
        pleat__order_put(order, sequence[i], place);
        if (order->height >= limit || order->work >= end)
            return PLEAT_OK;
    }
    *height = order->height;
    return PLEAT_OK;
}
