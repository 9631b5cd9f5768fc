/*
 * pleat_memory.c: what lies where under the policy `pleat`, what is idle, and how it goes back.
 */
#include <runtime/memory/chunk_set.h>
#include <runtime/memory/views.h>
#include <runtime/policy/pleat_internal.h>

#include <internal/error.h>
#include <stdio.h>

typedef pleat__pleat policy;

pleat_result pleat__pleat_block_of(void *opaque, pleat_va address, pleat_block *block)
{
    policy *self = opaque;
    const pleat__place *entry = pleat__place_map_holding(&self->places, address);
    if (entry == NULL)
        return PLEAT_E_NOT_FOUND;
    uint64_t bytes = (uint64_t)entry->granules << PLEAT__GRANULE_SHIFT;
    *block =
        (pleat_block){.address = entry->address,
                      .bytes = bytes,
                      .requested = bytes - entry->slack,
                      .stream = entry->stream == PLEAT__OVERFLOW
                                    ? pleat__pending_first(self->waiting.pending, entry->address)
                                    : self->heap.streams[entry->stream],
                      .allocated = 1};
    return PLEAT_OK;
}

pleat_result pleat__pleat_adjacent_free(void *opaque, pleat_va address, uint64_t *before,
                                        uint64_t *after)
{
    policy *self = opaque;
    const pleat__place *entry = pleat__place_map_holding(&self->places, address);
    if (entry == NULL)
        return PLEAT_E_NOT_FOUND;
    *before = 0;
    *after = 0;
    if (entry->several == NULL)
        pleat__heap_adjacent(&self->heap, entry->run, before, after);
    return PLEAT_OK;
}

pleat_va pleat__pleat_next(void *opaque, pleat_va address)
{
    policy *self = opaque;
    const pleat__place *entry = pleat__place_map_next(&self->places, address);
    return entry == NULL ? 0 : entry->address;
}

bool pleat__pleat_shrink(policy *self, uint32_t chunks)
{
    return pleat__heap_shrink(&self->heap, chunks) > 0;
}

bool pleat__pleat_reclaim(void *opaque, pleat__reclaim what, uint64_t bytes, pleat_stream stream)
{
    policy *self = opaque;
    (void)stream;
    switch (what) {
    case PLEAT__RECLAIM_VIEWS: {
        bool swept = pleat__layouts_sweep(&self->learner.layouts);
        return pleat__heap_drop_views(&self->heap, 0, 0) || swept;
    }
    case PLEAT__RECLAIM_LARGE:
        return pleat__pleat_shrink(self, (uint32_t)pleat__ceil_div(bytes, self->pool.page_bytes));
    case PLEAT__RECLAIM_CACHES:
        return pleat__pleat_shrink(self, UINT32_MAX);
    }
    return false;
}

uint64_t pleat__pleat_rest(void *opaque, uint64_t keep_bytes)
{
    policy *self = opaque;
    uint64_t bytes = pleat__rest_idle(&self->heap, keep_bytes);
    pleat__rest_join(&self->heap, self->learner.current != NULL);
    return bytes;
}

/* ---- what is spared ---- */

static pleat_result need(pleat__chunk_set *needed, const pleat__place *place)
{
    return place != NULL && place->granules != 0 ? pleat__chunk_set_add(needed, place) : PLEAT_OK;
}

static pleat_result need_lane(pleat__chunk_set *needed, const pleat__lane_space *lane)
{
    pleat__runs runs = {.runs = lane->runs, .count = lane->run_count, .granules = lane->granules};
    pleat__place place = {.several = &runs, .granules = lane->granules};
    return lane->gone ? PLEAT_OK : need(needed, &place);
}

/* The chunks on which a schedule has something lie at some time of its iteration. */
static pleat_result list_needed(const pleat__schedule *schedule, pleat__chunk_set *needed)
{
    for (uint32_t i = 0; i < schedule->count; i++) {
        PLEAT_TRY(need(needed, &schedule->items[i].place));
        PLEAT_TRY(need(needed, pleat__schedule_second(schedule, i)));
    }
    for (uint32_t l = 0; l < schedule->lane_count; l++)
        PLEAT_TRY(need_lane(needed, &schedule->lanes[l]));
    return PLEAT_OK;
}

/* What the last iteration took outside of the schedule stays for the next one. */
uint64_t pleat__pleat_spare(void *opaque)
{
    policy *self = opaque;
    pleat__chunk_set needed;
    if (self->learner.current == NULL)
        return 0;
    pleat__chunk_set_init(&needed, self->arena, self->pool.occupancy.shift);
    uint64_t bytes = list_needed(self->learner.current, &needed) == PLEAT_OK
                         ? pleat__rest_spared(&self->heap, &needed, self->strayed)
                         : 0;
    pleat__chunk_set_release(&needed);
    pleat__rest_join(&self->heap, self->learner.current != NULL);
    return bytes;
}

pleat_result pleat__pleat_hold(void *opaque)
{
    policy *self = opaque;
    return pleat__rest_hold(&self->heap);
}

void pleat__pleat_let_go(void *opaque)
{
    policy *self = opaque;
    pleat__rest_let_go(&self->heap);
}

size_t pleat__pleat_rested(void *opaque, pleat__chunk **listed)
{
    policy *self = opaque;
    return pleat__rest_regroup(&self->heap, self->learner.current != NULL, listed);
}

void pleat__pleat_leave(void *opaque, const void *list, uint64_t runs, void (*give)(void *context),
                        void *context)
{
    policy *self = opaque;
    pleat__rest_leave(&self->heap, list, runs, give, context);
}

void pleat__pleat_idle(void *opaque, pleat_stream stream, uint64_t *largest, uint64_t *total)
{
    policy *self = opaque;
    *largest = 0;
    *total = 0;
    pleat__heap_idle(&self->heap, pleat__heap_stream(&self->heap, stream), largest, total);
}

uint64_t pleat__pleat_most(void *opaque, pleat_stream stream, uint64_t new_bytes)
{
    policy *self = opaque;
    return pleat__stitch_most(&self->heap, pleat__heap_stream(&self->heap, stream), new_bytes);
}

/* Allocations, their granules, and how many of them lie in views of the heap's. */
typedef struct live_places {
    uint32_t count;
    uint64_t granules, in_views;
} live_places;

static bool count_live(void *context, pleat__place *entry)
{
    live_places *live = context;
    live->count++;
    live->granules += entry->granules;
    live->in_views += entry->several != NULL && entry->several->view != NULL;
    return true;
}

bool pleat__pleat_audit(policy *self)
{
    live_places live = {0};
    if (!pleat__chunks_audit(&self->pool) || !pleat__heap_audit(&self->heap))
        return false;
    /* What another thread has reserved for its verbs is in use, and nobody's yet. */
    if (pleat__gate_turn_is_taken(self->pool.gate))
        return true;
    (void)pleat__place_map_each(&self->places, count_live, &live);
    if (live.count != self->places.count) {
        fprintf(stderr, "pleat: %u allocations counted, %u found\n", self->places.count,
                live.count);
        return false;
    }
    return pleat__used_audit(&self->pool, live.granules) &&
           pleat__views_audit(&self->heap, self->learner.schedule != NULL,
                              pleat__layouts_view_pages(&self->learner.layouts), live.in_views);
}
