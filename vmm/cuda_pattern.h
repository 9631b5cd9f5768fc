/*
 * cuda_pattern.h: a pattern in a GPU's memory: one kernel writes it, another one counts what is
 * not as written. What the canaries of the runtime and of `pleat replay` have in common: the
 * kernels are theirs, to load and launch them and to keep the counters is done here.
 *
 * THREADS  Any for write and verify.
 */
#ifndef PLEAT_VMM_CUDA_PATTERN_H
#define PLEAT_VMM_CUDA_PATTERN_H

#include "cuda.h"

#include <pleat/ranges.h>

#define PLEAT__CUDA_PATTERN_COUNTERS 2

typedef struct pleat__cuda_pattern {
    pleat_vmm vmm;
    int device;
    pleat__cuda_kernel write, verify;
    pleat_va counters;    /* words of 8 bytes, 0 in the beginning; for verify's arguments */
    pleat_ranges *memory; /* what backs them: a chunk of their own, outside any budget */
    bool loaded;
} pleat__cuda_pattern;

/* Loads both kernels of the PTX text, which lives as long as the pattern, and makes the counters.
 * `vmm` is what pleat_vmm_cuda made, and outlives the pattern. On a failure nothing is kept. */
PLEAT_NODISCARD pleat_result pleat__cuda_pattern_open(const pleat_vmm *vmm, int device,
                                                      const char *ptx, const char *write,
                                                      const char *verify, pleat__cuda_pattern *out);
/* What the driver does not take back goes with the process's context. */
void pleat__cuda_pattern_close(pleat__cuda_pattern *pattern);

/* Launches a kernel with as many threads as `words` are worth; each must take every so-manieth
 * word. `arguments` point to the kernel's parameters, in order. Neither waits. */
PLEAT_NODISCARD pleat_result pleat__cuda_pattern_write(const pleat__cuda_pattern *pattern,
                                                       pleat_stream stream, uint64_t words,
                                                       void **arguments);
PLEAT_NODISCARD pleat_result pleat__cuda_pattern_verify(const pleat__cuda_pattern *pattern,
                                                        pleat_stream stream, uint64_t words,
                                                        void **arguments);
/* The counters; waits for the default stream, and sees what other streams have finished. */
PLEAT_NODISCARD pleat_result pleat__cuda_pattern_counted(
    const pleat__cuda_pattern *pattern, uint64_t counters[PLEAT__CUDA_PATTERN_COUNTERS]);

#endif
