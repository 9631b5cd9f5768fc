/*
 * verify.h: what the verifier's files share. verify.c proves the plan's shape and that it fits a
 * trace; sweep.c proves that nothing is in each other's way. Neither uses anything of the
 * planner's.
 */
#ifndef PLEAT_PLAN_VERIFY_VERIFY_H
#define PLEAT_PLAN_VERIFY_VERIFY_H

#include <plan/base/plan.h>

/* A request's size as it is placed: rounded to PLEAT__ALIGNMENT. The shape check bounds sizes. */
static inline uint64_t pleat__placed_size(const pleat__slot *slot)
{
    return (slot->size + PLEAT__ALIGNMENT - 1) / PLEAT__ALIGNMENT * PLEAT__ALIGNMENT;
}

/* Overlaps in physical bytes: of slots and lanes that are live together, and of streams. The plan's
 * shape holds. PLEAT_E_VERIFY, PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__verify_sweep(const pleat_plan *plan, pleat__arena *scratch);

#endif
