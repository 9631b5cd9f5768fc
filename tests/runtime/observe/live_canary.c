/*
 * live_canary.c: the canary of a running job (setting canary:on): finds nothing where nothing is
 * wrong, whatever the policy, and finds writes past the end and writes after the free.
 */
#include "fault.h"
#include "held.h"
#include "job.h"

#include <internal/arena.h>
#include <vmm/host/host.h>

static const char *const policies[] = {"native", "expandable", "gmlake", "pleat"};

static pleat_canary found(pleat_runtime *runtime)
{
    pleat_canary canary;
    assert_ok(pleat_canary_of(runtime, &canary));
    return canary;
}

static void run(job *j, const job_shape *shape, int iterations)
{
    for (int i = 0; i < iterations; i++) {
        assert_ok(pleat_mark(j->runtime));
        job_iterate(j, shape, (job_disturbance)(i % JOB_DISTURBANCES), 7u + (uint32_t)i);
    }
}

static void canary_finds_nothing_where_nothing_is_wrong(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(3, 1);
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        job j;
        job_start_with(&j, policies[p], NULL, 0, "canary:on");
        run(&j, &shape, 12);
        assert_ok(pleat_empty_cache(j.runtime));
        run(&j, &shape, 3);
        job_drain(&j);
        assert_int_equal(j.errors, 0);
        pleat_canary canary = found(j.runtime);
        assert_int_equal(canary.words, 0);
        assert_int_equal(canary.checked, pleat_stats_of(j.runtime).requests);
        job_stop(&j);
    }
}

static void canary_sees_writes_past_the_end(void **state)
{
    (void)state;
    for (uint64_t bytes = 1021; bytes < 1030; bytes++) {
        job j;
        pleat_va address;
        job_start_with(&j, "pleat", NULL, 0, "canary:on");
        assert_ok(pleat_alloc(j.runtime, bytes, 0, &address));
        *(char *)(uintptr_t)(address + (bytes + 3) / 4 * 4) ^= 1;
        assert_ok(pleat_free(j.runtime, address));
        pleat_canary canary = found(j.runtime);
        assert_int_equal(canary.words, 1);
        assert_int_equal(canary.first, address + (bytes + 3) / 4 * 4);
        job_stop(&j);
    }
}

static void canary_sees_writes_after_the_free(void **state)
{
    (void)state;
    job j;
    pleat_va address, again;
    job_start_with(&j, "pleat", NULL, 0, "canary:on");
    assert_ok(pleat_alloc(j.runtime, 4000, 0, &address));
    assert_ok(pleat_free(j.runtime, address));
    *(uint64_t *)(uintptr_t)(address + 800) = 5;
    assert_int_equal(found(j.runtime).words, 0);
    assert_ok(pleat_alloc(j.runtime, 4000, 0, &again));
    assert_int_equal(again, address);
    assert_int_equal(found(j.runtime).words, 2);
    job_stop(&j);
}

static void note_requested(void *context, const pleat_block *block)
{
    *(uint64_t *)context += block->requested;
}

/* What is asked for besides, for the guard, is told of nowhere, also of what waits. */
static void canary_tells_sizes_as_asked_for(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        job j;
        pleat_va address;
        pleat_block block;
        uint64_t requested = 0;
        job_start_with(&j, policies[i], NULL, 0, "canary:on");
        pleat_stats before = pleat_stats_of(j.runtime);
        assert_ok(pleat_alloc(j.runtime, 1000, 0, &address));
        assert_ok(pleat_block_of(j.runtime, address, &block));
        assert_int_equal(block.requested, 1000);
        assert_ok(pleat_walk(j.runtime, note_requested, &requested));
        assert_int_equal(requested, 1000);
        assert_ok(pleat_record_stream(j.runtime, address, 7));
        assert_ok(pleat__host_stream_hold(&j.vmm, 7));
        assert_ok(pleat_free(j.runtime, address));
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_int_equal(after.waiting_blocks, 1);
        assert_int_equal(after.live_bytes, before.live_bytes);
        assert_int_equal(after.requested_bytes, before.requested_bytes);
        assert_ok(pleat__host_stream_release(&j.vmm, 7));
        job_stop(&j);
    }
}

/* With the guard behind it the size would be a small one. */
static void canary_makes_no_request_small(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        for (uint64_t less = 0; less < 2048; less += 511) {
            job j;
            pleat_va refused;
            job_start_with(&j, policies[i], NULL, 0, "canary:on");
            assert_result(pleat_alloc(j.runtime, UINT64_MAX - less, 0, &refused),
                          PLEAT_E_OUT_OF_MEMORY);
            assert_int_equal(refused, 0);
            job_stop(&j);
        }
}

static void canary_must_be_asked_for(void **state)
{
    (void)state;
    job j;
    pleat_canary canary;
    job_start(&j, "pleat", NULL, 0);
    assert_result(pleat_canary_of(j.runtime, &canary), PLEAT_E_STATE);
    job_stop(&j);
}

static uint32_t word_at(pleat_va address)
{
    return *(const uint32_t *)(uintptr_t)address;
}

/* What streams that share memory freed is used on any of them as soon as their events have passed:
 * by then it is painted, behind all that used it. */
static void canary_paints_shared_memory_before_its_free_waits(void **state)
{
    (void)state;
    job j;
    pleat_va first, second;
    pleat_event event;
    job_start_with(&j, "pleat", NULL, 0, "canary:on");
    for (pleat_stream s = 100; s < 162; s++) {
        assert_ok(pleat_alloc(j.runtime, 512, s, &first));
        assert_ok(pleat_free(j.runtime, first));
    }
    uint32_t free_word = word_at(first);
    assert_ok(pleat_alloc(j.runtime, 4000, 7, &first));
    assert_ok(pleat_alloc(j.runtime, 4000, 7, &second));
    assert_ok(pleat__host_stream_hold(&j.vmm, 7));
    assert_ok(pleat_free(j.runtime, first));
    assert_int_equal(word_at(first), free_word);
    assert_ok(pleat__host_stream_release(&j.vmm, 7));
    assert_ok(pleat__host_stream_hold(&j.vmm, 8));
    assert_ok(pleat_record_stream(j.runtime, second, 8));
    assert_ok(pleat_free(j.runtime, second));
    assert_ok(j.vmm.ops->event_create(j.vmm.self, 0, &event));
    assert_ok(j.vmm.ops->event_record(j.vmm.self, event, 7));
    assert_result(j.vmm.ops->event_query(j.vmm.self, event), PLEAT_E_NOT_READY);
    assert_ok(pleat__host_stream_release(&j.vmm, 8));
    assert_ok(j.vmm.ops->event_query(j.vmm.self, event));
    assert_ok(j.vmm.ops->event_destroy(j.vmm.self, event));
    assert_ok(pleat_alloc(j.runtime, 4000, 9, &first));
    assert_int_equal(found(j.runtime).words, 0);
    job_stop(&j);
}

/* The kernels' path, on a driver that is the host's memory: $PLEAT_CUDA_LIBRARY. */
static void canary_runs_on_the_driver(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pleat_runtime_options options = {.size = sizeof options, .conf = "canary:on"};
    pleat_va a, b;
    if (getenv("PLEAT_CUDA_LIBRARY") == NULL)
        skip();
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_ok(pleat_runtime_create(vmm, &options, &runtime));
    for (int i = 0; i < 20; i++) {
        assert_ok(pleat_alloc(runtime, 3000 + (uint64_t)i * 700, 0, &a));
        assert_ok(pleat_alloc(runtime, 100000, 0, &b));
        assert_ok(pleat_free(runtime, a));
        assert_ok(pleat_free(runtime, b));
    }
    assert_int_equal(found(runtime).words, 0);
    assert_ok(pleat_alloc(runtime, 3000, 0, &a));
    ((uint32_t *)(uintptr_t)a)[750] ^= 1;
    assert_ok(pleat_free(runtime, a));
    assert_int_equal(found(runtime).words, 1);
    assert_int_equal(found(runtime).first, a + 3000);
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
}

/* Whatever verb fails while it is made, nothing is left behind. */
static void canary_that_cannot_be_made_leaves_nothing(void **state)
{
    (void)state;
    pleat_vmm host, vmm;
    pleat_runtime *runtime;
    pleat_runtime_options options = {.size = sizeof options, .conf = "canary:on"};
    pleat_host_options small = {.size = sizeof small, .device_bytes = 1ull << 30};
    assert_ok(pleat_vmm_host(&small, &host));
    assert_ok(pleat__fault_create(host, &vmm));
    pleat__fault_arm(
        &vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_create, .nth = 1, .forever = true});
    assert_int_not_equal(pleat_runtime_create(vmm, &options, &runtime), PLEAT_OK);
    assert_nothing_held(&host);
    pleat_vmm_destroy(&vmm);
    pleat_vmm_destroy(&host);
}

/* A request that the canary has no memory for is refused, and holds nothing. */
static void canary_without_host_memory_leaves_nothing_allocated(void **state)
{
    (void)state;
    pleat_va address;
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        pleat_result result = PLEAT_E_NO_MEMORY;
        for (uint64_t nth = 1; result != PLEAT_OK; nth++) {
            job j;
            job_start_with(&j, policies[p], NULL, 0, "canary:on");
            pleat__arena_fail(nth, false);
            result = pleat_alloc(j.runtime, 5000, 0, &address);
            bool failed = pleat__arena_failed() != 0;
            pleat__arena_fail(0, false);
            assert_true(result == PLEAT_OK || failed);
            pleat_stats stats = pleat_stats_of(j.runtime);
            assert_int_equal(stats.live_bytes != 0, result == PLEAT_OK);
            assert_int_equal(stats.requests, result == PLEAT_OK);
            assert_int_equal(address != 0, result == PLEAT_OK);
            job_stop(&j);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(canary_finds_nothing_where_nothing_is_wrong),
        cmocka_unit_test(canary_without_host_memory_leaves_nothing_allocated),
        cmocka_unit_test(canary_sees_writes_past_the_end),
        cmocka_unit_test(canary_sees_writes_after_the_free),
        cmocka_unit_test(canary_tells_sizes_as_asked_for),
        cmocka_unit_test(canary_makes_no_request_small),
        cmocka_unit_test(canary_must_be_asked_for),
        cmocka_unit_test(canary_paints_shared_memory_before_its_free_waits),
        cmocka_unit_test(canary_runs_on_the_driver),
        cmocka_unit_test(canary_that_cannot_be_made_leaves_nothing),
    };
    return cmocka_run_group_tests_name("live_canary", tests, NULL, NULL);
}
