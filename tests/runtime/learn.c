/*
 * learn.c: finding the iteration of a job that marks none: loops in loops, iterations that are not
 * exactly equal, evaluations between them, shapes that alternate, jobs that change a little.
 */
#include "nested.h"

#include <runtime/face/runtime_internal.h>
#include <runtime/learn/learn.h>
#include <runtime/learn/lives.h>
#include <runtime/policy/pleat_internal.h>

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

/* All sizes are others in each iteration, each by itself. */
static void draw_sizes(nested *now, const nested *n, test_random *random, bool largest)
{
    for (uint32_t r = 0; r < n->requests; r++) {
        now->forward[r] = n->forward[r] * (largest ? 10 : 7 + test_random_below(random, 4));
        now->backward[r] = n->backward[r] * (largest ? 10 : 7 + test_random_below(random, 4));
    }
}

/* A request lies where its like has lain, as far as that reaches, and what was enough for the
 * largest is enough for all: what is left in single jobs comes where requests are so alike that
 * one is taken for the other. */
static void learn_sizes_that_change_find_the_places_of_their_like(void **state)
{
    (void)state;
    test_random random = test_random_begin("sizes", 0x1e9);
    uint64_t before_calls = 0, calls = 0, requests = 0, planned = 0;
    for (uint32_t k = 0; k < 8; k++) {
        job j;
        nested n = nested_make(&random, 2), now = n;
        job_start_with(&j, "pleat", NULL, 0, "elastic:off");
        pleat_stats before = {0};
        for (uint32_t i = 0; i < 80; i++) {
            draw_sizes(&now, &n, &random, i == 10);
            if (i == 40)
                before = pleat_stats_of(j.runtime);
            mark_and_iterate(&j, &now, 1, true);
        }
        pleat_stats stats = since(&j, before);
        assert_planned(&j, stats, 70);
        requests += stats.requests;
        planned += stats.planned + stats.lane;
        before_calls += before.driver_calls;
        calls += stats.driver_calls;
        stop(&j, &now);
    }
    assert_true(planned * 100 >= requests * 90);
    assert_true(calls * 4 <= before_calls);
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
    if (iteration % 16 == 15)
        evaluate(j, n, random);
    if (iteration % 32 == 31)
        save(j, n);
    nested_iterate(j, n);
}

/* An iteration is believed after 8,192 to 24,576 requests in which nothing came between, and here
 * something does after as few as 6,000: some jobs are found late. Of 240 jobs, seeds 1 to 30, three
 * had less than 95 % planned from then on, the worst 86 %. */
static void learn_what_comes_between_iterations_is_no_part_of_them(void **state)
{
    (void)state;
    test_random random = test_random_begin("between", 0xbe7);
    uint32_t poor = 0;
    for (uint32_t i = 0; i < 8; i++) {
        job j;
        nested n = nested_make(&random, 1 + i % 4);
        job_start(&j, "pleat", NULL, 0);
        uint32_t iteration = 0;
        for (uint64_t requests = 0; requests < 160000 || iteration < 12; requests += n.count)
            iterate_oddly(&j, &n, &random, iteration++);
        uint64_t all = 0;
        pleat_stats before = pleat_stats_of(j.runtime);
        for (uint32_t k = 0; k < 64; k++) {
            iterate_oddly(&j, &n, &random, iteration++);
            all += n.count;
        }
        pleat_stats stats = since(&j, before);
        stats.requests = all;
        assert_planned(&j, stats, 75);
        poor += stats.planned * 100 < stats.requests * 95;
        stop(&j, &n);
    }
    assert_true(poor <= 1);
}

/* One size in six is another in each iteration, as experts' are. The shorter an iteration is, the
 * more of them it takes to believe it: 25,000 requests, or three of them. */
static void learn_iteration_with_dynamic_sizes_is_found(void **state)
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
        assert_planned(&j, stats, 80);
        assert_true(pleat_stats_of(j.runtime).switches <= 32);
        stop(&j, &n);
    }
}

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
        if (visit >= 2)
            assert_planned(&j, since(&j, before), 99);
        memcpy(next->states, now->states, sizeof next->states);
        memcpy(next->gradients, now->gradients, sizeof next->gradients);
    }
    /* One of the two may be known for the other at another size. */
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.switches <= 2);
    assert_true(stats.switches + stats.instances >= 2);
    stop(&j, &n);
}

/* It takes an iteration or two to see that the other one is back. */
static void learn_two_shapes_are_both_kept(void **state)
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
        job_start_with(&j, "pleat", NULL, 0, "draft:off");
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

#define PIPELINE_LAYERS 24u
#define PIPELINE_MOST   8u

/* All microbatches forward, what they keep, and then all backward. */
static void run_pipeline(job *j, const uint64_t *sizes, uint32_t microbatches)
{
    job_tensor kept[PIPELINE_MOST][PIPELINE_LAYERS];
    assert_ok(pleat_mark(j->runtime));
    for (uint32_t m = 0; m < microbatches; m++)
        for (uint32_t l = 0; l < PIPELINE_LAYERS; l++) {
            job_tensor workspace = job_alloc(j, sizes[(l + 5) % PIPELINE_LAYERS] / 3, 0);
            kept[m][l] = job_alloc(j, sizes[l], 0);
            job_free(j, &workspace);
        }
    for (uint32_t m = 0; m < microbatches; m++)
        for (uint32_t l = PIPELINE_LAYERS; l-- > 0;) {
            job_tensor gradient = job_alloc(j, sizes[l] / 2, 0);
            job_free(j, &kept[m][l]);
            job_free(j, &gradient);
        }
}

/* Some milliseconds pass, beside what calls would cost on a GPU. */
static void pass_time(const job *j, uint64_t *clock_ns)
{
    *clock_ns += 20000000;
    assert_ok(pleat__host_clock_set(&j->vmm, *clock_ns));
}

/* Large tensors found the places of those before them in use, and were stitched anew in each
 * iteration, until memory was bought instead. Learned shapes are let go then, for a while. */
static void learn_lets_go_of_what_serves_other_lengths_badly(void **state)
{
    (void)state;
    test_random random = test_random_begin("lengths", 0x1e4);
    uint32_t rested = 0;
    for (uint32_t run = 0; run < 8; run++) {
        job j;
        uint64_t sizes[PIPELINE_LAYERS];
        for (uint32_t l = 0; l < PIPELINE_LAYERS; l++)
            sizes[l] = 512 + test_random_below(&random, l % 4 == 0 ? 60 * JOB_PAGE : 3 * JOB_PAGE);
        job_start_with(&j, "pleat", NULL, 0, "draft:off");
        const pleat__shapes *shapes = &((pleat__planned *)j.runtime->policy)->shapes;
        uint64_t clock_ns = 1000000000;
        assert_ok(pleat__host_set_costs(&j.vmm, &pleat__host_costs_h200));
        pass_time(&j, &clock_ns);
        for (uint32_t i = 0; i < 3; i++) {
            pass_time(&j, &clock_ns);
            run_pipeline(&j, sizes, 2);
        }
        for (uint32_t i = 0; i < 60 && shapes->fit.resting == 0; i++) {
            pass_time(&j, &clock_ns);
            run_pipeline(&j, sizes, 2 + 2 * (uint32_t)test_random_below(&random, 4));
        }
        if (shapes->fit.resting > 1) {
            rested++;
            pleat_stats before = pleat_stats_of(j.runtime);
            run_pipeline(&j, sizes, 4);
            run_pipeline(&j, sizes, 4);
            assert_int_equal(since(&j, before).planned, 0);
            assert_int_equal(shapes->fit.rests, 1);
            for (uint32_t i = shapes->fit.resting + 4; i > 0; i--)
                run_pipeline(&j, sizes, 4);
            before = pleat_stats_of(j.runtime);
            run_pipeline(&j, sizes, 4);
            assert_planned(&j, since(&j, before), 99);
        }
        assert_int_equal(j.errors, 0);
        job_stop(&j);
    }
    assert_true(rested > 0);
}

/* What nothing is followed of is judged now and then too, not at every request. */
static void learn_without_iterations_is_judged_now_and_then(void **state)
{
    (void)state;
    job j;
    test_random random = {5};
    job_start_with(&j, "pleat", NULL, 0, "draft:off");
    const pleat__shapes *shapes = &((pleat__planned *)j.runtime->policy)->shapes;
    uint32_t judged = 0;
    uint64_t due = 0;
    for (uint32_t i = 0; i < 5000; i++) {
        job_tensor t = job_alloc(&j, 1 + test_random_below(&random, 4000), 0);
        judged += shapes->fit.due != due;
        due = shapes->fit.due;
        job_free(&j, &t);
    }
    assert_in_range(judged, 2, 6);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

/* Sizes at random for ever, and no mark: what is held of them ends somewhere. */
static void learn_holds_so_much_of_what_has_no_iterations(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed1ea5);
    pleat__arena *arena;
    pleat__conf conf;
    pleat__learn learn;
    pleat__lives lives;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__conf_read("", &conf));
    assert_ok(pleat__learn_init(&learn, arena, &conf));
    assert_ok(pleat__lives_init(&lives, arena));
    uint64_t most = 0;
    for (uint32_t i = 0; i < 700000; i++) {
        uint64_t bytes = 512 * (1 + test_random_below(&random, 100000));
        pleat__place place = {.address = (i + 1) * UINT64_C(4096), .granules = 1};
        assert_int_equal(pleat__learn_request(&learn, bytes, 0, &place, true),
                         PLEAT__BOUNDARY_NONE);
        pleat__lives_alloc(&lives, bytes, 0, place.address);
        pleat__lives_free(&lives, place.address);
        uint64_t held = i % 4096 == 0 ? pleat__arena_bytes_of(arena).allocated : 0;
        most = held > most ? held : most;
    }
    assert_true(learn.end - learn.begin >= 200000);
    /* A ring grows by being copied into one of twice its size. */
    assert_true(most < 40u << 20);
    assert_true(pleat__arena_bytes_of(arena).allocated < 20u << 20);
    pleat__learn_release(&learn);
    pleat__lives_release(&lives);
    pleat__arena_destroy(arena);
}

#define MARKED_REQUESTS 512u

/* An iteration of sizes that are all another's, without those from `from` to `to`, and its mark. */
static pleat__boundary run_marked(pleat__learn *learn, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < MARKED_REQUESTS; i++) {
        const pleat__place place = {.address = (i + 1) * UINT64_C(4096), .granules = 1};
        if (i < from || i >= to)
            (void)pleat__learn_request(learn, 512 * (i + 1), 0, &place, true);
    }
    return pleat__learn_mark(learn);
}

static pleat__arena *begin_marked(pleat__learn *learn)
{
    pleat__arena *arena;
    pleat__conf conf;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__conf_read("", &conf));
    assert_ok(pleat__learn_init(learn, arena, &conf));
    (void)pleat__learn_mark(learn);
    return arena;
}

/* Between marks too many requests may be missing in a row to be passed over one by one. */
static void learn_finds_its_way_behind_a_long_gap_between_marks(void **state)
{
    (void)state;
    pleat__learn learn;
    pleat__arena *arena = begin_marked(&learn);
    for (uint32_t i = 0; i < 3; i++)
        (void)run_marked(&learn, 0, 0);
    assert_int_equal(run_marked(&learn, 200, 300), PLEAT__BOUNDARY_AGREED);
    assert_int_equal(learn.found.count, MARKED_REQUESTS - 100);
    /* All but a few, the first ones behind the gap. */
    assert_true(learn.found.agreed >= MARKED_REQUESTS - 100 - 32);
    pleat__learn_release(&learn);
    pleat__arena_destroy(arena);
}

/* Or as many strangers come between two that not every one of what follows is looked for by itself.
 */
static void learn_finds_its_way_behind_strangers_between_marks(void **state)
{
    (void)state;
    const uint32_t strangers = 400, before = 200;
    pleat__learn learn;
    pleat__arena *arena = begin_marked(&learn);
    for (uint32_t i = 0; i < 3; i++)
        (void)run_marked(&learn, 0, 0);
    for (uint32_t i = 0; i < MARKED_REQUESTS + strangers; i++) {
        bool odd = i >= before && i < before + strangers;
        const pleat__place place = {.address = (i + 1) * UINT64_C(4096), .granules = 1};
        uint32_t item = odd ? MARKED_REQUESTS + i : i < before ? i : i - strangers;
        (void)pleat__learn_request(&learn, 512 * (item + 1), 0, &place, true);
    }
    assert_int_equal(pleat__learn_mark(&learn), PLEAT__BOUNDARY_AGREED);
    assert_int_equal(learn.found.count, MARKED_REQUESTS + strangers);
    assert_in_range(learn.found.agreed, MARKED_REQUESTS - 32, MARKED_REQUESTS);
    pleat__learn_release(&learn);
    pleat__arena_destroy(arena);
}

/* A program may mark behind its optimizer's step, which is a mark. */
static void learn_marks_right_behind_each_other_are_one(void **state)
{
    (void)state;
    for (uint32_t between = 0; between <= 4; between++) {
        pleat__learn learn;
        pleat__arena *arena = begin_marked(&learn);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(run_marked(&learn, 0, 0),
                             i > 0 ? PLEAT__BOUNDARY_AGREED : PLEAT__BOUNDARY_NONE);
            const pleat__place place = {.address = UINT64_C(1) << 32, .granules = 1};
            for (uint32_t k = 0; k < between; k++)
                (void)pleat__learn_request(&learn, 512, 0, &place, true);
            assert_int_equal(pleat__learn_mark(&learn), PLEAT__BOUNDARY_NONE);
        }
        assert_int_equal(learn.found.count, MARKED_REQUESTS + between);
        pleat__learn_release(&learn);
        pleat__arena_destroy(arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learn_iteration_is_found_not_its_loops),
        cmocka_unit_test(learn_small_change_for_good_is_learned),
        cmocka_unit_test(learn_unsteady_job_does_not_thrash),
        cmocka_unit_test(learn_what_comes_between_iterations_is_no_part_of_them),
        cmocka_unit_test(learn_iteration_with_dynamic_sizes_is_found),
        cmocka_unit_test(learn_two_shapes_are_both_kept),
        cmocka_unit_test(learn_sizes_that_change_find_the_places_of_their_like),
        cmocka_unit_test(learn_steps_are_followed_between_rollouts_as_long),
        cmocka_unit_test(learn_lets_go_of_what_serves_other_lengths_badly),
        cmocka_unit_test(learn_without_iterations_is_judged_now_and_then),
        cmocka_unit_test(learn_holds_so_much_of_what_has_no_iterations),
        cmocka_unit_test(learn_finds_its_way_behind_a_long_gap_between_marks),
        cmocka_unit_test(learn_finds_its_way_behind_strangers_between_marks),
        cmocka_unit_test(learn_marks_right_behind_each_other_are_one),
    };
    return cmocka_run_group_tests_name("learn", tests, NULL, NULL);
}
