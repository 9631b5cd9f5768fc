/*
 * options.h: how a plan is to be made.
 */
#ifndef PLEAT_PLAN_BASE_OPTIONS_H
#define PLEAT_PLAN_BASE_OPTIONS_H

#include <pleat/plan.h>

/* The options with a default for each that is not said; `options` may be NULL. PLEAT_E_ABI: they
 * are another library's. PLEAT_E_INVALID: a number is out of range; the algorithm is not looked at.
 */
PLEAT_NODISCARD pleat_result pleat__plan_options_read(const pleat_plan_options *options,
                                                      pleat_plan_options *out);

#endif
