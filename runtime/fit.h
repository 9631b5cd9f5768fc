/*
 * fit.h: does what was learned serve the job at all?
 *
 * Iterations that have more or less of the same, another number of microbatches, find the places of
 * those before in use; what then lies elsewhere lies in others' places. Each iteration stitches
 * large tensors anew, until memory is bought instead. (A GPT-2 of 2 to 8 microbatches took 293
 * calls an iteration and 7 % more memory so; the heap by itself serves it by the byte, and soon
 * with none.) Learned shapes are let go then, and nothing is learned for a while: the job rests.
 */
#ifndef PLEAT_RUNTIME_FIT_H
#define PLEAT_RUNTIME_FIT_H

#include <runtime/served.h>

typedef struct pleat__fit {
    uint32_t bad;         /* iterations that were served badly, less those that were not */
    uint32_t resting;     /* iterations to go by with nothing learned */
    uint32_t rests;       /* so far, up to some, less those that are long ago */
    uint32_t good;        /* iterations since a bad one */
    uint64_t divergences; /* at the last mark */
} pleat__fit;

/* What an iteration that ended was followed with. */
typedef enum pleat__followed {
    PLEAT__FOLLOWED_NOTHING = 0,
    PLEAT__FOLLOWED_LEARNED,
    PLEAT__FOLLOWED_OTHER, /* a plan, or a layout for its size: they are judged otherwise */
} pleat__followed;

/* An iteration ended. true: a rest begins, and learned shapes are to be let go. */
bool pleat__fit_mark(pleat__fit *fit, const pleat__served *served, pleat__followed followed,
                     uint64_t divergences);
/* A plan is followed: it is over. */
static inline void pleat__fit_end_rest(pleat__fit *fit)
{
    fit->resting = 0;
}

#endif
