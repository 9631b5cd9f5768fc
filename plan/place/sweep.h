/*
 * sweep.h: placement in one walk through time.
 */
#ifndef PLEAT_PLAN_PLACE_SWEEP_H
#define PLEAT_PLAN_PLACE_SWEEP_H

#include <plan/base/free_ranges.h>
#include <plan/place/strip.h>

typedef struct pleat__strip_sweep_options {
    bool backward;      /* from the last free to the first allocation */
    uint64_t limit;     /* give up when the height reaches this */
    uint32_t long_life; /* what lives as long takes the lowest hole that holds it, the rest the
                           upper end of the highest below the strip's floor, else the lowest */
} pleat__strip_sweep_options;

/* Places all spans. *height is UINT64_MAX when it gave up. `gaps` may be used again. */
PLEAT_NODISCARD pleat_result pleat__strip_sweep(const pleat__strip *strip,
                                                const pleat__strip_sweep_options *options,
                                                pleat__gaps *gaps, uint64_t *places,
                                                uint64_t *height);

#endif
