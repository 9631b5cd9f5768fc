/*
 * waiting_frees.c: see waiting_frees.h.
 */
#include <runtime/memory/heap_internal.h>
#include <runtime/memory/waiting_frees.h>

/* The frees that a request wants back: those of a place, or about so many granules of a stream.
 * Memory goes from stream to stream by the chunk, so one beside the place that waits is in the way
 * too. */
typedef struct wishes {
    const pleat__waiting_frees *waiting;
    const pleat__chunk_set *chunks; /* the place's; NULL: any */
    uint16_t stream;
    uint32_t granules; /* still wanted */
    uint32_t found;    /* of the free that was looked at last */
} wishes;

void pleat__waiting_init(pleat__waiting_frees *waiting, pleat__heap *heap,
                         const pleat__place_map *places, pleat__pending *pending)
{
    *waiting = (pleat__waiting_frees){.heap = heap, .places = places, .pending = pending};
    pleat__chunk_set_init(&waiting->wanted, heap->arena, heap->pool->occupancy.shift);
    heap->waiting = waiting;
}

void pleat__waiting_release(pleat__waiting_frees *waiting)
{
    if (waiting->heap == NULL)
        return;
    waiting->heap->waiting = NULL;
    pleat__chunk_set_release(&waiting->wanted);
    waiting->heap = NULL;
}

static void count_found(void *opaque)
{
    wishes *wish = opaque;
    wish->granules -= wish->found < wish->granules ? wish->found : wish->granules;
}

static bool is_wanted(void *opaque, pleat_va address, pleat_stream *owner)
{
    wishes *wish = opaque;
    const pleat__waiting_frees *waiting = wish->waiting;
    if (wish->chunks == NULL && wish->granules == 0)
        return false;
    const pleat__place *entry = pleat__place_map_find(waiting->places, address);
    if (entry == NULL || entry->stream == PLEAT__OVERFLOW ||
        pleat__heap_is_busiest(waiting->heap, entry->stream))
        return false;
    *owner = waiting->heap->streams[entry->stream];
    if (wish->chunks != NULL)
        return pleat__chunk_set_meets(wish->chunks, entry);
    wish->found = entry->granules;
    return entry->stream == wish->stream;
}

static bool order(const pleat__waiting_frees *waiting, wishes wish)
{
    pleat__pending *pending = waiting->pending;
    uint64_t ordered = pending->ordered;
    uint64_t freed = pleat__pending_order(pending, is_wanted, count_found, &wish);
    *waiting->heap->streams_ordered += pending->ordered - ordered;
    return freed > 0;
}

bool pleat__waiting_order(pleat__waiting_frees *waiting, uint16_t stream, uint32_t granules)
{
    return waiting != NULL && waiting->pending->waiting > 0 && stream != PLEAT__OVERFLOW &&
           !pleat__heap_is_busiest(waiting->heap, stream) &&
           order(waiting, (wishes){.waiting = waiting, .stream = stream, .granules = granules});
}

bool pleat__waiting_order_place(pleat__waiting_frees *waiting, const pleat__place *place)
{
    /* The only stream is the busiest, which is not made to wait. */
    if (waiting->pending->waiting == 0 || waiting->heap->stream_count == 1 ||
        pleat__chunk_set_add(&waiting->wanted, place) != PLEAT_OK)
        return false;
    bool any = order(waiting, (wishes){.waiting = waiting, .chunks = &waiting->wanted});
    pleat__chunk_set_remove(&waiting->wanted, place);
    return any;
}
