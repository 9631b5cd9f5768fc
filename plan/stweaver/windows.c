/*
 * windows.c: see windows.h.
 */
#include <plan/stweaver/windows.h>

#include <internal/error.h>
#include <plan/base/sort.h>

static const pleat__request *request_of(const pleat__model *model, uint32_t slot)
{
    return &model->requests.items[model->iteration.steady.item + slot];
}

/* What a pass lasts, in events of the steady iteration, of which it may be a part only. */
static pleat__range events_of(const pleat__model *model, uint32_t pass)
{
    const pleat__requests *requests = &model->requests;
    pleat__stretch steady = model->iteration.steady;
    uint32_t begin = requests->passes[pass];
    uint32_t end =
        pass + 1 < requests->pass_count ? requests->passes[pass + 1] : requests->event_count;
    begin = begin > steady.begin_at ? begin : steady.begin_at;
    end = end < steady.end_at ? end : steady.end_at;
    return (pleat__range){begin - steady.begin_at, end - steady.begin_at};
}

/* From the beginning of the pass that allocates to the end of the one that frees; all of the
 * iteration for what is freed in the next one or not at all. */
static pleat__range lasts(const pleat__model *model, const pleat_plan *plan, uint32_t index)
{
    const pleat__slot *slot = &plan->steady.slots[index];
    if (slot->free_at == PLEAT__NEVER || slot->free_at <= slot->alloc_at)
        return (pleat__range){0, plan->steady.events};
    return (pleat__range){events_of(model, request_of(model, index)->alloc_pass).begin,
                          events_of(model, request_of(model, index)->free_pass).end};
}

static pleat__range hull(pleat__range a, pleat__range b)
{
    if (pleat__range_empty(a))
        return b;
    return (pleat__range){a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
}

/* Windows by pairs of passes. Without modules all are alike here, and the lanes part them: one for
 * what has none. */
static pleat_result number_windows(const pleat__model *model, pleat__arena *scratch,
                                   pleat_plan *plan, pleat__range *ranges)
{
    uint32_t slots = plan->steady.slot_count, count = 0;
    uint64_t *keys = pleat__arena_calloc(scratch, slots + 1ull, sizeof *keys);
    uint32_t *order = pleat__arena_alloc(scratch, (2ull * slots + 1) * sizeof *order);
    bool room = keys != NULL && order != NULL;
    for (uint32_t i = 0; i < slots && room; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class != PLEAT__CLASS_DYNAMIC)
            continue;
        const pleat__request *request = request_of(model, i);
        keys[i] =
            ranges != NULL ? (uint64_t)request->alloc_pass << 32 | request->free_pass : slot->lane;
        order[count++] = i;
    }
    if (room)
        pleat__sort_by_key(order, order + slots, count, keys);
    for (uint32_t k = 0, window = 0; k < count && room; k++) {
        window += k > 0 && keys[order[k]] != keys[order[k - 1]];
        plan->steady.slots[order[k]].window = window;
        if (ranges != NULL)
            ranges[window] = hull(ranges[window], lasts(model, plan, order[k]));
    }
    pleat__arena_free(scratch, keys);
    pleat__arena_free(scratch, order);
    return room ? PLEAT_OK
                : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the windows of %u requests",
                              slots);
}

static void drop_lanes(pleat__model *model, pleat_plan *plan)
{
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        plan->steady.slots[i].lane = PLEAT__NO_LANE;
    plan->lane_count = 0;
    model->problem.count = model->item_count;
}

pleat_result pleat__windows_make(pleat__model *model, pleat__arena *scratch, pleat_plan *plan,
                                 pleat__range **out)
{
    *out = NULL;
    if (model->requests.pass_count > 0) {
        *out = pleat__arena_calloc(scratch, plan->steady.slot_count + 1ull, sizeof **out);
        if (*out == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u windows",
                               plan->steady.slot_count);
    }
    pleat_result result = number_windows(model, scratch, plan, *out);
    drop_lanes(model, plan);
    return result;
}
