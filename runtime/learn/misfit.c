/*
 * misfit.c: see misfit.h.
 */
#include <runtime/learn/misfit.h>

/* Requests that are too few to say anything. */
#define FEW 64u
/* Requests that are judged together where the job marks nothing, at least. */
#define STRETCH 4096u
/* Strikes after which it is over: two iterations, or, since what is judged without marks is not
 * known to be one, four stretches. */
#define MOST      4u
#define ITERATION 2u
/* Requests after which it is tried again to leave it, doubled each time, up to so often. */
#define RETRY      256u
#define MOST_RETRY 12u

void pleat__misfit_begin(pleat__misfit *misfit, const pleat_plan *plan, const pleat_stats *stats)
{
    uint64_t requests = (uint64_t)plan->first.slot_count + plan->steady.slot_count;
    *misfit = (pleat__misfit){.stats = stats, .stretch = requests > STRETCH ? requests : STRETCH};
}

static uint64_t placed(const pleat__misfit *misfit)
{
    return misfit->stats->planned + misfit->stats->lane;
}

void pleat__misfit_followed(pleat__misfit *misfit, bool followed)
{
    if (misfit->stretch == 0)
        return;
    if (misfit->followed)
        misfit->served += placed(misfit) - misfit->placed_at;
    misfit->placed_at = placed(misfit);
    misfit->followed = followed;
}

bool pleat__misfit_judge(pleat__misfit *misfit, uint64_t requests, bool marked)
{
    if (misfit->stretch == 0)
        return misfit->leaves && (marked || requests >= misfit->retry_at);
    pleat__misfit_followed(misfit, misfit->followed);
    uint64_t asked = requests - misfit->begun, served = misfit->served;
    bool first = marked && !misfit->marks;
    misfit->begun = requests;
    misfit->served = 0;
    misfit->marks = misfit->marks || marked;
    /* What came before the first mark was no iteration. */
    if (first)
        misfit->strikes = 0;
    if (first || asked < FEW)
        return false;
    if (served * 2 >= asked) {
        misfit->stretch = 0;
        return false;
    }
    misfit->strikes += marked ? ITERATION : 1;
    if (misfit->strikes < MOST)
        return false;
    misfit->stretch = 0;
    misfit->leaves = true;
    return true;
}

void pleat__misfit_left(pleat__misfit *misfit)
{
    misfit->leaves = false;
}

void pleat__misfit_stays(pleat__misfit *misfit, uint64_t requests)
{
    misfit->retry_at = requests + ((uint64_t)RETRY << misfit->tries);
    misfit->tries += misfit->tries < MOST_RETRY;
}
