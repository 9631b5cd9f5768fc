/*
 * greedy.c: the greedy algorithms of the portfolio: orders by size and by lifetime
 * (timeline.c) and two-ended sweeps (sweep.c), each with the parameters worth trying.
 *
 * Two-ended sweeps: what lives at least as long as a quantile of all lifetimes goes low, the rest
 * high. Which quantile is best differs from job to job, and neighbours are no guide, so all are
 * tried, forward and backward in time. An order of n spans costs about n times what is live; sweeps
 * cost n log n.
 */
#include <plan/place/portfolio.h>
#include <plan/place/sweep.h>
#include <plan/place/timeline.h>

#include <internal/error.h>
#include <plan/base/quantiles.h>
#include <plan/base/sort.h>

/* Work that one order, and all sweeps together, may take, whatever the size. */
#define ORDER_BUDGET(count) (4000000u + 120u * (uint64_t)(count))
#define SWEEP_BUDGET(count) (20000000u + 160u * (uint64_t)(count))

typedef uint64_t (*span_key)(const pleat__strip *strip, const pleat__span *span);

static uint64_t key_size(const pleat__strip *strip, const pleat__span *span)
{
    (void)strip;
    return ~span->size;
}

static uint64_t key_life(const pleat__strip *strip, const pleat__span *span)
{
    return ~(uint64_t)pleat__span_life(strip, span);
}

/* sequence[count] by ascending key; spans of equal keys by birth. */
static pleat_result make_sequence(const pleat__strip *strip, span_key key, uint32_t *sequence)
{
    uint64_t *keys = pleat__arena_alloc(strip->arena, strip->count * sizeof *keys);
    uint32_t *spare = pleat__arena_alloc(strip->arena, strip->count * sizeof *spare);
    pleat_result result = PLEAT_OK;
    if (keys == NULL || spare == NULL) {
        result =
            pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order %u requests", strip->count);
    } else {
        for (uint32_t i = 0; i < strip->count; i++) {
            keys[i] = key(strip, &strip->spans[i]);
            sequence[i] = i;
        }
        pleat__sort_by_key(sequence, spare, strip->count, keys);
    }
    pleat__arena_free(strip->arena, keys);
    pleat__arena_free(strip->arena, spare);
    return result;
}

static pleat_result place_by(pleat__placing *placing, pleat__algorithm algorithm, span_key key,
                             uint64_t *height, uint64_t *work)
{
    const pleat__strip *strip = placing->strip;
    pleat__timeline timeline = {0};
    uint32_t *sequence = pleat__arena_alloc(placing->arena, strip->count * sizeof *sequence);
    if (sequence == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order %u requests", strip->count);
    pleat_result result = make_sequence(strip, key, sequence);
    if (result == PLEAT_OK)
        result = pleat__timeline_create(&timeline, strip, placing->trial);
    if (result == PLEAT_OK)
        result = pleat__timeline_run(&timeline, sequence, ORDER_BUDGET(strip->count), height);
    if (result == PLEAT_OK)
        pleat__placing_offer(placing, algorithm, *height);
    *work += timeline.work;
    pleat__timeline_destroy(&timeline);
    pleat__arena_free(placing->arena, sequence);
    return result;
}

pleat_result pleat__place_size(pleat__placing *placing, uint64_t *height, uint64_t *work)
{
    return place_by(placing, PLEAT__ALGORITHM_size, key_size, height, work);
}

pleat_result pleat__place_lifetime(pleat__placing *placing, uint64_t *height, uint64_t *work)
{
    return place_by(placing, PLEAT__ALGORITHM_lifetime, key_life, height, work);
}

static uint32_t life_of(const void *strip, uint32_t span)
{
    return pleat__span_life(strip, &((const pleat__strip *)strip)->spans[span]);
}

/* The lifetimes at the quantiles, ascending and different; the last is beyond all. */
static pleat_result find_lives(const pleat__strip *strip, uint32_t lives[PLEAT__QUANTILES + 1],
                               uint32_t *count)
{
    PLEAT_TRY(pleat__quantiles(strip->arena, life_of, strip, strip->count, lives));
    *count = 0;
    for (uint32_t q = 0; q < PLEAT__QUANTILES; q++)
        if (*count == 0 || lives[q] != lives[*count - 1])
            lives[(*count)++] = lives[q];
    lives[(*count)++] = UINT32_MAX;
    return PLEAT_OK;
}

static pleat_result sweep_once(pleat__placing *placing, uint32_t long_life, bool backward,
                               uint64_t *height)
{
    const pleat__strip *strip = placing->strip;
    const pleat__strip_sweep_options options = {
        .backward = backward, .limit = placing->height, .long_life = long_life};
    uint64_t reached;
    PLEAT_TRY(pleat__strip_sweep(strip, &options, &placing->gaps, placing->trial, &reached));
    *height = reached < *height ? reached : *height;
    pleat__placing_offer(placing, PLEAT__ALGORITHM_sweep, reached);
    return PLEAT_OK;
}

pleat_result pleat__place_sweep(pleat__placing *placing, uint64_t *height, uint64_t *work)
{
    uint32_t lives[PLEAT__QUANTILES + 1], count;
    uint64_t before = placing->gaps.work, most = SWEEP_BUDGET(placing->strip->count);
    PLEAT_TRY(find_lives(placing->strip, lives, &count));
    for (int backward = 0; backward < 2; backward++)
        for (uint32_t q = 0; q < count; q++) {
            bool spent = placing->gaps.work - before >= most;
            if (placing->height != UINT64_MAX && (spent || pleat__placing_done(placing)))
                break;
            PLEAT_TRY(sweep_once(placing, lives[q], backward == 1, height));
        }
    *work += placing->gaps.work - before;
    return PLEAT_OK;
}
