/*
 * heap_fit.c: which hole a request gets, and which end of it: the file to change for another rule.
 * Not asked are take_back in heap.c, where a run of just the size wanted was given back a moment
 * ago, place_behind there, in_one_run in stitch.c, and lanes and captures, which have sets of their
 * own.
 *
 * It gets the smallest free run of its zone that holds it, and of several of that size the lowest:
 * best fit, in O(log n) free runs. Views are made of whole free handles (stitch.c), so what is free
 * of a handle that is in use in part serves only what fits into it. A request lies at that end of
 * the run where it leaves more chunks in whole free handles: at the end that begins or ends in the
 * middle of a handle, mostly. One of whole chunks lies on whole chunks where as many of its size
 * fit into the run then: optimizer states, which stay among activations that go, keep no chunk but
 * their own from being given back (D416 in docs/decisions.md).
 */
#include <runtime/memory/heap_internal.h>

/* The first boundary between handles at or behind a granule of a free run, or at its end. */
static uint32_t boundary_behind(const pleat__chunk_pool *pool, uint32_t granule)
{
    uint32_t shift = pool->occupancy.shift, chunk = granule >> shift;
    if (chunk >= pool->count)
        return granule;
    pleat__chunk_span span = pool->span[chunk];
    return span.first << shift == granule ? granule : span.behind << shift;
}

/* The last one at or before it. */
static uint32_t boundary_before(const pleat__chunk_pool *pool, uint32_t granule)
{
    uint32_t shift = pool->occupancy.shift, chunk = granule >> shift;
    return chunk < pool->count ? pool->span[chunk].first << shift : granule;
}

/* Granules of whole handles in [begin, end). */
static uint32_t whole_between(const pleat__chunk_pool *pool, uint32_t begin, uint32_t end)
{
    uint32_t first = boundary_behind(pool, begin), last = boundary_before(pool, end);
    return last > first ? last - first : 0;
}

/* Where a request begins that is to lie at an end of a hole: at the first whole chunk from there,
 * if it is of whole chunks and as many of its size fit into the hole then; else at that end. */
static uint32_t at_whole_chunks(const pleat__heap *heap, pleat__run hole, uint32_t granules,
                                bool at_begin)
{
    uint32_t chunk = 1u << heap->pool->occupancy.shift;
    uint32_t begin = at_begin ? hole.begin : hole.begin + hole.count - granules;
    uint32_t over = begin % chunk, away = at_begin ? (chunk - over) % chunk : over;
    if (granules % chunk != 0 || (hole.count - away) / granules != hole.count / granules)
        return begin;
    return at_begin ? begin + away : begin - away;
}

/* The place in a hole that a large request gets: at the end where more is left in whole handles. */
static pleat__run place_at_end(const pleat__heap *heap, pleat__run hole, uint32_t granules)
{
    uint32_t end = hole.begin + hole.count;
    uint32_t left_behind = whole_between(heap->pool, hole.begin + granules, end);
    uint32_t left_before = whole_between(heap->pool, hole.begin, end - granules);
    bool at_begin = left_before <= left_behind;
    return (pleat__run){at_whole_chunks(heap, hole, granules, at_begin), granules};
}

pleat__run pleat__heap_choose_hole(const pleat__heap *heap, uint8_t zone, uint32_t granules,
                                   pleat__hole *hole)
{
    *hole = pleat__free_runs_best(&heap->zones[zone], granules);
    if (hole->run.count <= granules || granules < heap->small_granules)
        return (pleat__run){hole->run.begin, hole->run.count < granules ? 0 : granules};
    return place_at_end(heap, hole->run, granules);
}
