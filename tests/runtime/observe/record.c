/*
 * record.c: a running job recorded and planned, being told of completed frees, and memory shared
 * with other runtimes, which stand for other processes, and other devices.
 */
#include "host.h"
#include "job.h"

#include <internal/arena.h>
#include <pleat/trace.h>
#include <pthread.h>
#include <runtime/observe/trace_writer.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* A job that is recorded for `iterations` of its marks; the recording. */
static pleat_trace *record_job(const job_shape *shape, uint32_t iterations)
{
    job j;
    pleat_trace *trace;
    pleat_record_options options = {.size = sizeof options, .iterations = iterations};
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, &options));
    job_tensor weights = job_alloc(&j, 3000000, 0);
    for (uint32_t i = 0; i < iterations + 2; i++) {
        job_iterate(&j, shape, JOB_PLAIN, 0);
        assert_int_equal(pleat_record_complete(j.runtime), i >= iterations);
        assert_ok(pleat_mark(j.runtime));
    }
    assert_ok(pleat_record_copy(j.runtime, &trace));
    job_drain(&j);
    job_free(&j, &weights);
    job_stop(&j);
    return trace;
}

static void record_gives_a_plan_for_the_next_run(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(5, 2);
    pleat_trace *trace = record_job(&shape, 4);
    pleat_plan_options options = {.size = sizeof options, .chunk_bytes = JOB_PAGE};
    pleat_plan *plan;
    job j;
    assert_ok(pleat_plan_make(trace, &options, &plan));
    assert_ok(pleat_plan_verify(plan, trace));
    job_start(&j, "pleat", plan, 0);
    job_tensor weights = job_alloc(&j, 3000000, 0);
    for (int i = 0; i < 5; i++) {
        job_iterate(&j, &shape, JOB_PLAIN, 0);
        assert_ok(pleat_mark(j.runtime));
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    /* Also those of the iteration before the first mark. */
    assert_int_equal(stats.planned, stats.requests);
    assert_true((double)stats.peak_live_bytes >= 0.99 * (double)stats.peak_physical_bytes);
    job_drain(&j);
    job_free(&j, &weights);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

/* Iterations after which a recording of at most `most` is enough for a plan. */
static uint32_t enough_after(bool varies, uint32_t most)
{
    job_shape shape = job_shape_make(5, 1);
    pleat_record_options options = {.size = sizeof options, .iterations = most};
    uint32_t iterations = 0;
    job j;
    job_start(&j, "pleat", NULL, 0);
    assert_false(pleat_record_enough(j.runtime));
    assert_ok(pleat_record_begin(j.runtime, &options));
    for (; !pleat_record_enough(j.runtime); iterations++) {
        shape.bytes[7] += varies ? 512 : 0;
        job_iterate(&j, &shape, JOB_PLAIN, 0);
        assert_ok(pleat_mark(j.runtime));
    }
    job_drain(&j);
    job_stop(&j);
    return iterations;
}

static void record_of_a_steady_job_is_enough_sooner(void **state)
{
    (void)state;
    assert_int_equal(enough_after(false, 32), 8);
    assert_int_equal(enough_after(true, 32), 32);
    assert_int_equal(enough_after(false, 3), 3);
}

/* Every request once, its frees behind it, in the order of the calls. */
static void record_has_what_happened(void **state)
{
    (void)state;
    job j;
    pleat_trace *trace;
    pleat_va a, b;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_alloc(j.runtime, 700, 3, &a)); /* before recording: its free is left out */
    assert_ok(pleat_record_begin(j.runtime, NULL));
    assert_result(pleat_record_begin(j.runtime, NULL), PLEAT_E_STATE);
    assert_ok(pleat_mark(j.runtime));
    assert_ok(pleat_free(j.runtime, a));
    assert_ok(pleat_alloc(j.runtime, 1000, 3, &a));
    assert_ok(pleat_phase(j.runtime, "experts"));
    assert_ok(pleat_alloc(j.runtime, 2000, 5, &b));
    assert_ok(pleat_phase(j.runtime, ""));
    assert_ok(pleat_mark(j.runtime));
    assert_ok(pleat_free(j.runtime, a));
    assert_result(pleat_free(j.runtime, a), PLEAT_E_NOT_FOUND);
    assert_ok(pleat__host_stream_hold(&j.vmm, 9));
    assert_ok(pleat_record_stream(j.runtime, b, 9));
    assert_ok(pleat_free(j.runtime, b));
    assert_ok(pleat_alloc(j.runtime, 4000, 3, &a));
    assert_ok(pleat__host_stream_release(&j.vmm, 9));
    assert_ok(pleat_empty_cache(j.runtime));
    assert_ok(pleat_record_copy(j.runtime, &trace));
    static const struct {
        pleat_event_kind kind;
        uint32_t request;
        uint64_t size, stream;
        const char *label;
    } wanted[] = {
        {PLEAT_EVENT_ALLOC, 0, 1000, 3, ""},
        {PLEAT_EVENT_ALLOC, 1, 2000, 5, "phase=experts"},
        {PLEAT_EVENT_MARK, 0, 0, 3, "phase=-"},
        {PLEAT_EVENT_FREE_REQUESTED, 0, 1000, 3, "phase=-"},
        {PLEAT_EVENT_FREE_COMPLETED, 0, 1000, 3, "phase=-"},
        {PLEAT_EVENT_FREE_REQUESTED, 1, 2000, 5, "phase=-"},
        {PLEAT_EVENT_ALLOC, 2, 4000, 3, "phase=-"},
        {PLEAT_EVENT_FREE_COMPLETED, 1, 2000, 5, "phase=-"},
    };
    const pleat_trace_event *events = pleat_trace_events(trace);
    assert_int_equal(pleat_trace_event_count(trace), sizeof wanted / sizeof *wanted);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        assert_int_equal(events[i].kind, wanted[i].kind);
        assert_int_equal(events[i].request, wanted[i].request);
        assert_int_equal(events[i].size, wanted[i].size);
        assert_int_equal(pleat_trace_stream(trace, events[i].stream), wanted[i].stream);
        assert_string_equal(pleat_trace_label(trace, events[i].label), wanted[i].label);
    }
    pleat_trace_free(trace);
    pleat_record_end(j.runtime);
    assert_result(pleat_record_copy(j.runtime, &trace), PLEAT_E_STATE);
    job_stop(&j);
}

static void record_ends_at_its_most_events(void **state)
{
    (void)state;
    job j;
    pleat_trace *trace;
    pleat_va address;
    pleat_record_options options = {.size = sizeof options, .events = 5};
    job_start(&j, "native", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, &options));
    for (int i = 0; i < 4; i++) {
        assert_ok(pleat_alloc(j.runtime, 512, 0, &address));
        assert_ok(pleat_free(j.runtime, address));
    }
    assert_true(pleat_record_complete(j.runtime));
    assert_ok(pleat_record_copy(j.runtime, &trace));
    assert_int_equal(pleat_trace_event_count(trace), 5);
    pleat_trace_free(trace);
    job_stop(&j);
}

/* A name that is long, or no UTF-8, is recorded as far as a label may have it. */
static void record_takes_any_name_of_a_phase(void **state)
{
    (void)state;
    static const char three[] = "\xe5\xb1\xa4"; /* one character */
    char longest[300] = "", wanted[300] = "phase=";
    job j;
    pleat_trace *trace;
    pleat_va address;
    for (int i = 0; i < 90; i++)
        strcat(longest, three);
    for (int i = 0; i < 250 / 3; i++)
        strcat(wanted, three);
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    const char *const names[] = {longest, "a\xffz", "a;iter=7", "-", "", "--"};
    const char *const labels[] = {wanted,    "phase=a?z", "phase=a?iter=7",
                                  "phase=?", "phase=-",   "phase=--"};
    for (int n = 0; n < 6; n++) {
        assert_ok(pleat_phase(j.runtime, names[n]));
        assert_ok(pleat_alloc(j.runtime, 512, 0, &address));
    }
    assert_ok(pleat_record_copy(j.runtime, &trace));
    for (int n = 0; n < 6; n++) {
        uint32_t label = pleat_trace_events(trace)[n].label;
        assert_string_equal(pleat_trace_label(trace, label), labels[n]);
    }
    pleat_trace_free(trace);
    job_stop(&j);
}

static void record_says_why_it_ended(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__record record = {0};
    pleat__gate gate;
    pleat_trace *trace;
    const pleat_record_options none = {0};
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__gate_init(&gate, (pleat_vmm){0}, 0, arena));
    assert_result(pleat__record_begin(&record, arena, 0, 0, &none), PLEAT_E_ABI);
    assert_ok(pleat__record_begin(&record, arena, 0, 0, NULL));
    for (pleat_stream s = 0; s <= 65536; s++) {
        assert_false(record.complete);
        pleat__record_alloc(&record, 512 * (s + 1), 512, s);
    }
    assert_true(record.complete);
    assert_result(pleat__record_copy(&record, &gate, &trace), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "at most 65,536 streams"));
    pleat__record_release(&record);
    pleat__gate_release(&gate);
    pleat__arena_destroy(arena);
}

/* A thread of the program's beside the one that copies. */
typedef struct beside {
    pleat_runtime *runtime;
    atomic_bool ending;
    atomic_uint turns;
} beside;

static void *allocate_beside(void *context)
{
    beside *b = context;
    pleat_va address;
    while (!b->ending) {
        assert_ok(pleat_alloc(b->runtime, 4096, 0, &address));
        assert_ok(pleat_free(b->runtime, address));
        b->turns++;
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return NULL;
}

/* A million events take 100 ms to copy, and the other thread makes a request every 0.1 ms. */
static void record_is_copied_while_others_allocate(void **state)
{
    (void)state;
    job j;
    pleat_trace *trace;
    pleat_va address;
    pthread_t other;
    pleat_record_options options = {.size = sizeof options, .events = 1000000};
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, &options));
    while (!pleat_record_complete(j.runtime)) {
        assert_ok(pleat_alloc(j.runtime, 512, 0, &address));
        assert_ok(pleat_free(j.runtime, address));
    }
    beside b = {.runtime = j.runtime};
    assert_int_equal(pthread_create(&other, NULL, allocate_beside, &b), 0);
    while (b.turns == 0)
        sched_yield();
    unsigned before = b.turns;
    assert_ok(pleat_record_copy(j.runtime, &trace));
    unsigned turns = b.turns - before;
    b.ending = true;
    pthread_join(other, NULL);
    assert_true(turns >= 20);
    assert_int_equal(pleat_trace_event_count(trace), 1000000);
    pleat_trace_free(trace);
    job_stop(&j);
}

static void *begin_anew_beside(void *context)
{
    beside *b = context;
    pleat_va address;
    while (!b->ending) {
        pleat_record_end(b->runtime);
        assert_ok(pleat_record_begin(b->runtime, NULL));
        for (unsigned i = 0; i < 2000; i++) {
            assert_ok(pleat_alloc(b->runtime, 4096, 0, &address));
            assert_ok(pleat_free(b->runtime, address));
        }
        b->turns++;
    }
    return NULL;
}

/* A copy is of one recording, or there is none. */
static void record_that_is_begun_anew_is_not_copied_in_part(void **state)
{
    (void)state;
    job j;
    pleat_trace *trace;
    pthread_t other;
    unsigned whole = 0, given_up = 0;
    job_start(&j, "pleat", NULL, 0);
    beside b = {.runtime = j.runtime};
    assert_int_equal(pthread_create(&other, NULL, begin_anew_beside, &b), 0);
    while (b.turns < 100) {
        pleat_result result = pleat_record_copy(j.runtime, &trace);
        assert_true(result == PLEAT_OK || result == PLEAT_E_STATE);
        whole += result == PLEAT_OK;
        given_up += result == PLEAT_E_STATE;
        if (result == PLEAT_OK)
            pleat_trace_free(trace);
    }
    b.ending = true;
    pthread_join(other, NULL);
    assert_true(whole > 0 && given_up > 0);
    job_stop(&j);
}

typedef struct heard {
    pleat_va last;
    int times;
} heard;

static void hear(void *context, pleat_va address)
{
    heard *h = context;
    h->last = address;
    h->times++;
}

static void freed_is_told_when_memory_may_be_used_again(void **state)
{
    (void)state;
    job j;
    heard h = {0};
    pleat_va a, b, c;
    job_start(&j, "pleat", NULL, 0);
    pleat_on_freed(j.runtime, hear, &h);
    assert_ok(pleat_alloc(j.runtime, 1000, 0, &a));
    assert_ok(pleat_alloc(j.runtime, 1000, 0, &b));
    assert_ok(pleat_free(j.runtime, a));
    assert_int_equal(h.times, 1);
    assert_int_equal(h.last, a);
    assert_result(pleat_free(j.runtime, a), PLEAT_E_NOT_FOUND);
    assert_int_equal(h.times, 1);
    assert_ok(pleat__host_stream_hold(&j.vmm, 7));
    assert_ok(pleat_record_stream(j.runtime, b, 7));
    assert_ok(pleat_free(j.runtime, b));
    assert_int_equal(h.times, 1);
    assert_ok(pleat__host_stream_release(&j.vmm, 7));
    assert_ok(pleat_alloc(j.runtime, 1000, 0, &c));
    assert_int_equal(h.times, 2);
    assert_int_equal(h.last, b);
    pleat_on_freed(j.runtime, NULL, NULL);
    assert_ok(pleat_free(j.runtime, c));
    assert_int_equal(h.times, 2);
    job_stop(&j);
}

/* ---- sharing ---- */

static void import_all(job *from, pleat_va address, pleat_runtime *to, pleat_va *at)
{
    pleat_share share;
    assert_ok(pleat_share_of(from->runtime, address, &share));
    assert_ok(pleat_import_begin(to, share.bytes, at));
    for (uint32_t i = 0; i < share.pieces; i++) {
        int fd;
        uint64_t bytes;
        assert_ok(pleat_share_piece(from->runtime, address, i, &fd, &bytes));
        assert_ok(pleat_import_piece(to, *at, fd, bytes));
        assert_int_equal(close(fd), 0);
    }
    int fd;
    uint64_t bytes;
    assert_ok(pleat_share_piece(from->runtime, address, 0, &fd, &bytes));
    assert_result(pleat_import_piece(to, *at, fd, bytes), PLEAT_E_INVALID);
    assert_non_null(strstr(pleat_last_error()->text, "has no room"));
    assert_int_equal(close(fd), 0);
    *at += share.offset;
}

static uint64_t handles_of(const job *j)
{
    pleat__host_holdings held;
    assert_ok(pleat__host_holdings_of(&j->vmm, &held));
    return held.handles;
}

static void share_shows_the_same_bytes_elsewhere(void **state)
{
    (void)state;
    job j;
    pleat_runtime *other;
    pleat_runtime_options options = {.size = sizeof options, .conf = "share:on"};
    pleat_va at;
    pleat_share share;
    job_start_with(&j, "pleat", NULL, 0, "share:on");
    assert_ok(pleat_runtime_create(j.vmm, &options, &other));
    job_tensor before = job_alloc(&j, 5000, 0), small = job_alloc(&j, 5000, 0),
               tensor = job_alloc(&j, 5 * JOB_PAGE + 700, 0);
    uint64_t handles = handles_of(&j);
    import_all(&j, tensor.address, other, &at);
    const volatile uint64_t *seen = (const volatile uint64_t *)(uintptr_t)at;
    for (uint64_t g = 0; g * 512 + 8 <= tensor.bytes; g++)
        assert_int_equal(seen[g * 64], tensor.pattern + g);
    *job_word(&tensor, 11) = 4711;
    assert_int_equal(seen[11 * 64], 4711);
    *job_word(&tensor, 11) = tensor.pattern + 11;
    assert_ok(pleat_share_of(j.runtime, tensor.address, &share));
    assert_int_equal(pleat_stats_of(other).physical_bytes, 0);
    assert_result(pleat_import_end(other, at - share.offset + JOB_PAGE), PLEAT_E_NOT_FOUND);
    assert_ok(pleat_import_end(other, at - share.offset));
    assert_int_equal(pleat_stats_of(other).virtual_bytes, 0);
    assert_int_equal(handles_of(&j), handles);
    /* Of one that begins within a piece, the bytes are its own, not its neighbour's. */
    import_all(&j, small.address, other, &at);
    assert_ok(pleat_share_of(j.runtime, small.address, &share));
    assert_int_not_equal(share.offset, 0);
    assert_int_equal(*(const volatile uint64_t *)(uintptr_t)at, small.pattern);
    assert_ok(pleat_import_end(other, at - share.offset));
    /* Left begun: it goes with its runtime. */
    import_all(&j, tensor.address, other, &at);
    pleat_runtime_destroy(other);
    job_free(&j, &before);
    job_free(&j, &small);
    job_free(&j, &tensor);
    assert_int_equal(j.errors, 0);
    assert_result(pleat_share_of(j.runtime, at, &share), PLEAT_E_NOT_FOUND);
    job_stop(&j);
}

static void share_must_be_asked_for(void **state)
{
    (void)state;
    job j;
    pleat_share share;
    pleat_va address;
    job_start(&j, "pleat", NULL, 0);
    job_tensor tensor = job_alloc(&j, 1000, 0);
    assert_result(pleat_share_of(j.runtime, tensor.address, &share), PLEAT_E_UNSUPPORTED);
    assert_non_null(strstr(pleat_last_error()->text, "share:on"));
    assert_result(pleat_import_begin(j.runtime, JOB_PAGE + 1, &address), PLEAT_E_INVALID);
    assert_result(pleat_import_end(j.runtime, 4096), PLEAT_E_NOT_FOUND);
    job_free(&j, &tensor);
    job_stop(&j);
}

static void peers_are_added_once(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pleat_host_options host = {
        .size = sizeof host, .devices = 2, .device_bytes = 1ull << 30, .granularity = JOB_PAGE};
    pleat_va a, b;
    assert_ok(pleat_vmm_host(&host, &vmm));
    assert_ok(pleat_runtime_create(vmm, NULL, &runtime));
    /* Also before there is memory: or all that is asked for later would be refused. */
    assert_result(pleat_add_peer(runtime, 2), PLEAT_E_NO_DEVICE);
    assert_int_equal(pleat_stats_of(runtime).physical_bytes, 0);
    assert_ok(pleat_alloc(runtime, 1000, 0, &a));
    uint64_t calls = pleat_stats_of(runtime).driver_calls;
    assert_ok(pleat_add_peer(runtime, 1));
    assert_int_equal(pleat_stats_of(runtime).driver_calls, calls + 1);
    assert_ok(pleat_add_peer(runtime, 1));
    assert_ok(pleat_add_peer(runtime, 0));
    assert_int_equal(pleat_stats_of(runtime).driver_calls, calls + 1);
    assert_int_not_equal(pleat_add_peer(runtime, 5), PLEAT_OK);
    assert_ok(pleat_alloc(runtime, 10 * JOB_PAGE, 0, &b));
    assert_ok(pleat_free(runtime, a));
    assert_ok(pleat_free(runtime, b));
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(record_gives_a_plan_for_the_next_run),
        cmocka_unit_test(record_of_a_steady_job_is_enough_sooner),
        cmocka_unit_test(record_has_what_happened),
        cmocka_unit_test(record_ends_at_its_most_events),
        cmocka_unit_test(record_takes_any_name_of_a_phase),
        cmocka_unit_test(record_says_why_it_ended),
        cmocka_unit_test(record_is_copied_while_others_allocate),
        cmocka_unit_test(record_that_is_begun_anew_is_not_copied_in_part),
        cmocka_unit_test(freed_is_told_when_memory_may_be_used_again),
        cmocka_unit_test(share_shows_the_same_bytes_elsewhere),
        cmocka_unit_test(share_must_be_asked_for),
        cmocka_unit_test(peers_are_added_once),
    };
    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
