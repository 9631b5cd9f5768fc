/*
 * unroll.c: the steady iteration twice, where requests live until their like is there in the next.
 *
 * A batch is freed when the next one is on the device, and so is what a loop's variable holds until
 * it is assigned again. Such a request meets itself, so it needs two places that take turns, and
 * all that lies where the other one was takes turns with it. That is a loop whose values live
 * longer than an iteration: its body is unrolled, each copy has places of its own, and placement
 * sees two iterations as one (modulo variable expansion: Lam, "Software Pipelining", PLDI 1988,
 * section 2.3). A plan of it has twice as many requests, so it is made only where such requests are
 * larger than the chunk that they would share beside the plan (docs/decisions.md, D516).
 */
#include <plan/model/model.h>

#include <internal/error.h>

#define COPIES 2u

/* The phases of one iteration behind those of the other. */
static pleat_result unroll_phases(pleat_plan *plan)
{
    pleat__sequence *steady = &plan->steady;
    uint32_t count = steady->phase_count;
    pleat__phase *phases =
        pleat__arena_alloc(plan->arena, (uint64_t)COPIES * count * sizeof *phases);
    if (phases == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a plan's phases");
    for (uint32_t i = 0; i < COPIES * count; i++) {
        phases[i] = steady->phases[i % count];
        phases[i].begin_at += i / count * steady->events;
    }
    pleat__arena_free(plan->arena, steady->phases);
    steady->phases = phases;
    steady->phase_count = COPIES * count;
    return PLEAT_OK;
}

/* A slot in one of the copies, in whose phases it is. `events` are those of one iteration. */
static pleat__slot copy_of(const pleat__model *model, const pleat_plan *plan, uint32_t index,
                           uint32_t copy, uint32_t events)
{
    pleat__slot slot = plan->steady.slots[index];
    uint32_t behind = model->longer[index];
    uint32_t freed = behind != PLEAT__NEVER ? behind : slot.free_at;
    bool outlives = behind != PLEAT__NEVER || freed <= slot.alloc_at;
    slot.alloc_at += copy * events;
    if (freed != PLEAT__NEVER)
        slot.free_at = (copy + outlives) % COPIES * events + freed;
    pleat__set_phases(&plan->steady, &slot);
    if (behind != PLEAT__NEVER || (slot.class != PLEAT__CLASS_DYNAMIC && outlives))
        slot.class = PLEAT__CLASS_CROSSING;
    return slot;
}

static pleat_result unroll(const pleat__model *model, pleat_plan *plan)
{
    pleat__sequence *steady = &plan->steady;
    uint32_t count = steady->slot_count, events = steady->events;
    pleat__slot *slots = pleat__arena_alloc(plan->arena, (uint64_t)COPIES * count * sizeof *slots);
    if (slots == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u slots", COPIES * count);
    PLEAT_TRY(unroll_phases(plan));
    for (uint32_t i = 0; i < COPIES * count; i++)
        slots[i] = copy_of(model, plan, i % count, i / count, events);
    pleat__arena_free(plan->arena, steady->slots);
    steady->slots = slots;
    steady->slot_count = COPIES * count;
    steady->events = COPIES * events;
    plan->unroll = COPIES;
    return PLEAT_OK;
}

static bool is_possible(const pleat_plan *plan)
{
    const pleat__sequence *steady = &plan->steady;
    return steady->phase_count <= UINT16_MAX / COPIES && steady->slot_count <= UINT32_MAX / 4 &&
           steady->events <= UINT32_MAX / 4;
}

pleat_result pleat__model_unroll(const pleat__model *model, pleat_plan *plan)
{
    return model->longer_bytes > plan->chunk_bytes && is_possible(plan) ? unroll(model, plan)
                                                                        : PLEAT_OK;
}
