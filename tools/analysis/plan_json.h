/*
 * plan_json.h: what a plan takes, as members of a JSON object: the keys that `pleat plan`,
 * `pleat verify` and `pleat report` have in common (docs/reference.md).
 */
#ifndef PLEAT_TOOLS_PLAN_JSON_H
#define PLEAT_TOOLS_PLAN_JSON_H

#include <tools/json.h>

#include <pleat/plan.h>

void plan_json(json_writer *json, const pleat_plan *plan);

#endif
