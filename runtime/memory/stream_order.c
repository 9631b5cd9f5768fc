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

/* ---- those that share ---- */

/* Whether a stream has memory of its own. */
static bool is_own(const pleat__heap *heap, pleat_stream stream)
{
    for (uint32_t i = 0; i < heap->stream_count && i < PLEAT__OVERFLOW; i++)
        if (heap->streams[i] == stream)
            return true;
    return false;
}

/* `to` comes behind a point. */
static pleat_result await(pleat__heap *heap, pleat_event point, pleat_stream to)
{
    PLEAT_TRY(heap->vmm.ops->stream_wait(heap->vmm.self, to, point));
    *heap->streams_ordered += 1;
    return PLEAT_OK;
}

/* Whether who waits for all that was freed waits for the head's own later point. */
static bool head_freed(const pleat__overflow *overflow)
{
    const pleat__sharer *sharer = overflow->freed;
    while (sharer != NULL && sharer->stream != overflow->head)
        sharer = sharer->next;
    return sharer != NULL;
}

/* Whether all that was freed is the stream's own, or behind it. */
static bool is_behind(const pleat__overflow *overflow, pleat_stream stream)
{
    const pleat__sharer *first = overflow->freed;
    return overflow->has_head && overflow->head == stream &&
           (first == NULL || (first->stream == stream && first->next == NULL));
}

/* `to` comes behind all that was freed by those who share, and is whom to wait for from now on. */
static pleat_result await_sharers(pleat__heap *heap, pleat_stream to)
{
    pleat__overflow *overflow = &heap->overflow;
    pleat_stream head = overflow->head;
    bool moves = overflow->has_head && head != to;
    /* Nobody shares yet. */
    if (overflow->over == 0)
        return PLEAT_OK;
    PLEAT_TRY(pleat__gate_note_stream(heap->pool->gate, to));
    if (is_behind(overflow, to))
        return PLEAT_OK;
    if (moves && !head_freed(overflow))
        PLEAT_TRY(await(heap, overflow->over, to));
    for (pleat__sharer *sharer = overflow->freed; sharer != NULL; sharer = sharer->next) {
        pleat_event point;
        if (sharer->stream == to)
            continue;
        PLEAT_TRY(pleat__overflow_point(overflow, sharer, &point));
        PLEAT_TRY(await(heap, point, to));
    }
    PLEAT_TRY(pleat__overflow_advance(overflow, to));
    /* Whoever waits for all streams that allocate waits for the new head. */
    if (moves && !is_own(heap, head))
        pleat__gate_forget_stream(heap->pool->gate, head);
    return PLEAT_OK;
}

/* Makes one the head that can be waited for in the place of all that share: who is, or another one
 * where that captures. PLEAT_E_STATE: all of them do, and not all were announced.
 * PLEAT_E_NOT_READY: all were, and are waited for anyway, or there is nobody. */
static pleat_result gather_sharers(pleat__heap *heap)
{
    pleat__gate *gate = heap->pool->gate;
    const pleat__overflow *overflow = &heap->overflow;
    pleat_result result = PLEAT_E_NOT_READY;
    if (overflow->has_head && pleat__gate_before(gate, overflow->head) == 0)
        result = await_sharers(heap, overflow->head);
    const pleat__sharer *sharer = overflow->freed;
    while (sharer != NULL && (result == PLEAT_E_STATE || result == PLEAT_E_NOT_READY)) {
        /* It may be forgotten when it has waited. */
        const pleat__sharer *next = sharer->next;
        pleat_stream stream = sharer->stream;
        if (pleat__gate_before(gate, stream) == 0)
            result = await_sharers(heap, stream);
        /* It is not the head: nobody would tell the gate when it goes. */
        if (result == PLEAT_E_STATE && !(overflow->has_head && overflow->head == stream))
            pleat__gate_forget_stream(gate, stream);
        sharer = next;
    }
    return result;
}

/* The gate's: before all streams are fenced that it knows. */
static pleat_result gather(void *context)
{
    pleat__heap *heap = context;
    if (heap->pool->gate->ending)
        pleat__overflow_touch_all(&heap->overflow);
    pleat_result result = gather_sharers(heap);
    heap->overflow.apart = result == PLEAT_E_STATE;
    return result == PLEAT_E_STATE || result == PLEAT_E_NOT_READY ? PLEAT_OK : result;
}

pleat_result pleat__heap_overflow_begin(pleat__heap *heap, pleat_stream stream)
{
    heap->pool->gate->gather = gather;
    heap->pool->gate->gather_context = heap;
    return pleat__overflow_join(&heap->overflow, stream);
}

pleat_result pleat__heap_overflow_served(pleat__heap *heap, pleat_stream stream, pleat_va address)
{
    pleat_result result = await_sharers(heap, stream);
    if (result != PLEAT_OK)
        pleat__heap_overflow_refused(heap, stream);
    else
        pleat__overflow_placed(&heap->overflow, stream, address);
    return result;
}

void pleat__heap_overflow_refused(pleat__heap *heap, pleat_stream stream)
{
    const pleat__overflow *overflow = &heap->overflow;
    pleat__overflow_leave(&heap->overflow, stream);
    if (!overflow->has_head || overflow->head != stream)
        pleat__gate_forget_stream(heap->pool->gate, stream);
}

/* ---- indices ---- */

uint16_t pleat__heap_stream(pleat__heap *heap, pleat_stream stream)
{
    uint32_t count = heap->stream_count < PLEAT__OVERFLOW ? heap->stream_count : PLEAT__OVERFLOW;
    for (uint32_t i = 0; i < count; i++)
        if (heap->streams[i] == stream)
            return (uint16_t)i;
    if (count == PLEAT__OVERFLOW) {
        heap->streams[PLEAT__OVERFLOW] = stream;
        heap->stream_count = PLEAT__STREAMS;
        return PLEAT__OVERFLOW;
    }
    /* With one stream no note says whose a chunk is. */
    if (count == 1)
        pleat__heap_forget(heap);
    heap->streams[heap->stream_count] = stream;
    return (uint16_t)heap->stream_count++;
}

pleat_result pleat__heap_fence(pleat__heap *heap, uint16_t stream, pleat_event event)
{
    pleat_stream last = heap->streams[stream];
    if (stream == PLEAT__OVERFLOW) {
        PLEAT_TRY(gather_sharers(heap));
        last = heap->overflow.head;
    }
    return pleat__gate_record(heap->pool->gate, event, last);
}

/* Of those that share any may come behind `from`: who is given the memory waits for that one. (Who
 * asked last may have been refused while the lock was left, and be forgotten.) */
static pleat_result order_sharers(pleat__heap *heap, pleat_stream from)
{
    pleat_stream to = pleat__overflow_joined(&heap->overflow, heap->streams[PLEAT__OVERFLOW]);
    PLEAT_TRY(order(heap, from, to));
    return pleat__overflow_touch(&heap->overflow, to);
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
    if (from == PLEAT__OVERFLOW) {
        forget_point(heap, to);
        return await_sharers(heap, heap->streams[to]);
    }
    if (to == PLEAT__OVERFLOW)
        return order_sharers(heap, heap->streams[from]);
    return order_own(heap, from, to);
}
