/*
 * kept_frees.c: see kept_frees.h.
 */
#include <runtime/face/kept_frees.h>

#include <runtime/face/runtime_internal.h>

#include <internal/check.h>
#include <internal/error.h>

pleat_result pleat__kept_frees_keep(pleat_runtime *runtime, pleat_va address, uint64_t *bytes)
{
    pleat_block block;
    *bytes = 0;
    if (pleat__known_of(runtime, address).freed)
        return pleat__fail(PLEAT_E_NOT_FOUND, "%#llx has been freed", (unsigned long long)address);
    if (runtime->ops->block_of(runtime->policy, address, &block) != PLEAT_OK ||
        block.address != address || !pleat__is_paused(runtime, &block, NULL))
        return PLEAT_OK;
    pleat__known_give_up(runtime, 1);
    pleat__known_set(runtime, address, (pleat__known){.freed = true});
    *bytes = block.requested;
    return PLEAT_OK;
}

/* The allocation whose free is kept back under this entry of the table; false: none is. */
static bool is_kept(const pleat_runtime *runtime, uint64_t entry, pleat_block *block)
{
    pleat_va address = runtime->known.entries[entry].address;
    if (address == 0 || !pleat__known_of(runtime, address).freed)
        return false;
    PLEAT_CHECK(runtime->ops->block_of(runtime->policy, address, block) == PLEAT_OK);
    return true;
}

/* Whether the free of this entry reaches the policy: it is out of the table then. */
static bool let_go(pleat_runtime *runtime, uint64_t entry, const pleat__pause *but)
{
    pleat_block block;
    if (!is_kept(runtime, entry, &block) || pleat__is_paused(runtime, &block, but))
        return false;
    pleat__known_set(runtime, block.address, (pleat__known){0});
    PLEAT_CHECK(pleat__known_promise(runtime, 1) == PLEAT_OK); /* it has just left room */
    pleat__freed_now(runtime, block.address, block.requested);
    return true;
}

/* Where one goes others behind it move up: the same entry is looked at again. */
void pleat__kept_frees_let_go(pleat_runtime *runtime, const pleat__pause *but)
{
    for (uint64_t i = 0; runtime->known.count != 0 && i <= runtime->known.mask;)
        i += !let_go(runtime, i, but);
}

uint64_t pleat__kept_frees_pages(const pleat_runtime *runtime)
{
    uint64_t pages = 0;
    pleat_block block;
    for (uint64_t i = 0; runtime->known.count != 0 && i <= runtime->known.mask; i++)
        if (is_kept(runtime, i, &block))
            pages += block.requested / pleat__space_page_bytes(runtime->space) + 2;
    return pages;
}
