/*
 * microbatch.c: pleat_max_microbatch, from a plan file's recipe and from what was recorded.
 */
#include "sizes_plan.h"

static void microbatch_of_a_plan_file_follows_the_budget(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 91);
    scaled_job scaled = scaled_make(random.state);
    pleat_plan *plan = plan_for(&scaled, 3, 4);
    stays s = {0};
    job j;
    uint64_t most, less, tokens;
    job_start(&j, "pleat", plan, 0);
    /* The plan's own size says nothing of this job. */
    assert_result(pleat_max_microbatch(j.runtime, 4, &most), PLEAT_E_NOT_FOUND);
    load_weights(&j, &s);
    assert_result(pleat_max_microbatch(j.runtime, 4, &most), PLEAT_E_NOT_FOUND);
    run_x(&j, &scaled, 4, 1);
    make_state(&j, &s);
    run_x(&j, &scaled, 4, 3);
    uint64_t physical = pleat_stats_of(j.runtime).physical_bytes;
    assert_int_equal(pleat_max_microbatch(j.runtime, 0, &most), PLEAT_E_INVALID);
    assert_ok(pleat_set_budget(j.runtime, physical * 2));
    assert_ok(pleat_max_microbatch(j.runtime, 4, &most));
    assert_in_range(most, 5, 12);
    /* Counted in tokens, of which one is far below what was seen. */
    assert_ok(pleat_max_microbatch(j.runtime, 4 * 1024, &tokens));
    assert_int_equal(tokens / 1024, most);
    assert_ok(pleat_set_budget(j.runtime, physical));
    assert_ok(pleat_max_microbatch(j.runtime, 4, &less));
    assert_in_range(less, 1, most - 1);
    assert_ok(pleat_set_budget(j.runtime, 0));
    stays_free(&j, &s);
    finish(&j);
    pleat_plan_free(plan);
}

static void microbatch_is_found_in_a_recording(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 92);
    scaled_job scaled = scaled_make(random.state);
    job j;
    uint64_t most;
    job_start(&j, "pleat", NULL, 0);
    /* Nothing is recorded. */
    assert_int_equal(pleat_max_microbatch(j.runtime, 4, &most), PLEAT_E_NOT_FOUND);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    run_x(&j, &scaled, 4, 3);
    /* At one microbatch only. */
    assert_int_equal(pleat_max_microbatch(j.runtime, 4, &most), PLEAT_E_NOT_FOUND);
    run_x(&j, &scaled, 6, 3);
    assert_ok(pleat_mark(j.runtime));
    uint64_t physical = pleat_stats_of(j.runtime).physical_bytes;
    assert_ok(pleat_set_budget(j.runtime, physical * 3 / 2));
    assert_ok(pleat_max_microbatch(j.runtime, 6, &most));
    assert_in_range(most, 7, 11);
    pleat_record_end(j.runtime);
    finish(&j);
}

static void microbatch_is_not_known_to_other_policies(void **state)
{
    (void)state;
    job j;
    uint64_t most;
    job_start(&j, "native", NULL, 0);
    assert_int_equal(pleat_max_microbatch(j.runtime, 4, &most), PLEAT_E_UNSUPPORTED);
    finish(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(microbatch_of_a_plan_file_follows_the_budget),
        cmocka_unit_test(microbatch_is_found_in_a_recording),
        cmocka_unit_test(microbatch_is_not_known_to_other_policies),
    };
    return cmocka_run_group_tests_name("microbatch", tests, NULL, NULL);
}
