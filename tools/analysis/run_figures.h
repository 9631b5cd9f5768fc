/*
 * run_figures.h: what a run took, from its log, against what was planned for it.
 */
#ifndef PLEAT_TOOLS_RUN_FIGURES_H
#define PLEAT_TOOLS_RUN_FIGURES_H

#include <tools/analysis/footprint.h>
#include <tools/analysis/runlog.h>
#include <tools/json.h>

/* X(key, unit, name, definition); units are those of page.c. Per iteration where it says so. */
#define RUN_FIGURES(X)                                                                             \
    X(live_bytes, BYTES, "live", "The most bytes that tensors took at once.")                      \
    X(physical_bytes, BYTES, "physical", "The most memory that was held of the device.")           \
    X(virtual_bytes, BYTES, "virtual", "The most address space that was mapped.")                  \
    X(efficiency, SHARE, "efficiency", "Live / physical.")                                         \
    X(iteration_requests, COUNT, "requests", "Allocations in an iteration.")                       \
    X(planned_share, SHARE, "as planned", "Share of them that got the place planned for them.")    \
    X(iteration_driver_calls, COUNT, "driver calls", "Calls into the driver in an iteration.")     \
    X(iteration_seconds, SECONDS, "time", "What an iteration takes.")

/* NAN where it is not known. */
typedef struct run_side {
#define RUN_FIELD(key, unit, name, definition) double key;
    RUN_FIGURES(RUN_FIELD)
#undef RUN_FIELD
} run_side;

/* X(side, heading): what is held against what. */
#define RUN_SIDES(X)                                                                               \
    X(planned, "planned")                                                                          \
    X(last, "the last iterations")                                                                 \
    X(whole, "the whole run")

typedef struct run_figures {
    run_side planned, last, whole;
} run_figures;

/* What was planned is in the log where the run was given a plan, else in `job` where that has one;
 * `job` may be NULL. */
run_figures run_figures_of(const runlog *log, const footprint *job);
/* The object "run". */
void run_json(json_writer *json, const char *path, const runlog *log, const run_figures *figures);

#endif
