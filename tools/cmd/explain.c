/*
 * explain.c: `pleat explain`: where a job's memory goes, why the native allocator takes more, and
 * what would help, in words.
 */
#include <tools/analysis/advice.h>
#include <tools/analysis/refusal.h>
#include <tools/analysis/sites.h>
#include <tools/cli.h>
#include <tools/cmd/explain_budget.h>
#include <tools/progress.h>
#include <tools/replay/devices.h>
#include <tools/words.h>

#include <internal/error.h>

#include <string.h>

#define PHASE_SIZE 1024         /* bytes of a phase's name as it is shown */
#define NS_MOST    (1ull << 48) /* three days */

typedef struct options {
    const char *const *paths; /* of the job; of it at other microbatches */
    uint32_t path_count;
    uint64_t device_bytes;
    budget_question budget; /* its bytes 0: what must be computed again is not asked */
    const char *device;
    bool json;
} options;

/* In the unit of max-live, as all sums here, so that they can be compared by eye. */
static const char *text_of(const footprint *f, uint64_t bytes, char (*buffers)[48], int i)
{
    return cli_format_size_like(bytes, f->max_live_bytes, buffers[i], sizeof buffers[i]);
}

static double share(uint64_t part, uint64_t whole)
{
    return whole != 0 ? 100.0 * (double)part / (double)whole : 0;
}

/* Where nobody says what memory the device has. */
static const char *device_note(const growth *g)
{
    return g->device_assumed ? fit_device_assumed : "";
}

/* A phase's name, for a terminal. */
static const char *phase_of(const footprint *f, uint16_t phase, char (*buffer)[PHASE_SIZE])
{
    char name[256];
    footprint_phase(f, phase, name, sizeof name);
    return cli_plain(name, strlen(name), *buffer, sizeof *buffer);
}

/* ", at forward (model.py:12), annotated "the keys"" */
static void say_site(const footprint *f, uint32_t site)
{
    char text[SITE_TEXT_SIZE], plain[4 * SITE_TEXT_SIZE];
    const char *frame;
    size_t length = site_frame(f->trace, site, &frame);
    if (length > 0)
        printf(", at %s", cli_plain(frame, length, plain, sizeof plain));
    if (*site_annotations(f->trace, site, text) != '\0')
        printf(", annotated %s", cli_plain(text, strlen(text), plain, sizeof plain));
}

/* "264 of 192.000 MiB, allocated in phase F, at forward (model.py:12)" */
static void say_group(const footprint *f, const footprint_group *g)
{
    char size[48], phase[PHASE_SIZE];
    printf("%u of %s", g->count, cli_format_size(g->size, size, sizeof size));
    if (*phase_of(f, g->phase, &phase) != '\0')
        printf(", allocated in phase %s", phase);
    say_site(f, g->site);
    putchar('\n');
}

/* ", in iteration 3"; nothing before the first, and where nothing tells iterations apart. */
static void say_iteration(const footprint *f, const char *before, uint32_t position)
{
    uint32_t iteration = footprint_iteration_at(f, position);
    if (iteration > 0 && f->requests.mark_count > 1)
        printf("%s iteration %u", before, iteration);
}

static void say_peak(const footprint *f)
{
    char sizes[3][48], phase[PHASE_SIZE];
    printf("The peak\n");
    printf("  At most %s are live at once, in %u tensor%s: at event %u of %u",
           text_of(f, f->max_live_bytes, sizes, 0), f->max_live_count,
           cli_plural(f->max_live_count), f->max_live_at, f->requests.event_count);
    say_iteration(f, ", in", f->max_live_at);
    phase_of(f, footprint_phase_at(f, f->max_live_at), &phase);
    printf(phase[0] != '\0' ? ", phase %s.\n" : "%s.\n", phase);
    printf("  No allocator needs less. The most of it:\n");
    for (int i = 0; i < f->group_count && i < 5; i++) {
        printf("    %s (%.1f %%): ", text_of(f, f->groups[i].bytes, sizes, 0),
               share(f->groups[i].bytes, f->max_live_bytes));
        say_group(f, &f->groups[i]);
    }
    uint64_t sum = 0;
    footprint_class classes[PLEAT__CLASSES];
    int count = footprint_classes(f->has_phases, f->peak.bytes, NULL, classes);
    for (int i = 0; i < count; i++)
        sum += classes[i].bytes;
    if (sum == 0)
        return;
    printf("  By how long they live, at the steady iteration's peak:\n");
    for (int i = 0; i < count; i++)
        if (classes[i].bytes > 0)
            printf("    %s %s (%.1f %%): %s\n", text_of(f, classes[i].bytes, sizes, 0),
                   classes[i].name, share(classes[i].bytes, sum), words_line(classes[i].name));
}

static void say_culprits(const footprint *f, const footprint_policy *p)
{
    char sizes[1][48];
    if (p->culprit_count == 0)
        return;
    printf("  The requests for which it took them:\n");
    for (int i = 0; i < p->culprit_count; i++) {
        printf("    by %s: ", text_of(f, p->culprits[i].bytes, sizes, 0));
        say_group(f, &p->culprits[i]);
    }
}

static void say_most(const footprint *f, const footprint_policy *p)
{
    char sizes[2][48], phase[PHASE_SIZE];
    phase_of(f, footprint_phase_at(f, p->peak_at), &phase);
    printf("  It reached its most at event %u", p->peak_at);
    say_iteration(f, ",", p->peak_at);
    printf("%s%s: for a tensor of %s, %s %s lay idle.\n", phase[0] != '\0' ? ", phase " : "", phase,
           text_of(f, p->peak_request_bytes, sizes, 0),
           p->peak_idle_bytes >= p->peak_request_bytes ? "although" : "while",
           text_of(f, p->peak_idle_bytes, sizes, 1));
}

static void say_native(const footprint *f, const growth *g)
{
    const footprint_policy *p = footprint_find(f, "native");
    char sizes[2][48], steps[FOOTPRINT_STEPS];
    uint64_t waste = footprint_waste(f, p);
    printf("\nPyTorch's native allocator\n");
    if (p->result.oom)
        printf("  Does not fit in %s%s. At request %llu of %u:\n  %s\n",
               cli_format_size(g->device_bytes, sizes[0], sizeof sizes[0]), device_note(g),
               (unsigned long long)p->result.stats.requests, f->requests.count, p->result.oom_text);
    else
        printf("  It takes %s: %s (%.1f %%) beyond what is live.\n",
               text_of(f, p->result.peak_physical_bytes, sizes, 0), text_of(f, waste, sizes, 1),
               share(waste, p->result.peak_physical_bytes));
    if (p->growths > 0)
        printf("  %s.\n", footprint_steps(p, f->max_live_bytes, steps));
    say_culprits(f, p);
    if (!p->result.oom)
        say_most(f, p);
}

static void say_growth(const options *o, const footprint *f, const growth *g)
{
    char device[48], words[GROWTH_WORDS];
    printf("\nRoom to grow\n");
    printf("  In %s%s:\n", cli_format_size(g->device_bytes, device, sizeof device), device_note(g));
    printf("  Under Pleat %s.\n", growth_words(&g->pleat, words));
    printf("  Under PyTorch's native allocator %s.\n", growth_words(&g->native, words));
    printf("  That is %s.\n",
           o->path_count > 1 ? "by the sizes of the recordings" : fit_assumption);
    if (g->pleat.bounded || g->native.bounded)
        printf("  Further than that the recordings cannot tell.\n");
    if (!advice_has_plan(f)) /* nor for several sizes */
        return;
    if (o->path_count > 1)
        printf("  One plan for all of them (pleat plan RECORDING RECORDING ...) needs no new one "
               "when it changes.\n");
    else
        printf("  Recordings at two microbatches give one plan for all of them (pleat plan A B), "
               "which needs no new one when the microbatch changes.\n");
}

/* Where the native allocator runs out: which of the others do not. */
static void say_what_fits(const footprint *f, const growth *g)
{
    static const struct {
        const char *policy, *text;
    } others[] = {{"pleat", "under Pleat, which learns the iteration"},
                  {"expandable", "with PyTorch's expandable segments"}};
    const char *how = g->scaled ? "estimated" : "measured";
    char sizes[2][48];
    bool any = false;
    if (!footprint_find(f, "native")->result.oom)
        return;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const replay_result *r = &footprint_find(f, others[i].policy)->result;
        if (!r->oom)
            printf("  It fits %s: in %s.\n", others[i].text,
                   text_of(f, r->peak_physical_bytes, sizes, 0));
        any |= !r->oom;
    }
    if (advice_has_plan(f) && f->trial.planned.bytes <= g->device_bytes) {
        printf("  It fits under Pleat with a plan made beforehand (pleat plan): in %s.\n",
               text_of(f, f->trial.planned.bytes, sizes, 0));
        any = true;
    }
    if (!any)
        printf("  Under none of the allocators here does all of it fit: it needs %s at least.\n",
               text_of(f, f->max_live_bytes, sizes, 0));
    if (!any && g->pleat.step != 0)
        printf("  It fits under Pleat at %.3g times the microbatch: in %s, %s.\n", g->pleat.times,
               text_of(f, g->pleat.physical_bytes, sizes, 0), how);
    if (g->half.step != 0)
        printf("  It fits at half the microbatch: in %s, %s.\n",
               text_of(f, g->half.physical_bytes, sizes, 0), how);
}

/* What `pleat plan` says of its plan, by the same trial. */
static void say_plan(const footprint *f)
{
    char sizes[3][48];
    if (f->plan == NULL) {
        printf("  There is no plan of it: %s.\n", f->why_no_plan);
        return;
    }
    printf(
        "  A plan made beforehand (pleat plan) takes %s for the steady iteration, %.2f %% beyond "
        "what is live.\n",
        text_of(f, gap_taken(&f->gap), sizes, 0),
        share(gap_taken(&f->gap) - f->gap.live, f->gap.live));
    if (!f->trial.run) {
        printf("  It was not replayed (%s): whether learning does as well is not known.\n",
               f->trial.why_not);
        return;
    }
    printf("  Replayed, the job takes %s with it and %s where Pleat learns",
           text_of(f, f->trial.planned.bytes, sizes, 1),
           text_of(f, f->trial.learned.bytes, sizes, 2));
    if (advice_has_plan(f))
        puts(".");
    else
        printf(". A run would not follow the plan: %s.\n", plan_trial_sentence(&f->trial));
}

static void say_advice(const options *o, const footprint *f, const growth *g)
{
    char done[ADVICE_DONE];
    advice all[ADVICE_MOST];
    int count = advise(f, g, all);
    char sizes[3][48];
    printf("\nWhat would help\n");
    say_what_fits(f, g);
    for (int i = 0; i < count; i++)
        printf("  %-11s %11s less: %s\n%26s%s\n", all[i].how, text_of(f, all[i].saved, sizes, 0),
               all[i].text, "", advice_done(&all[i], o->paths[0], done));
    if (advice_is_none(f, count))
        printf("  Nothing known here saves a hundredth of it.\n");
    say_plan(f);
}

static void growth_json(json_writer *json, const options *o, const growth *g)
{
    json_object(json, "growth");
    json_uint(json, "device_bytes", g->device_bytes);
    json_string(json, "sizes", o->path_count > 1 ? "recipe" : "scale");
    json_double(json, "native_times", g->native.times);
    json_double(json, "pleat_times", g->pleat.times);
    if (g->half.step != 0)
        json_uint(json, "half_physical_bytes", g->half.physical_bytes);
    json_end_object(json);
}

static void print_json(const options *o, const footprint *f, const growth *g, const refusal *r)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "trace", o->paths[0]);
    footprint_json(&json, f);
    refusal_json(&json, r);
    advice_json(&json, f, g, o->paths[0]);
    growth_json(&json, o, g);
    json_end_object(&json);
    json_finish(&json);
}

static int explain_traces(const options *o, const pleat_trace *const *traces, bool several)
{
    static const char *const policies[] = {"native", "expandable", "pleat"};
    const footprint_options wanted = {.policies = policies,
                                      .policy_count = 3,
                                      .device_bytes = o->device_bytes,
                                      .several = several};
    footprint f;
    growth g = {0};
    refusal r = {0};
    progress_whole("explain", 3);
    progress_stage();
    pleat_result result = footprint_make(traces[0], &wanted, &f);
    if (result == PLEAT_OK) {
        result = growth_find(traces, o->path_count, o->device_bytes, &f, &g);
        if (result == PLEAT_E_INPUT)
            result = cli_in_files(result, o->paths, o->path_count);
        if (result == PLEAT_OK)
            result = refusal_find(traces[0], o->device_bytes, &r);
        progress_whole_end();
        if (result == PLEAT_OK && o->json) {
            print_json(o, &f, &g, &r);
        } else if (result == PLEAT_OK) {
            refusal_text(&r);
            say_peak(&f);
            say_native(&f, &g);
            say_advice(o, &f, &g);
            say_growth(o, &f, &g);
        }
        footprint_free(&f);
    }
    progress_whole_end();
    return result == PLEAT_OK ? CLI_DONE : cli_failed("explain", result);
}

static int explain(void *self, pleat_trace *trace, int device)
{
    const options *o = self;
    pleat_trace *traces[PLEAT__TRACES_MOST] = {trace};
    pleat_result result = PLEAT_OK;
    if (o->budget.bytes != 0) {
        budget_question asked = o->budget;
        asked.json = o->json;
        asked.path = o->paths[0];
        int answer = explain_budget(trace, device > 0 ? (uint32_t)device : 0, &asked);
        pleat_trace_free(trace);
        return answer;
    }
    result = device_import_others(o->paths, o->path_count, device, traces);
    int code = result == PLEAT_OK ? explain_traces(o, (const pleat_trace *const *)traces,
                                                   device != PLEAT__ANY_DEVICE)
                                  : cli_failed("explain", result);
    for (uint32_t i = 0; i < o->path_count; i++)
        pleat_trace_free(traces[i]);
    return code;
}

/* An option of --budget's, which is not given, or of blocks' times, which are not. */
static int without_budget(const options *o)
{
    const char *timed = o->budget.times.attention_count > 0 ? "--attention-ns"
                        : o->budget.times.link != 0         ? "--link"
                                                            : NULL;
    const char *given = o->budget.times.block_ns != NULL ? "--block-ns" : timed;
    if (o->budget.bytes == 0 && given != NULL)
        return cli_bad_use("explain", "%s is for --budget, which is not given", given);
    if (o->budget.times.block_ns == NULL && timed != NULL)
        return cli_bad_use(
            "explain", "%s is held against the nanoseconds of each block: with --block-ns", timed);
    return CLI_DONE;
}

int cli_explain(int argc, char **argv)
{
    static uint64_t blocks[RECOMPUTE_BLOCKS_MOST], attentions[RECOMPUTE_BLOCKS_MOST];
    cli_list block_ns = {blocks, RECOMPUTE_BLOCKS_MOST, 0};
    cli_list attention_ns = {attentions, RECOMPUTE_BLOCKS_MOST, 0};
    options o = {0};
    int first;
    const cli_option table[] = {
        OPTION_MEMORY(&o.device_bytes),
        OPTION_DEVICE(&o.device),
        OPTION_BYTES('B', "budget", &o.budget.bytes, "SIZE", CLI_LEAST_MEMORY,
                     "instead: what of the model must be computed again to stay within\n"
                     "this, of a recording under 'pleat run --recompute auto'"),
        OPTION_LIST('\0', "block-ns", &block_ns, 0, NS_MOST,
                    "with --budget: nanoseconds of each block's forward"),
        OPTION_LIST('\0', "attention-ns", &attention_ns, 0, NS_MOST,
                    "with --block-ns: nanoseconds of attention in them, which may be kept"),
        OPTION_BYTES('\0', "link", &o.budget.times.link, "SIZE", 0,
                     "with --block-ns: bytes a second between host and device, so that\n"
                     "blocks may be offloaded"),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "explain",
        .synopsis = "TRACE [SAME-JOB-AT-ANOTHER-MICROBATCH ...] [options]",
        .text = "Says in words which tensors make a recorded job's peak, why PyTorch's native "
                "allocator takes\n"
                "more than that, and what would help, with figures.\n"
                "TRACE is a trace or whatever 'pleat import' reads.\n",
        .options = table,
        .operand = "one trace or more",
        .most = PLEAT__TRACES_MOST,
        .is_input = true,
    };
    int code = cli_read(argc, argv, &usage, &first);
    if (code != CLI_GO_ON)
        return code;
    cli_forget_limits();
    o.budget.times.block_ns = block_ns.count > 0 ? blocks : NULL;
    o.budget.times.block_count = block_ns.count;
    o.budget.times.attention_ns = attentions;
    o.budget.times.attention_count = attention_ns.count;
    code = without_budget(&o);
    if (code != CLI_DONE)
        return code;
    o.paths = (const char *const *)argv + first;
    o.path_count = (uint32_t)(argc - first);
    if (o.budget.bytes != 0 && o.path_count > 1)
        return cli_bad_use("explain", "--budget is of one trace, got %u", o.path_count);
    return devices_run(&(device_run){.command = "explain",
                                     .path = o.paths[0],
                                     .asked = o.device,
                                     .json = o.json,
                                     .run = explain,
                                     .options = &o});
}
