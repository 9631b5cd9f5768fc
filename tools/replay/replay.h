/*
 * replay.h: feeds a trace to a runtime on real memory and measures what comes of it.
 */
#ifndef PLEAT_TOOLS_REPLAY_H
#define PLEAT_TOOLS_REPLAY_H

#include <tools/json.h>
#include <tools/replay/call_times.h>
#include <tools/replay/repeat.h>

#include <plan/model/requests.h>
#include <pleat/runtime.h>
#include <stdbool.h>

/* Told after each allocation and completed free of the device, `position` of them before. */
typedef struct replay_watch {
    void (*event)(void *self, uint32_t position, const pleat_stats *stats);
    void *self;
} replay_watch;

typedef struct replay_options {
    const char *policy;
    const pleat_plan *plan; /* NULL: none */
    bool cuda;
    bool canary;
    uint64_t budget_bytes;     /* 0: none */
    uint64_t device_bytes;     /* host backend; 0: the recording's, else 140 GiB */
    const replay_watch *watch; /* NULL: none */
    bool no_marks;             /* the runtime is told neither iterations nor phases */
    bool own_marks;            /* it is told those of the recording, none that were looked for */
    uint32_t repeat;           /* then the last whole iteration so many times, without the canary */
    FILE *dump;                /* where the runtime is written at the end; NULL: nowhere */
    pleat_dump_format dump_format;
} replay_options;

/* What an iteration took of the driver: the threads that allocate, and beside them Pleat's own. */
typedef struct replay_verbs {
    uint64_t driver_calls, mapper_calls, creates, stitched;
    double driver_ns, mapper_ns; /* what they would cost on an H200; host backend */
    uint64_t waited_ns;          /* that calls waited, by the runtime's clock */
} replay_verbs;

/* The means of iterations, with the same units. */
typedef struct replay_mean {
    double driver_calls, mapper_calls;
    double driver_ns, mapper_ns;
} replay_mean;

/* What an iteration's allocations and frees took on the thread that asked, by the clock. */
typedef struct replay_times {
    uint64_t calls;
    double ns;      /* all of them together, without the clock's own cost */
    double verb_ns; /* of that in memory verbs, as the backend at hand carries them out */
    double mark_ns; /* of the mark that begins the iteration; not in `ns` */
    double median_ns, p99_ns, most_ns;
} replay_times;

#define REPLAY_FIRST 32u /* iterations of which that is told one by one */

/* What is measured in a pass without the canary. */
typedef struct replay_timed {
    replay_times first[REPLAY_FIRST]; /* as many as `first_iterations` */
    /* Of the steady part: medians, and what one in a hundred exceeds. */
    double alloc_ns, free_ns;
    double alloc_p99_ns, free_p99_ns;
    /* Of allocations, frees and marks, on the thread that asks: the processor's time without that
     * of memory verbs, and the longest that made none; host backend. */
    call_figures calls, steady_calls;
    uint64_t longest_calls_ns[CALL_TIMES_LONGEST];
    replay_repeats repeats;
} replay_timed;

typedef struct replay_result {
    char policy[32];
    const char *backend;
    uint32_t iterations; /* whole ones, until a refusal; 1 when the trace has no marks */
    bool marked;         /* the recording says where they begin */
    uint64_t peak_live_bytes;
    uint64_t peak_physical_bytes;
    uint64_t
        peak_virtual_bytes; /* mapped at once; on the GPU looked at when iterations begin and end */
    double efficiency;
    /* From the third iteration on, or the last that there is; all 0 after a refusal. */
    uint64_t steady_peak_live_bytes;
    uint64_t steady_peak_physical_bytes;
    double steady_efficiency;
    uint32_t steady_iterations;
    double steady_planned_share; /* of the requests of the steady part: in slots or lanes */
    uint64_t steady_bytes;       /* asked for in the steady part; of them in slots, in lanes */
    uint64_t steady_slot_bytes, steady_lane_bytes;
    /* The second is the one that finds what the first one left. */
    replay_verbs first_iterations[REPLAY_FIRST];
    uint32_t first_count;
    /* Of a whole steady iteration: what the recording has of one more is in none of these, but in
     * the sums below. */
    replay_mean an_iteration;
    uint64_t steady_driver_calls;    /* of all threads */
    uint64_t steady_mapper_calls;    /* of them, those of Pleat's own threads */
    uint64_t steady_streams_ordered; /* waits put between streams */
    /* Whole ones from the 31st on, when everything should have been seen. */
    uint32_t late_iterations;
    uint64_t late_driver_calls; /* of all threads */
    double late_planned_share;
    double late_driver_ns;        /* of all threads; host backend */
    double late_recorded_seconds; /* by the recording's clock */
    /* What they would cost on an H200, of the threads that allocate and of Pleat's own; host
     * backend. */
    double steady_driver_ns, steady_mapper_ns;
    pleat_stats stats; /* at the end */
    bool canary;
    uint64_t canary_errors;
    uint64_t canary_stride_bytes;
    char canary_first_error[200];
    replay_timed timed;
    double recorded_seconds, steady_recorded_seconds; /* by the recording's clock */
    bool oom;
    char oom_text[512];
    double seconds;
} replay_result;

/* Memory of the host backend's device: as asked for, else the recording's, else 140 GiB; whole
 * chunks. */
uint64_t replay_device_bytes(const pleat_trace *trace, uint64_t wanted);

/* The plan that a policy needs: read from `path`, or, where that is "auto", made from the trace for
 * the policy that cannot find its own (stweaver); *plan is NULL where there is none. A plan that
 * does not hold is PLEAT_E_VERIFY; one made from another trace gets a note on standard error. *plan
 * is the caller's to free, also where something fails. */
PLEAT_NODISCARD pleat_result replay_plan_open(const pleat_trace *trace, const char *policy,
                                              const char *path, pleat_plan **plan);

/* What of a plan for several sizes is for the trace's: its instance there, the caller's. *own is
 * NULL where it is the plan itself: it is for one size, or the trace's iterations change theirs,
 * which is the runtime's to follow. PLEAT_E_NOT_FOUND: it is not for this trace. */
PLEAT_NODISCARD pleat_result replay_plan_for(const pleat_trace *trace, const pleat_plan *plan,
                                             pleat_plan **own);

/* Says for `command` that there is no policy of that name, and which there are; CLI_BAD_USE. */
int replay_refuse_policy(const char *command, const char *name);
/* The names of the policies in "a,b,c", at most `most`. 0, with a message on standard error for
 * `command`, when one is unknown or named twice, or there are too many. */
int replay_parse_policies(const char *command, const char *text, const char **names, int most);
/* Whether it makes use of a plan file. */
bool replay_follows_plans(const char *policy);

/* The requests of the device that a trace allocates on first, as a replay runs them: iterations
 * begin at the trace's marks, else by its labels, else by the period of the sequence. Arrays are
 * taken from `arena`. */
PLEAT_NODISCARD pleat_result replay_requests(const pleat_trace *trace, pleat__arena *arena,
                                             uint32_t *device, pleat__requests *requests);

/* The most bytes live at once, rounded to 512, on all of a trace's devices together: each until its
 * life ends as plan/model/requests.h says. */
uint64_t replay_peak_live(const pleat_trace *trace);

/* Not an error: a request refused (result->oom). */
PLEAT_NODISCARD pleat_result replay_run(const pleat_trace *trace, const replay_options *options,
                                        replay_result *result);

/* The sentence that a reader takes away: what Pleat takes for the job, and the native allocator.
 * `strong`, `weak`: what stands before and behind the figures that count. */
void replay_verdict(FILE *out, const replay_result *native, const replay_result *pleat,
                    const char *strong, const char *weak);

/* The object's members, keys of docs/reference.md. */
void replay_json(json_writer *json, const replay_result *result);

#endif
