/*
 * backend.h: the backend that the conformance suite asks: how it is opened and closed, how a word
 * of its memory is written and read, and a stream whose work can be held up.
 */
#ifndef PLEAT_TESTS_VMM_BACKEND_H
#define PLEAT_TESTS_VMM_BACKEND_H

#include "fault.h"
#include "held.h"
#include "host.h"

#include <string.h>
#include <vmm/cuda.h>

typedef struct backend {
    const char *name;
    pleat_vmm vmm;   /* under test */
    pleat_vmm below; /* what it decorates */
    uint64_t granule;
    pleat_stream stream; /* not the default one */
    /* The gate of the stream: shut, its later points wait. On a GPU a kernel waits for a word. */
    pleat__cuda_kernel kernel;
    pleat_va gate_va;
    pleat_handle gate_memory;
} backend;

static backend b;

static const char wait_ptx[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n"
                               ".visible .entry pleat_wait(.param .u64 flag)\n"
                               "{\n"
                               "    .reg .u64 %rd<3>;\n"
                               "    .reg .u32 %r<2>;\n"
                               "    .reg .pred %p<2>;\n"
                               "    ld.param.u64 %rd1, [flag];\n"
                               "    cvta.to.global.u64 %rd2, %rd1;\n"
                               "again:\n"
                               "    ld.volatile.global.u32 %r1, [%rd2];\n"
                               "    setp.eq.u32 %p1, %r1, 0;\n"
                               "    @%p1 bra again;\n"
                               "    ret;\n"
                               "}\n";

#define VERB(name, ...) (b.vmm.ops->name(b.vmm.self, __VA_ARGS__))

static inline bool is_cuda(void)
{
    return strcmp(b.name, "cuda") == 0;
}

static inline void put(pleat_va at, uint64_t value)
{
    if (is_cuda())
        assert_ok(pleat__cuda_copy_in(&b.vmm, 0, at, &value, sizeof value));
    else
        *(uint64_t *)(uintptr_t)at = value;
}

static inline uint64_t get(pleat_va at)
{
    uint64_t value = 0;
    if (is_cuda())
        assert_ok(pleat__cuda_copy_out(&b.vmm, 0, &value, at, sizeof value));
    else
        value = *(const uint64_t *)(uintptr_t)at;
    return value;
}

static inline void shut_gate(void)
{
    if (!is_cuda()) {
        assert_ok(pleat__host_stream_hold(&b.below, b.stream));
        return;
    }
    put(b.gate_va, 0);
    void *arguments[] = {&b.gate_va};
    assert_ok(pleat__cuda_launch(&b.vmm, &b.kernel, b.stream, 1, 1, arguments));
}

static inline void open_gate(void)
{
    if (is_cuda())
        put(b.gate_va, 1);
    else
        assert_ok(pleat__host_stream_release(&b.below, b.stream));
}

static const int own_device[] = {0};

/* `count` handles of `granules` each, mapped one behind the other at `va`, accessible. */
static inline void map_new(pleat_va va, uint64_t granules, uint64_t count, pleat_handle *handles)
{
    uint64_t bytes = granules * b.granule;
    for (uint64_t i = 0; i < count; i++) {
        assert_ok(VERB(create, 0, bytes, 0, &handles[i]));
        assert_ok(VERB(map, va + i * bytes, bytes, handles[i]));
    }
    assert_ok(VERB(set_access, va, count * bytes, own_device, 1));
}

static inline void drop(pleat_va va, uint64_t bytes, const pleat_handle *handles, uint64_t count)
{
    if (bytes != 0)
        assert_ok(VERB(unmap, va, bytes));
    for (uint64_t i = 0; i < count; i++)
        assert_ok(VERB(release, handles[i]));
}

static inline void open_gpu_parts(void)
{
    assert_ok(b.vmm.ops->stream_create(b.vmm.self, 0, &b.stream));
    assert_ok(pleat__cuda_kernel_load(&b.vmm, 0, wait_ptx, "pleat_wait", &b.kernel));
    assert_ok(VERB(reserve, 0, b.granule, 0, &b.gate_va));
    map_new(b.gate_va, 1, 1, &b.gate_memory);
}

static inline int open_backend(void **state)
{
    (void)state;
    uint64_t advised;
    b.stream = 77;
    if (is_cuda()) {
        assert_ok(pleat_vmm_cuda(&b.vmm));
    } else {
        assert_ok(pleat_vmm_host(NULL, &b.below));
        b.vmm = b.below;
        if (strcmp(b.name, "fault") == 0)
            assert_ok(pleat__fault_create(b.below, &b.vmm));
    }
    assert_ok(VERB(granularity, 0, &b.granule, &advised));
    if (is_cuda())
        open_gpu_parts();
    return 0;
}

/* Also the proof that no test left anything behind, where the backend can say so. */
static inline int close_backend(void **state)
{
    (void)state;
    if (is_cuda()) {
        assert_ok(pleat__cuda_kernel_unload(&b.vmm, &b.kernel));
        assert_ok(b.vmm.ops->stream_destroy(b.vmm.self, 0, b.stream));
        drop(b.gate_va, b.granule, &b.gate_memory, 1);
        assert_ok(VERB(free_range, b.gate_va, b.granule));
    } else {
        assert_nothing_held(&b.below);
    }
    if (strcmp(b.name, "fault") == 0)
        pleat_vmm_destroy(&b.below);
    pleat_vmm_destroy(&b.vmm);
    return 0;
}

#endif
