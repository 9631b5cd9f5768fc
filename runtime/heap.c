/*
 * heap.c: zones, notes and best fit (see heap.h).
 */
#include <runtime/views.h>

#include <internal/check.h>
#include <internal/error.h>
#include <stdio.h>
#include <string.h>

/* Holes that are compared when it is known what they are wanted for. */
#define CHOICES 32u
/* Holes and chunks that are looked at among what is never wanted. */
#define STEPS 256u
/* Notes that are looked through for a run of the size wanted. */
#define RECENT 16u

pleat_result pleat__heap_init(pleat__heap *heap, pleat_vmm vmm, int device, pleat__arena *arena,
                              pleat__pool *pool, const pleat__conf *conf)
{
    *heap = (pleat__heap){
        .vmm = vmm,
        .device = device,
        .arena = arena,
        .pool = pool,
        .stale = true,
        .unchecked = !conf->check,
        /* The host has 65,530 maps a process by default, and the driver met its limit at 520,000:
         * the setting's default of 48 GiB is 24,576 pages. */
        .view_limit = conf->views / pool->page_bytes,
    };
    pleat__account_init(&heap->account, vmm, conf->spare);
    /* A small zone grows by a chunk, which must hold any small request with room to share. */
    uint64_t small = conf->small >> PLEAT__GRANULE_SHIFT;
    heap->small_granules =
        small < pool->occupancy.full / 2 ? (uint32_t)small : pool->occupancy.full / 2;
    uint64_t room = (pleat__space_pages(pool->space) - pool->region_pages) / 2;
    if (heap->view_limit > room)
        heap->view_limit = room;
    for (uint32_t z = 0; z < PLEAT__ZONES; z++)
        pleat__extents_init(&heap->zones[z], arena);
    heap->notes = pleat__arena_alloc(arena, PLEAT__NOTES * sizeof *heap->notes);
    if (heap->notes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a heap's notes");
    return PLEAT_OK;
}

void pleat__heap_release(pleat__heap *heap)
{
    if (heap->arena == NULL)
        return;
    pleat__views_release(heap);
    for (uint32_t z = 0; z < PLEAT__ZONES; z++)
        pleat__extents_release(&heap->zones[z]);
    pleat__arena_free(heap->arena, heap->zone_of);
    pleat__arena_free(heap->arena, heap->notes);
    pleat__arena_free(heap->arena, heap->views);
    pleat__arena_free(heap->arena, heap->gathered);
    pleat__arena_free(heap->arena, heap->beyond);
    *heap = (pleat__heap){0};
}

/* Later work of `to` comes behind all that `from` has been given so far. */
static pleat_result order(pleat__heap *heap, pleat_stream from, pleat_stream to)
{
    const pleat_vmm_ops *ops = heap->vmm.ops;
    pleat_event event, before = pleat__gate_before(heap->pool->gate, from);
    *heap->streams_ordered += 1;
    if (before != 0)
        return ops->stream_wait(heap->vmm.self, to, before);
    PLEAT_TRY(ops->event_create(heap->vmm.self, heap->device, &event));
    pleat_result result = ops->event_record(heap->vmm.self, event, from);
    if (result == PLEAT_OK)
        result = ops->stream_wait(heap->vmm.self, to, event);
    pleat_result destroyed = ops->event_destroy(heap->vmm.self, event);
    return result != PLEAT_OK ? result : destroyed;
}

/* The same for all that share the last index. */
static pleat_result order_beyond(pleat__heap *heap, pleat_stream to)
{
    for (uint32_t i = 0; i < heap->beyond_count; i++) {
        if (heap->beyond[i] == to)
            continue;
        pleat__account_wait(&heap->account);
        PLEAT_TRY(order(heap, heap->beyond[i], to));
    }
    return PLEAT_OK;
}

/* Whatever one of them may be given was another's, so each waits for the others every time. */
static pleat_result stream_beyond(pleat__heap *heap, pleat_stream stream, uint16_t *index)
{
    uint32_t i = 0;
    while (i < heap->beyond_count && heap->beyond[i] != stream)
        i++;
    if (i == heap->beyond_count) {
        PLEAT_TRY(pleat__arena_grow(heap->arena, &heap->beyond, &heap->beyond_capacity, i,
                                    sizeof *heap->beyond));
        heap->beyond[heap->beyond_count++] = stream;
    }
    PLEAT_TRY(order_beyond(heap, stream));
    heap->streams[PLEAT__BEYOND] = stream;
    heap->stream_count = PLEAT__STREAMS;
    *index = PLEAT__BEYOND;
    return PLEAT_OK;
}

/* With one stream nobody asks whose a chunk is, and kept ones are used as they are: they are the
 * first stream's when there is a second. */
static void end_alone(pleat__heap *heap)
{
    for (uint32_t c = 0; heap->keeping && c < heap->zone_capacity && c < heap->pool->count; c++)
        if (heap->zone_of[c] == PLEAT__KEPT && heap->pool->occupancy.used[c] != 0)
            heap->zone_of[c] = 0;
    heap->stale = true;
    heap->note_count = 0;
}

pleat_result pleat__heap_stream(pleat__heap *heap, pleat_stream stream, uint16_t *index)
{
    uint32_t count = heap->stream_count < PLEAT__BEYOND ? heap->stream_count : PLEAT__BEYOND;
    for (uint32_t i = 0; i < count; i++)
        if (heap->streams[i] == stream) {
            *index = (uint16_t)i;
            return PLEAT_OK;
        }
    if (count == PLEAT__BEYOND)
        return stream_beyond(heap, stream, index);
    if (count == 1)
        end_alone(heap);
    heap->streams[heap->stream_count] = stream;
    *index = (uint16_t)heap->stream_count++;
    return PLEAT_OK;
}

pleat_result pleat__heap_mark(pleat__heap *heap, uint16_t stream, pleat_event event)
{
    pleat_stream last = heap->streams[stream];
    /* One that captures cannot be made to wait for the others either. */
    if (stream == PLEAT__BEYOND && pleat__gate_before(heap->pool->gate, last) != 0)
        return PLEAT_E_NOT_READY;
    if (stream == PLEAT__BEYOND)
        PLEAT_TRY(order_beyond(heap, last));
    return pleat__gate_record(heap->pool->gate, event, last);
}

static pleat_result zone_reserve(pleat__heap *heap)
{
    uint32_t wanted = heap->pool->capacity;
    if (wanted <= heap->zone_capacity)
        return PLEAT_OK;
    uint8_t *grown = pleat__arena_realloc(heap->arena, heap->zone_of, wanted);
    if (grown == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the zones of %u chunks", wanted);
    memset(grown + heap->zone_capacity, 0, wanted - heap->zone_capacity);
    heap->zone_of = grown;
    heap->zone_capacity = wanted;
    return PLEAT_OK;
}

/* ---- the trees ---- */

static bool follows(const pleat__heap *heap, uint32_t granule)
{
    uint32_t chunk = pleat__pool_chunk_of(heap->pool, granule);
    return (granule & (heap->pool->occupancy.full - 1)) != 0 || chunk >= heap->pool->count ||
           !heap->pool->breaks[chunk];
}

static pleat_result zone_add(pleat__heap *heap, uint8_t zone, pleat__extent run)
{
    PLEAT_TRY(pleat__extents_reserve(&heap->zones[zone], 2));
    pleat__extents_add(&heap->zones[zone], run, follows(heap, run.begin),
                       follows(heap, run.begin + run.count));
    return PLEAT_OK;
}

/* A small zone's chunk that is free as a whole goes back to the large requests of its stream. */
static pleat_result zone_add_small(pleat__heap *heap, uint8_t zone, pleat__extent run)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    PLEAT_TRY(zone_add(heap, zone, run));
    for (uint32_t granule = run.begin; granule < run.begin + run.count;) {
        uint32_t chunk = granule >> occupancy->shift;
        pleat__extent whole = {chunk << occupancy->shift, occupancy->full};
        pleat__extent holder = pleat__extents_at(&heap->zones[zone], whole.begin);
        if (holder.count != 0 && holder.begin + holder.count - whole.begin >= whole.count) {
            PLEAT_TRY(pleat__extents_reserve(&heap->zones[zone], 2));
            pleat__extents_carve(&heap->zones[zone], whole);
            heap->zone_of[chunk] = zone & ~1u;
            PLEAT_TRY(zone_add(heap, zone & ~1u, whole));
        }
        granule = whole.begin + whole.count;
    }
    return PLEAT_OK;
}

/* The longest beginning of a run that lies in chunks of one zone without a break. */
static pleat__extent same_zone(const pleat__heap *heap, pleat__extent run)
{
    const pleat__pool *pool = heap->pool;
    uint32_t chunk = pleat__pool_chunk_of(pool, run.begin);
    uint32_t last = pleat__pool_chunk_of(pool, run.begin + run.count - 1);
    uint32_t next = chunk + 1;
    while (next <= last && heap->zone_of[next] == heap->zone_of[chunk] && !pool->breaks[next])
        next++;
    uint32_t end = next > last ? run.begin + run.count : next << pool->occupancy.shift;
    return (pleat__extent){run.begin, end - run.begin};
}

static pleat_result apply(pleat__heap *heap, pleat__extent run, bool give)
{
    while (run.count != 0) {
        pleat__extent part = same_zone(heap, run);
        uint8_t zone = heap->zone_of[pleat__pool_chunk_of(heap->pool, part.begin)];
        if (give) {
            PLEAT_TRY(zone & 1 ? zone_add_small(heap, zone, part) : zone_add(heap, zone, part));
        } else {
            PLEAT_TRY(pleat__extents_reserve(&heap->zones[zone], 2));
            PLEAT_CHECK(pleat__extents_carve(&heap->zones[zone], part));
        }
        run = (pleat__extent){part.begin + part.count, run.count - part.count};
    }
    return PLEAT_OK;
}

static pleat_result apply_free(void *context, pleat__extent run)
{
    return apply(context, run, true);
}

static pleat_result rebuild(pleat__heap *heap)
{
    PLEAT_TRY(zone_reserve(heap));
    for (uint32_t z = 0; z < PLEAT__ZONES; z++)
        pleat__extents_release(&heap->zones[z]);
    heap->note_count = 0;
    PLEAT_TRY(pleat__occupancy_walk_free(&heap->pool->occupancy, 0, heap->pool->count,
                                         heap->pool->breaks, apply_free, heap));
    heap->stale = false;
    return PLEAT_OK;
}

pleat_result pleat__heap_sync(pleat__heap *heap)
{
    if (heap->stale)
        return rebuild(heap);
    for (uint32_t i = 0; i < heap->note_count; i++) {
        pleat_result result = apply(heap, heap->notes[i].run, heap->notes[i].give);
        if (result != PLEAT_OK) {
            heap->stale = true;
            return result;
        }
    }
    heap->note_count = 0;
    return PLEAT_OK;
}

/* Calls `each` for the runs of a place's granules; stops at false. */
static inline bool place_each(const pleat__place *place,
                              bool (*each)(pleat__heap *heap, pleat__extent run), pleat__heap *heap)
{
    if (place->several == NULL)
        return each(heap, place->run);
    uint32_t left = place->granules;
    for (uint32_t i = 0; left != 0; i++) {
        pleat__extent run = place->several->runs[i];
        if (run.count > left)
            run.count = left;
        if (!each(heap, run))
            return false;
        left -= run.count;
    }
    return true;
}

/* ---- memory into zones ---- */

static pleat_result grown(void *context, pleat__extent run)
{
    pleat__heap *heap = context;
    pleat_result result = zone_reserve(heap);
    if (result == PLEAT_OK) {
        uint32_t first = pleat__pool_chunk_of(heap->pool, run.begin);
        memset(heap->zone_of + first, heap->growing, run.count >> heap->pool->occupancy.shift);
        result = zone_add(heap, heap->growing, run);
    }
    if (result != PLEAT_OK) {
        heap->stale = true;
        heap->note_count = 0;
    }
    return result;
}

pleat_result pleat__heap_grow(pleat__heap *heap, uint8_t zone, uint32_t chunks,
                              const pleat__cuts *cuts)
{
    heap->growing = zone;
    PLEAT_TRY(pleat__pool_grow(heap->pool, chunks, cuts, grown, heap));
    /* Others allocated and freed meanwhile. */
    return pleat__heap_sync(heap);
}

bool pleat__heap_may_buy(pleat__heap *heap, uint32_t granules, uint32_t pages, uint32_t chunks)
{
    const pleat__pool *pool = heap->pool;
    uint64_t used = 0, exist = (uint64_t)(pool->count - pool->absent) << pool->occupancy.shift;
    for (uint32_t c = 0; c < pool->count; c++)
        used += pool->chunks[c] != NULL ? pool->occupancy.used[c] : 0;
    heap->most_used = used + granules > heap->most_used ? used + granules : heap->most_used;
    return !pleat__account_affords(&heap->account, pages) &&
           exist + ((uint64_t)chunks << pool->occupancy.shift) <=
               pleat__account_limit(&heap->account, heap->most_used);
}

static pleat_result streams_order(pleat__heap *heap, uint16_t from, uint16_t to)
{
    return from == PLEAT__BEYOND ? order_beyond(heap, heap->streams[to])
                                 : order(heap, heap->streams[from], heap->streams[to]);
}

/* The same for zones: kept memory may have been any stream's. */
static pleat_result zones_order(pleat__heap *heap, uint8_t from, uint8_t to)
{
    if (from != PLEAT__KEPT)
        return streams_order(heap, from / 2, to / 2);
    for (uint16_t stream = 0; stream < heap->stream_count; stream++)
        if (stream != to / 2)
            PLEAT_TRY(streams_order(heap, stream, to / 2));
    return PLEAT_OK;
}

static pleat_result steal_from(pleat__heap *heap, uint8_t from, uint8_t zone, uint32_t chunks,
                               uint32_t *got)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    pleat__extents *source = &heap->zones[from];
    bool ordered = false;
    for (pleat__extent run = pleat__extents_best(source, occupancy->full);
         run.count != 0 && *got < chunks;) {
        uint32_t first = pleat__ceil_div(run.begin, occupancy->full);
        uint32_t last = (run.begin + run.count) >> occupancy->shift;
        uint32_t count = last > first ? last - first : 0;
        if (count > chunks - *got)
            count = chunks - *got;
        if (count == 0) {
            run = pleat__extents_after(source, run);
            continue;
        }
        if (!ordered) {
            pleat__account_wait(&heap->account);
            PLEAT_TRY(zones_order(heap, from, zone));
        }
        ordered = true;
        pleat__extent part = {first << occupancy->shift, count << occupancy->shift};
        PLEAT_TRY(pleat__extents_reserve(source, 2));
        PLEAT_TRY(pleat__extents_reserve(&heap->zones[zone], 2));
        pleat__extents_carve(source, part);
        memset(heap->zone_of + first, zone, count);
        PLEAT_TRY(zone_add(heap, zone, part));
        *got += count;
        run = pleat__extents_best(source, occupancy->full);
    }
    return PLEAT_OK;
}

/* Whole free chunks of other streams' zones into `zone`, until it has got `chunks`. */
static pleat_result steal_from_others(pleat__heap *heap, uint8_t zone, uint32_t chunks,
                                      uint32_t *got)
{
    for (uint32_t from = 0; from < 2 * heap->stream_count && *got < chunks; from += 2)
        if (from / 2 != zone / 2u)
            PLEAT_TRY(steal_from(heap, (uint8_t)from, zone, chunks, got));
    return PLEAT_OK;
}

pleat_result pleat__heap_supply(pleat__heap *heap, uint8_t zone, uint32_t chunks)
{
    uint32_t got = 0;
    PLEAT_TRY(steal_from(heap, PLEAT__KEPT, zone, chunks, &got));
    if (got == chunks)
        return PLEAT_OK;
    PLEAT_TRY(pleat__gate_turn(heap->pool->gate));
    pleat_result result = pleat__heap_grow(heap, zone, chunks - got, NULL);
    if (result != PLEAT_E_BUDGET && result != PLEAT_E_OUT_OF_MEMORY)
        return result;
    uint32_t had = got;
    /* The attempt may have left the lock. */
    PLEAT_TRY(pleat__heap_sync(heap));
    PLEAT_TRY(steal_from_others(heap, zone, chunks, &got));
    if (got == chunks || got == had)
        return got == chunks ? PLEAT_OK : result;
    return pleat__heap_grow(heap, zone, chunks - got, NULL);
}

bool pleat__heap_order(pleat__heap *heap, uint8_t zone, uint32_t granules)
{
    return heap->order != NULL && heap->order(heap->order_context, zone / 2, granules) &&
           pleat__heap_sync(heap) == PLEAT_OK;
}

static bool keep_run(pleat__heap *heap, pleat__extent run)
{
    uint32_t first = pleat__pool_chunk_of(heap->pool, run.begin);
    uint32_t last = pleat__pool_chunk_of(heap->pool, run.begin + run.count - 1);
    memset(heap->zone_of + first, PLEAT__KEPT, last - first + 1);
    return true;
}

pleat_result pleat__heap_keep(pleat__heap *heap, const pleat__place *place)
{
    PLEAT_TRY(zone_reserve(heap));
    place_each(place, keep_run, heap);
    heap->keeping = true;
    heap->stale = true;
    heap->note_count = 0;
    return PLEAT_OK;
}

void pleat__heap_keep_end(pleat__heap *heap)
{
    for (uint32_t c = 0; heap->keeping && c < heap->zone_capacity; c++)
        if (heap->zone_of[c] == PLEAT__KEPT)
            heap->zone_of[c] = 0;
    heap->keeping = false;
    heap->stale = true;
    heap->note_count = 0;
}

/* The first granule from one on whose chunk is not in use as a whole. */
static uint32_t behind_full(const pleat__heap *heap, uint32_t at, uint32_t end)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    while (at < end && occupancy->used[at >> occupancy->shift] == occupancy->full)
        at = ((at >> occupancy->shift) + 1) << occupancy->shift;
    return at;
}

/* Free granules within a run that is never wanted, at a chunk's beginning where `whole`; a run of
 * count 0 when none were found in some steps. */
static pleat__extent free_within(const pleat__heap *heap, const pleat__extents *zone,
                                 pleat__extent run, uint32_t granules, bool whole, uint32_t *steps)
{
    uint32_t full = heap->pool->occupancy.full, end = heap->pool->count * full;
    end = run.count < end - run.begin ? run.begin + run.count : end;
    for (uint32_t at = behind_full(heap, run.begin, end);
         at < end && end - at >= granules && *steps != 0; --*steps) {
        pleat__extent hole = pleat__extents_at(zone, at);
        uint32_t begin = hole.begin > at ? hole.begin : at;
        uint32_t last = hole.begin + hole.count < end ? hole.begin + hole.count : end;
        begin = whole ? pleat__ceil_div(begin, full) * full : begin;
        if (hole.count != 0 && begin < last && last - begin >= granules)
            return (pleat__extent){begin, granules};
        at = hole.count != 0 ? hole.begin + hole.count : (at / full + 1) * full;
        at = behind_full(heap, at, end);
    }
    return (pleat__extent){0, 0};
}

/* What no slot uses is the first place for what has no slot: in a slot of thousands of chunks it
 * would have all of that stitched. */
static pleat__extent never_wanted(const pleat__heap *heap, const pleat__extents *zone,
                                  uint32_t granules, bool whole)
{
    pleat__extent found = {0, 0};
    uint32_t steps = STEPS;
    for (uint32_t i = 0; i < heap->never_count && found.count == 0; i++)
        if (heap->never[i].begin < heap->pool->count << heap->pool->occupancy.shift)
            found = free_within(heap, zone, heap->never[i], granules, whole, &steps);
    return found;
}

/* A whole free chunk from one of the smallest runs that have one; the one that is wanted last where
 * that is known. A run of count 0 when there is none. */
static pleat__extent whole_chunk(const pleat__heap *heap, const pleat__extents *zone)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    pleat__extent best = {0, 0};
    uint32_t best_wanted = 0, seen = 0;
    pleat__extent never = never_wanted(heap, zone, occupancy->full, true);
    if (never.count != 0)
        return never;
    for (pleat__extent run = pleat__extents_best(zone, occupancy->full);
         run.count != 0 && seen < CHOICES; run = pleat__extents_after(zone, run)) {
        uint32_t chunk = (uint32_t)pleat__ceil_div(run.begin, occupancy->full);
        pleat__extent whole = {chunk << occupancy->shift, occupancy->full};
        if (whole.begin + whole.count > run.begin + run.count)
            continue;
        if (heap->wanted == NULL)
            return whole;
        uint32_t wanted = heap->wanted(heap->wanted_context, whole);
        if (best.count == 0 || wanted > best_wanted) {
            best = whole;
            best_wanted = wanted;
        }
        seen++;
    }
    return best;
}

/* A chunk of the large zone for small requests. */
static pleat_result small_refill(pleat__heap *heap, uint8_t small)
{
    uint8_t large = small & ~1u;
    pleat__extents *zone = &heap->zones[large];
    pleat__extent whole = whole_chunk(heap, zone);
    if (whole.count == 0 && pleat__heap_order(heap, large, heap->pool->occupancy.full))
        whole = whole_chunk(heap, zone);
    if (whole.count == 0) {
        PLEAT_TRY(pleat__heap_supply(heap, large, 1));
        whole = whole_chunk(heap, zone);
        PLEAT_CHECK(whole.count != 0);
    }
    PLEAT_TRY(pleat__extents_reserve(zone, 2));
    PLEAT_TRY(pleat__extents_reserve(&heap->zones[small], 2));
    pleat__extents_carve(zone, whole);
    heap->zone_of[pleat__pool_chunk_of(heap->pool, whole.begin)] = small;
    return zone_add(heap, small, whole);
}

/* ---- allocation ---- */

/* Among the smallest runs that fit, the one that is wanted last. */
static pleat__extent least_wanted(const pleat__heap *heap, const pleat__extents *zone,
                                  uint32_t granules)
{
    pleat__extent run = pleat__extents_best(zone, granules);
    pleat__extent best = never_wanted(heap, zone, granules, false);
    uint32_t best_wanted = 0;
    if (best.count != 0)
        return best;
    for (uint32_t i = 0; i < CHOICES && run.count != 0; i++) {
        uint32_t wanted = heap->wanted(heap->wanted_context, (pleat__extent){run.begin, granules});
        if (best.count == 0 || wanted > best_wanted) {
            best = run;
            best_wanted = wanted;
        }
        run = pleat__extents_after(zone, run);
    }
    return best;
}

static bool best_fit(pleat__heap *heap, uint8_t zone, uint32_t granules, pleat__place *place)
{
    pleat__extent run = heap->wanted != NULL ? least_wanted(heap, &heap->zones[zone], granules)
                                             : pleat__extents_best(&heap->zones[zone], granules);
    if (run.count == 0)
        return false;
    run.count = granules;
    *place = (pleat__place){
        .address = pleat__pool_address(heap->pool, run.begin), .run = run, .granules = granules};
    return true;
}

/* Whether a note behind `at` speaks of any of its run: then the run is not as that note left it. */
static bool spoken_of(const pleat__heap *heap, uint32_t at)
{
    pleat__extent run = heap->notes[at].run;
    for (uint32_t i = at + 1; i < heap->note_count; i++) {
        pleat__extent other = heap->notes[i].run;
        if (other.begin < run.begin + run.count && run.begin < other.begin + other.count)
            return true;
    }
    return false;
}

/* What was just given back and has the size: taken as it is, both trees left alone. */
static bool take_back(pleat__heap *heap, uint8_t zone, uint32_t granules, pleat__place *place)
{
    uint32_t first = heap->note_count > RECENT ? heap->note_count - RECENT : 0;
    for (uint32_t i = heap->note_count; i-- > first;) {
        pleat__extent run = heap->notes[i].run;
        if (run.count != granules || !heap->notes[i].give)
            continue;
        uint32_t chunk = pleat__pool_chunk_of(heap->pool, run.begin);
        if (heap->zone_of[chunk] != zone || same_zone(heap, run).count != granules ||
            spoken_of(heap, i) || !pleat__occupancy_take(&heap->pool->occupancy, run))
            continue;
        heap->note_count--;
        memmove(&heap->notes[i], &heap->notes[i + 1], (heap->note_count - i) * sizeof *heap->notes);
        *place = (pleat__place){.address = pleat__pool_address(heap->pool, run.begin),
                                .run = run,
                                .granules = granules};
        return true;
    }
    return false;
}

pleat_result pleat__heap_alloc(pleat__heap *heap, uint32_t granules, uint16_t stream,
                               pleat__place *place, bool *stitched)
{
    uint32_t full = heap->pool->occupancy.full;
    uint8_t large = (uint8_t)(2 * stream), zone = large;
    *stitched = false;
    heap->requests++;
    if (heap->wanted == NULL &&
        take_back(heap, granules < heap->small_granules ? large | 1 : large, granules, place))
        return PLEAT_OK;
    PLEAT_TRY(pleat__heap_sync(heap));
    if (granules < heap->small_granules) {
        zone |= 1;
        if (!best_fit(heap, zone, granules, place)) {
            PLEAT_TRY(small_refill(heap, zone));
            PLEAT_CHECK(best_fit(heap, zone, granules, place));
        }
    } else if (!best_fit(heap, large, granules, place) &&
               !(pleat__heap_order(heap, large, granules) &&
                 best_fit(heap, large, granules, place))) {
        if (granules >= full) {
            PLEAT_TRY(pleat__stitch(heap, granules, large, place));
            *stitched = place->several != NULL;
            return PLEAT_OK;
        }
        PLEAT_TRY(pleat__heap_supply(heap, large, 1));
        PLEAT_CHECK(best_fit(heap, large, granules, place));
    }
    PLEAT_CHECK(pleat__heap_occupy(heap, place));
    return PLEAT_OK;
}

static bool run_is_free(pleat__heap *heap, pleat__extent run)
{
    return pleat__occupancy_is_free(&heap->pool->occupancy, run);
}

static bool run_take(pleat__heap *heap, pleat__extent run)
{
    pleat__occupancy_take(&heap->pool->occupancy, run);
    pleat__heap_note(heap, run, false);
    return true;
}

static bool run_give(pleat__heap *heap, pleat__extent run)
{
    pleat__occupancy_give(&heap->pool->occupancy, run);
    pleat__heap_note(heap, run, true);
    return true;
}

bool pleat__heap_occupy(pleat__heap *heap, const pleat__place *place)
{
    if (!place_each(place, run_is_free, heap))
        return false;
    place_each(place, run_take, heap);
    pleat__view_use(heap, place);
    return true;
}

/* Makes a run's chunks the stream's own; false when one is in part another stream's. *ordered: a
 * bit for each stream (the highest for kept memory) that need not be waited for again: one wait
 * covers all of a place's chunks, of which there may be hundreds. */
static bool run_claim(pleat__heap *heap, pleat__extent run, uint16_t stream, uint64_t *ordered)
{
    uint32_t last = pleat__pool_chunk_of(heap->pool, run.begin + run.count - 1);
    for (uint32_t c = pleat__pool_chunk_of(heap->pool, run.begin); c <= last; c++) {
        uint8_t from = heap->zone_of[c];
        if (from / 2 == stream)
            continue;
        if (heap->pool->occupancy.used[c] != 0)
            return false;
        if ((*ordered >> from / 2 & 1) == 0 &&
            zones_order(heap, from, (uint8_t)(2 * stream)) != PLEAT_OK)
            return false;
        *ordered |= UINT64_C(1) << from / 2;
        heap->zone_of[c] = (uint8_t)(2 * stream);
        heap->stale = true;
        heap->note_count = 0;
    }
    return true;
}

static bool place_claim(pleat__heap *heap, const pleat__place *place, uint16_t stream)
{
    uint64_t ordered = 0;
    if (zone_reserve(heap) != PLEAT_OK)
        return false;
    if (place->several == NULL)
        return run_claim(heap, place->run, stream, &ordered);
    for (uint32_t i = 0; i < place->several->count; i++)
        if (!run_claim(heap, place->several->runs[i], stream, &ordered))
            return false;
    return true;
}

bool pleat__heap_take(pleat__heap *heap, const pleat__place *place, uint16_t stream)
{
    if (heap->stream_count > 1 && !place_claim(heap, place, stream))
        return false;
    if (place->several == NULL) {
        if (!pleat__occupancy_take(&heap->pool->occupancy, place->run))
            return false;
        pleat__heap_note(heap, place->run, false);
        return true;
    }
    return !pleat__view_is_dead(place) && pleat__heap_occupy(heap, place);
}

/* Whether the granules behind a run are at the addresses behind it. */
static bool goes_on(const pleat__heap *heap, pleat__extent run, uint32_t granules)
{
    uint32_t chunk = pleat__pool_chunk_of(heap->pool, run.begin + run.count - 1);
    uint32_t last = pleat__pool_chunk_of(heap->pool, run.begin + granules - 1);
    if (last >= heap->pool->count)
        return false;
    while (chunk < last)
        if (heap->pool->breaks[++chunk])
            return false;
    return true;
}

bool pleat__heap_take_resized(pleat__heap *heap, pleat__place *place, uint32_t granules,
                              uint16_t stream)
{
    if (place->granules == 0)
        return false;
    if (place->several != NULL ? granules > place->several->granules
                               : granules > place->granules && !goes_on(heap, place->run, granules))
        return false;
    place->granules = granules;
    if (place->several == NULL)
        place->run.count = granules;
    return pleat__heap_take(heap, place, stream);
}

void pleat__heap_give(pleat__heap *heap, const pleat__place *place)
{
    place_each(place, run_give, heap);
    pleat__view_leave(heap, place);
}

/* ---- what is idle ---- */

void pleat__heap_idle(pleat__heap *heap, uint16_t stream, uint64_t *largest, uint64_t *total)
{
    *largest = 0;
    *total = 0;
    if (pleat__heap_sync(heap) != PLEAT_OK)
        return;
    uint64_t best = 0, sum = 0, whole = 0;
    for (uint32_t z = 0; z < PLEAT__ZONES; z++) {
        const pleat__extents *zone = &heap->zones[z];
        sum += zone->granules;
        if (z != 2u * stream)
            continue;
        for (pleat__extent run = pleat__extents_best(zone, 1); run.count != 0;
             run = pleat__extents_after(zone, run)) {
            uint64_t first = pleat__ceil_div(run.begin, heap->pool->occupancy.full);
            uint64_t end = (run.begin + run.count) >> heap->pool->occupancy.shift;
            whole += end > first ? end - first : 0;
            best = run.count;
        }
    }
    whole <<= heap->pool->occupancy.shift;
    *largest = (best > whole ? best : whole) << PLEAT__GRANULE_SHIFT;
    *total = sum << PLEAT__GRANULE_SHIFT;
}

void pleat__heap_adjacent(pleat__heap *heap, pleat__extent run, uint64_t *before, uint64_t *after)
{
    *before = 0;
    *after = 0;
    if (run.count == 0 || pleat__heap_sync(heap) != PLEAT_OK)
        return;
    const pleat__extents *zone =
        &heap->zones[heap->zone_of[pleat__pool_chunk_of(heap->pool, run.begin)]];
    if (run.begin != 0 && follows(heap, run.begin))
        *before = pleat__extents_at(zone, run.begin - 1).count;
    uint32_t end = run.begin + run.count;
    if (follows(heap, end))
        *after = pleat__extents_at(zone, end).count;
    *before <<= PLEAT__GRANULE_SHIFT;
    *after <<= PLEAT__GRANULE_SHIFT;
}

/* ---- giving chunks back ---- */

/* Whether any view or fold maps the chunk beside its home. */
static bool aliased(const pleat__heap *heap, uint32_t chunk)
{
    return pleat__space_maps(heap->pool->space, heap->pool->chunks[chunk]) > 1;
}

/* Whether a handle's chunks can be given back. */
static bool idle_block(const pleat__heap *heap, uint32_t first)
{
    uint32_t chunks = pleat__pool_block(heap->pool, first);
    for (uint32_t c = first; c < first + chunks; c++)
        if (heap->pool->occupancy.used[c] != 0)
            return false;
    return chunks != 0 && !aliased(heap, first);
}

uint32_t pleat__heap_shrink(pleat__heap *heap, uint32_t chunks, uint64_t *page)
{
    pleat__pool *pool = heap->pool;
    uint64_t from = *page;
    uint32_t count = 0;
    *page = UINT64_MAX;
    uint32_t *numbers = pleat__arena_alloc(heap->arena, pool->count * sizeof *numbers);
    if (numbers == NULL)
        return 0;
    for (uint32_t c = pool->count, first; c > 0 && count < chunks; c = first) {
        first = pool->chunks[c - 1] != NULL ? pool->first[c - 1] : c - 1;
        bool idle = pool->home[first] >= from && idle_block(heap, first);
        for (uint32_t k = c; idle && k > first; k--)
            numbers[count++] = k - 1;
    }
    for (uint32_t i = 0; i < count; i++)
        *page = pool->home[numbers[i]] < *page ? pool->home[numbers[i]] : *page;
    if (count > 0) {
        heap->stale = true;
        heap->note_count = 0;
        count = pleat__pool_shrink(pool, numbers, count);
        heap->stale = true;
        heap->note_count = 0;
    }
    pleat__arena_free(heap->arena, numbers);
    return count;
}

bool pleat__heap_audit(pleat__heap *heap)
{
    if (!pleat__occupancy_audit(&heap->pool->occupancy))
        return false;
    if (pleat__heap_sync(heap) != PLEAT_OK)
        return true; /* no host memory: nothing is known to be wrong */
    uint64_t in_trees = 0, free = 0;
    for (uint32_t z = 0; z < PLEAT__ZONES; z++)
        in_trees += heap->zones[z].granules;
    for (uint32_t c = 0; c < heap->pool->count; c++)
        free += heap->pool->occupancy.full - heap->pool->occupancy.used[c];
    if (in_trees != free) {
        fprintf(stderr, "pleat: %llu granules in the heap's trees, %llu free\n",
                (unsigned long long)in_trees, (unsigned long long)free);
        return false;
    }
    return true;
}
