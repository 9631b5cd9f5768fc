/*
 * canary.h: proves that no two live allocations share memory: two independent checks.
 *
 * PATTERN  Every live tensor's memory carries words of its own, written through its addresses when
 *          it is allocated and verified when it is freed. In each 4 KiB page visited three words
 *          (first, middle, last of what the tensor owns of it), in small tensors every 64 bytes.
 *          Both ends of a tensor are always visited; in between pages at multiples of a stride. The
 *          stride is 4 KiB, every page, where the job's peak fits in a quarter of the host's
 *          available memory and the job is small enough to be done in seconds; otherwise the
 *          smallest power of two for which both hold: on the host backend a visited page costs real
 *          memory, and a job may be larger than the machine.
 *          On a GPU kernels write and verify every byte (canary_cuda.h).
 * ORACLE   On the host backend also exact, whatever the stride: what lies behind each page of a
 *          tensor is asked of the backend, and a bitmap of physical memory, a bit for 512 bytes,
 *          must be clear there at the allocation. What lies behind must be the same at the free.
 */
#ifndef PLEAT_TOOLS_CANARY_H
#define PLEAT_TOOLS_CANARY_H

#include <pleat/runtime.h>
#include <stdbool.h>

typedef struct canary canary;

/* What the stride is chosen by: the job's peak, the sum of all its requests, their number. */
typedef struct canary_job {
    uint64_t peak_bytes;
    uint64_t total_bytes;
    uint64_t requests;
} canary_job;

/* `job` chooses the stride. PLEAT_E_NO_MEMORY also when the host has not even the memory for the
 * widest one. `cuda`: `vmm` is what pleat_vmm_cuda made. */
PLEAT_NODISCARD pleat_result canary_create(const pleat_vmm *vmm, int device, bool cuda,
                                           const canary_job *job, canary **out);
void canary_destroy(canary *bird);

/* `id` names the tensor among the live ones. */
PLEAT_NODISCARD pleat_result canary_allocated(canary *bird, uint32_t id, pleat_va address,
                                              uint64_t bytes);
PLEAT_NODISCARD pleat_result canary_freed(canary *bird, uint32_t id, pleat_va address,
                                          uint64_t bytes);

/* Tensors found damaged, or allocated over others. */
uint64_t canary_errors(const canary *bird);
uint64_t canary_stride(const canary *bird);
/* What the first error was; "" when there was none. */
const char *canary_first_error(const canary *bird);

#endif
