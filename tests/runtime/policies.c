/*
 * policies.c: what every policy must do whatever is asked of it: random requests against a naive
 * model, ten thousand iterations, failing verbs, want of host memory, threads. Nothing is written
 * over, nothing grows, nothing is left.
 */
#include "fixture.h"

#include <stdlib.h>

/* ---- a naive model ---- */

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
        return 130 * MIB + test_random_below(random, 60 * MIB);
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
#define BATCHES       4 /* of them */

/* Half of an iteration's tensors die in it, the rest in the next, some of them, as a batch of data
 * does, only when the next of their kind is there. */
static void iterate(fixture *f, const uint64_t bytes[PER_ITERATION], pleat_va crossing[])
{
    pleat_va now[PER_ITERATION];
    assert_ok(pleat_mark(f->runtime));
    for (int i = 0; i < PER_ITERATION; i++) {
        bool batch = i % (PER_ITERATION / BATCHES) == 1;
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
    test_of_one_thread();
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
        /* In the place of a batch the one before it may still lie. */
        if (planned)
            assert_in_range(late.planned - early.planned, (PER_ITERATION - BATCHES) * 9990,
                            PER_ITERATION * 9990);
        end(&f);
    }
}

/* ---- failing verbs ---- */

/* They reach as many lines of runtime/ and vmm/ as twice as many do; 100 reach 14 fewer. */
#define STEPS 150

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
            for (uint64_t nth = 1; hits > 0; nth += 1 + nth / test_rounds(2)) {
                fixture f;
                open_host(&f, 4096 * MIB, true);
                pleat_runtime_options options = {
                    .size = sizeof options, .policy = policies[i], .budget_bytes = 1500 * MIB};
                assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
                test_random same = {random.state + nth};
                pleat__fault_arm(
                    &f.vmm,
                    (pleat__fault_plan){.verb = verbs[v], .nth = nth, .carried_out = nth % 2 == 1});
                churn(&f, &same, STEPS, false);
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
        for (uint64_t nth = 1; failed > 0; nth += 1 + nth / test_rounds(3)) {
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
            assert_nothing_held(&f.host);
            pleat_vmm_destroy(&f.host);
        }
    }
}

/* On a clock that passes by what verbs cost, and stands still else. */
static void what_calls_wait_for_is_counted(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        uint64_t cost_ns, later_ns;
        open_host(&f, 1024 * MIB, false);
        assert_ok(pleat__host_set_costs(&f.host, &pleat__host_costs_h200));
        assert_ok(pleat__host_clock_set(&f.host, 1000000));
        pleat_runtime_options options = {.size = sizeof options, .policy = policies[i]};
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        assert_int_equal(pleat_stats_of(f.runtime).waited_ns, 0);
        assert_ok(pleat__host_modelled_ns(&f.host, &cost_ns, NULL));
        assert_ok(pleat_free(f.runtime, take(&f, 100 * MIB, 0)));
        assert_ok(pleat__host_modelled_ns(&f.host, &later_ns, NULL));
        uint64_t waited = pleat_stats_of(f.runtime).waited_ns;
        assert_in_range(waited, 1, later_ns - cost_ns);
        assert_ok(pleat_free(f.runtime, take(&f, 100 * MIB, 0)));
        assert_int_equal(pleat_stats_of(f.runtime).waited_ns, waited);
        end(&f);
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
            .size = sizeof options, .policy = stitching[i / 2], .conf = "learn:off,fragment:2m"};
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

/* However many streams there are, each has its memory. */
static void policies_serve_many_streams(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++) {
        fixture f;
        begin(&f, policies[p], 1024 * MIB, 0);
        enum { STREAMS = 24 };
        pleat_va large[STREAMS], small[STREAMS];
        for (pleat_stream s = 0; s < STREAMS; s++) {
            large[s] = take(&f, 4 * MIB, s);
            small[s] = take(&f, 100000, s);
        }
        for (pleat_stream s = 0; s < STREAMS; s++) {
            assert_ok(pleat_free(f.runtime, large[s]));
            assert_ok(pleat_free(f.runtime, small[s]));
        }
        end(&f);
    }
}

/* The share of the budget is of the one that holds now. */
static void policies_collect_by_the_budget_that_holds(void **state)
{
    (void)state;
    fixture f;
    open_host(&f, 1024 * MIB, false);
    pleat_runtime_options options = {
        .size = sizeof options, .policy = "native", .conf = "collect:50"};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    assert_ok(pleat_set_budget(f.runtime, 200 * MIB));
    pleat_va old = take(&f, 50 * MIB, 0);
    (void)take(&f, 60 * MIB, 0);
    assert_ok(pleat_free(f.runtime, old));
    (void)take(&f, 80 * MIB, 0);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 140 * MIB);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_serve_many_streams),
        cmocka_unit_test(policies_keep_data_whole_under_a_budget),
        cmocka_unit_test(ten_thousand_iterations_leave_everything_as_it_was),
        cmocka_unit_test(policies_survive_every_failing_verb),
        cmocka_unit_test(policies_survive_every_want_of_host_memory),
        cmocka_unit_test(what_calls_wait_for_is_counted),
        cmocka_unit_test(views_that_were_quarantined_leave_nothing_behind),
        cmocka_unit_test(threads_share_a_runtime),
        cmocka_unit_test(policies_collect_by_the_budget_that_holds),
    };
    /* gmlake stitches blocks of every size, so that there are views in all that is tried. */
    setenv("PLEAT_CONF", "fragment:2m", 1);
    return cmocka_run_group_tests_name("policies", tests, NULL, NULL);
}
