/*
 * beat.c: finding iterations by what does not follow sizes.
 *
 * Where a sequence length is drawn anew each time, or tokens go to other experts, three requests in
 * four have other sizes in each iteration, and the period of the sizes (learn.c) is not found. But
 * the program is the same, so between one allocation and the next as many tensors are freed as in
 * the iteration before: of nine such jobs that were recorded, between 99.9 and 100 % of the
 * requests agree in this. (Ages, how many requests ago what is freed was allocated, say no more
 * and need a table of all that is live.)
 *
 * LAGS    A table says how far back the last GRAM words were last. Rows that occur once an
 *         iteration have its length as their distance, those of inner loops shorter ones; some of
 *         them are tried at the same time (learn.c does so with sizes).
 * FIRST   A job's first iteration makes the optimizer's state, and is longer than those behind it.
 *         Where a lag's first repeat ends with some that do not agree, and the next row was last
 *         about as long ago, that is the length from there on: so a job is known when its third
 *         iteration begins.
 * BELIEF  A lag is believed when enough requests in a row agreed, no longer one goes as well, and
 *         as much is live one length before as now: layers add to what is live or take from it, and
 *         so does each token that is generated.
 * BEGIN   An iteration begins where little is live, between the optimizer's step and the next
 *         forward pass. It matters which side of that a request is on: what lies before and behind
 *         has another x (elastic.h). The optimizer's sizes stay, a batch of data's do not: it
 *         begins behind the longest row of sizes that stay.
 * INNER   A loop of microbatches looks like iterations until the optimizer comes. Then what was
 *         found is lost, and a loop that is as short must go on for longer.
 *
 * Where most sizes are equal, too, the job is left to learn.c, which knows better what stays; where
 * nearly all are, for good.
 */
#include <runtime/learn/beat.h>

#include <string.h>

#define GRAM      16u
#define SEEN_BITS 14u
#define MOST      (1u << 18) /* requests that are held */
#define LEAST     64u        /* requests of an iteration */
#define LONG      4096u      /* requests of an iteration that is believed when it came twice */
#define PATIENCE  8192u      /* requests that must have agreed for a shorter one */
#define PATIENT   4u         /* so many times as many where most sizes are equal */
#define AHEAD     256u       /* requests by which a longer lag is worth waiting for */
#define LOST      3u         /* misses in a row, before the table is asked */
#define ASTRAY    64u        /* and how many more may be, before a lag has lost its way */
#define SHIFT     16u        /* one in so many by which an iteration may be longer or shorter */
#define FIRST     4u         /* the same of the first one */
#define ODD       16u        /* one in so many requests may be another one */
#define STAYS     64u        /* one in so many bytes may be live at the beginning that was not */
#define LOOKS     8u         /* at an iteration, while it passes */
#define BATCH     8u         /* requests that a batch of data has fewer than */
#define LOOPS     64u        /* of so many an inner loop does not consist */

#define MULTIPLIER UINT64_C(0x9e3779b97f4a7c15)

void pleat__beat_init(pleat__beat *beat, pleat__arena *arena, bool off)
{
    *beat = (pleat__beat){.arena = arena, .off = off};
}

void pleat__beat_restart(pleat__beat *beat)
{
    pleat__arena_free(beat->arena, beat->steps);
    pleat__arena_free(beat->arena, beat->seen);
    *beat = (pleat__beat){
        .arena = beat->arena, .off = beat->off, .inner = beat->inner, .known = beat->known};
}

static pleat__beat_step *step_at(const pleat__beat *beat, uint64_t position)
{
    return &beat->steps[position & beat->mask];
}

/* Whether a position and all behind it are held. */
static bool is_held(const pleat__beat *beat, uint64_t position)
{
    return position < beat->end && beat->end - position <= beat->capacity;
}

/* Room for one more: a ring of twice the size, or the place of the oldest. */
static bool make_room(pleat__beat *beat)
{
    if (beat->end < beat->capacity || beat->capacity == MOST)
        return true;
    uint32_t capacity = beat->capacity == 0 ? 1024 : 2 * beat->capacity;
    pleat__beat_step *grown = pleat__arena_alloc(beat->arena, capacity * sizeof *grown);
    if (beat->seen == NULL)
        beat->seen = pleat__arena_calloc(beat->arena, 1u << SEEN_BITS, sizeof *beat->seen);
    if (grown == NULL || beat->seen == NULL) {
        pleat__arena_free(beat->arena, grown);
        return false;
    }
    if (beat->steps != NULL)
        memcpy(grown, beat->steps, beat->end * sizeof *grown);
    pleat__arena_free(beat->arena, beat->steps);
    beat->steps = grown;
    beat->capacity = capacity;
    beat->mask = capacity - 1;
    return true;
}

/* ---- distances ---- */

static uint64_t mixed(uint64_t word)
{
    word = (word + 1) * MULTIPLIER;
    return word ^ word >> 32;
}

/* How far back the last GRAM words were last; 0: not known. */
static uint32_t distance_step(pleat__beat *beat)
{
    uint64_t at = beat->end - 1, power = MULTIPLIER;
    beat->hash = beat->hash * MULTIPLIER + mixed(step_at(beat, at)->word);
    if (beat->end <= GRAM)
        return 0;
    for (uint32_t i = 1; i < GRAM; i *= 2)
        power *= power;
    beat->hash -= mixed(step_at(beat, at - GRAM)->word) * power;
    uint64_t hash = (beat->hash ^ beat->hash >> 29) * MULTIPLIER;
    pleat__beat_seen *seen = &beat->seen[hash >> (64 - SEEN_BITS)];
    uint32_t distance = (uint32_t)at - seen->position;
    bool known = seen->tag == (uint32_t)hash && distance <= at && is_held(beat, at - distance);
    *seen = (pleat__beat_seen){(uint32_t)hash, (uint32_t)at};
    return known ? distance : 0;
}
_Static_assert((GRAM & (GRAM - 1)) == 0, "squared so often");

/* ---- lags ---- */

static uint32_t differ(uint32_t a, uint32_t b)
{
    return a > b ? a - b : b - a;
}

/* Compares the newest request, whose like was `distance` ago (0: not known). false: the lag has
 * lost its way. */
static bool lag_step(pleat__beat *beat, pleat__beat_lag *lag, uint32_t distance)
{
    const pleat__beat_step *now = step_at(beat, beat->end - 1);
    if (!is_held(beat, beat->end - 1 - lag->length))
        return false;
    lag->compared++;
    /* Something is more or less than in the iteration before. */
    if (lag->misses >= LOST && distance != 0 &&
        differ(distance, lag->length) <= lag->length / SHIFT)
        lag->length = distance;
    const pleat__beat_step *like = step_at(beat, beat->end - 1 - lag->length);
    if (now->word != like->word) {
        lag->misses++;
        lag->odd += ODD;
        return lag->odd <= ASTRAY * ODD;
    }
    lag->misses = 0;
    lag->odd -= lag->odd != 0;
    lag->equal += now->bytes == like->bytes;
    return true;
}

/* Nothing but the shorter one some times over. */
static bool is_multiple(uint32_t longer, uint32_t shorter)
{
    uint32_t rest = longer % shorter;
    return (rest < shorter - rest ? rest : shorter - rest) <= shorter / SHIFT;
}

static bool longer_goes(const pleat__beat *beat, uint32_t length)
{
    for (uint32_t i = 0; i < PLEAT__BEAT_LAGS; i++) {
        const pleat__beat_lag *lag = &beat->lags[i];
        if (lag->open && lag->length >= length + length / 2 && lag->compared >= AHEAD &&
            lag->compared >= lag->length / 8 && !is_multiple(lag->length, length))
            return true;
    }
    return false;
}

/* The last iteration, however it is cut. */
typedef struct beat_cycle {
    const pleat__beat_lag *lag;
    uint64_t first; /* position */
    uint32_t length;
    uint32_t equal;       /* requests of the size that they had one iteration before */
    uint64_t least, most; /* bytes live */
    uint64_t least_at;    /* position */
} beat_cycle;

/* Whether a request had the size of the one that it is held against. */
static bool is_equal(const pleat__beat *beat, uint64_t position, const pleat__beat_lag *lag)
{
    uint64_t like = position - (position < lag->shifted ? lag->before : lag->length);
    return is_held(beat, like) && step_at(beat, position)->bytes == step_at(beat, like)->bytes;
}

static beat_cycle cycle_of(const pleat__beat *beat, const pleat__beat_lag *lag)
{
    uint32_t length = lag->length;
    beat_cycle cycle = {
        .lag = lag, .first = beat->end - length, .length = length, .least = UINT64_MAX};
    for (uint64_t p = cycle.first; p < beat->end; p++) {
        uint64_t live = step_at(beat, p)->live;
        cycle.equal += is_equal(beat, p, lag);
        cycle.most = live > cycle.most ? live : cycle.most;
        if (live < cycle.least) {
            cycle.least = live;
            cycle.least_at = p;
        }
    }
    return cycle;
}

/* Whether about the least is live before one of the requests from `position` on. */
static bool is_low(const pleat__beat *beat, const beat_cycle *cycle, uint64_t position)
{
    uint64_t low = cycle->least + (cycle->most - cycle->least) / STAYS;
    for (uint64_t p = position; p < beat->end && p < position + BATCH; p++)
        if (step_at(beat, p)->live <= low)
            return true;
    return false;
}

/* Behind the longest row of requests whose sizes stay, where about the least is live; where there
 * is none, where the least is. false: this is not the moment to tell, the longest ended just before
 * what is looked at, or may not have ended. */
static bool find_begin(const pleat__beat *beat, const beat_cycle *cycle, uint64_t *begin)
{
    uint64_t best = cycle->least_at;
    uint64_t from = cycle->first - BATCH;
    uint32_t row = 0, longest = 0;
    while (row < cycle->length && is_equal(beat, from - 1 - row, cycle->lag))
        row++;
    for (uint64_t p = from; p < beat->end; p++) {
        bool equal = is_equal(beat, p, cycle->lag);
        if (!equal && row > longest && is_low(beat, cycle, p)) {
            longest = row;
            best = p;
        }
        row = equal ? row + 1 : 0;
    }
    *begin = best;
    return best > cycle->first && row <= longest;
}

/* Whether as much is live as it was in all iterations before. */
static bool comes_back(const pleat__beat *beat, const beat_cycle *cycle, uint32_t compared)
{
    for (uint64_t back = cycle->length; back <= compared; back += cycle->length) {
        if (!is_held(beat, cycle->least_at - back))
            break;
        uint64_t then = step_at(beat, cycle->least_at - back)->live;
        uint64_t changed = then > cycle->least ? then - cycle->least : cycle->least - then;
        if (changed > (cycle->most - cycle->least) / STAYS)
            return false;
    }
    return true;
}

static uint32_t wanted_of(const pleat__beat *beat, uint32_t length)
{
    uint32_t wanted = length >= LONG ? length + AHEAD : PATIENCE;
    if (beat->known != 0 && differ(length, beat->known) <= length / SHIFT)
        return length + AHEAD < wanted ? length + AHEAD : wanted;
    if (length < beat->inner && wanted < beat->inner + beat->inner / 2)
        wanted = beat->inner + beat->inner / 2;
    return wanted;
}

/* The last questions look at the whole iteration, and are asked a few times in each. */
static bool believed(pleat__beat *beat, pleat__beat_lag *lag)
{
    uint32_t wanted = wanted_of(beat, lag->length);
    if (lag->equal > lag->compared / 2)
        wanted *= PATIENT;
    if (lag->compared < wanted || lag->compared < lag->rest || lag->odd != 0 ||
        lag->equal >= lag->compared - lag->compared / ODD || longer_goes(beat, lag->length))
        return false;
    lag->rest = lag->compared + lag->length / LOOKS;
    beat_cycle cycle = cycle_of(beat, lag);
    /* Two iterations with the same x do not say where x changes. */
    return cycle.equal <= cycle.length - cycle.length / ODD &&
           comes_back(beat, &cycle, lag->compared) && find_begin(beat, &cycle, &beat->begin);
}

static bool is_tried(const pleat__beat *beat, uint32_t distance)
{
    for (uint32_t i = 0; i < PLEAT__BEAT_LAGS; i++)
        if (beat->lags[i].open && differ(beat->lags[i].length, distance) <= 1)
            return true;
    return false;
}

/* Lags that have come through a repeat are worth more; of the others the longer. */
static bool is_worth_less(const pleat__beat_lag *a, const pleat__beat_lag *b)
{
    bool a_proven = a->compared >= 2 * a->length, b_proven = b->compared >= 2 * b->length;
    return a_proven != b_proven ? b_proven : a->length < b->length;
}

/* Whether a row that was last so long ago is what comes behind a lag's first iteration. */
static bool ends_first(const pleat__beat_lag *lag, uint32_t distance)
{
    uint32_t most = lag->length / FIRST;
    return lag->open && lag->shifted == 0 && lag->odd != 0 &&
           differ(lag->length, distance) <= most && lag->compared >= lag->length / 2 &&
           lag->compared <= lag->length + most;
}

static bool shift_first(pleat__beat *beat, uint32_t distance)
{
    for (uint32_t i = 0; i < PLEAT__BEAT_LAGS; i++) {
        pleat__beat_lag *lag = &beat->lags[i];
        if (!ends_first(lag, distance))
            continue;
        lag->shifted = beat->end - GRAM;
        lag->before = lag->length;
        lag->length = distance;
        lag->misses = 0;
        return true;
    }
    return false;
}

static void lag_open(pleat__beat *beat, uint32_t distance)
{
    pleat__beat_lag *room = &beat->lags[0];
    if (distance < LEAST || distance > MOST / 2 || is_tried(beat, distance) ||
        shift_first(beat, distance))
        return;
    for (uint32_t i = 0; i < PLEAT__BEAT_LAGS && room->open; i++)
        if (!beat->lags[i].open || is_worth_less(&beat->lags[i], room))
            room = &beat->lags[i];
    if (!room->open || room->length < distance)
        *room = (pleat__beat_lag){.open = true, .length = distance};
}

static pleat__beat_says look(pleat__beat *beat)
{
    for (uint32_t i = 0; i < PLEAT__BEAT_LAGS; i++)
        if (beat->lags[i].open && believed(beat, &beat->lags[i])) {
            beat->found = beat->lags[i];
            return PLEAT__BEAT_FOUND;
        }
    return PLEAT__BEAT_NONE;
}

/* ---- what was found ---- */

void pleat__beat_judge(pleat__beat *beat, uint32_t length, uint64_t requests)
{
    if (requests / LOOPS >= length)
        beat->known = length;
    else if (requests > beat->inner)
        beat->inner = requests < MOST ? (uint32_t)requests : MOST;
}

static pleat__beat_says keep_time(pleat__beat *beat, uint32_t distance)
{
    pleat__beat_lag *found = &beat->found;
    if (!lag_step(beat, found, distance)) {
        pleat__beat_judge(beat, found->length, found->compared);
        found->open = false;
        return PLEAT__BEAT_LOST;
    }
    if (beat->end - found->length < beat->begin)
        return PLEAT__BEAT_NONE;
    beat->begin = beat->end;
    return PLEAT__BEAT_BEGIN;
}

pleat__beat_says pleat__beat_request(pleat__beat *beat, uint64_t bytes, uint16_t stream,
                                     uint64_t live)
{
    if (beat->off)
        return PLEAT__BEAT_NONE;
    if (!make_room(beat)) {
        pleat__beat_restart(beat);
        beat->off = true;
        return PLEAT__BEAT_LOST;
    }
    uint32_t frees = beat->frees < UINT16_MAX ? beat->frees : UINT16_MAX;
    beat->frees = 0;
    *step_at(beat, beat->end++) =
        (pleat__beat_step){.bytes = bytes, .live = live, .word = (uint32_t)stream << 16 | frees};
    uint32_t distance = distance_step(beat);
    for (uint32_t i = 0; i < PLEAT__BEAT_LAGS; i++)
        if (beat->lags[i].open)
            beat->lags[i].open = lag_step(beat, &beat->lags[i], distance);
    lag_open(beat, distance);
    return beat->found.open ? keep_time(beat, distance) : look(beat);
}
