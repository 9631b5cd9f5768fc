/*
 * keep.c: plans kept by themselves: the second run of a job is planned, another job is noticed, and
 * nothing that is wrong with the folder or with memory reaches the job.
 */
#include "../../plan/kept_plans.h"
#include "failing.h"

#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/learn/learner.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEEP       "keep:on"
#define ITERATIONS 10

/* ---- runs ---- */

static void iterate(job *j, const job_shape *shape, uint32_t iterations, bool marks)
{
    for (uint32_t i = 0; i < iterations; i++) {
        if (marks)
            assert_ok(pleat_mark(j->runtime));
        job_iterate(j, shape, JOB_PLAIN, 0);
    }
}

static pleat_stats finish_run(job *j)
{
    pleat_stats stats = pleat_stats_of(j->runtime);
    finish(j);
    return stats;
}

static pleat_stats run_with(const job_shape *shape, const char *conf, uint32_t iterations,
                            bool marks, uint64_t budget)
{
    job j;
    job_start_with(&j, "pleat", NULL, budget, conf);
    iterate(&j, shape, iterations, marks);
    return finish_run(&j);
}

static pleat_stats run(const job_shape *shape, const char *conf)
{
    return run_with(shape, conf, ITERATIONS, true, 0);
}

static bool began_planned(const pleat_stats *stats)
{
    return stats->kept_plans == 1 && stats->left_at == 0 && stats->switches == 0 &&
           stats->planned >= stats->requests * 99 / 100;
}

/* ---- tests ---- */

static void keep_second_run_is_planned_from_the_first_request(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    pleat_stats learned = run(&shape, "");
    assert_int_equal(count_plans(), 0);
    pleat_stats first = run(&shape, KEEP);
    assert_int_equal(first.kept_plans, 0);
    assert_int_equal(first.peak_physical_bytes, learned.peak_physical_bytes);
    assert_int_equal(count_plans(), 1);
    pleat_stats second = run(&shape, KEEP);
    assert_true(began_planned(&second));
    assert_true(second.peak_physical_bytes <= learned.peak_physical_bytes);
    assert_int_equal(count_plans(), 1);
    assert_int_equal(run(&shape, "").kept_plans, 0);
}

/* What comes behind the middle is as large again. */
static void keep_changed_job_is_noticed_and_learned(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1), other = shape;
    for (uint32_t i = JOB_REQUESTS / 2; i < JOB_REQUESTS; i++)
        other.bytes[i] *= 2;
    run(&shape, KEEP);
    pleat_stats learned = run(&other, "");
    pleat_stats changed = run(&other, KEEP);
    assert_int_equal(changed.kept_plans, 1);
    assert_in_range(changed.left_at, JOB_REQUESTS / 2, JOB_REQUESTS / 2 + JOB_REQUESTS / 20);
    assert_int_equal(changed.switches, learned.switches);
    /* Its own plan is there now as well, of the same program: the last one counts. */
    pleat_stats again = run(&other, KEEP);
    assert_true(began_planned(&again));
}

/* Nothing is recorded before the plan is left. */
static void keep_changed_job_is_learned_behind_the_iteration_it_left_in(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1), other = shape;
    for (uint32_t i = JOB_REQUESTS - 40; i < JOB_REQUESTS - 20; i++)
        other.bytes[i] += 40000;
    run(&shape, KEEP);
    pleat_stats learned = run_with(&other, "", 3, true, 0);
    pleat_stats changed = run_with(&other, KEEP, 4, true, 0);
    assert_in_range(changed.left_at, JOB_REQUESTS / 2, JOB_REQUESTS);
    assert_int_equal(learned.switches, 1);
    assert_int_equal(changed.switches, 1);
}

/* Requests of up to four pages, of which a plan folds many into views. Where `varies`,
 * three of them in each iteration have a size of their own, which lanes serve. */
static job_shape folding_shape(uint64_t seed)
{
    test_random random = {seed};
    job_shape shape;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        uint32_t life =
            (uint32_t)test_random_below(&random, test_random_below(&random, 4) ? 12 : 80);
        shape.bytes[i] = 1 + test_random_below(&random, 4 * JOB_PAGE);
        shape.last[i] = i + life < JOB_REQUESTS ? i + life : JOB_REQUESTS - 1;
    }
    return shape;
}

static pleat_stats run_folding(uint64_t seed, bool varies, bool changes)
{
    job j;
    job_shape shape = folding_shape(seed);
    test_random random = {seed + changes};
    job_start_with(&j, "pleat", NULL, 0, KEEP);
    for (uint32_t n = 0; n < ITERATIONS; n++) {
        for (uint32_t i = 100; i <= 200 && varies; i += 50)
            shape.bytes[i] = 3 * JOB_PAGE + test_random_below(&random, JOB_PAGE);
        shape.bytes[JOB_REQUESTS - 5] += changes && n == 1 ? 20 * JOB_PAGE : 0;
        iterate(&j, &shape, 1, true);
    }
    return finish_run(&j);
}

/* The places of a plan that is left go with it: what was recorded while it was followed is not
 * given to anybody afterwards, and holds none of them. */
static void keep_plan_that_is_left_leaves_no_places_behind(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        run_folding(seed, seed % 2 == 0, false);
        pleat_stats changed = run_folding(seed, seed % 2 == 0, true);
        assert_int_equal(changed.kept_plans, 1);
        assert_true(changed.left_at > JOB_REQUESTS);
        assert_true(changed.switches > 0);
    }
}

static void keep_changed_job_without_marks_is_learned(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1), other = shape;
    for (uint32_t i = JOB_REQUESTS - 40; i < JOB_REQUESTS - 20; i++)
        other.bytes[i] += 40000;
    run_with(&shape, KEEP, ITERATIONS, false, 0);
    pleat_stats learned = run_with(&other, "", ITERATIONS, false, 0);
    pleat_stats changed = run_with(&other, KEEP, ITERATIONS, false, 0);
    assert_in_range(changed.left_at, JOB_REQUESTS / 2, JOB_REQUESTS);
    assert_int_equal(changed.switches, learned.switches);
}

static void keep_job_that_keeps_less_alive_is_noticed(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1), other = shape;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        other.last[i] = i; /* the same requests, each freed at once */
    run(&shape, KEEP);
    pleat_stats changed = run(&other, KEEP);
    assert_int_equal(changed.kept_plans, 1);
    assert_in_range(changed.left_at, 1, JOB_REQUESTS);
}

/* By a hundredth of what lives at most. */
static void keep_job_that_keeps_a_little_more_alive_is_noticed(void **state)
{
    (void)state;
    const uint32_t at = JOB_REQUESTS / 2;
    job_shape shape = job_shape_make(1, 1);
    shape.bytes[at] = 40000;
    shape.last[at] = at;
    job_shape other = shape;
    other.last[at] = at + 30;
    run(&shape, KEEP);
    pleat_stats changed = run(&other, KEEP);
    assert_int_equal(changed.kept_plans, 1);
    assert_true(changed.peak_live_bytes > 50 * shape.bytes[at]);
    assert_in_range(changed.left_at, at, at + 30);
}

/* One small size that varies excuses no other request. */
static void keep_sizes_that_vary_excuse_as_much_as_varies(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    job j;
    job_start_with(&j, "pleat", NULL, 0, KEEP);
    for (uint32_t n = 0; n < ITERATIONS; n++) {
        shape.bytes[3] = 512 * (1 + n % 3);
        iterate(&j, &shape, 1, true);
    }
    assert_ok(pleat_keep_plan(j.runtime));
    finish_run(&j);
    pleat_stats second = run(&shape, KEEP);
    assert_int_equal(second.kept_plans, 1);
    assert_int_equal(second.left_at, 0);
    for (uint32_t i = 0; i < 2; i++)
        shape.bytes[JOB_REQUESTS / 2 + i] = 100001;
    pleat_stats changed = run(&shape, KEEP);
    assert_int_equal(changed.kept_plans, 1);
    assert_in_range(changed.left_at, JOB_REQUESTS / 2, JOB_REQUESTS / 2 + 8);
}

static bool is_left_out(uint32_t request)
{
    return request >= 100 && request % 10 == 0;
}

/* Every request that comes is the plan's, and as much lives as there is to. */
static void keep_job_that_leaves_requests_out_is_noticed(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        if (is_left_out(i)) {
            shape.bytes[i] = 3000;
            shape.last[i] = i;
        }
    run(&shape, KEEP);
    job_ends ends = job_ends_of(&shape);
    job j;
    job_start_with(&j, "pleat", NULL, 0, KEEP);
    assert_ok(pleat_mark(j.runtime));
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        if (!is_left_out(i))
            job_request(&j, &shape, i, 0);
        job_end_at(&j, &ends, i);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.kept_plans, 1);
    assert_in_range(stats.left_at, 110, JOB_REQUESTS / 2);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        job_free(&j, &j.now[i]);
    finish_run(&j);
}

/* So few bytes that they say nothing, but a row of requests of which the plan has none. */
static void keep_job_that_leaves_the_iteration_is_noticed(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    run(&shape, KEEP);
    job_ends ends = job_ends_of(&shape);
    job j;
    job_start_with(&j, "pleat", NULL, 0, KEEP);
    assert_ok(pleat_mark(j.runtime));
    for (uint32_t i = 0; i < 100; i++) {
        job_request(&j, &shape, i, 0);
        job_end_at(&j, &ends, i);
    }
    for (uint32_t i = 0; i < PLEAT__WATCH_MISSED; i++) {
        assert_int_equal(pleat_stats_of(j.runtime).left_at, 0);
        job_tensor extra = job_alloc(&j, 1 + i, 0);
        job_free(&j, &extra);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.kept_plans, 1);
    assert_int_equal(stats.left_at, 100 + PLEAT__WATCH_MISSED);
    for (uint32_t i = 0; i < 100; i++)
        job_free(&j, &j.now[i]);
    finish_run(&j);
}

static void keep_job_that_begins_otherwise_tries_nothing(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1), other = shape;
    other.bytes[0] += 4096;
    run(&shape, KEEP);
    assert_int_equal(run(&other, KEEP).kept_plans, 0);
    assert_int_equal(count_plans(), 2);
}

static void keep_plan_is_there_before_the_run_ends(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    job j;
    job_start_with(&j, "pleat", NULL, 0, KEEP);
    iterate(&j, &shape, ITERATIONS, true);
    for (int wait = 0; count_plans() == 0 && wait < 1000; wait++)
        usleep(10000);
    assert_int_equal(count_plans(), 1);
    assert_ok(pleat_keep_plan(j.runtime)); /* and again, which does nothing */
    finish_run(&j);
}

/* One that is asked for before anything repeats comes later; how much has to come is said. */
static void keep_plan_that_was_asked_for_too_early_comes_later(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    for (int how = 0; how < 3; how++) {
        job j;
        job_start_with(&j, "pleat", NULL, 0, KEEP);
        /* By its first request each is a job of its own. */
        job_tensor first = job_alloc(&j, 4096u << how, 0), second = job_alloc(&j, 8192, 0);
        assert_result(pleat_keep_plan(j.runtime), PLEAT_E_INPUT);
        /* At once nothing is new. */
        assert_result(pleat_keep_plan(j.runtime), PLEAT_E_INPUT);
        assert_int_equal(count_plans(), how);
        iterate(&j, &shape, how == 2 ? ITERATIONS : 6, how != 0);
        if (how == 0)
            assert_ok(pleat_keep_plan(j.runtime));
        for (int wait = 0; how == 2 && j.runtime->keep.state != PLEAT__KEEP_OVER && wait < 1000;
             wait++)
            usleep(10000);
        assert_int_equal(j.runtime->keep.state == PLEAT__KEEP_OVER, how != 1);
        job_free(&j, &first);
        job_free(&j, &second);
        finish_run(&j);
        assert_int_equal(count_plans(), how + 1);
    }
}

/* Wherever host memory ends, no copy of the recording is left behind. */
static void keep_copy_for_which_there_is_no_thread_goes(void **state)
{
    (void)state;
    bool failed = true, lacks_thread = false;
    for (uint64_t nth = 1; failed; nth++) {
        job j;
        job_start_with(&j, "pleat", NULL, 0, KEEP);
        /* By its first request each is a job of its own. */
        job_tensor tensor = job_alloc(&j, (3 << 20) + nth * 512, 0);
        pleat__arena_fail(nth, false);
        assert_int_not_equal(pleat_keep_plan(j.runtime), PLEAT_OK);
        failed = pleat__arena_failed() != 0;
        pleat__arena_fail(0, false);
        lacks_thread |= strstr(pleat_last_error()->text, "there is no thread") != NULL;
        assert_null(j.runtime->keep.given.trace);
        job_free(&j, &tensor);
        finish_run(&j);
    }
    assert_true(lacks_thread);
}

static void keep_job_without_marks_keeps_at_its_end(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    run_with(&shape, KEEP, ITERATIONS, false, 0);
    assert_int_equal(count_plans(), 1);
    pleat_stats second = run_with(&shape, KEEP, ITERATIONS, false, 0);
    assert_int_equal(second.kept_plans, 1);
    assert_int_equal(second.left_at, 0);
    assert_true(second.planned >= second.requests * 95 / 100);
}

/* Sizes of which none comes again: room for all of them is more than the job takes. */
static void keep_plan_that_takes_more_than_learning_is_none(void **state)
{
    (void)state;
    test_of_one_thread();
    test_random random = test_random_begin(__func__, 77);
    job_shape shape = job_shape_make(1, 1);
    job j;
    job_start_with(&j, "pleat", NULL, 0, KEEP);
    for (int n = 0; n < 3; n++) {
        for (uint32_t i = 0; i < JOB_REQUESTS; i += 3)
            shape.bytes[i] = 1 + test_random_below(&random, 200000);
        iterate(&j, &shape, 1, true);
    }
    assert_result(pleat_keep_plan(j.runtime), PLEAT_E_LIMIT);
    finish_run(&j);
    assert_int_equal(count_plans(), 0);
}

/* Plans that were used stay, and those that were not go first. */
static void keep_plan_that_fits_counts_as_used(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    struct stat status;
    run(&shape, KEEP);
    used_at(only_plan(), 1000);
    pleat_stats second = run(&shape, KEEP);
    assert_true(began_planned(&second));
    assert_int_equal(stat(only_plan(), &status), 0);
    assert_true(status.st_mtim.tv_sec > 1000);
}

static uint64_t plans_followed_on(int device)
{
    job_shape shape = job_shape_make(1, 1);
    const pleat_host_options host = {
        .size = sizeof host, .devices = 2, .device_bytes = 1ull << 30, .granularity = JOB_PAGE};
    const pleat_runtime_options options = {
        .size = sizeof options, .device = device, .conf = KEEP, .waits = 1};
    job j = {.next_pattern = 0};
    assert_ok(pleat_vmm_host(&host, &j.vmm));
    assert_ok(pleat__host_clock_set(&j.vmm, 1000000000));
    assert_ok(pleat_runtime_create(j.vmm, &options, &j.runtime));
    iterate(&j, &shape, ITERATIONS, true);
    return finish_run(&j).kept_plans;
}

/* Each rank, and each device, is a job of its own: another one's plan may be larger. */
static void keep_ranks_and_devices_have_plans_of_their_own(void **state)
{
    (void)state;
    assert_int_equal(setenv("RANK", "0", 1), 0);
    assert_int_equal(plans_followed_on(0), 0);
    assert_int_equal(plans_followed_on(1), 0);
    assert_int_equal(setenv("RANK", "1", 1), 0);
    assert_int_equal(plans_followed_on(0), 0);
    assert_int_equal(count_plans(), 3);
    assert_int_equal(plans_followed_on(0), 1);
    assert_int_equal(unsetenv("RANK"), 0);
}

static void keep_says_why_nothing_was_kept(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    job j;
    job_start(&j, "pleat", NULL, 0);
    assert_result(pleat_keep_plan(j.runtime), PLEAT_E_STATE);
    finish_run(&j);
    job_start_with(&j, "pleat", NULL, 0, KEEP);
    job_tensor one = job_alloc(&j, 4096, 0), two = job_alloc(&j, 8192, 0);
    job_free(&j, &two);
    assert_result(pleat_keep_plan(j.runtime), PLEAT_E_INPUT);
    job_free(&j, &one);
    finish_run(&j);
    /* Of a recording that ended early there is none either. */
    job_start_with(&j, "pleat", NULL, 0, KEEP);
    iterate(&j, &shape, 2, true);
    j.runtime->keep.record.failed.result = PLEAT_E_NO_MEMORY;
    assert_result(pleat_keep_plan(j.runtime), PLEAT_E_NO_MEMORY);
    finish_run(&j);
    assert_int_equal(chmod(cache, 0777), 0);
    job_start_with(&j, "pleat", NULL, 0, KEEP);
    iterate(&j, &shape, 2, true);
    assert_result(pleat_keep_plan(j.runtime), PLEAT_E_IO);
    finish_run(&j);
    assert_int_equal(chmod(cache, 0700), 0);
    assert_int_equal(count_plans(), 0);
}

static void keep_other_policies_and_plan_files_are_left_alone(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    job j;
    run(&shape, KEEP);
    job_start_with(&j, "native", NULL, 0, KEEP);
    iterate(&j, &shape, 2, true);
    assert_int_equal(finish_run(&j).kept_plans, 0);
    job_start_with(&j, "pleat", NULL, 0, KEEP ",canary:on");
    iterate(&j, &shape, 2, true);
    assert_int_equal(finish_run(&j).kept_plans, 0);
}

static void keep_plan_beyond_the_budget_is_not_followed(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1), small = shape;
    pleat_stats first = run(&shape, KEEP);
    for (uint32_t i = 1; i < JOB_REQUESTS; i++)
        small.bytes[i] = 512;
    pleat_stats stats =
        run_with(&small, KEEP, 3, true, first.peak_physical_bytes / 2 / JOB_PAGE * JOB_PAGE);
    assert_int_equal(stats.kept_plans, 0);
    assert_int_equal(stats.out_of_memory, 0);
}

static void keep_damaged_plan_is_no_plan(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    run(&shape, KEEP);
    const char *path = only_plan();
    test_bytes bytes = test_file_read(path);
    test_random random = test_random_begin("keep_damaged_plan_is_no_plan", 27);
    for (uint64_t round = 0; round < test_rounds(20); round++) {
        size_t at = test_random_below(&random, bytes.size);
        bytes.data[at] ^= (uint8_t)(1 + test_random_below(&random, 255));
        test_file_write(path, bytes.data, bytes.size);
        pleat_stats stats = run_with(&shape, KEEP, 3, true, 0);
        assert_int_equal(stats.kept_plans, 0); /* a checksum is over all of it */
        test_bytes_free(&bytes);
        bytes = test_file_read(path); /* the run kept one anew */
    }
    test_bytes_free(&bytes);
}

typedef struct beginner {
    job *job;
    pthread_barrier_t *together;
    uint64_t bytes;
    pleat_va address;
} beginner;

static void *begin_job(void *context)
{
    beginner *b = context;
    pthread_barrier_wait(b->together);
    if (pleat_alloc(b->job->runtime, b->bytes, 0, &b->address) != PLEAT_OK)
        b->address = 0;
    return NULL;
}

/* Whoever is first decides; the others wait, and are served. */
static void keep_first_requests_of_many_threads_are_served(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(1, 1);
    run(&shape, KEEP);
    for (uint64_t round = 0; round < test_rounds(20); round++) {
        job j;
        pthread_t threads[4];
        pthread_barrier_t together;
        beginner beginners[4];
        job_start_with(&j, "pleat", NULL, 0, KEEP);
        pthread_barrier_init(&together, NULL, 4);
        for (int i = 0; i < 4; i++) {
            beginners[i] = (beginner){&j, &together, shape.bytes[0], 0};
            assert_int_equal(pthread_create(&threads[i], NULL, begin_job, &beginners[i]), 0);
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < 4; i++) {
            assert_int_not_equal(beginners[i].address, 0);
            for (int k = 0; k < i; k++)
                assert_int_not_equal(beginners[i].address, beginners[k].address);
            assert_ok(pleat_free(j.runtime, beginners[i].address));
        }
        pthread_barrier_destroy(&together);
        assert_int_equal(finish_run(&j).kept_plans, 1);
    }
}

/* ---- what fails ---- */

static pleat_runtime *run_failing(pleat_vmm vmm, const void *with)
{
    const job_shape *shape = with;
    pleat_runtime_options options = {.size = sizeof options, .conf = KEEP, .waits = 1};
    job j = {.vmm = vmm};
    if (pleat_runtime_create(vmm, &options, &j.runtime) != PLEAT_OK)
        return NULL;
    pleat_va addresses[40] = {0};
    for (int i = 0; i < 40; i++)
        (void)!pleat_alloc(j.runtime, shape->bytes[i], 0, &addresses[i]);
    for (int i = 0; i < 40; i++)
        if (addresses[i] != 0)
            assert_ok(pleat_free(j.runtime, addresses[i]));
    return j.runtime;
}

static void keep_failing_verbs_and_host_memory_cost_the_plan_only(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_create, PLEAT__FAULT_map,
                                              PLEAT__FAULT_set_access, PLEAT__FAULT_any};
    job_shape shape = job_shape_make(1, 1);
    run(&shape, KEEP);
    fail_verbs(verbs, 4, 4, run_failing, &shape);
    fail_host_memory(16, run_failing, &shape);
}

/* Host memory fails the plan at points of its loading, in steps that grow by a fiftieth: all of the
 * device is there for what has no plan then. */
static void keep_plan_that_cannot_be_loaded_leaves_all_memory(void **state)
{
    (void)state;
    test_of_one_thread();
    job_shape shape = job_shape_make(1, 1);
    uint64_t failed = 1, without = 0;
    run(&shape, KEEP);
    for (uint64_t nth = 1; failed > 0; nth += 1 + nth / test_rounds(50)) {
        job j;
        pleat_va first = 0, whole;
        job_start_with(&j, "pleat", NULL, 0, KEEP);
        pleat__arena_fail(nth, false);
        pleat_result result = pleat_alloc(j.runtime, shape.bytes[0], 0, &first);
        failed = pleat__arena_failed();
        pleat__arena_fail(0, false);
        without += pleat_stats_of(j.runtime).kept_plans == 0;
        if (result == PLEAT_OK)
            assert_ok(pleat_free(j.runtime, first));
        assert_ok(pleat_empty_cache(j.runtime));
        assert_int_equal(pleat__space_stats_of(j.runtime->space).mapped_pages != 0,
                         pleat_stats_of(j.runtime).kept_plans != 0);
        assert_ok(pleat_alloc(j.runtime, 1ull << 30, 0, &whole));
        assert_ok(pleat_free(j.runtime, whole));
        finish(&j);
    }
    assert_true(without > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CACHE_TEST(keep_second_run_is_planned_from_the_first_request),
        CACHE_TEST(keep_changed_job_is_noticed_and_learned),
        CACHE_TEST(keep_changed_job_is_learned_behind_the_iteration_it_left_in),
        CACHE_TEST(keep_changed_job_without_marks_is_learned),
        CACHE_TEST(keep_plan_that_is_left_leaves_no_places_behind),
        CACHE_TEST(keep_job_that_keeps_less_alive_is_noticed),
        CACHE_TEST(keep_job_that_keeps_a_little_more_alive_is_noticed),
        CACHE_TEST(keep_sizes_that_vary_excuse_as_much_as_varies),
        CACHE_TEST(keep_job_that_leaves_requests_out_is_noticed),
        CACHE_TEST(keep_job_that_leaves_the_iteration_is_noticed),
        CACHE_TEST(keep_job_that_begins_otherwise_tries_nothing),
        CACHE_TEST(keep_plan_is_there_before_the_run_ends),
        CACHE_TEST(keep_job_without_marks_keeps_at_its_end),
        CACHE_TEST(keep_copy_for_which_there_is_no_thread_goes),
        CACHE_TEST(keep_plan_that_was_asked_for_too_early_comes_later),
        CACHE_TEST(keep_plan_that_takes_more_than_learning_is_none),
        CACHE_TEST(keep_plan_that_fits_counts_as_used),
        CACHE_TEST(keep_ranks_and_devices_have_plans_of_their_own),
        CACHE_TEST(keep_says_why_nothing_was_kept),
        CACHE_TEST(keep_other_policies_and_plan_files_are_left_alone),
        CACHE_TEST(keep_plan_beyond_the_budget_is_not_followed),
        CACHE_TEST(keep_damaged_plan_is_no_plan),
        CACHE_TEST(keep_first_requests_of_many_threads_are_served),
        CACHE_TEST(keep_failing_verbs_and_host_memory_cost_the_plan_only),
        CACHE_TEST(keep_plan_that_cannot_be_loaded_leaves_all_memory),
    };
    return cmocka_run_group_tests(tests, NULL, test_folder_remove);
}
