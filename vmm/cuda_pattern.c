/*
 * cuda_pattern.c: see cuda_pattern.h.
 */
#include "cuda_pattern.h"

#include <internal/error.h>

#define THREADS     256u  /* D480 */
#define BLOCKS_MOST 4224u /* 32 for each of an H200's 132 multiprocessors; more is no faster */

static pleat_result load(pleat__cuda_pattern *pattern, const char *ptx, const char *write,
                         const char *verify)
{
    PLEAT_TRY(pleat__cuda_kernel_load(&pattern->vmm, pattern->device, ptx, write, &pattern->write));
    pattern->loaded = true;
    return pleat__cuda_kernel_beside(&pattern->vmm, &pattern->write, verify, &pattern->verify);
}

static pleat_result make_counters(pleat__cuda_pattern *pattern)
{
    const pleat_vmm_ops *ops = pattern->vmm.ops;
    void *self = pattern->vmm.self;
    const uint64_t zeros[PLEAT__CUDA_PATTERN_COUNTERS] = {0};
    uint64_t advised;
    PLEAT_TRY(ops->granularity(self, pattern->device, &pattern->granule, &advised));
    PLEAT_TRY(ops->reserve(self, pattern->device, pattern->granule, 0, &pattern->counters));
    pattern->reserved = true;
    PLEAT_TRY(ops->create(self, pattern->device, pattern->granule, 0, &pattern->memory));
    pattern->created = true;
    PLEAT_TRY(ops->map(self, pattern->counters, pattern->granule, pattern->memory));
    pattern->mapped = true;
    PLEAT_TRY(ops->set_access(self, pattern->counters, pattern->granule, &pattern->device, 1));
    return pleat__cuda_copy_in(&pattern->vmm, pattern->device, pattern->counters, zeros,
                               sizeof zeros);
}

pleat_result pleat__cuda_pattern_open(const pleat_vmm *vmm, int device, const char *ptx,
                                      const char *write, const char *verify,
                                      pleat__cuda_pattern *out)
{
    pleat__cuda_pattern made = {.vmm = *vmm, .device = device};
    pleat_result result = load(&made, ptx, write, verify);
    if (result == PLEAT_OK)
        result = make_counters(&made);
    if (result != PLEAT_OK)
        pleat__cuda_pattern_close(&made);
    else
        *out = made;
    return result;
}

void pleat__cuda_pattern_close(pleat__cuda_pattern *pattern)
{
    const pleat_vmm_ops *ops = pattern->vmm.ops;
    void *self = pattern->vmm.self;
    if (pattern->mapped)
        (void)ops->unmap(self, pattern->counters, pattern->granule);
    if (pattern->created)
        (void)ops->release(self, pattern->memory);
    if (pattern->reserved)
        (void)ops->free_range(self, pattern->counters, pattern->granule);
    if (pattern->loaded)
        (void)!pleat__cuda_kernel_unload(&pattern->vmm, &pattern->write);
}

static pleat_result launch(const pleat__cuda_pattern *pattern, const pleat__cuda_kernel *kernel,
                           pleat_stream stream, uint64_t words, void **arguments)
{
    uint64_t wanted = words / THREADS + (words % THREADS != 0);
    unsigned blocks = wanted < 1 ? 1 : wanted < BLOCKS_MOST ? (unsigned)wanted : BLOCKS_MOST;
    return pleat__cuda_launch(&pattern->vmm, kernel, stream, blocks, THREADS, arguments);
}

pleat_result pleat__cuda_pattern_write(const pleat__cuda_pattern *pattern, pleat_stream stream,
                                       uint64_t words, void **arguments)
{
    return launch(pattern, &pattern->write, stream, words, arguments);
}

pleat_result pleat__cuda_pattern_verify(const pleat__cuda_pattern *pattern, pleat_stream stream,
                                        uint64_t words, void **arguments)
{
    return launch(pattern, &pattern->verify, stream, words, arguments);
}

pleat_result pleat__cuda_pattern_counted(const pleat__cuda_pattern *pattern,
                                         uint64_t counters[PLEAT__CUDA_PATTERN_COUNTERS])
{
    return pleat__cuda_copy_out(&pattern->vmm, pattern->device, counters, pattern->counters,
                                PLEAT__CUDA_PATTERN_COUNTERS * sizeof *counters);
}
