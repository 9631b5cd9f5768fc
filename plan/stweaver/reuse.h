/*
 * reuse.h: the reusable space of a contiguous plan: for each window of dynamic requests, the
 * stretches of the pool that no planned slot uses while any of them may live.
 *
 * After the STWeaver paper, section 5: requests allocated in one module and freed in another (a
 * HomoLayer group; here a window) share the stretches that are idle from the first one's
 * allocation to the last one's free. The policy `stweaver` serves them from these. Pleat's own
 * plans have lanes instead (lanes.h), which are placed like slots and do not depend on luck.
 */
#ifndef PLEAT_PLAN_STWEAVER_REUSE_H
#define PLEAT_PLAN_STWEAVER_REUSE_H

#include <plan/base/pack.h>
#include <plan/base/plan.h>

/* A window's dynamic requests: when they live, and the smallest of them. */
typedef struct pleat__window_span {
    uint32_t begin_at;
    uint32_t end_at; /* 0: the window has none */
    uint64_t least;
} pleat__window_span;

/* The spans of all windows, from `arena`. A request that wraps around, or is not freed, makes its
 * window last the whole iteration. PLEAT_E_INPUT when a slot's window is out of all proportion. */
PLEAT_NODISCARD pleat_result pleat__window_spans(const pleat_plan *plan, pleat__arena *arena,
                                                 pleat__window_span **spans, uint32_t *count);
/* Whether a slot, of `first` where `once`, holds its place at some time of a span. */
bool pleat__slot_lives_within(const pleat__slot *slot, bool once, const pleat__window_span *span);

/* Fills plan->reusable from the slots' places. Nothing where the plan has several streams: the
 * stretches pass from request to request in the host's order. */
PLEAT_NODISCARD pleat_result pleat__reuse_make(pleat_plan *plan, pleat__arena *scratch);

/* format.c: the table of a plan file. */
void pleat__reuse_put(pleat__pack_writer *writer, const pleat_plan *plan);
PLEAT_NODISCARD pleat_result pleat__reuse_take(pleat__pack_reader *pack, pleat_plan *plan);

/* verify.c: every stretch is clear of the slots that live within its window's span. */
PLEAT_NODISCARD pleat_result pleat__reuse_verify(const pleat_plan *plan, pleat__arena *scratch);

#endif
