/*
 * size.c: sizes as people write them: what is one, what is none.
 */
#include "../../test.h"

#include <pleat/base.h>

static void size_is_read_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"0", 0},
                 {"65536", 65536},
                 {"16b", 16},
                 {"64k", 65536},
                 {"64KiB", 65536},
                 {"64kb", 65536},
                 {"1.5GiB", UINT64_C(3) << 29},
                 {"0.0001k", 0},
                 {"16777215t", UINT64_C(16777215) << 40}};
    static const char *const none[] = {"",
                                       "much",
                                       "0.5",
                                       "1.5",
                                       ".4b",
                                       "0x10",
                                       "1e9",
                                       " 5m",
                                       "+5m",
                                       "-0",
                                       "-1",
                                       "5 m",
                                       "inf",
                                       "nan",
                                       "1kk",
                                       "1.5q",
                                       "1.",
                                       "5m ",
                                       "k",
                                       "ib",
                                       "1.5.5k",
                                       "16777216t",
                                       "18446744073709551616"};
    uint64_t bytes;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_true(pleat_size_parse(sizes[i].text, &bytes));
        assert_int_equal(bytes, sizes[i].bytes);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(pleat_size_parse(none[i], &bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_is_read_or_refused),
    };
    return cmocka_run_group_tests_name("size", tests, NULL, NULL);
}
