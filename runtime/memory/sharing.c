/*
 * sharing.c: whether it costs too much that streams share memory.
 *
 * What a stream takes over from another lies in pieces, and each large request is a new view of
 * them. Requests may wait for such views for 1/16 of the time; what they wait beyond that adds up
 * over the iterations, and what they do not wait is taken off. At a quarter of a second, in an
 * iteration that follows nothing, streams share no memory any more before new memory is made. Time
 * for views of a stream's own memory is no reason: keeping streams apart would not save it (D502,
 * D504 in docs/decisions.md).
 */
#include <runtime/memory/heap.h>

/* They share no more once that has cost more than 1/PART of the time by so many ns in all. It is
 * for good, and what sharing costs falls while a job's sizes are new to it (D504). */
#define PART     16u
#define APART_NS UINT64_C(250000000)

void pleat__heap_end_iteration(pleat__heap *heap)
{
    pleat__sharing *sharing = &heap->sharing;
    uint64_t now_ns = pleat__heap_now(heap);
    /* A recording's clock may stand still, or start again: no time has passed then. */
    uint64_t passed = now_ns > sharing->ended_ns ? now_ns - sharing->ended_ns : 0;
    uint64_t cost = sharing->cost_ns + sharing->waited_ns, part = passed / PART;
    *sharing = (pleat__sharing){.cost_ns = cost > part ? cost - part : 0, .ended_ns = now_ns};
    if (sharing->cost_ns > APART_NS && !heap->has_schedule)
        heap->keeps_apart = true;
}
