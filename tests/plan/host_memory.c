/*
 * host_memory.c: each piece of host memory that the planner asks for fails once, whatever is done:
 * the answer is that there is none, or all is well without it, and nothing is left.
 */
#include "files.h"
#include "growing.h"
#include "pickles.h"

#include <internal/arena.h>
#include <internal/error.h>
#include <plan/trace/import.h>

/* What is done, with what was made ready for it; it frees what it makes. */
typedef pleat_result (*doing)(const void *with);

/* Pieces in steps that grow by one in SPREAD, until there are not as many. */
static void fail_each(doing what, const void *with)
{
    enum { SPREAD = 16 };
    uint64_t failed = 1;
    assert_ok(what(with));
    for (uint64_t nth = 1; failed > 0; nth += 1 + nth / SPREAD) {
        pleat__arena_fail(nth, false);
        pleat_result result = what(with);
        failed = pleat__arena_failed();
        pleat__arena_fail(0, false);
        if (result != PLEAT_OK && result != PLEAT_E_NO_MEMORY)
            fail_msg("piece %llu: %s: %s", (unsigned long long)nth, pleat_result_name(result),
                     pleat_last_error()->text);
        assert_true(result == PLEAT_OK || failed > 0);
    }
}

/* ---- what is done ---- */

static pleat_result make_plan(const void *trace)
{
    static const pleat_plan_options options = {.size = sizeof options, .chunk_bytes = CHUNK};
    pleat_plan *plan;
    PLEAT_TRY(pleat_plan_make(trace, &options, &plan));
    pleat_plan_free(plan);
    return PLEAT_OK;
}

typedef struct made {
    const pleat_trace *trace;
    const pleat_plan *plan;
    const char *path;
    test_bytes bytes;
} made;

static pleat_result verify_plan(const void *with)
{
    const made *m = with;
    return pleat_plan_verify(m->plan, m->trace);
}

static pleat_result write_and_read_plan(const void *with)
{
    const made *m = with;
    pleat_plan *read;
    PLEAT_TRY(pleat_plan_write(m->plan, m->path));
    PLEAT_TRY(pleat_plan_read(m->path, &read));
    pleat_plan_free(read);
    return PLEAT_OK;
}

static pleat_result write_and_read_trace(const void *with)
{
    const made *m = with;
    pleat_trace *read;
    PLEAT_TRY(pleat_trace_write(m->trace, m->path));
    PLEAT_TRY(pleat_trace_read(m->path, &read));
    pleat_trace_free(read);
    return PLEAT_OK;
}

static pleat_result make_instance(const void *with)
{
    const made *m = with;
    const pleat__fraction x = {9, 1};
    pleat_plan *instance;
    PLEAT_TRY(pleat__elastic_instance(m->plan, x, NULL, NULL, &instance));
    pleat_plan_free(instance);
    return PLEAT_OK;
}

static pleat_result read_snapshot(const void *with)
{
    const made *m = with;
    pleat_trace *trace;
    PLEAT_TRY(pleat__snapshot_decode("t.pickle", m->bytes.data, m->bytes.size, PLEAT__ANY_DEVICE,
                                     NULL, &trace));
    pleat_trace_free(trace);
    return PLEAT_OK;
}

/* ---- tests ---- */

static void host_memory_for_plans_may_fail(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x40);
    static const pleat_plan_options options = {.size = sizeof options, .chunk_bytes = CHUNK};
    pleat_trace *const traces[] = {test_job(&random, 1, true, 200), test_job(&random, 2, true, 200),
                                   test_job_of_turns(2, 9, 5 * CHUNK)};
    for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
        pleat_plan *plan;
        pleat_trace *trace = traces[i];
        fail_each(make_plan, trace);
        assert_ok(pleat_plan_make(trace, &options, &plan));
        const made m = {.trace = trace, .plan = plan, .path = test_path("m.plan")};
        fail_each(verify_plan, &m);
        fail_each(write_and_read_plan, &m);
        fail_each(write_and_read_trace, &m);
        assert_int_equal(unlink(m.path), 0);
        pleat_plan_free(plan);
        pleat_trace_free(trace);
    }
}

static void host_memory_for_other_sizes_may_fail(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x41);
    const uint64_t us[] = {2, 6};
    job j = random_job(&random, false);
    j.steps = 150;
    pleat_plan *plan = plan_of(&j, us, 2, NULL);
    const made m = {.plan = plan, .path = test_path("m.plan")};
    fail_each(verify_plan, &m);
    fail_each(write_and_read_plan, &m);
    fail_each(make_instance, &m);
    assert_int_equal(unlink(m.path), 0);
    pleat_plan_free(plan);
}

static void host_memory_for_snapshots_may_fail(void **state)
{
    (void)state;
#define EVENT(action, address, time)                                                               \
    "{'action': '" action "', 'addr': " address ", 'size': 4096, 'stream': 7, 'time_us': " time    \
    ", 'user_metadata': 'iter=1', 'frames': [{'name': 'f', 'filename': 'a.py', 'line': 3}]}, "
    made m = {
        .bytes = test_pickle(4, "{'segments': [], 'device_traces': [[" EVENT("alloc", "4096", "1")
                                    EVENT("alloc", "8192", "2") EVENT("free_requested", "4096", "3")
                                        EVENT("free_completed", "4096", "4") "]]}")};
    fail_each(read_snapshot, &m);
    test_bytes_free(&m.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_for_plans_may_fail),
        cmocka_unit_test(host_memory_for_other_sizes_may_fail),
        cmocka_unit_test(host_memory_for_snapshots_may_fail),
    };
    return cmocka_run_group_tests_name("host_memory", tests, NULL, test_folder_remove);
}
