/*
 * infer.c: which x a trace was recorded at, by a plan of the same job: its iterations are
 * laid against the plan's, and the x that most sizes agree with is it. And how much of the trace's
 * iteration the plan's instance at that x is for.
 */
#include <plan/sizes/planner.h>

#include <internal/error.h>
#include <plan/model/iteration.h>
#include <plan/sizes/fit.h>

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
                       pleat__fraction *out)
{
    uint32_t from = 0, count = plan->steady.slot_count;
    for (uint32_t attempt = 0; attempt < ATTEMPTS && from < count; attempt++) {
        pleat__x_finder finder;
        uint32_t known_at = count;
        pleat__x_begin(&finder, plan);
        for (uint32_t i = from; i < count; i++)
            if (pairs[i] != PLEAT__NEVER && pleat__x_observe(&finder, i, items[pairs[i]].size) &&
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

static pleat_result infer_stretch(inference *f, pleat__stretch stretch, pleat__fraction *x,
                                  bool *found)
{
    const pleat__request *items = f->requests.items + stretch.item;
    uint32_t paired;
    PLEAT_TRY(pleat__shapes_align(f->shape, f->plan->steady.slot_count, items, stretch.items,
                                  f->scratch, f->pairs, &paired));
    *found = infer_from(f->plan, items, f->pairs, x);
    return PLEAT_OK;
}

static uint64_t bytes_of(const inference *f, pleat__stretch stretch)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < stretch.items; i++)
        bytes += f->requests.items[stretch.item + i].size;
    return bytes;
}

/* Whether any iteration has another x than the steady one: all that are marked, or else those that
 * were found. One that has as many bytes as the one behind it is no other. */
static pleat_result look_at_all(inference *f, const pleat__iteration *iteration, pleat__fraction x,
                                bool *changes)
{
    const pleat__requests *requests = &f->requests;
    bool marked = requests->mark_count != 0;
    uint64_t last = bytes_of(f, iteration->steady);
    uint32_t count = marked ? requests->mark_count - 1 : iteration->profile_count;
    *changes = false;
    for (uint32_t k = count; k-- > 0 && !*changes;) {
        pleat__stretch stretch =
            marked ? pleat__stretch_of(requests, requests->marks[k], requests->marks[k + 1])
                   : iteration->profiles[k];
        uint64_t bytes = bytes_of(f, stretch);
        pleat__fraction other;
        bool found;
        if (stretch.items == 0 || bytes == last)
            continue;
        last = bytes;
        PLEAT_TRY(infer_stretch(f, stretch, &other, &found));
        *changes = found && !pleat__fraction_equal(other, x);
    }
    return PLEAT_OK;
}

static pleat_result infer(inference *f, const pleat_trace *trace, pleat__iteration *iteration,
                          pleat__fraction *out)
{
    uint32_t device, count = f->plan->steady.slot_count;
    bool found;
    PLEAT_TRY(pleat__choose_device(trace, f->plan->device, &device));
    PLEAT_TRY(pleat__requests_make(trace, device, f->scratch, &f->requests));
    PLEAT_TRY(pleat__iteration_find(&f->requests, iteration));
    PLEAT_TRY(shape_of(f->plan, f->scratch, &f->shape));
    f->pairs = pleat__arena_alloc(f->scratch, (count + 1ull) * sizeof *f->pairs);
    if (f->pairs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", count);
    PLEAT_TRY(infer_stretch(f, iteration->steady, out, &found));
    if (!found)
        return pleat__fail(PLEAT_E_NOT_FOUND, "the trace's sizes follow the plan's recipe at no x");
    return PLEAT_OK;
}

static pleat_result begin(inference *f, const pleat_plan *plan)
{
    *f = (inference){.plan = plan};
    if (plan->recipe == NULL)
        return pleat__fail(PLEAT_E_INVALID, "the plan has no recipe: it is for one size only");
    return pleat__arena_create(&f->scratch);
}

pleat_result pleat__elastic_infer(const pleat_plan *plan, const pleat_trace *trace,
                                  pleat__fraction *out, bool *changes)
{
    inference f;
    pleat__iteration iteration;
    PLEAT_TRY(begin(&f, plan));
    pleat_result result = infer(&f, trace, &iteration, out);
    if (result == PLEAT_OK)
        result = look_at_all(&f, &iteration, *out, changes);
    pleat__arena_destroy(f.scratch);
    return result;
}

/* ---- is it for this trace? ---- */

/* Whether the slot has room for the request, on its stream. */
static bool has_room(const pleat_plan *instance, const pleat_trace *trace, const pleat__slot *slot,
                     const pleat__request *request)
{
    return instance->streams[slot->stream] == pleat_trace_stream(trace, request->stream) &&
           pleat__rounded(request->size) <= pleat__rounded(slot->size);
}

static pleat_result cover(inference *f, const pleat_trace *trace, pleat__cover *out,
                          pleat_plan **instance)
{
    pleat__iteration iteration;
    uint32_t paired;
    PLEAT_TRY(infer(f, trace, &iteration, &out->x));
    PLEAT_TRY(pleat__elastic_instance(f->plan, out->x, NULL, NULL, instance));
    const pleat__request *items = f->requests.items + iteration.steady.item;
    f->plan = *instance;
    pleat_result result = shape_of(f->plan, f->scratch, &f->shape);
    if (result == PLEAT_OK)
        result = pleat__shapes_align(f->shape, f->plan->steady.slot_count, items,
                                     iteration.steady.items, f->scratch, f->pairs, &paired);
    if (result != PLEAT_OK) {
        pleat_plan_free(*instance);
        return result;
    }
    out->requests = iteration.steady.items;
    for (uint32_t i = 0; i < f->plan->steady.slot_count; i++)
        out->covered += f->pairs[i] != PLEAT__NEVER &&
                        has_room(f->plan, trace, &f->plan->steady.slots[i], &items[f->pairs[i]]);
    return PLEAT_OK;
}

pleat_result pleat__elastic_cover(const pleat_plan *plan, const pleat_trace *trace,
                                  pleat__cover *out, pleat_plan **instance)
{
    inference f;
    *out = (pleat__cover){.requests = 0};
    PLEAT_TRY(begin(&f, plan));
    pleat_result result = cover(&f, trace, out, instance);
    pleat__arena_destroy(f.scratch);
    return result;
}
