/*
 * report.c: `pleat report`: a job's physical against its virtual footprint, as a page.
 */
#include "../cli.h"
#include "../footprint.h"
#include "../options.h"
#include "../page.h"

#include <internal/error.h>
#include <plan/import.h>

#include <stdlib.h>
#include <string.h>

typedef struct options {
    footprint_options footprint;
    const char *trace;
    const char *output;
    bool json;
} options;

/* The caller frees it. */
static pleat_result figures_of(const options *o, const footprint *f, char **text)
{
    size_t size;
    json_writer json;
    *text = NULL;
    FILE *out = open_memstream(text, &size);
    if (out == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the figures");
    json_begin(&json, out);
    json_object(&json, NULL);
    json_string(&json, "trace", o->trace);
    footprint_json(&json, f);
    json_end_object(&json);
    json_finish(&json);
    return fclose(out) == 0 ? PLEAT_OK
                            : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the figures");
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static pleat_result write_report(const options *o, const footprint *f)
{
    char *figures;
    pleat_result result = figures_of(o, f, &figures);
    if (result == PLEAT_OK && o->output != NULL)
        result = page_write(f, base_name(o->trace), figures, o->output);
    if (result == PLEAT_OK && o->json)
        fputs(figures, stdout);
    else if (result == PLEAT_OK)
        printf("%s: open it in a browser\n", o->output);
    free(figures);
    return result;
}

static int report(const options *o)
{
    pleat_trace *trace;
    footprint f;
    if (o->output != NULL && !page_can_draw()) {
        fputs("pleat report: this pleat was built without the library that draws curves; install "
              "it (tools/setup, or the package libjs-dygraphs) and build again. --json without -o "
              "works\n",
              stderr);
        return CLI_FAILED;
    }
    pleat_result result = pleat__trace_open(o->trace, &trace);
    if (result != PLEAT_OK)
        return cli_failed("report", result);
    result = footprint_make(trace, &o->footprint, &f);
    if (result == PLEAT_OK) {
        result = write_report(o, &f);
        footprint_free(&f);
    }
    pleat_trace_free(trace);
    return result == PLEAT_OK ? CLI_DONE : cli_failed("report", result);
}

int cli_report(int argc, char **argv)
{
    const char *names[FOOTPRINT_POLICIES];
    options o = {.footprint.policies = names};
    const char *policies = "native,expandable,gmlake,stweaver,pleat";
    const cli_option table[] = {
        OPTION_TEXT('o', "output", &o.output, "PAGE", "the file to write"),
        OPTION_TEXT('P', "plan", &o.footprint.plan, "PLAN",
                    "draw this plan, and run the policy pleat with it"),
        OPTION_POLICIES(&policies),
        OPTION_BUDGET(&o.footprint.budget_bytes),
        OPTION_MEMORY(&o.footprint.device_bytes),
        OPTION_FLAG(
            'j', "json", &o.json,
            "the page's figures as one JSON object on standard output;\nwithout -o only them"),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "report",
        .synopsis = "TRACE -o PAGE.html [options]",
        .text = "Runs a recorded job's allocations through several allocators on host memory, "
                "plans it, and\n"
                "draws what it takes: memory over time, the plan's address map and its chunks, "
                "where the gap\n"
                "to max-live comes from, what makes the peak. One HTML file that needs nothing "
                "else.\n"
                "TRACE is a trace or whatever 'pleat import' reads.\n",
        .options = table,
        .operand = "one trace",
        .value = &o.trace,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    if (o.output == NULL && !o.json)
        return cli_bad_use("report", "where to? Give -o PAGE.html");
    o.footprint.policy_count = replay_parse_policies("report", policies, names, FOOTPRINT_POLICIES);
    return o.footprint.policy_count == 0 ? CLI_BAD_USE : report(&o);
}
