/*
 * bench_alloc.c: `pleat bench alloc`: what an allocation and a free cost on the host, policy beside
 * policy, in one run and one thread, on a job made for it: a deep model's iteration of as many
 * requests as asked for, so that the metadata is far larger than any cache. With --live on one in
 * which nothing repeats (bench_live.h).
 */
#include <tools/bench/bench.h>
#include <tools/bench/bench_live.h>

#include <tools/json.h>
#include <tools/options.h>
#include <tools/replay/replay.h>

#include <internal/error.h>
#include <runtime/base/policy.h>

#include <stdlib.h>
#include <string.h>

#define POLICY_MOST 8
#define ITERATIONS  4

/* ---- the job ---- */

#define LAYER_KEPT    6u
#define LAYER_PASSING 17u /* in the forward, and as many in the backward */
#define LAYER_TOTAL   (LAYER_KEPT + 2 * LAYER_PASSING)
#define PASSING_LIVE  4u /* of them at a time */

static const uint64_t kept_sizes[LAYER_KEPT] = {4 << 10,    96 << 10, 640 << 10,
                                                1536 << 10, 3 << 20,  5 << 20};
static const uint64_t passing_sizes[LAYER_PASSING] = {
    512,     2 << 10,  24 << 10, 256 << 10, 1 << 20,  1280 << 10, 2 << 20,   3 << 20, 5 << 20,
    8 << 20, 12 << 20, 1 << 10,  4 << 20,   20 << 20, 40 << 10,   768 << 10, 6 << 20};

typedef struct job {
    pleat_trace *trace;
    uint32_t next;
    uint32_t labels[2];
    pleat_result result; /* the first failure; later events are dropped */
} job;

static void add_event(job *j, pleat_event_kind kind, uint32_t request, uint64_t size, int phase)
{
    pleat_trace_event event = {
        .kind = (uint8_t)kind, .label = j->labels[phase], .request = request, .size = size};
    if (j->result == PLEAT_OK)
        j->result = pleat_trace_add(j->trace, &event);
}

static uint32_t add_alloc(job *j, uint64_t size, int phase)
{
    add_event(j, PLEAT_EVENT_ALLOC, j->next, size, phase);
    return j->next++;
}

static void add_free(job *j, uint32_t request, int phase)
{
    add_event(j, PLEAT_EVENT_FREE_REQUESTED, request, 0, phase);
    add_event(j, PLEAT_EVENT_FREE_COMPLETED, request, 0, phase);
}

static void add_passing(job *j, uint32_t layer, int phase)
{
    uint32_t live[LAYER_PASSING];
    for (uint32_t i = 0; i < LAYER_PASSING; i++) {
        live[i] = add_alloc(j, passing_sizes[(i * 5 + layer % 3) % LAYER_PASSING], phase);
        if (i >= PASSING_LIVE)
            add_free(j, live[i - PASSING_LIVE], phase);
    }
    for (uint32_t i = LAYER_PASSING - PASSING_LIVE; i < LAYER_PASSING; i++)
        add_free(j, live[i], phase);
}

static void add_iteration(job *j, uint32_t layers, uint32_t *kept)
{
    add_event(j, PLEAT_EVENT_MARK, 0, 0, 0);
    for (uint32_t layer = 0; layer < layers; layer++) {
        add_passing(j, layer, 0);
        for (uint32_t i = 0; i < LAYER_KEPT; i++)
            kept[layer * LAYER_KEPT + i] = add_alloc(j, kept_sizes[(i + layer) % LAYER_KEPT], 0);
    }
    for (uint32_t layer = layers; layer-- > 0;) {
        add_passing(j, layer, 1);
        for (uint32_t i = LAYER_KEPT; i-- > 0;)
            add_free(j, kept[layer * LAYER_KEPT + i], 1);
    }
}

/* Of an iteration: one at least. */
static uint32_t layers_of(uint32_t requests)
{
    return requests / LAYER_TOTAL > 0 ? requests / LAYER_TOTAL : 1;
}

static pleat_result make_job(uint32_t requests, pleat_trace **out)
{
    job j = {0};
    uint32_t layers = layers_of(requests);
    uint32_t *kept = calloc((size_t)layers * LAYER_KEPT, sizeof *kept);
    if (kept == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", requests);
    uint16_t stream;
    j.result = pleat_trace_new(&j.trace);
    if (j.result == PLEAT_OK)
        j.result = pleat_trace_add_stream(j.trace, 0, &stream);
    for (int phase = 0; phase < 2 && j.result == PLEAT_OK; phase++)
        j.result =
            pleat_trace_add_label(j.trace, phase ? "phase=B" : "phase=F", 7, &j.labels[phase]);
    for (int i = 0; i < ITERATIONS && j.result == PLEAT_OK; i++)
        add_iteration(&j, layers, kept);
    /* The last one is whole only before a mark. */
    add_event(&j, PLEAT_EVENT_MARK, 0, 0, 0);
    add_free(&j, add_alloc(&j, 512, 0), 0);
    free(kept);
    if (j.result != PLEAT_OK)
        pleat_trace_free(j.trace);
    else
        *out = j.trace;
    return j.result;
}

/* ---- the measurement ---- */

typedef struct options {
    uint32_t requests;
    const char *policies[POLICY_MOST];
    int count;
    bool json;
} options;

static void print_json(const options *o, const replay_result *results)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_uint(&json, "iteration_requests", layers_of(o->requests) * LAYER_TOTAL);
    json_array(&json, "policies");
    for (int i = 0; i < o->count; i++) {
        json_object(&json, NULL);
        json_string(&json, "policy", results[i].policy);
        json_double(&json, "planned_share", results[i].steady_planned_share);
        json_double(&json, "alloc_ns", results[i].timed.alloc_ns);
        json_double(&json, "alloc_p99_ns", results[i].timed.alloc_p99_ns);
        json_double(&json, "free_ns", results[i].timed.free_ns);
        json_double(&json, "free_p99_ns", results[i].timed.free_p99_ns);
        json_uint(&json, "metadata_bytes", results[i].stats.metadata_bytes);
        json_double(&json, "efficiency", results[i].steady_efficiency);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_end_object(&json);
    json_finish(&json);
}

static void print_table(const options *o, const replay_result *results)
{
    static const char *const headings[] = {"policy",  "planned", "alloc ns", "p99 ns",
                                           "free ns", "p99 ns",  "metadata"};
    cli_table table;
    char size[48];
    if (!cli_table_begin(&table, 7, headings))
        return;
    for (int i = 0; i < o->count && cli_table_row(&table); i++) {
        const replay_result *r = &results[i];
        cli_table_cell(&table, 0, "%s", r->policy);
        cli_table_cell(&table, 1, "%.1f %%", r->steady_planned_share * 100);
        cli_table_cell(&table, 2, "%.0f", r->timed.alloc_ns);
        cli_table_cell(&table, 3, "%.0f", r->timed.alloc_p99_ns);
        cli_table_cell(&table, 4, "%.0f", r->timed.free_ns);
        cli_table_cell(&table, 5, "%.0f", r->timed.free_p99_ns);
        cli_table_cell(&table, 6, "%s",
                       cli_format_size(r->stats.metadata_bytes, size, sizeof size));
    }
    cli_table_end(&table, stdout);
}

static pleat_result measure(const options *o, const pleat_trace *trace, replay_result *results)
{
    pleat_plan *plan = NULL;
    pleat_result result = PLEAT_OK;
    pleat_plan_options fast = {.size = sizeof fast};
    for (int i = 0; i < o->count && result == PLEAT_OK; i++) {
        replay_options replay = {.policy = o->policies[i]};
        bool planned = strcmp(o->policies[i], "pleat") == 0;
        if (planned && plan == NULL)
            result = pleat_plan_make(trace, &fast, &plan);
        replay.plan = planned ? plan : NULL;
        if (result == PLEAT_OK)
            result = replay_run(trace, &replay, &results[i]);
    }
    pleat_plan_free(plan);
    return result;
}

static int bench(const options *o)
{
    pleat_trace *trace = NULL;
    replay_result results[POLICY_MOST];
    pleat_result result = make_job(o->requests, &trace);
    if (result != PLEAT_OK)
        return cli_failed("bench alloc", result);
    result = measure(o, trace, results);
    pleat_trace_free(trace);
    if (result != PLEAT_OK)
        return cli_failed("bench alloc", result);
    if (o->json)
        print_json(o, results);
    else
        print_table(o, results);
    for (int i = 0; i < o->count; i++) {
        if (!results[i].oom)
            continue;
        fprintf(stderr, "pleat bench alloc: %s: %s\n", results[i].policy, results[i].oom_text);
        return CLI_OUT_OF_MEMORY;
    }
    return CLI_DONE;
}

int bench_alloc(int argc, char **argv)
{
    options o = {.requests = 300000};
    const char *policies = "pleat,native,expandable";
    uint64_t counts[8];
    cli_list live = {counts, sizeof counts / sizeof *counts, 0};
    const cli_option table[] = {
        OPTION_COUNT('n', "requests", &o.requests, "N", 1, 4000000,
                     "requests in an iteration, 40 a layer, or timed with --live (300000)"),
        OPTION_LIST('l', "live", &live, 1, BENCH_LIVE_MOST,
                    "with so many live tensors of all sizes, none of which comes again"),
        OPTION_TEXT('p', "policies", &policies, "A,B,…", "which (pleat,native,expandable)"),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "bench alloc",
        .synopsis = "[options]",
        .text =
            "Times allocations and frees, policy beside policy, on the host backend. The job "
            "is made up: a\n"
            "deep model whose layers keep six tensors for their backward and use thirty-four "
            "in passing.\n"
            "'pleat' follows a plan made beforehand. Times are of the steady iterations, the "
            "clock's own\n"
            "cost taken off.\n"
            "With --live nothing repeats and there is no plan: tensors drawn at random are freed "
            "and others\n"
            "allocated, at first as often as there are live ones and then timed. 'most' is the "
            "longest call\n"
            "then, 'fill' the longest of the first allocations.\n",
        .options = table,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    o.count = replay_parse_policies("bench alloc", policies, o.policies, POLICY_MOST);
    if (o.count == 0)
        return CLI_BAD_USE;
    return live.count > 0
               ? bench_live(o.policies, (uint32_t)o.count, counts, live.count, o.requests, o.json)
               : bench(&o);
}
