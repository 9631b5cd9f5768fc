/*
 * lives.h: every request of the job, for the page: when it is allocated and freed, its size, phase,
 * class and place in the program, and what time it is at each event.
 */
#ifndef PLEAT_TOOLS_REPORT_LIVES_H
#define PLEAT_TOOLS_REPORT_LIVES_H

#include <tools/analysis/footprint.h>

/* Of the page's classes (live.js), the one that stands for transient and scoped where the recording
 * names no phases. */
#define LIVES_CLASS_WITHIN (PLEAT__CLASSES + 1)

/* Members "lives", "frames", "stacks" and "times" of the page's data. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result lives_put(const footprint *footprint, FILE *out);

#endif
