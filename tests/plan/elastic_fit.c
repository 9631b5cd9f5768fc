/*
 * elastic_fit.c: the functions that sizes follow, and the number that they follow, are found again
 * in what random jobs recorded; what follows nothing is told.
 */
#include "growing.h"

#include <plan/sizes/fit.h>
#include <plan/sizes/layout.h>
#include <plan/sizes/solve.h>
#include <string.h>
#include <time.h>

/* --- functions ---------------------------------------------------------------------------------*/

static void function_at_a_fraction_is_rounded_up(void **state)
{
    (void)state;
    const pleat__function f = {.k = {1, 3}, .divisor = 2, .most = UINT64_MAX};
    const pleat__fraction x = {5, 4};
    uint64_t size;
    assert_true(pleat__function_at(&f, x, &size));
    assert_int_equal(size, 3); /* (1 + 3.75) / 2 */
}

static void function_beyond_all_sizes_has_none(void **state)
{
    (void)state;
    pleat__function f = {.k = {0, INT64_MAX}, .divisor = 1, .most = UINT64_MAX};
    const pleat__fraction x = {PLEAT__FRACTION_MOST - 1, 1};
    uint64_t size;
    assert_false(pleat__function_at(&f, x, &size));
    f = (pleat__function){.k = {0, 0, INT64_MAX}, .divisor = 1};
    assert_false(pleat__function_at(&f, x, &size));
    f = (pleat__function){.k = {-1}, .divisor = 1, .most = UINT64_MAX};
    assert_false(pleat__function_at(&f, x, &size));
}

/* 3 u^2 - 40 u + 139: 5.67 bytes at u = 20/3, where it turns; less one of 6 it is none there. */
static void function_holds_where_it_turns_too(void **state)
{
    (void)state;
    pleat__function f = {.k = {139, -40, 3}, .divisor = 1, .most = UINT64_MAX};
    pleat__recipe recipe = {.lowest = {1, 1}, .highest = {32, 1}};
    assert_true(pleat__function_holds(&f, &recipe));
    f.k[0] -= 6;
    assert_false(pleat__function_holds(&f, &recipe));
    recipe.lowest = (pleat__fraction){7, 1};
    assert_true(pleat__function_holds(&f, &recipe));
    recipe.lowest = (pleat__fraction){1, 1};
    recipe.highest = (pleat__fraction){6, 1};
    assert_true(pleat__function_holds(&f, &recipe));
    /* 2^48 + 512 at u = 16, 2^48 - 512 at both ends. */
    f = (pleat__function){.k = {(1ll << 48) - 512, 128, -4}, .divisor = 1, .most = UINT64_MAX};
    recipe.lowest = (pleat__fraction){1, 64};
    recipe.highest = (pleat__fraction){32, 1};
    assert_false(pleat__function_holds(&f, &recipe));
}

static void texts_of_x_are_read_back(void **state)
{
    (void)state;
    static const char *const good[] = {"3", "5/2", "7/3"};
    static const char *const bad[] = {"",      "x",     "0",   "1/0",    "-1",
                                      "1.5.2", "3 y 4", "1 x", "128 x 4"};
    char text[64];
    pleat__fraction x;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(pleat__x_parse(good[i], &x));
        assert_string_equal(pleat__x_text(x, text, sizeof text), good[i]);
    }
    assert_true(pleat__x_parse("2.50", &x));
    assert_string_equal(pleat__x_text(x, text, sizeof text), "5/2");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(pleat__x_parse(bad[i], &x));
}

/* A lane of 64 GiB and one place, from x = 4096 to what is no part of it. */
static void bytes_of_a_large_lane_are_scaled_to_any_x(void **state)
{
    (void)state;
    const pleat__fraction from = {4096, 1}, odd = {439183, 1000}, far = {1 << 30, 1};
    const uint64_t places = (1ull << 27) + 1;
    uint64_t out;
    assert_true(pleat__x_scale(512 * places, from, (pleat__fraction){8191, 1}, &out));
    assert_int_equal(out, 512 * ((places * 8191 + 4095) / 4096));
    assert_true(pleat__x_scale(512 * places, from, odd, &out));
    assert_int_equal(out, 512 * ((places * 439183 + 4095999) / 4096000));
    assert_false(pleat__x_scale(512 * places, from, far, &out));
}

/* Three sizes lie on some curve whatever they are: three terms want a fourth. */
static void functions_of_three_terms_are_not_made_of_three_sizes(void **state)
{
    (void)state;
    pleat__function found;
    pleat__sample samples[] = {{.size = 6u << 20, .x = 1},
                               {.size = 17u << 20, .x = 2},
                               {.size = 34u << 20, .x = 3},
                               {.size = 57u << 20, .x = 4}};
    assert_false(pleat__solve(samples, 3, &found));
    assert_true(pleat__solve(samples, 4, &found));
    assert_int_equal(found.k[2], 3 << 20);
}

/* --- fitting -----------------------------------------------------------------------------------*/

/* Rows of sizes, as the fit takes them. */
static uint64_t *table_of(const kind *kinds, uint32_t count, const uint64_t *xs, uint32_t profiles,
                          pleat__arena *arena)
{
    uint64_t *sizes = pleat__arena_alloc(arena, (size_t)profiles * count * sizeof *sizes);
    assert_non_null(sizes);
    for (uint32_t p = 0; p < profiles; p++)
        for (uint32_t i = 0; i < count; i++)
            sizes[p * count + i] = size_of(&kinds[i], xs[p]);
    return sizes;
}

/* Every request has a function, which gives its size at x. */
static void expect_fit(const pleat__fit *fit, const kind *kinds, uint32_t count, uint64_t x)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size, own = size_of(&kinds[i], x);
        assert_int_not_equal(fit->of[i], PLEAT__NO_FUNCTION);
        assert_true(
            pleat__function_at(&fit->functions[fit->of[i]], (pleat__fraction){x, 1}, &size));
        if (to_512(size) != to_512(own))
            fail_msg("request %u: %llu, not %llu", i, (unsigned long long)size,
                     (unsigned long long)own);
    }
}

/* What is recorded at so many x says the sizes at each x up to 19. */
static void expect_fit_of(const kind *kinds, uint32_t count, const uint64_t *us, uint32_t recorded)
{
    pleat__arena *arena;
    pleat__fit fit;
    assert_ok(pleat__arena_create(&arena));
    uint64_t *sizes = table_of(kinds, count, us, recorded, arena);
    assert_ok(pleat__fit_make(sizes, recorded, count, us, arena, &fit));
    for (uint64_t u = 1; u < 20; u++)
        expect_fit(&fit, kinds, count, u);
    pleat__arena_destroy(arena);
}

static void fit_gives_sizes_at_any_x(void **state)
{
    (void)state;
    test_random random = test_random_begin("fit_gives_sizes_at_any_x", 0xe1a57);
    pleat__arena *arena;
    assert_ok(pleat__arena_create(&arena));
    for (int round = 0; round < 40; round++) {
        job j = random_job(&random, true);
        j.kinds[0] = j.kinds[1] = (kind){.linear = 4096};
        uint64_t us[4];
        uint32_t profiles = 4;
        us[0] = 1 + test_random_below(&random, 30);
        for (uint32_t p = 1; p < profiles; p++)
            us[p] = us[p - 1] + 1 + test_random_below(&random, 30);
        uint64_t *sizes = table_of(j.kinds, j.kind_count, us, profiles, arena);
        pleat__fit fit;
        assert_ok(pleat__fit_make(sizes, profiles, j.kind_count, us, arena, &fit));
        assert_true(fit.shows_x);
        for (uint32_t p = 0; p < profiles; p++)
            assert_int_equal(fit.x[p].num, us[p]);
        for (uint64_t u = us[0]; u < us[3] * 3; u += 7)
            expect_fit(&fit, j.kinds, j.kind_count, u);
        pleat__arena_free(arena, sizes);
    }
    pleat__arena_destroy(arena);
}

/* A batch and a length that change apart: x is their product, and what follows one of them alone
 * follows nothing. */
static void fit_takes_the_product_of_a_batch_and_a_length(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {7, 12, 9, 16, 5, 11}, batches[] = {4, 2, 8, 3, 6, 5};
    enum { PROFILES = sizeof lengths / sizeof *lengths, BOTH = 20, COUNT = BOTH + 6 };
    uint64_t sizes[PROFILES * COUNT];
    pleat__arena *arena;
    pleat__fit fit;
    for (uint32_t p = 0; p < PROFILES; p++)
        for (uint32_t i = 0; i < COUNT; i++)
            sizes[p * COUNT + i] = 3072ull * (i + 1) * lengths[p] * (i < BOTH ? batches[p] : 1);
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__fit_make(sizes, PROFILES, COUNT, NULL, arena, &fit));
    assert_true(fit.shows_x);
    assert_int_equal(fit.varying, COUNT);
    assert_int_equal(fit.explained, BOTH);
    for (uint32_t p = 0; p < PROFILES; p++)
        assert_int_equal(fit.x[p].num, lengths[p] * batches[p]);
    for (uint32_t i = BOTH; i < COUNT; i++)
        assert_int_equal(fit.of[i], PLEAT__NO_FUNCTION);
    pleat__arena_destroy(arena);
}

static void fit_knows_a_bound_that_is_shared(void **state)
{
    (void)state;
    const kind kinds[] = {{.linear = 4096},
                          {.linear = 8192},
                          {.linear = 1024},
                          {.constant = 777},
                          {.linear = 32768, .most = 200000},
                          {.linear = 50000, .most = 200000}};
    expect_fit_of(kinds, 6, (const uint64_t[]){2, 3, 7}, 3);
}

/* A kind that stays as it is up to a size and grows from there on; and one that is of a size by
 * chance, which the second iteration at the same x shows. */
static void fit_knows_where_growth_begins(void **state)
{
    (void)state;
    const kind kinds[] = {{.linear = 4096},
                          {.linear = 8192},
                          {.linear = 1024},
                          {.linear = 100 << 12, .least = 700 << 12}};
    const uint64_t us[] = {4, 8, 4, 8};
    pleat__arena *arena;
    pleat__fit fit;
    assert_ok(pleat__arena_create(&arena));
    uint64_t *sizes = table_of(kinds, 4, us, 4, arena);
    assert_ok(pleat__fit_make(sizes, 4, 4, us, arena, &fit));
    for (uint64_t u = 1; u < 32; u++)
        expect_fit(&fit, kinds, 4, u);
    sizes[2 * 4 + 3] += 512;
    assert_ok(pleat__fit_make(sizes, 4, 4, us, arena, &fit));
    assert_int_equal(fit.of[3], PLEAT__NO_FUNCTION);
    assert_ok(pleat__fit_make(sizes, 2, 4, us, arena, &fit));
    assert_int_equal(fit.of[3], PLEAT__NO_FUNCTION);
    pleat__arena_destroy(arena);
}

/* The same where the other kind is at the bound at every x recorded. */
static void fit_knows_a_bound_that_another_has_reached(void **state)
{
    (void)state;
    const kind kinds[] = {{.linear = 4096},
                          {.linear = 8192},
                          {.linear = 1024},
                          {.constant = 3 << 20},
                          {.linear = 2 << 20, .most = 3 << 20}};
    expect_fit_of(kinds, 5, (const uint64_t[]){1, 2}, 2);
}

/* What comes at one x only follows it where it is whole places for each unit of x, and is as it was
 * where it is not; where it did not come in each iteration there, or not at one size, it may be
 * anything. */
static void fit_takes_what_came_at_one_x_only_to_follow_it(void **state)
{
    (void)state;
    const kind kinds[] = {
        {.linear = 4096}, {.linear = 8192}, {.linear = 1024}, {.linear = 512}, {.constant = 5000}};
    const uint64_t us[] = {4, 8, 8};
    pleat__arena *arena;
    pleat__fit fit;
    assert_ok(pleat__arena_create(&arena));
    uint64_t *sizes = table_of(kinds, 5, us, 3, arena);
    sizes[3] = sizes[4] = PLEAT__ABSENT;
    assert_ok(pleat__fit_make(sizes, 3, 5, us, arena, &fit));
    for (uint64_t u = 1; u < 20; u++)
        expect_fit(&fit, kinds, 5, u);
    sizes[2 * 5 + 3] = PLEAT__ABSENT;
    sizes[2 * 5 + 4] += 512;
    assert_ok(pleat__fit_make(sizes, 3, 5, us, arena, &fit));
    assert_int_equal(fit.of[3], PLEAT__NO_FUNCTION);
    assert_int_equal(fit.of[4], PLEAT__NO_FUNCTION);
    assert_int_not_equal(fit.of[0], PLEAT__NO_FUNCTION);
    pleat__arena_destroy(arena);
}

static void sizes_by_chance_show_no_x(void **state)
{
    (void)state;
    test_random random = test_random_begin("sizes_by_chance_show_no_x", 0x40e);
    pleat__arena *arena;
    pleat__fit fit;
    uint64_t sizes[3 * 50];
    assert_ok(pleat__arena_create(&arena));
    for (int i = 0; i < 150; i++)
        sizes[i] = 512 * (1 + test_random_below(&random, 1000));
    assert_ok(pleat__fit_make(sizes, 3, 50, NULL, arena, &fit));
    assert_false(fit.shows_x);
    assert_ok(pleat__fit_make(sizes, 2, 50, NULL, arena, &fit));
    assert_false(fit.shows_x);
    pleat__arena_destroy(arena);
}

/* Where iterations differ by few requests others are taken for these, of any size. */
static void few_sizes_that_vary_show_no_x(void **state)
{
    (void)state;
    enum { MOST = 2 * PLEAT__VARYING_SHARE };
    const uint64_t us[] = {1, 294912, 1};
    kind kinds[MOST + 1] = {{.linear = 4}, {.linear = 4}};
    pleat__arena *arena;
    pleat__fit fit;
    for (uint32_t i = 2; i <= MOST; i++)
        kinds[i] = (kind){.constant = 512 * i};
    assert_ok(pleat__arena_create(&arena));
    for (uint32_t count = MOST; count <= MOST + 1; count++) {
        uint64_t *sizes = table_of(kinds, count, us, 3, arena);
        assert_ok(pleat__fit_make(sizes, 3, count, NULL, arena, &fit));
        assert_int_equal(fit.shows_x, count == MOST);
        assert_int_equal(fit.varying, 2);
    }
    pleat__arena_destroy(arena);
}

/* Functions were looked for among all before them: minutes for as many sizes as this. */
static void many_sizes_are_fitted_in_time(void **state)
{
    (void)state;
    enum { COUNT = 200000 };
    pleat__arena *arena;
    pleat__fit fit;
    assert_ok(pleat__arena_create(&arena));
    uint64_t *sizes = pleat__arena_alloc(arena, 2ull * COUNT * sizeof *sizes);
    assert_non_null(sizes);
    for (uint32_t i = 0; i < COUNT; i++) {
        sizes[i] = 512 * (i + 1ull);
        sizes[COUNT + i] = i % 16 == 0 ? 2 * (sizes[i] = 4096) : sizes[i];
    }
    clock_t begin = clock();
    assert_ok(pleat__fit_make(sizes, 2, COUNT, NULL, arena, &fit));
    assert_true(clock() - begin < 5 * CLOCKS_PER_SEC);
    assert_int_equal(fit.explained, fit.varying);
    pleat__arena_destroy(arena);
}

static void names_out_of_proportion_are_refused(void **state)
{
    (void)state;
    job j = {.kinds = {{.linear = 4096}, {.linear = 512}}, .kind_count = 2, .steps = 100};
    const uint64_t wrong[] = {2, 5};
    const pleat_trace *traces[] = {trace_at(&j, 2), trace_at(&j, 4)};
    pleat__elastic_options options = {.plan = &small_chunks, .names = wrong};
    pleat_plan *plan;
    j.break_at = UINT32_MAX;
    assert_result(pleat__elastic_plan_make(traces, 2, &options, NULL, NULL, &plan), PLEAT_E_INPUT);
    pleat_trace_free((pleat_trace *)traces[0]);
    pleat_trace_free((pleat_trace *)traces[1]);
}

/* --- shapes ------------------------------------------------------------------------------------*/

#define SHAPE 3000u

/* Sizes are a power of two for each sample, as a model's are, or, `fixed` eighths of them, without
 * samples: at four times x many a request has the size that another had. Each such request (0:
 * none) is left out that is one of `skipped`, and has a size of its own that is one of `odd`.
 * which[i] is the number of what is left. */
static uint32_t shape_at(uint64_t seed, uint64_t x, uint32_t fixed, uint32_t skipped, uint32_t odd,
                         pleat__request *items, uint32_t *which)
{
    test_random random = {seed};
    static uint32_t at[SHAPE], last[SHAPE];
    uint32_t count = 0;
    for (uint32_t i = 0, now = 0; i < SHAPE; i++) {
        uint64_t power = test_random_below(&random, 10), dice = test_random_below(&random, 8);
        at[i] = now;
        last[i] = i + 1 + (uint32_t)test_random_below(&random, 4) * 200;
        if (skipped != 0 && i % skipped == skipped / 2)
            continue;
        bool is_odd = odd != 0 && i % odd == 1;
        uint64_t size =
            is_odd ? 100 * (i + x * (i % 11)) : (512ull << power) * (dice < fixed ? 1 : x);
        items[count] = (pleat__request){.size = size, .alloc_at = now};
        which[count++] = i;
        now++;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t end = last[which[i]];
        items[i].free_at = end < SHAPE ? at[end] : SHAPE;
    }
    return count;
}

/* GPT-2 at microbatches 1 and 4 was taken for two jobs: laid by sizes as they are, too few were as
 * four to one. */
static void shapes_at_many_times_x_are_laid_rightly(void **state)
{
    (void)state;
    static const struct {
        uint64_t a, b;
        uint32_t fixed, odd;
    } xs[] = {{4, 1, 2, 0}, {1, 4, 2, 0}, {8, 1, 2, 0}, {2, 1, 2, 0}, {3, 2, 2, 0}, {16, 1, 2, 0},
              {5, 5, 2, 0}, {4, 1, 2, 6}, {2, 6, 2, 6}, {3, 3, 2, 6}, {2, 1, 5, 0}, {2, 1, 4, 6},
              {4, 1, 2, 4}, {4, 1, 0, 3}, {8, 1, 1, 2}, {4, 1, 0, 2}};
    static pleat__request items[2][SHAPE];
    static uint32_t which[2][SHAPE], pairs[SHAPE];
    pleat__arena *arena;
    assert_ok(pleat__arena_create(&arena));
    for (uint64_t seed = 1; seed <= 3; seed++)
        for (size_t k = 0; k < sizeof xs / sizeof *xs; k++) {
            uint32_t a = shape_at(seed, xs[k].a, xs[k].fixed, 0, xs[k].odd, items[0], which[0]);
            uint32_t b = shape_at(seed, xs[k].b, xs[k].fixed, 9, xs[k].odd, items[1], which[1]);
            uint32_t paired, right = 0;
            assert_ok(pleat__shapes_align(items[0], a, items[1], b, arena, pairs, &paired));
            for (uint32_t i = 0; i < a; i++)
                right += pairs[i] != PLEAT__NEVER && which[1][pairs[i]] == i;
            if (right * 100 < b * 95u || paired * 100 < b * 95u)
                fail_msg("at %llu and %llu: %u and %u of %u", (unsigned long long)xs[k].a,
                         (unsigned long long)xs[k].b, right, paired, b);
        }
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(function_at_a_fraction_is_rounded_up),
        cmocka_unit_test(function_beyond_all_sizes_has_none),
        cmocka_unit_test(function_holds_where_it_turns_too),
        cmocka_unit_test(texts_of_x_are_read_back),
        cmocka_unit_test(bytes_of_a_large_lane_are_scaled_to_any_x),
        cmocka_unit_test(functions_of_three_terms_are_not_made_of_three_sizes),
        cmocka_unit_test(fit_gives_sizes_at_any_x),
        cmocka_unit_test(fit_takes_the_product_of_a_batch_and_a_length),
        cmocka_unit_test(fit_knows_a_bound_that_is_shared),
        cmocka_unit_test(fit_knows_where_growth_begins),
        cmocka_unit_test(fit_knows_a_bound_that_another_has_reached),
        cmocka_unit_test(fit_takes_what_came_at_one_x_only_to_follow_it),
        cmocka_unit_test(sizes_by_chance_show_no_x),
        cmocka_unit_test(few_sizes_that_vary_show_no_x),
        cmocka_unit_test(many_sizes_are_fitted_in_time),
        cmocka_unit_test(names_out_of_proportion_are_refused),
        cmocka_unit_test(shapes_at_many_times_x_are_laid_rightly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
