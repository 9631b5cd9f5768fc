/*
 * bench_live.h: `pleat bench alloc --live`: how the time of an allocation and of a free grows with
 * the number of tensors that are live.
 */
#ifndef PLEAT_TOOLS_BENCH_LIVE_H
#define PLEAT_TOOLS_BENCH_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#define BENCH_LIVE_MOST 8u /* numbers in one list */

/* Reads "1000,10000"; how many numbers, or 0 with a message on standard error. */
uint32_t bench_live_parse(const char *text, uint32_t *counts);
/* Measures each policy with each number of live tensors, `timed` allocations and as many frees, and
 * prints. An exit code. */
int bench_live(const char *const *policies, uint32_t policy_count, const uint32_t *counts,
               uint32_t count, uint32_t timed, bool json);

#endif
