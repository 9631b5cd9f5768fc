/*
 * pleat_order.c: the policy `pleat` wants memory back that was freed and waits for other streams:
 * the stream that it was allocated on is made to wait for them, and the free is done
 * (pending_free.h).
 */
#include <runtime/policy/pleat_internal.h>

typedef pleat__pleat policy;

/* The frees that a request wants back: those of a place, or about so many granules of a stream.
 * Memory goes from stream to stream by the chunk, so one beside the place that waits is in the way
 * too. */
typedef struct wishes {
    const policy *self;
    const pleat__chunk_set *chunks; /* the place's; NULL: any */
    uint16_t stream;
    uint32_t granules;
} wishes;

/* The stream that is asked for most does the job's own work: made to wait for a copy of what it
 * just made it would lose what the copy was to overlap with. The others fetch ahead for it. */
static bool may_wait(const policy *self, uint16_t stream)
{
    for (uint32_t s = 0; s < self->heap.stream_count; s++)
        if (self->asked[s] > self->asked[stream])
            return true;
    return false;
}

/* Streams that share an index are not told apart: what they free is waited for. */
static bool is_wanted(void *opaque, pleat_va address, pleat_stream *owner)
{
    wishes *wish = opaque;
    const policy *self = wish->self;
    if (wish->chunks == NULL && wish->granules == 0)
        return false;
    const pleat__place *entry = pleat__placed_find(&self->placed, address);
    if (entry == NULL || entry->stream == PLEAT__BEYOND || !may_wait(self, entry->stream))
        return false;
    *owner = self->heap.streams[entry->stream];
    if (wish->chunks != NULL)
        return pleat__chunk_set_meets(wish->chunks, entry);
    if (entry->stream != wish->stream)
        return false;
    wish->granules -= entry->granules < wish->granules ? entry->granules : wish->granules;
    return true;
}

bool pleat__pleat_order(void *opaque, uint16_t stream, uint32_t granules)
{
    policy *self = opaque;
    wishes wish = {.self = self, .stream = stream, .granules = granules};
    return self->order_frees(self->runtime, is_wanted, &wish);
}

bool pleat__pleat_order_place(policy *self, const pleat__place *place)
{
    wishes wish = {.self = self, .chunks = &self->wanted};
    if (pleat__chunk_set_add(&self->wanted, place) != PLEAT_OK)
        return false;
    bool any = self->order_frees(self->runtime, is_wanted, &wish);
    pleat__chunk_set_remove(&self->wanted, place);
    return any;
}
