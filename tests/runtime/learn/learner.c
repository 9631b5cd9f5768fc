/*
 * learner.c: the states of a job on a real runtime over host memory, with a canary: a schedule is
 * adopted, suspended, resumed and dropped, and a plan file of another job is left.
 */
#include "failing.h"
#include "job.h"

#include <plan/base/plan.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/policy/pleat_internal.h>

static pleat__learner *learner_of(const job *j)
{
    return &((pleat__pleat *)j->runtime->policy)->learner;
}

static void assert_state(const job *j, pleat__state state)
{
    assert_string_equal(pleat__state_name(learner_of(j)->states.now), pleat__state_name(state));
}

static uint64_t caused(const job *j, pleat__cause cause)
{
    return learner_of(j)->states.caused[cause];
}

static void run(job *j, const job_shape *shape, uint32_t iterations)
{
    for (uint32_t i = 0; i < iterations; i++) {
        assert_ok(pleat_mark(j->runtime));
        job_iterate(j, shape, JOB_PLAIN, 0);
    }
}

static void run_unmarked(job *j, const job_shape *shape, uint32_t iterations)
{
    for (uint32_t i = 0; i < iterations; i++)
        job_iterate(j, shape, JOB_PLAIN, 0);
}

static void assert_planned(job *j, const job_shape *shape, uint32_t iterations)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    run(j, shape, iterations);
    pleat_stats after = pleat_stats_of(j->runtime);
    assert_true((after.planned - before.planned) * 100 >= (after.requests - before.requests) * 99);
}

static void learner_adopts_what_is_alike_at_the_mark(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(1, 1);
    job_start(&j, "pleat", NULL, 0);
    run(&j, &shape, 2);
    assert_state(&j, PLEAT__STATE_heap);
    assert_ok(pleat_mark(j.runtime));
    assert_state(&j, PLEAT__STATE_following);
    assert_int_equal(caused(&j, PLEAT__CAUSE_alike), 1);
    assert_int_equal(learner_of(&j)->schedule->count, JOB_REQUESTS);
    assert_int_equal(learner_of(&j)->record.end, learner_of(&j)->record.begin);
    job_iterate(&j, &shape, JOB_PLAIN, 0);
    assert_planned(&j, &shape, 4);
    finish(&j);
}

/* What repeats first may be a loop within the iteration. */
static void learner_learns_nothing_without_marks(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(6, 1);
    job_start(&j, "pleat", NULL, 0);
    run_unmarked(&j, &shape, 200);
    assert_state(&j, PLEAT__STATE_heap);
    run(&j, &shape, 3);
    assert_state(&j, PLEAT__STATE_following);
    assert_planned(&j, &shape, 3);
    finish(&j);
}

static void learner_learns_nothing_when_it_is_off(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(2, 1);
    job_start_with(&j, "pleat", NULL, 0, "learn:off");
    run(&j, &shape, 6);
    assert_state(&j, PLEAT__STATE_heap);
    assert_int_equal(pleat_stats_of(j.runtime).planned, 0);
    finish(&j);
}

/* An iteration of another shape, and the first one again. (R12.) */
static void learner_suspends_and_resumes_at_the_next_mark(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(3, 1), other = job_shape_make(33, 2);
    job_start(&j, "pleat", NULL, 0);
    run(&j, &shape, 5);
    const pleat__schedule *schedule = learner_of(&j)->schedule;
    for (uint64_t visit = 1; visit < 6; visit++) {
        run(&j, &other, 1);
        assert_state(&j, PLEAT__STATE_suspended);
        assert_int_equal(caused(&j, PLEAT__CAUSE_diverged), visit);
        assert_ok(pleat_mark(j.runtime));
        assert_state(&j, PLEAT__STATE_following);
        assert_ptr_equal(learner_of(&j)->current, schedule);
        job_iterate(&j, &shape, JOB_PLAIN, 0);
        assert_state(&j, PLEAT__STATE_following);
        run(&j, &shape, 2);
        assert_planned(&j, &shape, 2);
    }
    assert_int_equal(pleat_stats_of(j.runtime).switches, 1);
    assert_int_equal(pleat_stats_of(j.runtime).returns, 5);
    finish(&j);
}

static void learner_drops_what_is_suspended_in_two_iterations_in_a_row(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(4, 1), other = job_shape_make(34, 2);
    job_start(&j, "pleat", NULL, 0);
    run(&j, &shape, 5);
    run(&j, &other, 2);
    assert_state(&j, PLEAT__STATE_suspended);
    assert_int_equal(caused(&j, PLEAT__CAUSE_again), 0);
    run(&j, &other, 2); /* both are recorded */
    assert_state(&j, PLEAT__STATE_heap);
    assert_int_equal(caused(&j, PLEAT__CAUSE_again), 1);
    assert_ok(pleat_mark(j.runtime));
    assert_state(&j, PLEAT__STATE_following);
    job_iterate(&j, &other, JOB_PLAIN, 0);
    run(&j, &other, 3);
    assert_planned(&j, &other, 3);
    finish(&j);
}

/* Where there is no host memory for what is alike, it is recorded again. */
static void learner_learns_later_what_it_cannot_adopt(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(4, 1);
    job_start(&j, "pleat", NULL, 0);
    run(&j, &shape, 2);
    pleat__arena_fail(1, false);
    assert_ok(pleat_mark(j.runtime));
    assert_int_equal(pleat__arena_failed(), 1);
    pleat__arena_fail(0, false);
    assert_state(&j, PLEAT__STATE_heap);
    job_iterate(&j, &shape, JOB_PLAIN, 0);
    run(&j, &shape, 5);
    assert_state(&j, PLEAT__STATE_following);
    assert_planned(&j, &shape, 2);
    finish(&j);
}

static void evaluate(job *j, uint64_t requests)
{
    for (uint64_t i = 0; i < requests; i++) {
        job_tensor t = job_alloc(j, 7000 + i % 10 * 3000, 0);
        job_free(j, &t);
    }
}

/* As many requests as nothing expects, in front of an iteration. */
static void learner_goes_on_behind_an_evaluation(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(5, 1);
    job_start(&j, "pleat", NULL, 0);
    run(&j, &shape, 6);
    for (uint32_t n = 0; n < 3; n++) {
        evaluate(&j, 1000);
        assert_state(&j, PLEAT__STATE_suspended);
        run(&j, &shape, 1);
        assert_state(&j, PLEAT__STATE_following);
        assert_planned(&j, &shape, 3);
    }
    assert_int_equal(pleat_stats_of(j.runtime).switches, 1);
    finish(&j);
}

/* Marked or not. */
static void learner_keeps_streams_apart_without_marks_too(void **state)
{
    (void)state;
    for (int marked = 0; marked <= 1; marked++) {
        job j;
        job_start(&j, "pleat", NULL, 0);
        for (uint64_t n = 0; n < 40; n++) {
            job_shape other = job_shape_make(60 + n, 1);
            assert_false(learner_of(&j)->heap->keeps_apart);
            learner_of(&j)->heap->sharing.waited_ns += n == 39 ? 300000000 : 0;
            if (marked)
                run(&j, &other, 1);
            else
                run_unmarked(&j, &other, 12);
        }
        assert_true(learner_of(&j)->heap->keeps_apart);
        finish(&j);
    }
}

/* ---- plan files ---- */

static uint64_t drawn_size(test_random *random)
{
    return 4096 + test_random_below(random, 200000);
}

/* The plan of a job of such a shape. With `random` every third of its sizes varies, which has
 * lanes. */
static pleat_plan *plan_with(const job_shape *of, test_random *random, bool folds)
{
    const pleat_plan_options options = {
        .size = sizeof options, .chunk_bytes = JOB_PAGE, .no_recipe = 1, .no_fold = !folds};
    job j;
    job_shape shape = *of;
    pleat_trace *trace;
    pleat_plan *plan;
    job_start(&j, "native", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    for (uint32_t n = 0; n < 3; n++) {
        for (uint32_t i = 0; random != NULL && i < JOB_REQUESTS; i += 3)
            shape.bytes[i] = drawn_size(random);
        run(&j, &shape, 1);
    }
    assert_ok(pleat_mark(j.runtime));
    assert_ok(pleat_record_copy(j.runtime, &trace));
    job_drain(&j);
    job_stop(&j);
    assert_ok(pleat_plan_make(trace, &options, &plan));
    pleat_trace_free(trace);
    return plan;
}

static pleat_plan *plan_of(const job_shape *shape, test_random *random)
{
    return plan_with(shape, random, true);
}

static uint64_t taken_by(const job_shape *shape)
{
    job j;
    job_start(&j, "pleat", NULL, 0);
    run(&j, shape, 8);
    uint64_t taken = pleat_stats_of(j.runtime).physical_bytes;
    finish(&j);
    return taken;
}

static void learner_leaves_a_plan_file_of_another_job(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 4; n++) {
        bool marked = n < 2;
        job j;
        job_shape shape = job_shape_make(1 + n, 1), other = job_shape_make(41 + n, 24);
        uint64_t needs = taken_by(&shape);
        pleat_plan *plan = plan_of(&other, NULL);
        job_start(&j, "pleat", plan, 0);
        assert_true(plan->physical_bytes > 2 * needs);
        if (marked)
            run(&j, &shape, 9); /* places that cross into the first one followed settle in it */
        else
            run_unmarked(&j, &shape, 60);
        assert_int_equal(caused(&j, PLEAT__CAUSE_misfit), 1);
        assert_state(&j, marked ? PLEAT__STATE_following : PLEAT__STATE_heap);
        assert_planned(&j, &shape, marked ? 4 : 0);
        uint64_t taken = pleat_stats_of(j.runtime).physical_bytes;
        /* Two of the plan's handles stay for what crossed when it was left. */
        assert_true(taken <= needs + needs / 4 + 2ull * PLEAT__HANDLE_CHUNKS * JOB_PAGE);
        finish(&j);
        pleat_plan_free(plan);
    }
}

/* Another iteration now and then, an evaluation say, is no reason to learn in its place. */
static void learner_learns_nothing_beside_a_plan_file(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(5, 1), other = shape;
    pleat_plan *plan = plan_of(&shape, NULL);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        other.bytes[i] += 1000001;
    job_start(&j, "pleat", plan, 0);
    run(&j, &shape, 3);
    for (uint32_t n = 0; n < 3; n++) {
        run(&j, &other, 1);
        assert_state(&j, PLEAT__STATE_suspended);
        assert_int_equal(learner_of(&j)->record.end, learner_of(&j)->record.begin);
    }
    run(&j, &shape, 1);
    assert_planned(&j, &shape, 3);
    assert_int_equal(caused(&j, PLEAT__CAUSE_alike), 0);
    finish(&j);
    pleat_plan_free(plan);
}

/* Nothing marks where the job is back: sizes in a row do. */
static void learner_resumes_a_plan_file_where_its_requests_come_again(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(6, 1);
    pleat_plan *plan = plan_of(&shape, NULL);
    job_start(&j, "pleat", plan, 0);
    run_unmarked(&j, &shape, 4);
    for (uint64_t n = 1; n <= 3; n++) {
        evaluate(&j, 500);
        assert_state(&j, PLEAT__STATE_suspended);
        run_unmarked(&j, &shape, 1);
        assert_state(&j, PLEAT__STATE_following);
        assert_int_equal(pleat_stats_of(j.runtime).returns, n);
        run_unmarked(&j, &shape, 3);
    }
    finish(&j);
    pleat_plan_free(plan);
}

/* In the plan's beginning it would be suspended. */
static void learner_leaves_a_plan_file_where_its_job_begins_otherwise(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(7, 1);
    pleat_plan *plan = plan_of(&shape, NULL);
    job_start(&j, "pleat", plan, 0);
    for (uint32_t i = 0; i < 64; i++) {
        assert_ptr_not_equal(learner_of(&j)->schedule, NULL);
        job_tensor other = job_alloc(&j, 2000001 + i, 0);
        job_free(&j, &other);
    }
    assert_int_equal(pleat_stats_of(j.runtime).left_at, 64);
    run(&j, &shape, 6);
    assert_ptr_not_equal(learner_of(&j)->schedule, NULL);
    assert_true(learner_of(&j)->schedule->learned);
    assert_int_equal(caused(&j, PLEAT__CAUSE_misfit), 1);
    finish(&j);
    pleat_plan_free(plan);
}

/* Another run's plan, of which only the beginning comes. */
static void learner_keeps_no_plan_file_for_what_comes_before_marks(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(7, 2), other = job_shape_make(47, 1);
    pleat_plan *plan = plan_of(&shape, NULL);
    job_start(&j, "pleat", plan, 0);
    run_unmarked(&j, &shape, 1);
    run(&j, &other, 6);
    assert_int_equal(caused(&j, PLEAT__CAUSE_misfit), 1);
    finish(&j);
    pleat_plan_free(plan);
}

static void learner_keeps_a_plan_file_that_served(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(7, 2), other = job_shape_make(47, 1);
    pleat_plan *plan = plan_of(&shape, NULL);
    job_start(&j, "pleat", plan, 0);
    run(&j, &shape, 2);
    /* Something else comes later. */
    run(&j, &other, 20);
    run(&j, &shape, 6);
    assert_planned(&j, &shape, 4);
    assert_int_equal(pleat_stats_of(j.runtime).switches, 0);
    assert_int_equal(caused(&j, PLEAT__CAUSE_misfit), 0);
    finish(&j);
    pleat_plan_free(plan);
}

#define KEPT 60u

/* Another job comes, for which the plan is left; what lived then is read again, and freed. */
static void leave(job *j, job_tensor *kept)
{
    job_shape shape = job_shape_make(8, 1);
    run(j, &shape, 8);
    assert_int_equal(caused(j, PLEAT__CAUSE_misfit), 1);
    assert_true(learner_of(j)->layouts.retired_count > 0);
    for (uint32_t i = 0; i < KEPT; i++)
        job_free(j, &kept[i]);
    run(j, &shape, 4);
    assert_int_equal(learner_of(j)->layouts.retired_count, 0);
    finish(j);
}

/* What lives in a lane or in a view of the plan when it is left stays whole, and is freed there. */
static void learner_leaves_what_lies_in_a_plan_file(void **state)
{
    (void)state;
    job j;
    test_random random = test_random_begin(__func__, 8);
    job_shape other = job_shape_make(48, 4);
    pleat_plan *plan = plan_of(&other, &random);
    assert_true(plan->lane_count != 0);
    job_start(&j, "pleat", plan, 0);
    /* The plan's beginning comes first, so that what is kept lies in the iteration's slots and
     * lanes.
     */
    job_shape begins = other;
    assert_true(plan->first.slot_count >= JOB_REQUESTS);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        begins.bytes[i] = plan->first.slots[i].size;
    run_unmarked(&j, &begins, 1);
    assert_ok(pleat_mark(j.runtime));
    job_tensor kept[KEPT];
    for (uint32_t i = 0; i < KEPT; i++)
        kept[i] = job_alloc(&j, i % 3 == 0 ? drawn_size(&random) : other.bytes[i], 0);
    assert_true(pleat_stats_of(j.runtime).planned != 0 && pleat_stats_of(j.runtime).lane != 0);
    leave(&j, kept);
    pleat_plan_free(plan);
}

/* Handles of one chunk each, whose homes come backwards: nothing says of a plan file that they come
 * in order. pre: nothing is folded. */
static void turn_homes(pleat_plan *plan)
{
    uint32_t count = (uint32_t)(plan->virtual_bytes / plan->chunk_bytes);
    assert_int_equal(plan->physical_bytes, plan->virtual_bytes);
    plan->handles = pleat__arena_calloc(plan->arena, count, sizeof *plan->handles);
    plan->maps = pleat__arena_calloc(plan->arena, count, sizeof *plan->maps);
    assert_true(plan->handles != NULL && plan->maps != NULL);
    plan->handle_count = plan->map_count = count;
    for (uint32_t i = 0; i < count; i++) {
        plan->handles[i] = (pleat__plan_handle){.chunks = 1, .first_chunk = i};
        plan->maps[i] = (pleat__plan_map){.page = i, .handle = count - 1 - i};
    }
}

static void learner_leaves_what_lies_across_homes_in_any_order(void **state)
{
    (void)state;
    job j;
    job_shape other = job_shape_make(48, 4);
    pleat_plan *plan = plan_with(&other, NULL, false);
    turn_homes(plan);
    assert_ok(pleat_plan_verify(plan, NULL));
    job_start(&j, "pleat", plan, 0);
    job_tensor kept[KEPT];
    for (uint32_t i = 0; i < KEPT; i++)
        kept[i] = job_alloc(&j, other.bytes[i], 0);
    assert_true(pleat_stats_of(j.runtime).planned > 0);
    leave(&j, kept);
    pleat_plan_free(plan);
}

/* ---- failures ---- */

/* Iterations with whatever fails; NULL: there is no runtime. */
static pleat_runtime *run_failing(pleat_vmm vmm, const void *plan)
{
    job j = {.vmm = vmm};
    job_shape shape = job_shape_make(9, 1);
    const pleat_runtime_options options = {.size = sizeof options, .plan = plan, .waits = 1};
    if (pleat_runtime_create(vmm, &options, &j.runtime) != PLEAT_OK)
        return NULL;
    for (uint32_t n = 0; n < 5; n++)
        job_try_iterate(&j, &shape);
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    return j.runtime;
}

/* R16. */
static void learner_survives_every_failing_verb(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_create,       PLEAT__FAULT_map,
                                              PLEAT__FAULT_unmap,        PLEAT__FAULT_set_access,
                                              PLEAT__FAULT_event_create, PLEAT__FAULT_event_record};
    test_random random = test_random_begin(__func__, 9);
    job_shape other = job_shape_make(49, 2);
    pleat_plan *plan = plan_of(&other, &random);
    fail_verbs(verbs, sizeof verbs / sizeof *verbs, 3, run_failing, plan);
    pleat_plan_free(plan);
}

/* R13. */
static void learner_survives_every_want_of_host_memory(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 10);
    job_shape other = job_shape_make(50, 2);
    pleat_plan *plan = plan_of(&other, &random);
    fail_host_memory(8, run_failing, plan);
    pleat_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learner_adopts_what_is_alike_at_the_mark),
        cmocka_unit_test(learner_learns_nothing_when_it_is_off),
        cmocka_unit_test(learner_learns_nothing_without_marks),
        cmocka_unit_test(learner_suspends_and_resumes_at_the_next_mark),
        cmocka_unit_test(learner_drops_what_is_suspended_in_two_iterations_in_a_row),
        cmocka_unit_test(learner_learns_later_what_it_cannot_adopt),
        cmocka_unit_test(learner_goes_on_behind_an_evaluation),
        cmocka_unit_test(learner_keeps_streams_apart_without_marks_too),
        cmocka_unit_test(learner_leaves_a_plan_file_of_another_job),
        cmocka_unit_test(learner_learns_nothing_beside_a_plan_file),
        cmocka_unit_test(learner_resumes_a_plan_file_where_its_requests_come_again),
        cmocka_unit_test(learner_leaves_a_plan_file_where_its_job_begins_otherwise),
        cmocka_unit_test(learner_keeps_no_plan_file_for_what_comes_before_marks),
        cmocka_unit_test(learner_keeps_a_plan_file_that_served),
        cmocka_unit_test(learner_leaves_what_lies_in_a_plan_file),
        cmocka_unit_test(learner_leaves_what_lies_across_homes_in_any_order),
        cmocka_unit_test(learner_survives_every_failing_verb),
        cmocka_unit_test(learner_survives_every_want_of_host_memory),
    };
    return cmocka_run_group_tests_name("learner", tests, NULL, NULL);
}
