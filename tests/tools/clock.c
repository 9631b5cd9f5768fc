/*
 * clock.c: a quantile of times is the one that a sort would give.
 */
#include "../test.h"

#include <stdlib.h>
#include <string.h>
#include <tools/clock.h>

#define MOST 200u

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void quantile_is_what_a_sort_gives(const uint64_t *samples, size_t count, double share)
{
    uint64_t sorted[MOST], copy[MOST];
    memcpy(sorted, samples, count * sizeof *samples);
    memcpy(copy, samples, count * sizeof *samples);
    qsort(sorted, count, sizeof *sorted, compare);
    size_t at = (size_t)(share * (double)count);
    assert_int_equal(clock_quantile(copy, count, share), sorted[at < count ? at : count - 1]);
    qsort(copy, count, sizeof *copy, compare);
    assert_memory_equal(copy, sorted, count * sizeof *sorted);
}

static void clock_quantile_of_drawn_times(void **state)
{
    (void)state;
    static const double shares[] = {0, 0.5, 0.99, 0.999, 1};
    test_random drawn = test_random_begin("clock_quantile", 0x715);
    for (int turn = 0; turn < 2000; turn++) {
        uint64_t samples[MOST];
        size_t count = 1 + test_random_below(&drawn, MOST);
        uint64_t kinds =
            1 + test_random_below(&drawn, 300); /* often the same time more than once */
        for (size_t i = 0; i < count; i++)
            samples[i] = test_random_below(&drawn, kinds);
        for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
            quantile_is_what_a_sort_gives(samples, count, shares[i]);
    }
}

static void clock_quantile_of_times_in_order(void **state)
{
    (void)state;
    uint64_t up[MOST], down[MOST], same[MOST] = {0};
    for (size_t i = 0; i < MOST; i++) {
        up[i] = i;
        down[i] = MOST - i;
    }
    quantile_is_what_a_sort_gives(up, MOST, 0.5);
    quantile_is_what_a_sort_gives(down, MOST, 0.999);
    quantile_is_what_a_sort_gives(same, MOST, 0.5);
    assert_int_equal(clock_quantile(up, 0, 0.5), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clock_quantile_of_drawn_times),
        cmocka_unit_test(clock_quantile_of_times_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
