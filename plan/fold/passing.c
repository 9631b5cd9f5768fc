/*
 * passing.c: see passing.h.
 *
 * The job's passing is in order of begin and then of end, and no two that are there at a time share
 * a byte. One that wraps around the horizon comes twice, and what ends with the first part of the
 * horizon is over before the second begins: so they end in that order too.
 */
#include <plan/fold/passing.h>

#include <internal/error.h>
#include <internal/search.h>
#include <plan/base/sort.h>
#include <string.h>

#define NONE UINT32_MAX

static pleat_result order_by_place(pleat__passer *passer)
{
    const pleat__fold_job *job = passer->job;
    uint32_t count = job->passing_count;
    uint64_t *keys = pleat__arena_alloc(job->arena, count * sizeof *keys);
    uint32_t *spare = pleat__arena_alloc(job->arena, count * sizeof *spare);
    bool done = keys != NULL && spare != NULL;
    for (uint32_t i = 0; done && i < count; i++) {
        keys[i] = job->passing[i].bytes.begin;
        passer->by_place[i] = i;
    }
    if (done)
        pleat__sort_by_key(passer->by_place, spare, count, keys);
    pleat__arena_free(job->arena, keys);
    pleat__arena_free(job->arena, spare);
    return done ? PLEAT_OK : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for what passes");
}

pleat_result pleat__passer_init(pleat__passer *passer, const pleat__fold_job *job,
                                pleat__gaps *gaps)
{
    *passer = (pleat__passer){.job = job, .gaps = gaps};
    uint32_t count = job->passing_count;
    if (count == 0)
        return PLEAT_OK;
    passer->by_place = pleat__arena_alloc(job->arena, count * sizeof *passer->by_place);
    passer->parts_of = pleat__arena_alloc(job->arena, count * sizeof *passer->parts_of);
    if (passer->by_place == NULL || passer->parts_of == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for what passes");
    return order_by_place(passer);
}

void pleat__passer_done(pleat__passer *passer)
{
    pleat__arena *arena = passer->job->arena;
    pleat__arena_free(arena, passer->by_place);
    pleat__arena_free(arena, passer->parts_of);
    pleat__arena_free(arena, passer->parts);
}

void pleat__passer_restart(pleat__passer *passer)
{
    passer->count = passer->first = passer->next = 0;
    if (passer->parts_of != NULL)
        memset(passer->parts_of, 0xff, passer->job->passing_count * sizeof *passer->parts_of);
}

static pleat_result add_part(pleat__passer *passer, uint32_t passing, pleat__range range)
{
    PLEAT_TRY(pleat__arena_grow(passer->job->arena, &passer->parts, &passer->capacity,
                                passer->count, sizeof *passer->parts));
    passer->parts[passer->count] = (pleat__passing_part){range, passer->parts_of[passing]};
    passer->parts_of[passing] = passer->count++;
    return PLEAT_OK;
}

/* What is free of those bytes of it. */
static pleat_result take(pleat__passer *passer, uint32_t passing, pleat__range bytes)
{
    pleat__range left = pleat__range_meet(passer->job->passing[passing].bytes, bytes), part;
    while (pleat__gaps_part(passer->gaps, left, &part)) {
        PLEAT_TRY(pleat__gaps_take(passer->gaps, part));
        PLEAT_TRY(add_part(passer, passing, part));
        left.begin = part.end;
    }
    return PLEAT_OK;
}

static pleat_result go(pleat__passer *passer, uint32_t passing)
{
    for (uint32_t i = passer->parts_of[passing]; i != NONE; i = passer->parts[i].next)
        PLEAT_TRY(pleat__gaps_give(passer->gaps, passer->parts[i].range));
    passer->parts_of[passing] = NONE;
    return PLEAT_OK;
}

/* What is over by then. */
static pleat_result end_until(pleat__passer *passer, uint32_t now)
{
    const pleat__passing *passing = passer->job->passing;
    for (; passer->first < passer->next && passing[passer->first].end <= now; passer->first++)
        PLEAT_TRY(go(passer, passer->first));
    return PLEAT_OK;
}

pleat_result pleat__passer_move(pleat__passer *passer, uint32_t now)
{
    const pleat__fold_job *job = passer->job;
    PLEAT_TRY(end_until(passer, now));
    for (; passer->next < job->passing_count && job->passing[passer->next].begin <= now;
         passer->next++)
        if (job->passing[passer->next].end > now)
            PLEAT_TRY(take(passer, passer->next, job->passing[passer->next].bytes));
    /* Some were over before they were heard of. */
    return end_until(passer, now);
}

/* The first in by_place that ends above the place. */
static uint32_t find(const pleat__passer *passer, uint64_t place)
{
    const pleat__fold_job *job = passer->job;
    uint32_t k;
    PLEAT__FIRST(k, job->passing_count, job->passing[passer->by_place[k]].bytes.end > place);
    return k;
}

/* Whether the one behind those that end before the range begins before it ends. */
static bool is_met(const pleat__passer *passer, uint32_t k, pleat__range range)
{
    const pleat__fold_job *job = passer->job;
    return k < job->passing_count && job->passing[passer->by_place[k]].bytes.begin < range.end;
}

/* A part gives the bytes of the range that it has, and keeps what is left on both sides. */
static pleat_result cut(pleat__passer *passer, uint32_t passing, uint32_t part, pleat__range range)
{
    pleat__range has = passer->parts[part].range, common = pleat__range_meet(has, range);
    if (pleat__range_empty(common))
        return PLEAT_OK;
    PLEAT_TRY(pleat__gaps_give(passer->gaps, common));
    passer->parts[part].range.end = common.begin;
    return common.end < has.end ? add_part(passer, passing, (pleat__range){common.end, has.end})
                                : PLEAT_OK;
}

pleat_result pleat__passer_yield(pleat__passer *passer, pleat__range range)
{
    for (uint32_t k = find(passer, range.begin); is_met(passer, k, range); k++) {
        uint32_t which = passer->by_place[k];
        for (uint32_t i = passer->parts_of[which]; i != NONE; i = passer->parts[i].next)
            PLEAT_TRY(cut(passer, which, i, range));
    }
    return PLEAT_OK;
}

pleat_result pleat__passer_inherit(pleat__passer *passer, pleat__range range)
{
    for (uint32_t k = find(passer, range.begin); is_met(passer, k, range); k++) {
        uint32_t which = passer->by_place[k];
        if (which >= passer->first && which < passer->next)
            PLEAT_TRY(take(passer, which, range));
    }
    return PLEAT_OK;
}
