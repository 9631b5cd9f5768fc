/*
 * canary.c: see canary.h.
 *
 * RULE     Every byte that is free holds one known word. A block that is given out must hold it all
 *          over: if not, somebody lives there, or somebody's work has not passed the place yet.
 *          Then the block is filled with a word of its own, and what lies behind the request (the
 *          guard) must still hold that word when it is freed. Then the block holds the free word
 *          again.
 * WHY      A tensor that is never written holds its own word, one that is holds data: either way it
 *          is not the free word, so any overlap is seen when the second of two is given out,
 *          however the first is used. A write through a stale pointer and a reuse that comes too
 *          early are seen when the memory is given out next.
 * ORDER    All of it goes in the order of the block's stream, where its next use is as well, or is
 *          put behind it by the runtime. New chunks are filled whole before they are first used.
 *          Any stream may be the next one there, so each that is given memory comes behind the
 *          point where they were, until the GPU has passed it.
 * NOT DONE A stream that captures a graph would capture these kernels: not for such jobs.
 */
#include <runtime/observe/canary.h>

#include <internal/error.h>

#define FREE_WORD 0xf4ee0b1du /* D481 */

typedef struct guarded {
    uint64_t bytes;  /* asked for */
    uint64_t length; /* of the block */
    pleat_stream stream;
    uint32_t word;
} guarded;

pleat_result pleat__canary_create(pleat_vmm vmm, int device, pleat__arena *arena,
                                  pleat__space *space, bool guards, pleat__canary *canary)
{
    *canary = (pleat__canary){
        .arena = arena, .space = space, .vmm = vmm, .guard = guards ? PLEAT__GUARD : 0};
    PLEAT_TRY(pleat__address_map_create(arena, &canary->live));
    pleat_result result = vmm.ops->event_create(vmm.self, device, &canary->event);
    if (result != PLEAT_OK)
        goto no_event;
    result = pleat__paint_create(vmm, device, arena, &canary->paint);
    if (result == PLEAT_OK)
        return PLEAT_OK;
    (void)vmm.ops->event_destroy(vmm.self, canary->event);
no_event:
    pleat__address_map_destroy(&canary->live);
    canary->paint = NULL;
    return result;
}

void pleat__canary_destroy(pleat__canary *canary)
{
    if (canary->paint == NULL)
        return;
    for (uint64_t i = 0; i <= canary->live.mask; i++)
        pleat__arena_free(canary->arena, canary->live.entries[i].value);
    pleat__address_map_destroy(&canary->live);
    pleat__paint_destroy(canary->paint);
    (void)canary->vmm.ops->event_destroy(canary->vmm.self, canary->event);
    canary->paint = NULL;
}

/* The stream comes behind all new chunks that were filled on others: those of each fill came behind
 * the ones before. */
static pleat_result come_behind_fills(pleat__canary *canary, pleat_stream stream)
{
    const pleat_vmm_ops *ops = canary->vmm.ops;
    if (!canary->fills || ops->event_query(canary->vmm.self, canary->event) == PLEAT_OK) {
        canary->fills = false;
        return PLEAT_OK;
    }
    return ops->stream_wait(canary->vmm.self, stream, canary->event);
}

/* Chunks behind a block that are seen for the first time hold anything. */
static pleat_result paint_new(pleat__canary *canary, const pleat_block *block)
{
    uint64_t page_bytes = pleat__space_page_bytes(canary->space);
    pleat_va base = pleat__space_base(canary->space);
    uint64_t page = (block->address - base) / page_bytes, painted = 0;
    uint64_t end = (block->address + block->bytes - base + page_bytes - 1) / page_bytes;
    for (uint32_t index; page < end; page++) {
        pleat__chunk *chunk = pleat__space_chunk_at(canary->space, page, &index);
        if (chunk == NULL || chunk->painted)
            continue;
        PLEAT_TRY(pleat__paint_fill(canary->paint, block->stream,
                                    base + (page - index) * page_bytes, chunk->pages * page_bytes,
                                    FREE_WORD));
        chunk->painted = true;
        painted++;
    }
    if (painted == 0)
        return PLEAT_OK;
    canary->fills = true;
    return canary->vmm.ops->event_record(canary->vmm.self, canary->event, block->stream);
}

pleat_result pleat__canary_taken(pleat__canary *canary, const pleat_block *block, uint64_t bytes)
{
    PLEAT_TRY(pleat__address_map_reserve(&canary->live));
    guarded *made = pleat__arena_alloc(canary->arena, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the canary");
    *made = (guarded){bytes, block->bytes, block->stream,
                      ++canary->serial * UINT32_C(0x9e3779b1) ^ UINT32_C(0x5bd1e995)};
    made->word += made->word == FREE_WORD;
    pleat_result result = come_behind_fills(canary, block->stream);
    if (result == PLEAT_OK)
        result = paint_new(canary, block);
    if (result == PLEAT_OK)
        result = pleat__paint_verify(canary->paint, block->stream, block->address, block->bytes,
                                     FREE_WORD);
    if (result == PLEAT_OK)
        result = pleat__paint_fill(canary->paint, block->stream, block->address, block->bytes,
                                   made->word);
    if (result != PLEAT_OK) {
        pleat__arena_free(canary->arena, made);
        return result;
    }
    /* Of two at one place, which the check just saw, the later one counts. */
    pleat__arena_free(canary->arena, pleat__address_map_remove(&canary->live, block->address));
    pleat__address_map_insert(&canary->live, block->address, made);
    canary->checked++;
    return PLEAT_OK;
}

pleat_result pleat__canary_freed(pleat__canary *canary, pleat_va address)
{
    guarded *found = pleat__address_map_remove(&canary->live, address);
    if (found == NULL)
        return PLEAT_OK;
    guarded was = *found;
    pleat__arena_free(canary->arena, found);
    uint64_t begin = (was.bytes + 3) / 4 * 4;
    if (begin < was.length)
        PLEAT_TRY(pleat__paint_verify(canary->paint, was.stream, address + begin,
                                      was.length - begin, was.word));
    return pleat__paint_fill(canary->paint, was.stream, address, was.length, FREE_WORD);
}
