/*
 * plan_json.c: see plan_json.h.
 */
#include <tools/analysis/plan_json.h>

#include <plan/base/plan.h>

void plan_json(json_writer *json, const pleat_plan *plan)
{
    const pleat_plan_summary summary = pleat_plan_summary_of(plan);
    json_uint(json, "requests", summary.requests);
    json_uint(json, "iteration_requests", summary.iteration_requests);
    json_uint(json, "dynamic_requests", summary.dynamic_requests);
    json_uint(json, "max_live_bytes", summary.max_live_bytes);
    json_uint(json, "virtual_bytes", summary.virtual_bytes);
    json_uint(json, "physical_bytes", summary.physical_bytes);
    json_uint(json, "maps", summary.maps);
    json_uint(json, "alias_maps", summary.alias_maps);
    json_uint(json, "handles", summary.handles);
    json_uint(json, "lanes", summary.lanes);
    json_uint(json, "unrolled_iterations", plan->unroll);
    json_bool(json, "followed", !plan->answers_only);
}
