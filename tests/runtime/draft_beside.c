/*
 * draft_beside.c: plans made in the background of jobs that share their runtime with other threads
 * and streams, stand under a budget, or mark nothing: with a canary, on host memory.
 */
#include "draft_job.h"
#include "neighbour.h"

#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <stdatomic.h>
#include <vmm/host.h>

static void begin_beside(job *j, neighbour *n, int waits, void *(*live)(void *))
{
    const pleat_runtime_options options = {
        .size = sizeof options, .policy = "pleat", .conf = "", .waits = waits};
    job_open(j, &options);
    *n = (neighbour){.runtime = j->runtime, .most = JOB_REQUESTS / 10};
    assert_int_equal(pthread_create(&n->thread, NULL, live, n), 0);
}

static void end_beside(neighbour *n)
{
    atomic_store(&n->stop, true);
    pthread_join(n->thread, NULL);
}

static void draft_other_threads_allocate_meanwhile(void **state)
{
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        job j;
        neighbour n;
        job_shape shape = layers_make(21);
        test_random random = {21};
        begin_beside(&j, &n, waits, live_beside);
        for (uint32_t i = 0; i < 2000 && (i < 30 || pleat_stats_of(j.runtime).drafts == 0); i++) {
            run(&j, &shape, &random, 1);
            atomic_fetch_add(&n.iteration, 1);
        }
        end_beside(&n);
        assert_true(pleat_stats_of(j.runtime).drafts >= 1);
        assert_true(n.rounds > 0);
        assert_int_equal(n.errors, 0);
        finish(&j);
    }
}

/* Gives memory back whenever it can: what is being made then is made for nothing, and what is
 * followed loses its views. */
static void *empty_all_the_time(void *opaque)
{
    neighbour *n = opaque;
    while (!atomic_load(&n->stop)) {
        n->errors += pleat_empty_cache(n->runtime) != PLEAT_OK;
        n->rounds++;
        /* The job is to get on, too. */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return NULL;
}

static void draft_is_given_up_while_it_is_waited_for(void **state)
{
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        job j;
        neighbour n;
        job_shape shape = layers_make(22);
        test_random random = {22};
        begin_beside(&j, &n, waits, empty_all_the_time);
        run(&j, &shape, &random, 16);
        end_beside(&n);
        assert_true(n.rounds > 0);
        assert_int_equal(n.errors, 0);
        /* Left alone it is planned. */
        run(&j, &shape, &random, 16);
        finish(&j);
    }
}

/* Maps that are not the job's own thread's. */
static struct {
    const pleat_vmm_ops *host;
    pthread_t own;
    _Atomic uint32_t others;
} maps;

static pleat_result count_access(void *self, pleat_va va, uint64_t bytes, const int *devices, int n)
{
    maps.others += !pthread_equal(maps.own, pthread_self());
    return maps.host->set_access(self, va, bytes, devices, n);
}

/* On a backend that counts the maps of other threads. */
static void begin_counting(job *j, pleat_vmm_ops *counting)
{
    const pleat_runtime_options options = {
        .size = sizeof options, .policy = "pleat", .conf = "ahead:off"};
    memset(j, 0, sizeof *j);
    job_host_timeless(&j->vmm);
    *counting = *j->vmm.ops;
    counting->set_access = count_access;
    maps.host = j->vmm.ops;
    maps.own = pthread_self();
    maps.others = 0;
    assert_ok(pleat_runtime_create((pleat_vmm){counting, j->vmm.self}, &options, &j->runtime));
}

/* As long as plans of such jobs take many times over. */
static void assert_nothing_comes(job *j, job_shape *shape, test_random *random)
{
    for (uint32_t n = 0; n < 20; n++) {
        run(j, shape, random, 1);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_int_equal(maps.others, 0);
    assert_int_equal(pleat_stats_of(j->runtime).drafts, 0);
}

static void assert_it_comes(job *j, job_shape *shape, test_random *random)
{
    for (uint32_t n = 0; n < 2000 && pleat_stats_of(j->runtime).drafts == 0; n++)
        run(j, shape, random, 1);
    assert_true(pleat_stats_of(j->runtime).drafts != 0 && maps.others != 0);
}

/* A plan that is ready to be mapped while a graph is captured waits for the capture's end, and for
 * nothing when the job ends first. */
static void draft_maps_nothing_while_a_stream_captures(void **state)
{
    (void)state;
    for (int ends = 0; ends < 2; ends++) {
        job j;
        pleat_vmm_ops counting;
        pleat_capture *graph;
        job_shape shape = layers_make(25);
        test_random random = {25};
        begin_counting(&j, &counting);
        run(&j, &shape, &random, 1);
        assert_ok(pleat_capture_begin(j.runtime, 9, JOB_PAGE, &graph));
        assert_nothing_comes(&j, &shape, &random);
        if (ends) {
            job_stop(&j);
            continue;
        }
        assert_ok(pleat_capture_end(j.runtime, graph, NULL));
        assert_ok(pleat_capture_free(j.runtime, graph));
        assert_it_comes(&j, &shape, &random);
        finish(&j);
    }
}

/* Mapping can wait: whoever of the program waits for the turn has it first. */
static void draft_maps_nothing_while_a_request_waits_for_the_turn(void **state)
{
    (void)state;
    job j;
    pleat_vmm_ops counting;
    job_shape shape = layers_make(25);
    test_random random = {25};
    begin_counting(&j, &counting);
    atomic_fetch_add(&j.runtime->gate.awaited, 1);
    assert_nothing_comes(&j, &shape, &random);
    atomic_fetch_sub(&j.runtime->gate.awaited, 1);
    assert_it_comes(&j, &shape, &random);
    finish(&j);
}

/* Every second layer is another stream's. */
static void iterate_on_two(job *j, const job_shape *shape)
{
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        j->now[i] = job_alloc(j, shape->bytes[i], i / LAYER % 2 == 0 ? 0 : 5);
        job_end_at(j, shape, i);
    }
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        job_free(j, &j->before[i]);
        j->before[i] = j->now[i];
        j->now[i] = (job_tensor){0};
    }
}

static void draft_serves_two_streams(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        job j;
        job_shape shape = layers_make(seed + 30);
        test_random random = {seed};
        pleat_stats before = {0};
        job_start(&j, "pleat", NULL, 0);
        for (uint32_t n = 0; n < 24; n++) {
            assert_ok(pleat_mark(j.runtime));
            route(&shape, &random);
            if (n == 16)
                before = pleat_stats_of(j.runtime);
            iterate_on_two(&j, &shape);
        }
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_true(after.drafts >= 1);
        uint64_t placed = after.planned + after.lane - before.planned - before.lane;
        assert_true(placed * 100 >= (after.requests - before.requests) * 90);
        finish(&j);
    }
}

/* A tenth more than the job takes without a plan is enough with one. */
static void draft_stays_within_a_budget(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        uint64_t budget = 0;
        for (int limited = 0; limited < 2; limited++) {
            job j;
            job_shape shape = layers_make(seed + 40);
            test_random random = {seed};
            job_start_with(&j, "pleat", NULL, budget, limited ? "" : "draft:off");
            run(&j, &shape, &random, 20);
            pleat_stats stats = pleat_stats_of(j.runtime);
            assert_int_equal(stats.out_of_memory, 0);
            assert_true(stats.peak_physical_bytes <= budget || !limited);
            assert_true(stats.drafts + stats.drafts_refused >= 1 || !limited);
            budget = stats.peak_physical_bytes + stats.peak_physical_bytes / 10;
            finish(&j);
        }
    }
}

/* Sizes that follow one number are not planned so; that is found out once, not at each divergence.
 */
static void draft_that_is_refused_is_not_tried_all_the_time(void **state)
{
    (void)state;
    job j;
    test_random random = {23};
    job_start_with(&j, "pleat", NULL, 0, "elastic:off");
    for (uint32_t n = 0; n < 40; n++) {
        uint64_t length = 200 + test_random_below(&random, 800);
        job_shape shape = layers_make(23);
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            shape.bytes[i] = i % 3 == 0 ? shape.bytes[i] : shape.bytes[i] / 1000 * length + 8;
        run(&j, &shape, NULL, 1);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.drafts, 0);
    assert_in_range(stats.drafts_refused, 1, 3);
    finish(&j);
}

/* Iterations that are found without marks are as good as marked ones, when they have come a few
 * times. */
static void draft_is_made_without_marks(void **state)
{
    (void)state;
    job j;
    job_shape shape = layers_make(24);
    test_random random = {24};
    pleat_stats before = {0};
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t n = 0; n < 130; n++) {
        route(&shape, &random);
        if (n == 120)
            before = pleat_stats_of(j.runtime);
        job_iterate(&j, &shape, JOB_PLAIN, 0);
    }
    pleat_stats after = pleat_stats_of(j.runtime);
    assert_true(after.drafts >= 1);
    uint64_t placed = after.planned + after.lane - before.planned - before.lane;
    assert_true(placed * 100 >= (after.requests - before.requests) * 90);
    finish(&j);
}

/* All that a recording holds is odd: none of its iterations is like another. Those that come later
 * are planned all the same. */
static void draft_is_tried_again_when_none_came_of_a_recording(void **state)
{
    (void)state;
    job j;
    test_random random = {26};
    job_start(&j, "pleat", NULL, 0);
    for (uint32_t n = 0; n < 9; n++) {
        job_shape odd = layers_make(200 + n);
        run(&j, &odd, &random, 1);
    }
    assert_int_equal(pleat_stats_of(j.runtime).drafts, 0);
    assert_true(pleat_stats_of(j.runtime).drafts_refused >= 1);
    job_shape shape = layers_make(26);
    run(&j, &shape, &random, 12);
    assert_true(pleat_stats_of(j.runtime).drafts >= 1);
    gained later = run(&j, &shape, &random, 4);
    assert_true(later.placed * 100 >= later.requests * 90);
    finish(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draft_other_threads_allocate_meanwhile),
        cmocka_unit_test(draft_is_given_up_while_it_is_waited_for),
        cmocka_unit_test(draft_maps_nothing_while_a_stream_captures),
        cmocka_unit_test(draft_maps_nothing_while_a_request_waits_for_the_turn),
        cmocka_unit_test(draft_serves_two_streams),
        cmocka_unit_test(draft_stays_within_a_budget),
        cmocka_unit_test(draft_that_is_refused_is_not_tried_all_the_time),
        cmocka_unit_test(draft_is_made_without_marks),
        cmocka_unit_test(draft_is_tried_again_when_none_came_of_a_recording),
    };
    return cmocka_run_group_tests_name("draft_beside", tests, NULL, NULL);
}
