/*
 * schedule.c: from a plan to places, and what becomes of a place that does not hold (see
 * schedule.h).
 */
#include <runtime/follow/schedule.h>

#include <internal/error.h>
#include <string.h>

/* ---- a plan's slots ---- */

typedef struct loader {
    const pleat__pool *pool;
    const pleat_plan *plan;
    const pleat__plan_pages *pages;
    pleat__extent *runs; /* NULL while they are only counted */
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
            load->runs[load->run_count + count] = (pleat__extent){begin, part};
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

static void load_slot(loader *load, const pleat__slot *slot, uint8_t gap, pleat__expected *item)
{
    uint32_t granules = (uint32_t)pleat__ceil_div(slot->size, PLEAT__GRANULE_BYTES);
    *item = (pleat__expected){
        .bytes = slot->size, .lane = slot->lane, .stream = slot->stream, .gap = gap};
    if (slot->class == PLEAT__CLASS_DYNAMIC) {
        item->kind = PLEAT__ITEM_DYNAMIC;
        return;
    }
    if (!has_place(load, slot)) {
        item->kind = PLEAT__ITEM_LOOSE;
        return;
    }
    uint32_t count = runs_of(load, slot->place, granules);
    pleat__extent *runs = load->runs + load->run_count;
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
    uint32_t last = 0; /* the event behind the request before */
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        uint32_t gap = sequence->slots[i].alloc_at - last;
        last = sequence->slots[i].alloc_at + 1;
        load_slot(load, &sequence->slots[i],
                  (uint8_t)(gap < PLEAT__GAP_UNKNOWN - 1 ? gap : PLEAT__GAP_UNKNOWN - 1),
                  &items[i]);
    }
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

/* The first slot that is allocated at an event or behind it. */
static uint32_t slot_from(const pleat__sequence *sequence, uint32_t at)
{
    uint32_t low = 0, high = sequence->slot_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (sequence->slots[middle].alloc_at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The iteration's first item at an event or behind it. */
static uint32_t item_from(const pleat_plan *plan, uint32_t at)
{
    return plan->first.slot_count + slot_from(&plan->steady, at);
}

static pleat_result load_lanes(pleat__follow *follow, loader *load)
{
    for (uint32_t i = 0; i < load->plan->lane_count; i++) {
        const pleat__lane *lane = &load->plan->lanes[i];
        pleat__extent *runs = load->runs + load->run_count;
        bool backed = is_backed(load, lane->place, lane_granules(lane));
        uint32_t count = backed ? runs_of(load, lane->place, lane_granules(lane)) : 0;
        load->run_count += count;
        PLEAT_TRY(pleat__lane_init(&follow->lanes[i], follow->arena, address_of(load, lane->place),
                                   lane_granules(lane), runs, count));
        follow->lanes[i].gone = !backed;
        follow->lanes[i].first = item_from(load->plan, lane->begin_at);
        follow->lanes[i].end = item_from(load->plan, lane->end_at);
        follow->lane_count++;
    }
    for (uint32_t i = load->plan->first.slot_count; i < follow->count; i++)
        if (follow->items[i].kind == PLEAT__ITEM_DYNAMIC && follow->items[i].lane != PLEAT__NO_LANE)
            follow->lanes[follow->items[i].lane].last = i;
    return PLEAT_OK;
}

static void load_phases_of(pleat__follow *follow, const pleat_plan *plan,
                           const pleat__sequence *sequence, uint32_t first_item)
{
    for (uint32_t i = 0; i < sequence->phase_count; i++) {
        uint32_t slot = slot_from(sequence, sequence->phases[i].begin_at);
        if (slot < sequence->slot_count)
            follow->phases[follow->phase_count++] =
                (pleat__follow_phase){plan->labels[sequence->phases[i].label], first_item + slot};
    }
}

static pleat_result load_phases(pleat__follow *follow, const pleat_plan *plan)
{
    uint64_t count = (uint64_t)plan->first.phase_count + plan->steady.phase_count;
    follow->phases = pleat__arena_alloc(follow->arena, (count + 1) * sizeof *follow->phases);
    if (follow->phases == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a plan's phases");
    load_phases_of(follow, plan, &plan->first, 0);
    load_phases_of(follow, plan, &plan->steady, plan->first.slot_count);
    return PLEAT_OK;
}

static pleat_result load_all(pleat__follow *follow, loader *load)
{
    const pleat_plan *plan = load->plan;
    count_runs(load, &plan->first);
    count_runs(load, &plan->steady);
    for (uint32_t i = 0; i < plan->lane_count; i++)
        if (is_backed(load, plan->lanes[i].place, lane_granules(&plan->lanes[i])))
            load->run_count += runs_of(load, plan->lanes[i].place, lane_granules(&plan->lanes[i]));
    uint64_t count = (uint64_t)plan->first.slot_count + plan->steady.slot_count;
    if (count >= PLEAT__NO_ITEM || plan->lane_count > PLEAT__MOST_LANES)
        return pleat__fail(PLEAT_E_LIMIT, "a plan of %llu requests and %u lanes",
                           (unsigned long long)count, plan->lane_count);
    follow->items = pleat__arena_alloc(follow->arena, count * sizeof *follow->items);
    follow->runs = pleat__arena_alloc(follow->arena, (load->run_count + 1) * sizeof *load->runs);
    follow->several =
        pleat__arena_alloc(follow->arena, load->several_count * sizeof *load->several);
    follow->lanes = pleat__arena_calloc(follow->arena, plan->lane_count, sizeof *follow->lanes);
    if (follow->items == NULL || follow->runs == NULL || follow->several == NULL ||
        follow->lanes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow a plan");
    load->runs = follow->runs;
    load->several = follow->several;
    load->run_count = 0;
    load->several_count = 0;
    follow->count = (uint32_t)count;
    load_sequence(load, &plan->first, follow->items);
    load_sequence(load, &plan->steady, follow->items + plan->first.slot_count);
    PLEAT_TRY(load_lanes(follow, load));
    PLEAT_TRY(load_phases(follow, plan));
    PLEAT_TRY(pleat__matcher_init(&follow->match, follow->arena, follow->items,
                                  plan->first.slot_count, follow->count));
    pleat__matcher_index(&follow->match);
    return PLEAT_OK;
}

pleat_result pleat__follow_layout(pleat__arena *arena, const pleat__pool *pool,
                                  const pleat_plan *plan, const pleat__plan_pages *pages,
                                  pleat__follow **out)
{
    pleat__follow *follow = pleat__arena_calloc(arena, 1, sizeof *follow);
    if (follow == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow a plan");
    follow->arena = arena;
    follow->plan = plan;
    loader load = {.pool = pool, .plan = plan, .pages = pages};
    pleat_result result = load_all(follow, &load);
    if (result != PLEAT_OK) {
        pleat__follow_free(follow);
        return result;
    }
    *out = follow;
    return PLEAT_OK;
}

pleat_result pleat__follow_plan(pleat__arena *arena, const pleat__pool *pool,
                                const pleat_plan *plan, pleat__follow **out)
{
    uint32_t *chunks;
    PLEAT_TRY(pleat__plan_page_table(plan, arena, &chunks));
    pleat__plan_pages pages = {.chunks = chunks, .moved_from = UINT64_MAX / pool->page_bytes};
    pleat_result result = pleat__follow_layout(arena, pool, plan, &pages, out);
    pleat__arena_free(arena, chunks);
    return result;
}

/* ---- a learned iteration ---- */

pleat_result pleat__follow_learned(pleat__arena *arena, pleat__expected *items, uint32_t count,
                                   pleat__follow **out)
{
    pleat__follow *follow = pleat__arena_calloc(arena, 1, sizeof *follow);
    if (follow == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow an iteration");
    *follow = (pleat__follow){.arena = arena, .count = count, .learned = true};
    pleat_result result = pleat__matcher_init(&follow->match, arena, items, 0, count);
    if (result != PLEAT_OK) {
        pleat__follow_free(follow);
        return result;
    }
    follow->items = items;
    follow->match.learned = true;
    *out = follow;
    return PLEAT_OK;
}

void pleat__follow_free(pleat__follow *follow)
{
    if (follow == NULL)
        return;
    pleat__arena *arena = follow->arena;
    for (uint32_t i = 0; follow->learned && follow->items != NULL && i < follow->count; i++)
        pleat__view_unpin(arena, &follow->items[i].place);
    for (uint32_t i = 0; follow->second != NULL && i < follow->count; i++)
        pleat__view_unpin(arena, &follow->second[i]);
    for (uint32_t i = 0; i < follow->lane_count; i++)
        pleat__lane_release(&follow->lanes[i]);
    pleat__matcher_release(&follow->match);
    pleat__arena_free(arena, follow->second);
    pleat__arena_free(arena, follow->lanes);
    pleat__arena_free(arena, follow->phases);
    pleat__arena_free(arena, follow->items);
    pleat__arena_free(arena, follow->runs);
    pleat__arena_free(arena, follow->several);
    pleat__arena_free(arena, follow);
}

/* A place as the second one of an item; the one that it was before goes. */
static void set_second(pleat__follow *follow, uint32_t item, const pleat__place *place)
{
    pleat__place *second = &follow->second[item];
    pleat__view_pin(place);
    pleat__view_unpin(follow->arena, second);
    *second = *place;
}

void pleat__follow_replace(pleat__follow *follow, uint32_t item, const pleat__place *place)
{
    pleat__expected *expected = &follow->items[item];
    if (follow->second == NULL)
        follow->second = pleat__arena_calloc(follow->arena, follow->count, sizeof *follow->second);
    if (!follow->learned) {
        if (follow->second != NULL)
            set_second(follow, item, place);
        return;
    }
    if (follow->second != NULL)
        set_second(follow, item, &expected->place);
    pleat__view_pin(place);
    pleat__view_unpin(follow->arena, &expected->place);
    expected->place = *place;
}

void pleat__follow_enter(pleat__follow *follow, const char *name)
{
    uint32_t cursor = follow->match.cursor, best = PLEAT__NO_ITEM, least = UINT32_MAX;
    for (uint32_t i = 0; i < follow->phase_count; i++) {
        uint32_t item = follow->phases[i].item;
        uint32_t away = item > cursor ? item - cursor : cursor - item;
        if (away < least && strcmp(follow->phases[i].name, name) == 0) {
            least = away;
            best = item;
        }
    }
    if (best != PLEAT__NO_ITEM)
        pleat__matcher_phase(&follow->match, best);
}
