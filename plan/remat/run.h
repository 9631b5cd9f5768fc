/*
 * run.h: runs an operator log under a memory budget: what does not fit is evicted by a policy, and
 * computed again when it is used.
 *
 * MODEL    That of DTR's simulator: a tensor that no handle is left of goes at once; an operator's
 *          arguments are held while it runs and while they are computed again; constants are held
 *          for ever; at the log's end all tensors that still have handles are brought back. A
 *          mutation makes a new tensor; Coop's, and `stitched`, put it where the old one was, which
 *          counts as evicted. Of a multiple result that is computed again for one of its tensors,
 *          what is there already takes memory until the operator is done.
 * MEMORY   A pool of the budget less the constants, which lie at its end where they split nothing.
 *          `fungible`: no addresses, only a sum of bytes, as DTR's simulator has it.
 * TIME     Operators take what the log says. Maps take what the caller says. Searches are measured
 *          by the caller's clock and take none of the log's time.
 */
#ifndef PLEAT_PLAN_REMAT_RUN_H
#define PLEAT_PLAN_REMAT_RUN_H

#include <plan/remat/operator_log.h>
#include <plan/remat/policy.h>

/* Real memory under the places; every function may be NULL. A failing one ends the run. */
typedef struct pleat__remat_ground {
    void *self;
    /* A tensor lies at `ranges` of the pool from now on, one behind the other in its addresses. */
    pleat_result (*place)(void *self, uint32_t tensor, const pleat__range *ranges, uint32_t count);
    pleat_result (*leave)(void *self, uint32_t tensor);
    /* `to` lies where `from` did, which is gone. */
    pleat_result (*hand_over)(void *self, uint32_t from, uint32_t to);
    uint64_t (*clock_ns)(void *self);
} pleat__remat_ground;

typedef struct pleat__remat_options {
    pleat__remat_policy policy;
    uint64_t budget_bytes;
    bool fungible;                  /* dtr only */
    pleat__remat_weighing weighing; /* PLEAT__REMAT_BY_SUM but for stitched */
    bool chunks;                    /* stitched only: whole chunks from anywhere are mapped */
    uint64_t chunk_bytes;           /* what is mapped at once: a power of two, at least 2 MiB */
    uint64_t map_ns;                /* to map a chunk and to unmap it */
    double overhead_most; /* the run ends as infeasible where it takes so many times the log's */
    const pleat__remat_ground *ground; /* NULL: none */
} pleat__remat_options;

typedef struct pleat__remat_figures {
    bool finished;      /* else there was no memory, or too much was computed again */
    bool out_of_memory; /* which of the two */
    uint64_t model_ns;  /* the log's operators once */
    uint64_t again_ns;  /* what was computed again */
    uint64_t map_ns;
    double overhead;     /* (model + again + map) / model */
    uint64_t peak_bytes; /* in use at once, constants among them */
    uint64_t evictions;
    uint64_t recomputations;
    uint64_t maps; /* chunks mapped side by side */
    uint64_t requests;
    uint64_t searches; /* requests that needed one */
    /* Of such a request, however often it searched: the time that half of them are below, and the
     * longest. */
    uint64_t search_median_ns, search_most_ns;
    double search_blocks; /* blocks of the pool at the mean, when it searched */
    uint64_t upkeep_ns;   /* keeping costs up to date when tensors go and come */
    /* Free memory over the pool when a request that had evicted was served, and before: means. */
    double fragmentation;
    double free_before;
} pleat__remat_figures;

/* PLEAT_E_INPUT where the log contradicts itself, PLEAT_E_NO_MEMORY, or the ground's. A run that is
 * infeasible is none of these. */
PLEAT_NODISCARD pleat_result pleat__remat_run(const pleat__operator_log *log,
                                              const pleat__remat_options *options,
                                              pleat__remat_figures *out);
/* The variant of `stitched` that takes least, found by running the log under each of them: Pleat
 * knows the iteration that comes. One of them is Coop. Any other policy is run as it is. *best has
 * the options of that run. */
PLEAT_NODISCARD pleat_result pleat__remat_rehearse(const pleat__operator_log *log,
                                                   const pleat__remat_options *options,
                                                   pleat__remat_options *best,
                                                   pleat__remat_figures *out);
/* The most bytes in use at once without a budget, constants among them. PLEAT_E_INPUT: they are
 * more than 2^63. */
PLEAT_NODISCARD pleat_result pleat__remat_peak(const pleat__operator_log *log, uint64_t *bytes);

#endif
