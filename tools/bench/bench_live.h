/*
 * bench_live.h: `pleat bench alloc --live`: how the time of an allocation and of a free grows with
 * the number of tensors that are live.
 */
#ifndef PLEAT_TOOLS_BENCH_LIVE_H
#define PLEAT_TOOLS_BENCH_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#define BENCH_LIVE_MOST 2000000u /* of some 280 KB each: half of the device */

/* Measures each policy with each number of live tensors, BENCH_LIVE_MOST at most, `timed`
 * allocations and as many frees, and prints. An exit code. */
int bench_live(const char *const *policies, uint32_t policy_count, const uint64_t *counts,
               uint32_t count, uint32_t timed, bool json);

#endif
