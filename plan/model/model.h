/*
 * model.h: from a trace to the plan's two sequences and the problem that placement solves.
 *
 * Requests of the steady iteration whose size, stream or presence differs between the profiled
 * iterations are dynamic. So is one that lives longer than an iteration although every iteration
 * allocates it anew: it would meet itself, unless the iteration is unrolled (unroll.c). Everything
 * else has an item. Items [0, persistents) are slots of `first`, the others of `steady`.
 */
#ifndef PLEAT_PLAN_MODEL_MODEL_H
#define PLEAT_PLAN_MODEL_MODEL_H

#include <plan/model/iteration.h>
#include <plan/place/place.h>

/* Requests under this are counted as small in reports. */
#define PLEAT__SMALL_BYTES (1u << 20)

typedef struct pleat__model {
    pleat__arena *arena;
    pleat__requests requests;
    pleat__iteration iteration;
    pleat__item *items;
    uint32_t *slots; /* of each item: its slot */
    uint32_t item_count;
    uint32_t persistents;
    pleat__problem problem;
    uint32_t *longer; /* of each request of the steady iteration that is dynamic for nothing but its
                         life: when it is freed in the next one; of the others PLEAT__NEVER */
    uint64_t longer_bytes; /* of those, rounded */
} pleat__model;

/* Fills the plan's labels, streams and sequences (no places yet), in the plan's arena. The model's
 * own arrays come from `arena`. `unrolls`: the plan may be of two iterations. */
PLEAT_NODISCARD pleat_result pleat__model_make(const pleat_trace *trace, uint32_t device,
                                               pleat__arena *arena, bool unrolls, pleat_plan *plan,
                                               pleat__model *out);
/* The phases in which a slot is allocated and freed. */
void pleat__set_phases(const pleat__sequence *sequence, pleat__slot *slot);

/* unroll.c: makes the plan's steady sequence two iterations, where that gives requests places that
 * one has none for. */
PLEAT_NODISCARD pleat_result pleat__model_unroll(const pleat__model *model, pleat_plan *plan);
/* A dynamic request of an iteration of so many events. One that lives longer is live always, as far
 * as one iteration can tell. */
static inline pleat__item pleat__dynamic_item(const pleat__slot *slot, uint64_t size,
                                              uint32_t events)
{
    bool always = slot->free_at == PLEAT__NEVER;
    return (pleat__item){.size = pleat__rounded(size),
                         .fixed = UINT64_MAX,
                         .begin = always ? 0 : slot->alloc_at,
                         .end = always ? events : slot->free_at};
}
/* What a steady slot is by when it is allocated and freed. pre: it is freed */
uint8_t pleat__steady_class(const pleat__slot *slot);

/* accidental_static.c: makes dynamic what is the same in the profiles by chance. */
PLEAT_NODISCARD pleat_result pleat__model_take_chances(const pleat__model *model, pleat_plan *plan);

/* model_lanes.c: makes the plan's lanes for its dynamic slots and adds them to the problem, as
 * items from model->item_count on. */
PLEAT_NODISCARD pleat_result pleat__model_add_lanes(pleat__model *model, pleat_plan *plan);
/* The most that is live in the steady iteration, with the sizes that its dynamic requests had in
 * whichever profile that is most with: the lanes have room for each. */
PLEAT_NODISCARD pleat_result pleat__model_max_live(const pleat__model *model,
                                                   const pleat_plan *plan, uint64_t *bytes);

/* phases.c: fills the sequence's phases from the labels in [begin_at, end_at), or where there are
 * none from the turning points of the live curve. `capacity` is in the plan's arena. */
PLEAT_NODISCARD pleat_result pleat__phases_make(const pleat__requests *requests, uint32_t begin_at,
                                                uint32_t end_at, pleat_plan *plan,
                                                pleat__sequence *sequence);
/* The phase in force at a position of the sequence. */
uint16_t pleat__phase_at(const pleat__sequence *sequence, uint32_t position);

#endif
