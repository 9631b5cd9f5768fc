/*
 * environment.h: how much of a device the world around leaves to this process, by the variables
 * that launchers, container runtimes and sharing layers set:
 *
 *   CUDA_DEVICE_MEMORY_LIMIT_<device>, CUDA_DEVICE_MEMORY_LIMIT      3000m, 12g or bytes (HAMi)
 *   GPU_MEMORY_LIMIT, NVIDIA_GPU_MEMORY_LIMIT                       16Gi, 16384m ...
 *   CUDA_MPS_PINNED_DEVICE_MEM_LIMIT                                0=1G,1=512M (MPS)
 *
 * Each is a size (see size.h), or a list of DEVICE=SIZE with a device's number or UUID.
 * They hold for all that the process has on the device, whatever is not Pleat's included.
 */
#ifndef PLEAT_RUNTIME_BASE_ENVIRONMENT_H
#define PLEAT_RUNTIME_BASE_ENVIRONMENT_H

#include <pleat/base.h>
#include <stdbool.h>

typedef struct pleat__limit {
    uint64_t bytes; /* 0: there is none */
    char name[64];  /* what says so, for messages: the variable */
} pleat__limit;

/* The strictest of the environment's for a device; `identity` is its UUID ("": not known).
 * PLEAT_E_INVALID, which names the variable: one that cannot be read. */
PLEAT_NODISCARD pleat_result pleat__environment_limit(int device, const char *identity,
                                                      pleat__limit *strictest);
/* Whether a variable is one of these. */
bool pleat__environment_is_limit(const char *name);
/* Makes the other one the strictest where it is stricter; one of 0 bytes is none. */
void pleat__limit_take(pleat__limit *strictest, uint64_t bytes, const char *name);

#endif
