/*
 * elastic_scale.c: what elastic jobs are followed by: the lives of an iteration's requests, and how
 * sizes follow x.
 */
#include "elastic_job.h"

#include <runtime/learn/scale.h>

static pleat__profile *profile_at(pleat__arena *arena, const elastic_job *e, uint64_t x)
{
    pleat__profile *profile = pleat__arena_calloc(arena, 1, sizeof *profile);
    assert_non_null(profile);
    profile->arena = arena;
    profile->parts = pleat__arena_calloc(arena, JOB_REQUESTS, sizeof *profile->parts);
    assert_non_null(profile->parts);
    profile->count = JOB_REQUESTS;
    profile->horizon = 2 * JOB_REQUESTS;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        profile->parts[i] = (pleat__part){
            .bytes = e->base[i] + e->slope[i] * x, .begin = 2 * i, .end = 2 * e->lives.last[i] + 1};
    return profile;
}

static void elastic_scale_is_found_from_sizes(void **state)
{
    (void)state;
    pleat__arena *arena;
    elastic_job e = elastic_make(71);
    pleat__scale *scale;
    assert_ok(pleat__arena_create(&arena));
    pleat__profile *two[2] = {profile_at(arena, &e, 3), profile_at(arena, &e, 5)};
    pleat__profile *equal[2] = {two[0], profile_at(arena, &e, 3)};
    assert_int_equal(pleat__scale_make(arena, equal, 2, &scale), PLEAT__SCALE_SAME);
    assert_int_equal(pleat__scale_make(arena, two, 2, &scale), PLEAT__SCALE_FITTED);
    assert_int_equal(scale->loose, 0);
    assert_int_equal(scale->highest * 3, scale->lowest * 5);
    pleat__x x7 = {{scale->lowest / 3 * 7, 1}, {1, 1}}, far = {{x7.u.num * 16, 1}, {1, 1}};
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        uint64_t bytes = e.base[i] + e.slope[i] * 7;
        pleat__x x;
        assert_int_equal(pleat__scale_bytes(scale, &scale->terms[i], &x7), bytes);
        assert_int_equal(pleat__scale_infer(scale, &scale->terms[i], bytes, &x), e.slope[i] != 0);
        if (e.slope[i] != 0)
            assert_true(pleat__x_equal(&x, &x7));
    }
    assert_true(pleat__scale_in_range(scale, &x7));
    assert_false(pleat__scale_in_range(scale, &far));
    pleat__scale_free(scale);
    pleat__arena_destroy(arena);
}

/* Once a line through two iterations' sizes was believed although as many fell as rose. */
static void elastic_sizes_that_go_their_own_ways_are_no_scale(void **state)
{
    (void)state;
    pleat__arena *arena;
    elastic_job e = elastic_make(72);
    pleat__scale *scale;
    test_random random = test_random_begin("ways", 0x3a7);
    assert_ok(pleat__arena_create(&arena));
    pleat__profile *two[2] = {profile_at(arena, &e, 3), profile_at(arena, &e, 3)};
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        if (e.slope[i] != 0)
            two[1]->parts[i].bytes =
                two[1]->parts[i].bytes * (4 + test_random_below(&random, 9)) / 8;
    assert_int_equal(pleat__scale_make(arena, two, 2, &scale), PLEAT__SCALE_NONE);
    assert_null(scale);
    pleat__arena_destroy(arena);
}

/* The lengths of a sentence and of its translation: a line was believed although half of the sizes
 * follow the other one. */
static void elastic_sizes_that_follow_two_numbers_are_no_scale(void **state)
{
    (void)state;
    static const uint64_t others[] = {3, 4, 9, 12};
    pleat__arena *arena;
    elastic_job e = elastic_make(74);
    assert_ok(pleat__arena_create(&arena));
    for (uint32_t k = 0; k < sizeof others / sizeof *others; k++) {
        pleat__scale *scale;
        pleat__profile *two[2] = {profile_at(arena, &e, 6), profile_at(arena, &e, 7)};
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            for (uint32_t s = 0; s < 2 && i % 2 == 0; s++)
                two[s]->parts[i].bytes = e.base[i] + e.slope[i] * (s == 0 ? 6 : others[k]);
        assert_int_equal(pleat__scale_make(arena, two, 2, &scale), PLEAT__SCALE_NONE);
        assert_null(scale);
    }
    pleat__arena_destroy(arena);
}

/* Lines through two xs close to each other say little of those far away, until one was seen. */
static void elastic_scale_is_believed_around_what_was_seen(void **state)
{
    (void)state;
    pleat__arena *arena;
    elastic_job e = elastic_make(75);
    pleat__scale *scale;
    assert_ok(pleat__arena_create(&arena));
    pleat__profile *two[2] = {profile_at(arena, &e, 200), profile_at(arena, &e, 201)};
    assert_int_equal(pleat__scale_make(arena, two, 2, &scale), PLEAT__SCALE_FITTED);
    uint64_t one = scale->lowest / 200;
    static const struct {
        uint64_t x;
        bool near;
    } xs[] = {{191, false}, {193, true}, {208, true}, {210, false}, {100, false}, {400, false}};
    for (uint32_t i = 0; i < sizeof xs / sizeof *xs; i++)
        assert_int_equal(pleat__scale_in_range(scale, &(pleat__x){{one * xs[i].x, 1}, {1, 1}}),
                         xs[i].near);
    /* An iteration at one of the two says nothing of the others. */
    pleat__scale_reach(scale, &(pleat__x){{one * 200, 1}, {1, 1}});
    assert_false(pleat__scale_in_range(scale, &(pleat__x){{one * 210, 1}, {1, 1}}));
    pleat__scale_reach(scale, &(pleat__x){{one * 210, 1}, {1, 1}});
    for (uint32_t i = 0; i < sizeof xs / sizeof *xs; i++)
        assert_true(pleat__scale_in_range(scale, &(pleat__x){{one * xs[i].x, 1}, {1, 1}}));
    pleat__scale_free(scale);
    pleat__arena_destroy(arena);
}

/* The same with the times that a job has, where request `without` is left out; an open one does not
 * know what is freed in it of the iteration before. */
static pleat__profile *timed_at(pleat__arena *arena, const elastic_job *e, uint64_t x,
                                uint32_t without, bool open)
{
    pleat__profile *profile = profile_at(arena, e, x);
    uint32_t now = 0, count = 0;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        profile->parts[i].end = PLEAT__NEVER;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        if (i != without)
            profile->parts[i].begin = now++;
        for (uint32_t k = 0; k < JOB_REQUESTS; k++)
            if (e->lives.last[k] == i && k != without && (k <= i || !open))
                profile->parts[k].end = now++;
    }
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        if (i != without)
            profile->parts[count++] = profile->parts[i];
    profile->count = count;
    profile->horizon = now;
    profile->open = open;
    return profile;
}

static void elastic_open_profile_is_completed_by_another_size(void **state)
{
    (void)state;
    pleat__arena *arena;
    elastic_job e = elastic_make(73);
    assert_ok(pleat__arena_create(&arena));
    pleat__profile *from = timed_at(arena, &e, 3, JOB_REQUESTS, false);
    pleat__profile *whole = timed_at(arena, &e, 5, JOB_REQUESTS, false);
    pleat__profile *open = timed_at(arena, &e, 5, JOB_REQUESTS, true);
    assert_true(pleat__scale_complete(open, from));
    assert_false(open->open);
    assert_false(open->guessed);
    assert_int_equal(open->horizon, whole->horizon);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        assert_int_equal(open->parts[i].begin, whole->parts[i].begin);
        assert_int_equal(open->parts[i].end, whole->parts[i].end);
    }
    /* With a request less a few may be told wrongly, and most are not. */
    whole = timed_at(arena, &e, 5, 300, false);
    open = timed_at(arena, &e, 5, 300, true);
    assert_true(pleat__scale_complete(open, from));
    assert_true(open->guessed);
    uint32_t known = 0, same = 0;
    for (uint32_t i = 0; i < open->count; i++) {
        known += open->parts[i].end != PLEAT__NEVER;
        same += open->parts[i].end == whole->parts[i].end;
    }
    assert_true(known >= open->count - 3);
    assert_true(same >= open->count * 9 / 10);
    /* Another job says nothing. */
    elastic_job other = elastic_make(74);
    open = timed_at(arena, &e, 5, 300, true);
    assert_false(pleat__scale_complete(open, timed_at(arena, &other, 3, JOB_REQUESTS, false)));
    assert_true(open->open);
    pleat__arena_destroy(arena);
}

/* An iteration of two requests, one of which the next iteration frees. */
static void elastic_lives_cross_iterations(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__lives lives;
    pleat__profile *profile;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__lives_init(&lives, arena));
    pleat__lives_alloc(&lives, 7, 0, 4096); /* before the first mark: nobody's iteration */
    pleat__lives_mark(&lives, &profile);
    for (uint32_t n = 0; n < 3; n++) {
        pleat__profile_free(profile);
        pleat__lives_alloc(&lives, 100 + n, 0, 8192);
        if (n > 0)
            pleat__lives_free(&lives, 512 * (99 + n));
        pleat__lives_alloc(&lives, 200 + n, 0, 512 * (100 + n));
        pleat__lives_free(&lives, 8192);
        pleat__lives_mark(&lives, &profile);
        /* The first has none before it that would say when the second request is freed. */
        assert_non_null(profile);
        assert_int_equal(profile->open, n == 0);
        assert_int_equal(profile->parts[1].end, n == 0 ? PLEAT__NEVER : 1);
    }
    assert_non_null(profile);
    assert_int_equal(profile->count, 2);
    assert_int_equal(profile->horizon, 4);
    assert_int_equal(profile->parts[0].bytes, 102);
    assert_int_equal(profile->parts[0].begin, 0);
    assert_int_equal(profile->parts[0].end, 3);
    assert_int_equal(profile->parts[1].begin, 2);
    assert_int_equal(profile->parts[1].end, 1);
    assert_true(pleat__lives_crosses(&lives, 512 * 102));
    assert_false(pleat__lives_crosses(&lives, 4096));
    pleat__profile_free(profile);
    pleat__lives_release(&lives);
    pleat__arena_destroy(arena);
}

/* What the iteration before left is freed at once behind the mark, then the iteration's own. */
static void elastic_lives_end_behind_the_mark(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__lives lives;
    pleat__profile *profile;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__lives_init(&lives, arena));
    pleat__lives_mark(&lives, &profile);
    for (uint32_t n = 0; n < 3; n++) {
        pleat__profile_free(profile);
        for (uint32_t i = 0; i < 2 && n > 0; i++)
            pleat__lives_free(&lives, 512 * (2 * n - 1 + i));
        for (uint32_t i = 0; i < 2; i++)
            pleat__lives_alloc(&lives, 100 + i, 0, 512 * (2 * n + 1 + i));
        pleat__lives_mark(&lives, &profile);
        assert_non_null(profile);
    }
    assert_int_equal(profile->horizon, 4);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(profile->parts[i].begin, 2 + i);
        assert_int_equal(profile->parts[i].end, i);
        assert_true(pleat__lives_crosses(&lives, 512 * (5 + i)));
    }
    /* Another size's first iteration, which does not know its own ends, is told them by it. */
    pleat__profile open = {.arena = arena, .count = 2, .horizon = 2, .open = true};
    open.parts = pleat__arena_calloc(arena, 2, sizeof *open.parts);
    assert_non_null(open.parts);
    for (uint32_t i = 0; i < 2; i++)
        open.parts[i] = (pleat__part){.bytes = 200 + 2 * i, .begin = i, .end = PLEAT__NEVER};
    assert_true(pleat__scale_complete(&open, profile));
    assert_int_equal(open.horizon, 4);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(open.parts[i].begin, 2 + i);
        assert_int_equal(open.parts[i].end, i);
    }
    pleat__arena_free(arena, open.parts);
    pleat__profile_free(profile);
    pleat__lives_release(&lives);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elastic_scale_is_found_from_sizes),
        cmocka_unit_test(elastic_sizes_that_go_their_own_ways_are_no_scale),
        cmocka_unit_test(elastic_sizes_that_follow_two_numbers_are_no_scale),
        cmocka_unit_test(elastic_scale_is_believed_around_what_was_seen),
        cmocka_unit_test(elastic_open_profile_is_completed_by_another_size),
        cmocka_unit_test(elastic_lives_cross_iterations),
        cmocka_unit_test(elastic_lives_end_behind_the_mark),
    };
    return cmocka_run_group_tests_name("elastic_scale", tests, NULL, NULL);
}
