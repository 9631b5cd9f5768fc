/*
 * sums.c: workspaces of sums get the bound that another one shows, or that any device has; what
 * only looks like one keeps its function.
 */
#include "growing.h"

#include <plan/sizes/sums.h>
#include <string.h>
#include <time.h>

#define X_COUNT       2u
#define REQUESTS_MOST 16u
#define PART          512ull

/* A result, a workspace of so many blocks at the two x, and its counters. */
typedef struct sum {
    uint32_t columns;
    uint64_t blocks[X_COUNT];
    uint32_t item; /* bytes of the result's; 0: two */
} sum;

typedef struct recorded {
    pleat__arena *arena;
    pleat__request items[REQUESTS_MOST];
    uint64_t sizes[X_COUNT * (REQUESTS_MOST)];
    uint32_t count;
    pleat__fit fit;
} recorded;

static void add(recorded *r, uint64_t at_first, uint64_t at_second, uint32_t at, uint32_t until)
{
    r->sizes[r->count] = at_first;
    r->sizes[REQUESTS_MOST + r->count] = at_second;
    r->items[r->count++] = (pleat__request){.size = at_second, .alloc_at = at, .free_at = until};
}

/* The sums one behind the other, and two tensors that follow x. */
static void record(recorded *r, const sum *sums, uint32_t count)
{
    uint32_t at = 1;
    *r = (recorded){.arena = NULL};
    assert_ok(pleat__arena_create(&r->arena));
    add(r, 4096, 8192, 0, 100);
    for (uint32_t i = 0; i < count; i++, at += 5) {
        uint64_t columns = sums[i].columns, item = sums[i].item != 0 ? sums[i].item : 2;
        uint64_t lines = (columns + 127) / 128;
        add(r, columns * item, columns * item, at, 100);
        add(r, columns * PART * sums[i].blocks[0], columns * PART * sums[i].blocks[1], at + 1,
            at + 4);
        add(r, 4 * lines, 4 * lines, at + 2, at + 3);
    }
    add(r, 1024, 2048, at, 100);
}

static void fit(recorded *r)
{
    static const uint64_t us[X_COUNT] = {4, 8};
    uint64_t table[X_COUNT * (REQUESTS_MOST)];
    for (uint32_t p = 0; p < X_COUNT; p++)
        memcpy(table + p * r->count, r->sizes + p * (REQUESTS_MOST), r->count * sizeof *table);
    assert_ok(pleat__fit_make(table, X_COUNT, r->count, us, r->arena, &r->fit));
    assert_true(r->fit.shows_x);
    assert_ok(pleat__sums_bound(r->items, table, X_COUNT, r->count, r->arena, &r->fit));
}

/* The most that the sum's workspace can be; UINT64_MAX: nothing says it. */
static uint64_t most_of(const recorded *r, uint32_t sum_index)
{
    uint32_t function = r->fit.of[1 + 3 * sum_index + 1];
    assert_int_not_equal(function, PLEAT__NO_FUNCTION);
    return r->fit.functions[function].most;
}

static uint64_t any_device(uint32_t columns)
{
    uint64_t lines = (columns + 127) / 128;
    return (3584 + lines - 1) / lines * columns * PART;
}

static void sums_end_where_others_have(void **state)
{
    (void)state;
    recorded r;
    /* 2,112 blocks fill the device: 66 for each of 32 lines, 88 of 24, 264 of 8. */
    record(&r, (const sum[]){{4096, {66, 66}, 0}, {3072, {88, 88}, 0}, {1024, {64, 128}, 0}}, 3);
    fit(&r);
    assert_int_equal(most_of(&r, 2), 264 * 1024 * PART);
    pleat__arena_destroy(r.arena);
    /* One that is seen to reach it says as much. */
    record(&r, (const sum[]){{4096, {40, 66}, 0}, {1024, {40, 80}, 4}, {3072, {55, 88}, 0}}, 3);
    fit(&r);
    assert_int_equal(most_of(&r, 0), 66 * 4096 * PART);
    assert_int_equal(most_of(&r, 1), 264 * 1024 * PART);
    pleat__arena_destroy(r.arena);
}

/* The last line of a sum need not be whole: 1,600 columns have 13 lines. */
static void sums_of_any_columns_are_known(void **state)
{
    (void)state;
    recorded r;
    record(&r, (const sum[]){{6400, {43, 43}, 0}, {4800, {56, 56}, 0}, {1600, {60, 120}, 0}}, 3);
    fit(&r);
    assert_in_range(most_of(&r, 2), 163 * 1600 * PART, 165 * 1600 * PART);
    pleat__arena_destroy(r.arena);
}

static void sums_end_where_they_do_on_any_device(void **state)
{
    (void)state;
    recorded r;
    record(&r, (const sum[]){{4096, {32, 64}, 0}, {50304, {4, 8}, 4}}, 2);
    fit(&r);
    assert_int_equal(most_of(&r, 0), any_device(4096));
    assert_int_equal(most_of(&r, 1), any_device(50304));
    pleat__arena_destroy(r.arena);
}

/* A sum whose rows do not follow x is the same at every x, and no bound. Two of them have as many
 * blocks, or do not agree on what fills the device. */
static void sums_of_so_many_rows_show_no_bound(void **state)
{
    (void)state;
    recorded r;
    static const sum rows[][3] = {
        {{4096, {10, 10}, 0}, {4096, {10, 10}, 4}, {1024, {3, 6}, 0}},
        {{4096, {10, 10}, 0}, {3968, {10, 10}, 0}, {1024, {3, 6}, 0}},
        {{4096, {10, 10}, 0}, {1024, {10, 10}, 0}, {1024, {3, 6}, 0}},
        {{4096, {10, 10}, 0}, {1024, {60, 60}, 0}, {2048, {3, 6}, 0}},
    };
    record(&r, (const sum[]){{4096, {10, 10}, 0}, {1024, {3, 6}, 0}}, 2);
    fit(&r);
    assert_int_equal(most_of(&r, 1), any_device(1024));
    pleat__arena_destroy(r.arena);
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        record(&r, rows[i], 3);
        fit(&r);
        assert_int_equal(most_of(&r, 2), any_device(rows[i][2].columns));
        pleat__arena_destroy(r.arena);
    }
}

/* What the bound is taken from may contradict what was recorded. */
static void sums_that_are_larger_than_a_bound_show_that_it_is_none(void **state)
{
    (void)state;
    recorded r;
    record(&r, (const sum[]){{4096, {10, 10}, 0}, {1024, {40, 40}, 0}, {2048, {40, 80}, 0}}, 3);
    fit(&r);
    assert_int_equal(most_of(&r, 2), any_device(2048));
    pleat__arena_destroy(r.arena);
    /* More than any device is known to fill: of another device, or no sum. */
    record(&r, (const sum[]){{1024, {400, 800}, 0}}, 1);
    fit(&r);
    assert_int_equal(most_of(&r, 0), UINT64_MAX);
    pleat__arena_destroy(r.arena);
}

/* Bytes of the sum's workspace at x. */
static uint64_t size_at(const recorded *r, uint32_t sum_index, uint64_t u)
{
    const pleat__fraction x = {u, 1};
    uint64_t size;
    assert_true(pleat__function_at(&r->fit.functions[r->fit.of[1 + 3 * sum_index + 1]], x, &size));
    return size;
}

/* What has stopped at every x recorded is smaller below: it has as many blocks for each unit of x
 * as those that are seen to grow. */
static void sums_that_have_stopped_have_grown_as_others_do(void **state)
{
    (void)state;
    recorded r;
    record(&r, (const sum[]){{4096, {66, 66}, 0}, {3072, {88, 88}, 0}, {1024, {88, 176}, 0}}, 3);
    fit(&r);
    for (uint64_t u = 1; u < 20; u++) {
        assert_int_equal(size_at(&r, 0, u), (u < 3 ? 22 * u : 66) * 4096 * PART);
        assert_int_equal(size_at(&r, 1, u), (u < 4 ? 22 * u : 88) * 3072 * PART);
        assert_int_equal(size_at(&r, 2, u), (u < 12 ? 22 * u : 264) * 1024 * PART);
    }
    pleat__arena_destroy(r.arena);
}

static void expect_constant(const recorded *r, uint32_t sum_index)
{
    assert_false(pleat__function_varies(&r->fit.functions[r->fit.of[1 + 3 * sum_index + 1]]));
}

/* Others that grow by other rows, by less than what was recorded, or not in proportion to x say
 * nothing of how one grew that has stopped; nor is one that is no sum's, or has not stopped. */
static void sums_that_have_stopped_are_constant_where_others_do_not_agree(void **state)
{
    (void)state;
    recorded r;
    record(
        &r,
        (const sum[]){
            {4096, {66, 66}, 0}, {3072, {88, 88}, 0}, {1024, {88, 176}, 0}, {512, {100, 200}, 0}},
        4);
    fit(&r);
    expect_constant(&r, 0);
    expect_constant(&r, 1);
    pleat__arena_destroy(r.arena);
    record(&r, (const sum[]){{4096, {66, 66}, 0}, {3072, {88, 88}, 0}, {1024, {64, 128}, 0}}, 3);
    fit(&r);
    expect_constant(&r, 0);
    expect_constant(&r, 1);
    pleat__arena_destroy(r.arena);
    record(&r, (const sum[]){{4096, {66, 66}, 0}, {3072, {88, 88}, 0}, {1024, {89, 177}, 0}}, 3);
    fit(&r);
    expect_constant(&r, 0);
    pleat__arena_destroy(r.arena);
    record(&r, (const sum[]){{4096, {66, 66}, 0}, {1024, {88, 176}, 0}}, 2);
    fit(&r);
    expect_constant(&r, 0);
    pleat__arena_destroy(r.arena);
    record(&r,
           (const sum[]){
               {4096, {66, 66}, 0}, {3072, {88, 88}, 0}, {2048, {20, 20}, 0}, {1024, {88, 176}, 0}},
           4);
    fit(&r);
    assert_int_equal(size_at(&r, 0, 1), 22 * 4096 * PART);
    expect_constant(&r, 2);
    pleat__arena_destroy(r.arena);
}

/* As the workspace of a sum but for one thing. */
static void what_looks_like_a_sum_keeps_its_function(void **state)
{
    (void)state;
    recorded r;
    for (int other = 0; other < 9; other++) {
        record(&r, (const sum[]){{1024, {32, 64}, 0}}, 1);
        pleat__request *result = &r.items[1], *space = &r.items[2], *counters = &r.items[3];
        if (other == 0)
            result->size *= 4; /* eight bytes a column */
        if (other == 1)
            result->alloc_at--;
        if (other == 2)
            counters->alloc_at++;
        if (other == 3)
            counters->free_at++;
        if (other == 4)
            space->free_at++;
        if (other == 5)
            counters->size += 4;
        if (other == 6)
            space->size += 512;
        if (other == 7)
            result->stream = 1;
        if (other == 8)
            counters->stream = 1;
        fit(&r);
        if (most_of(&r, 0) != UINT64_MAX)
            fail_msg("%d: taken for a sum", other);
        pleat__arena_destroy(r.arena);
    }
}

/* A tensor of the same size as a workspace goes on growing. */
static void a_tensor_of_a_workspaces_size_has_no_bound(void **state)
{
    (void)state;
    recorded r;
    record(&r, (const sum[]){{1024, {32, 64}, 0}}, 1);
    add(&r, 1024 * PART * 32, 1024 * PART * 64, 50, 100);
    fit(&r);
    assert_int_equal(most_of(&r, 0), any_device(1024));
    assert_int_equal(r.fit.functions[r.fit.of[r.count - 1]].most, UINT64_MAX);
    pleat__arena_destroy(r.arena);
}

/* Each workspace was held against all others: minutes for as many unlike ones as this. */
static void sums_of_any_number_of_columns_are_bounded_in_time(void **state)
{
    (void)state;
    enum { SUMS = 60000, COUNT = 3 * SUMS + SUMS / 4 };
    pleat__arena *arena;
    pleat__fit made;
    uint32_t at = 0;
    assert_ok(pleat__arena_create(&arena));
    uint64_t *sizes = pleat__arena_alloc(arena, 2ull * COUNT * sizeof *sizes);
    pleat__request *items = pleat__arena_calloc(arena, COUNT, sizeof *items);
    assert_true(sizes != NULL && items != NULL);
    for (uint32_t i = 0, now = 0; i < SUMS; i++, now += 7) {
        uint64_t columns = 128 * (i + 1ull);
        const uint64_t own[4] = {2 * columns, columns * PART, 4 * (i + 1ull), 4096};
        for (uint32_t k = 0; k < (i % 4 == 0 ? 4 : 3); k++, at++) {
            items[at] = (pleat__request){
                .size = own[k], .alloc_at = now + k, .free_at = k == 1 ? now + 4 : now + 3};
            sizes[at] = own[k];
            sizes[COUNT + at] = own[k] * (k == 3 ? 2 : 1);
        }
    }
    assert_int_equal(at, COUNT);
    assert_ok(pleat__fit_make(sizes, 2, COUNT, NULL, arena, &made));
    assert_true(made.shows_x);
    clock_t begin = clock();
    assert_ok(pleat__sums_bound(items, sizes, 2, COUNT, arena, &made));
    assert_true(clock() - begin < 2 * CLOCKS_PER_SEC);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_end_where_others_have),
        cmocka_unit_test(sums_of_any_columns_are_known),
        cmocka_unit_test(sums_end_where_they_do_on_any_device),
        cmocka_unit_test(sums_of_so_many_rows_show_no_bound),
        cmocka_unit_test(sums_that_are_larger_than_a_bound_show_that_it_is_none),
        cmocka_unit_test(sums_that_have_stopped_have_grown_as_others_do),
        cmocka_unit_test(sums_that_have_stopped_are_constant_where_others_do_not_agree),
        cmocka_unit_test(what_looks_like_a_sum_keeps_its_function),
        cmocka_unit_test(a_tensor_of_a_workspaces_size_has_no_bound),
        cmocka_unit_test(sums_of_any_number_of_columns_are_bounded_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
