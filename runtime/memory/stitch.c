/*
 * stitch.c: a contiguous view for a large request from free memory that is not contiguous.
 *
 * WHY   When no hole is large enough there usually is enough free memory all the same. A map costs
 *       25 us a chunk on an H200, creating and mapping a new one 35 us and the memory itself.
 * HOW   GMLake's order (its section 4.3), S1 to S5:
 *         S1, S2 reuse    a free stretch of a view that is there (views.c), or that is when a few
 *                         of its handles are exchanged (remap.c): where a new view would need no
 *                         new memory, since none that is there shows more that is free (D607)
 *         S3 stitch       whole free handles, the larger ones first where these come out even
 *                         (D637), those of the smallest runs first
 *         S4 insufficient just as many more chunks as are missing (heap_grow.c says whose); for
 *                         all of it where next to nothing is free, and then no view. What comes
 *                         from another stream may be what came the last time: S1 again (D501)
 *         S5              the error of the device or the budget goes to the caller
 *       It departs from GMLake in four ways. An idle view may be changed in part (remap.c). Runs
 *       are taken smallest first: largest first would destroy what the next large request needs. A
 *       view may begin in the middle of a handle and end in the middle of one, where free leftovers
 *       do so, so that it costs no more bytes than the request has (without that: 0.3 to 1.1 % more
 *       memory on mixture-of-experts jobs). And the chunks stay mapped at home, where they serve
 *       other requests meanwhile: views are aliases, and occupancy keeps the two apart.
 * LOCK  What is gathered is occupied before the lock is left for the map (gate.h).
 */
#include <runtime/memory/heap_internal.h>
#include <runtime/memory/views.h>

#include <internal/check.h>
#include <internal/error.h>

/* "Next to nothing" of a request is 1/LITTLE of it. */
#define LITTLE 16u

/* ---- S3 ---- */

/* A handle's chunks, all of them: they are mapped together. */
static pleat_result gather_handle(pleat__heap *heap, uint32_t first)
{
    uint32_t chunks = pleat__handle_chunks(heap->pool, first);
    PLEAT_TRY(pleat__arena_reserve(heap->arena, &heap->gathered, &heap->gathered_capacity,
                                   heap->gathered_count + chunks, sizeof *heap->gathered));
    for (uint32_t c = first; c < first + chunks; c++)
        heap->gathered[heap->gathered_count++] = c;
    return PLEAT_OK;
}

/* The granules of the handle that a free granule belongs to. */
static pleat__run handle_of(const pleat__heap *heap, uint32_t granule)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint32_t chunk = pleat__chunk_of(pool, granule);
    uint32_t shift = pool->occupancy.shift;
    return (pleat__run){pool->span[chunk].first << shift, pleat__handle_chunks(pool, chunk)
                                                              << shift};
}

static uint32_t end_of(pleat__run run)
{
    return run.begin + run.count;
}

/* The longest free end of a handle whose beginning is in use: where the view begins. The largest
 * runs are looked at first: none has a longer one than it has granules. Of equal ones the lowest,
 * which it is again when new memory lies beside some. */
static pleat__run find_head(const pleat__heap *heap, const pleat__free_runs *zone)
{
    pleat__run head = {0, 0};
    pleat__hole hole = pleat__free_runs_largest(zone);
    for (uint32_t looks = 0;
         looks < PLEAT__RUN_LOOKS && hole.run.count != 0 && hole.run.count >= head.count;
         looks++, hole = pleat__free_runs_smaller(zone, hole)) {
        pleat__run run = hole.run, handle = handle_of(heap, run.begin);
        uint32_t count = end_of(handle) - run.begin;
        bool better = count > head.count || (count == head.count && run.begin < head.begin);
        if (run.begin != handle.begin && run.count >= count && better)
            head = (pleat__run){run.begin, count};
    }
    return head;
}

/* The free beginning of the handle in whose middle a free run ends; count 0: that handle is free as
 * a whole or not from its beginning on, or the view begins with it. (Free as a whole later on, such
 * a one would be given out twice where the view is used again.) */
static pleat__run tail_of(const pleat__heap *heap, pleat__run run, pleat__run head)
{
    pleat__run handle = handle_of(heap, end_of(run) - 1), none = {0, 0};
    uint32_t part = end_of(run) - handle.begin;
    bool is_head = head.count != 0 && head.begin >= handle.begin && head.begin < end_of(handle);
    return part >= handle.count || part > run.count || is_head ? none
                                                               : (pleat__run){handle.begin, part};
}

/* The free beginning of a handle whose end is in use, where the view ends: that which holds the
 * most of what is missing: whole chunks may come from elsewhere, the rest beyond them not. */
static pleat__run find_tail(const pleat__heap *heap, const pleat__free_runs *zone, uint32_t missing,
                            pleat__run head)
{
    uint32_t full = heap->pool->occupancy.full;
    uint32_t rest = missing != 0 ? ((missing - 1) & (full - 1)) + 1 : 0;
    pleat__run tail = {0, 0};
    pleat__hole hole = pleat__free_runs_best(zone, rest);
    for (uint32_t looks = 0; rest != 0 && looks < PLEAT__RUN_LOOKS && hole.run.count != 0;
         looks++, hole = pleat__free_runs_larger(zone, hole)) {
        pleat__run part = tail_of(heap, hole.run, head);
        if (part.count < rest)
            continue;
        uint32_t most = rest + (part.count - rest) / full * full;
        most = most < missing ? most : missing;
        if (most > tail.count)
            tail = (pleat__run){part.begin, most};
    }
    return tail;
}

/* Whole free handles for a view. */
typedef struct gathering {
    pleat__heap *heap;
    uint32_t missing;
    uint32_t chunks; /* of a handle that is gathered now, where the larger ones come first ... */
    uint32_t next;   /* ... and of those that come next */
    pleat_result result;
} gathering;

static bool gather_next(void *context, uint32_t first)
{
    gathering *to = context;
    if (to->missing == 0)
        return false;
    uint32_t granules = pleat__handle_chunks(to->heap->pool, first)
                        << to->heap->pool->occupancy.shift;
    to->result = gather_handle(to->heap, first);
    to->missing -= to->missing < granules ? to->missing : granules;
    return to->result == PLEAT_OK;
}

/* Those of one size, unless more of one than a part of a chunk would be beyond what is missing. */
static bool gather_sized(void *context, uint32_t first)
{
    gathering *to = context;
    const pleat__chunk_pool *pool = to->heap->pool;
    uint32_t chunks = pleat__handle_chunks(pool, first);
    if (chunks < to->chunks && chunks > to->next)
        to->next = chunks;
    if (chunks == to->chunks && (chunks - 1) << pool->occupancy.shift < to->missing)
        return gather_next(to, first);
    return true;
}

/* The larger ones first, since each is a map. Where they do not come out even nothing is gathered.
 */
static void gather_larger(pleat__heap *heap, uint8_t zone, gathering *whole)
{
    uint32_t missing = whole->missing, count = heap->gathered_count;
    for (whole->chunks = UINT32_MAX; whole->chunks != 0 && whole->missing != 0;
         whole->chunks = whole->next) {
        whole->next = 0;
        pleat__heap_each_whole(heap, zone, gather_sized, whole);
        if (whole->result != PLEAT_OK)
            return;
    }
    if (whole->missing == 0)
        return;
    whole->missing = missing;
    heap->gathered_count = count;
}

/* What is found for a request. */
typedef struct finding {
    uint32_t offset;  /* granule of what was gathered in which it begins */
    uint32_t missing; /* granules that were not found */
    pleat__supplied supplied;
    bool maps;   /* what is gathered is mapped if it is enough: with few maps */
    bool least;  /* memory is short: no more is asked for than it needs */
    bool placed; /* it fits elsewhere meanwhile, and that is occupied */
} finding;

/* Fills heap->gathered with the chunks of a new view, as far as they are free. */
static pleat_result gather(pleat__heap *heap, uint8_t zone_index, uint32_t granules, finding *found)
{
    const pleat__free_runs *zone = &heap->zones[zone_index];
    uint32_t shift = heap->pool->occupancy.shift;
    heap->gathered_count = 0;
    found->offset = 0;
    found->missing = granules;
    pleat__run head = find_head(heap, zone);
    if (head.count != 0) {
        pleat__run handle = handle_of(heap, head.begin);
        PLEAT_TRY(gather_handle(heap, handle.begin >> shift));
        found->offset = head.begin - handle.begin;
        found->missing -= head.count;
    }
    pleat__run tail = find_tail(heap, zone, found->missing, head);
    gathering whole = {.heap = heap, .missing = found->missing - tail.count};
    if (found->maps)
        gather_larger(heap, zone_index, &whole);
    PLEAT_TRY(whole.result);
    pleat__heap_each_whole(heap, zone_index, gather_next, &whole);
    PLEAT_TRY(whole.result);
    found->missing = whole.missing;
    return tail.count == 0 ? PLEAT_OK : gather_handle(heap, tail.begin >> shift);
}

/* ---- the most that fits ---- */

/* The most granules of a tail, whatever is missing. */
static uint32_t longest_tail(const pleat__heap *heap, const pleat__free_runs *zone, pleat__run head)
{
    uint32_t most = 0;
    pleat__hole hole = pleat__free_runs_largest(zone);
    for (uint32_t looks = 0; looks < PLEAT__RUN_LOOKS && hole.run.count > most;
         looks++, hole = pleat__free_runs_smaller(zone, hole)) {
        uint32_t part = tail_of(heap, hole.run, head).count;
        most = part > most ? part : most;
    }
    return most;
}

/* Chunks of the device in handles on which nothing lies. */
static uint64_t idle_chunks(const pleat__heap *heap)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint64_t chunks = 0;
    for (uint32_t c = 0; c < pool->count; c++)
        if (pool->span[c].first == c && pleat__heap_is_idle(heap, c, 0) &&
            !pool->chunks[c]->on_host)
            chunks += pool->chunks[c]->pages;
    return chunks;
}

/* Chunks of so many bytes that are new, as far as there are numbers: what rests has its own. */
static uint64_t new_chunks(const pleat__chunk_pool *pool, uint64_t bytes)
{
    uint64_t chunks = bytes / pool->page_bytes;
    uint64_t numbers = (uint64_t)pool->most - pool->count + pool->absent;
    for (size_t r = 0; r < pool->resting_count && numbers < chunks; r++)
        numbers += pool->chunks[pool->resting[r]]->pages;
    return chunks < numbers ? chunks : numbers;
}

uint64_t pleat__stitch_most(pleat__heap *heap, uint16_t stream, uint64_t new_bytes)
{
    const pleat__free_runs *zone = &heap->zones[2 * stream], *small = zone + 1;
    uint32_t full = heap->pool->occupancy.full;
    if (pleat__heap_sync(heap) != PLEAT_OK)
        return 0;
    pleat__run head = find_head(heap, zone);
    uint64_t chunks = idle_chunks(heap) + new_chunks(heap->pool, new_bytes);
    uint64_t most = chunks * full + head.count + longest_tail(heap, zone, head);
    uint32_t hole = pleat__free_runs_largest(zone).run.count;
    /* What is smaller than a chunk lies in no view, and among small ones for want of memory. */
    uint32_t beside = pleat__free_runs_largest(small).run.count;
    beside = beside < full ? beside : full - 1;
    most = most >= full ? most : 0;
    most = most > hole ? most : hole;
    most = most > beside ? most : beside;
    return most << PLEAT__GRANULE_SHIFT;
}

/* ---- making a view ---- */

static pleat_result view_map(pleat__heap *heap, pleat__view *view, bool shares)
{
    uint64_t begun = shares ? pleat__heap_now(heap) : 0;
    pleat_result result =
        pleat__chunk_pool_view(heap->pool, view->chunks, view->pages, &view->page);
    heap->sharing.waited_ns += shares ? pleat__heap_now(heap) - begun : 0;
    return result;
}

/* All idle views go, and the lock is left until they have gone. */
static bool make_room(pleat__heap *heap)
{
    if (!pleat__heap_drop_views(heap, 0, 0))
        return false;
    pleat__gate_leave(heap->pool->gate);
    pleat__gate_drain(heap->pool->gate);
    pleat__gate_enter(heap->pool->gate);
    return true;
}

/* Idle views go as far as those that stay leave no room for another one. */
static void make_room_for(pleat__heap *heap, const pleat__view *view)
{
    pleat__heap_drop_views(heap, pleat__beyond(heap->view_pages_most, view->pages),
                           pleat__beyond(heap->view_maps_most, view->maps));
}

/* What was gathered as a view and the request's slice of it, which is occupied and so out of
 * others' reach while the view is mapped. `shares`: streams shared for it. */
static pleat_result view_make(pleat__heap *heap, uint32_t granules, uint32_t offset, uint8_t zone,
                              bool shares, pleat__place *place)
{
    uint32_t first = offset >> heap->pool->occupancy.shift;
    uint32_t begin = offset & (heap->pool->occupancy.full - 1);
    pleat__view *view = pleat__view_new(heap, heap->gathered_count, pleat__zone_stream(zone));
    if (view == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view");
    for (uint32_t i = 0; i < view->pages; i++)
        view->chunks[i] = heap->gathered[i];
    view->maps = pleat__view_handles(heap, view);
    make_room_for(heap, view);
    pleat_result result = pleat__view_slice(heap, view, first, begin, granules, place)
                              ? PLEAT_OK
                              : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view");
    if (result != PLEAT_OK)
        goto no_slice;
    PLEAT_CHECK(pleat__heap_occupy(heap, place));
    /* The lock is left meanwhile, the turn is not: nobody else makes a view. */
    result = view_map(heap, view, shares);
    if (result == PLEAT_E_LIMIT && make_room(heap))
        result = view_map(heap, view, shares);
    if (result != PLEAT_OK)
        goto no_map;
    pleat__views_add(heap, view);
    place->address += view->page * heap->pool->page_bytes; /* it had none before */
    return PLEAT_OK;
no_map:
    pleat__heap_give(heap, place);
no_slice:
    pleat__view_free(heap, view);
    return result;
}

/* Whether what is new has made one run of enough with what it lies beside: occupied. */
static bool in_one_run(pleat__heap *heap, uint32_t granules, uint8_t zone, pleat__place *place)
{
    pleat__run run = pleat__free_runs_best(&heap->zones[zone], granules).run;
    if (run.count == 0)
        return false;
    pleat__heap_at_home(heap, (pleat__run){run.begin, granules}, zone, place);
    PLEAT_CHECK(pleat__heap_occupy(heap, place));
    return true;
}

/* The free run that new memory would lengthen. It is too short for the request. */
static uint32_t free_at_end(const pleat__heap *heap, uint8_t zone)
{
    const pleat__chunk_pool *pool = heap->pool;
    if (pool->count == 0 || pool->absent != 0 || heap->zone_of[pool->count - 1] != zone ||
        pool->home[pool->count - 1] + 1 != pool->next_home)
        return 0;
    return pleat__free_runs_at(&heap->zones[zone], (pool->count << pool->occupancy.shift) - 1)
        .count;
}

/* New chunks for what the end of memory does not hold of a request. */
static uint32_t chunks_for_all(const pleat__heap *heap, uint32_t granules, uint8_t zone)
{
    return (uint32_t)pleat__ceil_div(granules - free_at_end(heap, zone),
                                     heap->pool->occupancy.full);
}

/* Whether next to nothing of a request is free. A view would then save hardly any memory, and cost
 * a map for every page beside those of the new chunks; so new chunks are to hold all of it (D144 in
 * docs/decisions.md). */
static bool is_next_to_nothing(uint32_t granules, uint32_t missing)
{
    return granules - missing <= granules / LITTLE;
}

/* Memory for a request of which granules are missing. Where there is none `least` is set first, and
 * nothing is refused: less may be missing then. */
static pleat_result supply(pleat__heap *heap, uint32_t granules, uint8_t zone, finding *found)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint32_t needed = (uint32_t)pleat__ceil_div(found->missing, pool->occupancy.full);
    uint32_t chunks = needed;
    if (!found->least && is_next_to_nothing(granules, found->missing))
        chunks = chunks_for_all(heap, granules, zone);
    if (pleat__space_room(pool->space) < chunks * pool->page_bytes)
        chunks = needed;
    pleat_result result = pleat__heap_supply(heap, zone, chunks, &found->supplied);
    if (found->least || !pleat__is_shortage(result))
        return result;
    found->least = true;
    /* The attempt may have left the lock. */
    return pleat__heap_sync(heap);
}

static uint32_t from_others(const finding *found)
{
    return found->supplied.shared + found->supplied.refused;
}

/* Gets what is missing and gathers anew, until nothing is missing or the request is placed. */
static pleat_result gather_all(pleat__heap *heap, uint32_t granules, uint8_t zone,
                               pleat__place *place, finding *found)
{
    while (found->missing != 0) {
        uint32_t before = from_others(found);
        pleat_result result = supply(heap, granules, zone, found);
        /* What others freed while the driver refused may hold it all. */
        PLEAT_TRY(pleat__heap_sync(heap));
        found->placed =
            in_one_run(heap, granules, zone, place) ||
            (from_others(found) != before && pleat__views_reuse(heap, granules, zone, place));
        if (found->placed)
            return PLEAT_OK;
        PLEAT_TRY(result);
        PLEAT_TRY(gather(heap, zone, granules, found));
    }
    return PLEAT_OK;
}

/* Whether a view may hold the request that is there already: it shows no more that is free than a
 * new one would, for which all was looked at where free runs are few. */
static bool may_be_there(const pleat__heap *heap, uint8_t zone, const finding *found)
{
    return found->missing == 0 || heap->zones[zone].by_size.count > PLEAT__RUN_LOOKS;
}

/* A view that is there, as it is or with a few of its handles exchanged. PLEAT_E_NOT_FOUND, without
 * a text: none serves; the lock may have been left. */
static pleat_result use_a_view(pleat__heap *heap, uint32_t granules, uint8_t zone,
                               pleat__place *place)
{
    if (pleat__views_reuse(heap, granules, zone, place))
        return PLEAT_OK;
    PLEAT_TRY(pleat__gate_turn(heap->pool->gate));
    return pleat__views_remap(heap, granules, zone, place);
}

pleat_result pleat__stitch(pleat__heap *heap, uint32_t granules, uint8_t zone, pleat__place *place)
{
    finding found = {0};
    PLEAT_TRY(gather(heap, zone, granules, &found));
    found.maps = true; /* what is gathered from now on */
    if (may_be_there(heap, zone, &found)) {
        pleat_result result = use_a_view(heap, granules, zone, place);
        if (result != PLEAT_E_NOT_FOUND)
            return result;
        /* What others freed meanwhile may hold it all, and what was gathered may be in use. */
        PLEAT_TRY(pleat__heap_sync(heap));
        if (in_one_run(heap, granules, zone, place))
            return PLEAT_OK;
        PLEAT_TRY(gather(heap, zone, granules, &found));
    }
    PLEAT_TRY(pleat__gate_turn(heap->pool->gate));
    PLEAT_TRY(gather_all(heap, granules, zone, place, &found));
    return found.placed
               ? PLEAT_OK
               : view_make(heap, granules, found.offset, zone, found.supplied.shared != 0, place);
}
