/*
 * matcher.c: the matcher's ways back (see matcher.h).
 *
 * In order, for a request that is not the one at the cursor:
 *   near     one of the next few items is it: those skipped become open
 *   open     it was skipped before (it came out of order)
 *   dynamic  the cursor is at a dynamic request: it is that one, whatever its size
 *   far      it is an item further ahead
 *   resync   after some misses in a row, the last PLEAT__GRAM sizes are looked up among all runs of
 *            as many in the sequence: the cursor goes behind the nearest one, ahead or behind
 * (layers repeat: always going ahead left a mixture-of-experts job one layer off, then two). An
 * evaluation loop or a logging step between iterations ends so, where no mark says it. Open items
 * are those behind the cursor only, so no item is handed out twice in one pass, and no item needs a
 * flag.
 *
 * A wrong guess costs speed: its slot is found busy, or its memory is not there for another.
 */
#include <runtime/follow/matcher.h>

#include <internal/check.h>
#include <internal/error.h>
#include <stdlib.h>
#include <string.h>

#define NEAR        3u  /* static items ahead that are looked at first */
#define FAR         16u /* and after the open ones */
#define AROUND      8u  /* items on both sides of where the aligner stands */
#define MISSES      3u  /* in a row, before resync */
#define LOST        8u  /* the same where an aligner follows, which knows more ways back */
#define ASTRAY      32u /* ... and more, where extra ones are nothing odd beside dynamic ones */
#define MARK_OPEN   64u
#define MARK_AT_END 32u
#define MARK_EARLY  4u

static uint32_t next_of(const pleat__matcher *match, uint32_t item)
{
    return item + 1 == match->count ? match->begin : item + 1;
}

static uint32_t gram_hash(const uint64_t sizes[PLEAT__GRAM])
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < PLEAT__GRAM; i++)
        h = (h ^ sizes[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 32);
}

static int gram_compare(const void *a, const void *b)
{
    const pleat__gram *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return x->last < y->last ? -1 : x->last > y->last;
}

static void grams_fill(pleat__matcher *match)
{
    uint64_t sizes[PLEAT__GRAM] = {0};
    uint32_t run = 0;
    match->gram_count = 0;
    for (uint32_t i = 0; i < match->count; i++) {
        bool fixed = !match->aligns || pleat__aligner_is_fixed(&match->aligner, i);
        run = !fixed || i == match->begin ? 0 : run;
        if (!fixed)
            continue;
        memmove(sizes, sizes + 1, sizeof sizes - sizeof sizes[0]);
        sizes[PLEAT__GRAM - 1] = match->items[i].bytes;
        if (++run >= PLEAT__GRAM)
            match->grams[match->gram_count++] = (pleat__gram){gram_hash(sizes), i};
    }
    qsort(match->grams, match->gram_count, sizeof *match->grams, gram_compare);
    match->indexed = true;
}

static pleat_result grams_make(pleat__matcher *match)
{
    match->grams = pleat__arena_alloc(match->arena, match->count * sizeof *match->grams);
    return match->grams != NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an index of %u requests",
                             match->count);
}

/* A learned sequence is indexed when its matcher is first lost, which few ever are: sorting 8,637
 * requests takes 0.9 ms. */
void pleat__matcher_index(pleat__matcher *match)
{
    if (!match->indexed)
        grams_fill(match);
}

/* A sequence that is the same always needs no aligner. */
static pleat_result track_make(pleat__matcher *match)
{
    for (uint32_t i = 0; i < match->count && !match->aligns; i++)
        match->aligns = match->items[i].kind == PLEAT__ITEM_DYNAMIC;
    if (!match->aligns)
        return PLEAT_OK;
    PLEAT_TRY(pleat__aligner_init(&match->aligner, match->arena, match->begin, match->count));
    for (uint32_t i = 0; i < match->count; i++) {
        const pleat__expected *item = &match->items[i];
        pleat__aligner_set(&match->aligner, i, item->bytes, item->stream, item->gap,
                           item->kind == PLEAT__ITEM_DYNAMIC);
    }
    pleat__aligner_ready(&match->aligner);
    return PLEAT_OK;
}

void pleat__matcher_resize(pleat__matcher *match, uint32_t item, uint64_t bytes)
{
    match->items[item].bytes = bytes;
    if (match->aligns)
        pleat__aligner_resize(&match->aligner, item, bytes);
}

void pleat__matcher_jump(pleat__matcher *match, uint32_t cursor)
{
    PLEAT_ASSERT(cursor < match->count);
    match->cursor = cursor;
    match->open_count = 0;
    match->misses = 0;
    match->frees = 0;
    match->aligner.on = false;
}

pleat_result pleat__matcher_init(pleat__matcher *match, pleat__arena *arena, pleat__expected *items,
                                 uint32_t begin, uint32_t count)
{
    *match = (pleat__matcher){
        .arena = arena, .items = items, .begin = begin, .count = count, .held_for = PLEAT__NO_ITEM};
    if (begin >= count)
        return pleat__fail(PLEAT_E_INVALID, "a sequence without an iteration");
    PLEAT_TRY(track_make(match));
    return grams_make(match);
}

void pleat__matcher_release(pleat__matcher *match)
{
    if (match->arena != NULL) {
        pleat__arena_free(match->arena, match->grams);
        pleat__aligner_release(&match->aligner, match->arena);
    }
    *match = (pleat__matcher){0};
}

uint32_t pleat__matcher_left(const pleat__matcher *match)
{
    uint32_t end = match->cursor < match->begin ? match->begin : match->count;
    bool few = end - match->cursor <= MARK_EARLY && match->count - match->begin > MARK_OPEN;
    return few && match->cursor != match->begin ? end - match->cursor : 0;
}

void pleat__matcher_restart(pleat__matcher *match)
{
    match->cursor = match->begin;
    match->open_count = 0;
    match->misses = 0;
    match->aligner.on = false;
}

void pleat__matcher_mark(pleat__matcher *match)
{
    /* They come first, then what begins. (A plan of a recording whose iterations begin two requests
     * behind the optimizer's step, where the job has its marks: those two were taken for others in
     * the beginning, and 2,457 slots were found taken.) */
    if (pleat__matcher_left(match) != 0)
        return;
    if (match->cursor < match->begin && match->begin - match->cursor > MARK_AT_END) {
        /* The beginning may hold marks of its own; a request that only the iteration's first item
         * fits says that this one was not. */
        match->marked = MARK_OPEN;
        return;
    }
    pleat__matcher_restart(match);
}

void pleat__matcher_phase(pleat__matcher *match, uint32_t item)
{
    bool lost = match->aligns ? match->aligner.on : match->misses > 0;
    if (item == match->cursor || !lost)
        return;
    match->cursor = item;
    match->open_count = 0;
    match->misses = 0;
    if (match->aligns)
        pleat__aligner_start(&match->aligner, item);
}

static void open_add(pleat__matcher *match, uint32_t item)
{
    if (match->open_count == PLEAT__OPEN) {
        memmove(match->open, match->open + 1, (PLEAT__OPEN - 1) * sizeof *match->open);
        match->open_count--;
    }
    match->open[match->open_count++] = item;
}

static bool is_it(const pleat__expected *item, uint64_t bytes, uint16_t stream)
{
    return item->bytes == bytes && item->stream == stream && item->kind != PLEAT__ITEM_DYNAMIC;
}

/* Looks at up to `statics` items from the cursor on. What is passed over becomes open. */
static uint32_t look_ahead(pleat__matcher *match, uint64_t bytes, uint16_t stream, uint32_t statics)
{
    uint32_t at = match->cursor;
    while (!is_it(&match->items[at], bytes, stream)) {
        if (--statics == 0)
            return PLEAT__NO_ITEM;
        at = next_of(match, at);
        if (at == match->cursor)
            return PLEAT__NO_ITEM;
    }
    for (uint32_t skipped = match->cursor; skipped != at; skipped = next_of(match, skipped))
        open_add(match, skipped);
    match->cursor = next_of(match, at);
    return at;
}

static uint32_t open_take(pleat__matcher *match, uint64_t bytes, uint16_t stream)
{
    for (uint32_t i = 0; i < match->open_count; i++) {
        uint32_t item = match->open[i];
        if (!is_it(&match->items[item], bytes, stream))
            continue;
        match->open_count--;
        memmove(match->open + i, match->open + i + 1,
                (match->open_count - i) * sizeof *match->open);
        return item;
    }
    return PLEAT__NO_ITEM;
}

/* The first entry of a hash. */
static uint32_t gram_floor(const pleat__matcher *match, pleat__gram key)
{
    uint32_t low = 0, high = match->gram_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (gram_compare(&match->grams[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Whether the items up to `last` have these sizes: hashes may meet by chance. */
static bool gram_is(const pleat__matcher *match, uint32_t last, const uint64_t sizes[PLEAT__GRAM])
{
    for (uint32_t i = 0; i < PLEAT__GRAM; i++)
        if (match->items[last - (PLEAT__GRAM - 1 - i)].bytes != sizes[i])
            return false;
    return true;
}

/* Items from the cursor to another one, ahead or behind. Behind the last one the iteration begins
 * again: a job that did something else between two iterations is there. */
static uint32_t distance_to(const pleat__matcher *match, uint32_t item)
{
    if (item < match->cursor) {
        uint32_t behind = match->cursor - item;
        uint32_t round =
            item < match->begin ? UINT32_MAX : match->count - match->cursor + (item - match->begin);
        return behind < round ? behind : round;
    }
    return item - match->cursor;
}

bool pleat__matcher_resync(pleat__matcher *match, const uint64_t recent[PLEAT__GRAM],
                           uint32_t *item)
{
    pleat__matcher_index(match);
    uint32_t hash = gram_hash(recent), best = UINT32_MAX, least = UINT32_MAX;
    uint32_t cursor = match->cursor;
    uint32_t ahead = gram_floor(match, (pleat__gram){hash, cursor});
    const uint32_t entries[] = {ahead, ahead - 1,
                                gram_floor(match, (pleat__gram){hash, match->begin})};
    for (uint32_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        uint32_t entry = entries[i];
        uint32_t last = entry < match->gram_count ? match->grams[entry].last : 0;
        /* Of what comes once only what is still to come is meant. */
        if (entry >= match->gram_count || match->grams[entry].hash != hash ||
            (last < match->begin && last < cursor) || !gram_is(match, last, recent))
            continue;
        uint32_t away = distance_to(match, last);
        if (away < least) {
            least = away;
            best = entry;
        }
    }
    if (best == UINT32_MAX)
        return false;
    *item = match->grams[best].last;
    match->cursor = next_of(match, *item);
    match->open_count = 0;
    match->misses = 0;
    match->aligner.on = false;
    match->resyncs++;
    memmove(match->recent, recent, sizeof match->recent);
    return true;
}

/* Whether the job has left a beginning that a mark said was over. */
static void leave_beginning(pleat__matcher *match, uint64_t bytes, uint16_t stream)
{
    if (match->marked == 0)
        return;
    match->marked--;
    if (match->cursor < match->begin && is_it(&match->items[match->begin], bytes, stream) &&
        !is_it(&match->items[match->cursor], bytes, stream)) {
        match->marked = 0;
        match->open_count = 0;
        match->cursor = match->begin;
        match->aligner.on = false;
    }
}

/* One that was passed over or taken early: nearby, and not where the aligner stands. */
static uint32_t look_around(const pleat__matcher *match, uint64_t bytes, uint16_t stream)
{
    for (uint32_t i = 1; i <= AROUND; i++) {
        uint32_t ahead = match->cursor + i, behind = match->cursor - i;
        if (behind < match->count && is_it(&match->items[behind], bytes, stream))
            return behind;
        if (ahead < match->count && is_it(&match->items[ahead], bytes, stream))
            return ahead;
    }
    return PLEAT__NO_ITEM;
}

static uint32_t align(pleat__matcher *match, uint64_t bytes, uint16_t stream)
{
    uint8_t gap =
        match->frees < PLEAT__GAP_UNKNOWN - 1 ? (uint8_t)match->frees : PLEAT__GAP_UNKNOWN - 1;
    match->frees = 0;
    if (!match->aligner.on)
        pleat__aligner_start(&match->aligner, match->cursor);
    uint32_t item = pleat__aligner_step(&match->aligner, bytes, stream, gap);
    match->cursor = match->aligner.next;
    match->held_for = item == PLEAT__ALIGNER_EXTRA ? PLEAT__NO_ITEM : item;
    if (item != PLEAT__ALIGNER_EXTRA && (is_it(&match->items[item], bytes, stream) ||
                                         match->items[item].kind == PLEAT__ITEM_DYNAMIC))
        return item;
    if (item != PLEAT__ALIGNER_EXTRA && match->learned &&
        !pleat__aligner_is_fixed(&match->aligner, item) && match->items[item].stream == stream) {
        /* It had the same size twice by chance. */
        match->items[item].kind = PLEAT__ITEM_DYNAMIC;
        pleat__aligner_vary(&match->aligner, item);
        return item;
    }
    return look_around(match, bytes, stream);
}

/* The same without dynamic requests ahead. */
static uint32_t look(pleat__matcher *match, uint64_t bytes, uint16_t stream)
{
    uint32_t item = look_ahead(match, bytes, stream, NEAR);
    if (item == PLEAT__NO_ITEM)
        item = open_take(match, bytes, stream);
    if (item == PLEAT__NO_ITEM)
        item = look_ahead(match, bytes, stream, FAR);
    return item;
}

uint32_t pleat__matcher_search(pleat__matcher *match, uint64_t bytes, uint16_t stream)
{
    leave_beginning(match, bytes, stream);
    uint32_t item = match->aligns ? align(match, bytes, stream) : look(match, bytes, stream);
    if (item != PLEAT__NO_ITEM) {
        /* A dynamic one may have been any request, and so may one that the aligner did not expect.
         */
        if (!match->aligns ||
            (item == match->held_for && is_it(&match->items[item], bytes, stream)))
            match->misses = 0;
        return item;
    }
    match->misses++;
    bool lost = match->aligns ? match->aligner.lost >= LOST || match->misses >= ASTRAY
                              : match->misses >= MISSES;
    if (lost && pleat__matcher_resync(match, match->recent, &item))
        return item;
    return PLEAT__NO_ITEM;
}
