/*
 * elastic_most.c: the largest microbatch that fits (see elastic.h). Each one asked about is laid
 * out, without the lock; what is known of sizes does not change meanwhile.
 */
#include <runtime/learn/elastic.h>

#include <internal/error.h>

/* As it was when it was asked: the job goes on. */
typedef struct question {
    const pleat__elastic *elastic;
    pleat__x x;       /* of the last iteration, */
    uint64_t running; /* which had this microbatch */
    pleat__sweep_choice choice;
    uint32_t chunks;
} question;

/* Whether `microbatch` fits in so many chunks. Functions may not hold where no iteration was: above
 * none fits, and below they say what the smallest takes that they hold for. */
static pleat_result fits(const question *q, uint64_t microbatch, bool *yes)
{
    const pleat__elastic *elastic = q->elastic;
    pleat__x x;
    uint32_t taken;
    pleat__ground ground = pleat__elastic_ground(elastic);
    *yes = false;
    if (!pleat__scale_times(elastic->scale, &q->x, microbatch, q->running, &x))
        return PLEAT_OK;
    x = pleat__scale_at_least(elastic->scale, &x);
    if (!pleat__scale_in_range(elastic->scale, &x))
        return PLEAT_OK;
    PLEAT_TRY(pleat__instance_takes(&ground, elastic->scale, &x, q->choice, q->chunks, &taken));
    *yes = taken <= q->chunks;
    return PLEAT_OK;
}

/* The largest that fits; more of it takes more memory. */
static pleat_result search_most(const question *q, uint64_t *most)
{
    uint64_t low = 0, high = 1;
    bool yes = true;
    while (yes && high < UINT32_MAX) {
        PLEAT_TRY(fits(q, high, &yes));
        low = yes ? high : low;
        high = yes ? 2 * high : high;
    }
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        PLEAT_TRY(fits(q, middle, &yes));
        low = yes ? middle : low;
        high = yes ? high : middle;
    }
    *most = low;
    return low != 0 ? PLEAT_OK
                    : pleat__fail(PLEAT_E_NOT_FOUND, "not even a microbatch of 1 would fit");
}

pleat_result pleat__elastic_most(pleat__elastic *elastic, const pleat__follow *current,
                                 uint64_t bytes, uint64_t running, uint64_t *most)
{
    if (elastic->scale == NULL || !pleat__x_is_known(&elastic->x))
        return pleat__fail(PLEAT_E_NOT_FOUND, "how sizes follow the microbatch is not known before "
                                              "iterations at two of them were seen");
    uint64_t chunks = bytes / elastic->heap->pool->page_bytes;
    PLEAT_TRY(pleat__live_create(elastic->arena, &elastic->crossing));
    pleat_result result = pleat__elastic_list_crossing(elastic, current);
    question q = {.elastic = elastic,
                  .x = elastic->x,
                  .running = running,
                  .choice = elastic->choice,
                  .chunks = chunks < UINT32_MAX / 2 ? (uint32_t)chunks : UINT32_MAX / 2};
    elastic->measuring = true;
    if (result == PLEAT_OK)
        result = search_most(&q, most);
    elastic->measuring = false;
    pleat__live_destroy(&elastic->crossing);
    return result;
}
