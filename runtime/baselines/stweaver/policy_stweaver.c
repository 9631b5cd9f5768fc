/*
 * policy_stweaver.c: STWeaver's runtime: a static pool that the plan fills, its idle stretches for
 * dynamic requests, and a caching allocator for the rest.
 *
 * After the STWeaver paper, section 6: the pool is one contiguous range, resident from the start; a
 * request that the plan knows goes to its place when that is free now; a dynamic one to a stretch
 * of the pool that no planned tensor uses during its whole window (Dynamic Reusable Space), the
 * smallest that has room now; everything else to the caching allocator. Without a plan, of a job in
 * which no iteration was found, there is no pool, and that one serves all. No virtual memory trick:
 * a plan that was folded is refused.
 *
 * DEPARTURES  Requests are matched by size and order with resync (matcher.h), where the original
 *   matches by position and never finds its place again. The stretches of a window are the plan's
 *   table (plan/stweaver/reuse.h). A slot that is busy costs a cached request, not an
 *   overlap. Dynamic requests use the pool only where the plan has one stream: it is reused in host
 *   order.
 */
#include <runtime/base/bitset.h>
#include <runtime/base/policy.h>
#include <runtime/baselines/torch/addresses.h>
#include <runtime/baselines/torch/caching.h>
#include <runtime/follow/matcher.h>
#include <runtime/memory/occupancy.h>
#include <runtime/memory/place_map.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <plan/base/plan.h>
#include <stdio.h>
#include <stdlib.h>

#define HANDLE_BYTES (1ull << 30) /* of the pool: costs as much to map as one chunk (D478) */

/* Granules of the pool that are idle during a window; the smallest stretch first. */
typedef struct window {
    pleat__run *idle;
    uint32_t idle_count;
} window;

typedef struct policy {
    pleat__policy_context context;
    pleat__caching *caching;
    uint64_t unit;
    pleat_va base; /* of the pool */
    uint64_t pool_bytes;
    uint64_t used_granules;
    pleat__expected *items;
    uint32_t item_count;
    uint32_t first_count; /* items before the iteration */
    window *windows;
    uint32_t window_count;
    pleat__matcher matcher;
    pleat__occupancy occupancy;
    pleat__place_map placed; /* live in the pool */
    pleat__bits starts;      /* granules at which one of those begins */
    /* A request that the pool had no place for and that was refused comes again when memory has
     * been given back: it is not matched twice, unless a mark has passed. */
    uint64_t refused_bytes; /* 0: none */
    uint16_t refused_stream;
} policy;

static uint64_t granules_of(uint64_t bytes)
{
    return pleat__ceil_div(bytes, PLEAT__GRANULE_BYTES);
}

/* Granules of the pool are numbered in 32 bits; sums of two numbers are, too. */
#define POOL_MOST ((uint64_t)INT32_MAX * PLEAT__GRANULE_BYTES)

/* Makes the pool reach up to a byte. */
static pleat_result extend_pool(policy *self, uint64_t end)
{
    uint64_t bytes;
    if (!pleat__round_up(end, self->unit, &bytes) || bytes > POOL_MOST)
        return pleat__fail(
            PLEAT_E_LIMIT,
            "stweaver keeps its plan in one pool of at most %llu bytes, and the plan "
            "reaches up to byte %llu",
            (unsigned long long)POOL_MOST, (unsigned long long)end);
    self->pool_bytes = bytes > self->pool_bytes ? bytes : self->pool_bytes;
    return PLEAT_OK;
}

/* ---- loading the plan ---- */

static const pleat__slot *slot_at(const policy *self, uint32_t item)
{
    const pleat_plan *plan = self->context.plan;
    return item < self->first_count ? &plan->first.slots[item]
                                    : &plan->steady.slots[item - self->first_count];
}

static bool is_placed(const pleat__slot *slot)
{
    return slot->class != PLEAT__CLASS_DYNAMIC && slot->place != PLEAT__NOWHERE && slot->size > 0;
}

/* Items and the pool's size. */
static pleat_result load_items(policy *self)
{
    const pleat_plan *plan = self->context.plan;
    uint64_t count = (uint64_t)plan->first.slot_count + plan->steady.slot_count;
    self->first_count = plan->first.slot_count;
    if (count >= PLEAT__NO_ITEM)
        return pleat__fail(PLEAT_E_LIMIT, "a plan of %llu requests", (unsigned long long)count);
    self->item_count = (uint32_t)count;
    self->items = pleat__arena_calloc(self->context.arena, count, sizeof *self->items);
    if (self->items == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow a plan");
    for (uint32_t i = 0; i < self->item_count; i++) {
        const pleat__slot *slot = slot_at(self, i);
        pleat__expected *item = &self->items[i];
        *item =
            (pleat__expected){.bytes = slot->size, .lane = PLEAT__NO_LANE, .stream = slot->stream};
        item->kind = slot->class == PLEAT__CLASS_DYNAMIC ? PLEAT__ITEM_DYNAMIC
                     : is_placed(slot)                   ? PLEAT__ITEM_SLOT
                                                         : PLEAT__ITEM_LOOSE;
        if (item->kind != PLEAT__ITEM_SLOT)
            continue;
        uint64_t granules = granules_of(slot->size);
        PLEAT_TRY(extend_pool(self, slot->place + granules * PLEAT__GRANULE_BYTES));
        item->place.granules = (uint32_t)granules;
        item->place.run =
            (pleat__run){(uint32_t)(slot->place / PLEAT__GRANULE_BYTES), item->place.granules};
    }
    return PLEAT_OK;
}

/* The windows' stretches, from the plan's table; each dynamic item's `lane` is its window. The plan
 * was verified: rows are in order of window, and within the pool's pages. */
static pleat_result load_windows(policy *self)
{
    const pleat_plan *plan = self->context.plan;
    const pleat__sequence *steady = &plan->steady;
    if (plan->reusable_count == 0)
        return PLEAT_OK;
    self->window_count = plan->reusable[plan->reusable_count - 1].window + 1;
    self->windows =
        pleat__arena_calloc(self->context.arena, self->window_count, sizeof *self->windows);
    pleat__run *idle = pleat__arena_alloc(self->context.arena, plan->reusable_count * sizeof *idle);
    if (self->windows == NULL || idle == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u windows", self->window_count);
    for (uint32_t i = 0; i < plan->reusable_count; i++) {
        const pleat__reusable *row = &plan->reusable[i];
        window *w = &self->windows[row->window];
        PLEAT_TRY(extend_pool(self, row->place + row->bytes));
        idle[i] = (pleat__run){(uint32_t)(row->place / PLEAT__GRANULE_BYTES),
                               (uint32_t)(row->bytes / PLEAT__GRANULE_BYTES)};
        w->idle = w->idle_count == 0 ? &idle[i] : w->idle;
        w->idle_count++;
    }
    for (uint32_t i = 0; i < steady->slot_count; i++)
        if (steady->slots[i].class == PLEAT__CLASS_DYNAMIC &&
            steady->slots[i].window < self->window_count)
            self->items[self->first_count + i].lane = steady->slots[i].window;
    return PLEAT_OK;
}

/* The pool, resident whole. */
static pleat_result back_pool(policy *self)
{
    pleat__space *space = self->context.space;
    if (self->pool_bytes == 0)
        return PLEAT_OK;
    PLEAT_TRY(pleat__addresses_take(space, self->pool_bytes, &self->base));
    uint64_t whole = self->pool_bytes / HANDLE_BYTES * HANDLE_BYTES;
    if (whole > 0)
        PLEAT_TRY(pleat__addresses_back(space, self->base, whole, HANDLE_BYTES));
    uint64_t rest = self->pool_bytes - whole;
    return rest > 0 ? pleat__addresses_back(space, self->base + whole, rest, rest) : PLEAT_OK;
}

/* ---- serving ---- */

static uint16_t stream_index(const policy *self, pleat_stream stream)
{
    const pleat_plan *plan = self->context.plan;
    for (uint32_t i = 0; plan != NULL && i < plan->stream_count; i++)
        if (plan->streams[i] == stream)
            return (uint16_t)i;
    return UINT16_MAX;
}

/* Occupies a run of the pool for a request. */
static bool take_run(policy *self, pleat__run run, uint64_t bytes, uint16_t stream,
                     pleat_va *address)
{
    if (!pleat__occupancy_take(&self->occupancy, run))
        return false;
    pleat__place place = {.address = self->base + (uint64_t)run.begin * PLEAT__GRANULE_BYTES,
                          .run = run,
                          .granules = run.count};
    place.slack = (uint32_t)((uint64_t)run.count * PLEAT__GRANULE_BYTES - bytes);
    place.stream = stream & 63u;
    pleat__place_map_insert(&self->placed, &place);
    pleat__bits_set(&self->starts, run.begin);
    self->used_granules += run.count;
    *address = place.address;
    return true;
}

typedef struct search {
    pleat__run within;
    uint64_t granules;
    pleat__run best; /* count 0: none yet */
} search;

static pleat_result consider(void *context, pleat__run run)
{
    search *s = context;
    uint32_t begin = run.begin > s->within.begin ? run.begin : s->within.begin;
    uint32_t end = run.begin + run.count, stop = s->within.begin + s->within.count;
    end = end < stop ? end : stop;
    if (end > begin && end - begin >= s->granules &&
        (s->best.count == 0 || end - begin < s->best.count))
        s->best = (pleat__run){begin, end - begin};
    return PLEAT_OK;
}

/* A dynamic request in an idle stretch of its window: the smallest stretch with room, and in it the
 * smallest free run. */
static bool reuse(policy *self, const window *w, uint64_t bytes, uint16_t stream, pleat_va *address)
{
    search s = {.granules = granules_of(bytes)};
    for (uint32_t i = 0; i < w->idle_count && s.best.count == 0; i++) {
        s.within = w->idle[i];
        uint32_t first = s.within.begin >> self->occupancy.shift;
        uint32_t last = (s.within.begin + s.within.count - 1) >> self->occupancy.shift;
        if (s.within.count >= s.granules)
            (void)pleat__occupancy_walk_free(&self->occupancy, first, last + 1, NULL, consider, &s);
    }
    return s.best.count != 0 &&
           take_run(self, (pleat__run){s.best.begin, (uint32_t)s.granules}, bytes, stream, address);
}

/* From the pool, by the plan; false: it cannot serve this one. A stream that the plan does not know
 * gets none of it: the pool's memory goes from request to request without an event. */
static bool serve_planned(policy *self, uint64_t bytes, uint16_t stream, pleat_va *address)
{
    pleat_stats *stats = self->context.stats;
    if (self->item_count == 0)
        return false;
    if (stream > 63) {
        stats->diverged++;
        return false;
    }
    uint32_t at = pleat__matcher_next(&self->matcher, bytes, stream);
    if (at == PLEAT__NO_ITEM) {
        stats->diverged++;
        return false;
    }
    const pleat__expected *item = &self->items[at];
    if (item->kind == PLEAT__ITEM_SLOT) {
        bool taken = take_run(self, item->place.run, bytes, stream, address);
        stats->planned += taken;
        stats->planned_bytes += taken ? bytes : 0;
        stats->slot_busy += !taken;
        return taken;
    }
    bool reused = item->kind == PLEAT__ITEM_DYNAMIC && item->lane != PLEAT__NO_LANE &&
                  reuse(self, &self->windows[item->lane], bytes, stream, address);
    stats->lane += reused;
    stats->lane_bytes += reused ? bytes : 0;
    return reused;
}

static pleat_result alloc(void *opaque, uint64_t bytes, pleat_stream stream, pleat_va *address)
{
    policy *self = opaque;
    uint16_t index = stream_index(self, stream);
    PLEAT_TRY(pleat__place_map_reserve(&self->placed));
    bool again = self->refused_bytes == bytes && self->refused_stream == index;
    self->refused_bytes = 0;
    if (again || !serve_planned(self, bytes, index, address)) {
        pleat_result result = pleat__caching_alloc(self->caching, bytes, stream, address);
        if (result != PLEAT_OK) {
            self->refused_bytes = bytes;
            self->refused_stream = index;
            return result;
        }
        self->context.stats->cached++;
    }
    pleat__count_alloc(self->context.stats, bytes);
    return PLEAT_OK;
}

static uint64_t requested(const pleat__place *place)
{
    return (uint64_t)place->granules * PLEAT__GRANULE_BYTES - place->slack;
}

static pleat_result free_address(void *opaque, pleat_va address)
{
    policy *self = opaque;
    uint64_t bytes;
    pleat__place *place = pleat__place_map_find(&self->placed, address);
    if (place != NULL) {
        bytes = requested(place);
        pleat__occupancy_give(&self->occupancy, place->run);
        pleat__bits_clear(&self->starts, place->run.begin);
        self->used_granules -= place->granules;
        pleat__place_map_remove(&self->placed, place);
    } else {
        pleat_result result = pleat__caching_free(self->caching, address, &bytes);
        if (result != PLEAT_OK)
            return result;
    }
    pleat__count_free(self->context.stats, bytes);
    return PLEAT_OK;
}

/* ---- questions ---- */

/* What lives around an address of the pool, or NULL. */
static const pleat__place *place_around(const policy *self, pleat_va address)
{
    if (address - self->base >= self->pool_bytes)
        return NULL;
    uint64_t granule = (address - self->base) / PLEAT__GRANULE_BYTES;
    granule = pleat__bits_at_most(&self->starts, granule);
    if (granule == PLEAT__BITS_NONE)
        return NULL;
    const pleat__place *place =
        pleat__place_map_find(&self->placed, self->base + granule * PLEAT__GRANULE_BYTES);
    uint64_t bytes = (uint64_t)place->granules * PLEAT__GRANULE_BYTES;
    return address - place->address < bytes ? place : NULL;
}

static pleat_result block_of(void *opaque, pleat_va address, pleat_block *block)
{
    const policy *self = opaque;
    const pleat__place *place = place_around(self, address);
    if (place == NULL)
        return pleat__caching_block_of(self->caching, address, block);
    pleat_stream stream = place->stream < self->context.plan->stream_count
                              ? self->context.plan->streams[place->stream]
                              : 0;
    *block = (pleat_block){place->address, (uint64_t)place->granules * PLEAT__GRANULE_BYTES,
                           requested(place), stream, 1};
    return PLEAT_OK;
}

/* Free bytes of the pool before and behind; at most a chunk on each side is looked at. */
static pleat_va next(void *opaque, pleat_va address)
{
    const policy *self = opaque;
    uint64_t from =
        address > self->base ? pleat__ceil_div(address - self->base, PLEAT__GRANULE_BYTES) : 0;
    uint64_t granule = pleat__bits_at_least(&self->starts, from);
    pleat_va placed = granule != PLEAT__BITS_NONE ? self->base + granule * PLEAT__GRANULE_BYTES : 0;
    pleat_va cached = pleat__caching_next(self->caching, address);
    return placed == 0 || (cached != 0 && cached < placed) ? cached : placed;
}

static pleat_result adjacent_free(void *opaque, pleat_va address, uint64_t *before, uint64_t *after)
{
    const policy *self = opaque;
    const pleat__place *place = place_around(self, address);
    if (place == NULL)
        return pleat__caching_adjacent_free(self->caching, address, before, after);
    uint32_t begin = place->run.begin, end = begin + place->run.count, low = begin, high = end;
    uint32_t limit = (uint32_t)granules_of(self->pool_bytes), look = self->occupancy.full;
    while (low > 0 && begin - low < look &&
           pleat__occupancy_is_free(&self->occupancy, (pleat__run){low - 1, 1}))
        low--;
    while (high < limit && high - end < look &&
           pleat__occupancy_is_free(&self->occupancy, (pleat__run){high, 1}))
        high++;
    *before = (uint64_t)(begin - low) * PLEAT__GRANULE_BYTES;
    *after = (uint64_t)(high - end) * PLEAT__GRANULE_BYTES;
    return PLEAT_OK;
}

/* The pool itself stays. */
static bool reclaim(void *opaque, pleat__reclaim what, uint64_t bytes, pleat_stream stream)
{
    policy *self = opaque;
    (void)bytes;
    (void)stream;
    return what == PLEAT__RECLAIM_CACHES && pleat__caching_release_all(self->caching) > 0;
}

static void idle(void *opaque, pleat_stream stream, uint64_t *largest, uint64_t *total)
{
    const policy *self = opaque;
    pleat__caching_stats stats = pleat__caching_stats_of(self->caching);
    *largest = pleat__caching_largest(self->caching, stream);
    *total = stats.reserved_bytes - stats.allocated_bytes + self->pool_bytes -
             self->used_granules * PLEAT__GRANULE_BYTES;
}

static pleat_result mark(void *opaque)
{
    policy *self = opaque;
    self->refused_bytes = 0;
    if (self->item_count > 0)
        pleat__matcher_mark(&self->matcher);
    return PLEAT_OK;
}

static bool add_granules(void *used, pleat__place *place)
{
    *(uint64_t *)used += place->granules;
    return true;
}

static bool audit(void *opaque)
{
    const policy *self = opaque;
    uint64_t used = 0;
    (void)pleat__place_map_each(&self->placed, add_granules, &used);
    if (used != self->used_granules) {
        fprintf(stderr, "stweaver: %llu granules in use, counted as %llu\n",
                (unsigned long long)used, (unsigned long long)self->used_granules);
        return false;
    }
    return pleat__occupancy_audit(&self->occupancy) && pleat__caching_audit(self->caching);
}

/* ---- life ---- */

static pleat_result create_parts(policy *self)
{
    pleat__arena *arena = self->context.arena;
    PLEAT_TRY(pleat__caching_create(arena, self->context.space, self->context.gate, NULL,
                                    &self->caching));
    if (self->context.plan != NULL) {
        PLEAT_TRY(load_items(self));
        PLEAT_TRY(load_windows(self));
    }
    uint32_t units = (uint32_t)(self->pool_bytes / self->unit) + 1;
    PLEAT_TRY(pleat__occupancy_init(&self->occupancy, arena, self->unit, units));
    PLEAT_TRY(pleat__occupancy_grow(&self->occupancy, units));
    PLEAT_TRY(pleat__place_map_init(&self->placed, arena, 0, 0));
    PLEAT_TRY(
        pleat__bits_create(arena, self->pool_bytes / PLEAT__GRANULE_BYTES + 1, &self->starts));
    if (self->item_count > 0) {
        PLEAT_TRY(pleat__matcher_init(&self->matcher, arena, self->items, self->first_count,
                                      self->item_count));
        self->matcher.iteration = pleat__iteration_slots(self->context.plan);
    }
    return back_pool(self);
}

/* The pool's chunks go with the space, and what is left of the metadata with its arena: both are
 * the runtime's, and a policy dies with its runtime. */
static void destroy(void *opaque)
{
    policy *self = opaque;
    pleat__caching_destroy(self->caching);
}

static pleat_result check_plan(const pleat_plan *plan, uint64_t unit)
{
    for (uint32_t i = 0; i < plan->map_count; i++)
        if (plan->maps[i].alias)
            return pleat__fail(PLEAT_E_INVALID,
                               "stweaver has one contiguous pool, and the plan is folded: make one "
                               "with 'pleat plan --algorithm stweaver --no-fold'");
    if (plan->chunk_bytes != unit)
        return pleat__fail(PLEAT_E_INPUT,
                           "the plan is for chunks of %llu bytes, the device has %llu: plan again",
                           (unsigned long long)plan->chunk_bytes, (unsigned long long)unit);
    return PLEAT_OK;
}

static pleat_result create(const pleat__policy_context *context, void **out)
{
    uint64_t unit = pleat__space_page_bytes(context->space);
    if (context->plan != NULL)
        PLEAT_TRY(check_plan(context->plan, unit));
    policy *self = pleat__arena_calloc(context->arena, 1, sizeof *self);
    if (self == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a policy");
    self->context = *context;
    self->unit = unit;
    pleat_result result = create_parts(self);
    if (result != PLEAT_OK) {
        destroy(self);
        return result;
    }
    *out = self;
    return PLEAT_OK;
}

const pleat__policy_ops pleat__policy_stweaver = {
    .name = "stweaver",
    .create = create,
    .destroy = destroy,
    .alloc = alloc,
    .free = free_address,
    .block_of = block_of,
    .adjacent_free = adjacent_free,
    .next = next,
    .reclaim = reclaim,
    .idle = idle,
    .mark = mark,
    .audit = audit,
};
