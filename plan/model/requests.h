/*
 * requests.h: a trace as the planner sees it: requests with their lives, and the labels split into
 * an iteration number, a phase and a module.
 *
 * TIME     Positions count allocations and frees of one device, nothing else. A request lives in
 *          [alloc_at, free_at); free_at is PLEAT__NEVER when it is not freed.
 * FREES    A request of the stream that allocates most is freed when its free completed: that
 *          stream is not made to wait. One of another stream is freed when the program says so.
 *          Where others still used its memory, when that was done depends on how far the GPU was
 *          behind, and no two iterations agree; the runtime makes its stream wait for them instead.
 * LABELS   "iter=N;phase=X;mb=M;module=Y": N tells iterations apart, X and M phases (forward of the
 *          third microbatch), Y the part of the model that is at work. A thread without a label, or
 *          with one of an earlier iteration, works on what the labelled thread started: its events
 *          take the phase and the module in force. Other texts are phases as they stand.
 * MODULES  A pass is a stretch of events under one module in one phase: a module's forward, or its
 *          backward, for one microbatch. Events under no module's label are passes too.
 */
#ifndef PLEAT_PLAN_MODEL_REQUESTS_H
#define PLEAT_PLAN_MODEL_REQUESTS_H

#include <internal/arena.h>
#include <plan/base/plan.h>
#include <pleat/trace.h>

typedef struct pleat__request {
    uint64_t size; /* bytes requested */
    uint32_t alloc_at;
    uint32_t free_at;
    uint16_t alloc_phase; /* index into pleat__requests.phases */
    uint16_t free_phase;
    uint16_t stream;
    uint16_t reserved;
    uint32_t alloc_pass; /* index into pleat__requests.passes; 0 where no label names a module */
    uint32_t free_pass;
} pleat__request;

typedef struct pleat__requests {
    pleat__arena *arena;
    pleat__request *items; /* in order of allocation */
    uint32_t *numbers;     /* of each item in the trace */
    uint32_t count;
    uint32_t *events; /* position -> item * 2 + (1 when it is the free) */
    uint32_t event_count;
    uint32_t *phase_labels; /* phase -> a label of the trace with that phase */
    uint32_t phase_count;
    uint32_t *marks; /* positions at which iterations begin, by MARK events or else by labels */
    uint32_t mark_count;
    uint32_t
        *passes; /* positions at which passes of modules begin; none where no label names one */
    uint32_t pass_count;
    bool labelled; /* the marks come from the program, not from the sequence */
} pleat__requests;

/* The device to plan for: `wanted`, where 0 also stands for the only one a trace has.
 * PLEAT_E_INPUT when the trace has no such device. */
PLEAT_NODISCARD pleat_result pleat__choose_device(const pleat_trace *trace, uint32_t wanted,
                                                  uint32_t *device);

/* The requests of one device. Arrays are taken from `arena`. PLEAT_E_INPUT when the device has
 * none, PLEAT_E_LIMIT when there are more than 2^31. */
PLEAT_NODISCARD pleat_result pleat__requests_make(const pleat_trace *trace, uint32_t device,
                                                  pleat__arena *arena, pleat__requests *out);
void pleat__requests_free(pleat__requests *requests);

/* The stream that a device's trace allocates most on; and whether an event ends a request's life as
 * a plan counts it. */
uint16_t pleat__busiest_stream(const pleat_trace *trace, uint32_t device);
static inline bool pleat__ends_life(const pleat_trace_event *event, uint16_t busiest)
{
    return event->kind ==
           (event->stream == busiest ? PLEAT_EVENT_FREE_COMPLETED : PLEAT_EVENT_FREE_REQUESTED);
}

/* The text of a phase ("F"), without its iteration: points into the trace's label. */
const char *pleat__phase_text(const char *label, size_t *length);

#endif
