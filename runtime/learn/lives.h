/*
 * lives.h: when the requests of an iteration are allocated and freed, recorded while it is not
 * followed: from two iterations at different sizes the recipe for others is made (scale.h).
 *
 * TIME  Positions count allocations, frees and what is said of frees that wait. A profile is one
 * iteration, from its mark on, or its first request where no mark begins it; its positions begin at
 * 0 and its horizon is where the next one begins. A part that the next iteration frees has end <=
 * begin, as the one before it in the iteration before was freed: 0 where that is the first of all.
 */
#ifndef PLEAT_RUNTIME_LEARN_LIVES_H
#define PLEAT_RUNTIME_LEARN_LIVES_H

#include <plan/base/plan.h>
#include <runtime/base/address_map.h>

typedef struct pleat__life {
    uint64_t bytes;
    pleat_va address; /* 0 when it is freed */
    uint32_t begin;
    uint32_t end;   /* PLEAT__NEVER: it lives */
    uint32_t asked; /* when the program freed it, where that waited for other streams */
    uint16_t stream;
    bool crosses; /* its like in the iteration before was freed in this one */
} pleat__life;

/* One request of a profile. */
typedef struct pleat__part {
    uint64_t bytes;
    uint32_t begin;
    uint32_t end; /* PLEAT__NEVER: not known, or beyond the next iteration */
    uint16_t stream;
} pleat__part;

typedef struct pleat__profile {
    pleat__arena *arena;
    pleat__part *parts;
    uint32_t count;
    uint32_t horizon;
    bool open;    /* what crosses its end has no end: the one before was not like it */
    bool guessed; /* that has ends now, by one with more or fewer requests */
} pleat__profile;

typedef struct pleat__lives {
    pleat__arena *arena;
    pleat__life *items;
    size_t capacity;
    uint32_t count;
    uint32_t now;      /* position of the next event */
    uint32_t begun;    /* of the mark where the iteration that is being recorded began */
    uint32_t dropped;  /* requests forgotten, so that `live` keeps numbers that stay */
    uint32_t previous; /* items before this one are of the iteration before */
    bool whole;        /* what is being recorded began at a mark */
    bool full;         /* too long, or no host memory: off until the next mark */
    pleat__live live;  /* address -> number + 1 */
} pleat__lives;

PLEAT_NODISCARD pleat_result pleat__lives_init(pleat__lives *lives, pleat__arena *arena);
void pleat__lives_release(pleat__lives *lives);
/* Forgets everything. */
void pleat__lives_restart(pleat__lives *lives);
void pleat__lives_alloc(pleat__lives *lives, uint64_t bytes, uint16_t stream, pleat_va address);
/* An address that was not recorded is passed over. */
void pleat__lives_free(pleat__lives *lives, pleat_va address);
/* The program freed it, and it lives on until other streams have done with it. */
void pleat__lives_wait(pleat__lives *lives, pleat_va address);
/* Whether what is allocated there is of the iteration that is being recorded. */
bool pleat__lives_is_new(const pleat__lives *lives, pleat_va address);
/* Whether what is allocated there is of the iteration that ended at the last mark, and will be
 * freed in the next. */
bool pleat__lives_crosses(const pleat__lives *lives, pleat_va address);
/* An iteration ends and the next begins. *profile is what ended; NULL when it was not recorded
 * whole, or host memory is short. It is open when the one before was not, or had another number of
 * requests. */
void pleat__lives_mark(pleat__lives *lives, pleat__profile **profile);
/* The `count` requests before the last `ahead` as an iteration, after another of as many; NULL
 * likewise. */
pleat__profile *pleat__lives_last(const pleat__lives *lives, uint32_t count, uint32_t ahead);
/* Iterations are marked from now on: the last one began `ahead` requests ago, and the one before it
 * has `count`. */
void pleat__lives_begun(pleat__lives *lives, uint32_t count, uint32_t ahead);
/* The iteration that ended at the last mark is as the profile, open then, is now. */
void pleat__lives_completed(pleat__lives *lives, const pleat__profile *profile);
/* NULL: no host memory. */
pleat__profile *pleat__profile_copy(const pleat__profile *profile);
/* NULL is allowed. */
void pleat__profile_free(pleat__profile *profile);

#endif
