/*
 * place.c: contiguous placement: no two items that are live together overlap, heights of problems
 * whose optimum is known, the same places every time. Also the structures under it: gaps, strips,
 * timelines.
 */
#include "test.h"

#include <plan/base/free_ranges.h>
#include <plan/base/plan.h>
#include <plan/base/sort.h>
#include <plan/place/portfolio.h>
#include <plan/place/timeline.h>
#include <string.h>
#include <time.h>

static pleat__arena *arena;

static int make_arena(void **state)
{
    (void)state;
    return pleat__arena_create(&arena) == PLEAT_OK ? 0 : -1;
}

static int drop_arena(void **state)
{
    (void)state;
    pleat__arena_destroy(arena);
    return 0;
}

/* An item's life as half-open pieces; the definition of place.h, written once more. */
static int lives_of(const pleat__problem *problem, const pleat__item *item, pleat__range *lives)
{
    if (item->size == 0)
        return 0;
    if (item->end > item->begin) {
        lives[0] = (pleat__range){item->begin, item->end};
        return 1;
    }
    if (!problem->circular)
        return 0;
    lives[0] = (pleat__range){item->begin, problem->horizon};
    lives[1] = (pleat__range){0, item->end};
    return 2;
}

static bool live_together(const pleat__problem *problem, uint32_t a, uint32_t b)
{
    pleat__range as[2], bs[2];
    int an = lives_of(problem, &problem->items[a], as);
    int bn = lives_of(problem, &problem->items[b], bs);
    for (int i = 0; i < an; i++)
        for (int j = 0; j < bn; j++)
            if (pleat__range_overlaps(as[i], bs[j]))
                return true;
    return false;
}

/* The slow and certain answer to pleat__max_live. */
static uint64_t max_live_of(const pleat__problem *problem)
{
    uint64_t highest = 0;
    for (uint32_t i = 0; i < problem->count; i++) {
        uint32_t at = problem->items[i].begin;
        uint64_t live = 0;
        for (uint32_t k = 0; k < problem->count; k++) {
            pleat__range lives[2];
            int n = lives_of(problem, &problem->items[k], lives);
            for (int p = 0; p < n; p++)
                if (lives[p].begin <= at && at < lives[p].end)
                    live += problem->items[k].size;
        }
        highest = live > highest ? live : highest;
    }
    return highest;
}

static void assert_placed(const pleat__problem *problem, const uint64_t *places, uint64_t height)
{
    for (uint32_t i = 0; i < problem->count; i++) {
        const pleat__item *a = &problem->items[i];
        pleat__range lives[2];
        if (lives_of(problem, a, lives) == 0)
            continue;
        assert_true(places[i] + a->size <= height);
        assert_int_equal(places[i] % PLEAT__ALIGNMENT, 0);
        if (a->fixed != UINT64_MAX)
            assert_int_equal(places[i], a->fixed);
        for (uint32_t k = 0; k < i; k++) {
            const pleat__item *b = &problem->items[k];
            pleat__range x = {places[i], places[i] + a->size};
            pleat__range y = {places[k], places[k] + b->size};
            bool both_fixed = a->fixed != UINT64_MAX && b->fixed != UINT64_MAX;
            bool in_the_way = live_together(problem, i, k) ||
                              (a->stream != b->stream && lives_of(problem, b, lives) > 0);
            if (!both_fixed && in_the_way && pleat__range_overlaps(x, y))
                fail_msg("items %u and %u overlap at %llu and %llu", k, i,
                         (unsigned long long)places[k], (unsigned long long)places[i]);
        }
    }
}

static pleat__place_report place_with(const pleat__problem *problem, const char *algorithm,
                                      uint64_t *places)
{
    pleat__place_options options = {.chunk_bytes = 0};
    pleat__place_report report;
    assert_true(pleat__algorithm_find(algorithm, &options.algorithms));
    assert_ok(pleat__place_make(problem, &options, arena, places, &report));
    assert_placed(problem, places, report.height);
    return report;
}

#define ITEM(s, b, e)                                                                              \
    {                                                                                              \
        .size = (s)*512, .fixed = UINT64_MAX, .begin = (b), .end = (e)                             \
    }

static void place_known_optimum_is_reached(void **state)
{
    (void)state;
    /* Two long ones and three that take turns. */
    const pleat__item turns[] = {ITEM(4, 0, 10), ITEM(2, 1, 3), ITEM(2, 3, 5), ITEM(2, 5, 9),
                                 ITEM(3, 2, 10)};
    /* Size order alone is off by two; long-lived low is exact. */
    const pleat__item steps[] = {ITEM(3, 0, 2), ITEM(2, 0, 6), ITEM(3, 2, 4), ITEM(3, 4, 6),
                                 ITEM(1, 1, 5)};
    uint64_t places[8];
    pleat__problem problem = {.items = turns, .count = 5, .horizon = 10};
    assert_int_equal(place_with(&problem, "auto", places).height, 9 * 512);
    problem = (pleat__problem){.items = steps, .count = 5, .horizon = 6};
    assert_int_equal(place_with(&problem, "auto", places).height, 6 * 512);
}

static void place_wraps_and_always(void **state)
{
    (void)state;
    /* 0 lives always; 1 over the end; 2 fits where 1 is not; 3 is all the circle but 3..5. */
    const pleat__item items[] = {ITEM(5, 0, 20), ITEM(4, 15, 3), ITEM(4, 3, 15), ITEM(2, 5, 3),
                                 ITEM(2, 3, 5)};
    uint64_t places[8], live;
    pleat__problem problem = {.items = items, .count = 5, .horizon = 20, .circular = true};
    assert_ok(pleat__max_live(&problem, arena, &live));
    assert_int_equal(live, 11 * 512);
    assert_int_equal(place_with(&problem, "auto", places).height, 11 * 512);
    assert_int_equal(places[0], 0);
}

static void place_trivial_items_take_no_room(void **state)
{
    (void)state;
    const pleat__item items[] = {ITEM(0, 0, 10), ITEM(7, 4, 4), ITEM(2, 0, 5), ITEM(2, 5, 10)};
    uint64_t places[8];
    pleat__problem problem = {.items = items, .count = 4, .horizon = 10};
    assert_int_equal(place_with(&problem, "auto", places).height, 2 * 512);
    assert_int_equal(places[0], 0);
    assert_int_equal(places[1], 0);
    problem.count = 0;
    assert_int_equal(place_with(&problem, "auto", places).height, 0);
}

static void place_keeps_clear_of_what_is_fixed(void **state)
{
    (void)state;
    pleat__item items[] = {ITEM(4, 0, 10), ITEM(3, 0, 10), ITEM(2, 1, 4), ITEM(5, 2, 6)};
    items[0].fixed = 3 * 512;
    uint64_t places[8];
    pleat__problem problem = {.items = items, .count = 4, .horizon = 10, .circular = true};
    assert_int_equal(place_with(&problem, "auto", places).height, 14 * 512);
    assert_int_equal(places[1], 0);
}

static void place_streams_do_not_share(void **state)
{
    (void)state;
    pleat__item items[] = {ITEM(4, 0, 3), ITEM(3, 5, 8), ITEM(2, 6, 9)};
    items[1].stream = 7;
    uint64_t places[8];
    pleat__problem problem = {.items = items, .count = 3, .horizon = 10};
    assert_int_equal(place_with(&problem, "auto", places).height, 7 * 512);
}

/* Ties, zero sizes, zero lives, wraps, always, streams, fixed ones; few to some hundred. */
static uint32_t random_items(test_random *random, pleat__item *items, uint32_t most,
                             pleat__problem *problem)
{
    uint32_t count = 1 + (uint32_t)test_random_below(random, most);
    uint32_t horizon = 1 + (uint32_t)test_random_below(random, 3 * count);
    uint32_t streams = test_random_below(random, 4) == 0 ? 3 : 1;
    uint64_t largest = 1 + test_random_below(random, 3000);
    bool circular = test_random_below(random, 2) == 0;
    bool fixed = test_random_below(random, 8) == 0;
    uint64_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t begin = (uint32_t)test_random_below(random, horizon);
        uint32_t life = (uint32_t)test_random_below(random, 1 + horizon / 4);
        uint64_t size = test_random_below(random, 20) == 0 ? 0 : test_random_below(random, largest);
        items[i] = (pleat__item){.size = size * 512,
                                 .fixed = UINT64_MAX,
                                 .begin = begin,
                                 .end = begin + life,
                                 .begin_phase = (uint16_t)(begin * 8 / horizon),
                                 .end_phase = (uint16_t)((begin + life) * 8 / horizon),
                                 .stream = (uint16_t)test_random_below(random, streams)};
        if (items[i].end > horizon)
            items[i].end = circular ? items[i].end - horizon : horizon;
        if (test_random_below(random, 10) == 0) {
            items[i].begin = 0;
            items[i].end = horizon;
            if (fixed) {
                items[i].fixed = end + 512 * test_random_below(random, 8);
                end = items[i].fixed + items[i].size;
            }
        }
    }
    *problem = (pleat__problem){items, count, horizon, circular};
    return count;
}

/* Processor seconds to place as many items, of so many streams. */
static double seconds_of_streams(uint32_t streams)
{
    enum { ITEMS = 4 * 65536 };
    static pleat__item items[ITEMS];
    static uint64_t places[ITEMS];
    pleat__place_options options = {.chunk_bytes = 4096};
    pleat__place_report report;
    assert_true(pleat__algorithm_find("sweep", &options.algorithms));
    for (uint32_t i = 0; i < ITEMS; i++)
        items[i] = (pleat__item){.size = 512,
                                 .fixed = UINT64_MAX,
                                 .begin = i,
                                 .end = i + 8,
                                 .stream = (uint16_t)(i % streams)};
    const pleat__problem problem = {.items = items, .count = ITEMS, .horizon = ITEMS + 8};
    clock_t begin = clock();
    assert_ok(pleat__place_make(&problem, &options, arena, places, &report));
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

/* Each stream was looked for among all items: over 13 s where 64 streams took 0.02. */
static void place_takes_no_longer_for_many_streams(void **state)
{
    (void)state;
    double few = seconds_of_streams(64), many = seconds_of_streams(65536);
    print_message("%.3f s, of 65,536 streams %.3f s\n", few, many);
    assert_true(many < 40 * (few + 0.1));
}

/* What is said of an algorithm is of all streams, so that it is no less than what lives. */
static void assert_heights(const pleat__problem *problem, const pleat__place_report *report,
                           uint64_t live)
{
    for (uint32_t i = 0; i < problem->count; i++)
        if (problem->items[i].fixed != UINT64_MAX)
            return; /* it may lie above all that is placed */
    for (uint32_t a = 0; a < PLEAT__ALGORITHM_COUNT; a++)
        assert_true(report->heights[a] == 0 || report->heights[a] >= live);
}

static void place_random_problems_hold(void **state)
{
    (void)state;
    static const char *const algorithms[] = {"auto", "size", "lifetime", "sweep", "stweaver"};
    static pleat__item items[400];
    static uint64_t places[400], again[400];
    test_random random = test_random_begin("place_random_problems_hold", 20261121);
    for (int round = 0; round < 3000; round++) {
        pleat__problem problem;
        uint64_t live;
        uint32_t count = random_items(&random, items, round % 100 == 0 ? 400 : 40, &problem);
        assert_ok(pleat__max_live(&problem, arena, &live));
        assert_int_equal(live, max_live_of(&problem));
        const char *algorithm = algorithms[round % (sizeof algorithms / sizeof *algorithms)];
        pleat__place_report report = place_with(&problem, algorithm, places);
        assert_true(report.height >= live);
        assert_true(report.height >= report.floor);
        assert_heights(&problem, &report, live);
        assert_int_equal(place_with(&problem, algorithm, again).height, report.height);
        assert_memory_equal(places, again, count * sizeof *places);
    }
    assert_true(pleat__arena_bytes_of(arena).allocated < 100000);
}

/* A map of units next to the gaps. */
#define UNITS 4000

static void gaps_answer_as_a_map_does(void **state)
{
    (void)state;
    static bool taken[UNITS + 16];
    test_random random = test_random_begin("gaps_answer_as_a_map_does", 3);
    pleat__gaps gaps;
    pleat__gaps_init(&gaps, arena);
    assert_ok(pleat__gaps_give(&gaps, (pleat__range){0, UINT64_MAX}));
    memset(taken, 0, sizeof taken);
    for (int step = 0; step < 40000; step++) {
        uint64_t at = test_random_below(&random, UNITS), size = 1 + test_random_below(&random, 9);
        pleat__range range = {at, at + size};
        bool all_taken = true;
        for (uint64_t i = at; i < at + size; i++)
            all_taken &= taken[i];
        if (step % 2 == 0 && pleat__gaps_holds(&gaps, range)) {
            assert_ok(pleat__gaps_take(&gaps, range));
            memset(taken + at, true, size);
        } else if (step % 2 == 1 && all_taken) {
            assert_ok(pleat__gaps_give(&gaps, range));
            memset(taken + at, false, size);
        }
        if (step % 64 != 0)
            continue;
        uint64_t cap = test_random_below(&random, UNITS), place = 0, run = 0;
        uint64_t highest = UINT64_MAX, tightest = UINT64_MAX, smallest = UINT64_MAX;
        for (uint64_t i = 0; i < UNITS; i += run + 1) {
            for (run = 0; i + run < UNITS && !taken[i + run];)
                run++;
            uint64_t end = i + run < cap ? i + run : cap;
            if (end >= i + size)
                highest = end - size;
            /* The last run goes on without end, so it is no tight one. */
            if (run >= size && run < smallest && i + run < UNITS) {
                smallest = run;
                tightest = i;
            }
        }
        bool found = pleat__gaps_highest_below(&gaps, size, cap, &place);
        assert_int_equal(found ? place : UINT64_MAX, highest);
        found = pleat__gaps_tightest(&gaps, size, &place);
        if (tightest != UINT64_MAX) {
            assert_true(found);
            assert_int_equal(place, tightest);
        }
    }
    pleat__gaps_done(&gaps);
}

static void sort_is_stable_and_ascending(void **state)
{
    (void)state;
    static uint64_t keys[5000], sorted[5000], spare[5000];
    static uint32_t indices[5000], other[5000];
    test_random random = test_random_begin("sort_is_stable_and_ascending", 4);
    for (uint32_t i = 0; i < 5000; i++) {
        keys[i] = test_random_next(&random) >> test_random_below(&random, 64);
        keys[i] = i % 3 == 0 ? keys[i / 3] : keys[i];
        sorted[i] = keys[i];
        indices[i] = i;
    }
    pleat__sort_keys(sorted, spare, 5000);
    pleat__sort_by_key(indices, other, 5000, keys);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(keys[indices[i]], sorted[i]);
        if (i > 0) {
            assert_true(sorted[i - 1] <= sorted[i]);
            assert_true(sorted[i - 1] < sorted[i] || indices[i - 1] < indices[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(place_known_optimum_is_reached),
        cmocka_unit_test(place_wraps_and_always),
        cmocka_unit_test(place_trivial_items_take_no_room),
        cmocka_unit_test(place_keeps_clear_of_what_is_fixed),
        cmocka_unit_test(place_streams_do_not_share),
        cmocka_unit_test(place_takes_no_longer_for_many_streams),
        cmocka_unit_test(place_random_problems_hold),
        cmocka_unit_test(gaps_answer_as_a_map_does),
        cmocka_unit_test(sort_is_stable_and_ascending),
    };
    return cmocka_run_group_tests_name("place", tests, make_arena, drop_arena);
}
