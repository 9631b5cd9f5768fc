/*
 * deferred_unmap.c: see deferred_unmap.h.
 */
#include <runtime/memory/deferred_unmap.h>

#include <internal/check.h>

struct pleat__dropped {
    pleat__job job;
    pleat__heap *heap;
    pleat__dropped *next; /* in the heap's list of those refused */
    bool gives;
    uint64_t marked, unmarked;          /* a bit for each stream; it cannot be now */
    pleat_event events[PLEAT__STREAMS]; /* of those, their last work that may have used the pages */
    uint32_t capacity;
    uint32_t count;
    pleat__page_run runs[];
};

static void refuse(pleat__dropped *dropped)
{
    dropped->next = dropped->heap->refused;
    dropped->heap->refused = dropped;
}

/* The mapper's. What the driver refuses to unmap is the space's to keep apart. */
static pleat_result unmap_all(void *context, pleat_result ready)
{
    pleat__dropped *dropped = context;
    pleat__gate *gate = dropped->heap->pool->gate;
    pleat__space *space = dropped->heap->pool->space;
    if (ready != PLEAT_OK) {
        pleat__gate_lock(gate);
        refuse(dropped);
        pleat__gate_unlock(gate);
        return ready;
    }
    pleat_result result = PLEAT_OK;
    for (uint32_t i = 0; i < dropped->count; i++) {
        pleat__page_run run = dropped->runs[i];
        pleat_result unmapped = pleat__space_unmap(space, run.page, run.pages);
        result = result == PLEAT_OK ? unmapped : result;
        if (dropped->gives)
            pleat__space_give(space, run.page, run.pages);
    }
    pleat__dropped_free(dropped);
    return result;
}

pleat__dropped *pleat__dropped_new(pleat__heap *heap, uint32_t runs, bool gives)
{
    pleat__dropped *dropped =
        pleat__arena_alloc(heap->arena, sizeof *dropped + runs * sizeof *dropped->runs);
    if (dropped == NULL)
        return NULL;
    *dropped = (pleat__dropped){.heap = heap, .gives = gives, .capacity = runs};
    dropped->job = (pleat__job){.kind = PLEAT__JOB_CALL,
                                .call = unmap_all,
                                .context = dropped,
                                .forgotten = true,
                                .events = dropped->events};
    return dropped;
}

void pleat__dropped_free(pleat__dropped *dropped)
{
    const pleat__heap *heap = dropped->heap;
    /* A refused destruction leaves an event of the driver's behind, nothing of ours. */
    for (uint64_t i = 0; i < dropped->job.event_count; i++)
        (void)heap->vmm.ops->event_destroy(heap->vmm.self, dropped->events[i]);
    pleat__arena_free(heap->arena, dropped);
}

static bool mark(pleat__dropped *dropped, uint16_t stream)
{
    pleat__heap *heap = dropped->heap;
    const pleat_vmm_ops *ops = heap->vmm.ops;
    pleat_event event;
    if (ops->event_create(heap->vmm.self, heap->device, &event) != PLEAT_OK)
        return false;
    if (pleat__heap_mark(heap, stream, event) != PLEAT_OK) {
        (void)ops->event_destroy(heap->vmm.self, event);
        return false;
    }
    dropped->events[dropped->job.event_count++] = event;
    return true;
}

bool pleat__dropped_mark(pleat__dropped *dropped, uint16_t stream)
{
    uint64_t bit = UINT64_C(1) << stream;
    if (((dropped->marked | dropped->unmarked) & bit) == 0)
        *(mark(dropped, stream) ? &dropped->marked : &dropped->unmarked) |= bit;
    return (dropped->marked & bit) != 0;
}

void pleat__dropped_add(pleat__dropped *dropped, pleat__page_run run)
{
    PLEAT_ASSERT(dropped->count < dropped->capacity);
    dropped->runs[dropped->count++] = run;
}

void pleat__dropped_hand_over(pleat__dropped *dropped)
{
    pleat__mapper *mapper;
    if (pleat__gate_mapper(dropped->heap->pool->gate, &mapper) != PLEAT_OK ||
        pleat__mapper_submit(mapper, &dropped->job) != PLEAT_OK)
        refuse(dropped);
}

bool pleat__dropped_again(pleat__heap *heap)
{
    pleat__dropped *at = heap->refused;
    bool any = at != NULL;
    heap->refused = NULL;
    for (pleat__dropped *next; at != NULL; at = next) {
        next = at->next;
        pleat__dropped_hand_over(at);
    }
    return any;
}

void pleat__dropped_release(pleat__heap *heap)
{
    for (pleat__dropped *at = heap->refused, *next; at != NULL; at = next) {
        next = at->next;
        pleat__dropped_free(at);
    }
    heap->refused = NULL;
}
