/*
 * verify.c: proves a plan. Part one is its shape:
 *
 *   V1  chunks: a size that is a multiple of 512 and at most 2^40; handles of at least one chunk,
 *       numbered one behind the other; physical_bytes is all of them
 *   V2  maps: in ascending order of page, no overlap, within virtual_bytes; each handle has exactly
 *       one map that is not an alias
 *   V3  sequences: slots in order of allocation; times, phases, labels, streams, classes and lanes
 *       that exist; a slot's place is a multiple of 512, within the window, every page of it
 *       mapped; requests without a fixed size have no place
 *   V4  physical_bytes is at most the device's, when that is known
 *
 *   V8  a plan with a recipe is its recipe's instance at the reference: each slot with a function
 *       has the size that it gives there, and none that is persistent or in the prologue varies.
 *       Each function gives a size all over the range. A steady slot with a place has an end.
 *       Chunks are at home below the page of the views
 *
 *   V9  reusable space is of a plan of one stream, in order of its windows, and within the
 *       address range. What of it is free is not proved: the policy stweaver looks
 *
 * part two, against the trace if there is one:
 *
 *   V5  fingerprint, device and number of requests are the trace's; each slot's size, stream and
 *       times are its request's, and there is one for each request that the trace has in their
 *       events; with a recipe, the size is its function's at the iteration's x.
 *       What outlives its iteration lives no shorter than in the one before, where that is its like
 *
 * part three is sweep.c's:
 *
 *   V6  what is live at the same time does not overlap in physical bytes: slots of one sequence,
 *       persistent slots and everything, lanes and slots, lanes and lanes. A lane is there while
 *       the requests of the iteration live that it is for
 *   V7  slots of different streams share physical bytes only on the chunks that the plan says are
 *       handed over, and are on no such chunk at the same time
 *
 *   V10 handed chunks exist and are in ascending order, no two runs of them side by side
 *
 *   V11 nothing is larger than plan.h says, so that no sum or product overflows and no plan,
 *       however few bytes its file has, takes much time or memory
 *
 * V1 to V4 and V8 to V11 broken is PLEAT_E_INPUT: it is no plan. V5 to V7 broken is
 * PLEAT_E_VERIFY.
 */
#include <plan/verify/verify.h>

#include <internal/error.h>
#include <plan/sizes/sizes.h>

#define SHAPE(...) pleat__fail(PLEAT_E_INPUT, __VA_ARGS__)
#define WRONG(...) pleat__fail(PLEAT_E_VERIFY, __VA_ARGS__)

typedef unsigned long long ull;

/* --- V1, V2, V4 --------------------------------------------------------------------------------*/

static pleat_result check_window(const pleat_plan *plan)
{
    if (plan->chunk_bytes == 0 || plan->chunk_bytes % PLEAT__ALIGNMENT != 0 ||
        plan->chunk_bytes > PLEAT__CHUNK_MOST)
        return SHAPE("a chunk of %llu bytes", (ull)plan->chunk_bytes);
    if (plan->virtual_bytes > PLEAT__BYTES_MOST ||
        pleat__ceil_div(plan->virtual_bytes, plan->chunk_bytes) > PLEAT__PAGES_MOST)
        return SHAPE("a window of %llu bytes: at most %llu, and %u pages of %llu, are possible",
                     (ull)plan->virtual_bytes, PLEAT__BYTES_MOST, PLEAT__PAGES_MOST,
                     (ull)plan->chunk_bytes);
    return PLEAT_OK;
}

static pleat_result check_handles(const pleat_plan *plan, uint64_t *physical_chunks)
{
    uint64_t chunks = 0;
    for (uint32_t h = 0; h < plan->handle_count; h++) {
        const pleat__plan_handle *handle = &plan->handles[h];
        if (handle->chunks == 0)
            return SHAPE("handle %u has no chunks", h);
        if (handle->first_chunk != chunks)
            return SHAPE("handle %u begins at chunk %u, not %llu", h, handle->first_chunk,
                         (ull)chunks);
        chunks += handle->chunks;
        if (chunks > PLEAT__PAGES_MOST)
            return SHAPE("more than %u chunks up to handle %u", PLEAT__PAGES_MOST, h);
    }
    *physical_chunks = chunks;
    uint64_t bytes;
    if (!pleat__mul(chunks, plan->chunk_bytes, &bytes) || bytes > PLEAT__BYTES_MOST)
        return SHAPE("%llu chunks of %llu bytes: at most %llu bytes are possible", (ull)chunks,
                     (ull)plan->chunk_bytes, PLEAT__BYTES_MOST);
    if (plan->physical_bytes != bytes)
        return SHAPE("%llu bytes of physical memory, and the handles have %llu",
                     (ull)plan->physical_bytes, (ull)bytes);
    if (plan->device_bytes != 0 && plan->physical_bytes > plan->device_bytes)
        return SHAPE("%llu bytes of physical memory on a device of %llu", (ull)plan->physical_bytes,
                     (ull)plan->device_bytes);
    return PLEAT_OK;
}

static pleat_result check_handed(const pleat_plan *plan, uint64_t chunks)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < plan->handed_count; i++) {
        const pleat__handed *handed = &plan->handed[i];
        if (handed->chunks == 0 || handed->first_chunk < next || handed->first_chunk >= chunks ||
            (i > 0 && handed->first_chunk == next) || handed->chunks > chunks - handed->first_chunk)
            return SHAPE("%u handed chunks from %u on, of %llu", handed->chunks,
                         handed->first_chunk, (ull)chunks);
        next = (uint64_t)handed->first_chunk + handed->chunks;
    }
    return PLEAT_OK;
}

static pleat_result check_map(const pleat_plan *plan, uint32_t index, uint64_t *next_page)
{
    const pleat__plan_map *map = &plan->maps[index];
    uint64_t pages = pleat__ceil_div(plan->virtual_bytes, plan->chunk_bytes);
    if (map->handle >= plan->handle_count)
        return SHAPE("map %u is of handle %u of %u", index, map->handle, plan->handle_count);
    if (map->alias > 1)
        return SHAPE("map %u: alias is %u, not 0 or 1", index, map->alias);
    if (map->page < *next_page)
        return SHAPE("map %u begins at page %llu, before the one in front ends", index,
                     (ull)map->page);
    uint32_t chunks = plan->handles[map->handle].chunks;
    if (map->page > pages || chunks > pages - map->page)
        return SHAPE("map %u ends beyond the window's %llu pages", index, (ull)pages);
    *next_page = map->page + chunks;
    return PLEAT_OK;
}

static pleat_result check_maps(const pleat_plan *plan, pleat__arena *scratch)
{
    uint64_t next_page = 0;
    uint32_t *owners = pleat__arena_calloc(scratch, plan->handle_count, sizeof *owners);
    if (owners == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to verify %u handles",
                           plan->handle_count);
    for (uint32_t i = 0; i < plan->map_count; i++) {
        PLEAT_TRY(check_map(plan, i, &next_page));
        uint32_t handle = plan->maps[i].handle;
        if (plan->maps[i].alias == 0 && owners[handle]++ != 0)
            return SHAPE("map %u: handle %u has another map that is no alias", i, handle);
    }
    for (uint32_t h = 0; h < plan->handle_count; h++) {
        if (owners[h] == 0)
            return SHAPE("handle %u has no map that is not an alias", h);
    }
    pleat__arena_free(scratch, owners);
    return PLEAT_OK;
}

/* --- V3 ----------------------------------------------------------------------------------------*/

static pleat_result check_phases(const pleat_plan *plan, const pleat__sequence *sequence,
                                 const char *name)
{
    for (uint32_t p = 0; p < sequence->phase_count; p++) {
        const pleat__phase *phase = &sequence->phases[p];
        if (phase->label >= plan->label_count)
            return SHAPE("%s phase %u has label %u of %u", name, p, phase->label,
                         plan->label_count);
        if (phase->begin_at > sequence->events ||
            (p > 0 && phase->begin_at < sequence->phases[p - 1].begin_at))
            return SHAPE("%s phase %u begins at %u, out of order", name, p, phase->begin_at);
    }
    return PLEAT_OK;
}

static pleat_result check_place(const pleat_plan *plan, const pleat__slot *slot, const char *name,
                                uint32_t index)
{
    if (slot->class == PLEAT__CLASS_DYNAMIC)
        return SHAPE("%s request %u is dynamic and has a place", name, index);
    if (slot->place % PLEAT__ALIGNMENT != 0)
        return SHAPE("%s request %u is at byte %llu, no multiple of %u", name, index,
                     (ull)slot->place, PLEAT__ALIGNMENT);
    if (slot->place > plan->virtual_bytes ||
        pleat__placed_size(slot) > plan->virtual_bytes - slot->place)
        return SHAPE("%s request %u ends beyond the window", name, index);
    return PLEAT_OK;
}

static pleat_result check_slot(const pleat_plan *plan, const pleat__sequence *sequence,
                               const char *name, uint32_t index)
{
    const pleat__slot *slot = &sequence->slots[index];
    uint32_t phases = sequence->phase_count ? sequence->phase_count : 1;
    if (slot->size > PLEAT__SIZE_MOST)
        return SHAPE("%s request %u has %llu bytes", name, index, (ull)slot->size);
    if (slot->class >= PLEAT__CLASSES || slot->small > 1)
        return SHAPE("%s request %u has class %u, small %u", name, index, slot->class, slot->small);
    if (slot->stream >= plan->stream_count)
        return SHAPE("%s request %u has stream %u of %u", name, index, slot->stream,
                     plan->stream_count);
    if (slot->alloc_phase >= phases || slot->free_phase >= phases)
        return SHAPE("%s request %u has phases %u and %u of %u", name, index, slot->alloc_phase,
                     slot->free_phase, phases);
    if (slot->alloc_at >= sequence->events ||
        (slot->free_at >= sequence->events && slot->free_at != PLEAT__NEVER))
        return SHAPE("%s request %u lives from %u to %u of %u events", name, index, slot->alloc_at,
                     slot->free_at, sequence->events);
    if (index > 0 && slot->alloc_at <= sequence->slots[index - 1].alloc_at)
        return SHAPE("%s request %u is allocated before the one in front", name, index);
    bool dynamic = slot->class == PLEAT__CLASS_DYNAMIC;
    if (slot->lane != PLEAT__NO_LANE && (!dynamic || slot->lane >= plan->lane_count))
        return SHAPE("%s request %u has lane %u of %u", name, index, slot->lane, plan->lane_count);
    return slot->place == PLEAT__NOWHERE ? PLEAT_OK : check_place(plan, slot, name, index);
}

static pleat_result check_sequence(const pleat_plan *plan, const pleat__sequence *sequence,
                                   const char *name)
{
    uint64_t slots = (uint64_t)plan->first.slot_count + plan->steady.slot_count;
    if (sequence->events > 2 * slots + PLEAT__EVENTS_MORE)
        return SHAPE("%s sequence of %u events, in a plan of %llu requests", name, sequence->events,
                     (ull)slots);
    PLEAT_TRY(check_phases(plan, sequence, name));
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        PLEAT_TRY(check_slot(plan, sequence, name, i));
        const pleat__slot *slot = &sequence->slots[i];
        if (sequence == &plan->first && slot->free_at <= slot->alloc_at)
            return SHAPE("%s request %u is freed before it is allocated", name, i);
    }
    return PLEAT_OK;
}

/* Iterations of an unrolled sequence are alike but for their places: each is the recorded one. */
static pleat_result check_unrolled(const pleat_plan *plan)
{
    const pleat__sequence *steady = &plan->steady;
    uint32_t slots = pleat__iteration_slots(plan), events = pleat__iteration_events(plan);
    if (plan->unroll == 1)
        return PLEAT_OK;
    if (plan->recipe != NULL || plan->reusable_count != 0 ||
        steady->slot_count % plan->unroll != 0 || steady->events % plan->unroll != 0)
        return SHAPE("%u slots and %u events of %u iterations", steady->slot_count, steady->events,
                     plan->unroll);
    for (uint32_t i = slots; i < steady->slot_count; i++) {
        const pleat__slot *slot = &steady->slots[i], *before = &steady->slots[i - slots];
        if (slot->size != before->size || slot->stream != before->stream ||
            slot->alloc_at != before->alloc_at + events ||
            (slot->class == PLEAT__CLASS_DYNAMIC) != (before->class == PLEAT__CLASS_DYNAMIC))
            return SHAPE("steady request %u is another than %u, of the iteration before", i,
                         i - slots);
    }
    return PLEAT_OK;
}

static pleat_result check_lanes(const pleat_plan *plan)
{
    for (uint32_t i = 0; i < plan->lane_count; i++) {
        const pleat__lane *lane = &plan->lanes[i];
        if (lane->place % PLEAT__ALIGNMENT != 0 || lane->place > plan->virtual_bytes ||
            lane->bytes > plan->virtual_bytes - lane->place)
            return SHAPE("lane %u: %llu bytes at byte %llu of a window of %llu", i,
                         (ull)lane->bytes, (ull)lane->place, (ull)plan->virtual_bytes);
        if (lane->begin_at >= plan->steady.events || lane->end_at > plan->steady.events)
            return SHAPE("lane %u is there from %u to %u of %u events", i, lane->begin_at,
                         lane->end_at, plan->steady.events);
    }
    return PLEAT_OK;
}

/* --- V8 ----------------------------------------------------------------------------------------*/

static pleat_result check_function(const pleat_plan *plan, const pleat__sequence *sequence,
                                   const uint32_t *functions, uint32_t index)
{
    const pleat__recipe *recipe = plan->recipe;
    const pleat__slot *slot = &sequence->slots[index];
    const char *name = sequence == &plan->first ? "first" : "steady";
    uint64_t size;
    if (functions[index] == PLEAT__NO_FUNCTION)
        return PLEAT_OK;
    const pleat__function *function = &recipe->functions[functions[index]];
    if (slot->class == PLEAT__CLASS_DYNAMIC)
        return SHAPE("%s request %u is dynamic and has a function", name, index);
    if (!pleat__function_at(function, recipe->reference, &size) || size != slot->size)
        return SHAPE("%s request %u has not the size that its function gives", name, index);
    if (!pleat__function_holds(function, recipe))
        return SHAPE("%s request %u has no size somewhere in the recipe's range", name, index);
    bool stays = slot->class == PLEAT__CLASS_PERSISTENT ||
                 (sequence == &plan->steady && index < recipe->prologue);
    if (stays && pleat__function_varies(function))
        return SHAPE("%s request %u should not vary, and its function does", name, index);
    return PLEAT_OK;
}

/* An instance lays out what comes and goes in an iteration, and keeps nothing else there. */
static pleat_result check_end(const pleat_plan *plan, uint32_t index)
{
    const pleat__slot *slot = &plan->steady.slots[index];
    bool ends = slot->class != PLEAT__CLASS_PERSISTENT && slot->free_at != PLEAT__NEVER;
    if (slot->place != PLEAT__NOWHERE && !ends)
        return SHAPE("steady request %u has a place and no end, in a plan with a recipe", index);
    return PLEAT_OK;
}

/* Below the views each page is the home of the same chunk at every x. */
static pleat_result check_homes(const pleat_plan *plan)
{
    for (uint32_t i = 0; i < plan->map_count; i++) {
        const pleat__plan_map *map = &plan->maps[i];
        uint64_t end = map->page + plan->handles[map->handle].chunks;
        if (map->alias == 0 && end > plan->recipe->view_page)
            return SHAPE("map %u ends at page %llu, and the recipe's views begin at %llu", i,
                         (ull)end, (ull)plan->recipe->view_page);
    }
    return PLEAT_OK;
}

static pleat_result check_recipe(const pleat_plan *plan)
{
    if (plan->recipe == NULL)
        return PLEAT_OK;
    PLEAT_TRY(check_homes(plan));
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        PLEAT_TRY(check_function(plan, &plan->first, plan->recipe->first, i));
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        PLEAT_TRY(check_function(plan, &plan->steady, plan->recipe->steady, i));
        PLEAT_TRY(check_end(plan, i));
    }
    return PLEAT_OK;
}

/* --- V9 ----------------------------------------------------------------------------------------*/

static pleat_result check_reusable(const pleat_plan *plan)
{
    /* It passes from request to request in the host's order. */
    if (plan->reusable_count != 0 && plan->stream_count > 1)
        return SHAPE("reusable space in a plan of %u streams", plan->stream_count);
    for (uint32_t row = 0; row < plan->reusable_count; row++) {
        const pleat__reusable *r = &plan->reusable[row];
        if (row > 0 && r->window < plan->reusable[row - 1].window)
            return SHAPE("stretch %u of window %u is behind one of window %u", row, r->window,
                         plan->reusable[row - 1].window);
        /* Windows part the allocations and frees. */
        if (r->window / 2 > plan->steady.slot_count)
            return SHAPE("stretch %u is of window %u, of a plan of %u requests", row, r->window,
                         plan->steady.slot_count);
        if (r->place % PLEAT__ALIGNMENT != 0 || r->bytes == 0 || r->place > plan->virtual_bytes ||
            r->bytes > plan->virtual_bytes - r->place)
            return SHAPE("stretch %u: %llu bytes at byte %llu of a window of %llu", row,
                         (ull)r->bytes, (ull)r->place, (ull)plan->virtual_bytes);
    }
    return PLEAT_OK;
}

/* --- V11 ---------------------------------------------------------------------------------------*/

static uint64_t count_pages(const pleat_plan *plan, uint64_t place, uint64_t bytes)
{
    if (bytes == 0)
        return 0;
    return (place + bytes - 1) / plan->chunk_bytes - place / plan->chunk_bytes + 1;
}

static uint64_t count_touched(const pleat_plan *plan, const pleat__sequence *sequence)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < sequence->slot_count; i++)
        if (sequence->slots[i].place != PLEAT__NOWHERE)
            pages += count_pages(plan, sequence->slots[i].place, sequence->slots[i].size);
    return pages;
}

/* Not even 2^32 slots of 2^24 pages come to 2^64. */
static pleat_result check_touched(const pleat_plan *plan)
{
    uint64_t pages = count_touched(plan, &plan->first) + count_touched(plan, &plan->steady);
    for (uint32_t i = 0; i < plan->lane_count; i++)
        pages += count_pages(plan, plan->lanes[i].place, plan->lanes[i].bytes);
    if (pages > PLEAT__TOUCHED_MOST)
        return SHAPE("its requests lie on %llu pages, one by one: at most %llu are possible; plan "
                     "with larger chunks (--chunk)",
                     (ull)pages, PLEAT__TOUCHED_MOST);
    return PLEAT_OK;
}

static pleat_result check_shape(const pleat_plan *plan, pleat__arena *scratch)
{
    uint64_t chunks;
    PLEAT_TRY(check_window(plan));
    PLEAT_TRY(check_handles(plan, &chunks));
    PLEAT_TRY(check_handed(plan, chunks));
    PLEAT_TRY(check_maps(plan, scratch));
    PLEAT_TRY(check_sequence(plan, &plan->first, "first"));
    PLEAT_TRY(check_sequence(plan, &plan->steady, "steady"));
    PLEAT_TRY(check_unrolled(plan));
    if (plan->first.slot_count > plan->requests || plan->steady_request > plan->requests ||
        pleat__iteration_slots(plan) > plan->requests - plan->steady_request)
        return SHAPE("%u and %u slots, the latter from request %u on, of %u requests",
                     plan->first.slot_count, pleat__iteration_slots(plan), plan->steady_request,
                     plan->requests);
    PLEAT_TRY(check_lanes(plan));
    PLEAT_TRY(check_touched(plan));
    PLEAT_TRY(check_reusable(plan));
    return check_recipe(plan);
}

/* --- V5 ----------------------------------------------------------------------------------------*/

/* A request of the plan's device: times count its allocations and frees. */
typedef struct recorded {
    uint64_t size;
    uint32_t alloc_at;
    uint32_t free_at;
    uint16_t stream;
} recorded;

/* The stream of the device on which memory is free only when the GPU is done with it: of the first
 * 256 that with most requests and, where several have as many, the one that had them first. On the
 * others it is free when the program says so, since the runtime makes them wait for each other. */
static uint16_t find_main_stream(const pleat_trace *trace, uint32_t device)
{
    enum { STREAMS = 256 };
    uint32_t all[STREAMS] = {0}, so_far[STREAMS] = {0}, most = 0;
    const pleat_trace_event *events = pleat_trace_events(trace);
    size_t count = pleat_trace_event_count(trace);
    for (size_t i = 0; i < count; i++)
        if (events[i].device == device && events[i].kind == PLEAT_EVENT_ALLOC &&
            events[i].stream < STREAMS)
            all[events[i].stream]++;
    for (uint32_t s = 0; s < STREAMS; s++)
        most = all[s] > most ? all[s] : most;
    for (size_t i = 0; i < count; i++)
        if (events[i].device == device && events[i].kind == PLEAT_EVENT_ALLOC &&
            events[i].stream < STREAMS && ++so_far[events[i].stream] == most)
            return events[i].stream;
    return 0;
}

static bool frees_memory(const pleat_trace_event *event, uint16_t main_stream)
{
    if (event->kind == PLEAT_EVENT_FREE_REQUESTED)
        return event->stream != main_stream;
    return event->kind == PLEAT_EVENT_FREE_COMPLETED && event->stream == main_stream;
}

/* The device's requests in order; `count` of them, as V5 has already compared. */
static pleat_result record(const pleat_plan *plan, const pleat_trace *trace, pleat__arena *scratch,
                           recorded **out)
{
    uint32_t all = pleat_trace_request_count(trace), made = 0, position = 0;
    recorded *requests = pleat__arena_calloc(scratch, all, sizeof *requests);
    uint32_t *numbers = pleat__arena_calloc(scratch, all, sizeof *numbers);
    if (requests == NULL || numbers == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to verify %u requests", all);
    const pleat_trace_event *events = pleat_trace_events(trace);
    uint16_t main_stream = find_main_stream(trace, plan->device);
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++) {
        const pleat_trace_event *event = &events[i];
        if (event->device != plan->device)
            continue;
        if (event->kind == PLEAT_EVENT_ALLOC) {
            numbers[event->request] = made;
            requests[made++] = (recorded){event->size, position++, PLEAT__NEVER, event->stream};
        } else if (frees_memory(event, main_stream)) {
            requests[numbers[event->request]].free_at = position++;
        }
    }
    pleat__arena_free(scratch, numbers);
    *out = requests;
    if (made != plan->requests)
        return WRONG("the plan is for %u requests on device %u, and the trace has %u there",
                     plan->requests, plan->device, made);
    return PLEAT_OK;
}

/* Whether a request of the trace has the size that the plan says; x is that of its iteration, or
 * NULL where it is not known: sizes that depend on it are any. */
static bool has_size(const pleat_plan *plan, const pleat__sequence *sequence, uint32_t index,
                     uint64_t bytes, const pleat__fraction *x)
{
    const pleat__recipe *recipe = plan->recipe;
    const pleat__slot *slot = &sequence->slots[index];
    uint64_t size = slot->size;
    uint32_t own = PLEAT__NO_FUNCTION;
    if (recipe != NULL)
        own = sequence == &plan->first ? recipe->first[index] : recipe->steady[index];
    if (slot->class == PLEAT__CLASS_DYNAMIC)
        return slot->size >= bytes || recipe != NULL;
    if (own == PLEAT__NO_FUNCTION)
        return size == bytes;
    /* Functions give sizes but for what a place does not depend on. */
    if (pleat__function_varies(&recipe->functions[own])) {
        if (x == NULL)
            return true;
        if (!pleat__function_at(&recipe->functions[own], *x, &size))
            return false;
    }
    return pleat__rounded(size) == pleat__rounded(bytes);
}

/* Whether a slot is freed in a later iteration than its own, which ends at event `end`. */
static bool outlives(const pleat__slot *slot, uint32_t end)
{
    return slot->free_at <= slot->alloc_at ||
           (slot->free_at >= end && slot->free_at != PLEAT__NEVER);
}

/* `begin_at` is the position of the sequence's first event, and `end` where the iteration ends of
 * which the request is. A slot that outlives it is freed where an earlier iteration's request was,
 * which may not be where this one's was. */
static pleat_result check_request(const pleat_plan *plan, const pleat_trace *trace,
                                  const pleat__sequence *sequence, uint32_t index,
                                  const recorded *request, uint32_t begin_at, uint32_t end,
                                  const pleat__fraction *x)
{
    const pleat__slot *slot = &sequence->slots[index];
    const char *name = sequence == &plan->first ? "first" : "steady";
    bool dynamic = slot->class == PLEAT__CLASS_DYNAMIC, in_lane = slot->lane != PLEAT__NO_LANE;
    if (!has_size(plan, sequence, index, request->size, x))
        return WRONG("%s request %u has %llu bytes in the plan, %llu in the trace", name, index,
                     (ull)slot->size, (ull)request->size);
    if (plan->streams[slot->stream] != pleat_trace_stream(trace, request->stream))
        return WRONG("%s request %u is on another stream in the trace", name, index);
    if (request->alloc_at - begin_at != slot->alloc_at)
        return WRONG("%s request %u is allocated at %u in the plan, %u in the trace", name, index,
                     slot->alloc_at, request->alloc_at - begin_at);
    uint32_t free_at = request->free_at;
    free_at = free_at == PLEAT__NEVER ? free_at : free_at - begin_at;
    free_at = free_at < end ? free_at : PLEAT__NEVER;
    if (!outlives(slot, end) &&
        (dynamic ? in_lane && free_at > slot->free_at : free_at != slot->free_at))
        return WRONG("%s request %u is freed at %u in the plan, at %u in the trace", name, index,
                     slot->free_at, free_at);
    return PLEAT_OK;
}

/* Whether the trace allocates the device's request `number` in the events from `begin_at` on. */
static bool is_within(const pleat_plan *plan, const recorded *requests, uint32_t number,
                      uint32_t begin_at, uint32_t events)
{
    return number < plan->requests && requests[number].alloc_at - begin_at < events;
}

/* The sequences have every request that the trace allocates in their events. */
static pleat_result check_whole(const pleat_plan *plan, const recorded *requests, uint32_t begin_at)
{
    uint32_t slots = pleat__iteration_slots(plan), events = pleat__iteration_events(plan);
    if (is_within(plan, requests, plan->first.slot_count, 0, plan->first.events))
        return WRONG("the trace has more than %u requests in the first %u events",
                     plan->first.slot_count, plan->first.events);
    /* Of no request in front the number is beyond all. */
    if (slots > 0 && (is_within(plan, requests, plan->steady_request + slots, begin_at, events) ||
                      is_within(plan, requests, plan->steady_request - 1, begin_at, events)))
        return WRONG("the trace has more than %u requests in the iteration's %u events", slots,
                     events);
    return PLEAT_OK;
}

/* The x of the recorded iteration, or NULL. */
static const pleat__fraction *find_x(const pleat_plan *plan, const recorded *requests,
                                     pleat__x_finder *finder)
{
    if (plan->recipe == NULL)
        return NULL;
    pleat__x_begin(finder, plan);
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        if (pleat__x_observe(finder, i, requests[i].size))
            return &finder->x;
    return NULL;
}

/* Whether the iteration right before the recorded one is its like, request by request. */
static bool follows_its_like(const pleat_plan *plan, const recorded *requests)
{
    uint32_t slots = pleat__iteration_slots(plan), events = pleat__iteration_events(plan);
    if (plan->steady_request < slots)
        return false;
    const recorded *now = requests + plan->steady_request, *before = now - slots;
    for (uint32_t i = 0; i < slots; i++)
        if (now[i].size != before[i].size || now[i].stream != before[i].stream ||
            now[i].alloc_at - before[i].alloc_at != events)
            return false;
    return true;
}

/* The recorded iteration may be the last, and what it leaves then ends with the job. `before` is
 * what its like in front has of the same request, which shows how long that lives. */
static pleat_result check_outliving(const pleat_plan *plan, uint32_t index, const recorded *before)
{
    const pleat__slot *slot = &plan->steady.slots[index];
    bool lies = slot->class != PLEAT__CLASS_DYNAMIC || slot->lane != PLEAT__NO_LANE;
    bool ends = slot->free_at != PLEAT__NEVER && slot->class != PLEAT__CLASS_PERSISTENT;
    if (!lies || !ends || before->free_at == PLEAT__NEVER)
        return PLEAT_OK;
    uint32_t around = slot->free_at <= slot->alloc_at ? plan->steady.events : 0;
    uint32_t planned = around + slot->free_at - slot->alloc_at;
    if (planned < before->free_at - before->alloc_at)
        return WRONG("steady request %u lives for %u events in the plan, and for %u in the trace's "
                     "iteration before",
                     index, planned, before->free_at - before->alloc_at);
    return PLEAT_OK;
}

static pleat_result check_trace(const pleat_plan *plan, const pleat_trace *trace,
                                pleat__arena *scratch)
{
    recorded *requests = NULL;
    pleat__x_finder finder;
    if (plan->fingerprint != pleat_trace_fingerprint(trace))
        return WRONG("the plan was made from a trace with fingerprint %016llx, not %016llx",
                     (ull)plan->fingerprint, (ull)pleat_trace_fingerprint(trace));
    PLEAT_TRY(record(plan, trace, scratch, &requests));
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        PLEAT_TRY(
            check_request(plan, trace, &plan->first, i, &requests[i], 0, plan->first.events, NULL));
    const pleat__fraction *x = find_x(plan, requests + plan->steady_request, &finder);
    uint32_t slots = pleat__iteration_slots(plan), events = pleat__iteration_events(plan);
    bool follows = follows_its_like(plan, requests);
    uint32_t begin_at =
        slots > 0 ? requests[plan->steady_request].alloc_at - plan->steady.slots[0].alloc_at : 0;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const recorded *request = &requests[plan->steady_request + i % slots];
        uint32_t before = i / slots * events; /* events of the iterations in front; modulo 2^32 */
        PLEAT_TRY(check_request(plan, trace, &plan->steady, i, request, begin_at - before,
                                before + events, x));
        if (follows && outlives(&plan->steady.slots[i], before + events))
            PLEAT_TRY(check_outliving(plan, i, request - slots));
    }
    PLEAT_TRY(check_whole(plan, requests, begin_at));
    pleat__arena_free(scratch, requests);
    return PLEAT_OK;
}

pleat_result pleat_plan_verify(const pleat_plan *plan, const pleat_trace *trace)
{
    pleat__arena *scratch;
    PLEAT_TRY(pleat__arena_create(&scratch));
    pleat_result result = check_shape(plan, scratch);
    if (result == PLEAT_OK)
        result = pleat__verify_sweep(plan, scratch);
    if (result == PLEAT_OK && trace != NULL)
        result = check_trace(plan, trace, scratch);
    pleat__arena_destroy(scratch);
    return result;
}
