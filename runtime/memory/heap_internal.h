/*
 * heap_internal.h: what a heap's files share: heap.c places requests, heap_zones.c knows what is
 * free, heap_fit.c which hole to use, heap_grow.c where more comes from, stream_order.c in
 * which order streams use it.
 */
#ifndef PLEAT_RUNTIME_MEMORY_HEAP_INTERNAL_H
#define PLEAT_RUNTIME_MEMORY_HEAP_INTERNAL_H

#include <internal/error.h>
#include <internal/range.h>
#include <runtime/memory/heap.h>
#include <string.h>

/* A stream that needs new chunks may wait for another stream's where there are at least this many:
 * see D32 and D142 in docs/decisions.md. */
#define PLEAT__WORTH_A_WAIT 16u
/* Free runs that a view's head and its tail are each looked for in, and that are looked at for
 * whole chunks before one that has them for sure (D274, D559). */
#define PLEAT__RUN_LOOKS 256u

/* The sets no longer say what is free: they are made anew when they are wanted. */
static inline void pleat__heap_forget(pleat__heap *heap)
{
    heap->stale = true;
    heap->note_count = 0;
}

/* Whether a chunk is free as a whole, and a zone's. */
static inline bool pleat__heap_is_free(const pleat__heap *heap, uint32_t chunk, uint8_t zone)
{
    return heap->zone_of[chunk] == zone && heap->pool->occupancy.used[chunk] == 0;
}

/* Whether all of the chunks [first, end) are. Eight are looked at together. */
static inline bool pleat__heap_are_free(const pleat__heap *heap, uint32_t first, uint32_t end,
                                        uint8_t zone)
{
    const uint8_t *zones = heap->zone_of;
    const uint16_t *used = heap->pool->occupancy.used;
    uint64_t all = UINT64_C(0x0101010101010101) * zone, theirs, in_use[2];
    for (; first + sizeof all <= end; first += sizeof all) {
        memcpy(&theirs, zones + first, sizeof theirs);
        memcpy(in_use, used + first, sizeof in_use);
        if (((theirs ^ all) | in_use[0] | in_use[1]) != 0)
            return false;
    }
    while (first < end && pleat__heap_is_free(heap, first, zone))
        first++;
    return first == end;
}

/* Whether a granule is at the address behind the one before it. */
static inline bool pleat__heap_follows(const pleat__heap *heap, uint32_t granule)
{
    uint32_t chunk = pleat__chunk_of(heap->pool, granule);
    return (granule & (heap->pool->occupancy.full - 1)) != 0 || chunk >= heap->pool->count ||
           !heap->pool->breaks[chunk];
}

/* Chunks by number, `end` not among them. */
typedef struct pleat__chunk_run {
    uint32_t first, end;
} pleat__chunk_run;

/* The whole chunks of a free run. */
static inline pleat__chunk_run pleat__whole_chunks(const pleat__occupancy *occupancy,
                                                   pleat__run run)
{
    uint32_t first = (uint32_t)pleat__ceil_div(run.begin, occupancy->full);
    uint32_t end = (run.begin + run.count) >> occupancy->shift;
    return (pleat__chunk_run){first, end > first ? end : first};
}

/* A free run into a zone's set. */
PLEAT_NODISCARD pleat_result pleat__zone_add(pleat__heap *heap, uint8_t zone, pleat__run run);
/* The longest beginning of a run that lies in chunks of one zone without a break. */
pleat__run pleat__zone_run(const pleat__heap *heap, pleat__run run);
/* A bit for each stream of whose memory nothing can go: it captures, and nobody said so. */
uint64_t pleat__streams_kept(const pleat__heap *heap, const pleat__fences *fences);
/* Whether nothing lies on the handle that would begin with chunk `first`, it is there, and it is
 * none of those. */
bool pleat__heap_is_idle(const pleat__heap *heap, uint32_t first, uint64_t kept);
/* By how much a count is more than another; 0 where it is not. */
static inline uint64_t pleat__beyond(uint64_t count, uint64_t other)
{
    return count > other ? count - other : 0;
}

/* Whether no stream has more requests: the busiest does the job's own work. */
bool pleat__heap_is_busiest(const pleat__heap *heap, uint16_t stream);
/* Whether one of two streams is the busiest and the other helps it: it asks far less often. */
bool pleat__heap_helps(const pleat__heap *heap, uint16_t stream, uint16_t other);
/* Later work of the stream `to` comes behind all uses of what is free of the stream `from`. */
PLEAT_NODISCARD pleat_result pleat__streams_order(pleat__heap *heap, uint16_t from, uint16_t to);
/* A stream gave memory back: where that is much, and the stream is not the busiest, whoever takes
 * it over waits for this point. */
void pleat__zone_freed(pleat__heap *heap, uint16_t stream, uint32_t granules);
void pleat__zones_release_points(pleat__heap *heap);
/* The granules of a zone that a request gets, and the hole they are in; count 0 where no hole holds
 * as many, and only there. pre: the sets are up to date. */
pleat__run pleat__heap_choose_hole(const pleat__heap *heap, uint8_t zone, uint32_t granules,
                                   pleat__hole *hole);
/* Calls `visit` for the whole free handles of a zone, by their first chunks, those in the smallest
 * runs first, until it returns false. It looks at no more runs than the zone has chunks. pre: the
 * sets are up to date. */
void pleat__heap_each_whole(const pleat__heap *heap, uint8_t zone,
                            bool (*visit)(void *context, uint32_t first), void *context);
/* A free chunk of the large zone serves small requests until it is free again. */
PLEAT_NODISCARD pleat_result pleat__heap_lend_chunk(pleat__heap *heap, uint8_t small,
                                                    pleat__run chunk);
/* The same of whichever there is, else of a new one. */
PLEAT_NODISCARD pleat_result pleat__heap_refill(pleat__heap *heap, uint8_t small);

#endif
