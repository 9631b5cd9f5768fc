/*
 * policy_gmlake.c: GMLake's allocator: primitive blocks, and stitched ones made of them.
 *
 * After Guo et al., "GMLake" (ASPLOS 2024), sections 3 and 4. A request of 2 MiB and more is
 * rounded up to whole chunks and served (section 4.1, figure 9)
 *
 *   S1  by a free primitive or idle stitched block of exactly its size
 *   S2  by the smallest larger primitive block, cut to size
 *   S3  by several free primitive blocks, stitched: mapped once more, side by side
 *   S4  by what free ones there are and a new one for the rest, stitched
 *   S5  not at all: the runtime's steps of out of memory run, which begin with StitchFree
 *
 * Stitched blocks stay mapped when they are freed, for S1 to find; StitchFree unmaps idle ones, the
 * least recently used first, when there are more of them than the setting `stitched`. Blocks under
 * the setting `fragment` are not stitched (section 4.2.3), so neither is any request under it, of
 * which a single one of the others is enough. What is less than 2 MiB has PyTorch's caching
 * allocator (section 3.1).
 *
 * DEPARTURES  A primitive block is cut within its address range, without a driver call, and its
 *   parts join again when both are free: so S2 has no need of the stitched block that the paper
 *   makes of the two, and `fragment`, which is to save calls, is no limit on cutting: with it jobs
 *   take up to 40 % more. S3 takes the largest blocks first as the paper does, but the last piece
 *   by best fit: largest first to the end destroys the block that the next large request needs. One
 *   access grant a view, not one a chunk; a failed step is undone; no event is made on this path.
 * STREAMS  Blocks serve the stream they were made for.
 */
#include <runtime/baselines/gmlake/gmlake.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <stdio.h>

#define CHUNK_BYTES (2u << 20) /* the paper's; less than one is the caching allocator's (D478) */

/* ---- serving ---- */

static void hand_out_view(policy *self, view *v, uint64_t bytes, pleat_va *address)
{
    v->requested = bytes;
    pleat__gmlake_age_out(self, v);
    pleat__gmlake_make_youngest(self, v);
    pleat__address_map_insert(&self->live, v->address, v);
    self->context.stats->stitched++;
    *address = v->address;
}

static void hand_out_block(policy *self, primitive *block, uint64_t bytes, pleat_va *address)
{
    block->block.requested = bytes;
    self->context.stats->cached++;
    *address = block->block.address;
}

/* S1 for views. */
static pleat_result reuse_view(policy *self, pool *owner, uint64_t size, view **out)
{
    *out = NULL;
    view *at = *bucket_of(self, size);
    while (at != NULL &&
           (at->bytes != size || at->pool != owner || !pleat__gmlake_is_idle(self, at)))
        at = at->next;
    if (at == NULL)
        return PLEAT_OK;
    for (size_t i = 0; i < at->run_count; i++) {
        pleat_result result = pleat__gmlake_carve(self, &at->runs[i]);
        if (result != PLEAT_OK) {
            pleat__gmlake_free_runs(self, at, i);
            return result;
        }
    }
    *out = at;
    return PLEAT_OK;
}

/* S3: takes free primitives of `limit` and more, the largest first, the last by best fit, until
 * `size` is reached or none is left; returns how many, in `v`. `room` is the room of v->runs. */
static size_t gather(pool *owner, uint64_t limit, uint64_t size, view *v, size_t room)
{
    v->bytes = 0;
    v->run_count = 0;
    while (v->bytes < size && v->run_count < room) {
        uint64_t left = size - v->bytes;
        pleat__block *block = pleat__bins_at_least(&owner->free, left > limit ? left : limit, 0);
        block = block != NULL ? block : pleat__bins_last(&owner->free);
        if (block == NULL || block->bytes < limit)
            break;
        pleat__gmlake_take(of_block(block));
        v->runs[v->run_count++] = (run){block->address, block->bytes};
        v->bytes += block->bytes;
    }
    return v->run_count;
}

/* What gather took over the size goes back; `node` is for it. */
static void trim_last(policy *self, uint64_t size, view *v, primitive *node)
{
    run *last = &v->runs[v->run_count - 1];
    uint64_t excess = v->bytes - size;
    pleat__gmlake_cut(self, pleat__address_map_find(&self->blocks, last->address),
                      last->bytes - excess, node);
    last->bytes -= excess;
    v->bytes = size;
}

/* Brings the gathered runs to exactly `size`: by cutting (S3) or by new memory (S4). */
static pleat_result fit(policy *self, pool *owner, uint64_t size, view *v)
{
    primitive *node = NULL;
    if (v->bytes > size) {
        PLEAT_TRY(pleat__gmlake_new_primitive(self, owner, &node));
        trim_last(self, size, v, node);
    } else if (v->bytes < size) {
        PLEAT_TRY(pleat__gmlake_alloc_primitive(self, owner, size - v->bytes, &node));
        v->runs[v->run_count++] = (run){node->block.address, node->block.bytes};
        v->bytes = size;
    }
    return PLEAT_OK;
}

/* S3 and S4. *out is NULL when there was nothing to stitch. */
static pleat_result stitch_free_blocks(policy *self, pool *owner, uint64_t size, view **out)
{
    *out = NULL;
    /* A view has at most as many runs as pages. */
    size_t room = size / self->unit;
    view *v = pleat__arena_calloc(self->context.arena, 1, sizeof *v + (room + 1) * sizeof(run));
    if (v == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to stitch");
    v->pool = owner;
    if (gather(owner, self->context.conf.fragment, size, v, room) == 0) {
        pleat__arena_free(self->context.arena, v);
        return PLEAT_OK;
    }
    pleat_result result = fit(self, owner, size, v);
    if (result == PLEAT_OK)
        result = pleat__gmlake_stitch(self, v);
    if (result == PLEAT_OK) {
        *out = v;
        return PLEAT_OK;
    }
    pleat__gmlake_free_runs(self, v, v->run_count);
    pleat__arena_free(self->context.arena, v);
    return result;
}

/* S1 and S2 for primitives. *out is NULL when none is large enough. */
static pleat_result take_primitive(policy *self, pool *owner, uint64_t size, primitive **out)
{
    pleat__block *block = pleat__bins_at_least(&owner->free, size, 0);
    primitive *node = NULL;
    *out = NULL;
    if (block == NULL)
        return PLEAT_OK;
    if (block->bytes > size)
        PLEAT_TRY(pleat__gmlake_new_primitive(self, owner, &node));
    pleat__gmlake_take(of_block(block));
    if (block->bytes > size)
        pleat__gmlake_cut(self, of_block(block), size, node);
    *out = of_block(block);
    return PLEAT_OK;
}

/* S1 to S5: one of the two. */
static pleat_result serve(policy *self, pool *owner, uint64_t size, view **v, primitive **block)
{
    pleat__block *exact = pleat__bins_at_least(&owner->free, size, 0);
    *v = NULL;
    *block = NULL;
    if (exact == NULL || exact->bytes != size)
        PLEAT_TRY(reuse_view(self, owner, size, v));
    if (*v == NULL)
        PLEAT_TRY(take_primitive(self, owner, size, block));
    if (*v != NULL || *block != NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat__gate_turn(self->context.gate));
    if (size >= self->context.conf.fragment)
        PLEAT_TRY(stitch_free_blocks(self, owner, size, v));
    return *v != NULL ? PLEAT_OK : pleat__gmlake_alloc_primitive(self, owner, size, block);
}

static pleat_result alloc_large(policy *self, uint64_t bytes, pleat_stream stream,
                                pleat_va *address)
{
    uint64_t size = pleat__ceil_div(bytes, self->unit) * self->unit;
    pool *owner = pleat__gmlake_find_pool(self, stream);
    if (owner == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a stream's pool");
    view *v;
    primitive *block;
    PLEAT_TRY(pleat__address_map_promise(&self->live));
    pleat_result result = serve(self, owner, size, &v, &block);
    pleat__address_map_give_up(&self->live);
    PLEAT_TRY(result);
    if (v != NULL)
        hand_out_view(self, v, bytes, address);
    else
        hand_out_block(self, block, bytes, address);
    return PLEAT_OK;
}

static pleat_result alloc(void *opaque, uint64_t bytes, pleat_stream stream, pleat_va *address)
{
    policy *self = opaque;
    if (bytes >= CHUNK_BYTES) {
        PLEAT_TRY(alloc_large(self, bytes, stream, address));
    } else {
        PLEAT_TRY(pleat__caching_alloc(self->small, bytes, stream, address));
        self->context.stats->cached++;
    }
    pleat__count_alloc(self->context.stats, bytes);
    return PLEAT_OK;
}

/* A primitive that was handed out as such, not as a part of a view. */
static primitive *own_block(const policy *self, pleat_va address)
{
    primitive *block = pleat__address_map_find(&self->blocks, address);
    bool own =
        block != NULL && block->block.state == PLEAT__BLOCK_LIVE && block->block.requested != 0;
    return own ? block : NULL;
}

static pleat_result free_address(void *opaque, pleat_va address)
{
    policy *self = opaque;
    uint64_t bytes;
    primitive *block = own_block(self, address);
    view *v = block == NULL ? pleat__address_map_remove(&self->live, address) : NULL;
    if (block != NULL) {
        bytes = block->block.requested;
        block->block.requested = 0;
        pleat__gmlake_free_primitive(self, block);
    } else if (v != NULL) {
        bytes = v->requested;
        v->requested = 0;
        pleat__gmlake_free_runs(self, v, v->run_count);
    } else {
        pleat_result result = pleat__caching_free(self->small, address, &bytes);
        if (result != PLEAT_OK)
            return result;
    }
    pleat__count_free(self->context.stats, bytes);
    return PLEAT_OK;
}

/* ---- questions ---- */

static pleat_result large_block_of(const policy *self, pleat_va address, pleat_block *out)
{
    uint64_t page = page_of(self, address);
    if (address < self->base || page >= pleat__space_pages(self->context.space))
        return PLEAT_E_NOT_FOUND;
    page = pleat__bits_at_most(&self->starts, page);
    const primitive *block =
        page != PLEAT__BITS_NONE ? own_block(self, self->base + page * self->unit) : NULL;
    if (block != NULL && address - block->block.address < block->block.bytes) {
        *out = (pleat_block){block->block.address, block->block.bytes, block->block.requested,
                             block->pool->stream, 1};
        return PLEAT_OK;
    }
    /* Views are few; the youngest is the likeliest. */
    for (const view *v = self->youngest; v != NULL; v = v->older) {
        if (v->requested != 0 && address - v->address < v->bytes) {
            *out = (pleat_block){v->address, v->bytes, v->requested, v->pool->stream, 1};
            return PLEAT_OK;
        }
    }
    return PLEAT_E_NOT_FOUND;
}

static pleat_result block_of(void *opaque, pleat_va address, pleat_block *out)
{
    const policy *self = opaque;
    if (pleat__caching_owns(self->small, address))
        return pleat__caching_block_of(self->small, address, out);
    return large_block_of(self, address, out);
}

/* The first primitive in use at or behind an address, or UINT64_MAX. */
static pleat_va next_primitive(const policy *self, pleat_va address)
{
    uint64_t page = address > self->base ? pleat__ceil_div(address - self->base, self->unit) : 0;
    while ((page = pleat__bits_at_least(&self->starts, page)) != PLEAT__BITS_NONE) {
        pleat_va begin = self->base + page * self->unit;
        if (own_block(self, begin) != NULL)
            return begin;
        page++;
    }
    return UINT64_MAX;
}

static pleat_va next(void *opaque, pleat_va address)
{
    const policy *self = opaque;
    pleat_va found = next_primitive(self, address);
    pleat_va small = pleat__caching_next(self->small, address);
    if (small != 0 && small < found)
        found = small;
    for (const view *v = self->youngest; v != NULL; v = v->older)
        if (v->requested != 0 && v->address >= address && v->address < found)
            found = v->address;
    return found != UINT64_MAX ? found : 0;
}

static uint64_t free_bytes_of(const pleat__block *block)
{
    return block != NULL && block->state == PLEAT__BLOCK_FREE ? block->bytes : 0;
}

/* A view has no neighbours: what is free beside it is other memory. */
static pleat_result adjacent_free(void *opaque, pleat_va address, uint64_t *before, uint64_t *after)
{
    const policy *self = opaque;
    pleat_block found;
    if (pleat__caching_owns(self->small, address))
        return pleat__caching_adjacent_free(self->small, address, before, after);
    pleat_result result = large_block_of(self, address, &found);
    if (result != PLEAT_OK)
        return result;
    const primitive *block = own_block(self, found.address);
    *before = block != NULL ? free_bytes_of(block->block.previous) : 0;
    *after = block != NULL ? free_bytes_of(block->block.next) : 0;
    return PLEAT_OK;
}

/* ---- giving back ---- */

/* Whether a view is mapped over any of it: one that was freed while other views were dropped. */
static bool is_viewed(const policy *self, const pleat__block *block)
{
    pleat__space *space = self->context.space;
    uint64_t page = page_of(self, block->address);
    for (uint64_t p = 0; p < block->bytes / self->unit; p++)
        if (pleat__space_maps(space, pleat__space_chunk_at(space, page + p, NULL)) > 1)
            return true;
    return false;
}

/* All FREE primitives of streams that are fenced, LIVE, linked by `right`: those that can go, and
 * the others. */
static void detach_free(policy *self, const pleat__fences *fences, pleat__block **gone,
                        pleat__block **kept)
{
    *gone = *kept = NULL;
    for (pool *owner = self->pools; owner != NULL; owner = owner->next) {
        if (pleat__fences_keep(fences, owner->stream))
            continue;
        for (pleat__block *at; (at = pleat__bins_last(&owner->free)) != NULL;) {
            pleat__gmlake_take(of_block(at));
            pleat__block **list = is_viewed(self, at) ? kept : gone;
            at->right = *list;
            *list = at;
        }
    }
}

static void free_all(policy *self, pleat__block *blocks)
{
    for (pleat__block *at = blocks, *next; at != NULL; at = next) {
        next = at->right;
        pleat__gmlake_free_primitive(self, of_block(at));
    }
}

static void forget_primitive(policy *self, pleat__block *block)
{
    if (block->previous != NULL)
        block->previous->next = NULL;
    if (block->next != NULL)
        block->next->previous = NULL;
    pleat__gmlake_remove_primitive(self, of_block(block));
}

static bool release_free(policy *self)
{
    pleat__gate *gate = self->context.gate;
    pleat__space *space = self->context.space;
    pleat__block *gone, *kept;
    pleat__fences fences;
    if (!pleat__gate_fence(gate, &fences))
        return false;
    detach_free(self, &fences, &gone, &kept);
    free_all(self, kept);
    if (gone == NULL) {
        pleat__gate_unfence(gate, &fences);
        return false;
    }
    if (!pleat__gate_leave_fenced(gate, &fences)) {
        free_all(self, gone);
        return false;
    }
    for (pleat__block *at = gone; at != NULL; at = at->right) {
        (void)pleat__addresses_unback(space, at->address, at->bytes);
        pleat__addresses_give(space, at->address, at->bytes);
    }
    pleat__gate_enter(gate);
    for (pleat__block *at = gone, *next; at != NULL; at = next) {
        next = at->right;
        forget_primitive(self, at);
    }
    return true;
}

static bool reclaim(void *opaque, pleat__reclaim what, uint64_t bytes, pleat_stream stream)
{
    policy *self = opaque;
    bool given;
    (void)bytes;
    (void)stream;
    switch (what) {
    case PLEAT__RECLAIM_VIEWS:
        return pleat__gmlake_stitch_free(self, 0);
    case PLEAT__RECLAIM_LARGE:
        return false;
    case PLEAT__RECLAIM_CACHES:
        pleat__gmlake_stitch_free(self, 0);
        given = pleat__caching_release_all(self->small) > 0;
        return release_free(self) || given;
    }
    return false;
}

/* Bytes of the free blocks that a view may be made of. */
static uint64_t stitchable(const policy *self, const pool *owner)
{
    uint64_t bytes = 0, limit = self->context.conf.fragment;
    limit = limit > self->unit ? limit : self->unit;
    const pleat__block *at = pleat__bins_at_least(&owner->free, limit, 0);
    for (; at != NULL; at = pleat__bins_at_least(&owner->free, at->bytes, at->address + 1))
        bytes += at->bytes;
    return bytes;
}

static void idle(void *opaque, pleat_stream stream, uint64_t *largest, uint64_t *total)
{
    const policy *self = opaque;
    pleat__caching_stats small = pleat__caching_stats_of(self->small);
    *total = small.reserved_bytes - small.allocated_bytes;
    *largest = pleat__caching_largest(self->small, stream);
    for (const pool *at = self->pools; at != NULL; at = at->next) {
        *total += at->free_bytes;
        if (at->stream != stream)
            continue;
        const pleat__block *last = pleat__bins_last(&at->free);
        uint64_t bytes = last != NULL ? last->bytes : 0, stitched = stitchable(self, at);
        bytes = stitched > bytes ? stitched : bytes;
        *largest = bytes > *largest ? bytes : *largest;
    }
}

static bool audit(void *opaque)
{
    const policy *self = opaque;
    uint64_t binned = 0, binned_bytes = 0, free_count = 0, free_bytes = 0;
    for (const pool *at = self->pools; at != NULL; at = at->next) {
        binned_bytes += at->free_bytes;
        if (!pleat__bins_audit(&at->free, &binned))
            return false;
    }
    for (uint64_t i = 0; i <= self->blocks.mask; i++) {
        const primitive *block = self->blocks.entries[i].value;
        if (block != NULL && block->block.state == PLEAT__BLOCK_FREE) {
            free_count++;
            free_bytes += block->block.bytes;
        }
    }
    if (binned != free_count || binned_bytes != free_bytes) {
        fprintf(stderr, "gmlake: %llu free blocks of %llu bytes, in bins %llu of %llu\n",
                (unsigned long long)free_count, (unsigned long long)free_bytes,
                (unsigned long long)binned, (unsigned long long)binned_bytes);
        return false;
    }
    return pleat__caching_audit(self->small);
}

/* ---- life ---- */

static pleat_result create_parts(policy *self)
{
    pleat__arena *arena = self->context.arena;
    PLEAT_TRY(pleat__address_map_create(arena, &self->blocks));
    PLEAT_TRY(pleat__address_map_create(arena, &self->live));
    PLEAT_TRY(pleat__bits_create(arena, pleat__space_pages(self->context.space), &self->starts));
    return pleat__caching_create(arena, self->context.space, self->context.gate, NULL,
                                 &self->small);
}

/* The space unmaps what is mapped in it, and the arena goes whole: both are the runtime's. */
static void destroy(void *opaque)
{
    policy *self = opaque;
    pleat__caching_destroy(self->small);
    if (self->starts.depth > 0)
        pleat__bits_destroy(self->context.arena, &self->starts);
    pleat__address_map_destroy(&self->live);
    pleat__address_map_destroy(&self->blocks);
    pleat__arena_free(self->context.arena, self);
}

static pleat_result create(const pleat__policy_context *context, void **out)
{
    policy *self = pleat__arena_calloc(context->arena, 1, sizeof *self);
    if (self == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a policy");
    self->context = *context;
    self->unit = pleat__space_page_bytes(context->space);
    self->base = pleat__space_base(context->space);
    pleat_result result = create_parts(self);
    if (result != PLEAT_OK) {
        destroy(self);
        return result;
    }
    *out = self;
    return PLEAT_OK;
}

const pleat__policy_ops pleat__policy_gmlake = {
    .name = "gmlake",
    .create = create,
    .destroy = destroy,
    .alloc = alloc,
    .free = free_address,
    .block_of = block_of,
    .adjacent_free = adjacent_free,
    .next = next,
    .reclaim = reclaim,
    .idle = idle,
    .audit = audit,
};
