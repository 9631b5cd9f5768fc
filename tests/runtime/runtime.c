/*
 * runtime.c: the public calls over the host backend: argument checks, settings, budgets, the steps
 * of out of memory. Every policy goes through the same tests.
 */
#include "fixture.h"

#include <runtime/base/conf.h>

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

static int tag_and_lift(void *context, uint64_t bytes, pleat_stream stream)
{
    assert_ok(pleat_tag("of the callback"));
    return lift_budget(context, bytes, stream);
}

/* What the callback says of its thread's tag is of later requests. */
static void callback_may_change_the_tag(void **state)
{
    (void)state;
    fixture f;
    open_host(&f, 1024 * MIB, false);
    pleat_runtime_options options = {.size = sizeof options,
                                     .budget_bytes = 100 * MIB,
                                     .memory_callback = tag_and_lift,
                                     .memory_context = &f};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    assert_ok(pleat_tag("before"));
    assert_ok(pleat_tag(NULL));
    pleat_va address = take(&f, 350 * MIB, 0);
    pleat_pause_options pause = {.size = sizeof pause, .tag = "of the callback"};
    assert_ok(pleat_pause(f.runtime, &pause));
    assert_true(pleat_stats_of(f.runtime).physical_bytes >= 350 * MIB);
    assert_ok(pleat_resume(f.runtime, NULL));
    assert_ok(pleat_tag(NULL));
    assert_ok(pleat_free(f.runtime, address));
    end(&f);
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
    assert_nothing_held(&f.host);
    pleat_vmm_destroy(&f.host);
}

/* As programs ask that were built when there were fewer counters, or will be when there are more.
 */
static void runtime_fills_in_the_counters_that_a_program_knows(void **state)
{
    (void)state;
    struct {
        pleat_stats known;
        uint64_t newer;
    } stats;
    void (*const calls[])(pleat_runtime *, pleat_stats *, size_t) = {pleat_stats_fill,
                                                                     pleat_reset_peaks_fill};
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    take(&f, 1000, 0);
    for (size_t c = 0; c < 2; c++) {
        memset(&stats, 0xff, sizeof stats);
        calls[c](f.runtime, &stats.known, offsetof(pleat_stats, live_bytes));
        assert_int_equal(stats.known.requests, 1);
        assert_int_equal(stats.known.live_bytes, UINT64_MAX);
        calls[c](f.runtime, &stats.known, sizeof stats);
        assert_int_equal(stats.known.live_bytes, 1024);
        assert_int_equal(stats.newer, 0);
    }
    end(&f);
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
        assert_int_equal(stats.requested_bytes, 1000 + 45 * MIB);
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
        stats = pleat_reset_peaks(f.runtime);
        assert_int_equal(stats.peak_live_bytes, 1024 + 45 * MIB);
        assert_int_equal(stats.peak_requested_bytes, 1000 + 45 * MIB);
        assert_int_equal(stats.peak_blocks, 3);
        assert_int_equal(stats.asked_bytes, 1000 + 45 * MIB);
        assert_int_equal(stats.requested_bytes, 0);
        assert_int_equal(pleat_stats_of(f.runtime).peak_live_bytes, 0);
        assert_int_equal(pleat_stats_of(f.runtime).peak_requested_bytes, 0);
        assert_int_equal(pleat_stats_of(f.runtime).peak_blocks, 0);
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

/* Less than two digits of a MiB show is told in bytes. */
static void out_of_memory_tells_a_small_budget(void **state)
{
    (void)state;
    fixture f;
    pleat_va refused;
    begin(&f, "pleat", 1024 * MIB, 1);
    assert_result(pleat_alloc(f.runtime, 512, 0, &refused), PLEAT_E_BUDGET);
    assert_true(has("a budget of 1 byte,"));
    assert_ok(pleat_set_budget(f.runtime, 5000));
    assert_result(pleat_alloc(f.runtime, 512, 0, &refused), PLEAT_E_BUDGET);
    assert_true(has("a budget of 5000 bytes,"));
    end(&f);
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
        assert_false(has("are in use")); /* the attempt's own, which has gone back */
        /* And it does fit. */
        pleat_va fits = take(&f, 40 * MIB, 0);
        assert_ok(pleat_free(f.runtime, fits));
        assert_result(pleat_alloc(f.runtime, 101 * MIB, 0, &refused), PLEAT_E_BUDGET);
        assert_result(pleat_alloc(f.runtime, UINT64_MAX, 0, &refused), PLEAT_E_OUT_OF_MEMORY);
        pleat_stats stats = pleat_stats_of(f.runtime);
        assert_int_equal(stats.out_of_memory, 3);
        assert_int_equal(stats.live_bytes, 60 * MIB);
        assert_int_equal(stats.requests, 2);
        /* Beside what lives there may be idle memory that cannot go: it serves no larger request
         * than the budget either. */
        pleat_va split = take(&f, 12 * MIB, 0);
        assert_ok(pleat_free(f.runtime, take(&f, 16 * MIB, 0)));
        assert_ok(pleat_set_budget(f.runtime, 3 * MIB));
        assert_result(pleat_alloc(f.runtime, 4 * MIB, 0, &refused), PLEAT_E_BUDGET);
        const char *fit = strstr(pleat_last_error()->text, "would fit now ");
        assert_non_null(fit);
        assert_true(atof(fit + strlen("would fit now ")) <= 3);
        assert_ok(pleat_free(f.runtime, split));
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

/* PyTorch's two run its free-memory callbacks before each new segment; the others ask nobody. */
static void new_memory_is_asked_for_first_as_in_torch(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        giver g = {.f = &f};
        bool torch = strcmp(policies[i], "native") == 0 || strcmp(policies[i], "expandable") == 0;
        open_host(&f, 1024 * MIB, false);
        pleat_runtime_options options = {.size = sizeof options,
                                         .policy = policies[i],
                                         .early_callback = give_one,
                                         .memory_context = &g};
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        g.address = take(&f, 70 * MIB, 3);
        assert_int_equal(g.asked, torch);
        uint64_t once = pleat_stats_of(f.runtime).physical_bytes;
        pleat_va given = g.address, a = take(&f, 70 * MIB, 3);
        assert_int_equal(g.asked, torch ? 2 : 0);
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes == once, torch);
        assert_int_equal(a == given, torch);
        end(&f);
    }
}

static void divisions_are_written_as_torch_writes_them(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint16_t at_1, at_256, at_512, at_1024, at_32768; /* MiB */
    } good[] = {
        {"divisions:4", 4, 4, 4, 4, 4},
        {"divisions:[256:1,512:2,1024:4,>:8],collect:1", 1, 1, 2, 4, 8},
        {"collect:1,divisions:[256:2,>:4]", 2, 2, 4, 4, 4},
        {"divisions:[256:2,1024:4]", 2, 2, 0, 4, 0},
        {"divisions:[>:16]", 16, 16, 16, 16, 16},
        {"divisions:[65536:2]", 2, 2, 2, 2, 2},
    };
    static const char *const bad[] = {
        "divisions:3",         "divisions:[256:3]", "divisions:[255:2]", "divisions:[",
        "divisions:[]",        "divisions:[256]",   "divisions:[256:2",  "divisions:[0:2]",
        "divisions:[256:2,]",  "divisions:131072",  "divisions:x",       "divisions:",
        "divisions:[256:2]:1", "divisions:[:2]",
    };
    pleat__conf conf;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(pleat__conf_read(good[i].text, &conf));
        assert_int_equal(conf.divisions.of[0], good[i].at_1);
        assert_int_equal(conf.divisions.of[8], good[i].at_256);
        assert_int_equal(conf.divisions.of[9], good[i].at_512);
        assert_int_equal(conf.divisions.of[10], good[i].at_1024);
        assert_int_equal(conf.divisions.of[15], good[i].at_32768);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_result(pleat__conf_read(bad[i], &conf), PLEAT_E_INVALID);
    /* A bracket in the name of a file begins no list. */
    assert_ok(pleat__conf_read("log:[,collect:1,divisions:[256:2]", &conf));
    assert_string_equal(conf.log, "[");
    assert_int_equal(conf.divisions.of[8], 2);
}

static void settings_reach_the_policies(void **state)
{
    (void)state;
    fixture f;
    open_host(&f, 1024 * MIB, false);
    pleat_runtime_options options = {
        .size = sizeof options, .policy = "native", .budget_bytes = 200 * MIB};
    static const char *const bad[] = {"max_split:1m", "max_round:19m", "collect:100", "collect:yes",
                                      "none:1"};
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
    options.conf = "divisions:2";
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    take(&f, 70 * MIB, 0);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 96 * MIB);
    pleat_runtime_destroy(f.runtime);
    options.conf = "max_split:40m,max_round:30m";
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    assert_ok(pleat_free(f.runtime, take(&f, 75 * MIB, 0)));
    take(&f, 50 * MIB, 0);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 76 * MIB);
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

/* A part of it is new, the rest another stream's: neither goes back to the device for that. */
static void budget_is_met_with_what_another_stream_left(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 20 * MIB);
    assert_ok(pleat_free(f.runtime, take(&f, 8 * MIB, 1)));
    pleat_va all = take(&f, 20 * MIB, 0);
    pleat_stats stats = pleat_stats_of(f.runtime);
    assert_int_equal(stats.creates, 10);
    assert_int_equal(stats.releases, 0);
    assert_int_equal(stats.physical_bytes, 20 * MIB);
    assert_ok(pleat_free(f.runtime, all));
    end(&f);
}

/* Granules are counted in 32 bits: no request is taken for what it is beyond them. */
static void requests_beyond_what_is_counted_are_refused(void **state)
{
    (void)state;
    fixture f;
    pleat_va address = 77;
#ifdef __SANITIZE_THREAD__
    skip(); /* such a device's window has no room beside the sanitizer's own memory */
#endif
    begin(&f, "pleat", 4 * 1024 * 1024 * MIB, 0);
    assert_result(pleat_alloc(f.runtime, 2 * 1024 * 1024 * MIB + 512, 0, &address), PLEAT_E_LIMIT);
    assert_int_equal(address, 0);
    assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 0);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budget_may_be_lifted_by_the_program_that_is_asked),
        cmocka_unit_test(callback_may_change_the_tag),
        cmocka_unit_test(runtime_checks_its_arguments),
        cmocka_unit_test(runtime_fills_in_the_counters_that_a_program_knows),
        cmocka_unit_test(runtime_serves_and_counts),
        cmocka_unit_test(out_of_memory_gives_caches_back_first),
        cmocka_unit_test(out_of_memory_says_what_there_is),
        cmocka_unit_test(out_of_memory_tells_a_small_budget),
        cmocka_unit_test(out_of_memory_asks_the_program_last),
        cmocka_unit_test(new_memory_is_asked_for_first_as_in_torch),
        cmocka_unit_test(divisions_are_written_as_torch_writes_them),
        cmocka_unit_test(settings_reach_the_policies),
        cmocka_unit_test(budget_can_be_set_while_it_runs),
        cmocka_unit_test(budget_is_met_with_what_another_stream_left),
        cmocka_unit_test(requests_beyond_what_is_counted_are_refused),
    };
    return cmocka_run_group_tests_name("runtime", tests, NULL, NULL);
}
