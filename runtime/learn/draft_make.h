/*
 * draft_make.h: making one draft (draft.h), on a thread of its own.
 */
#ifndef PLEAT_RUNTIME_LEARN_DRAFT_MAKE_H
#define PLEAT_RUNTIME_LEARN_DRAFT_MAKE_H

#include <runtime/learn/draft.h>
#include <runtime/learn/instance_internal.h>

struct pleat__draft_job {
    pleat__job job; /* the worker's */
    pleat__arena *arena;
    pleat__gate *gate;
    pleat__heap *heap;         /* touched with the turn and the lock only */
    bool again;                /* a draft is followed, and serves badly */
    uint32_t least;            /* eighths of their size that lanes are not cut down below */
    pleat__pool *pool;         /* touched with the turn and the lock only */
    pleat__pool seen;          /* the pool as it was: what never changes, and its counts */
    pleat_trace *trace;        /* names only, until the worker has made it of the events */
    pleat_trace_event *events; /* as they were recorded, without marks */
    size_t event_count;
    size_t begins[PLEAT__DRAFT_ITERATIONS + 1]; /* events before each iteration */
    uint32_t begin_count;
    bool early;         /* the first iteration is to be found before the first of them */
    pleat__maker maker; /* its pages and obstacles */
    uint32_t *owner;    /* of each obstacle: the request in the trace plus one; 0: none */
    uint64_t view_page; /* address space taken for views */
    uint64_t view_room;
    uint64_t begun_ns;
    /* ---- guarded by the lock ---- */
    bool stale;      /* chunks were given back, or are to be: nothing will come of it */
    bool ending;     /* the runtime is: nothing is waited for, and nothing will come of it */
    uint32_t mapped; /* pages of views */
    /* ---- */
    /* The outcome. */
    pleat__drafted made;
    bool in_vain; /* not because of what is in memory now: it would come to the same again */
    bool none_early;
    uint64_t took_ns;
};

/* draft_trace.c: job->trace from the events, with a mark where each iteration begins. Sets
 * job->none_early and fails where one is to be found and is not. */
PLEAT_NODISCARD pleat_result pleat__draft_trace(pleat__draft_job *job);
/* Unmaps what is mapped so far, which nothing was ever placed in. pre: the turn; the lock is left
 * meanwhile */
void pleat__draft_unmap(pleat__draft_job *job);
/* Does all of it; as a pleat__job's call. */
pleat_result pleat__draft_make(void *job, pleat_result ready);

#endif
