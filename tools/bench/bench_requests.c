/*
 * bench_requests.c: `pleat bench requests TRACE`: what a recorded job's requests take on the thread
 * that asks, iteration by iteration, in three runs one after the other: as Pleat learns the job, as
 * it follows a plan, and under PyTorch's native allocator. A job that its processor paces is as
 * much slower as the sums differ.
 */
#include <tools/bench/bench.h>
#include <tools/replay/devices.h>

#include <tools/json.h>
#include <tools/options.h>
#include <tools/replay/replay.h>

#include <internal/error.h>
#include <plan/trace/import.h>

#include <stdlib.h>

typedef struct options {
    const char *trace;
    const char *plan;
    uint32_t device; /* above UINT8_MAX: the only one */
    bool json;
} options;

typedef enum way { LEARNING, PLANNED, NATIVE, WAYS } way;

static const char *const names[WAYS] = {"learning", "planned", "native"};

static void print_json(const replay_result *results)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    for (way w = 0; w < WAYS; w++) {
        json_array(&json, names[w]);
        for (uint32_t i = 0; i < results[w].first_count; i++) {
            json_object(&json, NULL);
            replay_times_json(&json, &results[w].first_times[i]);
            json_end_object(&json);
        }
        json_end_array(&json);
    }
    json_end_object(&json);
    json_finish(&json);
}

static void print_times(cli_table *table, int column, const replay_times *times)
{
    cli_table_cell(table, column, "%.2f", (times->ns - times->verb_ns) * 1e-6);
    cli_table_cell(table, column + 1, "%.2f", times->p99_ns * 1e-3);
    cli_table_cell(table, column + 2, "%.0f", times->most_ns * 1e-3);
}

static void print_table(const replay_result *results)
{
    static const char *const headings[] = {"iteration", "calls",      "learning ms", "p99 us",
                                           "most us",   "planned ms", "p99 us",      "most us",
                                           "native ms", "p99 us",     "most us"};
    cli_table table;
    if (results[NATIVE].first_count == 0) {
        puts("There is no iteration to time: the recording has one, or none that repeats (a table "
             "of lifetimes knows none). Record two or more.");
        return;
    }
    if (!cli_table_begin(&table, 11, headings))
        return;
    for (uint32_t i = 0; i < results[NATIVE].first_count && cli_table_row(&table); i++) {
        cli_table_cell(&table, 0, "%u", i + 1);
        cli_table_cell(&table, 1, "%llu", (unsigned long long)results[NATIVE].first_times[i].calls);
        for (way w = 0; w < WAYS; w++)
            if (i < results[w].first_count)
                print_times(&table, 2 + 3 * (int)w, &results[w].first_times[i]);
    }
    cli_table_end(&table, stdout);
}

/* Plans as `pleat plan` does, where no plan is given. */
static pleat_result find_plan(const options *o, const pleat_trace *trace, pleat_plan **plan)
{
    const pleat_plan_options make = {.size = sizeof make, .seconds = 0};
    return o->plan != NULL ? replay_plan_open(trace, "pleat", o->plan, plan)
                           : pleat_plan_make(trace, &make, plan);
}

static pleat_result measure(const options *o, const pleat_trace *trace, replay_result *results)
{
    pleat_plan *plan = NULL;
    pleat_result result = find_plan(o, trace, &plan);
    for (way w = 0; w < WAYS && result == PLEAT_OK; w++) {
        const replay_options replay = {.policy = w == NATIVE ? "native" : "pleat",
                                       .plan = w == PLANNED ? plan : NULL};
        result = replay_run(trace, &replay, &results[w]);
    }
    pleat_plan_free(plan);
    return result;
}

static int bench(const options *o)
{
    pleat_trace *trace;
    pleat_result result = device_import(
        o->trace, o->device <= UINT8_MAX ? (int)o->device : PLEAT__ANY_DEVICE, NULL, &trace);
    if (result != PLEAT_OK)
        return cli_failed("bench requests", result);
    replay_result *results = calloc(WAYS, sizeof *results);
    result = results != NULL ? measure(o, trace, results)
                             : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the figures");
    pleat_trace_free(trace);
    int code = result == PLEAT_OK ? CLI_DONE : cli_failed("bench requests", result);
    if (result == PLEAT_OK && o->json)
        print_json(results);
    else if (result == PLEAT_OK)
        print_table(results);
    for (way w = 0; w < WAYS && result == PLEAT_OK; w++)
        if (results[w].oom) {
            fprintf(stderr, "pleat bench requests: %s: %s\n", names[w], results[w].oom_text);
            code = CLI_OUT_OF_MEMORY;
        }
    free(results);
    return code;
}

int bench_requests(int argc, char **argv)
{
    options o = {.device = UINT32_MAX};
    const cli_option table[] = {
        OPTION_TEXT('P', "plan", &o.plan, "PLAN", "follow this one, not one made here"),
        OPTION_ONE_DEVICE(&o.device),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "bench requests",
        .synopsis = "TRACE [options]",
        .text = "Times a recorded job's allocations and frees on the host backend, iteration by "
                "iteration (32 at\n"
                "most): while Pleat learns the job, with a plan, and under the native allocator. "
                "'ms' is all of an\n"
                "iteration's calls together without what the backend's memory verbs took, 'p99' "
                "what one call in\n"
                "a hundred exceeds, 'most' the longest one. TRACE is a trace or whatever 'pleat "
                "import' reads.\n",
        .options = table,
        .operand = "one trace",
        .value = &o.trace,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    return code != CLI_GO_ON ? code : bench(&o);
}
