/*
 * verify.c: `pleat verify`: proves a plan.
 */
#include "../cli.h"
#include "../json.h"
#include "../options.h"

#include <internal/error.h>
#include <plan/elastic.h>
#include <plan/import.h>
#include <pleat/plan.h>

typedef struct options {
    const char *plan;
    const char *trace;
    bool json;
} options;

static void print_json(const pleat_plan *plan, pleat_result result)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_bool(&json, "holds", result == PLEAT_OK);
    if (result != PLEAT_OK)
        json_string(&json, "error", pleat_last_error()->text);
    if (plan != NULL) {
        pleat_plan_summary summary = pleat_plan_summary_of(plan);
        json_uint(&json, "requests", summary.requests);
        json_uint(&json, "iteration_requests", summary.iteration_requests);
        json_uint(&json, "dynamic_requests", summary.dynamic_requests);
        json_uint(&json, "max_live_bytes", summary.max_live_bytes);
        json_uint(&json, "virtual_bytes", summary.virtual_bytes);
        json_uint(&json, "physical_bytes", summary.physical_bytes);
        json_uint(&json, "maps", summary.maps);
        json_uint(&json, "alias_maps", summary.alias_maps);
        json_uint(&json, "handles", summary.handles);
        json_uint(&json, "lanes", summary.lanes);
    }
    json_end_object(&json);
    json_finish(&json);
}

static void print_line(const options *o, const pleat_plan *plan)
{
    char physical[48];
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    cli_format_size(summary.physical_bytes, physical, sizeof physical);
    printf("%s holds%s%s: %llu requests in an iteration, %s, %llu maps, %llu of them aliases, %llu "
           "lanes\n",
           o->plan, o->trace ? " for " : "", o->trace ? o->trace : "",
           (unsigned long long)summary.iteration_requests, physical,
           (unsigned long long)summary.maps, (unsigned long long)summary.alias_maps,
           (unsigned long long)summary.lanes);
}

static pleat_result verify_for(const options *o, const pleat_plan *plan, const pleat_trace *trace)
{
    char text[64];
    pleat_result result = pleat_plan_verify(plan, trace);
    if (result != PLEAT_OK && plan->recipe != NULL)
        return pleat__context(
            result, "'%s' is held against the recording at x = %s, which '%s' is not", o->plan,
            pleat__x_text(&plan->recipe->reference, text, sizeof text), o->trace);
    return result == PLEAT_OK ? result : pleat__context(result, "'%s' for '%s'", o->plan, o->trace);
}

static int verify(const options *o)
{
    pleat_trace *trace = NULL;
    pleat_plan *plan = NULL;
    pleat_result result = pleat_plan_read(o->plan, &plan); /* which proves it by itself */
    if (result == PLEAT_OK && o->trace != NULL)
        result =
            pleat__trace_import(o->trace, (int)pleat_plan_summary_of(plan).device, NULL, &trace);
    if (result == PLEAT_OK && trace != NULL)
        result = verify_for(o, plan, trace);
    int code = result == PLEAT_OK ? CLI_DONE : cli_failed("verify", result);
    if (o->json && (result == PLEAT_OK || result == PLEAT_E_VERIFY))
        print_json(plan, result);
    else if (result == PLEAT_OK)
        print_line(o, plan);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
    return code;
}

int cli_verify(int argc, char **argv)
{
    options o = {0};
    const cli_option table[] = {
        OPTION_TEXT('t', "trace", &o.trace, "TRACE",
                    "a trace or a recording as 'pleat import' takes it"),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "verify",
        .synopsis = "PLAN [options]",
        .text = "Proves that a plan holds: nothing that is live together shares a byte of memory,\n"
                "through all aliases; lanes are idle when they are used; streams share nothing.\n"
                "With a trace, also that the plan was made for it, request by request.\n",
        .tail = "Exit status: 0 it holds; 1 it does not; 2 bad use; 3 a file is bad.\n",
        .options = table,
        .operand = "one plan",
        .value = &o.plan,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    return code != CLI_GO_ON ? code : verify(&o);
}
