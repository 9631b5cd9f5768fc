/*
 * misfit.c: plan files of other jobs on a real runtime over host memory, with a canary: one that
 * serves next to nothing is left, its memory goes back and the job is learned; one that served
 * before, or misses its beginning only, stays.
 */
#include "failing.h"

#include <plan/base/plan.h>
#include <pthread.h>
#include <runtime/learn/misfit.h>
#include <runtime/memory/chunks.h>
#include <stdatomic.h>
#include <time.h>

/* Two of a plan's handles: what crosses the boundary at which it is left keeps those it lies in. */
#define PINNED (2ull * PLEAT__BLOCK * JOB_PAGE)

/* Every third request has another size each time: a plan gives those lanes. */
static void draw(job_shape *shape, test_random *random)
{
    for (uint32_t i = 0; i < JOB_REQUESTS; i += 3)
        shape->bytes[i] = 4096 + test_random_below(random, 200000);
}

static void run(job *j, job_shape *shape, test_random *random, uint32_t iterations)
{
    for (uint32_t i = 0; i < iterations; i++) {
        assert_ok(pleat_mark(j->runtime));
        if (random != NULL)
            draw(shape, random);
        job_iterate(j, shape, JOB_PLAIN, 0);
    }
}

/* The plan of a job that has such a shape; with `random` its sizes vary. */
static pleat_plan *plan_of(const job_shape *of, test_random *random)
{
    static const pleat_plan_options options = {
        .size = sizeof options, .chunk_bytes = JOB_PAGE, .seconds = 0.02, .no_recipe = 1};
    job j;
    job_shape shape = *of;
    pleat_trace *trace;
    pleat_plan *plan;
    job_start(&j, "native", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    run(&j, &shape, random, 3);
    assert_ok(pleat_mark(j.runtime));
    assert_ok(pleat_record_copy(j.runtime, &trace));
    job_drain(&j);
    job_stop(&j);
    assert_ok(pleat_plan_make(trace, &options, &plan));
    pleat_trace_free(trace);
    return plan;
}

/* The share of requests that the last iterations had in slots and lanes, in percent. */
static uint64_t percent_placed(job *j, job_shape *shape, uint32_t iterations)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    run(j, shape, NULL, iterations);
    pleat_stats after = pleat_stats_of(j->runtime);
    return 100 * (after.planned + after.lane - before.planned - before.lane) /
           (after.requests - before.requests);
}

/* What the job takes without any plan. */
static uint64_t taken_by(job_shape *shape)
{
    job j;
    job_start(&j, "pleat", NULL, 0);
    run(&j, shape, NULL, 8);
    uint64_t taken = pleat_stats_of(j.runtime).physical_bytes;
    finish(&j);
    return taken;
}

static void misfit_plan_of_another_job_is_left(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        bool varies = seed % 2 == 0;
        job j;
        test_random random = {seed};
        job_shape shape = job_shape_make(seed, 1), other = job_shape_make(seed + 40, 24);
        uint64_t needs = taken_by(&shape);
        pleat_plan *plan = plan_of(&other, varies ? &random : NULL);
        job_start(&j, "pleat", plan, 0);
        uint64_t begun = pleat_stats_of(j.runtime).physical_bytes;
        assert_true(begun > 2 * needs);
        run(&j, &shape, NULL, 8);
        assert_true(percent_placed(&j, &shape, 4) >= 98);
        uint64_t taken = pleat_stats_of(j.runtime).physical_bytes;
        if (taken > needs + needs / 4 + PINNED)
            fail_msg("%llu bytes, %llu without a plan", (unsigned long long)taken,
                     (unsigned long long)needs);
        finish(&j);
        pleat_plan_free(plan);
    }
}

/* Without a mark nothing says where iterations end: some stretches as long as the plan's do. */
static void misfit_is_left_without_marks_too(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(5, 1), other = job_shape_make(45, 24);
    uint64_t needs = taken_by(&shape);
    pleat_plan *plan = plan_of(&other, NULL);
    job_start(&j, "pleat", plan, 0);
    for (uint32_t i = 0; i < 60; i++)
        job_iterate(&j, &shape, JOB_PLAIN, 0);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.physical_bytes <= needs + needs / 4 + PINNED);
    assert_true(stats.planned > stats.requests / 4);
    finish(&j);
    pleat_plan_free(plan);
}

/* Whoever creates memory from now on stands still meanwhile, with the turn. */
static struct {
    const pleat_vmm_ops *host;
    atomic_bool holds, held, late;
} gateway;

static pleat_result create_held(void *self, int device, uint64_t bytes, uint32_t flags,
                                pleat_handle *handle)
{
    for (int i = 0; i < 20000 && atomic_load(&gateway.holds); i++) {
        atomic_store(&gateway.held, true);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        atomic_store(&gateway.late, i == 19999);
    }
    return gateway.host->create(self, device, bytes, flags, handle);
}

static void *take_much(void *runtime)
{
    pleat_va address;
    if (pleat_alloc(runtime, 500ull << 20, 7, &address) != PLEAT_OK)
        return runtime;
    return pleat_free(runtime, address) == PLEAT_OK ? NULL : runtime;
}

/* Another thread is at the driver when that is found out: it is tried again, although nothing is
 * marked. */
static void misfit_that_cannot_be_left_is_left_later(void **state)
{
    (void)state;
    job j = {0};
    pthread_t other;
    void *failed;
    job_shape shape = job_shape_make(5, 1), large = job_shape_make(45, 24);
    uint64_t needs = taken_by(&shape);
    pleat_plan *plan = plan_of(&large, NULL);
    const pleat_host_options device = {
        .size = sizeof device, .device_bytes = 2ull << 30, .granularity = JOB_PAGE};
    const pleat_runtime_options options = {.size = sizeof options, .plan = plan, .waits = 1};
    assert_ok(pleat_vmm_host(&device, &j.vmm));
    pleat_vmm_ops held = *j.vmm.ops;
    held.create = create_held;
    gateway.host = j.vmm.ops;
    assert_ok(pleat_runtime_create((pleat_vmm){&held, j.vmm.self}, &options, &j.runtime));
    uint64_t begun = pleat_stats_of(j.runtime).physical_bytes;
    job_iterate(&j, &shape, JOB_PLAIN, 0);
    atomic_store(&gateway.holds, true);
    assert_int_equal(pthread_create(&other, NULL, take_much, j.runtime), 0);
    while (!atomic_load(&gateway.held))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (uint32_t i = 0; i < 40; i++)
        job_iterate(&j, &shape, JOB_PLAIN, 0);
    assert_true(pleat_stats_of(j.runtime).physical_bytes >= begun);
    atomic_store(&gateway.holds, false);
    assert_int_equal(pthread_join(other, &failed), 0);
    assert_null(failed);
    assert_false(gateway.late);
    for (uint32_t i = 0; i < 60; i++)
        job_iterate(&j, &shape, JOB_PLAIN, 0);
    assert_ok(pleat_empty_cache(j.runtime));
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.physical_bytes <= needs + needs / 4 + PINNED);
    finish(&j);
    pleat_plan_free(plan);
}

/* Something else comes first; then the plan's own job. */
static void misfit_in_the_beginning_only_is_kept(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(6, 1), other = job_shape_make(46, 1);
    pleat_plan *plan = plan_of(&shape, NULL);
    job_start(&j, "pleat", plan, 0);
    run(&j, &other, NULL, 1);
    run(&j, &shape, NULL, 3);
    assert_int_equal(percent_placed(&j, &shape, 6), 100);
    assert_int_equal(pleat_stats_of(j.runtime).switches, 0);
    finish(&j);
    pleat_plan_free(plan);
}

/* A plan that served waits for its shape for as long as others come. */
static void misfit_later_is_kept(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(7, 2), other = job_shape_make(47, 1);
    pleat_plan *plan = plan_of(&shape, NULL);
    job_start(&j, "pleat", plan, 0);
    uint64_t begun = pleat_stats_of(j.runtime).physical_bytes;
    run(&j, &shape, NULL, 2);
    run(&j, &other, NULL, 20);
    assert_true(pleat_stats_of(j.runtime).physical_bytes >= begun);
    run(&j, &shape, NULL, 2);
    assert_true(percent_placed(&j, &shape, 4) >= 99);
    finish(&j);
    pleat_plan_free(plan);
}

/* What lives in a lane or in a view of the plan when it is left stays whole, and is freed there. */
static void misfit_keeps_what_lies_in_it(void **state)
{
    (void)state;
    job j;
    test_random random = {8};
    job_shape other = job_shape_make(48, 4), shape = job_shape_make(8, 1);
    pleat_plan *plan = plan_of(&other, &random);
    assert_true(plan->lane_count != 0);
    job_start(&j, "pleat", plan, 0);
    job_tensor kept[64];
    uint32_t count = 0;
    /* Some of the plan's own requests first, and none of them is freed. */
    for (uint32_t i = 0; i < 64; i++)
        kept[count++] = job_alloc(&j, other.bytes[i], 0);
    assert_true(pleat_stats_of(j.runtime).planned != 0 && pleat_stats_of(j.runtime).lane != 0);
    run(&j, &shape, NULL, 8);
    assert_true(percent_placed(&j, &shape, 4) >= 95);
    for (uint32_t i = 0; i < count; i++)
        job_free(&j, &kept[i]);
    run(&j, &shape, NULL, 4);
    finish(&j);
    pleat_plan_free(plan);
}

static void misfit_counts_strikes(void **state)
{
    (void)state;
    const pleat_plan plan = {.steady = {.slot_count = 5000}};
    pleat_stats stats = {0};
    pleat__misfit misfit;
    pleat__misfit_begin(&misfit, &plan, &stats);
    pleat__misfit_followed(&misfit, true);
    assert_false(pleat__misfit_judge(&misfit, 1000, true)); /* no iteration was before it */
    assert_false(pleat__misfit_judge(&misfit, 2000, true));
    assert_false(pleat__misfit_judge(&misfit, 2010, true)); /* too few */
    stats.planned = 400;
    assert_true(pleat__misfit_judge(&misfit, 3010, true));
    assert_true(pleat__misfit_judge(&misfit, 4010, true)); /* until it was left */
    uint64_t at = 4010;
    for (uint64_t wait = 256; wait < 2000; wait *= 2, at += wait / 2) {
        pleat__misfit_stays(&misfit, at);
        assert_false(pleat__misfit_is_due(&misfit, at + wait - 1));
        assert_false(pleat__misfit_judge(&misfit, at + wait - 1, false));
        assert_true(pleat__misfit_is_due(&misfit, at + wait));
        assert_true(pleat__misfit_judge(&misfit, at + wait, false));
    }
    pleat__misfit_left(&misfit);
    assert_false(pleat__misfit_is_due(&misfit, 2 * at));
    assert_false(pleat__misfit_judge(&misfit, 2 * at, true)); /* once */

    stats.planned = 0;
    pleat__misfit_begin(&misfit, &plan, &stats);
    assert_false(pleat__misfit_is_due(&misfit, 4999));
    for (uint64_t n = 1; n < 4; n++) {
        assert_true(pleat__misfit_is_due(&misfit, 5000 * n));
        assert_false(pleat__misfit_judge(&misfit, 5000 * n, false));
    }
    assert_true(pleat__misfit_judge(&misfit, 20000, false));

    /* Only what is served while the plan is followed counts. */
    pleat__misfit_begin(&misfit, &plan, &stats);
    pleat__misfit_followed(&misfit, true);
    stats.lane = 300;
    pleat__misfit_followed(&misfit, false);
    stats.planned = 5000;
    assert_false(pleat__misfit_judge(&misfit, 10, true));
    assert_false(pleat__misfit_judge(&misfit, 1010, true));
    assert_int_equal(misfit.strikes, 2);
    pleat__misfit_followed(&misfit, true);
    stats.planned = 5500;
    assert_false(pleat__misfit_judge(&misfit, 2010, true)); /* half: it is the job's */
    for (uint64_t n = 1; n < 9; n++)
        assert_false(pleat__misfit_judge(&misfit, 2010 + n * 1000, true));
    assert_false(pleat__misfit_is_due(&misfit, 100000));
}

/* ---- failures ---- */

/* Iterations with whatever fails; NULL: there is no runtime. */
static pleat_runtime *run_failing(pleat_vmm vmm, const void *plan)
{
    job j = {.vmm = vmm};
    job_shape shape = job_shape_make(9, 1);
    const pleat_runtime_options options = {
        .size = sizeof options, .policy = "pleat", .plan = plan, .waits = 1};
    if (pleat_runtime_create(vmm, &options, &j.runtime) != PLEAT_OK)
        return NULL;
    for (uint32_t n = 0; n < 5; n++)
        job_try_iterate(&j, &shape);
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    return j.runtime;
}

static void misfit_survives_every_failing_verb(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_create,       PLEAT__FAULT_map,
                                              PLEAT__FAULT_unmap,        PLEAT__FAULT_set_access,
                                              PLEAT__FAULT_event_create, PLEAT__FAULT_event_record};
    test_random random = {9};
    job_shape other = job_shape_make(49, 2);
    pleat_plan *plan = plan_of(&other, &random);
    fail_verbs(verbs, sizeof verbs / sizeof *verbs, 3, run_failing, plan);
    pleat_plan_free(plan);
}

static void misfit_survives_every_want_of_host_memory(void **state)
{
    (void)state;
    test_random random = {10};
    job_shape other = job_shape_make(50, 2);
    pleat_plan *plan = plan_of(&other, &random);
    fail_host_memory(8, run_failing, plan);
    pleat_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misfit_plan_of_another_job_is_left),
        cmocka_unit_test(misfit_is_left_without_marks_too),
        cmocka_unit_test(misfit_that_cannot_be_left_is_left_later),
        cmocka_unit_test(misfit_in_the_beginning_only_is_kept),
        cmocka_unit_test(misfit_later_is_kept),
        cmocka_unit_test(misfit_keeps_what_lies_in_it),
        cmocka_unit_test(misfit_counts_strikes),
        cmocka_unit_test(misfit_survives_every_failing_verb),
        cmocka_unit_test(misfit_survives_every_want_of_host_memory),
    };
    return cmocka_run_group_tests_name("misfit", tests, NULL, NULL);
}
