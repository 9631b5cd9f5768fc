/*
 * explain_budget.h: `pleat explain --budget`.
 */
#ifndef PLEAT_TOOLS_EXPLAIN_BUDGET_H
#define PLEAT_TOOLS_EXPLAIN_BUDGET_H

#include <pleat/trace.h>
#include <stdbool.h>

/* Says what a device's job has to compute again to stay within `budget_bytes`, and what that costs.
 * `times`: nanoseconds of its blocks' forwards, separated by commas, or NULL. Returns the exit
 * code. */
int explain_budget(const pleat_trace *trace, uint32_t device, uint64_t budget_bytes,
                   const char *times, bool json);

#endif
