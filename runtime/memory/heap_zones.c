/*
 * heap_zones.c: the sets of what is free in each zone, and the notes that bring them up to date
 * (see heap.h).
 */
#include <runtime/memory/heap_internal.h>

#include <internal/check.h>
#include <stdio.h>
#include <string.h>

/* ---- the sets ---- */

/* What it has become is `whole`. */
static inline pleat_result add_run(pleat__heap *heap, uint8_t zone, pleat__run run,
                                   pleat__run *whole)
{
    PLEAT_TRY(pleat__free_runs_reserve(&heap->zones[zone], 2));
    *whole = pleat__free_runs_add(&heap->zones[zone], run, pleat__heap_follows(heap, run.begin),
                                  pleat__heap_follows(heap, run.begin + run.count));
    return PLEAT_OK;
}

pleat_result pleat__zone_add(pleat__heap *heap, uint8_t zone, pleat__run run)
{
    pleat__run whole;
    return add_run(heap, zone, run, &whole);
}

/* A small zone's chunk that is free as a whole goes back to the large requests of its stream. */
static pleat_result zone_add_small(pleat__heap *heap, uint8_t zone, pleat__run run)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    pleat__run whole;
    PLEAT_TRY(add_run(heap, zone, run, &whole));
    for (uint32_t granule = run.begin; granule < run.begin + run.count;) {
        uint32_t chunk = granule >> occupancy->shift;
        pleat__run all = {chunk << occupancy->shift, occupancy->full};
        granule = all.begin + all.count;
        if (all.begin < whole.begin || granule > whole.begin + whole.count)
            continue;
        PLEAT_TRY(pleat__free_runs_reserve(&heap->zones[zone], 2));
        pleat__free_runs_carve(&heap->zones[zone], all);
        heap->zone_of[chunk] = pleat__zone_large(zone);
        PLEAT_TRY(pleat__zone_add(heap, pleat__zone_large(zone), all));
    }
    return PLEAT_OK;
}

/* The first of the chunks [next, end) that is of another zone or does not follow on the one before
 * it. Eight are looked at together: a tensor of a gigabyte has 512. */
static inline uint32_t zone_end(const pleat__heap *heap, uint8_t zone, uint32_t next, uint32_t end)
{
    const uint8_t *zones = heap->zone_of, *breaks = heap->pool->breaks;
    uint64_t all = UINT64_C(0x0101010101010101) * zone, theirs, broken;
    for (; next + sizeof all <= end; next += sizeof all) {
        memcpy(&theirs, zones + next, sizeof theirs);
        memcpy(&broken, breaks + next, sizeof broken);
        if (((theirs ^ all) | broken) != 0)
            break;
    }
    while (next < end && zones[next] == zone && !breaks[next])
        next++;
    return next;
}

/* The same as pleat__zone_run, which the compiler makes no part of who calls it: each give asks,
 * and a call takes 3 % of the time in calls (eight drawn jobs by the heap alone). */
static inline pleat__run zone_run(const pleat__heap *heap, pleat__run run)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint32_t chunk = pleat__chunk_of(pool, run.begin);
    uint32_t behind = pleat__chunk_of(pool, run.begin + run.count - 1) + 1;
    uint32_t next = zone_end(heap, heap->zone_of[chunk], chunk + 1, behind);
    uint32_t end = next == behind ? run.begin + run.count : next << pool->occupancy.shift;
    return (pleat__run){run.begin, end - run.begin};
}

pleat__run pleat__zone_run(const pleat__heap *heap, pleat__run run)
{
    return zone_run(heap, run);
}

static uint8_t zone_at(const pleat__heap *heap, uint32_t granule)
{
    return heap->zone_of[pleat__chunk_of(heap->pool, granule)];
}

static pleat_result apply_give(pleat__heap *heap, pleat__run run)
{
    while (run.count != 0) {
        pleat__run part = zone_run(heap, run);
        uint8_t zone = zone_at(heap, part.begin);
        pleat__run whole;
        PLEAT_TRY(pleat__zone_is_small(zone) ? zone_add_small(heap, zone, part)
                                             : add_run(heap, zone, part, &whole));
        run = (pleat__run){part.begin + part.count, run.count - part.count};
    }
    return PLEAT_OK;
}

/* Most lie in one run of one zone: its chunks need not be looked at then. */
static pleat_result apply_take(pleat__heap *heap, pleat__run run)
{
    while (run.count != 0) {
        pleat__free_runs *zone = &heap->zones[zone_at(heap, run.begin)];
        PLEAT_TRY(pleat__free_runs_reserve(zone, 2));
        if (pleat__free_runs_try_carve(zone, run))
            break;
        pleat__run part = pleat__zone_run(heap, run);
        pleat__free_runs_carve(zone, part);
        run = (pleat__run){part.begin + part.count, run.count - part.count};
    }
    return PLEAT_OK;
}

static pleat_result apply_free(void *context, pleat__run run)
{
    return apply_give(context, run);
}

static pleat_result rebuild(pleat__heap *heap)
{
    for (uint32_t z = 0; z < PLEAT__ZONES; z++)
        pleat__free_runs_clear(&heap->zones[z]);
    heap->note_count = 0;
    PLEAT_TRY(pleat__occupancy_walk_free(&heap->pool->occupancy, 0, heap->pool->count,
                                         heap->pool->breaks, apply_free, heap));
    heap->stale = false;
    return PLEAT_OK;
}

/* Makes one of two runs that were given back and lie side by side. */
static bool join(pleat__run *run, const pleat__note *next)
{
    if (!next->give)
        return false;
    if (next->run.begin + next->run.count == run->begin)
        run->begin = next->run.begin;
    else if (run->begin + run->count != next->run.begin)
        return false;
    run->count += next->run.count;
    return true;
}

pleat_result pleat__heap_sync(pleat__heap *heap)
{
    if (heap->stale)
        return rebuild(heap);
    for (uint32_t i = 0; i < heap->note_count; i++) {
        pleat__run run = heap->notes[i].run;
        bool give = heap->notes[i].give;
        while (give && i + 1 < heap->note_count && join(&run, &heap->notes[i + 1]))
            i++;
        pleat_result result = give ? apply_give(heap, run) : apply_take(heap, run);
        if (result != PLEAT_OK) {
            heap->stale = true;
            return result;
        }
    }
    heap->note_count = 0;
    return PLEAT_OK;
}

/* Granules in the sets once the notes are worked off. */
static uint64_t granules_noted(const pleat__heap *heap)
{
    uint64_t granules = 0;
    for (uint32_t z = 0; z < PLEAT__ZONES; z++)
        granules += heap->zones[z].granules;
    for (uint32_t i = 0; i < heap->note_count; i++) {
        uint64_t count = heap->notes[i].run.count;
        granules += heap->notes[i].give ? count : 0 - count;
    }
    return granules;
}

/* Whether each chunk of a free run is of the zone in whose set the run is. */
static bool run_audit(const pleat__heap *heap, uint32_t zone, pleat__run run)
{
    uint32_t last = pleat__chunk_of(heap->pool, run.begin + run.count - 1);
    for (uint32_t c = pleat__chunk_of(heap->pool, run.begin); c <= last; c++)
        if (heap->zone_of[c] != zone) {
            fprintf(stderr, "pleat: chunk %u is free in zone %u, and of zone %u\n", c, zone,
                    heap->zone_of[c]);
            return false;
        }
    return true;
}

static bool zones_audit(const pleat__heap *heap)
{
    for (uint32_t z = 0; z < PLEAT__ZONES; z++) {
        const pleat__free_runs *zone = &heap->zones[z];
        for (pleat__hole hole = pleat__free_runs_best(zone, 1); hole.run.count != 0;
             hole = pleat__free_runs_larger(zone, hole))
            if (!run_audit(heap, z, hole.run))
                return false;
        if (!pleat__free_runs_audit(zone))
            return false;
    }
    return true;
}

bool pleat__heap_audit(const pleat__heap *heap)
{
    if (!pleat__occupancy_audit(&heap->pool->occupancy))
        return false;
    if (heap->stale)
        return true; /* the sets are made anew before they are used */
    if (!zones_audit(heap))
        return false;
    uint64_t in_sets = granules_noted(heap), free = 0;
    for (uint32_t c = 0; c < heap->pool->count; c++)
        free += heap->pool->occupancy.full - heap->pool->occupancy.used[c];
    if (in_sets != free) {
        fprintf(stderr, "pleat: %llu granules in the heap's sets, %llu free\n",
                (unsigned long long)in_sets, (unsigned long long)free);
        return false;
    }
    return true;
}

void pleat__heap_each_whole(const pleat__heap *heap, uint8_t zone,
                            bool (*visit)(void *context, uint32_t first), void *context)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    const pleat__free_runs *runs = &heap->zones[zone];
    const pleat__chunk_span *span = heap->pool->span;
    for (pleat__hole hole = pleat__free_runs_best(runs, occupancy->full); hole.run.count != 0;
         hole = pleat__free_runs_larger(runs, hole)) {
        pleat__chunk_run whole = pleat__whole_chunks(occupancy, hole.run);
        for (uint32_t c = whole.first; c < whole.end; c = span[c].behind)
            if (span[c].first == c && span[c].behind <= whole.end && !visit(context, c))
                return;
    }
}
