/*
 * plan_cache.c: plans kept for next runs: how they are found, what is trusted, and that there is
 * room.
 */
#include "../child.h"
#include "kept_plans.h"
#include "plans.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/stat.h>

#define PROGRAM "python3 train.py"

static void write_plan(uint64_t first, uint64_t program, uint64_t most_bytes)
{
    const pleat__plan_key key = {.first = first, .beginning = first + 1, .program = program};
    pleat_plan *plan = test_plan();
    assert_ok(pleat__plan_cache_write(cache, &key, plan, PROGRAM, most_bytes));
    pleat_plan_free(plan);
}

static const char *name_in(const char *path)
{
    return strrchr(path, '/') + 1;
}

static uint64_t found_program(uint64_t first, uint64_t program)
{
    pleat__arena *arena;
    pleat__kept_plan *plans, found = {0};
    assert_ok(pleat__arena_create(&arena));
    size_t count = list_plans(arena, &plans);
    bool any = pleat__plan_cache_find(plans, count, first, program, &found);
    pleat__arena_destroy(arena);
    return any ? found.key.program : 0;
}

/* ---- tests ---- */

static void plan_cache_gives_what_was_written(void **state)
{
    (void)state;
    pleat_plan *read;
    write_plan(7, 9, 1 << 20);
    write_plan(7, 9, 1 << 20); /* the same key: the same file */
    const char *name = name_in(only_plan());
    assert_ok(pleat__plan_cache_read(cache, name, &read));
    assert_string_equal(pleat__plan_cache_program(read), PROGRAM);
    pleat_plan_free(read);
    assert_ok(pleat__plan_cache_remove(cache, name));
    assert_int_equal(pleat__plan_cache_remove(cache, name), PLEAT_E_NOT_FOUND);
    assert_int_equal(count_plans(), 0);
}

static void plan_cache_finds_the_same_programs_last_used(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__kept_plan *plans;
    write_plan(7, 1, 1 << 20);
    write_plan(7, 2, 1 << 20);
    write_plan(8, 3, 1 << 20);
    assert_ok(pleat__arena_create(&arena));
    size_t count = list_plans(arena, &plans);
    for (size_t i = 0; i < count; i++)
        used_at(path_of(plans[i].name), plans[i].key.program == 1 ? 2000 : 1000);
    pleat__arena_destroy(arena);
    assert_int_equal(found_program(7, 2), 2);
    assert_int_equal(found_program(7, 99), 0);
    assert_int_equal(found_program(9, 1), 0);
}

static void plan_cache_finds_of_two_beginnings_the_one_used_last(void **state)
{
    (void)state;
    pleat__plan_key keys[2] = {{.first = 7, .beginning = 1, .program = 5},
                               {.first = 7, .beginning = 2, .program = 5}};
    for (int i = 0; i < 2; i++) {
        pleat_plan *plan = test_plan();
        assert_ok(pleat__plan_cache_write(cache, &keys[i], plan, PROGRAM, 1 << 20));
        pleat_plan_free(plan);
    }
    for (uint64_t last = 1; last <= 2; last++) {
        pleat__arena *arena;
        pleat__kept_plan *plans, found;
        assert_ok(pleat__arena_create(&arena));
        size_t count = list_plans(arena, &plans);
        assert_int_equal(count, 2);
        for (size_t i = 0; i < count; i++)
            used_at(path_of(plans[i].name), plans[i].key.beginning == last ? 2000 : 1000);
        count = list_plans(arena, &plans);
        assert_true(pleat__plan_cache_find(plans, count, 7, 5, &found));
        assert_int_equal(found.key.beginning, last);
        pleat__arena_destroy(arena);
    }
}

static void plan_cache_keys_tell_beginnings_apart(void **state)
{
    (void)state;
    pleat_trace *trace;
    pleat__plan_key one, other;
    uint16_t stream;
    assert_ok(pleat_trace_new(&trace));
    assert_ok(pleat_trace_add_stream(trace, 0, &stream));
    assert_false(pleat__plan_key_of(trace, 0, 2 << 20, 5, &one));
    for (uint32_t i = 0; i < 40; i++)
        assert_ok(pleat_trace_add(
            trace,
            &(pleat_trace_event){.kind = PLEAT_EVENT_ALLOC, .request = i, .size = 512 * (i + 1)}));
    assert_true(pleat__plan_key_of(trace, 0, 2 << 20, 5, &one));
    assert_int_equal(one.first, pleat__plan_key_first(2 << 20, 512));
    assert_int_not_equal(one.first, pleat__plan_key_first(4 << 20, 512));
    assert_int_not_equal(one.first, pleat__plan_key_first(2 << 20, 1024));
    /* What comes behind the beginning does not count. */
    assert_ok(pleat_trace_add(
        trace, &(pleat_trace_event){.kind = PLEAT_EVENT_ALLOC, .request = 40, .size = 4096}));
    assert_true(pleat__plan_key_of(trace, 0, 2 << 20, 5, &other));
    assert_memory_equal(&one, &other, sizeof one);
    pleat_trace_free(trace);
}

static void plan_cache_makes_room_and_never_by_what_it_writes(void **state)
{
    (void)state;
    struct stat status;
    write_plan(1, 1, 1 << 20);
    assert_int_equal(stat(only_plan(), &status), 0);
    uint64_t bytes = (uint64_t)status.st_size;
    used_at(only_plan(), 1000);
    write_plan(2, 2, 5 * bytes / 2); /* both fit */
    assert_int_equal(count_plans(), 2);
    write_plan(3, 3, 5 * bytes / 2); /* the one used longest ago goes */
    assert_int_equal(count_plans(), 2);
    assert_int_equal(found_program(1, 1), 0);
    assert_int_equal(found_program(3, 3), 3);
    const pleat__plan_key key = {.first = 4};
    pleat_plan *plan = test_plan();
    assert_int_equal(pleat__plan_cache_write(cache, &key, plan, PROGRAM, bytes / 2), PLEAT_E_LIMIT);
    pleat_plan_free(plan);
    assert_int_equal(found_program(4, 0), 0);
    assert_int_equal(count_plans(), 2); /* those that were there stay */
}

/* A plan that was used after it, by another machine's clock, makes room as well; and what is half
 * written is as old as it is beside the one that was just written. */
static void plan_cache_makes_room_by_what_is_said_to_be_newer(void **state)
{
    (void)state;
    struct stat status;
    write_plan(1, 1, 1 << 20);
    assert_int_equal(stat(only_plan(), &status), 0);
    uint64_t bytes = (uint64_t)status.st_size;
    used_at(only_plan(), time(NULL) + 10000);
    test_file_write(path_of("young.plan.tmp"), "x", 1);
    write_plan(2, 2, 5 * bytes / 2); /* both fit */
    assert_int_equal(count_plans(), 2);
    assert_int_equal(access(path_of("young.plan.tmp"), F_OK), 0);
    write_plan(2, 2, 3 * bytes / 2);
    assert_int_equal(count_plans(), 1);
    assert_int_equal(found_program(2, 2), 2);
}

/* A file system without files that have no name has them under such ones. */
static void plan_cache_removes_what_was_left_half_written(void **state)
{
    (void)state;
    static const char *const names[] = {"old.plan.tmp", "young.plan.tmp", "old.txt"};
    for (size_t i = 0; i < 3; i++) {
        test_file_write(path_of(names[i]), "x", 1);
        used_at(path_of(names[i]), time(NULL) - (i == 1 ? 600 : 7200));
    }
    write_plan(1, 1, 1 << 20);
    assert_int_equal(access(path_of(names[0]), F_OK), -1);
    assert_int_equal(access(path_of(names[1]), F_OK), 0);
    assert_int_equal(access(path_of(names[2]), F_OK), 0);
}

static void plan_cache_trusts_no_file_that_others_can_make(void **state)
{
    (void)state;
    char elsewhere[2 * PLEAT__PLAN_CACHE_PATH];
    pleat_plan *read;
    write_plan(1, 1, 1 << 20);
    const char *path = only_plan(), *name = name_in(path);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", cache);
    assert_int_equal(chmod(path, 0620), 0);
    assert_int_equal(pleat__plan_cache_read(cache, name, &read), PLEAT_E_IO);
    assert_int_equal(count_plans(), 0);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    assert_int_equal(pleat__plan_cache_read(cache, name, &read), PLEAT_E_IO);
    assert_int_equal(count_plans(), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody waits for who would write it */
    assert_int_equal(pleat__plan_cache_read(cache, name, &read), PLEAT_E_IO);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(elsewhere, path), 0);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(pleat__plan_cache_read(cache, name, &read), PLEAT_E_INPUT);
    assert_int_equal(truncate(path, (off_t)PLEAT__PLAN_CACHE_FILE_BYTES + 1), 0);
    assert_int_equal(pleat__plan_cache_read(cache, name, &read), PLEAT_E_INPUT);
}

static void plan_cache_is_no_folder_that_others_can_write(void **state)
{
    (void)state;
    char path[PLEAT__PLAN_CACHE_PATH];
    pleat__kept_plan *plans;
    size_t count;
    assert_int_equal(chmod(cache, 0770), 0);
    assert_int_equal(pleat__plan_cache_folder(true, path), PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, "chmod go-w"));
    assert_int_equal(chmod(cache, 0700), 0);
    assert_int_equal(rmdir(cache), 0);
    assert_int_equal(symlink("/tmp", cache), 0);
    assert_int_equal(pleat__plan_cache_folder(true, path), PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, "'/tmp'"));
    assert_int_equal(unlink(cache), 0);
    assert_int_equal(symlink("/nowhere/at/all", cache), 0);
    assert_int_equal(pleat__plan_cache_folder(true, path), PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, "what the link '"));
    assert_int_equal(unlink(cache), 0);
    test_file_write(cache, "x", 1);
    assert_int_equal(chmod(cache, 0600), 0);
    assert_int_equal(pleat__plan_cache_folder(true, path), PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, "is not a folder: no plans"));
    assert_int_equal(pleat__plan_cache_list(cache, NULL, &plans, &count), PLEAT_E_IO);
    assert_int_equal(unlink(cache), 0);
    /* Who only looks makes none, and finds nothing. */
    assert_ok(pleat__plan_cache_folder(false, path));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(count_plans(), 0);
}

static void plan_cache_may_be_behind_a_link_of_this_users(void **state)
{
    (void)state;
    char path[PLEAT__PLAN_CACHE_PATH], elsewhere[PLEAT__PLAN_CACHE_PATH], whole[PATH_MAX];
    snprintf(elsewhere, sizeof elsewhere, "%.*s/elsewhere", (int)(strlen(cache) - strlen("/plans")),
             cache);
    assert_int_equal(rename(cache, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, cache), 0);
    assert_ok(pleat__plan_cache_folder(true, path));
    assert_non_null(realpath(elsewhere, whole));
    assert_string_equal(path, whole);
    assert_int_equal(chmod(elsewhere, 0770), 0);
    assert_int_equal(pleat__plan_cache_folder(true, path), PLEAT_E_IO);
    assert_non_null(
        strstr(pleat_last_error()->text, "elsewhere': no plans are kept there (chmod go-w '"));
    assert_int_equal(chmod(elsewhere, 0700), 0);
    if (geteuid() == 0) {
        assert_int_equal(lchown(cache, 1, 1), 0);
        assert_int_equal(pleat__plan_cache_folder(true, path), PLEAT_E_IO);
        assert_non_null(strstr(pleat_last_error()->text, "is a link that another user made"));
        assert_int_equal(chown(elsewhere, 1, 1), 0);
        assert_int_equal(lchown(cache, 0, 0), 0);
        assert_int_equal(pleat__plan_cache_folder(true, path), PLEAT_E_IO);
        assert_non_null(strstr(pleat_last_error()->text, "belongs to another user"));
        assert_int_equal(chown(elsewhere, 0, 0), 0);
    }
    assert_int_equal(unlink(cache), 0);
    assert_int_equal(rename(elsewhere, cache), 0);
}

static void plan_cache_is_where_the_environment_says(void **state)
{
    (void)state;
    char path[PLEAT__PLAN_CACHE_PATH], home[256];
    snprintf(home, sizeof home, "%s", getenv("HOME") != NULL ? getenv("HOME") : "");
    assert_int_equal(setenv("XDG_CACHE_HOME", "not/absolute", 1), 0);
    assert_int_equal(setenv("HOME", "/nowhere", 1), 0);
    assert_ok(pleat__plan_cache_folder(false, path));
    assert_string_equal(path, "/nowhere/.cache/pleat/plans");
    assert_int_equal(setenv("HOME", "not/absolute", 1), 0);
    assert_int_equal(pleat__plan_cache_folder(false, path), PLEAT_E_NOT_FOUND);
    assert_int_equal(unsetenv("HOME"), 0);
    assert_int_equal(pleat__plan_cache_folder(false, path), PLEAT_E_NOT_FOUND);
    assert_int_equal(setenv("HOME", home, 1), 0);
}

static void plan_cache_leaves_other_files_alone(void **state)
{
    (void)state;
    char path[2 * PLEAT__PLAN_CACHE_PATH];
    static const char *const names[] = {"notes.txt", "0123-4567-89ab.plan", ".plan",
                                        "000000000000000g-0000000000000000-0000000000000000.plan"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", cache, names[i]);
        test_file_write(path, "x", 1);
        assert_int_equal(pleat__plan_cache_remove(cache, names[i]), PLEAT_E_NOT_FOUND);
    }
    assert_int_equal(pleat__plan_cache_remove(cache, "../../etc/passwd"), PLEAT_E_NOT_FOUND);
    write_plan(1, 1, 1 << 20);
    assert_int_equal(
        mkdir(path_of("0000000000000001-0000000000000002-0000000000000003.plan"), 0700), 0);
    assert_int_equal(count_plans(), 1);
    assert_int_equal(access(path, F_OK), 0);
}

/* Ranks that end together. */
static void *write_many(void *context)
{
    uint64_t rank = (uint64_t)(uintptr_t)context;
    for (uint64_t i = 0; i < 30; i++)
        write_plan(i % 3, rank % 2, 1 << 20);
    return NULL;
}

static void plan_cache_is_whole_when_many_write(void **state)
{
    (void)state;
    pthread_t threads[4];
    pleat__arena *arena;
    pleat__kept_plan *plans;
    pid_t child = fork();
    if (child == 0) {
        write_many((void *)(uintptr_t)0);
        _exit(0);
    }
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, (void *)i), 0);
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_child_ends(child);
    assert_ok(pleat__arena_create(&arena));
    size_t count = list_plans(arena, &plans);
    assert_int_equal(count, 6);
    for (size_t i = 0; i < count; i++) {
        pleat_plan *read;
        assert_ok(pleat__plan_cache_read(cache, plans[i].name, &read));
        pleat_plan_free(read);
    }
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CACHE_TEST(plan_cache_gives_what_was_written),
        CACHE_TEST(plan_cache_finds_the_same_programs_last_used),
        CACHE_TEST(plan_cache_finds_of_two_beginnings_the_one_used_last),
        CACHE_TEST(plan_cache_keys_tell_beginnings_apart),
        CACHE_TEST(plan_cache_makes_room_and_never_by_what_it_writes),
        CACHE_TEST(plan_cache_makes_room_by_what_is_said_to_be_newer),
        CACHE_TEST(plan_cache_removes_what_was_left_half_written),
        CACHE_TEST(plan_cache_trusts_no_file_that_others_can_make),
        CACHE_TEST(plan_cache_is_no_folder_that_others_can_write),
        CACHE_TEST(plan_cache_may_be_behind_a_link_of_this_users),
        CACHE_TEST(plan_cache_is_where_the_environment_says),
        CACHE_TEST(plan_cache_leaves_other_files_alone),
        CACHE_TEST(plan_cache_is_whole_when_many_write),
    };
    return cmocka_run_group_tests(tests, NULL, test_folder_remove);
}
