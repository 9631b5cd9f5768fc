/*
 * planner.c: from a trace to a plan: model, contiguous placement, fold, the early requests.
 */
#include <plan/planner.h>

#include <internal/error.h>
#include <plan/base/options.h>
#include <plan/fold/handover.h>
#include <plan/fold/handover_table.h>
#include <plan/fold/prologue.h>
#include <plan/lanes/lanes.h>
#include <plan/model/model.h>
#include <plan/sizes/fit.h>
#include <plan/sizes/planner.h>
#include <plan/stweaver/reuse.h>
#include <plan/stweaver/windows.h>
#include <stdio.h>
#include <string.h>

struct planning {
    const pleat_trace *trace;
    pleat_plan_options options; /* none is left out */
    uint32_t algorithms;
    const pleat__plan_watch *watch;
    pleat__plan_report *report;
    pleat__arena *scratch;
    pleat_plan *plan;
    pleat__model model;
    pleat__layout layout;
    pleat__range *lasts; /* of the windows of a plan for the policy stweaver */
};

static pleat_result read_options(struct planning *planning, const pleat_plan_options *options)
{
    PLEAT_TRY(pleat__plan_options_read(options, &planning->options));
    if (!pleat__algorithm_find(planning->options.algorithm, &planning->algorithms))
        return pleat__fail(PLEAT_E_INVALID,
                           "no algorithm '%s': auto, size, lifetime, sweep or stweaver",
                           planning->options.algorithm);
    return PLEAT_OK;
}

static pleat_result note_options(struct planning *planning)
{
    const pleat_plan_options *o = &planning->options;
    char text[256];
    int length = snprintf(text, sizeof text, "algorithm=%s chunk=%llu fold=%s", o->algorithm,
                          (unsigned long long)o->chunk_bytes, o->no_fold ? "no" : "yes");
    planning->plan->options = pleat__arena_alloc(planning->plan->arena, (size_t)length + 1);
    if (planning->plan->options == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a plan");
    memcpy(planning->plan->options, text, (size_t)length + 1);
    return PLEAT_OK;
}

/* A contiguous plan by that algorithm is one for that policy. */
static bool is_for_stweaver(const pleat_plan_options *options)
{
    return options->no_fold && strcmp(options->algorithm, "stweaver") == 0;
}

static pleat_result place(struct planning *planning, uint64_t *places)
{
    pleat__plan_step(planning->watch, "place");
    pleat__place_options options = {.chunk_bytes = planning->options.chunk_bytes,
                                    .algorithms = planning->algorithms};
    pleat__place_report report;
    PLEAT_TRY(
        pleat__place_make(&planning->model.problem, &options, planning->scratch, places, &report));
    if (planning->report != NULL)
        planning->report->place = report;
    return PLEAT_OK;
}

static pleat_result fold(struct planning *planning, const uint64_t *places)
{
    pleat__plan_step(planning->watch, "fold");
    pleat__fold_options options = {.chunk_bytes = planning->options.chunk_bytes,
                                   .contiguous = planning->options.no_fold};
    return pleat__fold_make(&planning->model.problem, places, &options, planning->scratch,
                            &planning->layout);
}

static void keep_places(struct planning *planning)
{
    const pleat__model *model = &planning->model;
    for (uint32_t i = 0; i < model->item_count; i++) {
        pleat__sequence *sequence =
            i < model->persistents ? &planning->plan->first : &planning->plan->steady;
        sequence->slots[model->slots[i]].place = planning->layout.places[i];
    }
    for (uint32_t l = 0; l < planning->plan->lane_count; l++)
        planning->plan->lanes[l].place = planning->layout.places[model->item_count + l];
}

/* What an event's request is in the steady iteration. */
static uint8_t class_at(const struct planning *planning, uint32_t item)
{
    pleat__stretch steady = planning->model.iteration.steady;
    if (item >= steady.item && item < steady.item + steady.items)
        return planning->plan->steady.slots[item - steady.item].class;
    return item < planning->plan->first.slot_count ? planning->plan->first.slots[item].class
                                                   : PLEAT__CLASS_CROSSING;
}

/* The most that is live in the steady iteration. */
static void measure_live(const struct planning *planning, pleat__plan_report *report)
{
    const pleat__requests *requests = &planning->model.requests;
    pleat__stretch steady = planning->model.iteration.steady;
    uint64_t live = 0, dynamic = 0;
    for (uint32_t at = 0; at < steady.end_at; at++) {
        uint32_t item = requests->events[at] / 2;
        uint64_t size = pleat__rounded(requests->items[item].size);
        uint64_t step = requests->events[at] % 2 == 1 ? -size : size;
        live += step;
        dynamic += class_at(planning, item) == PLEAT__CLASS_DYNAMIC ? step : 0;
        if (at < steady.begin_at)
            continue;
        if (live > report->whole_max_live)
            report->whole_max_live = live;
        if (dynamic > report->dynamic_max_live)
            report->dynamic_max_live = dynamic;
    }
}

static pleat_result fill_report(const struct planning *planning)
{
    pleat__plan_report *report = planning->report;
    if (report == NULL)
        return PLEAT_OK;
    PLEAT_TRY(
        pleat__max_live(&planning->model.problem, planning->scratch, &report->placed_max_live));
    measure_live(planning, report);
    PLEAT_TRY(pleat__handed_waits(planning->plan, planning->scratch, &report->handed_waits));
    report->floor_chunks = planning->layout.floor_chunks;
    report->folded = planning->layout.folded;
    report->views = planning->layout.views;
    report->profiles = planning->model.iteration.profile_count;
    report->period = planning->model.iteration.period;
    report->scratch_bytes = pleat__arena_bytes_of(planning->scratch).peak +
                            pleat__arena_bytes_of(planning->plan->arena).peak;
    return PLEAT_OK;
}

static pleat_result lay_out(struct planning *planning)
{
    pleat_plan *plan = planning->plan;
    uint64_t *places =
        pleat__arena_alloc(planning->scratch, planning->model.problem.count * sizeof *places);
    if (places == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u places",
                           planning->model.problem.count);
    pleat_result result = place(planning, places);
    if (result == PLEAT_OK)
        result = fold(planning, places);
    pleat__arena_free(planning->scratch, places);
    PLEAT_TRY(result);
    uint8_t *handed = NULL;
    if (!planning->options.no_fold)
        PLEAT_TRY(pleat__handover_make(&planning->model.problem, plan->chunk_bytes,
                                       planning->model.item_count, planning->scratch,
                                       &planning->layout, &handed));
    keep_places(planning);
    pleat__plan_step(planning->watch, "first");
    PLEAT_TRY(
        pleat__first_make(&planning->model, &planning->layout, handed, planning->scratch, plan));
    pleat__plan_step(planning->watch, "cut");
    PLEAT_TRY(pleat__layout_cut(&planning->layout, plan));
    if (handed != NULL)
        PLEAT_TRY(pleat__handed_keep(&planning->layout, handed, plan));
    return is_for_stweaver(&planning->options)
               ? pleat__reuse_make(plan, planning->lasts, planning->scratch)
               : PLEAT_OK;
}

static pleat_result fill_plan(struct planning *planning)
{
    pleat_plan *plan = planning->plan;
    PLEAT_TRY(
        pleat__choose_device(planning->trace, planning->options.device, &planning->options.device));
    plan->fingerprint = pleat_trace_fingerprint(planning->trace);
    plan->chunk_bytes = planning->options.chunk_bytes;
    PLEAT_TRY(note_options(planning));
    pleat__plan_step(planning->watch, "model");
    PLEAT_TRY(pleat__model_make(planning->trace, planning->options.device, planning->scratch,
                                !is_for_stweaver(&planning->options), plan, &planning->model));
    PLEAT_TRY(pleat__model_max_live(&planning->model, plan, &plan->max_live_bytes));
    pleat__plan_step(planning->watch, "lanes");
    PLEAT_TRY(pleat__model_add_lanes(&planning->model, plan));
    if (is_for_stweaver(&planning->options))
        PLEAT_TRY(pleat__windows_make(&planning->model, planning->scratch, plan, &planning->lasts));
    PLEAT_TRY(lay_out(planning));
    pleat__plan_note_device(plan, pleat_trace_device_bytes(planning->trace));
    plan->device = planning->options.device;
    plan->requests = planning->model.requests.count;
    plan->steady_request = planning->model.iteration.steady.item;
    PLEAT_TRY(fill_report(planning));
    pleat__plan_step(planning->watch, "verify");
    return pleat_plan_verify(plan, planning->trace);
}

static pleat_result run(struct planning *planning, const pleat_plan_options *options,
                        pleat_plan **out)
{
    PLEAT_TRY(read_options(planning, options));
    PLEAT_TRY(pleat__plan_new(&planning->plan));
    pleat_result result = pleat__arena_create(&planning->scratch);
    if (result == PLEAT_OK)
        result = fill_plan(planning);
    pleat__plan_step(planning->watch, NULL);
    pleat__arena_destroy(planning->scratch);
    if (result != PLEAT_OK) {
        pleat_plan_free(planning->plan);
        return result;
    }
    *out = planning->plan;
    return PLEAT_OK;
}

/* Whether the way it was to be planned leaves a choice. */
static bool may_be_elastic(const struct planning *planning)
{
    const pleat_plan_options *options = &planning->options;
    const pleat_plan *plan = planning->plan;
    return planning->algorithms == 0 && !options->no_fold && !options->no_recipe &&
           (uint64_t)pleat__dynamic_requests(plan) * PLEAT__VARYING_SHARE > plan->steady.slot_count;
}

/* Where the sizes that differ follow a number, slots are better than lanes: *plan is replaced. */
static pleat_result try_elastic(const struct planning *planning, const pleat_plan_options *options,
                                pleat_plan **plan)
{
    const pleat__elastic_options elastic = {.plan = options};
    pleat__elastic_report report;
    pleat_plan *other;
    pleat_result result =
        pleat__elastic_plan_make(&planning->trace, 1, &elastic, planning->watch, &report, &other);
    if (result == PLEAT_E_NO_MEMORY)
        return result;
    if (result != PLEAT_OK)
        return PLEAT_OK;
    /* Its max-live is that of the largest x, as is the other's. */
    bool better = 2ull * pleat__iteration_dynamic(other) < pleat__iteration_dynamic(*plan) &&
                  other->physical_bytes <= (*plan)->physical_bytes;
    if (better && planning->report != NULL)
        *planning->report = report.plan;
    pleat_plan_free(better ? *plan : other);
    *plan = better ? other : *plan;
    return PLEAT_OK;
}

pleat_result pleat__plan_make(const pleat_trace *trace, const pleat_plan_options *options,
                              const pleat__plan_watch *watch, pleat__plan_report *report,
                              pleat_plan **out)
{
    struct planning planning = {.trace = trace, .watch = watch, .report = report};
    if (report != NULL)
        *report = (pleat__plan_report){0};
    PLEAT_TRY(run(&planning, options, out));
    if (!may_be_elastic(&planning))
        return PLEAT_OK;
    pleat_result result = try_elastic(&planning, options, out);
    if (result != PLEAT_OK)
        pleat_plan_free(*out);
    return result;
}

pleat_result pleat_plan_make(const pleat_trace *trace, const pleat_plan_options *options,
                             pleat_plan **out)
{
    return pleat__plan_make(trace, options, NULL, NULL, out);
}
