/*
 * share.c: physical memory between processes: what lies behind an allocation, piece by piece, and
 * other processes' pieces in this one's window.
 *
 * A piece is a chunk as it was created: only whole ones can be exported and mapped. An allocation
 * begins and ends anywhere in its pieces, so a process that receives one sees its neighbours' bytes
 * too, as with the driver's own way of sharing an allocation. The allocation's chunks stay behind
 * its addresses for as long as it lives, whatever else is mapped and unmapped meanwhile: neither a
 * pause nor spilling takes them, and what was spilled before comes back (memory of the host's has
 * no descriptor).
 */
#include <runtime/face/share.h>

#include <internal/error.h>
#include <runtime/face/runtime_internal.h>

/* ---- giving ---- */

/* The chunk that holds an address, and the page where it begins there. */
static pleat__chunk *chunk_of(pleat_runtime *runtime, pleat_va address, uint64_t *page)
{
    uint32_t index = 0;
    uint64_t at =
        (address - pleat__space_base(runtime->space)) / pleat__space_page_bytes(runtime->space);
    pleat__chunk *chunk = pleat__space_chunk_at(runtime->space, at, &index);
    *page = at - index;
    return chunk;
}

/* The allocation that holds an address, and what the policy has there: of a graph's piece the whole
 * capture, whose memory stays for as long as it lives. */
static pleat_result find_block(pleat_runtime *runtime, pleat_va address, pleat_block *block,
                               pleat_block *whole)
{
    if (!runtime->context.conf.share)
        return pleat__fail(PLEAT_E_UNSUPPORTED,
                           "this runtime's memory cannot be sent to other processes: it was made "
                           "without the setting share:on");
    pleat_result result = pleat__find_block(runtime, address, block);
    if (result == PLEAT_OK)
        result = pleat__policy_block(runtime, address, whole);
    return result == PLEAT_OK && whole->allocated
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NOT_FOUND, "%#llx is not allocated",
                             (unsigned long long)address);
}

/* Piece `wanted` of a block, or, past the last, how many there are and what they take together. */
static pleat__chunk *walk_pieces(pleat_runtime *runtime, const pleat_block *block, uint32_t wanted,
                                 pleat_share *share)
{
    uint64_t page_bytes = pleat__space_page_bytes(runtime->space), page;
    pleat_va base = pleat__space_base(runtime->space), at = block->address;
    *share = (pleat_share){0};
    while (at < block->address + block->bytes) {
        pleat__chunk *chunk = chunk_of(runtime, at, &page);
        if (chunk == NULL)
            return NULL;
        if (share->pieces == 0)
            share->offset = block->address - (base + page * page_bytes);
        if (share->pieces++ == wanted)
            return chunk;
        share->bytes += chunk->pages * page_bytes;
        at = base + (page + chunk->pages) * page_bytes;
    }
    return NULL;
}

static pleat_result set_shared(pleat_runtime *runtime, pleat_va address, bool shared)
{
    pleat__known known = pleat__known_of(runtime, address);
    known.shared = shared;
    return pleat__known_set(runtime, address, known);
}

pleat_result pleat_share_of(pleat_runtime *runtime, pleat_va address, pleat_share *share)
{
    PLEAT__TRY_HERE(runtime);
    pleat_block block, whole;
    pleat__gate_lock(&runtime->gate);
    pleat_result result = find_block(runtime, address, &block, &whole);
    if (result == PLEAT_OK)
        (void)walk_pieces(runtime, &block, UINT32_MAX, share);
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_result pleat_share_piece(pleat_runtime *runtime, pleat_va address, uint32_t index, int *fd,
                               uint64_t *bytes)
{
    PLEAT__TRY_HERE(runtime);
    pleat_block block, whole;
    pleat_share share;
    pleat__gate_lock_turn(&runtime->gate);
    pleat_result result = find_block(runtime, address, &block, &whole);
    pleat__chunk *chunk = result == PLEAT_OK ? walk_pieces(runtime, &block, index, &share) : NULL;
    if (chunk != NULL && chunk->rests) {
        result = pleat__fail(PLEAT_E_STATE, "%#llx is paused", (unsigned long long)address);
    } else if (chunk != NULL) {
        bool was_shared = pleat__known_of(runtime, whole.address).shared;
        /* Before the lock is left: a free meanwhile forgets it. */
        result = set_shared(runtime, whole.address, true);
        uint64_t size = chunk->pages * pleat__space_page_bytes(runtime->space);
        if (result == PLEAT_OK)
            result = pleat__spill_fetch(runtime, chunk);
        if (result == PLEAT_OK) {
            pleat__gate_leave(&runtime->gate);
            result = pleat__space_export(runtime->space, chunk, fd);
            pleat__gate_enter(&runtime->gate);
        }
        if (result == PLEAT_OK)
            *bytes = size;
        else if (!was_shared)
            (void)!set_shared(runtime, whole.address, false); /* less is said: it cannot fail */
    } else if (result == PLEAT_OK) {
        result = pleat__fail(PLEAT_E_INVALID, "there is no piece %u behind %#llx", index,
                             (unsigned long long)address);
    }
    pleat__gate_unlock(&runtime->gate);
    return result;
}

/* ---- taking ---- */

static pleat__import **find_import(pleat_runtime *runtime, pleat_va address)
{
    pleat_va base = pleat__space_base(runtime->space);
    uint64_t page_bytes = pleat__space_page_bytes(runtime->space);
    pleat__import **at = &runtime->imports;
    while (*at != NULL && base + (*at)->page * page_bytes != address)
        at = &(*at)->next;
    return at;
}

static pleat_result begin_import(pleat_runtime *runtime, uint64_t bytes, pleat_va *address)
{
    uint64_t page_bytes = pleat__space_page_bytes(runtime->space);
    if (bytes == 0 || bytes % page_bytes != 0)
        return pleat__fail(PLEAT_E_INVALID, "an import of %llu bytes, which are no whole pages",
                           (unsigned long long)bytes);
    pleat__import *import = pleat__arena_calloc(runtime->arena, 1, sizeof *import);
    if (import == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an import");
    import->pages = bytes / page_bytes;
    pleat_result result = pleat__space_take(runtime->space, import->pages, &import->page);
    if (result != PLEAT_OK) {
        pleat__arena_free(runtime->arena, import);
        return result;
    }
    import->next = runtime->imports;
    runtime->imports = import;
    *address = pleat__space_base(runtime->space) + import->page * page_bytes;
    return PLEAT_OK;
}

/* With the turn. */
static pleat_result import_piece(pleat_runtime *runtime, pleat_va address, int fd, uint64_t bytes)
{
    pleat__import *import = *find_import(runtime, address);
    uint64_t page_bytes = pleat__space_page_bytes(runtime->space);
    if (import == NULL || bytes == 0 || bytes % page_bytes != 0 ||
        bytes / page_bytes > import->pages - import->mapped)
        return pleat__fail(PLEAT_E_INVALID, "a piece of %llu bytes, for which %#llx has no room",
                           (unsigned long long)bytes, (unsigned long long)address);
    pleat__chunk *chunk;
    pleat__gate_leave(&runtime->gate);
    pleat_result result =
        pleat__space_import(runtime->space, fd, (uint32_t)(bytes / page_bytes), &chunk);
    if (result == PLEAT_OK) {
        result = pleat__space_map(runtime->space, import->page + import->mapped, &chunk, 1);
        if (result != PLEAT_OK)
            pleat__space_chunk_put(runtime->space, chunk);
    }
    pleat__gate_enter(&runtime->gate);
    if (result == PLEAT_OK)
        import->mapped += chunk->pages;
    return result;
}

/* Under no lock: unmaps piece by piece; what the driver refuses to unmap stays quarantined. */
static pleat_result unmap_pieces(pleat__space *space, const pleat__import *import)
{
    pleat_result result = PLEAT_OK;
    for (uint64_t done = 0, pages; done < import->mapped; done += pages) {
        pleat__chunk *chunk = pleat__space_chunk_at(space, import->page + done, NULL);
        pages = chunk->pages;
        pleat_result one = pleat__space_unmap(space, import->page + done, pages);
        if (one != PLEAT_OK)
            result = one;
        pleat__space_chunk_put(space, chunk);
    }
    pleat__space_give(space, import->page, import->pages);
    return result;
}

/* With the turn. */
static pleat_result end_import(pleat_runtime *runtime, pleat_va address)
{
    pleat__import **at = find_import(runtime, address), *import = *at;
    if (import == NULL)
        return pleat__fail(PLEAT_E_NOT_FOUND, "%#llx is no import", (unsigned long long)address);
    *at = import->next;
    pleat__gate_leave(&runtime->gate);
    pleat_result result = unmap_pieces(runtime->space, import);
    pleat__gate_enter(&runtime->gate);
    pleat__arena_free(runtime->arena, import);
    return result;
}

void pleat__imports_release(pleat_runtime *runtime)
{
    for (pleat__import *import = runtime->imports, *next; import != NULL; import = next) {
        next = import->next;
        pleat__arena_free(runtime->arena, import);
    }
    runtime->imports = NULL;
}

/* ---- public ---- */

pleat_result pleat_import_begin(pleat_runtime *runtime, uint64_t bytes, pleat_va *address)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock(&runtime->gate);
    pleat_result result = begin_import(runtime, bytes, address);
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_result pleat_import_piece(pleat_runtime *runtime, pleat_va address, int fd, uint64_t bytes)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock_turn(&runtime->gate);
    pleat_result result = import_piece(runtime, address, fd, bytes);
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_result pleat_import_end(pleat_runtime *runtime, pleat_va address)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock_turn(&runtime->gate);
    pleat_result result = end_import(runtime, address);
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_result pleat_add_peer(pleat_runtime *runtime, int peer)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock_turn(&runtime->gate);
    pleat__gate_leave(&runtime->gate);
    pleat__gate_drain(&runtime->gate);
    pleat_result result = pleat__space_add_peer(runtime->space, peer);
    pleat__gate_enter(&runtime->gate);
    pleat__gate_unlock(&runtime->gate);
    return result;
}
