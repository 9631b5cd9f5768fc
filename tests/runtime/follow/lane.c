/*
 * lane.c: a lane by itself, over chunks that are not neighbours. Every place is the lane's granules
 * at its address, whether it lies across a seam or not; what strayed into the lane's memory is
 * passed over.
 */
#include "ground.h"

#include <runtime/follow/schedule.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHUNKS    16u
#define RUNS_MOST 6u
#define LIVE_MOST 12u
#define MANY_RUNS 32768u

static double seconds(void)
{
    struct timespec now;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct fixture {
    ground g;
    pleat__heap heap;
    pleat__lane_space lane;
    pleat__run runs[RUNS_MOST];
    uint32_t starts[RUNS_MOST], run_count;
    uint64_t ordered;
} fixture;

static void begin(fixture *f)
{
    memset(f, 0, sizeof *f);
    ground_heap_begin(&f->g, &f->heap, &f->ordered, CHUNKS);
}

static void end(fixture *f)
{
    pleat__lane_release(&f->lane);
    ground_heap_end(&f->g, &f->heap);
}

/* A part of every second chunk, from the last one down, so that no two runs are neighbours. */
static void make_lane(fixture *f, test_random *random)
{
    uint32_t full = f->g.pool.occupancy.full, granules = 0;
    f->run_count = 1 + (uint32_t)test_random_below(random, RUNS_MOST);
    for (uint32_t i = 0; i < f->run_count; i++) {
        uint32_t offset = (uint32_t)test_random_below(random, full / 2);
        uint32_t count = 1 + (uint32_t)test_random_below(random, full - offset);
        f->runs[i] = (pleat__run){(CHUNKS - 2 - 2 * i) * full + offset, count};
        granules += count;
    }
    pleat__lane_init(&f->lane, f->g.arena, 1ull << 40, granules, f->runs, f->starts, f->run_count);
}

/* The physical granule of one of the lane's. */
static uint32_t physical(const fixture *f, uint32_t granule)
{
    uint32_t i = 0;
    for (; granule >= f->runs[i].count; i++)
        granule -= f->runs[i].count;
    return f->runs[i].begin + granule;
}

static bool is_free(const fixture *f, uint32_t granule)
{
    return pleat__occupancy_is_free(&f->g.pool.occupancy, (pleat__run){physical(f, granule), 1});
}

/* The granules at the place's address, in order, and a list of runs only across a seam. */
static void expect_place(const fixture *f, const pleat__place *place)
{
    uint32_t at = (uint32_t)((place->address - f->lane.address) >> PLEAT__GRANULE_SHIFT), seams = 0;
    for (uint32_t k = 1; k < place->granules; k++)
        seams += physical(f, at + k) != physical(f, at + k - 1) + 1;
    assert_int_equal(place->several != NULL, seams != 0);
    if (place->several == NULL) {
        assert_int_equal(place->run.begin, physical(f, at));
        assert_int_equal(place->run.count, place->granules);
        return;
    }
    assert_int_equal(place->several->granules, place->granules);
    assert_int_equal(place->several->count, seams + 1);
    for (uint32_t i = 0; i < place->several->count; i++)
        for (uint32_t k = 0; k < place->several->runs[i].count; k++)
            assert_int_equal(place->several->runs[i].begin + k, physical(f, at++));
    assert_int_equal((at << PLEAT__GRANULE_SHIFT) + f->lane.address,
                     place->address + ((uint64_t)place->granules << PLEAT__GRANULE_SHIFT));
}

static void lane_places_are_its_granules(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x1a9e5);
    for (int round = 0; round < 60; round++) {
        fixture f;
        pleat__place live[LIVE_MOST];
        uint32_t count = 0;
        begin(&f);
        make_lane(&f, &random);
        for (int step = 0; step < 80; step++) {
            uint32_t granules = 1 + (uint32_t)test_random_below(&random, f.lane.granules / 3 + 1);
            if (count < LIVE_MOST &&
                pleat__lane_alloc(&f.lane, &f.heap, granules, 0, &live[count])) {
                assert_int_equal(live[count].granules, granules);
                expect_place(&f, &live[count++]);
            } else if (count != 0) {
                uint32_t gone = (uint32_t)test_random_below(&random, count);
                pleat__lane_give(&f.lane, &f.heap, &live[gone]);
                live[gone] = live[--count];
            }
        }
        while (count != 0)
            pleat__lane_give(&f.lane, &f.heap, &live[--count]);
        for (uint32_t k = 0; k < f.lane.granules; k++)
            assert_true(is_free(&f, k));
        assert_true(pleat__lane_alloc(&f.lane, &f.heap, f.lane.granules, 0, &live[0]));
        expect_place(&f, &live[0]);
        assert_false(pleat__lane_alloc(&f.lane, &f.heap, 1, 0, &live[1]));
        pleat__lane_give(&f.lane, &f.heap, &live[0]);
        end(&f);
    }
}

/* The lowest granules that are free, or the lane's end. */
static uint32_t lowest(const fixture *f, uint32_t granules)
{
    uint32_t at = 0, length = 0;
    for (; at < f->lane.granules && length < granules; at++)
        length = is_free(f, at) ? length + 1 : 0;
    return length == granules ? at - granules : f->lane.granules;
}

static void lane_passes_over_what_strayed_into_it(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x57a1);
    for (int round = 0; round < 200; round++) {
        fixture f;
        pleat__place strays[5], place;
        uint32_t count = 1 + (uint32_t)test_random_below(&random, 5), made = 0;
        begin(&f);
        make_lane(&f, &random);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t at = (uint32_t)test_random_below(&random, i == 0 ? 2 : f.lane.granules);
            if (at >= f.lane.granules || !is_free(&f, at))
                continue;
            strays[made] = (pleat__place){.run = {physical(&f, at), 1}, .granules = 1};
            assert_true(pleat__heap_take(&f.heap, &strays[made++], 0));
        }
        for (uint32_t granules = 1; granules < f.lane.granules; granules += 1 + granules / 8) {
            uint32_t at = lowest(&f, granules);
            bool placed = pleat__lane_alloc(&f.lane, &f.heap, granules, 0, &place);
            assert_int_equal(placed, at != f.lane.granules);
            if (!placed)
                continue;
            assert_int_equal((place.address - f.lane.address) >> PLEAT__GRANULE_SHIFT, at);
            expect_place(&f, &place);
            pleat__lane_give(&f.lane, &f.heap, &place);
        }
        while (made != 0)
            pleat__heap_give(&f.heap, &strays[--made]);
        end(&f);
    }
}

/* The place that is tried first is the one that is taken; there is none where there is no room, and
 * none of either where the lane is gone. */
static void lane_says_what_it_tries_first(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x401e);
    fixture f;
    pleat__place first, taken;
    begin(&f);
    make_lane(&f, &random);
    for (uint32_t granules = 1; granules <= f.lane.granules; granules += 1 + granules / 4) {
        assert_true(pleat__lane_hole(&f.lane, f.g.arena, granules, &first));
        expect_place(&f, &first);
        assert_true(pleat__lane_alloc(&f.lane, &f.heap, granules, 0, &taken));
        assert_int_equal(first.address, taken.address);
        pleat__arena_free(f.g.arena, first.several);
        pleat__lane_give(&f.lane, &f.heap, &taken);
    }
    assert_false(pleat__lane_hole(&f.lane, f.g.arena, f.lane.granules + 1, &first));
    assert_false(pleat__lane_alloc(&f.lane, &f.heap, f.lane.granules + 1, 0, &taken));
    f.lane.gone = true;
    assert_false(pleat__lane_hole(&f.lane, f.g.arena, 1, &first));
    assert_false(pleat__lane_alloc(&f.lane, &f.heap, 1, 0, &taken));
    end(&f);
}

/* The least time in which the last granule of a lane of so many runs was served, of several. The
 * granules before are another request's. */
static double last_of(uint32_t run_count)
{
    pleat__run *runs = calloc(run_count, sizeof *runs);
    uint32_t *starts = calloc(run_count, sizeof *starts);
    fixture f = {.run_count = 0};
    pleat__place before, last;
    double least = 1e9;
    assert_true(runs != NULL && starts != NULL);
    ground_heap_begin(&f.g, &f.heap, &f.ordered, 2 * MANY_RUNS / (PAGE >> PLEAT__GRANULE_SHIFT));
    for (uint32_t i = 0; i < run_count; i++)
        runs[i] = (pleat__run){2 * i, 1};
    pleat__lane_init(&f.lane, f.g.arena, 1ull << 40, run_count, runs, starts, run_count);
    assert_true(pleat__lane_alloc(&f.lane, &f.heap, run_count - 1, 0, &before));
    for (int round = 0; round < 5; round++) {
        double begun = seconds();
        for (int i = 0; i < 1000; i++) {
            assert_true(pleat__lane_alloc(&f.lane, &f.heap, 1, 0, &last));
            assert_int_equal(last.run.begin, 2 * (run_count - 1));
            pleat__lane_give(&f.lane, &f.heap, &last);
        }
        double taken = seconds() - begun;
        least = taken < least ? taken : least;
    }
    pleat__lane_give(&f.lane, &f.heap, &before);
    end(&f);
    free(runs);
    free(starts);
    return least;
}

/* The bound of lane.h: with a thousand times as many runs a request takes a few steps more. */
static void lane_takes_no_longer_with_many_runs(void **state)
{
    (void)state;
    double few = last_of(MANY_RUNS / 1024), many = last_of(MANY_RUNS);
    if (many > 8 * few)
        fail_msg("%.0f us for 1,000 requests, not %.0f us", 1e6 * many, 1e6 * few);
}

/* Of the two sets of what is free one may have memory and the other none. */
static void lane_serves_when_host_memory_is_there_again(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x3e11);
    uint64_t failed = 1;
    for (uint64_t nth = 1; failed != 0; nth++) {
        fixture f;
        pleat__place place;
        begin(&f);
        make_lane(&f, &random);
        pleat__arena_fail(nth, false);
        bool placed = pleat__lane_alloc(&f.lane, &f.heap, f.lane.granules, 0, &place);
        failed = pleat__arena_failed();
        pleat__arena_fail(0, false);
        assert_int_equal(placed, failed == 0);
        if (!placed) {
            assert_int_equal(pleat__lane_best(&f.lane, 1).count, f.lane.granules);
            assert_true(pleat__lane_alloc(&f.lane, &f.heap, f.lane.granules, 0, &place));
        }
        pleat__lane_give(&f.lane, &f.heap, &place);
        end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lane_places_are_its_granules),
        cmocka_unit_test(lane_says_what_it_tries_first),
        cmocka_unit_test(lane_takes_no_longer_with_many_runs),
        cmocka_unit_test(lane_passes_over_what_strayed_into_it),
        cmocka_unit_test(lane_serves_when_host_memory_is_there_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
