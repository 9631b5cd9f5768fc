/*
 * keep.h: plans kept by themselves (setting keep): a runtime leaves the plan of what its job does
 * in the user's cache (plan/file/plan_cache.h), and the next one of the same program whose first
 * request is the same follows it from that request on.
 *
 * FOLLOWING  Which plan there is for a job shows at its first request: the policy is then made
 * anew, with the plan on trial (runtime/learn/judge.h). Nothing has been allocated by then.
 *
 * KEEPING    The job is recorded from its first request on, until a plan on trial has proved to
 *            fit, or enough was seen to plan. A thread plans and writes; the job's threads give it
 *            the recording and go on. A plan that serves the recording worse than learning does is
 *            not kept; the thread finds out by rehearsal (rehearse.h).
 *
 * ERRORS     None reaches the job: without a plan it runs as ever. pleat_keep_plan says them. That
 *            there is no place for plans is printed where PLEAT_CONF says keep:on.
 */
#ifndef PLEAT_RUNTIME_FACE_KEEP_H
#define PLEAT_RUNTIME_FACE_KEEP_H

#include <plan/file/plan_cache.h>
#include <pleat/runtime.h>
#include <runtime/base/conf.h>
#include <runtime/observe/trace_writer.h>
#include <vmm/mapper.h>

#define PLEAT__KEEP_PROGRAM 256u /* D199 */

/* What the runtime does about its plan. Only keep.c's move_to goes from one to another:
 *
 *   OFF --begin--> FIRST --the first request--> RECORDS --kept, or no more to see--> OVER
 *                                                |   ^                                ^
 *                                         asked  v   |  in vain                       |
 *                                                TRIES -------------- kept -----------+ */
typedef enum pleat__keep_state {
    PLEAT__KEEP_OFF = 0, /* plans are not kept, or the runtime has one that was named */
    PLEAT__KEEP_FIRST,   /* the first request is awaited, which says which plan there is */
    PLEAT__KEEP_RECORDS, /* requests are recorded, for a plan or until one has proved to fit */
    PLEAT__KEEP_TRIES,   /* a program asked for a plan, which is made while recording goes on */
    PLEAT__KEEP_OVER,    /* the thread was given what to do last; nothing is recorded */
} pleat__keep_state;

typedef struct pleat__keep {
    pleat__keep_state state;
    bool asked;           /* by the environment's PLEAT_CONF; what has it on by itself is silent */
    bool marked;          /* before the first request, which the plan is to hear of */
    uint32_t device;      /* the runtime's */
    uint64_t chunk_bytes; /* the device's */
    uint64_t device_bytes;
    uint64_t most_bytes;   /* setting keep_bytes */
    uint64_t program_hash; /* of what tells programs apart */
    char program[PLEAT__KEEP_PROGRAM];
    pleat__record record;
    pleat__record given;                   /* to the thread */
    pleat_plan *plan;                      /* that is or was followed; NULL: none */
    char followed[PLEAT__PLAN_CACHE_NAME]; /* its file */
    pleat__mapper *thread;                 /* NULL: it was never told to do something */
    pleat__job job;
    pleat_result (*work)(struct pleat__keep *keep);
    size_t tried;        /* events of the recording when a plan was asked for in vain ... */
    pleat_error refused; /* ... and why there is none */
} pleat__keep;

/* Takes part where the settings say so, and the runtime has no plan and a policy that takes one on
 * trial. Without host memory for it the runtime goes on without. */
void pleat__keep_begin(pleat_runtime *runtime, const pleat__conf *conf);
/* The first request of all, with the lock held, which is left meanwhile: follows a plan if there is
 * one. */
void pleat__keep_first(pleat_runtime *runtime, uint64_t bytes);
/* With the lock held: an iteration begins. */
void pleat__keep_mark(pleat_runtime *runtime);
/* Nothing more comes: a plan of what was recorded, where none was kept. Without the lock. */
void pleat__keep_end(pleat_runtime *runtime);
/* Ends the thread when what it does is done. Without the lock; nobody calls the runtime. */
void pleat__keep_release(pleat__keep *keep);

#endif
