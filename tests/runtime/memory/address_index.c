/*
 * address_index.c: the allocations' beginnings in order of address, held against a list of them.
 */
#include "../../test.h"

#include <runtime/memory/address_index.h>
#include <time.h>

#define BASE    (UINT64_C(1) << 40)
#define PAGE    (UINT64_C(2) << 20)
#define PAGES   (UINT64_C(1) << 20)
#define GRANULE UINT64_C(512)

static void address_index_finds_both_neighbours(void **state)
{
    (void)state;
    static const pleat_va begun[] = {BASE,
                                     BASE + GRANULE,
                                     BASE + PAGE - GRANULE,
                                     BASE + 70 * PAGE + 64 * GRANULE,
                                     BASE + 9000 * PAGE,
                                     BASE + PAGES * PAGE - GRANULE};
    const size_t count = sizeof begun / sizeof *begun;
    pleat__arena *arena;
    pleat__address_index index;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__address_index_create(&index, arena, BASE, PAGES * PAGE));
    assert_int_equal(pleat__address_index_at_least(&index, 0), 0);
    assert_int_equal(pleat__address_index_at_most(&index, UINT64_MAX), 0);
    for (size_t i = 0; i < count; i++)
        assert_ok(pleat__address_index_add(&index, begun[i]));
    assert_int_equal(pleat__address_index_at_most(&index, BASE - 1), 0);
    assert_int_equal(pleat__address_index_at_least(&index, 0), begun[0]);
    for (size_t i = 0; i < count; i++) {
        pleat_va next = i + 1 < count ? begun[i + 1] : 0;
        assert_int_equal(pleat__address_index_at_most(&index, begun[i]), begun[i]);
        assert_int_equal(pleat__address_index_at_most(&index, begun[i] + 1), begun[i]);
        assert_int_equal(pleat__address_index_at_least(&index, begun[i]), begun[i]);
        assert_int_equal(pleat__address_index_at_least(&index, begun[i] + 1), next);
    }
    assert_int_equal(pleat__address_index_at_least(&index, BASE + PAGES * PAGE), 0);
    for (size_t i = 0; i < count; i++) {
        pleat__address_index_remove(&index, begun[i]);
        assert_int_equal(pleat__address_index_at_least(&index, 0),
                         i + 1 < count ? begun[i + 1] : 0);
    }
    pleat__address_index_destroy(&index);
    pleat__arena_destroy(arena);
}

/* Over 2 TiB of addresses between two beginnings: a thousand look-ups take microseconds, and where
 * they go from page to page a second or more. */
static void address_index_passes_over_empty_pages_at_once(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__address_index index;
    const pleat_va last = BASE + (PAGES - 1) * PAGE;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__address_index_create(&index, arena, BASE, PAGES * PAGE));
    assert_ok(pleat__address_index_add(&index, BASE));
    assert_ok(pleat__address_index_add(&index, last));
    clock_t begun = clock();
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(pleat__address_index_at_least(&index, BASE + 1), last);
        assert_int_equal(pleat__address_index_at_most(&index, last - 1), BASE);
    }
    assert_true(clock() - begun < CLOCKS_PER_SEC / 10);
    pleat__address_index_destroy(&index);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_index_finds_both_neighbours),
        cmocka_unit_test(address_index_passes_over_empty_pages_at_once),
    };
    return cmocka_run_group_tests_name("address_index", tests, NULL, NULL);
}
