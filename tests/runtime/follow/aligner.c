/*
 * aligner.c: which items an aligner takes for soft, against a search of all pairs, and what gaps
 * between a plan's requests it knows.
 */
#include "test.h"

#include <runtime/follow/schedule.h>

#define ITEMS_MOST 40u
#define COMPANY    4u /* items before and behind among which a dynamic one makes an item soft */

/* Whether a dynamic item is among the COMPANY ones before it, or behind it. */
static bool has_company(const bool *dynamic, uint32_t count, uint32_t item, bool behind)
{
    bool found = false;
    for (uint32_t by = 1; by <= COMPANY; by++) {
        if (behind ? item + by < count : item >= by)
            found |= dynamic[behind ? item + by : item - by];
    }
    return found;
}

static void items_between_dynamic_ones_are_soft(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x50f7);
    for (int round = 0; round < 2000; round++) {
        bool dynamic[ITEMS_MOST], any = false;
        pleat__expected items[ITEMS_MOST] = {{0}};
        pleat__aligner aligner;
        uint32_t count = 1 + (uint32_t)test_random_below(&random, ITEMS_MOST);
        uint64_t rare = 2 + test_random_below(&random, 8);
        for (uint32_t i = 0; i < count; i++) {
            dynamic[i] = test_random_below(&random, rare) == 0;
            any |= dynamic[i];
            items[i].kind = dynamic[i] ? PLEAT__ITEM_DYNAMIC : PLEAT__ITEM_SLOT;
        }
        assert_int_equal(pleat__aligner_init(&aligner, items, 0, count), any);
        for (uint32_t i = 0; i < count; i++) {
            bool soft =
                has_company(dynamic, count, i, false) && has_company(dynamic, count, i, true);
            assert_int_equal(items[i].soft, soft && !dynamic[i]);
            assert_int_equal(pleat__aligner_is_fixed(&aligner, i), !dynamic[i] && !soft);
        }
    }
}

/* More frees before a request than are told apart. */
static void gaps_of_a_plan_end_below_unknown(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__schedule *schedule;
    pleat__slot slots[4];
    static const uint32_t alloc_at[] = {3, 4 + 126, 5 + 126 + 127, 6 + 126 + 127 + 300};
    for (uint32_t i = 0; i < 4; i++)
        slots[i] = (pleat__slot){.size = 512,
                                 .class = PLEAT__CLASS_DYNAMIC,
                                 .alloc_at = alloc_at[i],
                                 .lane = PLEAT__NO_LANE};
    const pleat__chunk_pool pool = {.page_bytes = 2 << 20};
    const pleat_plan plan = {.chunk_bytes = 2 << 20,
                             .virtual_bytes = 2 << 20,
                             .steady = {.slots = slots, .slot_count = 4}};
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__schedule_plan(arena, &pool, &plan, &schedule));
    assert_int_equal(schedule->items[0].gap, 3);
    for (uint32_t i = 1; i < 4; i++)
        assert_int_equal(schedule->items[i].gap, PLEAT__GAP_UNKNOWN - 1);
    pleat__schedule_free(schedule);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_between_dynamic_ones_are_soft),
        cmocka_unit_test(gaps_of_a_plan_end_below_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
