/*
 * instance_end.c: what becomes of an instance that is done with (see instance.h). Its views are
 * address space, and what keeps their chunks from being given back, until the mapper has unmapped
 * them. A plan file's instance is followed as a shape all the same (shapes.h): what it had in views
 * has no place any more.
 */
#include <runtime/instance_internal.h>

#include <internal/error.h>

typedef struct ended_views {
    pleat__job job;
    pleat__heap *heap;
    pleat__page_run *runs;
    uint32_t run_count;
    bool gives;                         /* the pages, to the space */
    pleat_event events[PLEAT__STREAMS]; /* the last work of each stream that may have used them */
} ended_views;

static void ended_free(ended_views *ended)
{
    for (uint64_t i = 0; i < ended->job.event_count; i++)
        (void)ended->heap->vmm.ops->event_destroy(ended->heap->vmm.self, ended->events[i]);
    pleat__arena_free(ended->heap->arena, ended->runs);
    pleat__arena_free(ended->heap->arena, ended);
}

/* The mapper's. Where nobody says that the GPU is done they stay mapped: address space, no memory.
 */
static pleat_result unmap_ended(void *context, pleat_result ready)
{
    ended_views *ended = context;
    pleat__space *space = ended->heap->pool->space;
    pleat_result result = ready;
    for (uint32_t i = 0; i < ended->run_count && ready == PLEAT_OK; i++) {
        pleat_result unmapped =
            pleat__space_unmap(space, ended->runs[i].page, ended->runs[i].pages);
        result = result == PLEAT_OK ? unmapped : result;
        if (ended->gives)
            pleat__space_give(space, ended->runs[i].page, ended->runs[i].pages);
    }
    ended_free(ended);
    return result;
}

static pleat_result note_work(ended_views *ended)
{
    pleat__heap *heap = ended->heap;
    for (uint16_t i = 0; i < heap->stream_count; i++) {
        PLEAT_TRY(heap->vmm.ops->event_create(heap->vmm.self, heap->device, &ended->events[i]));
        ended->job.event_count++;
        PLEAT_TRY(pleat__heap_mark(heap, i, ended->events[i]));
    }
    return PLEAT_OK;
}

static pleat_result submit(ended_views *ended)
{
    pleat__gate *gate = ended->heap->pool->gate;
    pleat__mapper *mapper;
    PLEAT_TRY(note_work(ended));
    PLEAT_TRY(pleat__gate_mapper(gate, &mapper));
    return pleat__mapper_submit(mapper, &ended->job);
}

/* The mapper unmaps the views; false: it could not be told. */
static bool end_views(const pleat__instance *instance, pleat__heap *heap)
{
    if (instance->view_runs == 0)
        return true;
    ended_views *ended = pleat__arena_alloc(heap->arena, sizeof *ended);
    pleat__page_run *runs = pleat__arena_alloc(heap->arena, instance->view_runs * sizeof *runs);
    if (ended == NULL || runs == NULL) {
        pleat__arena_free(heap->arena, ended);
        pleat__arena_free(heap->arena, runs);
        return false;
    }
    for (uint32_t i = 0; i < instance->view_runs; i++)
        runs[i] = instance->views[i];
    *ended = (ended_views){
        .heap = heap, .runs = runs, .run_count = instance->view_runs, .gives = !instance->planned};
    ended->job = (pleat__job){.kind = PLEAT__JOB_CALL,
                              .call = unmap_ended,
                              .context = ended,
                              .forgotten = true,
                              .events = ended->events};
    if (submit(ended) == PLEAT_OK)
        return true;
    ended_free(ended);
    return false;
}

/* Whether any of `bytes` from the address on lies in a view. */
static bool is_in_views(const pleat__instance *instance, const pleat__pool *pool, pleat_va address,
                        uint64_t bytes)
{
    for (uint32_t i = 0; i < instance->view_runs; i++) {
        pleat_va begin = pool->base + instance->views[i].page * pool->page_bytes;
        pleat_va end = begin + instance->views[i].pages * pool->page_bytes;
        if (address < end && begin < address + bytes)
            return true;
    }
    return false;
}

bool pleat__instance_in_use(const pleat__instance *instance, const pleat__heap *heap,
                            const pleat__placed *placed)
{
    for (uint32_t i = 0; instance->view_runs != 0 && i <= placed->mask; i++)
        if (placed->entries[i].address != 0 &&
            is_in_views(instance, heap->pool, placed->entries[i].address,
                        (uint64_t)placed->entries[i].granules << PLEAT__GRANULE_SHIFT))
            return true;
    /* What is followed stays where it is a plan's. */
    bool own = !instance->planned || instance->left;
    for (uint32_t i = 0; own && i < instance->follow->count; i++) {
        const pleat__place *place = &instance->follow->items[i].place;
        const pleat__place *entry =
            place->several != NULL ? pleat__placed_find(placed, place->address) : NULL;
        if (entry != NULL && entry->several == place->several)
            return true;
    }
    return false;
}

/* What a plan has in its views has no place any more. */
static void clear_places(const pleat__instance *instance, const pleat__pool *pool)
{
    pleat__follow *follow = instance->follow;
    for (uint32_t i = 0; i < follow->count; i++) {
        pleat__expected *item = &follow->items[i];
        if (item->place.address == 0 ||
            !is_in_views(instance, pool, item->place.address,
                         (uint64_t)item->place.granules << PLEAT__GRANULE_SHIFT))
            continue;
        item->kind = PLEAT__ITEM_LOOSE;
        item->place = (pleat__place){.address = 0};
    }
    for (uint32_t i = 0; i < follow->lane_count; i++)
        follow->lanes[i].gone =
            is_in_views(instance, pool, follow->lanes[i].address,
                        (uint64_t)follow->lanes[i].granules << PLEAT__GRANULE_SHIFT);
}

void pleat__instance_release(pleat__instance *instance, pleat__arena *arena)
{
    if (!instance->planned || instance->left)
        pleat__follow_free(instance->follow);
    pleat__arena_free(arena, instance->views);
    pleat__arena_free(arena, instance);
}

bool pleat__instance_free(pleat__instance *instance, pleat__heap *heap)
{
    if (!end_views(instance, heap))
        return false;
    heap->pool->view_pages -= instance->view_pages;
    if (instance->planned)
        clear_places(instance, heap->pool);
    pleat__instance_release(instance, heap->arena);
    return true;
}
