/*
 * fold_passing.c: see fold_passing.h.
 */
#include <plan/fold_passing.h>

#include <internal/error.h>

void pleat__passer_restart(pleat__passer *passer)
{
    passer->count = passer->first = passer->next = 0;
}

/* What is free of its bytes: the rest belongs to something that lies there already, which in the
 * first iteration does not live yet. */
static pleat_result come(pleat__passer *passer, const pleat__passing *passing)
{
    pleat__range left = passing->bytes, part;
    while (pleat__gaps_part(passer->gaps, left, &part)) {
        PLEAT_TRY(pleat__arena_grow(passer->job->arena, &passer->parts, &passer->capacity,
                                    passer->count, sizeof *passer->parts));
        PLEAT_TRY(pleat__gaps_take(passer->gaps, part));
        passer->parts[passer->count++] = (pleat__passing_part){part, passing->end};
        left.begin = part.end;
    }
    return PLEAT_OK;
}

pleat_result pleat__passer_move(pleat__passer *passer, uint32_t now)
{
    const pleat__fold_job *job = passer->job;
    for (; passer->first < passer->count && passer->parts[passer->first].end <= now;
         passer->first++)
        PLEAT_TRY(pleat__gaps_give(passer->gaps, passer->parts[passer->first].range));
    for (; passer->next < job->passing_count && job->passing[passer->next].begin <= now;
         passer->next++)
        if (job->passing[passer->next].end > now)
            PLEAT_TRY(come(passer, &job->passing[passer->next]));
    return PLEAT_OK;
}

pleat_result pleat__passer_yield(pleat__passer *passer, pleat__range range)
{
    for (uint32_t i = passer->first; i < passer->count; i++) {
        pleat__passing_part *part = &passer->parts[i];
        if (!pleat__range_overlaps(part->range, range))
            continue;
        PLEAT_TRY(pleat__gaps_give(passer->gaps, part->range));
        part->range.end = part->range.begin;
    }
    return PLEAT_OK;
}
