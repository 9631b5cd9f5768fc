/*
 * search.c: which of its freedoms the sweep is given, and for how long.
 *
 * 1. Two-ended policies: long-lived items (at least as long as a quantile of all lives) take the
 *    lowest hole, the others the highest. This is by far the strongest cheap heuristic on training
 *    jobs.
 * 2. Squeaky wheel under a limit one chunk below the best: the item that found no room is placed
 *    ahead of the sweep from then on, up to SQUEAKS of them.
 *
 * All of it ends with the work of one pass: to climb from there by changing single items saves
 * maps, which are made once, and no memory (D511 in docs/decisions.md). A try is kept if it takes
 * fewer chunks, or about as many and less of chunks and maps together.
 */
#include <plan/fold/fold_internal.h>

#include <internal/error.h>
#include <plan/base/quantiles.h>
#include <string.h>

/* Enough for all policies of 20,000 requests, and for some of any number. */
#define WORK_OF_ONE_PASS 20000000u

#define POLICIES PLEAT__QUANTILES /* a quantile of lives each */
#define SQUEAKS  20               /* items it reserves at most: where it works, it works soon */

/* Two layouts whose chunks differ by less than this part are told apart by chunks and maps
 * together. */
#define TOLERANCE 2048u

typedef struct search {
    pleat__fold_job *job;
    pleat__sweep *sweep;
    pleat__try *best;
    pleat__try *next;
    uint8_t *policy;              /* tried */
    uint32_t limits[POLICIES];    /* of lives */
    uint32_t chunks_of[POLICIES]; /* what each policy took, UINT32_MAX where it was given up */
    uint32_t reserved[SQUEAKS];   /* positions in births */
    uint32_t reserved_count;
    uint32_t stuck; /* of the last sweep */
    uint64_t work_limit;
} search;

static uint32_t life_of(const void *of, uint32_t position)
{
    const pleat__fold_job *job = of;
    const pleat__item *item = &job->problem->items[job->births[position]];
    return pleat__item_wraps(job->problem, item) ? job->problem->horizon - item->begin + item->end
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
}

static uint64_t cost_of(const pleat__try *a)
{
    return pleat__fold_cost(a->chunks, a->view_pages);
}

static bool is_close(const search *s, const pleat__try *a)
{
    return a->chunks <= s->job->floor + s->job->floor / TOLERANCE;
}

static bool better(const search *s, const pleat__try *a, const pleat__try *b)
{
    if (is_close(s, a) != is_close(s, b))
        return is_close(s, a);
    if (is_close(s, a))
        return cost_of(a) < cost_of(b);
    return a->chunks < b->chunks || (a->chunks == b->chunks && a->view_pages < b->view_pages);
}

/* One sweep with s->policy and s->reserved from `cap` chunks on, given up above `limit`; *kept when
 * it became the best. */
static pleat_result attempt(search *s, uint32_t cap, uint32_t limit, bool *kept)
{
    bool done;
    const pleat__sweep_limits limits = {
        .cap = cap, .chunks = limit, .cost = is_close(s, s->best) ? cost_of(s->best) : UINT64_MAX};
    PLEAT_TRY(pleat__sweep_run(s->sweep, s->policy, s->reserved, s->reserved_count, &limits,
                               s->next, &done, &s->stuck));
    *kept = done && better(s, s->next, s->best);
    if (*kept)
        keep(s);
    return PLEAT_OK;
}

static bool spent(const search *s)
{
    return s->job->work >= s->work_limit;
}

/* No try could be better. */
static bool perfect(const search *s)
{
    return s->best->chunks <= s->job->floor && s->best->view_pages == 0;
}

/* Policies come in an order that begins in the middle and goes out in big steps: the budget may end
 * early. */
static void set_policy(search *s, uint32_t index)
{
    uint32_t limit = s->limits[(index * 7 + POLICIES / 2) % POLICIES];
    for (uint32_t b = 0; b < s->job->birth_count; b++)
        s->policy[b] = life_of(s->job, b) >= limit ? PLEAT__FOLD_LOW : PLEAT__FOLD_HIGH;
}

/* All policies from the floor on. */
static pleat_result try_policies(search *s)
{
    bool kept;
    s->reserved_count = 0;
    for (uint32_t i = 0; i < POLICIES && !spent(s) && !perfect(s); i++) {
        set_policy(s, i);
        PLEAT_TRY(attempt(s, s->job->floor, s->best->chunks, &kept));
        s->chunks_of[i] = s->next->chunks;
    }
    return PLEAT_OK;
}

/* One policy under a hard limit: who is stuck is placed ahead of everything, and all is done again,
 * until nobody is. */
static pleat_result squeak_with(search *s, uint32_t limit, bool *kept)
{
    s->reserved_count = 0;
    for (uint32_t round = 0; round < SQUEAKS && !spent(s); round++) {
        PLEAT_TRY(attempt(s, limit, limit, kept));
        if (*kept || s->stuck == UINT32_MAX)
            return PLEAT_OK;
        memmove(s->reserved + 1, s->reserved, s->reserved_count * sizeof *s->reserved);
        s->reserved[0] = s->stuck;
        s->reserved_count = round + 1;
    }
    return PLEAT_OK;
}

/* The policy that took least of those not used yet; UINT32_MAX when there is none. */
static uint32_t next_policy(const search *s, bool *used)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t k = 0; k < POLICIES; k++)
        if (!used[k] && (best == UINT32_MAX || s->chunks_of[k] < s->chunks_of[best]))
            best = k;
    if (best != UINT32_MAX)
        used[best] = true;
    return best;
}

/* One chunk less, as long as some policy gets by with it. */
static pleat_result squeak(search *s)
{
    bool kept = true;
    while (kept && s->best->chunks > s->job->floor && !spent(s)) {
        bool used[POLICIES] = {false};
        uint32_t limit = s->best->chunks - 1, policy;
        kept = false;
        while (!kept && !spent(s) && (policy = next_policy(s, used)) != UINT32_MAX) {
            set_policy(s, policy);
            PLEAT_TRY(squeak_with(s, limit, &kept));
        }
    }
    return PLEAT_OK;
}

static pleat_result run(search *s)
{
    PLEAT_TRY(pleat__quantiles(s->job->arena, life_of, s->job, s->job->birth_count, s->limits));
    memset(s->chunks_of, 0xff, sizeof s->chunks_of);
    PLEAT_TRY(try_policies(s));
    return s->best->chunks != UINT32_MAX ? squeak(s) : PLEAT_OK;
}

pleat_result pleat__fold_search(pleat__fold_job *job, pleat__try *best, pleat__try *next)
{
    search s = {.job = job, .best = best, .next = next, .work_limit = job->work + WORK_OF_ONE_PASS};
    pleat_result result = PLEAT_OK;
    s.policy = pleat__arena_alloc(job->arena, job->birth_count + 1u);
    if (s.policy == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the policies of a search");
    if (result == PLEAT_OK)
        result = pleat__sweep_create(job, &s.sweep);
    if (result == PLEAT_OK)
        result = run(&s);
    pleat__sweep_destroy(s.sweep);
    pleat__arena_free(job->arena, s.policy);
    return result;
}
