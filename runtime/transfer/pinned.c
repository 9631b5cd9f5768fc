/*
 * pinned.c: see pinned.h.
 */
#include <runtime/transfer/pinned.h>

#include <internal/error.h>
#include <internal/range.h>

#define BLOCK_BYTES (UINT64_C(256) << 20) /* smaller where less is wanted */

static bool find_unused(const pleat__pinned *pinned, size_t *index)
{
    for (*index = 0; *index < pinned->count; ++*index)
        if (!pinned->blocks[*index].used)
            return true;
    return false;
}

pleat_result pleat__pinned_take(pleat__pinned *pinned, uint64_t bytes, size_t *index)
{
    pleat__pinned_block made = {
        .used = true,
        .bytes = bytes < BLOCK_BYTES
                     ? pleat__ceil_div(bytes, pinned->page_bytes) * pinned->page_bytes
                     : BLOCK_BYTES,
    };
    if (find_unused(pinned, index)) {
        pinned->blocks[*index].used = true;
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__arena_grow(pinned->arena, &pinned->blocks, &pinned->capacity, pinned->count,
                                sizeof *pinned->blocks));
    PLEAT_TRY(
        pinned->vmm.ops->host_alloc(pinned->vmm.self, pinned->device, made.bytes, &made.memory));
    *index = pinned->count;
    pinned->blocks[pinned->count++] = made;
    return PLEAT_OK;
}

void pleat__pinned_give(pleat__pinned *pinned, size_t index)
{
    pinned->blocks[index].used = false;
}

void pleat__pinned_trim(pleat__pinned *pinned)
{
    /* Indices of those that are used stay as they are. */
    for (size_t b = 0; b < pinned->count; b++)
        if (pinned->blocks[b].used)
            return;
    while (pinned->count > 0)
        (void)pinned->vmm.ops->host_free(pinned->vmm.self, pinned->device,
                                         pinned->blocks[--pinned->count].memory);
}

void pleat__pinned_release(pleat__pinned *pinned)
{
    pleat__pinned_trim(pinned);
    pleat__arena_free(pinned->arena, pinned->blocks);
}
