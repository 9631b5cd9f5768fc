/*
 * period.c: finds where iterations begin when nobody says so.
 *
 * A gram is GRAM sizes in a row. Grams that lie at even distances through the whole trace occur
 * once an iteration: those inside a layer or a microbatch come in bursts. The largest distance that
 * several such grams agree on, and at which the sequence really repeats (align.c), is the period.
 * The iteration is cut at one of these grams before which little is live and behind which live
 * bytes rise most: between the optimizer's step and the next forward pass.
 */
#include <plan/model/marks.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/range.h>
#include <plan/base/sort.h>

#define GRAM       8
#define VOTES      3  /* grams that must agree on a distance */
#define EVEN       32 /* distances are even when they differ by less than 1/32 */
#define CANDIDATES 32
#define REPEATS    50 /* percent of requests that must have a pair one period before */

#define RISE   16 /* of the period: how far behind a cut live bytes are looked at */
#define LITTLE 64 /* of the range of live bytes: what counts as little */

/* Occurrences of grams, in order: the hash in the upper half, the position in the lower. */
static uint64_t *find_grams(const pleat__requests *requests, uint32_t count)
{
    uint64_t *grams = pleat__arena_alloc(requests->arena, 2ull * count * sizeof *grams);
    for (uint32_t i = 0; grams != NULL && i < count; i++) {
        uint64_t hash = 0;
        for (uint32_t k = 0; k < GRAM; k++) {
            const pleat__request *item = &requests->items[i + k];
            hash = pleat__mix(pleat__mix(hash, item->size), item->stream);
        }
        grams[i] = hash << 32 | i;
    }
    if (grams != NULL)
        pleat__sort_keys(grams, grams + count, count);
    return grams;
}

/* The positions of one gram: grams[begin .. end). */
typedef struct gram_run {
    uint32_t begin;
    uint32_t end;
} gram_run;

static gram_run next_run(const uint64_t *grams, uint32_t count, uint32_t begin)
{
    uint32_t end = begin + 1;
    while (end < count && grams[end] >> 32 == grams[begin] >> 32)
        end++;
    return (gram_run){begin, end};
}

static uint32_t distance(const uint64_t *grams, uint32_t index)
{
    return (uint32_t)grams[index + 1] - (uint32_t)grams[index];
}

/* The last distance, where all are about as long; else 0. The first iteration may be longer: of
 * several distances the first does not count. */
static uint32_t even_distance(const uint64_t *grams, gram_run run)
{
    if (run.end - run.begin < 2)
        return 0;
    uint32_t last = distance(grams, run.end - 2);
    for (uint32_t i = run.begin + 1; i + 1 < run.end; i++) {
        uint32_t d = distance(grams, i);
        if ((d > last ? d - last : last - d) > last / EVEN)
            return 0;
    }
    return last;
}

struct candidate {
    uint32_t bin;
    uint32_t period;
    uint32_t last; /* the last request of the latest gram at that distance */
};

/* Whether the period before `last` repeats the one before it. */
static pleat_result repeats(const pleat__requests *requests, struct candidate candidate, bool *yes)
{
    uint32_t *pairs = pleat__arena_alloc(requests->arena, candidate.period * sizeof *pairs);
    if (pairs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to try a period of %u requests",
                           candidate.period);
    pleat__stretch late = {.item = candidate.last - candidate.period, .items = candidate.period};
    pleat__stretch early = {.item = late.item - candidate.period, .items = candidate.period};
    late.begin_at = requests->items[late.item].alloc_at;
    early.begin_at = requests->items[early.item].alloc_at;
    uint64_t paired = pleat__align(requests, late, early, pairs);
    *yes = paired * 100 >= (uint64_t)candidate.period * REPEATS;
    pleat__arena_free(requests->arena, pairs);
    return PLEAT_OK;
}

/* Votes by distance; each bin keeps its latest gram. */
struct ballot {
    uint32_t votes[PLEAT__OCTAVE_BINS];
    struct candidate best[PLEAT__OCTAVE_BINS];
};

static void count_votes(const uint64_t *grams, uint32_t count, struct ballot *ballot)
{
    for (gram_run run = {0, 0}; run.end < count;) {
        run = next_run(grams, count, run.end);
        uint32_t period = even_distance(grams, run);
        if (period < GRAM)
            continue;
        uint32_t bin = pleat__octave_bin(period), last = (uint32_t)grams[run.end - 1];
        ballot->votes[bin]++;
        if (last >= ballot->best[bin].last)
            ballot->best[bin] = (struct candidate){bin, period, last};
    }
}

static pleat_result choose_period(const pleat__requests *requests, const struct ballot *ballot,
                                  struct candidate *out)
{
    uint32_t tried = 0;
    *out = (struct candidate){0};
    for (uint32_t bin = PLEAT__OCTAVE_BINS; bin-- > 0 && tried < CANDIDATES;) {
        uint32_t votes = ballot->votes[bin] + (bin > 0 ? ballot->votes[bin - 1] : 0);
        struct candidate best = ballot->best[bin];
        if (ballot->votes[bin] == 0 || votes < VOTES || best.last < 2 * best.period)
            continue;
        bool yes;
        tried++;
        PLEAT_TRY(repeats(requests, best, &yes));
        if (yes) {
            *out = best;
            return PLEAT_OK;
        }
    }
    return PLEAT_OK;
}

static bool recurs(const uint64_t *grams, gram_run run, struct candidate period)
{
    uint32_t even = even_distance(grams, run), last = (uint32_t)grams[run.end - 1];
    return even >= GRAM && pleat__octave_bin(even) <= period.bin &&
           pleat__octave_bin(even) + 1 >= period.bin && last + period.period > period.last;
}

/* Bytes live before a request is allocated. */
static uint64_t live_before(const pleat__requests *requests, const uint64_t *live, uint64_t gram)
{
    return live[requests->items[(uint32_t)gram].alloc_at];
}

/* How much more is live a little behind the gram's last but one place. */
static uint64_t rise_behind(const pleat__requests *requests, const uint64_t *live, uint64_t gram,
                            struct candidate period)
{
    uint64_t here = live_before(requests, live, gram);
    uint64_t behind = live_before(requests, live, gram + period.period / RISE);
    return behind > here ? behind - here : 0;
}

/* Of the grams that recur at the period and have little live before them, the one behind which live
 * bytes rise most. */
static gram_run choose_cut(const pleat__requests *requests, const uint64_t *grams, uint32_t count,
                           struct candidate period, const uint64_t *live)
{
    gram_run cut = {0, 0};
    uint64_t least = UINT64_MAX, most = 0, best = 0;
    for (gram_run run = {0, 0}; run.end < count;) {
        run = next_run(grams, count, run.end);
        uint64_t here = live_before(requests, live, grams[run.end - 1]);
        if (!recurs(grams, run, period))
            continue;
        least = here < least ? here : least;
        most = here > most ? here : most;
    }
    for (gram_run run = {0, 0}; run.end < count;) {
        run = next_run(grams, count, run.end);
        if (!recurs(grams, run, period) ||
            live_before(requests, live, grams[run.end - 1]) > least + (most - least) / LITTLE)
            continue;
        uint64_t rise = rise_behind(requests, live, grams[run.end - 2], period);
        if (cut.end == 0 || rise > best) {
            best = rise;
            cut = run;
        }
    }
    return cut;
}

static pleat_result list_marks(const pleat__requests *requests, const uint64_t *grams, gram_run cut,
                               uint32_t **marks, uint32_t *count)
{
    *count = cut.end - cut.begin;
    *marks = pleat__arena_alloc(requests->arena, *count * sizeof **marks);
    if (*marks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u marks", *count);
    for (uint32_t i = 0; i < *count; i++)
        (*marks)[i] = requests->items[(uint32_t)grams[cut.begin + i]].alloc_at;
    return PLEAT_OK;
}

pleat_result pleat__period_find(const pleat__requests *requests, const uint64_t *live,
                                uint32_t **marks, uint32_t *count)
{
    *marks = NULL;
    *count = 0;
    if (requests->count < 4 * GRAM)
        return PLEAT_OK;
    pleat_result result = PLEAT_OK;
    uint32_t gram_count = requests->count - GRAM + 1;
    struct ballot *ballot = pleat__arena_calloc(requests->arena, 1, sizeof *ballot);
    uint64_t *grams = find_grams(requests, gram_count);
    struct candidate period = {0};
    if (ballot == NULL || grams == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY,
                             "no host memory to look for a period in %u requests", requests->count);
    if (result == PLEAT_OK) {
        count_votes(grams, gram_count, ballot);
        result = choose_period(requests, ballot, &period);
    }
    if (result == PLEAT_OK && period.period > 0) {
        gram_run cut = choose_cut(requests, grams, gram_count, period, live);
        result = list_marks(requests, grams, cut, marks, count);
    }
    pleat__arena_free(requests->arena, ballot);
    pleat__arena_free(requests->arena, grams);
    return result;
}
