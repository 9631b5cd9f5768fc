/*
 * prologue_lanes.c: when lanes are in use before the steady iterations. See prologue.h.
 */
#include <plan/fold/prologue.h>

#include <internal/error.h>

/* Events without a request of the lane after which it is given up: an iteration's end. */
#define PAUSE 4096u

static pleat_result add_request(pleat__lane_uses *uses, const pleat__sequence *first,
                                const pleat__slot *slot, uint32_t *current, pleat__arena *arena)
{
    uint32_t end = slot->free_at == PLEAT__NEVER ? first->events : slot->free_at;
    if (*current != UINT32_MAX && slot->alloc_at <= uses->all[*current].end + PAUSE) {
        pleat__lane_use *use = &uses->all[*current];
        use->end = end > use->end ? end : use->end;
        return PLEAT_OK;
    }
    PLEAT_TRY(
        pleat__arena_grow(arena, &uses->all, &uses->capacity, uses->count, sizeof *uses->all));
    *current = uses->count;
    uses->all[uses->count++] =
        (pleat__lane_use){.lane = slot->lane, .begin = slot->alloc_at, .end = end};
    return PLEAT_OK;
}

pleat_result pleat__first_lane_uses(const pleat_plan *plan, pleat__arena *arena,
                                    pleat__lane_uses *uses)
{
    uint32_t *current = pleat__arena_alloc(arena, (plan->lane_count + 1ull) * sizeof *current);
    *uses = (pleat__lane_uses){0};
    if (current == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the uses of %u lanes",
                           plan->lane_count);
    for (uint32_t l = 0; l < plan->lane_count; l++)
        current[l] = UINT32_MAX;
    pleat_result result = PLEAT_OK;
    for (uint32_t i = 0; i < plan->first.slot_count && result == PLEAT_OK; i++) {
        const pleat__slot *slot = &plan->first.slots[i];
        if (slot->class == PLEAT__CLASS_DYNAMIC && slot->lane < plan->lane_count)
            result = add_request(uses, &plan->first, slot, &current[slot->lane], arena);
    }
    pleat__arena_free(arena, current);
    return result;
}
