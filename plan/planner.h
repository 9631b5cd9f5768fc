/*
 * planner.h: pleat_plan_make with a look inside, for `pleat plan` and `pleat bench plan`.
 */
#ifndef PLEAT_PLAN_PLANNER_H
#define PLEAT_PLAN_PLANNER_H

#include <plan/model/report.h>

/* As pleat_plan_make. `watch` and `report` may be NULL. */
PLEAT_NODISCARD pleat_result pleat__plan_make(const pleat_trace *trace,
                                              const pleat_plan_options *options,
                                              const pleat__plan_watch *watch,
                                              pleat__plan_report *report, pleat_plan **out);

#endif
