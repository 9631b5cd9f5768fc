/*
 * judge.h: whether a plan is the job's, as its requests come.
 *
 * A plan that was made of another run may fit this one in part: the data are others, and with them
 * the sizes. What it then has memory for, and what lies beside it, adds up. So each plan is on
 * trial at first, and left where it would be suspended (learner.h), before it has cost memory, or
 * where the trial shows that it costs much: the job is learned as one without a plan
 * (docs/decisions.md, D595, D615).
 *
 * A plan that nobody named, but that was found by how the job begins, is a guess besides: many jobs
 * begin alike, with the same weights say, and then differ in their depth, their batch or their
 * optimizer. It is left at the first sign that it does not fit. What counts
 * is bytes: of requests that were not in the plan, and of the plan's that did not come; where no
 * size varies also of tensors that live longer or shorter than planned (a job that computes again
 * in backward asks for the same at first, and gives it back at once). A plan that differs by so
 * little takes at most so much more memory than one that fits.
 *
 * The trial ends when an iteration of the plan's is over: what comes later, an evaluation say, is
 * nothing that another job's plan would show sooner.
 */
#ifndef PLEAT_RUNTIME_LEARN_JUDGE_H
#define PLEAT_RUNTIME_LEARN_JUDGE_H

#include <plan/base/plan.h>
#include <runtime/follow/matcher.h>

typedef struct pleat__judge {
    bool on;
    bool guessed;    /* nobody named the plan: bytes count */
    uint32_t cursor; /* the item expected before the request at hand */
    uint32_t left;   /* requests until the plan has proved itself */
    uint64_t other;  /* bytes by which the job and the plan differ in this iteration */
    uint64_t most;   /* and at which the plan is another job's */
    uint64_t *live;  /* bytes that live when an item was served; NULL: not known */
    uint64_t apart;  /* by which what lives may be more or less */
    pleat__arena *arena;
} pleat__judge;

/* `guessed`: nobody named the plan. Without host memory for lives it goes by requests alone. */
void pleat__judge_begin(pleat__judge *judge, pleat__arena *arena, const pleat__matcher *matcher,
                        const pleat_plan *plan, bool guessed);
/* A request was served, and the matcher has moved on; `missed`: it is none of the plan's; `live`:
 * bytes that live now. Ends the trial after an iteration. false: the plan is another job's. */
bool pleat__judge_step(pleat__judge *judge, const pleat__matcher *matcher, uint64_t bytes,
                       bool missed, uint64_t live);
void pleat__judge_end(pleat__judge *judge);

#endif
