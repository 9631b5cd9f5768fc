/*
 * refusal.c: a request that is refused: what it leaves behind, and what its text says.
 */
#include "fixture.h"

static uint64_t physical(const fixture *f)
{
    return pleat_stats_of(f->runtime).physical_bytes;
}

/* Blocks of 40 MiB, every other one of which is free. */
static void fill_with_holes(fixture *f)
{
    pleat_va blocks[20];
    for (int b = 0; b < 20; b++)
        blocks[b] = take(f, 40 * MIB, 0);
    for (int b = 0; b < 20; b += 2)
        assert_ok(pleat_free(f->runtime, blocks[b]));
}

/* Neither what the budget leaves nor what the device has is made for what does not fit. */
static void refusal_takes_no_memory(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++)
        for (int by_budget = 0; by_budget <= 1; by_budget++) {
            fixture f;
            pleat_va address;
            begin(&f, policies[p], by_budget ? 4096 * MIB : 2048 * MIB, by_budget ? 2048 * MIB : 0);
            fill_with_holes(&f);
            uint64_t before = physical(&f);
            assert_result(pleat_alloc(f.runtime, 1650 * MIB, 0, &address),
                          by_budget ? PLEAT_E_BUDGET : PLEAT_E_OUT_OF_MEMORY);
            assert_true(physical(&f) <= before);
            if (strcmp(policies[p], "pleat") == 0)
                assert_int_equal(pleat_stats_of(f.runtime).peak_physical_bytes, before);
            end(&f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusal_takes_no_memory),
    };
    return cmocka_run_group_tests_name("refusal", tests, NULL, NULL);
}
