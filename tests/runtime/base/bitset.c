/*
 * bitset.c: a set of small numbers against a map of bytes.
 */
#include "test.h"

#include <runtime/base/bitset.h>

#define MOST 9000u

/* Numbers [0, count), of which about one in `rarity` is in the set. */
static void compare(uint64_t count, uint64_t rarity, test_random *random)
{
    static bool in[MOST];
    pleat__arena *arena;
    pleat__bits bits;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__bits_create(arena, count, &bits));
    for (uint64_t n = 0; n < count; n++) {
        in[n] = test_random_below(random, rarity) == 0;
        pleat__bits_set(&bits, n);
    }
    for (uint64_t n = 0; n < count; n++)
        if (!in[n])
            pleat__bits_clear(&bits, n);
    uint64_t last = PLEAT__BITS_NONE, next = PLEAT__BITS_NONE;
    for (uint64_t n = 0; n < count; n++) {
        last = in[n] ? n : last;
        assert_int_equal(pleat__bits_at_most(&bits, n), last);
    }
    for (uint64_t n = count; n-- > 0;) {
        next = in[n] ? n : next;
        assert_int_equal(pleat__bits_at_least(&bits, n), next);
    }
    for (uint64_t n = count; n < 3 * count; n++)
        assert_int_equal(pleat__bits_at_least(&bits, n), PLEAT__BITS_NONE);
    assert_int_equal(pleat__bits_at_least(&bits, UINT64_MAX), PLEAT__BITS_NONE);
    pleat__bits_destroy(arena, &bits);
    assert_int_equal(pleat__bits_at_least(&bits, 0), PLEAT__BITS_NONE);
    pleat__arena_destroy(arena);
}

static void bitset_agrees_with_a_map_of_bytes(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 63, 64, 65, 4095, 4096, 4097, 4160, 8191, 8192, MOST};
    static const uint64_t rarities[] = {1, 2, 50, 3000, 1u << 30};
    test_random random = test_random_begin("bitset", 0xb175e7);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t r = 0; r < sizeof rarities / sizeof *rarities; r++)
            compare(counts[c], rarities[r], &random);
}

/* As STWeaver's replay of a job of 700 GiB asks for, a number each 512 bytes. */
static void bitset_has_more_numbers_than_five_levels(void **state)
{
    (void)state;
    const uint64_t count = (1ull << 30) + 100;
    pleat__arena *arena;
    pleat__bits bits;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__bits_create(arena, count, &bits));
    pleat__bits_set(&bits, 7);
    pleat__bits_set(&bits, count - 1);
    assert_int_equal(pleat__bits_at_least(&bits, 8), count - 1);
    assert_int_equal(pleat__bits_at_most(&bits, count - 2), 7);
    pleat__bits_clear(&bits, count - 1);
    assert_int_equal(pleat__bits_at_least(&bits, 8), PLEAT__BITS_NONE);
    pleat__bits_destroy(arena, &bits);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bitset_agrees_with_a_map_of_bytes),
        cmocka_unit_test(bitset_has_more_numbers_than_five_levels),
    };
    return cmocka_run_group_tests_name("bitset", tests, NULL, NULL);
}
