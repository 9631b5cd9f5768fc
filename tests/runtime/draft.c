/*
 * draft.c: made-up jobs whose requests vary from iteration to iteration, as experts' do, on a real
 * runtime over host memory, with a canary: a plan is made of them in the background and followed,
 * with as much memory as before; jobs that need none, and those for which none can be made, go on
 * as they were.
 */
#include "draft_job.h"
#include "failing.h"

#include <runtime/face/runtime_internal.h>
#include <runtime/learn/instance_internal.h>
#include <runtime/policy/pleat_internal.h>
#include <sched.h>

/* The 20 iterations behind the first 14; *stats are those at the end. */
static gained run_long(uint64_t seed, const char *conf, pleat_stats *stats)
{
    job j;
    job_shape shape = layers_make(seed);
    test_random random = {seed};
    job_start_with(&j, "pleat", NULL, 0, conf);
    job_tensor weights = job_alloc(&j, 3000000, 0);
    run(&j, &shape, &random, 14);
    gained later = run(&j, &shape, &random, 20);
    *stats = pleat_stats_of(j.runtime);
    job_free(&j, &weights);
    finish(&j);
    return later;
}

static void draft_gives_lanes_to_what_varies(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        pleat_stats stats, without;
        gained later = run_long(seed, "", &stats);
        gained off = run_long(seed, "draft:off", &without);
        assert_true(stats.drafts >= 1);
        assert_int_equal(without.drafts, 0);
        if (later.placed * 100 < later.requests * 97 || later.placed <= off.placed)
            fail_msg("%llu of %llu requests placed, %llu without", (unsigned long long)later.placed,
                     (unsigned long long)later.requests, (unsigned long long)off.placed);
        assert_true(stats.peak_physical_bytes <=
                    without.peak_physical_bytes + without.peak_physical_bytes / 10);
    }
}

/* A mark at the end of each iteration, as an optimizer's step gives them: the first one is found
 * behind the model's load, and with the second there are enough. */
static void draft_finds_the_iteration_before_the_first_mark(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        job j;
        job_shape shape = layers_make(seed);
        test_random random = {seed};
        job_tensor weights[40];
        job_start(&j, "pleat", NULL, 0);
        for (uint32_t i = 0; i < 40; i++)
            weights[i] = job_alloc(&j, 1000 + 3000 * (i % 7), 0);
        for (uint32_t n = 0; n < 2; n++) {
            route(&shape, &random);
            job_iterate(&j, &shape, JOB_PLAIN, 0);
            assert_int_equal(pleat_stats_of(j.runtime).drafts, 0);
            assert_ok(pleat_mark(j.runtime));
        }
        assert_int_equal(pleat_stats_of(j.runtime).drafts, 1);
        pleat_stats before = pleat_stats_of(j.runtime);
        route(&shape, &random);
        job_iterate(&j, &shape, JOB_PLAIN, 0);
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_true(after.planned + after.lane - before.planned - before.lane >
                    JOB_REQUESTS * 3 / 4);
        for (uint32_t i = 0; i < 40; i++)
            job_free(&j, &weights[i]);
        finish(&j);
    }
}

/* However long it takes to make: the job goes on, and follows it from the first mark behind. */
static void draft_keeps_no_mark_waiting(void **state)
{
    (void)state;
    const pleat_runtime_options options = {.size = sizeof options, .policy = "pleat", .conf = ""};
    job j;
    job_shape shape = layers_make(12);
    test_random random = {12};
    job_open(&j, &options);
    for (uint32_t n = 0; n < 5000 && pleat_stats_of(j.runtime).drafts == 0; n++) {
        run(&j, &shape, &random, 1);
        sched_yield();
    }
    assert_true(pleat_stats_of(j.runtime).drafts >= 1);
    assert_int_equal(pleat_stats_of(j.runtime).drafts_awaited, 0);
    gained later = run(&j, &shape, &random, 4);
    assert_true(later.placed * 100 >= later.requests * 95);
    finish(&j);
}

#define GRADIENTS 800u

/* A mark ahead of zero_grad: behind it the step's last copy of a weight goes first, which is larger
 * than what varies, then the gradients one by one. All is as good as with a mark behind them. */
static void draft_is_made_while_much_crosses_the_mark(void **state)
{
    (void)state;
    job j;
    job_shape shape = layers_make(13);
    test_random random = {13};
    job_tensor gradients[GRADIENTS] = {0}, copy = {0};
    pleat_stats before = {0}, after;
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t n = 0; n < 8; n++) {
        assert_ok(pleat_mark(j.runtime));
        before = pleat_stats_of(j.runtime);
        job_free(&j, &copy);
        for (uint32_t i = 0; i < GRADIENTS; i++)
            job_free(&j, &gradients[i]);
        route(&shape, &random);
        job_iterate(&j, &shape, JOB_PLAIN, 0);
        for (uint32_t i = 0; i < GRADIENTS; i++)
            gradients[i] = job_alloc(&j, 2000 + 1500 * (i % 11), 0);
        copy = job_alloc(&j, 8000000, 0);
    }
    after = pleat_stats_of(j.runtime);
    assert_int_equal(after.drafts, 1);
    assert_int_equal(after.drafts_refused, 0);
    assert_int_equal(after.planned + after.lane - before.planned - before.lane,
                     after.requests - before.requests);
    assert_int_equal(after.driver_calls, before.driver_calls);
    job_free(&j, &copy);
    for (uint32_t i = 0; i < GRADIENTS; i++)
        job_free(&j, &gradients[i]);
    finish(&j);
}

/* An iteration behind whose mark gradients are freed two by two, with the first requests. */
static void iterate_while_gradients_go(job *j, const job_shape *shape, job_tensor *gradients)
{
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        job_request(j, shape, i, 0);
        job_end_at(j, shape, i);
        for (uint32_t k = 2 * i; k < 2 * i + 2 && k < GRADIENTS; k++)
            job_free(j, &gradients[k]);
    }
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        j->before[i] = j->now[i];
        j->now[i].address = 0;
    }
}

/* In the first iteration that is planned gradients lie where the one before had them, beside places
 * that are their like's later, and where large ones are placed ahead of all others. */
static void draft_goes_around_what_is_left_behind(void **state)
{
    (void)state;
    for (uint64_t seed = 13; seed < 16; seed++) {
        job j;
        job_shape shape = layers_make(seed);
        test_random random = {seed};
        job_tensor gradients[GRADIENTS] = {0}, copy = {0};
        pleat_stats before = {0}, after = {0};
        job_start(&j, "pleat", NULL, 0);
        for (uint32_t n = 0; n < 8 && before.drafts == 0; n++) {
            assert_ok(pleat_mark(j.runtime));
            before = pleat_stats_of(j.runtime);
            job_free(&j, &copy);
            route(&shape, &random);
            iterate_while_gradients_go(&j, &shape, gradients);
            for (uint32_t i = 0; i < GRADIENTS; i++)
                gradients[i] = job_alloc(&j, 2000 + 1500 * (i % 11), 0);
            copy = job_alloc(&j, 8000000, 0);
            after = pleat_stats_of(j.runtime);
        }
        assert_int_equal(before.drafts, 1);
        assert_int_equal(after.planned + after.lane - before.planned - before.lane,
                         after.requests - before.requests);
        assert_int_equal(after.slot_busy, before.slot_busy);
        assert_int_equal(after.driver_calls, before.driver_calls);
        job_free(&j, &copy);
        for (uint32_t i = 0; i < GRADIENTS; i++)
            job_free(&j, &gradients[i]);
        finish(&j);
    }
}

/* What lives always, as a lane may, crosses every cut but counted as if not the mark: that was then
 * taken for the best. */
static void draft_is_cut_where_least_crosses_beside_what_lives_always(void **state)
{
    (void)state;
    const uint64_t page = 2u << 20;
    pleat__pool pool = {.page_bytes = page};
    pleat__term terms[] = {
        {.bytes = 20 * page, .most = UINT64_MAX, .begin = 0, .end = 10},
        {.bytes = 9 * page, .most = UINT64_MAX, .begin = 8, .end = 1},
        {.bytes = page, .most = UINT64_MAX, .begin = 2, .end = 5},
    };
    pleat__x only = {{1, 1}, {1, 1}};
    pleat__scale scale = {.terms = terms, .count = 3, .horizon = 10, .from = only, .to = only};
    scale.lowest = scale.highest = 1;
    pleat__maker maker = {.pool = &pool, .scale = &scale, .x = &only};
    assert_ok(pleat__arena_create(&maker.arena));
    assert_ok(pleat__maker_pose(&maker));
    assert_int_equal(maker.cut, 1);
    assert_int_equal(maker.items[0].begin, 0);
    assert_int_equal(maker.items[0].end, 10);
    assert_int_equal(maker.items[1].begin, 7);
    assert_int_equal(maker.items[1].end, 10);
    assert_int_equal(maker.items[2].begin, 1);
    assert_int_equal(maker.items[2].end, 4);
    pleat__arena_destroy(maker.arena);
}

static void draft_is_not_made_where_nothing_varies(void **state)
{
    (void)state;
    job j;
    job_shape shape = layers_make(7);
    test_random random = {7};
    route(&shape, &random);
    job_start(&j, "pleat", NULL, 0);
    run(&j, &shape, NULL, 12);
    assert_int_equal(pleat_stats_of(j.runtime).drafts, 0);
    finish(&j);
}

static void draft_is_not_made_where_sizes_follow_one_number(void **state)
{
    (void)state;
    job j;
    test_random random = {8};
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t n = 0; n < 12; n++) {
        uint64_t length = 200 + test_random_below(&random, 800);
        job_shape shape = layers_make(8);
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            shape.bytes[i] = i % 3 == 0 ? shape.bytes[i] : shape.bytes[i] / 1000 * length + 8;
        run(&j, &shape, NULL, 1);
    }
    assert_int_equal(pleat_stats_of(j.runtime).drafts, 0);
    finish(&j);
}

static void draft_setting_is_obeyed(void **state)
{
    (void)state;
    job j;
    job_shape shape = layers_make(9);
    test_random random = {9};
    job_start_with(&j, "pleat", NULL, 0, "draft:off");
    run(&j, &shape, &random, 10);
    assert_int_equal(pleat_stats_of(j.runtime).drafts, 0);
    assert_int_equal(pleat_stats_of(j.runtime).drafts_refused, 0);
    finish(&j);
}

/* The number of frees before a request says which it is: one that fails is none. */
static void draft_counts_no_free_of_what_is_not_allocated(void **state)
{
    (void)state;
    job j;
    job_shape shape = layers_make(3);
    test_random random = {3};
    job_start(&j, "pleat", NULL, 0);
    const pleat__planned *policy = j.runtime->policy;
    for (uint32_t n = 0; n < 5; n++) {
        const pleat__follow *current = policy->shapes.current;
        const uint32_t *frees =
            current != NULL ? &current->match.frees : &policy->shapes.beat.frees;
        uint32_t before = *frees;
        assert_result(pleat_free(j.runtime, policy->pool.base + 256), PLEAT_E_NOT_FOUND);
        assert_int_equal(*frees, before);
        run(&j, &shape, &random, 1);
    }
    assert_true(pleat_stats_of(j.runtime).drafts >= 1);
    finish(&j);
}

/* Streams that share memory are not planned: nor is more stitched because a plan might come. */
static void draft_is_not_waited_for_where_streams_share(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    pleat__planned *policy = j.runtime->policy;
    for (pleat_stream stream = 0; stream < 70; stream++) {
        job_tensor t = job_alloc(&j, 1000, stream);
        job_free(&j, &t);
    }
    assert_true(policy->heap.account.granted);
    pleat__draft_want(&policy->shapes.draft);
    assert_ok(pleat_mark(j.runtime));
    assert_false(policy->heap.account.granted);
    finish(&j);
}

/* What is followed, what is being made and what was put aside hold no memory that the program
 * wants back. */
static void draft_gives_memory_back(void **state)
{
    (void)state;
    for (uint32_t iterations = 1; iterations < 8; iterations++) {
        job j;
        job_shape shape = layers_make(iterations);
        test_random random = {iterations};
        job_start(&j, "pleat", NULL, 0);
        for (int again = 0; again < 2; again++) {
            run(&j, &shape, &random, iterations);
            assert_ok(pleat_mark(j.runtime));
            job_drain(&j);
            assert_int_equal(j.errors, 0);
            assert_ok(pleat_empty_cache(j.runtime));
            assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, 0);
        }
        finish(&j);
    }
}

/* Memory that goes back in the middle of an iteration, again and again, while plans come and go. */
static void draft_lives_with_caches_that_are_emptied(void **state)
{
    (void)state;
    job j;
    job_shape shape = layers_make(10);
    test_random random = {10};
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t n = 0; n < 40; n++) {
        run(&j, &shape, &random, 1);
        if (test_random_below(&random, 3) == 0)
            assert_ok(pleat_empty_cache(j.runtime));
        if (n % 10 == 9)
            shape = layers_make(10 + n);
    }
    finish(&j);
}

/* Whether a tensor at an address holds a plan whose one slot is there, of one run of chunks. */
static bool holds(const pleat__pool *pool, pleat__arena *arena, pleat_va slot, pleat_va tensor)
{
    pleat__expected item = {.place = {.address = slot, .run = {0, 8}, .granules = 8}};
    pleat__follow follow = {.items = &item, .count = 1};
    pleat__page_run views = {10, 3};
    pleat__instance instance = {
        .follow = &follow, .views = &views, .view_runs = 1, .view_pages = 3};
    pleat__pool own = *pool;
    const pleat__heap heap = {.pool = &own};
    pleat__place lies = {.address = tensor, .run = {0, 8}, .granules = 8};
    pleat__placed placed;
    assert_ok(pleat__placed_init(&placed, arena, pool->base, 64 * pool->page_bytes));
    assert_ok(pleat__placed_reserve(&placed));
    pleat__placed_insert(&placed, &lies);
    bool in_use = pleat__instance_in_use(&instance, &heap, &placed);
    pleat__placed_release(&placed);
    return in_use;
}

/* Neighbouring chunks need not be neighbours at home: a slot in a view may be one run as well. */
static void draft_keeps_views_in_which_something_lies(void **state)
{
    (void)state;
    const pleat__pool pool = {.base = 1u << 30, .page_bytes = JOB_PAGE};
    pleat__arena *arena;
    assert_ok(pleat__arena_create(&arena));
    pleat_va views = pool.base + 10 * JOB_PAGE, end = views + 3 * JOB_PAGE;
    assert_true(holds(&pool, arena, views, views));
    assert_true(holds(&pool, arena, end - 4096, end - 4096));
    assert_true(holds(&pool, arena, views, views + 4096));
    assert_false(holds(&pool, arena, views - 4096, views - 4096));
    assert_false(holds(&pool, arena, end, end));
    pleat__arena_destroy(arena);
}

/* ---- failures ---- */

/* A few iterations with whatever fails: what lives stays whole. NULL: there is no runtime. */
static pleat_runtime *run_failing(pleat_vmm vmm, const void *nothing)
{
    (void)nothing;
    job j = {.vmm = vmm};
    job_shape shape = layers_make(11);
    test_random random = {11};
    pleat_runtime_options options = {.size = sizeof options, .policy = "pleat", .waits = 1};
    pleat_runtime *runtime;
    if (pleat_runtime_create(vmm, &options, &runtime) != PLEAT_OK)
        return NULL;
    j.runtime = runtime;
    for (uint32_t n = 0; n < 6; n++) {
        route(&shape, &random);
        job_try_iterate(&j, &shape);
    }
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    return runtime;
}

static void draft_survives_every_failing_verb(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_map, PLEAT__FAULT_set_access,
                                              PLEAT__FAULT_unmap, PLEAT__FAULT_event_record};
    fail_verbs(verbs, sizeof verbs / sizeof *verbs, 2, run_failing, NULL);
}

/* Views of plans that are done with once stayed mapped for good where the mapper could not ask
 * whether the GPU is done, and with them their chunks. */
static void draft_views_go_later_where_no_event_can_be_asked(void **state)
{
    (void)state;
    uint64_t hits = 1;
    for (uint64_t nth = 1; hits > 0; nth += 1 + nth / 2) {
        pleat_vmm host, vmm;
        job_host_timeless(&host);
        assert_ok(pleat__fault_create(host, &vmm));
        pleat__fault_arm(&vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_query, .nth = nth});
        pleat_runtime *runtime = run_failing(vmm, NULL);
        assert_non_null(runtime);
        assert_ok(pleat_empty_cache(runtime));
        hits = pleat__fault_hits(&vmm);
        pleat__fault_arm(&vmm, (pleat__fault_plan){0});
        assert_ok(pleat_empty_cache(runtime));
        assert_int_equal(pleat_stats_of(runtime).physical_bytes, 0);
        pleat_runtime_destroy(runtime);
        pleat_vmm_destroy(&vmm);
        assert_nothing_held(&host);
        pleat_vmm_destroy(&host);
    }
}

/* On the job's thread; on the one that makes plans nothing fails by itself. */
static void draft_survives_every_want_of_host_memory(void **state)
{
    (void)state;
    fail_host_memory(8, run_failing, NULL);
}

/* Iterations whose experts' sum varies too take turns at being too large for their lanes. */
static void run_unruly(job *j, job_shape *shape, test_random *random, uint64_t *clock_ns)
{
    assert_ok(pleat__host_clock_set(&j->vmm, *clock_ns += 10000000));
    route(shape, random);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        if (is_expert(i) && i % 5 == 0)
            shape->bytes[i] += test_random_below(random, 12) * JOB_PAGE;
    assert_ok(pleat_mark(j->runtime));
    job_iterate(j, shape, JOB_PLAIN, 0);
}

/* Where a draft costs more than the heap alone it is let go, and nothing is recorded for another
 * one until the rest is over. */
static void draft_that_serves_badly_is_let_go(void **state)
{
    (void)state;
    test_random random = test_random_begin("unruly", 0xf17);
    uint32_t rested = 0;
    for (uint32_t i = 0; i < 6; i++) {
        job j;
        job_shape shape = layers_make(300 + i);
        uint64_t clock_ns = 1000000000;
        job_start(&j, "pleat", NULL, 0);
        assert_ok(pleat__host_set_costs(&j.vmm, &pleat__host_costs_h200));
        const pleat__shapes *shapes = &((pleat__planned *)j.runtime->policy)->shapes;
        for (uint32_t n = 0; n < 80 && shapes->fit.resting == 0; n++)
            run_unruly(&j, &shape, &random, &clock_ns);
        pleat_stats before = pleat_stats_of(j.runtime);
        if (shapes->fit.resting != 0 && before.drafts != 0) {
            rested++;
            assert_null(shapes->current);
            assert_int_equal(shapes->kept.count, 0);
            for (uint32_t n = 0; n < 5; n++)
                run_unruly(&j, &shape, &random, &clock_ns);
            pleat_stats after = pleat_stats_of(j.runtime);
            assert_int_equal(after.planned + after.lane, before.planned + before.lane);
            assert_int_equal(after.drafts + after.drafts_refused,
                             before.drafts + before.drafts_refused);
            for (uint32_t n = 0; n < 150 && shapes->fit.resting != 0; n++)
                run_unruly(&j, &shape, &random, &clock_ns);
            assert_int_equal(shapes->fit.resting, 0);
            assert_false(pleat__records(&shapes->draft.record));
            run_unruly(&j, &shape, &random, &clock_ns);
            assert_true(pleat__records(&shapes->draft.record));
        }
        finish(&j);
    }
    assert_true(rested > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draft_gives_lanes_to_what_varies),
        cmocka_unit_test(draft_finds_the_iteration_before_the_first_mark),
        cmocka_unit_test(draft_keeps_no_mark_waiting),
        cmocka_unit_test(draft_is_made_while_much_crosses_the_mark),
        cmocka_unit_test(draft_goes_around_what_is_left_behind),
        cmocka_unit_test(draft_counts_no_free_of_what_is_not_allocated),
        cmocka_unit_test(draft_is_not_waited_for_where_streams_share),
        cmocka_unit_test(draft_is_cut_where_least_crosses_beside_what_lives_always),
        cmocka_unit_test(draft_is_not_made_where_nothing_varies),
        cmocka_unit_test(draft_is_not_made_where_sizes_follow_one_number),
        cmocka_unit_test(draft_setting_is_obeyed),
        cmocka_unit_test(draft_gives_memory_back),
        cmocka_unit_test(draft_lives_with_caches_that_are_emptied),
        cmocka_unit_test(draft_keeps_views_in_which_something_lies),
        cmocka_unit_test(draft_survives_every_failing_verb),
        cmocka_unit_test(draft_views_go_later_where_no_event_can_be_asked),
        cmocka_unit_test(draft_survives_every_want_of_host_memory),
        cmocka_unit_test(draft_that_serves_badly_is_let_go),
    };
    return cmocka_run_group_tests_name("draft", tests, NULL, NULL);
}
