/*
 * fit.h: does what was learned, drafted or laid out serve the job at all?
 *
 * Iterations that have more or less of the same, another number of microbatches, find the places of
 * those before in use; what then lies elsewhere lies in others' places. (A GPT-2 of 2 to 8
 * microbatches took 293 calls an iteration and 7 % more memory so.) Lanes that are laid out for
 * sizes which follow two numbers are in each other's way. (A network that translates stitched its
 * logits anew all the time, a tenth of an iteration, and took 4 % more memory.) The heap by itself
 * serves such jobs by the byte, and soon without a call. So where iterations take more of the
 * driver's time than the account has for it (map_budget.h) what is followed is let go and nothing
 * is learned for a while: the job rests. So it does where memory grows although most iterations of
 * a plan or a layout had no place for much of them. (Graphs of drawn numbers of nodes and edges had
 * 0.985 of their memory in use under a plan with places for half of it, and have 0.998; expandable
 * segments 0.988.)
 *
 * TRIAL  The iterations of a rest are compared with those that it ended. Where they take as much it
 *        is over at once, and the next one begins twice as late.
 */
#ifndef PLEAT_RUNTIME_LEARN_FIT_H
#define PLEAT_RUNTIME_LEARN_FIT_H

#include <runtime/learn/served.h>

/* What iterations took. */
typedef struct pleat__fit_cost {
    uint64_t ns; /* of the driver's time */
    uint64_t requests;
} pleat__fit_cost;

typedef struct pleat__fit {
    uint32_t bad;     /* two for each iteration that was served badly, less those that were not */
    uint32_t poor;    /* iterations with no places for much of them, less those that had them */
    bool for_memory;  /* it rests because of that */
    uint32_t resting; /* iterations to go by with nothing learned */
    uint32_t rested;  /* of this rest, those that went by */
    uint32_t rests;   /* so far, up to some, less those that are long ago */
    uint32_t vain;    /* others that were no better, likewise */
    uint32_t good;    /* iterations since a bad one */
    uint64_t divergences;   /* at the last mark */
    pleat__fit_cost before; /* since the first bad one */
    pleat__fit_cost since;  /* this rest's */
    /* Where nothing marks iterations so many requests are taken for one, the next up to `due`. */
    uint32_t stretch;
    uint64_t due;
    pleat__served served; /* the last one */
} pleat__fit;

/* What an iteration that ended was followed with. */
typedef enum pleat__followed {
    PLEAT__FOLLOWED_NOTHING = 0,
    PLEAT__FOLLOWED_LEARNED,
    PLEAT__FOLLOWED_DRAFT,
    PLEAT__FOLLOWED_LAYOUT, /* for its size */
    PLEAT__FOLLOWED_FILE,   /* or there is a plan file: it is judged otherwise (misfit.h) */
} pleat__followed;

typedef enum pleat__verdict {
    PLEAT__GOES_ON = 0,
    PLEAT__RESTS, /* a rest begins: what was learned, drafted or laid out is to be let go */
    PLEAT__WAKES, /* it is over */
} pleat__verdict;

/* An iteration ended, fit->served. */
pleat__verdict pleat__fit_mark(pleat__fit *fit, pleat__followed followed, uint64_t divergences);
/* A layout is followed: the rest is over, and was none. pre: there is one */
void pleat__fit_end_rest(pleat__fit *fit);

#endif
