/*
 * explain_budget.h: `pleat explain --budget`.
 */
#ifndef PLEAT_TOOLS_EXPLAIN_BUDGET_H
#define PLEAT_TOOLS_EXPLAIN_BUDGET_H

#include <tools/analysis/recompute.h>

#include <pleat/trace.h>
#include <stdbool.h>

typedef struct budget_question {
    const char *path;      /* the recording's, for messages */
    uint64_t bytes;        /* of the budget */
    recompute_times times; /* `block_ns` NULL: not known; `link` 0: nothing is offloaded */
    bool json;
} budget_question;

/* Says what a device's job has to compute again to stay within a budget, and what that costs.
 * Returns the exit code. */
int explain_budget(const pleat_trace *trace, uint32_t device, const budget_question *asked);

#endif
