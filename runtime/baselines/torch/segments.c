/*
 * segments.c: how the caching allocator comes by memory and gives it back.
 *
 * Native: a segment is reserved and backed whole, and goes back whole when all of it is one free
 * block (PyTorch's alloc_block, release_available_cached_blocks, release_blocks,
 * garbage_collect_cached_blocks). Expandable: a pool has one long range, backed handle by handle
 * where a request needs it, from the lowest address on that has room
 * (try_allocate_expandable_block, map_block, unmap_block). Where the window has no room for a range
 * of the full length, shorter ones are tried: a pool may have several.
 */
#include <runtime/baselines/torch/addresses.h>
#include <runtime/baselines/torch/caching_internal.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <internal/search.h>
#include <string.h>

static uint64_t segment_bytes_for(const pool *owner, uint64_t bytes)
{
    if (owner->small)
        return PLEAT__SMALL_SEGMENT_BYTES;
    if (bytes < PLEAT__LARGE_REQUEST_BYTES)
        return PLEAT__LARGE_SEGMENT_BYTES;
    return pleat__ceil_div(bytes, PLEAT__SEGMENT_ROUND_BYTES) * PLEAT__SEGMENT_ROUND_BYTES;
}

/* Bytes of one handle of a pool of expandable segments. */
static uint64_t handle_bytes(const pool *owner)
{
    return owner->small ? PLEAT__SMALL_SEGMENT_BYTES : PLEAT__LARGE_SEGMENT_BYTES;
}

size_t pleat__caching_index_above(const pleat__caching *caching, pleat_va address)
{
    size_t at;
    PLEAT__FIRST(at, caching->stats.segments, caching->segments[at]->address > address);
    return at;
}

segment *pleat__caching_segment_of(const pleat__caching *caching, pleat_va address)
{
    size_t above = pleat__caching_index_above(caching, address);
    if (above == 0)
        return NULL;
    segment *found = caching->segments[above - 1];
    return address - found->address < found->bytes ? found : NULL;
}

static void link_segment(pleat__caching *caching, segment *added)
{
    size_t at = pleat__caching_index_above(caching, added->address);
    memmove(&caching->segments[at + 1], &caching->segments[at],
            (caching->stats.segments - at) * sizeof *caching->segments);
    caching->segments[at] = added;
    caching->stats.segments++;
}

static void unlink_segment(pleat__caching *caching, segment *gone)
{
    size_t at = pleat__caching_index_above(caching, gone->address);
    memmove(&caching->segments[at - 1], &caching->segments[at],
            (caching->stats.segments - at) * sizeof *caching->segments);
    caching->stats.segments--;
}

/* A segment of reserved address space as one block; nothing behind it yet, not linked, but there is
 * room for that. */
static pleat_result make_segment(pleat__caching *caching, pool *owner, uint64_t bytes,
                                 segment **out)
{
    PLEAT_TRY(pleat__arena_grow(caching->arena, &caching->segments, &caching->segment_capacity,
                                caching->stats.segments, sizeof *caching->segments));
    segment *added = pleat__arena_calloc(caching->arena, 1, sizeof *added);
    if (added == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a segment");
    added->pool = owner;
    added->bytes = bytes;
    added->unit_shift = owner->small ? 9 : 20;
    uint64_t units = pleat__ceil_div(bytes, 1ull << added->unit_shift);
    pleat_result result = pleat__bits_create(caching->arena, units, &added->starts);
    if (result != PLEAT_OK)
        goto no_bits;
    if (!owner->small) {
        added->by_unit = pleat__arena_calloc(caching->arena, units, sizeof *added->by_unit);
        result = added->by_unit != NULL
                     ? PLEAT_OK
                     : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a segment of %llu bytes",
                                   (unsigned long long)bytes);
    }
    if (result != PLEAT_OK)
        goto no_range;
    result = pleat__addresses_take(caching->space, bytes, &added->address);
    if (result != PLEAT_OK)
        goto no_range;
    added->first = pleat__caching_node(caching, added, added->address, bytes);
    *out = added;
    return PLEAT_OK;
no_range:
    pleat__arena_free(caching->arena, added->by_unit);
    pleat__bits_destroy(caching->arena, &added->starts);
no_bits:
    pleat__arena_free(caching->arena, added);
    return result;
}

static void free_segment(pleat__caching *caching, segment *gone)
{
    pleat__arena_free(caching->arena, gone->by_unit);
    pleat__bits_destroy(caching->arena, &gone->starts);
    pleat__arena_free(caching->arena, gone);
}

/* A segment that is not linked, and whose only block is in no list. */
static void forget_segment(pleat__caching *caching, segment *gone)
{
    pleat__addresses_give(caching->space, gone->address, gone->bytes);
    pleat__caching_node_put(caching, gone->first);
    free_segment(caching, gone);
}

/* The lock is left. */
static pleat_result back(const pleat__caching *caching, pleat_va address, uint64_t bytes,
                         uint64_t unit)
{
    pleat__gate_leave(caching->gate);
    pleat_result result = pleat__addresses_back(caching->space, address, bytes, unit);
    pleat__gate_enter(caching->gate);
    return result;
}

static pleat_result extend_native(pleat__caching *caching, pool *owner, uint64_t bytes,
                                  pleat__block **out)
{
    segment *added;
    uint64_t size = segment_bytes_for(owner, bytes);
    PLEAT_TRY(make_segment(caching, owner, size, &added));
    pleat_result result = back(caching, added->address, size, size);
    if (result != PLEAT_OK) {
        forget_segment(caching, added);
        return result;
    }
    link_segment(caching, added);
    caching->stats.reserved_bytes += size;
    added->first->state = PLEAT__BLOCK_FREE;
    *out = added->first;
    return PLEAT_OK;
}

/* ---- expandable ---- */

static void unbacked_insert(pool *owner, pleat__block *block)
{
    pleat__block **at = &owner->unbacked;
    while (*at != NULL && (*at)->address < block->address)
        at = &(*at)->right;
    block->state = PLEAT__BLOCK_UNBACKED;
    block->right = *at;
    *at = block;
}

static void unbacked_remove(pool *owner, pleat__block *block)
{
    pleat__block **at = &owner->unbacked;
    while (*at != block) {
        PLEAT_CHECK(*at != NULL);
        at = &(*at)->right;
    }
    *at = block->right;
    block->right = NULL;
}

/* Where `bytes` fit from `block` on, over free and unbacked blocks. */
static bool has_room(const pleat__block *block, uint64_t bytes)
{
    uint64_t room = 0;
    for (; block != NULL && room < bytes; block = block->next) {
        if (block->state != PLEAT__BLOCK_FREE && block->state != PLEAT__BLOCK_UNBACKED)
            return false;
        room += block->bytes;
    }
    return room >= bytes;
}

static pleat__block *find_room(const pool *owner, uint64_t bytes)
{
    for (pleat__block *at = owner->unbacked; at != NULL; at = at->right) {
        pleat__block *previous = at->previous;
        pleat__block *from =
            previous != NULL && previous->state == PLEAT__BLOCK_FREE ? previous : at;
        if (has_room(from, bytes))
            return from;
    }
    return NULL;
}

static pleat_result add_range(pleat__caching *caching, pool *owner, uint64_t bytes,
                              pleat__block **out)
{
    uint64_t unit = handle_bytes(owner);
    uint64_t least = pleat__ceil_div(bytes, unit) * unit;
    /* Small requests never need as much as large ones; their range costs metadata by its length. */
    uint64_t range = caching->options.range_bytes / (owner->small ? 8 : 1);
    uint64_t most = pleat__ceil_div(range, unit) * unit;
    if (least > most)
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY, "%llu bytes are more than a segment's %llu",
                           (unsigned long long)bytes, (unsigned long long)most);
    /* The window has room for a few such ranges, and a job may have any number of streams: each
     * two take half of what the two before them took. */
    uint64_t halvings = caching->stats.segments / 2 < 6 ? caching->stats.segments / 2 : 6;
    uint64_t wanted = pleat__ceil_div(most >> halvings, unit) * unit;
    wanted = wanted < least ? least : wanted;
    for (;;) {
        segment *added;
        pleat_result result = make_segment(caching, owner, wanted, &added);
        if (result == PLEAT_OK) {
            link_segment(caching, added);
            unbacked_insert(owner, added->first);
            *out = added->first;
            return PLEAT_OK;
        }
        if (result != PLEAT_E_LIMIT || wanted == least)
            return result;
        wanted = pleat__ceil_div(wanted / 2, unit) * unit;
        wanted = wanted < least ? least : wanted;
    }
}

/* Backs the first `bytes` of an unbacked block, in whole handles, and joins that with the free
 * block before it; *out is the joined block, FREE and in its bin. */
static pleat_result back_front(pleat__caching *caching, pool *owner, pleat__block *block,
                               uint64_t bytes, pleat__block **out)
{
    uint64_t unit = handle_bytes(owner);
    uint64_t size = pleat__ceil_div(bytes, unit) * unit;
    PLEAT_TRY(pleat__caching_reserve_nodes(caching, 3));
    /* One for the rest, kept while the lock is left. */
    pleat__block *node = pleat__caching_node(caching, block->segment, block->address, size);
    pleat_result result = back(caching, block->address, size, unit);
    pleat__caching_node_put(caching, node);
    PLEAT_TRY(result);
    caching->stats.reserved_bytes += size;
    unbacked_remove(owner, block);
    if (size < block->bytes)
        unbacked_insert(owner, pleat__caching_cut(caching, block, size));
    pleat__caching_join(caching, owner, block);
    pleat__caching_make_free(caching, owner, block);
    *out = block;
    return PLEAT_OK;
}

/* Memory behind the room that begins with `block`: what is unbacked of it up to `bytes`, or up to
 * the next free block. */
static pleat_result back_room(pleat__caching *caching, pool *owner, pleat__block *block,
                              uint64_t bytes, pleat__block **out)
{
    uint64_t need = bytes;
    if (block->state == PLEAT__BLOCK_FREE) {
        need -= block->bytes;
        block = block->next;
    }
    return back_front(caching, owner, block, need < block->bytes ? need : block->bytes, out);
}

/* What is backed before a failure stays, as free memory: the next try needs less. Room is looked
 * for anew after each part: others may have taken what was free beside it. A free block that has
 * room by itself is taken as it is: others may have freed it, or it is one that max_split keeps
 * from requests of this size, as PyTorch does too. */
static pleat_result extend_expandable(pleat__caching *caching, pool *owner, uint64_t bytes,
                                      pleat__block **out)
{
    for (;;) {
        pleat__block *block = find_room(owner, bytes);
        if (block == NULL)
            PLEAT_TRY(add_range(caching, owner, bytes, &block));
        if (block->state != PLEAT__BLOCK_FREE || block->bytes < bytes)
            PLEAT_TRY(back_room(caching, owner, block, bytes, &block));
        if (block->bytes >= bytes) {
            pleat__bins_remove(&owner->free, block);
            *out = block;
            return PLEAT_OK;
        }
    }
}

pleat_result pleat__caching_extend(pleat__caching *caching, pool *owner, uint64_t bytes,
                                   pleat__block **out)
{
    if (caching->options.expandable)
        return extend_expandable(caching, owner, bytes, out);
    return extend_native(caching, owner, bytes, out);
}

/* ---- giving back ---- */

/* What goes back: taken out of reach under the lock, which is then left for the verbs. */
typedef struct leaving {
    pleat__fences fences; /* of the streams, before */
    segment *segments;    /* native: whole ones, linked by `next` */
    pleat__block *blocks; /* expandable: whole handles, DEAD, linked by `right` */
    uint64_t bytes;
} leaving;

/* Before anything goes. false: nothing can. */
static bool begin_leaving(const pleat__caching *caching, leaving *all)
{
    *all = (leaving){.bytes = 0};
    return pleat__gate_fence(caching->gate, &all->fences);
}

/* A segment that is one block, FREE and in its bin, goes. */
static void detach_segment(pleat__caching *caching, leaving *all, segment *gone)
{
    pleat__bins_remove(&gone->pool->free, gone->first);
    unlink_segment(caching, gone);
    gone->next = all->segments;
    all->segments = gone;
    all->bytes += gone->bytes;
    caching->stats.reserved_bytes -= gone->bytes;
}

/* The whole handles of a FREE block go; what is left of it on both sides stays free. pre: three
 * nodes at hand. */
static void detach_handles(pleat__caching *caching, leaving *all, pleat__block *block)
{
    pool *owner = block->segment->pool;
    uint64_t unit = handle_bytes(owner);
    pleat_va base = block->segment->address;
    pleat_va begin = base + pleat__ceil_div(block->address - base, unit) * unit;
    pleat_va end = base + pleat__round_down(block->address + block->bytes - base, unit);
    if (begin >= end)
        return;
    pleat__bins_remove(&owner->free, block);
    if (begin > block->address) {
        pleat__block *head = block;
        block = pleat__caching_cut(caching, block, begin - block->address);
        pleat__caching_make_free(caching, owner, head);
    }
    if (end < block->address + block->bytes)
        pleat__caching_make_free(caching, owner,
                                 pleat__caching_cut(caching, block, end - block->address));
    block->state = PLEAT__BLOCK_DEAD;
    block->right = all->blocks;
    all->blocks = block;
    all->bytes += block->bytes;
    caching->stats.reserved_bytes -= block->bytes;
}

static void detach_idle(pleat__caching *caching, leaving *all, segment *at)
{
    if (pleat__fences_keep(&all->fences, at->pool->stream))
        return;
    if (!caching->options.expandable) {
        if (at->first->state == PLEAT__BLOCK_FREE && at->first->next == NULL)
            detach_segment(caching, all, at);
        return;
    }
    for (pleat__block *block = at->first, *next; block != NULL; block = next) {
        next = block->next;
        /* Without host memory for the pieces the block stays cached. */
        if (block->state == PLEAT__BLOCK_FREE &&
            pleat__caching_reserve_nodes(caching, 3) == PLEAT_OK)
            detach_handles(caching, all, block);
    }
}

/* Nobody says that the GPU is done with it: all is as it was. */
static void take_back(pleat__caching *caching, leaving *all)
{
    for (segment *at = all->segments, *next; at != NULL; at = next) {
        next = at->next;
        link_segment(caching, at);
        pleat__caching_make_free(caching, at->pool, at->first);
    }
    for (pleat__block *at = all->blocks, *next; at != NULL; at = next) {
        next = at->right;
        pleat__caching_join(caching, at->segment->pool, at);
        pleat__caching_make_free(caching, at->segment->pool, at);
    }
    caching->stats.reserved_bytes += all->bytes;
}

/* Under no lock. The memory is the device's again, as with cudaFree; what the driver refuses to
 * unmap is marked by `age`. */
static void unback_all(const pleat__caching *caching, const leaving *all)
{
    for (const segment *at = all->segments; at != NULL; at = at->next)
        (void)pleat__addresses_unback(caching->space, at->address, at->bytes);
    for (pleat__block *at = all->blocks; at != NULL; at = at->right)
        at->age = !pleat__addresses_unback(caching->space, at->address, at->bytes);
    (void)pleat__space_trim(caching->space, 0);
}

/* A block whose memory is gone is UNBACKED, and joined with unbacked neighbours. */
static void make_unbacked(pleat__caching *caching, pleat__block *block)
{
    pool *owner = block->segment->pool;
    block->state = PLEAT__BLOCK_UNBACKED;
    if (block->next != NULL && block->next->state == PLEAT__BLOCK_UNBACKED) {
        unbacked_remove(owner, block->next);
        pleat__caching_join_next(caching, block);
    }
    if (block->previous != NULL && block->previous->state == PLEAT__BLOCK_UNBACKED) {
        block = block->previous;
        unbacked_remove(owner, block);
        pleat__caching_join_next(caching, block);
    }
    unbacked_insert(owner, block);
}

/* A range with nothing behind it goes whole. */
static void drop_empty(pleat__caching *caching)
{
    for (size_t s = caching->stats.segments; s-- > 0;) {
        segment *at = caching->segments[s];
        if (at->first->state != PLEAT__BLOCK_UNBACKED || at->first->next != NULL)
            continue;
        unbacked_remove(at->pool, at->first);
        unlink_segment(caching, at);
        forget_segment(caching, at);
    }
}

/* Returns the bytes that went. */
static uint64_t give_back(pleat__caching *caching, leaving *all)
{
    if (all->bytes == 0) {
        pleat__gate_unfence(caching->gate, &all->fences);
        return 0;
    }
    if (!pleat__gate_leave_fenced(caching->gate, &all->fences)) {
        take_back(caching, all);
        return 0;
    }
    unback_all(caching, all);
    pleat__gate_enter(caching->gate);
    for (segment *at = all->segments, *next; at != NULL; at = next) {
        next = at->next;
        forget_segment(caching, at);
    }
    for (pleat__block *at = all->blocks, *next; at != NULL; at = next) {
        next = at->right;
        at->right = NULL;
        if (at->age == 0)
            make_unbacked(caching, at);
    }
    return all->bytes;
}

uint64_t pleat__caching_release_all(pleat__caching *caching)
{
    leaving all;
    if (!begin_leaving(caching, &all))
        return 0;
    /* From the last on: those that go are taken out meanwhile. */
    for (size_t s = caching->stats.segments; s-- > 0;)
        detach_idle(caching, &all, caching->segments[s]);
    uint64_t released = give_back(caching, &all);
    if (caching->options.expandable)
        drop_empty(caching);
    PLEAT_AUDIT(pleat__caching_audit(caching));
    return released;
}

static bool is_whole(const pleat__block *block)
{
    return block->previous == NULL && block->next == NULL;
}

static pool *large_pool(pleat__caching *caching, pleat_stream stream)
{
    for (pool *at = caching->pools; at != NULL; at = at->next)
        if (at->stream == stream && !at->small)
            return at;
    return NULL;
}

bool pleat__caching_release_large(pleat__caching *caching, uint64_t bytes, pleat_stream stream)
{
    const uint64_t limit = caching->options.max_split_bytes;
    pool *owner = large_pool(caching, stream);
    leaving all;
    if (limit == UINT64_MAX || caching->options.expandable || bytes <= PLEAT__SMALL_LIMIT_BYTES ||
        owner == NULL || !begin_leaving(caching, &all))
        return false;
    bool stays = pleat__fences_keep(&all.fences, stream);
    bytes = bytes < limit ? limit : bytes;
    pleat__block *block = pleat__bins_at_least(&owner->free, bytes, 0);
    if (block != NULL && is_whole(block) && !stays)
        detach_segment(caching, &all, block->segment);
    while (all.bytes < bytes && !stays) {
        block = pleat__bins_last(&owner->free);
        if (block == NULL || block->bytes < limit || !is_whole(block))
            break;
        detach_segment(caching, &all, block->segment);
    }
    uint64_t released = give_back(caching, &all);
    PLEAT_AUDIT(pleat__caching_audit(caching));
    return released >= bytes;
}

static bool is_collectable(const leaving *all, const segment *at)
{
    return !at->pool->small && at->first->state == PLEAT__BLOCK_FREE && at->first->next == NULL &&
           !pleat__fences_keep(&all->fences, at->pool->stream);
}

static uint32_t age_of(const pleat__caching *caching, const segment *at)
{
    return caching->searches[0] - at->first->age;
}

void pleat__caching_collect(pleat__caching *caching)
{
    const pleat__caching_options *options = &caching->options;
    if (options->gc_threshold == 0)
        return;
    uint64_t allowed = (uint64_t)(options->gc_threshold * (double)*options->limit_bytes);
    if (options->expandable || caching->stats.reserved_bytes <= allowed)
        return;
    uint64_t target = caching->stats.reserved_bytes - allowed;
    uint64_t ages = 0, count = 0;
    leaving all;
    if (!begin_leaving(caching, &all))
        return;
    for (size_t s = 0; s < caching->stats.segments; s++) {
        if (is_collectable(&all, caching->segments[s])) {
            ages += age_of(caching, caching->segments[s]);
            count++;
        }
    }
    for (bool any = true; any && count > 0 && all.bytes < target;) {
        /* Not younger than the mean, which need not be a whole number. */
        uint64_t round_ages = ages, round_count = count;
        any = false;
        for (size_t s = caching->stats.segments; s-- > 0 && count > 0;) {
            segment *at = caching->segments[s];
            if (!is_collectable(&all, at) || age_of(caching, at) * round_count < round_ages)
                continue;
            ages -= age_of(caching, at);
            count--;
            detach_segment(caching, &all, at);
            any = true;
        }
    }
    (void)give_back(caching, &all);
}

static bool is_backed(const pleat__block *block)
{
    return block->state == PLEAT__BLOCK_FREE || block->state == PLEAT__BLOCK_LIVE;
}

/* Gives the backed runs of a segment back, whatever lives there, and its range. */
static void empty_segment(pleat__caching *caching, const segment *gone)
{
    for (const pleat__block *block = gone->first; block != NULL;) {
        pleat_va begin = block->address, end = begin;
        for (; block != NULL && is_backed(block); block = block->next)
            end = block->address + block->bytes;
        if (end > begin)
            (void)pleat__addresses_unback(caching->space, begin, end - begin);
        else
            block = block->next;
    }
    pleat__addresses_give(caching->space, gone->address, gone->bytes);
}

void pleat__caching_destroy(pleat__caching *caching)
{
    if (caching == NULL)
        return;
    pleat__arena *arena = caching->arena;
    for (size_t s = 0; s < caching->stats.segments; s++) {
        empty_segment(caching, caching->segments[s]);
        free_segment(caching, caching->segments[s]);
    }
    for (pool *at = caching->pools, *next; at != NULL; at = next) {
        next = at->next;
        pleat__arena_free(arena, at);
    }
    for (block_slab *at = caching->slabs, *next; at != NULL; at = next) {
        next = at->next;
        pleat__arena_free(arena, at);
    }
    pleat__address_map_destroy(&caching->live);
    pleat__arena_free(arena, caching->segments);
    pleat__arena_free(arena, caching);
}
