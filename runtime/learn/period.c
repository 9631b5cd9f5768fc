/*
 * period.c: finding the iteration of a job that marks nothing, and comparing an iteration with the
 * one before.
 *
 * PERIODS  Sequences of requests repeat on many levels: a layer in the forward pass, a microbatch,
 *          the iteration. A table says where the last GRAM sizes were last, so each request has a
 *          distance to its predecessor. Rows that occur once an iteration have the iteration's
 *          length as theirs, those of inner loops shorter ones. A distance that several agree on
 *          opens the lag. There is one: of six that were tried at the same time five paid for
 *          nothing (D490 in docs/decisions.md).
 * LAG      From there on requests are compared with those a period before, by a cursor that passes
 *          over what is extra, missing or resized (lag_step), because iterations are not exactly
 *          equal: the first makes the optimizer's state, something is logged. When the cursor
 *          reaches the place where comparing began, a repeat has ended. It is believed when nearly
 *          all of it agreed.
 * INNER    A loop of microbatches looks like iterations until the optimizer comes; nothing in the
 *          sequence tells them apart before. Such a loop may be followed: it goes where something
 *          else comes, and what repeats itself is looked for anew (learner.c).
 * MARKED   Between marks the lag compares from one mark to the next.
 */
#include <runtime/learn/recording.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/range.h>
#include <string.h>

/* In requests, unless said otherwise. What half and twice the values do: docs/decisions.md, D120 to
 * D131, D191. */
#define GRAM      8u         /* sizes in a row that the table of positions is asked for */
#define SEEN_BITS 14u        /* logarithm of that table's entries */
#define MOST      (1u << 17) /* the longest iteration: it has to come twice in what is held */
#define LEAST     64u        /* the shortest iteration that is followed */
#define LONG      4096u      /* an iteration at least so long is believed when it came twice */
#define PATIENCE  8192u      /* must have been compared before a shorter iteration is believed */
#define VOTES     4u         /* requests whose distances must agree to open a lag */
#define NEAR      2u         /* the cursor passes over at most so many */
#define LOST      3u         /* misses in a row before the table is asked as well */
#define STEADY    4u         /* a repeat's length may differ by 1/STEADY */

_Static_assert(GRAM == sizeof(uint64_t), "a word holds the keys of as many requests");

pleat_result pleat__period_init(pleat__period *period, pleat__arena *arena, bool off)
{
    size_t seen_bytes = sizeof *period->seen << SEEN_BITS;
    *period = (pleat__period){.off = off};
    period->seen = pleat__arena_alloc(arena, seen_bytes);
    period->votes = pleat__arena_calloc(arena, PLEAT__OCTAVE_BINS, sizeof *period->votes);
    if (period->seen == NULL || period->votes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to learn a job's iteration");
    /* Written here, so that the first requests do not wait for its 128 KiB page by page. */
    memset(period->seen, 0, seen_bytes);
    return PLEAT_OK;
}

void pleat__period_release(pleat__period *period, pleat__arena *arena)
{
    pleat__arena_free(arena, period->seen);
    pleat__arena_free(arena, period->votes);
    *period = (pleat__period){0};
}

void pleat__period_forget(pleat__period *period, uint64_t position, bool empty)
{
    if (empty)
        period->grams = 0;
    if (period->lag.cursor < position)
        period->lag.open = false;
}

/* ---- distances ---- */

/* Notes where the last GRAM requests are. How far back they were last; 0: they are not in the
 * table, or were not within what is held. */
static uint32_t distance_step(pleat__recording *recording)
{
    uint64_t at = recording->end - 1;
    pleat__period *period = &recording->period;
    const pleat__recorded_request *newest = pleat__recording_at(recording, at);
    period->grams = period->grams << 8 | pleat__recording_key_of(pleat__recorded_bytes(newest),
                                                                 pleat__recorded_stream(newest));
    if (recording->end - recording->begin <= GRAM)
        return 0;
    uint64_t mixed = (period->grams ^ period->grams >> 29) * PLEAT__HASH_MULTIPLIER;
    pleat__seen *seen = &period->seen[mixed >> (64 - SEEN_BITS)];
    uint32_t distance = (uint32_t)at - seen->position;
    bool known = seen->tag == (uint32_t)mixed && distance <= at - recording->begin;
    *seen = (pleat__seen){(uint32_t)mixed, (uint32_t)at};
    return known ? distance : 0;
}

/* ---- lags ---- */

static uint32_t differ(uint32_t a, uint32_t b)
{
    return a > b ? a - b : b - a;
}

/* Whether a repeat of `count` requests is as long as the one before. Stretches that repeat at
 * changing lengths are pieces of something longer. */
static bool is_steady(const pleat__lag *lag, uint32_t count)
{
    return differ(count, lag->length) <= lag->length / STEADY;
}

/* Whether the newest request is that at cursor + k. */
static bool is_there(const pleat__recording *recording, const pleat__lag *lag, uint64_t k,
                     uint64_t most)
{
    uint64_t at = recording->end - 1;
    return lag->cursor + k < most &&
           pleat__recording_same(pleat__recording_at(recording, at),
                                 pleat__recording_at(recording, lag->cursor + k));
}

/* How many requests are passed over to find the newest. UINT64_MAX when it is none of the next. (To
 * look further ahead brings nothing: D124 in docs/decisions.md.) */
static uint64_t passed_over(const pleat__recording *recording, const pleat__lag *lag, uint64_t most)
{
    for (uint64_t k = 0; k <= NEAR; k++)
        if (is_there(recording, lag, k, most))
            return k;
    return UINT64_MAX;
}

/* Compares the newest request, whose like was `distance` ago (0: unknown), with what is expected;
 * whether it was found. */
static bool lag_step(pleat__recording *recording, uint32_t distance)
{
    pleat__lag *lag = &recording->period.lag;
    uint64_t at = recording->end - 1, most = recording->marked ? lag->last : at;
    uint64_t like = at - distance;
    uint64_t over = passed_over(recording, lag, most);
    if (over == UINT64_MAX && lag->misses >= LOST && distance != 0 && like >= lag->cursor &&
        like - lag->cursor <= lag->length / 2 && like < most)
        over = like - lag->cursor;
    if (over == UINT64_MAX) {
        lag->misses++;
        return false;
    }
    lag->cursor += over + 1;
    lag->misses = 0;
    lag->agreed++;
    pleat__recording_at(recording, at)->what |= PLEAT__RECORDED_FOUND;
    return true;
}

/* Whether the lag is given up: less than half of what was compared agreed (but for LEAST requests),
 * or the repeat is already twice as long as the one before. */
static bool hopeless(const pleat__recording *recording, const pleat__lag *lag)
{
    uint64_t compared = recording->end - lag->since;
    return compared - lag->agreed > LEAST + compared / 2 ||
           recording->end - lag->last > 2 * (uint64_t)lag->length + LEAST;
}

/* Requests of a repeat that must have been compared before it is believed. */
static uint64_t wanted_of(uint32_t count)
{
    return count >= LONG ? count : PATIENCE;
}

static bool believed(const pleat__lag *lag, uint32_t count)
{
    uint64_t compared = lag->last + count - lag->since;
    return pleat__nearly_all(lag->agreed, compared) && is_steady(lag, count) && count >= LEAST &&
           count <= MOST && compared >= wanted_of(count);
}

/* The cursor came to where the repeat began: the next one has begun. The one that ended where it is
 * believed. */
static pleat__repeat repeat_ends(pleat__recording *recording)
{
    pleat__lag *lag = &recording->period.lag;
    uint32_t ahead = (uint32_t)(lag->cursor - lag->last);
    uint32_t count = (uint32_t)(recording->end - ahead - lag->last);
    bool found = believed(lag, count);
    lag->open = is_steady(lag, count);
    lag->last += count;
    lag->length = count;
    return (pleat__repeat){.first = lag->cursor,
                           .count = found ? (uint32_t)(recording->end - lag->cursor) : 0};
}

static void lag_open(pleat__recording *recording, uint64_t cursor)
{
    recording->period.lag = (pleat__lag){.since = recording->end,
                                         .last = recording->end,
                                         .cursor = cursor,
                                         .length = (uint32_t)(recording->end - cursor),
                                         .open = true};
}

/* Whether a lag of this length is tried in the place of what is: it is longer, unless that one
 * expects the same request, or came through a repeat and goes well, and on. */
static bool takes_over(const pleat__recording *recording, uint32_t length)
{
    const pleat__lag *lag = &recording->period.lag;
    uint64_t cursor = recording->end - length;
    bool expected = lag->cursor + NEAR >= cursor && lag->cursor <= cursor + NEAR;
    bool stays =
        lag->last != lag->since && lag->misses < LOST && pleat__period_goes_well(recording);
    return !lag->open || (lag->length < length && !expected && !stays);
}

static void vote(pleat__recording *recording, uint32_t distance)
{
    pleat__vote *votes = &recording->period.votes[pleat__octave_bin(distance)];
    if (recording->end - votes->last > distance / 2)
        votes->count = 0;
    votes->last = recording->end;
    if (++votes->count < VOTES)
        return;
    if (takes_over(recording, distance))
        lag_open(recording, recording->end - distance);
    votes->count = 0;
}

bool pleat__period_goes_well(const pleat__recording *recording)
{
    const pleat__lag *lag = &recording->period.lag;
    uint64_t compared = recording->end - lag->since;
    return lag->open && pleat__nearly_all(lag->agreed, compared);
}

pleat__repeat pleat__period_step(pleat__recording *recording)
{
    pleat__repeat found = {0};
    pleat__lag *lag = &recording->period.lag;
    uint32_t distance = distance_step(recording);
    if (lag->open && !lag_step(recording, distance))
        lag->open = !hopeless(recording, lag);
    else if (lag->open && lag->cursor >= lag->last)
        found = repeat_ends(recording);
    if (distance >= LEAST)
        vote(recording, distance);
    return found;
}

/* Whether an iteration between marks can no longer be alike: nearly all of one that is are found in
 * the one before, each there once. */
static bool too_many_missed(const pleat__recording *recording, const pleat__lag *lag)
{
    return recording->end - lag->since - lag->agreed > lag->length / (PLEAT__NEARLY - 1);
}

void pleat__period_step_marked(pleat__recording *recording)
{
    pleat__lag *lag = &recording->period.lag;
    uint32_t distance = distance_step(recording);
    if (lag->open && !lag_step(recording, distance))
        lag->open = !too_many_missed(recording, lag);
}

void pleat__period_mark(pleat__recording *recording, uint64_t begin)
{
    lag_open(recording, begin);
}
