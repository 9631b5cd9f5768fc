/*
 * refusal.c: a request that is refused: what it leaves behind, and what its text says.
 */
#include "fixture.h"

static uint64_t physical(const fixture *f)
{
    return pleat_stats_of(f->runtime).physical_bytes;
}

/* Blocks of 40 MiB, every other one of which is free. */
static void fill_with_holes(fixture *f)
{
    pleat_va blocks[20];
    for (int b = 0; b < 20; b++)
        blocks[b] = take(f, 40 * MIB, 0);
    for (int b = 0; b < 20; b += 2)
        assert_ok(pleat_free(f->runtime, blocks[b]));
}

/* Neither what the budget leaves nor what the device has is made for what does not fit. */
static void refusal_takes_no_memory(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++)
        for (int by_budget = 0; by_budget <= 1; by_budget++) {
            fixture f;
            pleat_va address;
            begin(&f, policies[p], by_budget ? 4096 * MIB : 2048 * MIB, by_budget ? 2048 * MIB : 0);
            fill_with_holes(&f);
            uint64_t before = physical(&f);
            assert_result(pleat_alloc(f.runtime, 1650 * MIB, 0, &address),
                          by_budget ? PLEAT_E_BUDGET : PLEAT_E_OUT_OF_MEMORY);
            assert_true(physical(&f) <= before);
            if (strcmp(policies[p], "pleat") == 0)
                assert_int_equal(pleat_stats_of(f.runtime).peak_physical_bytes, before);
            end(&f);
        }
}

/* Memory that another runtime has is not to be had, however much the budget would allow. */
static void refusal_by_a_shared_device_keeps_nothing(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++) {
        fixture f;
        pleat_runtime *other;
        pleat_va theirs, ours;
        begin(&f, policies[p], 1024 * MIB, 0);
        assert_ok(pleat_runtime_create(f.vmm, NULL, &other));
        assert_ok(pleat_alloc(other, 500 * MIB, 0, &theirs));
        pleat_va kept = take(&f, 40 * MIB, 0);
        uint64_t before = physical(&f);
        assert_result(pleat_alloc(f.runtime, 800 * MIB, 0, &ours), PLEAT_E_OUT_OF_MEMORY);
        assert_true(has("the largest request that would fit now 484.00 MiB"));
        assert_int_equal(physical(&f), before);
        /* Expandable segments and GMLake have pieces of 20 MiB. */
        ours = take(&f, strcmp(policies[p], "pleat") == 0 ? 484 * MIB : 440 * MIB, 0);
        assert_ok(pleat_free(f.runtime, ours));
        assert_ok(pleat_free(f.runtime, kept));
        pleat_runtime_destroy(other);
        end(&f);
    }
}

/* What is idle is given back for a request, or lent from stream to stream: all of it counts,
 * whether the request that was refused gave it back or was larger than all there is. */
static void refusal_says_what_is_served_next(void **state)
{
    (void)state;
    fixture f;
    pleat_va address;
    begin(&f, "pleat", 1024 * MIB, 0);
    pleat_va halves[] = {take(&f, 512 * MIB, 1), take(&f, 512 * MIB, 2)};
    assert_ok(pleat_free(f.runtime, halves[0]));
    assert_ok(pleat_free(f.runtime, halves[1]));
    assert_result(pleat_alloc(f.runtime, 2048 * MIB, 1, &address), PLEAT_E_OUT_OF_MEMORY);
    assert_true(has("the largest request that would fit now 1024.00 MiB"));
    address = take(&f, 1024 * MIB, 1);
    assert_ok(pleat_free(f.runtime, address));
    end(&f);
    begin(&f, "pleat", 4096 * MIB, 2048 * MIB);
    fill_with_holes(&f);
    for (uint64_t asked = 3000; asked >= 1649; asked -= 1351) {
        assert_result(pleat_alloc(f.runtime, asked * MIB, 0, &address), PLEAT_E_BUDGET);
        assert_true(has("the largest request that would fit now 1648.00 MiB"));
    }
    address = take(&f, 1648 * MIB, 0);
    end(&f);
}

typedef struct asked {
    pleat_runtime *runtime;
    int times;
} asked;

/* Calls of its own fail. */
static int give_nothing(void *context, uint64_t bytes, pleat_stream stream)
{
    asked *a = context;
    (void)bytes;
    (void)stream;
    a->times++;
    assert_result(pleat_free(a->runtime, 0xdead), PLEAT_E_NOT_FOUND);
    return 0;
}

static void begin_asking(fixture *f, const char *policy, uint64_t budget, asked *a)
{
    open_host(f, 1024 * MIB, false);
    pleat_runtime_options options = {.size = sizeof options,
                                     .policy = policy,
                                     .budget_bytes = budget,
                                     .memory_callback = give_nothing,
                                     .memory_context = a};
    assert_ok(pleat_runtime_create(f->vmm, &options, &f->runtime));
    *a = (asked){.runtime = f->runtime};
}

/* The reason is the request's, not what failed in the program's callback. */
static void refusal_says_why_whatever_the_callback_does(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++) {
        fixture f;
        asked a;
        pleat_va address;
        begin_asking(&f, policies[p], 0, &a);
        take(&f, 800 * MIB, 0);
        assert_result(pleat_alloc(f.runtime, 900 * MIB, 0, &address), PLEAT_E_OUT_OF_MEMORY);
        assert_int_equal(a.times, 1);
        assert_false(has("is not allocated"));
        end(&f);
    }
}

/* Above the budget it may help, which the program may raise; above the device nothing helps. */
static void refusal_above_the_device_asks_nobody(void **state)
{
    (void)state;
    fixture f;
    asked a;
    pleat_va address;
    begin_asking(&f, "pleat", 100 * MIB, &a);
    assert_result(pleat_alloc(f.runtime, 2048 * MIB, 0, &address), PLEAT_E_OUT_OF_MEMORY);
    assert_int_equal(a.times, 0);
    assert_result(pleat_alloc(f.runtime, 200 * MIB, 0, &address), PLEAT_E_BUDGET);
    assert_int_equal(a.times, 1);
    end(&f);
}

/* What was refused counts as that alone. */
static void refusal_is_not_among_the_requests(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++) {
        fixture f;
        pleat_va address;
        begin(&f, policies[p], 64 * MIB, 0);
        take(&f, 10 * MIB, 0);
        assert_result(pleat_alloc(f.runtime, 60 * MIB, 0, &address), PLEAT_E_OUT_OF_MEMORY);
        pleat_stats stats = pleat_stats_of(f.runtime);
        assert_int_equal(stats.requests, 1);
        assert_int_equal(stats.asked_bytes, 10 * MIB);
        assert_int_equal(stats.out_of_memory, 1);
        end(&f);
    }
}

/* Frees a block, and before that fails where it is told to. */
typedef struct helping {
    pleat_runtime *runtime;
    pleat_va block;
    bool fails;
} helping;

static int help(void *context, uint64_t bytes, pleat_stream stream)
{
    helping *h = context;
    (void)bytes;
    (void)stream;
    /* What the program sees is its own last failure. */
    assert_true(has("0x1 is not allocated"));
    if (h->fails)
        assert_result(pleat_free(h->runtime, 2), PLEAT_E_NOT_FOUND);
    assert_ok(pleat_free(h->runtime, h->block));
    return 1;
}

/* What a request that is served tries before leaves the last error as it was. */
static void served_requests_leave_the_last_error(void **state)
{
    (void)state;
    for (size_t p = 0; p < POLICIES; p++)
        for (int how = 0; how <= 2; how++) {
            fixture f;
            pleat_va blocks[9];
            helping h = {.fails = how == 2};
            open_host(&f, 1024 * MIB, false);
            pleat_runtime_options options = {.size = sizeof options,
                                             .policy = policies[p],
                                             .memory_callback = help,
                                             .memory_context = &h};
            assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
            for (int b = 0; b < 9; b++)
                blocks[b] = take(&f, 100 * MIB, (pleat_stream)b);
            for (int b = 0; b < 9 && how == 0; b++)
                assert_ok(pleat_free(f.runtime, blocks[b]));
            h.runtime = f.runtime;
            h.block = blocks[8];
            assert_result(pleat_free(f.runtime, 1), PLEAT_E_NOT_FOUND);
            take(&f, (how == 0 ? 900 : 200) * MIB, 0);
            assert_true(has(how == 2 ? "0x2 is not allocated" : "0x1 is not allocated"));
            end(&f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusal_by_a_shared_device_keeps_nothing),
        cmocka_unit_test(refusal_says_what_is_served_next),
        cmocka_unit_test(refusal_says_why_whatever_the_callback_does),
        cmocka_unit_test(refusal_is_not_among_the_requests),
        cmocka_unit_test(served_requests_leave_the_last_error),
        cmocka_unit_test(refusal_above_the_device_asks_nobody),
        cmocka_unit_test(refusal_takes_no_memory),
    };
    return cmocka_run_group_tests_name("refusal", tests, NULL, NULL);
}
