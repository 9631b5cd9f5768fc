/*
 * events.c: memory that streams still use is neither unmapped nor reused but behind their work,
 * over the host backend, whose events are driven by hand. Every policy goes through the same tests.
 */
#include "fixture.h"

#include <runtime/face/runtime_internal.h>
#include <runtime/memory/views.h>
#include <runtime/policy/pleat_internal.h>
#include <stdatomic.h>
#include <time.h>

/* A point of a stream now. The caller's to destroy. */
static pleat_event point(fixture *f, pleat_stream stream)
{
    pleat_event event;
    assert_ok(f->vmm.ops->event_create(f->vmm.self, 0, &event));
    assert_ok(f->vmm.ops->event_record(f->vmm.self, event, stream));
    return event;
}

static bool is_past(const fixture *f, pleat_event event)
{
    return f->vmm.ops->event_query(f->vmm.self, event) == PLEAT_OK;
}

/* A policy that waits for the events of what it frees; `pleat` has its streams wait instead. */
static bool orders(const char *policy)
{
    return strcmp(policy, "pleat") == 0;
}

static void streams_delay_a_free_until_their_events(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        if (orders(policies[i]))
            continue;
        begin(&f, policies[i], 1024 * MIB, 0);
        assert_ok(pleat__host_stream_hold(&f.vmm, 5));
        assert_ok(pleat__host_stream_hold(&f.vmm, 6));
        pleat_va a = take(&f, 30 * MIB, 1);
        assert_ok(pleat_record_stream(f.runtime, a, 1)); /* its own: nothing to wait for */
        assert_ok(pleat_record_stream(f.runtime, a, 5));
        assert_ok(pleat_record_stream(f.runtime, a + MIB, 6));
        assert_ok(pleat_record_stream(f.runtime, a, 5));
        assert_result(pleat_record_stream(f.runtime, 4096, 5), PLEAT_E_NOT_FOUND);
        assert_ok(pleat_free(f.runtime, a));
        assert_result(pleat_free(f.runtime, a), PLEAT_E_STATE);
        assert_result(pleat_record_stream(f.runtime, a, 5), PLEAT_E_STATE);
        assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 0);
        pleat_va b = take(&f, 30 * MIB, 1);
        assert_int_not_equal(a, b);
        assert_ok(pleat__host_stream_advance(&f.vmm, 5, 1));
        pleat_va c = take(&f, 30 * MIB, 1);
        assert_int_not_equal(a, c);
        assert_ok(pleat__host_stream_advance(&f.vmm, 6, 1));
        assert_int_equal(take(&f, 30 * MIB, 1), a);
        /* Not recorded any more: its next free waits for nobody. */
        assert_ok(pleat_free(f.runtime, a));
        assert_int_equal(take(&f, 30 * MIB, 1), a);
        assert_ok(pleat__host_stream_release(&f.vmm, 5));
        assert_ok(pleat__host_stream_release(&f.vmm, 6));
        end(&f);
    }
}

/* The stream that does most of a job's work. */
static void work_on(fixture *f, pleat_stream stream)
{
    for (int i = 0; i < 20; i++)
        assert_ok(pleat_free(f->runtime, take(f, 512, stream)));
}

/* What waits for other streams goes to the next request of its own behind them, before there is new
 * memory; another stream's request does not get it. */
static void streams_take_over_what_waits_behind_its_events(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    work_on(&f, 0);
    assert_ok(pleat__host_stream_hold(&f.vmm, 5));
    assert_ok(pleat__host_stream_hold(&f.vmm, 6));
    pleat_va a = take(&f, 30 * MIB - 1, 1), b = take(&f, 20 * MIB, 1);
    assert_ok(pleat_record_stream(f.runtime, a, 5));
    assert_ok(pleat_record_stream(f.runtime, a, 6));
    assert_ok(pleat_record_stream(f.runtime, b, 6));
    assert_ok(pleat_free(f.runtime, a));
    assert_ok(pleat_free(f.runtime, b));
    assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 0);
    assert_int_equal(pleat_stats_of(f.runtime).requested_bytes, 0);
    assert_int_equal(pleat_stats_of(f.runtime).waiting_blocks, 2);
    assert_int_equal(pleat_stats_of(f.runtime).waiting_bytes, 50 * MIB);
    pleat_va other = take(&f, 30 * MIB, 2);
    assert_true(other + 30 * MIB <= a || a + 30 * MIB <= other);
    pleat_event before = point(&f, 1);
    assert_int_equal(take(&f, 30 * MIB, 1), a);
    pleat_event behind = point(&f, 1);
    pleat_stats stats = pleat_stats_of(f.runtime);
    assert_int_equal(stats.streams_ordered, 2); /* not for b, which nobody wants */
    assert_int_equal(stats.live_bytes, 60 * MIB);
    assert_int_equal(stats.requested_bytes, 60 * MIB);
    assert_int_equal(stats.waiting_blocks, 1);
    assert_int_equal(stats.waiting_bytes, 20 * MIB);
    assert_int_equal(stats.peak_live_bytes, 60 * MIB);
    assert_int_equal(stats.physical_bytes, 82 * MIB);
    assert_true(is_past(&f, before) && !is_past(&f, behind));
    assert_ok(pleat__host_stream_advance(&f.vmm, 5, 1));
    assert_true(!is_past(&f, behind));
    assert_ok(pleat__host_stream_advance(&f.vmm, 6, 1));
    assert_true(is_past(&f, behind));
    /* Its use is over: the next free waits for nobody. */
    assert_ok(pleat_free(f.runtime, a));
    assert_int_equal(take(&f, 30 * MIB, 1), a);
    assert_int_equal(pleat_stats_of(f.runtime).streams_ordered, 2);
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, before));
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, behind));
    assert_ok(pleat__host_stream_release(&f.vmm, 5));
    assert_ok(pleat__host_stream_release(&f.vmm, 6));
    end(&f);
}

/* The stream that does the work goes on while what it made is copied away, however that is asked
 * for.
 */
static void streams_that_work_are_not_made_to_wait(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    work_on(&f, 1);
    assert_ok(pleat__host_stream_hold(&f.vmm, 5));
    for (int i = 0; i < 4; i++) {
        pleat_va a = take(&f, 30 * MIB, 1);
        assert_ok(pleat_record_stream(f.runtime, a, 5));
        assert_ok(pleat_free(f.runtime, a));
    }
    pleat_event behind = point(&f, 1);
    assert_true(is_past(&f, behind));
    assert_int_equal(pleat_stats_of(f.runtime).streams_ordered, 0);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 120 * MIB);
    assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 0);
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, behind));
    assert_ok(pleat__host_stream_release(&f.vmm, 5));
    end(&f);
}

/* A tensor of a stream that gathers for the stream 0 and is 64 MiB ahead of it; freed, and waited
 * for. */
static pleat_va gather(fixture *f)
{
    work_on(f, 0);
    take(f, 512, 0); /* so that its chunk stays in use */
    assert_ok(pleat__host_stream_hold(&f->host, 0));
    pleat_va a = take(f, 64 * MIB, 1);
    assert_ok(pleat_record_stream(f->runtime, a, 0));
    assert_ok(pleat_free(f->runtime, a));
    return a;
}

/* Once each kept its own: what waited for the working stream was of no use to that one. */
static void streams_share_with_those_that_work_for_them(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    pleat_va a = gather(&f);
    uint64_t physical = pleat_stats_of(f.runtime).physical_bytes;
    /* Few chunks are not worth a wait. */
    pleat_va small = take(&f, 20 * MIB, 0);
    assert_true(small + 20 * MIB <= a || a + 64 * MIB <= small);
    physical += 20 * MIB;
    assert_int_equal(pleat_stats_of(f.runtime).streams_ordered, 0);
    assert_int_equal(take(&f, 64 * MIB, 0), a);
    pleat_event behind = point(&f, 0), gathered = point(&f, 1);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, physical);
    assert_int_equal(pleat_stats_of(f.runtime).streams_ordered, 2);
    /* The gathering stream waits for what used the tensor, and the working one for that. */
    assert_true(!is_past(&f, gathered));
    assert_ok(pleat__host_stream_release(&f.vmm, 0));
    assert_true(is_past(&f, gathered) && is_past(&f, behind));
    /* And back again. */
    assert_ok(pleat_free(f.runtime, a));
    assert_int_equal(take(&f, 64 * MIB, 1), a);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, physical);
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, behind));
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, gathered));
    end(&f);
}

#define PIECES 32u
#define MUCH   40u /* rounds of work behind which another stream only helps the stream 0 */

/* A stream's free memory, in pieces of one chunk; the stream 0 works for so many rounds. */
static void leave_pieces(fixture *f, pleat_stream stream, uint32_t rounds)
{
    pleat_va pieces[2 * PIECES];
    for (uint32_t p = 0; p < 2 * PIECES; p++)
        pieces[p] = take(f, 2 * MIB, stream);
    for (uint32_t p = 0; p < 2 * PIECES; p += 2)
        assert_ok(pleat_free(f->runtime, pieces[p]));
    for (uint32_t i = 0; i < rounds; i++)
        work_on(f, 0);
    assert_ok(pleat_mark(f->runtime));
}

static pleat__pleat *policy_of(const fixture *f)
{
    return f->runtime->policy;
}

/* An iteration in which the stream 0 takes so many pieces, and their owner has all of them back.
 * Returns how long it waited for views of what was taken over, which its mark forgets. */
static uint64_t pass_pieces(fixture *f, uint32_t pieces, pleat_stream owner)
{
    assert_ok(pleat_free(f->runtime, take(f, 2 * pieces * MIB, 0)));
    if (owner != 0)
        assert_ok(pleat_free(f->runtime, take(f, 2 * PIECES * MIB, owner)));
    uint64_t waited_ns = policy_of(f)->heap.sharing.waited_ns;
    assert_ok(pleat_mark(f->runtime));
    return waited_ns;
}

/* What is taken over lies in pieces, of which views are made in each iteration of other sizes:
 * FSDP2 over two GPUs waited for the driver for a fifth of its time where lengths are drawn. Views
 * of a stream's own pieces cost as much where streams share nothing. */
static void streams_share_no_more_where_views_cost_too_much(void **state)
{
    (void)state;
    static const struct {
        pleat_stream owner; /* of the pieces */
        uint64_t ns;        /* that each iteration waits for views of what is taken over */
        bool apart;
    } cases[] = {{1, 0, false}, {1, 50000000, true}, {0, 0, false}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        fixture f;
        begin(&f, "pleat", 1024 * MIB, 0);
        leave_pieces(&f, cases[c].owner, MUCH);
        for (uint32_t i = 0; i < 12; i++) {
            bool kept_apart = policy_of(&f)->heap.keeps_apart;
            policy_of(&f)->heap.sharing.waited_ns += cases[c].ns;
            uint64_t waited_ns = pass_pieces(&f, 17 + i, cases[c].owner);
            assert_int_equal(waited_ns > cases[c].ns, cases[c].owner != 0 && !kept_apart);
        }
        (void)gather(&f);
        pleat_stats before = pleat_stats_of(f.runtime);
        (void)take(&f, 2 * PIECES * MIB - 2 * MIB, 0);
        pleat_stats after = pleat_stats_of(f.runtime);
        assert_int_equal(after.streams_ordered > before.streams_ordered, !cases[c].apart);
        assert_int_equal(after.physical_bytes > before.physical_bytes, cases[c].apart);
        assert_ok(pleat__host_stream_release(&f.vmm, 0));
        end(&f);
    }
}

/* Two that work alike, and no new memory: what they need of each other is no reason. */
static void streams_that_are_refused_memory_are_not_kept_apart(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 132 * MIB, 0);
    leave_pieces(&f, 1, 1);
    for (uint32_t i = 0; i < 14; i++)
        assert_int_equal(pass_pieces(&f, 17 + i, 1), 0);
    pleat_stats stats = pleat_stats_of(f.runtime);
    assert_true(stats.streams_ordered >= 14 && stats.stitched >= 14);
    assert_false(policy_of(&f)->heap.keeps_apart);
    end(&f);
}

/* Each once made a new view of the same pieces whenever they came back: a job with an evaluation in
 * every third iteration waited for the driver for 37 % of its time. */
static void streams_use_their_views_of_what_they_take_over_again(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    leave_pieces(&f, 1, MUCH);
    for (int i = 0; i < 2; i++)
        (void)pass_pieces(&f, PIECES, 1);
    pleat_stats before = pleat_stats_of(f.runtime);
    for (int i = 0; i < 10; i++)
        (void)pass_pieces(&f, PIECES, 1);
    pleat_stats after = pleat_stats_of(f.runtime);
    assert_int_equal(after.driver_calls, before.driver_calls);
    assert_int_equal(after.physical_bytes, before.physical_bytes);
    assert_true(after.streams_ordered >= before.streams_ordered + 20);
    end(&f);
}

static void streams_take_new_memory_where_they_cannot_be_ordered(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_event_create, PLEAT__FAULT_event_record,
                                              PLEAT__FAULT_stream_wait};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        fixture f;
        open_host(&f, 1024 * MIB, true);
        pleat_runtime_options options = {.size = sizeof options, .policy = "pleat"};
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        pleat_va a = gather(&f);
        uint64_t physical = pleat_stats_of(f.runtime).physical_bytes;
        pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = verbs[i], .nth = 1, .forever = true});
        pleat_va b = take(&f, 64 * MIB, 0);
        pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
        assert_true(b + 64 * MIB <= a || a + 64 * MIB <= b);
        pleat_stats stats = pleat_stats_of(f.runtime);
        assert_int_equal(stats.physical_bytes, physical + 64 * MIB);
        /* The gathering stream may wait for the tensor's other user all the same, by the event that
         * was there. */
        assert_int_equal(stats.streams_ordered, verbs[i] != PLEAT__FAULT_stream_wait);
        assert_ok(pleat__host_stream_release(&f.host, 0));
        end(&f);
    }
}

/* Where the driver refuses what would put them in order, what waits goes on waiting. */
static void streams_that_cannot_be_ordered_are_waited_for(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_event_record, PLEAT__FAULT_event_query,
                                              PLEAT__FAULT_stream_wait};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        fixture f;
        pleat__fault_plan broken = {.verb = verbs[i], .nth = 1, .forever = true};
        open_host(&f, 1024 * MIB, true);
        pleat_runtime_options options = {.size = sizeof options, .policy = "pleat"};
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        assert_ok(pleat__host_stream_hold(&f.host, 5));
        work_on(&f, 0);
        pleat_va a = take(&f, 30 * MIB, 1);
        assert_ok(pleat_record_stream(f.runtime, a, 5));
        pleat__fault_arm(&f.vmm, broken);
        assert_ok(pleat_free(f.runtime, a));
        bool orders_anyhow = verbs[i] == PLEAT__FAULT_event_query; /* one wait too many */
        assert_int_equal(take(&f, 30 * MIB, 1) == a, orders_anyhow);
        pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
        if (!orders_anyhow)
            assert_int_equal(take(&f, 30 * MIB, 1), a);
        assert_ok(pleat__host_stream_release(&f.host, 5));
        end(&f);
    }
}

/* A stream that was found behind is asked once for each allocation, however much waits for it. */
static void streams_are_asked_once_whatever_waits(void **state)
{
    (void)state;
    pleat_va at[64];
    fixture f;
    open_host(&f, 1024 * MIB, true);
    pleat_runtime_options options = {.size = sizeof options, .policy = "native"};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    assert_ok(pleat__host_stream_hold(&f.host, 5));
    for (unsigned i = 0; i < 64; i++) {
        at[i] = take(&f, MIB, 1);
        assert_ok(pleat_record_stream(f.runtime, at[i], 5));
    }
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_query});
    for (unsigned i = 0; i < 64; i++) {
        assert_ok(pleat_free(f.runtime, at[i]));
        take(&f, 512, 1);
    }
    assert_int_equal(pleat__fault_calls(&f.vmm), 64);
    assert_ok(pleat__host_stream_advance(&f.host, 5, 64));
    take(&f, 512, 1);
    assert_int_equal(pleat__fault_calls(&f.vmm), 128);
    assert_ok(pleat__host_stream_release(&f.host, 5));
    end(&f);
}

/* One that captures a graph, which nobody told the runtime of, refuses to be marked; it is asked
 * once for each allocation, however much waits for it. */
static void streams_that_refuse_are_asked_once_whatever_waits(void **state)
{
    (void)state;
    pleat_va at[64];
    fixture f;
    open_host(&f, 1024 * MIB, true);
    pleat_runtime_options options = {.size = sizeof options};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    for (unsigned i = 0; i < 64; i++) {
        at[i] = take(&f, MIB, 1);
        assert_ok(pleat_record_stream(f.runtime, at[i], 5));
    }
    pleat__fault_arm(
        &f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_record, .nth = 1, .forever = true});
    for (unsigned i = 0; i < 64; i++)
        assert_ok(pleat_free(f.runtime, at[i]));
    assert_int_equal(pleat__fault_calls(&f.vmm), 64);
    for (unsigned i = 0; i < 64; i++)
        take(&f, 512, 1);
    assert_int_equal(pleat__fault_calls(&f.vmm), 128);
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
    take(&f, 512, 1);
    assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 65 * 512);
    end(&f);
}

/* Whose stream a block is: another one that uses it must be waited for, its own not. */
static void streams_know_their_blocks(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        pleat_va at[5];
        pleat_block block;
        begin(&f, policies[i], 1024 * MIB, 0);
        for (unsigned s = 0; s < 5; s++) {
            at[s] = take(&f, 30 * MIB, 20 + s);
            assert_ok(pleat_block_of(f.runtime, at[s] + 7 * MIB, &block));
            assert_int_equal(block.stream, 20 + s);
        }
        for (unsigned s = 1; s < 5; s++) {
            assert_ok(pleat__host_stream_hold(&f.vmm, 20 + s - 1));
            assert_ok(pleat_record_stream(f.runtime, at[s], 20 + s - 1));
            assert_ok(pleat_free(f.runtime, at[s]));
            pleat_va next = take(&f, 30 * MIB, 20 + s);
            assert_int_not_equal(next, at[s]);
            assert_ok(pleat_free(f.runtime, next));
            assert_ok(pleat__host_stream_release(&f.vmm, 20 + s - 1));
        }
        end(&f);
    }
}

/* However many there are; those past the first 62 get each other's memory, but only behind all that
 * the others were given. */
static void streams_may_be_many(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        pleat_event event;
        if (strcmp(policies[i], "expandable") == 0)
            continue; /* each stream's range is as long as the device */
        begin(&f, policies[i], 16384 * MIB, 0);
        for (unsigned s = 0; s < 100; s++)
            assert_ok(pleat_free(f.runtime, take(&f, 3 * MIB + s, 1000 + s)));
        assert_ok(pleat__host_stream_hold(&f.vmm, 1090));
        pleat_va a = take(&f, 30 * MIB, 1090);
        pleat_block block;
        assert_ok(pleat_block_of(f.runtime, a, &block));
        assert_int_equal(block.stream, 1090);
        assert_ok(pleat_free(f.runtime, a));
        pleat_va b = take(&f, 30 * MIB, 1095);
        assert_true(a != b);
        assert_ok(f.vmm.ops->event_create(f.vmm.self, 0, &event));
        assert_ok(f.vmm.ops->event_record(f.vmm.self, event, 1095));
        assert_ok(f.vmm.ops->event_query(f.vmm.self, event));
        assert_ok(pleat_record_stream(f.runtime, b, 1090));
        assert_ok(pleat_free(f.runtime, b));
        assert_true(take(&f, 30 * MIB, 1096) != b);
        assert_ok(pleat__host_stream_release(&f.vmm, 1090));
        assert_ok(f.vmm.ops->event_query(f.vmm.self, event));
        assert_ok(f.vmm.ops->event_destroy(f.vmm.self, event));
        end(&f);
    }
}

/* While no event says that the GPU is done, nothing that it may use goes. */
static void nothing_is_unmapped_without_an_event(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_event_create, PLEAT__FAULT_event_record,
                                              PLEAT__FAULT_event_wait};
    for (size_t i = 0; i < POLICIES * 3; i++) {
        fixture f;
        pleat__fault_plan broken = {.verb = verbs[i % 3], .nth = 1, .forever = true};
        open_host(&f, 4096 * MIB, true);
        pleat_runtime_options options = {.size = sizeof options,
                                         .policy = policies[i / 3],
                                         .budget_bytes = 200 * MIB,
                                         .conf = "collect:30"};
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        assert_ok(pleat_free(f.runtime, take(&f, 60 * MIB, 0)));
        assert_ok(pleat_free(f.runtime, take(&f, 50 * MIB, 0)));
        uint64_t physical = pleat_stats_of(f.runtime).physical_bytes;
        pleat__fault_arm(&f.vmm, broken);
        assert_ok(pleat_empty_cache(f.runtime));
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, physical);
        /* Nor is anything collected for a request that is served, or given up for one that is
         * not: which of the two it is depends on the policy. */
        pleat_va at;
        pleat_result result = pleat_alloc(f.runtime, 150 * MIB, 0, &at);
        assert_true(result == PLEAT_OK || result == PLEAT_E_BUDGET);
        assert_true(pleat_stats_of(f.runtime).physical_bytes >= physical);
        pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
        assert_ok(pleat_free(f.runtime, at));
        assert_ok(pleat_empty_cache(f.runtime));
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
        end(&f);
    }
}

#define FILLERS 80

/* Sizes of which each comes once an iteration. */
static void pass_fillers(fixture *f, int begin, int end, pleat_stream stream)
{
    for (int i = begin; i < end; i++)
        assert_ok(pleat_free(f->runtime, take(f, MIB + 512 * (uint64_t)i, stream)));
}

/* The stream 1 learns an iteration that ends with so many chunks in a view, and runs it again up to
 * there; the stream 2 has some memory. */
static void learn_a_view(fixture *f, uint64_t bytes)
{
    pleat_va pieces[40];
    begin(f, "pleat", 1024 * MIB, 136 * MIB);
    for (int p = 0; p < 40; p++)
        pieces[p] = take(f, 2 * MIB, 1);
    (void)take(f, 46 * MIB, 1);
    for (int p = 0; p < 40; p += 2)
        assert_ok(pleat_free(f->runtime, pieces[p]));
    assert_ok(pleat_free(f->runtime, take(f, 8 * MIB, 2)));
    for (int i = 0; i < 6; i++) {
        pass_fillers(f, 0, FILLERS, 1);
        assert_ok(pleat_free(f->runtime, take(f, bytes, 1)));
        assert_ok(pleat_mark(f->runtime));
    }
    assert_int_equal(policy_of(f)->learner.states.now, PLEAT__STATE_following);
    assert_int_equal(policy_of(f)->heap.view_count > 0, true);
    pass_fillers(f, 0, FILLERS - 3, 1);
}

/* Whether what lies there lies in a view of a stream's. */
static bool lies_in_view_of(fixture *f, pleat_va address, uint16_t stream)
{
    const pleat__place *place = pleat__place_map_find(&policy_of(f)->places, address);
    return place->several != NULL && place->several->view != NULL &&
           place->several->view->stream == stream;
}

/* A view's pages change once its own stream is past them, so no other's request lies there: R17.
 * Sizes alone once said which expected request one is. */
static void streams_lie_in_no_view_of_another(void **state)
{
    (void)state;
    fixture f;
    learn_a_view(&f, 16 * MIB);
    const pleat__schedule *schedule = policy_of(&f)->learner.schedule;
    pleat__place slot = schedule->items[schedule->count - 1].place;
    assert_false(pleat__heap_take(&policy_of(&f)->heap, &slot, 1));
    assert_true(pleat__heap_take(&policy_of(&f)->heap, &slot, 0));
    pleat__heap_give(&policy_of(&f)->heap, &slot);
    pass_fillers(&f, FILLERS - 3, FILLERS, 2);
    pleat_va address = take(&f, 16 * MIB, 2);
    assert_int_equal(pleat__place_map_find(&policy_of(&f)->places, address)->stream, 1);
    assert_false(lies_in_view_of(&f, address, 0));
    end(&f);
}

/* A refused request's match is for when it comes again, not for another stream's of its size. */
static void streams_do_not_answer_to_anothers_refusal(void **state)
{
    (void)state;
    fixture f;
    pleat_va refused;
    learn_a_view(&f, 40 * MIB);
    pass_fillers(&f, FILLERS - 3, FILLERS, 1);
    pleat_va other = take(&f, 16 * MIB, 1);
    assert_result(pleat_alloc(f.runtime, 40 * MIB, 1, &refused), PLEAT_E_BUDGET);
    assert_ok(pleat_free(f.runtime, other));
    uint32_t item = policy_of(&f)->refused.item;
    assert_int_not_equal(item, PLEAT__NO_ITEM);
    pleat_va address = take(&f, 40 * MIB, 2);
    assert_false(lies_in_view_of(&f, address, 0));
    assert_int_equal(policy_of(&f)->refused.bytes, 40 * MIB); /* it may still come */
    assert_ok(pleat_free(f.runtime, address));
    assert_ok(pleat_mark(f.runtime));
    assert_int_equal(policy_of(&f)->refused.bytes, 0);
    end(&f);
}

/* Frees that wait for a slow stream were once asked again and again, and none behind them. */
static void streams_that_are_slow_are_in_no_others_way(void **state)
{
    (void)state;
    for (int slow = 1; slow <= 40; slow += 13) {
        fixture f;
        pleat_va addresses[40];
        begin(&f, "pleat", 1024 * MIB, 0);
        assert_ok(pleat__host_stream_hold(&f.vmm, 7));
        for (int i = 0; i < slow; i++) {
            addresses[i] = take(&f, 2 * MIB, 0);
            assert_ok(pleat_record_stream(f.runtime, addresses[i], 7));
        }
        for (int i = 0; i < slow; i++)
            assert_ok(pleat_free(f.runtime, addresses[i]));
        for (int i = 0; i < 300; i++) {
            pleat_va address = take(&f, 8 * MIB, 0);
            assert_ok(pleat_record_stream(f.runtime, address, 5)); /* which is past at once */
            assert_ok(pleat_free(f.runtime, address));
        }
        assert_true(pleat_stats_of(f.runtime).physical_bytes <= (2 * (uint64_t)slow + 80) * MIB);
        assert_ok(pleat__host_stream_release(&f.vmm, 7));
        end(&f);
    }
}

/* Wants none of what it is asked about, and remembers which that was. */
typedef struct questions {
    pleat_va first;
    uint64_t stride, count;
    bool of[3000];
} questions;

static bool wants_none(void *context, pleat_va address, pleat_stream *owner)
{
    questions *asked = context;
    asked->count++;
    asked->of[(address - asked->first) / asked->stride] = true;
    *owner = 1;
    return false;
}

static void none_is_granted(void *context)
{
    (void)context;
    fail();
}

/* A request was once made to look at all frees that wait: with 100,000 it took 4 ms. */
static void streams_are_searched_for_a_bounded_number_of_frees(void **state)
{
    (void)state;
    static questions seen;
    fixture f;
    pleat_va addresses[3000];
    begin(&f, "pleat", 1024 * MIB, 0);
    assert_ok(pleat__host_stream_hold(&f.vmm, 7));
    for (int i = 0; i < 3000; i++) {
        addresses[i] = take(&f, 4096, 1);
        assert_ok(pleat_record_stream(f.runtime, addresses[i], 7));
        seen.first = i == 0 || addresses[i] < seen.first ? addresses[i] : seen.first;
    }
    seen.stride = 4096;
    for (int i = 0; i < 3000; i++)
        assert_ok(pleat_free(f.runtime, addresses[i]));
    /* The oldest 512 each time, and the next 512 of the others. */
    for (int i = 1; i <= 5; i++) {
        assert_int_equal(
            pleat__pending_order(&f.runtime->pending, wants_none, none_is_granted, &seen), 0);
        assert_true(seen.count <= 1024 * (uint64_t)i);
    }
    for (int i = 0; i < 3000; i++)
        assert_true(seen.of[(addresses[i] - seen.first) / seen.stride]);
    assert_ok(pleat__host_stream_release(&f.vmm, 7));
    end(&f);
}

/* A free whose stream the driver does not make wait is no memory: the next one is wanted as well.
 */
static void streams_count_what_they_were_made_to_wait_for(void **state)
{
    (void)state;
    fixture f;
    pleat_va addresses[2];
    open_host(&f, 1024 * MIB, true);
    pleat_runtime_options options = {.size = sizeof options};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    for (int i = 0; i < 8; i++)
        take(&f, 2 * MIB, 0); /* the busiest, which waits for none */
    assert_ok(pleat__host_stream_hold(&f.host, 7));
    for (int i = 0; i < 2; i++) {
        addresses[i] = take(&f, 4 * MIB, 1);
        assert_ok(pleat_record_stream(f.runtime, addresses[i], 7));
    }
    for (int i = 0; i < 2; i++)
        assert_ok(pleat_free(f.runtime, addresses[i]));
    assert_int_equal(f.runtime->pending.waiting, 2);
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_stream_wait, .nth = 1});
    assert_true(pleat__waiting_order(&policy_of(&f)->waiting, 1, 4 * MIB / PLEAT__GRANULE_BYTES));
    assert_int_equal(pleat__fault_hits(&f.vmm), 1);
    assert_int_equal(f.runtime->pending.waiting, 1);
    assert_ok(pleat__host_stream_release(&f.host, 7));
    end(&f);
}

static void *release_later(void *context)
{
    const pleat_vmm *vmm = context;
    assert_ok(pleat__host_stream_release(vmm, 9));
    return NULL;
}

static void streams_are_waited_for_before_a_refusal(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        begin(&f, policies[i], 128 * MIB, 0);
        assert_ok(pleat__host_stream_hold(&f.vmm, 9));
        pleat_va a = take(&f, 100 * MIB, 0);
        assert_ok(pleat_record_stream(f.runtime, a, 9));
        assert_ok(pleat_free(f.runtime, a));
        pthread_t other;
        assert_int_equal(pthread_create(&other, NULL, release_later, &f.vmm), 0);
        take(&f, 90 * MIB, 0);
        assert_int_equal(pthread_join(other, NULL), 0);
        end(&f);
    }
}

typedef struct held_stream {
    const pleat_vmm *host;
    atomic_bool released;
} held_stream;

static void *release_held(void *context)
{
    held_stream *held = context;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    atomic_store(&held->released, true);
    return release_later((void *)held->host);
}

/* One that cannot be marked or waited for when all goes keeps no other from being waited for. */
static void streams_are_waited_for_at_the_end_whatever_is_refused(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_event_create, PLEAT__FAULT_event_record,
                                              PLEAT__FAULT_event_wait};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        fixture f;
        pthread_t other;
        open_host(&f, 1024 * MIB, true);
        held_stream held = {.host = &f.host};
        pleat_runtime_options options = {.size = sizeof options};
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        take(&f, MIB, 1);
        take(&f, MIB, 9);
        assert_ok(pleat__host_stream_hold(&f.host, 9));
        pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = verbs[i], .nth = 1});
        assert_int_equal(pthread_create(&other, NULL, release_held, &held), 0);
        pleat_runtime_destroy(f.runtime);
        assert_true(atomic_load(&held.released));
        assert_int_equal(pthread_join(other, NULL), 0);
        pleat_vmm_destroy(&f.vmm);
        assert_nothing_held(&f.host);
        pleat_vmm_destroy(&f.host);
    }
}

/* Streams that allocate nothing, too, where what they use was freed. */
static void streams_that_use_what_was_freed_are_waited_for_at_the_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        pthread_t other;
        begin(&f, policies[i], 1024 * MIB, 0);
        held_stream held = {.host = &f.host};
        pleat_va used = take(&f, MIB, 1);
        assert_ok(pleat_record_stream(f.runtime, used, 9));
        assert_ok(pleat__host_stream_hold(&f.host, 9));
        assert_ok(pleat_free(f.runtime, used));
        assert_int_equal(pthread_create(&other, NULL, release_held, &held), 0);
        pleat_runtime_destroy(f.runtime);
        assert_true(atomic_load(&held.released));
        assert_int_equal(pthread_join(other, NULL), 0);
        assert_nothing_held(&f.host);
        pleat_vmm_destroy(&f.host);
    }
}

/* ---- streams against a model ---- */

#define PENDING_MOST 256
#define USES         4 /* streams 100 .. 103, held; allocations come from streams 0 .. 3 */

/* A freed tensor and, for each stream that used it, the point that must be passed first. */
typedef struct pending {
    pleat_va address;
    uint64_t bytes;
    uint64_t point[USES]; /* 0: not used there */
} pending;

static bool is_passed(const pending *p, const uint64_t passed[USES])
{
    for (int u = 0; u < USES; u++)
        if (p->point[u] > passed[u])
            return false;
    return true;
}

/* What waits and what is new have no byte in common, or what is new comes behind it. */
static void assert_apart(fixture *f, const pending *all, int count, const uint64_t passed[USES],
                         const pending *mine, pleat_stream stream)
{
    for (int i = 0; i < count; i++) {
        const pending *other = &all[i];
        if (is_passed(other, passed) || mine->address + mine->bytes <= other->address ||
            other->address + other->bytes <= mine->address)
            continue;
        pleat_event behind = point(f, stream);
        assert_true(!is_past(f, behind));
        assert_ok(f->vmm.ops->event_destroy(f->vmm.self, behind));
    }
}

/* Frees a tensor that some of the held streams use; every such stream gets one point. */
static pending free_used(fixture *f, test_random *random, pleat_va address, uint64_t bytes,
                         uint64_t recorded[USES])
{
    pending p = {address, bytes, {0}};
    for (unsigned u = 0; u < USES; u++) {
        if (test_random_below(random, 3) != 0)
            continue;
        assert_ok(pleat_record_stream(f->runtime, address, 100 + u));
        p.point[u] = ++recorded[u];
    }
    assert_ok(pleat_free(f->runtime, address));
    return p;
}

/* R17. */
static void streams_no_byte_is_reused_before_its_event(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0007);
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        pending gone[PENDING_MOST];
        uint64_t recorded[USES] = {0}, passed[USES] = {0};
        int count = 0;
        begin(&f, policies[i], 8192 * MIB, 0);
        for (unsigned u = 0; u < USES; u++)
            assert_ok(pleat__host_stream_hold(&f.vmm, 100 + u));
        for (int step = 0; step < 3000; step++) {
            uint64_t bytes = 1 + test_random_below(&random, step % 3 == 0 ? 9 * MIB : 100000);
            pleat_stream stream = test_random_below(&random, 4);
            pleat_va at = take(&f, bytes, stream);
            assert_apart(&f, gone, count, passed, &(pending){at, bytes, {0}}, stream);
            gone[count++] = free_used(&f, &random, at, bytes, recorded);
            unsigned u = (unsigned)test_random_below(&random, USES);
            if (passed[u] < recorded[u] && test_random_below(&random, 2) == 0) {
                passed[u]++;
                assert_ok(pleat__host_stream_advance(&f.vmm, 100 + u, 1));
            }
            /* All pass now and then, so that the model stays small. */
            for (u = 0; count == PENDING_MOST && u < USES; u++) {
                assert_ok(pleat__host_stream_advance(&f.vmm, 100 + u, recorded[u] - passed[u]));
                passed[u] = recorded[u];
            }
            count = count == PENDING_MOST ? 0 : count;
        }
        for (unsigned u = 0; u < USES; u++)
            assert_ok(pleat__host_stream_release(&f.vmm, 100 + u));
        assert_ok(pleat_empty_cache(f.runtime));
        assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 0);
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
        end(&f);
    }
}

/* Frees of another stream's wait, where that is worth it, for the uses of what was freed, and not
 * for what their stream is given later, which is to overlap with the work. */
static void streams_wait_for_no_more_than_what_was_freed(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    work_on(&f, 1);
    pleat_va freed = take(&f, 40 * MIB, 5);
    assert_ok(pleat__host_stream_hold(&f.vmm, 5));
    assert_ok(pleat_free(f.runtime, freed));
    pleat_event later = point(&f, 5);
    pleat_stats before = pleat_stats_of(f.runtime);
    assert_ok(pleat_free(f.runtime, take(&f, 40 * MIB, 1)));
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, before.physical_bytes);
    assert_int_equal(pleat_stats_of(f.runtime).streams_ordered, before.streams_ordered + 1);
    pleat_event now = point(&f, 1);
    assert_false(is_past(&f, now));
    assert_ok(pleat__host_stream_advance(&f.vmm, 5, 1));
    assert_true(is_past(&f, now) && !is_past(&f, later));
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, later));
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, now));
    assert_ok(pleat__host_stream_release(&f.vmm, 5));
    end(&f);
}

/* A stream asks for much, none of which it frees. */
static void lead(fixture *f, pleat_stream stream, int requests)
{
    for (int i = 0; i < requests; i++)
        take(f, 512, stream);
}

/* What went through a stream's hands unused is still behind those who used it. */
static void streams_wait_for_those_before_the_one_that_freed(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    work_on(&f, 1);
    pleat_va used = take(&f, 120 * MIB, 5);
    pleat_va own = take(&f, 40 * MIB, 6);
    assert_ok(pleat_free(f.runtime, own));
    assert_ok(pleat__host_stream_hold(&f.vmm, 5));
    assert_ok(pleat_free(f.runtime, used));
    lead(&f, 6, 200);
    uint64_t before = pleat_stats_of(f.runtime).physical_bytes;
    take(&f, 46 * MIB, 6); /* 3 chunks more than it has, for which it takes 16 */
    take(&f, 88 * MIB, 5); /* all that is left */
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, before);
    lead(&f, 1, 2000);
    before = pleat_stats_of(f.runtime).physical_bytes;
    take(&f, 40 * MIB, 1); /* some of it what 6 had from 5 */
    assert_true(pleat_stats_of(f.runtime).physical_bytes < before + 40 * MIB);
    pleat_event now = point(&f, 1);
    assert_false(is_past(&f, now));
    assert_ok(pleat__host_stream_release(&f.vmm, 5));
    assert_true(is_past(&f, now));
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, now));
    end(&f);
}

/* A wait is for so much that small requests do not make one each. */
static void streams_take_over_much_at_a_time(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    work_on(&f, 1);
    assert_ok(pleat_free(f.runtime, take(&f, 64 * MIB, 5)));
    pleat_stats before = pleat_stats_of(f.runtime);
    for (int i = 0; i < 8; i++)
        take(&f, 4 * MIB, 1);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, before.physical_bytes);
    assert_int_equal(pleat_stats_of(f.runtime).streams_ordered, before.streams_ordered + 1);
    /* 30 MiB are left there, which are not worth another. */
    take(&f, 4 * MIB, 1);
    assert_int_equal(pleat_stats_of(f.runtime).streams_ordered, before.streams_ordered + 1);
    assert_true(pleat_stats_of(f.runtime).physical_bytes > before.physical_bytes);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_delay_a_free_until_their_events),
        cmocka_unit_test(streams_take_over_what_waits_behind_its_events),
        cmocka_unit_test(streams_that_work_are_not_made_to_wait),
        cmocka_unit_test(streams_share_with_those_that_work_for_them),
        cmocka_unit_test(streams_share_no_more_where_views_cost_too_much),
        cmocka_unit_test(streams_that_are_refused_memory_are_not_kept_apart),
        cmocka_unit_test(streams_use_their_views_of_what_they_take_over_again),
        cmocka_unit_test(streams_wait_for_no_more_than_what_was_freed),
        cmocka_unit_test(streams_wait_for_those_before_the_one_that_freed),
        cmocka_unit_test(streams_take_over_much_at_a_time),
        cmocka_unit_test(streams_take_new_memory_where_they_cannot_be_ordered),
        cmocka_unit_test(streams_that_cannot_be_ordered_are_waited_for),
        cmocka_unit_test(streams_are_asked_once_whatever_waits),
        cmocka_unit_test(streams_that_refuse_are_asked_once_whatever_waits),
        cmocka_unit_test(streams_know_their_blocks),
        cmocka_unit_test(streams_may_be_many),
        cmocka_unit_test(streams_lie_in_no_view_of_another),
        cmocka_unit_test(streams_do_not_answer_to_anothers_refusal),
        cmocka_unit_test(streams_that_are_slow_are_in_no_others_way),
        cmocka_unit_test(streams_are_searched_for_a_bounded_number_of_frees),
        cmocka_unit_test(streams_count_what_they_were_made_to_wait_for),
        cmocka_unit_test(nothing_is_unmapped_without_an_event),
        cmocka_unit_test(streams_are_waited_for_before_a_refusal),
        cmocka_unit_test(streams_are_waited_for_at_the_end_whatever_is_refused),
        cmocka_unit_test(streams_that_use_what_was_freed_are_waited_for_at_the_end),
        cmocka_unit_test(streams_no_byte_is_reused_before_its_event),
    };
    return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
