/*
 * clock.h: the time that something took, and what many such times come to.
 */
#ifndef PLEAT_TOOLS_CLOCK_H
#define PLEAT_TOOLS_CLOCK_H

#include <stddef.h>
#include <stdint.h>

/* Nanoseconds of a monotonic clock. */
uint64_t clock_now(void);
/* What reading it takes, in nanoseconds. */
uint64_t clock_cost(void);
/* The value below which `share` (0 to 1) of the samples lie; changes their order. 0 for none. */
uint64_t clock_quantile(uint64_t *samples, size_t count, double share);

#endif
