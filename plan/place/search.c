/*
 * search.c: local search. What sits on the peak is what has to move, so each step takes one
 * span whose end is the height, or one that is live with it, and changes how it is placed; the
 * placement made with the change is kept when it is no higher, or in some rounds not much higher.
 *
 *   orders   the span moves forward in the order in which spans are placed, to where larger gaps
 *            are still free (squeaky-wheel optimization, Joslin and Clements 1999, with the blame
 *            on the peak)
 *   sweeps   the span, or every span of its size, takes the other end of memory: iterations repeat
 *            layers, so what is right for one tensor is right for its likes
 *
 * Placements are made from the beginning each time: with the height as a limit most are given up
 * early. Steps are drawn from a generator with a fixed seed and counted in work, so the same
 * problem and budget give the same placement on any machine.
 */
#include <plan/place/portfolio.h>
#include <plan/place/sweep.h>
#include <plan/place/timeline.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <plan/base/sort.h>
#include <string.h>

/* Among more spans than MANY, sweeps are preferred while they are at most 1/FAR_BEHIND higher. */
#define MANY       2000
#define FAR_BEHIND 64
#define SEED       0x504c454154u /* any would do */
#define BLAME      64            /* spans on the peak that are told apart */

/* Rounds, each from the best order so far: which part of the record a placement may be higher and
 * still be accepted, at the beginning of the round; 0: nothing. One is best here, another there. */
static const uint32_t slacks[] = {0, 128, 32, 16};
#define ROUNDS (sizeof slacks / sizeof *slacks)
/* Rounds of fewer placements than this are not worth it: then there is only the first. */
#define ROUND_PLACEMENTS 1000

struct finder {
    pleat__placing *placing;
    uint64_t random;
    uint64_t height;    /* of what the search stands at */
    uint64_t *standing; /* its places */
    uint64_t *trial;
    uint32_t blamed[BLAME];
    uint32_t blamed_count;
    uint64_t record; /* lowest height of this form */
    uint64_t work;   /* spent */
};

static uint64_t draw(struct finder *finder, uint64_t bound)
{
    return pleat__random(&finder->random) % bound;
}

/* Lists spans that reach the height. */
static void blame(struct finder *finder)
{
    const pleat__strip *strip = finder->placing->strip;
    finder->blamed_count = 0;
    for (uint32_t i = 0; i < strip->count && finder->blamed_count < BLAME; i++)
        if (finder->standing[i] + strip->spans[i].size == finder->height)
            finder->blamed[finder->blamed_count++] = i;
    finder->work += strip->count / 8;
}

/* A span on the peak, or one that is live with it. */
static uint32_t choose_span(struct finder *finder)
{
    const pleat__strip *strip = finder->placing->strip;
    uint32_t blamed = finder->blamed[draw(finder, finder->blamed_count)];
    if (draw(finder, 3) == 0)
        return blamed;
    for (int tries = 0; tries < 64; tries++) {
        uint32_t other = (uint32_t)draw(finder, strip->count);
        if (pleat__spans_meet(&strip->spans[blamed], &strip->spans[other]))
            return other;
    }
    return blamed;
}

/* The trial becomes what the search stands at. */
static void stand_at_trial(struct finder *finder, uint64_t height)
{
    uint64_t *swap = finder->standing;
    finder->standing = finder->trial;
    finder->trial = swap;
    finder->height = height;
    finder->record = height < finder->record ? height : finder->record;
    blame(finder);
    if (height < finder->placing->height) {
        memcpy(finder->placing->trial, finder->standing,
               finder->placing->strip->count * sizeof *finder->standing);
        pleat__placing_offer(finder->placing, PLEAT__ALGORITHM_search, height);
    }
}

/* One above the height that is still accepted: as high as the record plus a part that shrinks
 * through the round (record-to-record travel, Dueck 1993). */
static uint64_t acceptable(const struct finder *finder, uint32_t slack, uint64_t begin,
                           uint64_t end)
{
    if (slack == 0 || finder->work >= end)
        return finder->height + 1;
    double left = (double)(end - finder->work) / (double)(end - begin);
    return finder->record + 1 + (uint64_t)((double)(finder->record / slack) * left);
}

static bool is_finished(const struct finder *finder, uint64_t budget)
{
    return finder->work >= budget || pleat__placing_done(finder->placing);
}

/* Moves sequence[from] to `to`, which is before it, or back. */
static void move(uint32_t *sequence, uint32_t from, uint32_t to)
{
    uint32_t span = sequence[from];
    if (to < from)
        memmove(sequence + to + 1, sequence + to, (from - to) * sizeof *sequence);
    else
        memmove(sequence + from, sequence + from + 1, (to - from) * sizeof *sequence);
    sequence[to] = span;
}

static uint32_t position_of(const uint32_t *sequence, uint32_t count, uint32_t span)
{
    uint32_t at = 0;
    while (at + 1 < count && sequence[at] != span)
        at++;
    return at;
}

static pleat_result try_order(struct finder *finder, pleat__timeline *timeline, uint64_t limit,
                              uint64_t budget, uint64_t *height)
{
    uint64_t before = timeline->work;
    timeline->places = finder->trial;
    PLEAT_TRY(pleat__timeline_run(timeline, finder->placing->sequence, limit, budget, height));
    finder->work += timeline->work - before;
    return PLEAT_OK;
}

/* One round, from the order in placing->sequence; `best` keeps the best one. */
static pleat_result order_round(struct finder *finder, pleat__timeline *timeline, uint32_t slack,
                                uint64_t end, uint32_t *best)
{
    uint32_t *sequence = finder->placing->sequence, count = finder->placing->strip->count;
    uint64_t begin = finder->work, height;
    while (!is_finished(finder, end)) {
        uint32_t from = position_of(sequence, count, choose_span(finder));
        uint32_t to = (uint32_t)draw(finder, from + 1);
        finder->work += 4 + count / 32;
        if (to == from)
            continue;
        move(sequence, from, to);
        PLEAT_TRY(try_order(finder, timeline, acceptable(finder, slack, begin, end), UINT64_MAX,
                            &height));
        if (height == UINT64_MAX) {
            move(sequence, to, from);
            continue;
        }
        if (height < finder->record)
            memcpy(best, sequence, count * sizeof *best);
        stand_at_trial(finder, height);
    }
    return PLEAT_OK;
}

static pleat_result search_orders(struct finder *finder, uint64_t end)
{
    pleat__placing *placing = finder->placing;
    uint32_t count = placing->strip->count;
    pleat__timeline timeline = {0};
    uint64_t height = UINT64_MAX, begin = finder->work;
    uint32_t *best = pleat__arena_alloc(placing->arena, count * sizeof *best);
    if (best == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to search among %u requests", count);
    pleat_result result = pleat__timeline_create(&timeline, placing->strip, finder->trial);
    if (result == PLEAT_OK)
        result = try_order(finder, &timeline, UINT64_MAX, end, &height);
    uint64_t placement = finder->work - begin + 1;
    uint32_t rounds = (end - begin) / ROUNDS / placement < ROUND_PLACEMENTS ? 1 : ROUNDS;
    memcpy(best, placing->sequence, count * sizeof *best);
    for (uint32_t i = 0; i < rounds && result == PLEAT_OK && height != UINT64_MAX; i++) {
        memcpy(placing->sequence, best, count * sizeof *best);
        result = try_order(finder, &timeline, UINT64_MAX, UINT64_MAX, &height);
        if (result != PLEAT_OK)
            break;
        stand_at_trial(finder, height);
        result = order_round(finder, &timeline, slacks[i], begin + (end - begin) / rounds * (i + 1),
                             best);
    }
    pleat__timeline_destroy(&timeline);
    pleat__arena_free(placing->arena, best);
    return result;
}

/* Turns the reach of a span, or of all of its size. */
static void turn(struct finder *finder, uint32_t span, bool likes, uint8_t reach)
{
    const pleat__strip *strip = finder->placing->strip;
    finder->placing->trial_reach[span] = reach;
    for (uint32_t i = 0; likes && i < strip->count; i++)
        if (strip->spans[i].size == strip->spans[span].size)
            finder->placing->trial_reach[i] = reach;
    finder->work += likes ? strip->count / 16 : 1;
}

static pleat_result try_sweep(struct finder *finder, uint64_t limit, uint64_t *height)
{
    pleat__placing *placing = finder->placing;
    pleat__strip_sweep_options options = {.backward = placing->backward,
                                          .cap = placing->strip->floor,
                                          .limit = limit,
                                          .reach = placing->trial_reach};
    uint64_t before = placing->gaps.work;
    PLEAT_TRY(pleat__strip_sweep(placing->strip, &options, &placing->gaps, finder->trial, height));
    finder->work += placing->gaps.work - before;
    return PLEAT_OK;
}

static pleat_result search_sweeps(struct finder *finder, uint64_t budget)
{
    pleat__placing *placing = finder->placing;
    uint32_t count = placing->strip->count;
    uint64_t height;
    memcpy(placing->trial_reach, placing->reach, count);
    PLEAT_TRY(try_sweep(finder, UINT64_MAX, &height));
    stand_at_trial(finder, height);
    while (!is_finished(finder, budget)) {
        uint32_t span = choose_span(finder);
        bool likes = draw(finder, 2) == 0;
        uint8_t reach = (uint8_t)((placing->trial_reach[span] + 1 + draw(finder, 2)) % 3);
        turn(finder, span, likes, reach);
        PLEAT_TRY(try_sweep(finder, finder->height + 1, &height));
        finder->work += count / 64;
        if (height != UINT64_MAX) {
            stand_at_trial(finder, height);
            memcpy(placing->reach, placing->trial_reach, count);
        } else {
            memcpy(placing->trial_reach, placing->reach, count);
        }
    }
    return PLEAT_OK;
}

pleat_result pleat__place_search(pleat__placing *placing, uint64_t *height, uint64_t *work)
{
    uint64_t bytes = placing->strip->count * sizeof(uint64_t), budget = placing->search_work;
    struct finder finder = {.placing = placing, .random = SEED};
    if (budget == 0) {
        *height = 0; /* it was not run */
        return PLEAT_OK;
    }
    finder.standing = pleat__arena_alloc(placing->arena, bytes);
    finder.trial = pleat__arena_alloc(placing->arena, bytes);
    pleat_result result = PLEAT_OK;
    if (finder.standing == NULL || finder.trial == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to search among %u requests",
                             placing->strip->count);
    /* The form that did better gets the larger part, which goes on to the end. Among many spans
     * that are sweeps, unless they are far behind: one costs a fifteenth of an order. */
    bool orders = placing->sequence_height != UINT64_MAX;
    bool sweeps = placing->sweep_height != UINT64_MAX;
    uint64_t behind = placing->strip->count > MANY ? placing->sequence_height / FAR_BEHIND : 0;
    bool orders_last =
        orders && (!sweeps || placing->sweep_height - behind >= placing->sequence_height);
    for (int half = 0; half < 2 && result == PLEAT_OK; half++) {
        bool order_turn = orders_last == (half == 1);
        uint64_t part = half == 0 ? budget / 3 : budget;
        finder.record = UINT64_MAX;
        if (order_turn && orders)
            result = search_orders(&finder, part);
        else if (!order_turn && sweeps)
            result = search_sweeps(&finder, part);
    }
    if (placing->best == PLEAT__ALGORITHM_search)
        *height = placing->height;
    *work += finder.work;
    pleat__arena_free(placing->arena, finder.standing);
    pleat__arena_free(placing->arena, finder.trial);
    return result;
}
