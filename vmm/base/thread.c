/*
 * thread.c: see internal/thread.h.
 */
#include <internal/thread.h>

#include <internal/clock.h>
#include <internal/error.h>
#include <signal.h>

static _Thread_local bool on_own_thread;

bool pleat__on_own_thread(void)
{
    return on_own_thread;
}

static void *run_own(void *context)
{
    const pleat__thread *thread = context;
    on_own_thread = true;
    return thread->run(thread->context);
}

pleat_result pleat__thread_start(pleat__thread *thread, const char *name, void *(*run)(void *),
                                 void *context)
{
    sigset_t all, before;
    thread->run = run;
    thread->context = context;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&thread->id, NULL, run_own, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return pleat__fail_code(PLEAT_E_LIMIT, code, "the thread %s could not be started", name);
    pthread_setname_np(thread->id, name);
    return PLEAT_OK;
}

void pleat__thread_join(const pleat__thread *thread)
{
    pthread_join(thread->id, NULL);
}

void pleat__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void free_waiting(pleat__ticker *ticker)
{
    pthread_cond_destroy(&ticker->end);
    pthread_mutex_destroy(&ticker->lock);
}

pleat_result pleat__ticker_start(pleat__ticker *ticker, const char *name, void *(*run)(void *),
                                 void *context)
{
    ticker->ending = false;
    pleat__cond_init(&ticker->end);
    pthread_mutex_init(&ticker->lock, NULL);
    pleat_result result = pleat__thread_start(&ticker->thread, name, run, context);
    if (result != PLEAT_OK)
        free_waiting(ticker);
    return result;
}

bool pleat__ticker_wait(pleat__ticker *ticker, uint64_t ns)
{
    struct timespec until = pleat__after_ns(ns);
    pthread_mutex_lock(&ticker->lock);
    while (!ticker->ending && pthread_cond_timedwait(&ticker->end, &ticker->lock, &until) == 0)
        ;
    bool ending = ticker->ending;
    pthread_mutex_unlock(&ticker->lock);
    return !ending;
}

void pleat__ticker_stop(pleat__ticker *ticker)
{
    pthread_mutex_lock(&ticker->lock);
    ticker->ending = true;
    pthread_cond_signal(&ticker->end);
    pthread_mutex_unlock(&ticker->lock);
    pleat__thread_join(&ticker->thread);
    free_waiting(ticker);
}
