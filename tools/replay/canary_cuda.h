/*
 * canary_cuda.h: the canary's pattern on a GPU: kernels write and verify every byte.
 *
 * A copy per word takes about ten microseconds, a kernel goes through memory at its full bandwidth
 * (on an H200 4.3 TB/s writing, 4.0 TB/s verifying), so here nothing is left out.
 */
#ifndef PLEAT_TOOLS_CANARY_CUDA_H
#define PLEAT_TOOLS_CANARY_CUDA_H

#include <pleat/vmm.h>

typedef struct canary_cuda canary_cuda;

/* `vmm` is what pleat_vmm_cuda made, and outlives the canary. */
PLEAT_NODISCARD pleat_result canary_cuda_create(const pleat_vmm *vmm, int device,
                                                canary_cuda **out);
/* NULL is allowed. */
void canary_cuda_destroy(canary_cuda *canary);

/* Fills [at, at + bytes) with the pattern of `seed`, in the order of `stream`; does not wait. pre:
 * `at` is aligned to 8. Any thread. */
PLEAT_NODISCARD pleat_result canary_cuda_write(const canary_cuda *canary, pleat_stream stream,
                                               pleat_va at, uint64_t bytes, uint64_t seed);
/* Counts the words (at the end, the bytes) that are not as written; does not wait. Any thread. */
PLEAT_NODISCARD pleat_result canary_cuda_verify(const canary_cuda *canary, pleat_stream stream,
                                                pleat_va at, uint64_t bytes, uint64_t seed);
/* What verify counted since the last call, on the default stream, which it waits for, and on
 * streams that are finished. */
PLEAT_NODISCARD pleat_result canary_cuda_wrong(canary_cuda *canary, uint64_t *wrong);

#endif
