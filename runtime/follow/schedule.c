/*
 * schedule.c: from a plan to places, and what becomes of a place that does not hold (see
 * schedule.h).
 */
#include <runtime/follow/schedule.h>

#include <internal/error.h>

/* ---- a plan's slots ---- */

typedef struct loader {
    const pleat__chunk_pool *pool;
    const pleat_plan *plan;
    const pleat__plan_pages *pages;
    pleat__run *runs; /* NULL while they are only counted */
    uint64_t run_count;
    pleat__runs *several;
    uint32_t several_count;
} loader;

/* The runs of physical granules behind a stretch of the window, neighbours joined; how many. The
 * plan was verified: every page of a slot or a lane is mapped. */
static uint32_t runs_of(loader *load, uint64_t place, uint32_t granules)
{
    const pleat__occupancy *occupancy = &load->pool->occupancy;
    uint64_t at = place >> PLEAT__GRANULE_SHIFT, end = at + granules;
    uint32_t count = 0, next = 0;
    while (at < end) {
        uint64_t page_end = ((at >> occupancy->shift) + 1) << occupancy->shift;
        uint32_t part = (uint32_t)((page_end < end ? page_end : end) - at);
        uint32_t begin = (load->pages->chunks[at >> occupancy->shift] << occupancy->shift) +
                         (uint32_t)(at & (occupancy->full - 1));
        bool joins = count != 0 && begin == next;
        if (load->runs != NULL && joins)
            load->runs[load->run_count + count - 1].count += part;
        else if (load->runs != NULL)
            load->runs[load->run_count + count] = (pleat__run){begin, part};
        count += !joins;
        next = begin + part;
        at += part;
    }
    return count;
}

/* Whether a chunk is mapped at each page of a stretch. */
static bool is_backed(const loader *load, uint64_t place, uint32_t granules)
{
    uint32_t shift = load->pool->occupancy.shift + PLEAT__GRANULE_SHIFT;
    uint64_t last = (place + ((uint64_t)granules << PLEAT__GRANULE_SHIFT) - 1) >> shift;
    for (uint64_t page = place >> shift; page <= last; page++)
        if (load->pages->chunks[page] == PLEAT__NO_CHUNK)
            return false;
    return true;
}

static pleat_va address_of(const loader *load, uint64_t place)
{
    uint64_t page_bytes = load->pool->page_bytes;
    bool moved = place >= load->pages->moved_from * page_bytes;
    return load->pool->base + place + (moved ? load->pages->moved_by * page_bytes : 0);
}

static bool has_place(const loader *load, const pleat__slot *slot)
{
    uint32_t granules = (uint32_t)pleat__ceil_div(slot->size, PLEAT__GRANULE_BYTES);
    return slot->class != PLEAT__CLASS_DYNAMIC && slot->place != PLEAT__NOWHERE && granules != 0 &&
           is_backed(load, slot->place, granules);
}

static void load_slot(loader *load, const pleat__slot *slot, pleat__expected *item)
{
    uint32_t granules = (uint32_t)pleat__ceil_div(slot->size, PLEAT__GRANULE_BYTES);
    *item = (pleat__expected){.bytes = slot->size, .lane = slot->lane, .stream = slot->stream};
    if (slot->class == PLEAT__CLASS_DYNAMIC) {
        item->kind = PLEAT__ITEM_DYNAMIC;
        return;
    }
    if (!has_place(load, slot)) {
        item->kind = PLEAT__ITEM_LOOSE;
        return;
    }
    uint32_t count = runs_of(load, slot->place, granules);
    pleat__run *runs = load->runs + load->run_count;
    item->place = (pleat__place){
        .address = address_of(load, slot->place), .run = runs[0], .granules = granules};
    if (count == 1)
        return;
    pleat__runs *several = &load->several[load->several_count++];
    *several = (pleat__runs){.runs = runs, .count = count, .granules = granules};
    item->place.several = several;
    load->run_count += count;
}

static void load_sequence(loader *load, const pleat__sequence *sequence, pleat__expected *items)
{
    for (uint32_t i = 0; i < sequence->slot_count; i++)
        load_slot(load, &sequence->slots[i], &items[i]);
}

/* How many runs and places of several runs there will be; one run more for the last slot's try. */
static void count_runs(loader *load, const pleat__sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        uint32_t granules = (uint32_t)pleat__ceil_div(slot->size, PLEAT__GRANULE_BYTES);
        if (!has_place(load, slot))
            continue;
        uint32_t count = runs_of(load, slot->place, granules);
        load->several_count += count > 1;
        load->run_count += count > 1 ? count : 0;
    }
}

static uint32_t lane_granules(const pleat__lane *lane)
{
    return (uint32_t)(lane->bytes >> PLEAT__GRANULE_SHIFT);
}

static void load_lanes(pleat__schedule *schedule, loader *load)
{
    uint32_t *starts = schedule->lane_starts;
    for (uint32_t i = 0; i < load->plan->lane_count; i++) {
        const pleat__lane *lane = &load->plan->lanes[i];
        pleat__run *runs = load->runs + load->run_count;
        bool backed = is_backed(load, lane->place, lane_granules(lane));
        uint32_t count = backed ? runs_of(load, lane->place, lane_granules(lane)) : 0;
        load->run_count += count;
        pleat__lane_init(&schedule->lanes[i], schedule->arena, address_of(load, lane->place),
                         lane_granules(lane), runs, starts, count);
        starts += count;
        schedule->lanes[i].gone = !backed;
        schedule->lane_count++;
    }
}

static pleat_result load_all(pleat__schedule *schedule, loader *load)
{
    const pleat_plan *plan = load->plan;
    uint64_t lane_runs = 0;
    count_runs(load, &plan->first);
    count_runs(load, &plan->steady);
    for (uint32_t i = 0; i < plan->lane_count; i++)
        if (is_backed(load, plan->lanes[i].place, lane_granules(&plan->lanes[i])))
            lane_runs += runs_of(load, plan->lanes[i].place, lane_granules(&plan->lanes[i]));
    load->run_count += lane_runs;
    uint64_t count = (uint64_t)plan->first.slot_count + plan->steady.slot_count;
    if (count >= PLEAT__NO_ITEM || plan->lane_count > PLEAT__MOST_LANES)
        return pleat__fail(PLEAT_E_LIMIT, "a plan of %llu requests and %u lanes",
                           (unsigned long long)count, plan->lane_count);
    schedule->items = pleat__arena_alloc(schedule->arena, count * sizeof *schedule->items);
    schedule->runs =
        pleat__arena_alloc(schedule->arena, (load->run_count + 1) * sizeof *load->runs);
    schedule->several =
        pleat__arena_alloc(schedule->arena, load->several_count * sizeof *load->several);
    schedule->lanes =
        pleat__arena_calloc(schedule->arena, plan->lane_count, sizeof *schedule->lanes);
    schedule->lane_starts =
        pleat__arena_alloc(schedule->arena, lane_runs * sizeof *schedule->lane_starts);
    if (schedule->items == NULL || schedule->runs == NULL || schedule->several == NULL ||
        schedule->lanes == NULL || schedule->lane_starts == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow a plan");
    load->runs = schedule->runs;
    load->several = schedule->several;
    load->run_count = 0;
    load->several_count = 0;
    schedule->count = (uint32_t)count;
    load_sequence(load, &plan->first, schedule->items);
    load_sequence(load, &plan->steady, schedule->items + plan->first.slot_count);
    schedule->several_count = load->several_count;
    load_lanes(schedule, load);
    PLEAT_TRY(pleat__matcher_init(&schedule->matcher, schedule->arena, schedule->items,
                                  plan->first.slot_count, schedule->count));
    schedule->matcher.iteration = pleat__iteration_slots(plan);
    pleat__matcher_index(&schedule->matcher);
    return PLEAT_OK;
}

pleat_result pleat__schedule_layout(pleat__arena *arena, const pleat__chunk_pool *pool,
                                    const pleat_plan *plan, const pleat__plan_pages *pages,
                                    pleat__schedule **out)
{
    pleat__schedule *schedule = pleat__arena_calloc(arena, 1, sizeof *schedule);
    if (schedule == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow a plan");
    schedule->arena = arena;
    loader load = {.pool = pool, .plan = plan, .pages = pages};
    pleat_result result = load_all(schedule, &load);
    if (result != PLEAT_OK) {
        pleat__schedule_free(schedule);
        return result;
    }
    *out = schedule;
    return PLEAT_OK;
}

pleat_result pleat__schedule_plan(pleat__arena *arena, const pleat__chunk_pool *pool,
                                  const pleat_plan *plan, pleat__schedule **out)
{
    uint32_t *chunks;
    PLEAT_TRY(pleat__plan_page_table(plan, arena, &chunks));
    pleat__plan_pages pages = {.chunks = chunks, .moved_from = UINT64_MAX / pool->page_bytes};
    pleat_result result = pleat__schedule_layout(arena, pool, plan, &pages, out);
    pleat__arena_free(arena, chunks);
    return result;
}

/* ---- a learned iteration ---- */

pleat_result pleat__schedule_learned(pleat__arena *arena, pleat__expected *items, uint32_t count,
                                     pleat__schedule **out)
{
    pleat__schedule *schedule = pleat__arena_calloc(arena, 1, sizeof *schedule);
    if (schedule == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow an iteration");
    *schedule = (pleat__schedule){.arena = arena, .count = count, .learned = true};
    pleat_result result = pleat__matcher_init(&schedule->matcher, arena, items, 0, count);
    if (result != PLEAT_OK) {
        pleat__schedule_free(schedule);
        return result;
    }
    schedule->items = items;
    *out = schedule;
    return PLEAT_OK;
}

static uint32_t second_blocks(const pleat__schedule *schedule)
{
    return (uint32_t)pleat__ceil_div(schedule->count, PLEAT__SECONDS);
}

static void free_seconds(pleat__schedule *schedule)
{
    for (uint32_t b = 0; schedule->second != NULL && b < second_blocks(schedule); b++) {
        pleat__place *block = schedule->second[b];
        for (uint32_t i = 0; block != NULL && i < PLEAT__SECONDS; i++)
            pleat__view_unpin(schedule->arena, &block[i]);
        pleat__arena_free(schedule->arena, block);
    }
    pleat__arena_free(schedule->arena, schedule->second);
}

void pleat__schedule_free(pleat__schedule *schedule)
{
    if (schedule == NULL)
        return;
    pleat__arena *arena = schedule->arena;
    for (uint32_t i = 0; schedule->learned && schedule->items != NULL && i < schedule->count; i++)
        pleat__view_unpin(arena, &schedule->items[i].place);
    free_seconds(schedule);
    for (uint32_t i = 0; i < schedule->lane_count; i++)
        pleat__lane_release(&schedule->lanes[i]);
    pleat__matcher_release(&schedule->matcher);
    pleat__arena_free(arena, schedule->lanes);
    pleat__arena_free(arena, schedule->lane_starts);
    pleat__arena_free(arena, schedule->items);
    pleat__arena_free(arena, schedule->runs);
    pleat__arena_free(arena, schedule->several);
    pleat__arena_free(arena, schedule);
}

/* Where an item's second place is kept. (All of them at once took a plan of 818,593 requests 3 ms,
 * in the call that kept the first one and in the one in which the plan was left.) NULL: there is no
 * host memory for it. */
static pleat__place *second_of(pleat__schedule *schedule, uint32_t item)
{
    pleat__arena *arena = schedule->arena;
    if (schedule->second == NULL)
        schedule->second =
            pleat__arena_calloc(arena, second_blocks(schedule), sizeof *schedule->second);
    if (schedule->second == NULL)
        return NULL;
    pleat__place **block = &schedule->second[item / PLEAT__SECONDS];
    if (*block == NULL)
        *block = pleat__arena_calloc(arena, PLEAT__SECONDS, sizeof **block);
    return *block != NULL ? &(*block)[item % PLEAT__SECONDS] : NULL;
}

/* A place as the second one of an item; the one that it was before goes. */
static void set_second(pleat__schedule *schedule, uint32_t item, const pleat__place *place)
{
    pleat__place *second = second_of(schedule, item);
    if (second == NULL)
        return;
    pleat__view_pin(place);
    pleat__view_unpin(schedule->arena, second);
    *second = *place;
}

void pleat__schedule_replace(pleat__schedule *schedule, uint32_t item, const pleat__place *place)
{
    pleat__expected *expected = &schedule->items[item];
    if (!schedule->learned) {
        set_second(schedule, item, place);
        return;
    }
    pleat__view_pin(place);
    pleat__view_unpin(schedule->arena, &expected->place);
    expected->place = *place;
}
