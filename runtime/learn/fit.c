/*
 * fit.c: see fit.h.
 */
#include <runtime/learn/fit.h>

/* What a bad iteration counts, twice where one part in MUCH of its time was lost; a good one takes
 * one away. */
#define BAD  2u
#define MUCH 16u
/* At so much a rest begins. A draft is made again, of more iterations, and sizes are fitted anew,
 * which takes a few, before it comes to that. */
#define MOST_BAD        6u
#define MOST_BAD_DRAFT  10u
#define MOST_BAD_LAYOUT 24u
/* A learned iteration is bad only where more than one request in so many lies elsewhere. */
#define ELSEWHERE_SHARE 16u
/* An iteration is poor when a draft or a layout left more than one request in so many elsewhere; a
 * number of poor ones, less the others, from which on that is its way. (An evaluation leaves all
 * elsewhere, once.) */
#define POOR_SHARE 4u
#define POOR       4u
#define MOST_POOR  8u
/* What an iteration may take of the driver's time in any case: some twenty maps. */
#define LEAST_NS UINT64_C(500000)
/* Iterations of the first rest; each is four times as long as the one before, up to so often. So
 * many good ones in a row, and one of those before is forgotten. */
#define REST      128u
#define MOST_REST 3u
/* Iterations of a rest in which what lies in lanes and slots goes; and those behind which it is
 * compared: so many, twice as many, and so on. */
#define SETTLES   2u
#define TRIAL     8u
#define MOST_VAIN 6u

static bool is_judged(const pleat__fit *fit, pleat__followed followed, bool diverged)
{
    if (followed == PLEAT__FOLLOWED_NOTHING)
        return fit->rests != 0 && diverged;
    return followed != PLEAT__FOLLOWED_FILE;
}

/* A job that takes more memory than ever is bound to ask the driver, the first time. And what was
 * learned of an iteration whose sizes change finds places for more and more of it. */
static uint32_t badness(const pleat__fit *fit, pleat__followed followed)
{
    const pleat__served *served = &fit->served;
    bool costly =
        served->paid_ns > LEAST_NS && served->paid_ns > pleat__account_share(served->passed_ns);
    bool settles =
        followed == PLEAT__FOLLOWED_LEARNED && served->elsewhere * ELSEWHERE_SHARE <= served->asked;
    if (!costly || settles || (served->record && fit->rests == 0))
        return 0;
    return served->paid_ns > served->passed_ns / MUCH ? 2 * BAD : BAD;
}

static bool is_poor(const pleat__fit *fit, pleat__followed followed)
{
    bool made = followed == PLEAT__FOLLOWED_DRAFT || followed == PLEAT__FOLLOWED_LAYOUT;
    return made && fit->served.elsewhere * POOR_SHARE > fit->served.asked;
}

/* What is followed has had no place for much of iterations, and memory grew: by more than was
 * missing, as a rule, since what is free lies in pieces beside slots and lanes, of chunks that a
 * view cannot have. */
static bool is_in_the_way(const pleat__fit *fit, pleat__followed followed)
{
    return is_poor(fit, followed) && fit->poor >= POOR && fit->served.grew;
}

static void note_poor(pleat__fit *fit, pleat__followed followed)
{
    if (is_poor(fit, followed))
        fit->poor += fit->poor < MOST_POOR;
    else
        fit->poor -= fit->poor != 0;
}

static uint32_t most_bad(const pleat__fit *fit, pleat__followed followed)
{
    uint32_t most = followed == PLEAT__FOLLOWED_DRAFT    ? MOST_BAD_DRAFT
                    : followed == PLEAT__FOLLOWED_LAYOUT ? MOST_BAD_LAYOUT
                                                         : MOST_BAD;
    return most << fit->vain;
}

static void add_cost(pleat__fit_cost *cost, const pleat__served *served)
{
    cost->ns += served->paid_ns;
    cost->requests += served->asked;
}

static bool is_compared(const pleat__fit *fit)
{
    uint32_t trials = fit->rested > SETTLES ? (fit->rested - SETTLES) / TRIAL : 0;
    return trials != 0 && (fit->rested - SETTLES) % TRIAL == 0 && (trials & (trials - 1)) == 0;
}

/* Whether the heap alone takes half of the time, or less. Where it goes on stitching, too, it
 * is not the better one: what was learned finds its places yet. Where it is for memory that it
 * rests, the heap may take what any iteration may. */
static bool is_better(const pleat__fit *fit)
{
    if (fit->for_memory && fit->since.ns <= (fit->rested - SETTLES) * LEAST_NS)
        return true;
    return 2 * (double)fit->since.ns * (double)fit->before.requests <=
           (double)fit->before.ns * (double)fit->since.requests;
}

static pleat__verdict rest(pleat__fit *fit)
{
    fit->rested++;
    fit->resting--;
    if (fit->rested > SETTLES)
        add_cost(&fit->since, &fit->served);
    if (is_compared(fit) && !is_better(fit)) {
        fit->resting = 0;
        fit->rests--;
        fit->vain += fit->vain < MOST_VAIN;
    }
    return fit->resting == 0 ? PLEAT__WAKES : PLEAT__GOES_ON;
}

static void begin_rest(pleat__fit *fit)
{
    fit->bad = 0;
    fit->poor = 0;
    fit->good = 0;
    fit->rested = 0;
    fit->since = (pleat__fit_cost){0};
    fit->resting = REST << 2 * fit->rests;
    fit->rests += fit->rests < MOST_REST;
}

void pleat__fit_end_rest(pleat__fit *fit)
{
    fit->rests--;
    fit->resting = 0;
}

pleat__verdict pleat__fit_mark(pleat__fit *fit, pleat__followed followed, uint64_t divergences)
{
    bool diverged = divergences != fit->divergences;
    fit->divergences = divergences;
    if (fit->resting != 0)
        return rest(fit);
    if (!is_judged(fit, followed, diverged))
        return PLEAT__GOES_ON;
    uint32_t bad = badness(fit, followed);
    if (fit->bad == 0)
        fit->before = (pleat__fit_cost){0};
    add_cost(&fit->before, &fit->served);
    if (bad != 0) {
        fit->bad += bad;
        fit->good = 0;
    } else {
        fit->bad -= fit->bad != 0;
        fit->good++;
    }
    if (fit->good == REST) {
        fit->rests -= fit->rests != 0;
        fit->vain -= fit->vain != 0;
        fit->good = 0;
    }
    note_poor(fit, followed);
    bool in_the_way = is_in_the_way(fit, followed);
    if (!in_the_way && (bad == 0 || fit->bad < most_bad(fit, followed)))
        return PLEAT__GOES_ON;
    begin_rest(fit);
    fit->for_memory = in_the_way;
    return PLEAT__RESTS;
}
