/*
 * plan.c: a plan's beginning and end, and its figures.
 */
#include <plan/base/plan.h>

#include <internal/error.h>
#include <internal/sized.h>

pleat_result pleat__plan_new(pleat_plan **out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_plan *plan = pleat__arena_calloc(arena, 1, sizeof *plan);
    if (plan == NULL) {
        pleat__arena_destroy(arena);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a plan");
    }
    plan->arena = arena;
    plan->unroll = 1;
    *out = plan;
    return PLEAT_OK;
}

void pleat_plan_free(pleat_plan *plan)
{
    if (plan != NULL)
        pleat__arena_destroy(plan->arena);
}

uint32_t pleat__dynamic_requests(const pleat_plan *plan)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        count += plan->steady.slots[i].class == PLEAT__CLASS_DYNAMIC;
    return count;
}

uint32_t pleat__iteration_dynamic(const pleat_plan *plan)
{
    return pleat__dynamic_requests(plan) / plan->unroll;
}

void pleat_plan_summary_fill(const pleat_plan *plan, pleat_plan_summary *out, size_t size)
{
    pleat_plan_summary summary = {
        .requests = plan->requests,
        .iteration_requests = pleat__iteration_slots(plan),
        .max_live_bytes = plan->max_live_bytes,
        .virtual_bytes = plan->virtual_bytes,
        .physical_bytes = plan->physical_bytes,
        .handles = plan->handle_count,
        .dynamic_requests = pleat__iteration_dynamic(plan),
        .lanes = plan->lane_count,
        .device = plan->device,
        .followed = !plan->answers_only,
    };
    for (uint32_t i = 0; i < plan->map_count; i++) {
        uint64_t chunks = plan->handles[plan->maps[i].handle].chunks;
        summary.maps += chunks;
        summary.alias_maps += plan->maps[i].alias ? chunks : 0;
    }
    /* Between its base and its views lies what a larger x would use. */
    if (plan->recipe != NULL)
        summary.virtual_bytes = summary.maps * plan->chunk_bytes;
    pleat__fill_sized(out, size, &summary, sizeof summary);
}
