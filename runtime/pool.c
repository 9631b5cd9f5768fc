/*
 * pool.c: chunks and their homes. All driver verbs of the pleat policy are issued from here.
 */
#include <runtime/pool.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

static pleat_result pool_reserve(pleat__pool *pool, uint32_t chunks)
{
    if (chunks <= pool->capacity)
        return PLEAT_OK;
    uint32_t wanted = pool->capacity ? pool->capacity : 256;
    while (wanted < chunks)
        wanted *= 2;
    PLEAT_TRY(pleat__occupancy_grow(&pool->occupancy, wanted));
    void *grown = pleat__arena_realloc(pool->arena, pool->chunks, wanted * sizeof *pool->chunks);
    if (grown == NULL)
        goto no_memory;
    pool->chunks = grown;
    grown = pleat__arena_realloc(pool->arena, pool->home, wanted * sizeof *pool->home);
    if (grown == NULL)
        goto no_memory;
    pool->home = grown;
    grown = pleat__arena_realloc(pool->arena, pool->breaks, wanted);
    if (grown == NULL)
        goto no_memory;
    pool->breaks = grown;
    pool->capacity = wanted;
    return PLEAT_OK;
no_memory:
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u chunks", wanted);
}

/* Whether single chunks of the plan may have to be stitched or given back: handles are mapped whole
 * only. Large ones start a job of 80 GiB 1.5 s sooner (H200: 83 us for 2 GiB, 35 us for a chunk).
 */
static bool wants_single(const pleat_plan *plan)
{
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        if (plan->steady.slots[i].class == PLEAT__CLASS_DYNAMIC)
            return true;
    return false;
}

/* The chunks of a plan's handles; what was got goes back when one fails. */
static pleat_result plan_handles(pleat__pool *pool, const pleat_plan *plan)
{
    bool single = wants_single(plan);
    for (uint32_t i = 0; i < plan->handle_count; i++) {
        uint32_t pages = single ? 1 : plan->handles[i].chunks;
        for (uint32_t c = 0; c < plan->handles[i].chunks; c += pages) {
            pleat__chunk *chunk;
            pleat_result result = pleat__space_chunk_get(pool->space, pages, &chunk);
            if (result != PLEAT_OK) {
                for (uint32_t k = 0; k < pool->count; k += pool->chunks[k]->pages)
                    pleat__space_chunk_put(pool->space, pool->chunks[k]);
                pool->count = 0;
                return pleat__context(result, "the plan's memory");
            }
            for (uint32_t p = 0; p < pages; p++)
                pool->chunks[pool->count++] = chunk;
        }
    }
    return PLEAT_OK;
}

static void plan_homes(pleat__pool *pool, const pleat_plan *plan)
{
    for (uint32_t i = 0; i < plan->map_count; i++) {
        const pleat__plan_map *map = &plan->maps[i];
        const pleat__plan_handle *handle = &plan->handles[map->handle];
        for (uint32_t c = 0; map->alias == 0 && c < handle->chunks; c++)
            pool->home[handle->first_chunk + c] = (uint32_t)(map->page + c);
    }
    for (uint32_t c = 0; c < pool->count; c++)
        pool->breaks[c] = c == 0 || pool->home[c] != pool->home[c - 1] + 1;
}

/* Maps the plan's handles, neighbours in one call. What was mapped before a failure stays the
 * space's, which unmaps it when it is destroyed: a runtime that fails to start is destroyed. */
static pleat_result plan_map(pleat__pool *pool, const pleat_plan *plan)
{
    uint64_t pages = pleat__ceil_div(plan->virtual_bytes, plan->chunk_bytes);
    pleat__chunk **run = pleat__arena_alloc(pool->arena, pages * sizeof *run);
    if (run == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u maps", plan->map_count);
    pleat_result result = PLEAT_OK;
    for (uint32_t i = 0; i < plan->map_count && result == PLEAT_OK;) {
        uint64_t page = plan->maps[i].page, next = page;
        uint32_t count = 0;
        while (i < plan->map_count && plan->maps[i].page == next) {
            const pleat__plan_handle *handle = &plan->handles[plan->maps[i].handle];
            for (uint32_t c = 0; c < handle->chunks; c += pool->chunks[handle->first_chunk]->pages)
                run[count++] = pool->chunks[handle->first_chunk + c];
            pool->view_pages += plan->maps[i].alias ? handle->chunks : 0;
            next += handle->chunks;
            i++;
        }
        result = pleat__space_map(pool->space, page, run, count);
    }
    pleat__arena_free(pool->arena, run);
    return result;
}

static pleat_result pool_load(pleat__pool *pool, const pleat_plan *plan)
{
    if (plan->chunk_bytes != pool->page_bytes)
        return pleat__fail(
            PLEAT_E_INPUT, "the plan is for chunks of %llu bytes, the device has %llu: plan again",
            (unsigned long long)plan->chunk_bytes, (unsigned long long)pool->page_bytes);
    PLEAT_TRY(pool_reserve(pool, (uint32_t)(plan->physical_bytes / plan->chunk_bytes)));
    PLEAT_TRY(plan_handles(pool, plan));
    plan_homes(pool, plan);
    return plan_map(pool, plan);
}

pleat_result pleat__pool_init(pleat__pool *pool, pleat__arena *arena, pleat__space *space,
                              const pleat_plan *plan)
{
    *pool = (pleat__pool){
        .arena = arena,
        .space = space,
        .base = pleat__space_base(space),
        .page_bytes = pleat__space_page_bytes(space),
    };
    uint64_t plan_pages = plan == NULL ? 0 : pleat__ceil_div(plan->virtual_bytes, pool->page_bytes);
    uint64_t device_pages = pleat__space_device_bytes(space) / pool->page_bytes;
    if (plan_pages + device_pages > UINT32_MAX)
        return pleat__fail(PLEAT_E_LIMIT, "the window has too many pages");
    PLEAT_TRY(pleat__occupancy_init(&pool->occupancy, arena, pool->page_bytes, 0));
    pleat_result result = pleat__space_take_at(space, 0, plan_pages + device_pages);
    if (result == PLEAT_OK) {
        pool->region_pages = plan_pages + device_pages;
        pool->next_home = plan_pages;
        result = plan == NULL ? PLEAT_OK : pool_load(pool, plan);
    }
    if (result != PLEAT_OK)
        pleat__pool_release(pool);
    return result;
}

void pleat__pool_release(pleat__pool *pool)
{
    pleat__occupancy_release(&pool->occupancy);
    pleat__arena_free(pool->arena, pool->chunks);
    pleat__arena_free(pool->arena, pool->home);
    pleat__arena_free(pool->arena, pool->breaks);
    pool->chunks = NULL;
    pool->home = NULL;
    pool->breaks = NULL;
}

/* Chunks for the numbers [first, first + count), which have homes side by side, in one map call.
 * *made is how many numbers got one: all, or fewer when memory ran out. */
static pleat_result fill(pleat__pool *pool, uint32_t first, uint32_t count, uint32_t *made)
{
    pleat_result result = PLEAT_OK;
    uint32_t got = 0;
    while (got < count) {
        result = pleat__space_chunk_get(pool->space, 1, &pool->chunks[first + got]);
        if (result != PLEAT_OK)
            break;
        got++;
    }
    *made = 0;
    if (got == 0)
        return result;
    pleat_result mapped =
        pleat__space_map(pool->space, pool->home[first], &pool->chunks[first], got);
    if (mapped != PLEAT_OK) {
        for (uint32_t i = 0; i < got; i++) {
            pleat__space_chunk_put(pool->space, pool->chunks[first + i]);
            pool->chunks[first + i] = NULL;
        }
        return mapped;
    }
    *made = got;
    return result;
}

/* Numbers that were given back come first: their homes are there. */
static pleat_result refill(pleat__pool *pool, uint32_t *chunks, pleat__occupancy_visit visit,
                           void *context)
{
    for (uint32_t first = 0; first < pool->count && pool->absent > 0 && *chunks > 0;) {
        uint32_t end = first;
        while (end < pool->count && end - first < *chunks && pool->chunks[end] == NULL &&
               (end == first || !pool->breaks[end]))
            end++;
        if (end == first) {
            first++;
            continue;
        }
        uint32_t made;
        pleat_result result = fill(pool, first, end - first, &made);
        pool->absent -= made;
        *chunks -= made;
        pleat__extent run = {first << pool->occupancy.shift, made << pool->occupancy.shift};
        pleat__occupancy_give(&pool->occupancy, run);
        if (made > 0)
            PLEAT_TRY(visit(context, run));
        PLEAT_TRY(result);
        first = end;
    }
    return PLEAT_OK;
}

pleat_result pleat__pool_grow(pleat__pool *pool, uint32_t chunks, pleat__occupancy_visit visit,
                              void *context)
{
    PLEAT_TRY(refill(pool, &chunks, visit, context));
    if (chunks == 0)
        return PLEAT_OK;
    if (chunks > pool->region_pages - pool->next_home)
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY,
                           "%u more chunks of %llu bytes are more than the device has", chunks,
                           (unsigned long long)pool->page_bytes);
    PLEAT_TRY(pool_reserve(pool, pool->count + chunks));
    uint32_t first = pool->count;
    for (uint32_t i = 0; i < chunks; i++) {
        pool->home[first + i] = (uint32_t)(pool->next_home + i);
        pool->chunks[first + i] = NULL;
        pool->breaks[first + i] = 0;
    }
    pool->breaks[first] = first == 0 || pool->home[first] != pool->home[first - 1] + 1;
    uint32_t made;
    pleat_result result = fill(pool, first, chunks, &made);
    pool->count += made;
    pool->next_home += made;
    if (made > 0)
        PLEAT_TRY(visit(context, (pleat__extent){first << pool->occupancy.shift,
                                                 made << pool->occupancy.shift}));
    return result;
}

pleat_result pleat__pool_shrink(pleat__pool *pool, uint32_t chunk)
{
    pleat__extent run = {chunk << pool->occupancy.shift, pool->occupancy.full};
    PLEAT_ASSERT(pleat__pool_single(pool, chunk) && pool->occupancy.used[chunk] == 0);
    pleat_result result = pleat__space_unmap(pool->space, pool->home[chunk], 1);
    /* A page in an unknown state is quarantined by the space; neither is its number used again. */
    pleat__occupancy_take(&pool->occupancy, run);
    if (result != PLEAT_OK)
        return result;
    pleat__space_chunk_put(pool->space, pool->chunks[chunk]);
    pool->chunks[chunk] = NULL;
    pool->absent++;
    return PLEAT_OK;
}

pleat_result pleat__pool_view(pleat__pool *pool, const uint32_t *chunks, uint32_t count,
                              uint64_t *page)
{
    pleat__chunk **run = pleat__arena_alloc(pool->arena, count * sizeof *run);
    if (run == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view of %u chunks", count);
    for (uint32_t i = 0; i < count; i++)
        run[i] = pool->chunks[chunks[i]];
    pleat_result result = pleat__space_take(pool->space, count, page);
    if (result == PLEAT_OK) {
        result = pleat__space_map(pool->space, *page, run, count);
        if (result == PLEAT_OK)
            pool->view_pages += count;
        else
            pleat__space_give(pool->space, *page, count);
    }
    pleat__arena_free(pool->arena, run);
    return result;
}

void pleat__pool_unview(pleat__pool *pool, uint64_t page, uint32_t count)
{
    (void)!pleat__space_unmap(pool->space, page, count);
    pleat__space_give(pool->space, page, count);
    pool->view_pages -= count;
}
