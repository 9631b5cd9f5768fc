/*
 * misfit.h: is a plan file the job's at all?
 *
 * What a plan file lays out is made at the start. Where it is another job's, hardly a request finds
 * a slot, and all of that memory is held for nothing. So a plan file has to show that it serves
 * before it is trusted: an iteration, or as many requests as one of the plan's has, of which half
 * lay in its slots and lanes. That once done, nothing is counted any more, whatever the job does
 * later: another shape may go on for long before the plan's own returns. A job may do something
 * else first, or begin in the middle: one iteration in which too little was served says nothing,
 * the second one does. Where it cannot be left then, because another thread is at the driver, say,
 * that is tried again, each time after twice as many requests.
 */
#ifndef PLEAT_RUNTIME_LEARN_MISFIT_H
#define PLEAT_RUNTIME_LEARN_MISFIT_H

#include <plan/base/plan.h>
#include <pleat/runtime.h>

typedef struct pleat__misfit {
    const pleat_stats *stats;
    uint64_t
        stretch;     /* requests after which is judged where the job marks nothing; 0: it is over */
    uint64_t begun;  /* the policy's count of requests when what is judged began */
    uint64_t served; /* since then, by the plan, up to when it was taken up last */
    uint64_t placed_at; /* requests in slots and lanes when it was, while it is followed */
    bool followed;
    bool marks;
    bool leaves; /* it is not the job's, and still there */
    uint32_t strikes;
    uint32_t tries;    /* to leave it */
    uint64_t retry_at; /* the count of requests at which the next one is due */
} pleat__misfit;

void pleat__misfit_begin(pleat__misfit *misfit, const pleat_plan *plan, const pleat_stats *stats);
/* The plan, or what it was laid out as for another size, is followed from now on; or not. */
void pleat__misfit_followed(pleat__misfit *misfit, bool followed);
/* After so many requests in all; `marked`: an iteration ends. true: the plan is not the job's, and
 * is to be left now. */
bool pleat__misfit_judge(pleat__misfit *misfit, uint64_t requests, bool marked);
/* It was left; or it could not be. */
void pleat__misfit_left(pleat__misfit *misfit);
void pleat__misfit_stays(pleat__misfit *misfit, uint64_t requests);

/* The plan has shown that it is the job's. */
static inline bool pleat__misfit_fits(const pleat__misfit *misfit)
{
    return misfit->stretch == 0 && !misfit->leaves;
}

/* Whether there is something to be judged before an iteration ends. */
static inline bool pleat__misfit_is_due(const pleat__misfit *misfit, uint64_t requests)
{
    if (misfit->leaves)
        return requests >= misfit->retry_at;
    return misfit->stretch != 0 && !misfit->marks && requests - misfit->begun >= misfit->stretch;
}

#endif
