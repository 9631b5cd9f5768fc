/*
 * instance_end.c: what becomes of an instance that is done with (see instance.h). Its views are
 * address space, and what keeps their chunks from being given back, until the mapper has unmapped
 * them. A plan file's instance is followed as a shape all the same (shapes.h): what it had in views
 * has no place any more.
 */
#include <runtime/learn/instance_internal.h>
#include <runtime/memory/deferred_unmap.h>

/* The views' pages go, behind the last work of each stream. false: that cannot be marked. */
static bool end_views(const pleat__instance *instance, pleat__heap *heap)
{
    if (instance->view_runs == 0)
        return true;
    pleat__dropped *dropped = pleat__dropped_new(heap, instance->view_runs, !instance->planned);
    bool marked = dropped != NULL;
    for (uint16_t stream = 0; stream < heap->stream_count && marked; stream++)
        marked = pleat__dropped_mark(dropped, stream);
    if (!marked) {
        if (dropped != NULL)
            pleat__dropped_free(dropped);
        return false;
    }
    for (uint32_t i = 0; i < instance->view_runs; i++)
        pleat__dropped_add(dropped, instance->views[i]);
    pleat__dropped_hand_over(dropped);
    return true;
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
