/*
 * first.h: places for what runs before the steady iterations.
 */
#ifndef PLEAT_PLAN_FIRST_H
#define PLEAT_PLAN_FIRST_H

#include <plan/fold.h>
#include <plan/model.h>

/* Places the slots of `first` inside the layout's memory; steady and persistent slots have theirs.
 * Slots that find no room there, and those whose steady counterpart is dynamic, stay without.
 * Sets the plan's first_max_live_bytes. */
PLEAT_NODISCARD pleat_result pleat__first_make(const pleat__model *model,
                                               const pleat__layout *layout, pleat__arena *scratch,
                                               pleat_plan *plan);

#endif
