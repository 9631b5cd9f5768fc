/*
 * rehearsal_beside.c: threads with a stream each, all of which grow and stitch while what the next
 * iteration asks for is made ahead: a request that waits for that leaves the lock and the turn, and
 * the others go on meanwhile.
 */
#include "job.h"

#include <pthread.h>
#include <time.h>
#include <vmm/host.h>

#define THREADS    6u
#define ITERATIONS 4u
#define OPENING    40u
#define MOST       120u
#define ROUNDS     1u

/* What the threads allocate. */
typedef struct sizes {
    uint32_t count;
    uint64_t least, kept, gone; /* bytes: at least, and up to so many more */
} sizes;

typedef struct worker {
    pleat_runtime *runtime;
    pthread_barrier_t *all;
    const sizes *kind;
    uint64_t seed;
    uint32_t number;
    uint32_t failures;
} worker;

static const pleat_vmm_ops *host;

/* As slow as a GPU's, so that others come in between. */
static pleat_result slow_access(void *self, pleat_va va, uint64_t bytes, const int *devices, int n)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    return host->set_access(self, va, bytes, devices, n);
}

static pleat_va take(worker *w, uint64_t bytes)
{
    pleat_va address = 0;
    w->failures += pleat_alloc(w->runtime, bytes, (pleat_stream)w->number, &address) != PLEAT_OK;
    return address;
}

static void give(worker *w, pleat_va address)
{
    w->failures += address == 0 || pleat_free(w->runtime, address) != PLEAT_OK;
}

static uint64_t drawn(const worker *w, test_random *random, uint64_t more)
{
    return w->kind->least + 512 * (1 + test_random_below(random, more / 512));
}

/* By which an iteration is known. */
static void open_iteration(worker *w)
{
    pleat_va small[OPENING];
    for (uint32_t i = 0; i < OPENING; i++)
        small[i] = take(w, 777 + 512 * i);
    for (uint32_t i = 0; i < OPENING; i++)
        give(w, small[i]);
}

/* What stays: the next iteration finds less room. */
static void make_state(worker *w)
{
    for (uint32_t k = 0; k < 20; k++)
        (void)take(w, (15 + 3 * k) * JOB_PAGE + 512);
}

static void *run(void *context)
{
    worker *w = context;
    for (uint32_t n = 0; n < ITERATIONS; n++) {
        pleat_va kept[MOST];
        test_random random = {w->seed};
        pthread_barrier_wait(w->all);
        if (w->number == 0)
            open_iteration(w);
        pthread_barrier_wait(w->all);
        for (uint32_t i = 0; i < w->kind->count; i++) {
            kept[i] = take(w, drawn(w, &random, w->kind->kept));
            give(w, take(w, drawn(w, &random, w->kind->gone)));
        }
        for (uint32_t i = 0; i < w->kind->count; i++)
            give(w, kept[i]);
        if (n == 0)
            make_state(w);
        pthread_barrier_wait(w->all);
        if (w->number == 0)
            w->failures += pleat_mark(w->runtime) != PLEAT_OK;
    }
    return NULL;
}

static void run_threads(pleat_runtime *runtime, const sizes *kind, uint64_t seed)
{
    pthread_t threads[THREADS];
    worker workers[THREADS];
    pthread_barrier_t all;
    assert_int_equal(pthread_barrier_init(&all, NULL, THREADS), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){runtime, &all, kind, seed + i, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].failures, 0);
    }
    pthread_barrier_destroy(&all);
}

static void run_job(const sizes *kind, uint64_t seed)
{
    pleat_host_options options = {
        .size = sizeof options, .device_bytes = 2ull << 30, .granularity = JOB_PAGE};
    pleat_runtime_options how = {.size = sizeof how, .conf = "draft:off"};
    pleat_vmm vmm;
    pleat_runtime *runtime;
    assert_ok(pleat_vmm_host(&options, &vmm));
    host = vmm.ops;
    pleat_vmm_ops slow = *host;
    slow.set_access = slow_access;
    assert_ok(pleat_runtime_create((pleat_vmm){.ops = &slow, .self = vmm.self}, &how, &runtime));
    run_threads(runtime, kind, seed);
    pleat_stats stats = pleat_stats_of(runtime);
    assert_true(stats.mapper_calls > 0);
    assert_true(stats.live_bytes <= stats.physical_bytes);
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
}

/* Chunks that one waits for come into its own stream's zone, whoever grows meanwhile. */
static void rehearsal_grows_for_the_stream_that_asked(void **state)
{
    (void)state;
    static const sizes small = {MOST, JOB_PAGE * 5 / 8, JOB_PAGE * 3 / 8, JOB_PAGE * 3 / 8};
    for (uint32_t round = 0; round < ROUNDS; round++)
        run_job(&small, 1000 * round + 1);
}

/* Views that several make at once all have room in the list of views. */
static void rehearsal_stitches_for_several_at_once(void **state)
{
    (void)state;
    static const sizes large = {60, 0, 20 * JOB_PAGE, 40 * JOB_PAGE};
    for (uint32_t round = 0; round < ROUNDS; round++)
        run_job(&large, 1000 * round + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rehearsal_grows_for_the_stream_that_asked),
        cmocka_unit_test(rehearsal_stitches_for_several_at_once),
    };
    return cmocka_run_group_tests_name("rehearsal_beside", tests, NULL, NULL);
}
