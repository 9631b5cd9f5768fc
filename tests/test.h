/*
 * test.h: what every test program includes: cmocka with its headers in order, and seeded
 * randomness.
 */
#ifndef PLEAT_TESTS_TEST_H
#define PLEAT_TESTS_TEST_H

/* cmocka.h wants these four first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pleat/base.h>
#include <stdio.h>
#include <stdlib.h>

/* Fails the test with the library's own text. */
#define assert_ok(expression)                                                                      \
    do {                                                                                           \
        pleat_result assert_ok_result_ = (expression);                                             \
        if (assert_ok_result_ != PLEAT_OK)                                                         \
            fail_msg("%s: %s: %s", #expression, pleat_result_name(assert_ok_result_),              \
                     pleat_last_error()->text);                                                    \
    } while (0)

#define assert_result(expression, expected)                                                        \
    assert_string_equal(pleat_result_name(expression), pleat_result_name(expected))

/* splitmix64: small, and the same everywhere. */
typedef struct test_random {
    uint64_t state;
} test_random;

/* Prints the seed; PLEAT_TEST_SEED gives it back. */
static inline test_random test_random_begin(const char *name, uint64_t seed)
{
    const char *given = getenv("PLEAT_TEST_SEED");
    if (given != NULL)
        seed = strtoull(given, NULL, 0);
    print_message("%s: PLEAT_TEST_SEED=0x%llx\n", name, (unsigned long long)seed);
    return (test_random){seed};
}

static inline uint64_t test_random_next(test_random *random)
{
    uint64_t z = (random->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* How many of so many seeds, steps or seconds are tried: one under the thread sanitizer, ten times
 * as slow, where each brings the same threads together and only what they work on differs; one by
 * Clang, whose code does another thing than GCC's at the first already; and one where another build
 * of the same check tries them all, and audits (PLEAT_TEST_ONE_ROUND). */
static inline uint64_t test_rounds(uint64_t count)
{
#if defined(__SANITIZE_THREAD__) || defined(__clang__) || defined(PLEAT_TEST_ONE_ROUND)
    return count > 0;
#else
    return count;
#endif
}

/* In a test of what one thread makes, while others of its file bring the same threads together: the
 * thread sanitizer would find nothing there, and takes ten times as long. */
static inline void test_of_one_thread(void)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
}

/* 0 .. bound - 1 */
static inline uint64_t test_random_below(test_random *random, uint64_t bound)
{
    return test_random_next(random) % bound;
}

#endif
