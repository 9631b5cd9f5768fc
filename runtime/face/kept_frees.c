/*
 * kept_frees.c: see kept_frees.h.
 */
#include <runtime/face/kept_frees.h>

#include <runtime/face/runtime_internal.h>

#include <internal/check.h>

pleat_result pleat__kept_frees_reserve(pleat__kept_frees *frees, pleat__arena *arena,
                                       uint64_t count)
{
    uint64_t made = 0;
    pleat_result result =
        frees->kept.entries == NULL ? pleat__address_map_create(arena, &frees->kept) : PLEAT_OK;
    while (made < count && result == PLEAT_OK) {
        result = pleat__address_map_promise(&frees->kept);
        made += result == PLEAT_OK;
    }
    if (result != PLEAT_OK)
        pleat__kept_frees_give_up(frees, made);
    return result;
}

void pleat__kept_frees_give_up(pleat__kept_frees *frees, uint64_t count)
{
    for (uint64_t f = 0; f < count; f++)
        pleat__address_map_give_up(&frees->kept);
}

bool pleat__kept_frees_keep(pleat_runtime *runtime, pleat_va address, uint64_t bytes, bool *again)
{
    pleat_block block;
    pleat__address_map *kept = &runtime->kept_frees.kept;
    *again = kept->count != 0 && pleat__address_map_find(kept, address) != NULL;
    if (*again)
        return true;
    if (runtime->ops->block_of(runtime->policy, address, &block) != PLEAT_OK ||
        block.address != address || !pleat__is_paused(runtime, &block))
        return false;
    pleat__address_map_give_up(kept);
    pleat__address_map_insert(kept, address,
                              (void *)(uintptr_t)(bytes != 0 ? bytes : block.requested));
    return true;
}

void pleat__kept_frees_let_go(pleat_runtime *runtime)
{
    pleat__address_map *kept = &runtime->kept_frees.kept;
    pleat_block block;
    for (uint64_t i = 0; kept->count != 0 && i <= kept->mask; i++) {
        pleat_va address = kept->entries[i].address;
        uint64_t bytes = (uint64_t)(uintptr_t)kept->entries[i].value;
        if (address == 0)
            continue;
        PLEAT_CHECK(runtime->ops->block_of(runtime->policy, address, &block) == PLEAT_OK);
        if (pleat__is_paused(runtime, &block))
            continue;
        (void)pleat__address_map_remove(kept, address);
        PLEAT_CHECK(pleat__address_map_promise(kept) == PLEAT_OK); /* it has just left room */
        pleat__runtime_freed(runtime, address, bytes);
        i = UINT64_MAX; /* a removal moves others: from the beginning */
    }
}

void pleat__kept_frees_release(pleat__kept_frees *frees)
{
    if (frees->kept.entries != NULL)
        pleat__address_map_destroy(&frees->kept);
}
