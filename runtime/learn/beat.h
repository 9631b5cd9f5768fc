/*
 * beat.h: where the iterations of a job begin whose sizes are others each time. See beat.c.
 */
#ifndef PLEAT_RUNTIME_LEARN_BEAT_H
#define PLEAT_RUNTIME_LEARN_BEAT_H

#include <internal/arena.h>
#include <pleat/base.h>

#define PLEAT__BEAT_LAGS 4u

/* A request: what is compared, and what says where iterations begin. */
typedef struct pleat__beat_step {
    uint64_t bytes;
    uint64_t live; /* bytes, before it */
    uint32_t word; /* its stream, and how many frees came since the request before */
} pleat__beat_step;

/* Where a row of words was last. */
typedef struct pleat__beat_seen {
    uint32_t tag;
    uint32_t position; /* its lower 32 bits */
} pleat__beat_seen;

/* A way in which the job may be repeating itself: each request is held against the one that came
 * `length` before it. */
typedef struct pleat__beat_lag {
    bool open;
    uint32_t length;
    uint32_t misses;   /* in a row */
    uint32_t odd;      /* rises with each miss, and falls again */
    uint32_t compared; /* since it was opened */
    uint32_t equal;    /* of them, those that had the same word and size */
    uint32_t rest;     /* it is not believed before it compared so many */
    /* A job's first iteration may be longer or shorter than those after it: before this position
     * requests were held against those that came `before` ago. 0, 0: it is not known to be. */
    uint64_t shifted;
    uint32_t before;
} pleat__beat_lag;

/* Positions count requests since the last restart. */
typedef struct pleat__beat {
    pleat__arena *arena;
    bool off;                /* by the settings, because the job marks, or without host memory */
    uint32_t frees;          /* since the last request; its owner counts them */
    pleat__beat_step *steps; /* a ring: position p is steps[p & mask]; NULL: nothing is recorded */
    uint32_t capacity;
    uint64_t mask;
    uint64_t end;
    uint64_t hash; /* of the last words */
    pleat__beat_seen *seen;
    pleat__beat_lag lags[PLEAT__BEAT_LAGS];
    pleat__beat_lag found; /* open: iterations are known */
    uint64_t begin;        /* position at which the last one began */
    uint32_t inner;        /* requests that a loop went on for which was no iteration */
    uint32_t known;        /* requests of an iteration that was followed for long */
} pleat__beat;

typedef enum pleat__beat_says {
    PLEAT__BEAT_NONE = 0,
    PLEAT__BEAT_FOUND = 1, /* iterations are known: `begin` and `found` say where */
    PLEAT__BEAT_BEGIN = 2, /* the next request begins one */
    PLEAT__BEAT_LOST = 3,  /* they are not known any more */
} pleat__beat_says;

void pleat__beat_init(pleat__beat *beat, pleat__arena *arena, bool off);
/* Forgets what was recorded, and takes no memory until the next request. */
void pleat__beat_restart(pleat__beat *beat);
/* A request was served; `live` bytes were allocated before it. O(1), but for the one that finds the
 * iterations. */
pleat__beat_says pleat__beat_request(pleat__beat *beat, uint64_t bytes, uint16_t stream,
                                     uint64_t live);
/* What was found was followed, and held for long or not. */
void pleat__beat_judge(pleat__beat *beat, uint32_t length, uint64_t requests);

#endif
