/*
 * overflow_streams.c: see overflow_streams.h.
 */
#include <runtime/memory/overflow_streams.h>

#include <internal/check.h>
#include <internal/error.h>

/* No two streams' are the same, and PLEAT_STREAM_UNKNOWN's is none. (The table looks at all but the
 * lowest bits of an address; numbers of streams differ in those.) */
static pleat_va key_of(pleat_stream stream)
{
    return (stream + 1) * 0x9e3779b97f4a7c15u;
}

static pleat__sharer *find(const pleat__beyond *beyond, pleat_stream stream)
{
    pleat__sharer *sharer = pleat__address_map_find(&beyond->sharers, key_of(stream));
    PLEAT_ASSERT(sharer != NULL);
    return sharer;
}

void pleat__beyond_init(pleat__beyond *beyond, const pleat__gate *gate)
{
    *beyond = (pleat__beyond){.gate = gate};
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
    pleat__arena_free(gate->arena, sharer);
}

void pleat__beyond_release(pleat__beyond *beyond)
{
    for (uint64_t i = 0; beyond->sharers.entries != NULL && i <= beyond->sharers.mask; i++)
        if (beyond->sharers.entries[i].value != NULL)
            free_sharer(beyond->gate, beyond->sharers.entries[i].value);
    destroy_event(beyond->gate, beyond->over);
    pleat__address_map_destroy(&beyond->sharers);
    pleat__address_map_destroy(&beyond->owners);
    *beyond = (pleat__beyond){0};
}

/* Nothing of it is allocated, and nobody has to wait for it. */
static void forget(pleat__beyond *beyond, pleat__sharer *sharer)
{
    if (sharer->live != 0 || sharer->freed)
        return;
    (void)pleat__address_map_remove(&beyond->sharers, key_of(sharer->stream));
    free_sharer(beyond->gate, sharer);
}

static pleat_result mark_done(const pleat__gate *gate, pleat__sharer *sharer)
{
    PLEAT_TRY(gate->vmm.ops->event_record(gate->vmm.self, sharer->done, sharer->stream));
    sharer->marked = true;
    return PLEAT_OK;
}

static void add_freed(pleat__beyond *beyond, pleat__sharer *sharer)
{
    if (sharer->freed)
        return;
    sharer->freed = true;
    sharer->next = beyond->freed;
    beyond->freed = sharer;
}

/* Others have to wait for what it has done until now: one that was told to capture has done nothing
 * since. */
static pleat_result note_freed(pleat__beyond *beyond, pleat__sharer *sharer)
{
    if (pleat__gate_before(beyond->gate, sharer->stream) != 0)
        sharer->marked = false;
    else
        PLEAT_TRY(mark_done(beyond->gate, sharer));
    add_freed(beyond, sharer);
    return PLEAT_OK;
}

pleat_result pleat__beyond_point(const pleat__beyond *beyond, pleat__sharer *sharer,
                                 pleat_event *point)
{
    pleat_event before = pleat__gate_before(beyond->gate, sharer->stream);
    if (!sharer->marked && before == 0)
        PLEAT_TRY(mark_done(beyond->gate, sharer));
    *point = sharer->marked ? sharer->done : before;
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

static pleat_result add(pleat__beyond *beyond, pleat_stream stream, pleat__sharer **out)
{
    if (key_of(stream) == 0)
        return pleat__fail(PLEAT_E_INVALID, "no stream has the number %#llx",
                           (unsigned long long)stream);
    if (beyond->sharers.entries == NULL)
        PLEAT_TRY(pleat__address_map_create(beyond->gate->arena, &beyond->sharers));
    *out = pleat__address_map_find(&beyond->sharers, key_of(stream));
    if (*out != NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat__address_map_reserve(&beyond->sharers));
    PLEAT_TRY(new_sharer(beyond->gate, stream, out));
    pleat__address_map_insert(&beyond->sharers, key_of(stream), *out);
    return PLEAT_OK;
}

pleat_result pleat__beyond_join(pleat__beyond *beyond, pleat_stream stream)
{
    pleat__sharer *sharer;
    if (beyond->over == 0)
        PLEAT_TRY(make_event(beyond->gate, &beyond->over));
    if (beyond->owners.entries == NULL)
        PLEAT_TRY(pleat__address_map_create(beyond->gate->arena, &beyond->owners));
    PLEAT_TRY(add(beyond, stream, &sharer));
    pleat_result result = pleat__address_map_promise(&beyond->owners);
    if (result == PLEAT_OK)
        sharer->live++;
    else
        forget(beyond, sharer);
    return result;
}

void pleat__beyond_placed(pleat__beyond *beyond, pleat_stream stream, pleat_va address)
{
    pleat__address_map_give_up(&beyond->owners);
    pleat__address_map_insert(&beyond->owners, address, find(beyond, stream));
}

void pleat__beyond_leave(pleat__beyond *beyond, pleat_stream stream)
{
    pleat__sharer *sharer = find(beyond, stream);
    pleat__address_map_give_up(&beyond->owners);
    sharer->live--;
    forget(beyond, sharer);
}

bool pleat__beyond_give(pleat__beyond *beyond, pleat_va address)
{
    pleat__sharer *sharer = pleat__address_map_find(&beyond->owners, address);
    PLEAT_ASSERT(sharer != NULL);
    if (note_freed(beyond, sharer) != PLEAT_OK)
        return false;
    (void)pleat__address_map_remove(&beyond->owners, address);
    sharer->live--;
    return true;
}

pleat_stream pleat__beyond_owner(const pleat__beyond *beyond, pleat_va address)
{
    const pleat__sharer *sharer = pleat__address_map_find(&beyond->owners, address);
    PLEAT_ASSERT(sharer != NULL);
    return sharer->stream;
}

pleat_stream pleat__beyond_joined(const pleat__beyond *beyond, pleat_stream stream)
{
    const pleat__address_map *sharers = &beyond->sharers;
    if (pleat__address_map_find(sharers, key_of(stream)) != NULL)
        return stream;
    uint64_t i = 0;
    while (i < sharers->mask && sharers->entries[i].value == NULL)
        i++;
    PLEAT_ASSERT(sharers->entries[i].value != NULL);
    return ((const pleat__sharer *)sharers->entries[i].value)->stream;
}

pleat_result pleat__beyond_touch(pleat__beyond *beyond, pleat_stream stream)
{
    pleat__sharer *sharer = find(beyond, stream);
    PLEAT_TRY(mark_done(beyond->gate, sharer));
    add_freed(beyond, sharer);
    return PLEAT_OK;
}

void pleat__beyond_touch_all(pleat__beyond *beyond)
{
    const pleat__address_map *sharers = &beyond->sharers;
    for (uint64_t i = 0; sharers->entries != NULL && i <= sharers->mask; i++)
        if (sharers->entries[i].value != NULL)
            (void)!note_freed(beyond, sharers->entries[i].value);
}

pleat_result pleat__beyond_advance(pleat__beyond *beyond, pleat_stream stream)
{
    const pleat_vmm *vmm = &beyond->gate->vmm;
    PLEAT_TRY(vmm->ops->event_record(vmm->self, beyond->over, stream));
    beyond->head = stream;
    beyond->has_head = true;
    while (beyond->freed != NULL) {
        pleat__sharer *sharer = beyond->freed;
        beyond->freed = sharer->next;
        sharer->freed = false;
        forget(beyond, sharer);
    }
    return PLEAT_OK;
}
