/*
 * plan_trial.h: what a plan that was just made does in a replay of what it was made of, beside a
 * job that has none and learns.
 */
#ifndef PLEAT_TOOLS_PLAN_TRIAL_H
#define PLEAT_TOOLS_PLAN_TRIAL_H

#include <tools/json.h>

#include <plan/sizes/planner.h>

/* Of one recording. */
typedef struct plan_trial {
    bool run;               /* false: no replay holds it, see why_not */
    bool drawn;             /* its iterations are of several values of the plan's parameter */
    uint64_t planned_bytes; /* physical memory at most, with the plan */
    uint64_t learned_bytes; /* and without it */
    double planned_share;   /* of its steady iterations' requests */
    double
        planned_driver; /* the driver's part of the time of its steady iterations, with the plan */
    double learned_driver; /* and without it */
    char why_not[160];
} plan_trial;

/* Replays each trace with the plan (laid out for the trace's size, where it is for several) and
 * without. */
void plan_trial_run(const pleat_plan *plan, const pleat_trace *const *traces, uint32_t count,
                    plan_trial *trials);
/* Whether learning does as well or better on every recording that was replayed, if there is one:
 * the plan saves next to no memory, takes more of the driver's time, or has no place for many
 * requests. */
bool plan_trial_is_lost(const plan_trial *trials, uint32_t count);

/* For people, and as members of the open object. `names` are the recordings'. */
void plan_trial_text(const plan_trial *trials, const char *const *names, uint32_t count);
void plan_trial_json(json_writer *json, const plan_trial *trials, const char *const *names,
                     uint32_t count);

#endif
