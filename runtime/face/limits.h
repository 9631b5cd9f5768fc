/*
 * limits.h: the cap of a runtime: the strictest of the budget that it was given, of what the world
 * around leaves to the process (runtime/base/environment.h, and the driver's own limit for the
 * process's control group), and of the device's memory.
 *
 * The world's limits hold for all that the process has on the device: the context, libraries,
 * communication. That is measured (the process's memory, as the driver counts it, less Pleat's) and
 * kept free: the runtime's cap is the limit less it. A budget is Pleat's own.
 */
#ifndef PLEAT_RUNTIME_FACE_LIMITS_H
#define PLEAT_RUNTIME_FACE_LIMITS_H

#include <pleat/runtime.h>
#include <runtime/base/environment.h>
#include <stdbool.h>

typedef struct pleat__limits {
    pleat__limit world;    /* the strictest of the process's */
    uint64_t budget_bytes; /* 0: none */
    uint64_t device_bytes;
    uint64_t other_bytes;  /* of the process and not Pleat's, when it was last measured */
    uint64_t untold_bytes; /* of the process and none of its tenants', by then */
    bool is_measured;      /* it could be */
    uint64_t measured_ns;  /* when */
    /* What follows. */
    bool has_budget; /* the budget is less than the device */
    bool is_limited; /* what the world allows is less than both */
    uint64_t cap_bytes;
} pleat__limits;

/* Reads the environment and asks the driver. pre: nobody else has the runtime, which has its space.
 */
PLEAT_NODISCARD pleat_result pleat__limits_begin(pleat_runtime *runtime, uint64_t budget_bytes);
/* The cap that follows, told to the space. With the lock, or before anybody else has the runtime.
 */
void pleat__limits_settle(pleat_runtime *runtime);
/* Measures what is not Pleat's, and settles. pre: the turn; the lock is left meanwhile. */
void pleat__limits_measure(pleat_runtime *runtime);
/* The same at most once a second, and only where no other thread has the turn. With the lock. */
void pleat__limits_follow(pleat_runtime *runtime);
/* The most that the runtime may have now: its cap, or less where other tenants of the device leave
 * less. With the lock. */
uint64_t pleat__limits_allowed(const pleat_runtime *runtime);
/* Why so many bytes, more than the cap, are refused: PLEAT_E_BUDGET, or PLEAT_E_OUT_OF_MEMORY where
 * not even the device has them. */
pleat_result pleat__limits_refusal(const pleat_runtime *runtime, uint64_t bytes);
/* Whether the device says how much of it is free, whoever has the rest, and how many bytes; 0 where
 * it does not. pre: the turn; the lock is left meanwhile. */
bool pleat__limits_free(pleat_runtime *runtime, uint64_t *bytes);
/* "a budget of", "the device's", "(CUDA_DEVICE_MEMORY_LIMIT, less 512.00 MiB that are not Pleat's)"
 * ...: what stands before the bytes allowed in messages. */
const char *pleat__limits_text(const pleat_runtime *runtime, char *text, size_t size);

#endif
