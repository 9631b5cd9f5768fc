/*
 * sweep.h: placement in one walk through time.
 */
#ifndef PLEAT_PLAN_PLACE_SWEEP_H
#define PLEAT_PLAN_PLACE_SWEEP_H

#include <plan/base/free_ranges.h>
#include <plan/place/strip.h>

/* Which hole a span takes when its time comes. */
typedef enum pleat__reach {
    PLEAT__REACH_LOW = 0,  /* the lowest that holds it */
    PLEAT__REACH_HIGH = 1, /* the upper end of the highest below the cap; else the lowest */
    PLEAT__REACH_TIGHT = 2 /* the smallest below the cap; else the lowest */
} pleat__reach;

typedef struct pleat__strip_sweep_options {
    bool backward;        /* from the last free to the first allocation */
    uint64_t cap;         /* what HIGH and TIGHT stay under */
    uint64_t limit;       /* give up when the height reaches this */
    const uint8_t *reach; /* pleat__reach of each span */
} pleat__strip_sweep_options;

/* Places all spans. *height is UINT64_MAX when it gave up. `gaps` may be used again. */
PLEAT_NODISCARD pleat_result pleat__strip_sweep(const pleat__strip *strip,
                                                const pleat__strip_sweep_options *options,
                                                pleat__gaps *gaps, uint64_t *places,
                                                uint64_t *height);

#endif
