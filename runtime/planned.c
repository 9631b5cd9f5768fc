/*
 * planned.c: the policy `pleat`. A request is matched; its place is checked and taken; that is all
 * on the planned path. What does not match, has no place or finds it taken goes to the heap.
 *
 * Learning and planned life share one memory: places are ranges of the pool that occupancy judges,
 * whoever uses them. So nothing moves at a switch, an unexpected request may lie in memory that the
 * plan needs only later, and a plan that does not fit costs time, not memory.
 */
#include <runtime/learn.h>
#include <runtime/placed.h>
#include <runtime/policy.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

/* Shapes that are kept. */
#define FOLLOWED 8u
/* Divergence is judged over this many requests; one in so many may miss. */
#define WATCH_REQUESTS 256u
#define WATCH_SHARE    4u
#define BESIDE         64u
/* An old shape is back when this many of its requests came in a row. */
#define RETURNED 12u
/* What was put aside so often within an iteration is not taken up again: learning gets its turn. */
#define FAILED 4u

typedef struct policy {
    pleat__arena *arena;
    pleat_stats *stats;
    pleat__follow *current; /* PLANNED: what is followed */
    pleat_stream last_stream;
    uint16_t last_index;
    bool has_stream;
    uint32_t watched; /* requests since divergence was judged last */
    uint32_t missed;  /* of them */
    uint64_t requests;
    pleat__states states;
    pleat__placed placed;
    pleat__pool pool;
    pleat__heap heap;
    pleat__learn learn;
    pleat__follow *kept[FOLLOWED];
    uint32_t kept_count;
    /* A kept one that may have returned, and how many requests in a row it has matched. */
    pleat__follow *candidate;
    uint32_t candidate_hits;
    /* A request that was refused comes again when memory has been given back: it is not matched
     * twice. */
    uint64_t refused_bytes;
    uint32_t refused_item;
} policy;

/* ---- creation ---- */

static void destroy(void *opaque)
{
    policy *self = opaque;
    for (uint32_t i = 0; i < self->kept_count; i++)
        pleat__follow_free(self->kept[i]);
    pleat__learn_release(&self->learn);
    pleat__placed_release(&self->placed);
    pleat__heap_release(&self->heap);
    pleat__pool_release(&self->pool);
    pleat__arena_free(self->arena, self);
}

static void set_current(policy *self, pleat__follow *next)
{
    bool foresees = next != NULL && next->foresee.arena != NULL;
    self->current = next;
    self->heap.wanted = foresees ? pleat__foresee_wanted : NULL;
    self->heap.wanted_context = foresees ? &next->foresee : NULL;
}

static pleat_result load_plan(policy *self, const pleat_plan *plan)
{
    PLEAT_TRY(pleat__follow_plan(self->arena, &self->pool, plan, &self->kept[0]));
    self->kept_count = 1;
    set_current(self, self->kept[0]);
    pleat__states_set(&self->states, PLEAT__STATE_planned, PLEAT__CAUSE_file);
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        if (plan->first.slots[i].class == PLEAT__CLASS_PERSISTENT &&
            self->current->items[i].kind == PLEAT__ITEM_SLOT)
            PLEAT_TRY(pleat__heap_keep(&self->heap, &self->current->items[i].place));
    return PLEAT_OK;
}

static pleat_result create(const pleat__policy_context *context, void **out)
{
    policy *self = pleat__arena_calloc(context->arena, 1, sizeof *self);
    if (self == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a policy");
    self->arena = context->arena;
    self->stats = context->stats;
    self->refused_item = PLEAT__NO_ITEM;
    pleat__states_set(&self->states, PLEAT__STATE_learning, PLEAT__CAUSE_start);
    pleat_result result =
        pleat__pool_init(&self->pool, context->arena, context->space, context->plan);
    if (result == PLEAT_OK)
        result = pleat__heap_init(&self->heap, context->vmm, context->device, context->arena,
                                  &self->pool, &context->conf);
    if (result == PLEAT_OK)
        result = pleat__placed_init(&self->placed, context->arena, self->pool.base,
                                    pleat__space_pages(context->space) * self->pool.page_bytes);
    if (result == PLEAT_OK)
        result = pleat__learn_init(&self->learn, context->arena, &context->conf);
    if (result == PLEAT_OK && context->plan != NULL)
        result = load_plan(self, context->plan);
    if (result != PLEAT_OK) {
        destroy(self);
        return result;
    }
    *out = self;
    return PLEAT_OK;
}

/* ---- states ---- */

/* Room for one more shape: the one that was taken up the longest ago goes, a plan file's never. */
static void kept_evict(policy *self)
{
    if (self->kept_count < FOLLOWED)
        return;
    uint32_t oldest = self->kept[0]->learned ? 0 : 1;
    for (uint32_t i = oldest + 1; i < self->kept_count; i++)
        if (self->kept[i]->adopted < self->kept[oldest]->adopted)
            oldest = i;
    if (self->candidate == self->kept[oldest])
        self->candidate = NULL;
    pleat__follow_free(self->kept[oldest]);
    self->kept[oldest] = self->kept[--self->kept_count];
}

static void kept_remove(policy *self, pleat__follow *follow)
{
    for (uint32_t i = 0; i < self->kept_count; i++)
        if (self->kept[i] == follow)
            self->kept[i] = self->kept[--self->kept_count];
    pleat__follow_free(follow);
}

static void follow(policy *self, pleat__follow *next, pleat__cause cause)
{
    set_current(self, next);
    self->candidate = NULL;
    next->adopted = self->requests;
    self->watched = 0;
    self->missed = 0;
    pleat__states_set(&self->states, PLEAT__STATE_planned, cause);
    self->stats->switches += cause == PLEAT__CAUSE_switched;
    self->stats->returns += cause == PLEAT__CAUSE_returned;
}

/* An iteration ended that repeats the one before. */
static void plan_and_switch(policy *self)
{
    pleat__follow *next;
    pleat__states_set(&self->states, PLEAT__STATE_planning, PLEAT__CAUSE_agreed);
    if (pleat__learn_take(&self->learn, &next) != PLEAT_OK) {
        pleat__learn_restart(&self->learn);
        pleat__states_set(&self->states, PLEAT__STATE_learning, PLEAT__CAUSE_no_memory);
        return;
    }
    pleat__states_set(&self->states, PLEAT__STATE_switching, PLEAT__CAUSE_made);
    kept_evict(self);
    self->kept[self->kept_count++] = next;
    follow(self, next, PLEAT__CAUSE_switched);
}

/* The kept shape in which the last requests occur; its cursor goes behind them. */
static pleat__follow *find_returned(policy *self, const uint64_t recent[PLEAT__GRAM])
{
    uint32_t item;
    for (uint32_t i = 0; i < self->kept_count; i++)
        if (self->kept[i] != self->current && self->kept[i]->failed < FAILED &&
            pleat__match_resync(&self->kept[i]->match, recent, &item))
            return self->kept[i];
    return NULL;
}

static void diverge(policy *self)
{
    pleat__follow *old = self->current;
    uint64_t recent[PLEAT__GRAM];
    memcpy(recent, old->match.recent, sizeof recent);
    pleat__states_set(&self->states, PLEAT__STATE_diverged, PLEAT__CAUSE_diverged);
    self->stats->divergences++;
    old->failed = self->requests - old->adopted < old->count && old->learned ? old->failed + 1 : 0;
    set_current(self, NULL);
    /* An iteration found by its period that did not even come twice more was an inner loop. */
    bool inner =
        old->learned && !self->learn.marks && self->requests - old->adopted < 2 * old->count;
    if (inner) {
        pleat__learn_reject(&self->learn, old->count);
        kept_remove(self, old);
    }
    pleat__learn_restart(&self->learn);
    pleat__states_set(&self->states, PLEAT__STATE_relearning, PLEAT__CAUSE_unknown);
    self->candidate = find_returned(self, recent);
    self->candidate_hits = 0;
}

static inline void watch(policy *self, bool missed)
{
    self->missed += missed;
    if (++self->watched < WATCH_REQUESTS)
        return;
    if (self->heap.keeping && self->current->match.cursor >= self->current->match.begin)
        pleat__heap_keep_end(&self->heap);
    if (self->missed >= WATCH_REQUESTS / WATCH_SHARE) {
        diverge(self);
    } else {
        self->watched = 0;
        self->missed = 0;
    }
}

/* RELEARNING: is an old shape back? */
static void look_for_returned(policy *self, uint64_t bytes, uint16_t stream)
{
    static const uint32_t every = PLEAT__GRAM;
    pleat__follow *candidate = self->candidate;
    if (candidate != NULL) {
        if (pleat__match_next(&candidate->match, bytes, stream) == PLEAT__NO_ITEM)
            self->candidate = NULL;
        else if (++self->candidate_hits >= RETURNED) {
            pleat__learn_restart(&self->learn);
            follow(self, candidate, PLEAT__CAUSE_returned);
        }
        return;
    }
    if (self->learn.count % every != 0 || self->learn.count < every)
        return;
    uint64_t recent[PLEAT__GRAM];
    for (uint32_t i = 0; i < every; i++)
        recent[i] = self->learn.items[self->learn.count - every + i].bytes;
    self->candidate = find_returned(self, recent);
    self->candidate_hits = 0;
}

static void mark_planned(policy *self)
{
    if (self->current->learned && !self->learn.marks) {
        /* Found by its period; a job that marks its iterations knows better. */
        pleat__follow *old = self->current;
        set_current(self, NULL);
        kept_remove(self, old);
        pleat__states_set(&self->states, PLEAT__STATE_learning, PLEAT__CAUSE_marked);
        pleat__learn_mark(&self->learn);
        return;
    }
    self->learn.marks = true;
    pleat__match_mark(&self->current->match);
}

/* Before the first mark stretches were taken for iterations by their period. A job that marks its
 * iterations knows better: else one of them returns again and again, and nothing is learned. */
static void forget_found(policy *self)
{
    for (uint32_t i = self->kept_count; i-- > 0;)
        if (self->kept[i]->learned && self->kept[i] != self->current)
            kept_remove(self, self->kept[i]);
    self->candidate = NULL;
}

static pleat_result mark(void *opaque)
{
    policy *self = opaque;
    if (!self->learn.marks)
        forget_found(self);
    pleat__placed_forget(&self->placed);
    if (self->current != NULL)
        mark_planned(self);
    else if (pleat__learn_mark(&self->learn) == PLEAT__BOUNDARY_AGREED)
        plan_and_switch(self);
    return PLEAT_OK;
}

/* ---- requests ---- */

static pleat_result stream_index(policy *self, pleat_stream stream, uint16_t *index)
{
    if (self->has_stream && self->last_stream == stream) {
        *index = self->last_index;
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__heap_stream(&self->heap, stream, index));
    self->last_stream = stream;
    self->last_index = *index;
    self->has_stream = true;
    return PLEAT_OK;
}

static void put_down(policy *self, pleat__place *place, uint64_t bytes, uint16_t stream)
{
    place->slack = (0 - (uint32_t)bytes) & (PLEAT__GRANULE_BYTES - 1);
    place->stream = stream & 63u; /* its 6 bits */
    pleat__placed_insert(&self->placed, place);
    pleat__count_alloc(self->stats, bytes);
}

static inline uint32_t granules_of(uint64_t bytes)
{
    return (uint32_t)((bytes + PLEAT__GRANULE_BYTES - 1) >> PLEAT__GRANULE_SHIFT);
}

static pleat_result from_heap(policy *self, uint64_t bytes, uint16_t stream, pleat__place *place)
{
    bool stitched;
    PLEAT_TRY(pleat__heap_alloc(&self->heap, granules_of(bytes), stream, place, &stitched));
    *(stitched ? &self->stats->stitched : &self->stats->cached) += 1;
    self->stats->views_reused = self->heap.views_reused;
    self->stats->streams_ordered = self->heap.streams_ordered;
    return PLEAT_OK;
}

/* A matched request whose slot cannot be taken, or one that did not match. */
static pleat_result alloc_unplanned(policy *self, uint32_t item, uint64_t bytes, uint16_t stream,
                                    pleat__place *place)
{
    pleat_result result = from_heap(self, bytes, stream, place);
    if (result != PLEAT_OK) {
        self->refused_bytes = bytes;
        self->refused_item = item;
        return result;
    }
    if (item == PLEAT__NO_ITEM) {
        self->stats->diverged++;
        return PLEAT_OK;
    }
    if (self->current->items[item].kind == PLEAT__ITEM_SLOT) {
        self->stats->slot_busy++;
        if (self->current->learned)
            pleat__follow_replace(self->current, item, place);
    }
    return PLEAT_OK;
}

static bool alloc_in_lane(policy *self, const pleat__expected *expected, uint64_t bytes,
                          uint16_t stream, pleat__place *place)
{
    if (expected->kind != PLEAT__ITEM_DYNAMIC || expected->lane == PLEAT__NO_LANE ||
        !pleat__lane_alloc(&self->current->lanes[expected->lane], &self->heap, granules_of(bytes),
                           stream, place))
        return false;
    place->lane = expected->lane + 1;
    self->stats->lane++;
    self->stats->lane_bytes += bytes;
    return true;
}

/* A request that nothing in the plan is goes to the lane of the dynamic one that is expected next,
 * or was last: more of them come, where their number changes, than the profiles had. */
static bool alloc_beside(policy *self, uint64_t bytes, uint16_t stream, pleat__place *place)
{
    const pleat__match *match = &self->current->match;
    if (self->current->lane_count == 0)
        return false;
    for (uint32_t i = 0; i < BESIDE; i++) {
        uint32_t ahead = match->cursor + i, behind = match->cursor - 1 - i;
        if (ahead < match->count && alloc_in_lane(self, &match->items[ahead], bytes, stream, place))
            return true;
        if (behind < match->count &&
            alloc_in_lane(self, &match->items[behind], bytes, stream, place))
            return true;
    }
    return false;
}

/* The request expected next will be here soon; what it reads is far apart in memory. (With 45,000
 * requests live the 99th percentile of an allocation went from 320 to 215 ns by it.) */
static inline void prefetch_next(const policy *self)
{
    const pleat__match *match = &self->current->match;
    const pleat__place *place = &match->items[match->cursor].place;
    pleat__occupancy_prefetch(&self->pool.occupancy, place->run.begin);
    __builtin_prefetch(&self->placed.entries[pleat__placed_home(&self->placed, place->address)], 1);
}

/* Most addresses are homes, and most homes are in the order of the chunks: what the free will touch
 * is fetched while its entry is. */
static inline void prefetch_free(const policy *self, pleat_va address)
{
    uint64_t granule = (address - self->pool.base) >> PLEAT__GRANULE_SHIFT;
    if (granule >> self->pool.occupancy.shift < self->pool.count)
        pleat__occupancy_prefetch(&self->pool.occupancy, (uint32_t)granule);
}

static bool alloc_in_second(policy *self, uint32_t item, uint16_t stream, pleat__place *place)
{
    const pleat__place *second = pleat__follow_second(self->current, item);
    if (second == NULL || !pleat__heap_take(&self->heap, second, stream))
        return false;
    *place = *second;
    self->stats->planned++;
    return true;
}

static pleat_result alloc_planned(policy *self, uint64_t bytes, uint16_t stream,
                                  pleat__place *place)
{
    uint32_t item;
    if (__builtin_expect(self->refused_bytes == bytes, 0)) {
        item = self->refused_item;
        self->refused_bytes = 0;
    } else {
        item = pleat__match_next(&self->current->match, bytes, stream);
    }
    if (__builtin_expect(item != PLEAT__NO_ITEM, 1)) {
        const pleat__expected *expected = &self->current->items[item];
        *place = expected->place;
        bool slot = expected->kind == PLEAT__ITEM_SLOT;
        if (slot && pleat__heap_take(&self->heap, place, stream)) {
            prefetch_next(self);
            self->stats->planned++;
            self->stats->planned_bytes += bytes;
            return PLEAT_OK;
        }
        if (slot && self->heap.unchecked) {
            place->lane = PLEAT__UNCHECKED;
            return PLEAT_OK;
        }
        if (slot ? alloc_in_second(self, item, stream, place)
                 : alloc_in_lane(self, expected, bytes, stream, place))
            return PLEAT_OK;
    } else if (alloc_beside(self, bytes, stream, place)) {
        return PLEAT_OK;
    }
    return alloc_unplanned(self, item, bytes, stream, place);
}

static pleat_result alloc_learning(policy *self, uint64_t bytes, uint16_t stream,
                                   pleat__place *place)
{
    PLEAT_TRY(from_heap(self, bytes, stream, place));
    if (pleat__learn_request(&self->learn, bytes, stream, place) == PLEAT__BOUNDARY_AGREED)
        plan_and_switch(self);
    else if (self->states.now == PLEAT__STATE_relearning)
        look_for_returned(self, bytes, stream);
    return PLEAT_OK;
}

static pleat_result alloc(void *opaque, uint64_t bytes, pleat_stream stream, pleat_va *address)
{
    policy *self = opaque;
    uint16_t index;
    pleat__place place;
    PLEAT_TRY(stream_index(self, stream, &index));
    PLEAT_TRY(pleat__placed_reserve(&self->placed));
    self->requests++;
    if (self->current != NULL) {
        uint64_t diverged = self->stats->diverged;
        PLEAT_TRY(alloc_planned(self, bytes, index, &place));
        put_down(self, &place, bytes, index);
        watch(self, self->stats->diverged != diverged);
    } else {
        PLEAT_TRY(alloc_learning(self, bytes, index, &place));
        put_down(self, &place, bytes, index);
    }
    *address = place.address;
    return PLEAT_OK;
}

static pleat_result free_place(void *opaque, pleat_va address)
{
    policy *self = opaque;
    prefetch_free(self, address);
    pleat__place *entry = pleat__placed_find(&self->placed, address);
    if (entry == NULL)
        return PLEAT_E_NOT_FOUND;
    if (entry->lane == PLEAT__UNCHECKED)
        ;
    else if (entry->lane != 0)
        /* Only a plan file has lanes, and it is never dropped. */
        pleat__lane_give(&self->kept[0]->lanes[entry->lane - 1], &self->heap, entry);
    else
        pleat__heap_give(&self->heap, entry);
    pleat__count_free(self->stats, (uint64_t)entry->granules << PLEAT__GRANULE_SHIFT);
    pleat__placed_remove(&self->placed, entry);
    return PLEAT_OK;
}

/* ---- questions and memory ---- */

static pleat_result block_of(void *opaque, pleat_va address, pleat_block *block)
{
    policy *self = opaque;
    const pleat__place *entry = pleat__placed_holding(&self->placed, address);
    if (entry == NULL)
        return PLEAT_E_NOT_FOUND;
    uint64_t bytes = (uint64_t)entry->granules << PLEAT__GRANULE_SHIFT;
    *block = (pleat_block){.address = entry->address,
                           .bytes = bytes,
                           .requested = bytes - entry->slack,
                           .stream = self->heap.streams[entry->stream],
                           .allocated = 1};
    return PLEAT_OK;
}

static pleat_result adjacent_free(void *opaque, pleat_va address, uint64_t *before, uint64_t *after)
{
    policy *self = opaque;
    const pleat__place *entry = pleat__placed_holding(&self->placed, address);
    if (entry == NULL)
        return PLEAT_E_NOT_FOUND;
    *before = 0;
    *after = 0;
    if (entry->several == NULL)
        pleat__heap_adjacent(&self->heap, entry->run, before, after);
    return PLEAT_OK;
}

static pleat_va next(void *opaque, pleat_va address)
{
    policy *self = opaque;
    const pleat__place *entry = pleat__placed_next(&self->placed, address);
    return entry == NULL ? 0 : entry->address;
}

static bool reclaim(void *opaque, pleat__reclaim what, uint64_t bytes, pleat_stream stream)
{
    policy *self = opaque;
    (void)stream;
    switch (what) {
    case PLEAT__RECLAIM_VIEWS:
        return pleat__heap_drop_views(&self->heap, 0);
    case PLEAT__RECLAIM_LARGE:
        return pleat__heap_shrink(&self->heap,
                                  (uint32_t)pleat__ceil_div(bytes, self->pool.page_bytes)) > 0;
    case PLEAT__RECLAIM_CACHES:
        return pleat__heap_shrink(&self->heap, UINT32_MAX) > 0;
    }
    return false;
}

static void idle(void *opaque, pleat_stream stream, uint64_t *largest, uint64_t *total)
{
    policy *self = opaque;
    uint16_t index;
    *largest = 0;
    *total = 0;
    if (stream_index(self, stream, &index) == PLEAT_OK)
        pleat__heap_idle(&self->heap, index, largest, total);
}

static bool audit(void *opaque)
{
    policy *self = opaque;
    return pleat__heap_audit(&self->heap);
}

static const pleat__states *states_of(const void *opaque)
{
    const policy *self = opaque;
    return &self->states;
}

const pleat__policy_ops pleat__policy_pleat = {
    .name = "pleat",
    .create = create,
    .destroy = destroy,
    .alloc = alloc,
    .free = free_place,
    .block_of = block_of,
    .adjacent_free = adjacent_free,
    .reclaim = reclaim,
    .idle = idle,
    .mark = mark,
    .audit = audit,
    .next = next,
    .states = states_of,
};
