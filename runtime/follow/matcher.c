/*
 * matcher.c: the matcher's ways back (see matcher.h).
 *
 * In order, for a request that is not the one at the cursor:
 *   near     one of the next few static items is it: those skipped become open
 *   open     it was skipped before (it came out of order)
 *   dynamic  the cursor is at a dynamic request: it is that one, whatever its size
 *   resync   after some misses in a row, the last PLEAT__GRAM sizes are looked up among all runs of
 *            as many static items in the sequence: the cursor goes behind the nearest one, ahead or
 *            behind
 * (layers repeat: always going ahead left a mixture-of-experts job one layer off, then two). An
 * evaluation loop or a logging step between iterations ends so, where no mark says it. Open items
 * are those behind the cursor, so no item is handed out twice in one pass, and no item needs a
 * flag; where an iteration ended unmarked one may be, and its slot is found busy. (To look
 * further ahead for one request alone is worse, D151 in docs/decisions.md; to keep all places
 * nearby with their prices until later requests say which was right is no better, D492.)
 *
 * A wrong guess costs speed: its slot is found busy, or its memory is not there for another.
 */
#include <runtime/follow/matcher.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/hash.h>
#include <string.h>

/* In items or requests. What half and twice the values do: docs/decisions.md, D150 and D153. */
#define NEAR   3u /* static items ahead that are looked at first */
#define MISSES 3u /* requests in a row that matched nothing, before resync */
#define DIGIT  8u /* bits of a hash that a step of sorting looks at (D481) */
_Static_assert(32 % (2 * DIGIT) == 0, "sorting ends where it began");

static uint32_t next_of(const pleat__matcher *matcher, uint32_t item)
{
    return item + 1 == matcher->count ? matcher->begin : item + 1;
}

static bool is_dynamic(const pleat__matcher *matcher, uint32_t item)
{
    return matcher->items[item].kind == PLEAT__ITEM_DYNAMIC;
}

static uint64_t hash_with(uint64_t hash, uint64_t size)
{
    return (hash ^ size) * PLEAT__HASH_MULTIPLIER;
}

static uint32_t gram_hash(const uint64_t sizes[PLEAT__GRAM])
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < PLEAT__GRAM; i++)
        h = hash_with(h, sizes[i]);
    return (uint32_t)(h >> 32);
}

/* Of the sizes that end at an item. */
static uint32_t gram_hash_at(const pleat__matcher *matcher, uint32_t last)
{
    const pleat__expected *items = &matcher->items[last - (PLEAT__GRAM - 1)];
    uint64_t h = 0;
    for (uint32_t i = 0; i < PLEAT__GRAM; i++)
        h = hash_with(h, items[i].bytes);
    return (uint32_t)(h >> 32);
}

static bool gram_is_below(pleat__gram a, pleat__gram b)
{
    return a.hash != b.hash ? a.hash < b.hash : a.last < b.last;
}

/* Into the order of one digit of the hashes; what has the same digit stays in the order it has. */
static void grams_order_by(const pleat__gram *from, pleat__gram *to, uint32_t count, uint32_t shift)
{
    uint32_t ends[1u << DIGIT] = {0};
    for (uint32_t i = 0; i < count; i++)
        ends[from[i].hash >> shift & ((1u << DIGIT) - 1)]++;
    for (uint32_t d = 1; d < 1u << DIGIT; d++)
        ends[d] += ends[d - 1];
    for (uint32_t i = count; i-- > 0;)
        to[--ends[from[i].hash >> shift & ((1u << DIGIT) - 1)]] = from[i];
}

/* Grams in the order of `last` into that of (hash, last). */
static void grams_order(pleat__matcher *matcher)
{
    pleat__gram *grams = matcher->grams, *beside = grams + matcher->count;
    for (uint32_t shift = 0; shift < 32; shift += 2 * DIGIT) {
        grams_order_by(grams, beside, matcher->gram_count, shift);
        grams_order_by(beside, grams, matcher->gram_count, shift + DIGIT);
    }
}

static void grams_fill(pleat__matcher *matcher)
{
    uint32_t run = 0;
    matcher->gram_count = 0;
    for (uint32_t i = 0; i < matcher->count; i++) {
        run = i == matcher->begin ? 0 : run;
        run = is_dynamic(matcher, i) ? 0 : run + 1;
        if (run >= PLEAT__GRAM)
            matcher->grams[matcher->gram_count++] = (pleat__gram){gram_hash_at(matcher, i), i};
    }
    grams_order(matcher);
    matcher->indexed = true;
}

static pleat_result grams_make(pleat__matcher *matcher)
{
    /* As many beside them: sorting takes no memory then. */
    matcher->grams =
        pleat__arena_alloc(matcher->arena, 2 * (size_t)matcher->count * sizeof *matcher->grams);
    return matcher->grams != NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an index of %u requests",
                             matcher->count);
}

/* A learned sequence is indexed when its matcher is first lost, which few ever are. (Sorting 8,637
 * requests by the digits of their hashes takes 0.05 ms; by comparing them it took 0.9.) */
void pleat__matcher_index(pleat__matcher *matcher)
{
    if (!matcher->indexed)
        grams_fill(matcher);
}

void pleat__matcher_jump(pleat__matcher *matcher, uint32_t cursor)
{
    PLEAT_ASSERT(cursor < matcher->count);
    matcher->cursor = cursor;
    matcher->open_count = 0;
    matcher->misses = 0;
}

pleat_result pleat__matcher_init(pleat__matcher *matcher, pleat__arena *arena,
                                 pleat__expected *items, uint32_t begin, uint32_t count)
{
    *matcher = (pleat__matcher){
        .arena = arena, .items = items, .begin = begin, .count = count, .iteration = count - begin};
    if (begin >= count)
        return pleat__fail(PLEAT_E_INVALID, "a sequence without an iteration");
    return grams_make(matcher);
}

void pleat__matcher_release(pleat__matcher *matcher)
{
    if (matcher->arena != NULL)
        pleat__arena_free(matcher->arena, matcher->grams);
    *matcher = (pleat__matcher){0};
}

/* Where an iteration begins, nearest to the cursor, which is in one. */
static uint32_t nearest_begin(const pleat__matcher *matcher)
{
    uint32_t iterations =
        (matcher->cursor - matcher->begin + matcher->iteration / 2) / matcher->iteration;
    uint32_t item = matcher->begin + iterations * matcher->iteration;
    return item < matcher->count ? item : matcher->begin;
}

void pleat__matcher_mark(pleat__matcher *matcher)
{
    /* The beginning may hold marks of its own: where it goes otherwise sizes say so (D551). */
    if (matcher->cursor >= matcher->begin)
        pleat__matcher_jump(matcher, nearest_begin(matcher));
}

static void open_add(pleat__matcher *matcher, uint32_t item)
{
    if (matcher->open_count == PLEAT__OPEN) {
        memmove(matcher->open, matcher->open + 1, (PLEAT__OPEN - 1) * sizeof *matcher->open);
        matcher->open_count--;
    }
    matcher->open[matcher->open_count++] = item;
}

static bool is_it(const pleat__expected *item, uint64_t bytes, uint16_t stream)
{
    return item->bytes == bytes && item->stream == stream && item->kind != PLEAT__ITEM_DYNAMIC;
}

/* Looks at the next few static items from the cursor on. What is passed over of them becomes open.
 */
static uint32_t look_ahead(pleat__matcher *matcher, uint64_t bytes, uint16_t stream)
{
    uint32_t at = matcher->cursor, left = PLEAT__AHEAD, statics = NEAR;
    while (!is_it(&matcher->items[at], bytes, stream)) {
        statics -= !is_dynamic(matcher, at);
        at = next_of(matcher, at);
        if (statics == 0 || --left == 0 || at == matcher->cursor)
            return PLEAT__NO_ITEM;
    }
    for (uint32_t skipped = matcher->cursor; skipped != at; skipped = next_of(matcher, skipped))
        if (!is_dynamic(matcher, skipped))
            open_add(matcher, skipped);
    matcher->cursor = next_of(matcher, at);
    return at;
}

static uint32_t open_take(pleat__matcher *matcher, uint64_t bytes, uint16_t stream)
{
    for (uint32_t i = 0; i < matcher->open_count; i++) {
        uint32_t item = matcher->open[i];
        if (!is_it(&matcher->items[item], bytes, stream))
            continue;
        matcher->open_count--;
        memmove(matcher->open + i, matcher->open + i + 1,
                (matcher->open_count - i) * sizeof *matcher->open);
        return item;
    }
    return PLEAT__NO_ITEM;
}

/* The first entry of a hash. */
static uint32_t gram_floor(const pleat__matcher *matcher, pleat__gram key)
{
    uint32_t low = 0, high = matcher->gram_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (gram_is_below(matcher->grams[middle], key))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Whether the items up to `last` have these sizes: hashes may meet by chance. */
static bool gram_is(const pleat__matcher *matcher, uint32_t last, const uint64_t sizes[PLEAT__GRAM])
{
    for (uint32_t i = 0; i < PLEAT__GRAM; i++)
        if (matcher->items[last - (PLEAT__GRAM - 1 - i)].bytes != sizes[i])
            return false;
    return true;
}

/* Behind the last item the iteration begins again: a job that did something else between two
 * iterations is there. */
uint32_t pleat__matcher_distance(const pleat__matcher *matcher, uint32_t item)
{
    if (item < matcher->cursor) {
        uint32_t behind = matcher->cursor - item;
        uint32_t round = item < matcher->begin
                             ? UINT32_MAX
                             : matcher->count - matcher->cursor + (item - matcher->begin);
        return behind < round ? behind : round;
    }
    return item - matcher->cursor;
}

bool pleat__matcher_resync(pleat__matcher *matcher, const uint64_t recent[PLEAT__GRAM],
                           uint32_t *item)
{
    pleat__matcher_index(matcher);
    uint32_t hash = gram_hash(recent), best = UINT32_MAX, least = UINT32_MAX;
    uint32_t cursor = matcher->cursor;
    uint32_t ahead = gram_floor(matcher, (pleat__gram){hash, cursor});
    const uint32_t entries[] = {ahead, ahead - 1,
                                gram_floor(matcher, (pleat__gram){hash, matcher->begin})};
    for (uint32_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        uint32_t entry = entries[i];
        uint32_t last = entry < matcher->gram_count ? matcher->grams[entry].last : 0;
        /* Of what comes once only what is still to come is meant. */
        if (entry >= matcher->gram_count || matcher->grams[entry].hash != hash ||
            (last < matcher->begin && last < cursor) || !gram_is(matcher, last, recent))
            continue;
        uint32_t away = pleat__matcher_distance(matcher, last);
        if (away < least) {
            least = away;
            best = entry;
        }
    }
    if (best == UINT32_MAX)
        return false;
    *item = matcher->grams[best].last;
    pleat__matcher_jump(matcher, next_of(matcher, *item));
    memmove(matcher->recent, recent, sizeof matcher->recent);
    return true;
}

/* The dynamic request at the cursor. */
static uint32_t take_dynamic(pleat__matcher *matcher, uint16_t stream)
{
    uint32_t item = matcher->cursor;
    if (!is_dynamic(matcher, item) || matcher->items[item].stream != stream)
        return PLEAT__NO_ITEM;
    matcher->cursor = next_of(matcher, item);
    return item;
}

static uint32_t look(pleat__matcher *matcher, uint64_t bytes, uint16_t stream)
{
    uint32_t item = look_ahead(matcher, bytes, stream);
    if (item == PLEAT__NO_ITEM)
        item = open_take(matcher, bytes, stream);
    return item != PLEAT__NO_ITEM ? item : take_dynamic(matcher, stream);
}

uint32_t pleat__matcher_search(pleat__matcher *matcher, uint64_t bytes, uint16_t stream)
{
    uint32_t item = look(matcher, bytes, stream);
    matcher->misses = item == PLEAT__NO_ITEM ? matcher->misses + 1 : 0;
    if (matcher->misses >= MISSES && pleat__matcher_resync(matcher, matcher->recent, &item) &&
        matcher->items[item].stream != stream)
        return PLEAT__NO_ITEM; /* sizes alone say where the job is */
    return item;
}
