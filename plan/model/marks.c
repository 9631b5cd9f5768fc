/*
 * marks.c: where iterations begin in a trace that does not say.
 *
 * Live bytes tell (valleys.c), and so does the sequence of sizes (period.c): the first where sizes
 * vary from iteration to iteration, the second where an iteration does not come down to one level.
 * Of the two that is taken whose iterations agree more from one to the next.
 */
#include <plan/model/marks.h>

#include <internal/error.h>
#include <string.h>

#define TRIED  8  /* pairs of neighbouring iterations that are compared, the latest */
#define LEAST  16 /* requests of an iteration */
#define ENOUGH 50 /* percent that must agree: anything comes down once in a while */
#define BETTER 10 /* percent by which the sequence must agree more than live bytes do */

typedef struct guess {
    uint32_t *all;
    uint32_t count;
    uint32_t percent; /* of the requests of the iterations compared that agree */
    uint32_t score;   /* the same times the share of the trace that the marks hold */
} guess;

/* Requests of a stretch that have one of the same size or life in the other. */
static uint32_t count_alike(const pleat__requests *requests, pleat__stretch a, pleat__stretch b,
                            uint32_t *pairs)
{
    uint32_t alike = 0;
    pleat__align(requests, a, b, pairs);
    for (uint32_t i = 0; i < a.items; i++) {
        const pleat__request *one = &requests->items[a.item + i];
        const pleat__request *other = pairs[i] != PLEAT__NEVER ? &requests->items[pairs[i]] : NULL;
        alike += other != NULL && other->stream == one->stream &&
                 (other->size == one->size || pleat__same_life(one, other));
    }
    return alike;
}

pleat_result pleat__marks_rate(const pleat__requests *requests, const uint32_t *marks,
                               uint32_t count, uint32_t *percent)
{
    uint64_t alike = 0, all = 0;
    for (uint32_t i = count, tried = 0; i-- > 2 && tried < TRIED; tried++) {
        pleat__stretch late = pleat__stretch_of(requests, marks[i - 1], marks[i]);
        pleat__stretch early = pleat__stretch_of(requests, marks[i - 2], marks[i - 1]);
        all += late.items > early.items ? late.items : early.items;
        if (late.items < LEAST || early.items < LEAST)
            continue;
        uint32_t *pairs = pleat__arena_alloc(requests->arena, late.items * sizeof *pairs);
        if (pairs == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to compare %u requests",
                               late.items);
        alike += count_alike(requests, late, early, pairs);
        pleat__arena_free(requests->arena, pairs);
    }
    *percent = all > 0 ? (uint32_t)(alike * 100 / all) : 0;
    return PLEAT_OK;
}

static pleat_result add_first(const pleat__requests *requests, guess *found, uint32_t at)
{
    uint32_t *marks = pleat__arena_alloc(requests->arena, (found->count + 1ull) * sizeof *marks);
    if (marks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u marks", found->count + 1);
    marks[0] = at;
    memcpy(marks + 1, found->all, found->count * sizeof *marks);
    pleat__arena_free(requests->arena, found->all);
    found->all = marks;
    found->count++;
    return PLEAT_OK;
}

/* A job's first iteration makes states and workspaces, so it comes down to other levels: it lies
 * before the first mark, and is marked where it agrees with the iteration behind that. */
static pleat_result mark_first(const pleat__requests *requests, guess *found)
{
    pleat__stretch first;
    uint32_t paired;
    if (found->count < 2)
        return PLEAT_OK;
    pleat__stretch second = pleat__stretch_of(requests, found->all[0], found->all[1]);
    PLEAT_TRY(pleat__prologue_find(requests, second, pleat__stretch_of(requests, 0, found->all[0]),
                                   &first, &paired));
    bool agrees = paired != 0 && paired * 100ull >= (uint64_t)second.items * ENOUGH;
    return agrees ? add_first(requests, found, first.begin_at) : PLEAT_OK;
}

/* How well the marks' iterations agree, and over how much of the trace. */
static pleat_result rate(const pleat__requests *requests, guess *found)
{
    PLEAT_TRY(mark_first(requests, found));
    PLEAT_TRY(pleat__marks_rate(requests, found->all, found->count, &found->percent));
    if (found->count == 0)
        return PLEAT_OK;
    uint64_t held = pleat__stretch_of(requests, found->all[0], found->all[found->count - 1]).items;
    found->score = (uint32_t)(found->percent * held / requests->count);
    return PLEAT_OK;
}

static pleat_result choose(const pleat__requests *requests, const uint64_t *live, guess *valleys,
                           guess *sizes)
{
    PLEAT_TRY(pleat__valleys_find(requests, live, &valleys->all, &valleys->count));
    PLEAT_TRY(rate(requests, valleys));
    if (valleys->percent + BETTER >= 100)
        return PLEAT_OK;
    PLEAT_TRY(pleat__period_find(requests, live, &sizes->all, &sizes->count));
    PLEAT_TRY(rate(requests, sizes));
    bool poor = valleys->percent < ENOUGH;
    if (poor && sizes->count == 0)
        valleys->count = 0;
    if (sizes->score <= valleys->score + (poor ? 0 : BETTER))
        return PLEAT_OK;
    guess other = *valleys;
    *valleys = *sizes;
    *sizes = other;
    return PLEAT_OK;
}

static pleat_result count_live(const pleat__requests *requests, uint64_t **live)
{
    uint64_t now = 0;
    *live = pleat__arena_alloc(requests->arena, (requests->event_count + 1ull) * sizeof **live);
    if (*live == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY,
                           "no host memory to look for iterations in %u requests", requests->count);
    for (uint32_t at = 0; at < requests->event_count; at++) {
        uint64_t size = requests->items[requests->events[at] / 2].size;
        (*live)[at] = now;
        now += requests->events[at] % 2 == 1 ? -size : size;
    }
    (*live)[requests->event_count] = now;
    return PLEAT_OK;
}

pleat_result pleat__marks_find(const pleat__requests *requests, uint32_t **marks, uint32_t *count)
{
    guess chosen = {0}, other = {0};
    uint64_t *live;
    PLEAT_TRY(count_live(requests, &live));
    pleat_result result = choose(requests, live, &chosen, &other);
    pleat__arena_free(requests->arena, live);
    pleat__arena_free(requests->arena, other.all);
    if (result != PLEAT_OK || chosen.count == 0) {
        pleat__arena_free(requests->arena, chosen.all);
        chosen = (guess){0};
    }
    *marks = chosen.all;
    *count = chosen.count;
    return result;
}
