/*
 * compare.c: `pleat compare`: one job under several policies, side by side, and what that would
 * change for it.
 */
#include "../cli.h"
#include "../json.h"
#include "../options.h"
#include "../replay.h"

#include <plan/import.h>

#include <string.h>

#define POLICY_MOST 8

typedef struct options {
    replay_options replay;
    const char *trace;
    const char *plan;
    const char *policies[POLICY_MOST];
    int count;
    uint64_t requests; /* of the trace */
    bool json;
} options;

static double calls_of(const replay_result *r)
{
    uint32_t iterations = r->steady_iterations ? r->steady_iterations : 1;
    return (double)r->steady_driver_calls / iterations;
}

static double call_ms_of(const replay_result *r)
{
    uint32_t iterations = r->steady_iterations ? r->steady_iterations : 1;
    return r->steady_driver_ns * 1e-6 / iterations;
}

static void print_json(const options *o, const replay_result *results)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "trace", o->trace);
    json_array(&json, "policies");
    for (int i = 0; i < o->count; i++) {
        json_object(&json, NULL);
        replay_json(&json, &results[i]);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_end_object(&json);
    json_finish(&json);
}

static void print_row(cli_table *table, const replay_result *r)
{
    char size[48];
    if (!cli_table_row(table))
        return;
    int column = 0;
    cli_table_cell(table, column++, "%s", r->policy);
    cli_table_cell(table, column++, "%s", cli_format_size(r->peak_live_bytes, size, sizeof size));
    cli_table_cell(table, column++, "%s",
                   cli_format_size(r->peak_physical_bytes, size, sizeof size));
    cli_table_cell(table, column++, "%s",
                   cli_format_size(r->peak_virtual_bytes, size, sizeof size));
    cli_table_cell(table, column++, "%.2f %%", r->efficiency * 100);
    cli_table_cell(table, column++, "%.2f %%", r->steady_efficiency * 100);
    cli_table_cell(table, column++, "%.1f %%", r->steady_planned_share * 100);
    cli_table_cell(table, column++, "%.4g", calls_of(r));
    cli_table_cell(table, column++, "%.3g ms", call_ms_of(r));
    if (r->canary)
        cli_table_cell(table, column++, "%llu", (unsigned long long)r->canary_errors);
    cli_table_cell(table, column, "%s", r->oom ? "out of memory" : "");
}

static void print_table(const options *o, const replay_result *results)
{
    const char *headings[11] = {"policy", "live",    "physical", "virtual", "efficiency",
                                "steady", "planned", "calls",    "time"};
    int columns = 9;
    if (o->replay.canary)
        headings[columns++] = "canary errors";
    headings[columns++] = "";
    cli_table table;
    if (!cli_table_begin(&table, columns, headings))
        return;
    for (int i = 0; i < o->count; i++)
        print_row(&table, &results[i]);
    cli_table_end(&table, stdout);
}

/* Where policies ran out of memory. */
static void print_refusals(const options *o, const replay_result *results)
{
    for (int i = 0; i < o->count; i++)
        if (results[i].oom)
            printf("\n%s ran out of memory at request %llu of %llu: %s\n", results[i].policy,
                   (unsigned long long)results[i].stats.requests, (unsigned long long)o->requests,
                   results[i].oom_text);
}

static const replay_result *find(const options *o, const replay_result *results, const char *policy)
{
    for (int i = 0; i < o->count; i++)
        if (strcmp(results[i].policy, policy) == 0)
            return &results[i];
    return NULL;
}

/* The last line: what the job's owner gets. */
static void print_verdict(const options *o, const replay_result *results)
{
    const replay_result *before = find(o, results, "native"), *after = find(o, results, "pleat");
    char was[48], is[48], less[48];
    if (before == NULL || after == NULL)
        return;
    cli_format_size(before->peak_physical_bytes, was, sizeof was);
    cli_format_size(after->peak_physical_bytes, is, sizeof is);
    if (after->oom) {
        printf("\nThis job does not fit under Pleat with this much memory.\n");
    } else if (before->oom) {
        printf("\nThis job runs out of memory under PyTorch's native allocator; under Pleat it "
               "takes %s.\n",
               is);
    } else if (after->peak_physical_bytes < before->peak_physical_bytes) {
        uint64_t saved = before->peak_physical_bytes - after->peak_physical_bytes;
        printf("\nPleat holds this job in %s where PyTorch's native allocator takes %s: %s "
               "(%.1f %%) less.\n",
               is, was, cli_format_size(saved, less, sizeof less),
               100.0 * (double)saved / (double)before->peak_physical_bytes);
    } else {
        printf("\nPleat would save this job nothing: it takes %s, PyTorch's native allocator %s.\n",
               is, was);
    }
}

static int verdict_code(const options *o, const replay_result *results)
{
    int code = CLI_DONE;
    for (int i = 0; i < o->count; i++) {
        if (results[i].canary_errors == 0)
            continue;
        fprintf(stderr, "pleat compare: %s: the canary found damage: %s\n", results[i].policy,
                results[i].canary_first_error);
        code = CLI_NO;
    }
    return code;
}

static pleat_result run_policy(const options *o, const pleat_trace *trace, int i,
                               replay_result *result)
{
    pleat_plan *plan = NULL;
    replay_options replay = o->replay;
    replay.policy = o->policies[i];
    const char *path = strcmp(replay.policy, "pleat") == 0 ? o->plan : "auto";
    pleat_result outcome = replay_plan_open(trace, replay.policy, path, &plan);
    replay.plan = plan;
    if (outcome == PLEAT_OK)
        outcome = replay_run(trace, &replay, result);
    pleat_plan_free(plan);
    return outcome;
}

static int compare(options *o)
{
    pleat_trace *trace;
    replay_result results[POLICY_MOST];
    pleat_result result = pleat__trace_open(o->trace, &trace);
    if (result != PLEAT_OK)
        return cli_failed("compare", result);
    o->requests = pleat_trace_request_count(trace);
    for (int i = 0; i < o->count && result == PLEAT_OK; i++)
        result = run_policy(o, trace, i, &results[i]);
    pleat_trace_free(trace);
    if (result != PLEAT_OK)
        return cli_failed("compare", result);
    if (o->json) {
        print_json(o, results);
    } else {
        print_table(o, results);
        print_refusals(o, results);
        print_verdict(o, results);
    }
    return verdict_code(o, results);
}

int cli_compare(int argc, char **argv)
{
    options o = {.plan = "auto"};
    const char *policies = "native,expandable,gmlake,stweaver,pleat";
    const cli_option table[] = {
        OPTION_POLICIES(&policies),
        OPTION_TEXT('P', "plan", &o.plan, "PLAN",
                    "a plan from 'pleat plan' for pleat; without it, it finds its own"),
        OPTION_BUDGET(&o.replay.budget_bytes),
        OPTION_MEMORY(&o.replay.device_bytes),
        OPTION_FLAG('c', "canary", &o.replay.canary, "prove that no two live tensors share memory"),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "compare",
        .synopsis = "TRACE [options]",
        .text = "Runs a recorded job's allocations through several allocators on real memory and "
                "says what each\n"
                "would need. TRACE is a trace or whatever 'pleat import' reads: nothing in the job "
                "is changed.\n",
        .tail = "live       the most that the job's tensors take at once: no allocator needs less\n"
                "physical   the most memory that the allocator takes from the device\n"
                "virtual    the most address space that is mapped\n"
                "efficiency live / physical; steady: from the third iteration on\n"
                "planned    share of the steady iterations' requests that had a planned place\n"
                "calls      driver calls in a steady iteration, and the time they would take on an "
                "H200\n",
        .options = table,
        .operand = "one trace",
        .value = &o.trace,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    o.count = replay_parse_policies("compare", policies, o.policies, POLICY_MOST);
    return o.count == 0 ? CLI_BAD_USE : compare(&o);
}
