/*
 * rehearse.h: what a job takes, found by running its recording through a runtime on a backend
 * without memory (vmm/host/dry.h): milliseconds, and nothing of the device or of the process's
 * address space. Time stands still there, so what depends on it (a schedule that is dropped for its
 * cost) does not happen.
 */
#ifndef PLEAT_RUNTIME_FACE_REHEARSE_H
#define PLEAT_RUNTIME_FACE_REHEARSE_H

#include <pleat/runtime.h>

/* The most memory that one device's part of a recording takes with a plan, or (NULL) by learning,
 * on a device of so many bytes. PLEAT_E_OUT_OF_MEMORY: more than it has; PLEAT_E_LIMIT: the plan is
 * left, as another job's would be. */
PLEAT_NODISCARD pleat_result pleat__rehearse(const pleat_trace *trace, uint32_t device,
                                             const pleat_plan *plan, uint64_t device_bytes,
                                             uint64_t chunk_bytes, uint64_t *peak_bytes);

#endif
