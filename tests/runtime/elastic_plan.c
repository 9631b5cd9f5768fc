/*
 * elastic_plan.c: the jobs of elastic_job.h with a plan file's recipe, at sizes in its range,
 * beyond it, and not as it says; and the memory that smaller sizes give back.
 */
#include "elastic_job.h"

#include <internal/arena.h>
#include <plan/sizes/planner.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/policy/pleat_internal.h>
#include <vmm/host.h>

#define WEIGHTS 4u
/* More than the requests of an iteration that are asked for its size. */
#define BIASES (PLEAT__LOOKED_AT + 24u)

/* Tensors that stay: before the first iteration, and, as an optimizer's state is, behind it. */
typedef struct stays {
    job_tensor weights[WEIGHTS], state[WEIGHTS];
    job_tensor biases[BIASES];
    uint32_t bias_count;
} stays;

static void load_weights(job *j, stays *s)
{
    for (uint32_t i = 0; i < WEIGHTS; i++)
        s->weights[i] = job_alloc(j, 300000 + 50000 * i, 0);
    for (uint32_t i = 0; i < s->bias_count; i++)
        s->biases[i] = job_alloc(j, 256 + 256 * (i % 2), 0);
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
    for (uint32_t i = 0; i < s->bias_count; i++)
        job_free(j, &s->biases[i]);
}

/* The first iteration: what stays is made in the middle of it. `early`: its end is marked before
 * the last two requests. */
static gained run_first(job *j, stays *s, const elastic_job *e, uint64_t x, bool early)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    job_shape shape = at_x(e, x);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        if (i == JOB_REQUESTS / 2)
            make_state(j, s);
        if (early && i == JOB_REQUESTS - 2)
            assert_ok(pleat_mark(j->runtime));
        job_request(j, &shape, i, 0);
        job_end_at(j, &shape, i);
    }
    pleat_stats after = pleat_stats_of(j->runtime);
    return gained_between(&before, &after);
}

/* What a run at x is; `within`: what stays is made within its first iteration, not behind it. */
static pleat_trace *record_at(const elastic_job *e, uint64_t x, uint32_t biases, bool within)
{
    job j;
    stays s = {.bias_count = biases};
    pleat_trace *trace;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    load_weights(&j, &s);
    if (within) {
        run_first(&j, &s, e, x, false);
    } else {
        run_x(&j, e, x, 1);
        make_state(&j, &s);
    }
    run_x(&j, e, x, 4);
    assert_ok(pleat_record_copy(j.runtime, &trace));
    stays_free(&j, &s);
    finish(&j);
    return trace;
}

/* Of two runs; laid out for the larger. */
static pleat_plan *plan_from(pleat_trace *traces[2], uint64_t small, uint64_t large)
{
    static const pleat_plan_options options = {
        .size = sizeof options, .chunk_bytes = JOB_PAGE, .seconds = 0.02};
    uint64_t names[2] = {small, large};
    pleat_plan *plan;
    assert_ok(pleat__elastic_plan_make((const pleat_trace *const *)traces, 2,
                                       &(pleat__elastic_options){.plan = &options, .names = names},
                                       NULL, NULL, &plan));
    assert_non_null(plan->recipe);
    pleat_trace_free(traces[0]);
    pleat_trace_free(traces[1]);
    return plan;
}

static pleat_plan *plan_with(const elastic_job *e, uint64_t small, uint64_t large, uint32_t biases)
{
    pleat_trace *traces[2] = {record_at(e, small, biases, false),
                              record_at(e, large, biases, false)};
    return plan_from(traces, small, large);
}

static pleat_plan *plan_of(const elastic_job *e, uint64_t small, uint64_t large)
{
    return plan_with(e, small, large, 0);
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
        stays s = {0};
        pleat_plan *plan;
        elastic_job e = elastic_make(110 + seed);
        begin_planned(&j, &s, &plan, &e, 4, 0);
        gained g = run_x(&j, &e, 4, 3);
        assert_settled(g);
        assert_mostly_planned(run_x(&j, &e, 2, 3), 99);
        assert_int_equal(pleat_stats_of(j.runtime).instances, 0);
        /* Above what it was laid out for, in the recipe's range. */
        assert_mostly_planned(run_x(&j, &e, 9, 1), 70);
        run_x(&j, &e, 9, 2);
        g = run_x(&j, &e, 9, 4);
        assert_settled(g);
        pleat_stats stats = pleat_stats_of(j.runtime);
        assert_int_equal(stats.instances, 1);
        assert_int_equal(stats.inferred_x, 9);
        assert_true(stats.peak_live_bytes >= stats.peak_physical_bytes * 0.94);
        /* And back. */
        static const uint64_t others[] = {4, 1, 9, 3};
        for (uint32_t k = 0; k < 4; k++) {
            run_x(&j, &e, others[k], 1);
            g = run_x(&j, &e, others[k], 3);
            assert_settled(g);
        }
        stats = pleat_stats_of(j.runtime);
        assert_int_equal(stats.instances, 1);
        assert_int_equal(stats.divergences + stats.out_of_range + stats.refits, 0);
        end_planned(&j, &s, plan);
    }
}

/* An iteration in which every tenth request, a copy, is not made: what would be copied lives as
 * long as that. */
static gained iterate_without_copies(job *j, const elastic_job *e, uint64_t x)
{
    enum { COPY = 5, EVERY = 10 };
    pleat_stats before = pleat_stats_of(j->runtime);
    job_shape shape = at_x(e, x);
    for (uint32_t i = COPY; i < JOB_REQUESTS; i += EVERY)
        shape.last[i - 1] = shape.last[i];
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        if (i % EVERY != COPY)
            job_request(j, &shape, i, 0);
        job_end_at(j, &shape, i);
    }
    pleat_stats after = pleat_stats_of(j->runtime);
    return gained_between(&before, &after);
}

/* What finds its slot taken in the beginning does so in every iteration: its place there was
 * forgotten, and lay in what the optimizer's state was to have. */
static void elastic_plan_places_what_its_beginning_displaced_once(void **state)
{
    (void)state;
    for (uint64_t seed = 231; seed < 237; seed++) {
        job j;
        stays s = {0};
        elastic_job e = elastic_make(seed);
        for (uint32_t i = 0; i < JOB_REQUESTS; i++) /* nothing crosses that is not there at first */
            e.lives.last[i] = e.lives.last[i] < i ? JOB_REQUESTS - 1 : e.lives.last[i];
        pleat_plan *plan = plan_of(&e, 3, 4);
        job_start(&j, "pleat", plan, 0);
        load_weights(&j, &s);
        iterate_without_copies(&j, &e, 4);
        assert_true(pleat_stats_of(j.runtime).slot_busy > 0);
        make_state(&j, &s);
        for (uint32_t n = 0; n < 4; n++) {
            assert_ok(pleat_mark(j.runtime));
            assert_settled(iterate_without_copies(&j, &e, 4));
        }
        end_planned(&j, &s, plan);
    }
}

/* The recording's iterations began two requests later than the job's marks say. */
static gained run_marked_early(job *j, const elastic_job *e, uint64_t x, uint32_t count)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    job_shape shape = at_x(e, x);
    for (uint32_t n = 0; n < count; n++)
        for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
            if (i == JOB_REQUESTS - 2)
                assert_ok(pleat_mark(j->runtime));
            job_request(j, &shape, i, 0);
            job_end_at(j, &shape, i);
        }
    pleat_stats after = pleat_stats_of(j->runtime);
    return gained_between(&before, &after);
}

static void elastic_plan_is_followed_by_marks_at_another_place(void **state)
{
    (void)state;
    static const uint64_t xs[] = {4, 3, 2, 1, 4, 2};
    for (uint64_t seed = 211; seed < 214; seed++) {
        job j;
        stays s = {0};
        pleat_plan *plan;
        elastic_job e = elastic_make(seed);
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            e.lives.last[i] = e.lives.last[i] < i ? JOB_REQUESTS - 1 : e.lives.last[i];
        begin_planned(&j, &s, &plan, &e, 4, 0);
        run_marked_early(&j, &e, 4, 1);
        for (uint32_t k = 0; k < 6; k++) {
            run_marked_early(&j, &e, xs[k], 1);
            gained g = run_marked_early(&j, &e, xs[k], 4);
            assert_settled(g);
        }
        pleat_stats stats = pleat_stats_of(j.runtime);
        assert_int_equal(stats.refits + stats.divergences + stats.instances, 0);
        end_planned(&j, &s, plan);
    }
}

/* The first mark is early too, and behind it comes another size: what is left of the first
 * iteration speaks of that one's. */
static void elastic_plan_follows_another_size_behind_an_early_first_mark(void **state)
{
    (void)state;
    for (uint64_t seed = 241; seed < 247; seed++) {
        job j;
        stays s = {0};
        elastic_job e = elastic_make(seed);
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            e.lives.last[i] = e.lives.last[i] < i ? JOB_REQUESTS - 1 : e.lives.last[i];
        pleat_trace *traces[2] = {record_at(&e, 3, 0, true), record_at(&e, 4, 0, true)};
        pleat_plan *plan = plan_from(traces, 3, 4);
        job_start(&j, "pleat", plan, 0);
        load_weights(&j, &s);
        assert_mostly_planned(run_first(&j, &s, &e, 2, true), 97);
        for (uint64_t x = 3; x < 5; x++)
            assert_mostly_planned(run_marked_early(&j, &e, x, 1), 97);
        pleat_stats stats = pleat_stats_of(j.runtime);
        assert_int_equal(stats.divergences + stats.broken + stats.instances, 0);
        end_planned(&j, &s, plan);
    }
}

/* The first iteration's size is found behind the weights where no mark says that it begins: else it
 * would be followed at the plan's own size, and what is made in it to stay would lie in the way. */
static void elastic_plan_finds_the_size_of_an_iteration_without_a_mark(void **state)
{
    (void)state;
    for (uint64_t seed = 221; seed < 224; seed++) {
        job j;
        stays s = {.bias_count = BIASES};
        elastic_job e = elastic_make(seed);
        job_shape small = at_x(&e, 2);
        pleat_plan *plan = plan_with(&e, 3, 4, BIASES);
        job_start(&j, "pleat", plan, 0);
        load_weights(&j, &s);
        pleat_stats before = pleat_stats_of(j.runtime);
        job_iterate(&j, &small, JOB_PLAIN, 0);
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_int_equal(after.inferred_x, 2);
        assert_mostly_planned(
            (gained){after.requests - before.requests, after.planned - before.planned, 0}, 97);
        make_state(&j, &s);
        assert_settled(run_x(&j, &e, 4, 3));
        after = pleat_stats_of(j.runtime);
        assert_int_equal(after.divergences + after.broken + after.instances, 0);
        end_planned(&j, &s, plan);
    }
}

/* A tensor that the plan does not know, ahead of the weights or among them, had all of those that
 * come behind it taken for requests of the iteration. */
static void elastic_plan_finds_the_size_behind_strays_of_its_beginning(void **state)
{
    (void)state;
    for (uint64_t seed = 221; seed < 227; seed++) {
        job j;
        stays s = {.bias_count = BIASES / 2}, more = {.bias_count = BIASES / 2};
        elastic_job e = elastic_make(seed);
        job_shape small = at_x(&e, 2);
        pleat_plan *plan = plan_with(&e, 3, 4, BIASES);
        job_start(&j, "pleat", plan, 0);
        job_tensor strays[2] = {job_alloc(&j, 70000, 0)};
        load_weights(&j, &s);
        strays[1] = job_alloc(&j, 130, 0);
        for (uint32_t i = 0; i < more.bias_count; i++)
            more.biases[i] = job_alloc(&j, 256 + 256 * (i % 2), 0);
        pleat_stats before = pleat_stats_of(j.runtime);
        job_iterate(&j, &small, JOB_PLAIN, 0);
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_int_equal(after.inferred_x, 2);
        /* They lie in what some slots are to have. */
        assert_mostly_planned(
            (gained){after.requests - before.requests, after.planned - before.planned, 0}, 80);
        job_free(&j, &strays[0]);
        job_free(&j, &strays[1]);
        stays_free(&j, &more);
        end_planned(&j, &s, plan);
    }
}

/* A batch and a length that change apart. Of what grows most does so with both. */
static job_shape at_two(const elastic_job *e, uint64_t length, uint64_t batch)
{
    job_shape shape = e->lives;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        uint64_t slope = e->slope[i] / 8;
        shape.bytes[i] = slope == 0     ? 512 + e->base[i]
                         : i % 12 == 10 ? slope * length
                         : i % 12 == 11 ? 512 * length * length * batch
                                        : slope * length * batch;
    }
    return shape;
}

static pleat_plan *plan_of_two(const elastic_job *e)
{
    static const uint64_t lengths[] = {7, 12, 9, 16, 5, 11}, batches[] = {4, 2, 8, 3, 6, 5};
    static const pleat_plan_options options = {
        .size = sizeof options, .chunk_bytes = JOB_PAGE, .seconds = 0.02};
    job j;
    stays s = {0};
    pleat_trace *trace;
    pleat_plan *plan;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    load_weights(&j, &s);
    for (uint32_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        job_shape shape = at_two(e, lengths[k], batches[k]);
        run_shape(&j, &shape, 1, JOB_PLAIN, 0);
        if (k == 0)
            make_state(&j, &s);
    }
    assert_ok(pleat_mark(j.runtime));
    assert_ok(pleat_record_copy(j.runtime, &trace));
    stays_free(&j, &s);
    finish(&j);
    const pleat_trace *const one = trace;
    assert_ok(pleat__elastic_plan_make(&one, 1, &(pleat__elastic_options){.plan = &options}, NULL,
                                       NULL, &plan));
    assert_non_null(plan->recipe);
    assert_int_equal(plan->recipe->parameters, 2);
    pleat_trace_free(trace);
    return plan;
}

/* Two numbers are known after several requests, which then stay where they are: laid out as if they
 * were not there, the iteration found their memory taken. */
static void elastic_plan_keeps_what_was_asked_for_before_two_numbers_were_known(void **state)
{
    (void)state;
    static const uint64_t pairs[][2] = {{12, 3}, {16, 8}, {9, 9}, {20, 10}, {5, 2}, {20, 10}};
    for (uint64_t seed = 231; seed < 234; seed++) {
        job j;
        stays s = {0};
        elastic_job e = elastic_make(seed);
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            e.lives.last[i] = e.lives.last[i] < i ? JOB_REQUESTS - 1 : e.lives.last[i];
        pleat_plan *plan = plan_of_two(&e);
        job_shape shape = at_two(&e, 7, 4);
        job_start(&j, "pleat", plan, 0);
        load_weights(&j, &s);
        run_shape(&j, &shape, 1, JOB_PLAIN, 0);
        make_state(&j, &s);
        for (uint32_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
            shape = at_two(&e, pairs[k][0], pairs[k][1]);
            assert_mostly_planned(run_shape(&j, &shape, 1, JOB_PLAIN, 0), 85);
            run_shape(&j, &shape, 1, JOB_PLAIN, 0);
            assert_settled(run_shape(&j, &shape, 2, JOB_PLAIN, 0));
        }
        pleat_stats stats = pleat_stats_of(j.runtime);
        assert_int_equal(stats.divergences + stats.refits, 0);
        assert_true(stats.peak_live_bytes >= stats.peak_physical_bytes * 0.98);
        end_planned(&j, &s, plan);
    }
}

/* What stays is not there yet when the first size is known. */
static void elastic_plan_begins_beyond_what_it_was_laid_out_for(void **state)
{
    (void)state;
    job j;
    stays s = {0};
    pleat_plan *plan;
    elastic_job e = elastic_make(121);
    begin_planned(&j, &s, &plan, &e, 7, 0);
    assert_int_equal(pleat_stats_of(j.runtime).instances, 1);
    run_x(&j, &e, 7, 2);
    assert_settled(run_x(&j, &e, 7, 4));
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.peak_live_bytes >= stats.peak_physical_bytes * 0.96);
    end_planned(&j, &s, plan);
}

static void elastic_plan_is_taken_up_again_from_beyond_its_range(void **state)
{
    (void)state;
    job j;
    stays s = {0};
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
    assert_settled(run_x(&j, &e, 3, 4));
    assert_int_equal(pleat_stats_of(j.runtime).refits, 0);
    end_planned(&j, &s, plan);
}

/* With a plan for all sizes of another job the job is learned, sizes and all. */
static void elastic_plan_of_another_job_is_left(void **state)
{
    (void)state;
    job j;
    stays s = {0};
    elastic_job e = elastic_make(131), other = elastic_make(132);
    pleat_plan *plan = plan_of(&other, 20, 24);
    job_start(&j, "pleat", plan, 0);
    uint64_t begun = pleat_stats_of(j.runtime).physical_bytes;
    load_weights(&j, &s);
    run_x(&j, &e, 3, 1);
    make_state(&j, &s);
    run_x(&j, &e, 3, 8);
    assert_true(pleat_stats_of(j.runtime).physical_bytes < begun / 2);
    assert_mostly_planned(run_x(&j, &e, 3, 4), 98);
    run_x(&j, &e, 4, 8);
    assert_true(pleat_stats_of(j.runtime).instances >= 1);
    run_x(&j, &e, 2, 3);
    assert_mostly_planned(run_x(&j, &e, 2, 4), 98);
    stays_free(&j, &s);
    finish(&j);
    pleat_plan_free(plan);
}

/* From x = 9 on some sizes are other than the recipe says. */
/* Whose own places went when memory was short, while it was followed at another size. */
static void elastic_plan_that_cannot_be_left_is_followed_on(void **state)
{
    (void)state;
    job j;
    stays s = {0};
    pleat_plan *plan;
    elastic_job e = elastic_make(211);
    begin_planned(&j, &s, &plan, &e, 4, 0);
    run_x(&j, &e, 6, 4);
    pleat__shapes *shapes = &((pleat__planned *)j.runtime->policy)->shapes;
    const pleat__elastic *elastic = &shapes->elastic;
    pleat__gate_lock_turn(&j.runtime->gate);
    assert_true(pleat__elastic_follows(elastic, shapes->current));
    assert_true(pleat__elastic_drop(&shapes->elastic));
    assert_int_equal(elastic->instance_count, 1);
    assert_int_equal(elastic->retired_count, 0);
    pleat__arena_fail(1, true);
    assert_false(pleat__shapes_leave(shapes, plan));
    assert_true(pleat__arena_failed() > 0);
    pleat__arena_fail(0, false);
    assert_true(pleat__elastic_follows(elastic, shapes->current));
    assert_true(pleat__shapes_leave(shapes, plan));
    assert_null(shapes->current);
    pleat__gate_unlock(&j.runtime->gate);
    run_x(&j, &e, 6, 4);
    end_planned(&j, &s, plan);
}

static void elastic_plan_that_breaks_is_fitted_anew(void **state)
{
    (void)state;
    job j;
    stays s = {0};
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
    stays s = {0};
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
    assert_settled(g);
    assert_ok(pleat_set_budget(j.runtime, 0));
    run_x(&j, &e, 4, 20);
    g = run_x(&j, &e, 4, 4);
    assert_settled(g);
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
        stays s = {0};
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
        gained g = gained_between(&before, &after);
        assert_mostly_planned(g, 98);
        assert_int_equal(g.calls, 0);
        /* The largest again. */
        run_slowly(&j, &e, 4, 2, 1000000, &clock);
        g = run_x(&j, &e, 4, 4);
        assert_mostly_planned(g, 98);
        assert_int_equal(g.calls, 0);
        assert_true(pleat_stats_of(j.runtime).physical_bytes <= large + large / 32);
        end_planned(&j, &s, plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elastic_plan_reaches_beyond_what_it_was_laid_out_for),
        cmocka_unit_test(elastic_plan_places_what_its_beginning_displaced_once),
        cmocka_unit_test(elastic_plan_is_followed_by_marks_at_another_place),
        cmocka_unit_test(elastic_plan_follows_another_size_behind_an_early_first_mark),
        cmocka_unit_test(elastic_plan_finds_the_size_of_an_iteration_without_a_mark),
        cmocka_unit_test(elastic_plan_finds_the_size_behind_strays_of_its_beginning),
        cmocka_unit_test(elastic_plan_keeps_what_was_asked_for_before_two_numbers_were_known),
        cmocka_unit_test(elastic_plan_begins_beyond_what_it_was_laid_out_for),
        cmocka_unit_test(elastic_plan_is_taken_up_again_from_beyond_its_range),
        cmocka_unit_test(elastic_plan_of_another_job_is_left),
        cmocka_unit_test(elastic_plan_that_cannot_be_left_is_followed_on),
        cmocka_unit_test(elastic_plan_that_breaks_is_fitted_anew),
        cmocka_unit_test(elastic_plan_gives_back_what_a_lower_budget_forbids),
        cmocka_unit_test(elastic_memory_goes_back_after_a_long_time_at_smaller_sizes),
    };
    return cmocka_run_group_tests_name("elastic_plan", tests, NULL, NULL);
}
