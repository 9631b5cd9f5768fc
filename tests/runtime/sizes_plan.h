/*
 * sizes_plan.h: plan files with a recipe for the jobs of scaled_job.h, made from runs at several
 * sizes, and tensors that stay (weights, an optimizer's states).
 */
#ifndef PLEAT_TESTS_RUNTIME_SIZES_PLAN_H
#define PLEAT_TESTS_RUNTIME_SIZES_PLAN_H

#include "scaled_job.h"

#include <plan/sizes/planner.h>

#define WEIGHTS 4u

/* Tensors that stay: before the first iteration, and, as an optimizer's state is, behind it. */
typedef struct stays {
    job_tensor weights[WEIGHTS], state[WEIGHTS];
} stays;

static inline void load_weights(job *j, stays *s)
{
    for (uint32_t i = 0; i < WEIGHTS; i++)
        s->weights[i] = job_alloc(j, 300000 + 50000 * i, 0);
}

static inline void make_state(job *j, stays *s)
{
    for (uint32_t i = 0; i < WEIGHTS; i++)
        s->state[i] = job_alloc(j, 600000 + 100000 * i, 0);
}

static inline void stays_free(job *j, stays *s)
{
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        job_free(j, &s->weights[i]);
        job_free(j, &s->state[i]);
    }
}

static inline pleat_trace *record_at(const scaled_job *scaled, uint64_t x)
{
    job j;
    stays s = {0};
    pleat_trace *trace;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    load_weights(&j, &s);
    run_x(&j, scaled, x, 1);
    make_state(&j, &s);
    run_x(&j, scaled, x, 4);
    assert_ok(pleat_record_copy(j.runtime, &trace));
    stays_free(&j, &s);
    finish(&j);
    return trace;
}

/* Of runs at two sizes; laid out for the larger. */
static inline pleat_plan *plan_for(const scaled_job *scaled, uint64_t small, uint64_t large)
{
    static const pleat_plan_options options = {.size = sizeof options, .chunk_bytes = JOB_PAGE};
    const uint64_t names[2] = {small, large};
    pleat_trace *const traces[2] = {record_at(scaled, small), record_at(scaled, large)};
    pleat_plan *plan;
    assert_ok(pleat__elastic_plan_make((const pleat_trace *const *)traces, 2,
                                       &(pleat__elastic_options){.plan = &options, .names = names},
                                       NULL, NULL, &plan));
    assert_non_null(plan->recipe);
    pleat_trace_free(traces[0]);
    pleat_trace_free(traces[1]);
    return plan;
}

#endif
