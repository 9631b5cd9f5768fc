/*
 * gmlake_blocks.c: primitive blocks and views of GMLake's allocator: making, cutting, joining,
 * mapping, dropping. See policy_gmlake.c.
 */
#include <runtime/baselines/gmlake/gmlake.h>

#include <internal/check.h>
#include <internal/error.h>

/* Pages: the driver takes some 520,000 maps, a host process 65,530 (D478). */
#define STITCHED_MOST 65536u

/* ---- primitives ---- */

pool *pleat__gmlake_find_pool(policy *self, pleat_stream stream)
{
    for (pool *at = self->pools; at != NULL; at = at->next)
        if (at->stream == stream)
            return at;
    pool *added = pleat__arena_calloc(self->context.arena, 1, sizeof *added);
    if (added == NULL)
        return NULL;
    added->stream = stream;
    added->next = self->pools;
    return self->pools = added;
}

pleat_result pleat__gmlake_new_primitive(policy *self, pool *owner, primitive **out)
{
    PLEAT_TRY(pleat__address_map_reserve(&self->blocks));
    primitive *made = pleat__arena_calloc(self->context.arena, 1, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a block");
    made->pool = owner;
    *out = made;
    return PLEAT_OK;
}

static void add_primitive(policy *self, primitive *added, pleat_va address, uint64_t bytes)
{
    added->block.address = address;
    added->block.bytes = bytes;
    added->block.state = PLEAT__BLOCK_LIVE;
    pleat__address_map_insert(&self->blocks, address, added);
    pleat__bits_set(&self->starts, page_of(self, address));
}

void pleat__gmlake_remove_primitive(policy *self, primitive *gone)
{
    pleat__address_map_remove(&self->blocks, gone->block.address);
    pleat__bits_clear(&self->starts, page_of(self, gone->block.address));
    pleat__arena_free(self->context.arena, gone);
}

static void make_free(primitive *block)
{
    block->block.state = PLEAT__BLOCK_FREE;
    block->pool->free_bytes += block->block.bytes;
    pleat__bins_insert(&block->pool->free, &block->block);
}

void pleat__gmlake_take(primitive *block)
{
    pleat__bins_remove(&block->pool->free, &block->block);
    block->pool->free_bytes -= block->block.bytes;
    block->block.state = PLEAT__BLOCK_LIVE;
}

void pleat__gmlake_cut(policy *self, primitive *block, uint64_t bytes, primitive *node)
{
    pleat__block *front = &block->block, *rest = &node->block;
    add_primitive(self, node, front->address + bytes, front->bytes - bytes);
    rest->previous = front;
    rest->next = front->next;
    if (rest->next != NULL)
        rest->next->previous = rest;
    front->next = rest;
    front->bytes = bytes;
    make_free(node);
}

static void absorb_next(policy *self, primitive *block)
{
    pleat__block *next = block->block.next;
    block->block.bytes += next->bytes;
    block->block.next = next->next;
    if (next->next != NULL)
        next->next->previous = &block->block;
    pleat__gmlake_remove_primitive(self, of_block(next));
}

void pleat__gmlake_free_primitive(policy *self, primitive *block)
{
    pleat__block *next = block->block.next, *previous = block->block.previous;
    if (next != NULL && next->state == PLEAT__BLOCK_FREE) {
        pleat__gmlake_take(of_block(next));
        absorb_next(self, block);
    }
    if (previous != NULL && previous->state == PLEAT__BLOCK_FREE) {
        pleat__gmlake_take(of_block(previous));
        absorb_next(self, of_block(previous));
        block = of_block(previous);
    }
    make_free(block);
}

pleat_result pleat__gmlake_alloc_primitive(policy *self, pool *owner, uint64_t bytes,
                                           primitive **out)
{
    pleat__gate *gate = self->context.gate;
    pleat__space *space = self->context.space;
    primitive *made = NULL;
    pleat_va address;
    PLEAT_TRY(pleat__gmlake_new_primitive(self, owner, &made));
    pleat_result result = pleat__address_map_promise(&self->blocks);
    if (result != PLEAT_OK)
        goto no_room;
    result = pleat__addresses_take(space, bytes, &address);
    if (result != PLEAT_OK)
        goto no_range;
    pleat__gate_leave(gate);
    result = pleat__addresses_back(space, address, bytes, self->unit);
    pleat__gate_enter(gate);
    if (result != PLEAT_OK)
        goto no_memory;
    pleat__address_map_give_up(&self->blocks);
    add_primitive(self, made, address, bytes);
    *out = made;
    return PLEAT_OK;
no_memory:
    pleat__addresses_give(space, address, bytes);
no_range:
    pleat__address_map_give_up(&self->blocks);
no_room:
    pleat__arena_free(self->context.arena, made);
    return result;
}

/* ---- views ---- */

void pleat__gmlake_age_out(policy *self, view *v)
{
    *(v->older != NULL ? &v->older->younger : &self->oldest) = v->younger;
    *(v->younger != NULL ? &v->younger->older : &self->youngest) = v->older;
}

void pleat__gmlake_make_youngest(policy *self, view *v)
{
    v->younger = NULL;
    v->older = self->youngest;
    *(v->older != NULL ? &v->older->younger : &self->oldest) = v;
    self->youngest = v;
}

/* The FREE primitive that holds all of a run, or NULL. */
static primitive *free_around(const policy *self, const run *r)
{
    uint64_t page = pleat__bits_at_most(&self->starts, page_of(self, r->address));
    if (page == PLEAT__BITS_NONE)
        return NULL;
    primitive *found = pleat__address_map_find(&self->blocks, self->base + page * self->unit);
    const pleat__block *block = &found->block;
    bool holds =
        block->state == PLEAT__BLOCK_FREE && r->address + r->bytes <= block->address + block->bytes;
    return holds ? found : NULL;
}

bool pleat__gmlake_is_idle(const policy *self, const view *v)
{
    if (v->requested != 0)
        return false;
    for (size_t i = 0; i < v->run_count; i++)
        if (free_around(self, &v->runs[i]) == NULL)
            return false;
    return true;
}

pleat_result pleat__gmlake_carve(policy *self, const run *r)
{
    primitive *around = free_around(self, r), *front = NULL, *back = NULL;
    uint64_t head = r->address - around->block.address;
    uint64_t tail = around->block.bytes - head - r->bytes;
    if (tail > 0)
        PLEAT_TRY(pleat__gmlake_new_primitive(self, around->pool, &back));
    pleat_result result = PLEAT_OK;
    /* The table makes room for one at a time. */
    pleat__gmlake_take(around);
    if (tail > 0)
        pleat__gmlake_cut(self, around, head + r->bytes, back);
    if (head > 0)
        result = pleat__gmlake_new_primitive(self, around->pool, &front);
    if (result != PLEAT_OK) {
        pleat__gmlake_free_primitive(self, around);
    } else if (head > 0) {
        pleat__gmlake_cut(self, around, head, front);
        pleat__gmlake_take(front);
        make_free(around);
    }
    return result;
}

void pleat__gmlake_free_runs(policy *self, const view *v, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        primitive *block = pleat__address_map_find(&self->blocks, v->runs[i].address);
        PLEAT_CHECK(block != NULL && block->block.bytes == v->runs[i].bytes);
        pleat__gmlake_free_primitive(self, block);
    }
}

static void attach_view(policy *self, view *v)
{
    view **bucket = bucket_of(self, v->bytes);
    v->next = *bucket;
    *bucket = v;
    pleat__gmlake_make_youngest(self, v);
    self->stitched_pages += v->bytes / self->unit;
}

static void detach_view(policy *self, view *gone)
{
    view **at = bucket_of(self, gone->bytes);
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    pleat__gmlake_age_out(self, gone);
    self->stitched_pages -= gone->bytes / self->unit;
}

/* Under no lock. What the driver refuses to unmap the space quarantines: there is nothing more to
 * do here. */
static void unmap_view(const policy *self, const view *gone)
{
    uint64_t page = page_of(self, gone->address), pages = gone->bytes / self->unit;
    (void)!pleat__space_unmap(self->context.space, page, pages);
    pleat__space_give(self->context.space, page, pages);
}

bool pleat__gmlake_stitch_free(policy *self, uint64_t keep)
{
    view *gone = NULL;
    pleat__fences fences;
    if (self->stitched_pages <= keep || !pleat__gate_fence(self->context.gate, &fences))
        return false;
    for (view *at = self->oldest, *next; at != NULL && self->stitched_pages > keep; at = next) {
        next = at->younger;
        /* Its addresses may still be in use by the stream that it was freed on. */
        if (at->requested != 0 || pleat__fences_keep(&fences, at->pool->stream))
            continue;
        detach_view(self, at);
        at->next = gone;
        gone = at;
    }
    if (gone == NULL) {
        pleat__gate_unfence(self->context.gate, &fences);
        return false;
    }
    bool settled = pleat__gate_leave_fenced(self->context.gate, &fences);
    for (view *at = gone; settled && at != NULL; at = at->next)
        unmap_view(self, at);
    if (settled)
        pleat__gate_enter(self->context.gate);
    for (view *at = gone, *next; at != NULL; at = next) {
        next = at->next;
        if (settled)
            pleat__arena_free(self->context.arena, at);
        else
            attach_view(self, at);
    }
    return settled;
}

static void collect_chunks(const policy *self, const view *v, pleat__chunk **chunks)
{
    for (size_t i = 0; i < v->run_count; i++) {
        uint64_t page = page_of(self, v->runs[i].address);
        for (uint64_t p = 0; p < v->runs[i].bytes / self->unit; p++) {
            uint32_t inside;
            *chunks = pleat__space_chunk_at(self->context.space, page + p, &inside);
            PLEAT_CHECK(*chunks++ != NULL && inside == 0);
        }
    }
}

/* Maps the runs of `v` side by side. */
static pleat_result map_view(policy *self, view *v)
{
    pleat__space *space = self->context.space;
    uint64_t pages = v->bytes / self->unit, page;
    pleat__chunk **chunks = pleat__arena_alloc(self->context.arena, pages * sizeof(void *));
    if (chunks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to stitch");
    collect_chunks(self, v, chunks);
    pleat_result result = pleat__space_take(space, pages, &page);
    if (result == PLEAT_OK) {
        pleat__gate_leave(self->context.gate);
        result = pleat__space_map(space, page, chunks, pages);
        pleat__gate_enter(self->context.gate);
        if (result != PLEAT_OK)
            pleat__space_give(space, page, pages);
    }
    pleat__arena_free(self->context.arena, chunks);
    if (result == PLEAT_OK)
        v->address = self->base + page * self->unit;
    return result;
}

pleat_result pleat__gmlake_stitch(policy *self, view *v)
{
    uint64_t pages = v->bytes / self->unit, most = self->context.conf.stitched / self->unit;
    most = most < STITCHED_MOST ? most : STITCHED_MOST;
    if (self->stitched_pages + pages > most)
        pleat__gmlake_stitch_free(self, most > pages ? most - pages : 0);
    pleat_result result = map_view(self, v);
    /* The limit on maps was met sooner. */
    if (result == PLEAT_E_LIMIT && pleat__gmlake_stitch_free(self, 0))
        result = map_view(self, v);
    PLEAT_TRY(result);
    attach_view(self, v);
    return PLEAT_OK;
}
