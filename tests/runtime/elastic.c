/*
 * elastic.c: made-up jobs whose microbatch or length changes, on a real runtime over host memory,
 * with a canary: what was seen at two sizes is followed at others, and whatever does not hold costs
 * no byte of anybody's.
 */
#include "job.h"

#include <plan/elastic_plan.h>
#include <pthread.h>
#include <runtime/scale.h>
#include <stdatomic.h>
#include <vmm/host.h>

/* A job whose sizes are lines in x; its lives are the same at every x. */
typedef struct elastic_job {
    job_shape lives;
    uint64_t base[JOB_REQUESTS];
    uint64_t slope[JOB_REQUESTS];
} elastic_job;

static elastic_job elastic_make(uint64_t seed)
{
    elastic_job e = {.lives = job_shape_make(seed, 1)};
    test_random random = {seed + 1};
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        uint64_t kind = test_random_below(&random, 10);
        e.base[i] = kind < 3 ? 8 + test_random_below(&random, 40) * 1000 : kind < 5 ? 512 : 0;
        e.slope[i] = kind < 3   ? 0
                     : kind < 9 ? (1 + test_random_below(&random, 8)) * 4096
                                : (1 + test_random_below(&random, 4)) * 40960;
    }
    return e;
}

static job_shape at_x(const elastic_job *e, uint64_t x)
{
    job_shape shape = e->lives;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        shape.bytes[i] = e->base[i] + e->slope[i] * x;
    return shape;
}

typedef struct gained {
    uint64_t requests, planned, calls;
} gained;

static gained run_shape(job *j, const job_shape *shape, uint32_t count, job_disturbance what,
                        uint32_t at)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(pleat_mark(j->runtime));
        job_iterate(j, shape, what, at);
    }
    pleat_stats after = pleat_stats_of(j->runtime);
    return (gained){after.requests - before.requests, after.planned - before.planned,
                    after.driver_calls - before.driver_calls};
}

static gained run_x(job *j, const elastic_job *e, uint64_t x, uint32_t count)
{
    job_shape shape = at_x(e, x);
    return run_shape(j, &shape, count, JOB_PLAIN, 0);
}

static void assert_mostly_planned(gained g, uint32_t percent)
{
    if (g.planned * 100 < g.requests * percent)
        fail_msg("%llu of %llu planned", (unsigned long long)g.planned,
                 (unsigned long long)g.requests);
}

static void finish(job *j)
{
    job_drain(j);
    assert_int_equal(j->errors, 0);
    assert_int_equal(pleat_stats_of(j->runtime).live_bytes, 0);
    job_stop(j);
}

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

/* Every iteration at an x of its own. */
static void elastic_drawn_lengths_settle(void **state)
{
    (void)state;
    job j;
    elastic_job e = elastic_make(21);
    test_random random = {22};
    job_start(&j, "pleat", NULL, 0);
    gained later = {0};
    for (uint32_t i = 0; i < 300; i++) {
        /* Maps are weighed by time: 10 ms for each iteration. */
        assert_ok(pleat__host_clock_set(&j.vmm, 1000000000 + i * 10000000ull));
        gained g = run_x(&j, &e, 20 + test_random_below(&random, 80), 1);
        later.requests += i < 30 ? 0 : g.requests;
        later.planned += i < 30 ? 0 : g.planned;
        later.calls += i < 30 ? 0 : g.calls;
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_mostly_planned(later, 98);
    assert_true(later.calls <= 5 * 270);
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
    pleat_host_options host = {
        .size = sizeof host, .device_bytes = 1ull << 30, .granularity = JOB_PAGE};
    pleat_runtime_options options = {
        .size = sizeof options, .memory_callback = free_spare, .memory_context = &j};
    assert_ok(pleat_vmm_host(&host, &j.vmm));
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

typedef struct neighbour {
    pleat_runtime *runtime;
    atomic_bool stop;
    uint64_t errors, rounds;
} neighbour;

/* Another thread's tensors, on a stream of its own. */
static void *live_beside(void *opaque)
{
    neighbour *n = opaque;
    test_random random = {101};
    while (!atomic_load(&n->stop)) {
        uint64_t bytes = 4096 + test_random_below(&random, 300000), words = bytes / 8;
        pleat_va address;
        if (pleat_alloc(n->runtime, bytes, 7, &address) != PLEAT_OK) {
            n->errors++;
            break;
        }
        uint64_t *tensor = (uint64_t *)(uintptr_t)address;
        for (uint64_t w = 0; w < words; w += 64)
            tensor[w] = n->rounds + w;
        for (uint64_t w = 0; w < words; w += 64)
            n->errors += tensor[w] != n->rounds + w;
        n->errors += pleat_free(n->runtime, address) != PLEAT_OK;
        n->rounds++;
    }
    return NULL;
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
    pleat_host_options host = {
        .size = sizeof host, .device_bytes = 1ull << 30, .granularity = JOB_PAGE};
    pleat_runtime_options options = {.size = sizeof options};
    pleat_capture *graph;
    assert_ok(pleat_vmm_host(&host, &watched.host));
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

/* ---- with a plan file ---- */

#define WEIGHTS 4u

/* Tensors that stay: before the first iteration, and, as an optimizer's state is, behind it. */
typedef struct stays {
    job_tensor weights[WEIGHTS], state[WEIGHTS];
} stays;

static void load_weights(job *j, stays *s)
{
    for (uint32_t i = 0; i < WEIGHTS; i++)
        s->weights[i] = job_alloc(j, 300000 + 50000 * i, 0);
}

static void make_state(job *j, stays *s)
{
    for (uint32_t i = 0; i < WEIGHTS; i++)
        s->state[i] = job_alloc(j, 600000 + 100000 * i, 0);
}

static void stays_free(job *j, stays *s)
{
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        job_free(j, &s->weights[i]);
        job_free(j, &s->state[i]);
    }
}

/* What a run at x is. */
static pleat_trace *record_at(const elastic_job *e, uint64_t x)
{
    job j;
    stays s;
    pleat_trace *trace;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    load_weights(&j, &s);
    run_x(&j, e, x, 1);
    make_state(&j, &s);
    run_x(&j, e, x, 4);
    assert_ok(pleat_record_copy(j.runtime, &trace));
    stays_free(&j, &s);
    finish(&j);
    return trace;
}

/* Laid out for the larger. */
static pleat_plan *plan_of(const elastic_job *e, uint64_t small, uint64_t large)
{
    static const pleat_plan_options options = {
        .size = sizeof options, .chunk_bytes = JOB_PAGE, .seconds = 0.02};
    uint64_t names[2] = {small, large};
    pleat_trace *traces[2] = {record_at(e, small), record_at(e, large)};
    pleat_plan *plan;
    assert_ok(pleat__elastic_plan_make((const pleat_trace *const *)traces, 2,
                                       &(pleat__elastic_options){.plan = &options, .names = names},
                                       NULL, NULL, &plan));
    assert_non_null(plan->recipe);
    pleat_trace_free(traces[0]);
    pleat_trace_free(traces[1]);
    return plan;
}

/* A job begins with a plan for 3 and 4: at x, with its first iteration done. */
static void begin_planned(job *j, stays *s, pleat_plan **plan, const elastic_job *e, uint64_t x,
                          uint64_t budget)
{
    *plan = plan_of(e, 3, 4);
    job_start(j, "pleat", *plan, budget);
    load_weights(j, s);
    run_x(j, e, x, 1);
    make_state(j, s);
}

static void end_planned(job *j, stays *s, pleat_plan *plan)
{
    stays_free(j, s);
    finish(j);
    pleat_plan_free(plan);
}

static void elastic_plan_reaches_beyond_what_it_was_laid_out_for(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        job j;
        stays s;
        pleat_plan *plan;
        elastic_job e = elastic_make(110 + seed);
        begin_planned(&j, &s, &plan, &e, 4, 0);
        gained g = run_x(&j, &e, 4, 3);
        assert_mostly_planned(g, 99);
        assert_int_equal(g.calls, 0);
        assert_mostly_planned(run_x(&j, &e, 2, 3), 99);
        assert_int_equal(pleat_stats_of(j.runtime).instances, 0);
        /* Above what it was laid out for, in the recipe's range. */
        assert_mostly_planned(run_x(&j, &e, 9, 1), 70);
        run_x(&j, &e, 9, 2);
        g = run_x(&j, &e, 9, 4);
        assert_mostly_planned(g, 99);
        assert_int_equal(g.calls, 0);
        pleat_stats stats = pleat_stats_of(j.runtime);
        assert_int_equal(stats.instances, 1);
        assert_int_equal(stats.inferred_x, 9);
        assert_true(stats.peak_live_bytes >= stats.peak_physical_bytes * 0.94);
        /* And back. */
        static const uint64_t others[] = {4, 1, 9, 3};
        for (uint32_t k = 0; k < 4; k++) {
            run_x(&j, &e, others[k], 1);
            g = run_x(&j, &e, others[k], 3);
            assert_mostly_planned(g, 99);
            assert_int_equal(g.calls, 0);
        }
        stats = pleat_stats_of(j.runtime);
        assert_int_equal(stats.instances, 1);
        assert_int_equal(stats.divergences + stats.out_of_range + stats.refits, 0);
        end_planned(&j, &s, plan);
    }
}

/* What stays is not there yet when the first size is known. */
static void elastic_plan_begins_beyond_what_it_was_laid_out_for(void **state)
{
    (void)state;
    job j;
    stays s;
    pleat_plan *plan;
    elastic_job e = elastic_make(121);
    begin_planned(&j, &s, &plan, &e, 7, 0);
    assert_int_equal(pleat_stats_of(j.runtime).instances, 1);
    run_x(&j, &e, 7, 2);
    gained g = run_x(&j, &e, 7, 4);
    assert_mostly_planned(g, 99);
    assert_int_equal(g.calls, 0);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.peak_live_bytes >= stats.peak_physical_bytes * 0.96);
    end_planned(&j, &s, plan);
}

static void elastic_plan_is_taken_up_again_from_beyond_its_range(void **state)
{
    (void)state;
    job j;
    stays s;
    pleat_plan *plan;
    elastic_job e = elastic_make(131);
    begin_planned(&j, &s, &plan, &e, 4, 0);
    run_x(&j, &e, 4, 2);
    run_x(&j, &e, 30, 1);
    assert_int_equal(pleat_stats_of(j.runtime).out_of_range, 1);
    run_x(&j, &e, 30, 5);
    assert_mostly_planned(run_x(&j, &e, 30, 4), 98);
    /* Its range reaches there now: the recipe holds. */
    run_x(&j, &e, 25, 2);
    assert_mostly_planned(run_x(&j, &e, 25, 3), 98);
    run_x(&j, &e, 3, 2);
    gained g = run_x(&j, &e, 3, 4);
    assert_mostly_planned(g, 99);
    assert_int_equal(g.calls, 0);
    assert_int_equal(pleat_stats_of(j.runtime).refits, 0);
    end_planned(&j, &s, plan);
}

/* From x = 9 on some sizes are other than the recipe says. */
static void elastic_plan_that_breaks_is_fitted_anew(void **state)
{
    (void)state;
    job j;
    stays s;
    pleat_plan *plan;
    elastic_job e = elastic_make(141);
    begin_planned(&j, &s, &plan, &e, 4, 0);
    run_x(&j, &e, 4, 2);
    for (uint32_t round = 0; round < 2; round++)
        for (uint64_t x = 9; x < 11; x++) {
            job_shape odd = at_x(&e, x);
            for (uint32_t i = 5; i < JOB_REQUESTS; i += 20)
                odd.bytes[i] += 70000 + 512 * i;
            run_shape(&j, &odd, 20, JOB_PLAIN, 0);
            assert_mostly_planned(run_shape(&j, &odd, 10, JOB_PLAIN, 0), 90);
        }
    assert_true(pleat_stats_of(j.runtime).refits >= 1);
    end_planned(&j, &s, plan);
}

/* A limit below what the plan took at the size that it was laid out for. */
static void elastic_plan_gives_back_what_a_lower_budget_forbids(void **state)
{
    (void)state;
    job j;
    stays s;
    pleat_plan *plan;
    elastic_job e = elastic_make(151);
    begin_planned(&j, &s, &plan, &e, 4, 0);
    run_x(&j, &e, 4, 2);
    run_x(&j, &e, 1, 2);
    uint64_t before = pleat_stats_of(j.runtime).physical_bytes, budget = before * 5 / 8;
    assert_ok(pleat_set_budget(j.runtime, budget));
    run_x(&j, &e, 1, 8);
    assert_true(pleat_stats_of(j.runtime).physical_bytes <= budget);
    gained g = run_x(&j, &e, 1, 4);
    assert_mostly_planned(g, 99);
    assert_int_equal(g.calls, 0);
    assert_ok(pleat_set_budget(j.runtime, 0));
    run_x(&j, &e, 4, 20);
    g = run_x(&j, &e, 4, 4);
    assert_mostly_planned(g, 99);
    assert_int_equal(g.calls, 0);
    assert_int_equal(pleat_stats_of(j.runtime).out_of_memory, 0);
    end_planned(&j, &s, plan);
}

/* So many iterations at x, each of which takes so long by the backend's clock. */
static void run_slowly(job *j, const elastic_job *e, uint64_t x, uint32_t count, uint64_t ns,
                       uint64_t *clock)
{
    for (uint32_t i = 0; i < count; i++) {
        *clock += ns;
        assert_ok(pleat__host_clock_set(&j->vmm, *clock));
        run_x(j, e, x, 1);
    }
}

/* With a plan file, and as learned. */
static void elastic_memory_goes_back_after_a_long_time_at_smaller_sizes(void **state)
{
    (void)state;
    for (int planned = 0; planned < 2; planned++) {
        job j;
        stays s;
        pleat_plan *plan = NULL;
        elastic_job e = elastic_make(161);
        uint64_t clock = 1000000000;
        if (planned != 0) {
            begin_planned(&j, &s, &plan, &e, 4, 0);
        } else {
            job_start(&j, "pleat", NULL, 0);
            load_weights(&j, &s);
            make_state(&j, &s);
            run_x(&j, &e, 2, 6);
        }
        run_slowly(&j, &e, 4, 8, 1000000, &clock);
        uint64_t large = pleat_stats_of(j.runtime).physical_bytes;
        /* A second at each: too short. */
        run_slowly(&j, &e, 1, 10, 100000000, &clock);
        run_slowly(&j, &e, 4, 10, 100000000, &clock);
        assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, large);
        /* Minutes, with larger ones at times. */
        for (uint32_t i = 0; i < 60; i++)
            run_slowly(&j, &e, i % 3 == 0 ? 2 : 1, 1, 10000000000, &clock);
        uint64_t small = pleat_stats_of(j.runtime).physical_bytes;
        assert_true(small < large * 17 / 20);
        pleat_stats before = pleat_stats_of(j.runtime);
        run_slowly(&j, &e, 2, 20, 1000000000, &clock);
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_int_equal(after.driver_calls, before.driver_calls);
        assert_true(after.planned - before.planned >= 20ull * JOB_REQUESTS * 98 / 100);
        /* The largest again. */
        run_slowly(&j, &e, 4, 2, 1000000, &clock);
        gained g = run_x(&j, &e, 4, 4);
        assert_mostly_planned(g, 98);
        assert_int_equal(g.calls, 0);
        assert_true(pleat_stats_of(j.runtime).physical_bytes <= large + large / 32);
        end_planned(&j, &s, plan);
    }
}

/* ---- the parts ---- */

static pleat__profile *profile_at(pleat__arena *arena, const elastic_job *e, uint64_t x)
{
    pleat__profile *profile = pleat__arena_calloc(arena, 1, sizeof *profile);
    assert_non_null(profile);
    profile->arena = arena;
    profile->parts = pleat__arena_calloc(arena, JOB_REQUESTS, sizeof *profile->parts);
    assert_non_null(profile->parts);
    profile->count = JOB_REQUESTS;
    profile->horizon = 2 * JOB_REQUESTS;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        profile->parts[i] = (pleat__part){
            .bytes = e->base[i] + e->slope[i] * x, .begin = 2 * i, .end = 2 * e->lives.last[i] + 1};
    return profile;
}

static void elastic_scale_is_found_from_sizes(void **state)
{
    (void)state;
    pleat__arena *arena;
    elastic_job e = elastic_make(71);
    pleat__scale *scale;
    assert_ok(pleat__arena_create(&arena));
    pleat__profile *two[2] = {profile_at(arena, &e, 3), profile_at(arena, &e, 5)};
    pleat__profile *equal[2] = {two[0], profile_at(arena, &e, 3)};
    assert_int_equal(pleat__scale_make(arena, equal, 2, &scale), PLEAT__SCALE_SAME);
    assert_int_equal(pleat__scale_make(arena, two, 2, &scale), PLEAT__SCALE_FITTED);
    assert_int_equal(scale->loose, 0);
    assert_int_equal(scale->highest * 3, scale->lowest * 5);
    pleat__x x7 = {{scale->lowest / 3 * 7, 1}, {1, 1}}, far = {{x7.u.num * 16, 1}, {1, 1}};
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        uint64_t bytes = e.base[i] + e.slope[i] * 7;
        pleat__x x;
        assert_int_equal(pleat__scale_bytes(scale, &scale->terms[i], &x7), bytes);
        assert_int_equal(pleat__scale_infer(scale, &scale->terms[i], bytes, &x), e.slope[i] != 0);
        if (e.slope[i] != 0)
            assert_true(pleat__x_equal(&x, &x7));
    }
    assert_true(pleat__scale_in_range(scale, &x7));
    assert_false(pleat__scale_in_range(scale, &far));
    pleat__scale_free(scale);
    pleat__arena_destroy(arena);
}

/* Once a line through two iterations' sizes was believed although as many fell as rose. */
static void elastic_sizes_that_go_their_own_ways_are_no_scale(void **state)
{
    (void)state;
    pleat__arena *arena;
    elastic_job e = elastic_make(72);
    pleat__scale *scale;
    test_random random = test_random_begin("ways", 0x3a7);
    assert_ok(pleat__arena_create(&arena));
    pleat__profile *two[2] = {profile_at(arena, &e, 3), profile_at(arena, &e, 3)};
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        if (e.slope[i] != 0)
            two[1]->parts[i].bytes =
                two[1]->parts[i].bytes * (4 + test_random_below(&random, 9)) / 8;
    assert_int_equal(pleat__scale_make(arena, two, 2, &scale), PLEAT__SCALE_NONE);
    assert_null(scale);
    pleat__arena_destroy(arena);
}

/* An iteration of two requests, one of which the next iteration frees. */
static void elastic_lives_cross_iterations(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__lives lives;
    pleat__profile *profile;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__lives_init(&lives, arena));
    pleat__lives_alloc(&lives, 7, 0, 4096); /* before the first mark: nobody's iteration */
    pleat__lives_mark(&lives, &profile);
    for (uint32_t n = 0; n < 3; n++) {
        pleat__profile_free(profile);
        pleat__lives_alloc(&lives, 100 + n, 0, 8192);
        if (n > 0)
            pleat__lives_free(&lives, 512 * (99 + n));
        pleat__lives_alloc(&lives, 200 + n, 0, 512 * (100 + n));
        pleat__lives_free(&lives, 8192);
        pleat__lives_mark(&lives, &profile);
        /* The first has none before it that would say when the second request is freed. */
        assert_true(n == 0 ? profile == NULL : profile != NULL);
    }
    assert_non_null(profile);
    assert_int_equal(profile->count, 2);
    assert_int_equal(profile->horizon, 4);
    assert_int_equal(profile->parts[0].bytes, 102);
    assert_int_equal(profile->parts[0].begin, 0);
    assert_int_equal(profile->parts[0].end, 3);
    assert_int_equal(profile->parts[1].begin, 2);
    assert_int_equal(profile->parts[1].end, 1);
    assert_true(pleat__lives_crosses(&lives, 512 * 102));
    assert_false(pleat__lives_crosses(&lives, 4096));
    pleat__profile_free(profile);
    pleat__lives_release(&lives);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elastic_scale_is_found_from_sizes),
        cmocka_unit_test(elastic_sizes_that_go_their_own_ways_are_no_scale),
        cmocka_unit_test(elastic_lives_cross_iterations),
        cmocka_unit_test(elastic_third_size_needs_no_learning),
        cmocka_unit_test(elastic_sizes_that_return_cost_nothing),
        cmocka_unit_test(elastic_drawn_lengths_settle),
        cmocka_unit_test(elastic_layouts_use_whole_handles),
        cmocka_unit_test(elastic_x_out_of_range_is_served_and_learned),
        cmocka_unit_test(elastic_broken_functions_are_fitted_anew),
        cmocka_unit_test(elastic_parameter_that_vanishes_is_no_harm),
        cmocka_unit_test(elastic_disturbed_jobs_share_no_byte),
        cmocka_unit_test(elastic_short_memory_is_an_answer),
        cmocka_unit_test(elastic_other_threads_allocate_meanwhile),
        cmocka_unit_test(elastic_layouts_end_without_a_word_to_a_stream_that_captures),
        cmocka_unit_test(elastic_largest_microbatch_follows_the_budget),
        cmocka_unit_test(elastic_request_that_comes_again_is_one_witness),
        cmocka_unit_test(elastic_plan_reaches_beyond_what_it_was_laid_out_for),
        cmocka_unit_test(elastic_plan_begins_beyond_what_it_was_laid_out_for),
        cmocka_unit_test(elastic_plan_is_taken_up_again_from_beyond_its_range),
        cmocka_unit_test(elastic_plan_that_breaks_is_fitted_anew),
        cmocka_unit_test(elastic_plan_gives_back_what_a_lower_budget_forbids),
        cmocka_unit_test(elastic_memory_goes_back_after_a_long_time_at_smaller_sizes),
    };
    return cmocka_run_group_tests_name("elastic", tests, NULL, NULL);
}
