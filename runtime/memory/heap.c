/*
 * heap.c: places for requests, taken and given back (see heap.h).
 */
#include <runtime/memory/heap_internal.h>
#include <runtime/memory/place_map.h>
#include <runtime/memory/views.h>

#include <internal/check.h>
#include <string.h>

/* Newest notes that are searched for a run of exactly the size wanted (D141). */
#define RECENT 16u
/* What lies beside a plan in its first iteration takes at most so great a share of what the plan
 * takes: a job that begins in another way is not served twice over (docs/decisions.md, D451). */
#define BESIDE_SHARE 16u
/* And at any time: a share of it, or a chunk for small requests and one for others (D533, D535). */
#define ALWAYS_SHARE 1024u
#define ALWAYS_LEAST 2u
/* Free runs behind a plan's chunks that are looked at (D517). */
#define BEHIND_MOST 64u

pleat_result pleat__heap_init(pleat__heap *heap, pleat_vmm vmm, int device, pleat__arena *arena,
                              pleat__chunk_pool *pool, const pleat__conf *conf)
{
    *heap = (pleat__heap){
        .vmm = vmm,
        .device = device,
        .arena = arena,
        .pool = pool,
        .stale = true,
        .view_maps_most = conf->views,
        .view_pages_most = (pleat__space_pages(pool->space) - pool->region_pages) / 2,
    };
    /* A small zone grows by a chunk, which must hold any small request with room to share. */
    uint64_t small = conf->small >> PLEAT__GRANULE_SHIFT;
    heap->small_granules =
        small < pool->occupancy.full / 2 ? (uint32_t)small : pool->occupancy.full / 2;
    for (uint32_t z = 0; z < PLEAT__ZONES; z++)
        pleat__free_runs_init(&heap->zones[z], arena);
    heap->notes = pleat__arena_alloc(arena, PLEAT__NOTES * sizeof *heap->notes);
    heap->zone_of = pleat__arena_calloc_sparse(arena, pool->most, sizeof *heap->zone_of);
    if (heap->notes == NULL || heap->zone_of == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a heap's notes and zones");
    return PLEAT_OK;
}

void pleat__heap_release(pleat__heap *heap)
{
    if (heap->arena == NULL)
        return;
    pleat__zones_release_points(heap);
    pleat__views_release(heap);
    for (uint32_t z = 0; z < PLEAT__ZONES; z++)
        pleat__free_runs_release(&heap->zones[z]);
    pleat__arena_free(heap->arena, heap->zone_of);
    pleat__arena_free(heap->arena, heap->notes);
    pleat__arena_free(heap->arena, heap->gathered);
    pleat__arena_free(heap->arena, heap->shown);
    pleat__arena_free(heap->arena, heap->loose);
    *heap = (pleat__heap){0};
}

/* Takes a free run at home: it is out of the sets already, or is noted. */
static void occupy_at_home(pleat__heap *heap, pleat__run run, uint8_t zone, pleat__place *place)
{
    pleat__heap_at_home(heap, run, zone, place);
    if (heap->places != NULL)
        pleat__place_map_expect(heap->places, place->address);
    PLEAT_CHECK(pleat__occupancy_take(&heap->pool->occupancy, run));
}

/* pre: the sets are up to date. So what is taken leaves no note, but where there is no host memory
 * for it in the set. */
static bool take_hole(pleat__heap *heap, uint8_t zone, uint32_t granules, pleat__place *place)
{
    pleat__hole hole;
    pleat__run run = pleat__heap_choose_hole(heap, zone, granules, &hole);
    if (run.count == 0)
        return false;
    occupy_at_home(heap, run, zone, place);
    if (pleat__free_runs_reserve(&heap->zones[zone], 2) == PLEAT_OK)
        pleat__free_runs_carve_hole(&heap->zones[zone], hole, run);
    else
        pleat__heap_note(heap, run, false);
    return true;
}

/* Whether a note behind `at` speaks of any of its run: then the run is not as that note left it. */
static bool spoken_of(const pleat__heap *heap, uint32_t at)
{
    pleat__run run = heap->notes[at].run;
    for (uint32_t i = at + 1; i < heap->note_count; i++) {
        pleat__run other = heap->notes[i].run;
        if (other.begin < run.begin + run.count && run.begin < other.begin + other.count)
            return true;
    }
    return false;
}

void pleat__heap_forget_oldest(pleat__heap *heap)
{
    heap->stale = true;
    memmove(heap->notes, heap->notes + heap->note_count - RECENT, RECENT * sizeof *heap->notes);
    heap->note_count = RECENT;
}

/* What was just given back and has the size: taken as it is, both sets left alone. */
static bool take_back(pleat__heap *heap, uint8_t zone, uint32_t granules, pleat__place *place)
{
    uint32_t first = heap->note_count > RECENT ? heap->note_count - RECENT : 0;
    for (uint32_t i = heap->note_count; i-- > first;) {
        pleat__run run = heap->notes[i].run;
        if (run.count != granules || !heap->notes[i].give)
            continue;
        uint32_t chunk = pleat__chunk_of(heap->pool, run.begin);
        if (heap->zone_of[chunk] != zone || pleat__zone_run(heap, run).count != granules ||
            spoken_of(heap, i) || !pleat__occupancy_take(&heap->pool->occupancy, run))
            continue;
        heap->note_count--;
        memmove(&heap->notes[i], &heap->notes[i + 1], (heap->note_count - i) * sizeof *heap->notes);
        pleat__heap_at_home(heap, run, zone, place);
        return true;
    }
    return false;
}

/* Small and large requests keep to chunks of their own as long as there are any: for want of
 * memory, `refused`, one lies among the others. */
static pleat_result place_beside(pleat__heap *heap, uint32_t granules, uint8_t zone,
                                 pleat_result refused, pleat__place *place)
{
    if (!pleat__is_shortage(refused))
        return refused;
    /* The attempt may have left the lock. */
    PLEAT_TRY(pleat__heap_sync(heap));
    uint8_t other = pleat__zone_of(pleat__zone_stream(zone), !pleat__zone_is_small(zone));
    return take_hole(heap, other, granules, place) ? PLEAT_OK : refused;
}

static pleat_result place_small(pleat__heap *heap, uint32_t granules, uint8_t zone,
                                pleat__place *place)
{
    if (take_hole(heap, zone, granules, place))
        return PLEAT_OK;
    pleat_result result = pleat__heap_refill(heap, zone);
    if (result != PLEAT_OK)
        return place_beside(heap, granules, zone, result, place);
    PLEAT_CHECK(take_hole(heap, zone, granules, place));
    return PLEAT_OK;
}

static pleat_result place_large(pleat__heap *heap, uint32_t granules, uint8_t zone,
                                pleat__place *place, bool *stitched)
{
    if (take_hole(heap, zone, granules, place) ||
        (pleat__heap_order(heap, zone, granules) && take_hole(heap, zone, granules, place)))
        return PLEAT_OK;
    bool woken;
    PLEAT_TRY(pleat__heap_wake(heap, zone, granules, &woken));
    if (woken && take_hole(heap, zone, granules, place))
        return PLEAT_OK;
    if (granules >= heap->pool->occupancy.full) {
        pleat_result result = pleat__stitch(heap, granules, zone, place);
        *stitched = result == PLEAT_OK && place->several != NULL;
        return result;
    }
    pleat__supplied supplied = {0};
    pleat_result result = pleat__heap_supply(heap, zone, 1, &supplied);
    if (result != PLEAT_OK)
        return place_beside(heap, granules, zone, result, place);
    PLEAT_CHECK(take_hole(heap, zone, granules, place));
    return PLEAT_OK;
}

/* Sharing ends for good, and only an iteration that follows nothing says so: it is not the schedule
 * that costs then. */
void pleat__heap_end_iteration(pleat__heap *heap)
{
    if (pleat__sharing_end_iteration(&heap->sharing, pleat__heap_now(heap)) && !heap->has_schedule)
        heap->keeps_apart = true;
}

pleat_result pleat__heap_alloc(pleat__heap *heap, uint32_t granules, uint16_t stream,
                               pleat__place *place, bool *stitched)
{
    bool small = granules < heap->small_granules;
    uint8_t zone = pleat__zone_of(stream, small);
    *stitched = false;
    if (take_back(heap, zone, granules, place))
        return PLEAT_OK;
    PLEAT_TRY(pleat__heap_sync(heap));
    return small ? place_small(heap, granules, zone, place)
                 : place_large(heap, granules, zone, place, stitched);
}

/* Takes the first hole behind the plan's chunks, of the first ones there. pre: the sets are up to
 * date. */
static bool take_behind(pleat__heap *heap, uint8_t zone, uint32_t granules, pleat__place *place)
{
    pleat__run run =
        pleat__free_runs_from(&heap->zones[zone], heap->planned << heap->pool->occupancy.shift);
    for (uint32_t seen = 1; run.count != 0 && run.count < granules; seen++) {
        if (seen == BEHIND_MOST)
            return false;
        run = pleat__free_runs_from(&heap->zones[zone], run.begin + run.count);
    }
    if (run.count == 0)
        return false;
    run.count = granules;
    occupy_at_home(heap, run, zone, place);
    pleat__heap_note(heap, run, false);
    return true;
}

/* A free chunk behind the plan's serves small requests, as one did that they left. */
static pleat_result refill_behind(pleat__heap *heap, uint8_t zone)
{
    const pleat__free_runs *large = &heap->zones[pleat__zone_large(zone)];
    uint32_t shift = heap->pool->occupancy.shift;
    pleat__run run = pleat__free_runs_from(large, heap->planned << shift);
    for (uint32_t seen = 0; run.count != 0 && seen < BEHIND_MOST; seen++) {
        pleat__chunk_run whole = pleat__whole_chunks(&heap->pool->occupancy, run);
        if (whole.end > whole.first)
            return pleat__heap_lend_chunk(
                heap, zone, (pleat__run){whole.first << shift, heap->pool->occupancy.full});
        run = pleat__free_runs_from(large, run.begin + run.count);
    }
    return PLEAT_OK;
}

/* Whether so many more chunks may be made behind the plan's. Numbers of chunks that are gone would
 * be taken first, among the plan's. */
static bool may_make_behind(const pleat__heap *heap, uint32_t chunks)
{
    bool begins = heap->waking_marks != 0 && !heap->planned_varies;
    uint32_t most = heap->planned / (begins ? BESIDE_SHARE : ALWAYS_SHARE);
    return heap->pool->absent == 0 && heap->pool->count - heap->planned + chunks <=
                                          (most > ALWAYS_LEAST ? most : ALWAYS_LEAST);
}

/* PLEAT_E_NOT_FOUND, without a text: there is no memory for it. */
static pleat_result place_behind(pleat__heap *heap, uint32_t granules, uint8_t zone, bool makes,
                                 pleat__place *place)
{
    uint32_t chunks = (uint32_t)pleat__ceil_div(granules, heap->pool->occupancy.full);
    bool may_make = makes && may_make_behind(heap, chunks);
    PLEAT_TRY(pleat__heap_sync(heap));
    if (take_behind(heap, zone, granules, place))
        return PLEAT_OK;
    if (pleat__zone_is_small(zone)) {
        PLEAT_TRY(refill_behind(heap, zone));
        if (take_behind(heap, zone, granules, place))
            return PLEAT_OK;
    }
    if (!may_make)
        return PLEAT_E_NOT_FOUND;
    PLEAT_TRY(pleat__gate_turn(heap->pool->gate));
    pleat_result result = pleat__heap_make(heap, zone, chunks);
    if (result != PLEAT_OK && !pleat__is_shortage(result))
        return result;
    return result == PLEAT_OK && take_behind(heap, zone, granules, place) ? PLEAT_OK
                                                                          : PLEAT_E_NOT_FOUND;
}

pleat_result pleat__heap_alloc_beside(pleat__heap *heap, uint32_t granules, uint16_t stream,
                                      bool makes, pleat__place *place, bool *stitched)
{
    uint8_t zone = pleat__zone_of(stream, granules < heap->small_granules);
    pleat_result result = PLEAT_E_NOT_FOUND;
    *stitched = false;
    if (heap->planned != 0)
        result = place_behind(heap, granules, zone, makes, place);
    return result == PLEAT_E_NOT_FOUND ? pleat__heap_alloc(heap, granules, stream, place, stitched)
                                       : result;
}

/* Where it is free. */
static bool take_one(pleat__heap *heap, pleat__run run)
{
    if (!pleat__occupancy_take(&heap->pool->occupancy, run))
        return false;
    pleat__heap_note(heap, run, false);
    return true;
}

bool pleat__heap_occupy(pleat__heap *heap, const pleat__place *place)
{
    pleat__run run;
    if (place->several == NULL)
        return take_one(heap, place->run);
    for (pleat__place_walk walk = {0, place->granules}; pleat__place_next(place, &walk, &run);)
        if (!pleat__occupancy_is_free(&heap->pool->occupancy, run))
            return false;
    for (pleat__place_walk walk = {0, place->granules}; pleat__place_next(place, &walk, &run);)
        PLEAT_CHECK(take_one(heap, run));
    pleat__view_use(heap, place);
    return true;
}

/* Makes a run's chunks the stream's own; false when one is in part another stream's. *ordered: a
 * bit for each stream that need not be waited for again: one wait covers all of a place's chunks,
 * of which there may be hundreds. */
static bool run_claim(pleat__heap *heap, pleat__run run, uint16_t stream, uint64_t *ordered)
{
    uint32_t last = pleat__chunk_of(heap->pool, run.begin + run.count - 1);
    for (uint32_t c = pleat__chunk_of(heap->pool, run.begin); c <= last; c++) {
        uint16_t from = pleat__zone_stream(heap->zone_of[c]);
        if (from == stream)
            continue;
        if (heap->pool->occupancy.used[c] != 0)
            return false;
        if ((*ordered >> from & 1) == 0 && pleat__streams_order(heap, from, stream) != PLEAT_OK)
            return false;
        *ordered |= UINT64_C(1) << from;
        heap->zone_of[c] = pleat__zone_of(stream, false);
        pleat__heap_forget(heap);
    }
    return true;
}

static bool place_claim(pleat__heap *heap, const pleat__place *place, uint16_t stream)
{
    uint64_t ordered = 0;
    if (place->several == NULL)
        return run_claim(heap, place->run, stream, &ordered);
    for (uint32_t i = 0; i < place->several->count; i++)
        if (!run_claim(heap, place->several->runs[i], stream, &ordered))
            return false;
    return true;
}

/* What is free of a place is claimed also where the rest of it is in use: it is a slot, which comes
 * again. (Without that a job that gathers weights on a second stream takes a fifth more memory with
 * its plan.) */
bool pleat__heap_take(pleat__heap *heap, const pleat__place *place, uint16_t stream)
{
    if (!pleat__view_serves(place, stream) ||
        (heap->stream_count > 1 && !place_claim(heap, place, stream)))
        return false;
    return place->several == NULL ? take_one(heap, place->run) : pleat__heap_occupy(heap, place);
}

bool pleat__heap_take_resized(pleat__heap *heap, pleat__place *place, uint32_t granules,
                              uint16_t stream)
{
    if (granules > (place->several != NULL ? place->several->granules : place->granules))
        return false;
    place->granules = granules;
    if (place->several == NULL)
        place->run.count = granules;
    return pleat__heap_take(heap, place, stream);
}

static void give_one(pleat__heap *heap, pleat__run run)
{
    pleat__occupancy_give(&heap->pool->occupancy, run);
    pleat__heap_note(heap, run, true);
}

void pleat__heap_give(pleat__heap *heap, const pleat__place *place)
{
    pleat__run run;
    if (place->several == NULL) {
        give_one(heap, place->run);
    } else {
        for (pleat__place_walk walk = {0, place->granules}; pleat__place_next(place, &walk, &run);)
            give_one(heap, run);
        pleat__view_leave(heap, place);
    }
    if (heap->stream_count > 1)
        pleat__zone_freed(heap, place->stream, place->granules);
}

/* ---- what is idle ---- */

/* Chunks of whole handles: a view shows nothing less. */
typedef struct counting {
    const pleat__chunk_pool *pool;
    uint64_t chunks;
} counting;

static bool count_whole(void *context, uint32_t first)
{
    counting *whole = context;
    whole->chunks += pleat__handle_chunks(whole->pool, first);
    return true;
}

void pleat__heap_idle(pleat__heap *heap, uint16_t stream, uint64_t *largest, uint64_t *total)
{
    uint8_t zone = pleat__zone_of(stream, false);
    counting whole = {.pool = heap->pool};
    *largest = 0;
    *total = 0;
    if (pleat__heap_sync(heap) != PLEAT_OK)
        return;
    for (uint32_t z = 0; z < PLEAT__ZONES; z++)
        *total += (uint64_t)heap->zones[z].granules << PLEAT__GRANULE_SHIFT;
    pleat__heap_each_whole(heap, zone, count_whole, &whole);
    uint64_t best = pleat__free_runs_largest(&heap->zones[zone]).run.count;
    uint64_t together = whole.chunks << heap->pool->occupancy.shift;
    *largest = (best > together ? best : together) << PLEAT__GRANULE_SHIFT;
}

void pleat__heap_adjacent(pleat__heap *heap, pleat__run run, uint64_t *before, uint64_t *after)
{
    *before = 0;
    *after = 0;
    if (run.count == 0 || pleat__heap_sync(heap) != PLEAT_OK)
        return;
    const pleat__free_runs *zone =
        &heap->zones[heap->zone_of[pleat__chunk_of(heap->pool, run.begin)]];
    if (run.begin != 0 && pleat__heap_follows(heap, run.begin))
        *before = pleat__free_runs_at(zone, run.begin - 1).count;
    uint32_t end = run.begin + run.count;
    if (pleat__heap_follows(heap, end))
        *after = pleat__free_runs_at(zone, end).count;
    *before <<= PLEAT__GRANULE_SHIFT;
    *after <<= PLEAT__GRANULE_SHIFT;
}
