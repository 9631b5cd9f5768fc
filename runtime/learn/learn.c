/*
 * learn.c: finding a job's iteration, and what repeats in it.
 *
 * Every request is recorded with the place that the heap gave it, at O(1). Where an iteration ends
 * is said by a mark, or found.
 *
 * MARKS    What lies between two is compared with what lay between the two before. One that comes
 *          right behind another, because a program marks twice, is none.
 * PERIODS  Sequences of requests repeat on many levels: a layer in the forward pass, a microbatch,
 *          the iteration. A table says where the last GRAM sizes were last, so each request has a
 *          distance to its like. Rows that occur once an iteration have the iteration's length as
 *          theirs, those of inner loops shorter ones. A distance that several agree on opens a lag;
 *          the longest PLEAT__LAGS are tried at the same time.
 * LAG      From there on requests are compared with those a period before, by a cursor that passes
 *          over what is extra, missing or resized (lag_step), because iterations are not exactly
 *          equal: the first makes the optimizer's state, experts get other tokens, something is
 *          logged. When the cursor reaches the place where comparing began, a repeat has ended. It
 *          is believed when enough of it agreed (believed), unless a longer lag goes as well: then
 *          that is waited for.
 * INNER    A loop of microbatches looks like iterations until the optimizer comes; nothing in the
 *          sequence tells them apart before. So recording goes on while an iteration that was found
 *          is new (shapes.c), and for as long as a longer one goes well; that takes its place where
 *          it explains more. A long stretch that agrees less than a shorter one is some turns of
 *          that, out of step, and waits for it.
 *
 * What both of two repeats have is static; what only the later one has is dynamic. The later one is
 * followed, each request at the place where it just was; a dynamic one takes as much of that as it
 * needs, and gets another when it needs more. That this needs no planner was a
 * measurement: the heap's own places, with views that waste nothing, are 0.02 to 0.6 % above
 * max-live on seven recorded jobs, which is where a planner started from a blank sheet gets, and
 * here persistent tensors already stand, nothing has to move, and physical memory cannot grow at
 * the switch. It takes no time either: what is followed is a copy of what was recorded, made at the
 * boundary and not in a thread of its own. A request that finds its place taken (by one that
 * crosses the boundary, which the iteration before had elsewhere) gets another from the heap and
 * keeps that.
 */
#include <runtime/learn/learn.h>

#include <internal/error.h>
#include <internal/range.h>
#include <string.h>

#define GRAM      8u
#define SEEN_BITS 16u
#define MOST      (1u << 20) /* requests that are held */
#define UNMARKED  (1u << 18) /* and while the job marks nothing, which may have no iterations */
#define LEAST     64u        /* requests of an iteration that is worth following */
#define LONG      4096u      /* requests of an iteration that is believed when it came twice */
#define PATIENCE  8192u      /* requests that must have been compared for a shorter one */
#define VOTES     4u         /* distances that must agree */
#define NEAR      2u         /* requests that may be missing before one that alone says so */
#define FAR       32u        /* and before two that do */
#define LOST      3u         /* misses in a row, before the table is asked */
#define ADRIFT    128u       /* and before it alone is */
#define STEADY    4u         /* one in so many requests may be more or less in a repeat */
#define STEADIER  16u        /* the same from the second repeat on */
#define AGAIN     4u         /* requests behind a mark in which another one says the same */
#define EXACT     64u        /* one in so many by which a multiple may be more or less */
#define EARLY     256u       /* requests after which a lag can be waited for */

/* Of an item's kind while it is recorded: it lay in no slot. The lower bits are the lags' that
 * found it where they expected it. */
#define UNPLANNED (1u << 7)
_Static_assert(PLEAT__LAGS <= 7, "bits of an item's kind");

#define MULTIPLIER UINT64_C(0x9e3779b97f4a7c15)

pleat_result pleat__learn_init(pleat__learn *learn, pleat__arena *arena, const pleat__conf *conf)
{
    *learn = (pleat__learn){
        .arena = arena, .off = !conf->learn, .no_period = !conf->period, .mark_at = PLEAT__NO_MARK};
    learn->seen = pleat__arena_calloc(arena, 1u << SEEN_BITS, sizeof *learn->seen);
    learn->votes = pleat__arena_calloc(arena, PLEAT__OCTAVE_BINS, sizeof *learn->votes);
    if (learn->seen == NULL || learn->votes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to learn a job's iteration");
    return PLEAT_OK;
}

/* ---- what is held ---- */

static pleat__expected *item_at(const pleat__learn *learn, uint64_t position)
{
    return &learn->items[position & learn->mask];
}

static void forget_before(pleat__learn *learn, uint64_t position)
{
    for (; learn->begin < position; learn->begin++)
        pleat__view_unpin(learn->arena, &item_at(learn, learn->begin)->place);
    if (learn->begin == learn->end)
        learn->hash = 0;
    for (uint32_t i = 0; i < PLEAT__LAGS; i++)
        if (learn->lags[i].cursor < learn->begin)
            learn->lags[i].open = false;
}

void pleat__learn_restart(pleat__learn *learn)
{
    forget_before(learn, learn->end);
    for (uint32_t i = 0; i < PLEAT__LAGS; i++)
        learn->lags[i].open = false;
    pleat__arena_free(learn->arena, learn->items);
    learn->items = NULL;
    learn->capacity = 0;
    learn->mark_at = PLEAT__NO_MARK;
    learn->full = false;
}

void pleat__learn_release(pleat__learn *learn)
{
    if (learn->arena == NULL)
        return;
    pleat__learn_restart(learn);
    pleat__arena_free(learn->arena, learn->seen);
    pleat__arena_free(learn->arena, learn->votes);
    *learn = (pleat__learn){0};
}

/* Room for one more: a ring of twice the size, or the place of the oldest. */
static pleat_result make_room(pleat__learn *learn)
{
    if (learn->end - learn->begin < learn->capacity)
        return PLEAT_OK;
    if (learn->capacity >= (learn->marks ? MOST : UNMARKED)) {
        forget_before(learn, learn->begin + 1);
        return PLEAT_OK;
    }
    uint64_t capacity = learn->capacity == 0 ? 1024 : 2 * learn->capacity;
    pleat__expected *grown = pleat__arena_alloc(learn->arena, capacity * sizeof *grown);
    if (grown == NULL)
        return PLEAT_E_NO_MEMORY;
    for (uint64_t p = learn->begin; p < learn->end; p++)
        grown[p & (capacity - 1)] = *item_at(learn, p);
    pleat__arena_free(learn->arena, learn->items);
    learn->items = grown;
    learn->capacity = capacity;
    learn->mask = capacity - 1;
    return PLEAT_OK;
}

bool pleat__learn_recent(const pleat__learn *learn, uint64_t recent[PLEAT__GRAM])
{
    if (learn->end - learn->begin < PLEAT__GRAM)
        return false;
    for (uint32_t i = 0; i < PLEAT__GRAM; i++)
        recent[i] = item_at(learn, learn->end - PLEAT__GRAM + i)->bytes;
    return true;
}

static bool same(const pleat__expected *a, const pleat__expected *b)
{
    return a->bytes == b->bytes && a->stream == b->stream;
}

/* ---- distances ---- */

static uint64_t word_of(const pleat__expected *item)
{
    uint64_t word = (item->bytes ^ (uint64_t)item->stream << 56) * MULTIPLIER;
    return word ^ word >> 32;
}

static uint64_t power_of_multiplier(uint32_t exponent)
{
    uint64_t power = 1;
    while (exponent-- > 0)
        power *= MULTIPLIER;
    return power;
}

/* How far back the last GRAM requests were last; 0: not within what is held. */
static uint32_t distance_step(pleat__learn *learn)
{
    uint64_t at = learn->end - 1;
    learn->hash = learn->hash * MULTIPLIER + word_of(item_at(learn, at));
    if (learn->end - learn->begin <= GRAM)
        return 0;
    learn->hash -= word_of(item_at(learn, at - GRAM)) * power_of_multiplier(GRAM);
    uint64_t mixed = (learn->hash ^ learn->hash >> 29) * MULTIPLIER;
    pleat__seen *seen = &learn->seen[mixed >> (64 - SEEN_BITS)];
    uint32_t distance = (uint32_t)at - seen->position;
    bool known = seen->tag == (uint32_t)mixed && distance <= at - learn->begin;
    *seen = (pleat__seen){(uint32_t)mixed, (uint32_t)at};
    return known ? distance : 0;
}

/* ---- lags ---- */

static uint32_t differ(uint32_t a, uint32_t b)
{
    return a > b ? a - b : b - a;
}

/* What repeats at changing lengths are pieces of something longer. The first iteration may be
 * longer than the next. */
static bool is_steady(const pleat__lag *lag, uint32_t count)
{
    uint32_t most = lag->last == lag->since ? lag->length / STEADY : lag->length / STEADIER;
    return differ(count, lag->length) <= most;
}

/* Whether the newest request is that at cursor + k. One alone says so when it comes next, or when
 * those between are as many as have missed (they were resized); else two in a row. */
static bool is_there(const pleat__learn *learn, const pleat__lag *lag, uint64_t k, uint64_t most)
{
    uint64_t at = learn->end - 1;
    return lag->cursor + k < most && same(item_at(learn, at), item_at(learn, lag->cursor + k)) &&
           (k <= NEAR || k == lag->misses ||
            same(item_at(learn, at - 1), item_at(learn, lag->cursor + k - 1)));
}

/* How many requests are passed over to find the newest: none or few, or about as many as have
 * missed. UINT64_MAX when it is not there. (Iterations of another shape have nothing there: to look
 * all the same was a sixth of what the requests of two that alternate took.) */
static uint64_t passed_over(const pleat__learn *learn, const pleat__lag *lag, uint64_t most)
{
    if (lag->misses != 0 && is_there(learn, lag, lag->misses, most))
        return lag->misses;
    if (lag->misses > ADRIFT)
        return UINT64_MAX;
    for (uint64_t k = 0; k <= FAR; k++)
        if (is_there(learn, lag, k, most))
            return k;
    for (uint64_t k = lag->misses > FAR ? lag->misses - FAR : 0; k <= lag->misses + FAR; k++)
        if (k > FAR && is_there(learn, lag, k, most))
            return k;
    return UINT64_MAX;
}

/* Compares the newest request, whose like was `distance` ago (0: unknown), with what is expected.
 */
static void lag_step(pleat__learn *learn, uint32_t index, uint32_t distance)
{
    pleat__lag *lag = &learn->lags[index];
    uint64_t at = learn->end - 1, most = learn->marks ? lag->last : at;
    uint64_t like = at - distance;
    uint64_t over = passed_over(learn, lag, most);
    if (over == UINT64_MAX && lag->misses >= LOST && distance != 0 && like >= lag->cursor &&
        like - lag->cursor <= lag->length / 2 && like < most)
        over = like - lag->cursor;
    if (over == UINT64_MAX) {
        lag->misses++;
        return;
    }
    lag->cursor += over + 1;
    lag->misses = 0;
    lag->agreed++;
    lag->matched++;
    item_at(learn, at)->kind |= (uint8_t)(1u << index);
}

/* Of what was compared half must agree, but for some in a row. */
static bool hopeless(const pleat__learn *learn, const pleat__lag *lag)
{
    uint64_t compared = learn->end - lag->since;
    return compared - lag->agreed > LEAST + compared / 2 ||
           learn->end - lag->last > 2 * (uint64_t)lag->length + LEAST;
}

static bool nearly_all(uint64_t part, uint64_t whole)
{
    return part * 16 >= whole * 15;
}

bool pleat__learn_is_multiple(uint32_t longer, uint32_t shorter)
{
    uint32_t rest = longer % shorter;
    return (rest < shorter - rest ? rest : shorter - rest) <= shorter / EXACT;
}

bool pleat__learn_is_longer(uint32_t stretch, uint32_t than)
{
    return stretch >= than + than / 2;
}

/* Whether a lag goes as well as one of `length`, is longer, and knows more. */
static bool goes_longer(const pleat__learn *learn, const pleat__lag *lag, uint32_t length)
{
    uint64_t compared = learn->end - lag->since;
    return lag->open && pleat__learn_is_longer(lag->length, length) && compared >= EARLY &&
           compared >= lag->length / 8 && nearly_all(lag->agreed, compared) &&
           !pleat__learn_is_multiple(lag->length, length);
}

static bool longer_goes(const pleat__learn *learn, uint32_t length)
{
    for (uint32_t i = 0; i < PLEAT__LAGS; i++)
        if (goes_longer(learn, &learn->lags[i], length))
            return true;
    return false;
}

/* Requests of a repeat that must have been compared before it is believed. */
static uint64_t wanted_of(uint32_t count)
{
    return count >= LONG ? count : PATIENCE;
}

bool pleat__learn_is_near(const pleat__learn *learn, uint32_t length)
{
    for (uint32_t i = 0; i < PLEAT__LAGS && !learn->marks; i++) {
        const pleat__lag *lag = &learn->lags[i];
        if (goes_longer(learn, lag, length) &&
            learn->end - lag->since <= wanted_of(lag->length) + lag->length + EARLY)
            return true;
    }
    return false;
}

bool pleat__learn_went_on(const pleat__learn *learn, uint32_t agreed, uint32_t length)
{
    const pleat__lag *lag = &learn->lags[learn->found.lag];
    uint64_t compared = learn->end - lag->since;
    return compared >= length && lag->agreed * length >= compared * agreed;
}

/* Whether a shorter lag explains clearly more: this one is some of its repeats, not in step. */
static bool shorter_goes_better(const pleat__learn *learn, const pleat__lag *lag)
{
    uint64_t compared = learn->end - lag->since;
    for (uint32_t i = 0; i < PLEAT__LAGS; i++) {
        const pleat__lag *other = &learn->lags[i];
        uint64_t among = learn->end - other->since;
        if (other->open && pleat__learn_is_longer(lag->length, other->length) &&
            among >= PATIENCE && other->agreed * compared * 32 > lag->agreed * among * 33)
            return true;
    }
    return false;
}

static bool believed(const pleat__learn *learn, const pleat__lag *lag, uint32_t count)
{
    uint64_t compared = lag->last + count - lag->since;
    uint64_t wanted = wanted_of(count);
    bool nearly = nearly_all(lag->agreed, compared);
    if (nearly && !nearly_all(lag->matched, count))
        return false; /* something came that is not in every repeat: perhaps it is in every few */
    if (!nearly && shorter_goes_better(learn, lag))
        return false;
    if (!nearly)
        wanted *= 3;
    return is_steady(lag, count) && count >= LEAST && count <= MOST / 2 && compared >= wanted &&
           lag->matched >= count / 2 && !longer_goes(learn, count);
}

/* Lags that have come to expect the same: the oldest has compared the most. */
static void join(pleat__learn *learn, const pleat__lag *lag)
{
    for (uint32_t i = 0; i < PLEAT__LAGS; i++) {
        pleat__lag *other = &learn->lags[i];
        if (other->open && other->cursor == lag->cursor && other->since > lag->since &&
            differ(lag->length, other->length) <= lag->length / STEADY)
            other->open = false;
    }
}

/* The cursor came to where the repeat began: the next one has begun. */
static void repeat_ends(pleat__learn *learn, uint32_t index)
{
    pleat__lag *lag = &learn->lags[index];
    uint32_t ahead = (uint32_t)(lag->cursor - lag->last);
    uint32_t count = (uint32_t)(learn->end - ahead - lag->last);
    lag->ripe = believed(learn, lag, count);
    lag->ripe_agreed = lag->matched;
    lag->window = learn->end;
    lag->window_matched = 0;
    lag->open = is_steady(lag, count);
    lag->last += count;
    lag->length = count;
    lag->matched = 0;
    if (lag->open)
        join(learn, lag);
}

/* What a lag's comparison says of a stretch. */
static pleat__found found_of(const pleat__learn *learn, uint32_t lag, uint64_t first,
                             uint32_t count)
{
    pleat__found found = {.first = first, .count = count, .lag = lag};
    for (uint32_t i = 0; i < count; i++) {
        uint8_t kind = item_at(learn, first + i)->kind;
        found.agreed += kind >> lag & 1;
        found.unplanned += (kind & UNPLANNED) != 0;
    }
    return found;
}

/* A repeat that was believed, and the next goes on in the same way: what came since this was last
 * here is found. (In the first iteration the optimizer makes its state, which may look like the
 * making of the parameters, or is not there the next time.) */
static pleat__boundary ripens(pleat__learn *learn, uint32_t index)
{
    pleat__lag *lag = &learn->lags[index];
    uint32_t wanted = lag->length / 2 < EARLY ? lag->length / 2 : EARLY;
    if (!lag->open || !lag->ripe || learn->end - lag->window < wanted)
        return PLEAT__BOUNDARY_NONE;
    uint64_t matched = lag->matched - lag->window_matched;
    lag->window = learn->end;
    lag->window_matched = lag->matched;
    if (matched * lag->length * 8 < (uint64_t)wanted * lag->ripe_agreed * 7 || lag->misses != 0)
        return PLEAT__BOUNDARY_NONE;
    lag->ripe = false;
    learn->found = found_of(learn, index, lag->cursor, (uint32_t)(learn->end - lag->cursor));
    return PLEAT__BOUNDARY_AGREED;
}

static void lag_open(pleat__learn *learn, uint32_t index, uint64_t cursor)
{
    learn->lags[index] = (pleat__lag){.since = learn->end,
                                      .last = learn->end,
                                      .cursor = cursor,
                                      .length = (uint32_t)(learn->end - cursor),
                                      .open = true};
}

/* Whether a lag of about this length expects what comes behind `cursor` already. */
static bool is_tried(const pleat__learn *learn, uint64_t cursor, uint32_t length)
{
    for (uint32_t i = 0; i < PLEAT__LAGS; i++) {
        const pleat__lag *lag = &learn->lags[i];
        if (lag->open && lag->cursor + NEAR >= cursor && lag->cursor <= cursor + NEAR &&
            differ(lag->length, length) <= length / STEADY)
            return true;
    }
    return false;
}

/* Lags that have come through a repeat are worth more; of the others the longer. */
static bool is_worth_less(const pleat__lag *a, const pleat__lag *b)
{
    bool a_proven = a->last != a->since, b_proven = b->last != b->since;
    return a_proven != b_proven ? b_proven : a->length < b->length;
}

/* The place for a lag of this length: that of one about as long that has lost its way, a free one,
 * or that of the one that is worth least. */
static uint32_t lag_room(const pleat__learn *learn, uint32_t length)
{
    uint32_t least = 0, room = PLEAT__LAGS;
    for (uint32_t i = 0; i < PLEAT__LAGS; i++) {
        const pleat__lag *lag = &learn->lags[i];
        if (lag->open && lag->misses >= LOST && differ(lag->length, length) <= length / STEADY)
            return i;
        if (!lag->open)
            room = i;
        if (is_worth_less(lag, &learn->lags[least]))
            least = i;
    }
    return room == PLEAT__LAGS && learn->lags[least].length < length ? least : room;
}

static void vote(pleat__learn *learn, uint32_t distance)
{
    pleat__vote *votes = &learn->votes[pleat__octave_bin(distance)];
    if (learn->end - votes->last > distance / 2)
        votes->count = 0;
    votes->last = learn->end;
    if (++votes->count < VOTES || is_tried(learn, learn->end - distance, distance))
        return;
    uint32_t index = lag_room(learn, distance);
    if (index < PLEAT__LAGS)
        lag_open(learn, index, learn->end - distance);
    votes->count = 0;
}

static pleat__boundary period_step(pleat__learn *learn)
{
    pleat__boundary boundary = PLEAT__BOUNDARY_NONE;
    uint32_t distance = distance_step(learn);
    for (uint32_t i = 0; i < PLEAT__LAGS; i++) {
        pleat__lag *lag = &learn->lags[i];
        if (!lag->open)
            continue;
        lag_step(learn, i, distance);
        if (lag->cursor >= lag->last)
            repeat_ends(learn, i);
        if (hopeless(learn, lag))
            lag->open = false;
        if (ripens(learn, i) == PLEAT__BOUNDARY_AGREED)
            boundary = PLEAT__BOUNDARY_AGREED;
    }
    if (distance >= LEAST)
        vote(learn, distance);
    return boundary;
}

/* ---- recording ---- */

pleat__boundary pleat__learn_request(pleat__learn *learn, uint64_t bytes, uint16_t stream,
                                     const pleat__place *place, bool unplanned)
{
    if (learn->full || learn->off)
        return PLEAT__BOUNDARY_NONE;
    if (make_room(learn) != PLEAT_OK) {
        pleat__learn_restart(learn);
        learn->full = true;
        return PLEAT__BOUNDARY_NONE;
    }
    pleat__view_pin(place);
    *item_at(learn, learn->end++) = (pleat__expected){.bytes = bytes,
                                                      .place = *place,
                                                      .lane = PLEAT__NO_LANE,
                                                      .stream = stream,
                                                      .kind = unplanned ? UNPLANNED : 0,
                                                      .gap = PLEAT__GAP_UNKNOWN};
    if (!learn->marks)
        return learn->no_period ? PLEAT__BOUNDARY_NONE : period_step(learn);
    uint32_t distance = distance_step(learn);
    if (learn->lags[0].open)
        lag_step(learn, 0, distance);
    return PLEAT__BOUNDARY_NONE;
}

pleat__boundary pleat__learn_mark(pleat__learn *learn)
{
    pleat__boundary boundary = PLEAT__BOUNDARY_NONE;
    pleat__lag *lag = &learn->lags[0];
    uint64_t begin = learn->mark_at, count = learn->end - begin;
    if (learn->marks && !learn->full && begin != PLEAT__NO_MARK && begin >= learn->begin &&
        count <= AGAIN)
        return boundary;
    if (!learn->marks)
        pleat__learn_restart(learn);
    learn->marks = true;
    learn->full = false;
    learn->mark_at = learn->end;
    if (begin == PLEAT__NO_MARK || begin < learn->begin || count < LEAST || count > MOST / 2) {
        lag->open = false;
        forget_before(learn, learn->end);
        return boundary;
    }
    bool same_length = differ((uint32_t)count, lag->length) <= count / STEADIER;
    if (lag->open && (lag->matched >= count / 2 || same_length)) {
        learn->found = found_of(learn, 0, begin, (uint32_t)count);
        boundary = PLEAT__BOUNDARY_AGREED;
    }
    lag_open(learn, 0, begin);
    forget_before(learn, begin);
    return boundary;
}

void pleat__learn_found(pleat__learn *learn, uint32_t length, uint32_t ahead)
{
    uint64_t held = learn->end - learn->begin;
    for (uint32_t i = 0; i < PLEAT__LAGS; i++)
        learn->lags[i].open = false;
    learn->marks = true;
    learn->mark_at = PLEAT__NO_MARK;
    if (held < ahead)
        return;
    uint64_t begin = learn->end - ahead;
    learn->mark_at = begin;
    if (held < (uint64_t)length + ahead)
        return;
    pleat__lag *lag = &learn->lags[0];
    *lag = (pleat__lag){.since = begin,
                        .last = begin,
                        .cursor = learn->end - length,
                        .length = length,
                        .open = true};
    for (uint64_t p = begin; p < learn->end; p++) {
        pleat__expected *item = item_at(learn, p);
        bool agrees = same(item, item_at(learn, p - length));
        item->kind = (uint8_t)((item->kind & UNPLANNED) | agrees);
        lag->agreed += agrees;
        lag->matched += agrees;
    }
    forget_before(learn, begin - length);
}

void pleat__learn_lost(pleat__learn *learn)
{
    pleat__learn_restart(learn);
    learn->marks = false;
}

pleat_result pleat__learn_take(pleat__learn *learn, pleat__follow **out)
{
    const pleat__found *found = &learn->found;
    pleat__expected *items = pleat__arena_alloc(learn->arena, found->count * sizeof *items);
    if (items == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow an iteration");
    for (uint32_t i = 0; i < found->count; i++) {
        items[i] = *item_at(learn, found->first + i);
        bool agreed = items[i].kind >> found->lag & 1;
        items[i].kind = agreed ? PLEAT__ITEM_SLOT : PLEAT__ITEM_DYNAMIC;
        pleat__view_pin(&items[i].place);
    }
    pleat_result result = pleat__follow_learned(learn->arena, items, found->count, out);
    if (result != PLEAT_OK) {
        for (uint32_t i = 0; i < found->count; i++)
            pleat__view_unpin(learn->arena, &items[i].place);
        pleat__arena_free(learn->arena, items);
        return result;
    }
    return PLEAT_OK;
}
