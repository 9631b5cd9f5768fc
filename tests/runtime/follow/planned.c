/*
 * planned.c: the policy `pleat` on made-up jobs: learning in place, following, diverging, coming
 * back; no byte is ever given to two.
 */
#include "job.h"

#include <runtime/base/states.h>

/* Runs `count` iterations with marks; returns what the counters gained in them. */
static pleat_stats run_iterations(job *j, const job_shape *shape, uint32_t count)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(pleat_mark(j->runtime));
        job_iterate(j, shape, JOB_PLAIN, 0);
    }
    pleat_stats after = pleat_stats_of(j->runtime);
    after.requests -= before.requests;
    after.planned -= before.planned;
    after.driver_calls -= before.driver_calls;
    after.diverged -= before.diverged;
    after.slot_busy -= before.slot_busy;
    return after;
}

static void planned_job_is_learned_in_two_iterations(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(1, 1);
    job_start(&j, "pleat", NULL, 0);
    job_tensor weights = job_alloc(&j, 3000000, 0);
    assert_int_equal(run_iterations(&j, &shape, 2).planned, 0);
    /* The boundary may find some that cross it elsewhere; they settle. */
    run_iterations(&j, &shape, 4);
    pleat_stats stats = run_iterations(&j, &shape, 10);
    assert_int_equal(stats.planned, stats.requests);
    assert_int_equal(stats.driver_calls, 0);
    job_drain(&j);
    job_free(&j, &weights);
    assert_int_equal(j.errors, 0);
    assert_int_equal(pleat_stats_of(j.runtime).live_bytes, 0);
    job_stop(&j);
}

static void planned_physical_stays_at_what_is_live(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(2, 4);
    job_start(&j, "pleat", NULL, 0);
    pleat_stats stats = run_iterations(&j, &shape, 8);
    assert_true(stats.peak_physical_bytes * 0.95 <= stats.peak_live_bytes);
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

static void planned_disturbed_iterations_keep_98_percent(void **state)
{
    (void)state;
    job j, plain;
    job_shape shape = job_shape_make(4, 4);
    test_random random = test_random_begin("planned", 0x91a);
    job_start(&j, "pleat", NULL, 0);
    job_start(&plain, "pleat", NULL, 0);
    run_iterations(&j, &shape, 6);
    pleat_stats before = pleat_stats_of(j.runtime);
    for (int i = 0; i < 200; i++) {
        uint32_t at = (uint32_t)test_random_below(&random, JOB_REQUESTS - 1);
        job_disturbance what =
            i % 10 == 0 ? (job_disturbance)(1 + test_random_below(&random, JOB_DISTURBANCES - 1))
                        : JOB_PLAIN;
        assert_ok(pleat_mark(j.runtime));
        job_iterate(&j, &shape, what, at);
    }
    pleat_stats after = pleat_stats_of(j.runtime);
    assert_true((after.planned - before.planned) * 100 >= (after.requests - before.requests) * 98);
    pleat_stats undisturbed = run_iterations(&plain, &shape, 20);
    /* What is more live is more memory; beyond that 1 %, and some chunks of this small job. */
    uint64_t more = after.peak_live_bytes - undisturbed.peak_live_bytes;
    assert_true(after.peak_physical_bytes <= undisturbed.peak_physical_bytes + more +
                                                 undisturbed.peak_physical_bytes / 100 +
                                                 4 * JOB_PAGE);
    job_drain(&j);
    job_drain(&plain);
    assert_int_equal(j.errors + plain.errors, 0);
    job_stop(&j);
    job_stop(&plain);
}

static void planned_evaluation_between_iterations_leaves_the_plan(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(5, 1);
    job_start(&j, "pleat", NULL, 0);
    run_iterations(&j, &shape, 6);
    for (int loop = 0; loop < 3; loop++) {
        for (uint64_t i = 0; i < 1000; i++) {
            job_tensor t = job_alloc(&j, 7000 + i % 10 * 3000, 0);
            job_free(&j, &t);
        }
        /* From its first request on: no slot is in the way of another's. */
        pleat_stats stats = run_iterations(&j, &shape, 1);
        assert_int_equal(stats.slot_busy, 0);
        stats = run_iterations(&j, &shape, 3);
        assert_true(stats.planned * 100 >= stats.requests * 98);
    }
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

/* There is one schedule: a shape that comes takes the place of the one before, after one iteration
 * in which that was left and two that are alike. */
static void planned_shape_that_comes_is_learned_in_four_iterations(void **state)
{
    (void)state;
    job j;
    job_shape shapes[2] = {job_shape_make(6, 1), job_shape_make(7, 2)};
    job_start(&j, "pleat", NULL, 0);
    for (int visit = 0; visit < 6; visit++) {
        const job_shape *shape = &shapes[visit % 2];
        run_iterations(&j, shape, 6);
        pleat_stats stats = run_iterations(&j, shape, 10);
        assert_int_equal(stats.planned, stats.requests);
        assert_int_equal(stats.driver_calls, 0);
        job_drain(&j);
        memset(j.before, 0, sizeof j.before);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.switches, 6);
    assert_true(stats.divergences >= 5);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

/* Stretches of a new shape are those of an old one. */
static void planned_shape_that_is_an_old_one_in_part_is_learned(void **state)
{
    (void)state;
    job j;
    job_shape old = job_shape_make(11, 1), new = old;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        if (i % 100 >= 30)
            new.bytes[i] += 77777 + 512 * (uint64_t)i;
    job_start(&j, "pleat", NULL, 0);
    run_iterations(&j, &old, 6);
    job_drain(&j);
    memset(j.before, 0, sizeof j.before);
    run_iterations(&j, &new, 8);
    pleat_stats stats = run_iterations(&j, &new, 20);
    assert_true(stats.planned * 100 >= stats.requests * 99);
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

static void planned_many_iterations_leave_everything_as_it_was(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(8, 1);
    job_start(&j, "pleat", NULL, 0);
    run_iterations(&j, &shape, 10);
    pleat_stats early = pleat_stats_of(j.runtime);
    pleat_stats gained = run_iterations(&j, &shape, 1000);
    pleat_stats late = pleat_stats_of(j.runtime);
    assert_int_equal(late.physical_bytes, early.physical_bytes);
    assert_int_equal(late.virtual_bytes, early.virtual_bytes);
    assert_int_equal(late.metadata_bytes, early.metadata_bytes);
    assert_int_equal(late.quarantined_bytes, early.quarantined_bytes);
    assert_int_equal(late.map_waits, early.map_waits);
    assert_int_equal(gained.driver_calls, 0);
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

static void planned_large_request_is_stitched_from_what_is_free(void **state)
{
    (void)state;
    job j;
    job_tensor t[32];
    job_start(&j, "pleat", NULL, 0);
    for (int i = 0; i < 32; i++)
        t[i] = job_alloc(&j, 4 * JOB_PAGE, 0);
    for (int i = 0; i < 32; i += 2)
        job_free(&j, &t[i]);
    uint64_t physical = pleat_stats_of(j.runtime).physical_bytes;
    job_tensor large = job_alloc(&j, 40 * JOB_PAGE + 777, 0);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.physical_bytes, physical);
    assert_int_equal(stats.stitched, 1);
    /* What is left of the last chunk still serves others. */
    job_tensor rest = job_alloc(&j, 20 * JOB_PAGE, 0);
    assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, physical);
    /* The view is kept: the same request again costs no verb. */
    job_free(&j, &large);
    uint64_t calls = pleat_stats_of(j.runtime).driver_calls;
    large = job_alloc(&j, 40 * JOB_PAGE + 777, 0);
    assert_int_equal(pleat_stats_of(j.runtime).driver_calls, calls);
    assert_int_equal(pleat_stats_of(j.runtime).views_reused, 1);
    job_free(&j, &large);
    job_free(&j, &rest);
    for (int i = 1; i < 32; i += 2)
        job_free(&j, &t[i]);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

static void planned_out_of_memory_leaves_everything_usable(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 64 * JOB_PAGE);
    job_tensor t = job_alloc(&j, 40 * JOB_PAGE, 0);
    pleat_va address;
    pleat_result result = pleat_alloc(j.runtime, 30 * JOB_PAGE, 0, &address);
    assert_true(result == PLEAT_E_BUDGET || result == PLEAT_E_OUT_OF_MEMORY);
    job_tensor fits = job_alloc(&j, 24 * JOB_PAGE, 0);
    assert_true(pleat_stats_of(j.runtime).peak_physical_bytes <= 64 * JOB_PAGE);
    job_free(&j, &t);
    job_free(&j, &fits);
    /* All of it as one, from what two had. */
    t = job_alloc(&j, 64 * JOB_PAGE, 0);
    job_free(&j, &t);
    assert_ok(pleat_empty_cache(j.runtime));
    assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, 0);
    t = job_alloc(&j, 10 * JOB_PAGE, 0);
    job_free(&j, &t);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

/* Requests of one size, and before them one of `first` bytes. */
static void iterate_alike(job *j, uint64_t first, uint64_t bytes, uint32_t count)
{
    assert_ok(pleat_mark(j->runtime));
    job_tensor t = job_alloc(j, first, 0);
    job_free(j, &t);
    for (uint32_t i = 0; i < count; i++) {
        t = job_alloc(j, bytes + (i % 50) * 1000, 0);
        job_free(j, &t);
    }
}

/* A refused request comes again only when another iteration is followed: what it was matched with
 * is there no more, and its place there is too small. */
static void planned_refused_request_is_matched_anew_in_another_shape(void **state)
{
    (void)state;
    const uint64_t large = 20 * JOB_PAGE;
    job j;
    job_start(&j, "pleat", NULL, 0);
    for (int i = 0; i < 6; i++)
        iterate_alike(&j, large, 3000, 200);
    assert_ok(pleat_mark(j.runtime));
    job_tensor held = job_alloc(&j, large, 0);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_ok(pleat_set_budget(j.runtime, stats.physical_bytes));
    assert_ok(pleat_mark(j.runtime));
    pleat_va refused;
    assert_int_not_equal(pleat_alloc(j.runtime, large, 0, &refused), PLEAT_OK);
    assert_ok(pleat_set_budget(j.runtime, 0));
    for (int i = 0; i < 12; i++)
        iterate_alike(&j, 700, 5500, 300);
    uint64_t planned = pleat_stats_of(j.runtime).planned;
    iterate_alike(&j, 700, 5500, 300);
    assert_true(pleat_stats_of(j.runtime).planned - planned > 290);
    assert_ok(pleat_mark(j.runtime));
    job_tensor again = job_alloc(&j, large, 0);
    pleat_block block;
    assert_ok(pleat_block_of(j.runtime, again.address, &block));
    assert_int_equal(block.requested, large);
    job_free(&j, &again);
    job_free(&j, &held);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

static void planned_unknown_addresses_are_refused(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    job_tensor t = job_alloc(&j, 5000, 0);
    pleat_block block;
    assert_result(pleat_free(j.runtime, t.address + 512), PLEAT_E_NOT_FOUND);
    assert_ok(pleat_block_of(j.runtime, t.address + 4999, &block));
    assert_int_equal(block.address, t.address);
    assert_int_equal(block.requested, 5000);
    assert_int_equal(block.bytes, 5120);
    job_free(&j, &t);
    assert_result(pleat_free(j.runtime, block.address), PLEAT_E_NOT_FOUND);
    job_stop(&j);
}

typedef struct seen {
    const job_tensor *live;
    uint32_t count;
    uint64_t allocated;
    pleat_va last;
    bool sorted;
} seen;

static void see(void *context, const pleat_block *block)
{
    seen *s = context;
    s->sorted = s->sorted && block->address >= s->last;
    s->last = block->address + block->bytes;
    if (!block->allocated)
        return;
    s->allocated++;
    bool known = false;
    for (uint32_t i = 0; i < s->count; i++)
        known = known || s->live[i].address == block->address;
    assert_true(known);
}

/* Every address inside a block finds it, before and after marks by which its index may go, none
 * inside what was freed; also in views, which lie elsewhere than their memory. */
static void planned_any_address_finds_its_block(void **state)
{
    (void)state;
    enum { COUNT = 200 };
    job j;
    job_start(&j, "pleat", NULL, 0);
    test_random random = test_random_begin("inside", 0x1d5);
    job_tensor live[COUNT] = {0};
    for (int step = 0; step < 20000; step++) {
        job_tensor *t = &live[test_random_below(&random, COUNT)];
        pleat_block block;
        if (t->address == 0) {
            *t = job_alloc(&j, 1 + test_random_below(&random, step % 7 == 0 ? 600000 : 9000), 0);
            continue;
        }
        pleat_va inside = t->address + test_random_below(&random, t->bytes);
        assert_ok(pleat_block_of(j.runtime, inside, &block));
        assert_int_equal(block.address, t->address);
        assert_int_equal(block.requested, t->bytes);
        job_free(&j, t);
        assert_result(pleat_block_of(j.runtime, inside, &block), PLEAT_E_NOT_FOUND);
        if (step % 1000 < 2)
            assert_ok(pleat_mark(j.runtime));
    }
    seen s = {.live = live, .count = COUNT, .sorted = true};
    assert_ok(pleat_walk(j.runtime, see, &s));
    uint64_t count = 0;
    for (int i = 0; i < COUNT; i++) {
        count += live[i].address != 0;
        job_free(&j, &live[i]);
    }
    assert_true(s.sorted);
    assert_int_equal(s.allocated, count);
    assert_true(pleat_stats_of(j.runtime).stitched > 0);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

static void planned_streams_do_not_share_memory_in_use(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    test_random random = test_random_begin("streams", 0x57e);
    job_tensor live[64] = {0};
    for (int step = 0; step < 5000; step++) {
        job_tensor *t = &live[test_random_below(&random, 64)];
        if (t->address != 0)
            job_free(&j, t);
        else
            *t = job_alloc(&j, 100 + test_random_below(&random, 6 * JOB_PAGE),
                           1 + test_random_below(&random, 4));
    }
    for (int i = 0; i < 64; i++)
        job_free(&j, &live[i]);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

/* Two streams take turns with tensors of 100 to 139 pages, each its own; returns the job's counters
 * of ten learned iterations, but the peak of all. */
static pleat_stats take_turns(uint64_t budget)
{
    job j;
    pleat_stats before = {0};
    job_start(&j, "pleat", NULL, budget);
    for (uint32_t i = 0; i < 20; i++) {
        assert_ok(pleat_mark(j.runtime));
        if (i == 10)
            before = pleat_stats_of(j.runtime);
        for (uint64_t turn = 0; turn < 200; turn++) {
            job_tensor t = job_alloc(&j, (100 + turn % 40) * JOB_PAGE, 1 + turn % 2);
            job_free(&j, &t);
        }
    }
    pleat_stats after = pleat_stats_of(j.runtime);
    after.planned -= before.planned;
    after.streams_ordered -= before.streams_ordered;
    assert_int_equal(j.errors, 0);
    job_stop(&j);
    return after;
}

/* Once each of a slot's chunks was waited for by itself: hundreds of waits for one tensor. */
static void planned_memory_changes_streams_behind_one_wait(void **state)
{
    (void)state;
    pleat_stats stats = take_turns(145 * JOB_PAGE);
    assert_int_equal(stats.planned, 2000);
    assert_in_range(stats.streams_ordered, 1, 2000);
}

/* Once it was the other way round: each took what the other had just given back, and waited. */
static void planned_streams_keep_their_memory_while_there_is_more(void **state)
{
    (void)state;
    pleat_stats stats = take_turns(0);
    assert_int_equal(stats.planned, 2000);
    assert_int_equal(stats.streams_ordered, 0);
    assert_true(stats.peak_physical_bytes <= 2 * 140 * JOB_PAGE);
}

/* Once every second stream was taken for its neighbour, and record_stream did nothing then. */
static void planned_blocks_know_their_stream(void **state)
{
    (void)state;
    job j;
    pleat_block block;
    job_start(&j, "pleat", NULL, 0);
    for (pleat_stream stream = 100; stream < 160; stream++) {
        job_tensor t = job_alloc(&j, 1000, stream);
        assert_ok(pleat_block_of(j.runtime, t.address, &block));
        assert_int_equal(block.stream, stream);
        job_free(&j, &t);
    }
    job_stop(&j);
}

/* R12. */
static void states_setter_counts_causes(void **state)
{
    (void)state;
    pleat__states states = {0};
    pleat__states_set(&states, PLEAT__STATE_heap, PLEAT__CAUSE_start);
    pleat__states_set(&states, PLEAT__STATE_following, PLEAT__CAUSE_alike);
    pleat__states_set(&states, PLEAT__STATE_suspended, PLEAT__CAUSE_diverged);
    pleat__states_set(&states, PLEAT__STATE_following, PLEAT__CAUSE_resumed);
    assert_int_equal(states.entered[PLEAT__STATE_following], 2);
    assert_int_equal(states.caused[PLEAT__CAUSE_alike], 1);
    assert_int_equal(states.caused[PLEAT__CAUSE_resumed], 1);
    assert_string_equal(pleat__state_name(states.now), "following");
    assert_string_equal(pleat__cause_name(PLEAT__CAUSE_misfit), "misfit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_job_is_learned_in_two_iterations),
        cmocka_unit_test(planned_physical_stays_at_what_is_live),
        cmocka_unit_test(planned_disturbed_iterations_keep_98_percent),
        cmocka_unit_test(planned_evaluation_between_iterations_leaves_the_plan),
        cmocka_unit_test(planned_shape_that_comes_is_learned_in_four_iterations),
        cmocka_unit_test(planned_shape_that_is_an_old_one_in_part_is_learned),
        cmocka_unit_test(planned_many_iterations_leave_everything_as_it_was),
        cmocka_unit_test(planned_large_request_is_stitched_from_what_is_free),
        cmocka_unit_test(planned_out_of_memory_leaves_everything_usable),
        cmocka_unit_test(planned_refused_request_is_matched_anew_in_another_shape),
        cmocka_unit_test(planned_unknown_addresses_are_refused),
        cmocka_unit_test(planned_any_address_finds_its_block),
        cmocka_unit_test(planned_streams_do_not_share_memory_in_use),
        cmocka_unit_test(planned_memory_changes_streams_behind_one_wait),
        cmocka_unit_test(planned_streams_keep_their_memory_while_there_is_more),
        cmocka_unit_test(planned_blocks_know_their_stream),
        cmocka_unit_test(states_setter_counts_causes),
    };
    return cmocka_run_group_tests_name("planned", tests, NULL, NULL);
}
