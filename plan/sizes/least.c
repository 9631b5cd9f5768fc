/*
 * least.c: the least that an iteration takes at an x larger than all that were recorded.
 *
 * What a kernel takes for itself grows with x up to a bound, of the device's processors or of a
 * table's rows, say, which recordings below it do not show: their sizes look like any tensor's. So
 * a plan's figures beyond the largest x recorded are the most that the job takes. It takes the
 * least where all such requests have stopped growing there.
 */
#include <plan/sizes/layout.h>
#include <plan/sizes/recipe.h>

#include <internal/error.h>

#define WORKSPACE 3u /* events that it lives: one more may come with it, and they go */

/* The largest x recorded that is not beyond this one, from the range that the recipe is for. What
 * the plan was laid out for beyond that (pleat plan --max) was not recorded, and the range does not
 * say what was, but for the lowest. */
static bool seen_at(const pleat__recipe *recipe, pleat__fraction x, pleat__fraction *seen)
{
    static const pleat__fraction up = {PLEAT__RANGE, 1}, down = {1, PLEAT__RANGE};
    bool laid_out = pleat__fraction_equal(recipe->reference, recipe->highest);
    if (!(laid_out ? pleat__fraction_multiply(recipe->lowest, up, seen)
                   : pleat__fraction_multiply(recipe->highest, down, seen)))
        return false;
    if (pleat__fraction_compare(x, *seen) < 0)
        *seen = x;
    return true;
}

static uint32_t life_of(const pleat__elastic_job *job, uint32_t item)
{
    const pleat__item *i = &job->items[item];
    return i->end <= i->begin ? job->problem.horizon - i->begin + i->end : i->end - i->begin;
}

/* Workspaces no larger than at `seen`. */
static void hold_back(pleat__elastic_job *job, const pleat__recipe *recipe, pleat__fraction seen)
{
    for (uint32_t i = job->persistents; i < job->lanes_from; i++) {
        uint32_t function = recipe->steady[job->slots[i]];
        uint64_t size;
        if (life_of(job, i) <= WORKSPACE && function != PLEAT__NO_FUNCTION &&
            pleat__function_at(&recipe->functions[function], seen, &size) &&
            pleat__round_up(size, PLEAT__ALIGNMENT, &size) && size < job->items[i].size)
            job->items[i].size = size;
    }
}

pleat_result pleat__elastic_least(const pleat_plan *plan, pleat__fraction x,
                                  const pleat_plan *instance, uint64_t *bytes)
{
    const pleat__recipe *recipe = plan->recipe;
    pleat__elastic_job job;
    pleat__arena *scratch;
    pleat__fraction seen;
    uint32_t chunks;
    *bytes = instance->physical_bytes;
    if (!seen_at(recipe, x, &seen) || pleat__fraction_equal(seen, x))
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_create(&scratch));
    pleat_result result =
        pleat__elastic_job_make(instance, recipe->prologue, recipe->view_page, scratch, &job);
    if (result == PLEAT_OK) {
        hold_back(&job, recipe, seen);
        result = pleat__floor_chunks(&job.problem, plan->chunk_bytes, scratch, &chunks);
    }
    pleat__arena_destroy(scratch);
    uint64_t least = result == PLEAT_OK ? chunks * plan->chunk_bytes : *bytes;
    *bytes = least < *bytes ? least : *bytes;
    return result;
}
