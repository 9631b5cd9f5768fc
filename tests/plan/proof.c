/*
 * proof.c: plans as the planner makes them, through the verifier and the file: they hold for their
 * trace, twice planned is the same bytes, and a plan spoilt by hand is refused.
 */
#include "files.h"

#include <plan/plan.h>
#include <pleat/trace.h>

/* A job with model load, four iterations that repeat, and requests of several streams. */
typedef struct job {
    pleat_trace *trace;
    uint32_t next;
    uint32_t live[64];
    uint32_t live_count;
} job;

static void add(job *j, pleat_event_kind kind, uint32_t request, uint64_t size, uint16_t stream)
{
    pleat_trace_event event = {
        .kind = (uint8_t)kind, .request = request, .size = size, .stream = stream};
    assert_ok(pleat_trace_add(j->trace, &event));
}

static void add_free(job *j, uint32_t request)
{
    add(j, PLEAT_EVENT_FREE_REQUESTED, request, 0, 0);
    add(j, PLEAT_EVENT_FREE_COMPLETED, request, 0, 0);
}

/* Every fifth request of a varying job is larger in every iteration: it gets a lane. */
static void add_iteration(job *j, uint64_t seed, uint32_t streams, uint32_t iteration, bool varies)
{
    test_random random = {seed};
    add(j, PLEAT_EVENT_MARK, 0, 0, 0);
    for (int k = 0; k < 120; k++) {
        uint64_t dice = test_random_next(&random);
        if (j->live_count == 0 || (dice % 2 == 0 && j->live_count < 64)) {
            uint64_t size = (1ull << (dice >> 8) % 23) + (dice >> 40) % 100;
            size += varies && k % 5 == 0 ? iteration * 100000u : 0;
            j->live[j->live_count++] = j->next;
            add(j, PLEAT_EVENT_ALLOC, j->next++, size, (uint16_t)((dice >> 32) % streams));
        } else {
            uint32_t at = (dice >> 8) % j->live_count;
            add_free(j, j->live[at]);
            j->live[at] = j->live[--j->live_count];
        }
    }
    if (iteration == 0) /* optimizer state */
        add(j, PLEAT_EVENT_ALLOC, j->next++, 3000000, 0);
    while (j->live_count > 0)
        add_free(j, j->live[--j->live_count]);
}

static pleat_trace *make_job(test_random *random, uint32_t streams, bool varies)
{
    job j = {0};
    uint16_t stream;
    assert_ok(pleat_trace_new(&j.trace));
    for (uint32_t i = 0; i < streams; i++)
        assert_ok(pleat_trace_add_stream(j.trace, i * 16, &stream));
    for (int i = 0; i < 5; i++)
        add(&j, PLEAT_EVENT_ALLOC, j.next++, test_random_below(random, 5000000),
            (uint16_t)test_random_below(random, streams));
    for (int i = 0; i < 20; i++) {
        add(&j, PLEAT_EVENT_ALLOC, j.next, test_random_below(random, 3000000),
            (uint16_t)test_random_below(random, streams));
        add_free(&j, j.next++);
    }
    uint64_t seed = test_random_next(random);
    for (uint32_t i = 0; i < 4; i++)
        add_iteration(&j, seed, streams, i, varies);
    return j.trace;
}

static pleat_plan *make_plan(const pleat_trace *trace)
{
    pleat_plan *plan;
    pleat_plan_options options = {.size = sizeof options, .seconds = 0};
    assert_ok(pleat_plan_make(trace, &options, &plan));
    return plan;
}

static void proof_plans_hold_for_their_trace(void **state)
{
    (void)state;
    test_random random = test_random_begin("proof_plans_hold_for_their_trace", 0x91a4);
    uint64_t lanes = 0;
    for (uint32_t i = 0; i < 60; i++) {
        pleat_trace *trace = make_job(&random, 1 + i % 3, i % 2 == 0);
        pleat_trace *other = make_job(&random, 1, false);
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
        pleat_trace *trace = make_job(&random, 1 + i % 2, i % 3 == 0), *read;
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
    pleat_trace *trace = make_job(&random, 1, false);
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
