/*
 * caching.c: requests of the caching allocator: rounding, best fit, splitting, joining.
 *
 * The rules are PyTorch's (c10/cuda/CUDACachingAllocator.cpp of 2.11): round_size and
 * get_allocation_size, get_free_block with its two limits on large blocks and its reluctance
 * towards the block that can still grow, should_split, try_merge_blocks. What differs is how: exact
 * best fit over binned treaps instead of one tree, one hash table for what is live, no event or
 * driver call here. The steps of out of memory are the runtime's (reclaim.c), in the same order.
 *
 * A request first searches (take_free), then takes new memory (pleat__caching_extend), and cuts
 * off what it does not need (pleat__caching_cut). All host memory it may need is at hand before
 * anything changes.
 */
#include <runtime/baselines/torch/caching_internal.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <string.h>

#define SLAB_BLOCKS 1024u /* D478 */

pleat_result pleat__caching_reserve_nodes(pleat__caching *caching, uint64_t count)
{
    while (caching->spares < count) {
        block_slab *slab =
            pleat__arena_alloc(caching->arena, sizeof *slab + SLAB_BLOCKS * sizeof(pleat__block));
        if (slab == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u blocks", SLAB_BLOCKS);
        slab->next = caching->slabs;
        caching->slabs = slab;
        for (unsigned i = SLAB_BLOCKS; i-- > 0;)
            pleat__caching_node_put(caching, &slab->blocks[i]);
    }
    return PLEAT_OK;
}

pleat__block *pleat__caching_node(pleat__caching *caching, segment *owner, pleat_va address,
                                  uint64_t bytes)
{
    pleat__block *block = caching->spare;
    caching->spare = block->right;
    caching->spares--;
    *block = (pleat__block){.address = address, .bytes = bytes, .segment = owner};
    return block;
}

void pleat__caching_node_put(pleat__caching *caching, pleat__block *block)
{
    block->right = caching->spare;
    caching->spare = block;
    caching->spares++;
}

static pool *find_pool(pleat__caching *caching, pleat_stream stream, bool small)
{
    pool *last = caching->last_pool[small];
    if (last != NULL && last->stream == stream)
        return last;
    for (pool *at = caching->pools; at != NULL; at = at->next)
        if (at->stream == stream && at->small == small)
            return caching->last_pool[small] = at;
    pool *added = pleat__arena_calloc(caching->arena, 1, sizeof *added);
    if (added == NULL)
        return NULL;
    added->stream = stream;
    added->small = small;
    added->next = caching->pools;
    caching->pools = added;
    return caching->last_pool[small] = added;
}

void pleat__caching_make_free(pleat__caching *caching, pool *owner, pleat__block *block)
{
    block->state = PLEAT__BLOCK_FREE;
    block->age = caching->searches[owner->small];
    pleat__bins_insert(&owner->free, block);
}

void pleat__caching_join_next(pleat__caching *caching, pleat__block *block)
{
    pleat__block *gone = block->next;
    block->bytes += gone->bytes;
    block->next = gone->next;
    if (gone->next != NULL)
        gone->next->previous = block;
    pleat__caching_node_put(caching, gone);
}

void pleat__caching_join(pleat__caching *caching, pool *owner, pleat__block *block)
{
    pleat__block *next = block->next, *previous = block->previous;
    if (next != NULL && next->state == PLEAT__BLOCK_FREE) {
        pleat__bins_remove(&owner->free, next);
        pleat__caching_join_next(caching, block);
    }
    if (previous != NULL && previous->state == PLEAT__BLOCK_FREE) {
        pleat__bins_remove(&owner->free, previous);
        /* The earlier node goes, so that the caller's pointer stays good. */
        block->address = previous->address;
        block->bytes += previous->bytes;
        block->previous = previous->previous;
        if (previous->previous != NULL)
            previous->previous->next = block;
        else
            block->segment->first = block;
        pleat__caching_node_put(caching, previous);
    }
}

/* Up to the next of the equal parts into which the sizes between two powers of two are cut. */
static uint64_t round_to_part(uint64_t bytes, uint64_t parts)
{
    uint64_t floor = 1ull << (63 - __builtin_clzll(bytes));
    uint64_t part = floor / parts;
    return pleat__ceil_div(bytes, part) * part;
}

/* The size of a request's block; 0: it is more than any device has. Of a size of at most `parts`
 * blocks of 512 bytes a part would be smaller than one. */
static uint64_t round_size(const pleat__caching_options *options, uint64_t bytes)
{
    uint64_t rounded;
    if (!pleat__round_up(bytes, PLEAT__ROUND_BYTES, &rounded) || rounded > UINT64_MAX / 4)
        return 0;
    int power = 63 - __builtin_clzll(bytes) - 20; /* of the MiB that it is not below */
    power = power < 0 ? 0 : power;
    power = power < PLEAT__DIVIDED_POWERS ? power : PLEAT__DIVIDED_POWERS - 1;
    uint64_t parts = options->divisions.of[power];
    bool divided = parts > 1 && bytes > PLEAT__ROUND_BYTES * parts;
    return divided ? round_to_part(bytes, parts) : rounded;
}

/* What a free block could become in place. */
static uint64_t reach(const pleat__block *block)
{
    const pleat__block *next = block->next;
    bool grows = next != NULL && next->state == PLEAT__BLOCK_UNBACKED;
    return block->bytes + (grows ? next->bytes : 0);
}

/* Best fit. The block that can still grow counts with the size that it could have, so that a
 * larger one that cannot is taken before it. */
static pleat__block *take_free(pleat__caching *caching, pool *owner, uint64_t bytes)
{
    const pleat__caching_options *options = &caching->options;
    caching->searches[owner->small]++;
    pleat__block *best = pleat__bins_at_least(&owner->free, bytes, 0);
    if (best == NULL)
        return NULL;
    if (options->expandable) {
        for (;;) {
            pleat__block *next = pleat__bins_at_least(&owner->free, best->bytes, best->address + 1);
            if (next == NULL || reach(next) >= reach(best))
                break;
            best = next;
        }
    }
    if (bytes < options->max_split_bytes && best->bytes >= options->max_split_bytes)
        return NULL;
    if (bytes >= options->max_split_bytes && best->bytes >= bytes + options->max_round_bytes)
        return NULL;
    pleat__bins_remove(&owner->free, best);
    return best;
}

static bool should_split(const pleat__caching *caching, const pool *owner, uint64_t bytes,
                         uint64_t rest)
{
    if (owner->small || caching->options.expandable)
        return rest >= PLEAT__ROUND_BYTES;
    return bytes < caching->options.max_split_bytes && rest > PLEAT__SMALL_LIMIT_BYTES;
}

pleat__block *pleat__caching_cut(pleat__caching *caching, pleat__block *block, uint64_t bytes)
{
    pleat__block *rest =
        pleat__caching_node(caching, block->segment, block->address + bytes, block->bytes - bytes);
    rest->previous = block;
    rest->next = block->next;
    if (block->next != NULL)
        block->next->previous = rest;
    block->next = rest;
    block->bytes = bytes;
    return rest;
}

static void mark_start(segment *owner, pleat__block *block, bool live)
{
    uint64_t unit = (block->address - owner->address) >> owner->unit_shift;
    if (live)
        pleat__bits_set(&owner->starts, unit);
    else
        pleat__bits_clear(&owner->starts, unit);
    if (owner->by_unit != NULL)
        owner->by_unit[unit] = live ? block : NULL;
}

/* An audit walks all blocks: after every call while they and the calls are few, else after some; so
 * many that a program's loop does not bring the same ones again and again. */
static bool audit_now_and_then(pleat__caching *caching)
{
    uint64_t every = caching->stats.blocks >= 64 ? 4099 : caching->calls < 20000 ? 1 : 61;
    return ++caching->calls % every != 0 || pleat__caching_audit(caching);
}

/* Host memory for a block that is cut or new: one rest; for new memory one block, and one for what
 * stays unbacked. */
static pleat_result reserve_host(pleat__caching *caching)
{
    PLEAT_TRY(pleat__caching_reserve_nodes(caching, 3));
    return pleat__address_map_reserve(&caching->live);
}

/* Asks the program to free something, without the lock and without the turn, and looks for a block
 * once more. What others did meanwhile took what was at hand. */
static pleat_result ask_and_take(pleat__caching *caching, pool *owner, uint64_t bytes,
                                 uint64_t rounded, pleat__block **block)
{
    const pleat__caching_options *options = &caching->options;
    if (options->early_callback == NULL)
        return PLEAT_OK;
    pleat__gate_unlock(caching->gate);
    int again = options->early_callback(options->memory_context, bytes, owner->stream);
    pleat__gate_lock_turn(caching->gate);
    PLEAT_TRY(reserve_host(caching));
    if (again != 0)
        *block = take_free(caching, owner, rounded);
    return PLEAT_OK;
}

/* While the lock was left for the block's memory, others used what host memory was at hand. */
static pleat_result make_ready(pleat__caching *caching, pool *owner, pleat__block *block)
{
    pleat_result result = pleat__caching_reserve_nodes(caching, 1);
    if (result == PLEAT_OK)
        result = pleat__address_map_reserve(&caching->live);
    if (result != PLEAT_OK) {
        pleat__caching_join(caching, owner, block);
        pleat__caching_make_free(caching, owner, block);
    }
    return result;
}

pleat_result pleat__caching_alloc(pleat__caching *caching, uint64_t bytes, pleat_stream stream,
                                  pleat_va *address)
{
    uint64_t rounded = round_size(&caching->options, bytes);
    if (rounded == 0)
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY, "%llu bytes are more than any device has",
                           (unsigned long long)bytes);
    pool *owner = find_pool(caching, stream, rounded <= PLEAT__SMALL_LIMIT_BYTES);
    if (owner == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a stream's pool");
    PLEAT_TRY(reserve_host(caching));
    pleat__block *block = take_free(caching, owner, rounded);
    if (block == NULL) {
        PLEAT_TRY(pleat__gate_turn(caching->gate));
        PLEAT_TRY(ask_and_take(caching, owner, bytes, rounded, &block));
    }
    if (block == NULL) {
        pleat__caching_collect(caching);
        PLEAT_TRY(pleat__caching_extend(caching, owner, rounded, &block));
        PLEAT_TRY(make_ready(caching, owner, block));
    }
    if (should_split(caching, owner, rounded, block->bytes - rounded))
        pleat__caching_make_free(caching, owner, pleat__caching_cut(caching, block, rounded));
    block->state = PLEAT__BLOCK_LIVE;
    block->requested = bytes;
    pleat__address_map_insert(&caching->live, block->address, block);
    mark_start(block->segment, block, true);
    caching->stats.allocated_bytes += block->bytes;
    caching->stats.blocks++;
    *address = block->address;
    PLEAT_AUDIT(audit_now_and_then(caching));
    return PLEAT_OK;
}

pleat_result pleat__caching_free(pleat__caching *caching, pleat_va address, uint64_t *bytes)
{
    pleat__block *block = pleat__address_map_remove(&caching->live, address);
    if (block == NULL)
        return PLEAT_E_NOT_FOUND;
    segment *owner = block->segment;
    mark_start(owner, block, false);
    if (bytes != NULL)
        *bytes = block->requested;
    caching->stats.allocated_bytes -= block->bytes;
    caching->stats.blocks--;
    block->requested = 0;
    pleat__caching_join(caching, owner->pool, block);
    pleat__caching_make_free(caching, owner->pool, block);
    PLEAT_AUDIT(audit_now_and_then(caching));
    return PLEAT_OK;
}

pleat_result pleat__caching_create(pleat__arena *arena, pleat__space *space, pleat__gate *gate,
                                   const pleat__caching_options *options, pleat__caching **out)
{
    uint64_t unit = pleat__space_page_bytes(space);
    if (PLEAT__SMALL_SEGMENT_BYTES % unit != 0)
        return pleat__fail(PLEAT_E_UNSUPPORTED,
                           "the caching allocator's segments are not whole chunks of %llu bytes",
                           (unsigned long long)unit);
    pleat__caching *caching = pleat__arena_calloc(arena, 1, sizeof *caching);
    if (caching == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a caching allocator");
    caching->arena = arena;
    caching->space = space;
    caching->gate = gate;
    if (options != NULL)
        caching->options = *options;
    if (caching->options.max_split_bytes == 0)
        caching->options.max_split_bytes = UINT64_MAX;
    pleat_result result = pleat__address_map_create(arena, &caching->live);
    if (result != PLEAT_OK) {
        pleat__arena_free(arena, caching);
        return result;
    }
    *out = caching;
    return PLEAT_OK;
}

pleat__caching_stats pleat__caching_stats_of(const pleat__caching *caching)
{
    return caching->stats;
}
