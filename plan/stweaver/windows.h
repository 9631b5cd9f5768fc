/*
 * windows.h: which dynamic requests of a plan for the policy stweaver share their reusable space.
 *
 * After the STWeaver paper, section 5.2: requests that are allocated in the same pass of a module
 * and freed in the same one are a HomoLayer group, and may live from the beginning of the one to
 * the end of the other. Where the recording names no modules, a pass is a stretch in which dynamic
 * requests come and go without a long pause, as lanes.h finds them.
 */
#ifndef PLEAT_PLAN_STWEAVER_WINDOWS_H
#define PLEAT_PLAN_STWEAVER_WINDOWS_H

#include <plan/model/model.h>

/* Numbers the windows of the plan's dynamic slots, which have lanes; the lanes go: the paper's pool
 * holds static requests only. *lasts, from `scratch`, has for each window the events of the steady
 * iteration that it lasts at least; NULL where no modules are named: as its requests live. */
PLEAT_NODISCARD pleat_result pleat__windows_make(pleat__model *model, pleat__arena *scratch,
                                                 pleat_plan *plan, pleat__range **lasts);

#endif
