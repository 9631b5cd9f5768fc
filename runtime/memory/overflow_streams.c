/*
 * overflow_streams.c: see overflow_streams.h.
 */
#include <runtime/memory/overflow_streams.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/hash.h>

/* No two streams' are the same, and PLEAT_STREAM_UNKNOWN's is none. (The table looks at all but the
 * lowest bits of an address; numbers of streams differ in those.) */
static pleat_va key_of(pleat_stream stream)
{
    return (stream + 1) * PLEAT__HASH_MULTIPLIER;
}

static pleat__sharer *find(const pleat__overflow *overflow, pleat_stream stream)
{
    pleat__sharer *sharer = pleat__address_map_find(&overflow->sharers, key_of(stream));
    PLEAT_ASSERT(sharer != NULL);
    return sharer;
}

void pleat__overflow_init(pleat__overflow *overflow, const pleat__gate *gate)
{
    *overflow = (pleat__overflow){.gate = gate};
}

static pleat_result make_event(const pleat__gate *gate, pleat_event *event)
{
    return gate->vmm.ops->event_create(gate->vmm.self, gate->device, event);
}

/* A refused destruction leaves an event of the driver's behind, nothing of ours. */
static void destroy_event(const pleat__gate *gate, pleat_event event)
{
    if (event != 0)
        (void)gate->vmm.ops->event_destroy(gate->vmm.self, event);
}

static void free_sharer(const pleat__gate *gate, pleat__sharer *sharer)
{
    destroy_event(gate, sharer->done);
    pleat__arena_free(gate->arena, sharer->unfenced);
    pleat__arena_free(gate->arena, sharer);
}

void pleat__overflow_release(pleat__overflow *overflow)
{
    for (uint64_t i = 0; overflow->sharers.entries != NULL && i <= overflow->sharers.mask; i++)
        if (overflow->sharers.entries[i].value != NULL)
            free_sharer(overflow->gate, overflow->sharers.entries[i].value);
    destroy_event(overflow->gate, overflow->over);
    pleat__address_map_destroy(&overflow->sharers);
    pleat__address_map_destroy(&overflow->owners);
    *overflow = (pleat__overflow){0};
}

/* Nothing is allocated on it, and no stream has to wait for it. */
static void forget(pleat__overflow *overflow, pleat__sharer *sharer)
{
    if (sharer->live != 0 || sharer->freed)
        return;
    (void)pleat__address_map_remove(&overflow->sharers, key_of(sharer->stream));
    free_sharer(overflow->gate, sharer);
}

static pleat_result fence_done(const pleat__gate *gate, pleat__sharer *sharer)
{
    PLEAT_TRY(gate->vmm.ops->event_record(gate->vmm.self, sharer->done, sharer->stream));
    sharer->fenced = true;
    return PLEAT_OK;
}

static void add_freed(pleat__overflow *overflow, pleat__sharer *sharer)
{
    if (sharer->freed)
        return;
    sharer->freed = true;
    sharer->next = overflow->freed;
    overflow->freed = sharer;
}

/* Others have to wait for what it has done until now: one that was told to capture has done nothing
 * since. */
static pleat_result note_freed(pleat__overflow *overflow, pleat__sharer *sharer)
{
    if (pleat__gate_before(overflow->gate, sharer->stream) != 0)
        sharer->fenced = false;
    else
        PLEAT_TRY(fence_done(overflow->gate, sharer));
    add_freed(overflow, sharer);
    return PLEAT_OK;
}

pleat_result pleat__overflow_point(const pleat__overflow *overflow, pleat__sharer *sharer,
                                   pleat_event *point)
{
    pleat_event before = pleat__gate_before(overflow->gate, sharer->stream);
    if (!sharer->fenced && before == 0)
        PLEAT_TRY(fence_done(overflow->gate, sharer));
    *point = sharer->fenced ? sharer->done : before;
    return PLEAT_OK;
}

static pleat_result new_sharer(const pleat__gate *gate, pleat_stream stream, pleat__sharer **out)
{
    pleat__sharer *sharer = pleat__arena_calloc(gate->arena, 1, sizeof *sharer);
    if (sharer == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a stream");
    sharer->stream = stream;
    pleat_result result = make_event(gate, &sharer->done);
    if (result == PLEAT_OK)
        *out = sharer;
    else
        pleat__arena_free(gate->arena, sharer);
    return result;
}

static pleat_result add(pleat__overflow *overflow, pleat_stream stream, pleat__sharer **out)
{
    if (key_of(stream) == 0)
        return pleat__fail(PLEAT_E_INVALID, "no stream has the number %#llx",
                           (unsigned long long)stream);
    if (overflow->sharers.entries == NULL)
        PLEAT_TRY(pleat__address_map_create(overflow->gate->arena, &overflow->sharers));
    *out = pleat__address_map_find(&overflow->sharers, key_of(stream));
    if (*out != NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat__address_map_reserve(&overflow->sharers));
    PLEAT_TRY(new_sharer(overflow->gate, stream, out));
    pleat__address_map_insert(&overflow->sharers, key_of(stream), *out);
    return PLEAT_OK;
}

pleat_result pleat__overflow_join(pleat__overflow *overflow, pleat_stream stream)
{
    pleat__sharer *sharer;
    if (overflow->over == 0)
        PLEAT_TRY(make_event(overflow->gate, &overflow->over));
    if (overflow->owners.entries == NULL)
        PLEAT_TRY(pleat__address_map_create(overflow->gate->arena, &overflow->owners));
    PLEAT_TRY(add(overflow, stream, &sharer));
    pleat_result result =
        pleat__arena_grow(overflow->gate->arena, &sharer->unfenced, &sharer->unfenced_capacity,
                          sharer->live, sizeof *sharer->unfenced);
    if (result == PLEAT_OK)
        result = pleat__address_map_promise(&overflow->owners);
    if (result == PLEAT_OK)
        sharer->live++;
    else
        forget(overflow, sharer);
    return result;
}

void pleat__overflow_placed(pleat__overflow *overflow, pleat_stream stream, pleat_va address)
{
    pleat__address_map_give_up(&overflow->owners);
    pleat__address_map_insert(&overflow->owners, address, find(overflow, stream));
}

void pleat__overflow_leave(pleat__overflow *overflow, pleat_stream stream)
{
    pleat__sharer *sharer = find(overflow, stream);
    pleat__address_map_give_up(&overflow->owners);
    sharer->live--;
    forget(overflow, sharer);
}

static void add_unfenced(pleat__overflow *overflow, pleat__sharer *sharer, pleat_va address)
{
    if (sharer->unfenced_count == 0) {
        sharer->next_unfenced = overflow->unfenced;
        overflow->unfenced = sharer;
    }
    sharer->unfenced[sharer->unfenced_count++] = address;
}

bool pleat__overflow_give(pleat__overflow *overflow, pleat_va address)
{
    pleat__sharer *sharer = pleat__address_map_remove(&overflow->owners, address);
    PLEAT_ASSERT(sharer != NULL);
    bool fenced = note_freed(overflow, sharer) == PLEAT_OK;
    if (fenced)
        sharer->live--;
    else
        add_unfenced(overflow, sharer, address);
    return fenced;
}

void pleat__overflow_give_unfenced(pleat__overflow *overflow,
                                   void (*give)(void *context, pleat_va address), void *context)
{
    for (pleat__sharer **at = &overflow->unfenced; *at != NULL;) {
        pleat__sharer *sharer = *at;
        if (note_freed(overflow, sharer) != PLEAT_OK) {
            at = &sharer->next_unfenced;
            continue;
        }
        *at = sharer->next_unfenced;
        sharer->live -= (uint32_t)sharer->unfenced_count;
        for (size_t i = 0; i < sharer->unfenced_count; i++)
            give(context, sharer->unfenced[i]);
        sharer->unfenced_count = 0;
    }
}

bool pleat__overflow_is_unfenced(const pleat__overflow *overflow, pleat_va address)
{
    return overflow->unfenced != NULL &&
           pleat__address_map_find(&overflow->owners, address) == NULL;
}

pleat_stream pleat__overflow_owner(const pleat__overflow *overflow, pleat_va address)
{
    const pleat__sharer *sharer = pleat__address_map_find(&overflow->owners, address);
    PLEAT_ASSERT(sharer != NULL);
    return sharer->stream;
}

pleat_stream pleat__overflow_joined(const pleat__overflow *overflow, pleat_stream stream)
{
    const pleat__address_map *sharers = &overflow->sharers;
    if (pleat__address_map_find(sharers, key_of(stream)) != NULL)
        return stream;
    uint64_t i = 0;
    while (i < sharers->mask && sharers->entries[i].value == NULL)
        i++;
    PLEAT_ASSERT(sharers->entries[i].value != NULL);
    return ((const pleat__sharer *)sharers->entries[i].value)->stream;
}

pleat_result pleat__overflow_touch(pleat__overflow *overflow, pleat_stream stream)
{
    pleat__sharer *sharer = find(overflow, stream);
    PLEAT_TRY(fence_done(overflow->gate, sharer));
    add_freed(overflow, sharer);
    return PLEAT_OK;
}

void pleat__overflow_touch_all(pleat__overflow *overflow)
{
    const pleat__address_map *sharers = &overflow->sharers;
    for (uint64_t i = 0; sharers->entries != NULL && i <= sharers->mask; i++)
        if (sharers->entries[i].value != NULL)
            (void)!note_freed(overflow, sharers->entries[i].value);
}

pleat_result pleat__overflow_advance(pleat__overflow *overflow, pleat_stream stream)
{
    const pleat_vmm *vmm = &overflow->gate->vmm;
    PLEAT_TRY(vmm->ops->event_record(vmm->self, overflow->over, stream));
    overflow->head = stream;
    overflow->has_head = true;
    while (overflow->freed != NULL) {
        pleat__sharer *sharer = overflow->freed;
        overflow->freed = sharer->next;
        sharer->freed = false;
        forget(overflow, sharer);
    }
    return PLEAT_OK;
}
