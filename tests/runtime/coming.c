/*
 * coming.c: a job that comes to a size larger than all before, on a real runtime over host memory
 * with a canary: what the size takes is made by another thread while the job goes on, in the same
 * places as without one; where it cannot be made the job goes on all the same.
 */
#include "elastic_job.h"

#include <internal/arena.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/memory/views.h>
#include <runtime/policy/pleat_internal.h>
#include <stdatomic.h>
#include <time.h>
#include <vmm/fault.h>

#define SEEDS 3

/* The host backend, whose verbs take their time where a test wants that. */
static struct {
    pleat_vmm host;
    pleat_vmm_ops ops;
    _Atomic long delay_ns;
    _Atomic int stopped; /* 1: the next to be made is to stand still; 2: it does */
} slow;

static void take_time(void)
{
    long ns = atomic_load(&slow.delay_ns);
    if (ns != 0)
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static pleat_result slow_create(void *self, int device, uint64_t bytes, uint32_t flags,
                                pleat_handle *handle)
{
    int wanted = 1;
    take_time();
    if (atomic_compare_exchange_strong(&slow.stopped, &wanted, 2))
        while (atomic_load(&slow.stopped) == 2)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return slow.host.ops->create(self, device, bytes, flags, handle);
}

static pleat_result slow_map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    take_time();
    return slow.host.ops->map(self, va, bytes, handle);
}

static void runtime_open(job *j, const char *conf, int waits)
{
    pleat_runtime_options options = {.size = sizeof options, .conf = conf, .waits = waits};
    assert_ok(pleat_runtime_create(j->vmm, &options, &j->runtime));
}

static void open_slow(job *j, const char *conf, int waits)
{
    memset(j, 0, sizeof *j);
    job_host_timeless(&slow.host);
    slow.ops = *slow.host.ops;
    slow.ops.create = slow_create;
    slow.ops.map = slow_map;
    atomic_store(&slow.delay_ns, 0);
    j->vmm = (pleat_vmm){&slow.ops, slow.host.self};
    runtime_open(j, conf, waits);
}

/* Nothing crosses an iteration's end: what lies at its old place is in the way of a new layout. */
static elastic_job make_job(uint64_t seed)
{
    elastic_job e = elastic_make(seed);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        e.lives.last[i] = e.lives.last[i] < i ? JOB_REQUESTS - 1 : e.lives.last[i];
    return e;
}

static void learn_two(job *j, const elastic_job *e)
{
    run_x(j, e, 3, 6);
    run_x(j, e, 4, 8);
    assert_true(pleat_stats_of(j->runtime).instances >= 1);
}

static uint64_t own_calls(const job *j)
{
    pleat_stats stats = pleat_stats_of(j->runtime);
    return stats.driver_calls - stats.mapper_calls;
}

/* Until all that was coming is there: chunks that nothing lies on may be made when the iteration is
 * long over. */
static void await_made(const job *j)
{
    for (bool coming = true; coming;) {
        pleat__gate_lock(&j->runtime->gate);
        const pleat__planned *policy = j->runtime->policy;
        coming = policy->shapes.elastic.coming.instance != NULL;
        pleat__gate_unlock(&j->runtime->gate);
        if (coming)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

/* Driver calls of the job's thread in the first iterations at sizes that grow. */
static uint64_t grow(uint64_t seed, const char *conf, int waits, long delay_ns, pleat_stats *stats)
{
    static const uint64_t xs[] = {8, 9, 13};
    job j;
    uint64_t calls = 0;
    elastic_job e = make_job(seed);
    open_slow(&j, conf, waits);
    learn_two(&j, &e);
    await_made(&j);
    atomic_store(&slow.delay_ns, delay_ns);
    for (uint32_t k = 0; k < sizeof xs / sizeof *xs; k++) {
        uint64_t before = own_calls(&j);
        assert_mostly_planned(run_x(&j, &e, xs[k], 1), 70);
        calls += own_calls(&j) - before;
        run_x(&j, &e, xs[k], 1);
        /* Pages that nothing lies on may still come. */
        before = own_calls(&j);
        assert_mostly_planned(run_x(&j, &e, xs[k], 3), 99);
        assert_int_equal(own_calls(&j), before);
        await_made(&j);
    }
    *stats = pleat_stats_of(j.runtime);
    finish(&j);
    return calls;
}

static void coming_largest_size_costs_the_job_no_driver_call(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        pleat_stats with, without;
        assert_int_equal(grow(seed, "", 1, 0, &with), 0);
        assert_true(grow(seed, "ahead:off", 1, 0, &without) > 100);
        assert_true(with.mapper_calls > 100);
        /* In the same places. */
        assert_int_equal(with.instances, without.instances);
        assert_int_equal(with.planned, without.planned);
        assert_int_equal(with.peak_physical_bytes, without.peak_physical_bytes);
        assert_int_equal(with.instance_waits, 0);
    }
}

/* The thread is slower than the job: requests wait for what they lie on, and no longer. */
static void coming_memory_is_waited_for(void **state)
{
    (void)state;
    uint64_t waits = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        pleat_stats beside, before;
        assert_int_equal(grow(seed, "", 0, 50000, &beside), 0);
        grow(seed, "", 1, 0, &before);
        assert_int_equal(beside.planned, before.planned);
        assert_int_equal(beside.peak_physical_bytes, before.peak_physical_bytes);
        waits += beside.instance_waits;
    }
    assert_true(waits > 0);
}

/* Every verb of what comes fails in turn: the iteration is served all the same, and the size is
 * laid out again later. */
static void coming_that_fails_is_no_harm(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_create, PLEAT__FAULT_map,
                                              PLEAT__FAULT_set_access};
    uint64_t hits = 0;
    elastic_job e = make_job(7);
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++)
        for (uint64_t nth = 1, turn = v; nth < 300; nth *= 3, turn++) {
            job j = {0};
            pleat_vmm host;
            pleat__host_holdings held;
            job_host_timeless(&host);
            assert_ok(pleat__fault_create(host, &j.vmm));
            runtime_open(&j, "", turn % 2);
            learn_two(&j, &e);
            pleat__fault_arm(&j.vmm, (pleat__fault_plan){.verb = verbs[v], .nth = nth});
            run_x(&j, &e, 12, 1);
            hits += pleat__fault_hits(&j.vmm);
            run_x(&j, &e, 12, 20);
            assert_mostly_planned(run_x(&j, &e, 12, 4), 98);
            finish(&j);
            assert_ok(pleat__host_holdings_of(&host, &held));
            assert_int_equal(held.handles, 0);
            assert_int_equal(held.mapped_pages, 0);
            pleat_vmm_destroy(&host);
        }
    assert_true(hits > 10);
}

/* Half of the first iteration at a size that nobody has seen, while its memory is made. */
static void begin_larger(job *j, const job_shape *shape)
{
    atomic_store(&slow.delay_ns, 300000);
    assert_ok(pleat_mark(j->runtime));
    for (uint32_t i = 0; i < JOB_REQUESTS / 4; i++) {
        job_request(j, shape, i, 0);
        job_end_at(j, shape, i);
    }
}

static void end_larger(job *j, const job_shape *shape)
{
    for (uint32_t i = JOB_REQUESTS / 4; i < JOB_REQUESTS; i++) {
        job_request(j, shape, i, 0);
        job_end_at(j, shape, i);
    }
    atomic_store(&slow.delay_ns, 0);
}

/* A larger iteration, in which a stream captures from where memory for it comes. */
static pleat_capture *begin_larger_captured(job *j, const elastic_job *e, const job_shape *shape)
{
    pleat_capture *graph;
    open_slow(j, "", 0);
    learn_two(j, e);
    begin_larger(j, shape);
    assert_ok(pleat_capture_begin(j->runtime, 5, JOB_PAGE, &graph));
    return graph;
}

static void coming_stands_still_while_a_stream_captures(void **state)
{
    (void)state;
    job j;
    elastic_job e = make_job(3);
    job_shape shape = at_x(&e, 12);
    pleat_capture *graph = begin_larger_captured(&j, &e, &shape);
    uint64_t made = pleat_stats_of(j.runtime).mapper_calls;
    end_larger(&j, &shape);
    assert_int_equal(pleat_stats_of(j.runtime).mapper_calls, made);
    assert_ok(pleat_capture_end(j.runtime, graph, NULL));
    assert_ok(pleat_capture_free(j.runtime, graph));
    run_x(&j, &e, 12, 3);
    assert_mostly_planned(run_x(&j, &e, 12, 4), 99);
    finish(&j);
}

static void *grow_beside(void *context)
{
    const job *j = context;
    pleat_va address;
    assert_ok(pleat_alloc(j->runtime, 64ull << 20, 3, &address));
    assert_ok(pleat_free(j->runtime, address));
    return NULL;
}

/* Whether the thread has something to do, and is done with it for now. */
static bool has_paused(const job *j, const pleat__coming *coming)
{
    pleat__gate_lock(&j->runtime->gate);
    bool paused = coming->instance != NULL && !coming->worker.busy;
    pleat__gate_unlock(&j->runtime->gate);
    return paused;
}

static bool has_ended(const job *j, const pleat__coming *coming)
{
    pleat__gate_lock(&j->runtime->gate);
    bool ended = coming->instance == NULL;
    pleat__gate_unlock(&j->runtime->gate);
    return ended;
}

/* Until it stands still; false when it was done before that. */
static bool await_pause(const job *j, const pleat__coming *coming)
{
    while (!has_paused(j, coming) && !has_ended(j, coming))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return has_paused(j, coming);
}

/* It is given up while another thread grows the pool. */
static void give_up_beside(job *j, pleat__planned *policy)
{
    pthread_t other;
    atomic_store(&slow.stopped, 1);
    assert_int_equal(pthread_create(&other, NULL, grow_beside, j), 0);
    while (atomic_load(&slow.stopped) != 2)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    pleat__gate_lock(&j->runtime->gate);
    pleat__coming_stop(&policy->shapes.elastic.coming);
    assert_non_null(policy->pool.cuts);
    pleat__gate_unlock(&j->runtime->gate);
    atomic_store(&slow.stopped, 0);
    assert_int_equal(pthread_join(other, NULL), 0);
    await_made(j);
    assert_null(policy->pool.cuts);
}

/* Where handles have to begin is read without the lock by who grows the pool. */
static void coming_that_is_given_up_leaves_its_cuts_to_who_reads_them(void **state)
{
    (void)state;
    job j;
    elastic_job e = make_job(3);
    job_shape shape = at_x(&e, 12);
    pleat_capture *graph = begin_larger_captured(&j, &e, &shape);
    pleat__planned *policy = j.runtime->policy;
    bool paused = await_pause(&j, &policy->shapes.elastic.coming);
    if (paused)
        give_up_beside(&j, policy);
    assert_ok(pleat_capture_end(j.runtime, graph, NULL));
    assert_ok(pleat_capture_free(j.runtime, graph));
    end_larger(&j, &shape);
    run_x(&j, &e, 12, 3);
    finish(&j);
    if (!paused)
        skip(); /* slow as the thread sanitizer makes this one, the other was done before */
}

/* All that is idle goes, and nothing more comes. */
static void coming_ends_where_memory_is_wanted(void **state)
{
    (void)state;
    job j;
    elastic_job e = make_job(4);
    open_slow(&j, "", 0);
    learn_two(&j, &e);
    job_shape shape = at_x(&e, 12);
    begin_larger(&j, &shape);
    assert_ok(pleat_empty_cache(j.runtime));
    end_larger(&j, &shape);
    run_x(&j, &e, 12, 3);
    assert_mostly_planned(run_x(&j, &e, 12, 4), 98);
    assert_int_equal(pleat_stats_of(j.runtime).quarantined_bytes, 0);
    finish(&j);
}

static void coming_goes_with_the_runtime(void **state)
{
    (void)state;
    job j;
    pleat__host_holdings held;
    elastic_job e = make_job(5);
    open_slow(&j, "", 0);
    learn_two(&j, &e);
    job_shape shape = at_x(&e, 12);
    begin_larger(&j, &shape);
    pleat_runtime_destroy(j.runtime);
    assert_ok(pleat__host_holdings_of(&slow.host, &held));
    assert_int_equal(held.handles, 0);
    assert_int_equal(held.mapped_pages, 0);
    pleat_vmm_destroy(&slow.host);
}

/* A larger size comes while the memory of the last one is made. */
static void coming_of_two_sizes_is_the_later_ones(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        job j;
        elastic_job e = make_job(seed);
        open_slow(&j, "", 0);
        learn_two(&j, &e);
        job_shape shape = at_x(&e, 7);
        begin_larger(&j, &shape);
        /* What is live stays until the next iteration. */
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            job_free(&j, &j.now[i]);
        run_x(&j, &e, 14, 2);
        atomic_store(&slow.delay_ns, 0);
        run_x(&j, &e, 14, 3);
        assert_mostly_planned(run_x(&j, &e, 14, 4), 98);
        assert_mostly_planned(run_x(&j, &e, 7, 4), 98);
        finish(&j);
    }
}

/* The alias pages that anything knows of. */
static uint64_t known_view_pages(const pleat__planned *policy)
{
    const pleat__elastic *elastic = &policy->shapes.elastic;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < elastic->instance_count; i++)
        pages += elastic->instances[i]->view_pages;
    for (uint32_t i = 0; i < elastic->retired_count; i++)
        pages += elastic->retired[i]->view_pages;
    for (uint32_t i = 0; i < policy->heap.view_count; i++)
        pages += policy->heap.views[i]->pages;
    return pages;
}

/* The begin of an iteration at a size that nobody has seen, each request of which fails once for
 * want of host memory, where it asks for that so often. How many did. */
static uint64_t run_short_of_host_memory(job *j, const job_shape *shape, uint64_t nth)
{
    const pleat__planned *policy = j->runtime->policy;
    uint64_t failed = 0;
    assert_ok(pleat_mark(j->runtime));
    for (uint32_t i = 0; i < JOB_REQUESTS / 4; i++) {
        job_tensor *t = &j->now[i];
        *t = (job_tensor){.bytes = shape->bytes[i], .pattern = ++j->next_pattern};
        pleat__arena_fail(nth, false);
        pleat_result result = pleat_alloc(j->runtime, t->bytes, 0, &t->address);
        failed += pleat__arena_failed();
        pleat__arena_fail(0, false);
        assert_int_equal(policy->pool.view_pages, known_view_pages(policy));
        if (result == PLEAT_OK)
            job_fill(t);
        else
            job_request(j, shape, i, 0);
        job_end_at(j, shape, i);
    }
    end_larger(j, shape);
    return failed;
}

/* A layout whose memory is made at once and cannot be followed: its views go. */
static void coming_without_host_memory_leaves_no_view_behind(void **state)
{
    (void)state;
    elastic_job e = make_job(3);
    job_shape shape = at_x(&e, 12);
    uint64_t failed = 1, unmade = 0;
    for (uint64_t nth = 1; failed != 0; nth += 4) {
        job j = {0};
        job_host_timeless(&j.vmm);
        runtime_open(&j, "ahead:off", 1);
        learn_two(&j, &e);
        uint64_t instances = pleat_stats_of(j.runtime).instances;
        failed = run_short_of_host_memory(&j, &shape, nth);
        unmade += pleat_stats_of(j.runtime).instances == instances;
        finish(&j);
    }
    assert_true(unmade > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coming_largest_size_costs_the_job_no_driver_call),
        cmocka_unit_test(coming_memory_is_waited_for),
        cmocka_unit_test(coming_that_fails_is_no_harm),
        cmocka_unit_test(coming_stands_still_while_a_stream_captures),
        cmocka_unit_test(coming_that_is_given_up_leaves_its_cuts_to_who_reads_them),
        cmocka_unit_test(coming_ends_where_memory_is_wanted),
        cmocka_unit_test(coming_goes_with_the_runtime),
        cmocka_unit_test(coming_of_two_sizes_is_the_later_ones),
        cmocka_unit_test(coming_without_host_memory_leaves_no_view_behind),
    };
    return cmocka_run_group_tests_name("coming", tests, NULL, NULL);
}
