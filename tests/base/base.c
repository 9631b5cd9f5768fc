/*
 * base.c: results and their texts, the thread's last error, ranges, arenas.
 */
#include "commas.h"
#include "test.h"

#include <errno.h>
#include <internal/arena.h>
#include <internal/error.h>
#include <internal/range.h>
#include <internal/thread.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static void result_every_one_has_name_and_text(void **state)
{
    (void)state;
#define EXPECT(name, value, text)                                                                  \
    assert_string_equal(pleat_result_name(PLEAT_##name), "PLEAT_" #name);                          \
    assert_string_equal(pleat_result_text(PLEAT_##name), text);
    PLEAT_RESULTS(EXPECT)
#undef EXPECT
    assert_string_equal(pleat_result_name((pleat_result)9999), "PLEAT_E_UNKNOWN");
}

static void error_keeps_code_and_context(void **state)
{
    (void)state;
    assert_result(pleat__fail_native(PLEAT_E_DRIVER, 2, "CUDA_ERROR_OUT_OF_MEMORY", "create %d", 7),
                  PLEAT_E_DRIVER);
    assert_int_equal(pleat_last_error()->native, 2);
    assert_string_equal(pleat_last_error()->native_name, "CUDA_ERROR_OUT_OF_MEMORY");
    assert_result(pleat__context(PLEAT_E_DRIVER, "device %d", 0), PLEAT_E_DRIVER);
    assert_string_equal(pleat_last_error()->text, "device 0: create 7");
    assert_result(pleat__context(PLEAT_E_DRIVER, "device %d", 0), PLEAT_E_DRIVER);
    assert_string_equal(pleat_last_error()->text, "device 0: create 7");
    const pleat_error first = *pleat_last_error();
    errno = ENOENT;
    assert_result(pleat__fail_errno(PLEAT_E_IO, "open 'x'"), PLEAT_E_IO);
    assert_string_equal(pleat_last_error()->text, "open 'x': No such file or directory");
    assert_int_equal(pleat_last_error()->native, ENOENT);
    assert_string_equal(pleat_last_error()->native_name, "ENOENT");
    errno = EFBIG;
    assert_result(pleat__fail_errno(PLEAT_E_IO, "write 'x'"), PLEAT_E_IO);
    assert_string_equal(pleat_last_error()->native_name, "EFBIG");
    errno = 9999;
    assert_result(pleat__fail_errno(PLEAT_E_IO, "write 'x'"), PLEAT_E_IO);
    assert_string_equal(pleat_last_error()->native_name, "errno 9999");
    assert_result(pleat__fail_again(&first), PLEAT_E_DRIVER);
    assert_memory_equal(pleat_last_error(), &first, sizeof first);
}

static void error_numbers_have_a_point_in_every_locale(void **state)
{
    (void)state;
    test_commas_begin();
    assert_result(pleat__fail(PLEAT_E_LIMIT, "%.2f MiB", 1.5), PLEAT_E_LIMIT);
    assert_string_equal(pleat_last_error()->text, "1.50 MiB");
    assert_result(pleat__context(PLEAT_E_LIMIT, "%g s", 0.25), PLEAT_E_LIMIT);
    assert_string_equal(pleat_last_error()->text, "0.25 s: 1.50 MiB");
    char text[16];
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5"); /* the program's own is as it was */
    test_commas_end();
}

static void error_that_is_kept_is_of_its_own_result(void **state)
{
    (void)state;
    assert_result(pleat_fail(PLEAT_E_LIMIT, "100%"), PLEAT_E_LIMIT);
    pleat_error why = pleat__failure(PLEAT_E_LIMIT), other = pleat__failure(PLEAT_E_DRIVER);
    assert_string_equal(why.text, "100%");
    assert_result(other.result, PLEAT_E_DRIVER);
    assert_string_equal(other.text, pleat_result_text(PLEAT_E_DRIVER));
    assert_result(pleat__fail_again(&other), PLEAT_E_DRIVER);
    assert_string_equal(pleat_last_error()->text, other.text);
    assert_result(pleat__fail_again(&why), PLEAT_E_LIMIT);
    assert_string_equal(pleat_last_error()->text, "100%");
    assert_result(pleat_fail(PLEAT_E_DRIVER, pleat_last_error()->text), PLEAT_E_DRIVER);
    assert_string_equal(pleat_last_error()->text, "100%");
    pleat_error none = pleat__failure(PLEAT_OK);
    assert_result(pleat__fail_again(&none), PLEAT_OK);
    assert_string_equal(pleat_last_error()->text, "100%");
}

static void error_long_texts_are_cut(void **state)
{
    (void)state;
    char text[1000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    pleat__fail(PLEAT_E_INPUT, "%s", text);
    pleat__context(PLEAT_E_INPUT, "%s", text);
    assert_int_equal(strlen(pleat_last_error()->text), sizeof pleat_last_error()->text - 1);
}

static void range_arithmetic_says_overflow(void **state)
{
    (void)state;
    uint64_t out = 5;
    assert_false(pleat__add(UINT64_MAX, 1, &out));
    assert_false(pleat__mul(UINT64_MAX / 2, 3, &out));
    assert_false(pleat__round_up(UINT64_MAX - 3, 4096, &out));
    assert_int_equal(out, 5);
    assert_true(pleat__round_up(4097, 4096, &out));
    assert_int_equal(out, 8192);
    pleat__range range;
    assert_false(pleat__range_make(UINT64_MAX, 2, &range));
    assert_true(pleat__range_make(2, 3, &range));
    assert_int_equal(range.end, 5);
    assert_int_equal(pleat__ceil_div(UINT64_MAX, 2), UINT64_MAX / 2 + 1);
}

static void range_half_open_overlap(void **state)
{
    (void)state;
    pleat__range a = {0, 10}, b = {10, 20}, c = {9, 10}, empty = {5, 5};
    assert_false(pleat__range_overlaps(a, b));
    assert_true(pleat__range_overlaps(a, c));
    assert_false(pleat__range_overlaps(a, empty));
    assert_true(pleat__range_contains(a, c));
    assert_false(pleat__range_contains(a, b));
}

/* A large page can only hold what begins and ends with one. */
static void arena_begins_large_blocks_at_large_pages(void **state)
{
    (void)state;
#ifdef PLEAT_ARENAS_OF_MALLOC
    skip();
#else
    pleat__arena *arena;
    assert_ok(pleat__arena_create(&arena));
    for (size_t bytes = 2u << 20; bytes < 40u << 20; bytes = bytes * 3 / 2) {
        char *a = pleat__arena_alloc(arena, bytes), *b = pleat__arena_calloc(arena, 1, bytes);
        char *c = pleat__arena_alloc(arena, 1000);
        c[999] = 7;
        c = pleat__arena_realloc(arena, c, bytes);
        assert_int_equal(((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) & ((2u << 20) - 1), 0);
        assert_int_equal(b[0] | b[bytes - 1], 0);
        assert_int_equal(c[999], 7);
        a[bytes - 1] = 1;
        pleat__arena_free(arena, a);
        pleat__arena_free(arena, b);
        pleat__arena_free(arena, c);
    }
    pleat__arena_destroy(arena);
#endif
}

static void arena_counts_and_is_destroyed_whole(void **state)
{
    (void)state;
    pleat__arena *arena;
    assert_ok(pleat__arena_create(&arena));
    char *a = pleat__arena_calloc(arena, 1000, 1);
    assert_non_null(a);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(a[i], 0);
    void *b = pleat__arena_alloc(arena, 1 << 20);
    assert_non_null(b);
    pleat__arena_bytes bytes = pleat__arena_bytes_of(arena);
    assert_true(bytes.allocated >= 1000 + (1 << 20));
    assert_int_equal(bytes.peak, bytes.allocated);
    b = pleat__arena_realloc(arena, b, 2 << 20);
    assert_non_null(b);
    pleat__arena_free(arena, b);
    pleat__arena_free(arena, NULL);
    assert_true(pleat__arena_bytes_of(arena).allocated < 4096);
    assert_true(pleat__arena_bytes_of(arena).peak >= 2 << 20);
    assert_null(pleat__arena_calloc(arena, SIZE_MAX, 16));
    pleat__arena_destroy(arena);
    pleat__arena_destroy(NULL);
}

static void arena_grow_doubles_and_keeps(void **state)
{
    (void)state;
    pleat__arena *arena;
    assert_ok(pleat__arena_create(&arena));
    int *items = NULL;
    size_t capacity = 0;
    for (size_t i = 0; i < 1000; i++) {
        assert_ok(pleat__arena_grow(arena, &items, &capacity, i, sizeof *items));
        items[i] = (int)i;
    }
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(items[i], i);
    assert_int_equal(capacity, 1024);
    pleat__arena_destroy(arena);
}

static int lines_of(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int lines = 0;
    for (int c = fgetc(file); c != EOF; c = fgetc(file))
        lines += c == '\n';
    fclose(file);
    return lines;
}

/* Only Pleat's own build of jemalloc is told to give address space back. */
static void arena_destroyed_leaves_no_maps(void **state)
{
    (void)state;
#ifdef PLEAT_JEMALLOC_PREFIXED
    int before = lines_of("/proc/self/maps");
    for (int i = 0; i < 1000; i++) {
        pleat__arena *arena;
        assert_ok(pleat__arena_create(&arena));
        assert_non_null(pleat__arena_alloc(arena, 3 << 20));
        pleat__arena_destroy(arena);
    }
    assert_in_range(lines_of("/proc/self/maps"), 1, before + 100);
#else
    (void)lines_of;
    skip();
#endif
}

static void *make_and_destroy(void *unused)
{
    for (int i = 0; i < 20; i++) {
        pleat__arena *arena;
        if (pleat__arena_create(&arena) != PLEAT_OK)
            return unused;
        bool held = pleat__arena_alloc(arena, 1000) != NULL;
        pleat__arena_destroy(arena);
        if (!held)
            return unused;
    }
    return NULL;
}

/* jemalloc makes an arena for each thread that first comes to it, while others are destroyed: the
 * thread sanitizer has something to say about it (arena_jemalloc.c). */
static void arena_threads_make_and_destroy_at_once(void **state)
{
    enum { THREADS = 16 };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, make_and_destroy, state), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
}

static void *say_whether_own(void *own)
{
    *(bool *)own = pleat__on_own_thread();
    return NULL;
}

static void thread_that_is_started_is_pleats_own(void **state)
{
    (void)state;
    pleat__thread thread;
    pthread_t others;
    bool own = false;
    assert_ok(pleat__thread_start(&thread, "pleat-test", say_whether_own, &own));
    pleat__thread_join(&thread);
    assert_true(own);
    assert_int_equal(pthread_create(&others, NULL, say_whether_own, &own), 0);
    pthread_join(others, NULL);
    assert_false(own);
    assert_false(pleat__on_own_thread());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(result_every_one_has_name_and_text),
        cmocka_unit_test(error_keeps_code_and_context),
        cmocka_unit_test(error_numbers_have_a_point_in_every_locale),
        cmocka_unit_test(error_that_is_kept_is_of_its_own_result),
        cmocka_unit_test(error_long_texts_are_cut),
        cmocka_unit_test(range_arithmetic_says_overflow),
        cmocka_unit_test(range_half_open_overlap),
        cmocka_unit_test(arena_begins_large_blocks_at_large_pages),
        cmocka_unit_test(arena_counts_and_is_destroyed_whole),
        cmocka_unit_test(arena_grow_doubles_and_keeps),
        cmocka_unit_test(arena_destroyed_leaves_no_maps),
        cmocka_unit_test(arena_threads_make_and_destroy_at_once),
        cmocka_unit_test(thread_that_is_started_is_pleats_own),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
