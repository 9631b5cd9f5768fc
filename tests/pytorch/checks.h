/*
 * checks.h: tests in C++: each is a function that checks, and prints its name.
 */
#ifndef PLEAT_TESTS_PYTORCH_CHECKS_H
#define PLEAT_TESTS_PYTORCH_CHECKS_H

#include <cstddef>
#include <cstdio>

namespace
{

int failed = 0;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::printf("    %s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            failed++;                                                                              \
        }                                                                                          \
    } while (0)

constexpr size_t MIB = 1 << 20;

struct Test {
    const char *name;
    void (*run)();
};

#define TEST(name)                                                                                 \
    Test                                                                                           \
    {                                                                                              \
#name, name                                                                                \
    }

/* A program's exit status. */
template <typename Tests> int run_all(const Tests &tests)
{
    setvbuf(stdout, nullptr, _IOLBF, 0);
    for (const Test &test : tests) {
        int before = failed;
        test.run();
        std::printf("%s %s\n", failed == before ? "ok  " : "FAIL", test.name);
    }
    return failed != 0;
}

} // namespace

#endif
