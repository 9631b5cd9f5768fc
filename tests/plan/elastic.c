/*
 * elastic.c: plans of random jobs whose sizes are functions of a number: every instance holds and
 * is small, and what breaks the rules is reported.
 */
#include "commas.h"
#include "growing.h"
#include "packs.h"
#include "plans.h"

#include <plan/sizes/layout.h>
#include <plan/sizes/recipe.h>
#include <string.h>

/* --- instances ---------------------------------------------------------------------------------*/

/* What must be the same in every instance. */
static void expect_same_beginning(const pleat_plan *plan, const pleat_plan *instance)
{
    assert_int_equal(instance->first.slot_count, plan->first.slot_count);
    assert_int_equal(instance->steady.slot_count, plan->steady.slot_count);
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        if (plan->first.slots[i].class == PLEAT__CLASS_PERSISTENT)
            assert_int_equal(instance->first.slots[i].place, plan->first.slots[i].place);
    for (uint32_t i = 0; i < plan->recipe->prologue; i++)
        assert_int_equal(instance->steady.slots[i].place, plan->steady.slots[i].place);
    for (uint32_t i = 0; i < instance->map_count; i++)
        if (instance->maps[i].alias != 0)
            assert_true(instance->maps[i].page >= plan->recipe->view_page);
}

static void instances_hold_and_are_small(void **state)
{
    (void)state;
    test_random random = test_random_begin("instances_hold_and_are_small", 0x1257a);
    for (int round = 0; round < 12; round++) {
        job j = random_job(&random, false);
        j.kinds[0] = j.kinds[1] = (kind){.linear = 20000};
        const uint64_t us[] = {4, 4 + 2 * (1 + test_random_below(&random, 3))};
        pleat_plan *plan = plan_of(&j, us, 2, NULL);
        for (uint64_t u = 1; u <= 4 * us[1]; u += 1 + u / 4) {
            const pleat__fraction x = {u, 1};
            const pleat__instance_options options = {.first = u % 2 == 0};
            pleat__instance_report report;
            pleat_plan *instance;
            assert_ok(pleat__elastic_instance(plan, x, &options, &report, &instance));
            assert_ok(pleat_plan_verify(instance, NULL));
            expect_same_beginning(plan, instance);
            assert_true(instance->physical_bytes >= instance->max_live_bytes);
            assert_true(instance->physical_bytes >= report.floor_bytes);
            if ((instance->physical_bytes - report.floor_bytes) / CHUNK > 4 &&
                instance->physical_bytes > report.floor_bytes * 1.06)
                fail_msg("round %d, u %llu: %llu bytes where %llu are needed", round,
                         (unsigned long long)u, (unsigned long long)instance->physical_bytes,
                         (unsigned long long)report.floor_bytes);
            for (uint32_t i = 0; i < plan->steady.slot_count; i++)
                assert_int_not_equal(instance->steady.slots[i].place, PLEAT__NOWHERE);
            pleat_plan_free(instance);
        }
        pleat_plan_free(plan);
    }
}

/* What comes before x is known takes the place of what was freed there, but not of what the next
 * iteration begins with. */
static void prologue_takes_places_again(void **state)
{
    (void)state;
    enum { COUNT = 5 };
    pleat_plan *plan;
    assert_ok(pleat__plan_new(&plan));
    plan->stream_count = 1;
    plan->recipe = test_array(plan, 1, sizeof *plan->recipe);
    plan->recipe->prologue = COUNT;
    plan->first.slot_count = 1;
    plan->first.slots = test_array(plan, 1, sizeof *plan->first.slots);
    plan->first.slots[0] = (pleat__slot){.size = 1000, .class = PLEAT__CLASS_PERSISTENT};
    plan->steady.events = 20;
    plan->steady.slot_count = COUNT;
    plan->steady.slots = test_array(plan, COUNT, sizeof *plan->steady.slots);
    const pleat__slot slots[COUNT] = {test_slot(4096, 0, 0, 2), test_slot(2048, 0, 1, 10),
                                      test_slot(4000, 0, 3, 12), test_slot(1024, 0, 4, 1),
                                      test_slot(512, 0, 5, 11)};
    memcpy(plan->steady.slots, slots, sizeof slots);
    assert_ok(pleat__elastic_place_prologue(plan, plan->arena));
    static const uint64_t places[COUNT] = {2048, 6144, 2048, 1024, 8192};
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(plan->steady.slots[i].place, places[i]);
    pleat_plan_free(plan);
}

/* Two persistent requests of two pages together, then what is the same at every x and takes more
 * pages than a small x needs chunks: 3, a bit, and once the 3 are free again 3.5, which fit behind
 * only. */
static pleat_trace *high_beginning(uint64_t u)
{
    test_jobber t = {0};
    uint16_t stream;
    assert_ok(pleat_trace_new(&t.trace));
    assert_ok(pleat_trace_add_stream(t.trace, 0, &stream));
    test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 20000, 0);
    test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 100000, 0);
    for (int i = 0; i < 3; i++) {
        test_job_add(&t, PLEAT_EVENT_MARK, 0, 0, 0);
        uint32_t first = t.next;
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 3 * CHUNK, 0);
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 4096, 0);
        test_job_free(&t, first);
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 7 * CHUNK / 2, 0);
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 100000 * u, 0);
        for (uint32_t r = first + 1; r < t.next; r++)
            test_job_free(&t, r);
    }
    return t.trace;
}

/* A size that follows no number, and is more than all others: 160 chunks at 4, 140 at 8. */
static pleat_trace *mostly_dynamic(uint64_t u)
{
    test_jobber t = {0};
    uint16_t stream;
    assert_ok(pleat_trace_new(&t.trace));
    assert_ok(pleat_trace_add_stream(t.trace, 0, &stream));
    for (int i = 0; i < 3; i++) {
        test_job_add(&t, PLEAT_EVENT_MARK, 0, 0, 0);
        uint32_t first = t.next;
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 100000 * u, 0);
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 200000 * u, 0);
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, (180 - 5 * u) * CHUNK, 0);
        for (uint32_t r = first; r < t.next; r++)
            test_job_free(&t, r);
    }
    return t.trace;
}

/* A lane grows with x, and views are behind it at the largest x, too. */
static void lanes_reach_the_end_of_the_range(void **state)
{
    (void)state;
    const uint64_t us[] = {4, 8};
    const pleat_trace *traces[] = {mostly_dynamic(4), mostly_dynamic(8)};
    pleat__elastic_options options = {.plan = &small_chunks, .names = us};
    pleat_plan *plan, *instance;
    assert_ok(pleat__elastic_plan_make(traces, 2, &options, NULL, NULL, &plan));
    assert_int_equal(plan->lane_count, 1);
    assert_ok(pleat__elastic_instance(plan, plan->recipe->highest, NULL, NULL, &instance));
    assert_true(instance->lanes[0].bytes >= 4 * plan->lanes[0].bytes);
    pleat_plan_free(instance);
    pleat_plan_free(plan);
    for (int i = 0; i < 2; i++)
        pleat_trace_free((pleat_trace *)traces[i]);
}

static void persistent_places_are_the_same_at_a_small_x(void **state)
{
    (void)state;
    const uint64_t us[] = {4, 8};
    const pleat_trace *traces[] = {high_beginning(us[0]), high_beginning(us[1])};
    const pleat__elastic_options options = {.plan = &small_chunks, .names = us};
    pleat_plan *plan, *instance;
    assert_ok(pleat__elastic_plan_make(traces, 2, &options, NULL, NULL, &plan));
    assert_int_equal(plan->recipe->prologue, 3);
    assert_int_equal(plan->first.slots[0].place, 0);
    assert_int_equal(plan->first.slots[1].place, to_512(20000));
    for (uint64_t u = 1; u <= 8; u++) {
        const pleat__fraction x = {u, 1};
        assert_ok(pleat__elastic_instance(plan, x, NULL, NULL, &instance));
        expect_same_beginning(plan, instance);
        pleat_plan_free(instance);
    }
    for (int i = 0; i < 2; i++)
        pleat_trace_free((pleat_trace *)traces[i]);
    pleat_plan_free(plan);
}

static void instance_has_the_sizes_of_a_trace_at_its_x(void **state)
{
    (void)state;
    test_random random = test_random_begin("instance_has_the_sizes_of_a_trace_at_its_x", 0x512e);
    for (int round = 0; round < 10; round++) {
        job j = random_job(&random, false);
        j.kinds[2] = (kind){.linear = 5000};
        const uint64_t us[] = {2, 6};
        pleat_plan *plan = plan_of(&j, us, 2, NULL), *instance;
        uint64_t u = 1 + test_random_below(&random, 20);
        pleat_trace *trace = trace_at(&j, u);
        pleat__fraction x;
        bool changes;
        assert_ok(pleat__elastic_infer(plan, trace, &x, &changes));
        assert_false(changes);
        assert_int_equal(x.num, u);
        assert_int_equal(x.den, 1);
        assert_ok(pleat__elastic_instance(plan, x, NULL, NULL, &instance));
        /* The trace's second iteration, request by request. */
        uint32_t next = 0, marks = 0;
        const pleat_trace_event *events = pleat_trace_events(trace);
        for (size_t i = 0; i < pleat_trace_event_count(trace); i++) {
            marks += events[i].kind == PLEAT_EVENT_MARK;
            if (events[i].kind == PLEAT_EVENT_ALLOC && marks == 2)
                assert_int_equal(to_512(instance->steady.slots[next++].size),
                                 to_512(events[i].size));
        }
        assert_int_equal(next, instance->steady.slot_count);
        pleat_plan_free(instance);
        pleat_trace_free(trace);
        pleat_plan_free(plan);
    }
}

static void one_trace_of_several_x_makes_a_recipe(void **state)
{
    (void)state;
    test_random random = test_random_begin("one_trace_of_several_x_makes_a_recipe", 0x0e7);
    for (int round = 0; round < 6; round++) {
        job j = random_job(&random, false);
        j.kinds[0] = (kind){.linear = 12000};
        j.iterations = 6;
        for (uint32_t i = 0; i < 6; i++) {
            j.xs[i] = 10 + (i * 7 + round) % 11;
        }
        const pleat_trace *trace = trace_of(&j);
        const pleat__elastic_options options = {.plan = &small_chunks};
        pleat__elastic_report report;
        pleat_plan *plan;
        pleat__fraction x;
        bool changes;
        assert_ok(pleat__elastic_plan_make(&trace, 1, &options, NULL, &report, &plan));
        assert_int_equal(report.explained, report.varying);
        assert_ok(pleat_plan_verify(plan, trace));
        assert_ok(pleat__elastic_infer(plan, trace, &x, &changes));
        assert_true(changes);
        for (uint32_t i = 0; i < plan->steady.slot_count; i++)
            assert_int_not_equal(plan->steady.slots[i].class, PLEAT__CLASS_DYNAMIC);
        pleat_plan_free(plan);
        pleat_trace_free((pleat_trace *)trace);
    }
}

/* A job of six sizes in which a request follows them. */
static job six_iterations(test_random *random)
{
    job j = random_job(random, false);
    j.kinds[0] = (kind){.linear = 12000};
    j.iterations = 6;
    for (uint32_t i = 0; i < 6; i++) {
        j.xs[i] = 10 + i * 7 % 11;
    }
    return j;
}

/* A request that has not what its function gives at the recorded iteration's x. */
static void recipe_is_held_against_each_size_of_the_trace(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x0e8);
    job j = six_iterations(&random);
    const pleat_trace *trace = trace_of(&j);
    const pleat__elastic_options options = {.plan = &small_chunks};
    pleat_plan *plan;
    assert_ok(pleat__elastic_plan_make(&trace, 1, &options, NULL, NULL, &plan));
    assert_ok(pleat_plan_verify(plan, trace));
    uint32_t tried = 0, told = 0;
    for (uint32_t i = j.prologue; i < plan->steady.slot_count; i += 11, tried++) {
        job other = j;
        other.break_at = i - j.prologue;
        pleat_trace *broken = trace_of(&other);
        plan->fingerprint = pleat_trace_fingerprint(broken);
        pleat_result result = pleat_plan_verify(plan, broken);
        told += result == PLEAT_E_VERIFY && strstr(pleat_last_error()->text, "in the plan") != NULL;
        pleat_trace_free(broken);
    }
    /* One that says another x leaves none known, and then sizes that depend on it may be any. */
    assert_true(tried >= 15 && told >= tried - tried / 8);
    pleat_plan_free(plan);
    pleat_trace_free((pleat_trace *)trace);
}

/* Twice the batch is a size that others had before, and the largest has some requests more: within
 * one trace iterations were laid against each other by sizes as they are, and what was taken for
 * something else followed no function. */
static void batches_that_double_in_one_trace_make_a_recipe(void **state)
{
    (void)state;
    test_random random =
        test_random_begin("batches_that_double_in_one_trace_make_a_recipe", 0xd0b1);
    for (int round = 0; round < 6; round++) {
        job j = random_job(&random, false);
        for (uint32_t i = 0; i < j.kind_count; i++)
            j.kinds[i] =
                i % 6 == 5 ? (kind){.constant = 8192u << i % 4} : (kind){.linear = 4096u << i % 5};
        j.more_from = 4;
        j.iterations = 9;
        for (uint32_t i = 0; i < j.iterations; i++) {
            j.xs[i] = 1u << i / 3;
        }
        const pleat_trace *trace = trace_of(&j);
        const pleat__elastic_options options = {.plan = &small_chunks};
        pleat__elastic_report report;
        pleat_plan *plan;
        assert_ok(pleat__elastic_plan_make(&trace, 1, &options, NULL, &report, &plan));
        /* All but those that only the largest has. */
        uint32_t dynamic = 0;
        for (uint32_t i = 0; i < plan->steady.slot_count; i++)
            dynamic += plan->steady.slots[i].class == PLEAT__CLASS_DYNAMIC;
        /* No more than those that only the largest has. */
        assert_true(dynamic <= j.steps / 40);
        pleat_plan_free(plan);
        pleat_trace_free((pleat_trace *)trace);
    }
}

/* However long ago it was. */
static void trace_that_had_another_x_changes(void **state)
{
    (void)state;
    test_random random = test_random_begin("trace_that_had_another_x_changes", 0xc4a);
    job j = random_job(&random, false);
    j.kinds[0] = (kind){.linear = 12000};
    const uint64_t us[] = {3, 5};
    pleat_plan *plan = plan_of(&j, us, 2, NULL);
    j.iterations = 24;
    for (int other = 0; other < 2; other++) {
        pleat__fraction x;
        bool changes;
        for (uint32_t i = 0; i < j.iterations; i++) {
            j.xs[i] = other != 0 && i < 3 ? 2 : 4;
        }
        pleat_trace *trace = trace_of(&j);
        assert_ok(pleat__elastic_infer(plan, trace, &x, &changes));
        assert_int_equal(x.num, 4);
        assert_int_equal(changes, other != 0);
        pleat_trace_free(trace);
    }
    pleat_plan_free(plan);
}

static void plan_laid_out_for_the_largest_needs_no_move(void **state)
{
    (void)state;
    test_random random = test_random_begin("plan_laid_out_for_the_largest_needs_no_move", 0x3a8);
    job j = random_job(&random, false);
    const uint64_t us[] = {2, 4};
    pleat_plan *plan = plan_of(&j, us, 2, "64");
    assert_int_equal(plan->recipe->reference.num, 64);
    assert_true(pleat__fraction_compare(plan->recipe->highest, plan->recipe->reference) == 0);
    uint64_t before = UINT64_MAX;
    for (uint64_t u = 64; u >= 1; u /= 2) {
        const pleat__fraction x = {u, 1};
        pleat__instance_report report;
        pleat_plan *instance;
        assert_ok(pleat__elastic_instance(plan, x, NULL, &report, &instance));
        expect_same_beginning(plan, instance);
        assert_true(instance->physical_bytes <= before);
        assert_true(report.kept_bytes >= report.floor_bytes);
        if (u == 64) {
            assert_int_equal(report.kept_bytes, instance->physical_bytes);
            assert_int_equal(report.remaps, 0);
        }
        before = instance->physical_bytes;
        pleat_plan_free(instance);
    }
    pleat_plan_free(plan);
}

static void fit_is_the_largest_that_fits(void **state)
{
    (void)state;
    test_random random = test_random_begin("fit_is_the_largest_that_fits", 0xf17);
    job j = random_job(&random, false);
    j.kinds[0] = j.kinds[1] = (kind){.linear = 60000};
    const uint64_t us[] = {4, 8};
    pleat_plan *plan = plan_of(&j, us, 2, NULL), *instance;
    const pleat__fraction one = {1, 1};
    for (uint64_t u = 2; u <= 30; u += 7) {
        const pleat__fraction at = {u, 1};
        pleat__fraction x;
        uint64_t physical;
        assert_ok(pleat__elastic_instance(plan, at, NULL, NULL, &instance));
        assert_ok(pleat__elastic_fit(plan, instance->physical_bytes, one, &x, &physical));
        assert_true(physical <= instance->physical_bytes);
        assert_true(x.num >= u);
        pleat_plan_free(instance);
        const pleat__fraction next = {x.num + 1, 1};
        if (pleat__x_in_range(plan->recipe, next)) {
            assert_ok(pleat__elastic_instance(plan, next, NULL, NULL, &instance));
            assert_true(instance->physical_bytes > physical);
            pleat_plan_free(instance);
        }
    }
    pleat__fraction x;
    assert_result(pleat__elastic_fit(plan, CHUNK, one, &x, NULL), PLEAT_E_NOT_FOUND);
    pleat_plan_free(plan);
}

/* --- what breaks the rules ---------------------------------------------------------------------*/

static void x_out_of_range_is_refused(void **state)
{
    (void)state;
    test_random random = test_random_begin("x_out_of_range_is_refused", 0x0a7);
    job j = random_job(&random, false);
    const uint64_t us[] = {4, 8};
    pleat_plan *plan = plan_of(&j, us, 2, NULL), *instance;
    const pleat__fraction beyond = {33, 1}, below = {9, 10};
    assert_result(pleat__elastic_instance(plan, beyond, NULL, NULL, &instance), PLEAT_E_NOT_FOUND);
    assert_non_null(strstr(pleat_last_error()->text, "1 to 32"));
    assert_result(pleat__elastic_instance(plan, below, NULL, NULL, &instance), PLEAT_E_NOT_FOUND);
    pleat_plan_free(plan);
}

static void request_that_breaks_its_function_is_told(void **state)
{
    (void)state;
    test_random random = test_random_begin("request_that_breaks_its_function_is_told", 0xb4ea);
    job j = random_job(&random, false);
    const uint64_t us[] = {3, 5};
    pleat_plan *plan = plan_of(&j, us, 2, NULL);
    pleat__x_finder finder;
    const pleat__fraction x = {7, 1};
    pleat__x_begin(&finder, plan);
    uint32_t broken = plan->recipe->prologue + 20;
    while (!pleat__function_varies(&plan->recipe->functions[plan->recipe->steady[broken]]))
        broken++;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        uint64_t bytes;
        assert_ok(pleat__elastic_size(plan, false, i, x, &bytes));
        bytes += i == broken ? 4096 : 0;
        bool known = pleat__x_observe(&finder, i, bytes);
        assert_int_equal(known, i >= plan->recipe->prologue);
        assert_int_equal(finder.contradicted, i >= broken);
    }
    assert_int_equal(finder.contradicted, 1);
    assert_true(pleat__fraction_equal(finder.x, x));
    pleat_plan_free(plan);
}

static void broken_request_becomes_dynamic(void **state)
{
    (void)state;
    test_random random = test_random_begin("broken_request_becomes_dynamic", 0xb40);
    job j = random_job(&random, false);
    for (uint32_t i = 0; i < j.kind_count; i++)
        j.kinds[i] = (kind){.linear = 3000000 + 512 * i};
    job other = j;
    other.break_at = 0;
    const pleat_trace *traces[] = {trace_at(&j, 2), trace_at(&other, 6)};
    const pleat__elastic_options options = {.plan = &small_chunks};
    pleat__elastic_report report;
    pleat_plan *plan, *instance;
    assert_ok(pleat__elastic_plan_make(traces, 2, &options, NULL, &report, &plan));
    assert_int_equal(plan->steady.slots[j.prologue].class, PLEAT__CLASS_DYNAMIC);
    assert_int_equal(plan->recipe->steady[j.prologue], PLEAT__NO_FUNCTION);
    assert_int_equal(report.varying - report.explained, 1);
    assert_true(plan->lane_count >= 1);
    assert_ok(pleat__elastic_instance(plan, plan->recipe->highest, NULL, NULL, &instance));
    assert_true(instance->lanes[0].bytes > plan->lanes[0].bytes);
    pleat_plan_free(instance);
    pleat_plan_free(plan);
    pleat_trace_free((pleat_trace *)traces[0]);
    pleat_trace_free((pleat_trace *)traces[1]);
}

/* Iterations of three requests that follow x, the last of which outlives the next iteration. */
static pleat_trace *trace_that_keeps(uint64_t x)
{
    test_jobber t = {0};
    uint16_t stream;
    assert_ok(pleat_trace_new(&t.trace));
    assert_ok(pleat_trace_add_stream(t.trace, 0, &stream));
    for (uint32_t i = 0; i < 6; i++) {
        test_job_add(&t, PLEAT_EVENT_MARK, 0, 0, 0);
        for (uint32_t k = 0; k < 2; k++) {
            test_job_add(&t, PLEAT_EVENT_ALLOC, t.next, (k + 1) * x << 20, 0);
            test_job_free(&t, t.next++);
        }
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 3 * x << 20, 0);
        if (i >= 2)
            test_job_free(&t, t.next - 7);
    }
    return t.trace;
}

static void request_that_outlives_the_next_iteration_is_not_explained(void **state)
{
    (void)state;
    const pleat_trace *traces[] = {trace_that_keeps(2), trace_that_keeps(4)};
    const pleat__elastic_options options = {.plan = &small_chunks};
    pleat__elastic_report report;
    pleat_plan *plan;
    assert_ok(pleat__elastic_plan_make(traces, 2, &options, NULL, &report, &plan));
    assert_int_equal(plan->steady.slots[2].class, PLEAT__CLASS_DYNAMIC);
    assert_int_equal(report.varying, 3);
    assert_int_equal(report.explained, 2);
    pleat_plan_free(plan);
    pleat_trace_free((pleat_trace *)traces[0]);
    pleat_trace_free((pleat_trace *)traces[1]);
}

static void trace_without_the_parameter_has_no_x(void **state)
{
    (void)state;
    test_random random = test_random_begin("trace_without_the_parameter_has_no_x", 0x9a9);
    job j = random_job(&random, false), other;
    const uint64_t us[] = {3, 5};
    pleat_plan *plan = plan_of(&j, us, 2, NULL);
    pleat__fraction x;
    bool changes;
    other = j;
    for (uint32_t i = 0; i < other.kind_count; i++)
        other.kinds[i] = (kind){.constant = 1000003 * (i + 1)};
    pleat_trace *trace = trace_at(&other, 1);
    assert_result(pleat__elastic_infer(plan, trace, &x, &changes), PLEAT_E_NOT_FOUND);
    pleat_trace_free(trace);
    pleat_plan_free(plan);
}

static void traces_of_different_jobs_are_refused(void **state)
{
    (void)state;
    test_random random = test_random_begin("traces_of_different_jobs_are_refused", 0xd1f);
    job j = random_job(&random, false), other = random_job(&random, false);
    other.steps = 900;
    const pleat_trace *traces[] = {trace_at(&j, 2), trace_at(&other, 4)};
    const pleat__elastic_options options = {.plan = &small_chunks};
    pleat_plan *plan;
    assert_result(pleat__elastic_plan_make(traces, 2, &options, NULL, NULL, &plan), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "different jobs"));
    const pleat_trace *same[] = {traces[0], traces[0]};
    assert_result(pleat__elastic_plan_make(same, 2, &options, NULL, NULL, &plan), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "record the job at another one"));
    pleat_trace_free((pleat_trace *)traces[0]);
    pleat_trace_free((pleat_trace *)traces[1]);
}

/* --- what recordings do not show ---------------------------------------------------------------*/

static uint64_t least_at(const pleat_plan *plan, uint64_t u, uint64_t *most)
{
    const pleat__fraction x = {u, 1};
    pleat_plan *instance;
    uint64_t least;
    assert_ok(pleat__elastic_instance(plan, x, NULL, NULL, &instance));
    assert_ok(pleat__elastic_least(plan, x, instance, &least));
    *most = instance->physical_bytes;
    pleat_plan_free(instance);
    return least;
}

static uint64_t live_at(const job *j, uint64_t u)
{
    pleat_trace *trace = trace_at(j, u);
    pleat_plan *own;
    assert_ok(pleat_plan_make(trace, &small_chunks, &own));
    uint64_t live = own->max_live_bytes;
    pleat_plan_free(own);
    pleat_trace_free(trace);
    return live;
}

/* Workspaces stop growing where no recording was: what the job takes lies between the least and the
 * most that the plan says, which are one figure as far as was recorded. */
static void least_is_where_workspaces_stop_growing(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x1ea57);
    for (int round = 0; round < 5; round++) {
        job j = random_job(&random, false);
        j.workspaces = 2;
        j.kinds[j.kind_count] = (kind){.linear = 1 << 20, .most = 6 << 20};
        j.kinds[j.kind_count + 1] = (kind){.linear = 3 << 18, .most = 9 << 19};
        const uint64_t us[] = {3, 5};
        pleat_plan *plan = plan_of(&j, us, 2, NULL), *larger = plan_of(&j, us, 2, "21");
        uint64_t most;
        for (uint64_t u = 1; u <= 5; u++) {
            uint64_t least = least_at(plan, u, &most);
            assert_int_equal(least, most);
        }
        for (uint64_t u = 6; u <= 20; u += 7) {
            uint64_t least = least_at(plan, u, &most), live = live_at(&j, u);
            assert_true(least < most);
            assert_true(least <= live + CHUNK);
            assert_true(live <= most);
        }
        /* What is laid out for was not recorded. */
        assert_true(least_at(larger, 21, &most) < most);
        pleat_plan_free(plan);
        pleat_plan_free(larger);
    }
}

/* --- files -------------------------------------------------------------------------------------*/

static void recipe_is_read_back(void **state)
{
    (void)state;
    test_random random = test_random_begin("recipe_is_read_back", 0xf11e);
    job j = random_job(&random, true);
    const uint64_t us[] = {3, 5, 3, 5};
    j.kinds[1] = (kind){.linear = 400 << 10, .least = 1800 << 10};
    pleat_plan *plan = plan_of(&j, us, 4, NULL), *back;
    const char *path = test_path("elastic.plan"), *again = test_path("again.plan");
    assert_ok(pleat_plan_write(plan, path));
    bool is;
    assert_ok(pleat__plan_is_file(path, &is));
    assert_true(is);
    assert_ok(pleat_plan_read(path, &back));
    assert_ok(pleat_plan_write(back, again));
    test_bytes a = test_file_read(path), b = test_file_read(again);
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(again), 0);
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    /* And it makes the same instance. */
    const pleat__fraction x = {4, 1};
    pleat_plan *one, *other;
    assert_ok(pleat__elastic_instance(plan, x, NULL, NULL, &one));
    assert_ok(pleat__elastic_instance(back, x, NULL, NULL, &other));
    assert_int_equal(one->physical_bytes, other->physical_bytes);
    for (uint32_t i = 0; i < one->steady.slot_count; i++)
        assert_int_equal(one->steady.slots[i].place, other->steady.slots[i].place);
    pleat_plan_free(one);
    pleat_plan_free(other);
    test_bytes_free(&a);
    test_bytes_free(&b);
    pleat_plan_free(plan);
    pleat_plan_free(back);
}

/* However many tensors stay: each had a function of its own, which was looked for among all. */
static void elastic_what_stays_has_no_function(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x57a);
    job j = random_job(&random, false);
    const uint64_t us[] = {2, 6};
    const pleat__fraction x = {4, 1};
    uint32_t functions[2];
    for (uint32_t many = 0; many < 2; many++) {
        j.weights = 2 + many * 100;
        pleat_plan *plan = plan_of(&j, us, 2, NULL), *instance;
        functions[many] = plan->recipe->function_count;
        assert_ok(pleat__elastic_instance(plan, x, NULL, NULL, &instance));
        for (uint32_t i = 0; i < plan->first.slot_count; i++)
            if (plan->first.slots[i].class == PLEAT__CLASS_PERSISTENT)
                assert_int_equal(instance->first.slots[i].size, plan->first.slots[i].size);
        pleat_plan_free(instance);
        pleat_plan_free(plan);
    }
    assert_int_equal(functions[0], functions[1]);
}

/* The runtime finds a chunk by its home, which it looks for below the views alone. */
static void elastic_chunks_are_at_home_below_the_views(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x40e);
    job j = random_job(&random, false);
    const uint64_t us[] = {2, 6};
    pleat_plan *plan = plan_of(&j, us, 2, NULL), *instance;
    const pleat__fraction x = {4, 1};
    assert_ok(pleat_plan_verify(plan, NULL));
    plan->recipe->view_page = plan->physical_bytes / plan->chunk_bytes - 1;
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    plan->recipe->view_page = 1;
    assert_result(pleat__elastic_instance(plan, x, NULL, NULL, &instance), PLEAT_E_LIMIT);
    pleat_plan_free(plan);
}

/* A file whose bytes are changed is refused, or is a plan whose instances hold. */
static void recipe_of_what_may_have_any_size_is_refused(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0xd1a);
    job j = random_job(&random, false);
    const uint64_t us[] = {2, 6};
    pleat_plan *plan = plan_of(&j, us, 2, NULL);
    uint32_t i = plan->recipe->prologue;
    while (plan->recipe->steady[i] == PLEAT__NO_FUNCTION)
        i++;
    plan->steady.slots[i].class = PLEAT__CLASS_DYNAMIC;
    plan->steady.slots[i].place = PLEAT__NOWHERE;
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "is dynamic and has a function"));
    pleat_plan_free(plan);
}

static void damaged_recipes_do_no_harm(void **state)
{
    (void)state;
    test_random random = test_random_begin("damaged_recipes_do_no_harm", 0xda4a6e);
    job j = random_job(&random, false);
    j.steps = 60;
    j.weights = 2;
    const uint64_t us[] = {3, 5};
    pleat_plan *plan = plan_of(&j, us, 2, NULL);
    const char *path = test_path("damaged.plan");
    assert_ok(pleat_plan_write(plan, path));
    pleat_plan_free(plan);
    test_bytes whole = test_file_read(path);
    assert_int_equal(remove(path), 0);
    uint32_t read = 0;
    for (int round = 0; round < 3000; round++) {
        test_bytes copy = {0};
        test_bytes_add(&copy, whole.data, whole.size);
        uint32_t count = 1 + (uint32_t)test_random_below(&random, 3);
        for (uint32_t i = 0; i < count; i++) {
            /* Mostly behind the ordinary plan. */
            uint64_t at = copy.size / 2 + test_random_below(&random, copy.size / 2 - 6);
            copy.data[at] = (uint8_t)test_random_next(&random);
        }
        copy.size -= 6;
        test_pack_checksum(&copy);
        pleat_plan *damaged;
        if (pleat__plan_decode("file", copy.data, copy.size, &damaged) == PLEAT_OK) {
            read++;
            pleat__fraction xs[] = {{2, 1}, {7, 2}, {20, 1}};
            for (size_t i = 0; i < 3 && damaged->recipe != NULL; i++) {
                pleat_plan *instance;
                if (pleat__elastic_instance(damaged, xs[i], NULL, NULL, &instance) != PLEAT_OK)
                    continue;
                assert_ok(pleat_plan_verify(instance, NULL));
                pleat_plan_free(instance);
            }
            pleat_plan_free(damaged);
        }
        test_bytes_free(&copy);
    }
    assert_true(read > 0);
    test_bytes_free(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instances_hold_and_are_small),
        cmocka_unit_test(prologue_takes_places_again),
        cmocka_unit_test(lanes_reach_the_end_of_the_range),
        cmocka_unit_test(persistent_places_are_the_same_at_a_small_x),
        cmocka_unit_test(instance_has_the_sizes_of_a_trace_at_its_x),
        cmocka_unit_test(one_trace_of_several_x_makes_a_recipe),
        cmocka_unit_test(recipe_is_held_against_each_size_of_the_trace),
        cmocka_unit_test(batches_that_double_in_one_trace_make_a_recipe),
        cmocka_unit_test(trace_that_had_another_x_changes),
        cmocka_unit_test(elastic_chunks_are_at_home_below_the_views),
        cmocka_unit_test(elastic_what_stays_has_no_function),
        cmocka_unit_test(plan_laid_out_for_the_largest_needs_no_move),
        cmocka_unit_test(fit_is_the_largest_that_fits),
        cmocka_unit_test(x_out_of_range_is_refused),
        cmocka_unit_test(request_that_breaks_its_function_is_told),
        cmocka_unit_test(broken_request_becomes_dynamic),
        cmocka_unit_test(request_that_outlives_the_next_iteration_is_not_explained),
        cmocka_unit_test(trace_without_the_parameter_has_no_x),
        cmocka_unit_test(traces_of_different_jobs_are_refused),
        cmocka_unit_test(least_is_where_workspaces_stop_growing),
        cmocka_unit_test(recipe_is_read_back),
        cmocka_unit_test(recipe_of_what_may_have_any_size_is_refused),
        cmocka_unit_test(damaged_recipes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, test_folder_remove);
}
