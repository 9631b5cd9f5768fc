/*
 * run_figures.c: see run_figures.h.
 */
#include <tools/analysis/run_figures.h>
#include <tools/analysis/runview.h>

#include <math.h>
#include <string.h>

static run_side unknown(void)
{
#define RUN_UNKNOWN(key, unit, name, definition) .key = NAN,
    return (run_side){RUN_FIGURES(RUN_UNKNOWN)};
#undef RUN_UNKNOWN
}

static double part(double of, double whole)
{
    return whole > 0 ? of / whole : NAN;
}

static void expect(run_side *side, const pleat_plan_summary *plan)
{
    side->live_bytes = (double)plan->max_live_bytes;
    side->physical_bytes = (double)plan->physical_bytes;
    side->virtual_bytes = (double)plan->virtual_bytes;
    side->efficiency = part(side->live_bytes, side->physical_bytes);
    side->iteration_requests = (double)plan->iteration_requests;
    side->planned_share = 1;
    side->iteration_driver_calls = 0;
}

static run_side planned_of(const runlog *log, const footprint *job)
{
    run_side side = unknown();
    const pleat__log_numbers *n = &log->numbers;
    if (n->plan_requests != 0) {
        const pleat_plan_summary given = {.iteration_requests = n->plan_requests,
                                          .max_live_bytes = n->plan_max_live_bytes,
                                          .physical_bytes = n->plan_physical_bytes,
                                          .virtual_bytes = n->plan_virtual_bytes};
        expect(&side, &given);
    } else if (job != NULL && job->plan != NULL) {
        const pleat_plan_summary made = pleat_plan_summary_of(job->plan);
        expect(&side, &made);
    }
    return side;
}

/* The most of what some records in a row say. */
static void take_highs(run_side *side, const pleat__log_record *records, size_t count)
{
    uint64_t live = 0, physical = 0, mapped = 0;
    for (size_t i = 0; i < count; i++) {
        live = records[i].high_live_bytes > live ? records[i].high_live_bytes : live;
        physical =
            records[i].high_physical_bytes > physical ? records[i].high_physical_bytes : physical;
        mapped = records[i].stats.virtual_bytes > mapped ? records[i].stats.virtual_bytes : mapped;
    }
    if (count == 0)
        return;
    side->live_bytes = (double)live;
    side->physical_bytes = (double)physical;
    side->virtual_bytes = (double)mapped;
    side->efficiency = part(side->live_bytes, side->physical_bytes);
}

static void take_rates(run_side *side, const pleat__log_record *begin, const pleat__log_record *end)
{
    const runlog_rates rates = runlog_between(begin, end);
    side->iteration_requests = rates.requests;
    side->planned_share = rates.planned_share;
    side->iteration_driver_calls = rates.driver_calls;
    side->iteration_seconds = rates.seconds;
}

run_figures run_figures_of(const runlog *log, const footprint *job)
{
    run_figures f = {.planned = planned_of(log, job), .last = unknown(), .whole = unknown()};
    const runlog_series *intervals = &log->series[PLEAT__LOG_INTERVALS];
    const pleat__log_record nothing = {0}, *begin, *end;
    take_highs(&f.whole, intervals->records, intervals->count);
    if (intervals->count > 0)
        take_rates(&f.whole, &nothing, &intervals->records[intervals->count - 1]);
    if (!runlog_last_iterations(log, &begin, &end))
        return f;
    take_highs(&f.last, begin + 1, (size_t)(end - begin));
    take_rates(&f.last, begin, end);
    return f;
}

/* Bytes are whole numbers. */
static void figure_json(json_writer *json, const char *key, bool bytes, double value)
{
    if (bytes && value >= 0)
        json_uint(json, key, (uint64_t)value);
    else
        json_double(json, key, value);
}

static void side_json(json_writer *json, const char *name, const run_side *side)
{
    json_object(json, name);
#define RUN_JSON(key, unit, text, definition)                                                      \
    figure_json(json, #key, strcmp(#unit, "BYTES") == 0, side->key);
    RUN_FIGURES(RUN_JSON)
#undef RUN_JSON
    json_end_object(json);
}

void run_json(json_writer *json, const char *path, const runlog *log, const run_figures *figures)
{
    const pleat__log_record *last = runlog_last(log, PLEAT__LOG_INTERVALS);
    json_object(json, "run");
    runview_json_log(json, path, log);
    json_double(json, "seconds", last != NULL ? (double)last->to_ns * 1e-9 : 0);
    json_uint(json, "iterations", last != NULL ? last->iterations : 0);
    json_uint(json, "out_of_memory", last != NULL ? last->stats.out_of_memory : 0);
    json_uint(json, "records_lost", (last != NULL ? last->lost : 0) + log->torn);
#define RUN_SIDE_JSON(side, heading) side_json(json, #side, &figures->side);
    RUN_SIDES(RUN_SIDE_JSON)
#undef RUN_SIDE_JSON
    json_end_object(json);
}
