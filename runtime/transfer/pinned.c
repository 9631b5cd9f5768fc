/*
 * pinned.c: see pinned.h.
 */
#include <runtime/transfer/pinned.h>

#include <internal/error.h>

static bool find_unused(const pleat__pinned *pinned, size_t *index)
{
    for (*index = 0; *index < pinned->count; ++*index)
        if (!pinned->blocks[*index].used)
            return true;
    return false;
}

static uint64_t unused_bytes(const pleat__pinned *pinned)
{
    uint64_t bytes = 0;
    for (size_t b = 0; b < pinned->count; b++)
        bytes += pinned->blocks[b].used ? 0 : pinned->blocks[b].bytes;
    return bytes;
}

pleat_result pleat__pinned_open(pleat__pinned *pinned, uint64_t bytes)
{
    const pleat_vmm *vmm = &pinned->vmm;
    uint64_t unused = unused_bytes(pinned);
    /* Now, as making memory takes longer: what comes back is waited for. */
    pinned->by_threads = pinned->by_threads || vmm->ops->copy_by_threads(vmm->self, pinned->device,
                                                                         0, 0, 0, 0) == PLEAT_OK;
    pinned->pinning = (pleat__pinning){.vmm = pinned->vmm,
                                       .device = pinned->device,
                                       .arena = pinned->arena,
                                       .block_bytes = pinned->block_bytes};
    return pleat__pinning_begin(&pinned->pinning, pinned->page_bytes,
                                bytes > unused ? bytes - unused : 0);
}

pleat_result pleat__pinned_take(pleat__pinned *pinned, size_t *index)
{
    if (find_unused(pinned, index)) {
        pinned->blocks[*index].used = true;
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__arena_grow(pinned->arena, &pinned->blocks, &pinned->capacity, pinned->count,
                                sizeof *pinned->blocks));
    PLEAT_TRY(pleat__pinning_next(&pinned->pinning, &pinned->blocks[pinned->count]));
    pinned->blocks[pinned->count].used = true;
    *index = pinned->count++;
    return PLEAT_OK;
}

void pleat__pinned_close(pleat__pinned *pinned)
{
    pleat__pinning_end(&pinned->pinning);
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
