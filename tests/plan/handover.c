/*
 * handover.c: chunks that pass from stream to stream: what the planner makes of them, and what the
 * verifier and the plan file do with them.
 */
#include "files.h"
#include "jobs.h"

#include <plan/fold/handover.h>
#include <plan/fold/handover_table.h>
#include <plan/place/portfolio.h>
#include <plan/verify/verify.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHUNK (64u << 10)

static pleat_plan *plan_of(const pleat_trace *trace)
{
    pleat_plan_options options = {.size = sizeof options, .chunk_bytes = CHUNK};
    pleat_plan *plan;
    assert_ok(pleat_plan_make(trace, &options, &plan));
    return plan;
}

static void handover_gives_each_stream_the_others_memory(void **state)
{
    (void)state;
    for (uint32_t streams = 2; streams <= 4; streams++) {
        pleat_trace *trace = test_job_of_turns(streams, 9, 5 * CHUNK);
        pleat_plan *plan = plan_of(trace);
        pleat__arena *arena;
        uint32_t waits;
        assert_ok(pleat__arena_create(&arena));
        /* Rounding, and a chunk for what each stream keeps. */
        assert_true(plan->physical_bytes <= plan->max_live_bytes + (streams + 2) * CHUNK);
        assert_true(plan->handed_count > 0);
        for (uint32_t i = 0; i < plan->steady.slot_count; i++)
            assert_true(plan->steady.slots[i].place != PLEAT__NOWHERE);
        assert_ok(pleat__handed_waits(plan, arena, &waits));
        assert_true(waits > 0 && waits <= 9 * streams);
        pleat_plan_free(plan);
        pleat_trace_free(trace);
        pleat__arena_destroy(arena);
    }
}

static void handover_leaves_one_stream_alone(void **state)
{
    (void)state;
    pleat_trace *trace = test_job_of_turns(1, 9, 5 * CHUNK);
    pleat_plan *plan = plan_of(trace);
    assert_int_equal(plan->handed_count, 0);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

/* ---- random problems, against a naive check ---- */

#define ITEMS   60u
#define LANES   3 /* of them, the last, in every other round */
#define HORIZON 400u

static pleat__problem random_problem(test_random *random, pleat__item *items)
{
    uint32_t streams = 2 + (uint32_t)test_random_below(random, 2);
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t begin = (uint32_t)test_random_below(random, HORIZON);
        uint32_t life = 1 + (uint32_t)test_random_below(random, 90);
        bool always = test_random_below(random, 12) == 0;
        items[i] = (pleat__item){.size = 512 * (1 + test_random_below(random, 6 * CHUNK / 512)),
                                 .fixed = UINT64_MAX,
                                 .begin = always ? 0 : begin,
                                 .end = always ? HORIZON : (begin + life) % HORIZON,
                                 .stream = (uint16_t)test_random_below(random, streams)};
    }
    return (pleat__problem){.items = items, .count = ITEMS, .horizon = HORIZON, .circular = true};
}

static bool lives_at(const pleat__item *item, uint32_t at)
{
    return item->end > item->begin ? at >= item->begin && at < item->end
                                   : at >= item->begin || at < item->end;
}

static bool live_together(const pleat__item *a, const pleat__item *b)
{
    return lives_at(a, b->begin) || lives_at(b, a->begin);
}

/* Bytes of one chunk that an item lies on; an empty range when it does not. */
static pleat__range within(const pleat__layout *layout, const pleat__item *items, uint32_t i,
                           uint32_t chunk)
{
    uint64_t end = layout->places[i] + items[i].size;
    for (uint64_t at = layout->places[i]; at < end;) {
        uint64_t stop = (at / CHUNK + 1) * CHUNK < end ? (at / CHUNK + 1) * CHUNK : end;
        if (layout->pages[at / CHUNK] == chunk)
            return (pleat__range){at % CHUNK, at % CHUNK + (stop - at)};
        at = stop;
    }
    return (pleat__range){0, 0};
}

static void check_chunk(const pleat__layout *layout, const pleat__item *items, uint32_t chunk,
                        bool handed)
{
    for (uint32_t a = 0; a < ITEMS; a++) {
        pleat__range one = within(layout, items, a, chunk);
        for (uint32_t b = 0; b < a && !pleat__range_empty(one); b++) {
            pleat__range other = within(layout, items, b, chunk);
            bool together = live_together(&items[a], &items[b]);
            if (pleat__range_empty(other))
                continue;
            if (items[a].stream != items[b].stream && handed)
                assert_false(together);
            else if (items[a].stream != items[b].stream || together)
                assert_false(pleat__range_overlaps(one, other));
        }
    }
}

/* A lane is where it was, and none of its chunks passes to another stream. */
static void check_lane(const pleat__layout *layout, const uint8_t *handed, uint64_t place,
                       uint64_t size)
{
    for (uint64_t page = place / CHUNK; page * CHUNK < place + size; page++)
        assert_true(handed == NULL || !handed[layout->pages[page]]);
}

static void handover_keeps_streams_apart_in_time(void **state)
{
    (void)state;
    test_random random = test_random_begin("handover", 0x4a4d);
    uint32_t gained = 0, beside_lanes = 0;
    for (int round = 0; round < 300; round++) {
        pleat__arena *arena;
        pleat__item items[ITEMS];
        uint64_t places[ITEMS], before_places[LANES];
        uint32_t first_lane = ITEMS - (round % 2 == 0 ? 0 : LANES);
        pleat__problem problem = random_problem(&random, items);
        pleat__place_options place = {.chunk_bytes = CHUNK};
        pleat__fold_options fold = {.chunk_bytes = CHUNK};
        pleat__place_report report;
        pleat__layout layout;
        uint8_t *handed;
        assert_ok(pleat__arena_create(&arena));
        assert_ok(pleat__place_make(&problem, &place, arena, places, &report));
        assert_ok(pleat__fold_make(&problem, places, &fold, arena, &layout));
        uint32_t before = layout.chunks, chunks = 0;
        for (uint32_t i = first_lane; i < ITEMS; i++)
            before_places[i - first_lane] = layout.places[i];
        assert_ok(pleat__handover_make(&problem, CHUNK, first_lane, arena, &layout, &handed));
        for (uint32_t i = first_lane; i < ITEMS; i++) {
            assert_int_equal(layout.places[i], before_places[i - first_lane]);
            check_lane(&layout, handed, layout.places[i], items[i].size);
        }
        for (uint32_t c = 0; c < layout.base_pages; c++) {
            chunks += layout.pages[c] != PLEAT__NO_CHUNK;
            assert_true(layout.pages[c] == c || layout.pages[c] == PLEAT__NO_CHUNK);
            check_chunk(&layout, items, c, handed != NULL && handed[c]);
        }
        for (uint32_t page = 0; page < layout.page_count; page++)
            assert_true(layout.pages[page] == PLEAT__NO_CHUNK ||
                        layout.pages[layout.pages[page]] == layout.pages[page]);
        for (uint32_t i = 0; i < ITEMS; i++)
            for (uint64_t at = layout.places[i]; at < layout.places[i] + items[i].size; at += CHUNK)
                assert_true(layout.pages[at / CHUNK] != PLEAT__NO_CHUNK);
        assert_int_equal(chunks, layout.chunks);
        assert_true(handed != NULL ? chunks < before : chunks == before);
        gained += before - chunks;
        beside_lanes += first_lane < ITEMS ? before - chunks : 0;
        pleat__arena_destroy(arena);
    }
    assert_true(gained > 200 && beside_lanes > 20);
}

/* ---- the plan's table ---- */

/* ---- many uses of a chunk ---- */

#define BUSY_CHUNKS 200u
#define BUSY_USES   1000u /* of each of them, one behind the other */
#define SHORT       700u  /* chunks of the other stream that are in use when all of those are */
#define MANY        (BUSY_CHUNKS * BUSY_USES + SHORT + 1)
#define ROUND       12000u

/* One stream's chunks are in use again and again for half of the iteration. All but one of the
 * other's are in use when it begins, and that one in the other half: it is found although each of
 * those before it was looked for among all uses. */
static void handover_is_found_among_many_uses(void **state)
{
    (void)state;
    pleat__arena *arena;
    assert_ok(pleat__arena_create(&arena));
    pleat__item *items = pleat__arena_calloc(arena, MANY, sizeof *items);
    uint64_t *places = pleat__arena_alloc(arena, MANY * sizeof *places);
    uint32_t count = 0;
    assert_true(items != NULL && places != NULL);
    for (uint32_t chunk = 0; chunk < BUSY_CHUNKS; chunk++)
        for (uint32_t use = 0; use < BUSY_USES; use++, count++) {
            items[count] = (pleat__item){.size = 512, .begin = 2 * use, .end = 2 * use + 1};
            places[count] = chunk * (uint64_t)CHUNK;
        }
    for (uint32_t chunk = 0; chunk <= SHORT; chunk++, count++) {
        bool other = chunk == SHORT;
        items[count] = (pleat__item){.size = CHUNK,
                                     .begin = other ? ROUND / 2 : 0,
                                     .end = other ? ROUND / 2 + 600 : 1,
                                     .stream = 1};
        places[count] = (BUSY_CHUNKS + chunk) * (uint64_t)CHUNK;
    }
    for (uint32_t i = 0; i < count; i++)
        items[i].fixed = UINT64_MAX;
    pleat__problem problem = {.items = items, .count = count, .horizon = ROUND, .circular = true};
    pleat__fold_options options = {.chunk_bytes = CHUNK, .contiguous = true};
    pleat__layout layout;
    uint8_t *handed;
    assert_ok(pleat__fold_make(&problem, places, &options, arena, &layout));
    assert_int_equal(layout.chunks, BUSY_CHUNKS + SHORT + 1);
    assert_ok(pleat__handover_make(&problem, CHUNK, problem.count, arena, &layout, &handed));
    assert_non_null(handed);
    assert_int_equal(layout.pages[BUSY_CHUNKS + SHORT], PLEAT__NO_CHUNK);
    pleat__arena_destroy(arena);
}

#define TIMES   12000u /* that a chunk is in use */
#define AT_ONCE (CHUNK / 512u)

static double seconds_since(clock_t begun)
{
    return (double)(clock() - begun) / CLOCKS_PER_SEC;
}

/* A chunk whose uses all go to another one, which two pages show and which so stays. To look
 * through all times that it is in use for each of them took a hundred times as long as to lay them
 * out. */
static void handover_of_many_uses_takes_no_longer_than_a_layout(void **state)
{
    (void)state;
    pleat__arena *arena;
    const uint32_t count = TIMES * AT_ONCE + 1, horizon = 4 * TIMES;
    assert_ok(pleat__arena_create(&arena));
    pleat__item *items = pleat__arena_calloc(arena, count, sizeof *items);
    uint64_t *places = pleat__arena_alloc(arena, count * sizeof *places);
    uint32_t *pages = pleat__arena_alloc(arena, 3 * sizeof *pages);
    assert_true(items != NULL && places != NULL && pages != NULL);
    for (uint32_t i = 0; i + 1 < count; i++) {
        uint32_t at = i / AT_ONCE * 2;
        items[i] = (pleat__item){.size = 512, .fixed = UINT64_MAX, .begin = at, .end = at + 1};
        places[i] = i % AT_ONCE * 512;
    }
    items[count - 1] = (pleat__item){.size = CHUNK,
                                     .fixed = UINT64_MAX,
                                     .begin = 2 * TIMES + 1,
                                     .end = horizon - 1,
                                     .stream = 1};
    places[count - 1] = CHUNK;
    pleat__problem problem = {.items = items, .count = count, .horizon = horizon, .circular = true};
    pleat__fold_options options = {.chunk_bytes = CHUNK, .contiguous = true};
    pleat__layout layout;
    uint8_t *handed;
    clock_t begun = clock();
    assert_ok(pleat__fold_make(&problem, places, &options, arena, &layout));
    double laid_out = seconds_since(begun);
    assert_int_equal(layout.page_count, 2);
    pages[0] = 0;
    pages[1] = pages[2] = 1;
    pleat__arena_free(arena, layout.pages);
    layout.pages = pages;
    layout.page_count = 3;
    begun = clock();
    assert_ok(pleat__handover_make(&problem, CHUNK, count, arena, &layout, &handed));
    double handed_over = seconds_since(begun);
    assert_non_null(handed);
    assert_int_equal(layout.chunks, 1);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(layout.pages[layout.places[i] / CHUNK], 1);
    print_message("laid out in %.3f s, handed over in %.3f s\n", laid_out, handed_over);
    assert_true(handed_over < 10 * laid_out + 1);
    pleat__arena_destroy(arena);
}

static void handover_plans_read_as_they_were_written(void **state)
{
    (void)state;
    pleat_trace *trace = test_job_of_turns(2, 9, 5 * CHUNK);
    pleat_plan *plan = plan_of(trace), *read;
    const char *path = test_path("handover");
    assert_ok(pleat_plan_write(plan, path));
    assert_ok(pleat_plan_read(path, &read));
    assert_int_equal(read->handed_count, plan->handed_count);
    assert_memory_equal(read->handed, plan->handed, plan->handed_count * sizeof *plan->handed);
    assert_ok(pleat_plan_verify(read, trace));
    pleat_plan_free(read);
    assert_int_equal(remove(path), 0);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

static void handover_that_does_not_hold_is_refused(void **state)
{
    (void)state;
    pleat_trace *trace = test_job_of_turns(2, 9, 5 * CHUNK);
    pleat_plan *plan = plan_of(trace);
    pleat__handed first = plan->handed[0];
    uint32_t count = plan->handed_count;
    assert_ok(pleat_plan_verify(plan, NULL));
    /* Not named. */
    plan->handed_count = 0;
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_VERIFY);
    plan->handed_count = count;
    plan->handed[0] = (pleat__handed){first.first_chunk, 0};
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    plan->handed[0] = (pleat__handed){first.first_chunk, UINT32_MAX};
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    plan->handed[0] = (pleat__handed){(uint32_t)(plan->physical_bytes / CHUNK), 1};
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    plan->handed[0] = (pleat__handed){(uint32_t)(plan->physical_bytes / CHUNK) + 1, 1};
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    plan->handed[0] = first;
    /* One run as two, side by side, and out of order. */
    pleat__handed halves[] = {{first.first_chunk, 1}, {first.first_chunk + 1, first.chunks - 1}};
    pleat__handed *kept = plan->handed;
    plan->handed = halves;
    plan->handed_count = 2;
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    pleat__handed disordered[] = {{first.first_chunk + 2, 1}, {first.first_chunk, 1}};
    assert_true(first.chunks > 2);
    plan->handed = disordered;
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    plan->handed = kept;
    plan->handed_count = count;
    /* Two of a chunk's requests at once, of which one is another stream's. */
    uint32_t refused = 0;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        plan->steady.slots[i].stream ^= 1;
        pleat_result result = pleat_plan_verify(plan, NULL);
        plan->steady.slots[i].stream ^= 1;
        assert_true(result == PLEAT_OK || result == PLEAT_E_VERIFY);
        refused += result == PLEAT_E_VERIFY;
    }
    assert_true(refused > 0);
    assert_ok(pleat_plan_verify(plan, trace));
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handover_gives_each_stream_the_others_memory),
        cmocka_unit_test(handover_leaves_one_stream_alone),
        cmocka_unit_test(handover_keeps_streams_apart_in_time),
        cmocka_unit_test(handover_is_found_among_many_uses),
        cmocka_unit_test(handover_of_many_uses_takes_no_longer_than_a_layout),
        cmocka_unit_test(handover_plans_read_as_they_were_written),
        cmocka_unit_test(handover_that_does_not_hold_is_refused),
    };
    return cmocka_run_group_tests_name("handover", tests, NULL, NULL);
}
