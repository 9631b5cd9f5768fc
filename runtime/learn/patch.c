/*
 * patch.c: see patch.h.
 */
#include <runtime/learn/patch.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

#define REACH 64u /* pages at the end that are given up for a gap of others */

typedef enum state {
    NOT_WANTED = 0,
    WANTED = 1, /* and in no place yet */
    STAYS = 2,
} state;

typedef struct ordering {
    const pleat__pool *pool;
    uint32_t *there; /* and what comes in the place of some of it */
    uint32_t end;    /* of what is there, as far as it stays */
    uint8_t *states; /* by a handle's first chunk */
    uint32_t *loose; /* first chunks of what has no place yet */
    uint32_t loose_count;
    uint32_t *order; /* what is made */
    uint32_t filled;
} ordering;

static uint32_t size_of(const pleat__pool *pool, uint32_t first)
{
    return pool->chunks[first]->pages;
}

/* By chunk; NULL: no host memory. */
static uint8_t *new_states(const pleat__pool *pool)
{
    return pleat__arena_calloc(pool->arena, pool->count + pool->stocked + 1ull, 1);
}

uint8_t *pleat__patch_marks(const pleat__pool *pool, const uint32_t *chunks, uint32_t count)
{
    uint8_t *marks = new_states(pool);
    for (uint32_t i = 0; i < count && marks != NULL; i++)
        marks[chunks[i]] = WANTED;
    return marks;
}

uint32_t pleat__patch_common(const pleat__pool *pool, const uint8_t *marks, const uint32_t *there,
                             uint32_t there_count)
{
    uint32_t exist = pool->count + pool->stocked, common = 0;
    for (uint32_t i = 0; i < there_count; i++)
        common += there[i] < exist && marks[there[i]] == WANTED;
    return common;
}

static void put(ordering *o, uint32_t first)
{
    for (uint32_t k = 0; k < size_of(o->pool, first); k++)
        o->order[o->filled++] = first + k;
}

static void let_go(ordering *o, uint32_t first)
{
    o->states[first] = WANTED;
    o->loose[o->loose_count++] = first;
}

/* The largest that fits into `room`; loose_count: none does. */
static uint32_t find_loose(const ordering *o, uint32_t room)
{
    uint32_t best = o->loose_count, size = 0;
    for (uint32_t i = 0; i < o->loose_count && size < room; i++) {
        uint32_t pages = size_of(o->pool, o->loose[i]);
        if (pages <= room && pages > size) {
            size = pages;
            best = i;
        }
    }
    return best;
}

static uint32_t take_loose(ordering *o, uint32_t i)
{
    uint32_t first = o->loose[i];
    o->loose[i] = o->loose[--o->loose_count];
    return first;
}

static uint32_t find_smallest(const ordering *o)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < o->loose_count; i++)
        if (size_of(o->pool, o->loose[i]) < size_of(o->pool, o->loose[best]))
            best = i;
    return best;
}

/* Where handles behind `at` that stay, side by side, each of them no larger than `room`, have
 * `pages` pages; `end`: nowhere. */
static uint32_t find_group(const ordering *o, uint32_t at, uint32_t room, uint32_t pages)
{
    uint32_t begin = at;
    while (at < o->end && at - begin != pages) {
        uint32_t size = size_of(o->pool, o->there[at]);
        bool fits = o->states[o->there[at]] == STAYS && size <= room;
        at += size;
        if (!fits)
            begin = at;
        while (at - begin > pages)
            begin += size_of(o->pool, o->there[begin]);
    }
    return at - begin == pages ? begin : o->end;
}

/* Where all that is loose is too large: the smallest of it takes the place of smaller ones further
 * on, which are loose then. false: there are none. */
static bool change(ordering *o, uint32_t at, uint32_t room)
{
    if (o->loose_count == 0)
        return false;
    uint32_t i = find_smallest(o), pages = size_of(o->pool, o->loose[i]);
    uint32_t begin = find_group(o, at, room, pages);
    if (begin == o->end)
        return false;
    uint32_t first = take_loose(o, i);
    for (uint32_t k = begin, size; k < begin + pages; k += size) {
        size = size_of(o->pool, o->there[k]);
        let_go(o, o->there[k]);
    }
    for (uint32_t k = 0; k < pages; k++)
        o->there[begin + k] = first + k;
    o->states[first] = STAYS;
    return true;
}

/* Whether one of the last handles, behind `at`, fits into `room`. */
static bool ends_small(const ordering *o, uint32_t at, uint32_t room)
{
    for (uint32_t end = o->end; end > at && o->end - end < REACH;) {
        uint32_t first = o->pool->first[o->there[end - 1]];
        uint32_t pages = size_of(o->pool, first);
        if (pages <= room && o->states[first] == STAYS)
            return true;
        end -= pages;
    }
    return false;
}

/* The last handle behind `at` stays no more; false: there is none. */
static bool take_from_end(ordering *o, uint32_t at)
{
    if (o->end <= at)
        return false;
    uint32_t first = o->pool->first[o->there[o->end - 1]];
    o->end -= size_of(o->pool, first);
    if (o->states[first] == STAYS)
        let_go(o, first);
    return true;
}

/* Makes something loose, from behind `at`, for a gap that nothing loose fits into. */
static bool find_more(ordering *o, uint32_t at, uint32_t room)
{
    bool from_end = o->loose_count == 0 || ends_small(o, at, room);
    return (from_end && take_from_end(o, at)) || change(o, at, room);
}

/* What fits up to `at`, where a handle stays. */
static void fill_gap(ordering *o, uint32_t at)
{
    uint32_t behind = at + size_of(o->pool, o->there[at]);
    while (o->filled < at) {
        uint32_t room = at - o->filled, i = find_loose(o, room);
        if (i < o->loose_count)
            put(o, take_loose(o, i));
        else if (!find_more(o, behind, room))
            return;
    }
}

/* Everything but the ends. */
static void fill(ordering *o)
{
    for (uint32_t at = 0; at < o->end;) {
        uint32_t first = o->there[at], pages = size_of(o->pool, first);
        if (o->states[first] == STAYS) {
            fill_gap(o, at);
            if (o->filled == at)
                put(o, first);
            else
                let_go(o, first);
        }
        at += pages;
    }
    for (uint32_t i = 0; i < o->loose_count; i++)
        put(o, o->loose[i]);
}

/* What of `chunks` is there stays, as far as the ends allow; the rest is loose. */
static void begin(ordering *o, pleat__patch_ends ends, const uint32_t *chunks, uint32_t count)
{
    for (uint32_t i = ends.head; i < count - ends.tail; i += size_of(o->pool, chunks[i]))
        o->states[chunks[i]] = WANTED;
    for (uint32_t at = 0; at < o->end; at += size_of(o->pool, o->there[at]))
        if (at >= ends.head && o->states[o->there[at]] == WANTED)
            o->states[o->there[at]] = STAYS;
    for (uint32_t i = ends.head; i < count - ends.tail; i += size_of(o->pool, chunks[i]))
        if (o->states[chunks[i]] == WANTED)
            o->loose[o->loose_count++] = chunks[i];
    memcpy(o->order, chunks, ends.head * sizeof *chunks);
    o->filled = ends.head;
}

void pleat__patch_order(const pleat__pool *pool, const uint32_t *there, uint32_t there_count,
                        pleat__patch_ends ends, uint32_t *chunks, uint32_t count)
{
    ordering o = {.pool = pool, .end = there_count};
    o.there = pleat__arena_alloc(pool->arena, (there_count + 1ull) * sizeof *o.there);
    o.states = new_states(pool);
    o.loose = pleat__arena_alloc(pool->arena, (count + 1ull) * sizeof *o.loose);
    o.order = pleat__arena_alloc(pool->arena, (count + 1ull) * sizeof *o.order);
    if (o.there != NULL && o.states != NULL && o.loose != NULL && o.order != NULL) {
        memcpy(o.there, there, there_count * sizeof *there);
        begin(&o, ends, chunks, count);
        fill(&o);
        PLEAT_CHECK(o.filled == count - ends.tail);
        memcpy(chunks, o.order, o.filled * sizeof *chunks);
    }
    pleat__arena_free(pool->arena, o.there);
    pleat__arena_free(pool->arena, o.states);
    pleat__arena_free(pool->arena, o.loose);
    pleat__arena_free(pool->arena, o.order);
}

/* ---- mapping ---- */

/* Pages [begin, end), which differ: what is there goes, up to page `old`, and the chunks come. */
static pleat_result replace(pleat__pool *pool, uint64_t page, const uint32_t *chunks,
                            uint32_t begin, uint32_t end, uint32_t old, pleat__chunk **run)
{
    uint32_t handles = 0;
    for (uint32_t i = begin; i < end; i += run[handles++]->pages)
        run[handles] = pool->chunks[chunks[i]];
    pleat__gate_leave(pool->gate);
    pleat_result result = PLEAT_OK;
    if (old > begin)
        result = pleat__space_unmap(pool->space, page + begin, old - begin);
    if (result == PLEAT_OK)
        result = pleat__space_map(pool->space, page + begin, run, handles);
    pleat__gate_enter(pool->gate);
    return result;
}

static void unmap(const pleat__pool *pool, uint64_t page, uint32_t begin, uint32_t end)
{
    if (begin >= end)
        return;
    pleat__gate_leave(pool->gate);
    (void)!pleat__space_unmap(pool->space, page + begin, end - begin);
    pleat__gate_enter(pool->gate);
}

pleat_result pleat__patch_map(pleat__pool *pool, uint64_t page, const uint32_t *there,
                              uint32_t there_count, const uint32_t *chunks, uint32_t count)
{
    pleat__chunk **run = pleat__arena_alloc(pool->arena, (count + 1ull) * sizeof *run);
    pleat_result result =
        run != NULL
            ? PLEAT_OK
            : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view of %u chunks", count);
    uint32_t begin = 0, end = 0, old = 0;
    while (result == PLEAT_OK) {
        for (begin = end; begin < there_count && begin < count && there[begin] == chunks[begin];)
            begin++;
        if (begin == count)
            break;
        for (end = begin; end < count && (end >= there_count || there[end] != chunks[end]);)
            end++;
        /* The last handle there may go on behind the last one that comes. */
        old = end < count && end < there_count ? end : there_count;
        result = replace(pool, page, chunks, begin, end, old, run);
    }
    pleat__arena_free(pool->arena, run);
    if (result == PLEAT_OK) {
        unmap(pool, page, old > count ? old : count, there_count);
        pool->view_pages += count;
    } else {
        unmap(pool, page, 0, begin);
        unmap(pool, page, old, there_count);
    }
    pool->view_pages -= there_count;
    return result;
}
