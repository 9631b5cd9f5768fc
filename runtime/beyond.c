/*
 * beyond.c: see beyond.h.
 */
#include <runtime/beyond.h>

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
    pleat__sharer *sharer = pleat__live_find(&beyond->sharers, key_of(stream));
    PLEAT_ASSERT(sharer != NULL);
    return sharer;
}

void pleat__beyond_init(pleat__beyond *beyond, pleat__arena *arena)
{
    *beyond = (pleat__beyond){.arena = arena};
}

void pleat__beyond_release(pleat__beyond *beyond)
{
    for (uint64_t i = 0; beyond->sharers.entries != NULL && i <= beyond->sharers.mask; i++)
        pleat__arena_free(beyond->arena, beyond->sharers.entries[i].value);
    pleat__live_destroy(&beyond->sharers);
    pleat__live_destroy(&beyond->owners);
    *beyond = (pleat__beyond){0};
}

/* Nothing of it is allocated, and nobody has to wait for it. */
static void forget(pleat__beyond *beyond, pleat__sharer *sharer)
{
    if (sharer->live != 0 || sharer->freed)
        return;
    (void)pleat__live_remove(&beyond->sharers, key_of(sharer->stream));
    pleat__arena_free(beyond->arena, sharer);
}

/* Those who come next wait for the head anyway. */
static void note_freed(pleat__beyond *beyond, pleat__sharer *sharer)
{
    if (sharer->freed || (beyond->has_head && beyond->head == sharer->stream))
        return;
    sharer->freed = true;
    sharer->next = beyond->freed;
    beyond->freed = sharer;
}

static pleat_result add(pleat__beyond *beyond, pleat_stream stream, pleat__sharer **out)
{
    if (key_of(stream) == 0)
        return pleat__fail(PLEAT_E_INVALID, "no stream has the number %#llx",
                           (unsigned long long)stream);
    if (beyond->sharers.entries == NULL)
        PLEAT_TRY(pleat__live_create(beyond->arena, &beyond->sharers));
    *out = pleat__live_find(&beyond->sharers, key_of(stream));
    if (*out != NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat__live_reserve(&beyond->sharers));
    *out = pleat__arena_calloc(beyond->arena, 1, sizeof **out);
    if (*out == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a stream");
    (*out)->stream = stream;
    pleat__live_insert(&beyond->sharers, key_of(stream), *out);
    return PLEAT_OK;
}

pleat_result pleat__beyond_join(pleat__beyond *beyond, pleat_stream stream)
{
    pleat__sharer *sharer;
    if (beyond->owners.entries == NULL)
        PLEAT_TRY(pleat__live_create(beyond->arena, &beyond->owners));
    PLEAT_TRY(add(beyond, stream, &sharer));
    pleat_result result = pleat__live_promise(&beyond->owners);
    if (result == PLEAT_OK)
        sharer->live++;
    else
        forget(beyond, sharer);
    return result;
}

void pleat__beyond_placed(pleat__beyond *beyond, pleat_stream stream, pleat_va address)
{
    pleat__live_give_up(&beyond->owners);
    pleat__live_insert(&beyond->owners, address, find(beyond, stream));
}

void pleat__beyond_leave(pleat__beyond *beyond, pleat_stream stream)
{
    pleat__sharer *sharer = find(beyond, stream);
    pleat__live_give_up(&beyond->owners);
    sharer->live--;
    forget(beyond, sharer);
}

void pleat__beyond_give(pleat__beyond *beyond, pleat_va address)
{
    pleat__sharer *sharer = pleat__live_remove(&beyond->owners, address);
    PLEAT_ASSERT(sharer != NULL);
    sharer->live--;
    note_freed(beyond, sharer);
    forget(beyond, sharer);
}

pleat_stream pleat__beyond_owner(const pleat__beyond *beyond, pleat_va address)
{
    const pleat__sharer *sharer = pleat__live_find(&beyond->owners, address);
    PLEAT_ASSERT(sharer != NULL);
    return sharer->stream;
}

pleat_stream pleat__beyond_joined(const pleat__beyond *beyond, pleat_stream stream)
{
    const pleat__live *sharers = &beyond->sharers;
    if (pleat__live_find(sharers, key_of(stream)) != NULL)
        return stream;
    uint64_t i = 0;
    while (i < sharers->mask && sharers->entries[i].value == NULL)
        i++;
    PLEAT_ASSERT(sharers->entries[i].value != NULL);
    return ((const pleat__sharer *)sharers->entries[i].value)->stream;
}

void pleat__beyond_touch(pleat__beyond *beyond, pleat_stream stream)
{
    note_freed(beyond, find(beyond, stream));
}

void pleat__beyond_touch_all(pleat__beyond *beyond)
{
    const pleat__live *sharers = &beyond->sharers;
    for (uint64_t i = 0; sharers->entries != NULL && i <= sharers->mask; i++)
        if (sharers->entries[i].value != NULL)
            note_freed(beyond, sharers->entries[i].value);
}

void pleat__beyond_advance(pleat__beyond *beyond, pleat_stream stream)
{
    beyond->head = stream;
    beyond->has_head = true;
    while (beyond->freed != NULL) {
        pleat__sharer *sharer = beyond->freed;
        beyond->freed = sharer->next;
        sharer->freed = false;
        forget(beyond, sharer);
    }
}
