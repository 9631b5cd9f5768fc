/*
 * fit.c: best fit within a lane, as the runtime does it: how high it gets. See lanes.h.
 */
#include <plan/lanes/lanes.h>

#include <internal/check.h>
#include <internal/error.h>
#include <plan/base/free_ranges.h>
#include <plan/base/sort.h>

/* Takes the smallest range that holds `size`, the lowest of equals. There always is one: the last
 * has no end. */
static pleat_result take_tightest(pleat__gaps *gaps, uint64_t size, uint64_t *place)
{
    PLEAT_CHECK(pleat__gaps_tightest(gaps, size, place));
    return pleat__gaps_take(gaps, (pleat__range){*place, *place + size});
}

/* Events of requests in order, frees first: request * 2 + (1 when it is the free). */
static void order_events(const pleat__lane_request *requests, uint32_t count, uint64_t *keys,
                         uint32_t *order, uint32_t *spare)
{
    for (uint32_t i = 0; i < count; i++) {
        keys[2 * i] = (uint64_t)requests[i].begin << 1 | 1;
        keys[2 * i + 1] = (uint64_t)requests[i].end << 1;
        order[2 * i] = 2 * i;
        order[2 * i + 1] = 2 * i + 1;
    }
    pleat__sort_by_key(order, spare, 2ull * count, keys);
}

static pleat_result fit_events(const pleat__lane_request *requests, uint32_t count,
                               const uint32_t *order, pleat__gaps *gaps, uint64_t *places,
                               uint64_t *height)
{
    for (uint32_t i = 0; i < count; i++)
        if (requests[i].end <= requests[i].begin)
            PLEAT_TRY(take_tightest(gaps, requests[i].size, &places[i]));
    for (uint32_t e = 0; e < 2 * count; e++) {
        uint32_t i = order[e] / 2;
        uint64_t size = requests[i].size;
        if (order[e] % 2 == 1) {
            PLEAT_TRY(pleat__gaps_give(gaps, (pleat__range){places[i], places[i] + size}));
            continue;
        }
        PLEAT_TRY(take_tightest(gaps, size, &places[i]));
        *height = places[i] + size > *height ? places[i] + size : *height;
    }
    return PLEAT_OK;
}

pleat_result pleat__lane_fit(const pleat__lane_request *requests, uint32_t count,
                             pleat__arena *scratch, uint64_t *height)
{
    uint64_t *keys = pleat__arena_alloc(scratch, (2ull * count + 1) * sizeof *keys);
    uint32_t *order = pleat__arena_alloc(scratch, (4ull * count + 1) * sizeof *order);
    uint64_t *places = pleat__arena_alloc(scratch, (count + 1ull) * sizeof *places);
    pleat__gaps gaps;
    pleat__gaps_init(&gaps, scratch);
    *height = 0;
    pleat_result result = PLEAT_OK;
    if (keys == NULL || order == NULL || places == NULL) {
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to fit %u requests", count);
        goto out;
    }
    order_events(requests, count, keys, order, order + 2ull * count);
    result = pleat__gaps_give(&gaps, (pleat__range){0, UINT64_MAX});
    if (result == PLEAT_OK)
        result = fit_events(requests, count, order, &gaps, places, height);
out:
    pleat__gaps_done(&gaps);
    pleat__arena_free(scratch, keys);
    pleat__arena_free(scratch, order);
    pleat__arena_free(scratch, places);
    return result;
}
