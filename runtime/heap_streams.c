/*
 * heap_streams.c: the streams that a heap serves, and the order between them (see heap.h).
 */
#include <runtime/heap_internal.h>

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

/* ---- those that share ---- */

/* Whether a stream has memory of its own. */
static bool is_own(const pleat__heap *heap, pleat_stream stream)
{
    for (uint32_t i = 0; i < heap->stream_count && i < PLEAT__BEYOND; i++)
        if (heap->streams[i] == stream)
            return true;
    return false;
}

/* `to` comes behind all that was freed by those who share, and is whom to wait for from now on. */
static pleat_result await_sharers(pleat__heap *heap, pleat_stream to)
{
    pleat__beyond *beyond = &heap->beyond;
    pleat_stream head = beyond->head;
    bool moves = beyond->has_head && head != to;
    PLEAT_TRY(pleat__gate_note_stream(heap->pool->gate, to));
    if (moves) {
        PLEAT_TRY(order(heap, head, to));
        pleat__account_wait(&heap->account);
    }
    for (const pleat__sharer *sharer = beyond->freed; sharer != NULL; sharer = sharer->next) {
        if (sharer->stream == to)
            continue;
        PLEAT_TRY(order(heap, sharer->stream, to));
        pleat__account_wait(&heap->account);
    }
    pleat__beyond_advance(beyond, to);
    /* Whoever waits for all streams that allocate waits for the new head. */
    if (moves && !is_own(heap, head))
        pleat__gate_forget_stream(heap->pool->gate, head);
    return PLEAT_OK;
}

/* Who can be waited for in the place of all that share: the head, or another one where that
 * captures. false: there is none, and nothing was freed by others than the head. */
static bool find_head(const pleat__heap *heap, pleat_stream *head)
{
    const pleat__gate *gate = heap->pool->gate;
    const pleat__beyond *beyond = &heap->beyond;
    const pleat__sharer *sharer = beyond->freed;
    *head = beyond->head;
    if (beyond->has_head && pleat__gate_before(gate, beyond->head) == 0)
        return true;
    while (sharer != NULL && pleat__gate_before(gate, sharer->stream) != 0)
        sharer = sharer->next;
    if (sharer != NULL)
        *head = sharer->stream;
    return sharer != NULL;
}

/* The gate's: before all streams are marked that it knows. */
static pleat_result gather(void *context)
{
    pleat__heap *heap = context;
    pleat_stream head;
    if (heap->pool->gate->ending)
        pleat__beyond_touch_all(&heap->beyond);
    return find_head(heap, &head) ? await_sharers(heap, head) : PLEAT_OK;
}

pleat_result pleat__heap_share(pleat__heap *heap, pleat_stream stream)
{
    heap->pool->gate->gather = gather;
    heap->pool->gate->gather_context = heap;
    return pleat__beyond_join(&heap->beyond, stream);
}

pleat_result pleat__heap_shared(pleat__heap *heap, pleat_stream stream, pleat_va address)
{
    pleat_result result = await_sharers(heap, stream);
    if (result != PLEAT_OK)
        pleat__heap_unshare(heap, stream);
    else
        pleat__beyond_placed(&heap->beyond, stream, address);
    return result;
}

void pleat__heap_unshare(pleat__heap *heap, pleat_stream stream)
{
    const pleat__beyond *beyond = &heap->beyond;
    pleat__beyond_leave(&heap->beyond, stream);
    if (!beyond->has_head || beyond->head != stream)
        pleat__gate_forget_stream(heap->pool->gate, stream);
}

/* ---- indices ---- */

/* With one stream nobody asks whose a chunk is, and kept ones are used as they are: they are the
 * first stream's when there is a second. */
static void end_alone(pleat__heap *heap)
{
    for (uint32_t c = 0; heap->keeping && c < heap->zone_capacity && c < heap->pool->count; c++)
        if (heap->zone_of[c] == PLEAT__KEPT && heap->pool->occupancy.used[c] != 0)
            heap->zone_of[c] = 0;
    pleat__heap_forget(heap);
}

uint16_t pleat__heap_stream(pleat__heap *heap, pleat_stream stream)
{
    uint32_t count = heap->stream_count < PLEAT__BEYOND ? heap->stream_count : PLEAT__BEYOND;
    for (uint32_t i = 0; i < count; i++)
        if (heap->streams[i] == stream)
            return (uint16_t)i;
    if (count == PLEAT__BEYOND) {
        heap->streams[PLEAT__BEYOND] = stream;
        heap->stream_count = PLEAT__STREAMS;
        return PLEAT__BEYOND;
    }
    if (count == 1)
        end_alone(heap);
    heap->streams[heap->stream_count] = stream;
    return (uint16_t)heap->stream_count++;
}

pleat_result pleat__heap_mark(pleat__heap *heap, uint16_t stream, pleat_event event)
{
    pleat_stream last = heap->streams[stream];
    if (stream == PLEAT__BEYOND) {
        if (!find_head(heap, &last))
            return PLEAT_E_NOT_READY;
        PLEAT_TRY(await_sharers(heap, last));
    }
    return pleat__gate_record(heap->pool->gate, event, last);
}

/* Of those that share any may come behind `from`: who is given the memory waits for that one. (Who
 * asked last may have been refused while the lock was left, and be forgotten.) */
static pleat_result order_sharers(pleat__heap *heap, pleat_stream from)
{
    pleat_stream to = pleat__beyond_joined(&heap->beyond, heap->streams[PLEAT__BEYOND]);
    PLEAT_TRY(order(heap, from, to));
    pleat__beyond_touch(&heap->beyond, to);
    return PLEAT_OK;
}

static pleat_result streams_order(pleat__heap *heap, uint16_t from, uint16_t to)
{
    if (from == PLEAT__BEYOND)
        return await_sharers(heap, heap->streams[to]);
    if (to == PLEAT__BEYOND)
        return order_sharers(heap, heap->streams[from]);
    return order(heap, heap->streams[from], heap->streams[to]);
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
