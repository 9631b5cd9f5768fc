/*
 * gap.h: from max-live to a plan's physical memory, step by step.
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

/* The same of a plan that was read, by what is in it; class_bytes[PLEAT__CLASSES] are live when
 * most of the steady iteration is. */
PLEAT_NODISCARD pleat_result gap_of_plan(const pleat_plan *plan, pleat__arena *scratch,
                                         gap_steps *gap, uint64_t *class_bytes);

#endif
