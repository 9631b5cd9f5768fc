/*
 * size_parameter.h: under a plan file with a recipe, which value x of the job's parameter (its
 * microbatch or length) an iteration runs at, and the sizes that its requests have there.
 *
 * The first requests of an iteration whose size depends on x say it: a request that is not what the
 * schedule expects at the cursor is put into that item's size function, which is solved for x. Two
 * requests that agree settle x for the iteration. Sizes are evaluated a
 * little ahead of the matcher's cursor only, so that no request pays for a whole iteration.
 *
 * What two recordings do not show, such as a workspace that stops growing, has another size than
 * its function says. Where such a request comes in the place of an item, and the next one is the
 * item behind it, that item has this size for as long as x stays.
 *
 * THREADS  The runtime's lock guards it.
 */
#ifndef PLEAT_RUNTIME_FOLLOW_SIZE_PARAMETER_H
#define PLEAT_RUNTIME_FOLLOW_SIZE_PARAMETER_H

#include <plan/sizes/sizes.h>
#include <runtime/follow/schedule.h>

typedef struct pleat__size_parameter {
    const pleat_plan *plan; /* with a recipe; NULL: sizes follow nothing */
    pleat__fraction x;      /* of this iteration, as far as it is known, else of the one before */
    uint32_t agreed;  /* requests of this iteration whose size depends on x and is as x says */
    bool seen;        /* x was certain in some iteration that has ended */
    uint32_t tries;   /* values of x that were tried in this iteration */
    uint32_t as_said; /* requests of this iteration that depend on x and were found by their size */
    uint32_t varying; /* items of an iteration that depend on x */
    uint32_t requests;     /* of this iteration */
    uint32_t last;         /* the cursor at the request before */
    uint32_t sized_until;  /* items below have their size at x in this pass */
    uint32_t passes;       /* iterations that have begun since x changed; stops at 2 */
    uint32_t missed;       /* the item in whose place another size came just now, or
                              PLEAT__NO_ITEM ... */
    uint32_t confirms;     /* ... the item that says so if it comes next ... */
    uint64_t missed_bytes; /* ... that size ... */
    uint32_t taken_for;    /* ... and the item that it was taken for, or PLEAT__NO_ITEM where
                              it does not lie in that one's slot */
} pleat__size_parameter;

/* pre: the plan has a recipe, and stays. x is what its sizes are recorded at. */
void pleat__size_parameter_init(pleat__size_parameter *sizes, const pleat_plan *plan);
/* Another schedule of the same requests is followed, whose sizes are at any x. */
void pleat__size_parameter_adopt(pleat__size_parameter *sizes, const pleat__schedule *schedule);
/* An iteration begins. */
void pleat__size_parameter_begin(pleat__size_parameter *sizes, const pleat__schedule *schedule);
/* Sizes of the items ahead of the cursor become those at x. To be called before each match. */
void pleat__size_parameter_advance(pleat__size_parameter *sizes, pleat__schedule *schedule);
/* A request comes, and x is not known yet. Where it says another one, the sizes ahead change. */
void pleat__size_parameter_infer(pleat__size_parameter *sizes, pleat__schedule *schedule,
                                 uint64_t bytes, uint16_t stream);
/* The request was item `item`. */
void pleat__size_parameter_matched(pleat__size_parameter *sizes, const pleat__schedule *schedule,
                                   uint32_t item);
/* The matcher expected the item `expected`, and the request was `item`. An item in whose place
 * another size comes has that size from then on. To be called after each match. */
void pleat__size_parameter_correct(pleat__size_parameter *sizes, pleat__schedule *schedule,
                                   uint32_t expected, uint32_t item, uint64_t bytes,
                                   uint16_t stream);
/* The request that came in the place of another size lies there. Where it does not fit that one's
 * slot, it is to lie there from then on. */
void pleat__size_parameter_outgrew(pleat__size_parameter *sizes, pleat__schedule *schedule,
                                   const pleat__place *place);

/* Whether x is certain: two requests of this iteration say the same. */
static inline bool pleat__size_parameter_is_known(const pleat__size_parameter *sizes)
{
    return sizes->agreed >= 2;
}

/* Whether x is of this job, and not only what the plan was recorded at. */
static inline bool pleat__size_parameter_is_seen(const pleat__size_parameter *sizes)
{
    return sizes->seen || pleat__size_parameter_is_known(sizes);
}

/* Whether x has proved true over an iteration: half of what depends on it was found. Two requests
 * of an evaluation, say, may agree on an x by chance, and a layout for that one has been three
 * times what the job takes. */
static inline bool pleat__size_parameter_is_proven(const pleat__size_parameter *sizes)
{
    return pleat__size_parameter_is_known(sizes) && sizes->as_said >= sizes->varying / 2;
}

#endif
