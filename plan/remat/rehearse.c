/*
 * rehearse.c: an iteration that was recorded comes again. So which variant of `stitched` suits it
 * is not guessed: all of them are run on the log, and the best is taken.
 */
#include <plan/remat/run.h>

static const char *const names[] = {"dtr", "dte", "coop", "stitched"};

const char *pleat__remat_policy_name(pleat__remat_policy policy)
{
    return policy < PLEAT__REMAT_POLICIES ? names[policy] : "unknown";
}

static bool better(const pleat__remat_figures *a, const pleat__remat_figures *b)
{
    return a->finished && (!b->finished || a->overhead < b->overhead);
}

/* Variants are compared without real memory, which changes none of their figures. */
static pleat_result choose(const pleat__operator_log *log, const pleat__remat_options *options,
                           pleat__remat_options *best)
{
    pleat__remat_figures least = {.finished = false}, figures;
    for (int w = 0; w < PLEAT__REMAT_WEIGHINGS; w++) {
        for (int chunks = 0; chunks < 2; chunks++) {
            pleat__remat_options variant = *options;
            variant.weighing = (pleat__remat_weighing)w;
            variant.chunks = chunks;
            variant.ground = NULL;
            pleat_result result = pleat__remat_run(log, &variant, &figures);
            if (result != PLEAT_OK)
                return result;
            if (better(&figures, &least)) {
                least = figures;
                best->weighing = variant.weighing;
                best->chunks = variant.chunks;
            }
        }
    }
    return PLEAT_OK;
}

pleat_result pleat__remat_rehearse(const pleat__operator_log *log,
                                   const pleat__remat_options *options, pleat__remat_options *best,
                                   pleat__remat_figures *out)
{
    *best = *options;
    if (options->policy == PLEAT__REMAT_STITCHED) {
        pleat_result result = choose(log, options, best);
        if (result != PLEAT_OK)
            return result;
    }
    return pleat__remat_run(log, best, out);
}
