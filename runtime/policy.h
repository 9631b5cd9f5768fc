/*
 * policy.h: what a policy is to the runtime: a way to serve requests from one device's space.
 *
 * THREADS  The runtime holds its lock around every call; a policy needs none of its own.
 */
#ifndef PLEAT_RUNTIME_POLICY_H
#define PLEAT_RUNTIME_POLICY_H

#include <pleat/runtime.h>
#include <vmm/space.h>

/* What every policy is given; all outlive it. */
typedef struct pleat__policy_context {
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__space *space;
    const pleat_plan *plan; /* may be NULL */
    pleat_stats *stats;     /* the policy counts routes and live bytes itself */
    int device;
} pleat__policy_context;

typedef struct pleat__policy_ops {
    const char *name;
    PLEAT_NODISCARD pleat_result (*create)(const pleat__policy_context *context, void **self);
    void (*destroy)(void *self);
    PLEAT_NODISCARD pleat_result (*alloc)(void *self, uint64_t bytes, pleat_stream stream,
                                          pleat_va *address);
    pleat_result (*free)(void *self, pleat_va address);
    /* Those below may be NULL: nothing is to be done. */
    pleat_result (*record_stream)(void *self, pleat_va address, pleat_stream stream);
    pleat_result (*mark)(void *self);
    pleat_result (*phase)(void *self, const char *name);
    pleat_result (*empty_cache)(void *self);
    bool (*audit)(void *self);
} pleat__policy_ops;

/* The policy of that name, or NULL. */
const pleat__policy_ops *pleat__policy_find(const char *name);

#endif
