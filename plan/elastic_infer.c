/*
 * elastic_infer.c: which x a trace was recorded at, by a plan of the same job: its iterations are
 * laid against the plan's, and the x that most sizes agree with is it.
 */
#include <plan/elastic_plan.h>

#include <internal/error.h>
#include <plan/elastic_fit.h>
#include <plan/iteration.h>

/* The plan's iteration as a shape. */
static pleat_result shape_of(const pleat_plan *plan, pleat__arena *scratch, pleat__request **out)
{
    const pleat__sequence *steady = &plan->steady;
    pleat__request *items = pleat__arena_calloc(scratch, steady->slot_count + 1ull, sizeof *items);
    if (items == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", steady->slot_count);
    for (uint32_t i = 0; i < steady->slot_count; i++)
        items[i] = (pleat__request){.size = steady->slots[i].size,
                                    .alloc_at = steady->slots[i].alloc_at,
                                    .free_at = steady->slots[i].free_at,
                                    .stream = steady->slots[i].stream};
    *out = items;
    return PLEAT_OK;
}

#define ATTEMPTS 16 /* requests that x is taken from, where it then does not fit the others */

/* The x that most of the iteration's sizes agree with. */
static bool infer_from(const pleat_plan *plan, const pleat__request *items, const uint32_t *pairs,
                       pleat__x *out)
{
    uint32_t from = 0, count = plan->steady.slot_count;
    for (uint32_t attempt = 0; attempt < ATTEMPTS && from < count; attempt++) {
        pleat__x_finder finder;
        uint32_t known_at = count;
        pleat__x_begin(&finder, plan);
        for (uint32_t i = from; i < count; i++)
            if (pairs[i] != PLEAT__NEVER &&
                pleat__x_observe(&finder, false, i, items[pairs[i]].size) == PLEAT__X_KNOWN &&
                known_at == count)
                known_at = i;
        if (known_at < count && finder.agreed > finder.contradicted) {
            *out = finder.x;
            return true;
        }
        from = known_at < count ? known_at + 1 : count;
    }
    return false;
}

/* What one stretch of a trace says, held against the plan's iteration. */
typedef struct inference {
    const pleat_plan *plan;
    pleat__arena *scratch;
    pleat__requests requests;
    pleat__request *shape;
    uint32_t *pairs;
} inference;

static pleat_result infer_stretch(inference *f, pleat__stretch stretch, pleat__x *x, bool *found)
{
    const pleat__request *items = f->requests.items + stretch.item;
    PLEAT_TRY(pleat__shapes_align(f->shape, f->plan->steady.slot_count, items, stretch.items,
                                  f->scratch, f->pairs));
    *found = infer_from(f->plan, items, f->pairs, x);
    return PLEAT_OK;
}

static pleat_result infer(inference *f, const pleat_trace *trace, pleat__x *out, bool *changes)
{
    pleat__iteration iteration;
    uint32_t device, count = f->plan->steady.slot_count;
    bool found;
    PLEAT_TRY(pleat__choose_device(trace, f->plan->device, &device));
    PLEAT_TRY(pleat__requests_make(trace, device, f->scratch, &f->requests));
    PLEAT_TRY(pleat__iteration_find(&f->requests, &iteration));
    PLEAT_TRY(shape_of(f->plan, f->scratch, &f->shape));
    f->pairs = pleat__arena_alloc(f->scratch, (count + 1ull) * sizeof *f->pairs);
    if (f->pairs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", count);
    PLEAT_TRY(infer_stretch(f, iteration.steady, out, &found));
    if (!found)
        return pleat__fail(PLEAT_E_NOT_FOUND, "the trace's sizes follow the plan's recipe at no x");
    *changes = false;
    for (uint32_t i = 0; i < iteration.profile_count && !*changes; i++) {
        pleat__x x;
        PLEAT_TRY(infer_stretch(f, iteration.profiles[i], &x, &found));
        *changes = found && !pleat__x_equal(&x, out);
    }
    return PLEAT_OK;
}

pleat_result pleat__elastic_infer(const pleat_plan *plan, const pleat_trace *trace, pleat__x *out,
                                  bool *changes)
{
    inference f = {.plan = plan};
    if (plan->recipe == NULL)
        return pleat__fail(PLEAT_E_INVALID, "the plan has no recipe: it is for one size only");
    PLEAT_TRY(pleat__arena_create(&f.scratch));
    pleat_result result = infer(&f, trace, out, changes);
    pleat__arena_destroy(f.scratch);
    return result;
}
