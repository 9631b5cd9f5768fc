/*
 * learn.c: finding the iteration of a job that marks none: loops in loops, iterations that are not
 * exactly equal, evaluations between them, shapes that alternate, jobs that change a little.
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
    for (uint32_t i = 0; i < iterations; i++)
        nested_iterate(j, n);
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

/* One request in ten changes for good, too few to diverge: the heap has them from then on, and
 * asks nothing of the driver. */
static void learn_small_change_for_good_costs_itself_only(void **state)
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
        pleat_stats stats = since(&j, before);
        assert_planned(&j, stats, 90);
        assert_int_equal(stats.driver_calls, 0);
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
    nested_iterate(j, n);
}

/* An iteration is believed after 8,192 to 24,576 requests in which nothing came between, and found
 * so again behind what did. */
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
            for (uint64_t requests = 0; requests < 40000; requests += n.count)
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
        uint64_t requests = 0;
        for (uint32_t left = 20; left > 0;) {
            for (uint32_t r = 2; r < n.requests; r += 6)
                n.forward[r] = 512 * (200 + test_random_below(&random, 100));
            if (requests < 80000)
                before = pleat_stats_of(j.runtime);
            else
                left--;
            nested_iterate(&j, &n);
            requests += n.count;
        }
        pleat_stats stats = since(&j, before);
        assert_int_equal(stats.driver_calls, 0);
        assert_int_equal(stats.switches, 0);
        assert_true(pleat_stats_of(j.runtime).switches <= 32);
        stop(&j, &n);
    }
}

/* More than are compared before an iteration without marks is believed (period.c, PATIENCE). */
#define UNMARKED_REQUESTS 12000u

static void alternate(test_random *random, bool marks)
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
        mark_and_iterate(&j, now, 2, marks);
        pleat_stats before = pleat_stats_of(j.runtime);
        mark_and_iterate(&j, now, 48, marks);
        /* A first iteration that matches nothing, and a second one to be like it; without marks
         * an iteration is believed after some thousand requests. */
        pleat_stats stats = since(&j, before);
        assert_true(stats.planned + stats.lane + (marks ? 2 * now->count : UNMARKED_REQUESTS) >=
                    stats.requests);
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
        alternate(&random, i % 2 == 1);
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
    for (uint32_t run = 0; run < 4; run++) {
        job j;
        nested n = nested_make(&random, 2);
        uint64_t requests = 0, planned = 0;
        job_start(&j, "pleat", NULL, 0);
        for (uint32_t i = 0; i < 24; i++) {
            roll_out(&j, i == 0 ? 1 : n.count, &random);
            mark_and_iterate(&j, &n, 1, true);
            pleat_stats before = pleat_stats_of(j.runtime);
            mark_and_iterate(&j, &n, 3, true);
            pleat_stats steps = since(&j, before);
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
        cmocka_unit_test(learn_iteration_is_found_not_its_loops),
        cmocka_unit_test(learn_small_change_for_good_costs_itself_only),
        cmocka_unit_test(learn_unsteady_job_does_not_thrash),
        cmocka_unit_test(learn_what_comes_between_iterations_is_no_part_of_them),
        cmocka_unit_test(learn_dynamic_sizes_cost_no_driver_calls),
        cmocka_unit_test(learn_shapes_that_alternate_take_each_others_place),
        cmocka_unit_test(learn_steps_are_followed_between_rollouts_as_long),
    };
    return cmocka_run_group_tests_name("learn", tests, NULL, NULL);
}
