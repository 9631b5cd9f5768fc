/*
 * solve.h: one function for one request: which of few simple forms gives all its sizes.
 */
#ifndef PLEAT_PLAN_SIZES_SOLVE_H
#define PLEAT_PLAN_SIZES_SOLVE_H

#include <plan/sizes/sizes.h>

/* One size at one x, a whole number. */
typedef struct pleat__sample {
    uint64_t x;
    uint64_t size;
} pleat__sample;

/* The simplest function that gives all samples, rounded to 512, or to the byte. Samples at the same
 * x that disagree have none. */
bool pleat__solve(const pleat__sample *samples, uint32_t count, pleat__function *out);
/* A size that grows with x up to a bound: b * x, at most `most`. */
bool pleat__solve_bounded(const pleat__sample *samples, uint32_t count, uint64_t most,
                          pleat__function *out);
/* A size that grows with x, but by less than in proportion: b * x, at least that of the lowest x.
 * Where only two x were recorded that is the most that it can be: each x must have two samples or
 * more, which agree. */
bool pleat__solve_floored(const pleat__sample *samples, uint32_t count, pleat__function *out);

#endif
