/*
 * heap_fit.c: which free chunk small requests get, and which end of a free run a large one gets.
 */
#include <runtime/memory/heap_internal.h>

/* A request is among the largest if it has at least 1/LARGEST of the memory that exists
 * (docs/decisions.md, D29 and D140). */
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
