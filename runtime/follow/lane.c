/*
 * lane.c: best fit within a lane (see lane.h). A lane over chunks that are not neighbours has
 * several physical runs; a request across such a seam gets a list of its own.
 */
#include <runtime/follow/lane.h>

#include <internal/error.h>

#define TRIES 8  /* holes that are tried (D180) */
#define STEPS 16 /* strays in a hole that are passed (D181) */

void pleat__lane_init(pleat__lane_space *lane, pleat__arena *arena, pleat_va address,
                      uint32_t granules, pleat__run *runs, uint32_t *starts, uint32_t run_count)
{
    *lane = (pleat__lane_space){.address = address,
                                .granules = granules,
                                .runs = runs,
                                .starts = starts,
                                .run_count = run_count};
    for (uint32_t i = 0, before = 0; i < run_count; before += runs[i++].count)
        starts[i] = before;
    pleat__free_runs_init(&lane->free, arena);
}

void pleat__lane_release(pleat__lane_space *lane)
{
    pleat__free_runs_release(&lane->free);
}

/* The physical run that a granule of the lane is in; it is then counted from that run's start. */
static uint32_t run_at(const pleat__lane_space *lane, uint32_t *granule)
{
    uint32_t first = 0, behind = lane->run_count;
    while (behind - first > 1) {
        uint32_t middle = first + (behind - first) / 2;
        if (lane->starts[middle] <= *granule)
            first = middle;
        else
            behind = middle;
    }
    *granule -= lane->starts[first];
    return first;
}

static pleat__runs *several_make(const pleat__lane_space *lane, pleat__arena *arena, uint32_t first,
                                 uint32_t offset, uint32_t granules)
{
    uint32_t count = 0;
    for (uint32_t i = first, left = granules + offset; left != 0; i++, count++)
        left -= left < lane->runs[i].count ? left : lane->runs[i].count;
    pleat__runs *several =
        pleat__arena_alloc(arena, sizeof *several + count * sizeof *several->runs);
    if (several == NULL)
        return NULL;
    *several =
        (pleat__runs){.runs = (pleat__run *)(several + 1), .count = count, .granules = granules};
    for (uint32_t i = 0; i < count; i++) {
        pleat__run run = lane->runs[first + i];
        run.begin += offset;
        run.count -= offset;
        offset = 0;
        if (run.count > granules)
            run.count = granules;
        granules -= run.count;
        several->runs[i] = run;
    }
    return several;
}

static bool place_at(const pleat__lane_space *lane, pleat__arena *arena, pleat__run hole,
                     pleat__place *place)
{
    uint32_t offset = hole.begin, first = run_at(lane, &offset);
    *place = (pleat__place){
        .address = lane->address + ((uint64_t)hole.begin << PLEAT__GRANULE_SHIFT),
        .run = {lane->runs[first].begin + offset, hole.count},
        .granules = hole.count,
    };
    if (offset + hole.count <= lane->runs[first].count)
        return true;
    place->several = several_make(lane, arena, first, offset, hole.count);
    return place->several != NULL;
}

/* Where in the lane the last granule of [at, at + granules) is that is in use, plus one; `at` when
 * none is. */
static uint32_t free_from(const pleat__lane_space *lane, const pleat__occupancy *occupancy,
                          uint32_t at, uint32_t granules)
{
    uint32_t offset = at, first = run_at(lane, &offset), passed = 0, used_to = at;
    for (uint32_t i = first; passed < granules; i++) {
        pleat__run run = {lane->runs[i].begin + offset, lane->runs[i].count - offset};
        if (run.count > granules - passed)
            run.count = granules - passed;
        uint32_t tail = pleat__occupancy_free_tail(occupancy, run);
        passed += run.count;
        if (tail < run.count)
            used_to = at + passed - tail;
        offset = 0;
    }
    return used_to;
}

/* The first granules of a hole that are free; a count of 0 when there are none. A request that
 * strayed into the lane's memory may lie anywhere in it. */
static pleat__run free_part(const pleat__lane_space *lane, const pleat__occupancy *occupancy,
                            pleat__run hole, uint32_t granules)
{
    uint32_t end = hole.begin + hole.count;
    for (int i = 0; i < STEPS && end - hole.begin >= granules; i++) {
        uint32_t next = free_from(lane, occupancy, hole.begin, granules);
        if (next == hole.begin)
            return (pleat__run){hole.begin, granules};
        hole.begin = next;
    }
    return (pleat__run){0, 0};
}

/* Takes granules of the lane where no other part of it was given out. */
static bool take_at(pleat__lane_space *lane, pleat__heap *heap, pleat__run taken, uint16_t stream,
                    pleat__place *place)
{
    if (!place_at(lane, heap->arena, taken, place))
        return false;
    if (pleat__heap_take(heap, place, stream)) {
        pleat__free_runs_carve(&lane->free, taken);
        lane->live++;
        return true;
    }
    pleat__arena_free(heap->arena, place->several);
    return false;
}

/* Strays are looked for only where the hole's beginning is found in use: to look first, a mask
 * after the other, was a quarter of what a mixture of experts' allocations took. */
static bool take_in(pleat__lane_space *lane, pleat__heap *heap, pleat__run hole, uint32_t granules,
                    uint16_t stream, pleat__place *place)
{
    if (take_at(lane, heap, (pleat__run){hole.begin, granules}, stream, place))
        return true;
    pleat__run taken = free_part(lane, &heap->pool->occupancy, hole, granules);
    return taken.count != 0 && taken.begin != hole.begin &&
           take_at(lane, heap, taken, stream, place);
}

bool pleat__lane_alloc(pleat__lane_space *lane, pleat__heap *heap, uint32_t granules,
                       uint16_t stream, pleat__place *place)
{
    bool is_new = pleat__lane_is_new(lane);
    /* Two nodes for the carving, and one for each request, whose give must find it. */
    if (lane->gone || granules > lane->granules ||
        pleat__free_runs_reserve(&lane->free, lane->live + 3) != PLEAT_OK)
        return false;
    if (is_new)
        pleat__free_runs_add(&lane->free, (pleat__run){0, lane->granules}, true, true);
    pleat__hole hole = pleat__free_runs_best(&lane->free, granules);
    for (int i = 0; i < TRIES && hole.run.count != 0; i++) {
        if (take_in(lane, heap, hole.run, granules, stream, place))
            return true;
        hole = pleat__free_runs_larger(&lane->free, hole);
    }
    return false;
}

bool pleat__lane_hole(const pleat__lane_space *lane, pleat__arena *arena, uint32_t granules,
                      pleat__place *place)
{
    pleat__run hole = lane->gone ? (pleat__run){0} : pleat__lane_best(lane, granules);
    return hole.count != 0 && place_at(lane, arena, (pleat__run){hole.begin, granules}, place);
}

void pleat__lane_give(pleat__lane_space *lane, pleat__heap *heap, const pleat__place *place)
{
    pleat__run run = {(uint32_t)((place->address - lane->address) >> PLEAT__GRANULE_SHIFT),
                      place->granules};
    lane->live--;
    pleat__heap_give(heap, place);
    pleat__arena_free(heap->arena, place->several);
    pleat__free_runs_add(&lane->free, run, true, true);
}
