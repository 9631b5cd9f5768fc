/*
 * fit.c: when what is followed is let go for a while, and when that is over (runtime/learn/fit.h).
 */
#include "test.h"

#include <runtime/learn/fit.h>

#define MS UINT64_C(1000000)

/* An iteration of 100 ms, of which views took so much. */
static pleat__verdict mark(pleat__fit *fit, pleat__followed followed, uint64_t paid_ns, bool record)
{
    fit->served = (pleat__served){.asked = 1000,
                                  .elsewhere = 100,
                                  .paid_ns = paid_ns,
                                  .passed_ns = 100 * MS,
                                  .record = record};
    return pleat__fit_mark(fit, followed, fit->divergences);
}

/* Iterations as bad as this until a rest begins; 0: it did not. */
static uint32_t marks_to_rest(pleat__fit *fit, pleat__followed followed, uint64_t paid_ns)
{
    for (uint32_t i = 1; i <= 1000; i++)
        if (mark(fit, followed, paid_ns, false) == PLEAT__RESTS)
            return i;
    return 0;
}

/* Until it is over, where the heap alone takes so much. */
static uint32_t marks_to_wake(pleat__fit *fit, uint64_t paid_ns)
{
    for (uint32_t i = 1; i <= 100000; i++)
        if (mark(fit, PLEAT__FOLLOWED_NOTHING, paid_ns, false) == PLEAT__WAKES)
            return i;
    return 0;
}

static void fit_what_costs_little_goes_on(void **state)
{
    (void)state;
    pleat__fit fit = {0};
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_LEARNED, MS / 2), 0);
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_DRAFT, 0), 0);
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_FILE, 50 * MS), 0);
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_NOTHING, 50 * MS), 0);
    /* Short iterations: some maps are allowed whatever part of the time they take. */
    fit.served = (pleat__served){.asked = 10, .paid_ns = MS / 2, .passed_ns = MS};
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(pleat__fit_mark(&fit, PLEAT__FOLLOWED_LEARNED, 0), PLEAT__GOES_ON);
}

/* Memory that was never in use before is asked for, whatever is followed. */
static void fit_growth_is_not_held_against_it(void **state)
{
    (void)state;
    pleat__fit fit = {0};
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(mark(&fit, PLEAT__FOLLOWED_LEARNED, 50 * MS, true), PLEAT__GOES_ON);
}

/* Of ten requests three are elsewhere. */
static pleat__verdict mark_poor(pleat__fit *fit, pleat__followed followed, bool grew)
{
    fit->served = (pleat__served){.asked = 1000, .elsewhere = 300, .grew = grew, .record = grew};
    return pleat__fit_mark(fit, followed, fit->divergences);
}

/* But that of what has no place for much of most iterations is. */
static void fit_what_is_in_the_way_ends_where_memory_grows(void **state)
{
    (void)state;
    static const pleat__followed ended[] = {PLEAT__FOLLOWED_DRAFT, PLEAT__FOLLOWED_LAYOUT};
    for (uint32_t i = 0; i < 2; i++) {
        pleat__fit fit = {0};
        for (uint32_t k = 0; k < 3; k++)
            assert_int_equal(mark_poor(&fit, ended[i], true), PLEAT__GOES_ON);
        assert_int_equal(mark(&fit, ended[i], 0, true), PLEAT__GOES_ON);
        assert_int_equal(mark_poor(&fit, ended[i], true), PLEAT__GOES_ON);
        for (uint32_t k = 0; k < 20; k++)
            assert_int_equal(mark_poor(&fit, ended[i], false), PLEAT__GOES_ON);
        assert_int_equal(mark_poor(&fit, ended[i], true), PLEAT__RESTS);
        /* The heap may take more than those did, but not much. */
        assert_int_equal(marks_to_wake(&fit, MS / 2), 128);
        for (uint32_t k = 0; k < 5; k++)
            (void)mark_poor(&fit, ended[i], k == 4);
        assert_int_equal(marks_to_wake(&fit, MS), 10);
        fit = (pleat__fit){0};
        for (uint32_t k = 0; k < 20; k++) {
            assert_int_equal(mark_poor(&fit, PLEAT__FOLLOWED_LEARNED, true), PLEAT__GOES_ON);
            assert_int_equal(mark_poor(&fit, PLEAT__FOLLOWED_FILE, true), PLEAT__GOES_ON);
        }
    }
}

static void fit_rests_get_longer(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {128, 512, 2048, 8192, 8192};
    pleat__fit fit = {0};
    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_LEARNED, 5 * MS), 3);
        assert_int_equal(fit.resting, lengths[i]);
        assert_int_equal(marks_to_wake(&fit, 0), lengths[i]);
    }
    /* What goes well for long is trusted again. */
    for (uint32_t i = 0; i < 128 * 4; i++)
        assert_int_equal(mark(&fit, PLEAT__FOLLOWED_LEARNED, 0, false), PLEAT__GOES_ON);
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_LEARNED, 5 * MS), 3);
    assert_int_equal(fit.resting, 128);
}

/* A draft is made again of more iterations before it is given up; good ones in between count. */
static void fit_a_draft_has_longer(void **state)
{
    (void)state;
    pleat__fit fit = {0};
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_DRAFT, 5 * MS), 5);
    fit = (pleat__fit){0};
    for (uint32_t i = 0; i < 99; i++)
        assert_int_equal(mark(&fit, PLEAT__FOLLOWED_DRAFT, i % 3 == 0 ? 5 * MS : 0, false),
                         PLEAT__GOES_ON);
    fit = (pleat__fit){0};
    uint32_t marks = 1;
    while (marks < 100 &&
           mark(&fit, PLEAT__FOLLOWED_DRAFT, marks % 3 == 0 ? 0 : 5 * MS, false) != PLEAT__RESTS)
        marks++;
    assert_in_range(marks, 6, 12);
}

/* A tenth of an iteration's time counts twice. */
static void fit_what_costs_much_ends_sooner(void **state)
{
    (void)state;
    pleat__fit fit = {0};
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_LEARNED, 10 * MS), 2);
    fit = (pleat__fit){0};
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_DRAFT, 10 * MS), 3);
}

/* What was learned finds places for more and more: then it is not judged by what it costs. */
static void fit_what_was_learned_may_settle(void **state)
{
    (void)state;
    pleat__fit fit = {0};
    for (uint32_t i = 0; i < 100; i++) {
        fit.served = (pleat__served){
            .asked = 1000, .elsewhere = 60, .paid_ns = 10 * MS, .passed_ns = 100 * MS};
        assert_int_equal(pleat__fit_mark(&fit, PLEAT__FOLLOWED_LEARNED, 0), PLEAT__GOES_ON);
    }
    for (uint32_t i = 0; i < 6; i++) {
        fit.served.elsewhere = 0;
        assert_int_equal(pleat__fit_mark(&fit, PLEAT__FOLLOWED_LAYOUT, 0),
                         i < 5 ? PLEAT__GOES_ON : PLEAT__RESTS);
    }
}

/* However bad it was before: nothing is let go where it goes well. */
static void fit_no_rest_begins_on_a_good_iteration(void **state)
{
    (void)state;
    pleat__fit fit = {0};
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(mark(&fit, PLEAT__FOLLOWED_DRAFT, 5 * MS, false), PLEAT__GOES_ON);
    assert_int_equal(mark(&fit, PLEAT__FOLLOWED_LEARNED, 0, false), PLEAT__GOES_ON);
    assert_int_equal(mark(&fit, PLEAT__FOLLOWED_LEARNED, 5 * MS, false), PLEAT__RESTS);
}

/* Sizes were known meanwhile. */
static void fit_a_rest_that_was_none_does_not_count(void **state)
{
    (void)state;
    pleat__fit fit = {0};
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_LEARNED, 5 * MS), 3);
        assert_int_equal(fit.resting, 128);
        assert_int_equal(mark(&fit, PLEAT__FOLLOWED_NOTHING, 0, false), PLEAT__GOES_ON);
        pleat__fit_end_rest(&fit);
        assert_int_equal(fit.rests, 0);
    }
}

/* The heap alone takes more than half as much: it was not what was followed. */
static void fit_a_rest_that_is_no_better_ends(void **state)
{
    (void)state;
    pleat__fit fit = {0};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_LEARNED, 5 * MS), 3u << i);
        assert_int_equal(marks_to_wake(&fit, 3 * MS), 10);
        assert_int_equal(fit.resting, 0);
        assert_int_equal(fit.rests, 0);
    }
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_LEARNED, 5 * MS), 3u << 4);
    assert_int_equal(marks_to_wake(&fit, 2 * MS), 128);
    for (uint32_t i = 0; i < 128 * 4; i++)
        assert_int_equal(mark(&fit, PLEAT__FOLLOWED_LEARNED, 0, false), PLEAT__GOES_ON);
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_LEARNED, 5 * MS), 3);
}

/* Later on, too: it is compared again and again. */
static void fit_a_rest_that_gets_worse_ends(void **state)
{
    (void)state;
    pleat__fit fit = {0};
    assert_int_equal(marks_to_rest(&fit, PLEAT__FOLLOWED_DRAFT, 5 * MS), 5);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(mark(&fit, PLEAT__FOLLOWED_NOTHING, 0, false), PLEAT__GOES_ON);
    assert_int_equal(marks_to_wake(&fit, 5 * MS), 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fit_what_costs_little_goes_on),
        cmocka_unit_test(fit_growth_is_not_held_against_it),
        cmocka_unit_test(fit_what_is_in_the_way_ends_where_memory_grows),
        cmocka_unit_test(fit_rests_get_longer),
        cmocka_unit_test(fit_a_draft_has_longer),
        cmocka_unit_test(fit_what_costs_much_ends_sooner),
        cmocka_unit_test(fit_what_was_learned_may_settle),
        cmocka_unit_test(fit_no_rest_begins_on_a_good_iteration),
        cmocka_unit_test(fit_a_rest_that_was_none_does_not_count),
        cmocka_unit_test(fit_a_rest_that_is_no_better_ends),
        cmocka_unit_test(fit_a_rest_that_gets_worse_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
