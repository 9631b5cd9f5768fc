/*
 * handover.c: plans whose chunks pass from stream to stream, and frees that wait for other streams,
 * as the policy `pleat` follows them.
 */
#include "../../plan/jobs.h"
#include "fault.h"
#include "host.h"
#include "job.h"

#include <plan/base/plan.h>
#include <stdlib.h>

#define STREAMS 2u
#define TENSORS 9u
#define OTHER   99u /* a stream that allocates nothing */

typedef struct turns {
    pleat_trace *trace;
    pleat_plan *plan;
    job job;
    pleat_vmm host; /* under a fault decorator */
    bool faulty;
    job_tensor *live; /* by request */
    size_t at;        /* the next event */
} turns;

static void begin(turns *t, bool faulty)
{
    *t = (turns){.trace = test_job_of_turns(STREAMS, TENSORS, 5 * JOB_PAGE)};
    pleat_plan_options options = {.size = sizeof options, .chunk_bytes = JOB_PAGE};
    assert_ok(pleat_plan_make(t->trace, &options, &t->plan));
    assert_true(t->plan->handed_count > 0);
    t->live = calloc(pleat_trace_request_count(t->trace), sizeof *t->live);
    assert_non_null(t->live);
    job_start(&t->job, "pleat", t->plan, 0);
    t->host = t->job.vmm;
    t->faulty = faulty;
    if (!faulty)
        return;
    pleat_runtime_options runtime = {.size = sizeof runtime, .policy = "pleat", .plan = t->plan};
    pleat_runtime_destroy(t->job.runtime);
    assert_ok(pleat__fault_create(t->host, &t->job.vmm));
    assert_ok(pleat_runtime_create(t->job.vmm, &runtime, &t->job.runtime));
}

static void end(turns *t)
{
    assert_int_equal(t->job.errors, 0);
    job_stop(&t->job);
    if (t->faulty)
        pleat_vmm_destroy(&t->host);
    pleat_plan_free(t->plan);
    pleat_trace_free(t->trace);
    free(t->live);
}

/* Goes on to the next mark, or to a stream's next allocation, which is then the next event. */
static void run(turns *t, bool to_mark, pleat_stream until, pleat_stream used_by)
{
    const pleat_trace_event *events = pleat_trace_events(t->trace);
    for (; t->at < pleat_trace_event_count(t->trace); t->at++) {
        const pleat_trace_event *event = &events[t->at];
        pleat_stream stream = pleat_trace_stream(t->trace, event->stream);
        job_tensor *tensor = &t->live[event->request];
        if (!to_mark && event->kind == PLEAT_EVENT_ALLOC && stream == until)
            return;
        if (event->kind == PLEAT_EVENT_MARK)
            assert_ok(pleat_mark(t->job.runtime));
        if (event->kind == PLEAT_EVENT_MARK && to_mark) {
            t->at++;
            return;
        }
        if (event->kind == PLEAT_EVENT_ALLOC) {
            *tensor = job_alloc(&t->job, event->size, stream);
            if (used_by != 0 && stream != 0)
                assert_ok(pleat_record_stream(t->job.runtime, tensor->address, used_by));
        }
        if (event->kind == PLEAT_EVENT_FREE_REQUESTED)
            job_free(&t->job, tensor);
    }
}

static pleat_event point(turns *t, pleat_stream stream)
{
    pleat_event event;
    assert_ok(t->job.vmm.ops->event_create(t->job.vmm.self, 0, &event));
    assert_ok(t->job.vmm.ops->event_record(t->job.vmm.self, event, stream));
    return event;
}

static bool is_past(const turns *t, pleat_event event)
{
    return t->job.vmm.ops->event_query(t->job.vmm.self, event) == PLEAT_OK;
}

static void handover_serves_all_requests_in_the_plans_memory(void **state)
{
    (void)state;
    turns t;
    begin(&t, false);
    for (int i = 0; i < 5; i++)
        run(&t, true, 0, 0);
    pleat_stats stats = pleat_stats_of(t.job.runtime);
    assert_int_equal(stats.planned, stats.requests);
    assert_int_equal(stats.slot_busy, 0);
    assert_int_equal(stats.peak_physical_bytes, t.plan->physical_bytes);
    assert_true(stats.streams_ordered > 0);
    /* A request has one place: it waits for at most the other stream. */
    assert_true(stats.streams_ordered <= stats.requests);
    end(&t);
}

static void handover_is_behind_the_stream_that_had_the_memory(void **state)
{
    (void)state;
    turns t;
    begin(&t, false);
    run(&t, true, 0, 0);
    run(&t, true, 0, 0);
    run(&t, true, 0, 0);
    assert_ok(pleat__host_stream_hold(&t.job.vmm, 0));
    run(&t, false, 16, 0); /* all of stream 0's turn */
    pleat_event before = point(&t, 16);
    run(&t, true, 0, 0);
    pleat_event behind = point(&t, 16);
    assert_true(is_past(&t, before) && !is_past(&t, behind));
    assert_ok(pleat__host_stream_release(&t.job.vmm, 0));
    assert_true(is_past(&t, behind));
    assert_int_equal(pleat_stats_of(t.job.runtime).slot_busy, 0);
    assert_ok(t.job.vmm.ops->event_destroy(t.job.vmm.self, before));
    assert_ok(t.job.vmm.ops->event_destroy(t.job.vmm.self, behind));
    end(&t);
}

/* Every tensor of a stream that does not do most of the work is used by one that is far behind:
 * slots are free all the same. */
static void handover_of_what_waits_is_behind_its_events(void **state)
{
    (void)state;
    turns t;
    begin(&t, false);
    assert_ok(pleat__host_stream_hold(&t.job.vmm, OTHER));
    for (int i = 0; i < 4; i++)
        run(&t, true, 0, OTHER);
    pleat_event zero = point(&t, 0), one = point(&t, 16); /* 0 took over from 16 */
    run(&t, true, 0, 0);
    pleat_stats stats = pleat_stats_of(t.job.runtime);
    assert_int_equal(stats.planned, stats.requests);
    assert_int_equal(stats.peak_physical_bytes, t.plan->physical_bytes);
    assert_true(!is_past(&t, zero) && !is_past(&t, one));
    assert_ok(pleat__host_stream_release(&t.job.vmm, OTHER));
    assert_true(is_past(&t, zero) && is_past(&t, one));
    assert_ok(t.job.vmm.ops->event_destroy(t.job.vmm.self, zero));
    assert_ok(t.job.vmm.ops->event_destroy(t.job.vmm.self, one));
    end(&t);
}

/* Whichever call that puts streams in order is refused: the request goes elsewhere, and nothing is
 * shared that must not be. */
static void handover_that_cannot_be_ordered_goes_elsewhere(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_event_create, PLEAT__FAULT_event_record,
                                              PLEAT__FAULT_stream_wait};
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
        for (uint32_t nth = 1; nth < 40; nth++) {
            turns t;
            begin(&t, true);
            run(&t, true, 0, 0);
            run(&t, true, 0, 0); /* the plan has its memory */
            pleat_stats before = pleat_stats_of(t.job.runtime);
            pleat__fault_arm(&t.job.vmm, (pleat__fault_plan){.verb = verbs[v], .nth = nth});
            run(&t, true, 0, 0);
            uint64_t hits = pleat__fault_hits(&t.job.vmm);
            pleat__fault_arm(&t.job.vmm, (pleat__fault_plan){0});
            pleat_stats stats = pleat_stats_of(t.job.runtime);
            assert_int_equal(stats.out_of_memory, 0);
            assert_true(hits == 0 || stats.slot_busy > before.slot_busy);
            run(&t, true, 0, 0);
            end(&t);
            if (hits == 0)
                break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handover_serves_all_requests_in_the_plans_memory),
        cmocka_unit_test(handover_is_behind_the_stream_that_had_the_memory),
        cmocka_unit_test(handover_of_what_waits_is_behind_its_events),
        cmocka_unit_test(handover_that_cannot_be_ordered_goes_elsewhere),
    };
    return cmocka_run_group_tests_name("handover", tests, NULL, NULL);
}
