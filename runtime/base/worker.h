/*
 * worker.h: a thread that works for a runtime a piece at a time, each time with the turn, so that a
 * request that needs the driver waits for one piece at most and may wait for those that it needs.
 *
 * THREADS  The runtime's lock guards it, and all that its work looks at.
 */
#ifndef PLEAT_RUNTIME_BASE_WORKER_H
#define PLEAT_RUNTIME_BASE_WORKER_H

#include <runtime/base/driver_lock.h>

/* With the turn and the lock, which may be left: the next piece. false: there is none for now. */
typedef bool (*pleat__work)(void *context);

typedef struct pleat__worker {
    pleat__arena *arena;
    pleat__gate *gate;
    pleat__work work;
    void *context;
    pleat__mapper *thread; /* NULL until it is first wanted */
    pleat__job job;
    pthread_cond_t done; /* a piece is, or there is none for now */
    bool busy;           /* it may be at work */
} pleat__worker;

void pleat__worker_init(pleat__worker *worker, pleat__arena *arena, pleat__gate *gate,
                        pleat__work work, void *context);
/* Waits until there is no more work. pre: the lock is not held */
void pleat__worker_release(pleat__worker *worker);

/* ---- with the lock held ---- */

/* Has the thread look what there is to do. */
PLEAT_NODISCARD pleat_result pleat__worker_wake(pleat__worker *worker);
/* Waits until something was done; lock and turn are left meanwhile. pre: it is busy */
void pleat__worker_wait(pleat__worker *worker);

#endif
