/*
 * caching_audit.c: questions to the caching allocator that change nothing: the block around an
 * address, its free neighbours, and the auditor.
 */
#include <runtime/baselines/torch/caching_internal.h>

#include <internal/check.h>
#include <inttypes.h>
#include <stdio.h>

static pleat__block *live_block(const pleat__caching *caching, pleat_va address)
{
    pleat__block *block = pleat__address_map_find(&caching->live, address);
    if (block != NULL)
        return block;
    const segment *owner = pleat__caching_segment_of(caching, address);
    if (owner == NULL)
        return NULL;
    uint64_t unit = (address - owner->address) >> owner->unit_shift;
    /* The block that begins in the address's own unit may begin behind it; the one around the
     * address then begins in an earlier unit. */
    for (int tries = 0; tries < 2; tries++) {
        unit = pleat__bits_at_most(&owner->starts, unit);
        if (unit == PLEAT__BITS_NONE)
            return NULL;
        block = owner->by_unit != NULL
                    ? owner->by_unit[unit]
                    : pleat__address_map_find(&caching->live,
                                              owner->address + (unit << owner->unit_shift));
        if (block->address <= address)
            return address - block->address < block->bytes ? block : NULL;
        if (unit-- == 0)
            return NULL;
    }
    return NULL;
}

static pleat_block describe(const pleat__block *block)
{
    return (pleat_block){.address = block->address,
                         .bytes = block->bytes,
                         .requested = block->requested,
                         .stream = block->segment->pool->stream,
                         .allocated = block->state == PLEAT__BLOCK_LIVE};
}

pleat_result pleat__caching_block_of(const pleat__caching *caching, pleat_va address,
                                     pleat_block *out)
{
    const pleat__block *block = live_block(caching, address);
    if (block == NULL)
        return PLEAT_E_NOT_FOUND;
    *out = describe(block);
    return PLEAT_OK;
}

static uint64_t free_bytes(const pleat__block *block)
{
    return block != NULL && block->state == PLEAT__BLOCK_FREE ? block->bytes : 0;
}

pleat_result pleat__caching_adjacent_free(const pleat__caching *caching, pleat_va address,
                                          uint64_t *before, uint64_t *after)
{
    const pleat__block *block = live_block(caching, address);
    if (block == NULL)
        return PLEAT_E_NOT_FOUND;
    *before = free_bytes(block->previous);
    *after = free_bytes(block->next);
    return PLEAT_OK;
}

/* A block at or before an address in its segment, the nearest that is easily found. */
static const pleat__block *block_before(const pleat__caching *caching, const segment *owner,
                                        pleat_va address)
{
    uint64_t unit = (address - owner->address) >> owner->unit_shift;
    unit = unit > 0 ? pleat__bits_at_most(&owner->starts, unit - 1) : PLEAT__BITS_NONE;
    if (unit == PLEAT__BITS_NONE)
        return owner->first;
    return owner->by_unit != NULL
               ? owner->by_unit[unit]
               : pleat__address_map_find(&caching->live,
                                         owner->address + (unit << owner->unit_shift));
}

pleat_va pleat__caching_next(const pleat__caching *caching, pleat_va address)
{
    const segment *owner = pleat__caching_segment_of(caching, address);
    size_t above = pleat__caching_index_above(caching, address);
    const pleat__block *block = owner != NULL ? block_before(caching, owner, address) : NULL;
    for (;;) {
        for (; block != NULL; block = block->next)
            if (block->state == PLEAT__BLOCK_LIVE && block->address >= address)
                return block->address;
        if (above >= caching->stats.segments)
            return 0;
        block = caching->segments[above++]->first;
    }
}

bool pleat__caching_owns(const pleat__caching *caching, pleat_va address)
{
    return pleat__caching_segment_of(caching, address) != NULL;
}

uint64_t pleat__caching_largest(const pleat__caching *caching, pleat_stream stream)
{
    uint64_t largest = 0;
    for (const pool *at = caching->pools; at != NULL; at = at->next) {
        const pleat__block *last = at->stream == stream ? pleat__bins_last(&at->free) : NULL;
        uint64_t bytes = last != NULL ? last->bytes : 0;
        if (at->small && bytes > PLEAT__SMALL_LIMIT_BYTES)
            bytes = PLEAT__SMALL_LIMIT_BYTES;
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

typedef struct totals {
    uint64_t backed, allocated, live, free;
} totals;

/* Blocks cover the segment without a hole, no two alike that should have been joined. */
static bool audit_segment(const pleat__caching *caching, const segment *at, totals *sum)
{
    pleat_va expected = at->address;
    const pleat__block *previous = NULL;
    for (const pleat__block *block = at->first; block != NULL; block = block->next) {
        bool live = block->state == PLEAT__BLOCK_LIVE;
        bool joined = previous == NULL || previous->state != block->state || live ||
                      block->state == PLEAT__BLOCK_DEAD;
        if (block->address != expected || block->previous != previous || block->segment != at ||
            block->bytes == 0 || !joined ||
            (pleat__address_map_find(&caching->live, block->address) == block) != live) {
            fprintf(stderr,
                    "caching: block %#" PRIx64 " of %" PRIu64 " bytes, state %u, expected at "
                    "%#" PRIx64 "\n",
                    block->address, block->bytes, block->state, expected);
            return false;
        }
        sum->backed += live || block->state == PLEAT__BLOCK_FREE ? block->bytes : 0;
        sum->allocated += live ? block->bytes : 0;
        sum->live += live;
        sum->free += block->state == PLEAT__BLOCK_FREE;
        expected += block->bytes;
        previous = block;
    }
    return expected == at->address + at->bytes;
}

static bool audit_order(const pleat__caching *caching)
{
    for (size_t i = 1; i < caching->stats.segments; i++) {
        const segment *a = caching->segments[i - 1], *b = caching->segments[i];
        if (a->address + a->bytes > b->address) {
            fprintf(stderr, "caching: segments %#" PRIx64 " and %#" PRIx64 " overlap\n", a->address,
                    b->address);
            return false;
        }
    }
    return true;
}

bool pleat__caching_audit(const pleat__caching *caching)
{
    totals sum = {0};
    uint64_t binned = 0;
    const pleat__caching_stats *stats = &caching->stats;
    for (size_t i = 0; i < stats->segments; i++)
        if (!audit_segment(caching, caching->segments[i], &sum))
            return false;
    for (const pool *at = caching->pools; at != NULL; at = at->next)
        if (!pleat__bins_audit(&at->free, &binned))
            return false;
    if (sum.backed == stats->reserved_bytes && sum.allocated == stats->allocated_bytes &&
        sum.live == stats->blocks && sum.live == caching->live.count && sum.free == binned)
        return audit_order(caching);
    fprintf(stderr,
            "caching: reserved %" PRIu64 " is %" PRIu64 ", allocated %" PRIu64 " is %" PRIu64
            ", blocks %" PRIu64 " are %" PRIu64 " (%" PRIu64 " in the table), free %" PRIu64
            " are %" PRIu64 "\n",
            stats->reserved_bytes, sum.backed, stats->allocated_bytes, sum.allocated, stats->blocks,
            sum.live, caching->live.count, binned, sum.free);
    return false;
}
