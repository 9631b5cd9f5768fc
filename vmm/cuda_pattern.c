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
    const uint64_t zeros[PLEAT__CUDA_PATTERN_COUNTERS] = {0};
    PLEAT_TRY(pleat_ranges_create(pattern->vmm, pattern->device, &pattern->memory));
    PLEAT_TRY(pleat_range_make(pattern->memory, sizeof zeros, &pattern->counters, NULL));
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
    pleat_ranges_destroy(pattern->memory);
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
