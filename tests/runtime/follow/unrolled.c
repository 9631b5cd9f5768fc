/*
 * unrolled.c: a plan of two iterations is followed by a job that marks each of them, finds which of
 * the two it is in, and finds it again.
 */
#include "job.h"

#include <plan/base/plan.h>

typedef struct loop {
    job j;
    job_shape shape;
    job_tensor batch; /* the variable that holds it until the next one is there */
} loop;

static void begin(loop *l, const pleat_plan *plan)
{
    job_start(&l->j, "pleat", plan, 0);
    l->shape = job_shape_make(31, 1);
    l->batch = (job_tensor){0};
}

/* The first of an iteration's requests, the batch, is freed behind the next iteration's. */
static void iterate(loop *l, job_disturbance what, uint32_t at)
{
    job_tensor batch = job_alloc(&l->j, 40 * JOB_PAGE, 0);
    job_free(&l->j, &l->batch);
    l->batch = batch;
    job_iterate(&l->j, &l->shape, what, at);
    assert_ok(pleat_mark(l->j.runtime));
}

static pleat_stats run(loop *l, uint32_t iterations)
{
    pleat_stats before = pleat_stats_of(l->j.runtime);
    for (uint32_t i = 0; i < iterations; i++)
        iterate(l, JOB_PLAIN, 0);
    pleat_stats after = pleat_stats_of(l->j.runtime);
    after.requests -= before.requests;
    after.planned -= before.planned;
    after.driver_calls -= before.driver_calls;
    return after;
}

static void end(loop *l)
{
    job_free(&l->j, &l->batch);
    finish(&l->j);
}

static pleat_plan *record(loop *l, uint32_t iterations)
{
    pleat_trace *trace;
    pleat_plan *plan;
    pleat_plan_options options = {.size = sizeof options, .chunk_bytes = JOB_PAGE};
    begin(l, NULL);
    assert_ok(pleat_record_begin(l->j.runtime, NULL));
    run(l, iterations);
    assert_ok(pleat_record_copy(l->j.runtime, &trace));
    end(l);
    assert_ok(pleat_plan_make(trace, &options, &plan));
    pleat_trace_free(trace);
    assert_int_equal(plan->unroll, 2);
    return plan;
}

static void unrolled_plan_has_a_place_for_every_request(void **state)
{
    (void)state;
    static loop l;
    pleat_plan *plan = record(&l, 6);
    begin(&l, plan);
    run(&l, 1);
    uint64_t calls = pleat_stats_of(l.j.runtime).driver_calls;
    for (uint32_t i = 0; i < 7; i++)
        run(&l, 1);
    pleat_stats stats = pleat_stats_of(l.j.runtime);
    assert_int_equal(stats.planned, stats.requests);
    assert_int_equal(stats.driver_calls, calls);
    assert_int_equal(stats.peak_physical_bytes, plan->physical_bytes);
    end(&l);
    pleat_plan_free(plan);
}

/* An odd iteration, or something else between two, costs its own requests and those of the next. */
static void unrolled_plan_is_found_again(void **state)
{
    (void)state;
    static loop l;
    pleat_plan *plan = record(&l, 6);
    begin(&l, plan);
    run(&l, 4);
    for (uint32_t what = JOB_PLAIN; what < JOB_DISTURBANCES; what++)
        for (uint32_t at = 0; at < JOB_REQUESTS; at += 123) {
            iterate(&l, (job_disturbance)what, at);
            run(&l, 3);
            pleat_stats stats = run(&l, 2);
            assert_true(stats.planned >= stats.requests - stats.requests / 100);
            assert_int_equal(stats.driver_calls, 0);
        }
    /* An evaluation: a batch of its own, and a part of the iteration. */
    for (uint32_t part = 1; part < JOB_REQUESTS; part += 97) {
        job_tensor evaluated[JOB_REQUESTS];
        for (uint32_t i = 0; i < part; i++)
            evaluated[i] = job_alloc(&l.j, l.shape.bytes[i], 0);
        for (uint32_t i = 0; i < part; i++)
            job_free(&l.j, &evaluated[i]);
        run(&l, 4);
        pleat_stats stats = run(&l, 2);
        assert_true(stats.planned >= stats.requests - stats.requests / 20);
    }
    end(&l);
    pleat_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unrolled_plan_has_a_place_for_every_request),
        cmocka_unit_test(unrolled_plan_is_found_again),
    };
    return cmocka_run_group_tests_name("unrolled", tests, NULL, NULL);
}
