/*
 * devices.c: two devices in one process: while one waits for the driver, in whichever verb, the
 * other one's planned iterations go on as they did: the same places, no driver call, no wait.
 *
 * Between the runtimes and the host backend lies a table whose verbs, on any thread but the test's,
 * stop until they are told to go on. If either device's slow path held anything that the other's
 * needs, the test would stand still.
 */
#include "held.h"
#include "job.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* X(verb): where the slow device stops. */
#define VERBS(X) X(create) X(map) X(set_access) X(unmap) X(release) X(event_wait)

typedef enum verb {
#define VERB_ENUM(name) VERB_##name,
    VERBS(VERB_ENUM)
#undef VERB_ENUM
        VERB_COUNT
} verb;

enum { ITERATIONS = 5, LEARNING = 6 };

static struct {
    pleat_vmm host;
    pleat_vmm_ops ops;
    pthread_t fast; /* the test's own thread */
    _Atomic int stops_at;
    atomic_bool stopped, goes_on;
} b;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void stop_at(verb at)
{
    if (pthread_equal(pthread_self(), b.fast) || atomic_load(&b.stops_at) != (int)at)
        return;
    atomic_store(&b.stopped, true);
    while (!atomic_load(&b.goes_on))
        nap();
}

static pleat_result create(void *self, int device, uint64_t bytes, uint32_t flags,
                           pleat_handle *handle)
{
    stop_at(VERB_create);
    return b.host.ops->create(self, device, bytes, flags, handle);
}

static pleat_result map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    stop_at(VERB_map);
    return b.host.ops->map(self, va, bytes, handle);
}

static pleat_result set_access(void *self, pleat_va va, uint64_t bytes, const int *devices,
                               int count)
{
    stop_at(VERB_set_access);
    return b.host.ops->set_access(self, va, bytes, devices, count);
}

static pleat_result unmap(void *self, pleat_va va, uint64_t bytes)
{
    stop_at(VERB_unmap);
    return b.host.ops->unmap(self, va, bytes);
}

static pleat_result release(void *self, pleat_handle handle)
{
    stop_at(VERB_release);
    return b.host.ops->release(self, handle);
}

static pleat_result event_wait(void *self, pleat_event event)
{
    stop_at(VERB_event_wait);
    return b.host.ops->event_wait(self, event);
}

static void open_devices(job jobs[2])
{
    pleat_host_options options = {
        .size = sizeof options, .devices = 2, .device_bytes = 1ull << 30, .granularity = JOB_PAGE};
    assert_ok(pleat_vmm_host(&options, &b.host));
    assert_ok(pleat__host_clock_set(&b.host, 1000000000));
    b.ops = *b.host.ops;
#define VERB_SET(name) b.ops.name = name;
    VERBS(VERB_SET)
#undef VERB_SET
    b.fast = pthread_self();
    atomic_store(&b.stops_at, VERB_COUNT);
    memset(jobs, 0, 2 * sizeof *jobs);
    for (int device = 0; device < 2; device++) {
        pleat_runtime_options made = {.size = sizeof made, .device = device, .waits = 1};
        jobs[device].vmm = (pleat_vmm){&b.ops, b.host.self};
        assert_ok(pleat_runtime_create(jobs[device].vmm, &made, &jobs[device].runtime));
    }
}

static void close_devices(job jobs[2])
{
    for (int device = 0; device < 2; device++) {
        job_drain(&jobs[device]);
        assert_int_equal(jobs[device].errors, 0);
        pleat_runtime_destroy(jobs[device].runtime);
    }
    assert_nothing_held(&b.host);
    pleat_vmm_destroy(&b.host);
}

/* What takes every verb of the list: memory comes and goes. */
static void *take_the_slow_path(void *runtime)
{
    pleat_va address;
    assert_ok(pleat_alloc(runtime, 64u << 20, 0, &address));
    assert_ok(pleat_free(runtime, address));
    assert_ok(pleat_empty_cache(runtime));
    return NULL;
}

static uint64_t places(const job *j)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        hash = (hash ^ j->before[i].address) * 0x9e3779b97f4a7c15u;
    return hash;
}

/* One planned iteration; a hash of where its last tensors lie. */
static uint64_t iterate(job *j, const job_shape *shape)
{
    assert_ok(pleat_mark(j->runtime));
    job_iterate(j, shape, JOB_PLAIN, 0);
    return places(j);
}

static void devices_do_not_wait_for_each_other(void **state)
{
    (void)state;
    static job jobs[2];
    job_shape shape = job_shape_make(5, 1);
    open_devices(jobs);
    for (int i = 0; i < LEARNING; i++)
        (void)iterate(&jobs[1], &shape);
    uint64_t lay = iterate(&jobs[1], &shape);
    for (int at = 0; at < VERB_COUNT; at++) {
        pthread_t slow;
        atomic_store(&b.stopped, false);
        atomic_store(&b.goes_on, false);
        atomic_store(&b.stops_at, at);
        assert_int_equal(pthread_create(&slow, NULL, take_the_slow_path, jobs[0].runtime), 0);
        while (!atomic_load(&b.stopped))
            nap();
        pleat_stats before = pleat_stats_of(jobs[1].runtime);
        for (int i = 0; i < ITERATIONS; i++)
            assert_int_equal(iterate(&jobs[1], &shape), lay);
        pleat_stats after = pleat_stats_of(jobs[1].runtime);
        assert_int_equal(after.planned - before.planned, ITERATIONS * JOB_REQUESTS);
        assert_int_equal(after.driver_calls, before.driver_calls);
        assert_int_equal(after.map_waits, before.map_waits);
        assert_int_equal(after.waited_ns, before.waited_ns);
        atomic_store(&b.goes_on, true);
        assert_int_equal(pthread_join(slow, NULL), 0);
    }
    close_devices(jobs);
}

/* A device that begins while another is in the middle of beginning. */
static void *begin_device(void *out)
{
    pleat_runtime_options made = {.size = sizeof made, .device = 0};
    assert_ok(pleat_runtime_create((pleat_vmm){&b.ops, b.host.self}, &made, out));
    return NULL;
}

static pleat_result reserve(void *self, int device, uint64_t bytes, uint64_t align, pleat_va *va)
{
    stop_at(VERB_COUNT + 1);
    return b.host.ops->reserve(self, device, bytes, align, va);
}

static void devices_begin_beside_each_other(void **state)
{
    (void)state;
    static job jobs[2];
    job_shape shape = job_shape_make(6, 1);
    open_devices(jobs);
    b.ops.reserve = reserve;
    pleat_runtime *third = NULL;
    pthread_t slow;
    atomic_store(&b.stopped, false);
    atomic_store(&b.goes_on, false);
    atomic_store(&b.stops_at, VERB_COUNT + 1);
    assert_int_equal(pthread_create(&slow, NULL, begin_device, &third), 0);
    while (!atomic_load(&b.stopped))
        nap();
    (void)iterate(&jobs[1], &shape); /* new memory, all of it */
    atomic_store(&b.goes_on, true);
    assert_int_equal(pthread_join(slow, NULL), 0);
    pleat_runtime_destroy(third);
    close_devices(jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_do_not_wait_for_each_other),
        cmocka_unit_test(devices_begin_beside_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
