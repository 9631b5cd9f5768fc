/*
 * planner.h: one plan for several traces of a job, recorded at different x, or for one whose
 * iterations differ.
 */
#ifndef PLEAT_PLAN_SIZES_PLANNER_H
#define PLEAT_PLAN_SIZES_PLANNER_H

#include <plan/model/report.h>
#include <plan/sizes/sizes.h>

#define PLEAT__TRACES_MOST 16u

typedef struct pleat__elastic_options {
    const pleat_plan_options *plan; /* may be NULL; the algorithm is not used */
    const pleat__fraction *largest; /* to lay the window out for; NULL: the largest x recorded */
    const uint64_t *names; /* what x is called in each trace's last iteration; NULL: nothing */
} pleat__elastic_options;

typedef struct pleat__elastic_report {
    pleat__plan_report plan;
    uint32_t reference;                    /* the trace whose sequences the plan has */
    bool shows_x;                          /* false: the sizes show none */
    pleat__fraction x[PLEAT__TRACES_MOST]; /* of each trace's last iteration */
    uint64_t varying;                      /* requests of the iteration that differ */
    uint64_t explained;                    /* of those, the ones with a function */
    uint64_t paired[PLEAT__TRACES_MOST];   /* requests that the reference's iteration has in each */
} pleat__elastic_report;

/* A plan with a recipe, its places those of the reference x. PLEAT_E_INPUT: the traces are of
 * different jobs, or their sizes show no x (report->shows_x is false). `watch` and `report` may be
 * NULL. */
PLEAT_NODISCARD pleat_result pleat__elastic_plan_make(
    const pleat_trace *const *traces, uint32_t count, const pleat__elastic_options *options,
    const pleat__plan_watch *watch, pleat__elastic_report *report, pleat_plan **out);

/* The x of a trace's last whole iteration, by a plan of the same job; *changes: an iteration before
 * it has another. PLEAT_E_NOT_FOUND: its sizes show none; PLEAT_E_INPUT: nothing repeats in it. */
PLEAT_NODISCARD pleat_result pleat__elastic_infer(const pleat_plan *plan, const pleat_trace *trace,
                                                  pleat__fraction *out, bool *changes);

/* How much of a trace's iteration a plan is for. */
typedef struct pleat__cover {
    pleat__fraction x;
    uint32_t requests; /* of the trace's last whole iteration */
    uint32_t covered;  /* those that the plan has as well, with room for them at x */
} pleat__cover;

/* Instantiates the plan at the trace's x, which is verified, and holds the trace against it. The
 * instance is the caller's. As pleat__elastic_infer, and PLEAT_E_NOT_FOUND: x is out of range. */
PLEAT_NODISCARD pleat_result pleat__elastic_cover(const pleat_plan *plan, const pleat_trace *trace,
                                                  pleat__cover *out, pleat_plan **instance);

#endif
