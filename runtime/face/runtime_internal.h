/*
 * runtime_internal.h: what a runtime is, for the files of this folder: runtime.c has the public
 * calls, the others one matter each (reclaim.c the steps of out of memory, say).
 */
#ifndef PLEAT_RUNTIME_FACE_RUNTIME_INTERNAL_H
#define PLEAT_RUNTIME_FACE_RUNTIME_INTERNAL_H

#include <internal/process.h>
#include <runtime/base/gate.h>
#include <runtime/base/policy.h>
#include <runtime/face/graph_capture.h>
#include <runtime/face/keep.h>
#include <runtime/face/known.h>
#include <runtime/face/limits.h>
#include <runtime/face/log_writer.h>
#include <runtime/face/move.h>
#include <runtime/face/pause.h>
#include <runtime/face/share.h>
#include <runtime/face/spill.h>
#include <runtime/face/tenancy.h>
#include <runtime/observe/canary.h>
#include <runtime/observe/trace_writer.h>
#include <runtime/streams/pending_free.h>
#include <runtime/transfer/pinned.h>

struct pleat_runtime {
    pleat__gate gate; /* its lock is around every call of the policy */
    const pleat__policy_ops *ops;
    void *policy;
    pleat__pending pending;
    pleat_stats stats;
    pleat__space *space;
    pleat__arena *arena;
    pleat_vmm vmm;
    const pleat_plan *plan;
    pleat__policy_context context; /* that the policy was made with */
    int device;
    pleat__limits limits;
    pleat__tenancy *tenancy;   /* NULL: alone */
    pleat__pause *pauses;      /* those that hold, the newest first */
    const pleat__pause *freed; /* of them, whose frees wait no more; NULL: none */
    pleat__pinned pinned;
    pleat__address_map known; /* of live allocations (known.h) */
    pleat__spill spill;
    pleat_memory_callback memory_callback;
    void *memory_context;
    pleat__record record;
    pleat__keep keep;
    pleat__import *imports;
    pleat__canary canary;
    pleat_freed_callback freed_callback;
    void *freed_context;
    pleat__watch *watch; /* NULL: no log is written */
    pleat_capture *captures;
    uint32_t process; /* that made it: pleat__process_now() */
};

/* Whether the caller is the process that made the runtime, and not its child. */
static inline bool pleat__is_here(const pleat_runtime *runtime)
{
    return __builtin_expect(runtime->process == pleat__process_now(), 1);
}

/* Leaves a public call that is made in a child of fork. */
#define PLEAT__TRY_HERE(runtime)                                                                   \
    do {                                                                                           \
        if (!pleat__is_here(runtime))                                                              \
            return pleat__process_forked("runtime");                                               \
    } while (0)

/* Walks everything, with the lock. */
bool pleat__audit_policy(const pleat_runtime *runtime);
/* The allocation that holds an address: the policy's block, or a piece of a capture's. One that was
 * freed, and waits, is not `allocated`. With the lock. */
PLEAT_NODISCARD pleat_result pleat__find_block(pleat_runtime *runtime, pleat_va address,
                                               pleat_block *block);
/* The policy's block that holds an address. With the lock. */
PLEAT_NODISCARD pleat_result pleat__policy_block(const pleat_runtime *runtime, pleat_va address,
                                                 pleat_block *block);
/* The first of the policy's blocks at or behind *at, which goes behind it; false: there is none.
 * With the lock. */
bool pleat__next_block(pleat_runtime *runtime, pleat_va *at, pleat_block *block);
/* The pages that a block lies on, counted from the window's start. */
pleat__range pleat__pages_of(const pleat_runtime *runtime, const pleat_block *block);
/* pleat_alloc, pleat_free, pleat_stats_fill and pleat_walk with the lock held. */
PLEAT_NODISCARD pleat_result pleat__alloc_locked(pleat_runtime *runtime, uint64_t bytes,
                                                 pleat_stream stream, pleat_va *address);
pleat_result pleat__free_locked(pleat_runtime *runtime, pleat_va address);
pleat_stats pleat__stats_locked(pleat_runtime *runtime);
void pleat__walk_locked(pleat_runtime *runtime, pleat_block_visitor visit, void *context);

/* reclaim.c: the policy has no memory for a request: gives back what can be given, step by step,
 * and asks it again after each. Called with the lock, which is left for verbs and waits; it
 * takes the turn, which is left as well for the callback. */
PLEAT_NODISCARD pleat_result pleat__alloc_reclaiming(pleat_runtime *runtime, uint64_t bytes,
                                                     pleat_stream stream, pleat_result first,
                                                     pleat_va *address);
/* Waits until the streams that use it are past all that was freed and waits. With the turn; the
 * lock is left. */
void pleat__wait_for_frees(pleat_runtime *runtime);
/* All that is cached goes back to the device. With the turn. */
void pleat__reclaim_all(pleat_runtime *runtime);
/* Idle memory goes back until `keep_bytes` are left, or no more is idle; how many bytes went. With
 * the turn. */
uint64_t pleat__trim(pleat_runtime *runtime, uint64_t keep_bytes);
/* Room for so many bytes that are to be woken, as far as idle memory goes: `all` of it, and frees
 * that wait for streams; how many bytes went. With the turn; the lock is left. */
uint64_t pleat__make_room(pleat_runtime *runtime, uint64_t bytes, bool all);
/* The program is asked for so many bytes; whether it gave something, and all that is cached has
 * gone back. With the turn, which is left, as the lock is. */
bool pleat__ask_program(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream);
/* What the job has no use for as it goes on goes back: nothing, while no schedule is followed. With
 * the turn. */
void pleat__spare(pleat_runtime *runtime);

#endif
