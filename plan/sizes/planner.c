/*
 * planner.c: from traces to a plan with a recipe. See planner.h.
 *
 *   profiles   the iterations of all traces that agree with each other, laid against the last one
 *              of the reference trace, the one that holds most (profiles.c)
 *   fit        functions of x (fit.c); what has none becomes dynamic, what has one and was
 *              dynamic in its own trace gets a slot
 *   recipe     functions, hosts of the early requests, range, the places of the prologue
 *   lay out    the plan itself is the instance at the reference x
 */
#include <plan/sizes/planner_internal.h>

#include <plan/base/options.h>
#include <plan/lanes/lanes.h>
#include <plan/sizes/layout.h>
#include <plan/sizes/recipe.h>
#include <plan/sizes/sums.h>
#include <stdio.h>
#include <string.h>

/* --- the recipe --------------------------------------------------------------------------------*/

/* Says what the sizes of the profiles show instead of a number that they follow. */
static pleat_result no_x(const pleat__planning *p, uint32_t items)
{
    unsigned long long varying = p->fit.varying;
    if (p->profile_count == 1)
        return pleat__fail(PLEAT_E_INPUT, "the sizes of one iteration show no microbatch or length "
                                          "that changes: record the job at another one");
    if (varying * PLEAT__VARYING_SHARE < items)
        return pleat__fail(PLEAT_E_INPUT,
                           "of the iteration's %u requests %llu change%s size over %u iterations: "
                           "all were recorded at one microbatch and length: record the job at "
                           "another one",
                           items, varying, varying == 1 ? "s" : "", p->profile_count);
    return pleat__fail(PLEAT_E_INPUT,
                       "of the iteration's %u requests %llu change size over %u iterations, and "
                       "most of these follow no number in common, as a microbatch or a length is: "
                       "record %s",
                       items, varying, p->profile_count,
                       p->trace_count == 1
                           ? "two microbatches with batches that are alike; what would fit `pleat "
                             "compare` estimates from one recording"
                           : "each microbatch with batches that are alike, or take one recording "
                             "alone");
}

static pleat_result fit(pleat__planning *p)
{
    uint32_t items = p->sources[p->reference].iteration.steady.items;
    uint64_t names[PLEAT__FIT_PROFILES_MOST] = {0};
    for (uint32_t t = 0; t < p->trace_count && p->options.names != NULL; t++)
        names[t] = p->options.names[t];
    PLEAT_TRY(pleat__fit_make(p->sizes, p->profile_count, items, names, p->scratch, &p->fit));
    p->report->shows_x = p->fit.shows_x;
    p->report->varying = p->fit.varying;
    p->report->explained = p->fit.explained;
    if (!p->fit.shows_x)
        return no_x(p, items);
    for (uint32_t t = 0; t < p->trace_count; t++)
        p->report->x[t] = p->fit.x[t];
    const pleat__sized_trace *reference = &p->sources[p->reference];
    return pleat__sums_bound(reference->requests.items + reference->iteration.steady.item, p->sizes,
                             p->profile_count, items, p->scratch, &p->fit);
}

static void stretch_range(pleat__fraction value, pleat__fraction *low, pleat__fraction *high)
{
    if (pleat__fraction_compare(value, *low) < 0)
        *low = value;
    if (pleat__fraction_compare(value, *high) > 0)
        *high = value;
}

/* PLEAT__RANGE times below and beyond what was recorded. */
static pleat_result set_range(pleat__planning *p)
{
    pleat__recipe *recipe = p->recipe;
    pleat__fraction low = p->fit.x[0], high = low;
    for (uint32_t i = 1; i < p->profile_count; i++)
        stretch_range(p->fit.x[i], &low, &high);
    if (!pleat__fraction_multiply(low, (pleat__fraction){1, PLEAT__RANGE}, &recipe->lowest) ||
        !pleat__fraction_multiply(high, (pleat__fraction){PLEAT__RANGE, 1}, &recipe->highest))
        return pleat__fail(PLEAT_E_LIMIT, "the recorded sizes have too large a factor");
    recipe->reference = high;
    if (p->options.largest != NULL) {
        recipe->reference = *p->options.largest;
        stretch_range(recipe->reference, &recipe->lowest, &recipe->highest);
    }
    return PLEAT_OK;
}

/* A request with a function has a slot, whatever its own trace said; others have none. One that
 * outlives the next iteration has none either: its function explains nothing in the plan. */
static void set_classes(pleat__planning *p)
{
    pleat__sequence *steady = &p->plan->steady;
    for (uint32_t i = 0; i < steady->slot_count; i++) {
        pleat__slot *slot = &steady->slots[i];
        bool has = p->recipe->steady[i] != PLEAT__NO_FUNCTION && slot->free_at != PLEAT__NEVER;
        slot->class = has ? pleat__steady_class(slot) : PLEAT__CLASS_DYNAMIC;
        if (has)
            continue;
        p->report->explained -= p->fit.of[i] != PLEAT__NO_FUNCTION &&
                                pleat__function_varies(&p->fit.functions[p->fit.of[i]]);
        p->recipe->steady[i] = PLEAT__NO_FUNCTION;
    }
}

static bool follows_host(const pleat__planning *p, uint32_t slot, uint32_t function)
{
    uint64_t value;
    const pleat__function *f = &p->recipe->functions[function];
    return pleat__function_varies(f) || (pleat__function_at(f, p->recipe->reference, &value) &&
                                         value == p->plan->first.slots[slot].size);
}

/* The early requests' functions are those of their hosts; of others the size stays. */
static pleat_result set_first(pleat__planning *p)
{
    pleat__recipe *recipe = p->recipe;
    PLEAT_TRY(pleat__first_hosts(&p->model, p->scratch, p->plan, recipe->hosts));
    for (uint32_t i = 0; i < p->plan->first.slot_count; i++) {
        uint32_t host = recipe->hosts[i];
        if (p->plan->first.slots[i].class != PLEAT__CLASS_DYNAMIC && host != PLEAT__NO_HOST &&
            follows_host(p, i, recipe->steady[host]))
            recipe->first[i] = recipe->steady[host];
    }
    return PLEAT_OK;
}

static void set_prologue(pleat__planning *p)
{
    const pleat__recipe *recipe = p->recipe;
    uint32_t i = 0, count = p->plan->steady.slot_count;
    while (i < count && (recipe->steady[i] == PLEAT__NO_FUNCTION ||
                         !pleat__function_varies(&recipe->functions[recipe->steady[i]])))
        i++;
    p->recipe->prologue = i;
}

static pleat_result copy_functions(pleat__planning *p)
{
    uint32_t count = p->fit.function_count;
    pleat__recipe *recipe = p->recipe;
    recipe->functions =
        pleat__arena_alloc(p->plan->arena, (count + 1ull) * sizeof *recipe->functions);
    if (recipe->functions == NULL)
        return pleat__no_recipe(p);
    if (count != 0)
        memcpy(recipe->functions, p->fit.functions, count * sizeof *recipe->functions);
    recipe->function_count = count;
    return PLEAT_OK;
}

/* Takes the functions that give a size over the whole range. */
static pleat_result take_functions(pleat__planning *p)
{
    bool varies = false, holds = false;
    for (uint32_t i = 0; i < p->plan->steady.slot_count; i++) {
        if (p->fit.of[i] == PLEAT__NO_FUNCTION)
            continue;
        const pleat__function *function = &p->recipe->functions[p->fit.of[i]];
        if (pleat__function_holds(function, p->recipe)) {
            p->recipe->steady[i] = p->fit.of[i];
            holds |= pleat__function_varies(function);
        }
        varies |= pleat__function_varies(function);
    }
    return varies && !holds && p->options.largest != NULL
               ? pleat__fail(PLEAT_E_LIMIT, "no size that follows x is one that a request can have")
               : PLEAT_OK;
}

static pleat_result make_recipe(pleat__planning *p)
{
    pleat_plan *plan = p->plan;
    PLEAT_TRY(pleat__recipe_new(plan));
    p->recipe = plan->recipe;
    p->recipe->named = p->options.names != NULL;
    PLEAT_TRY(copy_functions(p));
    PLEAT_TRY(set_range(p));
    PLEAT_TRY(take_functions(p));
    set_classes(p);
    PLEAT_TRY(set_first(p));
    set_prologue(p);
    return PLEAT_OK;
}

/* --- sizes at one x ----------------------------------------------------------------------------*/

static pleat_result size_sequence(pleat__planning *p, bool first, pleat__fraction x)
{
    pleat__sequence *sequence = first ? &p->plan->first : &p->plan->steady;
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        pleat__slot *slot = &sequence->slots[i];
        PLEAT_TRY(pleat__elastic_size(p->plan, first, i, x, &slot->size));
        slot->small = slot->size < PLEAT__SMALL_BYTES;
    }
    return PLEAT_OK;
}

static pleat_result size_plan(pleat__planning *p, pleat__fraction x)
{
    PLEAT_TRY(size_sequence(p, true, x));
    return size_sequence(p, false, x);
}

/* What a dynamic request of a profile would take at the reference x, as far as one can tell. */
static uint64_t scaled(const pleat__planning *p, uint32_t at, uint64_t size)
{
    uint64_t out;
    if (size == PLEAT__ABSENT)
        return 0;
    return pleat__x_scale(size, p->fit.x[at], p->recipe->reference, &out) ? out : size;
}

static pleat_result make_lanes(pleat__planning *p)
{
    pleat__sequence *steady = &p->plan->steady;
    uint32_t dynamic = pleat__dynamic_requests(p->plan), rank = 0;
    if (dynamic == 0)
        return PLEAT_OK;
    uint64_t *sizes =
        pleat__arena_alloc(p->scratch, (uint64_t)p->profile_count * dynamic * sizeof *sizes);
    if (sizes == NULL)
        return pleat__no_recipe(p);
    for (uint32_t i = 0; i < steady->slot_count; i++) {
        if (steady->slots[i].class != PLEAT__CLASS_DYNAMIC)
            continue;
        uint64_t most = 0;
        for (uint32_t k = 0; k < p->profile_count; k++) {
            uint64_t size = scaled(p, k, p->sizes[(uint64_t)k * steady->slot_count + i]);
            sizes[(uint64_t)k * dynamic + rank] = size;
            most = size > most ? size : most;
        }
        steady->slots[i].size = most;
        rank++;
    }
    pleat__item *items = NULL;
    pleat_result result = pleat__lanes_make(p->plan, sizes, p->profile_count, p->scratch, &items);
    pleat__arena_free(p->scratch, items);
    pleat__arena_free(p->scratch, sizes);
    return result;
}

static pleat_result job_at(pleat__planning *p, pleat__fraction x, pleat__elastic_job *job)
{
    PLEAT_TRY(size_plan(p, x));
    return pleat__elastic_job_make(p->plan, p->recipe->prologue, p->recipe->view_page, p->scratch,
                                   job);
}

/* Lanes follow the samples, as in an instance. One that would be larger than a request may be stays
 * as it is: there is no instance then. */
static void scale_lanes(const pleat__planning *p, pleat__fraction x, pleat__elastic_job *job)
{
    for (uint32_t i = job->lanes_from; i < job->problem.count; i++) {
        uint64_t bytes;
        if (pleat__x_scale(job->items[i].size, p->recipe->reference, x, &bytes))
            job->items[i].size = bytes;
    }
}

/* Views begin above what the largest x needs. */
static pleat_result set_view_page(pleat__planning *p)
{
    pleat__elastic_job job;
    uint32_t chunks;
    PLEAT_TRY(job_at(p, p->recipe->highest, &job));
    scale_lanes(p, p->recipe->highest, &job);
    pleat_result result =
        pleat__floor_chunks(&job.problem, p->plan->chunk_bytes, p->scratch, &chunks);
    p->recipe->view_page = chunks + chunks / 8ull + 64;
    pleat__elastic_job_free(&job);
    return result;
}

/* --- the plan ----------------------------------------------------------------------------------*/

static pleat_result fill_report(pleat__planning *p, const pleat__elastic_job *job,
                                const pleat__layout *layout)
{
    pleat__plan_report *report = &p->report->plan;
    PLEAT_TRY(pleat__max_live(&job->problem, p->scratch, &report->placed_max_live));
    report->whole_max_live = p->plan->max_live_bytes;
    report->floor_chunks = layout->floor_chunks;
    report->folded = layout->folded;
    report->views = layout->views;
    report->profiles = p->profile_count - 1;
    report->scratch_bytes =
        pleat__arena_bytes_of(p->scratch).peak + pleat__arena_bytes_of(p->plan->arena).peak;
    return PLEAT_OK;
}

static pleat_result lay_out(pleat__planning *p)
{
    pleat__elastic_job job;
    pleat__layout layout = {0};
    pleat__plan_step(p->watch, "lay out");
    PLEAT_TRY(job_at(p, p->recipe->reference, &job));
    pleat_result result = pleat__elastic_lay_out(&job, &layout);
    if (result == PLEAT_OK)
        result = pleat__elastic_fill(&job, &layout, p->recipe->hosts, p->plan);
    if (result == PLEAT_OK)
        result = fill_report(p, &job, &layout);
    pleat__layout_free(&layout, p->scratch);
    pleat__elastic_job_free(&job);
    return result;
}

static pleat_result note_options(pleat__planning *p)
{
    char text[160];
    int length =
        snprintf(text, sizeof text, "elastic chunk=%llu", (unsigned long long)p->plan->chunk_bytes);
    p->plan->options = pleat__arena_alloc(p->plan->arena, (size_t)length + 1);
    if (p->plan->options == NULL)
        return pleat__no_recipe(p);
    memcpy(p->plan->options, text, (size_t)length + 1);
    return PLEAT_OK;
}

static pleat_result read_options(pleat__planning *p)
{
    PLEAT_TRY(pleat__plan_options_read(p->options.plan, &p->plan_options));
    p->plan->chunk_bytes = p->plan_options.chunk_bytes;
    if (p->trace_count == 0 || p->trace_count > PLEAT__TRACES_MOST)
        return pleat__fail(PLEAT_E_INVALID, "%u traces: 1 to %u are possible", p->trace_count,
                           PLEAT__TRACES_MOST);
    return PLEAT_OK;
}

static pleat_result fill_plan(pleat__planning *p)
{
    pleat_plan *plan = p->plan;
    uint32_t device;
    PLEAT_TRY(read_options(p));
    PLEAT_TRY(note_options(p));
    pleat__plan_step(p->watch, "model");
    PLEAT_TRY(pleat__choose_device(p->traces[0], p->plan_options.device, &device));
    PLEAT_TRY(pleat__profiles_read(p, device));
    pleat__plan_step(p->watch, "fit");
    PLEAT_TRY(pleat__profiles_compare(p));
    PLEAT_TRY(fit(p));
    const pleat_trace *trace = p->traces[p->reference];
    PLEAT_TRY(pleat__model_make(trace, device, p->scratch, false, plan, &p->model));
    plan->fingerprint = pleat_trace_fingerprint(trace);
    plan->device_bytes = pleat_trace_device_bytes(trace);
    plan->device = device;
    plan->requests = p->model.requests.count;
    plan->steady_request = p->model.iteration.steady.item;
    p->report->reference = p->reference;
    pleat__plan_step(p->watch, "recipe");
    PLEAT_TRY(make_recipe(p));
    PLEAT_TRY(make_lanes(p));
    PLEAT_TRY(pleat__elastic_place_prologue(plan, p->scratch));
    PLEAT_TRY(set_view_page(p));
    PLEAT_TRY(lay_out(p));
    pleat__plan_step(p->watch, "verify");
    return pleat_plan_verify(plan, trace);
}

pleat_result pleat__elastic_plan_make(const pleat_trace *const *traces, uint32_t count,
                                      const pleat__elastic_options *options,
                                      const pleat__plan_watch *watch, pleat__elastic_report *report,
                                      pleat_plan **out)
{
    pleat__elastic_report own;
    pleat__planning p = {.traces = traces,
                         .trace_count = count,
                         .watch = watch,
                         .report = report != NULL ? report : &own};
    *p.report = (pleat__elastic_report){0};
    if (options != NULL)
        p.options = *options;
    PLEAT_TRY(pleat__plan_new(&p.plan));
    pleat_result result = pleat__arena_create(&p.scratch);
    if (result == PLEAT_OK)
        result = fill_plan(&p);
    pleat__plan_step(p.watch, NULL);
    pleat__arena_destroy(p.scratch);
    if (result != PLEAT_OK) {
        pleat_plan_free(p.plan);
        return result;
    }
    *out = p.plan;
    return PLEAT_OK;
}
