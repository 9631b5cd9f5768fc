/*
 * wide.c: devices of terabytes, on which 32 bits number the granules of two: a request that would
 * reach beyond them has no place among them.
 */
#include "fixture.h"

#include <vmm/host/dry.h>

#define GIB        (1024 * MIB)
#define REQUESTS   400
#define GROWS      20 /* this one has another size in each iteration */
#define ITERATIONS 13 /* in the last one it grows beyond the last granule */

static void wide_places_end_at_the_last_granule(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pleat_va live[2], at[REQUESTS];
    assert_ok(pleat__vmm_dry(2040 * GIB, 2 * MIB, &vmm));
    pleat_runtime_options options = {.size = sizeof options, .waits = 1};
    assert_ok(pleat_runtime_create(vmm, &options, &runtime));
    for (int t = 0; t < 2; t++)
        assert_ok(pleat_alloc(runtime, 620 * GIB, 0, &live[t]));
    for (uint64_t i = 1; i <= ITERATIONS; i++) {
        assert_ok(pleat_mark(runtime));
        for (uint64_t r = 0; r < REQUESTS; r++) {
            uint64_t grown = i == ITERATIONS ? 900 * GIB : GIB + i % 3 * 2 * MIB;
            pleat_result result =
                pleat_alloc(runtime, r == GROWS ? grown : (r % 50 + 1) * MIB, 0, &at[r]);
            assert_result(result, r == GROWS && i == ITERATIONS ? PLEAT_E_OUT_OF_MEMORY : PLEAT_OK);
        }
        for (int r = 0; r < REQUESTS; r++)
            assert_ok(pleat_free(runtime, at[r]));
    }
    assert_true(pleat_stats_of(runtime).planned > 0);
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_places_end_at_the_last_granule),
    };
    return cmocka_run_group_tests_name("wide", tests, NULL, NULL);
}
