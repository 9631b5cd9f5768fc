/*
 * cut.c: from a page table to handles and maps.
 *
 * The driver maps whole handles only, so a handle must be a run of chunks that is mapped together
 * wherever it is mapped. A boundary between two neighbouring chunks is needed exactly when some
 * page run shows one of them without the other beside it; all other neighbours share a handle. Few
 * handles matter: one map is one driver call, however long it is.
 */
#include <plan/fold/fold.h>

#include <internal/error.h>

/* cuts[c]: chunk c begins a handle. Chunks are numbered as in the layout, with gaps. */
static void find_cuts(const pleat__layout *layout, uint8_t *cuts)
{
    for (uint32_t page = 0; page < layout->page_count; page++) {
        uint32_t chunk = layout->pages[page];
        if (chunk == PLEAT__NO_CHUNK)
            continue;
        uint32_t before = page > 0 ? layout->pages[page - 1] : PLEAT__NO_CHUNK;
        uint32_t after = page + 1 < layout->page_count ? layout->pages[page + 1] : PLEAT__NO_CHUNK;
        if (before == PLEAT__NO_CHUNK || before + 1 != chunk)
            cuts[chunk] = 1;
        if (after != chunk + 1)
            cuts[chunk + 1] = 1;
    }
}

typedef struct cutter {
    const pleat__layout *layout;
    pleat_plan *plan;
    uint8_t *cuts;
    uint32_t *handle_of; /* chunk of the layout -> handle, where one begins */
    size_t handle_capacity;
    size_t map_capacity;
} cutter;

static pleat_result add_handle(cutter *c, uint32_t chunk, uint32_t length, uint32_t first)
{
    pleat_plan *plan = c->plan;
    PLEAT_TRY(pleat__arena_grow(plan->arena, &plan->handles, &c->handle_capacity,
                                plan->handle_count, sizeof *plan->handles));
    plan->handles[plan->handle_count] = (pleat__plan_handle){length, first};
    c->handle_of[chunk] = plan->handle_count++;
    return PLEAT_OK;
}

/* Handles in order of their first page, which for base pages is the order of chunks. */
static pleat_result add_maps(cutter *c)
{
    const pleat__layout *layout = c->layout;
    pleat_plan *plan = c->plan;
    uint32_t chunks = 0;
    for (uint32_t page = 0; page < layout->page_count;) {
        uint32_t chunk = layout->pages[page], length = 1;
        if (chunk == PLEAT__NO_CHUNK) {
            page++;
            continue;
        }
        while (page + length < layout->page_count && !c->cuts[chunk + length])
            length++;
        bool alias = c->handle_of[chunk] != UINT32_MAX;
        if (!alias)
            PLEAT_TRY(add_handle(c, chunk, length, chunks));
        chunks += alias ? 0 : length;
        PLEAT_TRY(pleat__arena_grow(plan->arena, &plan->maps, &c->map_capacity, plan->map_count,
                                    sizeof *plan->maps));
        plan->maps[plan->map_count++] = (pleat__plan_map){page, c->handle_of[chunk], alias};
        page += length;
    }
    plan->physical_bytes = chunks * plan->chunk_bytes;
    plan->virtual_bytes = layout->page_count * plan->chunk_bytes;
    return PLEAT_OK;
}

pleat_result pleat__layout_cut(const pleat__layout *layout, pleat_plan *plan)
{
    uint32_t chunks = 0;
    for (uint32_t page = 0; page < layout->page_count; page++)
        if (layout->pages[page] != PLEAT__NO_CHUNK && layout->pages[page] >= chunks)
            chunks = layout->pages[page] + 1;
    cutter c = {.layout = layout, .plan = plan};
    c.cuts = pleat__arena_calloc(plan->arena, chunks + 1u, sizeof *c.cuts);
    c.handle_of = pleat__arena_alloc(plan->arena, (chunks + 1u) * sizeof *c.handle_of);
    pleat_result result = PLEAT_OK;
    if (c.cuts == NULL || c.handle_of == NULL) {
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to cut %u chunks", chunks);
        goto out;
    }
    for (uint32_t chunk = 0; chunk <= chunks; chunk++)
        c.handle_of[chunk] = UINT32_MAX;
    find_cuts(layout, c.cuts);
    result = add_maps(&c);
out:
    pleat__arena_free(plan->arena, c.cuts);
    pleat__arena_free(plan->arena, c.handle_of);
    return result;
}
