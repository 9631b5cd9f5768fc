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

/* Another length in each iteration, all sizes with it: a request lies where its like has lain, as
 * far as that reaches, and what was enough for the longest is enough for all. */
static void learn_sizes_that_change_find_the_places_of_their_like(void **state)
{
    (void)state;
    test_random random = test_random_begin("lengths", 0x1e9);
    job j;
    nested n = nested_make(&random, 2), now = n;
    job_start(&j, "pleat", NULL, 0);
    pleat_stats before = {0};
    for (uint32_t i = 0; i < 80; i++) {
        uint64_t length = i == 10 ? 100 : 40 + test_random_below(&random, 60);
        for (uint32_t r = 0; r < n.requests; r++) {
            now.forward[r] = n.forward[r] * length / 10;
            now.backward[r] = n.backward[r] * length / 10;
        }
        if (i == 40)
            before = pleat_stats_of(j.runtime);
        mark_and_iterate(&j, &now, 1, true);
    }
    pleat_stats stats = since(&j, before);
    assert_planned(&j, stats, 90);
    assert_true(stats.driver_calls * 5 <= before.driver_calls);
    stop(&j, &now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learn_iteration_is_found_not_its_loops),
        cmocka_unit_test(learn_small_change_for_good_is_learned),
        cmocka_unit_test(learn_unsteady_job_does_not_thrash),
        cmocka_unit_test(learn_sizes_that_change_find_the_places_of_their_like),
    };
    return cmocka_run_group_tests_name("learn", tests, NULL, NULL);
}
