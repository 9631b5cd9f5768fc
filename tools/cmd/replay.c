/*
 * replay.c: `pleat replay`: a trace through one policy on real memory.
 */
#include <tools/analysis/plan_trial.h>
#include <tools/cli.h>
#include <tools/json.h>
#include <tools/options.h>
#include <tools/replay/devices.h>
#include <tools/replay/replay.h>
#include <tools/words.h>

#include <internal/error.h>
#include <plan/base/plan.h>
#include <runtime/base/policy.h>

#include <string.h>

typedef struct options {
    replay_options replay;
    const char *trace;
    const char *plan;
    const char *dump;
    const char *device;
    bool json;
} options;

static void row_number(cli_table *table, const char *name, double value, const char *unit)
{
    char number[32], text[48];
    snprintf(text, sizeof text, "%s%s", cli_format_number(value, number, sizeof number), unit);
    cli_table_text(table, name, text);
}

static void row_percent(cli_table *table, const char *name, double share)
{
    char text[32];
    snprintf(text, sizeof text, "%.2f %%", 100 * share);
    cli_table_text(table, name, text);
}

/* Nothing where there is nothing to have a share of. */
static void row_share(cli_table *table, const char *name, uint64_t part, uint64_t whole)
{
    if (whole != 0)
        row_percent(table, name, (double)part / (double)whole);
}

static void row_routes(cli_table *table, const pleat_stats *stats)
{
    cli_table_count(table, "requests", stats->requests);
    cli_table_count(table, "  in their planned slot", stats->planned);
    cli_table_count(table, "  in a lane", stats->lane);
    cli_table_count(table, "  stitched", stats->stitched);
    cli_table_count(table, "  cached", stats->cached);
    cli_table_count(table, "not as planned", stats->diverged);
}

static void print_table(const replay_result *r)
{
    const char *headings[2] = {r->policy, r->backend};
    const replay_mean *mean = &r->an_iteration;
    cli_table table;
    if (!cli_table_begin(&table, 2, headings))
        return;
    cli_table_count(&table, "iterations", r->iterations);
    cli_table_size(&table, "peak live", r->peak_live_bytes);
    cli_table_size(&table, "peak physical", r->peak_physical_bytes);
    row_percent(&table, "efficiency", r->efficiency);
    if (!r->oom) {
        cli_table_size(&table, "steady peak physical", r->steady_peak_physical_bytes);
        row_percent(&table, "steady efficiency", r->steady_efficiency);
    }
    cli_table_size(&table, "peak virtual", r->peak_virtual_bytes);
    row_routes(&table, &r->stats);
    row_share(&table, "steady bytes in slots", r->steady_slot_bytes, r->steady_bytes);
    row_share(&table, "  of the others in lanes", r->steady_lane_bytes,
              r->steady_bytes - r->steady_slot_bytes);
    cli_table_count(&table, "driver calls", r->stats.driver_calls);
    if (!r->oom)
        row_number(&table, "driver calls a steady iteration",
                   mean->driver_calls + mean->mapper_calls, "");
    if (mean->mapper_calls > 0)
        row_number(&table, "  of them by Pleat's own threads", mean->mapper_calls, "");
    if (r->late_iterations > 0)
        row_number(&table, "  from the 31st iteration on",
                   (double)r->late_driver_calls / r->late_iterations, "");
    row_number(&table, "median allocation", r->timed.alloc_ns, " ns");
    row_number(&table, "median free", r->timed.free_ns, " ns");
    if (r->canary) {
        cli_table_count(&table, "canary errors", r->canary_errors);
        cli_table_size(&table, "canary visits a page every", r->canary_stride_bytes);
    }
    if (r->timed.repeats.count > 0) {
        cli_table_count(&table, "repeats", r->timed.repeats.count);
        cli_table_size(&table, "  physical after ten", r->timed.repeats.early.physical_bytes);
        cli_table_size(&table, "  physical at the end", r->timed.repeats.late.physical_bytes);
        cli_table_size(&table, "  metadata after ten", r->timed.repeats.early.metadata_bytes);
        cli_table_size(&table, "  metadata at the end", r->timed.repeats.late.metadata_bytes);
        cli_table_text(&table, "  unchanged", r->timed.repeats.unchanged ? "yes" : "no");
    }
    cli_table_end(&table, stdout);
}

static int finish(const options *o, const replay_result *r)
{
    if (o->json) {
        json_writer json;
        json_begin(&json, stdout);
        json_object(&json, NULL);
        replay_json(&json, r);
        json_end_object(&json);
        json_finish(&json);
    } else {
        print_table(r);
        words_explain(stdout, r->oom ? "slot,lane,stitched" : "steady,slot,lane,stitched");
    }
    if (r->canary_errors > 0)
        fprintf(stderr, "pleat replay: the canary found damage: %s\n", r->canary_first_error);
    if (r->oom)
        fprintf(stderr, "pleat replay: %s\n", r->oom_text);
    if (r->oom)
        return CLI_OUT_OF_MEMORY;
    bool grew = r->timed.repeats.count > 0 && !r->timed.repeats.unchanged;
    return r->canary_errors > 0 || grew ? CLI_NO : CLI_DONE;
}

static pleat_result run(const options *o, const replay_options *asked, const pleat_trace *trace,
                        replay_result *r)
{
    pleat_result result = replay_run(trace, asked, r);
    return result == PLEAT_E_INPUT ? cli_in_files(result, &o->trace, 1) : result;
}

/* And writes what the run dumps, where it went well. */
static pleat_result run_and_dump(const options *o, const replay_options *asked,
                                 const pleat_trace *trace, replay_result *r)
{
    char path[DEVICE_PATH_MOST];
    replay_options dumping = *asked;
    cli_text text;
    if (o->dump == NULL)
        return run(o, asked, trace, r);
    device_path(o->dump, trace, path);
    size_t length = strlen(path);
    bool json = length >= 5 && strcmp(path + length - 5, ".json") == 0;
    PLEAT_TRY(cli_text_begin(&text, "the dump"));
    dumping.dump = text.out;
    dumping.dump_format = json ? PLEAT_DUMP_JSON : PLEAT_DUMP_TEXT;
    return cli_text_write(&text, path, run(o, &dumping, trace, r));
}

static int replay(void *self, pleat_trace *trace, int device)
{
    const options *o = self;
    replay_options asked = o->replay;
    pleat_plan *plan = NULL;
    replay_result r;
    (void)device;
    pleat_result result = replay_plan_open(trace, asked.policy, o->plan, &plan);
    asked.plan = plan;
    if (plan != NULL && plan->answers_only && !o->json)
        puts("The plan " PLAN_IS_NOT_FOLLOWED ".");
    if (result == PLEAT_OK)
        result = run_and_dump(o, &asked, trace, &r);
    int code = result == PLEAT_OK ? finish(o, &r) : cli_failed("replay", result);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
    return code;
}

int cli_replay(int argc, char **argv)
{
    options o = {.replay = {.policy = "pleat"}, .plan = "auto"};
    const char *backend = "host";
    const cli_option table[] = {
        OPTION_TEXT('p', "policy", &o.replay.policy, "NAME",
                    "pleat, native, expandable, gmlake or stweaver (pleat)"),
        OPTION_TEXT('P', "plan", &o.plan, "PLAN|auto",
                    "a plan from 'pleat plan', or auto: found while the job runs (auto)"),
        OPTION_BACKEND(&backend),
        OPTION_BUDGET(&o.replay.budget_bytes),
        OPTION_MEMORY(&o.replay.device_bytes),
        OPTION_DEVICE(&o.device),
        OPTION_FLAG('c', "canary", &o.replay.canary,
                    "prove that no two live tensors share memory: each is filled with a\n"
                    "pattern that is verified when it is freed"),
        OPTION_COUNT('r', "repeat", &o.replay.repeat, "N", REPLAY_REPEATS_EARLY + 1, 1000000,
                     "then the last whole iteration N times: nothing may grow after ten"),
        OPTION_FLAG('n', "no-marks", &o.replay.no_marks,
                    "do not tell the allocator where iterations and phases begin: it has to\nfind "
                    "out; figures count the recording's iterations all the same"),
        OPTION_FILE(
            '\0', "dump", &o.dump, "FILE",
            "the runtime at the end, block by block: JSON where FILE ends in\n.json, else text"),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "replay",
        .synopsis = "TRACE [options]",
        .text = "Runs a recorded job's allocations through an allocator on real memory. TRACE is a "
                "trace or\n"
                "whatever 'pleat import' reads.\n",
        .tail = "Exit status: 0; 1 when the canary found an error, the plan does not hold or "
                "something grew from\n"
                "repeat to repeat; 2 bad use; 3 bad input; 4 out of memory.\n",
        .options = table,
        .operand = "one trace",
        .is_input = true,
        .value = &o.trace,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    if (pleat__policy_find(o.replay.policy) == NULL)
        return replay_refuse_policy("replay", o.replay.policy);
    if (strcmp(o.plan, "auto") != 0 && !replay_follows_plans(o.replay.policy))
        return cli_bad_use("replay", "the policy '%s' follows no plan: leave --plan out",
                           o.replay.policy);
    if (devices_overwrite("replay", o.trace, o.dump) != CLI_DONE ||
        (strcmp(o.plan, "auto") != 0 && devices_overwrite("replay", o.plan, o.dump) != CLI_DONE))
        return CLI_BAD_USE;
    o.replay.cuda = strcmp(backend, "cuda") == 0;
    return devices_run(&(device_run){.command = "replay",
                                     .path = o.trace,
                                     .asked = o.device,
                                     .json = o.json,
                                     .outputs = {o.dump},
                                     .run = replay,
                                     .options = &o});
}
