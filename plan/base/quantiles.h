/*
 * quantiles.h: which lives are long. Two-ended placement puts what lives long at one end and the
 * rest at the other (plan/place/greedy.c, plan/fold/search.c). Where long begins is best differs
 * from job to job, so each of these quantiles of all lives is tried.
 */
#ifndef PLEAT_PLAN_BASE_QUANTILES_H
#define PLEAT_PLAN_BASE_QUANTILES_H

#include <internal/arena.h>

#define PLEAT__QUANTILES 20u

/* How long the item lives. */
typedef uint32_t (*pleat__life_of)(const void *job, uint32_t item);

/* lives[q], ascending: the shortest life that q / PLEAT__QUANTILES of all lives lie below; 0 where
 * there is no item. */
PLEAT_NODISCARD pleat_result pleat__quantiles(pleat__arena *arena, pleat__life_of life_of,
                                              const void *job, uint32_t count,
                                              uint32_t lives[PLEAT__QUANTILES]);

#endif
