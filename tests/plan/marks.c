/*
 * marks.c: where iterations begin in traces that do not say: jobs whose sizes all change, jobs that
 * come down several times an iteration, and what repeats nothing.
 */
#include "jobs.h"

#include <plan/model/marks.h>

#define MIB     (1u << 20)
#define LAYERS  24
#define WEIGHTS 24

typedef struct trainer {
    test_jobber job;
    test_random random;
    uint32_t begins[16];   /* items allocated before each iteration */
    uint32_t workspace_at; /* layer of the first iteration that makes one, which stays */
    uint32_t iterations;
} trainer;

static uint32_t take(trainer *t, uint64_t size)
{
    test_job_add(&t->job, PLEAT_EVENT_ALLOC, t->job.next, size, 0);
    return t->job.next++;
}

/* Forward and backward of a batch: no two have a size in common where sizes are drawn. */
static void batch(trainer *t, bool drawn)
{
    uint32_t kept[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        uint64_t size = (2 + i % 3) * MIB + (drawn ? test_random_below(&t->random, 2 * MIB) : 0);
        kept[i] = take(t, size);
        if (t->iterations == 1 && (uint32_t)i == t->workspace_at)
            take(t, 5 * MIB);
        test_job_free(&t->job, take(t, size / 2));
    }
    for (int i = LAYERS; i-- > 0;) {
        uint32_t gradient = take(t, MIB + (drawn ? test_random_below(&t->random, MIB) : 0));
        test_job_free(&t->job, kept[i]);
        test_job_free(&t->job, gradient);
    }
}

/* An iteration of some batches and an optimizer's step; the first step leaves its state. `large`:
 * the step takes half as much as a batch does. */
static void iterate(trainer *t, int batches, bool drawn, bool large)
{
    uint32_t taken[WEIGHTS];
    t->begins[t->iterations++] = t->job.next;
    for (int i = 0; i < batches; i++)
        batch(t, drawn);
    for (int i = 0; i < WEIGHTS; i++)
        if (t->iterations == 1)
            take(t, 2 * MIB);
    for (int i = 0; i < WEIGHTS; i++)
        taken[i] = take(t, large ? 2 * MIB : 4096);
    for (int i = 0; i < WEIGHTS; i++)
        test_job_free(&t->job, taken[i]);
}

static trainer begin_with(test_random random)
{
    trainer t = {.random = random, .workspace_at = UINT32_MAX};
    uint16_t stream;
    assert_ok(pleat_trace_new(&t.job.trace));
    assert_ok(pleat_trace_add_stream(t.job.trace, 0, &stream));
    for (int i = 0; i < WEIGHTS; i++)
        take(&t, 4 * MIB);
    return t;
}

static trainer begin(const char *name)
{
    return begin_with(test_random_begin(name, 0x51ed));
}

/* `events` requests and frees without order, of which at most `most` (64 or fewer) are live. */
static void wander(trainer *t, uint32_t most, int events)
{
    uint32_t live[64], count = 0;
    for (int i = 0; i < events; i++) {
        if (count == most || (count > 0 && test_random_below(&t->random, 2) == 0)) {
            uint32_t at = (uint32_t)test_random_below(&t->random, count);
            test_job_free(&t->job, live[at]);
            live[at] = live[--count];
        } else {
            live[count++] = take(t, 1 + test_random_below(&t->random, 9 * MIB));
        }
    }
}

/* Whether the trace's iterations from that one on are found, each within so many requests. */
static void expect_found_from(const trainer *t, uint32_t first, uint32_t within)
{
    pleat__arena *arena;
    pleat__requests requests;
    uint32_t *marks, count;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__requests_make(t->job.trace, 0, arena, &requests));
    assert_ok(pleat__marks_find(&requests, &marks, &count));
    for (uint32_t i = first; i < t->iterations; i++) {
        bool found = false;
        for (uint32_t m = 0; m < count; m++) {
            uint32_t item = pleat__stretch_of(&requests, marks[m], requests.event_count).item;
            found |= item + within >= t->begins[i] && item <= t->begins[i] + within;
        }
        assert_true(found);
    }
    assert_true(count <= t->iterations + 1);
    pleat__arena_destroy(arena);
}

/* All but the first, which may make too much of its own; within a request or two: what is taken and
 * given back before anything stays belongs to either iteration. */
static void expect_found(const trainer *t)
{
    expect_found_from(t, 1, 2);
}

static void marks_are_found_where_every_size_changes(void **state)
{
    (void)state;
    trainer t = begin("marks_are_found_where_every_size_changes");
    for (int i = 0; i < 6; i++)
        iterate(&t, 1, true, false);
    expect_found(&t);
    pleat_plan *plan;
    assert_ok(pleat_plan_make(t.job.trace, NULL, &plan));
    assert_int_equal(plan->steady.slot_count, 3 * LAYERS + WEIGHTS);
    pleat_plan_free(plan);
    pleat_trace_free(t.job.trace);
}

/* Three valleys an iteration: behind each batch, and behind the step. */
static void marks_are_iterations_not_batches(void **state)
{
    (void)state;
    trainer t = begin("marks_are_iterations_not_batches");
    for (int i = 0; i < 5; i++)
        iterate(&t, 2, true, true);
    expect_found(&t);
    pleat_trace_free(t.job.trace);
}

/* A recording that ends in the middle of an iteration does not take what there is of it for one. */
static void marks_leave_out_what_was_cut(void **state)
{
    (void)state;
    trainer t = begin("marks_leave_out_what_was_cut");
    for (int i = 0; i < 4; i++)
        iterate(&t, 1, true, false);
    for (int i = 0; i < LAYERS; i++)
        take(&t, 3 * MIB);
    expect_found(&t);
    pleat_plan *plan;
    assert_ok(pleat_plan_make(t.job.trace, NULL, &plan));
    assert_int_equal(plan->steady.slot_count, 3 * LAYERS + WEIGHTS);
    pleat_plan_free(plan);
    pleat_trace_free(t.job.trace);
}

/* The first iteration leaves the optimizer's state, and a workspace between its first requests: it
 * is longer than the others, and a job is learned an iteration later where its mark is missing. */
static void marks_begin_with_the_first_iteration(void **state)
{
    (void)state;
    for (uint32_t at = 0; at < 8; at++) {
        trainer t = begin("marks_begin_with_the_first_iteration");
        t.workspace_at = at;
        for (int i = 0; i < 4; i++)
            iterate(&t, 1, false, false);
        expect_found_from(&t, 0, 0);
        pleat_trace_free(t.job.trace);
    }
}

static void marks_are_none_where_nothing_repeats(void **state)
{
    (void)state;
    trainer t = begin("marks_are_none_where_nothing_repeats");
    wander(&t, 64, 2000);
    pleat__arena *arena;
    pleat__requests requests;
    uint32_t *marks, found;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__requests_make(t.job.trace, 0, arena, &requests));
    assert_ok(pleat__marks_find(&requests, &marks, &found));
    assert_int_equal(found, 0);
    pleat__arena_destroy(arena);
    pleat_trace_free(t.job.trace);
}

/* Short recordings without order: what is made ready for a valley may lie before the valley in
 * front of it, and a mark there began an iteration behind its end. */
static void marks_ascend_in_whatever_is_recorded(void **state)
{
    (void)state;
    test_random random = test_random_begin("marks_ascend_in_whatever_is_recorded", 0x51ed);
    uint32_t several = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        trainer t = begin_with(random);
        wander(&t, 6, 60);
        random = t.random;
        pleat__arena *arena;
        pleat__requests requests;
        uint32_t *marks, found;
        assert_ok(pleat__arena_create(&arena));
        assert_ok(pleat__requests_make(t.job.trace, 0, arena, &requests));
        uint64_t live[WEIGHTS + 60 + 1] = {0};
        for (uint32_t at = 0; at < requests.event_count; at++) {
            uint64_t size = requests.items[requests.events[at] / 2].size;
            live[at + 1] = requests.events[at] % 2 == 0 ? live[at] + size : live[at] - size;
        }
        assert_ok(pleat__valleys_find(&requests, live, &marks, &found));
        several += found > 1;
        for (uint32_t i = 1; i < found; i++)
            assert_true(marks[i] > marks[i - 1]);
        pleat__arena_destroy(arena);
        pleat_trace_free(t.job.trace);
    }
    assert_true(several > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_are_found_where_every_size_changes),
        cmocka_unit_test(marks_are_iterations_not_batches),
        cmocka_unit_test(marks_leave_out_what_was_cut),
        cmocka_unit_test(marks_begin_with_the_first_iteration),
        cmocka_unit_test(marks_are_none_where_nothing_repeats),
        cmocka_unit_test(marks_ascend_in_whatever_is_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
