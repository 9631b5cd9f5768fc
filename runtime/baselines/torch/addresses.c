/*
 * addresses.c: see addresses.h.
 */
#include <runtime/baselines/torch/addresses.h>

#include <internal/check.h>
#include <internal/error.h>

static uint64_t page_of(const pleat__space *space, pleat_va address)
{
    return (address - pleat__space_base(space)) / pleat__space_page_bytes(space);
}

pleat_result pleat__addresses_take(pleat__space *space, uint64_t bytes, pleat_va *address)
{
    uint64_t unit = pleat__space_page_bytes(space), page;
    PLEAT_TRY(pleat__space_take(space, bytes / unit, &page));
    *address = pleat__space_base(space) + page * unit;
    return PLEAT_OK;
}

void pleat__addresses_give(pleat__space *space, pleat_va address, uint64_t bytes)
{
    pleat__space_give(space, page_of(space, address), bytes / pleat__space_page_bytes(space));
}

#define BATCH 64u /* chunks of one map call (D478) */

static void put_chunks(pleat__space *space, pleat__chunk *const *chunks, uint64_t count)
{
    while (count > 0)
        pleat__space_chunk_put(space, chunks[--count]);
}

/* Maps up to BATCH chunks of `chunk_pages` pages from `page` on. */
static pleat_result back_batch(pleat__space *space, uint64_t page, uint64_t count,
                               uint64_t chunk_pages)
{
    pleat__chunk *chunks[BATCH];
    pleat_result result = PLEAT_OK;
    uint64_t have = 0;
    while (have < count && result == PLEAT_OK) {
        result = pleat__space_chunk_get(space, (uint32_t)chunk_pages, &chunks[have]);
        have += result == PLEAT_OK;
    }
    if (result == PLEAT_OK)
        result = pleat__space_map(space, page, chunks, count);
    if (result != PLEAT_OK)
        put_chunks(space, chunks, have);
    return result;
}

/* Collects the chunks of whole handles before they are unmapped, and pools them after. */
static bool unback_batch(pleat__space *space, uint64_t page, uint64_t end, uint64_t *next)
{
    pleat__chunk *chunks[BATCH];
    uint64_t count = 0, at = page;
    while (at < end && count < BATCH) {
        uint32_t inside;
        pleat__chunk *chunk = pleat__space_chunk_at(space, at, &inside);
        PLEAT_CHECK(chunk != NULL && inside == 0);
        chunks[count++] = chunk;
        at += chunk->pages;
    }
    PLEAT_CHECK(at <= end);
    *next = at;
    /* A refused unmap leaves the pages in quarantine; the chunks are given up all the same. */
    bool known = pleat__space_unmap(space, page, at - page) == PLEAT_OK;
    put_chunks(space, chunks, count);
    return known;
}

bool pleat__addresses_unback(pleat__space *space, pleat_va address, uint64_t bytes)
{
    uint64_t page = page_of(space, address);
    uint64_t end = page + bytes / pleat__space_page_bytes(space);
    bool known = true;
    while (page < end)
        known = unback_batch(space, page, end, &page) && known;
    return known;
}

pleat_result pleat__addresses_back(pleat__space *space, pleat_va address, uint64_t bytes,
                                   uint64_t handle_bytes)
{
    uint64_t unit = pleat__space_page_bytes(space);
    uint64_t handle_pages = handle_bytes / unit;
    if (handle_pages > UINT32_MAX)
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY, "%llu bytes are more than a handle can have",
                           (unsigned long long)handle_bytes);
    uint64_t first = page_of(space, address);
    uint64_t handles = bytes / handle_bytes;
    for (uint64_t done = 0; done < handles;) {
        uint64_t count = handles - done < BATCH ? handles - done : BATCH;
        pleat_result result = back_batch(space, first + done * handle_pages, count, handle_pages);
        if (result != PLEAT_OK) {
            if (done > 0)
                (void)pleat__addresses_unback(space, address, done * handle_bytes);
            return result;
        }
        done += count;
    }
    return PLEAT_OK;
}
