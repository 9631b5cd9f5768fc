/*
 * elastic.c: made-up jobs whose microbatch or length changes, on a real runtime over host memory,
 * with a canary: what was seen at two sizes is followed at others, and whatever does not hold costs
 * no byte of anybody's.
 */
#include "elastic_job.h"
#include "neighbour.h"

#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/policy/pleat_internal.h>
#include <stdatomic.h>
#include <vmm/host.h>

static void elastic_third_size_needs_no_learning(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        job j;
        elastic_job e = elastic_make(seed);
        job_start(&j, "pleat", NULL, 0);
        job_tensor weights = job_alloc(&j, 3000000, 0);
        run_x(&j, &e, 3, 6);
        run_x(&j, &e, 4, 8);
        assert_true(pleat_stats_of(j.runtime).instances >= 1);
        static const uint64_t others[] = {7, 2, 1, 12};
        for (uint32_t k = 0; k < 4; k++) {
            /* What crosses the boundary still lies where it was. */
            assert_mostly_planned(run_x(&j, &e, others[k], 1), 70);
            run_x(&j, &e, others[k], 2);
            gained later = run_x(&j, &e, others[k], 4);
            assert_mostly_planned(later, 99);
            assert_int_equal(later.calls, 0);
        }
        assert_int_equal(pleat_stats_of(j.runtime).refits, 0);
        job_free(&j, &weights);
        finish(&j);
    }
}

/* It was three: what was recorded did not begin where the iteration did, and two whole ones had to
 * say what crosses their end. */
static void elastic_one_iteration_at_a_second_size_is_enough(void **state)
{
    (void)state;
    for (uint64_t seed = 211; seed < 214; seed++) {
        job j;
        elastic_job e = elastic_make(seed);
        job_start(&j, "pleat", NULL, 0);
        run_x(&j, &e, 3, 6);
        run_x(&j, &e, 4, 1);
        assert_int_equal(pleat_stats_of(j.runtime).instances, 0);
        assert_mostly_planned(run_x(&j, &e, 4, 1), 70);
        assert_int_equal(pleat_stats_of(j.runtime).instances, 1);
        run_x(&j, &e, 4, 1);
        assert_mostly_planned(run_x(&j, &e, 4, 4), 99);
        run_x(&j, &e, 3, 1);
        assert_mostly_planned(run_x(&j, &e, 3, 4), 99);
        finish(&j);
    }
}

/* Gradients are freed behind the optimizer's mark, ahead of the iteration's first request. Their
 * ends were not known then, and they had no place at other sizes. */
static void elastic_gradients_are_freed_behind_the_mark(void **state)
{
    (void)state;
    static const uint64_t xs[] = {3, 4, 8, 2};
    for (uint64_t seed = 31; seed < 34; seed++) {
        job j;
        elastic_job e = elastic_make(seed);
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            if (e.lives.last[i] < i || i % 8 == 0)
                e.lives.last[i] = JOB_REQUESTS; /* not by any request */
        job_start(&j, "pleat", NULL, 0);
        for (uint32_t k = 0; k < 4; k++) {
            job_shape shape = at_x(&e, xs[k]);
            pleat_stats before = {0}, after;
            for (uint32_t n = 0; n < 8; n++) {
                before = n == 4 ? pleat_stats_of(j.runtime) : before;
                assert_ok(pleat_mark(j.runtime));
                job_drain(&j);
                job_iterate(&j, &shape, JOB_PLAIN, 0);
            }
            after = pleat_stats_of(j.runtime);
            assert_settled(gained_between(&before, &after));
        }
        assert_true(pleat_stats_of(j.runtime).instances >= 1);
        finish(&j);
    }
}

static void elastic_sizes_that_return_cost_nothing(void **state)
{
    (void)state;
    static const uint64_t xs[] = {4, 2, 8, 1};
    job j;
    elastic_job e = elastic_make(11);
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t visit = 0; visit < 3; visit++)
        for (uint32_t k = 0; k < 4; k++) {
            gained first = run_x(&j, &e, xs[k], 2), rest = run_x(&j, &e, xs[k], 18);
            if (visit == 0)
                continue;
            assert_mostly_planned(first, 98);
            assert_mostly_planned(rest, 99);
            assert_int_equal(first.calls + rest.calls, 0);
        }
    finish(&j);
}

/* Layers repeat, and from some x on an iteration has a request more near its beginning. It was
 * taken for one of another layer, and all that came was followed some requests off. */
static void elastic_more_requests_at_larger_sizes_are_no_other_layer(void **state)
{
    (void)state;
    for (uint64_t seed = 171; seed < 176; seed++) {
        job j;
        elastic_job e = elastic_make(seed);
        for (uint32_t i = 20; i < JOB_REQUESTS; i++) {
            e.base[i] = e.base[i % 20];
            e.slope[i] = e.slope[i % 20];
        }
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            e.lives.last[i] =
                i + 15 < JOB_REQUESTS ? i + 1 + (e.lives.last[i % 20] + i) % 14 : JOB_REQUESTS - 1;
        job_start(&j, "pleat", NULL, 0);
        run_x(&j, &e, 3, 6);
        run_x(&j, &e, 4, 8);
        job_shape shape = at_x(&e, 8);
        pleat_stats before = pleat_stats_of(j.runtime);
        gained g = run_shape(&j, &shape, 1, JOB_EXTRA, 1);
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_int_equal(after.instances - before.instances, 1);
        assert_mostly_planned(g, 95);
        assert_true(after.diverged - before.diverged < 10);
        finish(&j);
    }
}

/* What a layout knows nothing of displaces none of its requests, and takes no memory more: some is
 * left over for it. */
static void elastic_small_strays_take_no_slot(void **state)
{
    (void)state;
    enum { STRAYS = 24 };
    for (uint64_t seed = 181; seed < 186; seed++) {
        job j;
        job_tensor strays[STRAYS];
        elastic_job e = elastic_make(seed);
        job_start(&j, "pleat", NULL, 0);
        run_x(&j, &e, 3, 6);
        run_x(&j, &e, 4, 8);
        run_x(&j, &e, 10, 4);
        pleat_stats before = pleat_stats_of(j.runtime);
        assert_true(before.instances >= 2);
        for (uint32_t i = 0; i < STRAYS; i++)
            strays[i] = job_alloc(&j, 1500 + i, 0);
        run_x(&j, &e, 10, 2);
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_int_equal(after.slot_busy, before.slot_busy);
        assert_int_equal(after.physical_bytes, before.physical_bytes);
        for (uint32_t i = 0; i < STRAYS; i++)
            job_free(&j, &strays[i]);
        finish(&j);
    }
}

/* Every iteration at an x of its own. */
static void elastic_drawn_lengths_settle(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(21);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        e.slope[i] /= 64; /* lengths are thousands */
    test_random random = {22};
    job_start(&j, "pleat", NULL, 0);
    gained later = {0};
    for (uint32_t i = 0; i < 120; i++) {
        /* Maps are weighed by time: 10 ms for each iteration. */
        assert_ok(pleat__host_clock_set(&j.vmm, 1000000000 + i * 10000000ull));
        gained g = run_x(&j, &e, 1280 + test_random_below(&random, 5120), 1);
        later.requests += i < 30 ? 0 : g.requests;
        later.planned += i < 30 ? 0 : g.planned;
        later.calls += i < 30 ? 0 : g.calls;
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_mostly_planned(later, 98);
    assert_true(later.calls <= 5 * 90);
    assert_true(stats.peak_live_bytes >= stats.peak_physical_bytes * 0.95);
    finish(&j);
}

/* The same in a memory that is large enough for handles of many chunks: layouts cut new ones where
 * views will need it, and views show those of earlier layouts as a whole. */
static void elastic_layouts_use_whole_handles(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(21);
    test_random random = test_random_begin(__func__, 23);
    pleat_va filler;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_alloc(j.runtime, 8192ull * JOB_PAGE, 0, &filler));
    for (uint32_t i = 0; i < 60; i++)
        run_x(&j, &e, 20 + i + test_random_below(&random, 40), 1);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.instances >= 5);
    assert_true(stats.instance_maps > 0);
    assert_mostly_planned((gained){stats.requests, stats.planned, 0}, 80);
    assert_true(stats.peak_live_bytes >= stats.peak_physical_bytes * 0.95);
    assert_ok(pleat_free(j.runtime, filler));
    finish(&j);
}

static void elastic_x_out_of_range_is_served_and_learned(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(31);
    job_start(&j, "pleat", NULL, 0);
    run_x(&j, &e, 2, 6);
    run_x(&j, &e, 3, 6);
    run_x(&j, &e, 40, 1);
    assert_true(pleat_stats_of(j.runtime).out_of_range >= 1);
    run_x(&j, &e, 40, 6);
    gained later = run_x(&j, &e, 40, 4);
    assert_mostly_planned(later, 98);
    /* Its range reaches there now. */
    run_x(&j, &e, 30, 2);
    assert_mostly_planned(run_x(&j, &e, 30, 4), 98);
    finish(&j);
}

/* From x = 6 on some sizes are other than two lower x said. */
static void elastic_broken_functions_are_fitted_anew(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(41);
    job_start(&j, "pleat", NULL, 0);
    run_x(&j, &e, 2, 6);
    run_x(&j, &e, 3, 6);
    job_shape odd = at_x(&e, 6);
    for (uint32_t i = 5; i < JOB_REQUESTS; i += 20)
        odd.bytes[i] += 70000 + 512 * i;
    run_shape(&j, &odd, 30, JOB_PLAIN, 0);
    assert_true(pleat_stats_of(j.runtime).refits >= 1);
    assert_mostly_planned(run_shape(&j, &odd, 10, JOB_PLAIN, 0), 90);
    assert_mostly_planned(run_x(&j, &e, 3, 10), 85);
    finish(&j);
}

/* A tenth of the sizes as workspaces are, of another algorithm for each x. */
static job_shape with_workspaces(const elastic_job *e, uint64_t x)
{
    job_shape shape = at_x(e, x);
    for (uint32_t i = 5; i < JOB_REQUESTS; i += 10)
        shape.bytes[i] = 512 * (i + x);
    return shape;
}

/* Two sizes of it were lines in x by chance, which say that a larger x takes twice as much. */
static void elastic_sizes_that_are_not_as_said_have_no_new_memory(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(41);
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t i = 5; i < JOB_REQUESTS; i += 10)
        e.slope[i] = 400000;
    run_x(&j, &e, 2, 6);
    run_x(&j, &e, 3, 6);
    job_shape shape = with_workspaces(&e, 3);
    run_shape(&j, &shape, 2, JOB_PLAIN, 0);
    pleat_stats before = pleat_stats_of(j.runtime);
    shape = with_workspaces(&e, 6);
    run_shape(&j, &shape, 2, JOB_PLAIN, 0);
    pleat_stats after = pleat_stats_of(j.runtime);
    assert_int_equal(after.peak_live_bytes, before.peak_live_bytes);
    assert_int_equal(after.physical_bytes, before.physical_bytes);
    /* Where they are as said after all that is no harm. */
    run_x(&j, &e, 6, 30);
    assert_settled(run_x(&j, &e, 6, 20));
    run_x(&j, &e, 3, 15);
    gained back = run_x(&j, &e, 3, 10);
    assert_mostly_planned(back, 85);
    assert_int_equal(back.calls, 0);
    finish(&j);
}

/* Memory was to be given back just then: for which size said the old functions, whose x may be
 * another request's bytes. */
static void elastic_what_is_fitted_anew_tidies_up_by_itself(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(41);
    job_start(&j, "pleat", NULL, 0);
    run_x(&j, &e, 2, 6);
    run_x(&j, &e, 3, 6);
    job_shape odd = at_x(&e, 6);
    for (uint32_t i = 5; i < JOB_REQUESTS; i += 20)
        odd.bytes[i] += 70000 + 512 * i;
    pleat__elastic *elastic = &((pleat__planned *)j.runtime->policy)->shapes.elastic;
    uint64_t refits = pleat_stats_of(j.runtime).refits;
    for (uint32_t i = 0; i < 30 && pleat_stats_of(j.runtime).refits == refits; i++) {
        elastic->tight = false;
        job_iterate(&j, &odd, JOB_PLAIN, 0);
        elastic->tight = true;
        elastic->tight_x = elastic->scale->to;
        elastic->tight_x.u.num *= 8;
        assert_ok(pleat_mark(j.runtime));
    }
    assert_true(pleat_stats_of(j.runtime).refits > refits);
    job_iterate(&j, &odd, JOB_PLAIN, 0);
    run_shape(&j, &odd, 3, JOB_PLAIN, 0);
    assert_non_null(elastic->now);
    assert_true(pleat__scale_in_range(elastic->scale, &elastic->now->x));
    finish(&j);
}

/* Where sizes are known better what was laid out goes on serving: it was made anew, in the same
 * memory, with all its views mapped again. */
static void elastic_layout_outlives_what_it_was_made_from(void **state)
{
    (void)state;
    for (uint64_t seed = 201; seed < 204; seed++) {
        job j;
        elastic_job e = elastic_make(seed);
        job_start(&j, "pleat", NULL, 0);
        run_x(&j, &e, 2, 6);
        run_x(&j, &e, 3, 6);
        /* Some workspaces have stopped growing. */
        job_shape odd = at_x(&e, 6);
        for (uint32_t i = 5; i < JOB_REQUESTS; i += 40)
            odd.bytes[i] -= odd.bytes[i] / 3;
        run_shape(&j, &odd, 2, JOB_PLAIN, 0);
        pleat_stats before = pleat_stats_of(j.runtime);
        assert_true(before.instances >= 1);
        run_shape(&j, &odd, 30, JOB_PLAIN, 0);
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_true(after.refits > before.refits);
        assert_int_equal(after.instances, before.instances);
        assert_int_equal(after.driver_calls, before.driver_calls);
        assert_mostly_planned(run_shape(&j, &odd, 10, JOB_PLAIN, 0), 98);
        assert_mostly_planned(run_x(&j, &e, 3, 4), 98);
        finish(&j);
    }
}

/* At one x the job leaves out a tenth of its requests, and a twentieth has other sizes. */
static gained run_less(job *j, const elastic_job *e, uint64_t x, uint32_t count)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    job_shape shape = at_x(e, x);
    for (uint32_t n = 0; n < count; n++) {
        assert_ok(pleat_mark(j->runtime));
        for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
            if (i % 10 != 7)
                job_request(j, &shape, i, i % 20 == 3 ? 70000 + 512 * i : 0);
            job_end_at(j, &shape, i);
        }
    }
    pleat_stats after = pleat_stats_of(j->runtime);
    return gained_between(&before, &after);
}

/* What is known of all other sizes was made anew for it. */
static void elastic_odd_size_is_learned_by_itself(void **state)
{
    (void)state;
    for (uint64_t seed = 191; seed < 194; seed++) {
        job j;
        elastic_job e = elastic_make(seed);
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            e.lives.last[i] = e.lives.last[i] < i ? JOB_REQUESTS - 1 : e.lives.last[i];
        job_start(&j, "pleat", NULL, 0);
        run_x(&j, &e, 3, 6);
        run_x(&j, &e, 4, 8);
        run_x(&j, &e, 5, 4);
        for (uint32_t visit = 0; visit < 3; visit++) {
            run_less(&j, &e, 2, visit == 0 ? 30 : 4);
            assert_mostly_planned(run_less(&j, &e, 2, 6), 95);
            run_x(&j, &e, 4, 2);
            assert_settled(run_x(&j, &e, 5, 4));
        }
        assert_int_equal(pleat_stats_of(j.runtime).refits, 0);
        finish(&j);
    }
}

/* Each iteration of the other was laid against all that are known, at its mark. A size that comes
 * then is learned all the same. */
static void elastic_shapes_that_alternate_are_seldom_compared(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(55);
    job_start(&j, "pleat", NULL, 0);
    const pleat__elastic *elastic = &((pleat__planned *)j.runtime->policy)->shapes.elastic;
    run_x(&j, &e, 3, 6);
    job_shape other = job_shape_make(56, 1);
    uint32_t compared = 0;
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t before = elastic->unlike;
        run_shape(&j, &other, 1, JOB_PLAIN, 0);
        run_x(&j, &e, 3, 1);
        compared += elastic->unlike != before;
    }
    assert_in_range(compared, 1, 10);
    run_x(&j, &e, 4, 2 + (1u << 6));
    assert_true(pleat_stats_of(j.runtime).instances >= 1);
    assert_mostly_planned(run_x(&j, &e, 5, 4), 90);
    finish(&j);
}

static void elastic_parameter_that_vanishes_is_no_harm(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(51);
    job_start(&j, "pleat", NULL, 0);
    run_x(&j, &e, 2, 6);
    run_x(&j, &e, 3, 6);
    job_shape other = job_shape_make(52, 1);
    run_shape(&j, &other, 12, JOB_PLAIN, 0);
    assert_mostly_planned(run_shape(&j, &other, 6, JOB_PLAIN, 0), 98);
    run_x(&j, &e, 5, 6);
    finish(&j);
}

/* Requests more, fewer, swapped and resized, at sizes that change; tensors that stay. */
static void elastic_disturbed_jobs_share_no_byte(void **state)
{
    (void)state;
    test_random seeds = test_random_begin("elastic_disturbed", 81);
    for (uint32_t run = 0; run < 3; run++) {
        uint64_t seed = test_random_next(&seeds) >> 1;
        job j;
        elastic_job e = elastic_make(seed);
        test_random random = {seed};
        job_tensor kept[8] = {{0}};
        job_start(&j, "pleat", NULL, 0);
        for (uint32_t i = 0; i < 60; i++) {
            job_shape shape = at_x(&e, 1 + test_random_below(&random, 12));
            job_disturbance what = (job_disturbance)test_random_below(&random, JOB_DISTURBANCES);
            job_tensor *t = &kept[test_random_below(&random, 8)];
            run_shape(&j, &shape, 1 + (uint32_t)test_random_below(&random, 4),
                      i % 3 == 0 ? what : JOB_PLAIN,
                      (uint32_t)test_random_below(&random, JOB_REQUESTS));
            job_free(&j, t);
            *t = job_alloc(&j, 1000 + test_random_below(&random, 900000), 0);
        }
        for (uint32_t k = 0; k < 8; k++)
            job_free(&j, &kept[k]);
        finish(&j);
    }
}

/* Under a budget that holds the smaller sizes only the larger one is refused, and nothing breaks.
 */
static void elastic_short_memory_is_an_answer(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(61);
    job_start(&j, "pleat", NULL, 0);
    run_x(&j, &e, 4, 6);
    run_x(&j, &e, 6, 8);
    uint64_t physical = pleat_stats_of(j.runtime).physical_bytes * 5 / 4;
    assert_ok(pleat_set_budget(j.runtime, physical));
    assert_mostly_planned(run_x(&j, &e, 4, 4), 98);
    assert_mostly_planned(run_x(&j, &e, 6, 4), 98);
    assert_ok(pleat_empty_cache(j.runtime));
    run_x(&j, &e, 2, 6);
    run_x(&j, &e, 6, 6);
    assert_true(pleat_stats_of(j.runtime).peak_physical_bytes <= physical);
    finish(&j);
}

/* What is said to fit runs where there is room for the change to it; without, one less does. */
static void elastic_largest_microbatch_follows_the_budget(void **state)
{
    (void)state;
    job j;
    uint64_t most;
    elastic_job e = elastic_make(91);
    job_start(&j, "pleat", NULL, 0);
    run_x(&j, &e, 4, 3);
    assert_int_equal(pleat_max_microbatch(j.runtime, 4, &most), PLEAT_E_NOT_FOUND);
    run_x(&j, &e, 4, 3);
    run_x(&j, &e, 6, 8);
    uint64_t physical = pleat_stats_of(j.runtime).physical_bytes;
    assert_int_equal(pleat_max_microbatch(j.runtime, 0, &most), PLEAT_E_INVALID);
    assert_ok(pleat_set_budget(j.runtime, physical * 3 / 2));
    assert_ok(pleat_max_microbatch(j.runtime, 6, &most));
    assert_true(most > 6 && most < 12);
    /* Counted in tokens, of which one is far below what was seen. */
    uint64_t tokens;
    assert_ok(pleat_max_microbatch(j.runtime, 6 * 1024, &tokens));
    assert_int_equal(tokens / 1024, most);
    assert_mostly_planned(run_x(&j, &e, most, 4), 90);
    assert_int_equal(pleat_stats_of(j.runtime).out_of_memory, 0);
    /* A smaller budget: the answer follows, and what fits goes on under it. */
    uint64_t before = most;
    run_x(&j, &e, 1, 1);
    assert_ok(pleat_set_budget(j.runtime, physical));
    assert_ok(pleat_max_microbatch(j.runtime, 1, &most));
    assert_true(most >= 5 && most < before);
    run_x(&j, &e, most - 1, 2);
    assert_mostly_planned(run_x(&j, &e, most - 1, 4), 90);
    assert_int_equal(pleat_stats_of(j.runtime).out_of_memory, 0);
    assert_true(pleat_stats_of(j.runtime).physical_bytes <= physical);
    finish(&j);
}

/* Asked for memory the program frees a tensor. */
static job_tensor spare;

static int free_spare(void *context, uint64_t bytes, pleat_stream stream)
{
    (void)bytes;
    (void)stream;
    job *j = context;
    if (spare.address == 0)
        return 0;
    job_free(j, &spare);
    return 1;
}

/* A request that is refused at first and comes again, inside the runtime, is one witness all the
 * same: it once spoke twice for an x that no other request had. */
static void elastic_request_that_comes_again_is_one_witness(void **state)
{
    (void)state;
    job j = {0};
    elastic_job e = elastic_make(95);
    pleat_runtime_options options = {
        .size = sizeof options, .memory_callback = free_spare, .memory_context = &j};
    job_host_timeless(&j.vmm);
    assert_ok(pleat_runtime_create(j.vmm, &options, &j.runtime));
    run_x(&j, &e, 4, 6);
    run_x(&j, &e, 6, 8);
    uint32_t first = 0;
    while (e.slope[first] < 4 * 40960)
        first++;
    uint64_t bytes = e.base[first] + e.slope[first] * 20;
    spare = job_alloc(&j, bytes, 0);
    pleat_stats before = pleat_stats_of(j.runtime);
    assert_true(before.instances >= 1);
    assert_ok(pleat_set_budget(j.runtime, before.live_bytes + 8 * JOB_PAGE));
    assert_ok(pleat_mark(j.runtime));
    job_tensor odd = job_alloc(&j, bytes, 0);
    assert_int_equal(spare.address, 0);
    pleat_stats after = pleat_stats_of(j.runtime);
    assert_int_equal(after.inferred_x, before.inferred_x);
    assert_int_equal(after.instances, before.instances);
    job_free(&j, &odd);
    finish(&j);
}

static void elastic_other_threads_allocate_meanwhile(void **state)
{
    (void)state;
    job j;
    pthread_t thread;
    elastic_job e = elastic_make(101);
    test_random random = {102};
    job_start(&j, "pleat", NULL, 0);
    neighbour n = {.runtime = j.runtime};
    run_x(&j, &e, 3, 6);
    run_x(&j, &e, 4, 8);
    assert_true(pleat_stats_of(j.runtime).instances >= 1);
    assert_int_equal(pthread_create(&thread, NULL, live_beside, &n), 0);
    for (uint32_t i = 0; i < 30; i++)
        run_x(&j, &e, 1 + test_random_below(&random, 12), 1 + i % 2);
    atomic_store(&n.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(n.errors, 0);
    finish(&j);
}

/* The host backend, with an eye on the events recorded on stream 0. */
static struct {
    pleat_vmm host;
    pleat_vmm_ops ops;
    uint64_t recorded;
} watched;

static pleat_result watch_record(void *self, pleat_event event, pleat_stream stream)
{
    watched.recorded += stream == 0;
    return watched.host.ops->event_record(self, event, stream);
}

static void elastic_layouts_end_without_a_word_to_a_stream_that_captures(void **state)
{
    (void)state;
    job j = {0};
    elastic_job e = elastic_make(17);
    pleat_runtime_options options = {.size = sizeof options};
    pleat_capture *graph;
    job_host_timeless(&watched.host);
    watched.ops = *watched.host.ops;
    watched.ops.event_record = watch_record;
    j.vmm = (pleat_vmm){&watched.ops, watched.host.self};
    assert_ok(pleat_runtime_create(j.vmm, &options, &j.runtime));
    for (uint64_t x = 4; x < 12; x++)
        run_x(&j, &e, x, 2);
    assert_true(pleat_stats_of(j.runtime).instance_maps > 0);
    job_drain(&j);
    assert_ok(pleat_capture_begin(j.runtime, 0, JOB_PAGE, &graph));
    watched.recorded = 0;
    for (int i = 0; i < 3; i++)
        assert_ok(pleat_empty_cache(j.runtime));
    assert_int_equal(watched.recorded, 0);
    assert_ok(pleat_capture_end(j.runtime, graph, NULL));
    assert_ok(pleat_empty_cache(j.runtime));
    assert_true(watched.recorded > 0);
    assert_ok(pleat_capture_free(j.runtime, graph));
    run_x(&j, &e, 5, 2);
    finish(&j);
}

#define KEPT 40u /* tensors that the next iteration frees, behind its first request */

/* An iteration of which nearly half varies; its first request may be left out. */
static void run_varying(job *j, job_tensor *kept, bool first, test_random *random)
{
    assert_ok(pleat_mark(j->runtime));
    for (uint32_t i = first ? 0 : 1; i < 360; i++) {
        uint64_t bytes =
            1000 + (i < 9 || i % 2 == 0 ? 1024 * (i % 7) : test_random_below(random, 90000));
        job_tensor t = job_alloc(j, bytes, 0);
        for (uint32_t k = 0; k < KEPT; k++)
            job_free(j, &kept[k]);
        job_free(j, &t);
    }
    for (uint32_t k = 0; k < KEPT; k++)
        kept[k] = job_alloc(j, 2000 + 1500 * (k % 11), 0);
}

/* An iteration was given ends by one that it then did not fit, kept them, and was given them once
 * more by the next: that read far outside a table. */
static void elastic_iterations_are_given_ends_by_those_they_fit(void **state)
{
    (void)state;
    test_random random = {75};
    job_tensor kept[KEPT] = {0};
    job j;
    job_start_with(&j, "pleat", NULL, 0, "draft:off");
    for (uint32_t n = 0; n < 10; n++)
        run_varying(&j, kept, n < 2, &random);
    for (uint32_t k = 0; k < KEPT; k++)
        job_free(&j, &kept[k]);
    finish(&j);
}

/* Another thread has the turn when a request says an x for certain: it comes again, and is one. */
static void elastic_request_that_begins_again_is_counted_once(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(41);
    job_start(&j, "pleat", NULL, 0);
    run_x(&j, &e, 4, 6);
    run_x(&j, &e, 6, 8);
    job_shape larger = at_x(&e, 20);
    pleat__gate *gate = &j.runtime->gate;
    pleat__shapes *shapes = &((pleat__planned *)j.runtime->policy)->shapes;
    pleat__elastic *elastic = &shapes->elastic;
    pleat__asked asked;
    pleat__follow *follow;
    pleat_result result = PLEAT_OK;
    uint32_t before = 0, tried = 0;
    pthread_mutex_lock(&gate->turn);
    pleat__gate_lock(gate);
    pleat__elastic_begin(elastic);
    for (uint32_t i = 0; result == PLEAT_OK; i++) {
        assert_true(elastic->asking);
        before = elastic->asked;
        tried = elastic->tried;
        result = pleat__elastic_ask(elastic, larger.bytes[i], 0, shapes->current, &asked, &follow);
        if (result == PLEAT_OK)
            pleat__elastic_allocated(elastic, larger.bytes[i], 0, (i + 1) * UINT64_C(4096));
    }
    assert_int_equal(result, PLEAT_E_NOT_READY);
    assert_true(elastic->asking);
    assert_int_equal(elastic->asked, before);
    assert_int_equal(elastic->tried, tried);
    pleat__gate_unlock(gate);
    pthread_mutex_unlock(&gate->turn);
    finish(&j);
}

/* The same of the first request of an iteration that nothing marks: it begins once. */
static void elastic_iteration_that_begins_again_is_counted_once(void **state)
{
    (void)state;
    job j;
    uint64_t seed = 43;
    elastic_job e = elastic_make(seed);
    while (e.slope[0] == 0)
        e = elastic_make(++seed);
    job_start(&j, "pleat", NULL, 0);
    run_x(&j, &e, 4, 6);
    run_x(&j, &e, 6, 8);
    pleat__gate *gate = &j.runtime->gate;
    pleat__shapes *shapes = &((pleat__planned *)j.runtime->policy)->shapes;
    pleat__elastic *elastic = &shapes->elastic;
    pthread_mutex_lock(&gate->turn);
    pleat__gate_lock(gate);
    shapes->learn.marks = false;
    elastic->tight = true; /* an instance is to be made in any case */
    elastic->tight_x = elastic->x;
    uint64_t clock = elastic->clock;
    for (uint32_t again = 0; again < 3; again++)
        assert_int_equal(pleat__shapes_ask(shapes, e.base[0] + 6 * e.slope[0], 0),
                         PLEAT_E_NOT_READY);
    assert_int_equal(elastic->clock, clock + 1);
    shapes->learn.marks = true;
    elastic->tight = false;
    pleat__gate_unlock(gate);
    pthread_mutex_unlock(&gate->turn);
    finish(&j);
}

/* Where another scale cannot take the place of the one that there is, nothing is of its sizes. */
static void elastic_scale_that_is_not_taken_changes_no_layout(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(37);
    job_start(&j, "pleat", NULL, 0);
    run_x(&j, &e, 4, 6);
    run_x(&j, &e, 6, 8);
    run_x(&j, &e, 12, 2);
    pleat__elastic *elastic = &((pleat__planned *)j.runtime->policy)->shapes.elastic;
    pleat__gate_lock_turn(&j.runtime->gate);
    assert_true(elastic->instance_count >= 2);
    pleat__instance *last = elastic->instances[elastic->instance_count - 1];
    const pleat__term *terms = elastic->scale->terms;
    pleat__term others[JOB_REQUESTS];
    pleat__scale other = *elastic->scale;
    uint32_t odd = 0;
    while (terms[odd].loose || terms[odd].rise == 0)
        odd++;
    memcpy(others, terms, sizeof others);
    others[odd].bytes -= 512;
    other.terms = others;
    uint64_t bytes = last->follow->items[odd].bytes;
    uint32_t retired = elastic->retired_count, count = elastic->instance_count;
    elastic->retired_count = PLEAT__RETIRED;
    elastic->instances[0]->stale = true; /* would have to go */
    assert_false(pleat__elastic_carry_over(elastic, &other));
    assert_int_equal(last->follow->items[odd].bytes, bytes);
    assert_int_equal(elastic->instance_count, count);
    elastic->retired_count = retired;
    elastic->instances[0]->stale = false;
    pleat__gate_unlock(&j.runtime->gate);
    finish(&j);
}

#define FEW_REQUESTS 70u

/* One request in three grows with x, but for the last few; the others are too small to say one. */
static uint64_t few_bytes(uint32_t i, uint64_t x)
{
    return i % 3 == 0 && i < 61 ? (1 + i) * 65536 * x : 16 * (i + 1);
}

/* `odd`: what grows is not there, but one such behind the last request. */
static void run_few(job *j, uint64_t x, bool odd)
{
    job_tensor tensors[FEW_REQUESTS + 1] = {{0}};
    assert_ok(pleat_mark(j->runtime));
    for (uint32_t i = 0; i < FEW_REQUESTS; i++) {
        bool grows = few_bytes(i, 1) != few_bytes(i, 2);
        tensors[i] = job_alloc(j, odd && grows ? 8 : few_bytes(i, x), 0);
    }
    if (odd)
        tensors[FEW_REQUESTS] = job_alloc(j, few_bytes(60, x), 0);
    for (uint32_t i = 0; i <= FEW_REQUESTS; i++)
        job_free(j, &tensors[i]);
}

/* One that says an x behind the iteration's last request: what was expected next then was an item
 * that there is none of. */
static void elastic_iteration_may_end_with_a_witness(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t i = 0; i < 12; i++)
        run_few(&j, i < 4 ? 4 : i < 8 ? 8 : 9, false);
    assert_true(pleat_stats_of(j.runtime).instances >= 1);
    run_few(&j, 3, true);
    run_few(&j, 9, false);
    finish(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elastic_third_size_needs_no_learning),
        cmocka_unit_test(elastic_one_iteration_at_a_second_size_is_enough),
        cmocka_unit_test(elastic_gradients_are_freed_behind_the_mark),
        cmocka_unit_test(elastic_sizes_that_return_cost_nothing),
        cmocka_unit_test(elastic_more_requests_at_larger_sizes_are_no_other_layer),
        cmocka_unit_test(elastic_small_strays_take_no_slot),
        cmocka_unit_test(elastic_drawn_lengths_settle),
        cmocka_unit_test(elastic_layouts_use_whole_handles),
        cmocka_unit_test(elastic_x_out_of_range_is_served_and_learned),
        cmocka_unit_test(elastic_broken_functions_are_fitted_anew),
        cmocka_unit_test(elastic_sizes_that_are_not_as_said_have_no_new_memory),
        cmocka_unit_test(elastic_what_is_fitted_anew_tidies_up_by_itself),
        cmocka_unit_test(elastic_layout_outlives_what_it_was_made_from),
        cmocka_unit_test(elastic_odd_size_is_learned_by_itself),
        cmocka_unit_test(elastic_shapes_that_alternate_are_seldom_compared),
        cmocka_unit_test(elastic_parameter_that_vanishes_is_no_harm),
        cmocka_unit_test(elastic_disturbed_jobs_share_no_byte),
        cmocka_unit_test(elastic_short_memory_is_an_answer),
        cmocka_unit_test(elastic_largest_microbatch_follows_the_budget),
        cmocka_unit_test(elastic_request_that_comes_again_is_one_witness),
        cmocka_unit_test(elastic_iteration_may_end_with_a_witness),
        cmocka_unit_test(elastic_scale_that_is_not_taken_changes_no_layout),
        cmocka_unit_test(elastic_request_that_begins_again_is_counted_once),
        cmocka_unit_test(elastic_iteration_that_begins_again_is_counted_once),
        cmocka_unit_test(elastic_other_threads_allocate_meanwhile),
        cmocka_unit_test(elastic_iterations_are_given_ends_by_those_they_fit),
        cmocka_unit_test(elastic_layouts_end_without_a_word_to_a_stream_that_captures),
    };
    return cmocka_run_group_tests_name("elastic", tests, NULL, NULL);
}
