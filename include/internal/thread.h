/*
 * internal/thread.h: threads of Pleat's own. They block all signals, which are the program's.
 *
 * What such a thread does is beside the program's own work. So the time that it waits is not the
 * program's (who waits for it counts that wait as his own), its verbs are counted by themselves,
 * and it breaks no capture of a graph that the program begins.
 */
#ifndef PLEAT_INTERNAL_THREAD_H
#define PLEAT_INTERNAL_THREAD_H

#include <pleat/base.h>
#include <pthread.h>
#include <stdbool.h>

/* It belongs to whoever starts the thread, and stays where it is until the thread is joined. */
typedef struct pleat__thread {
    pthread_t id;
    void *(*run)(void *context);
    void *context;
} pleat__thread;

/* Starts a thread, named in at most 15 letters. PLEAT_E_LIMIT. */
PLEAT_NODISCARD pleat_result pleat__thread_start(pleat__thread *thread, const char *name,
                                                 void *(*run)(void *), void *context);
void pleat__thread_join(const pleat__thread *thread);
/* Whether the calling thread was started by pleat__thread_start. */
bool pleat__on_own_thread(void);
/* Its timed waits are by the monotonic clock (clock.h). */
void pleat__cond_init(pthread_cond_t *cond);

/* A thread that does something every now and then, until it is told to end. */
typedef struct pleat__ticker {
    pleat__thread thread;
    pthread_mutex_t lock; /* guards `ending` alone */
    pthread_cond_t end;
    bool ending;
} pleat__ticker;

PLEAT_NODISCARD pleat_result pleat__ticker_start(pleat__ticker *ticker, const char *name,
                                                 void *(*run)(void *), void *context);
/* The thread's: waits so long. false: it is to end. */
bool pleat__ticker_wait(pleat__ticker *ticker, uint64_t ns);
/* Has the thread end, and waits for that. */
void pleat__ticker_stop(pleat__ticker *ticker);

#endif
