/*
 * page_table.c: from window pages to physical chunks, as a plan maps them.
 */
#include <plan/base/plan.h>

#include <internal/error.h>

pleat_result pleat__plan_page_table(const pleat_plan *plan, pleat__arena *arena, uint32_t **out)
{
    uint64_t pages = pleat__ceil_div(plan->virtual_bytes, plan->chunk_bytes);
    uint32_t *table = pleat__arena_alloc(arena, pages * sizeof *table);
    if (table == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of %llu pages",
                           (unsigned long long)pages);
    for (uint64_t page = 0; page < pages; page++)
        table[page] = UINT32_MAX;
    for (uint32_t i = 0; i < plan->map_count; i++) {
        const pleat__plan_handle *handle = &plan->handles[plan->maps[i].handle];
        for (uint32_t c = 0; c < handle->chunks; c++)
            table[plan->maps[i].page + c] = handle->first_chunk + c;
    }
    *out = table;
    return PLEAT_OK;
}
