/*
 * mapper.h: a thread that maps and unmaps, so that the allocating thread issues no verb.
 *
 * A job is the caller's own record: it is submitted, carried out, and marked done; the caller sees
 * that without any lock (pleat__job_done) or waits. The queue is bounded. Jobs are carried out in
 * order, but one whose events have not all passed lets those behind it go first: a job with events
 * must not be needed by a later one.
 *
 * THREADS  Any number may submit and wait. A job is touched by nobody but the mapper between submit
 *          and done.
 */
#ifndef PLEAT_VMM_MAPPER_H
#define PLEAT_VMM_MAPPER_H

#include <stdatomic.h>
#include <vmm/space.h>

typedef struct pleat__mapper pleat__mapper;

typedef enum pleat__job_kind {
    PLEAT__JOB_MAP,   /* pleat__space_map(page, chunks, count) */
    PLEAT__JOB_UNMAP, /* pleat__space_unmap(page, pages) */
    PLEAT__JOB_CALL,  /* call(context, ready) */
} pleat__job_kind;

typedef struct pleat__job {
    pleat__job_kind kind;
    uint64_t page;
    uint64_t pages;              /* of an unmap */
    pleat__chunk *const *chunks; /* of a map; the caller's until it is done */
    uint64_t count;
    /* What is called, and what with; `ready` is PLEAT_OK, or why nobody can say whether the events
     * have passed (the other kinds fail with that and do nothing). When `forgotten` is set nobody
     * waits for the job, and `call` may free it: the mapper does not touch it any more, and a
     * failure is only counted. */
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

typedef struct pleat__mapper_stats {
    uint64_t jobs;        /* carried out */
    uint64_t failed;      /* of them, those with another result than PLEAT_OK */
    uint64_t refused;     /* submits that found the queue full */
    uint64_t waits;       /* pleat__mapper_wait calls that had to wait */
    uint64_t most_queued; /* the longest that the queue ever was */
    uint64_t overtaken;   /* jobs that let others go first, their events not having passed */
} pleat__mapper_stats;

/* Starts the thread. `capacity`: jobs that may be queued. The space outlives it. */
PLEAT_NODISCARD pleat_result pleat__mapper_create(pleat__space *space, pleat__arena *arena,
                                                  uint32_t capacity, pleat__mapper **out);
/* Carries out what is queued, then ends the thread. NULL is allowed. */
void pleat__mapper_destroy(pleat__mapper *mapper);

/* PLEAT_E_NOT_READY, which sets no error text, when the queue is full: nothing was queued. */
PLEAT_NODISCARD pleat_result pleat__mapper_submit(pleat__mapper *mapper, pleat__job *job);
/* Whether a submitted job is over; then its outcome can be read. */
static inline bool pleat__job_done(const pleat__job *submitted)
{
    return atomic_load_explicit(&submitted->done, memory_order_acquire) != 0;
}
/* Waits for a submitted job; returns its result and makes its error the thread's last. */
pleat_result pleat__mapper_wait(pleat__mapper *mapper, pleat__job *job);
/* Waits until all that was submitted is done, also what is submitted meanwhile. */
void pleat__mapper_drain(pleat__mapper *mapper);
pleat__mapper_stats pleat__mapper_stats_of(pleat__mapper *mapper);
/* Whether the calling thread is a mapper's, or another one of Pleat's own. */
bool pleat__on_mapper(void);
/* The calling thread is one of Pleat's own: nobody waits for its calls. */
void pleat__be_own_thread(void);

#endif
