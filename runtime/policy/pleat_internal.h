/*
 * pleat_internal.h: what the files of the policy `pleat` share: pleat.c serves requests,
 * pleat_memory.c answers what is asked about memory and gives it back.
 */
#ifndef PLEAT_RUNTIME_POLICY_PLEAT_INTERNAL_H
#define PLEAT_RUNTIME_POLICY_PLEAT_INTERNAL_H

#include <runtime/base/policy.h>
#include <runtime/learn/learner.h>
#include <runtime/memory/rest.h>
#include <runtime/memory/waiting_frees.h>

/* A request that was refused comes again when memory has been given back: it is not matched twice,
 * unless something else was taken up meanwhile or a mark has passed. */
typedef struct pleat__refused {
    uint64_t bytes; /* 0: none */
    uint64_t epoch;
    uint32_t item;
    uint16_t stream;
} pleat__refused;

typedef struct pleat__pleat {
    pleat__arena *arena;
    pleat_stats *stats;
    pleat_stream last_stream;
    uint16_t last_index;
    bool has_stream;
    pleat__place_map places;
    pleat__chunk_pool pool;
    pleat__heap heap;
    pleat__learner learner;
    pleat__waiting_frees waiting;
    uint64_t outside; /* bytes that were asked for and had no place in what was followed, by the
                         last mark */
    uint64_t strayed; /* of the last whole iteration */
    uint32_t served;  /* how the request at hand is */
    pleat__refused refused;
} pleat__pleat;

/* Items whose slots are woken with the one that is wanted: at most so many (docs/decisions.md,
 * D214), and not more than a part of the memory, so that the GPU begins while the rest is woken
 * (D310). */
#define PLEAT__WAKE_AHEAD 256u
#define PLEAT__WAKE_SHARE 32u

/* Gives chunks back; whether any went. pre: the turn; the lock is left meanwhile. */
bool pleat__pleat_shrink(pleat__pleat *self, uint32_t chunks);
/* What is allocated is what is in use, and the auditors of memory (docs/invariants.md, R1 to R8).
 */
bool pleat__pleat_audit(pleat__pleat *self);
/* Of the policy's table. */
pleat_result pleat__pleat_block_of(void *self, pleat_va address, pleat_block *block);
pleat_result pleat__pleat_adjacent_free(void *self, pleat_va address, uint64_t *before,
                                        uint64_t *after);
pleat_va pleat__pleat_next(void *self, pleat_va address);
bool pleat__pleat_reclaim(void *self, pleat__reclaim what, uint64_t bytes, pleat_stream stream);
uint64_t pleat__pleat_rest(void *self, uint64_t keep_bytes);
uint64_t pleat__pleat_spare(void *self);
pleat_result pleat__pleat_hold(void *self);
void pleat__pleat_let_go(void *self);
size_t pleat__pleat_rested(void *self, pleat__chunk **listed);
void pleat__pleat_leave(void *self, const void *list, uint64_t runs, void (*give)(void *context),
                        void *context);
void pleat__pleat_idle(void *self, pleat_stream stream, uint64_t *largest, uint64_t *total);
uint64_t pleat__pleat_most(void *opaque, pleat_stream stream, uint64_t new_bytes);

/* Bytes that were asked for and had no place in what was followed, since creation. */
static inline uint64_t pleat__pleat_outside(const pleat__pleat *self)
{
    const pleat_stats *stats = self->stats;
    return stats->asked_bytes - stats->planned_bytes - stats->lane_bytes;
}

#endif
