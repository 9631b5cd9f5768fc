/*
 * period.c: finding the iteration of a job that marks nothing in its recording: by its period, past
 * the loops in it, and nothing where nothing repeats.
 */
#include "test.h"

#include <internal/arena.h>
#include <runtime/learn/recording.h>

typedef struct fixture {
    pleat__arena *arena;
    pleat__recording recording;
    uint64_t requests;
    pleat__repeat found; /* the last stretch */
    uint32_t times;      /* that one was found */
} fixture;

static void begin(fixture *f, bool unmarked)
{
    *f = (fixture){.arena = NULL};
    assert_ok(pleat__arena_create(&f->arena));
    assert_ok(pleat__recording_init(&f->recording, f->arena, unmarked));
}

static void end(fixture *f)
{
    pleat__recording_release(&f->recording);
    pleat__arena_destroy(f->arena);
}

static void add(fixture *f, uint64_t bytes)
{
    const pleat__place place = {.address = ++f->requests * UINT64_C(4096), .granules = 1};
    pleat__repeat found = pleat__recording_add(&f->recording, bytes, 0, &place);
    if (found.count == 0)
        return;
    f->found = found;
    f->times++;
    /* It is held, and ends with the newest request. */
    assert_true(found.first >= f->recording.begin);
    assert_int_equal(found.first + found.count, f->recording.end);
}

/* `loops` times a loop of some requests, then others. */
static void iterate(fixture *f, uint32_t loops, uint32_t inner, uint32_t others)
{
    for (uint32_t l = 0; l < loops; l++)
        for (uint32_t i = 0; i < inner; i++)
            add(f, 512 * (1 + i * 7 % 1009));
    for (uint32_t i = 0; i < others; i++)
        add(f, 512 * (2000 + i * UINT64_C(11)));
}

static void period_of_an_iteration_is_found(void **state)
{
    (void)state;
    static const uint32_t counts[] = {70, 300, 1000, 5000, 50000, 120000};
    for (uint32_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        fixture f;
        begin(&f, true);
        while (f.requests < 40000 || (f.times == 0 && f.requests < 3000000))
            iterate(&f, 0, 0, counts[k]);
        assert_true(f.times > 0);
        assert_int_equal(f.found.count, counts[k]);
        end(&f);
    }
}

/* A loop of microbatches looks like iterations until the optimizer comes, which may be short. */
static void period_is_the_iterations_not_the_loops_in_it(void **state)
{
    (void)state;
    static const uint32_t loops[] = {2, 4, 8, 16};
    static const uint32_t others[] = {400, 100};
    for (uint32_t k = 0; k < 2 * sizeof loops / sizeof *loops; k++) {
        fixture f;
        begin(&f, true);
        while (f.requests < 60000)
            iterate(&f, loops[k / 2], 150, others[k % 2]);
        assert_true(f.times > 0);
        assert_int_equal(f.found.count, loops[k / 2] * 150 + others[k % 2]);
        end(&f);
    }
}

/* Stretches that begin alike and are of different lengths are pieces of an iteration. */
static void period_is_all_of_what_repeats_at_changing_lengths(void **state)
{
    (void)state;
    static const uint32_t pieces[] = {3000, 4200, 3600};
    fixture f;
    begin(&f, true);
    while (f.requests < 100000)
        for (uint32_t p = 0; p < 3; p++)
            iterate(&f, 0, 0, pieces[p]);
    assert_int_equal(f.found.count, 3000 + 4200 + 3600);
    end(&f);
}

/* Extra, missing and resized requests, one in fifty. */
static void period_is_found_past_odd_requests(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x9e210d);
    fixture f;
    begin(&f, true);
    while (f.requests < 60000)
        for (uint32_t i = 0; i < 1000; i++) {
            uint64_t odd = test_random_below(&random, 150);
            if (odd == 0)
                add(&f, 512 * (3000 + test_random_below(&random, 1000)));
            if (odd != 1)
                add(&f, 512 * (1 + i * 7 % 1009) + (odd == 2 ? 512 * 5000 : 0));
        }
    assert_true(f.times > 0);
    assert_in_range(f.found.count, 950, 1050);
    end(&f);
}

/* A long one is found where it has come twice, though something was added here and there. */
static void period_that_was_added_to_is_found_when_it_ends(void **state)
{
    (void)state;
    fixture f;
    begin(&f, true);
    iterate(&f, 0, 0, 6000);
    for (uint32_t i = 0; i < 6000; i++) {
        if (i % 1500 == 750)
            add(&f, 512 * (100000 + i));
        add(&f, 512 * (2000 + i * UINT64_C(11)));
    }
    iterate(&f, 0, 0, 100);
    assert_int_equal(f.times, 1);
    assert_int_equal(f.found.count, 6004);
    end(&f);
}

static void period_is_not_found_where_all_varies(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x9e210e);
    fixture f;
    begin(&f, true);
    for (uint32_t i = 0; i < 100000; i++)
        add(&f, 512 * (1 + test_random_below(&random, 100000)));
    assert_int_equal(f.times, 0);
    end(&f);
}

/* Setting period:off. */
static void period_is_not_looked_for_when_it_is_off(void **state)
{
    (void)state;
    fixture f;
    begin(&f, false);
    while (f.requests < 40000)
        iterate(&f, 0, 0, 300);
    assert_int_equal(f.times, 0);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(period_of_an_iteration_is_found),
        cmocka_unit_test(period_is_the_iterations_not_the_loops_in_it),
        cmocka_unit_test(period_is_all_of_what_repeats_at_changing_lengths),
        cmocka_unit_test(period_is_found_past_odd_requests),
        cmocka_unit_test(period_that_was_added_to_is_found_when_it_ends),
        cmocka_unit_test(period_is_not_found_where_all_varies),
        cmocka_unit_test(period_is_not_looked_for_when_it_is_off),
    };
    return cmocka_run_group_tests_name("period", tests, NULL, NULL);
}
