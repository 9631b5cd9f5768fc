/*
 * passing.h: what is in the way of a sweep the first time only (sweep.c).
 *
 * Places are made for every iteration to come, but the first of them begins with what the one
 * before left where it happened to lie. Its like of later iterations has a place of its own, which
 * it is not in the way of; only what is born while it is still there goes around it.
 *
 * SHARED  Bytes that a placed item takes as well belong to the item as long as it lives: in the
 *         first iteration it is not there, or finds its place taken that once. When it dies they
 *         are still passed over until what passes there is gone.
 */
#ifndef PLEAT_PLAN_FOLD_PASSING_H
#define PLEAT_PLAN_FOLD_PASSING_H

#include <plan/fold/fold_internal.h>

/* Free bytes that were taken for one that passes. */
typedef struct pleat__passing_part {
    pleat__range range;
    uint32_t next; /* of the same; UINT32_MAX: none */
} pleat__passing_part;

typedef struct pleat__passer {
    const pleat__fold_job *job;
    pleat__gaps *gaps;  /* what is free */
    uint32_t *by_place; /* the job's passing, by where it lies */
    uint32_t *parts_of; /* by passing: its parts; UINT32_MAX: none */
    pleat__passing_part *parts;
    size_t capacity;
    uint32_t count;
    uint32_t first; /* of the job's passing: those before it are over */
    uint32_t next;  /* the first that has not come */
} pleat__passer;

/* What is taken for the job's passing is taken out of `gaps`. */
PLEAT_NODISCARD pleat_result pleat__passer_init(pleat__passer *passer, const pleat__fold_job *job,
                                                pleat__gaps *gaps);
void pleat__passer_done(pleat__passer *passer);
/* Nothing has come yet. */
void pleat__passer_restart(pleat__passer *passer);
/* What has ended by `now` is free again, and what has begun is not. */
PLEAT_NODISCARD pleat_result pleat__passer_move(pleat__passer *passer, uint32_t now);
/* For bytes that something placed ahead takes now: they are as free as if nothing passed there. */
PLEAT_NODISCARD pleat_result pleat__passer_yield(pleat__passer *passer, pleat__range range);
/* Bytes that have just become free: what passes there takes them. */
PLEAT_NODISCARD pleat_result pleat__passer_inherit(pleat__passer *passer, pleat__range range);

#endif
