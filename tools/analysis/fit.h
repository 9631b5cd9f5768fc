/*
 * fit.h: how much larger a job's microbatch (or length) could be on a device, under each policy.
 *
 * The recorded job is run again with other sizes, on a host device of that memory, and either it
 * fits or it does not. Where the sizes come from:
 *
 *   RECIPE  two recordings or more, at different microbatches: each request's size is the function
 *           of the microbatch that plan/sizes/sizes.h fits to them. x is in its units.
 *   SCALE   one recording: what its requests' lives show to be activations (growing.h) grows in
 *           proportion, the rest does not. x is how many times the recorded one, and 1 where
 * nothing grows.
 *
 * Steps: whole microbatches, where the recorded one is said (of more than a length of 64, one in 64
 * of it); else tenths of the recorded one. Every answer is a step that fits, none is rounded up.
 */
#ifndef PLEAT_TOOLS_FIT_H
#define PLEAT_TOOLS_FIT_H

#include <tools/replay/replay.h>

#include <plan/sizes/planner.h>

/* What SCALE assumes, for people. */
extern const char fit_assumption[];
/* What is said behind the device's memory where nobody says how much it has. */
extern const char fit_device_assumed[];

typedef struct fit {
    pleat__arena *arena;
    const pleat_trace *trace; /* whose sizes are changed */
    pleat__requests requests; /* of its device */
    uint32_t device;
    pleat_plan *plan;         /* with a recipe; NULL: SCALE */
    bool *grows;              /* SCALE: of each request */
    pleat__fraction x;        /* of the trace itself; with SCALE 1 */
    pleat__fraction step;     /* of x */
    uint32_t lowest, highest; /* steps */
    uint32_t own;             /* the step of the trace itself, rounded down */
    uint64_t device_bytes;
} fit;

typedef struct fit_result {
    uint32_t step; /* 0: not even the smallest */
    double times;  /* the recorded one */
    uint64_t live_bytes, physical_bytes;
    bool bounded; /* larger ones may fit too, beyond what the recordings can speak of */
} fit_result;

/* `traces` outlive the fit. The first is the job that is spoken of; `microbatches`: those of the
 * first `named` traces, which are none, one or all. PLEAT_E_INPUT when the others are not of the
 * same job at other sizes, or not at those named. */
PLEAT_NODISCARD pleat_result fit_begin(const pleat_trace *const *traces, uint32_t count,
                                       const uint64_t *microbatches, uint32_t named,
                                       uint64_t device_bytes, fit *out);
void fit_end(fit *fit);
/* What a policy takes at half of the recorded microbatch; step 0: it does not fit. `recorded`, of
 * both: what the first trace itself takes under it on that device; NULL: it is run once more. */
PLEAT_NODISCARD pleat_result fit_half(const fit *fit, const char *policy,
                                      const replay_result *recorded, fit_result *result);
/* The largest that fits under a policy. */
PLEAT_NODISCARD pleat_result fit_policy(const fit *fit, const char *policy,
                                        const replay_result *recorded, fit_result *result);

#endif
