/*
 * report.c: `pleat report`: a job's physical against its virtual footprint, as a page.
 */
#include "../cli.h"
#include "../footprint.h"
#include "../page.h"

#include <internal/error.h>
#include <plan/import.h>

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: pleat report TRACE -o PAGE.html [options]\n"
    "\n"
    "Runs a recorded job's allocations through several allocators on host memory, plans it, and\n"
    "draws what it takes: memory over time, the plan's address map and its chunks, where the gap\n"
    "to max-live comes from, what makes the peak. One HTML file that needs nothing else.\n"
    "TRACE is a trace or whatever 'pleat import' reads.\n"
    "\n"
    "  -o, --output PAGE      the file to write\n"
    "  -P, --plan PLAN        draw this plan, and run the policy pleat with it\n"
    "  -p, --policies A,B,…   which (native,expandable,gmlake,stweaver,pleat)\n"
    "  -B, --budget SIZE      never more memory than this\n"
    "  -d, --device-memory S  what the device has (the recording's, or 140GiB)\n"
    "  -j, --json             the page's figures as one JSON object on standard output;\n"
    "                         without -o only them\n"
    "  -h, --help\n";

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
    static const struct option longs[] = {
        {"output", required_argument, NULL, 'o'},
        {"plan", required_argument, NULL, 'P'},
        {"policies", required_argument, NULL, 'p'},
        {"budget", required_argument, NULL, 'B'},
        {"device-memory", required_argument, NULL, 'd'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    static char all[] = "native,expandable,gmlake,stweaver,pleat";
    const char *names[FOOTPRINT_POLICIES];
    options o = {.footprint.policies = names};
    char *policies = all;
    for (int c; (c = getopt_long(argc, argv, "o:P:p:B:d:jh", longs, NULL)) != -1;) {
        switch (c) {
        case 'o':
            o.output = optarg;
            break;
        case 'P':
            o.footprint.plan = optarg;
            break;
        case 'p':
            policies = optarg;
            break;
        case 'B':
            if (!cli_parse_size(optarg, &o.footprint.budget_bytes))
                return cli_bad_use("report", "--budget is a size, not '%s'", optarg);
            break;
        case 'd':
            if (!cli_parse_size(optarg, &o.footprint.device_bytes))
                return cli_bad_use("report", "--device-memory is a size, not '%s'", optarg);
            break;
        case 'j':
            o.json = true;
            break;
        case 'h':
            fputs(help, stdout);
            return CLI_DONE;
        default:
            return CLI_BAD_USE;
        }
    }
    if (argc - optind != 1)
        return cli_bad_use("report", "takes one trace, got %d", argc - optind);
    if (o.output == NULL && !o.json)
        return cli_bad_use("report", "where to? Give -o PAGE.html");
    o.trace = argv[optind];
    o.footprint.policy_count = replay_parse_policies("report", policies, names, FOOTPRINT_POLICIES);
    return o.footprint.policy_count == 0 ? CLI_BAD_USE : report(&o);
}
