/*
 * planner_internal.h: what the files that make a plan with a recipe share (planner.h).
 */
#ifndef PLEAT_PLAN_SIZES_PLANNER_INTERNAL_H
#define PLEAT_PLAN_SIZES_PLANNER_INTERNAL_H

#include <internal/error.h>
#include <plan/model/model.h>
#include <plan/sizes/fit.h>
#include <plan/sizes/planner.h>

/* One trace. */
typedef struct pleat__sized_trace {
    pleat__requests requests;
    pleat__iteration iteration;
} pleat__sized_trace;

/* One iteration of a trace. */
typedef struct pleat__recorded {
    uint32_t source;
    pleat__stretch stretch;
    const uint32_t *pairs; /* within the reference's trace, or NULL */
} pleat__recorded;

typedef struct pleat__planning {
    const pleat_trace *const *traces;
    uint32_t trace_count;
    pleat__elastic_options options;
    pleat_plan_options plan_options; /* none is left out */
    const pleat__plan_watch *watch;
    pleat__elastic_report *report;
    pleat__arena *scratch;
    pleat_plan *plan;
    pleat__recipe *recipe;
    pleat__sized_trace sources[PLEAT__TRACES_MOST];
    uint32_t reference;
    pleat__model model; /* of the reference */
    pleat__recorded profiles[PLEAT__FIT_PROFILES_MOST];
    uint32_t profile_count;
    uint64_t *sizes; /* [profile][request of the reference's iteration] */
    pleat__fit fit;
} pleat__planning;

static inline pleat_result pleat__no_recipe(const pleat__planning *p)
{
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a recipe of %u requests",
                       p->plan->steady.slot_count);
}

/* profiles.c: reads the traces, chooses the reference, and fills p->sizes with what each of
 * their iterations has where the reference's has its requests. PLEAT_E_INPUT where they are
 * different jobs. */
PLEAT_NODISCARD pleat_result pleat__profiles_read(pleat__planning *p, uint32_t device);
PLEAT_NODISCARD pleat_result pleat__profiles_compare(pleat__planning *p);

#endif
