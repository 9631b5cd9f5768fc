/*
 * report.c: `pleat report`: a job's physical against its virtual footprint, as a page.
 */
#include <tools/analysis/advice.h>
#include <tools/cli.h>
#include <tools/progress.h>
#include <tools/replay/devices.h>
#include <tools/report/page.h>

#include <internal/error.h>
#include <plan/base/plan.h>
#include <plan/trace/import.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct options {
    footprint_options footprint;
    const char *trace; /* NULL: only the run */
    const char *log;   /* NULL: only the recording */
    const char *output;
    const char *device;
    bool json;
} options;

/* What the page and --json are about. */
typedef struct subject {
    const footprint *job; /* NULL: none */
    const runlog *run;    /* NULL: none */
    const growth *growth; /* of the job; NULL: none */
} subject;

/* The caller frees it. */
static pleat_result figures_of(const options *o, const subject *s, cli_text *text)
{
    json_writer json;
    PLEAT_TRY(cli_text_begin(text, "the figures"));
    json_begin(&json, text->out);
    json_object(&json, NULL);
    if (s->job != NULL) {
        json_string(&json, "trace", o->trace);
        footprint_json(&json, s->job);
        if (s->growth != NULL)
            advice_json(&json, s->job, s->growth, o->trace);
    }
    if (s->run != NULL) {
        run_figures figures = run_figures_of(s->run, s->job);
        run_json(&json, o->log, s->run, &figures);
    }
    json_end_object(&json);
    json_finish(&json);
    return cli_text_end(text, PLEAT_OK);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void say_written(const options *o, const subject *s)
{
    struct stat status;
    if (stat(o->output, &status) == 0 && S_ISREG(status.st_mode)) /* not a pipe, or /dev/null */
        printf("%s: open it in a browser\n", o->output);
    if (o->footprint.plan != NULL && s->job != NULL && s->job->plan->answers_only)
        printf("The plan %s " PLAN_IS_NOT_FOLLOWED ".\n", o->footprint.plan);
}

static pleat_result write_report(const options *o, const subject *s)
{
    cli_text figures;
    progress_note("writing");
    pleat_result result = figures_of(o, s, &figures);
    const page_content content = {.job = s->job,
                                  .run = s->run,
                                  .growth = s->growth,
                                  .name = base_name(s->job != NULL ? o->trace : o->log),
                                  .figures = figures.bytes};
    if (result == PLEAT_OK && o->output != NULL)
        result = page_write(&content, o->output);
    progress_whole_end();
    if (result == PLEAT_OK && o->json)
        fputs(figures.bytes, stdout);
    else if (result == PLEAT_OK)
        say_written(o, s);
    free(figures.bytes);
    return result;
}

/* With a recording, of it; then of the run, where there is one. */
static pleat_result report_job(const options *o, const pleat_trace *trace, subject *s)
{
    footprint f;
    if (trace == NULL)
        return write_report(o, s);
    pleat_result result = footprint_make(trace, &o->footprint, &f);
    if (result == PLEAT_OK) {
        growth g;
        s->job = &f;
        bool known = footprint_find(&f, "native") != NULL && footprint_find(&f, "pleat") != NULL &&
                     footprint_find(&f, "expandable") != NULL;
        bool plain = o->footprint.budget_bytes == 0 && o->footprint.plan == NULL;
        if (known)
            result = growth_find(&trace, 1, o->footprint.device_bytes, plain ? &f : NULL, &g);
        s->growth = known ? &g : NULL;
        if (result == PLEAT_OK)
            result = write_report(o, s);
        footprint_free(&f);
    }
    return result;
}

/* trace: NULL: only the run. */
static int report(void *self, pleat_trace *trace, int device)
{
    options own = *(const options *)self, *o = &own;
    char output[DEVICE_PATH_MOST];
    runlog run;
    own.footprint.several = device != PLEAT__ANY_DEVICE;
    subject s = {0};
    if (o->output != NULL && trace != NULL)
        o->output = device_path(o->output, trace, output);
    if (o->output != NULL && !page_can_draw()) {
        fputs("pleat report: this pleat was built without the library that draws curves; install "
              "it (tools/setup, or the package libjs-dygraphs) and build again. --json without -o "
              "works\n",
              stderr);
        pleat_trace_free(trace);
        return CLI_FAILED;
    }
    progress_whole("report", (uint32_t)o->footprint.policy_count + 2);
    pleat_result result = o->log != NULL ? runlog_open(o->log, &run) : PLEAT_OK;
    if (result == PLEAT_OK) {
        s.run = o->log != NULL ? &run : NULL;
        result = report_job(o, trace, &s);
    }
    if (s.run != NULL)
        runlog_close(&run);
    pleat_trace_free(trace);
    progress_whole_end();
    return result == PLEAT_OK ? CLI_DONE : cli_failed("report", result);
}

int cli_report(int argc, char **argv)
{
    const char *names[FOOTPRINT_POLICIES];
    options o = {.footprint.policies = names};
    const char *policies = "native,expandable,gmlake,stweaver,pleat";
    const cli_option table[] = {
        OPTION_FILE('o', "output", &o.output, "PAGE", "the file to write"),
        OPTION_TEXT('P', "plan", &o.footprint.plan, "PLAN",
                    "draw this plan, and run the policy pleat with it"),
        OPTION_TEXT('l', "log", &o.log, "LOG",
                    "draw the run that wrote this log (PLEAT_CONF=log:FILE), against its plan\n"
                    "or that of TRACE, which may then be left out"),
        OPTION_POLICIES(&policies),
        OPTION_BUDGET(&o.footprint.budget_bytes),
        OPTION_MEMORY(&o.footprint.device_bytes),
        OPTION_DEVICE(&o.device),
        OPTION_FLAG(
            'j', "json", &o.json,
            "the page's figures as one JSON object on standard output;\nwithout -o only them"),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "report",
        .synopsis = "[TRACE] -o PAGE.html [options]",
        .text = "Runs a recorded job's allocations through several allocators on host memory, "
                "plans it, and\n"
                "draws what it takes: memory over time, the plan's address map and its chunks, "
                "where the gap\n"
                "to max-live comes from, what makes the peak. One HTML file that needs nothing "
                "else.\n"
                "TRACE is a trace or whatever 'pleat import' reads.\n",
        .options = table,
        .operand = "one trace",
        .is_input = true,
        .value = &o.trace,
        .optional = true,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    cli_forget_limits();
    if (o.trace == NULL && o.log == NULL)
        return cli_bad_use("report", "takes one trace, got none; or give --log LOG");
    if (o.output == NULL && !o.json)
        return cli_bad_use("report", "where to? Give -o PAGE.html");
    const char *const inputs[] = {o.trace, o.log, o.footprint.plan};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i] != NULL && devices_overwrite("report", inputs[i], o.output) != CLI_DONE)
            return CLI_BAD_USE;
    o.footprint.policy_count = replay_parse_policies("report", policies, names, FOOTPRINT_POLICIES);
    if (o.footprint.policy_count == 0)
        return CLI_BAD_USE;
    if (o.trace == NULL)
        return report(&o, NULL, PLEAT__ANY_DEVICE);
    return devices_run(&(device_run){.command = "report",
                                     .path = o.trace,
                                     .asked = o.device,
                                     .json = o.json,
                                     .outputs = {o.output},
                                     .run = report,
                                     .options = &o});
}
