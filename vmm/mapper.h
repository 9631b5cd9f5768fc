/*
 * mapper.h: a thread that does what the allocating thread should not wait for: it unmaps what the
 * GPU is done with, lays out, and plans.
 *
 * A job is the caller's own record: it is submitted, carried out, and marked done; the caller sees
 * that without any lock (pleat__job_done) or waits. The queue is a list of those records, so it has
 * room for whatever is submitted. Jobs are carried out in order, but one whose events have not all
 * passed lets those behind it go first: a job with events must not be needed by a later one.
 *
 * THREADS  Any number may submit and wait. A job is touched by nobody but the mapper between submit
 *          and done.
 */
#ifndef PLEAT_VMM_MAPPER_H
#define PLEAT_VMM_MAPPER_H

#include <internal/arena.h>
#include <pleat/vmm.h>
#include <stdatomic.h>

typedef struct pleat__mapper pleat__mapper;

typedef struct pleat__job {
    /* What is called, and what with; `ready` is PLEAT_OK, or why nobody can say whether the events
     * have passed. When `forgotten` is set nobody waits for the job, and `call` may free it: the
     * mapper does not touch it any more. */
    pleat_result (*call)(void *context, pleat_result ready);
    void *context;
    bool forgotten;
    const pleat_event *events; /* all passed before it begins; the caller's */
    uint64_t event_count;
    struct pleat__job *next; /* the mapper's */
    /* The outcome, to be read when it is done. */
    pleat_result result;
    pleat_error error; /* when result is not PLEAT_OK */
    _Atomic int done;
} pleat__job;

/* Starts the thread. The backend outlives it. */
PLEAT_NODISCARD pleat_result pleat__mapper_create(pleat_vmm vmm, pleat__arena *arena,
                                                  pleat__mapper **out);
/* Carries out what is queued, then ends the thread. NULL is allowed. */
void pleat__mapper_destroy(pleat__mapper *mapper);

void pleat__mapper_submit(pleat__mapper *mapper, pleat__job *job);
/* Whether a submitted job is over; then its outcome can be read. */
static inline bool pleat__job_done(const pleat__job *submitted)
{
    return atomic_load_explicit(&submitted->done, memory_order_acquire) != 0;
}
/* Waits for a submitted job; returns its result and makes its error the thread's last. */
pleat_result pleat__mapper_wait(pleat__mapper *mapper, pleat__job *job);
/* Waits until all that was submitted is done, also what is submitted meanwhile. */
void pleat__mapper_drain(pleat__mapper *mapper);

#endif
