/*
 * plan_trial.h: what a plan that was just made does in a replay of what it was made of, beside a
 * job that has none and learns.
 */
#ifndef PLEAT_TOOLS_PLAN_TRIAL_H
#define PLEAT_TOOLS_PLAN_TRIAL_H

#include <tools/json.h>

#include <plan/sizes/planner.h>

/* Of a replay: physical memory at most, of the steady iterations' requests those that had a place,
 * and the driver's part of their time. */
typedef struct plan_figures {
    uint64_t bytes;
    double planned_share;
    double driver_share;
} plan_figures;

/* Of one recording. */
typedef struct plan_trial {
    bool run;     /* false: no replay holds it, see why_not */
    bool changes; /* another run has other requests: its iterations are of several values of the
                     plan's parameter, or many requests change and nothing marks iterations */
    bool halved;  /* a plan of the first half of its iterations was tried on all of them */
    bool serves;  /* that one could be made, and `half` is what it takes */
    plan_figures planned, learned, half; /* with the plan, without one, with the half's */
    char why_not[160];                   /* no replay, or no plan of the half */
} plan_trial;

/* Replays each trace with the plan (laid out for the trace's size, where it is for several) and
 * without. One that pays and whose requests change from one marked iteration to the next is tried
 * with a plan of its first half too, made with the same options. */
void plan_trial_run(const pleat_plan *plan, const pleat_plan_options *options,
                    const pleat_trace *const *traces, uint32_t count, plan_trial *trials);
/* Whether learning does as well or better on every recording that was replayed, if there is one:
 * the plan, or that of the first half, saves next to no memory, takes more of the driver's time, or
 * has no place for many requests; or another run has other requests. */
bool plan_trial_is_lost(const plan_trial *trials, uint32_t count);

/* A trial's figures, as members of the open object. */
void plan_trial_members(json_writer *json, const plan_trial *trial);
/* For people, and as members of the open object. `names` are the recordings'. */
void plan_trial_text(const plan_trial *trials, const char *const *names, uint32_t count);
void plan_trial_json(json_writer *json, const plan_trial *trials, const char *const *names,
                     uint32_t count);

#endif
