/*
 * heap_streams.c: the streams that a heap serves, and the order between them (see heap.h).
 */
#include <runtime/heap_internal.h>

/* Later work of `to` comes behind all that `from` has been given so far. */
static pleat_result order(pleat__heap *heap, pleat_stream from, pleat_stream to)
{
    const pleat_vmm_ops *ops = heap->vmm.ops;
    pleat_event event, before = pleat__gate_before(heap->pool->gate, from);
    *heap->streams_ordered += 1;
    if (before != 0)
        return ops->stream_wait(heap->vmm.self, to, before);
    PLEAT_TRY(ops->event_create(heap->vmm.self, heap->device, &event));
    pleat_result result = ops->event_record(heap->vmm.self, event, from);
    if (result == PLEAT_OK)
        result = ops->stream_wait(heap->vmm.self, to, event);
    pleat_result destroyed = ops->event_destroy(heap->vmm.self, event);
    return result != PLEAT_OK ? result : destroyed;
}

/* The same for all that share the last index. */
static pleat_result order_beyond(pleat__heap *heap, pleat_stream to)
{
    for (uint32_t i = 0; i < heap->beyond_count; i++) {
        if (heap->beyond[i] == to)
            continue;
        pleat__account_wait(&heap->account);
        PLEAT_TRY(order(heap, heap->beyond[i], to));
    }
    return PLEAT_OK;
}

/* Whatever one of them may be given was another's, so each waits for the others every time. */
static pleat_result stream_beyond(pleat__heap *heap, pleat_stream stream, uint16_t *index)
{
    uint32_t i = 0;
    while (i < heap->beyond_count && heap->beyond[i] != stream)
        i++;
    if (i == heap->beyond_count) {
        PLEAT_TRY(pleat__arena_grow(heap->arena, &heap->beyond, &heap->beyond_capacity, i,
                                    sizeof *heap->beyond));
        heap->beyond[heap->beyond_count++] = stream;
    }
    PLEAT_TRY(order_beyond(heap, stream));
    heap->streams[PLEAT__BEYOND] = stream;
    heap->stream_count = PLEAT__STREAMS;
    *index = PLEAT__BEYOND;
    return PLEAT_OK;
}

/* With one stream nobody asks whose a chunk is, and kept ones are used as they are: they are the
 * first stream's when there is a second. */
static void end_alone(pleat__heap *heap)
{
    for (uint32_t c = 0; heap->keeping && c < heap->zone_capacity && c < heap->pool->count; c++)
        if (heap->zone_of[c] == PLEAT__KEPT && heap->pool->occupancy.used[c] != 0)
            heap->zone_of[c] = 0;
    pleat__heap_forget(heap);
}

pleat_result pleat__heap_stream(pleat__heap *heap, pleat_stream stream, uint16_t *index)
{
    uint32_t count = heap->stream_count < PLEAT__BEYOND ? heap->stream_count : PLEAT__BEYOND;
    for (uint32_t i = 0; i < count; i++)
        if (heap->streams[i] == stream) {
            *index = (uint16_t)i;
            return PLEAT_OK;
        }
    if (count == PLEAT__BEYOND)
        return stream_beyond(heap, stream, index);
    if (count == 1)
        end_alone(heap);
    heap->streams[heap->stream_count] = stream;
    *index = (uint16_t)heap->stream_count++;
    return PLEAT_OK;
}

pleat_result pleat__heap_mark(pleat__heap *heap, uint16_t stream, pleat_event event)
{
    pleat_stream last = heap->streams[stream];
    /* One that captures cannot be made to wait for the others either. */
    if (stream == PLEAT__BEYOND && pleat__gate_before(heap->pool->gate, last) != 0)
        return PLEAT_E_NOT_READY;
    if (stream == PLEAT__BEYOND)
        PLEAT_TRY(order_beyond(heap, last));
    return pleat__gate_record(heap->pool->gate, event, last);
}

static pleat_result streams_order(pleat__heap *heap, uint16_t from, uint16_t to)
{
    return from == PLEAT__BEYOND ? order_beyond(heap, heap->streams[to])
                                 : order(heap, heap->streams[from], heap->streams[to]);
}

pleat_result pleat__zones_order(pleat__heap *heap, uint8_t from, uint8_t to)
{
    if (from != PLEAT__KEPT)
        return streams_order(heap, from / 2, to / 2);
    for (uint16_t stream = 0; stream < heap->stream_count; stream++)
        if (stream != to / 2)
            PLEAT_TRY(streams_order(heap, stream, to / 2));
    return PLEAT_OK;
}
