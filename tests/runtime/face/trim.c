/*
 * trim.c: memory that nothing lies on goes back to the device at once, and comes back at the same
 * addresses when the job wants it: without a plan, with one whose folds map chunks several times,
 * and whatever verb fails meanwhile.
 */
#include "failing.h"
#include "fixture.h"

#include <plan/base/plan.h>

#define WEIGHTS 3000000

/* Bytes of the chunks on which something lies cannot be less than what lives; at most so much more
 * is left where small tensors lie apart. */
static uint64_t trimmed(job *j)
{
    uint64_t before = pleat_stats_of(j->runtime).physical_bytes, given;
    pleat__host_holdings held;
    assert_ok(pleat_trim(j->runtime, 0, &given));
    pleat_stats stats = pleat_stats_of(j->runtime);
    assert_int_equal(stats.physical_bytes, before - given);
    assert_true(stats.physical_bytes >= stats.live_bytes);
    assert_ok(pleat__host_holdings_of(&j->vmm, &held));
    assert_int_equal(held.memory_bytes, stats.physical_bytes);
    return given;
}

/* R19. */
static void trim_gives_back_all_that_nothing_lies_on(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(1, 1);
    job_start(&j, "pleat", NULL, 0);
    job_tensor weights = job_alloc(&j, WEIGHTS, 0);
    job_iterate_marked(&j, &shape, 8);
    uint64_t held = pleat_stats_of(j.runtime).physical_bytes;
    job_drain(&j);
    assert_true(trimmed(&j) > held / 2);
    /* Only the weights are left, and at most the chunks of their ends. */
    assert_true(pleat_stats_of(j.runtime).physical_bytes <= WEIGHTS + 2 * JOB_PAGE);
    assert_int_equal(trimmed(&j), 0);
    job_free(&j, &weights);
    assert_true(trimmed(&j) > 0);
    assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, 0);
    finish(&j);
}

/* What rests in one large handle is not all the memory that there is room for. */
static void trim_leaves_room_for_less_than_a_handle(void **state)
{
    (void)state;
    job j;
    uint64_t given;
    job_start(&j, "pleat", NULL, 0);
    job_tensor large = job_alloc(&j, 4096 * JOB_PAGE, 0);
    job_free(&j, &large);
    assert_ok(pleat_trim(j.runtime, 0, &given));
    assert_ok(pleat_set_budget(j.runtime, 6 * JOB_PAGE));
    job_tensor small = job_alloc(&j, JOB_PAGE, 0);
    assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, JOB_PAGE);
    job_free(&j, &small);
    finish(&j);
}

static void trim_keeps_what_it_is_told_to(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(2, 1);
    job_start(&j, "pleat", NULL, 0);
    job_iterate_marked(&j, &shape, 3);
    job_drain(&j);
    uint64_t held = pleat_stats_of(j.runtime).physical_bytes, given;
    assert_ok(pleat_trim(j.runtime, held / 2, &given));
    uint64_t left = pleat_stats_of(j.runtime).physical_bytes;
    assert_true(left <= held / 2 && left + 16 * JOB_PAGE > held / 2);
    assert_ok(pleat_trim(j.runtime, held, &given));
    assert_int_equal(given, 0);
    finish(&j);
}

/* Trimmed at every iteration's end the job lies where it lay, planned, and goes back to no driver
 * call when it is let alone. */
static void run_trimmed(job *j, const job_shape *shape)
{
    job_iterate_marked(j, shape, 8);
    pleat_stats before = pleat_stats_of(j->runtime);
    uint64_t given = 0;
    for (int i = 0; i < 6; i++) {
        given += trimmed(j);
        job_iterate_marked(j, shape, 1);
    }
    pleat_stats after = pleat_stats_of(j->runtime);
    assert_true(given > 0);
    assert_int_equal(after.planned + after.lane - before.planned - before.lane,
                     after.requests - before.requests);
    assert_int_equal(after.physical_bytes, before.physical_bytes);
    job_iterate_marked(j, shape, 3);
    assert_int_equal(pleat_stats_of(j->runtime).driver_calls, after.driver_calls);
}

static void trim_of_a_learned_job_costs_it_no_place(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        job j;
        job_shape shape = job_shape_make(seed, 2);
        job_start(&j, "pleat", NULL, 0);
        job_tensor weights = job_alloc(&j, WEIGHTS, 0);
        run_trimmed(&j, &shape);
        job_free(&j, &weights);
        finish(&j);
    }
}

static pleat_plan *make_plan(const job_shape *shape)
{
    job j;
    pleat_trace *trace;
    pleat_plan *plan;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    job_iterate_marked(&j, shape, 5);
    assert_ok(pleat_mark(j.runtime));
    assert_ok(pleat_record_copy(j.runtime, &trace));
    pleat_plan_options options = {.size = sizeof options, .chunk_bytes = JOB_PAGE};
    assert_ok(pleat_plan_make(trace, &options, &plan));
    pleat_trace_free(trace);
    finish(&j);
    return plan;
}

static void trim_of_a_planned_job_lays_its_folds_to_rest_too(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(3, 2);
    pleat_plan *plan = make_plan(&shape);
    job_start(&j, "pleat", plan, 0);
    /* It has memory as far as the program came along. */
    assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, 0);
    job_iterate_marked(&j, &shape, 1);
    job_drain(&j);
    uint64_t planned = pleat_stats_of(j.runtime).physical_bytes;
    assert_true(planned > 0 && planned <= plan->physical_bytes);
    assert_int_equal(trimmed(&j), planned);
    run_trimmed(&j, &shape);
    finish(&j);
    pleat_plan_free(plan);
}

/* Requests that no schedule knows wake what rests before they have new memory made. */
static void trim_memory_is_woken_before_new_is_made(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    job_tensor a = job_alloc(&j, 40 * JOB_PAGE, 0);
    job_free(&j, &a);
    uint64_t held = pleat_stats_of(j.runtime).virtual_bytes;
    trimmed(&j);
    job_tensor b = job_alloc(&j, 17 * JOB_PAGE + 5, 0), c = job_alloc(&j, 20 * JOB_PAGE, 0);
    assert_int_equal(pleat_stats_of(j.runtime).virtual_bytes, held);
    job_free(&j, &b);
    job_free(&j, &c);
    finish(&j);
}

static void trim_of_other_policies_empties_their_caches(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++) {
        job j;
        job_start(&j, policies[p], NULL, 0);
        job_tensor a = job_alloc(&j, 30 << 20, 0);
        job_free(&j, &a);
        assert_true(trimmed(&j) > 0);
        assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, 0);
        finish(&j);
    }
}

/* Memory that waits for a stream is not given back under it. */
/* The bound is on all that the runtime has; the other policies know all or nothing. */
static void trim_keeps_what_lives_and_some(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++) {
        fixture f;
        uint64_t given;
        pleat_va blocks[10];
        begin(&f, policies[p], 2048 * MIB, 0);
        for (int b = 0; b < 10; b++)
            blocks[b] = take(&f, 100 * MIB, 0);
        for (int b = 5; b < 10; b++)
            assert_ok(pleat_free(f.runtime, blocks[b]));
        assert_ok(pleat_trim(f.runtime, 1000 * MIB, &given));
        assert_int_equal(given, 0);
        assert_ok(pleat_trim(f.runtime, 800 * MIB, &given));
        bool exact = strcmp(policies[p], "pleat") == 0;
        assert_int_equal(given, (exact ? 200 : 500) * MIB);
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 1000 * MIB - given);
        end(&f);
    }
}

static void trim_waits_for_streams(void **state)
{
    (void)state;
    fixture f;
    uint64_t given;
    begin(&f, "pleat", 64 * MIB, 0);
    pleat_va used = take(&f, 8 * MIB, 7);
    assert_ok(pleat_record_stream(f.runtime, used, 8));
    assert_ok(pleat__host_stream_hold(&f.host, 8));
    assert_ok(pleat_free(f.runtime, used));
    assert_ok(pleat_trim(f.runtime, 0, &given));
    assert_int_equal(given, 0);
    assert_ok(pleat__host_stream_release(&f.host, 8));
    assert_ok(pleat_trim(f.runtime, 0, &given));
    assert_int_equal(given, 8 * MIB);
    end(&f);
}

static pleat_runtime *failing_job(pleat_vmm vmm, const void *with)
{
    const job_shape *shape = with;
    job j = {.vmm = vmm};
    pleat_runtime_options options = {.size = sizeof options, .waits = 1};
    if (pleat_runtime_create(vmm, &options, &j.runtime) != PLEAT_OK)
        return NULL;
    for (int i = 0; i < 5; i++) {
        job_try_iterate(&j, shape);
        (void)!pleat_trim(j.runtime, i % 2 == 0 ? 0 : 4 * JOB_PAGE, NULL);
    }
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    return j.runtime;
}

static void trim_survives_each_verb_that_fails(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(4, 1);
    fail_all(3, failing_job, &shape);
}

#define MANY 2100

/* What grew one request at a time comes back in handles as large as a job of its size would make;
 * what lives on some of it stays where it is, and its handles stay as they are. */
static void trim_brings_back_larger_handles(void **state)
{
    (void)state;
    fixture f;
    static pleat_va held[MANY];
    begin(&f, "pleat", 16384 * MIB, 0);
    for (int turn = 0; turn < 3; turn++) {
        uint64_t before = pleat_stats_of(f.runtime).creates;
        for (int i = 0; i < MANY; i++) {
            held[i] = turn > 0 && i % 700 == 0 ? held[i] : take(&f, 2 * MIB, 0);
            *(uint64_t *)(uintptr_t)held[i] = (uint64_t)i + 1;
            *(uint64_t *)(uintptr_t)(held[i] + 2 * MIB - 8) = (uint64_t)i + 1;
        }
        uint64_t made = pleat_stats_of(f.runtime).creates - before;
        assert_true(turn == 0 ? made > MANY / 2 : made <= MANY / 4 + 8);
        for (int i = 0; i < MANY; i++) {
            assert_int_equal(*(uint64_t *)(uintptr_t)held[i], i + 1);
            assert_int_equal(*(uint64_t *)(uintptr_t)(held[i] + 2 * MIB - 8), i + 1);
            if (i % 700 != 0)
                assert_ok(pleat_free(f.runtime, held[i]));
        }
        assert_ok(pleat_mark(f.runtime));
        assert_ok(pleat_trim(f.runtime, 0, NULL));
        assert_true(pleat_stats_of(f.runtime).physical_bytes <= 2 * 3 * 2 * MIB);
    }
    for (int i = 0; i < MANY; i += 700)
        assert_ok(pleat_free(f.runtime, held[i]));
    end(&f);
}

/* Takes `count` tensors of a chunk each, and gives them back; where it `stitches`, half of them
 * make way before for tensors that are twice as large, for which there is no hole. */
static void fill(fixture *f, int count, bool stitches)
{
    static pleat_va small[MANY], large[MANY / 4];
    for (int i = 0; i < count; i++)
        small[i] = take(f, 2 * MIB, 0);
    for (int i = 0; i < count; i += 2)
        assert_ok(pleat_free(f->runtime, small[i]));
    for (int i = 0; i < count / 4 && stitches; i++)
        large[i] = take(f, 4 * MIB, 0);
    for (int i = 0; i < count / 4 && stitches; i++)
        assert_ok(pleat_free(f->runtime, large[i]));
    for (int i = 1; i < count; i += 2)
        assert_ok(pleat_free(f->runtime, small[i]));
    assert_ok(pleat_mark(f->runtime));
}

/* Handles made in an iteration behind a trim. */
static uint64_t made_again(fixture *f)
{
    uint64_t before = pleat_stats_of(f->runtime).creates;
    assert_ok(pleat_trim(f->runtime, 0, NULL));
    assert_int_equal(pleat_stats_of(f->runtime).physical_bytes, 0);
    fill(f, MANY, false);
    return pleat_stats_of(f->runtime).creates - before;
}

/* Where nothing is followed views are kept: who knows which are wanted next. Where a schedule is
 * they keep handles apart only if it has a place there. */
static void trim_gives_up_views_that_a_schedule_has_no_place_in(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 16384 * MIB, 0);
    fill(&f, MANY, true);
    assert_int_equal(pleat_stats_of(f.runtime).stitched, MANY / 4);
    for (int i = 0; i < 4; i++)
        fill(&f, 100 << i, false);
    assert_true(made_again(&f) > MANY / 2);
    /* Behind so many that were unlike it takes as many alike until they are followed. */
    for (int i = 0; i < 16; i++)
        fill(&f, MANY, false);
    assert_true(made_again(&f) <= MANY / 8 + 8);
    uint64_t calls = pleat_stats_of(f.runtime).driver_calls;
    fill(&f, MANY, false);
    assert_int_equal(pleat_stats_of(f.runtime).driver_calls, calls);
    fill(&f, MANY, true);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trim_brings_back_larger_handles),
        cmocka_unit_test(trim_gives_up_views_that_a_schedule_has_no_place_in),
        cmocka_unit_test(trim_gives_back_all_that_nothing_lies_on),
        cmocka_unit_test(trim_leaves_room_for_less_than_a_handle),
        cmocka_unit_test(trim_keeps_what_it_is_told_to),
        cmocka_unit_test(trim_keeps_what_lives_and_some),
        cmocka_unit_test(trim_of_a_learned_job_costs_it_no_place),
        cmocka_unit_test(trim_of_a_planned_job_lays_its_folds_to_rest_too),
        cmocka_unit_test(trim_memory_is_woken_before_new_is_made),
        cmocka_unit_test(trim_of_other_policies_empties_their_caches),
        cmocka_unit_test(trim_waits_for_streams),
        cmocka_unit_test(trim_survives_each_verb_that_fails),
    };
    return cmocka_run_group_tests_name("trim", tests, NULL, NULL);
}
