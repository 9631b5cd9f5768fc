/*
 * plan.c: `pleat plan`: plans a trace's steady iteration, and says where its bytes are, what stands
 * above max-live and why, what each algorithm reached, and how long each step took. It replays what
 * was recorded with the plan, and says so where learning takes less (plan_trial.c). Of several
 * traces it makes one plan with a recipe (plan/sizes/sizes.h), which plan_elastic.c speaks of.
 */
#include <tools/analysis/footprint.h>
#include <tools/analysis/plan_json.h>
#include <tools/analysis/plan_trial.h>
#include <tools/cli.h>
#include <tools/clock.h>
#include <tools/cmd/plan_elastic.h>
#include <tools/json.h>
#include <tools/nearest.h>
#include <tools/options.h>
#include <tools/progress.h>
#include <tools/replay/devices.h>
#include <tools/words.h>

#include <internal/error.h>
#include <plan/fold/handover_table.h>
#include <plan/planner.h>
#include <plan/trace/import.h>

#include <string.h>

struct arguments {
    const char *const *inputs;
    uint32_t input_count;
    const char *output;
    const char *dump;
    const char *largest;
    uint64_t x[PLEAT__TRACES_MOST];
    cli_list names; /* of --x */
    const char *device;
    elastic_question question;
    bool json;
    bool no_replay;
    pleat_plan_options plan;
};

/* What was planned, and from what. */
struct outcome {
    const pleat_trace *const *traces; /* of the inputs */
    uint32_t trace_count;
    pleat_plan *plan;
    pleat__elastic_report report; /* of an ordinary plan only what is in `plan` */
    plan_peak peak;
    plan_trial trials[PLEAT__TRACES_MOST];
};

#define STEPS 16

/* Times of the planner's steps; a recording whose sizes change has some of them twice. */
typedef struct stopwatch {
    const char *names[STEPS];
    double seconds[STEPS];
    int count;
    const char *running; /* NULL: none */
    uint64_t since;
} stopwatch;

static void add_time(stopwatch *watch, const char *name, double seconds)
{
    int i = 0;
    while (i < watch->count && strcmp(watch->names[i], name) != 0)
        i++;
    if (i == STEPS)
        return;
    watch->count += i == watch->count;
    watch->names[i] = name;
    watch->seconds[i] += seconds;
}

static void on_step(void *self, const char *name)
{
    stopwatch *watch = self;
    progress_note(name);
    uint64_t time = clock_now();
    if (watch->running != NULL)
        add_time(watch, watch->running, (double)(time - watch->since) * 1e-9);
    watch->since = time;
    watch->running = name;
}

/* Whether something is to be said about another x. */
static bool asks(const struct arguments *arguments)
{
    return arguments->question.at != NULL || arguments->question.fit != 0;
}

static double ratio(uint64_t bytes, uint64_t of)
{
    return of == 0 ? 1 : (double)bytes / (double)of;
}

static int print_json(const struct arguments *arguments, const struct outcome *made,
                      const stopwatch *watch, double seconds)
{
    const pleat_plan *plan = made->plan;
    const pleat__plan_report *report = &made->report.plan;
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    plan_json(&json, plan);
    json_double(&json, "ratio", ratio(summary.physical_bytes, summary.max_live_bytes));
    json_uint(&json, "handed_bytes", pleat__handed_bytes(plan));
    json_uint(&json, "handed_waits", report->handed_waits);
    json_double(&json, "seconds", seconds);
    if (plan->recipe == NULL) {
        json_uint(&json, "contiguous_bytes", report->place.height);
        json_double(
            &json, "contiguous_ratio",
            ratio(pleat__contiguous_bytes(report, summary.max_live_bytes, report->place.height),
                  summary.max_live_bytes));
    }
    json_string(&json, "algorithm",
                plan->recipe != NULL ? "elastic" : pleat__algorithm_name(report->place.best));
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
    footprint_class classes[PLEAT__CLASSES];
    int count = footprint_classes(footprint_has_phases(plan), made->peak.bytes, NULL, classes);
    for (int i = 0; i < count; i++)
        json_uint(&json, classes[i].name, classes[i].bytes);
    json_uint(&json, "small", made->peak.small_bytes);
    json_end_object(&json);
    json_object(&json, "step_seconds");
    for (int i = 0; i < watch->count; i++)
        json_double(&json, watch->names[i], watch->seconds[i]);
    json_end_object(&json);
    if (plan->recipe != NULL)
        elastic_json(&json, plan, &made->report, arguments->inputs, arguments->input_count);
    if (!arguments->no_replay)
        plan_trial_json(&json, made->trials, arguments->inputs, made->trace_count);
    int code = CLI_DONE;
    if (asks(arguments))
        code = elastic_answer(arguments->inputs[0], plan, &arguments->question, &json);
    json_end_object(&json);
    json_finish(&json);
    return code;
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

static void print_peak(const pleat_plan *plan, const plan_peak *peak)
{
    footprint_class all[PLEAT__CLASSES];
    int count = footprint_classes(footprint_has_phases(plan), peak->bytes, peak->requests, all);
    const char *headings[] = {"live at the peak", "bytes", "requests an iteration"};
    char size[48], requests[24];
    uint64_t sum = 0;
    cli_table table;
    if (!cli_table_begin(&table, 3, headings))
        return;
    for (int i = 0; i < count; i++)
        sum += all[i].bytes;
    for (int i = 0; i < count; i++) {
        snprintf(requests, sizeof requests, "%llu", (unsigned long long)all[i].requests);
        add_row(&table, all[i].name, cli_format_size_like(all[i].bytes, sum, size, sizeof size),
                requests);
    }
    add_row(&table, "sum", cli_format_size(sum, size, sizeof size), "");
    cli_table_end(&table, stdout);
    printf("%s of it in requests under 1 MiB\n",
           cli_format_size(peak->small_bytes, size, sizeof size));
}

static void add_size(cli_table *table, const char *name, uint64_t bytes, uint64_t of)
{
    char size[48], part[24];
    snprintf(part, sizeof part, "%.5f", ratio(bytes, of));
    add_row(table, name, cli_format_size_like(bytes, of, size, sizeof size), part);
}

/* From max-live to physical, step by step; `contiguous`: before folding, 0: not known. */
static void print_gap(const gap_steps *gap, uint64_t contiguous, uint64_t virtual_bytes)
{
    const char *headings[] = {"planned memory", "bytes", "to max-live"};
    cli_table table;
    if (!cli_table_begin(&table, 3, headings))
        return;
    add_size(&table, "max-live", gap->live, gap->live);
    if (gap->unplaced != 0)
        add_size(&table, "- " GAP_UNPLACED, gap->unplaced, gap->live);
#define ADD_STEP(name, text) add_size(&table, "+ " text, gap->name, gap->live);
    GAP_STEPS(ADD_STEP)
#undef ADD_STEP
    add_size(&table, "= physical", gap->physical, gap->live);
    if (gap->unplaced != 0)
        add_size(&table, "with what lies beside it at the peak", gap->physical + gap->unplaced,
                 gap->live);
    if (contiguous > 0)
        add_size(&table,
                 gap->unplaced != 0 ? "with it, contiguous, before folding"
                                    : "contiguous, before folding",
                 contiguous, gap->live);
    add_size(&table, "virtual", virtual_bytes, gap->live);
    cli_table_end(&table, stdout);
}

static void print_folds(const pleat_plan *plan, const pleat__plan_report *report)
{
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    const char *both = plan->unroll > 1 ? " of both iterations" : "";
    printf(
        "%llu request%s%s folded into %u view%s: %llu aliased page%s; %llu handle%s, %llu lane%s\n",
        (unsigned long long)report->folded, cli_plural(report->folded), both, report->views,
        cli_plural(report->views), (unsigned long long)summary.alias_maps,
        cli_plural(summary.alias_maps), (unsigned long long)summary.handles,
        cli_plural(summary.handles), (unsigned long long)summary.lanes, cli_plural(summary.lanes));
    char less[48];
    if (plan->recipe == NULL && report->folded == 0 &&
        report->place.height > summary.physical_bytes)
        printf("folding laid the requests out anew, in the order in which they come: %s less than "
               "the best contiguous placement, without a view\n",
               cli_format_size(report->place.height - summary.physical_bytes, less, sizeof less));
    if (plan->handed_count > 0)
        printf("%.1f MiB pass from stream to stream, behind %u wait%s%s\n",
               (double)pleat__handed_bytes(plan) / (1 << 20), report->handed_waits,
               cli_plural(report->handed_waits), plan->unroll > 1 ? both : " an iteration");
    words_explain(stdout, "view,alias,handle,lane");
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
            add_size(
                &table, name,
                pleat__contiguous_bytes(report, plan->max_live_bytes, report->place.heights[i]),
                plan->max_live_bytes);
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

/* Says so where the plan is larger than any device that was recorded. */
static void print_too_large(const pleat_plan *plan, const struct outcome *made)
{
    char needed[32], there[32];
    uint64_t device_bytes = 0;
    for (uint32_t i = 0; i < made->trace_count; i++)
        if (pleat_trace_device_bytes(made->traces[i]) > device_bytes)
            device_bytes = pleat_trace_device_bytes(made->traces[i]);
    if (device_bytes == 0 || plan->physical_bytes <= device_bytes)
        return;
    printf("\nIt takes %s, and the recording's device has %s: the plan is for a larger one.\n",
           cli_format_size(plan->physical_bytes, needed, sizeof needed),
           cli_format_size(device_bytes, there, sizeof there));
}

static void note_unrolled(const pleat_plan *plan)
{
    if (plan->unroll > 1)
        puts("requests that live until their like is there in the next iteration take turns: the "
             "plan is of two iterations");
}

static int print_text(const struct arguments *arguments, const struct outcome *made,
                      const stopwatch *watch, double seconds)
{
    const pleat_plan *plan = made->plan;
    const pleat__plan_report *report = &made->report.plan;
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    printf(
        "%llu request%s; %llu an iteration, %llu of them dynamic (compared with %u iteration%s)\n",
        (unsigned long long)summary.requests, cli_plural(summary.requests),
        (unsigned long long)summary.iteration_requests,
        (unsigned long long)summary.dynamic_requests, report->profiles,
        cli_plural(report->profiles));
    if (report->period > 0)
        printf("no marks or labels: found a period of %u request%s\n", report->period,
               cli_plural(report->period));
    note_unrolled(plan);
    putchar('\n');
    print_peak(plan, &made->peak);
    putchar('\n');
    gap_steps gap = gap_of(plan, report);
    print_gap(&gap,
              plan->recipe == NULL ? pleat__contiguous_bytes(report, gap.live, report->place.height)
                                   : 0,
              summary.virtual_bytes);
    print_folds(plan, report);
    print_too_large(plan, made);
    putchar('\n');
    if (plan->recipe == NULL)
        print_algorithms(plan, report);
    else
        elastic_text(plan, &made->report, arguments->inputs, arguments->input_count);
    putchar('\n');
    print_times(watch, seconds);
    if (!arguments->no_replay)
        plan_trial_text(made->trials, arguments->inputs, made->trace_count);
    if (arguments->output != NULL)
        printf("written to %s\n", arguments->output);
    if (!asks(arguments))
        return CLI_DONE;
    putchar('\n');
    return elastic_answer(arguments->inputs[0], plan, &arguments->question, NULL);
}

/* A field as RFC 4180 has it: in quotes where it needs them. */
static void put_field(FILE *file, const char *text)
{
    const char *quote = text[strcspn(text, "\",\r\n")] != '\0' ? "\"" : "";
    fputs(quote, file);
    for (; *text != '\0'; text++)
        fprintf(file, *text == '"' ? "%c\"" : "%c", *text);
    fputs(quote, file);
}

static void dump_sequence(FILE *file, const char *name, const pleat_plan *plan,
                          const pleat__sequence *sequence, uint32_t requests)
{
    bool has_phases = footprint_has_phases(plan);
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        const char *phase = slot->alloc_phase < sequence->phase_count
                                ? plan->labels[sequence->phases[slot->alloc_phase].label]
                                : "";
        fprintf(file, "%s,%u,%llu,%u,", name, i % requests, (unsigned long long)slot->size,
                slot->alloc_at);
        if (slot->free_at != PLEAT__NEVER)
            fprintf(file, "%u", slot->free_at);
        fputc(',', file);
        if (slot->place != PLEAT__NOWHERE)
            fprintf(file, "%llu", (unsigned long long)slot->place);
        fprintf(file, ",%s,", footprint_class_name(has_phases, slot->class));
        put_field(file, phase);
        fprintf(file, ",%u\n", slot->stream);
    }
}

static pleat_result dump(const pleat_plan *plan, const char *path)
{
    cli_text text;
    PLEAT_TRY(cli_text_begin(&text, "the layout"));
    fputs("sequence,request,size,lower,upper,place,class,phase,stream\n", text.out);
    dump_sequence(text.out, "first", plan, &plan->first, plan->first.slot_count);
    dump_sequence(text.out, "steady", plan, &plan->steady, pleat__iteration_slots(plan));
    return cli_text_write(&text, path, PLEAT_OK);
}

static bool speaks_of_several(const struct arguments *arguments)
{
    return arguments->input_count > 1 || arguments->largest != NULL || arguments->names.count > 0;
}

/* Whether several sizes are asked for, or spoken of. */
static bool wants_recipe(const struct arguments *arguments)
{
    return speaks_of_several(arguments) || asks(arguments);
}

static int no_recipe_here(void)
{
    return cli_bad_use("plan", "--no-recipe is for one trace of one size: several traces, --x, "
                               "--max, --at and --fit are about a recipe");
}

/* What failed, in the last error: --max is wrong where the traces make a plan without it. */
static pleat_result blame_largest(const struct arguments *arguments, const pleat__plan_watch *watch,
                                  const struct outcome *made, const pleat__elastic_options *options,
                                  pleat_result result)
{
    const pleat_error wrong = *pleat_last_error();
    pleat__elastic_options without = *options;
    pleat_plan *plan = NULL;
    without.largest = NULL;
    bool made_without = pleat__elastic_plan_make(made->traces, made->trace_count, &without, watch,
                                                 NULL, &plan) == PLEAT_OK;
    pleat_plan_free(plan);
    const char *also = strstr(wrong.text, "(--chunk)") != NULL ? ", or a smaller --max" : "";
    return made_without ? pleat__fail(PLEAT_E_INVALID, "--max %s is too large: %s%s",
                                      arguments->largest, wrong.text, also)
                        : pleat__fail(result, "%s", wrong.text);
}

static pleat_result make_elastic(const struct arguments *arguments, const pleat__plan_watch *watch,
                                 struct outcome *made)
{
    pleat__elastic_options options = {.plan = &arguments->plan};
    pleat__fraction largest;
    options.names = arguments->names.count > 0 ? arguments->x : NULL;
    if (arguments->largest != NULL && pleat__x_parse(arguments->largest, &largest))
        options.largest = &largest;
    pleat_result result = pleat__elastic_plan_make(made->traces, made->trace_count, &options, watch,
                                                   &made->report, &made->plan);
    bool beyond = result == PLEAT_E_LIMIT || result == PLEAT_E_INPUT;
    return beyond && options.largest != NULL
               ? blame_largest(arguments, watch, made, &options, result)
               : result;
}

/* Of one trace whose iterations differ: what there is to say about its recipe. */
static void note_recipe(struct outcome *made)
{
    const pleat__recipe *recipe = made->plan->recipe;
    pleat__elastic_report *report = &made->report;
    bool changes;
    report->shows_x = true;
    report->paired[0] = made->plan->steady.slot_count;
    if (pleat__elastic_infer(made->plan, made->traces[0], &report->x[0], &changes) != PLEAT_OK)
        report->x[0] = recipe->reference;
    for (uint32_t i = 0; i < made->plan->steady.slot_count; i++)
        report->explained += recipe->steady[i] != PLEAT__NO_FUNCTION &&
                             pleat__function_varies(&recipe->functions[recipe->steady[i]]);
    report->varying = report->explained + pleat_plan_summary_of(made->plan).dynamic_requests;
}

/* What is wrong in the recordings is said with their names, and so is what is too much in them. */
static pleat_result of_inputs(pleat_result result, const struct arguments *arguments)
{
    if (result == PLEAT_E_LIMIT) {
        pleat_error much = *pleat_last_error();
        result = much.result = PLEAT_E_INPUT;
        (void)pleat__fail_again(&much);
    }
    return result != PLEAT_E_INPUT
               ? result
               : cli_in_files(result, arguments->inputs, arguments->input_count);
}

static pleat_result make(const struct arguments *arguments, const pleat__plan_watch *watch,
                         struct outcome *made)
{
    pleat_result result = PLEAT_OK;
    if (wants_recipe(arguments))
        result = make_elastic(arguments, watch, made);
    else {
        result = pleat__plan_make(made->traces[0], &arguments->plan, watch, &made->report.plan,
                                  &made->plan);
        if (result == PLEAT_OK && made->plan->recipe != NULL)
            note_recipe(made);
    }
    return of_inputs(result, arguments);
}

static int plan(void *self, pleat_trace *trace, int device)
{
    struct arguments own = *(const struct arguments *)self, *arguments = &own;
    stopwatch watch = {0};
    pleat__plan_watch on = {on_step, &watch};
    pleat_trace *traces[PLEAT__TRACES_MOST] = {trace};
    struct outcome made = {.traces = (const pleat_trace *const *)traces,
                           .trace_count = own.input_count};
    char output[DEVICE_PATH_MOST], dump_path[DEVICE_PATH_MOST];
    if (own.output != NULL)
        own.output = device_path(own.output, trace, output);
    if (own.dump != NULL)
        own.dump = device_path(own.dump, trace, dump_path);
    own.plan.device = device == PLEAT__ANY_DEVICE ? 0 : (uint32_t)device;
    uint64_t start = clock_now();
    progress_whole("plan", 1);
    on_step(&watch, "read");
    pleat_result result = device_import_others(own.inputs, own.input_count, device, traces);
    if (result == PLEAT_OK)
        result = make(arguments, &on, &made);
    if (result == PLEAT_OK)
        result = plan_peak_of(made.plan, &made.peak);
    double seconds = (double)(clock_now() - start) * 1e-9;
    progress_whole_end();
    if (result == PLEAT_OK && !arguments->no_replay)
        plan_trial_run(made.plan, made.traces, made.trace_count, made.trials);
    if (result == PLEAT_OK)
        made.plan->answers_only = plan_trial_is_lost(made.trials, made.trace_count);
    if (result == PLEAT_OK && arguments->output != NULL)
        result = pleat_plan_write(made.plan, arguments->output);
    if (result == PLEAT_OK && arguments->dump != NULL)
        result = dump(made.plan, arguments->dump);
    int code;
    if (result != PLEAT_OK)
        code = cli_failed("plan", result);
    else if (arguments->json)
        code = print_json(arguments, &made, &watch, seconds);
    else
        code = print_text(arguments, &made, &watch, seconds);
    pleat_plan_free(made.plan);
    for (uint32_t i = 0; i < made.trace_count; i++)
        pleat_trace_free(traces[i]);
    return code;
}

/* The first option that says how a plan is made, or where it goes; NULL: none is given. */
static const char *made_with(const struct arguments *arguments)
{
    const pleat_plan_options *wanted = &arguments->plan;
    const struct {
        const char *name;
        bool given;
    } all[] = {
        {"--x", arguments->names.count > 0},
        {"--max", arguments->largest != NULL},
        {"-o", arguments->output != NULL},
        {"--dump", arguments->dump != NULL},
        {"--algorithm", wanted->algorithm != NULL},
        {"--chunk", wanted->chunk_bytes != 0},
        {"--no-fold", wanted->no_fold},
        {"--no-recipe", wanted->no_recipe},
        {"--device", arguments->device != NULL},
        {"--no-replay", arguments->no_replay},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].given)
            return all[i].name;
    return NULL;
}

static pleat_result print_summary(const char *path, const pleat_plan *plan)
{
    pleat__arena *arena;
    gap_steps gap;
    plan_peak peak;
    PLEAT_TRY(plan_peak_of(plan, &peak));
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_result result = gap_of_plan(plan, arena, &gap);
    pleat__arena_destroy(arena);
    PLEAT_TRY(result);
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    printf("%s: a plan for device %llu, which holds (it is proved whenever it is read)\n", path,
           (unsigned long long)summary.device);
    printf("%llu request%s; %llu an iteration, %llu of them dynamic\n",
           (unsigned long long)summary.requests, cli_plural(summary.requests),
           (unsigned long long)summary.iteration_requests,
           (unsigned long long)summary.dynamic_requests);
    note_unrolled(plan);
    putchar('\n');
    if (plan->answers_only)
        puts("It answers questions and " PLAN_IS_NOT_FOLLOWED ".\n");
    print_peak(plan, &peak);
    putchar('\n');
    print_gap(&gap, 0, summary.virtual_bytes);
    printf("%llu aliased page%s; %llu handle%s, %llu lane%s\n",
           (unsigned long long)summary.alias_maps, cli_plural(summary.alias_maps),
           (unsigned long long)summary.handles, cli_plural(summary.handles),
           (unsigned long long)summary.lanes, cli_plural(summary.lanes));
    words_explain(stdout, "alias,handle,lane");
    if (plan->recipe != NULL) {
        putchar('\n');
        elastic_summary(plan);
    }
    return PLEAT_OK;
}

/* What a plan is. */
static int summarize(const struct arguments *arguments)
{
    pleat_plan *made;
    json_writer json;
    pleat_result result = cli_read_plan(arguments->inputs[0], &made);
    if (result != PLEAT_OK)
        return cli_failed("plan", result);
    if (arguments->json) {
        json_begin(&json, stdout);
        json_object(&json, NULL);
        plan_json(&json, made);
        json_end_object(&json);
        json_finish(&json);
    } else {
        result = print_summary(arguments->inputs[0], made);
    }
    pleat_plan_free(made);
    return result == PLEAT_OK ? CLI_DONE : cli_failed("plan", result);
}

/* A question about a plan that was made before. */
static int ask(const struct arguments *arguments)
{
    pleat_plan *made;
    json_writer json;
    if (made_with(arguments) != NULL)
        return cli_bad_use("plan", "'%s' is a plan: %s is for making one", arguments->inputs[0],
                           made_with(arguments));
    if (!asks(arguments))
        return summarize(arguments);
    pleat_result result = cli_read_plan(arguments->inputs[0], &made);
    if (result != PLEAT_OK)
        return cli_failed("plan", result);
    bool tells = arguments->json && made->recipe != NULL; /* else there is nothing to tell */
    if (tells) {
        json_begin(&json, stdout);
        json_object(&json, NULL);
    }
    int code =
        elastic_answer(arguments->inputs[0], made, &arguments->question, tells ? &json : NULL);
    if (tells) {
        json_end_object(&json);
        json_finish(&json);
    }
    pleat_plan_free(made);
    return code;
}

static int no_algorithm(const char *name)
{
    const char *names[PLEAT__ALGORITHM_COUNT + 1] = {"auto"};
    for (uint32_t i = 0; i < PLEAT__ALGORITHM_COUNT; i++)
        names[i + 1] = pleat__algorithm_name(i);
    return nearest_refuse("plan", "algorithm", name, names, PLEAT__ALGORITHM_COUNT + 1);
}

/* --max, where --x says what the traces are: below the largest of them nothing is laid out. */
static int check_largest(const struct arguments *arguments, pleat__fraction largest)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < arguments->names.count; i++)
        most = arguments->x[i] > most ? arguments->x[i] : most;
    if (largest.num < most * largest.den)
        return cli_bad_use("plan", "--max %s is less than the largest x of --x, %llu",
                           arguments->largest, (unsigned long long)most);
    return CLI_DONE;
}

static int check(struct arguments *arguments)
{
    const pleat_plan_options *wanted = &arguments->plan;
    uint32_t algorithms, named = arguments->names.count, traces = arguments->input_count;
    pleat__fraction x;
    if (wanted->algorithm != NULL && !pleat__algorithm_find(wanted->algorithm, &algorithms))
        return no_algorithm(wanted->algorithm);
    if (named != 0 && named != traces)
        return cli_bad_use("plan", "--x has %u number%s for %u trace%s", named, cli_plural(named),
                           traces, cli_plural(traces));
    if (arguments->question.at != NULL && !pleat__x_parse(arguments->question.at, &x))
        return cli_bad_use("plan", "--at is an x like 3, 5/2 or 2.5, not '%s'",
                           arguments->question.at);
    if (arguments->largest != NULL && !pleat__x_parse(arguments->largest, &x))
        return cli_bad_use("plan", "--max is an x like 3, 5/2 or 2.5, not '%s'",
                           arguments->largest);
    if (wanted->no_recipe && speaks_of_several(arguments))
        return no_recipe_here();
    if (arguments->largest != NULL && named != 0)
        return check_largest(arguments, x);
    return CLI_DONE;
}

int cli_plan(int argc, char **argv)
{
    struct arguments arguments = {.plan = {.size = sizeof arguments.plan}};
    arguments.names = (cli_list){arguments.x, PLEAT__TRACES_MOST, 0};
    pleat_plan_options *wanted = &arguments.plan;
    bool no_fold = false, no_recipe = false, is_plan;
    const cli_option table[] = {
        OPTION_FILE('o', "output", &arguments.output, "PLAN", "the file to write"),
        OPTION_TEXT('a', "algorithm", &wanted->algorithm, "NAME",
                    "contiguous placement: auto (the best of all), or one of\n"
                    "size, lifetime, sweep, stweaver"),
        OPTION_CHUNK('c', "chunk", &wanted->chunk_bytes, "of physical memory (2MiB)"),
        OPTION_FLAG('\0', "no-fold", &no_fold, "contiguous placement only"),
        OPTION_FLAG('\0', "no-recipe", &no_recipe,
                    "lanes for sizes that differ, also where they follow a number"),
        OPTION_DEVICE(&arguments.device),
        OPTION_LIST('\0', "x", &arguments.names, 1, UINT32_MAX,
                    "what x is in each trace: a microbatch, a length"),
        OPTION_TEXT('\0', "max", &arguments.largest, "X", "lay memory out for x up to this"),
        OPTION_TEXT('\0', "at", &arguments.question.at, "X", "say what this x needs"),
        OPTION_MEMORY_OF('\0', "fit", &arguments.question.fit,
                         "say which x is the largest that fits: a whole one with --x,\n"
                         "else by sixteenths"),
        OPTION_FILE('\0', "dump", &arguments.dump, "FILE",
                    "the layout as a table: one row a request"),
        OPTION_FLAG('\0', "no-replay", &arguments.no_replay,
                    "do not try the plan on what it was made of"),
        OPTION_JSON(&arguments.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "plan",
        .synopsis = "TRACE... | PLAN [-o PLAN] [options]",
        .text =
            "Plans the iteration of TRACE that repeats: where each request lies, on which "
            "chunks.\n"
            "TRACE is a trace or whatever 'pleat import' reads.\n"
            "Traces of one job at several microbatches or lengths, x, make one plan for all "
            "of them\n"
            "and those between and beyond. A PLAN by itself is summarised; one made so answers\n"
            "--at and --fit.\n"
            "Without -o it only says what the plan would be.\n",
        .options = table,
        .operand = "a trace or a plan",
        .most = PLEAT__TRACES_MOST,
        .is_input = true,
    };
    int first;
    int code = cli_read(argc, argv, &usage, &first);
    if (code != CLI_GO_ON)
        return code;
    cli_forget_limits();
    arguments.inputs = (const char *const *)argv + first;
    arguments.input_count = (uint32_t)(argc - first);
    wanted->no_fold = no_fold;
    wanted->no_recipe = no_recipe;
    code = check(&arguments);
    if (code != CLI_DONE)
        return code;
    for (uint32_t i = 0; i < arguments.input_count; i++)
        if (devices_overwrite("plan", arguments.inputs[i], arguments.output) != CLI_DONE ||
            devices_overwrite("plan", arguments.inputs[i], arguments.dump) != CLI_DONE)
            return CLI_BAD_USE;
    code = devices_write_twice("plan", arguments.output, arguments.dump, "the plan and its dump");
    if (code != CLI_DONE)
        return code;
    pleat_result result = pleat__plan_is_file(arguments.inputs[0], &is_plan);
    if (result != PLEAT_OK)
        return cli_failed("plan", result);
    if (is_plan && arguments.input_count > 1)
        return cli_bad_use("plan", "takes one plan by itself");
    if (is_plan)
        return ask(&arguments);
    if (wanted->no_recipe && wants_recipe(&arguments))
        return no_recipe_here();
    return devices_run(&(device_run){.command = "plan",
                                     .path = arguments.inputs[0],
                                     .asked = arguments.device,
                                     .json = arguments.json,
                                     .outputs = {arguments.output, arguments.dump},
                                     .run = plan,
                                     .options = &arguments});
}
