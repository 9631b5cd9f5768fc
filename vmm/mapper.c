/*
 * mapper.c: the mapping thread: a ring of job pointers under one mutex that is held for a few
 * instructions, never over a verb. See mapper.h.
 *
 * One thread: verbs serialise inside the driver, four threads were no faster than one. It waits on
 * a condition, it does not spin, and it blocks all signals, which are the application's matter.
 */
#include "mapper.h"

#include <internal/check.h>
#include <internal/error.h>
#include <pthread.h>
#include <signal.h>

struct pleat__mapper {
    pleat__space *space;
    pleat__arena *arena;
    pleat_vmm vmm;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;  /* something is queued, or it ends */
    pthread_cond_t over;  /* a job is done */
    pleat__job **ring;
    uint32_t capacity;
    uint64_t head, tail; /* jobs taken from and put into the ring since it began */
    uint64_t finished;   /* jobs done */
    bool ending;
    pleat__mapper_stats stats;
};

static pleat_result carry_out(const pleat__mapper *mapper, const pleat__job *job)
{
    if (job->kind == PLEAT__JOB_MAP)
        return pleat__space_map(mapper->space, job->page, job->chunks, job->count);
    for (uint64_t e = 0; e < job->event_count; e++)
        PLEAT_TRY(mapper->vmm.ops->event_wait(mapper->vmm.self, job->events[e]));
    return pleat__space_unmap(mapper->space, job->page, job->pages);
}

/* The next job, or NULL when it is to end and nothing is left. */
static pleat__job *next_job(pleat__mapper *mapper)
{
    pleat__job *job = NULL;
    pthread_mutex_lock(&mapper->lock);
    while (mapper->head == mapper->tail && !mapper->ending)
        pthread_cond_wait(&mapper->work, &mapper->lock);
    if (mapper->head != mapper->tail)
        job = mapper->ring[mapper->head++ % mapper->capacity];
    pthread_mutex_unlock(&mapper->lock);
    return job;
}

/* After the release store the job may be gone: its owner need not wait for more. */
static void finish(pleat__mapper *mapper, pleat__job *job, pleat_result result)
{
    job->result = result;
    if (result != PLEAT_OK)
        job->error = *pleat_last_error();
    pthread_mutex_lock(&mapper->lock);
    atomic_store_explicit(&job->done, 1, memory_order_release);
    mapper->finished++;
    mapper->stats.jobs++;
    mapper->stats.failed += result != PLEAT_OK;
    pthread_cond_broadcast(&mapper->over);
    pthread_mutex_unlock(&mapper->lock);
}

static void *run(void *context)
{
    pleat__mapper *mapper = context;
    pleat__job *job;
    while ((job = next_job(mapper)) != NULL)
        finish(mapper, job, carry_out(mapper, job));
    return NULL;
}

static int start_thread(pleat__mapper *mapper)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&mapper->thread, NULL, run, mapper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0)
        pthread_setname_np(mapper->thread, "pleat-mapper");
    return code;
}

pleat_result pleat__mapper_create(pleat__space *space, pleat__arena *arena, uint32_t capacity,
                                  pleat__mapper **out)
{
    if (capacity == 0)
        return pleat__fail(PLEAT_E_INVALID, "a mapper with a queue of 0 jobs");
    pleat__mapper *mapper = pleat__arena_calloc(arena, 1, sizeof *mapper);
    pleat__job **ring = pleat__arena_calloc(arena, capacity, sizeof(pleat__job *));
    pleat_result result = PLEAT_OK;
    if (mapper == NULL || ring == NULL) {
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a mapper");
        goto memory;
    }
    *mapper = (pleat__mapper){.space = space,
                              .arena = arena,
                              .vmm = pleat__space_vmm(space),
                              .ring = ring,
                              .capacity = capacity};
    pthread_mutex_init(&mapper->lock, NULL);
    pthread_cond_init(&mapper->work, NULL);
    pthread_cond_init(&mapper->over, NULL);
    int code = start_thread(mapper);
    if (code == 0) {
        *out = mapper;
        return PLEAT_OK;
    }
    result = pleat__fail_native(PLEAT_E_LIMIT, code, "errno",
                                "the mapper's thread could not be started (error %d)", code);
    pthread_cond_destroy(&mapper->over);
    pthread_cond_destroy(&mapper->work);
    pthread_mutex_destroy(&mapper->lock);
memory:
    pleat__arena_free(arena, ring);
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
    pthread_join(mapper->thread, NULL);
    pthread_cond_destroy(&mapper->over);
    pthread_cond_destroy(&mapper->work);
    pthread_mutex_destroy(&mapper->lock);
    pleat__arena_free(mapper->arena, mapper->ring);
    pleat__arena_free(mapper->arena, mapper);
}

pleat_result pleat__mapper_submit(pleat__mapper *mapper, pleat__job *job)
{
    pleat_result result = PLEAT_E_NOT_READY;
    pthread_mutex_lock(&mapper->lock);
    PLEAT_ASSERT(!mapper->ending);
    uint64_t queued = mapper->tail - mapper->head;
    if (queued < mapper->capacity) {
        atomic_store_explicit(&job->done, 0, memory_order_relaxed);
        mapper->ring[mapper->tail++ % mapper->capacity] = job;
        if (queued + 1 > mapper->stats.most_queued)
            mapper->stats.most_queued = queued + 1;
        pthread_cond_signal(&mapper->work);
        result = PLEAT_OK;
    } else {
        mapper->stats.refused++;
    }
    pthread_mutex_unlock(&mapper->lock);
    return result;
}

pleat_result pleat__mapper_wait(pleat__mapper *mapper, pleat__job *job)
{
    if (!pleat__job_done(job)) {
        uint64_t before = mapper->vmm.ops->clock_ns(mapper->vmm.self);
        pthread_mutex_lock(&mapper->lock);
        while (!pleat__job_done(job))
            pthread_cond_wait(&mapper->over, &mapper->lock);
        mapper->stats.waits++;
        mapper->stats.wait_ns += mapper->vmm.ops->clock_ns(mapper->vmm.self) - before;
        pthread_mutex_unlock(&mapper->lock);
    }
    if (job->result != PLEAT_OK)
        pleat__fail_native(job->result, job->error.native, job->error.native_name, "%s",
                           job->error.text);
    return job->result;
}

void pleat__mapper_drain(pleat__mapper *mapper)
{
    pthread_mutex_lock(&mapper->lock);
    uint64_t submitted = mapper->tail;
    while (mapper->finished < submitted)
        pthread_cond_wait(&mapper->over, &mapper->lock);
    pthread_mutex_unlock(&mapper->lock);
}

pleat__mapper_stats pleat__mapper_stats_of(pleat__mapper *mapper)
{
    pthread_mutex_lock(&mapper->lock);
    pleat__mapper_stats stats = mapper->stats;
    pthread_mutex_unlock(&mapper->lock);
    return stats;
}
