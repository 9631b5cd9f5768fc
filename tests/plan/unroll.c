/*
 * unroll.c: requests that live until their like is there in the next iteration have two places that
 * take turns.
 */
#include "test.h"

#include "files.h"
#include "jobs.h"

#include <plan/base/plan.h>
#include <string.h>
#include <unistd.h>

#define MIB       (1ull << 20)
#define LAYERS    10
#define LOGS_MOST 3
#define LOADED    200 /* layers' worth of requests of a model's load */

/* A loop as programs have it: the batch is moved to the device while its variable still holds the
 * one before. */
typedef struct loop {
    test_jobber j;
    uint64_t batch_bytes;
    uint16_t batch_stream;
    bool varies;   /* one request of each layer has another size in each iteration */
    bool loads;    /* weights are loaded in one type and kept in another, behind a mark */
    uint32_t logs; /* losses are kept, and freed once so many iterations; 0: there are none */
    uint32_t batch;
    uint32_t losses[LOGS_MOST];
    uint32_t gradients[LAYERS];
} loop;

static uint32_t take(loop *l, uint64_t bytes, uint16_t stream)
{
    test_job_add(&l->j, PLEAT_EVENT_ALLOC, l->j.next, bytes, stream);
    return l->j.next++;
}

static void load(loop *l)
{
    if (l->loads)
        test_job_add(&l->j, PLEAT_EVENT_MARK, 0, 0, 0);
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint32_t wide = take(l, 2 * (10 + i % 2) * MIB, 0);
        (void)take(l, (10 + i % 2) * MIB, 0);
        test_job_free(&l->j, wide);
    }
    for (uint32_t i = 0; l->loads && i < LOADED; i++) { /* as large as a layer's activations */
        uint32_t odd = take(l, 3 * MIB, 0);
        (void)take(l, (8 + i % 3) * MIB, 0);
        uint32_t wide = take(l, 30 * MIB, 0);
        test_job_free(&l->j, odd);
        test_job_free(&l->j, wide);
    }
}

static void iterate(loop *l, uint32_t number)
{
    uint32_t kept[LAYERS], batch = take(l, l->batch_bytes, l->batch_stream);
    if (number != 0)
        test_job_free(&l->j, l->batch);
    l->batch = batch;
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint32_t odd = take(l, (3 + (l->varies ? (number * 7 + i) % 5 : 0)) * MIB, 0);
        kept[i] = take(l, (8 + i % 3) * MIB, 0);
        uint32_t wide = take(l, 30 * MIB, 0);
        test_job_free(&l->j, odd);
        test_job_free(&l->j, wide);
    }
    if (l->logs != 0)
        l->losses[number % l->logs] = take(l, 4, 0);
    for (uint32_t i = 0; number != 0 && i < LAYERS; i++)
        test_job_free(&l->j, l->gradients[i]);
    for (uint32_t i = LAYERS; i-- > 0;) {
        l->gradients[i] = take(l, (10 + i % 2) * MIB, 0);
        test_job_free(&l->j, kept[i]);
    }
    for (uint32_t i = 0; number == 0 && i < LAYERS; i++)
        (void)take(l, (11 + i % 2) * MIB, 0); /* the optimizer's states */
    for (uint32_t i = 0; i < l->logs && (number + 1) % l->logs == 0; i++)
        test_job_free(&l->j, l->losses[i]);
    test_job_add(&l->j, PLEAT_EVENT_MARK, 0, 0, 0);
}

static loop loop_of(uint64_t batch_bytes)
{
    return (loop){.batch_bytes = batch_bytes};
}

static pleat_trace *run(loop *l, uint32_t iterations)
{
    uint16_t stream;
    assert_ok(pleat_trace_new(&l->j.trace));
    assert_ok(pleat_trace_add_stream(l->j.trace, 0, &stream));
    assert_ok(pleat_trace_add_stream(l->j.trace, 16, &stream));
    load(l);
    for (uint32_t i = 0; i < iterations; i++)
        iterate(l, i);
    return l->j.trace;
}

/* The plan, and the trace that it is of, which is proved. */
static pleat_plan *plan_of(loop *l, uint32_t iterations, const pleat_plan_options *options,
                           pleat_trace **trace)
{
    pleat_plan *plan;
    *trace = run(l, iterations);
    assert_ok(pleat_plan_make(*trace, options, &plan));
    assert_ok(pleat_plan_verify(plan, *trace));
    return plan;
}

static void end(pleat_plan *plan, pleat_trace *trace)
{
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

static uint32_t count_without_place(const pleat__sequence *sequence)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sequence->slot_count; i++)
        count += sequence->slots[i].place == PLEAT__NOWHERE;
    return count;
}

static void unroll_gives_what_waits_for_its_like_two_places(void **state)
{
    (void)state;
    loop l = loop_of(40 * MIB);
    pleat_trace *trace;
    pleat_plan *plan = plan_of(&l, 6, NULL, &trace);
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    assert_int_equal(plan->unroll, 2);
    assert_int_equal(summary.iteration_requests, 1 + 4 * LAYERS);
    assert_int_equal(summary.dynamic_requests, 0);
    assert_int_equal(count_without_place(&plan->steady), 0);
    assert_int_equal(count_without_place(&plan->first), 0);
    /* Two batches live when the second is there, and at the peak one: nothing is taken for both. */
    assert_true(plan->physical_bytes <= plan->max_live_bytes + 2 * plan->chunk_bytes);
    /* What is freed in the next iteration crosses in both. */
    uint32_t crossing[2] = {0};
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        crossing[i / (uint32_t)summary.iteration_requests] +=
            plan->steady.slots[i].class == PLEAT__CLASS_CROSSING;
    assert_int_equal(crossing[0], 1 + LAYERS);
    assert_int_equal(crossing[1], 1 + LAYERS);
    const pleat__slot *one = &plan->steady.slots[0];
    const pleat__slot *other = &plan->steady.slots[summary.iteration_requests];
    assert_int_equal(one->size, 40 * MIB);
    assert_int_equal(other->size, 40 * MIB);
    assert_true(one->place + 40 * MIB <= other->place || other->place + 40 * MIB <= one->place);
    end(plan, trace);
}

/* What is kept until a logging step has no slot, whichever iteration is the steady one: in one of
 * its shortest life it would be in the way of what lies there next. Two that take turns may be
 * enough for one that goes in the next iteration. */
static void unroll_longest_life_counts(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 8; round++) {
        loop l = loop_of(round & 1 ? 512 : 64 * MIB);
        pleat_trace *trace;
        l.logs = round & 2 ? 2 : LOGS_MOST;
        pleat_plan *plan = plan_of(&l, 8 + round / 4, NULL, &trace);
        uint32_t losses = 0;
        bool takes_turns = plan->unroll == 2 && l.logs == 2;
        for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
            const pleat__slot *slot = &plan->steady.slots[i];
            losses += slot->size == 4;
            assert_true(slot->size != 4 || slot->place == PLEAT__NOWHERE || takes_turns);
        }
        assert_int_equal(losses, plan->unroll);
        assert_int_equal(plan->unroll, round & 1 ? 1 : 2);
        end(plan, trace);
    }
}

/* It shares a chunk beside the plan, which has half as many slots so. */
static void unroll_is_not_for_what_is_small(void **state)
{
    (void)state;
    loop l = loop_of(2 * MIB);
    pleat_trace *trace;
    pleat_plan *plan = plan_of(&l, 6, NULL, &trace);
    assert_int_equal(plan->unroll, 1);
    assert_int_equal(pleat_plan_summary_of(plan).dynamic_requests, 1);
    assert_int_equal(count_without_place(&plan->steady), 1);
    end(plan, trace);
}

/* Two iterations are enough, since both of the plan's are the recorded one. */
static void unroll_needs_no_more_iterations_than_a_plan_does(void **state)
{
    (void)state;
    for (uint32_t iterations = 3; iterations < 8; iterations++) {
        loop l = loop_of(40 * MIB);
        pleat_trace *trace;
        pleat_plan *plan = plan_of(&l, iterations, NULL, &trace);
        assert_int_equal(plan->unroll, 2);
        assert_int_equal(pleat_plan_summary_of(plan).dynamic_requests, 0);
        end(plan, trace);
    }
}

static void unroll_has_lanes_in_both_iterations(void **state)
{
    (void)state;
    loop l = loop_of(40 * MIB);
    l.varies = true;
    pleat_trace *trace;
    pleat_plan_options options = {.size = sizeof options, .no_recipe = 1};
    pleat_plan *plan = plan_of(&l, 8, &options, &trace);
    assert_int_equal(plan->unroll, 2);
    uint64_t dynamic = pleat_plan_summary_of(plan).dynamic_requests;
    assert_true(dynamic >= LAYERS);
    uint32_t slots = pleat__iteration_slots(plan), events = pleat__iteration_events(plan);
    uint32_t lanes[2] = {0};
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class != PLEAT__CLASS_DYNAMIC || slot->lane == PLEAT__NO_LANE)
            continue;
        lanes[i / slots]++;
        const pleat__lane *lane = &plan->lanes[slot->lane];
        assert_true(i >= slots || lane->begin_at < events);
    }
    assert_int_equal(lanes[0], dynamic);
    assert_int_equal(lanes[1], dynamic);
    end(plan, trace);
}

static void unroll_holds_where_streams_take_turns(void **state)
{
    (void)state;
    loop l = loop_of(40 * MIB);
    l.batch_stream = 1;
    pleat_trace *trace;
    pleat_plan *plan = plan_of(&l, 6, NULL, &trace);
    assert_int_equal(plan->unroll, 2);
    assert_int_equal(count_without_place(&plan->steady), 0);
    end(plan, trace);
}

/* STWeaver's plan is of one iteration, as its paper has it. */
static void unroll_is_not_for_stweaver(void **state)
{
    (void)state;
    loop l = loop_of(40 * MIB);
    pleat_trace *trace;
    pleat_plan_options options = {.size = sizeof options, .algorithm = "stweaver", .no_fold = 1};
    pleat_plan *plan = plan_of(&l, 6, &options, &trace);
    assert_int_equal(plan->unroll, 1);
    end(plan, trace);
}

/* A program that says where iterations begin says so before its model is loaded, too: what comes
 * first is a load and an iteration, and the load's requests are like a layer's. */
static void unroll_first_iteration_is_found_behind_the_load(void **state)
{
    (void)state;
    loop l = loop_of(40 * MIB);
    l.loads = true;
    pleat_trace *trace;
    pleat_plan *plan = plan_of(&l, 6, NULL, &trace);
    assert_int_equal(plan->unroll, 2);
    assert_int_equal(plan->first.slot_count, 2 * LAYERS + 3 * LOADED + 1 + 5 * LAYERS);
    assert_int_equal(count_without_place(&plan->first), 0);
    end(plan, trace);
}

static void unroll_is_in_the_file(void **state)
{
    (void)state;
    loop l = loop_of(40 * MIB);
    pleat_trace *trace;
    pleat_plan *plan = plan_of(&l, 6, NULL, &trace), *again;
    const char *path = test_path("unroll.plan");
    for (int answers = 0; answers < 2; answers++) {
        plan->answers_only = answers != 0;
        assert_ok(pleat_plan_write(plan, path));
        assert_ok(pleat_plan_read(path, &again));
        assert_int_equal(again->unroll, 2);
        assert_int_equal(again->answers_only, answers);
        assert_int_equal(again->steady.slot_count, plan->steady.slot_count);
        assert_ok(pleat_plan_verify(again, trace));
        pleat_plan_free(again);
        assert_int_equal(unlink(path), 0);
    }
    end(plan, trace);
}

static void assert_refused(pleat_plan *plan, const char *text)
{
    assert_int_equal(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    if (strstr(pleat_last_error()->text, text) == NULL)
        fail_msg("'%s' in place of '%s'", pleat_last_error()->text, text);
}

static void unroll_of_unlike_iterations_is_refused(void **state)
{
    (void)state;
    loop l = loop_of(40 * MIB);
    pleat_trace *trace;
    pleat_plan *plan = plan_of(&l, 6, NULL, &trace);
    pleat__sequence *steady = &plan->steady;
    uint32_t slots = pleat__iteration_slots(plan);
    pleat__slot *slot = &steady->slots[slots + 3];
    const pleat__slot was = *slot;
    slot->size -= 512;
    assert_refused(plan, "is another than");
    *slot = was;
    slot->stream = 1;
    assert_refused(plan, "is another than");
    *slot = was;
    slot->class = PLEAT__CLASS_DYNAMIC;
    slot->place = PLEAT__NOWHERE;
    assert_refused(plan, "is another than");
    *slot = was;
    steady->slots[slots].alloc_at--;
    assert_refused(plan, "is another than");
    steady->slots[slots].alloc_at++;
    steady->slot_count--;
    assert_refused(plan, "of 2 iterations");
    steady->slot_count++;
    steady->events++;
    assert_refused(plan, "of 2 iterations");
    steady->events--;
    plan->reusable_count = 1;
    assert_refused(plan, "of 2 iterations");
    plan->reusable_count = 0;
    assert_ok(pleat_plan_verify(plan, trace));
    /* What a slot of either iteration says is held against the recorded one. */
    for (uint32_t i = 3; i < 2 * slots; i += slots) {
        steady->slots[i].free_at--;
        assert_int_equal(pleat_plan_verify(plan, trace), PLEAT_E_VERIFY);
        steady->slots[i].free_at++;
    }
    end(plan, trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unroll_gives_what_waits_for_its_like_two_places),
        cmocka_unit_test(unroll_longest_life_counts),
        cmocka_unit_test(unroll_is_not_for_what_is_small),
        cmocka_unit_test(unroll_needs_no_more_iterations_than_a_plan_does),
        cmocka_unit_test(unroll_has_lanes_in_both_iterations),
        cmocka_unit_test(unroll_holds_where_streams_take_turns),
        cmocka_unit_test(unroll_is_not_for_stweaver),
        cmocka_unit_test(unroll_first_iteration_is_found_behind_the_load),
        cmocka_unit_test(unroll_is_in_the_file),
        cmocka_unit_test(unroll_of_unlike_iterations_is_refused),
    };
    return cmocka_run_group_tests_name("unroll", tests, NULL, test_folder_remove);
}
