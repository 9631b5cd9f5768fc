/*
 * rest.c: see rest.h. Chunks that rest because nothing lay there are listed in `resting`, by the
 * first number of their handle, in descending order.
 */
#include <runtime/memory/rest.h>

#include <internal/check.h>
#include <internal/search.h>
#include <runtime/memory/heap_internal.h>
#include <runtime/memory/views.h>
#include <stdlib.h>
#include <string.h>

/* More than this share of the memory that a pause has given back is idle beside what lives: then
 * what lives gets handles of its own (docs/decisions.md, D372). */
#define SPLIT_SHARE 100u
/* Views are given up where so great a share of what exists may still be made when all of it is
 * awake: what is stitched of larger handles leaves more over (docs/decisions.md, D431). */
#define LEFT_SHARE 16u
/* Handles at rest, the highest first, among which neighbours are looked for (D559). */
#define REST_LOOKS 4096u

static pleat__run run_of(const pleat__chunk_pool *pool, uint32_t first, uint32_t chunks)
{
    return (pleat__run){first << pool->occupancy.shift, chunks << pool->occupancy.shift};
}

/* Handles by their first chunks' numbers, in descending order. */
typedef struct handles {
    uint32_t *first;
    pleat__chunk **chunks;
    uint32_t count;
} handles;

static void handles_free(const pleat__chunk_pool *pool, const handles *all)
{
    pleat__arena_free(pool->arena, all->first);
    pleat__arena_free(pool->arena, all->chunks);
}

static bool handles_new(const pleat__chunk_pool *pool, uint32_t most, handles *all)
{
    *all = (handles){.first = pleat__arena_alloc(pool->arena, most * sizeof *all->first),
                     .chunks = pleat__arena_alloc(pool->arena, most * sizeof *all->chunks)};
    if (all->first != NULL && all->chunks != NULL)
        return true;
    handles_free(pool, all);
    *all = (handles){.first = NULL};
    return false;
}

static void handles_add(const pleat__chunk_pool *pool, handles *all, uint32_t first)
{
    all->first[all->count] = first;
    all->chunks[all->count++] = pool->chunks[first];
}

/* ---- to rest ---- */

/* The highest idle handles, of at least `bytes` of the device together or all, and all whose memory
 * is the host's: it is slow, and nothing is to come to lie there. */
static void list_idle(const pleat__heap *heap, uint64_t bytes, uint64_t kept, handles *idle)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint64_t found = 0;
    for (uint32_t c = pool->count, first; c > 0; c = first) {
        first = pleat__first_of(pool, c - 1);
        const pleat__chunk *handle = pool->chunks[first];
        if (handle == NULL || (found >= bytes && !handle->on_host) ||
            !pleat__heap_is_idle(heap, first, kept) || !pleat__space_can_rest(pool->space, handle))
            continue;
        handles_add(pool, idle, first);
        found += handle->on_host ? 0 : handle->pages * pool->page_bytes;
    }
}

/* Whether something of the host's memory is idle. */
static bool is_host_idle(const pleat__heap *heap)
{
    const pleat__chunk_pool *pool = heap->pool;
    for (uint32_t c = 0; c < pool->count; c++)
        if (pool->chunks[c] != NULL && pool->chunks[c]->on_host && pool->span[c].first == c &&
            pleat__heap_is_idle(heap, c, 0))
            return true;
    return false;
}

static void occupy(pleat__chunk_pool *pool, uint32_t first, bool take)
{
    pleat__run run = run_of(pool, first, pool->chunks[first]->pages);
    if (take)
        PLEAT_CHECK(pleat__occupancy_take(&pool->occupancy, run));
    else
        pleat__occupancy_give(&pool->occupancy, run);
    pool->held += take ? run.count : -(uint64_t)run.count;
}

/* Merges handles, in descending order, into the list, for which there is room. */
static void add_resting(pleat__chunk_pool *pool, const handles *more)
{
    size_t at = pool->resting_count + more->count, old = pool->resting_count;
    uint32_t new = more->count;
    pool->resting_count = at;
    while (new > 0)
        pool->resting[--at] = old > 0 && pool->resting[old - 1] < more->first[new - 1]
                                  ? pool->resting[--old]
                                  : more->first[--new];
}

/* The handle of `first`, at rest, goes on in that of `next`, which is at rest as well. */
static bool join(const pleat__heap *heap, uint32_t first, uint32_t next, uint32_t most)
{
    pleat__chunk_pool *pool = heap->pool;
    uint32_t chunks = pleat__handle_chunks(pool, first);
    return first + chunks == next && heap->zone_of[first] == heap->zone_of[next] &&
           chunks + pleat__handle_chunks(pool, next) <= most &&
           pleat__chunk_pool_join(pool, first, next);
}

/* What grew request by request comes back in larger handles. */
static void join_resting(const pleat__heap *heap)
{
    pleat__chunk_pool *pool = heap->pool;
    uint32_t most = pleat__chunk_pool_joined_most(pool);
    size_t kept = pool->resting_count, count = pool->resting_count;
    if (count == 0)
        return;
    for (size_t i = count; i > 0; i--) /* the lowest is the last */
        if (kept == count || !join(heap, pool->resting[kept], pool->resting[i - 1], most))
            pool->resting[--kept] = pool->resting[i - 1];
    pool->resting_count = count - kept;
    memmove(pool->resting, pool->resting + kept, pool->resting_count * sizeof *pool->resting);
}

/* What became of those that were to rest; the others are free again. Bytes that went. */
static uint64_t settle(pleat__chunk_pool *pool, handles *idle)
{
    uint64_t bytes = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < idle->count; i++) {
        const pleat__chunk *handle = idle->chunks[i];
        if (!handle->rests) {
            occupy(pool, idle->first[i], false);
            continue;
        }
        bytes += handle->handle == 0 ? handle->pages * pool->page_bytes : 0;
        /* One that is torn is held for good. */
        if (!handle->torn)
            idle->first[kept++] = idle->first[i];
    }
    idle->count = kept;
    add_resting(pool, idle);
    return bytes;
}

pleat_result pleat__rest_reserve(pleat__chunk_pool *pool, size_t more)
{
    return pleat__arena_reserve(pool->arena, &pool->resting, &pool->resting_capacity,
                                pool->resting_count + more, sizeof *pool->resting);
}

void pleat__rest_promised(pleat__chunk_pool *pool, uint32_t first)
{
    handles one = {.first = &first, .count = 1};
    occupy(pool, first, true);
    add_resting(pool, &one);
}

/* Which idle handles stay. */
typedef struct staying {
    const pleat__chunk_set *needed; /* NULL: none for this */
    uint64_t reserve_bytes;         /* of the others, so many at least or all */
} staying;

/* Takes those out that stay. */
static void leave_staying(const pleat__chunk_pool *pool, const staying *stay, handles *idle)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < idle->count; i++)
        if (stay->needed == NULL ||
            !pleat__chunk_set_meets_chunks(stay->needed, idle->first[i], idle->chunks[i]->pages)) {
            idle->first[kept] = idle->first[i];
            idle->chunks[kept++] = idle->chunks[i];
        }
    for (uint64_t reserve = 0; kept > 0 && reserve < stay->reserve_bytes;)
        reserve += idle->chunks[--kept]->pages * pool->page_bytes;
    idle->count = kept;
}

static uint64_t rest(pleat__heap *heap, uint64_t bytes, const staying *stay, handles *idle)
{
    pleat__chunk_pool *pool = heap->pool;
    pleat__fences fences;
    if (!pleat__gate_fence(pool->gate, &fences))
        return 0;
    list_idle(heap, bytes, pleat__streams_kept(heap, &fences), idle);
    leave_staying(pool, stay, idle);
    if (idle->count == 0 || pleat__rest_reserve(pool, idle->count) != PLEAT_OK) {
        pleat__gate_unfence(pool->gate, &fences);
        return 0;
    }
    pleat__heap_forget(heap);
    for (uint32_t i = 0; i < idle->count; i++)
        occupy(pool, idle->first[i], true);
    bool over = pleat__gate_leave_fenced(pool->gate, &fences);
    if (over) {
        (void)!pleat__space_rest(pool->space, idle->chunks, idle->count, NULL);
        pleat__gate_enter(pool->gate);
    }
    uint64_t gone = settle(pool, idle);
    pleat__heap_forget(heap);
    return gone;
}

static uint64_t rest_but(pleat__heap *heap, uint64_t keep_bytes, const staying *stay)
{
    pleat__chunk_pool *pool = heap->pool;
    handles idle;
    /* What the mapper has been given to unmap is unmapped first. */
    pleat__gate_leave(pool->gate);
    pleat__gate_drain(pool->gate);
    pleat__space_stats stats = pleat__space_stats_of(pool->space);
    pleat__gate_enter(pool->gate);
    if (stats.physical_bytes <= keep_bytes && (stats.host_bytes == 0 || !is_host_idle(heap)))
        return 0;
    uint64_t bytes = stats.physical_bytes > keep_bytes ? stats.physical_bytes - keep_bytes : 0;
    uint64_t gone = handles_new(pool, pool->count + 1, &idle) ? rest(heap, bytes, stay, &idle) : 0;
    handles_free(pool, &idle);
    return gone;
}

uint64_t pleat__rest_idle(pleat__heap *heap, uint64_t keep_bytes)
{
    return rest_but(heap, keep_bytes, &(staying){0});
}

uint64_t pleat__rest_spared(pleat__heap *heap, const pleat__chunk_set *needed,
                            uint64_t reserve_bytes)
{
    return rest_but(heap, 0, &(staying){.needed = needed, .reserve_bytes = reserve_bytes});
}

static bool is_near_budget(const pleat__chunk_pool *pool)
{
    uint64_t exists = (pool->count - pool->absent) * pool->page_bytes;
    uint64_t awake = pleat__space_stats_of(pool->space).physical_bytes;
    uint64_t rests = exists > awake ? exists - awake : 0;
    return pleat__space_room(pool->space) < rests + exists / LEFT_SHARE;
}

/* Views that keep handles apart, and in which the schedule has no place. */
static void drop_views(pleat__heap *heap, bool followed)
{
    if (followed && !is_near_budget(heap->pool))
        pleat__views_drop_resting(heap);
}

void pleat__rest_join(pleat__heap *heap, bool followed)
{
    if (!heap->pool->joins)
        return;
    drop_views(heap, followed);
    join_resting(heap);
    pleat__heap_forget(heap);
}

/* ---- awake ---- */

/* The place in the list of the highest handle that begins at or below a chunk, or the list's end.
 */
static size_t find_upto(const pleat__chunk_pool *pool, uint32_t chunk)
{
    size_t at;
    PLEAT__FIRST(at, pool->resting_count, pool->resting[at] <= chunk);
    return at;
}

static bool is_resting(const pleat__chunk_pool *pool, uint32_t first)
{
    size_t at = find_upto(pool, first);
    return at < pool->resting_count && pool->resting[at] == first;
}

/* Takes handles, all of which are there, out of the list. */
static void strike_out(pleat__chunk_pool *pool, const handles *all)
{
    size_t kept = 0;
    uint32_t struck = 0;
    for (size_t i = 0; i < pool->resting_count; i++) {
        bool strikes = struck < all->count && pool->resting[i] == all->first[struck];
        struck += strikes;
        if (!strikes)
            pool->resting[kept++] = pool->resting[i];
    }
    PLEAT_CHECK(struck == all->count);
    pool->resting_count = kept;
}

/* Those that are torn are held for good. */
static void drop_torn(handles *all)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all->count; i++)
        if (!all->chunks[i]->torn)
            all->first[kept++] = all->first[i];
    all->count = kept;
}

/* Wakes handles that are in the list; they are out of it meanwhile, and in it again when that
 * fails. */
static pleat_result wake(pleat__chunk_pool *pool, handles *all)
{
    strike_out(pool, all);
    pleat__gate_leave(pool->gate);
    pleat_result result = pleat__space_wake(pool->space, all->chunks, all->count, NULL);
    pleat__gate_enter(pool->gate);
    if (result != PLEAT_OK) {
        /* The list kept its room: nobody lays chunks to rest without the turn. */
        drop_torn(all);
        add_resting(pool, all);
        return result;
    }
    for (uint32_t i = 0; i < all->count; i++)
        occupy(pool, all->first[i], false);
    return PLEAT_OK;
}

/* The highest ones, of at least so many chunks, in descending order. */
static void list_highest(const pleat__chunk_pool *pool, uint32_t chunks, handles *all)
{
    uint32_t found = 0;
    all->count = 0;
    for (size_t i = 0; i < pool->resting_count && found < chunks; i++) {
        found += pool->chunks[pool->resting[i]]->pages;
        handles_add(pool, all, pool->resting[i]);
    }
}

static pleat_result wake_highest(pleat__chunk_pool *pool, uint32_t chunks,
                                 pleat__occupancy_visit visit, void *context, uint32_t *woken)
{
    handles all;
    uint32_t wanted = chunks;
    pleat_result result =
        handles_new(pool, (uint32_t)pool->resting_count, &all)
            ? PLEAT_OK
            : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to wake %u chunks", chunks);
    while (result == PLEAT_OK && wanted > 0 && *woken < chunks && pool->resting_count > 0) {
        list_highest(pool, wanted < chunks - *woken ? wanted : chunks - *woken, &all);
        result = wake(pool, &all);
        if (pleat__is_shortage(result) && wanted > 1) {
            wanted /= 2; /* what there is */
            result = PLEAT_OK;
            continue;
        }
        for (uint32_t i = 0; i < all.count && result == PLEAT_OK; i++) {
            *woken += all.chunks[i]->pages;
            result = visit(context, run_of(pool, all.first[i], all.chunks[i]->pages));
        }
    }
    handles_free(pool, &all);
    return result;
}

pleat_result pleat__rest_wake(pleat__chunk_pool *pool, uint32_t chunks,
                              pleat__occupancy_visit visit, void *context, uint32_t *woken)
{
    *woken = 0;
    return pool->resting_count == 0 ? PLEAT_OK : wake_highest(pool, chunks, visit, context, woken);
}

/* Chunks of the neighbours that rest from place `at` of the list on, of its first `count`; *end:
 * the place behind. */
static uint32_t neighbours(const pleat__chunk_pool *pool, size_t at, size_t count, size_t *end)
{
    uint32_t first = pool->resting[at], top = first + pool->chunks[first]->pages;
    for (*end = at + 1; *end < count && !pool->breaks[first]; ++*end) {
        uint32_t next = pool->resting[*end];
        if (next + pool->chunks[next]->pages != first)
            break;
        first = next;
    }
    return top - first;
}

pleat_result pleat__rest_wake_together(pleat__chunk_pool *pool, uint32_t chunks,
                                       pleat__occupancy_visit visit, void *context)
{
    size_t count = pool->resting_count < REST_LOOKS ? pool->resting_count : REST_LOOKS, best = 0,
           end;
    uint32_t least = UINT32_MAX, woken = 0;
    handles all;
    for (size_t at = 0; at < count; at = end) {
        uint32_t together = neighbours(pool, at, count, &end);
        if (together < chunks || together >= least)
            continue;
        least = together;
        best = at;
    }
    if (least == UINT32_MAX || !handles_new(pool, chunks, &all))
        return PLEAT_OK;
    for (all.count = 0; woken < chunks; best++) {
        handles_add(pool, &all, pool->resting[best]);
        woken += pool->chunks[pool->resting[best]]->pages;
    }
    pleat_result result = wake(pool, &all);
    if (result == PLEAT_OK)
        result = visit(context, run_of(pool, all.first[all.count - 1], woken));
    handles_free(pool, &all);
    return pleat__is_shortage(result) ? PLEAT_OK : result;
}

void pleat__rest_drop(pleat__heap *heap)
{
    pleat__chunk_pool *pool = heap->pool;
    size_t kept = 0;
    for (size_t i = 0; i < pool->resting_count; i++) {
        uint32_t first = pool->resting[i];
        if (pleat__space_maps(pool->space, pool->chunks[first]) == 1) {
            pool->held -= run_of(pool, first, pool->chunks[first]->pages).count;
            pleat__chunk_pool_drop(pool, first);
        } else
            pool->resting[kept++] = first;
    }
    pool->resting_count = kept;
    pleat__heap_forget(heap);
}

/* ---- places ---- */

/* By the list alone: a chunk's own word is written by whoever has the turn. */
static bool run_rests(const pleat__chunk_pool *pool, pleat__run run)
{
    uint32_t first = pool->span[pleat__chunk_of(pool, run.begin)].first;
    size_t at = find_upto(pool, pleat__chunk_of(pool, run.begin + run.count - 1));
    return at < pool->resting_count && pool->resting[at] >= first;
}

bool pleat__rest_holds(const pleat__chunk_pool *pool, const pleat__place *place)
{
    pleat__run run;
    for (pleat__place_walk walk = {0, place->granules}; pleat__place_next(place, &walk, &run);)
        if (run_rests(pool, run))
            return true;
    return false;
}

/* Handles of the run that rest, each once. */
static void add_run(const pleat__chunk_pool *pool, pleat__run run, handles *all)
{
    uint32_t last = pleat__chunk_of(pool, run.begin + run.count - 1);
    for (uint32_t c = pleat__chunk_of(pool, run.begin); c <= last; c++) {
        pleat__chunk *handle = pool->chunks[c];
        if (handle == NULL || !handle->rests || handle->seen ||
            !is_resting(pool, pool->span[c].first))
            continue;
        handle->seen = true;
        handles_add(pool, all, pool->span[c].first);
    }
}

static void add_place(const pleat__chunk_pool *pool, const pleat__place *place, handles *all)
{
    pleat__run run;
    for (pleat__place_walk walk = {0, place->granules}; pleat__place_next(place, &walk, &run);)
        add_run(pool, run, all);
}

static int compare_down(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a > b ? -1 : a < b;
}

static void sort_down(const pleat__chunk_pool *pool, handles *all)
{
    qsort(all->first, all->count, sizeof *all->first, compare_down);
    for (uint32_t i = 0; i < all->count; i++) {
        all->chunks[i] = pool->chunks[all->first[i]];
        all->chunks[i]->seen = false;
    }
}

pleat_result pleat__rest_wake_places(pleat__heap *heap, const pleat__place *places, uint32_t count)
{
    pleat__chunk_pool *pool = heap->pool;
    handles all;
    PLEAT_TRY(pleat__gate_turn(pool->gate));
    pleat_result result = handles_new(pool, (uint32_t)pool->resting_count + 1, &all)
                              ? PLEAT_OK
                              : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to wake chunks");
    for (uint32_t p = 0; p < count && result == PLEAT_OK; p++)
        add_place(pool, &places[p], &all);
    if (result == PLEAT_OK) {
        sort_down(pool, &all);
        result = all.count > 0 ? wake(pool, &all) : PLEAT_OK;
        pleat__heap_forget(heap);
    }
    handles_free(pool, &all);
    return result;
}

/* ---- held for a pause ---- */

static pleat_result list_free(void *context, pleat__run run)
{
    pleat__chunk_pool *pool = context;
    PLEAT_TRY(pleat__arena_grow(pool->arena, &pool->held_runs, &pool->held_run_capacity,
                                pool->held_run_count, sizeof *pool->held_runs));
    pool->held_runs[pool->held_run_count++] = run;
    return PLEAT_OK;
}

pleat_result pleat__rest_hold(pleat__heap *heap)
{
    pleat__chunk_pool *pool = heap->pool;
    size_t before = pool->held_run_count;
    pleat_result result = PLEAT_OK;
    for (uint32_t c = 0; c < pool->count && result == PLEAT_OK; c++)
        if (pool->chunks[c] != NULL && pool->chunks[c]->list != NULL)
            result = pleat__occupancy_walk_free(&pool->occupancy, c, c + 1, NULL, list_free, pool);
    if (result != PLEAT_OK) {
        pool->held_run_count = before;
        return result;
    }
    pleat__heap_forget(heap);
    for (size_t r = before; r < pool->held_run_count; r++) {
        PLEAT_CHECK(pleat__occupancy_take(&pool->occupancy, pool->held_runs[r]));
        pool->held += pool->held_runs[r].count;
    }
    return PLEAT_OK;
}

static const pleat__chunk *handle_of(const pleat__chunk_pool *pool, pleat__run run)
{
    return pool->chunks[pleat__chunk_of(pool, run.begin)];
}

/* Whether something is in use on the handle of a run. */
static bool is_used(const pleat__chunk_pool *pool, pleat__run run)
{
    uint32_t c = pool->span[pleat__chunk_of(pool, run.begin)].first,
             end = c + pool->chunks[c]->pages;
    while (c < end && pool->occupancy.used[c] == 0)
        c++;
    return c < end;
}

/* What the host keeps is slow: nothing new comes to lie beside what lives there. First all that is
 * held is given, and then that is taken again: so what is in use lives. */
void pleat__rest_let_go(pleat__heap *heap)
{
    pleat__chunk_pool *pool = heap->pool;
    size_t kept = 0;
    for (size_t r = 0; r < pool->held_run_count; r++)
        if (!handle_of(pool, pool->held_runs[r])->rests)
            pleat__occupancy_give(&pool->occupancy, pool->held_runs[r]);
    for (size_t r = 0; r < pool->held_run_count; r++) {
        pleat__run run = pool->held_runs[r];
        const pleat__chunk *handle = handle_of(pool, run);
        if (!handle->rests && !(handle->on_host && is_used(pool, run))) {
            pool->held -= run.count;
            continue;
        }
        if (!handle->rests)
            PLEAT_CHECK(pleat__occupancy_take(&pool->occupancy, run));
        pool->held_runs[kept++] = run;
    }
    pool->held_run_count = kept;
    pleat__heap_forget(heap);
}

/* ---- handles of what lives, and of what is idle beside it ---- */

static bool is_listed(const pleat__chunk_pool *pool, uint32_t chunk)
{
    return chunk < pool->count && pool->chunks[chunk] != NULL &&
           pool->chunks[chunk]->list != NULL && pool->chunks[chunk]->rests;
}

/* Chunks of handles on a pause's list (NULL: on any), of all of which is held: nothing lives on
 * them. */
static bool find_idle(const pleat__chunk_pool *pool, const void *list, pleat__chunk_set *idle,
                      uint64_t *count)
{
    *count = 0;
    for (size_t r = 0; r < pool->held_run_count; r++) {
        pleat__run run = pool->held_runs[r];
        if (run.count != pool->occupancy.full ||
            !is_listed(pool, pleat__chunk_of(pool, run.begin)) ||
            (list != NULL && handle_of(pool, run)->list != list))
            continue;
        const pleat__place place = {.run = run, .granules = run.count};
        if (pleat__chunk_set_add(idle, &place) != PLEAT_OK)
            return false;
        ++*count;
    }
    return true;
}

static uint64_t listed_chunks(const pleat__chunk_pool *pool)
{
    uint64_t count = 0;
    for (uint32_t c = 0; c < pool->count; c++)
        count += is_listed(pool, c);
    return count;
}

static bool is_in(const pleat__chunk_set *set, uint32_t chunk)
{
    return pleat__chunk_set_meets_chunks(set, chunk, 1);
}

/* Handles end where what is idle begins or ends. */
static void split_listed(pleat__chunk_pool *pool, const pleat__chunk_set *idle)
{
    for (uint32_t c = 1; c < pool->count; c++)
        if (is_listed(pool, c) && pool->chunks[c] == pool->chunks[c - 1] &&
            is_in(idle, c) != is_in(idle, c - 1) && !pleat__chunk_pool_split(pool, c))
            return;
}

/* Those of which all is idle rest by themselves. */
static void leave_idle(pleat__chunk_pool *pool, const pleat__chunk_set *idle)
{
    for (uint32_t c = pool->count, first; c > 0; c = first) {
        first = pleat__first_of(pool, c - 1);
        bool all = is_listed(pool, first) && !pool->chunks[first]->torn;
        for (uint32_t k = first; k < c && all; k++)
            all = is_in(idle, k);
        if (!all || pleat__rest_reserve(pool, 1) != PLEAT_OK)
            continue;
        pool->chunks[first]->list = NULL;
        add_resting(pool, &(handles){.first = &first, .count = 1});
    }
}

/* What is held of a handle that is on no list any more is held by its rest. */
static void drop_held(pleat__chunk_pool *pool, const pleat__chunk_set *idle)
{
    size_t kept = 0;
    for (size_t r = 0; r < pool->held_run_count; r++) {
        uint32_t chunk = pleat__chunk_of(pool, pool->held_runs[r].begin);
        if (!is_in(idle, chunk) || is_listed(pool, chunk))
            pool->held_runs[kept++] = pool->held_runs[r];
    }
    pool->held_run_count = kept;
}

static void set_apart(pleat__chunk_pool *pool)
{
    pleat__chunk_set idle;
    uint64_t count;
    pleat__chunk_set_init(&idle, pool->arena, pool->occupancy.shift);
    if (find_idle(pool, NULL, &idle, &count) && count * SPLIT_SHARE > listed_chunks(pool)) {
        split_listed(pool, &idle);
        leave_idle(pool, &idle);
        drop_held(pool, &idle);
    }
    pleat__chunk_set_release(&idle);
}

static void join_listed(const pleat__heap *heap)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint32_t most = pleat__chunk_pool_joined_most(pool);
    for (uint32_t c = 0, next; c < pool->count; c = next) {
        next = c + (pool->chunks[c] != NULL ? pool->chunks[c]->pages : 1);
        while (is_listed(pool, c) && is_listed(pool, next) && join(heap, c, next, most))
            next = c + pool->chunks[c]->pages;
    }
}

size_t pleat__rest_regroup(pleat__heap *heap, bool followed, pleat__chunk **listed)
{
    pleat__chunk_pool *pool = heap->pool;
    size_t count = 0;
    if (pool->joins) {
        drop_views(heap, followed);
        set_apart(pool);
        join_listed(heap);
        join_resting(heap);
        pleat__heap_forget(heap);
    }
    for (uint32_t c = 0; c < pool->count; c += pool->chunks[c] != NULL ? pool->chunks[c]->pages : 1)
        if (is_listed(pool, c))
            listed[count++] = pool->chunks[c];
    return count;
}

/* What is held of handles of this list is free again. */
static void give_held(pleat__chunk_pool *pool, const void *list)
{
    size_t kept = 0;
    for (size_t r = 0; r < pool->held_run_count; r++) {
        pleat__run run = pool->held_runs[r];
        if (handle_of(pool, run)->list == list) {
            pleat__occupancy_give(&pool->occupancy, run);
            pool->held -= run.count;
        } else
            pool->held_runs[kept++] = run;
    }
    pool->held_run_count = kept;
}

void pleat__rest_leave(pleat__heap *heap, const void *list, uint64_t runs,
                       void (*give)(void *context), void *context)
{
    pleat__chunk_pool *pool = heap->pool;
    pleat__chunk_set idle;
    uint64_t count;
    if (pleat__arena_reserve(pool->arena, &pool->held_runs, &pool->held_run_capacity,
                             pool->held_run_count + runs, sizeof *pool->held_runs) != PLEAT_OK)
        return;
    give(context);
    /* Held again at once, as the whole runs that it has become. */
    give_held(pool, list);
    PLEAT_CHECK(pleat__rest_hold(heap) == PLEAT_OK);
    pleat__chunk_set_init(&idle, pool->arena, pool->occupancy.shift);
    if (find_idle(pool, list, &idle, &count)) {
        leave_idle(pool, &idle);
        drop_held(pool, &idle);
    }
    pleat__chunk_set_release(&idle);
    pleat__heap_forget(heap);
}

void pleat__rest_release(pleat__chunk_pool *pool)
{
    pleat__arena_free(pool->arena, pool->resting);
    pleat__arena_free(pool->arena, pool->held_runs);
    pool->resting = NULL;
    pool->held_runs = NULL;
}
