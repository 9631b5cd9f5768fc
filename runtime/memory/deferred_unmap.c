/*
 * deferred_unmap.c: see deferred_unmap.h.
 */
#include <runtime/memory/deferred_unmap.h>

#include <internal/check.h>
#include <internal/error.h>

struct pleat__deferred_unmap {
    pleat__job job;
    pleat__heap *heap;
    pleat__deferred_unmap *next; /* in the heap's list of those refused */
    bool gives;
    uint64_t fenced, unfenced;          /* a bit for each stream; it cannot be now */
    pleat_event events[PLEAT__STREAMS]; /* of those, their last work that may have used the pages */
    uint32_t capacity;
    uint32_t count;
    pleat__page_run runs[];
};

static void refuse(pleat__deferred_unmap *deferred)
{
    deferred->next = deferred->heap->refused;
    deferred->heap->refused = deferred;
}

/* The mapper's. What the driver refuses to unmap is the space's to keep apart. */
static pleat_result unmap_all(void *context, pleat_result ready)
{
    pleat__deferred_unmap *deferred = context;
    pleat__gate *gate = deferred->heap->pool->gate;
    pleat__space *space = deferred->heap->pool->space;
    if (ready != PLEAT_OK) {
        pleat__gate_lock(gate);
        refuse(deferred);
        pleat__gate_unlock(gate);
        return ready;
    }
    pleat_error why = {.result = PLEAT_OK};
    for (uint32_t i = 0; i < deferred->count; i++) {
        pleat__page_run run = deferred->runs[i];
        pleat_result result = pleat__space_unmap(space, run.page, run.pages);
        if (why.result == PLEAT_OK && result != PLEAT_OK)
            why = pleat__failure(result);
        if (deferred->gives)
            pleat__space_give(space, run.page, run.pages);
    }
    pleat__deferred_unmap_free(deferred);
    return pleat__fail_again(&why);
}

pleat__deferred_unmap *pleat__deferred_unmap_new(pleat__heap *heap, uint32_t runs, bool gives)
{
    pleat__deferred_unmap *deferred =
        pleat__arena_alloc(heap->arena, sizeof *deferred + runs * sizeof *deferred->runs);
    if (deferred == NULL)
        return NULL;
    *deferred = (pleat__deferred_unmap){.heap = heap, .gives = gives, .capacity = runs};
    deferred->job = (pleat__job){
        .call = unmap_all, .context = deferred, .forgotten = true, .events = deferred->events};
    return deferred;
}

void pleat__deferred_unmap_free(pleat__deferred_unmap *deferred)
{
    const pleat__heap *heap = deferred->heap;
    /* A refused destruction leaves an event of the driver's behind, nothing of ours. */
    for (uint64_t i = 0; i < deferred->job.event_count; i++)
        (void)heap->vmm.ops->event_destroy(heap->vmm.self, deferred->events[i]);
    pleat__arena_free(heap->arena, deferred);
}

static bool fence(pleat__deferred_unmap *deferred, uint16_t stream)
{
    pleat__heap *heap = deferred->heap;
    const pleat_vmm_ops *ops = heap->vmm.ops;
    pleat_event event;
    if (ops->event_create(heap->vmm.self, heap->device, &event) != PLEAT_OK)
        return false;
    if (pleat__gate_record(heap->pool->gate, event, heap->streams[stream]) != PLEAT_OK) {
        (void)ops->event_destroy(heap->vmm.self, event);
        return false;
    }
    deferred->events[deferred->job.event_count++] = event;
    return true;
}

bool pleat__deferred_unmap_fence(pleat__deferred_unmap *deferred, uint16_t stream)
{
    uint64_t bit = UINT64_C(1) << stream;
    /* What streams that share have freed the GPU is past. */
    if (stream == PLEAT__OVERFLOW)
        return true;
    if (((deferred->fenced | deferred->unfenced) & bit) == 0)
        *(fence(deferred, stream) ? &deferred->fenced : &deferred->unfenced) |= bit;
    return (deferred->fenced & bit) != 0;
}

void pleat__deferred_unmap_add(pleat__deferred_unmap *deferred, pleat__page_run run)
{
    PLEAT_ASSERT(deferred->count < deferred->capacity);
    deferred->runs[deferred->count++] = run;
}

void pleat__deferred_unmap_hand_over(pleat__deferred_unmap *deferred)
{
    pleat__mapper *mapper;
    if (pleat__gate_mapper(deferred->heap->pool->gate, &mapper) == PLEAT_OK)
        pleat__mapper_submit(mapper, &deferred->job);
    else
        refuse(deferred);
}

bool pleat__deferred_unmap_again(pleat__heap *heap)
{
    pleat__deferred_unmap *at = heap->refused;
    bool any = at != NULL;
    heap->refused = NULL;
    for (pleat__deferred_unmap *next; at != NULL; at = next) {
        next = at->next;
        pleat__deferred_unmap_hand_over(at);
    }
    return any;
}

void pleat__deferred_unmap_release(pleat__heap *heap)
{
    for (pleat__deferred_unmap *at = heap->refused, *next; at != NULL; at = next) {
        next = at->next;
        pleat__deferred_unmap_free(at);
    }
    heap->refused = NULL;
}
