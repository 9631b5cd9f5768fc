/*
 * elastic_x.c: what the first requests of an iteration say of its x, told by hand: which of a
 * plan's beginning say nothing, and when two parameters are certain.
 */
#include "elastic_job.h"

#include <runtime/learn/elastic.h>

#define ITEMS 8u

/* Of a plan whose beginning is four requests: two weights, a dynamic one, one that grows with x. */
static void elastic_x_is_not_said_by_weights(void **state)
{
    (void)state;
    pleat__recipe recipe = {.parameters = 1};
    pleat_plan plan = {.recipe = &recipe};
    pleat__term terms[] = {{.bytes = 100},
                           {.bytes = 200, .stream = 1},
                           {.bytes = 300, .dynamic = true},
                           {.bytes = 400, .rise = 1},
                           {.bytes = 500}}; /* repeats */
    pleat__scale scale = {.terms = terms, .count = 5, .first = 4, .plan = &plan};
    pleat__elastic elastic = {.scale = &scale};
    assert_false(pleat__elastic_is_constant(&elastic, 101, 0));
    assert_false(pleat__elastic_is_constant(&elastic, 100, 1));
    assert_int_equal(elastic.from, 0);
    /* Behind a few that are none of the plan's; they are forgotten then. */
    elastic.here_count = 16;
    elastic.asked = elastic.tried = 3;
    assert_true(pleat__elastic_is_constant(&elastic, 100, 0));
    assert_int_equal(elastic.from, 1);
    assert_int_equal(elastic.here_count + elastic.asked + elastic.tried, 0);
    /* What came were the iteration's. */
    elastic.here_count = 17;
    assert_false(pleat__elastic_is_constant(&elastic, 200, 1));
    elastic.here_count = 0;
    assert_true(pleat__elastic_is_constant(&elastic, 200, 1));
    for (elastic.from = 2; elastic.from < 5; elastic.from++)
        assert_false(pleat__elastic_is_constant(&elastic, terms[elastic.from].bytes, 0));
}

/* A plan with requests that say u, v, u, v ... */
typedef struct two {
    pleat__recipe recipe;
    pleat_plan plan;
    pleat__function functions[2];
    uint32_t steady[ITEMS];
    pleat__term terms[ITEMS];
    pleat__scale scale;
    pleat__expected items[ITEMS];
    pleat__follow follow;
    pleat__instance instance;
    pleat__elastic elastic;
} two;

static void two_begin(two *t)
{
    *t = (two){.recipe = {.parameters = 2, .functions = t->functions, .function_count = 2},
               .functions = {{.k = {0, 1024}, .divisor = 1, .exact = 1, .most = UINT64_MAX},
                             {.k = {0, 0, 0, 2048}, .divisor = 1, .exact = 1, .most = UINT64_MAX}},
               .scale = {.terms = t->terms, .count = ITEMS, .plan = &t->plan},
               .follow = {.items = t->items, .count = ITEMS},
               .instance = {.follow = &t->follow},
               .elastic = {.scale = &t->scale, .now = &t->instance, .guess = PLEAT__NO_X}};
    t->recipe.steady = t->steady;
    t->plan.recipe = &t->recipe;
    t->plan.steady.slot_count = ITEMS;
    for (uint32_t i = 0; i < ITEMS; i++) {
        t->steady[i] = i % 2;
        t->terms[i] = (pleat__term){.rise = 1, .function = i % 2, .most = UINT64_MAX};
    }
    pleat__x_begin(&t->elastic.finder, &t->plan);
}

/* The next request; whether it says x. */
static bool two_tell(two *t, uint64_t bytes, uint16_t stream, pleat__told *told)
{
    pleat__elastic *elastic = &t->elastic;
    bool tells = pleat__elastic_tell(elastic, bytes, stream, &t->follow, told);
    elastic->here[elastic->here_count++] =
        (pleat__held){.bytes = bytes, .stream = stream, .term = PLEAT__NEVER};
    return tells;
}

static void assert_x(const pleat__told *told, uint64_t u, uint64_t v)
{
    assert_int_equal(told->x.u.num, u);
    assert_int_equal(told->x.v.num, v);
}

static void elastic_x_of_two_is_certain_when_it_was_said_twice(void **state)
{
    (void)state;
    two t;
    pleat__told told;
    two_begin(&t);
    assert_false(two_tell(&t, 3 * 1024, 0, &told));
    assert_true(two_tell(&t, 5 * 2048, 0, &told));
    assert_x(&told, 3, 5);
    assert_true(told.likely);
    assert_false(told.certain);
    assert_true(two_tell(&t, 3 * 1024, 0, &told));
    assert_true(told.certain);
    assert_int_equal(told.term, 2);
    assert_int_equal(t.elastic.here[0].term, 0);
    assert_int_equal(t.elastic.here[1].term, 1);
    /* An x that was there before is certain at once. */
    two_begin(&t);
    t.elastic.seen[0] = (pleat__x){{3, 1}, {5, 1}};
    t.elastic.seen_count = 1;
    two_tell(&t, 3 * 1024, 0, &told);
    assert_true(two_tell(&t, 5 * 2048, 0, &told));
    assert_true(told.certain);
    /* Nothing is said by what is not where the plan has it, or where another is followed. */
    two_begin(&t);
    t.items[0].stream = 1;
    two_tell(&t, 3 * 1024, 0, &told);
    assert_false(t.elastic.finder.has_u);
    two_begin(&t);
    t.elastic.now = NULL;
    two_tell(&t, 3 * 1024, 0, &told);
    assert_false(t.elastic.finder.has_u);
}

static void elastic_x_of_two_outlives_a_stray(void **state)
{
    (void)state;
    two t;
    pleat__told told;
    /* The first was none of the plan's: what comes has the word. */
    two_begin(&t);
    two_tell(&t, 9 * 1024, 0, &told);
    assert_true(two_tell(&t, 5 * 2048, 0, &told));
    assert_false(two_tell(&t, 3 * 1024, 0, &told));
    assert_true(two_tell(&t, 5 * 2048, 0, &told));
    assert_x(&told, 3, 5);
    /* Three that agree have it. */
    two_begin(&t);
    for (uint32_t i = 0; i < 6; i++)
        two_tell(&t, i % 2 == 0 ? 3 * 1024 : 5 * 2048, 0, &told);
    assert_false(two_tell(&t, 9 * 1024, 0, &told));
    assert_true(two_tell(&t, 5 * 2048, 0, &told));
    assert_x(&told, 3, 5);
    assert_true(told.certain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elastic_x_is_not_said_by_weights),
        cmocka_unit_test(elastic_x_of_two_is_certain_when_it_was_said_twice),
        cmocka_unit_test(elastic_x_of_two_outlives_a_stray),
    };
    return cmocka_run_group_tests_name("elastic_x", tests, NULL, NULL);
}
