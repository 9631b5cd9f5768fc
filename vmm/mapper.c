/*
 * mapper.c: a thread and its list of jobs, under one mutex that is held for a few instructions,
 * never over a verb. See mapper.h.
 *
 * One thread: verbs serialise inside the driver, four threads were no faster than one. It waits on
 * a condition, it does not spin, and it blocks all signals, which are the application's matter.
 *
 * PARKED  A job whose events have not passed is set aside, in order, and asked again after each job
 *         and, as nothing tells a waiting thread of both a new job and an event, every PATIENCE_NS
 *         while there is nothing else to do. When the mapper ends, it waits for their events. An
 *         event that cannot be asked about is the job's to answer for.
 */
#include "mapper.h"
#include "table.h"

#include <internal/check.h>
#include <internal/clock.h>
#include <internal/error.h>
#include <internal/thread.h>

#define PATIENCE_NS 200000 /* D479 */

struct pleat__mapper {
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__thread thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;  /* something is queued, or it ends */
    pthread_cond_t over;  /* a job is done */
    pleat__job *queued, **queued_last;
    uint64_t unfinished; /* jobs submitted and not done */
    bool ending;
    pleat__job *parked, **parked_last; /* the thread's own */
};

/* PLEAT_OK: all its events have passed. */
static pleat_result events_passed(const pleat__mapper *mapper, const pleat__job *job)
{
    for (uint64_t e = 0; e < job->event_count; e++)
        PLEAT_TRY(mapper->vmm.ops->event_query(mapper->vmm.self, job->events[e]));
    return PLEAT_OK;
}

static pleat_result wait_for_events(const pleat__mapper *mapper, const pleat__job *job)
{
    for (uint64_t e = 0; e < job->event_count; e++)
        PLEAT_TRY(pleat__vmm_wait(mapper->vmm, job->events[e]));
    return PLEAT_OK;
}

static void append(pleat__job ***last, pleat__job *job)
{
    job->next = NULL;
    **last = job;
    *last = &job->next;
}

/* Takes the job out that *at is. */
static void take_out(pleat__job **at, pleat__job ***last)
{
    *at = (*at)->next;
    if (*at == NULL)
        *last = at;
}

/* The next job. NULL: there is none now, or, with *ended, none any more. While jobs are parked it
 * does not wait long. */
static pleat__job *next_job(pleat__mapper *mapper, bool *ended)
{
    struct timespec until = pleat__after_ns(PATIENCE_NS);
    pthread_mutex_lock(&mapper->lock);
    while (mapper->queued == NULL && !mapper->ending) {
        if (mapper->parked == NULL)
            pthread_cond_wait(&mapper->work, &mapper->lock);
        else if (pthread_cond_timedwait(&mapper->work, &mapper->lock, &until) != 0)
            break;
    }
    pleat__job *job = mapper->queued;
    *ended = mapper->ending && job == NULL;
    if (job != NULL)
        take_out(&mapper->queued, &mapper->queued_last);
    pthread_mutex_unlock(&mapper->lock);
    return job;
}

/* After the release store, or after the call that forgets it, the job may be gone. */
static void do_job(pleat__mapper *mapper, pleat__job *job, pleat_result ready)
{
    bool forgotten = job->forgotten;
    pleat_result result = job->call(job->context, ready);
    if (!forgotten) {
        job->result = result;
        if (result != PLEAT_OK)
            job->error = pleat__failure(result);
    }
    pthread_mutex_lock(&mapper->lock);
    if (!forgotten)
        atomic_store_explicit(&job->done, 1, memory_order_release);
    mapper->unfinished--;
    pthread_cond_broadcast(&mapper->over);
    pthread_mutex_unlock(&mapper->lock);
}

/* Carries out what is parked and ready; `wait`: all of it. */
static void look_at_parked(pleat__mapper *mapper, bool wait)
{
    for (pleat__job **at = &mapper->parked; *at != NULL;) {
        pleat__job *job = *at;
        pleat_result ready = wait ? wait_for_events(mapper, job) : events_passed(mapper, job);
        if (ready == PLEAT_E_NOT_READY) {
            at = &job->next;
            continue;
        }
        take_out(at, &mapper->parked_last);
        do_job(mapper, job, ready);
    }
}

static void *run(void *context)
{
    pleat__mapper *mapper = context;
    for (bool ended = false; !ended;) {
        pleat__job *job = next_job(mapper, &ended);
        if (job != NULL) {
            pleat_result ready = events_passed(mapper, job);
            if (ready == PLEAT_E_NOT_READY)
                append(&mapper->parked_last, job);
            else
                do_job(mapper, job, ready);
        }
        look_at_parked(mapper, ended);
    }
    return NULL;
}

pleat_result pleat__mapper_create(pleat_vmm vmm, pleat__arena *arena, pleat__mapper **out)
{
    pleat__mapper *mapper = pleat__arena_alloc(arena, sizeof *mapper);
    if (mapper == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a mapper");
    *mapper = (pleat__mapper){.vmm = vmm, .arena = arena};
    mapper->queued_last = &mapper->queued;
    mapper->parked_last = &mapper->parked;
    pthread_mutex_init(&mapper->lock, NULL);
    pleat__cond_init(&mapper->work);
    pthread_cond_init(&mapper->over, NULL);
    pleat_result result = pleat__thread_start(&mapper->thread, "pleat-mapper", run, mapper);
    if (result == PLEAT_OK) {
        *out = mapper;
        return PLEAT_OK;
    }
    pthread_cond_destroy(&mapper->over);
    pthread_cond_destroy(&mapper->work);
    pthread_mutex_destroy(&mapper->lock);
    pleat__arena_free(arena, mapper);
    return result;
}

void pleat__mapper_destroy(pleat__mapper *mapper)
{
    if (mapper == NULL)
        return;
    pthread_mutex_lock(&mapper->lock);
    mapper->ending = true;
    pthread_cond_signal(&mapper->work);
    pthread_mutex_unlock(&mapper->lock);
    pleat__thread_join(&mapper->thread);
    pthread_cond_destroy(&mapper->over);
    pthread_cond_destroy(&mapper->work);
    pthread_mutex_destroy(&mapper->lock);
    pleat__arena_free(mapper->arena, mapper);
}

void pleat__mapper_submit(pleat__mapper *mapper, pleat__job *job)
{
    atomic_store_explicit(&job->done, 0, memory_order_relaxed);
    pthread_mutex_lock(&mapper->lock);
    PLEAT_ASSERT(!mapper->ending);
    append(&mapper->queued_last, job);
    mapper->unfinished++;
    pthread_cond_signal(&mapper->work);
    pthread_mutex_unlock(&mapper->lock);
}

pleat_result pleat__mapper_wait(pleat__mapper *mapper, pleat__job *job)
{
    if (!pleat__job_done(job)) {
        pthread_mutex_lock(&mapper->lock);
        while (!pleat__job_done(job))
            pthread_cond_wait(&mapper->over, &mapper->lock);
        pthread_mutex_unlock(&mapper->lock);
    }
    PLEAT_ASSERT(!job->forgotten);
    return job->result == PLEAT_OK ? PLEAT_OK : pleat__fail_again(&job->error);
}

void pleat__mapper_drain(pleat__mapper *mapper)
{
    pthread_mutex_lock(&mapper->lock);
    while (mapper->unfinished != 0)
        pthread_cond_wait(&mapper->over, &mapper->lock);
    pthread_mutex_unlock(&mapper->lock);
}
