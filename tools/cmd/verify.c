/*
 * verify.c: `pleat verify`: proves a plan.
 */
#include <tools/analysis/plan_json.h>
#include <tools/analysis/plan_trial.h>
#include <tools/cli.h>
#include <tools/json.h>
#include <tools/options.h>
#include <tools/replay/devices.h>

#include <internal/error.h>
#include <plan/base/plan.h>
#include <plan/sizes/planner.h>
#include <pleat/plan.h>

#include <string.h>
#include <unistd.h>

/* A plan for all sizes is of a trace when its instance at the trace's x has places for so many of a
 * hundred requests of the trace's iteration. */
#define COVERED_PERCENT 99u

typedef struct options {
    const char *plan;
    const char *trace;
    bool json;
} options;

static void print_cover(json_writer *json, const pleat__cover *cover)
{
    char text[64];
    json_string(json, "x", pleat__x_text(cover->x, text, sizeof text));
    json_uint(json, "trace_requests", cover->requests);
    json_uint(json, "covered_requests", cover->covered);
}

/* cover: how much of the trace a plan for all sizes is for; or NULL. */
static void print_json(const pleat_plan *plan, const pleat__cover *cover, pleat_result result)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_bool(&json, "holds", result == PLEAT_OK);
    if (result != PLEAT_OK)
        json_string(&json, "error", pleat_last_error()->text);
    else
        plan_json(&json, plan);
    if (cover != NULL)
        print_cover(&json, cover);
    json_end_object(&json);
    json_finish(&json);
}

static void print_line(const options *o, const pleat_plan *plan)
{
    char physical[48];
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    cli_format_size(summary.physical_bytes, physical, sizeof physical);
    printf(
        "%s holds%s%s: %llu request%s in an iteration, %s, %llu map%s, %llu of them aliases, %llu "
        "lane%s\n",
        o->plan, o->trace ? " for " : "", o->trace ? o->trace : "",
        (unsigned long long)summary.iteration_requests, cli_plural(summary.iteration_requests),
        physical, (unsigned long long)summary.maps, cli_plural(summary.maps),
        (unsigned long long)summary.alias_maps, (unsigned long long)summary.lanes,
        cli_plural(summary.lanes));
    if (plan->answers_only)
        puts("It answers questions and " PLAN_IS_NOT_FOLLOWED ".");
}

static void print_at(const options *o, const pleat__cover *cover)
{
    char text[64];
    printf("at x = %s, which %s has: places for %u of the %u request%s of its iteration\n",
           pleat__x_text(cover->x, text, sizeof text), o->trace, cover->covered, cover->requests,
           cli_plural(cover->requests));
}

/* The plan becomes its instance at the trace's x. */
static pleat_result verify_at(const options *o, const pleat_trace *trace, pleat_plan **plan,
                              pleat__cover *cover)
{
    pleat_plan *instance;
    char text[64];
    pleat_result result = pleat__elastic_cover(*plan, trace, cover, &instance);
    if (result != PLEAT_OK)
        return pleat__context(result, "'%s' for '%s'", o->plan, o->trace);
    pleat_plan_free(*plan);
    *plan = instance;
    if ((uint64_t)cover->covered * 100 < (uint64_t)cover->requests * COVERED_PERCENT)
        return pleat__fail(PLEAT_E_VERIFY,
                           "'%s' at x = %s has places for %u of the %u requests that '%s' has in "
                           "an iteration",
                           o->plan, pleat__x_text(cover->x, text, sizeof text), cover->covered,
                           cover->requests, o->trace);
    return PLEAT_OK;
}

static pleat_result verify_for(const options *o, const pleat_trace *trace, pleat_plan **plan,
                               pleat__cover *cover)
{
    if ((*plan)->recipe != NULL && (*plan)->fingerprint != pleat_trace_fingerprint(trace))
        return verify_at(o, trace, plan, cover);
    pleat_result result = pleat_plan_verify(*plan, trace);
    return result == PLEAT_OK ? result : pleat__context(result, "'%s' for '%s'", o->plan, o->trace);
}

/* `trace`: of one GPU, to be freed; NULL: the plan's of --trace, where that is given. */
static int verify(const options *o, pleat_trace *trace)
{
    pleat_plan *plan = NULL;
    pleat__cover cover = {.requests = 0};
    pleat_result result = cli_read_plan(o->plan, &plan); /* which proves it by itself */
    if (result == PLEAT_OK && o->trace != NULL && trace == NULL)
        result = device_import(o->trace, (int)pleat_plan_summary_of(plan).device, NULL, &trace);
    if (result == PLEAT_OK && trace != NULL)
        result = verify_for(o, trace, &plan, &cover);
    int code = result == PLEAT_OK ? CLI_DONE : cli_failed("verify", result);
    /* There is no x that the trace has: the plan is not of it. */
    code = result == PLEAT_E_NOT_FOUND ? CLI_NO : code;
    bool answered = result == PLEAT_OK || result == PLEAT_E_VERIFY || result == PLEAT_E_NOT_FOUND;
    if (o->json && answered)
        print_json(plan, cover.requests != 0 ? &cover : NULL, result);
    else if (result == PLEAT_OK)
        print_line(o, plan);
    if (!o->json && result == PLEAT_OK && cover.requests != 0)
        print_at(o, &cover);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
    return code;
}

/* The plan of one GPU of the recording. */
static int verify_device(void *self, pleat_trace *trace, int device)
{
    options own = *(const options *)self;
    char path[DEVICE_PATH_MOST];
    (void)device;
    own.plan = device_path(own.plan, trace, path);
    return verify(&own, trace);
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
                "With a trace, also that the plan was made for it, request by request. A plan for\n"
                "all sizes is laid out for the trace's size, and must have a place for 99 of a\n"
                "hundred of its requests. %d in PLAN, with a recording of several GPUs, is the\n"
                "number of each.\n",
        .tail = "Exit status: 0 it holds; 1 it does not; 2 bad use; 3 a file is bad.\n",
        .options = table,
        .operand = "one plan",
        .value = &o.plan,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    code = cli_take_input("verify", &o.trace);
    if (code != CLI_DONE)
        return code;
    if (strstr(o.plan, "%d") == NULL || access(o.plan, F_OK) == 0)
        return verify(&o, NULL);
    if (o.trace == NULL)
        return cli_bad_use("verify",
                           "'%s' is a plan of each GPU: name that of one, or give --trace, the "
                           "recording of all",
                           o.plan);
    return devices_run(&(device_run){
        .command = "verify", .path = o.trace, .json = o.json, .run = verify_device, .options = &o});
}
