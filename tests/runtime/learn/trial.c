/*
 * trial.c: whether a plan is this job's, told by its requests and by what lives beside them.
 */
#include "test.h"

#include <runtime/learn/trial.h>

#define MIB (UINT64_C(1) << 20)

/* A beginning of three requests, of which the second one is gone before the iteration ends, and an
 * iteration of two. */
static pleat__slot first[] = {
    {.size = 100 * MIB, .alloc_at = 0, .free_at = PLEAT__NEVER, .class = PLEAT__CLASS_PERSISTENT},
    {.size = 50 * MIB, .alloc_at = 1, .free_at = 3},
    {.size = 3 * MIB, .alloc_at = 2, .free_at = 4},
};
static pleat__slot steady[] = {
    {.size = 60 * MIB, .alloc_at = 0, .free_at = 1},
    {.size = 2 * MIB, .alloc_at = 2, .free_at = 3},
};
static const pleat_plan plan = {.first = {.slots = first, .slot_count = 3, .events = 5},
                                .steady = {.slots = steady, .slot_count = 2, .events = 4},
                                .unroll = 1,
                                .max_live_bytes = 160 * MIB,
                                .first_max_live_bytes = 153 * MIB};

/* Whether the trial holds through its plan's requests, beside each of which so much lives. */
static bool holds(const uint64_t *live)
{
    pleat__expected items[] = {{.bytes = 100 * MIB},
                               {.bytes = 50 * MIB},
                               {.bytes = 3 * MIB},
                               {.bytes = 60 * MIB},
                               {.bytes = 2 * MIB}};
    pleat__arena *arena;
    pleat__matcher matcher;
    pleat__trial trial;
    bool good = true;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__matcher_init(&matcher, arena, items, 3, 5));
    pleat__trial_begin(&trial, arena, &matcher, &plan);
    for (uint32_t i = 0; i < 5 && good; i++) {
        assert_int_equal(pleat__matcher_next(&matcher, items[i].bytes, 0), i);
        good = pleat__trial_step(&trial, &matcher, items[i].bytes, false, live[i] * MIB);
    }
    assert_int_equal(trial.on, !good);
    pleat__trial_end(&trial);
    pleat__matcher_release(&matcher);
    assert_int_equal(pleat__arena_bytes_of(arena).allocated, 0);
    pleat__arena_destroy(arena);
    return good;
}

/* Behind the beginning's last request lives what does there, and not what does behind the last one
 * of the iteration, which comes next in both. */
static void trial_knows_what_lives_behind_each_request(void **state)
{
    (void)state;
    static const uint64_t planned[] = {100, 150, 153, 160, 102};
    assert_true(holds(planned));
    for (uint32_t i = 0; i < 5; i++) {
        uint64_t other[5];
        for (uint32_t k = 0; k < 5; k++)
            other[k] = planned[k] + (k == i ? 4 : 0);
        assert_false(holds(other));
    }
}

/* A phase of the beginning's is entered again by a job that is lost: the plan's first request is
 * expected, before which nothing of it lives, and another one comes. */
static void trial_goes_on_where_a_job_begins_again(void **state)
{
    (void)state;
    pleat__expected items[] = {{.bytes = 100 * MIB},
                               {.bytes = 50 * MIB},
                               {.bytes = 3 * MIB},
                               {.bytes = 60 * MIB},
                               {.bytes = 2 * MIB}};
    pleat__arena *arena;
    pleat__matcher matcher;
    pleat__trial trial;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__matcher_init(&matcher, arena, items, 3, 5));
    pleat__trial_begin(&trial, arena, &matcher, &plan);
    assert_int_equal(pleat__matcher_next(&matcher, items[0].bytes, 0), 0);
    assert_true(pleat__trial_step(&trial, &matcher, items[0].bytes, false, 100 * MIB));
    pleat__matcher_jump(&matcher, 0);
    assert_int_equal(pleat__matcher_next(&matcher, 4096, 0), PLEAT__NO_ITEM);
    assert_true(pleat__trial_step(&trial, &matcher, 4096, true, 100 * MIB + 4096));
    pleat__trial_end(&trial);
    pleat__matcher_release(&matcher);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trial_knows_what_lives_behind_each_request),
        cmocka_unit_test(trial_goes_on_where_a_job_begins_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
