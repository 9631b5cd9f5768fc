/*
 * interface.c: what base.h says of all calls: structs that begin with their size, and what is given
 * through a pointer where a call fails.
 */
#include "fixture.h"

#include <pleat/ranges.h>

/* A struct as a newer header may have it. */
typedef union newer {
    uint32_t size;
    pleat_runtime_options runtime;
    pleat_pause_options pause;
    pleat_record_options record;
    pleat_plan_options plan;
    pleat_host_options host;
    pleat_limits limits;
    unsigned char bytes[512];
} newer;

#define TAIL 24u /* that the newer header has more */

static fixture f;

static pleat_result make_runtime(const newer *given)
{
    pleat_runtime *made;
    pleat_result result = pleat_runtime_create(f.vmm, &given->runtime, &made);
    if (result == PLEAT_OK)
        pleat_runtime_destroy(made);
    return result;
}

static pleat_result pause_all(const newer *given)
{
    pleat_result result = pleat_pause(f.runtime, &given->pause);
    if (result == PLEAT_OK)
        assert_ok(pleat_resume(f.runtime, NULL));
    return result;
}

static pleat_result record_all(const newer *given)
{
    pleat_result result = pleat_record_begin(f.runtime, &given->record);
    pleat_record_end(f.runtime);
    return result;
}

/* An empty trace has nothing that repeats, which is seen behind the options. */
static pleat_result make_plan(const newer *given)
{
    pleat_trace *trace;
    pleat_plan *plan;
    assert_ok(pleat_trace_new(&trace));
    pleat_result result = pleat_plan_make(trace, &given->plan, &plan);
    assert_int_not_equal(result, PLEAT_OK);
    pleat_trace_free(trace);
    return result == PLEAT_E_INPUT ? PLEAT_OK : result;
}

static pleat_result make_host(const newer *given)
{
    pleat_vmm vmm;
    pleat_result result = pleat_vmm_host(&given->host, &vmm);
    if (result == PLEAT_OK)
        pleat_vmm_destroy(&vmm);
    return result;
}

static const struct {
    const char *name;
    uint32_t first, size;
    pleat_result (*call)(const newer *given);
} calls[] = {
    {"pleat_runtime_options", offsetof(pleat_runtime_options, memory_callback),
     sizeof(pleat_runtime_options), make_runtime},
    {"pleat_pause_options", sizeof(pleat_pause_options), sizeof(pleat_pause_options), pause_all},
    {"pleat_record_options", sizeof(pleat_record_options), sizeof(pleat_record_options),
     record_all},
    {"pleat_plan_options", sizeof(pleat_plan_options), sizeof(pleat_plan_options), make_plan},
    {"pleat_host_options", sizeof(pleat_host_options), sizeof(pleat_host_options), make_host},
};

static void sizes_follow_one_rule(void **state)
{
    (void)state;
    begin(&f, "pleat", 1024 * MIB, 0);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        newer given = {.size = calls[i].size};
        assert_ok(calls[i].call(&given));
        given.size = calls[i].first;
        assert_ok(calls[i].call(&given));
        given.size = calls[i].size + TAIL;
        assert_ok(calls[i].call(&given));
        given.bytes[calls[i].size + TAIL - 1] = 1;
        assert_result(calls[i].call(&given), PLEAT_E_ABI);
        assert_true(has(calls[i].name) && has("is not 0"));
        for (uint32_t wrong = 0; wrong < calls[i].first; wrong += 4) {
            given = (newer){.size = wrong};
            assert_result(calls[i].call(&given), PLEAT_E_ABI);
            assert_true(has(calls[i].name) && has("set .size"));
        }
        given = (newer){.size = UINT32_MAX};
        assert_result(calls[i].call(&given), PLEAT_E_ABI);
        assert_true(has(calls[i].name) && has("set .size"));
    }
    end(&f);
}

/* What the library does not know of a struct that it fills in is 0. */
static void sizes_of_results_follow_it(void **state)
{
    (void)state;
    begin(&f, "pleat", 1024 * MIB, 0);
    newer given;
    memset(&given, 0xff, sizeof given);
    given.size = sizeof(pleat_limits) + TAIL;
    assert_ok(pleat_limits_of(f.runtime, &given.limits));
    assert_int_equal(given.size, sizeof(pleat_limits) + TAIL);
    assert_string_equal(given.limits.name, "the device");
    for (size_t i = sizeof(pleat_limits); i < sizeof given.bytes; i++)
        assert_int_equal(given.bytes[i], i < sizeof(pleat_limits) + TAIL ? 0 : 0xff);
    given.size = sizeof(pleat_limits) - 8;
    assert_result(pleat_limits_of(f.runtime, &given.limits), PLEAT_E_ABI);
    assert_true(has("pleat_limits") && has("set .size"));
    end(&f);
}

/* What is given through a pointer is as it was where a call fails. */
static void calls_that_fail_give_nothing(void **state)
{
    (void)state;
    void *const other = (void *)(uintptr_t)0x77;
    begin(&f, "pleat", 64 * MIB, 0);
    pleat_runtime *runtime = other;
    const pleat_runtime_options bad = {.size = sizeof bad, .policy = "none"};
    assert_int_not_equal(pleat_runtime_create(f.vmm, &bad, &runtime), PLEAT_OK);
    assert_ptr_equal(runtime, other);
    pleat_capture *capture = other;
    assert_int_not_equal(pleat_capture_begin(f.runtime, 1, 128 * MIB, &capture), PLEAT_OK);
    assert_ptr_equal(capture, other);
    pleat_trace *trace = other;
    assert_int_not_equal(pleat_record_copy(f.runtime, &trace), PLEAT_OK);
    assert_ptr_equal(trace, other);
    assert_int_not_equal(pleat_trace_read("/none", &trace), PLEAT_OK);
    assert_ptr_equal(trace, other);
    pleat_plan *plan = other;
    assert_int_not_equal(pleat_plan_read("/none", &plan), PLEAT_OK);
    assert_ptr_equal(plan, other);
    assert_ok(pleat_trace_new(&trace));
    assert_int_not_equal(pleat_plan_make(trace, NULL, &plan), PLEAT_OK);
    assert_ptr_equal(plan, other);
    pleat_trace_free(trace);
    pleat_ranges *ranges = other;
    assert_int_not_equal(pleat_ranges_create(f.vmm, 9, &ranges), PLEAT_OK);
    assert_ptr_equal(ranges, other);
    pleat_va address = 77;
    uint64_t bytes = 77, after = 77;
    assert_ok(pleat_ranges_create(f.vmm, 0, &ranges));
    assert_int_not_equal(pleat_range_make(ranges, 128 * MIB, &address, &bytes), PLEAT_OK);
    assert_int_not_equal(pleat_range_of(ranges, 5, &address, &bytes), PLEAT_OK);
    int descriptor = 77;
    assert_int_not_equal(pleat_range_export(ranges, 5, &descriptor), PLEAT_OK);
    pleat_ranges_destroy(ranges);
    pleat_share share = {.pieces = 77};
    pleat_block block = {.bytes = 77};
    pleat_canary canary = {.checked = 77};
    pleat_vmm vmm = {.self = other};
    const pleat_host_options many = {.size = sizeof many, .devices = -1};
    assert_int_not_equal(pleat_import_begin(f.runtime, 1, &address), PLEAT_OK);
    assert_int_not_equal(pleat_share_of(f.runtime, 5, &share), PLEAT_OK);
    assert_int_not_equal(pleat_share_piece(f.runtime, 5, 0, &descriptor, &bytes), PLEAT_OK);
    assert_int_not_equal(pleat_block_of(f.runtime, 5, &block), PLEAT_OK);
    assert_int_not_equal(pleat_adjacent_free(f.runtime, 5, &bytes, &after), PLEAT_OK);
    assert_int_not_equal(pleat_max_microbatch(f.runtime, 1, &bytes), PLEAT_OK);
    assert_int_not_equal(pleat_canary_of(f.runtime, &canary), PLEAT_OK);
    assert_int_not_equal(pleat_vmm_host(&many, &vmm), PLEAT_OK);
    assert_int_not_equal(pleat_host_physical(&f.host, 5, &bytes), PLEAT_OK);
    assert_int_equal(share.pieces + block.bytes + canary.checked + address + bytes + after, 6 * 77);
    assert_int_equal(descriptor, 77);
    assert_ptr_equal(vmm.self, other);
    assert_int_not_equal(pleat_alloc(f.runtime, 128 * MIB, 0, &address), PLEAT_OK);
    assert_int_equal(address, 0);
    end(&f);
}

/* A program has room for no more of them than it was built with, and nothing says how much. */
static void structs_without_a_size_stay_as_they_are(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t bytes, is;
    } all[] = {
        {"pleat_error", sizeof(pleat_error), 568},
        {"pleat_block", sizeof(pleat_block), 40},
        {"pleat_canary", sizeof(pleat_canary), 24},
        {"pleat_share", sizeof(pleat_share), 24},
        {"pleat_vmm", sizeof(pleat_vmm), 16},
        {"pleat_trace_event", sizeof(pleat_trace_event), 32},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].bytes != all[i].is)
            fail_msg("%s has %zu bytes, not %zu", all[i].name, all[i].bytes, all[i].is);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_follow_one_rule),
        cmocka_unit_test(sizes_of_results_follow_it),
        cmocka_unit_test(calls_that_fail_give_nothing),
        cmocka_unit_test(structs_without_a_size_stay_as_they_are),
    };
    return cmocka_run_group_tests_name("interface", tests, NULL, NULL);
}
