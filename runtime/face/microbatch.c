/*
 * microbatch.c: the largest microbatch that fits, asked of the planner.
 *
 * How sizes follow the microbatch is known from a plan file with a recipe, or is found by the
 * planner in what was recorded so far (pleat_record_begin), where that has iterations at two
 * microbatches. The planner runs on the caller's thread without any lock: nobody waits for it.
 */
#include <runtime/face/runtime_internal.h>

#include <internal/error.h>
#include <plan/sizes/planner.h>

/* The largest multiple of one sample at which the plan fits, where iterations at x have `running`
 * samples. */
static pleat_result search(const pleat_plan *plan, pleat__fraction x, uint64_t bytes,
                           uint64_t running, uint64_t *most)
{
    pleat__fraction one, largest;
    uint64_t physical;
    if (!pleat__fraction_multiply(x, (pleat__fraction){1, running}, &one))
        return pleat__fail(PLEAT_E_LIMIT, "a microbatch of %llu is too large to reckon with",
                           (unsigned long long)running);
    PLEAT_TRY(pleat__elastic_fit(plan, bytes, one, &largest, &physical));
    /* The largest is a multiple of one sample's. */
    uint64_t found = largest.num * one.den / (largest.den * one.num);
    if (found == 0)
        return pleat__fail(PLEAT_E_NOT_FOUND, "not even a microbatch of 1 would fit");
    *most = found;
    return PLEAT_OK;
}

static pleat_result search_recording(pleat_runtime *runtime, uint64_t bytes, uint64_t running,
                                     uint64_t *most)
{
    pleat_trace *trace;
    pleat_plan *plan;
    pleat__elastic_report report;
    if (pleat_record_copy(runtime, &trace) != PLEAT_OK)
        return pleat__fail(PLEAT_E_NOT_FOUND,
                           "how sizes follow the microbatch is known from a plan file of several, "
                           "once an iteration has shown which one it runs at, or while the job is "
                           "recorded (pleat_record_begin)");
    const pleat_trace *traces[] = {trace};
    pleat_result result = pleat__elastic_plan_make(traces, 1, NULL, NULL, &report, &plan);
    pleat_trace_free(trace);
    if (result != PLEAT_OK)
        return pleat__fail(PLEAT_E_NOT_FOUND,
                           "how sizes follow the microbatch is not known before iterations at two "
                           "of them were recorded");
    result = search(plan, report.x[0], bytes, running, most);
    pleat_plan_free(plan);
    return result;
}

pleat_result pleat_max_microbatch(pleat_runtime *runtime, uint64_t running, uint64_t *most)
{
    PLEAT__TRY_HERE(runtime);
    if (running == 0)
        return pleat__fail(PLEAT_E_INVALID, "a microbatch of 0");
    if (runtime->ops->parameter == NULL)
        return pleat__fail(PLEAT_E_UNSUPPORTED, "the policy '%s' does not know sizes",
                           runtime->ops->name);
    pleat__fraction x;
    pleat__gate_lock(&runtime->gate);
    const pleat_plan *plan = runtime->ops->parameter(runtime->policy, &x);
    uint64_t bytes = pleat__limits_allowed(runtime);
    pleat__gate_unlock(&runtime->gate);
    return plan != NULL ? search(plan, x, bytes, running, most)
                        : search_recording(runtime, bytes, running, most);
}
