/*
 * learn.c: iterations of marked jobs: loops in loops, iterations that are not exactly equal,
 * evaluations between them, shapes that alternate, jobs that change a little.
 */
#include "nested.h"

static pleat_stats since(const job *j, pleat_stats before)
{
    pleat_stats after = pleat_stats_of(j->runtime);
    after.requests -= before.requests;
    after.planned -= before.planned;
    after.lane -= before.lane;
    after.driver_calls -= before.driver_calls;
    after.switches -= before.switches;
    after.divergences -= before.divergences;
    return after;
}

static pleat_stats run(job *j, nested *n, uint32_t iterations)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    for (uint32_t i = 0; i < iterations; i++) {
        assert_ok(pleat_mark(j->runtime));
        nested_iterate(j, n);
    }
    return since(j, before);
}

/* In slots or lanes. */
static void assert_planned(const job *j, pleat_stats stats, uint32_t percent)
{
    uint64_t planned = stats.planned + stats.lane;
    if (planned * 100 < stats.requests * percent)
        fail_msg("%llu of %llu planned; %llu switches, %llu divergences in all",
                 (unsigned long long)planned, (unsigned long long)stats.requests,
                 (unsigned long long)pleat_stats_of(j->runtime).switches,
                 (unsigned long long)pleat_stats_of(j->runtime).divergences);
}

static void stop(job *j, nested *n)
{
    nested_end(j, n);
    assert_int_equal(j->errors, 0);
    assert_int_equal(pleat_stats_of(j->runtime).live_bytes, 0);
    job_stop(j);
}

static void learn_iteration_of_many_loops_is_followed(void **state)
{
    (void)state;
    test_random random = test_random_begin("learn", 0x1ea21);
    static const uint32_t microbatches[] = {1, 2, 3, 4, 8, 16};
    for (uint32_t i = 0; i < 4 * sizeof microbatches / sizeof *microbatches; i++) {
        job j;
        nested n = nested_make(&random, microbatches[i % (sizeof microbatches / sizeof(uint32_t))]);
        job_start(&j, "pleat", NULL, 0);
        run(&j, &n, 8);
        pleat_stats stats = run(&j, &n, 10);
        assert_planned(&j, stats, 99);
        assert_int_equal(stats.driver_calls, 0);
        assert_int_equal(stats.divergences, 0);
        stop(&j, &n);
    }
}

/* One request in ten changes for good, too few to diverge: the heap has them from then on, and
 * asks nothing of the driver. */
static void learn_small_change_for_good_costs_itself_only(void **state)
{
    (void)state;
    test_random random = test_random_begin("change", 0xc4a);
    job j;
    nested n = nested_make(&random, 2);
    job_start(&j, "pleat", NULL, 0);
    run(&j, &n, 8);
    assert_planned(&j, run(&j, &n, 4), 99);
    n.forward[1] += 512 * 300;
    n.backward[n.requests - 1] += 512 * 300;
    run(&j, &n, 8);
    pleat_stats stats = run(&j, &n, 10);
    assert_planned(&j, stats, 90);
    assert_int_equal(stats.driver_calls, 0);
    stop(&j, &n);
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
        run(&j, &n, 1);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.switches <= 4);
    assert_planned(&j, stats, 85);
    stop(&j, &n);
}

/* What a job does now and then between two iterations. */
static void evaluate(job *j, nested *n, test_random *random)
{
    for (uint32_t i = 0; i < n->layers * n->requests; i++) {
        job_tensor t = job_alloc(j, n->forward[i % n->requests] + 512 * 7, 0);
        job_free(j, &t);
    }
    job_tensor metrics = job_alloc(j, 512 * (1 + test_random_below(random, 200)), 0);
    job_free(j, &metrics);
}

/* The whole state in one buffer, piece by piece. */
static void save(job *j, const nested *n)
{
    for (uint32_t i = 0; i < n->layers * 4; i++) {
        job_tensor copy = job_alloc(j, n->parameters[i % 4] * 2, 0);
        job_tensor cast = job_alloc(j, n->parameters[i % 4] / 2, 0);
        job_free(j, &copy);
        job_free(j, &cast);
    }
}

static void iterate_oddly(job *j, nested *n, test_random *random, uint32_t iteration)
{
    if (iteration % 5 == 4) {
        job_tensor line = job_alloc(j, 512 * (1 + test_random_below(random, 9)), 0);
        job_free(j, &line);
    }
    run(j, n, 1);
}

static void learn_what_comes_between_iterations_is_no_part_of_them(void **state)
{
    (void)state;
    test_random random = test_random_begin("between", 0xbe7);
    for (uint32_t i = 0; i < 8; i++) {
        job j;
        nested n = nested_make(&random, 1 + i % 4);
        job_start(&j, "pleat", NULL, 0);
        uint32_t iteration = 0;
        for (uint32_t visit = 0; visit < 4; visit++) {
            for (uint32_t k = 0; k < 5; k++)
                iterate_oddly(&j, &n, &random, iteration++);
            pleat_stats before = pleat_stats_of(j.runtime);
            for (uint32_t k = 0; k < 10; k++)
                iterate_oddly(&j, &n, &random, iteration++);
            assert_planned(&j, since(&j, before), 95);
            evaluate(&j, &n, &random);
            save(&j, &n);
        }
        stop(&j, &n);
    }
}

/* One size in six is another in each iteration, as experts' are. Whether or not it is followed, the
 * driver is not asked again and again, and nothing is learned anew all the time. */
static void learn_dynamic_sizes_cost_no_driver_calls(void **state)
{
    (void)state;
    test_random random = test_random_begin("dynamic", 0xd1a);
    for (uint32_t i = 0; i < 6; i++) {
        job j;
        nested n = nested_make(&random, 1 + i % 3);
        job_start(&j, "pleat", NULL, 0);
        pleat_stats before = {0};
        for (uint32_t iteration = 0; iteration < 120; iteration++) {
            for (uint32_t r = 2; r < n.requests; r += 6)
                n.forward[r] = 512 * (200 + test_random_below(&random, 100));
            if (iteration == 100)
                before = pleat_stats_of(j.runtime);
            run(&j, &n, 1);
        }
        pleat_stats stats = since(&j, before);
        assert_int_equal(stats.driver_calls, 0);
        assert_int_equal(stats.switches, 0);
        assert_true(pleat_stats_of(j.runtime).switches <= 32);
        stop(&j, &n);
    }
}

static void alternate(test_random *random)
{
    job j;
    nested n = nested_make(random, 3), other = n;
    for (uint32_t i = 0; i < n.requests; i++) {
        other.forward[i] *= 2;
        other.backward[i] *= 2;
    }
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t visit = 0; visit < 10; visit++) {
        nested *now = visit % 2 == 0 ? &n : &other, *next = visit % 2 == 0 ? &other : &n;
        run(&j, now, 2);
        /* A first iteration that matches nothing, and a second one to be like it. */
        pleat_stats stats = run(&j, now, 48);
        assert_true(stats.planned + stats.lane + 2 * now->count >= stats.requests);
        assert_int_equal(stats.switches, 1);
        memcpy(next->states, now->states, sizeof next->states);
        memcpy(next->gradients, now->gradients, sizeof next->gradients);
    }
    stop(&j, &n);
}

static void learn_shapes_that_alternate_take_each_others_place(void **state)
{
    (void)state;
    test_random random = test_random_begin("shapes", 0x54a);
    for (uint32_t i = 0; i < 8; i++)
        alternate(&random);
}

/* As many requests as an iteration has, of any size. */
static void roll_out(job *j, uint32_t count, test_random *random)
{
    job_tensor last = {0};
    assert_ok(pleat_mark(j->runtime));
    for (uint32_t i = 0; i < count; i++) {
        job_tensor next = job_alloc(j, 512 * (1 + test_random_below(random, 3000)), 0);
        job_free(j, &last);
        last = next;
    }
    job_free(j, &last);
}

/* What was learned of rollouts took the steps' requests for its own, whatever their size, and was
 * never left. */
static void learn_steps_are_followed_between_rollouts_as_long(void **state)
{
    (void)state;
    test_random random = test_random_begin("rollouts", 0x2011);
    for (uint32_t visit = 0; visit < 4; visit++) {
        job j;
        nested n = nested_make(&random, 2);
        uint64_t requests = 0, planned = 0;
        job_start(&j, "pleat", NULL, 0);
        for (uint32_t i = 0; i < 24; i++) {
            roll_out(&j, i == 0 ? 1 : n.count, &random);
            run(&j, &n, 1);
            pleat_stats steps = run(&j, &n, 3);
            requests += i < 12 ? 0 : steps.requests;
            planned += i < 12 ? 0 : steps.planned;
        }
        if (planned * 100 < requests * 92)
            fail_msg("%llu of %llu planned", (unsigned long long)planned,
                     (unsigned long long)requests);
        stop(&j, &n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learn_iteration_of_many_loops_is_followed),
        cmocka_unit_test(learn_small_change_for_good_costs_itself_only),
        cmocka_unit_test(learn_unsteady_job_does_not_thrash),
        cmocka_unit_test(learn_what_comes_between_iterations_is_no_part_of_them),
        cmocka_unit_test(learn_dynamic_sizes_cost_no_driver_calls),
        cmocka_unit_test(learn_shapes_that_alternate_take_each_others_place),
        cmocka_unit_test(learn_steps_are_followed_between_rollouts_as_long),
    };
    return cmocka_run_group_tests_name("learn", tests, NULL, NULL);
}
