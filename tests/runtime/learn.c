/*
 * learn.c: finding the iteration of a job that marks none: loops in loops, iterations that are not
 * exactly equal, evaluations between them, shapes that alternate, jobs that change a little.
 */
#include "nested.h"

#include <runtime/learn.h>

static pleat_stats since(const job *j, pleat_stats before)
{
    pleat_stats after = pleat_stats_of(j->runtime);
    after.requests -= before.requests;
    after.planned -= before.planned;
    after.driver_calls -= before.driver_calls;
    after.switches -= before.switches;
    after.divergences -= before.divergences;
    return after;
}

static pleat_stats run(job *j, nested *n, uint32_t iterations)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    for (uint32_t i = 0; i < iterations; i++)
        nested_iterate(j, n);
    return since(j, before);
}

static void assert_planned(const job *j, pleat_stats stats, uint32_t percent)
{
    if (stats.planned * 100 < stats.requests * percent)
        fail_msg("%llu of %llu planned; %llu switches, %llu divergences in all",
                 (unsigned long long)stats.planned, (unsigned long long)stats.requests,
                 (unsigned long long)pleat_stats_of(j->runtime).switches,
                 (unsigned long long)pleat_stats_of(j->runtime).divergences);
}

/* Iterations that hold so many requests. */
static uint32_t iterations_of(nested *n, uint64_t requests)
{
    return (uint32_t)(requests / n->count) + 1;
}

static void stop(job *j, nested *n)
{
    nested_end(j, n);
    assert_int_equal(j->errors, 0);
    assert_int_equal(pleat_stats_of(j->runtime).live_bytes, 0);
    job_stop(j);
}

static void learn_iteration_is_found_not_its_loops(void **state)
{
    (void)state;
    test_random random = test_random_begin("learn", 0x1ea21);
    static const uint32_t microbatches[] = {1, 2, 3, 4, 8, 16};
    for (uint32_t i = 0; i < 4 * sizeof microbatches / sizeof *microbatches; i++) {
        job j;
        nested n = nested_make(&random, microbatches[i % (sizeof microbatches / sizeof(uint32_t))]);
        job_start(&j, "pleat", NULL, 0);
        run(&j, &n, 2);
        run(&j, &n, 4 + iterations_of(&n, 16384));
        run(&j, &n, 6);
        pleat_stats stats = run(&j, &n, 10);
        assert_planned(&j, stats, 99);
        assert_int_equal(stats.driver_calls, 0);
        assert_int_equal(stats.divergences, 0);
        stop(&j, &n);
    }
}

static void mark_and_iterate(job *j, nested *n, uint32_t iterations, bool marks)
{
    for (uint32_t i = 0; i < iterations; i++) {
        if (marks)
            assert_ok(pleat_mark(j->runtime));
        nested_iterate(j, n);
    }
}

/* One request in ten changes for good: too few to diverge. */
static void learn_small_change_for_good_is_learned(void **state)
{
    (void)state;
    for (int marks = 0; marks < 2; marks++) {
        test_random random = test_random_begin("change", 0xc4a);
        job j;
        nested n = nested_make(&random, 2);
        job_start(&j, "pleat", NULL, 0);
        nested_iterate(&j, &n);
        mark_and_iterate(&j, &n, 8 + iterations_of(&n, 30000), marks);
        pleat_stats before = pleat_stats_of(j.runtime);
        mark_and_iterate(&j, &n, 4, marks);
        assert_planned(&j, since(&j, before), 99);
        n.forward[1] += 512 * 300;
        n.backward[n.requests - 1] += 512 * 300;
        mark_and_iterate(&j, &n, 8 + iterations_of(&n, 60000), marks);
        before = pleat_stats_of(j.runtime);
        mark_and_iterate(&j, &n, 10, marks);
        assert_planned(&j, since(&j, before), 99);
        stop(&j, &n);
    }
}

/* A request in twelve never comes twice: learning anew does not pay, and is not tried all the time.
 */
static void learn_unsteady_job_does_not_thrash(void **state)
{
    (void)state;
    test_random random = test_random_begin("thrash", 0x7a5);
    job j;
    nested n = nested_make(&random, 2);
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t i = 0; i < 400; i++) {
        n.forward[n.requests / 2] = 512 * (200 + test_random_below(&random, 500));
        assert_ok(pleat_mark(j.runtime));
        nested_iterate(&j, &n);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.switches <= 4);
    assert_planned(&j, stats, 85);
    stop(&j, &n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learn_iteration_is_found_not_its_loops),
        cmocka_unit_test(learn_small_change_for_good_is_learned),
        cmocka_unit_test(learn_unsteady_job_does_not_thrash),
    };
    return cmocka_run_group_tests_name("learn", tests, NULL, NULL);
}
