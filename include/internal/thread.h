/*
 * internal/thread.h: threads of Pleat's own. They block all signals, which are the program's.
 */
#ifndef PLEAT_INTERNAL_THREAD_H
#define PLEAT_INTERNAL_THREAD_H

#include <pleat/base.h>
#include <pthread.h>
#include <stdbool.h>

/* Starts a thread, named in at most 15 letters. PLEAT_E_LIMIT. */
PLEAT_NODISCARD pleat_result pleat__thread_start(pthread_t *thread, const char *name,
                                                 void *(*run)(void *), void *context);
/* Its timed waits are by the monotonic clock (clock.h). */
void pleat__cond_init(pthread_cond_t *cond);

/* A thread that does something every now and then, until it is told to end. */
typedef struct pleat__ticker {
    pthread_t thread;
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
