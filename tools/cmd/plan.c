/*
 * plan.c: `pleat plan`: plans a trace's steady iteration, and says where its bytes are, what stands
 * above max-live and why, what each algorithm reached, and how long each step took.
 */
#include "../cli.h"
#include "../footprint.h"
#include "../json.h"
#include "../options.h"

#include <internal/error.h>
#include <plan/import.h>
#include <plan/planner.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct arguments {
    const char *input;
    const char *output;
    const char *dump;
    bool json;
    pleat_plan_options plan;
};

#define STEPS 12

/* Times of the planner's steps. */
typedef struct stopwatch {
    const char *names[STEPS];
    double seconds[STEPS];
    int count;
    double since;
} stopwatch;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void on_step(void *self, const char *name)
{
    stopwatch *watch = self;
    double time = now();
    if (watch->count > 0 && watch->seconds[watch->count - 1] < 0)
        watch->seconds[watch->count - 1] = time - watch->since;
    watch->since = time;
    if (name != NULL && watch->count < STEPS) {
        watch->names[watch->count] = name;
        watch->seconds[watch->count++] = -1;
    }
}

static double ratio(uint64_t bytes, uint64_t of)
{
    return of == 0 ? 1 : (double)bytes / (double)of;
}

static void print_json(const pleat_plan *plan, const pleat__plan_report *report,
                       const stopwatch *watch, double seconds)
{
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_uint(&json, "requests", summary.requests);
    json_uint(&json, "iteration_requests", summary.iteration_requests);
    json_uint(&json, "dynamic_requests", summary.dynamic_requests);
    json_uint(&json, "max_live_bytes", summary.max_live_bytes);
    json_uint(&json, "virtual_bytes", summary.virtual_bytes);
    json_uint(&json, "physical_bytes", summary.physical_bytes);
    json_double(&json, "ratio", ratio(summary.physical_bytes, summary.max_live_bytes));
    json_uint(&json, "maps", summary.maps);
    json_uint(&json, "alias_maps", summary.alias_maps);
    json_uint(&json, "handles", summary.handles);
    json_uint(&json, "lanes", summary.lanes);
    json_double(&json, "seconds", seconds);
    json_uint(&json, "contiguous_bytes", report->place.height);
    json_double(&json, "contiguous_ratio", ratio(report->place.height, summary.max_live_bytes));
    json_string(&json, "algorithm", pleat__algorithm_name(report->place.best));
    json_uint(&json, "first_max_live_bytes", plan->first_max_live_bytes);
    json_uint(&json, "iteration_max_live_bytes", report->whole_max_live);
    json_uint(&json, "dynamic_max_live_bytes", report->dynamic_max_live);
    json_uint(&json, "profiles", report->profiles);
    json_uint(&json, "planner_bytes", report->scratch_bytes);
    json_object(&json, "algorithms");
    for (uint32_t i = 0; i < PLEAT__ALGORITHM_COUNT; i++)
        if (report->place.heights[i] != 0 && report->place.heights[i] != UINT64_MAX)
            json_uint(&json, pleat__algorithm_name(i), report->place.heights[i]);
    json_end_object(&json);
    json_object(&json, "live_at_peak");
    for (int i = 0; i < PLEAT__CLASSES; i++)
        json_uint(&json, footprint_class_names[i], report->class_bytes[i]);
    json_uint(&json, "small", report->small_bytes);
    json_end_object(&json);
    json_object(&json, "step_seconds");
    for (int i = 0; i < watch->count; i++)
        json_double(&json, watch->names[i], watch->seconds[i]);
    json_end_object(&json);
    json_end_object(&json);
    json_finish(&json);
}

/* One row of a table: a name, then cells of text. */
static void add_row(cli_table *table, const char *name, const char *first, const char *second)
{
    if (!cli_table_row(table))
        return;
    cli_table_cell(table, 0, "%s", name);
    cli_table_cell(table, 1, "%s", first);
    cli_table_cell(table, 2, "%s", second);
}

static void print_bytes(const pleat__plan_report *report)
{
    const char *headings[] = {"live at the peak", "bytes", "requests an iteration"};
    char bytes[48], requests[24];
    cli_table table;
    if (!cli_table_begin(&table, 3, headings))
        return;
    for (int i = 0; i < PLEAT__CLASSES; i++) {
        snprintf(requests, sizeof requests, "%llu", (unsigned long long)report->class_requests[i]);
        add_row(&table, footprint_class_names[i],
                cli_format_size(report->class_bytes[i], bytes, sizeof bytes), requests);
    }
    add_row(&table, "sum", cli_format_size(report->whole_max_live, bytes, sizeof bytes), "");
    add_row(&table, "  of it under 1 MiB each",
            cli_format_size(report->small_bytes, bytes, sizeof bytes), "");
    cli_table_end(&table, stdout);
}

static void add_size(cli_table *table, const char *name, uint64_t bytes, uint64_t of)
{
    char size[48], part[24];
    snprintf(part, sizeof part, "%.5f", ratio(bytes, of));
    add_row(table, name, cli_format_size(bytes, size, sizeof size), part);
}

/* From max-live to physical, step by step. */
static void print_gap(const pleat_plan *plan, const pleat__plan_report *report)
{
    const char *headings[] = {"planned memory", "bytes", "to max-live"};
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    gap_steps gap = gap_of(plan, report);
    cli_table table;
    if (!cli_table_begin(&table, 3, headings))
        return;
    add_size(&table, "max-live", gap.live, gap.live);
#define ADD_STEP(name, text) add_size(&table, "+ " text, gap.name, gap.live);
    GAP_STEPS(ADD_STEP)
#undef ADD_STEP
    add_size(&table, "= physical", gap.physical, gap.live);
    add_size(&table, "contiguous, before folding", report->place.height, gap.live);
    add_size(&table, "virtual", summary.virtual_bytes, gap.live);
    cli_table_end(&table, stdout);
    printf("%llu requests folded into %u views: %llu aliased pages; %llu handles, %llu lanes\n",
           (unsigned long long)report->folded, report->views,
           (unsigned long long)summary.alias_maps, (unsigned long long)summary.handles,
           (unsigned long long)summary.lanes);
}

static void print_algorithms(const pleat_plan *plan, const pleat__plan_report *report)
{
    const char *headings[] = {"algorithm", "reached", "to max-live"};
    cli_table table;
    if (!cli_table_begin(&table, 3, headings))
        return;
    for (uint32_t i = 0; i < PLEAT__ALGORITHM_COUNT; i++) {
        const char *name = pleat__algorithm_name(i);
        if (report->place.heights[i] == 0)
            add_row(&table, name, "not needed", "");
        else if (report->place.heights[i] == UINT64_MAX)
            add_row(&table, name, "nothing better", "");
        else
            add_size(&table, name, report->place.heights[i], plan->max_live_bytes);
    }
    cli_table_end(&table, stdout);
}

static void print_times(const stopwatch *watch, double seconds)
{
    printf("planned in %.3f s:", seconds);
    for (int i = 0; i < watch->count; i++)
        printf(" %s %.3f", watch->names[i], watch->seconds[i]);
    putchar('\n');
}

static void print_text(const pleat_plan *plan, const pleat__plan_report *report,
                       const stopwatch *watch, double seconds)
{
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    printf("%llu requests; %llu an iteration, %llu of them dynamic (compared with %u iterations)\n",
           (unsigned long long)summary.requests, (unsigned long long)summary.iteration_requests,
           (unsigned long long)summary.dynamic_requests, report->profiles);
    if (report->period > 0)
        printf("no marks or labels: found a period of %u requests\n", report->period);
    putchar('\n');
    print_bytes(report);
    putchar('\n');
    print_gap(plan, report);
    putchar('\n');
    print_algorithms(plan, report);
    putchar('\n');
    print_times(watch, seconds);
}

static void dump_sequence(FILE *file, const char *name, const pleat_plan *plan,
                          const pleat__sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        const char *phase = slot->alloc_phase < sequence->phase_count
                                ? plan->labels[sequence->phases[slot->alloc_phase].label]
                                : "";
        fprintf(file, "%s,%u,%llu,%u,", name, i, (unsigned long long)slot->size, slot->alloc_at);
        if (slot->free_at != PLEAT__NEVER)
            fprintf(file, "%u", slot->free_at);
        fputc(',', file);
        if (slot->place != PLEAT__NOWHERE)
            fprintf(file, "%llu", (unsigned long long)slot->place);
        fprintf(file, ",%s,%s,%u\n", footprint_class_names[slot->class], phase, slot->stream);
    }
}

static pleat_result dump(const pleat_plan *plan, const char *path)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return pleat__fail_errno(PLEAT_E_IO, "'%s' cannot be written", path);
    fputs("sequence,request,size,lower,upper,place,class,phase,stream\n", file);
    dump_sequence(file, "first", plan, &plan->first);
    dump_sequence(file, "steady", plan, &plan->steady);
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed)
        return pleat__fail_errno(PLEAT_E_IO, "'%s' cannot be written", path);
    return PLEAT_OK;
}

static int plan(const struct arguments *arguments)
{
    stopwatch watch = {0};
    pleat__plan_watch on = {on_step, &watch};
    pleat__plan_report report;
    pleat_trace *trace;
    pleat_plan *made = NULL;
    double start = now();
    on_step(&watch, "read");
    pleat_result result = pleat__trace_open(arguments->input, &trace);
    if (result != PLEAT_OK)
        return cli_failed("plan", result);
    result = pleat__plan_make(trace, &arguments->plan, &on, &report, &made);
    double seconds = now() - start;
    if (result == PLEAT_E_INPUT)
        result = pleat__context(result, "'%s'", arguments->input);
    if (result == PLEAT_OK && arguments->output != NULL)
        result = pleat_plan_write(made, arguments->output);
    if (result == PLEAT_OK && arguments->dump != NULL)
        result = dump(made, arguments->dump);
    int code = CLI_DONE;
    if (result != PLEAT_OK)
        code = cli_failed("plan", result);
    else if (arguments->json)
        print_json(made, &report, &watch, seconds);
    else
        print_text(made, &report, &watch, seconds);
    pleat_plan_free(made);
    pleat_trace_free(trace);
    return code;
}

int cli_plan(int argc, char **argv)
{
    struct arguments arguments = {.plan = {.size = sizeof arguments.plan, .seconds = NAN}};
    pleat_plan_options *wanted = &arguments.plan;
    bool no_fold = false;
    uint32_t algorithms;
    const cli_option table[] = {
        OPTION_TEXT('o', "output", &arguments.output, "PLAN", "the file to write"),
        OPTION_TEXT('a', "algorithm", &wanted->algorithm, "NAME",
                    "contiguous placement: auto (the best of all), or one of\n"
                    "size, area, lifetime, sweep, stweaver, search"),
        OPTION_NUMBER('s', "seconds", &wanted->seconds, "N", 0, 86400,
                      "search for a better plan, about as long (1); 0: one pass"),
        OPTION_BYTES('c', "chunk", &wanted->chunk_bytes, "SIZE", 1, "of physical memory (2MiB)"),
        OPTION_COUNT('\0', "max-maps", &wanted->max_maps, "N", 1, UINT32_MAX,
                     "most aliased pages; each costs 4 KiB of host memory"),
        OPTION_FLAG('\0', "no-fold", &no_fold, "contiguous placement only"),
        OPTION_NUMBER('\0', "lane-margin", &wanted->lane_margin, "N", 1, 100,
                      "room in lanes over what dynamic requests were seen to need (1.15)"),
        OPTION_COUNT('d', "device", &wanted->device, "N", 0, UINT8_MAX,
                     "whose requests, in a trace of several devices"),
        OPTION_TEXT('\0', "dump", &arguments.dump, "FILE",
                    "the layout as a table: one row a request"),
        OPTION_JSON(&arguments.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "plan",
        .synopsis = "TRACE [-o PLAN] [options]",
        .text = "Plans the iteration of TRACE that repeats: where each request lies, on which "
                "chunks.\n"
                "TRACE is a trace or whatever 'pleat import' reads.\n"
                "Without -o it only says what the plan would be.\n",
        .options = table,
        .operand = "one trace",
        .value = &arguments.input,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    if (wanted->algorithm != NULL && !pleat__algorithm_find(wanted->algorithm, &algorithms))
        return cli_bad_use("plan", "there is no algorithm '%s'", wanted->algorithm);
    wanted->no_fold = no_fold;
    return plan(&arguments);
}
