/*
 * rehearsal.h: what a job's second iteration will take of the driver, found out by running the
 * first one's requests again on paper.
 *
 * In its first iteration a job makes what stays: gradients, the optimizer's state. So the next one,
 * with the same requests, finds less room; the heap grows by some hundred chunks and stitches views
 * of thousands of pages, at 20 us each, on the thread that allocates. But what the heap will do is
 * known: the requests are those of the iteration before, and the heap does the same each time. As
 * soon as some requests of an iteration are as the last one's were, a thread runs the rest of those
 * against a copy of the heap, on a backend without memory (vmm/dry.h), and notes what it asks for;
 * that is then made ahead (ahead.h), some way before the requests that will ask for it.
 *
 *   mark: the iteration that ended is kept  -->  some requests alike: the heap is copied  -->
 *   thread: run, listed, made as far as it is due  -->  long overdue, or at the next mark: what
 *   nobody took goes back
 *
 * WHAT STAYS  Of what the last iteration allocated, that which is live still is not allocated
 *         again. Where such a thing is freed later in this iteration, or less is live than was
 *         thought, what is left of the list is given up.
 * REFUSED Iterations that do not begin alike: another length, say. Jobs in which something is
 *         followed (shapes.h) have places, and no use for it.
 * THREADS The runtime's lock guards it; the thread works on copies.
 */
#ifndef PLEAT_RUNTIME_LEARN_REHEARSAL_H
#define PLEAT_RUNTIME_LEARN_REHEARSAL_H

#include <runtime/learn/ahead.h>
#include <runtime/learn/lives.h>
#include <runtime/memory/place_map.h>

/* Requests of an iteration that are compared with the last one's. */
#define PLEAT__OPENING 24u

typedef struct pleat__score pleat__score; /* rehearsal_run.h */

typedef struct pleat__rehearsal {
    pleat__arena *arena; /* NULL: off */
    pleat__heap *heap;
    const pleat__placed *placed;
    const pleat__lives *lives; /* records the job while nothing is followed */
    const uint64_t *live_bytes;
    pleat__ahead ahead;
    /* The iteration that ended; NULL: nothing is to be rehearsed. */
    pleat__life *before;
    uint32_t before_count;
    uint32_t before_end; /* position */
    uint64_t waiting;    /* by stream: whether one of its frees may be ordered */
    pleat__score *score; /* being played, or NULL */
    uint32_t next;       /* request of this iteration at which is looked again */
    uint32_t length;     /* requests of an iteration */
    uint32_t reach;      /* of them, those that are looked ahead */
    uint64_t astray;     /* bytes freed that were thought to stay */
} pleat__rehearsal;

void pleat__rehearsal_init(pleat__rehearsal *rehearsal, pleat__arena *arena, pleat__heap *heap,
                           const pleat__placed *placed, const pleat__lives *lives,
                           const uint64_t *live_bytes, bool waits);
/* pre: the lock is not held */
void pleat__rehearsal_release(pleat__rehearsal *rehearsal);

/* An iteration ended, which `lives` still has; `recorded`: nothing was followed in it. `asked`: by
 * stream, requests so far. The lock may be left. */
void pleat__rehearsal_mark(pleat__rehearsal *rehearsal, const uint64_t *asked, bool recorded);
/* Nothing more is rehearsed until the next mark. */
void pleat__rehearsal_end(pleat__rehearsal *rehearsal);
void pleat__rehearsal_look(pleat__rehearsal *rehearsal);

/* Something is freed that `lives` does not know as this iteration's. */
void pleat__rehearsal_lost(pleat__rehearsal *rehearsal, uint64_t bytes);

/* Something is freed; `lives` still has it. */
static inline void pleat__rehearsal_freed(pleat__rehearsal *rehearsal, const pleat__place *place)
{
    if (__builtin_expect(rehearsal->score != NULL, 0) &&
        !pleat__lives_is_new(rehearsal->lives, place->address))
        pleat__rehearsal_lost(rehearsal, (uint64_t)place->granules << PLEAT__GRANULE_SHIFT);
}

/* A request was served and recorded. The lock may be left where a replay waits. */
static inline void pleat__rehearsal_request(pleat__rehearsal *rehearsal)
{
    if (__builtin_expect(rehearsal->before != NULL, 0) &&
        rehearsal->lives->count - rehearsal->lives->previous >= rehearsal->next)
        pleat__rehearsal_look(rehearsal);
}

#endif
