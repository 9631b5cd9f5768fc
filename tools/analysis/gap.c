/*
 * gap.c: see gap.h.
 */
#include <tools/analysis/gap.h>

#include <plan/fold/fold.h>

#include <internal/error.h>
#include <plan/place/place.h>
#include <string.h>

static uint64_t more(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* `placed`: most live of what has a place; `floor`: chunks that no layout can do without. */
static gap_steps gap_from(const pleat_plan *plan, uint64_t placed, uint64_t floor_chunks)
{
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    uint64_t live = summary.max_live_bytes, chunk = plan->chunk_bytes;
    uint64_t rounded = pleat__ceil_div(placed, chunk) * chunk;
    /* Where chunks pass from stream to stream less is kept apart than could be. */
    uint64_t apart = floor_chunks * chunk;
    apart = apart < summary.physical_bytes ? apart : summary.physical_bytes;
    uint64_t floor = largest(apart, rounded);
    return (gap_steps){.live = live,
                       .unplaced = more(live, placed),
                       .lanes = more(placed, live),
                       .rounding = rounded - placed,
                       .streams = floor - rounded,
                       .stuck = more(summary.physical_bytes, floor),
                       .physical = summary.physical_bytes};
}

gap_steps gap_of(const pleat_plan *plan, const pleat__plan_report *report)
{
    return gap_from(plan, report->placed_max_live, report->floor_chunks);
}

/* ---- a plan that was read ---- */

static bool is_always(const pleat__slot *slot)
{
    return slot->class == PLEAT__CLASS_PERSISTENT;
}

static void add_slots(const pleat_plan *plan, const pleat__sequence *sequence, bool persistents,
                      pleat__item *items, uint32_t *count)
{
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        bool never = slot->free_at == PLEAT__NEVER;
        if (slot->place == PLEAT__NOWHERE || is_always(slot) != persistents)
            continue;
        items[(*count)++] =
            (pleat__item){.size = pleat__rounded(slot->size),
                          .fixed = UINT64_MAX,
                          .begin = persistents ? 0 : slot->alloc_at,
                          .end = persistents || never ? plan->steady.events : slot->free_at,
                          .stream = slot->stream};
    }
}

static void add_lanes(const pleat_plan *plan, pleat__item *items, uint32_t *count)
{
    for (uint32_t i = 0; i < plan->lane_count; i++)
        items[(*count)++] = (pleat__item){.size = plan->lanes[i].bytes,
                                          .fixed = UINT64_MAX,
                                          .begin = plan->lanes[i].begin_at,
                                          .end = plan->lanes[i].end_at};
}

/* Bytes by class at the moment when most is live; slots without a place too. */
static pleat_result count_classes(const pleat_plan *plan, pleat__arena *scratch,
                                  uint64_t *class_bytes)
{
    uint32_t events = plan->steady.events, peak = 0;
    uint64_t always = 0, live = 0, most = 0;
    uint64_t *steps = pleat__arena_calloc(scratch, events + 1u, sizeof *steps); /* modulo 2^64 */
    if (steps == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the plan's events");
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        if (is_always(&plan->first.slots[i]))
            always += pleat__rounded(plan->first.slots[i].size);
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        uint64_t size = pleat__rounded(slot->size);
        uint32_t end = slot->free_at == PLEAT__NEVER ? events : slot->free_at;
        steps[slot->alloc_at] += size;
        steps[end] -= size;
        live += end <= slot->alloc_at ? size : 0;
    }
    for (uint32_t at = 0; at < events; at++) {
        live += steps[at];
        if (live > most) {
            most = live;
            peak = at;
        }
    }
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        bool wraps = slot->free_at <= slot->alloc_at;
        bool there = wraps ? peak >= slot->alloc_at || peak < slot->free_at
                           : peak >= slot->alloc_at && peak < slot->free_at;
        class_bytes[slot->class] += there ? pleat__rounded(slot->size) : 0;
    }
    class_bytes[PLEAT__CLASS_PERSISTENT] += always;
    pleat__arena_free(scratch, steps);
    return PLEAT_OK;
}

pleat_result gap_of_plan(const pleat_plan *plan, pleat__arena *scratch, gap_steps *gap,
                         uint64_t *class_bytes)
{
    size_t most = (size_t)plan->first.slot_count + plan->steady.slot_count + plan->lane_count;
    pleat__item *items = pleat__arena_calloc(scratch, most + 1, sizeof *items);
    pleat__problem problem = {.items = items, .horizon = plan->steady.events, .circular = true};
    uint64_t placed = 0;
    uint32_t floor = 0;
    if (items == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the plan's slots");
    add_slots(plan, &plan->first, true, items, &problem.count);
    add_slots(plan, &plan->steady, false, items, &problem.count);
    add_lanes(plan, items, &problem.count);
    memset(class_bytes, 0, PLEAT__CLASSES * sizeof *class_bytes);
    pleat_result result = pleat__max_live(&problem, scratch, &placed);
    if (result == PLEAT_OK)
        result = pleat__floor_chunks(&problem, plan->chunk_bytes, scratch, &floor);
    if (result == PLEAT_OK)
        result = count_classes(plan, scratch, class_bytes);
    if (result == PLEAT_OK)
        *gap = gap_from(plan, placed, floor);
    pleat__arena_free(scratch, items);
    return result;
}
