/*
 * kept_frees.c: see kept_frees.h.
 */
#include <runtime/face/kept_frees.h>

#include <runtime/face/runtime_internal.h>

#include <internal/check.h>
#include <internal/error.h>

pleat_result pleat__kept_frees_reserve(pleat__address_map *frees, pleat__arena *arena,
                                       uint64_t count)
{
    uint64_t made = 0;
    pleat_result result =
        frees->entries == NULL ? pleat__address_map_create(arena, frees) : PLEAT_OK;
    while (made < count && result == PLEAT_OK) {
        result = pleat__address_map_promise(frees);
        made += result == PLEAT_OK;
    }
    if (result != PLEAT_OK)
        pleat__kept_frees_give_up(frees, made);
    return result;
}

void pleat__kept_frees_give_up(pleat__address_map *frees, uint64_t count)
{
    for (uint64_t f = 0; f < count; f++)
        pleat__address_map_give_up(frees);
}

bool pleat__kept_frees_has(const pleat__address_map *frees, pleat_va address)
{
    return frees->count != 0 && pleat__address_map_find(frees, address) != NULL;
}

pleat_result pleat__kept_frees_keep(pleat_runtime *runtime, pleat_va address, uint64_t *bytes)
{
    pleat_block block;
    pleat__address_map *kept = &runtime->kept_frees;
    *bytes = 0;
    if (pleat__kept_frees_has(&runtime->kept_frees, address))
        return pleat__fail(PLEAT_E_NOT_FOUND, "%#llx has been freed", (unsigned long long)address);
    if (runtime->ops->block_of(runtime->policy, address, &block) != PLEAT_OK ||
        block.address != address || !pleat__is_paused(runtime, &block, NULL))
        return PLEAT_OK;
    pleat__address_map_give_up(kept);
    pleat__address_map_insert(kept, address, (void *)(uintptr_t)block.requested);
    *bytes = block.requested;
    return PLEAT_OK;
}

/* Whether the free of this entry of the table reaches the policy: it is out of the table then. */
static bool let_go(pleat_runtime *runtime, pleat__address_map_entry entry, const pleat__pause *but)
{
    pleat__address_map *kept = &runtime->kept_frees;
    pleat_block block;
    if (entry.address == 0)
        return false;
    PLEAT_CHECK(runtime->ops->block_of(runtime->policy, entry.address, &block) == PLEAT_OK);
    if (pleat__is_paused(runtime, &block, but))
        return false;
    (void)pleat__address_map_remove(kept, entry.address);
    PLEAT_CHECK(pleat__address_map_promise(kept) == PLEAT_OK); /* it has just left room */
    pleat__freed_now(runtime, entry.address, (uint64_t)(uintptr_t)entry.value);
    return true;
}

/* Where one goes others behind it move up: the same entry is looked at again. */
void pleat__kept_frees_let_go(pleat_runtime *runtime, const pleat__pause *but)
{
    const pleat__address_map *kept = &runtime->kept_frees;
    for (uint64_t i = 0; kept->count != 0 && i <= kept->mask;)
        i += !let_go(runtime, kept->entries[i], but);
}

uint64_t pleat__kept_frees_pages(const pleat__address_map *frees, uint64_t page_bytes)
{
    uint64_t pages = 0;
    for (uint64_t i = 0; frees->count != 0 && i <= frees->mask; i++)
        if (frees->entries[i].address != 0)
            pages += (uint64_t)(uintptr_t)frees->entries[i].value / page_bytes + 2;
    return pages;
}
