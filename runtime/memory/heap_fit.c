/*
 * heap_fit.c: which free run a request gets where it is known when each is wanted next, and which
 * end of it where that is not known.
 */
#include <runtime/memory/heap_internal.h>

/* Holes that are compared when it is known what they are wanted for. */
#define CHOICES 32u
/* Holes and chunks that are looked at among what is never wanted. */
#define STEPS 256u
/* A request is among the largest when so many like it would be all the memory there is. (A network
 * that translates, whose lengths are drawn, stitched its logits in two of three iterations, 250 to
 * 290 ms in 100, and in the end bought 6 % more memory; so in one of five or ten, 60 to 120 ms, and
 * buys none. Where requests of a 64th were among them a GPT-2 whose microbatch changes had 0.986 of
 * its memory in use instead of 0.992; of a 16th, translation bought 5 % now and then.) */
#define LARGEST 32u

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
pleat__extent pleat__hole_never_wanted(const pleat__heap *heap, const pleat__extents *zone,
                                       uint32_t granules, bool whole)
{
    pleat__extent found = {0, 0};
    uint32_t steps = STEPS;
    for (uint32_t i = 0; i < heap->never_count && found.count == 0; i++)
        if (heap->never[i].begin < heap->pool->count << heap->pool->occupancy.shift)
            found = free_within(heap, zone, heap->never[i], granules, whole, &steps);
    return found;
}

pleat__extent pleat__hole_chunk(const pleat__heap *heap, const pleat__extents *zone)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    pleat__extent best = {0, 0};
    uint32_t best_wanted = 0, seen = 0;
    pleat__extent never = pleat__hole_never_wanted(heap, zone, occupancy->full, true);
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

pleat__extent pleat__hole_least_wanted(const pleat__heap *heap, const pleat__extents *zone,
                                       uint32_t granules)
{
    pleat__extent run = pleat__extents_best(zone, granules);
    pleat__extent best = pleat__hole_never_wanted(heap, zone, granules, false);
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

/* What lies before a granule that a hole begins with, or at one behind a hole; NULL: nothing does,
 * it is the end of what there is. */
static const pleat__tenants *neighbour(const pleat__heap *heap, uint32_t granule, bool before)
{
    uint32_t chunk = pleat__pool_chunk_of(heap->pool, before ? granule - 1 : granule);
    bool is = granule != 0 && chunk < heap->pool->count && heap->pool->chunks[chunk] != NULL &&
              pleat__heap_follows(heap, granule);
    return is ? &heap->tenants[chunk] : NULL;
}

/* What came last goes first, mostly. So the largest lie beside what is there the longest: behind a
 * short-lived one at the hole's beginning a longer-lived one would lie in the middle, and what is
 * free on its two sides hold no third. */
pleat__extent pleat__hole_end(const pleat__heap *heap, pleat__extent hole, uint32_t granules)
{
    const pleat__pool *pool = heap->pool;
    uint64_t exist = (uint64_t)(pool->count - pool->absent) << pool->occupancy.shift;
    pleat__extent end = {hole.begin, granules};
    /* What is left of a chunk is in no view. */
    if (granules < exist / LARGEST || granules < pool->occupancy.full)
        return end;
    const pleat__tenants *low = neighbour(heap, hole.begin, true);
    const pleat__tenants *high = neighbour(heap, hole.begin + hole.count, false);
    if ((high != NULL ? high->begins : 0) < (low != NULL ? low->ends : 0))
        end.begin = hole.begin + hole.count - granules;
    return end;
}
