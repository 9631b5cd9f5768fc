/*
 * heap_fit.c: which free chunk small requests get, and which end of a free run a large one gets.
 */
#include <runtime/memory/heap_internal.h>

/* A request is among the largest when so many like it would be all the memory there is. (A network
 * that translates, whose lengths are drawn, stitched its logits in two of three iterations, 250 to
 * 290 ms in 100, and in the end bought 6 % more memory; so in one of five or ten, 60 to 120 ms, and
 * buys none. Where requests of a 64th were among them a GPT-2 whose microbatch changes had 0.986 of
 * its memory in use instead of 0.992; of a 16th, translation bought 5 % now and then.) */
#define LARGEST 32u

pleat__run pleat__hole_chunk(const pleat__heap *heap, const pleat__free_runs *zone)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    for (pleat__run run = pleat__free_runs_best(zone, occupancy->full); run.count != 0;
         run = pleat__free_runs_after(zone, run)) {
        uint32_t chunk = (uint32_t)pleat__ceil_div(run.begin, occupancy->full);
        pleat__run whole = {chunk << occupancy->shift, occupancy->full};
        if (whole.begin + whole.count <= run.begin + run.count)
            return whole;
    }
    return (pleat__run){0, 0};
}

/* The tenants of the chunk before the granule with which a hole begins, or of the chunk behind a
 * hole; NULL: memory ends there. */
static const pleat__tenants *neighbour(const pleat__heap *heap, uint32_t granule, bool before)
{
    uint32_t chunk = pleat__chunk_of(heap->pool, before ? granule - 1 : granule);
    bool is = granule != 0 && chunk < heap->pool->count && heap->pool->chunks[chunk] != NULL &&
              pleat__heap_follows(heap, granule);
    return is ? &heap->tenants[chunk] : NULL;
}

/* What came last goes first, mostly. So the largest lie beside what is there the longest: behind a
 * short-lived one at the hole's beginning a longer-lived one would lie in the middle, and what is
 * free on its two sides hold no third. */
pleat__run pleat__hole_end(const pleat__heap *heap, pleat__run hole, uint32_t granules)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint64_t exist = (uint64_t)(pool->count - pool->absent) << pool->occupancy.shift;
    pleat__run end = {hole.begin, granules};
    /* What is left of a chunk is in no view. */
    if (granules < exist / LARGEST || granules < pool->occupancy.full)
        return end;
    const pleat__tenants *low = neighbour(heap, hole.begin, true);
    const pleat__tenants *high = neighbour(heap, hole.begin + hole.count, false);
    if ((high != NULL ? high->begins : 0) < (low != NULL ? low->ends : 0))
        end.begin = hole.begin + hole.count - granules;
    return end;
}
