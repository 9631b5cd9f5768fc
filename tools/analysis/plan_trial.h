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

/* Why a plan is not followed. X(id, name in JSON, what is said of it): the first that is so. */
#define PLAN_REASONS(X)                                                                            \
    X(NONE, "", "")                                                                                \
    X(LEFT, "left", "it does not fit the recording, and is left as another job's would be")        \
    X(MEMORY, "memory", "with it the job takes more memory than where Pleat learns")               \
    X(SAVING, "saving",                                                                            \
      "over a sixteenth of an iteration's requests change, and it saves less than a thousandth")   \
    X(DRIVER, "driver", "with it more of the job's time passes in the driver, by over 0.5 %")      \
    X(SIZES, "sizes",                                                                              \
      "another run has other requests, since the recording's iterations are of several sizes")     \
    X(CHANGES, "changes",                                                                          \
      "nothing marks iterations, and over a sixteenth of the requests change or have no place")

typedef enum plan_reason {
#define PLAN_REASON_ID(id, name, sentence) PLAN_REASON_##id,
    PLAN_REASONS(PLAN_REASON_ID)
#undef PLAN_REASON_ID
} plan_reason;

/* Behind "the plan", of a file, which does not keep the reason. */
#define PLAN_IS_NOT_FOLLOWED "is not followed: 'pleat plan' of its recording says why"

/* Of one recording. */
typedef struct plan_trial {
    bool run;    /* false: no replay holds it, see why_not */
    bool left;   /* while it was on trial (runtime/learn/judge.h) */
    bool change; /* over a sixteenth of its iteration's requests, from one to the next */
    /* Another run has other requests: */
    bool sizes;    /* its iterations are of several values of the plan's parameter */
    bool unmarked; /* many requests change, and nothing marks iterations */
    plan_figures planned, learned; /* with the plan, without one */
    char why_not[160];
} plan_trial;

/* Replays each trace with the plan (laid out for the trace's size, where it is for several) and
 * without. */
void plan_trial_run(const pleat_plan *plan, const pleat_trace *const *traces, uint32_t count,
                    plan_trial *trials);
/* What speaks against following the plan, by one recording, in a sentence without its end. */
const char *plan_trial_sentence(const plan_trial *trial);
/* Whether every recording that was replayed speaks against it, if there is one. */
bool plan_trial_is_lost(const plan_trial *trials, uint32_t count);

/* A trial's figures, as members of the open object. */
void plan_trial_members(json_writer *json, const plan_trial *trial);
/* For people, and as members of the open object. `names` are the recordings'. */
void plan_trial_text(const plan_trial *trials, const char *const *names, uint32_t count);
void plan_trial_json(json_writer *json, const plan_trial *trials, const char *const *names,
                     uint32_t count);

#endif
