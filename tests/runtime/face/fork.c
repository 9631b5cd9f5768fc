/*
 * fork.c: a child of fork, made while its parent's threads allocate: the parent's runtime, backend
 * and ranges are refused there at once, and those of the child's own work.
 */
#include "child.h"
#include "fixture.h"

#include <pleat/ranges.h>
#include <stdatomic.h>
#include <unistd.h>

/* The address sanitizer's malloc may be left locked in a child of fork. */
#ifdef PLEAT_ARENAS_OF_MALLOC
#define CHILD_MAY_ALLOCATE false
#else
#define CHILD_MAY_ALLOCATE true
#endif
#define THREADS 3
#define FORKS   50

typedef struct busy {
    fixture f;
    pleat_ranges *ranges;
    pleat_va range;
    atomic_bool ends;
} busy;

static void *allocate(void *context)
{
    busy *b = context;
    for (uint64_t i = 0; !atomic_load(&b->ends); i++) {
        pleat_va address;
        if (pleat_alloc(b->f.runtime, (i % 64 + 1) * (MIB / 8), 0, &address) == PLEAT_OK)
            pleat_free(b->f.runtime, address);
        if (i % 32 == 31)
            pleat_empty_cache(b->f.runtime);
        uint64_t bytes;
        pleat_va range;
        if (i % 16 == 15 && pleat_range_make(b->ranges, MIB, &range, &bytes) == PLEAT_OK)
            pleat_range_give(b->ranges, range);
    }
    return NULL;
}

/* What went wrong first, as a child's exit status; 0: nothing. */
static int refused(pleat_runtime *runtime, pleat_va live)
{
    pleat_va address = 1;
    pleat_block block;
    if (pleat_alloc(runtime, MIB, 0, &address) != PLEAT_E_STATE || address != 0)
        return 1;
    if (!has("before a fork"))
        return 2;
    if (pleat_free(runtime, live) != PLEAT_E_STATE || pleat_mark(runtime) != PLEAT_E_STATE ||
        pleat_empty_cache(runtime) != PLEAT_E_STATE ||
        pleat_block_of(runtime, live, &block) != PLEAT_E_STATE)
        return 3;
    if (pleat_stats_of(runtime).requests != 0 || pleat_limit_of(runtime) != 0)
        return 4;
    pleat_runtime_destroy(runtime);
    return 0;
}

/* The same of what a runtime is made on, and of ranges. */
static int refused_backend(pleat_vmm vmm, pleat_ranges *ranges, pleat_va range)
{
    pleat_runtime *runtime;
    pleat_ranges *others;
    pleat_event event;
    pleat_va begin;
    uint64_t bytes;
    int count;
    if (CHILD_MAY_ALLOCATE && (pleat_runtime_create(vmm, NULL, &runtime) != PLEAT_E_STATE ||
                               !has("backend") || !has("before a fork")))
        return 7;
    if ((CHILD_MAY_ALLOCATE && pleat_ranges_create(vmm, 0, &others) != PLEAT_E_STATE) ||
        pleat_host_physical(&vmm, range, &bytes) != PLEAT_E_STATE)
        return 8;
    if (vmm.ops->device_count(vmm.self, &count) != PLEAT_E_STATE ||
        vmm.ops->reserve(vmm.self, 0, 2 * MIB, 0, &begin) != PLEAT_E_STATE ||
        vmm.ops->unmap(vmm.self, range, 2 * MIB) != PLEAT_E_STATE ||
        vmm.ops->event_create(vmm.self, 0, &event) != PLEAT_E_STATE)
        return 9;
    (void)vmm.ops->clock_ns(vmm.self);
    if (pleat_range_of(ranges, range, &begin, &bytes) != PLEAT_E_STATE || !has("ranges") ||
        pleat_range_hold(ranges, range) != PLEAT_E_STATE ||
        pleat_range_give(ranges, range) != PLEAT_E_STATE || pleat_ranges_bytes(ranges) != 0)
        return 10;
    pleat_ranges_destroy(ranges);
    pleat_vmm_destroy(&vmm);
    return 0;
}

static int works(void)
{
    pleat_vmm vmm;
    pleat_runtime *runtime;
    const pleat_runtime_options options = {.size = sizeof options};
    pleat_va address;
    if (pleat_vmm_host(NULL, &vmm) != PLEAT_OK ||
        pleat_runtime_create(vmm, &options, &runtime) != PLEAT_OK)
        return 5;
    if (pleat_alloc(runtime, 3 * MIB, 0, &address) != PLEAT_OK ||
        pleat_free(runtime, address) != PLEAT_OK)
        return 6;
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
    return 0;
}

static void child_of_fork_is_refused_and_may_begin_anew(void **state)
{
    (void)state;
    busy b = {.ends = false};
    pthread_t threads[THREADS];
    begin(&b.f, "pleat", 1ull << 30, 0);
    pleat_va live = take(&b.f, MIB, 0);
    assert_ok(pleat_ranges_create(b.f.vmm, 0, &b.ranges));
    assert_ok(pleat_range_make(b.ranges, MIB, &b.range, NULL));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, allocate, &b), 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            alarm(20); /* one that hangs is killed */
            int status = refused(b.f.runtime, live);
            if (status == 0)
                status = refused_backend(b.f.vmm, b.ranges, b.range);
            _exit(status != 0 || !CHILD_MAY_ALLOCATE ? status : works());
        }
        assert_child_ends(child);
    }
    atomic_store(&b.ends, true);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_ok(pleat_free(b.f.runtime, live)); /* the parent's is as it was */
    assert_ok(pleat_range_give(b.ranges, b.range));
    pleat_ranges_destroy(b.ranges);
    end(&b.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(child_of_fork_is_refused_and_may_begin_anew),
    };
    return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
