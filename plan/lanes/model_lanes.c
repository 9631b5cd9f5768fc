/*
 * model_lanes.c: the model's dynamic requests as lanes among the items to be placed, and what is
 * live with them counted.
 */
#include <plan/model/model.h>

#include <internal/error.h>
#include <plan/lanes/lanes.h>

/* What a dynamic request of the steady iteration took in a profile, of which 0 is itself. */
static uint64_t size_in_profile(const pleat__model *model, uint32_t profile, uint32_t index)
{
    const pleat__iteration *iteration = &model->iteration;
    index %= iteration->steady.items; /* both iterations of an unrolled one are it */
    uint32_t item = iteration->steady.item + index;
    if (profile > 0)
        item = iteration->pairs[(uint64_t)(profile - 1) * iteration->steady.items + index];
    return item == PLEAT__NEVER ? 0 : model->requests.items[item].size;
}

/* sizes[profile][rank]: the steady iteration's own sizes, then those of its partners. */
static void fill_sizes(const pleat__model *model, const pleat_plan *plan, uint64_t *sizes)
{
    for (uint32_t p = 0; p <= model->iteration.profile_count; p++)
        for (uint32_t i = 0; i < plan->steady.slot_count; i++)
            if (plan->steady.slots[i].class == PLEAT__CLASS_DYNAMIC)
                *sizes++ = size_in_profile(model, p, i);
}

static pleat_result append_lanes(pleat__model *model, const pleat_plan *plan,
                                 const pleat__item *lanes)
{
    size_t capacity = model->item_count;
    for (uint32_t l = 0; l < plan->lane_count; l++) {
        PLEAT_TRY(pleat__arena_grow(model->arena, &model->items, &capacity, model->item_count + l,
                                    sizeof *model->items));
        model->items[model->item_count + l] = lanes[l];
    }
    model->problem.items = model->items;
    model->problem.count = model->item_count + plan->lane_count;
    return PLEAT_OK;
}

pleat_result pleat__model_add_lanes(pleat__model *model, pleat_plan *plan)
{
    uint32_t profiles = model->iteration.profile_count + 1, dynamic = pleat__dynamic_requests(plan);
    if (dynamic == 0)
        return PLEAT_OK;
    uint64_t *sizes =
        pleat__arena_alloc(model->arena, (uint64_t)profiles * dynamic * sizeof *sizes);
    if (sizes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u dynamic requests", dynamic);
    pleat__item *lanes = NULL;
    fill_sizes(model, plan, sizes);
    pleat_result result = pleat__lanes_make(plan, sizes, profiles, model->arena, &lanes);
    if (result == PLEAT_OK)
        result = append_lanes(model, plan, lanes);
    pleat__arena_free(model->arena, lanes);
    pleat__arena_free(model->arena, sizes);
    return result;
}

/* The dynamic requests behind the model's items, with their sizes in a profile. */
static uint32_t append_dynamic(const pleat__model *model, const pleat_plan *plan, uint32_t profile,
                               pleat__item *items)
{
    uint32_t count = model->item_count;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class == PLEAT__CLASS_DYNAMIC)
            items[count++] = pleat__dynamic_item(slot, size_in_profile(model, profile, i),
                                                 model->problem.horizon);
    }
    return count;
}

pleat_result pleat__model_max_live(const pleat__model *model, const pleat_plan *plan,
                                   uint64_t *bytes)
{
    uint32_t dynamic = pleat__dynamic_requests(plan);
    uint32_t profiles = dynamic == 0 ? 1 : model->iteration.profile_count + 1;
    pleat__item *items = pleat__arena_alloc(
        model->arena, ((uint64_t)model->item_count + dynamic + 1) * sizeof *items);
    if (items == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u items", model->item_count);
    for (uint32_t i = 0; i < model->item_count; i++)
        items[i] = model->items[i];
    pleat__problem problem = model->problem;
    problem.items = items;
    pleat_result result = PLEAT_OK;
    *bytes = 0;
    for (uint32_t p = 0; p < profiles && result == PLEAT_OK; p++) {
        uint64_t live;
        problem.count = append_dynamic(model, plan, p, items);
        result = pleat__max_live(&problem, model->arena, &live);
        if (result == PLEAT_OK && live > *bytes)
            *bytes = live;
    }
    pleat__arena_free(model->arena, items);
    return result;
}
