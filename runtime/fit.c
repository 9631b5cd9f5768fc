/*
 * fit.c: see fit.h.
 */
#include <runtime/fit.h>

/* An iteration is served badly where one request in so many lies elsewhere, and that took the
 * driver's time although there was memory enough. */
#define ELSEWHERE_SHARE 8u
/* Bad iterations before the first rest. Later one is enough, also if it took memory or diverged. */
#define MOST_BAD 3u
/* Iterations of the first rest; each is four times as long as the one before, up to so often. So
 * many good ones in a row, and one of those before is forgotten. */
#define REST      128u
#define MOST_REST 3u

static bool is_judged(const pleat__fit *fit, pleat__followed followed, bool diverged)
{
    return followed == PLEAT__FOLLOWED_LEARNED ||
           (followed == PLEAT__FOLLOWED_NOTHING && fit->rests != 0 && diverged);
}

bool pleat__fit_mark(pleat__fit *fit, const pleat__served *served, pleat__followed followed,
                     uint64_t divergences)
{
    bool again = fit->rests != 0, diverged = divergences != fit->divergences;
    fit->divergences = divergences;
    fit->resting -= fit->resting != 0;
    if (!is_judged(fit, followed, diverged))
        return false;
    bool elsewhere = served->elsewhere * ELSEWHERE_SHARE > served->asked;
    if (elsewhere && served->paid && (again || !served->grew)) {
        fit->bad++;
        fit->good = 0;
    } else if (!elsewhere) {
        fit->bad -= fit->bad != 0;
        fit->good++;
    }
    if (fit->good == REST) {
        fit->rests -= fit->rests != 0;
        fit->good = 0;
    }
    if (fit->bad < (again ? 1 : MOST_BAD))
        return false;
    fit->bad = 0;
    fit->resting = REST << 2 * fit->rests;
    fit->rests += fit->rests < MOST_REST;
    return true;
}
