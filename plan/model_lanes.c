/*
 * model_lanes.c: the model's dynamic requests as lanes among the items to be placed, and what is
 * live with them counted.
 */
#include <plan/model.h>

#include <internal/error.h>
#include <plan/lanes.h>

static uint64_t rounded(uint64_t size)
{
    return pleat__ceil_div(size, PLEAT__ALIGNMENT) * PLEAT__ALIGNMENT;
}

static uint32_t count_dynamic(const pleat_plan *plan)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        count += plan->steady.slots[i].class == PLEAT__CLASS_DYNAMIC;
    return count;
}

/* sizes[profile][rank]: the steady iteration's own sizes, then those of its partners. */
static void fill_sizes(const pleat__model *model, const pleat_plan *plan, uint64_t *sizes)
{
    const pleat__iteration *iteration = &model->iteration;
    for (uint32_t p = 0; p <= iteration->profile_count; p++)
        for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
            if (plan->steady.slots[i].class != PLEAT__CLASS_DYNAMIC)
                continue;
            uint32_t item = iteration->steady.item + i;
            if (p > 0)
                item = iteration->pairs[(uint64_t)(p - 1) * iteration->steady.items + i];
            *sizes++ = item == PLEAT__NEVER ? 0 : model->requests.items[item].size;
        }
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

pleat_result pleat__model_add_lanes(pleat__model *model, double margin, pleat_plan *plan)
{
    uint32_t profiles = model->iteration.profile_count + 1, dynamic = count_dynamic(plan);
    if (dynamic == 0)
        return PLEAT_OK;
    uint64_t *sizes =
        pleat__arena_alloc(model->arena, (uint64_t)profiles * dynamic * sizeof *sizes);
    if (sizes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u dynamic requests", dynamic);
    pleat__item *lanes = NULL;
    fill_sizes(model, plan, sizes);
    pleat_result result = pleat__lanes_make(plan, sizes, profiles, margin, model->arena, &lanes);
    if (result == PLEAT_OK)
        result = append_lanes(model, plan, lanes);
    pleat__arena_free(model->arena, lanes);
    pleat__arena_free(model->arena, sizes);
    return result;
}

pleat_result pleat__model_max_live(const pleat__model *model, const pleat_plan *plan,
                                   uint64_t *bytes)
{
    uint32_t count = model->item_count;
    pleat__item *items = pleat__arena_alloc(
        model->arena, ((uint64_t)count + count_dynamic(plan) + 1) * sizeof *items);
    if (items == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u items", count);
    for (uint32_t i = 0; i < count; i++)
        items[i] = model->items[i];
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class != PLEAT__CLASS_DYNAMIC)
            continue;
        const pleat__request *request = &model->requests.items[model->iteration.steady.item + i];
        /* Longer than an iteration: live always, as far as one iteration can tell. */
        bool always = slot->free_at == PLEAT__NEVER;
        items[count++] = (pleat__item){.size = rounded(request->size),
                                       .fixed = UINT64_MAX,
                                       .begin = always ? 0 : slot->alloc_at,
                                       .end = always ? model->problem.horizon : slot->free_at};
    }
    pleat__problem problem = model->problem;
    problem.items = items;
    problem.count = count;
    pleat_result result = pleat__max_live(&problem, model->arena, bytes);
    pleat__arena_free(model->arena, items);
    return result;
}
