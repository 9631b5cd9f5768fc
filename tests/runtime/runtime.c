/*
 * runtime.c: the public calls over the host backend: argument checks, the steps of out of memory,
 * streams whose events are driven by hand, threads, and what is left after failing verbs. Every
 * policy goes through the same tests.
 */
#include "fixture.h"

/* A program that has taken part of a budget for itself gives it back when it is asked. */
static int lift_budget(void *context, uint64_t bytes, pleat_stream stream)
{
    fixture *f = context;
    (void)stream;
    return pleat_set_budget(f->runtime, bytes + 64 * MIB) == PLEAT_OK;
}

static void budget_may_be_lifted_by_the_program_that_is_asked(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++) {
        fixture f;
        pleat_va address;
        open_host(&f, 1024 * MIB, false);
        pleat_runtime_options options = {.size = sizeof options,
                                         .policy = policies[p],
                                         .budget_bytes = 100 * MIB,
                                         .memory_callback = lift_budget,
                                         .memory_context = &f};
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        assert_ok(pleat_alloc(f.runtime, 350 * MIB, 0, &address));
        assert_ok(pleat_free(f.runtime, address));
        assert_result(pleat_alloc(f.runtime, 2000 * MIB, 0, &address), PLEAT_E_OUT_OF_MEMORY);
        assert_int_equal(pleat_limit_of(f.runtime), 414 * MIB);
        end(&f);
    }
}

static void runtime_checks_its_arguments(void **state)
{
    (void)state;
    fixture f;
    pleat_runtime_options options = {.size = sizeof options, .policy = "no such policy"};
    open_host(&f, 1024 * MIB, false);
    assert_result(pleat_runtime_create(f.vmm, &options, &f.runtime), PLEAT_E_INVALID);
    assert_true(has("native"));
    options.policy = "native";
    options.size = 3;
    assert_result(pleat_runtime_create(f.vmm, &options, &f.runtime), PLEAT_E_ABI);
    options.size = sizeof options;
    options.device = 7;
    assert_result(pleat_runtime_create(f.vmm, &options, &f.runtime), PLEAT_E_NO_DEVICE);
    assert_result(pleat_runtime_create((pleat_vmm){0}, &options, &f.runtime), PLEAT_E_INVALID);
    pleat_runtime_destroy(NULL);
    assert_nothing_held(&f);
    pleat_vmm_destroy(&f.host);
}

static void runtime_serves_and_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        begin(&f, policies[i], 1024 * MIB, 0);
        pleat_va zero = 1;
        assert_ok(pleat_alloc(f.runtime, 0, 0, &zero));
        assert_int_equal(zero, 0);
        assert_ok(pleat_free(f.runtime, 0));
        pleat_va a = take(&f, 1000, 0), b = take(&f, 5 * MIB, 0), c = take(&f, 40 * MIB, 0);
        memset((void *)(uintptr_t)a, 1, 1000);
        memset((void *)(uintptr_t)b, 2, 5 * MIB);
        pleat_stats stats = pleat_stats_of(f.runtime);
        assert_int_equal(stats.requests, 3);
        assert_int_equal(stats.live_bytes, 1024 + 45 * MIB);
        assert_true(stats.physical_bytes >= stats.live_bytes);
        assert_true(stats.driver_calls > 0);
        assert_true(stats.metadata_bytes > 0);
        pleat_block block;
        assert_ok(pleat_block_of(f.runtime, b + 3 * MIB, &block));
        assert_int_equal(block.address, b);
        assert_int_equal(block.requested, 5 * MIB);
        uint64_t before, after;
        assert_ok(pleat_adjacent_free(f.runtime, b, &before, &after));
        assert_ok(pleat_free(f.runtime, b));
        assert_result(pleat_free(f.runtime, b), PLEAT_E_NOT_FOUND);
        assert_result(pleat_free(f.runtime, c + 512), PLEAT_E_NOT_FOUND);
        assert_result(pleat_block_of(f.runtime, b, &block), PLEAT_E_NOT_FOUND);
        assert_result(pleat_adjacent_free(f.runtime, 12, &before, &after), PLEAT_E_NOT_FOUND);
        assert_ok(pleat_free(f.runtime, a));
        assert_ok(pleat_free(f.runtime, c));
        pleat_reset_peaks(f.runtime);
        assert_int_equal(pleat_stats_of(f.runtime).peak_live_bytes, 0);
        assert_int_equal(pleat_stats_of(f.runtime).frees, 3);
        assert_ok(pleat_mark(f.runtime));
        assert_ok(pleat_phase(f.runtime, "F"));
        assert_ok(pleat_empty_cache(f.runtime));
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
        end(&f);
    }
}

static void out_of_memory_gives_caches_back_first(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        for (int budget = 0; budget < 2; budget++) {
            fixture f;
            begin(&f, policies[i], (budget ? 1024 : 128) * MIB, budget ? 128 * MIB : 0);
            /* Most of it cached, in pieces of other streams. */
            pleat_va parts[6];
            for (int p = 0; p < 6; p++)
                parts[p] = take(&f, 12 * MIB, (pleat_stream)p);
            for (int p = 0; p < 6; p++)
                assert_ok(pleat_free(f.runtime, parts[p]));
            pleat_va whole = take(&f, 120 * MIB, 0);
            assert_true(pleat_stats_of(f.runtime).physical_bytes <= 128 * MIB);
            assert_true(pleat_stats_of(f.runtime).peak_physical_bytes <= 128 * MIB);
            assert_ok(pleat_free(f.runtime, whole));
            end(&f);
        }
    }
}

static void out_of_memory_says_what_there_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        pleat_va refused = 77;
        begin(&f, policies[i], 1024 * MIB, 100 * MIB);
        pleat_va kept = take(&f, 60 * MIB, 0);
        assert_result(pleat_alloc(f.runtime, 60 * MIB, 0, &refused), PLEAT_E_BUDGET);
        assert_int_equal(refused, 0);
        assert_true(has("60.00 MiB asked for"));
        assert_true(has("live 60.00 MiB"));
        assert_true(has("a budget of 100.00 MiB"));
        assert_true(has("the largest request that would fit now 40.00 MiB"));
        /* And it does fit. */
        pleat_va fits = take(&f, 40 * MIB, 0);
        assert_ok(pleat_free(f.runtime, fits));
        assert_result(pleat_alloc(f.runtime, 101 * MIB, 0, &refused), PLEAT_E_OUT_OF_MEMORY);
        assert_result(pleat_alloc(f.runtime, UINT64_MAX, 0, &refused), PLEAT_E_OUT_OF_MEMORY);
        pleat_stats stats = pleat_stats_of(f.runtime);
        assert_int_equal(stats.out_of_memory, 3);
        assert_int_equal(stats.live_bytes, 60 * MIB);
        assert_int_equal(stats.requests, 2);
        assert_ok(pleat_free(f.runtime, kept));
        end(&f);
    }
}

typedef struct giver {
    fixture *f;
    pleat_va address;
    int asked;
} giver;

static int give_one(void *context, uint64_t bytes, pleat_stream stream)
{
    giver *g = context;
    assert_int_equal(bytes, 70 * MIB);
    assert_int_equal(stream, 3);
    g->asked++;
    if (g->address == 0)
        return 0;
    assert_ok(pleat_free(g->f->runtime, g->address));
    g->address = 0;
    return 1;
}

static void out_of_memory_asks_the_program_last(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        giver g = {.f = &f};
        open_host(&f, 128 * MIB, false);
        pleat_runtime_options options = {.size = sizeof options,
                                         .policy = policies[i],
                                         .memory_callback = give_one,
                                         .memory_context = &g};
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        g.address = take(&f, 100 * MIB, 0);
        pleat_va a = take(&f, 70 * MIB, 3), b;
        assert_int_equal(g.asked, 1);
        assert_result(pleat_alloc(f.runtime, 70 * MIB, 3, &b), PLEAT_E_OUT_OF_MEMORY);
        assert_int_equal(g.asked, 2);
        assert_ok(pleat_free(f.runtime, a));
        end(&f);
    }
}

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

/* What waits for other streams goes to the next request of its own behind them, before there is new
 * memory; another stream's request does not get it. */
static void streams_take_over_what_waits_behind_its_events(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    assert_ok(pleat__host_stream_hold(&f.vmm, 5));
    assert_ok(pleat__host_stream_hold(&f.vmm, 6));
    pleat_va a = take(&f, 30 * MIB, 1), b = take(&f, 20 * MIB, 1);
    assert_ok(pleat_record_stream(f.runtime, a, 5));
    assert_ok(pleat_record_stream(f.runtime, a, 6));
    assert_ok(pleat_record_stream(f.runtime, b, 6));
    assert_ok(pleat_free(f.runtime, a));
    assert_ok(pleat_free(f.runtime, b));
    assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 0);
    pleat_va other = take(&f, 30 * MIB, 2);
    assert_true(other + 30 * MIB <= a || a + 30 * MIB <= other);
    pleat_event before = point(&f, 1);
    assert_int_equal(take(&f, 30 * MIB, 1), a);
    pleat_event behind = point(&f, 1);
    pleat_stats stats = pleat_stats_of(f.runtime);
    assert_int_equal(stats.streams_ordered, 2); /* not for b, which nobody wants */
    assert_int_equal(stats.live_bytes, 60 * MIB);
    assert_int_equal(stats.peak_live_bytes, 60 * MIB);
    assert_int_equal(stats.physical_bytes, 80 * MIB);
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
            assert_int_equal(next == at[s], orders(policies[i]));
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
        bool planned = strcmp(policies[i], "pleat") == 0;
        if (strcmp(policies[i], "expandable") == 0)
            continue; /* each stream's range is as long as the device */
        begin(&f, policies[i], 16384 * MIB, 0);
        for (unsigned s = 0; s < 100; s++)
            assert_ok(pleat_free(f.runtime, take(&f, 3 * MIB + s, 1000 + s)));
        assert_ok(pleat__host_stream_hold(&f.vmm, 1090));
        pleat_va a = take(&f, 30 * MIB, 1090);
        pleat_block block;
        assert_ok(pleat_block_of(f.runtime, a, &block));
        assert_int_equal(block.stream, planned ? PLEAT_STREAM_UNKNOWN : 1090);
        assert_ok(pleat_free(f.runtime, a));
        pleat_va b = take(&f, 30 * MIB, 1095);
        assert_int_equal(a == b, planned);
        assert_ok(f.vmm.ops->event_create(f.vmm.self, 0, &event));
        assert_ok(f.vmm.ops->event_record(f.vmm.self, event, 1095));
        assert_int_equal(f.vmm.ops->event_query(f.vmm.self, event),
                         planned ? PLEAT_E_NOT_READY : PLEAT_OK);
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

static void settings_reach_the_policies(void **state)
{
    (void)state;
    fixture f;
    open_host(&f, 1024 * MIB, false);
    pleat_runtime_options options = {
        .size = sizeof options, .policy = "native", .budget_bytes = 200 * MIB};
    static const char *const bad[] = {"max_split:1m", "collect:100", "collect:yes", "none:1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options.conf = bad[i];
        assert_result(pleat_runtime_create(f.vmm, &options, &f.runtime), PLEAT_E_INVALID);
    }
    options.conf = "collect:30";
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    assert_ok(pleat_free(f.runtime, take(&f, 50 * MIB, 0)));
    assert_ok(pleat_free(f.runtime, take(&f, 60 * MIB, 0)));
    take(&f, 80 * MIB, 0);
    /* 110 MiB were cached, 60 are allowed before anything new. */
    assert_true(pleat_stats_of(f.runtime).physical_bytes < 190 * MIB);
    pleat_runtime_destroy(f.runtime);
    options.policy = "gmlake";
    options.conf = "fragment:1g";
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    pleat_va a = take(&f, 60 * MIB, 0), b = take(&f, 2 * MIB, 0), c = take(&f, 60 * MIB, 0);
    assert_ok(pleat_free(f.runtime, a));
    assert_ok(pleat_free(f.runtime, c));
    pleat_va d;
    /* Not stitched: the caches go back for it. */
    assert_ok(pleat_alloc(f.runtime, 150 * MIB, 0, &d));
    assert_int_equal(pleat_stats_of(f.runtime).stitched, 0);
    assert_ok(pleat_free(f.runtime, b));
    end(&f);
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

/* ---- a naive model, over all policies ---- */

#define LIVE_MOST 64

typedef struct tensor {
    pleat_va address;
    uint64_t bytes;
    uint64_t mark;
} tensor;

static uint64_t *word_at(const tensor *t, bool last)
{
    pleat_va end = t->address + (t->bytes - 8) / 8 * 8;
    return (uint64_t *)(uintptr_t)(last ? end : t->address);
}

static void fill(tensor *t, test_random *random)
{
    t->mark = test_random_next(random);
    *word_at(t, true) = ~t->mark;
    *word_at(t, false) = t->mark;
}

static void assert_whole(const tensor *t)
{
    assert_int_equal(*word_at(t, false), t->mark);
    if (word_at(t, true) != word_at(t, false))
        assert_int_equal(*word_at(t, true), ~t->mark);
}

static uint64_t some_size(test_random *random)
{
    switch (test_random_below(random, 5)) {
    case 0:
        return 8 + test_random_below(random, 4096);
    case 1:
        return 8 + test_random_below(random, MIB);
    case 2:
        return MIB + test_random_below(random, 12 * MIB);
    case 3:
        return 130 * MIB + test_random_below(random, 60 * MIB); /* gmlake stitches */
    default:
        return MIB + test_random_below(random, 90 * MIB);
    }
}

/* Frees that wait for a stream reach the policy; the second time also one whose event's query or
 * record failed the first time. */
static void settle(fixture *f)
{
    assert_ok(pleat_empty_cache(f->runtime));
    assert_ok(pleat_empty_cache(f->runtime));
}

/* Random requests; `strict`: a refusal must be for want of memory. */
static void churn(fixture *f, test_random *random, int steps, bool strict)
{
    tensor live[LIVE_MOST];
    int count = 0;
    for (int i = 0; i < steps; i++) {
        if (count < LIVE_MOST && test_random_below(random, 100) < 55) {
            tensor *t = &live[count];
            t->bytes = some_size(random);
            pleat_result result = pleat_alloc(
                f->runtime, t->bytes, (pleat_stream)test_random_below(random, 2), &t->address);
            bool short_of = result == PLEAT_E_OUT_OF_MEMORY || result == PLEAT_E_BUDGET;
            if (result == PLEAT_OK) {
                fill(t, random);
                count++;
            }
            if (result == PLEAT_OK && test_random_below(random, 4) == 0)
                result = pleat_record_stream(f->runtime, t->address, 50);
            assert_true(result == PLEAT_OK || short_of || !strict);
        } else if (count > 0) {
            int gone = (int)test_random_below(random, (uint64_t)count);
            assert_whole(&live[gone]);
            assert_ok(pleat_free(f->runtime, live[gone].address));
            live[gone] = live[--count];
        }
    }
    uint64_t bytes = 0;
    f->failed = pleat__arena_failed();
    pleat__arena_fail(0, false);
    settle(f);
    for (int i = 0; i < count; i++)
        bytes += pleat__ceil_div(live[i].bytes, 512) * 512;
    assert_int_equal(pleat_stats_of(f->runtime).live_bytes, bytes);
    while (count > 0) {
        assert_whole(&live[--count]);
        assert_ok(pleat_free(f->runtime, live[count].address));
    }
    settle(f);
    assert_int_equal(pleat_stats_of(f->runtime).live_bytes, 0);
}

static void policies_keep_data_whole_under_a_budget(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0002);
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        begin(&f, policies[i], 4096 * MIB, 1500 * MIB);
        churn(&f, &random, 3000, true);
        assert_true(pleat_stats_of(f.runtime).peak_physical_bytes <= 1500 * MIB);
        assert_ok(pleat_empty_cache(f.runtime));
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
        end(&f);
    }
}

/* ---- what stays the same ---- */

#define PER_ITERATION 100

/* Half of an iteration's tensors die in it, the rest in the next, some of them, as a batch of data
 * does, only when the next of their kind is there. */
static void iterate(fixture *f, const uint64_t bytes[PER_ITERATION], pleat_va crossing[])
{
    pleat_va now[PER_ITERATION];
    assert_ok(pleat_mark(f->runtime));
    for (int i = 0; i < PER_ITERATION; i++) {
        bool batch = i % 25 == 1;
        if (!batch)
            assert_ok(pleat_free(f->runtime, crossing[i]));
        now[i] = take(f, bytes[i], (pleat_stream)(i % 10 == 9));
        if (batch)
            assert_ok(pleat_free(f->runtime, crossing[i]));
        crossing[i] = 0;
    }
    for (int i = 0; i < PER_ITERATION; i++) {
        if (i % 2 == 0)
            assert_ok(pleat_free(f->runtime, now[i]));
        else
            crossing[i] = now[i];
    }
}

static void ten_thousand_iterations_leave_everything_as_it_was(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0009);
    uint64_t bytes[PER_ITERATION];
    for (int i = 0; i < PER_ITERATION; i++)
        bytes[i] = some_size(&random) / 8 + 1;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        bool planned = strcmp(policies[i], "pleat") == 0;
        pleat_va crossing[PER_ITERATION] = {0};
        pleat_stats early = {0};
        begin(&f, policies[i], 16384 * MIB, 0);
        for (int n = 1; n <= 10000; n++) {
            iterate(&f, bytes, crossing);
            /* A best fit that plans nothing takes its time to find a shape that repeats. */
            if (n == (planned ? 10 : 2000))
                early = pleat_stats_of(f.runtime);
        }
        pleat_stats late = pleat_stats_of(f.runtime);
        assert_int_equal(late.physical_bytes, early.physical_bytes);
        assert_int_equal(late.peak_physical_bytes, early.peak_physical_bytes);
        assert_int_equal(late.virtual_bytes, early.virtual_bytes);
        /* How often blocks are cut may differ from iteration to iteration. */
        assert_true(late.metadata_bytes <= early.metadata_bytes + (planned ? 0 : 4096));
        assert_int_equal(late.quarantined_bytes, 0);
        assert_int_equal(late.driver_calls, early.driver_calls);
        assert_int_equal(late.map_waits, early.map_waits);
        if (planned)
            assert_int_equal(late.planned - early.planned, PER_ITERATION * 9990);
        end(&f);
    }
}

/* ---- failing verbs ---- */

static void policies_survive_every_failing_verb(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0003);
    static const pleat__fault_verb verbs[] = {
        PLEAT__FAULT_create,       PLEAT__FAULT_map,         PLEAT__FAULT_set_access,
        PLEAT__FAULT_unmap,        PLEAT__FAULT_release,     PLEAT__FAULT_event_create,
        PLEAT__FAULT_event_record, PLEAT__FAULT_event_query, PLEAT__FAULT_event_wait};
    for (size_t i = 0; i < POLICIES; i++) {
        for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
            /* Until the sequence is over before the call that should fail. */
            uint64_t hits = 1;
            for (uint64_t nth = 1; hits > 0; nth += 1 + nth / 2) {
                fixture f;
                open_host(&f, 4096 * MIB, true);
                pleat_runtime_options options = {
                    .size = sizeof options, .policy = policies[i], .budget_bytes = 1500 * MIB};
                assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
                test_random same = {random.state + nth};
                pleat__fault_arm(
                    &f.vmm,
                    (pleat__fault_plan){.verb = verbs[v], .nth = nth, .carried_out = nth % 2 == 1});
                churn(&f, &same, 300, false);
                assert_ok(pleat_empty_cache(f.runtime));
                hits = pleat__fault_hits(&f.vmm);
                pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
                end(&f);
            }
        }
    }
}

/* Wherever host memory ends, the call says so, or does with what it has; all that lives stays
 * whole, and nothing is lost. */
static void policies_survive_every_want_of_host_memory(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed000c);
    for (size_t i = 0; i < POLICIES * 2; i++) {
        uint64_t failed = 1;
        for (uint64_t nth = 1; failed > 0; nth += 1 + nth / 3) {
            fixture f;
            open_host(&f, 4096 * MIB, false);
            pleat_runtime_options options = {
                .size = sizeof options, .policy = policies[i / 2], .budget_bytes = 1500 * MIB};
            test_random same = {random.state + nth};
            pleat__arena_fail(nth, i % 2 == 1);
            pleat_result result = pleat_runtime_create(f.vmm, &options, &f.runtime);
            if (result == PLEAT_OK) {
                churn(&f, &same, 300, false);
                failed = f.failed;
                assert_ok(pleat_empty_cache(f.runtime));
                assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
                end(&f);
                continue;
            }
            assert_int_equal(result, PLEAT_E_NO_MEMORY);
            assert_true(pleat__arena_failed() > 0);
            pleat__arena_fail(0, false);
            assert_nothing_held(&f);
            pleat_vmm_destroy(&f.host);
        }
    }
}

/* A view whose unmap fails costs nothing for good: not its pages, not its record. */
static void views_that_were_quarantined_leave_nothing_behind(void **state)
{
    (void)state;
    static const char *const stitching[] = {"gmlake", "pleat"};
    for (size_t i = 0; i < 4; i++) {
        fixture f;
        uint64_t metadata = 0;
        open_host(&f, 4096 * MIB, true);
        /* Learning would remember where requests lay. */
        pleat_runtime_options options = {
            .size = sizeof options, .policy = stitching[i / 2], .conf = "learn:off"};
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        for (int round = 0; round < 6; round++) {
            pleat_va a = take(&f, 100 * MIB, 0), b = take(&f, 50 * MIB, 0);
            pleat_va c = take(&f, 100 * MIB, 0);
            assert_ok(pleat_free(f.runtime, a));
            assert_ok(pleat_free(f.runtime, c));
            uint64_t waits = pleat_stats_of(f.runtime).map_waits;
            assert_ok(pleat_free(f.runtime, take(&f, 190 * MIB, 0)));
            assert_int_equal(pleat_stats_of(f.runtime).map_waits, waits + 1);
            assert_int_equal(pleat_stats_of(f.runtime).stitched, round + 1);
            /* The first unmap is the view's. */
            pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_unmap,
                                                         .nth = 1,
                                                         .carried_out = i % 2 == 1});
            assert_ok(pleat_free(f.runtime, b));
            assert_ok(pleat_empty_cache(f.runtime));
            assert_int_equal(pleat__fault_hits(&f.vmm), 1);
            assert_ok(pleat_empty_cache(f.runtime));
            pleat_stats stats = pleat_stats_of(f.runtime);
            assert_int_equal(stats.quarantined_bytes, 0);
            assert_int_equal(stats.virtual_bytes, 0);
            assert_int_equal(stats.physical_bytes, 0);
            metadata = round == 2 ? stats.metadata_bytes : metadata;
            assert_true(round < 2 || stats.metadata_bytes == metadata);
        }
        end(&f);
    }
}

/* ---- threads ---- */

#define THREADS 8

typedef struct worker {
    fixture *f;
    pthread_mutex_t *lock; /* of the mailbox */
    tensor *mailbox;
    int *mail;
    uint64_t seed;
    const char *said; /* what went wrong */
} worker;

/* Frees what other threads allocated, and leaves them what it allocated. */
static const char *work_on(worker *w)
{
    test_random random = {w->seed};
    for (int i = 0; i < 400; i++) {
        tensor t = {.bytes = 8 + test_random_below(&random, 6 * MIB)};
        pleat_stream stream = test_random_below(&random, 4);
        if (pleat_alloc(w->f->runtime, t.bytes, stream, &t.address) != PLEAT_OK)
            return "an allocation failed";
        fill(&t, &random);
        if (test_random_below(&random, 4) == 0 &&
            pleat_record_stream(w->f->runtime, t.address, 10 + test_random_below(&random, 3)) !=
                PLEAT_OK)
            return "record_stream failed";
        pthread_mutex_lock(w->lock);
        tensor other = t;
        if (*w->mail < LIVE_MOST) {
            w->mailbox[(*w->mail)++] = t;
            other.address = 0;
        }
        if (*w->mail > LIVE_MOST / 2 && other.address == 0)
            other = w->mailbox[--*w->mail];
        pthread_mutex_unlock(w->lock);
        if (other.address != 0 && *word_at(&other, false) != other.mark)
            return "a tensor was written over";
        if (pleat_free(w->f->runtime, other.address) != PLEAT_OK)
            return "a free failed";
    }
    return NULL;
}

static void *work(void *context)
{
    worker *w = context;
    w->said = work_on(w);
    return NULL;
}

static void threads_share_a_runtime(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0004);
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        begin(&f, policies[i], 4096 * MIB, 0);
        pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        tensor mailbox[LIVE_MOST];
        int mail = 0;
        worker workers[THREADS];
        pthread_t threads[THREADS];
        for (int t = 0; t < THREADS; t++) {
            workers[t] = (worker){&f, &lock, mailbox, &mail, test_random_next(&random), NULL};
            assert_int_equal(pthread_create(&threads[t], NULL, work, &workers[t]), 0);
        }
        for (int t = 0; t < THREADS; t++) {
            assert_int_equal(pthread_join(threads[t], NULL), 0);
            assert_null(workers[t].said);
        }
        while (mail > 0)
            assert_ok(pleat_free(f.runtime, mailbox[--mail].address));
        end(&f);
    }
}

static void budget_can_be_set_while_it_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        begin(&f, policies[i], 1024 * MIB, 0);
        assert_int_equal(pleat_limit_of(f.runtime), 1024 * MIB);
        pleat_va a = take(&f, 100 * MIB, 0), b = take(&f, 60 * MIB, 0), none;
        assert_ok(pleat_free(f.runtime, a));
        assert_ok(pleat_set_budget(f.runtime, 80 * MIB));
        assert_int_equal(pleat_limit_of(f.runtime), 80 * MIB);
        assert_true(pleat_stats_of(f.runtime).physical_bytes <= 80 * MIB);
        assert_result(pleat_alloc(f.runtime, 70 * MIB, 0, &none), PLEAT_E_BUDGET);
        assert_ok(pleat_set_budget(f.runtime, 0));
        assert_int_equal(pleat_limit_of(f.runtime), 1024 * MIB);
        a = take(&f, 70 * MIB, 0);
        assert_ok(pleat_free(f.runtime, a));
        assert_ok(pleat_free(f.runtime, b));
        end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runtime_checks_its_arguments),
        cmocka_unit_test(budget_may_be_lifted_by_the_program_that_is_asked),
        cmocka_unit_test(runtime_serves_and_counts),
        cmocka_unit_test(out_of_memory_gives_caches_back_first),
        cmocka_unit_test(out_of_memory_says_what_there_is),
        cmocka_unit_test(out_of_memory_asks_the_program_last),
        cmocka_unit_test(streams_delay_a_free_until_their_events),
        cmocka_unit_test(streams_take_over_what_waits_behind_its_events),
        cmocka_unit_test(streams_that_cannot_be_ordered_are_waited_for),
        cmocka_unit_test(streams_know_their_blocks),
        cmocka_unit_test(streams_may_be_many),
        cmocka_unit_test(nothing_is_unmapped_without_an_event),
        cmocka_unit_test(streams_are_waited_for_before_a_refusal),
        cmocka_unit_test(settings_reach_the_policies),
        cmocka_unit_test(streams_no_byte_is_reused_before_its_event),
        cmocka_unit_test(policies_keep_data_whole_under_a_budget),
        cmocka_unit_test(ten_thousand_iterations_leave_everything_as_it_was),
        cmocka_unit_test(policies_survive_every_failing_verb),
        cmocka_unit_test(policies_survive_every_want_of_host_memory),
        cmocka_unit_test(views_that_were_quarantined_leave_nothing_behind),
        cmocka_unit_test(threads_share_a_runtime),
        cmocka_unit_test(budget_can_be_set_while_it_runs),
    };
    return cmocka_run_group_tests_name("runtime", tests, NULL, NULL);
}
