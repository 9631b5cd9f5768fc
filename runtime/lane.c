/*
 * lane.c: best fit within a lane (see lane.h). A lane over chunks that are not neighbours has
 * several physical runs; a request across such a seam gets a list of its own.
 */
#include <runtime/lane.h>

#include <internal/error.h>

/* Holes that are tried: the first may be taken by a request that strayed into the lane's memory. */
#define TRIES 4

pleat_result pleat__lane_init(pleat__lane_space *lane, pleat__arena *arena, pleat_va address,
                              uint32_t granules, pleat__extent *runs, uint32_t run_count)
{
    *lane = (pleat__lane_space){
        .address = address, .granules = granules, .runs = runs, .run_count = run_count};
    pleat__extents_init(&lane->free, arena);
    PLEAT_TRY(pleat__extents_reserve(&lane->free, 2));
    pleat__extents_add(&lane->free, (pleat__extent){0, granules}, true, true);
    return PLEAT_OK;
}

void pleat__lane_release(pleat__lane_space *lane)
{
    pleat__extents_release(&lane->free);
}

/* The first physical run that reaches beyond a granule of the lane, which is then counted from that
 * run's start. */
static uint32_t run_at(const pleat__lane_space *lane, uint32_t *granule)
{
    uint32_t i = 0;
    while (*granule >= lane->runs[i].count)
        *granule -= lane->runs[i++].count;
    return i;
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
        (pleat__runs){.runs = (pleat__extent *)(several + 1), .count = count, .granules = granules};
    for (uint32_t i = 0; i < count; i++) {
        pleat__extent run = lane->runs[first + i];
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

static bool place_at(const pleat__lane_space *lane, pleat__arena *arena, pleat__extent hole,
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

bool pleat__lane_alloc(pleat__lane_space *lane, pleat__heap *heap, uint32_t granules,
                       uint16_t stream, pleat__place *place)
{
    /* Two nodes for the carving, and one for each request, whose give must find it. */
    if (pleat__extents_reserve(&lane->free, lane->live + 3) != PLEAT_OK)
        return false;
    pleat__extent hole = pleat__extents_best(&lane->free, granules);
    for (int i = 0; i < TRIES && hole.count != 0; i++) {
        pleat__extent taken = {hole.begin, granules};
        if (place_at(lane, heap->arena, taken, place)) {
            if (pleat__heap_take(heap, place, stream)) {
                pleat__extents_carve(&lane->free, taken);
                lane->live++;
                return true;
            }
            pleat__arena_free(heap->arena, place->several);
        }
        hole = pleat__extents_after(&lane->free, hole);
    }
    return false;
}

void pleat__lane_give(pleat__lane_space *lane, pleat__heap *heap, const pleat__place *place)
{
    pleat__extent run = {(uint32_t)((place->address - lane->address) >> PLEAT__GRANULE_SHIFT),
                         place->granules};
    lane->live--;
    pleat__heap_give(heap, place);
    pleat__arena_free(heap->arena, place->several);
    pleat__extents_add(&lane->free, run, true, true);
}
