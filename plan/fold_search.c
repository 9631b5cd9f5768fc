/*
 * fold_search.c: which of its freedoms the sweep is given, and for how long.
 *
 * 1. Two-ended policies: items that live at least as long as a quantile of all lives take the
 * lowest hole, the others the highest. With and without the contiguous places as hints. This is by
 * far the strongest cheap heuristic on training jobs.
 * 2. Squeaky wheel, when the best policy needed more chunks than the cap: the item that found no
 *    room is placed ahead of the sweep from then on.
 * 3. Hill-climbing on single policy bits, first for chunks, then for maps.
 * Where the cap is not met by then, pure paging is tried too: it is the bound that any layout
 * keeps. Every step keeps a try only if it takes fewer chunks, or as many and fewer maps.
 */
#include <plan/fold_internal.h>

#include <internal/error.h>
#include <plan/sort.h>
#include <string.h>

/* Enough for all policies of 20,000 requests, and for some of any number. */
#define WORK_OF_ONE_PASS 20000000u

typedef struct search {
    pleat__fold_job *job;
    pleat__sweep *sweep;
    pleat__try *best;
    pleat__try *next;
    uint8_t *policy;      /* tried */
    uint8_t *best_policy; /* of the best sweep */
    uint32_t *reserved;
    size_t reserved_capacity;
    uint32_t reserved_count;
    uint32_t best_reserved; /* how many of them the best sweep had */
    uint32_t stuck;         /* of the best sweep */
    uint32_t cap;
    uint64_t work_limit;
    uint64_t random;
    bool any; /* a sweep became the best */
} search;

static uint32_t life_of(const pleat__fold_job *job, uint32_t position)
{
    uint32_t i = job->births[position];
    const pleat__item *item = &job->problem->items[i];
    return pleat__item_wraps(job->problem, i) ? job->problem->horizon - item->begin + item->end
                                              : item->end - item->begin;
}

/* Swaps the tries' places of the job's items and everything else. */
static void keep(search *s)
{
    pleat__fold_job *job = s->job;
    for (uint32_t b = 0; b < job->birth_count; b++)
        s->best->places[job->births[b]] = s->next->places[job->births[b]];
    for (uint32_t a = 0; a < job->always_count; a++)
        s->best->places[job->always[a]] = s->next->places[job->always[a]];
    pleat__try best = *s->best;
    *s->best = *s->next;
    s->best->places = best.places;
    s->next->views = best.views;
    s->next->view_capacity = best.view_capacity;
    s->next->starts = best.starts;
    s->next->start_capacity = best.start_capacity;
    memcpy(s->best_policy, s->policy, job->birth_count);
    s->best_reserved = s->reserved_count;
    s->any = true;
}

static bool better(const pleat__try *a, const pleat__try *b)
{
    return a->chunks < b->chunks || (a->chunks == b->chunks && a->view_pages < b->view_pages);
}

/* One sweep with s->policy and s->reserved; *kept when it became the best. */
static pleat_result attempt(search *s, bool paged, bool *kept)
{
    bool done;
    uint32_t stuck;
    *kept = false;
    PLEAT_TRY(pleat__sweep_run(s->sweep, s->policy, s->reserved, s->reserved_count, s->cap,
                               s->best->chunks, s->best->view_pages, paged, s->next, &done,
                               &stuck));
    if (!done || !better(s->next, s->best))
        return PLEAT_OK;
    keep(s);
    s->stuck = stuck;
    *kept = true;
    return PLEAT_OK;
}

static bool spent(const search *s)
{
    return s->job->work >= s->work_limit;
}

#define QUANTILES 20

static pleat_result try_policies(search *s)
{
    const pleat__fold_job *job = s->job;
    uint64_t *lives = pleat__arena_alloc(job->arena, 2ull * (job->birth_count + 1) * sizeof *lives);
    if (lives == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order lives");
    for (uint32_t b = 0; b < job->birth_count; b++)
        lives[b] = life_of(job, b);
    pleat__sort_keys(lives, lives + job->birth_count + 1, job->birth_count);
    pleat_result result = PLEAT_OK;
    for (uint32_t q = 0; q < 2 * QUANTILES && result == PLEAT_OK; q++) {
        /* From the middle outwards in big steps first: the budget may end early. */
        uint32_t quantile = (q / 2 * 7 + QUANTILES / 2) % QUANTILES;
        uint64_t limit = lives[(uint64_t)job->birth_count * quantile / QUANTILES];
        uint8_t hint = q % 2 == 0 ? PLEAT__FOLD_HINT : 0;
        for (uint32_t b = 0; b < job->birth_count; b++)
            s->policy[b] = hint | (life_of(job, b) >= limit ? PLEAT__FOLD_LOW : PLEAT__FOLD_HIGH);
        bool kept;
        result = attempt(s, false, &kept);
        if (spent(s) || (s->best->chunks <= s->cap && s->best->view_pages == 0))
            break;
    }
    pleat__arena_free(job->arena, lives);
    return result;
}

/* The stuck item goes first, as long as that saves chunks or another gets stuck. */
static pleat_result squeak(search *s)
{
    while (s->best->chunks > s->cap && s->stuck != UINT32_MAX && !spent(s)) {
        PLEAT_TRY(pleat__arena_grow(s->job->arena, &s->reserved, &s->reserved_capacity,
                                    s->reserved_count, sizeof *s->reserved));
        s->reserved[s->reserved_count++] = s->stuck;
        memcpy(s->policy, s->best_policy, s->job->birth_count);
        bool kept;
        PLEAT_TRY(attempt(s, false, &kept));
        if (!kept) {
            s->reserved_count = s->best_reserved;
            return PLEAT_OK;
        }
    }
    return PLEAT_OK;
}

static uint64_t next_random(search *s)
{
    uint64_t z = (s->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static pleat_result climb(search *s)
{
    memcpy(s->policy, s->best_policy, s->job->birth_count);
    while (s->job->birth_count != 0 && !spent(s) &&
           (s->best->chunks > s->cap || s->best->view_pages != 0)) {
        uint32_t flips[8], count = 1 + (uint32_t)(next_random(s) % 8);
        for (uint32_t i = 0; i < count; i++) {
            flips[i] = (uint32_t)(next_random(s) % s->job->birth_count);
            s->policy[flips[i]] ^= PLEAT__FOLD_HIGH;
        }
        bool kept;
        PLEAT_TRY(attempt(s, false, &kept));
        if (!kept)
            for (uint32_t i = count; i-- > 0;)
                s->policy[flips[i]] ^= PLEAT__FOLD_HIGH;
    }
    return PLEAT_OK;
}

static pleat_result run(search *s, uint64_t climb_work)
{
    bool kept = false;
    PLEAT_TRY(try_policies(s));
    if (s->best->chunks > s->cap)
        PLEAT_TRY(attempt(s, true, &kept));
    if (!s->any || kept)
        return PLEAT_OK;
    PLEAT_TRY(squeak(s));
    s->work_limit = s->job->work + climb_work;
    return climb(s);
}

pleat_result pleat__fold_search(pleat__fold_job *job, uint32_t cap, uint64_t climb_work,
                                pleat__try *best, pleat__try *next, bool *found)
{
    search s = {.job = job,
                .best = best,
                .next = next,
                .cap = cap,
                .stuck = UINT32_MAX,
                .work_limit = job->work + WORK_OF_ONE_PASS};
    pleat_result result = PLEAT_OK;
    s.policy = pleat__arena_alloc(job->arena, job->birth_count + 1u);
    s.best_policy = pleat__arena_alloc(job->arena, job->birth_count + 1u);
    if (s.policy == NULL || s.best_policy == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the policies of a search");
    if (result == PLEAT_OK)
        result = pleat__sweep_create(job, &s.sweep);
    if (result == PLEAT_OK)
        result = run(&s, climb_work);
    *found = s.any;
    pleat__sweep_destroy(s.sweep);
    pleat__arena_free(job->arena, s.policy);
    pleat__arena_free(job->arena, s.best_policy);
    pleat__arena_free(job->arena, s.reserved);
    return result;
}
