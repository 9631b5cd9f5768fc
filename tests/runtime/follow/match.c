/*
 * match.c: the matcher finds its place again, and an irregular request costs itself only.
 */
#include "test.h"

#include <runtime/follow/schedule.h>
#include <string.h>

#define ITEMS 400u

typedef struct fixture {
    pleat__arena *arena;
    pleat__expected items[ITEMS];
    pleat__matcher matcher;
} fixture;

/* A beginning of `first` requests, then an iteration whose sizes repeat as layers' do. */
static void fill(fixture *f, uint32_t first)
{
    for (uint32_t i = 0; i < ITEMS; i++)
        f->items[i] = (pleat__expected){.bytes = i < first ? 100000 + i
                                                           : 512 * (1 + (i - first) % 7 * 3) +
                                                                 (i - first) / 40 * 64};
}

static void make(fixture *f, uint32_t first)
{
    fill(f, first);
    assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, first, ITEMS));
}

static int begin(void **state)
{
    fixture *f = test_calloc(1, sizeof *f);
    assert_ok(pleat__arena_create(&f->arena));
    *state = f;
    return 0;
}

static int end(void **state)
{
    fixture *f = *state;
    pleat__matcher_release(&f->matcher);
    pleat__arena_destroy(f->arena);
    test_free(f);
    return 0;
}

static uint32_t next(fixture *f, uint32_t item)
{
    return pleat__matcher_next(&f->matcher, f->items[item].bytes, f->items[item].stream);
}

static void match_follows_beginning_then_iteration_after_iteration(void **state)
{
    fixture *f = *state;
    make(f, 50);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(next(f, i), i);
    for (int iteration = 0; iteration < 3; iteration++) {
        pleat__matcher_mark(&f->matcher);
        for (uint32_t i = 50; i < ITEMS; i++)
            assert_int_equal(next(f, i), i);
    }
}

static void match_mark_early_in_the_beginning_does_not_skip_it(void **state)
{
    fixture *f = *state;
    make(f, 200);
    for (uint32_t i = 0; i < 200; i++) {
        if (i == 100)
            pleat__matcher_mark(&f->matcher);
        assert_int_equal(next(f, i), i);
    }
    assert_int_equal(next(f, 200), 200);
}

static void match_leaves_a_beginning_that_went_otherwise(void **state)
{
    fixture *f = *state;
    make(f, 200);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(next(f, i), i);
    pleat__matcher_mark(&f->matcher);
    /* The iteration's first sizes say so. */
    for (uint32_t i = 200; i < 203; i++)
        (void)pleat__matcher_next(&f->matcher, f->items[i].bytes, 0);
    for (uint32_t i = 203; i < ITEMS; i++)
        assert_int_equal(next(f, i), i);
}

/* Of two iterations that follow each other in a plan a mark is the nearest one's beginning. */
static void match_mark_is_the_nearest_of_two_iterations(void **state)
{
    fixture *f = *state;
    const uint32_t first = ITEMS % 2 == 0 ? 50 : 51, half = (ITEMS - first) / 2;
    make(f, first);
    f->matcher.iteration = half;
    const uint32_t cursors[][2] = {{first, first},
                                   {first + half / 3, first},
                                   {first + half - half / 3, first + half},
                                   {first + half, first + half},
                                   {first + half + half / 3, first + half},
                                   {ITEMS - half / 3, first}};
    for (uint32_t i = 0; i < sizeof cursors / sizeof *cursors; i++) {
        pleat__matcher_jump(&f->matcher, cursors[i][0]);
        pleat__matcher_mark(&f->matcher);
        assert_int_equal(f->matcher.cursor, cursors[i][1]);
    }
    /* Behind the last item comes the first one again. */
    pleat__matcher_jump(&f->matcher, ITEMS - 3);
    assert_int_equal(pleat__matcher_distance(&f->matcher, first), 3);
    assert_int_equal(pleat__matcher_distance(&f->matcher, first + half), half - 3);
}

/* The job's mark and the recording's are not quite at the same place: what comes behind it has no
 * slot, and costs nothing else. */
static void match_requests_behind_their_mark_cost_themselves_only(void **state)
{
    fixture *f = *state;
    make(f, 50);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(next(f, i), i);
    for (uint32_t early = 0; early <= 2; early++) {
        for (uint32_t i = 50; i < ITEMS - early; i++)
            assert_int_equal(next(f, i), i);
        pleat__matcher_mark(&f->matcher);
        for (uint32_t i = ITEMS - early; i < ITEMS; i++)
            assert_int_equal(next(f, i), PLEAT__NO_ITEM);
    }
    for (uint32_t i = 50; i < 100; i++)
        assert_int_equal(next(f, i), i);
    pleat__matcher_mark(&f->matcher);
    assert_int_equal(next(f, 50), 50);
}

static void match_extra_request_costs_itself_only(void **state)
{
    fixture *f = *state;
    make(f, 0);
    for (uint32_t i = 0; i < ITEMS; i++) {
        if (i == 123)
            assert_int_equal(pleat__matcher_next(&f->matcher, 777777, 0), PLEAT__NO_ITEM);
        assert_int_equal(next(f, i), i);
    }
}

static void match_missing_request_costs_nothing_else(void **state)
{
    fixture *f = *state;
    make(f, 0);
    for (uint32_t i = 0; i < ITEMS; i++)
        if (i != 123)
            assert_int_equal(next(f, i), i);
    assert_int_equal(next(f, 0), 0);
}

static void match_swapped_requests_both_keep_their_slots(void **state)
{
    fixture *f = *state;
    make(f, 0);
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t asked = i == 200 ? 201 : i == 201 ? 200 : i;
        assert_int_equal(next(f, asked), asked);
    }
}

static void match_resized_request_costs_itself_only(void **state)
{
    fixture *f = *state;
    make(f, 0);
    uint32_t lost = 0;
    for (uint32_t i = 0; i < ITEMS; i++)
        if (i == 77)
            lost += pleat__matcher_next(&f->matcher, 999999, 0) == PLEAT__NO_ITEM;
        else
            assert_int_equal(next(f, i), i);
    assert_int_equal(lost, 1);
}

static void match_stream_is_part_of_a_request(void **state)
{
    fixture *f = *state;
    make(f, 0);
    assert_int_equal(pleat__matcher_next(&f->matcher, f->items[0].bytes, 1), PLEAT__NO_ITEM);
    assert_int_equal(next(f, 0), 0);
}

static void match_dynamic_request_may_have_any_size(void **state)
{
    fixture *f = *state;
    fill(f, 0);
    f->items[10].kind = PLEAT__ITEM_DYNAMIC;
    f->items[11].kind = PLEAT__ITEM_DYNAMIC;
    assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, 0, ITEMS));
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(next(f, i), i);
    assert_int_equal(pleat__matcher_next(&f->matcher, 123456789, 0), 10);
    /* The second does not come this time. */
    assert_int_equal(next(f, 12), 12);
    assert_int_equal(next(f, 13), 13);
}

/* Among dynamic requests some extra ones are nothing odd, but not all of them. */
static void match_leaves_dynamic_requests_when_all_are_extra(void **state)
{
    fixture *f = *state;
    fill(f, 0);
    for (uint32_t i = 0; i < ITEMS; i++)
        f->items[i].bytes = i < 200 ? 1000 + 8 * i : 100000 + 512 * i;
    for (uint32_t i = 200; i < ITEMS; i += 4)
        f->items[i].kind = PLEAT__ITEM_DYNAMIC;
    assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, 0, ITEMS));
    for (uint32_t i = 0; i < 260; i++)
        next(f, i);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < 200; i++)
        wrong += next(f, i) != i;
    assert_in_range(wrong, 1, 64);
}

static void match_tracks_iterations_of_few_requests(void **state)
{
    fixture *f = *state;
    const uint32_t few = 5;
    fill(f, 0);
    for (uint32_t i = 0; i < few; i++)
        f->items[i].kind = PLEAT__ITEM_DYNAMIC;
    assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, 0, few));
    for (uint32_t i = 0; i < 200; i++)
        assert_int_equal(next(f, i % few), i % few);
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t item = pleat__matcher_next(&f->matcher, 1000000 * (1 + i % 7), i % 2);
        assert_true(item < few || item == PLEAT__NO_ITEM);
    }
}

/* A row of sizes that is there elsewhere too says nothing where one request alone was not expected.
 */
static void match_that_knows_its_place_is_not_moved_by_a_row(void **state)
{
    fixture *f = *state;
    for (uint32_t i = 0; i < ITEMS; i++)
        f->items[i] = (pleat__expected){.bytes = 4096 + 512 * i};
    for (uint32_t i = 0; i < 3; i++)
        f->items[100 + i] = f->items[10 + i];
    assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, 0, ITEMS));
    for (uint32_t i = 0; i < 103; i++)
        assert_int_equal(next(f, i), i);
    assert_int_equal(next(f, 13), PLEAT__NO_ITEM);
    for (uint32_t i = 103; i < ITEMS; i++)
        assert_int_equal(next(f, i), i);
}

static void match_resyncs_after_an_evaluation_loop_without_a_mark(void **state)
{
    fixture *f = *state;
    make(f, 0);
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_int_equal(next(f, i), i);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(pleat__matcher_next(&f->matcher, 50000000 + i, 0), PLEAT__NO_ITEM);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < ITEMS; i++)
        wrong += next(f, i) != i;
    assert_true(wrong < 2 * PLEAT__GRAM);
}

static void match_resyncs_in_the_middle(void **state)
{
    fixture *f = *state;
    make(f, 0);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(next(f, i), i);
    /* Layers alike are told apart only when the next one begins. */
    uint32_t lost = 0;
    for (uint32_t i = 300; i < ITEMS; i++) {
        uint32_t item = next(f, i);
        lost += item == PLEAT__NO_ITEM;
        assert_true(i < 350 || item == i);
    }
    assert_true(lost < 3 * PLEAT__GRAM);
}

/* A row of sizes on another stream may say where the job is: none of them is expected. */
static void match_resync_of_another_stream_is_no_match(void **state)
{
    fixture *f = *state;
    make(f, 0);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(next(f, i), i);
    for (uint32_t i = 300; i < 310; i++)
        assert_int_equal(pleat__matcher_next(&f->matcher, f->items[i].bytes, 1), PLEAT__NO_ITEM);
    assert_true(f->matcher.cursor > 10);
}

/* Each disturbed iteration loses the disturbed request and little else. */
/* Layers are alike: an iteration that begins where the end of the one before was skipped is not
 * taken for the layer before that. */
static void match_resyncs_to_the_beginning_behind_the_end(void **state)
{
    fixture *f = *state;
    const uint32_t layer = 100, left = 370;
    fill(f, 0);
    for (uint32_t i = 0; i < ITEMS; i++)
        f->items[i].bytes = 512 * (1 + i % layer);
    assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, 0, ITEMS));
    for (uint32_t i = 0; i < left; i++)
        assert_int_equal(next(f, i), i);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(pleat__matcher_next(&f->matcher, 1000000 + 512 * i, 0), PLEAT__NO_ITEM);
    for (uint32_t i = 0; i + 1 < PLEAT__GRAM; i++)
        assert_int_equal(next(f, i), PLEAT__NO_ITEM);
    for (uint32_t i = PLEAT__GRAM - 1; i < layer; i++)
        assert_int_equal(next(f, i), i);
}

static void match_seeded_disturbances_keep_98_percent(void **state)
{
    fixture *f = *state;
    make(f, 0);
    test_random random = test_random_begin("match", 0x3a7c);
    uint32_t asked = 0, matched = 0;
    for (int iteration = 0; iteration < 1000; iteration++) {
        uint32_t at = (uint32_t)test_random_below(&random, ITEMS - 1);
        uint32_t kind = iteration % 10 == 0 ? 1 + (uint32_t)test_random_below(&random, 4) : 0;
        for (uint32_t i = 0; i < ITEMS; i++) {
            uint32_t item = i;
            if (kind == 1 && i == at) {
                asked++;
                matched += next(f, (uint32_t)test_random_below(&random, ITEMS)) != PLEAT__NO_ITEM;
            }
            if (kind == 2 && i == at)
                continue;
            if (kind == 3 && (i == at || i == at + 1))
                item = i == at ? at + 1 : at;
            asked++;
            matched += kind == 4 && i == at
                           ? pleat__matcher_next(&f->matcher, 31415926, 0) != PLEAT__NO_ITEM
                           : next(f, item) == item;
        }
    }
    assert_true(matched * 100.0 >= asked * 98.0);
}

/* A dynamic request may by chance have the size of a static one that comes soon after. */
static void match_dynamic_request_of_its_old_size_is_itself(void **state)
{
    fixture *f = *state;
    fill(f, 50);
    f->items[10].kind = PLEAT__ITEM_DYNAMIC;
    f->items[10].bytes = f->items[12].bytes;
    assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, 50, ITEMS));
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_int_equal(next(f, i), i);
}

/* --- a sequence with experts --- */

#define LAYER_COUNT 5u
#define FIXED       14u
#define EXPERTS     16u
#define PER_EXPERT  4u
#define LAYER       (FIXED + EXPERTS * PER_EXPERT)

/* Item i's size with so many tokens for each expert. Layers are alike. */
static uint64_t expert_size(uint32_t i, uint64_t tokens)
{
    static const uint64_t rows[PER_EXPERT] = {4096, 2048, 2048, 3072};
    uint32_t at = i % LAYER;
    return at < FIXED ? 70000 * (1 + at % 5) + at * 512 : rows[(at - FIXED) % PER_EXPERT] * tokens;
}

static void make_experts(fixture *f, test_random *random)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < ITEMS; i++) {
        bool fixed = i % LAYER < FIXED;
        if (!fixed && (i % LAYER - FIXED) % PER_EXPERT == 0)
            tokens = 90 + test_random_below(random, 20);
        f->items[i] = (pleat__expected){.bytes = expert_size(i, tokens),
                                        .kind = fixed ? PLEAT__ITEM_SLOT : PLEAT__ITEM_DYNAMIC};
    }
    assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, 0, ITEMS));
}

static uint32_t ask(fixture *f, uint32_t item, uint64_t tokens)
{
    return pleat__matcher_next(&f->matcher, expert_size(item, tokens), 0);
}

/* Dynamic requests that do not come are passed over, but not without an end. */
static void match_looks_ahead_past_dynamic_requests(void **state)
{
    fixture *f = *state;
    static const uint32_t ahead[] = {PLEAT__AHEAD - 1, PLEAT__AHEAD};
    for (uint32_t k = 0; k < 2; k++) {
        fill(f, 0);
        for (uint32_t i = 0; i < ahead[k]; i++)
            f->items[i].kind = PLEAT__ITEM_DYNAMIC;
        f->items[0].stream = 1; /* so that the first is not it either */
        f->items[ahead[k]].bytes = 123456;
        assert_ok(pleat__matcher_init(&f->matcher, f->arena, f->items, 0, ITEMS));
        assert_int_equal(next(f, ahead[k]), k == 0 ? ahead[k] : PLEAT__NO_ITEM);
        assert_int_equal(f->matcher.open_count, 0);
        pleat__matcher_release(&f->matcher);
    }
}

/* Sizes are drawn anew, some experts do not come and some come twice: what is fixed is found, and
 * what is not is taken for an expert of its layer. */
static void match_tracks_layers_whose_experts_change(void **state)
{
    fixture *f = *state;
    test_random random = test_random_begin("match experts", 0xe4);
    make_experts(f, &random);
    uint32_t fixed = 0, found = 0, dynamic = 0, in_layer = 0;
    for (int iteration = 0; iteration < 50; iteration++) {
        pleat__matcher_mark(&f->matcher);
        for (uint32_t i = 0; i < ITEMS; i++) {
            if (i % LAYER < FIXED) {
                fixed++;
                found += ask(f, i, 0) == i;
                continue;
            }
            uint64_t tokens = 90 + test_random_below(&random, 20);
            uint64_t times = 1;
            if (test_random_below(&random, EXPERTS) == 0)
                times = test_random_below(&random, 2) * 2;
            for (uint64_t t = 0; t < times; t++)
                for (uint32_t k = 0; k < PER_EXPERT; k++) {
                    uint32_t item = ask(f, i + k, tokens);
                    dynamic++;
                    in_layer += item < ITEMS && item / LAYER == i / LAYER &&
                                f->items[item].kind == PLEAT__ITEM_DYNAMIC;
                }
            i += PER_EXPERT - 1;
        }
    }
    assert_true(found * 100.0 >= fixed * 90.0);
    assert_true(in_layer * 100.0 >= dynamic * 95.0);
}

/* All as it was, sizes aside: nothing is lost. */
static void match_tracks_sizes_without_a_loss(void **state)
{
    fixture *f = *state;
    test_random random = test_random_begin("match sizes", 0xe5);
    make_experts(f, &random);
    for (int iteration = 0; iteration < 20; iteration++) {
        uint64_t tokens = 0;
        for (uint32_t i = 0; i < ITEMS; i++) {
            if (i % LAYER >= FIXED && (i % LAYER - FIXED) % PER_EXPERT == 0)
                tokens = 80 + test_random_below(&random, 40);
            assert_int_equal(ask(f, i, tokens), i);
        }
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(match_follows_beginning_then_iteration_after_iteration),
        TEST(match_mark_early_in_the_beginning_does_not_skip_it),
        TEST(match_leaves_a_beginning_that_went_otherwise),
        TEST(match_mark_is_the_nearest_of_two_iterations),
        TEST(match_requests_behind_their_mark_cost_themselves_only),
        TEST(match_extra_request_costs_itself_only),
        TEST(match_missing_request_costs_nothing_else),
        TEST(match_swapped_requests_both_keep_their_slots),
        TEST(match_resized_request_costs_itself_only),
        TEST(match_stream_is_part_of_a_request),
        TEST(match_dynamic_request_may_have_any_size),
        TEST(match_dynamic_request_of_its_old_size_is_itself),
        TEST(match_looks_ahead_past_dynamic_requests),
        TEST(match_tracks_layers_whose_experts_change),
        TEST(match_tracks_sizes_without_a_loss),
        TEST(match_leaves_dynamic_requests_when_all_are_extra),
        TEST(match_tracks_iterations_of_few_requests),
        TEST(match_that_knows_its_place_is_not_moved_by_a_row),
        TEST(match_resyncs_after_an_evaluation_loop_without_a_mark),
        TEST(match_resyncs_in_the_middle),
        TEST(match_resync_of_another_stream_is_no_match),
        TEST(match_resyncs_to_the_beginning_behind_the_end),
        TEST(match_seeded_disturbances_keep_98_percent),
    };
    return cmocka_run_group_tests_name("match", tests, NULL, NULL);
}
