/*
 * order.h: placement in any order: each span goes where the spans placed before it, and live with
 * it, leave room.
 */
#ifndef PLEAT_PLAN_ORDER_H
#define PLEAT_PLAN_ORDER_H

#include <plan/strip.h>

typedef enum pleat__fit {
    PLEAT__FIT_LOWEST = 0,   /* the lowest gap that holds it */
    PLEAT__FIT_TIGHTEST = 1, /* the smallest gap that holds it */
} pleat__fit;

typedef struct pleat__order {
    const pleat__strip *strip;
    uint64_t *places;     /* of the spans; PLEAT__NOT_PLACED where not placed yet */
    uint32_t *ends;       /* a tree over the spans: the latest end of those placed; 0: none */
    uint32_t leaves;      /* of the tree */
    pleat__range *nearby; /* ranges found in the way */
    size_t nearby_capacity;
    uint32_t nearby_count;
    uint64_t height;
    uint64_t work; /* steps, about 10 ns each */
} pleat__order;
#define PLEAT__NOT_PLACED UINT64_MAX

/* `places` belongs to the caller and is overwritten: nothing is placed yet. */
PLEAT_NODISCARD pleat_result pleat__order_create(pleat__order *order, const pleat__strip *strip,
                                                 uint64_t *places);
void pleat__order_destroy(pleat__order *order);
/* Forgets all placements. */
void pleat__order_reset(pleat__order *order);

/* The place that `fit` chooses; nothing is placed yet. */
PLEAT_NODISCARD pleat_result pleat__order_find(pleat__order *order, uint32_t span, pleat__fit fit,
                                               uint64_t *place);
/* Whether a place meets no span placed before. */
PLEAT_NODISCARD pleat_result pleat__order_is_free(pleat__order *order, uint32_t span,
                                                  uint64_t place, bool *is_free);
void pleat__order_put(pleat__order *order, uint32_t span, uint64_t place);
void pleat__order_remove(pleat__order *order, uint32_t span);

/* Places all spans in the order given, until the height reaches `limit` or the work `budget`; then
 * *height is UINT64_MAX. */
PLEAT_NODISCARD pleat_result pleat__order_run(pleat__order *order, const uint32_t *sequence,
                                              pleat__fit fit, uint64_t limit, uint64_t budget,
                                              uint64_t *height);

#endif
