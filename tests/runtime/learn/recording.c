/*
 * recording.c: which iterations of a recording are alike, told by hand: between marks, and when the
 * mark comes twice or host memory ends.
 */
#include "test.h"

#include <internal/arena.h>
#include <runtime/learn/recording.h>

#define REQUESTS 512u

typedef struct fixture {
    pleat__arena *arena;
    pleat__recording recording;
    uint64_t requests;
} fixture;

static void begin(fixture *f)
{
    *f = (fixture){.arena = NULL};
    assert_ok(pleat__arena_create(&f->arena));
    pleat__recording_init(&f->recording, f->arena);
    assert_int_equal(pleat__recording_mark(&f->recording).count, 0);
}

static void end(fixture *f)
{
    pleat__recording_release(&f->recording);
    assert_int_equal(pleat__arena_bytes_of(f->arena).allocated, 0);
    pleat__arena_destroy(f->arena);
}

static void add(fixture *f, uint64_t bytes, uint16_t stream)
{
    const pleat__place place = {.address = ++f->requests * UINT64_C(4096), .granules = 1};
    pleat__recording_add(&f->recording, bytes, stream, &place);
}

/* All sizes of an iteration are another's. */
static uint64_t size_of(uint32_t i)
{
    return 512 * (i + 1);
}

/* An iteration without the requests from `from` to `to`, and its mark. */
static pleat__alike run(fixture *f, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (i < from || i >= to)
            add(f, size_of(i), 0);
    return pleat__recording_mark(&f->recording);
}

static void recording_same_requests_are_alike(void **state)
{
    (void)state;
    fixture f;
    pleat__schedule *schedule;
    begin(&f);
    assert_int_equal(run(&f, 0, 0).count, 0);
    for (int i = 0; i < 3; i++) {
        pleat__alike found = run(&f, 0, 0);
        assert_int_equal(found.count, REQUESTS);
        assert_ok(pleat__recording_take(&f.recording, &found, &schedule));
        assert_int_equal(schedule->count, REQUESTS);
        for (uint32_t k = 0; k < REQUESTS; k++) {
            assert_int_equal(schedule->items[k].bytes, size_of(k));
            assert_int_equal(schedule->items[k].kind, PLEAT__ITEM_SLOT);
            assert_int_equal(schedule->items[k].place.address,
                             (f.requests - REQUESTS + k + 1) * UINT64_C(4096));
        }
        pleat__schedule_free(schedule);
    }
    end(&f);
}

/* Longer than its ring is: what is forgotten serves again. (R15.) */
static void recording_of_a_long_job_takes_no_more_memory(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    (void)run(&f, 0, 0);
    (void)run(&f, 0, 0);
    uint64_t most = pleat__arena_bytes_of(f.arena).allocated +
                    2 * PLEAT__SEGMENT * sizeof(pleat__recorded_request);
    while (f.requests < UINT64_C(3) * PLEAT__SEGMENT * PLEAT__SEGMENTS / 2) {
        assert_int_equal(run(&f, 0, 0).count, REQUESTS);
        assert_in_range(pleat__arena_bytes_of(f.arena).allocated, 0, most);
    }
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(pleat__recorded_bytes(
                             pleat__recording_at(&f.recording, f.recording.end - REQUESTS + i)),
                         size_of(i));
    end(&f);
}

/* What lies before it is forgotten, so that it is alike to nothing. */
static void recording_iteration_behind_a_short_one_is_the_first(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    (void)run(&f, 0, 0);
    assert_int_equal(run(&f, 0, 0).count, REQUESTS);
    (void)run(&f, 10, REQUESTS);
    assert_int_equal(run(&f, 0, 0).count, 0);
    assert_int_equal(run(&f, 0, 0).count, REQUESTS);
    end(&f);
}

/* What repeats first in a job that marks nothing may be a loop within its iteration. */
static void recording_begins_at_the_first_mark(void **state)
{
    (void)state;
    fixture f = {.arena = NULL};
    assert_ok(pleat__arena_create(&f.arena));
    pleat__recording_init(&f.recording, f.arena);
    for (uint32_t i = 0; i < 5 * REQUESTS; i++)
        add(&f, size_of(i % REQUESTS), 0);
    assert_int_equal(f.recording.end, 0);
    assert_int_equal(pleat__arena_bytes_of(f.arena).allocated, 0);
    assert_int_equal(pleat__recording_mark(&f.recording).count, 0);
    assert_int_equal(run(&f, 0, 0).count, 0);
    assert_int_equal(run(&f, 0, 0).count, REQUESTS);
    end(&f);
}

/* To give all of it back at once would be long for a call. */
static void recording_that_begins_again_gives_memory_back_by_and_by(void **state)
{
    (void)state;
    enum { HELD = 5 };
    const uint64_t segment = PLEAT__SEGMENT * sizeof(pleat__recorded_request);
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < HELD * PLEAT__SEGMENT + 1; i++)
        add(&f, size_of(i), 0);
    uint64_t all = pleat__arena_bytes_of(f.arena).allocated;
    pleat__recording_sweep(&f.recording, HELD);
    assert_int_equal(pleat__arena_bytes_of(f.arena).allocated, all);
    pleat__recording_restart(&f.recording);
    assert_int_equal(f.recording.begin, f.recording.end);
    for (uint32_t i = 0; i < HELD; i++) {
        assert_int_equal(pleat__arena_bytes_of(f.arena).allocated, all - i * segment);
        pleat__recording_sweep(&f.recording, 1);
    }
    pleat__recording_sweep(&f.recording, HELD);
    assert_int_equal(pleat__arena_bytes_of(f.arena).allocated, all - HELD * segment);
    /* What is recorded meanwhile takes the memory of what was forgotten. */
    for (uint32_t i = 0; i < HELD * PLEAT__SEGMENT; i++)
        add(&f, size_of(i), 0);
    pleat__recording_restart(&f.recording);
    for (uint32_t i = 0; i < HELD * PLEAT__SEGMENT; i++)
        add(&f, size_of(i), 0);
    assert_int_equal(pleat__arena_bytes_of(f.arena).allocated, all);
    end(&f);
}

static void recording_first_iteration_may_have_more(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        add(&f, size_of(i), 0);
        if (i >= REQUESTS / 2 && i % 2 == 0)
            add(&f, 7 * 512 * 1000 + 512 * i, 0);
    }
    assert_int_equal(pleat__recording_mark(&f.recording).count, 0);
    assert_int_equal(run(&f, 0, 0).count, REQUESTS);
    end(&f);
}

/* Two in a row of 64. */
static bool is_strange(uint32_t i)
{
    return i % 64 >= 62;
}

static void recording_few_that_are_missing_or_new_are_no_difference(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    run(&f, 0, 0);
    assert_int_equal(run(&f, 200, 202).count, REQUESTS - 2);
    assert_int_equal(run(&f, 0, 0).count, REQUESTS);
    assert_int_equal(run(&f, 200, 203).count, 0);
    run(&f, 0, 0);
    /* Those that are not in the one before are expected as the others are. */
    pleat__schedule *schedule;
    pleat__alike found = run(&f, 0, 0);
    for (uint32_t i = 0; i < REQUESTS; i++)
        add(&f, is_strange(i) ? 999 * 512 + 512 * i : size_of(i), 0);
    found = pleat__recording_mark(&f.recording);
    assert_int_equal(found.count, REQUESTS);
    assert_ok(pleat__recording_take(&f.recording, &found, &schedule));
    assert_int_equal(schedule->count, REQUESTS);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(schedule->items[i].kind, PLEAT__ITEM_SLOT);
        assert_int_equal(schedule->items[i].place.address,
                         (f.requests - REQUESTS + i + 1) * UINT64_C(4096));
    }
    pleat__schedule_free(schedule);
    /* Behind strangers in a row what was expected is there. */
    run(&f, 0, 0);
    for (uint32_t i = 0; i < REQUESTS + 30; i++)
        add(&f, i < 200 ? size_of(i) : i < 230 ? size_of(REQUESTS + i) : size_of(i - 30), 0);
    found = pleat__recording_mark(&f.recording);
    assert_int_equal(found.count, REQUESTS + 30);
    end(&f);
}

static void recording_many_that_are_missing_are_a_difference(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    run(&f, 0, 0);
    /* All of the shorter one are in the longer one, but not the other way round. */
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (i % 4 != 3)
            add(&f, size_of(i), 0);
    assert_int_equal(pleat__recording_mark(&f.recording).count, REQUESTS / 4 * 3);
    assert_int_equal(run(&f, 0, 0).count, 0);
    /* An evaluation has the beginning of an iteration, and is none. */
    assert_int_equal(run(&f, 200, REQUESTS).count, 0);
    end(&f);
}

/* Every size is another one: by a factor, or as drawn. */
static pleat__alike run_scaled(fixture *f, test_random *random, uint64_t numerator, uint16_t stream)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint64_t part = random != NULL ? 4 + test_random_below(random, 9) : numerator;
        add(f, 512 * (i + 16) * part, i % 2 == 0 ? stream : 0);
    }
    return pleat__recording_mark(&f->recording);
}

static void recording_other_sizes_are_not_alike(void **state)
{
    (void)state;
    fixture f;
    test_random random = test_random_begin(__func__, 0x2ec0);
    static const uint64_t lengths[] = {8, 11, 5, 13, 2};
    begin(&f);
    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        assert_int_equal(run_scaled(&f, NULL, lengths[i], 0).count, 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(f.recording.compared.open, i <= REQUESTS / 15); /* hopeless then */
        add(&f, 512 * 7, 0);
    }
    assert_int_equal(pleat__recording_mark(&f.recording).count, 0);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(run_scaled(&f, &random, 0, 0).count, 0);
    end(&f);
}

/* An iteration whose requests are larger by so much, and its mark. */
static uint32_t run_drawn(fixture *f, uint64_t more)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        add(f, size_of(i) + more, 0);
    return pleat__recording_mark(&f->recording).count;
}

/* Lengths are drawn: two in a row that are the same are a chance, many are not. A job that begins
 * with two that are unlike is none of these. */
static void recording_two_alike_say_nothing_where_most_are_not(void **state)
{
    (void)state;
    for (uint64_t unlike = 2; unlike <= 20; unlike += 9) {
        fixture f;
        begin(&f);
        for (uint64_t i = 0; i <= unlike; i++)
            assert_int_equal(run_drawn(&f, i), 0);
        uint32_t alike = 1;
        while (alike < 30 && run_drawn(&f, unlike) == 0)
            alike++;
        /* Up to six more are not looked at, and then one has none before it to be like. */
        assert_in_range(alike, unlike == 2 ? 1 : 13, unlike == 2 ? 1 : 20);
        assert_int_equal(run_drawn(&f, unlike), REQUESTS);
        end(&f);
    }
}

/* Where none is ever like the one before, two of eight are recorded. */
static void recording_unlike_iterations_are_looked_at_seldom(void **state)
{
    (void)state;
    fixture f;
    uint32_t recorded = 0;
    begin(&f);
    for (uint64_t i = 0; i < 9 + 80; i++) {
        for (uint32_t k = 0; k < REQUESTS; k++)
            add(&f, size_of(k) + i, 0);
        recorded += i >= 9 && f.recording.end - f.recording.begin >= REQUESTS;
        assert_int_equal(pleat__recording_mark(&f.recording).count, 0);
    }
    assert_int_equal(recorded, 20);
    end(&f);
}

static void recording_other_streams_are_not_alike(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    run_scaled(&f, NULL, 8, 0);
    assert_int_equal(run_scaled(&f, NULL, 8, 1).count, 0);
    assert_int_equal(run_scaled(&f, NULL, 8, 1).count, REQUESTS);
    end(&f);
}

/* A program may mark behind its optimizer's step, which is a mark. */
static void recording_marks_right_behind_each_other_are_one(void **state)
{
    (void)state;
    for (uint32_t between = 0; between <= 4; between++) {
        fixture f;
        begin(&f);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(run(&f, 0, 0).count, i > 0 ? REQUESTS + between : 0);
            for (uint32_t k = 0; k < between; k++)
                add(&f, 512, 0);
            assert_int_equal(pleat__recording_mark(&f.recording).count, 0);
        }
        end(&f);
    }
}

/* What begins again at a schedule or a back-off, in which nothing is recorded, has nothing to be
 * compared with: it is not unlike what came before. */
static void recording_that_begins_again_is_unlike_nothing(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    assert_int_equal(run(&f, 0, 0).count, 0);
    assert_int_equal(run(&f, 0, 0).count, REQUESTS);
    pleat__recording_restart(&f.recording);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(pleat__recording_mark(&f.recording).count, 0);
    assert_int_equal(run(&f, 0, 0).count, 0);
    assert_int_equal(f.recording.unlike, 0);
    assert_int_equal(run(&f, 0, 0).count, REQUESTS);
    end(&f);
}

/* Too few requests are no iteration. */
static void recording_few_requests_are_no_iteration(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t n = 0; n < 4; n++) {
        for (uint32_t i = 0; i < 63; i++)
            add(&f, size_of(i), 0);
        assert_int_equal(pleat__recording_mark(&f.recording).count, 0);
    }
    end(&f);
}

static void recording_without_host_memory_begins_again_at_a_mark(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    run(&f, 0, 0);
    assert_int_equal(run(&f, 0, 0).count, REQUESTS);
    pleat__arena_fail(1, true);
    for (uint32_t i = 0; i < 5000; i++)
        add(&f, size_of(i % REQUESTS), 0);
    assert_true(pleat__arena_failed() > 0);
    pleat__arena_fail(0, false);
    for (uint32_t i = 0; i < REQUESTS / 2; i++)
        add(&f, size_of(i), 0);
    assert_int_equal(f.recording.end - f.recording.begin, 0);
    assert_int_equal(pleat__recording_mark(&f.recording).count, 0);
    assert_int_equal(run(&f, 0, 0).count, 0);
    assert_int_equal(run(&f, 0, 0).count, REQUESTS);
    /* Nor is a stretch taken. */
    pleat__schedule *schedule;
    pleat__alike found = run(&f, 0, 0);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        pleat__arena_fail(nth, false);
        assert_int_equal(pleat__recording_take(&f.recording, &found, &schedule), PLEAT_E_NO_MEMORY);
        pleat__arena_fail(0, false);
    }
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recording_same_requests_are_alike),
        cmocka_unit_test(recording_of_a_long_job_takes_no_more_memory),
        cmocka_unit_test(recording_iteration_behind_a_short_one_is_the_first),
        cmocka_unit_test(recording_begins_at_the_first_mark),
        cmocka_unit_test(recording_that_begins_again_gives_memory_back_by_and_by),
        cmocka_unit_test(recording_first_iteration_may_have_more),
        cmocka_unit_test(recording_few_that_are_missing_or_new_are_no_difference),
        cmocka_unit_test(recording_many_that_are_missing_are_a_difference),
        cmocka_unit_test(recording_other_sizes_are_not_alike),
        cmocka_unit_test(recording_two_alike_say_nothing_where_most_are_not),
        cmocka_unit_test(recording_unlike_iterations_are_looked_at_seldom),
        cmocka_unit_test(recording_other_streams_are_not_alike),
        cmocka_unit_test(recording_marks_right_behind_each_other_are_one),
        cmocka_unit_test(recording_that_begins_again_is_unlike_nothing),
        cmocka_unit_test(recording_few_requests_are_no_iteration),
        cmocka_unit_test(recording_without_host_memory_begins_again_at_a_mark),
    };
    return cmocka_run_group_tests_name("recording", tests, NULL, NULL);
}
