/*
 * aligner.c: which items an aligner takes for soft, against a search of all pairs.
 */
#include "test.h"

#include <runtime/follow/aligner.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_between_dynamic_ones_are_soft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
