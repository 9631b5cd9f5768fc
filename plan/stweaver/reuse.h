/*
 * reuse.h: the reusable space of a contiguous plan: for each window of dynamic requests, the
 * stretches of the pool that no planned slot uses while any of them may live.
 *
 * After the STWeaver paper, section 5.2: requests allocated in one module and freed in another (a
 * HomoLayer group; here a window, windows.h) share the stretches that are idle from the beginning
 * of the one to the end of the other. The policy `stweaver` serves them from these. Pleat's own
 * plans have lanes instead (lanes.h), which are placed like slots and do not depend on luck.
 */
#ifndef PLEAT_PLAN_STWEAVER_REUSE_H
#define PLEAT_PLAN_STWEAVER_REUSE_H

#include <plan/base/pack.h>
#include <plan/base/plan.h>

/* Fills plan->reusable from the slots' places. lasts[window]: events of the steady iteration that a
 * window lasts, besides the lives of its requests; NULL: no more than those. Nothing where the plan
 * has several streams: the stretches pass from request to request in the host's order. */
PLEAT_NODISCARD pleat_result pleat__reuse_make(pleat_plan *plan, const pleat__range *lasts,
                                               pleat__arena *scratch);

/* format.c: the table of a plan file. */
void pleat__reuse_put(pleat__pack_writer *writer, const pleat_plan *plan);
PLEAT_NODISCARD pleat_result pleat__reuse_take(pleat__pack_reader *pack, pleat_plan *plan);

#endif
