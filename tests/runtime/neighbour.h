/*
 * neighbour.h: another thread on a job's runtime, with tensors of its own on a stream of its own.
 */
#ifndef PLEAT_TESTS_RUNTIME_NEIGHBOUR_H
#define PLEAT_TESTS_RUNTIME_NEIGHBOUR_H

#include "job.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

typedef struct neighbour {
    pleat_runtime *runtime;
    pthread_t thread;
    atomic_bool stop;
    uint32_t most; /* rounds in one of the job's iterations, however long it takes; 0: any */
    _Atomic uint32_t iteration; /* of the job */
    uint64_t errors, rounds;
} neighbour;

static inline void neighbour_pause(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Another thread's tensors, on a stream of its own. */
static inline void *live_beside(void *opaque)
{
    neighbour *n = opaque;
    test_random random = {101};
    uint32_t iteration = 0, rounds = 0; /* in it */
    while (!atomic_load(&n->stop)) {
        rounds = iteration == atomic_load(&n->iteration) ? rounds : 0;
        iteration = atomic_load(&n->iteration);
        if (n->most != 0 && rounds == n->most) {
            neighbour_pause();
            continue;
        }
        uint64_t bytes = 4096 + test_random_below(&random, 300000), words = bytes / 8;
        pleat_va address;
        if (pleat_alloc(n->runtime, bytes, 7, &address) != PLEAT_OK) {
            n->errors++;
            break;
        }
        uint64_t *tensor = (uint64_t *)(uintptr_t)address;
        for (uint64_t w = 0; w < words; w += 64)
            tensor[w] = n->rounds + w;
        for (uint64_t w = 0; w < words; w += 64)
            n->errors += tensor[w] != n->rounds + w;
        n->errors += pleat_free(n->runtime, address) != PLEAT_OK;
        n->rounds++;
        rounds++;
        /* Else most of the job's requests would be this one's. */
        neighbour_pause();
    }
    return NULL;
}

#endif
