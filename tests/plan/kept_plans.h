/*
 * kept_plans.h: plans that are kept for next runs, in a folder of the test's own.
 */
#ifndef PLEAT_TESTS_PLAN_KEPT_PLANS_H
#define PLEAT_TESTS_PLAN_KEPT_PLANS_H

#include "files.h"

#include <fcntl.h>
#include <plan/file/plan_cache.h>
#include <sys/stat.h>
#include <time.h>

static char cache[PLEAT__PLAN_CACHE_PATH]; /* where they are */

/* Before and after each test. */
static inline int cache_begin(void **state)
{
    (void)state;
    assert_int_equal(setenv("XDG_CACHE_HOME", test_folder(), 1), 0);
    assert_ok(pleat__plan_cache_folder(true, cache));
    return 0;
}

static inline int cache_end(void **state)
{
    (void)state;
    char command[PLEAT__PLAN_CACHE_PATH + 32];
    snprintf(command, sizeof command, "rm -rf %s/pleat", test_folder());
    return system(command);
}

#define CACHE_TEST(name) cmocka_unit_test_setup_teardown(name, cache_begin, cache_end)

static inline size_t list_plans(pleat__arena *arena, pleat__kept_plan **plans)
{
    size_t count;
    assert_ok(pleat__plan_cache_list(cache, arena, plans, &count));
    return count;
}

static inline size_t count_plans(void)
{
    pleat__arena *arena;
    pleat__kept_plan *plans;
    assert_ok(pleat__arena_create(&arena));
    size_t count = list_plans(arena, &plans);
    pleat__arena_destroy(arena);
    return count;
}

/* The path of a file there, until the next call. */
static inline const char *path_of(const char *name)
{
    static char path[2 * PLEAT__PLAN_CACHE_PATH];
    snprintf(path, sizeof path, "%s/%s", cache, name);
    return path;
}

/* The only plan that there is. */
static inline const char *only_plan(void)
{
    pleat__arena *arena;
    pleat__kept_plan *plans;
    assert_ok(pleat__arena_create(&arena));
    assert_int_equal(list_plans(arena, &plans), 1);
    const char *path = path_of(plans[0].name);
    pleat__arena_destroy(arena);
    return path;
}

/* So that the order of use does not hang on the clock's steps. */
static inline void used_at(const char *path, time_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

#endif
