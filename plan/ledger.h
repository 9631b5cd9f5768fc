/*
 * ledger.h: which addresses are taken when, for placement in any order: a span goes where the spans
 * placed before it, and live with it, leave room.
 *
 * Time is cut into blocks of PLEAT__LEDGER_BLOCK ranks under a binary tree. Each node lists, as
 * ranges of addresses grown together where they touch,
 *   cover   what spans take that live through all of its blocks but not through its parent's
 *   any     what spans take that live at some time in its blocks, those in the covers above aside
 * A span's life falls into O(log n) nodes that it covers and at most two blocks that it begins or
 * ends in; those are looked through event by event, one a rank. What is taken in that life is the
 * `any` of the nodes covered and the `cover` of all above them. First fit packs densely, so that
 * the lists stay far shorter than the number of spans: a query looks at hundreds of ranges where
 * the spans themselves are tens of thousands.
 */
#ifndef PLEAT_PLAN_LEDGER_H
#define PLEAT_PLAN_LEDGER_H

#include <plan/strip.h>

#define PLEAT__LEDGER_BLOCK 16
#define PLEAT__NOT_PLACED   UINT64_MAX

typedef enum pleat__fit {
    PLEAT__FIT_LOWEST = 0,   /* the lowest gap that holds it */
    PLEAT__FIT_TIGHTEST = 1, /* the smallest gap that holds it */
} pleat__fit;

/* Disjoint ranges in ascending order. */
typedef struct pleat__range_list {
    pleat__range *ranges;
    uint32_t count;
    uint32_t capacity;
} pleat__range_list;

/* A list as a query walks it: what lies before `next` ends at or below the address looked at. */
typedef struct pleat__ledger_cursor {
    const pleat__range *next;
    const pleat__range *end;
} pleat__ledger_cursor;

typedef struct pleat__ledger {
    const pleat__strip *strip;
    uint64_t *places; /* of the spans; PLEAT__NOT_PLACED */
    pleat__range_list *cover;
    pleat__range_list *any;
    uint32_t leaves;     /* a power of two */
    pleat__range *taken; /* the complement of the strip's free ranges */
    uint32_t taken_count;
    pleat__ledger_cursor cursors[160];
    uint32_t cursor_count;
    pleat__range edge[4 * PLEAT__LEDGER_BLOCK]; /* found in the blocks at both ends of a life */
    uint32_t edge_count;
    uint64_t height;
    uint64_t work; /* steps, about 10 ns each */
} pleat__ledger;

/* `places` belongs to the caller and is overwritten: nothing is placed yet. */
PLEAT_NODISCARD pleat_result pleat__ledger_create(pleat__ledger *ledger, const pleat__strip *strip,
                                                  uint64_t *places);
/* Nothing needs to have been created. */
void pleat__ledger_destroy(pleat__ledger *ledger);
/* Forgets all placements. */
void pleat__ledger_reset(pleat__ledger *ledger);

/* The place that `fit` chooses for a span; nothing is placed yet. There always is one. */
uint64_t pleat__ledger_find(pleat__ledger *ledger, uint32_t span, pleat__fit fit);
PLEAT_NODISCARD pleat_result pleat__ledger_put(pleat__ledger *ledger, uint32_t span,
                                               uint64_t place);

/* Places all spans in the order given, until the height reaches `limit` or the work `budget`; then
 * *height is UINT64_MAX. */
PLEAT_NODISCARD pleat_result pleat__ledger_run(pleat__ledger *ledger, const uint32_t *sequence,
                                               pleat__fit fit, uint64_t limit, uint64_t budget,
                                               uint64_t *height);

#endif
