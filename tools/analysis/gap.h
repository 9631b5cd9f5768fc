/*
 * gap.h: what is live at a plan's peak, and from there to its physical memory, step by step.
 */
#ifndef PLEAT_TOOLS_GAP_H
#define PLEAT_TOOLS_GAP_H

#include <plan/planner.h>

/* Bytes. X(name, text): what is added to max-live less `unplaced`, in this order; the sum is
 * physical. */
#define GAP_STEPS(X)                                                                               \
    X(lanes, "room in lanes for other iterations")                                                 \
    X(rounding, "rounding to chunks")                                                              \
    X(streams, "streams kept apart")                                                               \
    X(stuck, "stuck: no idle chunks for their life")

#define GAP_UNPLACED "without a slot or lane, beside the plan"

typedef struct gap_steps {
    uint64_t live;
    uint64_t unplaced; /* of it in requests without a slot or a lane: what lies beside the plan */
#define GAP_FIELD(name, text) uint64_t name;
    GAP_STEPS(GAP_FIELD)
#undef GAP_FIELD
    uint64_t physical;
} gap_steps;

/* What a job that follows the plan takes at least. */
static inline uint64_t gap_taken(const gap_steps *gap)
{
    return gap->physical + gap->unplaced;
}

gap_steps gap_of(const pleat_plan *plan, const pleat__plan_report *report);

/* The same of a plan that was read, by what is in it. */
PLEAT_NODISCARD pleat_result gap_of_plan(const pleat_plan *plan, pleat__arena *scratch,
                                         gap_steps *gap);

/* By pleat__class: what is live when most of a plan's steady iteration is; together it is max-live.
 * And an iteration's requests. */
typedef struct plan_peak {
    uint64_t bytes[PLEAT__CLASSES];
    uint64_t requests[PLEAT__CLASSES];
    uint64_t small_bytes; /* of the bytes, in requests under 1 MiB */
} plan_peak;
PLEAT_NODISCARD pleat_result plan_peak_of(const pleat_plan *plan, plan_peak *out);

#endif
