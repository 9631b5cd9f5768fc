/*
 * proof.c: plans as the planner makes them, through the verifier and the file: they hold for their
 * trace, twice planned is the same bytes, and a plan spoilt by hand is refused.
 */
#include "files.h"
#include "jobs.h"

#include <plan/base/plan.h>

static pleat_plan *make_plan(const pleat_trace *trace)
{
    pleat_plan *plan;
    pleat_plan_options options = {.size = sizeof options};
    assert_ok(pleat_plan_make(trace, &options, &plan));
    return plan;
}

static void proof_plans_hold_for_their_trace(void **state)
{
    (void)state;
    test_random random = test_random_begin("proof_plans_hold_for_their_trace", 0x91a4);
    uint64_t lanes = 0;
    for (uint32_t i = 0; i < 60; i++) {
        pleat_trace *trace = test_job(&random, 1 + i % 3, i % 2 == 0, 120);
        pleat_trace *other = test_job(&random, 1, false, 120);
        pleat_plan *plan = make_plan(trace);
        lanes += pleat_plan_summary_of(plan).lanes;
        assert_ok(pleat_plan_verify(plan, trace));
        assert_result(pleat_plan_verify(plan, other), PLEAT_E_VERIFY);
        pleat_plan_free(plan);
        pleat_trace_free(trace);
        pleat_trace_free(other);
    }
    assert_true(lanes > 0);
}

static void proof_planning_twice_gives_the_same_bytes(void **state)
{
    (void)state;
    test_random random = test_random_begin("proof_planning_twice_gives_the_same_bytes", 0x2b17);
    const char *trace_path = test_path("j.trace"), *path = test_path("j.plan");
    for (uint32_t i = 0; i < 10; i++) {
        pleat_trace *trace = test_job(&random, 1 + i % 2, i % 3 == 0, 120), *read;
        assert_ok(pleat_trace_write(trace, trace_path));
        assert_ok(pleat_trace_read(trace_path, &read));
        test_bytes bytes[2];
        for (int k = 0; k < 2; k++) {
            pleat_plan *plan = make_plan(k == 0 ? trace : read), *back;
            assert_ok(pleat_plan_write(plan, path));
            bytes[k] = test_file_read(path);
            assert_ok(pleat_plan_read(path, &back));
            pleat_plan_free(plan);
            pleat_plan_free(back);
        }
        assert_int_equal(bytes[0].size, bytes[1].size);
        assert_memory_equal(bytes[0].data, bytes[1].data, bytes[0].size);
        test_bytes_free(&bytes[0]);
        test_bytes_free(&bytes[1]);
        pleat_trace_free(trace);
        pleat_trace_free(read);
    }
    assert_int_equal(unlink(trace_path), 0);
    assert_int_equal(unlink(path), 0);
}

/* Two steady slots that are live together, the second moved onto the first. */
static void spoil(pleat_plan *plan)
{
    pleat__sequence *steady = &plan->steady;
    for (uint32_t i = 0; i + 1 < steady->slot_count; i++) {
        pleat__slot *a = &steady->slots[i], *b = &steady->slots[i + 1];
        bool both = a->place != PLEAT__NOWHERE && b->place != PLEAT__NOWHERE && a->size > 0 &&
                    b->size > 0 && a->size >= b->size;
        if (both && a->free_at > b->alloc_at) {
            b->place = a->place;
            return;
        }
    }
    fail_msg("no two slots are live together");
}

static void proof_a_spoilt_plan_is_not_read(void **state)
{
    (void)state;
    test_random random = test_random_begin("proof_a_spoilt_plan_is_not_read", 0x77);
    const char *path = test_path("j.plan");
    pleat_trace *trace = test_job(&random, 1, false, 120);
    pleat_plan *plan = make_plan(trace), *read;
    spoil(plan);
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_VERIFY);
    assert_ok(pleat_plan_write(plan, path));
    assert_result(pleat_plan_read(path, &read), PLEAT_E_VERIFY);
    assert_non_null(strstr(pleat_last_error()->text, "are live together and share"));
    pleat_plan_free(plan);
    pleat_trace_free(trace);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proof_plans_hold_for_their_trace),
        cmocka_unit_test(proof_planning_twice_gives_the_same_bytes),
        cmocka_unit_test(proof_a_spoilt_plan_is_not_read),
    };
    return cmocka_run_group_tests_name("proof", tests, NULL, test_folder_remove);
}
