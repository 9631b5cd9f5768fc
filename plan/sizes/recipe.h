/*
 * recipe.h: recipes in memory and in plan files.
 */
#ifndef PLEAT_PLAN_SIZES_RECIPE_H
#define PLEAT_PLAN_SIZES_RECIPE_H

#include <plan/base/pack.h>
#include <plan/sizes/sizes.h>

/* plan->recipe with room for the plan's slots, all without functions and hosts. */
PLEAT_NODISCARD pleat_result pleat__recipe_new(pleat_plan *plan);

/* The recipe's records of a plan file; recipe.c says what they hold. */
void pleat__recipe_put(pleat__pack_writer *writer, const pleat_plan *plan);
/* Makes plan->recipe from them; the plan's sequences are read. */
PLEAT_NODISCARD pleat_result pleat__recipe_take(pleat__pack_reader *reader, pleat_plan *plan);

#endif
