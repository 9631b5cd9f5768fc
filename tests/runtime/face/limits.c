/*
 * limits.c: what the environment allows a process is obeyed, whatever says it, and what is not
 * Pleat's is measured and kept free.
 */
#include "../../vmm/fake_libcuda.h"
#include "fixture.h"

#include <dlfcn.h>

#define DEVICE (64 * MIB)

static const char *const variables[] = {
    "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_1",
    "GPU_MEMORY_LIMIT",         "NVIDIA_GPU_MEMORY_LIMIT",    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"};

static int clear(void **state)
{
    (void)state;
    for (size_t v = 0; v < sizeof variables / sizeof *variables; v++)
        unsetenv(variables[v]);
    return 0;
}

/* Takes memory until it is refused; how much it was. */
static uint64_t fill(pleat_runtime *runtime)
{
    pleat_va address;
    pleat_result result;
    while ((result = pleat_alloc(runtime, MIB, 0, &address)) == PLEAT_OK)
        ;
    assert_true(result == PLEAT_E_BUDGET || result == PLEAT_E_OUT_OF_MEMORY);
    return pleat_stats_of(runtime).physical_bytes;
}

typedef struct case_of {
    const char *name, *value;
    uint64_t allowed;
} case_of;

static void limits_of_each_variable_hold(void **state)
{
    static const case_of cases[] = {
        {"CUDA_DEVICE_MEMORY_LIMIT", "12m", 12 * MIB},
        {"CUDA_DEVICE_MEMORY_LIMIT", "20971520", 20 * MIB},
        {"CUDA_DEVICE_MEMORY_LIMIT_0", "14M", 14 * MIB},
        {"CUDA_DEVICE_MEMORY_LIMIT_1", "14M", DEVICE},
        {"GPU_MEMORY_LIMIT", "16384k", 16 * MIB},
        {"NVIDIA_GPU_MEMORY_LIMIT", "18Mi", 18 * MIB},
        {"NVIDIA_GPU_MEMORY_LIMIT", "18MiB", 18 * MIB},
        {"NVIDIA_GPU_MEMORY_LIMIT", "1Ti", DEVICE},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=22M,1=2M", 22 * MIB},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "host-0=24M", 24 * MIB},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "1=2M", DEVICE},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        fixture f;
        pleat_limits limits = {.size = sizeof limits};
        setenv(cases[c].name, cases[c].value, 1);
        begin(&f, "pleat", DEVICE, 0);
        assert_int_equal(pleat_limit_of(f.runtime), cases[c].allowed);
        assert_int_equal(fill(f.runtime), cases[c].allowed);
        assert_true(has(cases[c].allowed == DEVICE ? "the device's" : cases[c].name));
        assert_ok(pleat_limits_of(f.runtime, &limits));
        assert_string_equal(limits.name, cases[c].allowed == DEVICE ? "the device" : cases[c].name);
        assert_int_equal(limits.process_bytes, cases[c].allowed == DEVICE ? 0 : cases[c].allowed);
        unsetenv(cases[c].name);
        end(&f);
    }
}

/* R20. */
static void limits_the_strictest_counts(void **state)
{
    (void)state;
    fixture f;
    pleat_limits limits = {.size = sizeof limits};
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "30m", 1);
    setenv("GPU_MEMORY_LIMIT", "20m", 1);
    begin(&f, "pleat", DEVICE, 26 * MIB);
    assert_int_equal(pleat_limit_of(f.runtime), 20 * MIB);
    assert_ok(pleat_set_budget(f.runtime, 10 * MIB));
    assert_int_equal(fill(f.runtime), 10 * MIB);
    assert_true(has("a budget of 10.00 MiB"));
    assert_ok(pleat_set_budget(f.runtime, 0));
    assert_int_equal(fill(f.runtime), 20 * MIB);
    assert_ok(pleat_limits_of(f.runtime, &limits));
    assert_string_equal(limits.name, "GPU_MEMORY_LIMIT");
    end(&f);
}

static void limits_what_cannot_be_read_is_refused_by_name(void **state)
{
    static const char *const wrong[] = {
        "lots", "12q", "0=", "=3", "-1", "1.5.2g", "99999999999999t", "0=1G;1=2G", "12m,x"};
    (void)state;
    fixture f;
    open_host(&f, DEVICE, false);
    pleat_runtime_options options = {.size = sizeof options};
    for (size_t v = 0; v < sizeof variables / sizeof *variables; v++)
        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
            setenv(variables[v], wrong[w], 1);
            /* Another device's variable is not read. */
            bool own = strstr(variables[v], "LIMIT_1") == NULL;
            pleat_result result = pleat_runtime_create(f.vmm, &options, &f.runtime);
            assert_result(result, own ? PLEAT_E_INVALID : PLEAT_OK);
            assert_true(!own || (has(variables[v]) && has(wrong[w])));
            if (!own)
                pleat_runtime_destroy(f.runtime);
            unsetenv(variables[v]);
        }
    f.runtime = NULL;
    end(&f);
}

static void limits_what_is_not_pleats_is_kept_free(void **state)
{
    (void)state;
    fixture f;
    pleat_limits limits = {.size = sizeof limits};
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "40m", 1);
    open_host(&f, DEVICE, false);
    assert_ok(pleat__host_set_other(&f.host, 0, 6 * MIB, 0));
    pleat_runtime_options options = {.size = sizeof options};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    assert_int_equal(pleat_limit_of(f.runtime), 34 * MIB);
    assert_int_equal(fill(f.runtime), 34 * MIB);
    /* A library takes some more, and gives it back. */
    assert_ok(pleat__host_set_other(&f.host, 0, 10 * MIB, 0));
    assert_ok(pleat_limits_of(f.runtime, &limits));
    assert_int_equal(limits.other_bytes, 10 * MIB);
    assert_int_equal(limits.limit_bytes, 30 * MIB);
    assert_int_equal(limits.process_bytes, 40 * MIB);
    assert_true(limits.is_measured);
    assert_int_equal(fill(f.runtime), 34 * MIB);
    assert_true(has("less 10.00 MiB that are not Pleat's"));
    assert_ok(pleat__host_set_other(&f.host, 0, 0, 0));
    assert_int_equal(fill(f.runtime), 40 * MIB); /* measured before it is refused */
    end(&f);
}

static void limits_marks_follow_what_is_not_pleats(void **state)
{
    (void)state;
    fixture f;
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "40m", 1);
    open_host(&f, DEVICE, false);
    assert_ok(pleat__host_clock_set(&f.host, 1000));
    pleat_runtime_options options = {.size = sizeof options};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    assert_ok(pleat__host_set_other(&f.host, 0, 8 * MIB, 0));
    assert_ok(pleat_mark(f.runtime));
    assert_int_equal(pleat_limit_of(f.runtime), 40 * MIB); /* not asked again within a second */
    assert_ok(pleat__host_clock_set(&f.host, 1000 + 1000000000u));
    assert_ok(pleat_mark(f.runtime));
    assert_int_equal(pleat_limit_of(f.runtime), 32 * MIB);
    end(&f);
}

static void limits_below_what_there_is_leave_a_chunk(void **state)
{
    (void)state;
    fixture f;
    /* The process has more than it is allowed: a chunk is left, and no more is made. */
    setenv("GPU_MEMORY_LIMIT", "8m", 1);
    open_host(&f, DEVICE, false);
    assert_ok(pleat__host_set_other(&f.host, 0, 20 * MIB, 0));
    pleat_runtime_options options = {.size = sizeof options};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    assert_int_equal(fill(f.runtime), 2 * MIB);
    end(&f);
}

typedef void (*set_call)(uint64_t other, uint64_t limit, bool stranger);

static set_call find_set(void)
{
    set_call set = NULL;
    void *library = dlopen(getenv("PLEAT_CUDA_LIBRARY"), RTLD_NOW), *found = NULL;
    assert_non_null(library);
    found = dlsym(library, "fake_nvml_set");
    assert_non_null(found);
    memcpy(&set, &found, sizeof found);
    return set;
}

static void limits_of_the_driver_hold(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pleat_limits limits = {.size = sizeof limits};
    char identity[PLEAT_DEVICE_NAME_BYTES];
    assert_ok(pleat_vmm_cuda(&vmm));
    set_call set = find_set();
    assert_ok(vmm.ops->identify(vmm.self, 1, identity));
    assert_string_equal(identity, "GPU-01122334-4556-6778-899a-abbccddeef00");
    set(6 * MIB, 40 * MIB, false);
    pleat_runtime_options options = {.size = sizeof options};
    assert_ok(pleat_runtime_create(vmm, &options, &runtime));
    assert_int_equal(pleat_limit_of(runtime), 34 * MIB);
    assert_int_equal(fill(runtime), 34 * MIB);
    assert_true(has("the control group's limit leaves (40.00 MiB, less 6.00 MiB"));
    assert_ok(pleat_limits_of(runtime, &limits));
    assert_string_equal(limits.name, "the control group's limit");
    /* NVML knows this process by another number: nothing is measured, and what was known holds. */
    set(20 * MIB, 40 * MIB, true);
    assert_ok(pleat_limits_of(runtime, &limits));
    assert_false(limits.is_measured);
    assert_int_equal(limits.limit_bytes, 34 * MIB);
    set(0, 0, false);
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(limits_of_each_variable_hold, clear),
        cmocka_unit_test_teardown(limits_the_strictest_counts, clear),
        cmocka_unit_test_teardown(limits_what_cannot_be_read_is_refused_by_name, clear),
        cmocka_unit_test_teardown(limits_what_is_not_pleats_is_kept_free, clear),
        cmocka_unit_test_teardown(limits_marks_follow_what_is_not_pleats, clear),
        cmocka_unit_test_teardown(limits_below_what_there_is_leave_a_chunk, clear),
        cmocka_unit_test_teardown(limits_of_the_driver_hold, clear),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
