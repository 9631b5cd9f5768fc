/*
 * compare.c: `pleat compare`: one job under several policies, side by side, and what that would
 * change for it.
 */
#include <tools/analysis/fit.h>
#include <tools/analysis/plan_trial.h>
#include <tools/cli.h>
#include <tools/json.h>
#include <tools/options.h>
#include <tools/progress.h>
#include <tools/replay/devices.h>
#include <tools/replay/replay.h>

#include <internal/error.h>

#include <math.h>
#include <string.h>
#include <vmm/host/host.h>

#define POLICY_MOST     8
#define TRACE_MOST      PLEAT__TRACES_MOST
#define MICROBATCH_MOST 1000000u
/* Whole iterations of a recording with a steady one: two are learned from. */
#define STEADY_LEAST 3u

typedef struct options {
    replay_options replay;
    const char *const *paths; /* of the job; of it at other microbatches */
    uint32_t path_count;
    const char *plan;
    const char *device;
    const char *policies[POLICY_MOST];
    int count;
    uint64_t microbatches[TRACE_MOST]; /* of the first recording, or of all */
    cli_list named;                    /* how many they are */
    uint64_t requests;                 /* of the trace */
    bool no_fit, json;
    bool chosen; /* the policies were */
} options;

/* What was found. */
typedef struct findings {
    replay_result results[POLICY_MOST];
    fit_result fits[POLICY_MOST];
    fit fit;                   /* of which only the units are still true */
    bool planned[POLICY_MOST]; /* it followed a plan made beforehand */
    bool unfollowed;           /* pleat was given one and did not */
    bool fitted;
    bool device_assumed; /* nobody says what memory the device has */
} findings;

/* Nobody trains with the papers' allocators, and one of them maps for minutes where tensors are
 * large: what they could hold is found only where they are asked for by name. */
static bool is_fitted(const options *o, int i)
{
    return o->chosen ||
           (strcmp(o->policies[i], "gmlake") != 0 && strcmp(o->policies[i], "stweaver") != 0);
}

/* Whether the policy is given the plan of --plan. */
static bool is_given(const options *o, int i)
{
    return strcmp(o->policies[i], "pleat") == 0 && strcmp(o->plan, "auto") != 0;
}

/* A share, or nothing where the job was refused something before it had a steady part. */
static void share_cell(cli_table *table, int column, const replay_result *r, double share,
                       int digits)
{
    if (r->oom)
        cli_table_cell(table, column, "-");
    else
        cli_table_cell(table, column, "%.*f %%", digits, share * 100);
}

/* Calls of an iteration, and the milliseconds that they would take. */
static void call_cells(cli_table *table, int column, const replay_result *r, double calls,
                       double ns)
{
    char number[48];
    if (r->oom) {
        cli_table_cell(table, column, "-");
        cli_table_cell(table, column + 1, "-");
        return;
    }
    cli_table_cell(table, column, "%s", cli_format_number(calls, number, sizeof number));
    cli_table_cell(table, column + 1, "%s ms", cli_format_number(ns * 1e-6, number, sizeof number));
}

/* Whether some policy's own threads call the driver in the steady part. */
static bool any_aside(const options *o, const findings *f)
{
    for (int i = 0; i < o->count; i++)
        if (f->results[i].an_iteration.mapper_calls > 0)
            return true;
    return false;
}

/* The nanoseconds of a memory verb on the GPU whose costs are used, a call or 2 MiB of it. */
#define COSTS(X)                                                                                   \
    X(create_handle)                                                                               \
    X(create_granule)                                                                              \
    X(map_handle)                                                                                  \
    X(access_handle)                                                                               \
    X(access_granule)                                                                              \
    X(unmap_handle)                                                                                \
    X(unmap_granule)                                                                               \
    X(release_handle)                                                                              \
    X(release_granule)

static void costs_json(json_writer *json)
{
    json_object(json, "driver_costs");
    json_string(json, "gpu", "NVIDIA H200");
#define COST_JSON(name) json_double(json, #name "_ns", pleat__host_costs_h200.name);
    COSTS(COST_JSON)
#undef COST_JSON
    json_end_object(json);
}

/* Whole, since steps are. */
static uint64_t microbatch_of(const options *o, const fit_result *found)
{
    return (uint64_t)llround(found->times * (double)o->microbatches[0]);
}

static void fit_json(json_writer *json, const options *o, const findings *f, int i)
{
    const fit_result *found = &f->fits[i];
    json_object(json, "fit");
    json_double(json, "times", found->times);
    if (o->named.count > 0)
        json_uint(json, "microbatch", microbatch_of(o, found));
    json_uint(json, "live_bytes", found->live_bytes);
    json_uint(json, "physical_bytes", found->physical_bytes);
    json_bool(json, "bounded", found->bounded);
    json_end_object(json);
}

static void print_json(const options *o, const findings *f)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "trace", o->paths[0]);
    json_array(&json, "policies");
    for (int i = 0; i < o->count; i++) {
        json_object(&json, NULL);
        replay_json(&json, &f->results[i]);
        json_bool(&json, "planned_beforehand", f->planned[i]);
        if (f->fitted && is_fitted(o, i))
            fit_json(&json, o, f, i);
        json_end_object(&json);
    }
    json_end_array(&json);
    if (f->fitted) {
        json_object(&json, "fits");
        json_uint(&json, "device_bytes", f->fit.device_bytes);
        json_string(&json, "sizes", o->path_count > 1 ? "recipe" : "scale");
        if (o->path_count == 1)
            json_string(&json, "assumption", fit_assumption);
        json_end_object(&json);
    }
    costs_json(&json);
    json_end_object(&json);
    json_finish(&json);
}

/* "2.3 x", or the microbatch itself; "at least" where the recordings say no more. */
static const char *fit_text(const options *o, const fit_result *found, char *text, size_t size)
{
    const char *more = found->bounded ? "at least " : "";
    char number[32];
    cli_format_number(found->times, number, sizeof number);
    if (found->step == 0)
        snprintf(text, size, "none");
    else if (o->named.count > 0)
        snprintf(text, size, "%s%llu", more, (unsigned long long)microbatch_of(o, found));
    else
        snprintf(text, size, "%s%s x", more, number);
    return text;
}

/* What gives the table's sizes their unit. */
static uint64_t largest_of(const options *o, const findings *f)
{
    uint64_t largest = 0;
    for (int i = 0; i < o->count; i++)
        if (f->results[i].peak_physical_bytes > largest)
            largest = f->results[i].peak_physical_bytes;
    return largest;
}

static void print_row(cli_table *table, const options *o, const findings *f, int i)
{
    const replay_result *r = &f->results[i];
    bool began = !r->oom || r->stats.requests > 0; /* a plan alone may be too large */
    char size[48];
    if (!cli_table_row(table))
        return;
    int column = 0;
    cli_table_cell(table, column++, "%s%s", r->policy, f->planned[i] ? " *" : "");
    const uint64_t sizes[] = {r->peak_live_bytes, r->peak_physical_bytes, r->peak_virtual_bytes};
    for (int k = 0; k < 3; k++)
        cli_table_cell(table, column++, "%s",
                       began ? cli_format_size_like(sizes[k], largest_of(o, f), size, sizeof size)
                             : "-");
    if (began)
        cli_table_cell(table, column++, "%.2f %%", r->efficiency * 100);
    else
        cli_table_cell(table, column++, "-");
    share_cell(table, column++, r, r->steady_efficiency, 2);
    share_cell(table, column++, r, r->steady_planned_share, 1);
    call_cells(table, column, r, r->an_iteration.driver_calls, r->an_iteration.driver_ns);
    column += 2;
    if (any_aside(o, f)) {
        call_cells(table, column, r, r->an_iteration.mapper_calls, r->an_iteration.mapper_ns);
        column += 2;
    }
    if (f->fitted)
        cli_table_cell(table, column++, "%s",
                       is_fitted(o, i) ? fit_text(o, &f->fits[i], size, sizeof size) : "-");
    if (r->canary)
        cli_table_cell(table, column++, "%llu", (unsigned long long)r->canary_errors);
    cli_table_cell(table, column, "%s", r->oom ? "out of memory" : "");
}

/* Of several recordings the others only say how sizes grow. */
static void print_whose(const options *o)
{
    char name[4096];
    if (o->path_count > 1)
        printf("The job as %s has it; %s how its sizes grow:\n\n",
               cli_plain(o->paths[0], strlen(o->paths[0]), name, sizeof name),
               o->path_count == 2 ? "the other recording says" : "the other recordings say");
}

static void print_table(const options *o, const findings *f)
{
    const char *headings[14] = {"policy", "live",    "physical", "virtual", "efficiency",
                                "steady", "planned", "calls",    "time"};
    int columns = 9;
    if (any_aside(o, f)) {
        headings[columns++] = "aside";
        headings[columns++] = "time";
    }
    if (f->fitted)
        headings[columns++] = "fits";
    if (o->replay.canary)
        headings[columns++] = "canary errors";
    headings[columns++] = "";
    cli_table table;
    if (!cli_table_begin(&table, columns, headings))
        return;
    for (int i = 0; i < o->count; i++)
        print_row(&table, o, f, i);
    cli_table_end(&table, stdout);
}

/* A policy that knows the recording beforehand is no match for one that meets it. Pleat's plan is a
 * file, stweaver's is of this very recording. */
static void print_planned(const options *o, const findings *f)
{
    bool own = false, given = false;
    for (int i = 0; i < o->count; i++) {
        own |= f->planned[i] && !is_given(o, i);
        given |= f->planned[i] && is_given(o, i);
    }
    if (own || given)
        printf("\n* follows a plan made beforehand%s; the others meet the job as it runs.\n",
               !given ? ", of this very recording"
               : own  ? ", stweaver of this very recording"
                      : "");
    if (f->unfollowed)
        printf("\nThe plan %s " PLAN_IS_NOT_FOLLOWED ".\n", o->plan);
}

/* Where the steady part is one in which allocators still learn. */
static void print_few(const options *o, const replay_result *results)
{
    uint32_t most = 0;
    for (int i = 0; i < o->count; i++)
        if (!results[i].oom && results[i].iterations > most)
            most = results[i].iterations;
    if (most > 0 && most < STEADY_LEAST)
        printf(
            "\nThe recording has %u whole iteration%s: what is called steady is the last one, in "
            "which allocators still learn. Record five.\n",
            most, most == 1 ? "" : "s");
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

static int find(const options *o, const char *policy)
{
    for (int i = 0; i < o->count; i++)
        if (strcmp(o->policies[i], policy) == 0)
            return i;
    return -1;
}

/* What the column "fits" says, and on what it rests. */
static void print_fits(const options *o, const findings *f)
{
    char device[48];
    if (!f->fitted)
        return;
    printf("\nfits: the largest microbatch in %s%s, ",
           cli_format_size(f->fit.device_bytes, device, sizeof device),
           f->device_assumed ? fit_device_assumed : "");
    if (o->named.count > 0)
        printf("where %s's is %llu\n", o->path_count > 1 ? "the first recording" : "the recording",
               (unsigned long long)o->microbatches[0]);
    else
        printf("as a multiple of the recorded one, which -m can name\n");
    if (o->path_count == 1)
        printf("(%s)\n", fit_assumption);
    else
        printf("(by the sizes of %u recordings)\n", o->path_count);
    for (int i = 0; i < o->count; i++)
        if (f->fits[i].bounded) {
            printf(o->path_count > 1
                       ? "at least: recordings tell no further than %d times the largest of them\n"
                       : "at least: further than that one recording does not tell\n",
                   PLEAT__RANGE);
            return;
        }
}

/* " The microbatch can be 2.4 x instead of 2.1 x.", where that is so, or that it cannot grow, or to
 * what it must shrink; nothing where none fits. */
static void print_growth(const options *o, const findings *f, int before, int after)
{
    char was[48], is[48];
    if (!f->fitted || f->fits[after].step == 0)
        return;
    fit_text(o, &f->fits[after], is, sizeof is);
    fit_text(o, &f->fits[before], was, sizeof was);
    if (f->fits[after].times < 1)
        printf(" The microbatch must shrink to %s, and to %s under the native allocator.", is, was);
    else if (f->fits[after].step > f->fits[before].step)
        printf(" The microbatch can be %s instead of %s.", is, was);
    else if (f->fits[after].times == 1)
        fputs(" The microbatch cannot grow on this device.", stdout);
}

/* The last line: what changes for this job. */
static void print_verdict(const options *o, const findings *f)
{
    int native = find(o, "native"), pleat = find(o, "pleat");
    if (native < 0 || pleat < 0)
        return;
    putchar('\n');
    replay_verdict(stdout, &f->results[native], &f->results[pleat], "", "");
    print_growth(o, f, native, pleat);
    putchar('\n');
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

static pleat_result run_policy(const options *o, const pleat_trace *trace, int i, findings *f)
{
    pleat_plan *plan = NULL;
    replay_options replay = o->replay;
    replay.policy = o->policies[i];
    const char *path = is_given(o, i) ? o->plan : "auto";
    pleat_result outcome = replay_plan_open(trace, replay.policy, path, &plan);
    replay.plan = plan;
    f->planned[i] = plan != NULL && !plan->answers_only;
    f->unfollowed |= plan != NULL && plan->answers_only;
    if (outcome == PLEAT_OK)
        outcome = replay_run(trace, &replay, &f->results[i]);
    pleat_plan_free(plan);
    return outcome;
}

/* What the recorded microbatch takes, where it ran as a fit runs it: without a budget or a plan of
 * the user's. */
static const replay_result *recorded_of(const options *o, const findings *f, int i)
{
    return o->replay.budget_bytes == 0 && !is_given(o, i) ? &f->results[i] : NULL;
}

static pleat_result run_fits(const options *o, const pleat_trace *const *traces, findings *f)
{
    uint64_t device = replay_device_bytes(traces[0], o->replay.device_bytes);
    uint64_t budget = o->replay.budget_bytes;
    if (o->no_fit)
        return PLEAT_OK;
    f->device_assumed =
        o->replay.device_bytes == 0 && budget == 0 && pleat_trace_device_bytes(traces[0]) == 0;
    if (budget != 0 && budget < device)
        device = budget;
    PLEAT_TRY(fit_begin(traces, o->path_count, o->microbatches, o->named.count, device, &f->fit));
    pleat_result result = PLEAT_OK;
    for (int i = 0; i < o->count && result == PLEAT_OK; i++) {
        progress_stage();
        if (is_fitted(o, i))
            result = fit_policy(&f->fit, o->policies[i], recorded_of(o, f, i), &f->fits[i]);
    }
    f->fitted = result == PLEAT_OK;
    fit_end(&f->fit);
    f->fit.device_bytes = device;
    return result;
}

static pleat_result run_all(options *o, const pleat_trace *const *traces, findings *f)
{
    pleat_result result = PLEAT_OK;
    o->requests = pleat_trace_request_count(traces[0]);
    progress_whole("compare", (uint32_t)o->count * (o->no_fit ? 1 : 2));
    for (int i = 0; i < o->count && result == PLEAT_OK; i++) {
        progress_stage();
        result = run_policy(o, traces[0], i, f);
    }
    if (result == PLEAT_OK) {
        result = run_fits(o, traces, f);
        if (result == PLEAT_E_INPUT)
            result = cli_in_files(result, o->paths, o->path_count);
    }
    progress_whole_end();
    return result;
}

static int compare(void *self, pleat_trace *trace, int device)
{
    options *o = self;
    pleat_trace *traces[TRACE_MOST] = {trace};
    findings f = {0};
    pleat_result result = device_import_others(o->paths, o->path_count, device, traces);
    if (result == PLEAT_OK)
        result = run_all(o, (const pleat_trace *const *)traces, &f);
    for (uint32_t i = 0; i < o->path_count; i++)
        pleat_trace_free(traces[i]);
    if (result != PLEAT_OK)
        return cli_failed("compare", result);
    if (o->json) {
        print_json(o, &f);
    } else {
        print_whose(o);
        print_table(o, &f);
        print_planned(o, &f);
        print_few(o, f.results);
        print_refusals(o, f.results);
        print_fits(o, &f);
        print_verdict(o, &f);
    }
    return verdict_code(o, f.results);
}

int cli_compare(int argc, char **argv)
{
    options o = {.plan = "auto", .named = {o.microbatches, TRACE_MOST, 0}};
    int first;
    const char *const all = "native,expandable,gmlake,stweaver,pleat", *policies = all;
    const cli_option table[] = {
        OPTION_POLICIES(&policies),
        OPTION_TEXT('P', "plan", &o.plan, "PLAN",
                    "a plan from 'pleat plan' for pleat; without it, it finds its own"),
        OPTION_BUDGET(&o.replay.budget_bytes),
        OPTION_MEMORY(&o.replay.device_bytes),
        OPTION_DEVICE(&o.device),
        OPTION_FLAG('c', "canary", &o.replay.canary, "prove that no two live tensors share memory"),
        OPTION_LIST('m', "microbatch", &o.named, 1, MICROBATCH_MOST,
                    "the microbatch (or length) of each recording, or of TRACE alone:\n'fits' then "
                    "says one, not a multiple of TRACE's"),
        OPTION_FLAG('\0', "no-fit", &o.no_fit, "do not look for the largest microbatch"),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "compare",
        .synopsis = "TRACE [SAME-JOB-AT-ANOTHER-MICROBATCH ...] [options]",
        .text = "Runs a recorded job's allocations through several allocators on real memory and "
                "says what each\n"
                "would need. TRACE is a trace or whatever 'pleat import' reads: nothing in the job "
                "is changed.\n"
                "Recordings of the job at other microbatches (or lengths) say how its sizes grow, "
                "and so what\n"
                "would fit; of one alone a scale is assumed.\n",
        .tail =
            "live       the most that the job's tensors take at once: no allocator needs less\n"
            "physical   the most memory that the allocator takes from the device\n"
            "virtual    the most address space that is mapped: less than physical where memory was "
            "taken for a\n"
            "           request that was then refused, or had to be served otherwise\n"
            "efficiency live / physical; steady: from the third iteration on\n"
            "planned    share of the steady iterations' requests that had a planned place\n"
            "calls      driver calls that a steady iteration waits for, and the time they would "
            "take on an\n"
            "           H200; aside: those of Pleat's own threads meanwhile, where there are "
            "any\n"
            "fits       the largest microbatch; of gmlake and stweaver where --policies names "
            "them\n",
        .options = table,
        .operand = "one trace or more",
        .most = TRACE_MOST,
        .is_input = true,
    };
    int code = cli_read(argc, argv, &usage, &first);
    if (code != CLI_GO_ON)
        return code;
    cli_forget_limits();
    o.paths = (const char *const *)argv + first;
    o.path_count = (uint32_t)(argc - first);
    o.chosen = policies != all;
    if (o.named.count > 1 && o.named.count != o.path_count)
        return cli_bad_use("compare",
                           "--microbatch has %u numbers for %u trace%s: give one of each, or the "
                           "first one's",
                           o.named.count, o.path_count, cli_plural(o.path_count));
    o.count = replay_parse_policies("compare", policies, o.policies, POLICY_MOST);
    if (o.count == 0)
        return CLI_BAD_USE;
    if (strcmp(o.plan, "auto") != 0 && find(&o, "pleat") < 0)
        return cli_bad_use("compare", "--plan is for the policy pleat, which is not compared");
    return devices_run(&(device_run){.command = "compare",
                                     .path = o.paths[0],
                                     .asked = o.device,
                                     .json = o.json,
                                     .run = compare,
                                     .options = &o});
}
