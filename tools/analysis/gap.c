/*
 * gap.c: see gap.h.
 */
#include <tools/analysis/gap.h>

#include <plan/fold/fold.h>

#include <internal/error.h>
#include <plan/model/model.h>
#include <plan/place/place.h>
#include <stdlib.h>

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

/* Whether a slot of the steady iteration holds its request at an event of it. */
static bool is_there(const pleat__slot *slot, uint32_t at)
{
    bool wraps = slot->free_at <= slot->alloc_at;
    return wraps ? at >= slot->alloc_at || at < slot->free_at
                 : at >= slot->alloc_at && at < slot->free_at;
}

static void add_to_peak(plan_peak *peak, const pleat__slot *slot)
{
    uint64_t size = pleat__rounded(slot->size);
    peak->bytes[slot->class] += size;
    peak->small_bytes += slot->size < PLEAT__SMALL_BYTES ? size : 0;
}

/* The event of the steady iteration at which most is live; steps[events + 1] are zeros. */
static uint32_t find_peak(const pleat_plan *plan, uint64_t *steps)
{
    uint32_t events = plan->steady.events, peak = 0;
    uint64_t live = 0, most = 0; /* steps are modulo 2^64 */
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
    return peak;
}

pleat_result plan_peak_of(const pleat_plan *plan, plan_peak *out)
{
    uint64_t *steps = calloc(plan->steady.events + 1u, sizeof *steps);
    if (steps == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the plan's events");
    uint64_t fixed = 0;
    *out = (plan_peak){0};
    uint32_t at = find_peak(plan, steps);
    free(steps);
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        if (is_always(&plan->first.slots[i])) {
            out->requests[PLEAT__CLASS_PERSISTENT]++;
            add_to_peak(out, &plan->first.slots[i]);
        }
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        out->requests[plan->steady.slots[i].class]++;
        if (is_there(&plan->steady.slots[i], at))
            add_to_peak(out, &plan->steady.slots[i]);
    }
    for (int i = 0; i < PLEAT__CLASSES; i++)
        out->requests[i] /= i == PLEAT__CLASS_PERSISTENT ? 1 : plan->unroll;
    /* A dynamic slot has the largest size of several iterations, max-live is of one. */
    out->bytes[PLEAT__CLASS_DYNAMIC] = 0;
    for (int i = 0; i < PLEAT__CLASSES; i++)
        fixed += out->bytes[i];
    out->bytes[PLEAT__CLASS_DYNAMIC] = more(plan->max_live_bytes, fixed);
    return PLEAT_OK;
}

pleat_result gap_of_plan(const pleat_plan *plan, pleat__arena *scratch, gap_steps *gap)
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
    pleat_result result = pleat__max_live(&problem, scratch, &placed);
    if (result == PLEAT_OK)
        result = pleat__floor_chunks(&problem, plan->chunk_bytes, scratch, &floor);
    if (result == PLEAT_OK)
        *gap = gap_from(plan, placed, floor);
    pleat__arena_free(scratch, items);
    return result;
}
