/*
 * footprint.h: what a recorded job takes, over time and by whom: the figures that `pleat report`
 * draws and `pleat explain` puts in words.
 *
 * TIME  Positions, as plan/model/requests.h counts them: allocations and completed frees of the
 * job's device. Curves are cut into buckets of equal numbers of positions, each with the least and
 *       the most that there was: a peak is never lost, however coarse the picture.
 */
#ifndef PLEAT_TOOLS_FOOTPRINT_H
#define PLEAT_TOOLS_FOOTPRINT_H

#include <tools/analysis/gap.h>
#include <tools/analysis/plan_trial.h>
#include <tools/replay/replay.h>

#include <plan/model/requests.h>

#define FOOTPRINT_BUCKETS  8192
#define FOOTPRINT_POLICIES 8
#define FOOTPRINT_GROUPS   20
#define FOOTPRINT_CULPRITS 5

/* Bytes of a class at a peak, and an iteration's requests of it (0: not asked). */
typedef struct footprint_class {
    const char *name;
    uint64_t bytes, requests;
} footprint_class;

/* Whether the recording named its phases. Where it did not, a plan has them by the rise and fall of
 * what is live (plan/model/phases.c), which is no forward and backward: what is transient and what
 * is scoped is then not known, and both are "within" an iteration. */
bool footprint_has_phases(const pleat_plan *plan);
/* Whether only phases tell the class from the other one of an iteration. */
bool footprint_is_within(int class);
const char *footprint_class_name(bool has_phases, int class);
/* The classes that can be told, into all[PLEAT__CLASSES], of arrays with PLEAT__CLASSES figures
 * (`requests` may be NULL); returns how many. */
int footprint_classes(bool has_phases, const uint64_t *bytes, const uint64_t *requests,
                      footprint_class *all);

/* One quantity over time, in bytes. */
typedef struct footprint_curve {
    float *low;
    float *high;
} footprint_curve;

/* Requests of one size allocated in one phase and, where the recording has stack frames, at one
 * place. */
typedef struct footprint_group {
    uint64_t size;
    uint64_t bytes; /* see where it is used */
    uint32_t count;
    uint16_t phase;
    uint32_t site; /* of the trace; 0: not known */
} footprint_group;

typedef struct footprint_policy {
    replay_result result;
    footprint_curve physical;
    footprint_curve virtual;
    /* When physical reached its most: the event, what was live then, what of the memory there was
     * lay idle just before, and the request that this did not serve. */
    uint32_t peak_at;
    uint64_t peak_live_bytes;
    uint64_t peak_idle_bytes;
    uint64_t peak_request_bytes;
    /* How often it grew beyond max-live, which any allocator needs; and how often, and by how much,
     * though as many bytes as the request asked for lay idle: that is fragmentation. */
    uint32_t growths;
    uint32_t split_growths;
    uint64_t split_bytes;
    /* The requests that it grew for beyond max-live; bytes: by which. Their sum is what the policy
     * wastes. Most first. */
    footprint_group culprits[FOOTPRINT_CULPRITS];
    int culprit_count;
} footprint_policy;

typedef struct footprint {
    pleat__arena *arena; /* holds what is below */
    const pleat_trace *trace;
    bool several; /* GPUs in the recording, of which this is one */
    uint32_t device;
    pleat__requests requests;
    uint32_t buckets;
    footprint_curve live;
    bool has_sites;
    uint64_t max_live_bytes;
    uint32_t max_live_at;    /* position */
    uint32_t max_live_count; /* requests live then */
    footprint_policy policies[FOOTPRINT_POLICIES];
    int policy_count;
    uint32_t *sites;                          /* of each of the trace's requests */
    footprint_group groups[FOOTPRINT_GROUPS]; /* live at max-live; their bytes, most first */
    int group_count;
    const pleat_plan *plan; /* NULL: there is none, see why_no_plan */
    char why_no_plan[512];
    bool has_phases;      /* the recording named them */
    plan_trial trial;     /* what the plan does in a replay */
    pleat_plan *own_plan; /* that plan, when it was made here */
    bool has_gap;         /* there is a plan: what follows is known */
    gap_steps gap;
    plan_peak peak;
} footprint;

typedef struct footprint_options {
    const char *const *policies;
    int policy_count;
    const char *plan; /* a plan's file; NULL: one is made, and policy pleat finds its own */
    uint64_t budget_bytes;
    uint64_t device_bytes;
    bool several; /* the recording is of several GPUs */
} footprint_options;

/* Runs the trace under each policy on host memory. `trace` must outlive the footprint. */
PLEAT_NODISCARD pleat_result footprint_make(const pleat_trace *trace,
                                            const footprint_options *options, footprint *out);
/* Nothing needs to have been made. */
void footprint_free(footprint *footprint);

/* A phase's name; at most `size` bytes of it, in `buffer`. */
const char *footprint_phase(const footprint *footprint, uint16_t phase, char *buffer, size_t size);
/* The phase in force at a position. */
uint16_t footprint_phase_at(const footprint *footprint, uint32_t position);
/* The iteration that a position lies in, from 1; 0 before the first. */
uint32_t footprint_iteration_at(const footprint *footprint, uint32_t position);
/* "It took these in 58 steps; in 57 of them ...", sizes in the unit of `like`: how a policy grew
 * beyond max-live, where it did. At most FOOTPRINT_STEPS bytes, in `text`. */
#define FOOTPRINT_STEPS 256
const char *footprint_steps(const footprint_policy *policy, uint64_t like,
                            char text[FOOTPRINT_STEPS]);
/* Physical memory that `policy` holds beyond max-live, or 0. */
uint64_t footprint_waste(const footprint *footprint, const footprint_policy *policy);
/* NULL when it was not run. */
const footprint_policy *footprint_find(const footprint *footprint, const char *policy);

/* The object's members. */
void footprint_json(json_writer *json, const footprint *footprint);

#endif
