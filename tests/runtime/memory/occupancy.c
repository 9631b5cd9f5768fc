/*
 * occupancy.c: the free check, the sets of free runs and how runs lie in zones, against simple
 * models.
 */
#include "test.h"

#include <runtime/memory/heap_internal.h>
#include <string.h>

#define G      256u /* granules of a chunk */
#define CHUNK  (G * 512)
#define CHUNKS 24u
#define MOST   1025u /* chunks that there may be */
#define ALL    (CHUNKS * G)

typedef struct fixture {
    pleat__arena *arena;
    pleat__occupancy occupancy;
    uint8_t used[ALL];
} fixture;

static int begin(void **state)
{
    fixture *f = test_calloc(1, sizeof *f);
    assert_ok(pleat__arena_create(&f->arena));
    assert_ok(pleat__occupancy_init(&f->occupancy, f->arena, CHUNK, MOST));
    assert_ok(pleat__occupancy_grow(&f->occupancy, CHUNKS));
    *state = f;
    return 0;
}

static int end(void **state)
{
    fixture *f = *state;
    pleat__occupancy_release(&f->occupancy);
    pleat__arena_destroy(f->arena);
    test_free(f);
    return 0;
}

static bool model_is_free(const fixture *f, pleat__run run)
{
    for (uint32_t i = 0; i < run.count; i++)
        if (f->used[run.begin + i])
            return false;
    return true;
}

/* R1. */
static void occupancy_agrees_with_a_map_of_bytes(void **state)
{
    fixture *f = *state;
    test_random random = test_random_begin("occupancy", 0x0cc);
    pleat__run live[64];
    uint32_t count = 0;
    uint64_t taken = 0, refused = 0;
    for (int step = 0; step < 20000; step++) {
        if (count == 64 || (count > 0 && test_random_below(&random, 3) == 0)) {
            uint32_t at = (uint32_t)test_random_below(&random, count);
            pleat__occupancy_give(&f->occupancy, live[at]);
            memset(f->used + live[at].begin, 0, live[at].count);
            live[at] = live[--count];
        } else {
            pleat__run run;
            run.count = 1 + (uint32_t)test_random_below(&random, 700);
            if (test_random_below(&random, 4) == 0)
                run.count = G * (1 + (uint32_t)test_random_below(&random, 3));
            run.begin = (uint32_t)test_random_below(&random, ALL - run.count + 1);
            if (test_random_below(&random, 2) == 0)
                run.begin &= ~(G - 1);
            bool free = model_is_free(f, run);
            assert_int_equal(pleat__occupancy_is_free(&f->occupancy, run), free);
            assert_int_equal(pleat__occupancy_take(&f->occupancy, run), free);
            taken += free;
            refused += !free;
            if (free) {
                memset(f->used + run.begin, 1, run.count);
                live[count++] = run;
            }
        }
        if (step % 64 == 0)
            assert_true(pleat__occupancy_audit(&f->occupancy));
    }
    assert_true(taken > 1000 && refused > 1000);
}

static void occupancy_parts_fill_a_chunk_and_leave_it(void **state)
{
    fixture *f = *state;
    pleat__run parts[] = {{G, 10}, {G + 10, 150}, {G + 160, G - 160}};
    for (int i = 0; i < 3; i++)
        assert_true(pleat__occupancy_take(&f->occupancy, parts[i]));
    assert_false(pleat__occupancy_take(&f->occupancy, (pleat__run){G, G}));
    pleat__occupancy_give(&f->occupancy, parts[1]);
    assert_true(pleat__occupancy_is_free(&f->occupancy, parts[1]));
    assert_false(pleat__occupancy_is_free(&f->occupancy, (pleat__run){G + 9, 1}));
    assert_true(pleat__occupancy_audit(&f->occupancy));
    pleat__occupancy_give(&f->occupancy, parts[0]);
    pleat__occupancy_give(&f->occupancy, parts[2]);
    assert_true(pleat__occupancy_take(&f->occupancy, (pleat__run){0, 3 * G}));
}

/* How many granules are free from one end of a chunk on, asked one by one. */
static uint32_t free_from(const fixture *f, uint32_t first, int step)
{
    uint32_t count = 0;
    while (count < G &&
           pleat__occupancy_is_free(&f->occupancy,
                                    (pleat__run){(uint32_t)((int)first + step * (int)count), 1}))
        count++;
    return count;
}

static void occupancy_knows_the_free_ends_of_a_chunk(void **state)
{
    fixture *f = *state;
    test_random random = test_random_begin("ends", 0xe4d5);
    for (int round = 0; round < 400; round++) {
        pleat__run runs[6] = {{0}};
        for (int r = 0; r < 6; r++) {
            uint32_t begin = (uint32_t)test_random_below(&random, 3 * G);
            uint32_t most = test_random_below(&random, 4) == 0 ? 3 * G - begin : G / 4;
            pleat__run run = {begin, 1 + (uint32_t)test_random_below(&random, most)};
            if (run.begin + run.count <= 3 * G && pleat__occupancy_take(&f->occupancy, run))
                runs[r] = run;
        }
        for (uint32_t c = 0; c < 3; c++) {
            assert_int_equal(pleat__occupancy_head(&f->occupancy, c), free_from(f, c * G, 1));
            assert_int_equal(pleat__occupancy_free_tail(&f->occupancy, (pleat__run){c * G, G}),
                             free_from(f, c * G + G - 1, -1));
        }
        for (int r = 0; r < 6; r++)
            if (runs[r].count != 0)
                pleat__occupancy_give(&f->occupancy, runs[r]);
    }
}

typedef struct walked {
    pleat__run runs[16];
    uint32_t count;
} walked;

static pleat_result note(void *context, pleat__run run)
{
    walked *w = context;
    w->runs[w->count++] = run;
    return PLEAT_OK;
}

static void occupancy_walk_joins_runs_up_to_breaks(void **state)
{
    fixture *f = *state;
    uint8_t breaks[CHUNKS] = {0};
    walked w = {0};
    breaks[4] = 1;
    assert_true(pleat__occupancy_take(&f->occupancy, (pleat__run){G + 6, 10}));
    assert_true(pleat__occupancy_take(&f->occupancy, (pleat__run){G * 6, G}));
    assert_ok(pleat__occupancy_walk_free(&f->occupancy, 0, 8, breaks, note, &w));
    assert_int_equal(w.count, 4);
    static const pleat__run expected[] = {
        {0, G + 6}, {G + 16, G * 4 - G - 16}, {G * 4, 2 * G}, {G * 7, G}};
    assert_memory_equal(w.runs, expected, sizeof expected);
}

typedef struct walked_map {
    uint8_t free[ALL]; /* 2: a run begins there */
    uint32_t next;     /* runs come in order */
} walked_map;

static pleat_result draw(void *context, pleat__run run)
{
    walked_map *map = context;
    assert_true(run.count != 0 && run.begin >= map->next);
    map->next = run.begin + run.count;
    memset(map->free + run.begin, 1, run.count);
    map->free[run.begin] = 2;
    return PLEAT_OK;
}

/* Where runs are, and where they begin: behind what is in use, and at a break. */
static void occupancy_walk_agrees_with_a_map_of_bytes(void **state)
{
    fixture *f = *state;
    test_random random = test_random_begin("walk", 0x3a1);
    for (int round = 0; round < 500; round++) {
        uint8_t breaks[CHUNKS] = {0};
        walked_map map = {0};
        pleat__run taken[12];
        for (uint32_t i = 0; i < 12; i++) {
            bool whole = test_random_below(&random, 2) == 0;
            uint32_t begin = (uint32_t)test_random_below(&random, ALL);
            begin = whole ? begin / G * G : begin;
            uint32_t most = (uint32_t)test_random_below(&random, whole ? 8 : 300) + 1;
            uint32_t count = whole ? most * G : most;
            taken[i] = (pleat__run){begin, count < ALL - begin ? count : ALL - begin};
            if (pleat__occupancy_take(&f->occupancy, taken[i]))
                memset(f->used + taken[i].begin, 1, taken[i].count);
            else
                taken[i].count = 0;
            breaks[test_random_below(&random, CHUNKS)] |= test_random_below(&random, 4) == 0;
        }
        assert_ok(pleat__occupancy_walk_free(&f->occupancy, 0, CHUNKS, breaks, draw, &map));
        for (uint32_t i = 0; i < ALL; i++) {
            bool begins = i == 0 || f->used[i - 1] || (i % G == 0 && breaks[i / G]);
            assert_int_equal(map.free[i], f->used[i] ? 0 : begins ? 2 : 1);
        }
        for (uint32_t i = 0; i < 12; i++)
            pleat__occupancy_give(&f->occupancy, taken[i]);
        memset(f->used, 0, sizeof f->used);
    }
}

static void occupancy_grows_and_keeps(void **state)
{
    fixture *f = *state;
    assert_true(pleat__occupancy_take(&f->occupancy, (pleat__run){5, 600}));
    for (uint32_t chunks = 2 * CHUNKS; chunks <= MOST; chunks *= 3) {
        assert_ok(pleat__occupancy_grow(&f->occupancy, chunks));
        assert_false(pleat__occupancy_is_free(&f->occupancy, (pleat__run){604, 1}));
        assert_true(pleat__occupancy_take(&f->occupancy, (pleat__run){(chunks - 1) * G - 7, 9}));
        assert_true(pleat__occupancy_audit(&f->occupancy));
    }
}

/* A chunk that is in use in part has a row of granules, which serves the next one when that ends:
 * memory that a job goes through takes as few rows as it has ends of tensors at a time. (R1.) */
static void occupancy_rows_serve_again(void **state)
{
    fixture *f = *state;
    for (uint32_t chunk = 0; chunk + 1 < CHUNKS; chunk++) {
        pleat__run within = {chunk * G + 3, 70}, across = {chunk * G + 100, G};
        assert_true(pleat__occupancy_take(&f->occupancy, within));
        assert_true(pleat__occupancy_take(&f->occupancy, across));
        assert_int_equal(f->occupancy.rows_used, 2);
        assert_true(pleat__occupancy_audit(&f->occupancy));
        pleat__occupancy_give(&f->occupancy, within);
        pleat__occupancy_give(&f->occupancy, across);
        assert_true(pleat__occupancy_audit(&f->occupancy));
        assert_true(pleat__occupancy_is_free(&f->occupancy, (pleat__run){0, ALL}));
    }
    /* Whole words need none. */
    assert_true(pleat__occupancy_take(&f->occupancy, (pleat__run){64, 128}));
    assert_true(pleat__occupancy_take(&f->occupancy, (pleat__run){2 * G + 1, 5}));
    assert_true(pleat__occupancy_take(&f->occupancy, (pleat__run){4 * G + 1, 5}));
    assert_int_equal(f->occupancy.rows_used, 2);
    pleat__occupancy_give(&f->occupancy, (pleat__run){4 * G + 1, 5});
    assert_true(pleat__occupancy_audit(&f->occupancy));
    f->occupancy.free_row = NULL;
    assert_false(pleat__occupancy_audit(&f->occupancy));
}

static void occupancy_of_more_chunks_than_there_may_be_is_refused(void **state)
{
    fixture *f = *state;
    assert_result(pleat__occupancy_grow(&f->occupancy, MOST + 1), PLEAT_E_LIMIT);
    assert_ok(pleat__occupancy_grow(&f->occupancy, MOST));
    assert_true(pleat__occupancy_take(&f->occupancy, (pleat__run){(MOST - 1) * G + 1, G - 1}));
    assert_true(pleat__occupancy_audit(&f->occupancy));
}

/* ---- free runs ---- */

/* The smallest run of the model that holds `count`, the lowest among equals. */
static pleat__run model_best(const uint8_t *free, uint32_t count)
{
    pleat__run best = {0, 0};
    for (uint32_t at = 0; at < ALL;) {
        uint32_t stop = at;
        while (stop < ALL && free[stop])
            stop++;
        if (stop - at >= count && (best.count == 0 || stop - at < best.count))
            best = (pleat__run){at, stop - at};
        at = stop + 1;
    }
    return best;
}

/* R2. */
static void free_runs_best_fit_agrees_with_a_map_of_bytes(void **state)
{
    fixture *f = *state;
    test_random random = test_random_begin("free runs", 0xe7e);
    pleat__free_runs runs;
    uint8_t *free = f->used;
    pleat__free_runs_init(&runs, f->arena);
    assert_ok(pleat__free_runs_reserve(&runs, 2));
    pleat__free_runs_add(&runs, (pleat__run){0, ALL}, true, true);
    memset(free, 1, ALL);
    for (int step = 0; step < 20000; step++) {
        uint32_t count = 1 + (uint32_t)test_random_below(&random, 40);
        assert_ok(pleat__free_runs_reserve(&runs, 2));
        if (test_random_below(&random, 2) == 0) {
            pleat__hole hole = pleat__free_runs_best(&runs, count);
            pleat__run best = hole.run, expected = model_best(free, count);
            assert_memory_equal(&best, &expected, sizeof best);
            if (best.count == 0)
                continue;
            best.begin += (uint32_t)test_random_below(&random, best.count - count + 1);
            best.count = count;
            if (test_random_below(&random, 2) == 0)
                pleat__free_runs_carve_hole(&runs, hole, best);
            else
                assert_true(pleat__free_runs_try_carve(&runs, best));
            assert_true(pleat__free_runs_audit(&runs));
            memset(free + best.begin, 0, count);
        } else {
            pleat__run run = {(uint32_t)test_random_below(&random, ALL), 0};
            while (run.count < count && run.begin + run.count < ALL && !free[run.begin + run.count])
                run.count++;
            pleat__free_runs_add(&runs, run, true, true);
            memset(free + run.begin, 1, run.count);
        }
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < ALL; i++)
        sum += free[i];
    assert_int_equal(runs.granules, sum);
    assert_false(pleat__free_runs_try_carve(&runs, (pleat__run){ALL, 1}));
    pleat__free_runs_clear(&runs);
    assert_int_equal(runs.granules, 0);
    assert_int_equal(pleat__free_runs_best(&runs, 1).run.count, 0);
    pleat__free_runs_add(&runs, (pleat__run){0, ALL}, true, true);
    assert_int_equal(pleat__free_runs_best(&runs, ALL).run.count, ALL);
    assert_true(pleat__free_runs_audit(&runs));
    pleat__free_runs_release(&runs);
}

/* The same as pleat__zone_run, chunk by chunk. */
static pleat__run model_zone_run(const pleat__heap *heap, pleat__run run)
{
    uint32_t shift = heap->pool->occupancy.shift, end = run.begin + run.count;
    for (uint32_t c = (run.begin >> shift) + 1; c << shift < end; c++)
        if (heap->zone_of[c] != heap->zone_of[c - 1] || heap->pool->breaks[c])
            return (pleat__run){run.begin, (c << shift) - run.begin};
    return run;
}

static void zones_run_ends_at_a_break_or_another_zone(void **state)
{
    fixture *f = *state;
    test_random random = test_random_begin("zones", 0x20e);
    uint8_t zone_of[CHUNKS], breaks[CHUNKS];
    pleat__chunk_pool pool = {.occupancy = f->occupancy, .count = CHUNKS, .breaks = breaks};
    pleat__heap heap = {.pool = &pool, .zone_of = zone_of};
    for (int step = 0; step < 20000; step++) {
        memset(zone_of, 4, sizeof zone_of);
        memset(breaks, 0, sizeof breaks);
        for (uint32_t marks = (uint32_t)test_random_below(&random, 4); marks > 0; marks--)
            if (test_random_below(&random, 2) == 0)
                breaks[test_random_below(&random, CHUNKS)] = 1;
            else
                zone_of[test_random_below(&random, CHUNKS)] ^= 1;
        uint32_t begin = (uint32_t)test_random_below(&random, ALL);
        pleat__run run = {begin, 1 + (uint32_t)test_random_below(&random, ALL - begin)};
        pleat__run expected = model_zone_run(&heap, run), found = pleat__zone_run(&heap, run);
        assert_memory_equal(&found, &expected, sizeof found);
    }
}

/* The free run of a map whose memory does not go on at multiples of `segment`. */
static pleat__run model_at(const uint8_t *free, uint32_t at, uint32_t segment)
{
    uint32_t first = at / segment * segment, begin = at, end = at;
    while (begin > first && free[begin - 1])
        begin--;
    while (end < first + segment && free[end])
        end++;
    return free[at] ? (pleat__run){begin, end - begin} : (pleat__run){0, 0};
}

static void free_runs_join_where_memory_goes_on_only(void **state)
{
    enum { SEGMENT = 16, SIZE = 16 * SEGMENT };
    fixture *f = *state;
    test_random random = test_random_begin(__func__, 0x701);
    pleat__free_runs runs;
    uint8_t free[SIZE] = {0};
    pleat__free_runs_init(&runs, f->arena);
    for (int step = 0; step < 20000; step++) {
        uint32_t at = (uint32_t)test_random_below(&random, SIZE);
        uint32_t most = SEGMENT - at % SEGMENT, count = 0;
        uint32_t wanted = 1 + (uint32_t)test_random_below(&random, most);
        bool give = !free[at];
        while (count < wanted && free[at + count] == !give)
            count++;
        assert_ok(pleat__free_runs_reserve(&runs, 2));
        if (give)
            pleat__free_runs_add(&runs, (pleat__run){at, count}, at % SEGMENT != 0,
                                 (at + count) % SEGMENT != 0);
        else
            assert_true(pleat__free_runs_try_carve(&runs, (pleat__run){at, count}));
        memset(free + at, give, count);
        for (uint32_t i = 0; i < SIZE; i++) {
            pleat__run run = pleat__free_runs_at(&runs, i);
            pleat__run expected = model_at(free, i, SEGMENT);
            assert_memory_equal(&run, &expected, sizeof run);
            uint32_t next = i;
            while (next < SIZE && !free[next])
                next++;
            pleat__run from = pleat__free_runs_from(&runs, i);
            pleat__run whole = next < SIZE ? model_at(free, next, SEGMENT) : (pleat__run){0};
            assert_int_equal(from.count, whole.count - (from.count != 0 ? next - whole.begin : 0));
            assert_true(from.count == 0 || from.begin == next);
        }
    }
    pleat__free_runs_release(&runs);
}

/* In both directions, from one block of the set's keys to the next. */
static void free_runs_order_of_size_visits_every_run_once(void **state)
{
    enum { RUNS = 3 * PLEAT__KEY_BLOCK };
    fixture *f = *state;
    pleat__free_runs runs;
    pleat__run seen[RUNS];
    uint32_t count = 0;
    pleat__free_runs_init(&runs, f->arena);
    assert_ok(pleat__free_runs_reserve(&runs, RUNS));
    for (uint32_t i = 0; i < RUNS; i++)
        pleat__free_runs_add(&runs, (pleat__run){i * 100, 1 + i * 7 % 13}, true, true);
    for (pleat__hole hole = pleat__free_runs_best(&runs, 1); hole.run.count != 0;
         hole = pleat__free_runs_larger(&runs, hole)) {
        assert_in_range(count, 0, RUNS - 1);
        seen[count++] = hole.run;
    }
    assert_int_equal(count, RUNS);
    for (uint32_t i = 1; i < RUNS; i++)
        assert_true(seen[i].count > seen[i - 1].count ||
                    (seen[i].count == seen[i - 1].count && seen[i].begin > seen[i - 1].begin));
    for (pleat__hole hole = pleat__free_runs_largest(&runs); hole.run.count != 0;
         hole = pleat__free_runs_smaller(&runs, hole)) {
        assert_in_range(count, 1, RUNS);
        assert_memory_equal(&seen[--count], &hole.run, sizeof hole.run);
    }
    assert_int_equal(count, 0);
    assert_int_equal(pleat__free_runs_at(&runs, 100).begin, 100);
    assert_int_equal(pleat__free_runs_at(&runs, 199).count, 0);
    pleat__free_runs_release(&runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(occupancy_agrees_with_a_map_of_bytes, begin, end),
        cmocka_unit_test_setup_teardown(occupancy_parts_fill_a_chunk_and_leave_it, begin, end),
        cmocka_unit_test_setup_teardown(occupancy_knows_the_free_ends_of_a_chunk, begin, end),
        cmocka_unit_test_setup_teardown(occupancy_walk_joins_runs_up_to_breaks, begin, end),
        cmocka_unit_test_setup_teardown(occupancy_walk_agrees_with_a_map_of_bytes, begin, end),
        cmocka_unit_test_setup_teardown(occupancy_grows_and_keeps, begin, end),
        cmocka_unit_test_setup_teardown(occupancy_rows_serve_again, begin, end),
        cmocka_unit_test_setup_teardown(occupancy_of_more_chunks_than_there_may_be_is_refused,
                                        begin, end),
        cmocka_unit_test_setup_teardown(free_runs_best_fit_agrees_with_a_map_of_bytes, begin, end),
        cmocka_unit_test_setup_teardown(zones_run_ends_at_a_break_or_another_zone, begin, end),
        cmocka_unit_test_setup_teardown(free_runs_join_where_memory_goes_on_only, begin, end),
        cmocka_unit_test_setup_teardown(free_runs_order_of_size_visits_every_run_once, begin, end),
    };
    return cmocka_run_group_tests_name("occupancy", tests, NULL, NULL);
}
