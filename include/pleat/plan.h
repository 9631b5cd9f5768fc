/*
 * pleat/plan.h: making, keeping and proving plans.
 *
 * A plan says where in the window each request of a training iteration lies, which physical chunks
 * are mapped there, and which are shared by requests that are never live together. It is made from
 * a trace, and depends on nothing else: the same trace and options give the same bytes.
 *
 * FILE  Pleat's own, which this library and the command `pleat` read and write; what it holds is no
 * part of the interface. Untrusted input: reading is bounded, and a plan is verified before it is
 * returned.
 *
 * FOLLOWED  A run follows a plan, and serves its requests in the places planned for them, unless
 * the plan answers questions only: `pleat plan` tries what it makes on its recordings, and where
 * learning does as well, or another run would have other requests, it says so in the file. A
 * runtime takes no memory for such a plan and learns as if it had none. pleat_plan_make tries
 * nothing: its plans are followed. The field `followed` of pleat_plan_summary tells.
 *
 * THREADS  A plan does not change once made; any number of threads may read it.
 */
#ifndef PLEAT_PLAN_H
#define PLEAT_PLAN_H

#include <pleat/base.h>
#include <pleat/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pleat_plan pleat_plan;

typedef struct pleat_plan_options {
    uint32_t size;         /* sizeof(pleat_plan_options) */
    const char *algorithm; /* NULL: "auto". Of contiguous placement: "size", "lifetime",
                              "sweep", "stweaver" */
    uint64_t chunk_bytes;  /* 0: 2 MiB */
    int no_fold;           /* contiguous placement only */
    uint32_t device;       /* whose requests; 0 also stands for a trace's only device */
    int no_recipe;         /* lanes for sizes that differ, also where they follow a number */
} pleat_plan_options;

/* Plans a trace's steady iteration. Where its iterations' sizes follow a number, a length say, the
 * plan is for all of them. options may be NULL. PLEAT_E_INPUT when the trace has no
 * iteration that repeats. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_plan_make(const pleat_trace *trace,
                                                       const pleat_plan_options *options,
                                                       pleat_plan **out);
/* Reads and verifies. PLEAT_E_INPUT, PLEAT_E_IO, PLEAT_E_ABI, PLEAT_E_VERIFY. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_plan_read(const char *path, pleat_plan **out);
/* Writes, whole or not at all. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_plan_write(const pleat_plan *plan, const char *path);
PLEAT_API void pleat_plan_free(pleat_plan *plan);

/* Proves that the plan keeps its rule; with a trace (which may be NULL), also that it fits the
 * trace. PLEAT_E_VERIFY with the first two slots that are in each other's way, or what else does
 * not hold; PLEAT_E_INPUT when it is no plan at all: numbers out of range, handles or maps out of
 * order. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_plan_verify(const pleat_plan *plan,
                                                         const pleat_trace *trace);

typedef struct pleat_plan_summary {
    uint64_t requests;           /* of the device in the trace planned from */
    uint64_t iteration_requests; /* in the steady iteration */
    uint64_t dynamic_requests;
    uint64_t max_live_bytes; /* of the steady iteration as recorded */
    uint64_t virtual_bytes;
    uint64_t physical_bytes;
    uint64_t maps;       /* pages mapped */
    uint64_t alias_maps; /* of those, beyond the first of their chunk */
    uint64_t handles;
    uint64_t lanes;
    uint64_t device;   /* of the trace, which the plan is for */
    uint64_t followed; /* 1: a run follows it; 0: it answers questions only (see above) */
} pleat_plan_summary;
/* Fills in `size` bytes of the caller's summary, which grows at its end; what the library does not
 * know is 0. */
PLEAT_API void pleat_plan_summary_fill(const pleat_plan *plan, pleat_plan_summary *summary,
                                       size_t size);

static inline pleat_plan_summary pleat_plan_summary_of(const pleat_plan *plan)
{
    pleat_plan_summary summary;
    pleat_plan_summary_fill(plan, &summary, sizeof summary);
    return summary;
}

#ifdef __cplusplus
}
#endif

#endif
