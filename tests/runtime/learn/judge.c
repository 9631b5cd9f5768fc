/*
 * judge.c: whether a plan is this job's, told by its requests and by what lives beside them.
 */
#include "test.h"

#include <runtime/learn/judge.h>

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

/* The plan on trial, and its requests. */
typedef struct fixture {
    pleat__expected items[5];
    pleat__arena *arena;
    pleat__matcher matcher;
    pleat__judge judge;
} fixture;

static void begin(fixture *f)
{
    static const uint64_t sizes[] = {100, 50, 3, 60, 2};
    for (uint32_t i = 0; i < 5; i++)
        f->items[i] = (pleat__expected){.bytes = sizes[i] * MIB};
    assert_ok(pleat__arena_create(&f->arena));
    assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, 3, 5));
    pleat__judge_begin(&f->judge, f->arena, &f->matcher, &plan, true);
}

static void end(fixture *f)
{
    pleat__judge_end(&f->judge);
    pleat__matcher_release(&f->matcher);
    assert_int_equal(pleat__arena_bytes_of(f->arena).allocated, 0);
    pleat__arena_destroy(f->arena);
}

/* The plan's request at an item, beside which so many bytes live then. */
static bool step(fixture *f, uint32_t item, uint64_t live)
{
    uint64_t bytes = f->items[item].bytes;
    assert_int_equal(pleat__matcher_next(&f->matcher, bytes, 0), item);
    return pleat__judge_step(&f->judge, &f->matcher, bytes, false, live);
}

/* Whether the trial holds through its plan's requests, beside each of which so much lives. */
static bool holds(const uint64_t *live)
{
    fixture f;
    bool good = true;
    begin(&f);
    for (uint32_t i = 0; i < 5 && good; i++)
        good = step(&f, i, live[i] * MIB);
    assert_int_equal(f.judge.on, !good);
    end(&f);
    return good;
}

/* Behind the beginning's last request lives what does there, and not what does behind the last one
 * of the iteration, which comes next in both. */
static void judge_knows_what_lives_behind_each_request(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judge_knows_what_lives_behind_each_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
