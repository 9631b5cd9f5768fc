/*
 * empty_beside.c: another thread gives memory back, and while it unmaps views the job's marks and
 * requests come: what they take up, and where they lie, is none of those views. With a canary, on
 * host memory.
 *
 * The order is driven by hand: an unmap of the other thread lasts until the job has run an
 * iteration, or waits for the turn.
 */
#include "draft_job.h"

#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/learn/draft_make.h>
#include <runtime/policy/pleat_internal.h>
#include <stdatomic.h>
#include <time.h>

#define SEEDS       2u
#define ITERATIONS  48u
#define UNDISTURBED 2u /* of them */

static struct {
    pleat_vmm host;
    pleat_vmm_ops ops;
    pleat_runtime *runtime;
    pthread_t own;      /* the job's thread */
    atomic_bool wanted; /* memory is to be given back */
    atomic_bool inside; /* an unmap waits for the job */
    atomic_bool passed; /* the job has run its iteration */
    atomic_bool ending;
    uint64_t met; /* iterations that began while views were unmapped */
    _Atomic uint64_t errors;
} b;

static void pause_shortly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000}, NULL);
}

static pleat_result late_unmap(void *self, pleat_va va, uint64_t bytes)
{
    if (atomic_load(&b.wanted) && !pthread_equal(pthread_self(), b.own)) {
        atomic_store(&b.inside, true);
        while (!atomic_load(&b.passed) && atomic_load(&b.runtime->gate.awaited) == 0)
            pause_shortly();
    }
    return b.host.ops->unmap(self, va, bytes);
}

static void *give_back(void *unused)
{
    (void)unused;
    while (!atomic_load(&b.ending)) {
        if (atomic_load(&b.wanted)) {
            b.errors += pleat_empty_cache(b.runtime) != PLEAT_OK;
            atomic_store(&b.wanted, false);
        }
        pause_shortly();
    }
    return NULL;
}

/* A plan that is being made is ready: the next mark would take it up. */
static void await_draft(void)
{
    for (bool busy = true; busy;) {
        pleat__gate_lock(&b.runtime->gate);
        const pleat__planned *policy = b.runtime->policy;
        const pleat__draft_job *made = policy->shapes.draft.job;
        busy = made != NULL && !pleat__job_done(&made->job);
        pleat__gate_unlock(&b.runtime->gate);
        if (busy)
            pause_shortly();
    }
}

/* Until the other thread unmaps, or has nothing to unmap. */
static void begin_giving_back(void)
{
    atomic_store(&b.passed, false);
    atomic_store(&b.inside, false);
    atomic_store(&b.wanted, true);
    while (!atomic_load(&b.inside) && atomic_load(&b.wanted))
        pause_shortly();
    b.met += atomic_load(&b.inside);
}

static void end_giving_back(void)
{
    atomic_store(&b.passed, true);
    while (atomic_load(&b.wanted))
        pause_shortly();
}

/* The sizes of iteration n. */
typedef void next_sizes(job_shape *shape, test_random *random, uint32_t n);

/* A job that shares its runtime with a thread that gives memory back at some of its marks. */
static pleat_stats live(job *j, job_shape *shape, next_sizes *next, uint64_t seed)
{
    /* Nothing waits for a thread that waits for the turn. */
    const pleat_runtime_options options = {.size = sizeof options, .conf = "ahead:off"};
    test_random random = {seed};
    pthread_t other;
    memset(j, 0, sizeof *j);
    job_host_timeless(&b.host);
    b.ops = *b.host.ops;
    b.ops.unmap = late_unmap;
    j->vmm = (pleat_vmm){&b.ops, b.host.self};
    b.own = pthread_self();
    atomic_store(&b.wanted, false);
    atomic_store(&b.ending, false);
    assert_ok(pleat_runtime_create(j->vmm, &options, &j->runtime));
    b.runtime = j->runtime;
    assert_int_equal(pthread_create(&other, NULL, give_back, NULL), 0);
    for (uint32_t n = 0; n < ITERATIONS; n++) {
        bool gives = n >= UNDISTURBED && test_random_below(&random, 3) == 0;
        next(shape, &random, n);
        await_draft();
        if (gives)
            begin_giving_back();
        run(j, shape, NULL, 1);
        if (gives)
            end_giving_back();
    }
    atomic_store(&b.ending, true);
    pthread_join(other, NULL);
    assert_int_equal(b.errors, 0);
    return pleat_stats_of(j->runtime);
}

static void routed(job_shape *shape, test_random *random, uint32_t n)
{
    (void)n;
    route(shape, random);
}

static void no_mark_takes_up_a_plan_whose_views_go(void **state)
{
    (void)state;
    uint64_t drafts = 0;
    b.met = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        job j;
        job_shape shape = layers_make(seed + 50);
        drafts += live(&j, &shape, routed, seed).drafts;
        finish(&j);
    }
    assert_true(drafts != 0);
    assert_true(b.met != 0);
}

/* Two thirds of the sizes follow x: two of them are seen first, then any comes. */
static void of_any_x(job_shape *shape, test_random *random, uint32_t n)
{
    uint64_t x = n < 6 ? 3 : n < 14 ? 4 : 1 + test_random_below(random, 8);
    *shape = layers_make(70);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        if (i % 3 != 0)
            shape->bytes[i] = shape->bytes[i] / 8 * 8 * x;
}

static void no_request_takes_up_a_layout_whose_views_go(void **state)
{
    (void)state;
    uint64_t instances = 0;
    b.met = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        job j;
        job_shape shape;
        instances += live(&j, &shape, of_any_x, seed).instances;
        finish(&j);
    }
    assert_true(instances > SEEDS);
    assert_true(b.met != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_mark_takes_up_a_plan_whose_views_go),
        cmocka_unit_test(no_request_takes_up_a_layout_whose_views_go),
    };
    return cmocka_run_group_tests_name("empty_beside", tests, NULL, NULL);
}
