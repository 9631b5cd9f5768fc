/*
 * learn.h: learning a job's iteration while it runs. See learn.c.
 */
#ifndef PLEAT_RUNTIME_LEARN_H
#define PLEAT_RUNTIME_LEARN_H

#include <runtime/follow.h>

typedef struct pleat__learn {
    pleat__arena *arena;
    pleat__expected *items; /* the stretch being recorded */
    size_t capacity;
    uint32_t count;
    uint32_t agreed; /* of them, how many the stretch before had too */
    pleat__follow *before;
    bool off;          /* setting learn:off */
    bool no_period;    /* setting period:off */
    bool marks;        /* the job marks its iterations */
    bool whole;        /* what is being recorded began at a mark */
    bool full;         /* too long, or no host memory: recording is off until the next boundary */
    uint32_t *seen;    /* hash of the last sizes -> position, for periods */
    uint32_t period;   /* candidate; 0: none */
    uint32_t repeated; /* requests in a row that repeat those a period before */
    uint32_t least;    /* periods below were tried and failed */
} pleat__learn;

typedef enum pleat__boundary {
    PLEAT__BOUNDARY_NONE = 0,   /* no iteration ended, or it did not repeat the one before */
    PLEAT__BOUNDARY_AGREED = 1, /* the iteration that ended repeats the one before */
} pleat__boundary;

PLEAT_NODISCARD pleat_result pleat__learn_init(pleat__learn *learn, pleat__arena *arena,
                                               const pleat__conf *conf);
void pleat__learn_release(pleat__learn *learn);
/* Records a request. AGREED: a period was found and has been there twice. */
pleat__boundary pleat__learn_request(pleat__learn *learn, uint64_t bytes, uint16_t stream,
                                     const pleat__place *place);
/* A mark: what was recorded since the last is an iteration. */
pleat__boundary pleat__learn_mark(pleat__learn *learn);
/* The iteration that agreed, for following; recording starts anew. */
PLEAT_NODISCARD pleat_result pleat__learn_take(pleat__learn *learn, pleat__follow **out);
/* Forgets what was recorded. */
void pleat__learn_restart(pleat__learn *learn);
/* The period found last was none: look for longer ones. */
void pleat__learn_reject(pleat__learn *learn, uint32_t period);

#endif
