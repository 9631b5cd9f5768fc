/*
 * stream_order.c: the streams that a heap serves, and the order between them (see heap.h).
 */
#include <runtime/memory/heap_internal.h>

/* A stream that asks so many times less often than the busiest helps it (D276). */
#define FEWER 8u

/* `to` waits for what `from` has been given so far, or had been before it captured. */
static pleat_result wait_for(pleat__heap *heap, pleat_stream from, pleat_stream to)
{
    const pleat_vmm_ops *ops = heap->vmm.ops;
    pleat_event event, before = pleat__gate_before(heap->pool->gate, from);
    if (before != 0)
        return ops->stream_wait(heap->vmm.self, to, before);
    PLEAT_TRY(ops->event_create(heap->vmm.self, heap->device, &event));
    pleat_result result = ops->event_record(heap->vmm.self, event, from);
    if (result == PLEAT_OK)
        result = ops->stream_wait(heap->vmm.self, to, event);
    pleat_result destroyed = ops->event_destroy(heap->vmm.self, event);
    return result != PLEAT_OK ? result : destroyed;
}

/* Later work of `to` comes behind all that `from` has been given so far. */
static pleat_result order(pleat__heap *heap, pleat_stream from, pleat_stream to)
{
    PLEAT_TRY(wait_for(heap, from, to));
    *heap->streams_ordered += 1;
    return PLEAT_OK;
}

/* `to` comes behind a point. */
static pleat_result await(pleat__heap *heap, pleat_event point, pleat_stream to)
{
    PLEAT_TRY(heap->vmm.ops->stream_wait(heap->vmm.self, to, point));
    *heap->streams_ordered += 1;
    return PLEAT_OK;
}

/* ---- indices ---- */

uint16_t pleat__heap_stream(pleat__heap *heap, pleat_stream stream)
{
    uint32_t count = heap->stream_count < PLEAT__OVERFLOW ? heap->stream_count : PLEAT__OVERFLOW;
    for (uint32_t i = 0; i < count; i++)
        if (heap->streams[i] == stream)
            return (uint16_t)i;
    if (count == PLEAT__OVERFLOW) {
        heap->stream_count = PLEAT__STREAMS;
        return PLEAT__OVERFLOW;
    }
    /* With one stream no note says whose a chunk is. */
    if (count == 1)
        pleat__heap_forget(heap);
    heap->streams[heap->stream_count] = stream;
    return (uint16_t)heap->stream_count++;
}

/* ---- who helps whom ---- */

bool pleat__heap_is_busiest(const pleat__heap *heap, uint16_t stream)
{
    for (uint32_t s = 0; s < heap->stream_count; s++)
        if (heap->requests[s] > heap->requests[stream])
            return false;
    return true;
}

bool pleat__heap_helps(const pleat__heap *heap, uint16_t stream, uint16_t other)
{
    bool other_leads = heap->requests[other] > heap->requests[stream];
    uint16_t leads = other_leads ? other : stream, helps = other_leads ? stream : other;
    return pleat__heap_is_busiest(heap, leads) &&
           heap->requests[leads] >= FEWER * heap->requests[helps];
}

/* ---- points ---- */

static void forget_point(pleat__heap *heap, uint16_t stream)
{
    heap->has_point &= ~(UINT64_C(1) << stream);
}

/* Behind all that the stream has been given so far. */
static bool record_point(pleat__heap *heap, uint16_t stream)
{
    const pleat_vmm_ops *ops = heap->vmm.ops;
    pleat_event *point = &heap->points[stream];
    if (pleat__gate_before(heap->pool->gate, heap->streams[stream]) != 0)
        return false;
    if (*point == 0 && ops->event_create(heap->vmm.self, heap->device, point) != PLEAT_OK) {
        *point = 0;
        return false;
    }
    return ops->event_record(heap->vmm.self, *point, heap->streams[stream]) == PLEAT_OK;
}

/* A point costs a microsecond, so only a large free has one. The busiest stream has none: who waits
 * for all of its work so far is a stream that fetches ahead for it, and its next work is behind
 * that anyway. */
void pleat__zone_freed(pleat__heap *heap, uint16_t stream, uint32_t granules)
{
    const uint32_t worth = PLEAT__WORTH_A_WAIT * heap->pool->occupancy.full;
    forget_point(heap, stream);
    if (granules >= worth && stream < PLEAT__OVERFLOW && !pleat__heap_is_busiest(heap, stream) &&
        record_point(heap, stream))
        heap->has_point |= UINT64_C(1) << stream;
}

void pleat__zones_release_points(pleat__heap *heap)
{
    for (uint32_t s = 0; s < PLEAT__STREAMS; s++)
        if (heap->points[s] != 0)
            (void)heap->vmm.ops->event_destroy(heap->vmm.self, heap->points[s]);
}

/* The point instead of all the stream's work so far: that may be what `to` is to overlap with, as
 * where weights are gathered ahead. */
static pleat_result order_own(pleat__heap *heap, uint16_t from, uint16_t to)
{
    bool has_point = (heap->has_point >> from & 1) != 0;
    /* What it is given was used by others, of which its own point says nothing. */
    forget_point(heap, to);
    return has_point ? await(heap, heap->points[from], heap->streams[to])
                     : order(heap, heap->streams[from], heap->streams[to]);
}

pleat_result pleat__streams_order(pleat__heap *heap, uint16_t from, uint16_t to)
{
    if (to == PLEAT__OVERFLOW)
        return PLEAT_E_STATE;
    return from == PLEAT__OVERFLOW ? PLEAT_OK : order_own(heap, from, to);
}
