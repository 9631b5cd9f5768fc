/*
 * explain.c: `pleat explain`: where a job's memory goes, why the native allocator takes more, and
 * what would help, in words.
 *
 * SAVINGS  Those of an allocator are measured, by running the trace under it. Those of changes to
 *          the job are bounds from what is live at the peak of the steady iteration: whatever is
 *          kept from one phase for another (scoped) is all that recomputation could give up, and
 *          half the microbatch halves at most all that is not persistent.
 */
#include "../cli.h"
#include "../footprint.h"
#include "../options.h"

#include <plan/import.h>

typedef struct options {
    const char *trace;
    uint64_t device_bytes;
    bool json;
} options;

/* One thing to do, and the bytes it saves of what the native allocator takes. */
typedef struct advice {
    const char *what;
    const char *text;
    uint64_t saved;
    bool measured; /* else at most */
} advice;

#define ADVICE_MOST 5

static const char *text_of(uint64_t bytes, char (*buffers)[48], int i)
{
    return cli_format_size(bytes, buffers[i], sizeof buffers[i]);
}

static double share(uint64_t part, uint64_t whole)
{
    return whole != 0 ? 100.0 * (double)part / (double)whole : 0;
}

static uint64_t saved_by(const footprint *f, const char *policy)
{
    const footprint_policy *native = footprint_find(f, "native"),
                           *other = footprint_find(f, policy);
    uint64_t before = native->result.peak_physical_bytes;
    uint64_t after = other->result.peak_physical_bytes;
    return other->result.oom || after >= before ? 0 : before - after;
}

static void sort_advice(advice *all, int count)
{
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && all[k].saved > all[k - 1].saved; k--) {
            advice other = all[k];
            all[k] = all[k - 1];
            all[k - 1] = other;
        }
}

/* What saves a hundredth or more, most first. */
static int advise(const footprint *f, advice *all)
{
    const uint64_t *live = f->class_bytes;
    const uint64_t moving = live[PLEAT__CLASS_TRANSIENT] + live[PLEAT__CLASS_SCOPED] +
                            live[PLEAT__CLASS_CROSSING] + live[PLEAT__CLASS_DYNAMIC];
    const advice possible[ADVICE_MOST] = {
        {"pleat", "run it under Pleat", saved_by(f, "pleat"), true},
        {"expandable", "use PyTorch's expandable segments", saved_by(f, "expandable"), true},
        {"recompute", "recompute in backward what is kept for it now",
         f->has_gap ? live[PLEAT__CLASS_SCOPED] : 0, false},
        {"split", "halve the microbatch", f->has_gap ? moving / 2 : 0, false},
        {"offload", "keep half of what is persistent elsewhere (sharding, offloading)",
         f->has_gap ? live[PLEAT__CLASS_PERSISTENT] / 2 : 0, false},
    };
    int count = 0;
    for (int i = 0; i < ADVICE_MOST; i++)
        if (possible[i].saved > f->max_live_bytes / 100)
            all[count++] = possible[i];
    sort_advice(all, count);
    return count;
}

static void say_peak(const footprint *f)
{
    char sizes[3][48], phase[256];
    printf("The peak\n");
    printf("  At most %s are live at once, in %u tensors: at event %u of %u, in iteration %u",
           text_of(f->max_live_bytes, sizes, 0), f->max_live_count, f->max_live_at,
           f->requests.event_count, footprint_iteration_at(f, f->max_live_at));
    footprint_phase(f, footprint_phase_at(f, f->max_live_at), phase, sizeof phase);
    printf(phase[0] != '\0' ? ", phase %s.\n" : "%s.\n", phase);
    printf("  No allocator needs less. The most of it:\n");
    for (int i = 0; i < f->group_count && i < 5; i++) {
        const footprint_group *g = &f->groups[i];
        footprint_phase(f, g->phase, phase, sizeof phase);
        printf("    %s (%.1f %%): %u of %s%s%s\n", text_of(g->bytes, sizes, 0),
               share(g->bytes, f->max_live_bytes), g->count, text_of(g->size, sizes, 1),
               phase[0] != '\0' ? ", allocated in phase " : "", phase);
    }
    uint64_t sum = 0;
    for (int i = 0; i < PLEAT__CLASSES; i++)
        sum += f->class_bytes[i];
    if (sum == 0)
        return;
    printf("  By how long they live, at the steady iteration's peak:\n");
    for (int i = 0; i < PLEAT__CLASSES; i++)
        if (f->class_bytes[i] > 0)
            printf("    %s %s (%.1f %%)\n", text_of(f->class_bytes[i], sizes, 0),
                   footprint_class_names[i], share(f->class_bytes[i], sum));
}

static void say_native(const footprint *f)
{
    const footprint_policy *p = footprint_find(f, "native");
    char sizes[3][48], phase[256];
    uint64_t waste = footprint_waste(f, p);
    printf("\nPyTorch's native allocator\n");
    if (p->result.oom)
        printf("  Runs out of memory: %s\n", p->result.oom_text);
    printf("  It takes %s: %s (%.1f %%) beyond what is live.\n",
           text_of(p->result.peak_physical_bytes, sizes, 0), text_of(waste, sizes, 1),
           share(waste, p->result.peak_physical_bytes));
    printf("  It had to grow %u times; %u times although as many bytes as were asked for lay idle, "
           "but\n  in pieces or in blocks kept for other sizes: by %s together.\n",
           p->growths, p->split_growths, text_of(p->split_bytes, sizes, 0));
    footprint_phase(f, footprint_phase_at(f, p->peak_at), phase, sizeof phase);
    printf("  It reached its most at event %u, iteration %u%s%s: for a tensor of %s,\n  %s %s lay "
           "idle.\n",
           p->peak_at, footprint_iteration_at(f, p->peak_at), phase[0] != '\0' ? ", phase " : "",
           phase, text_of(p->peak_request_bytes, sizes, 0),
           p->peak_idle_bytes >= p->peak_request_bytes ? "although" : "while",
           text_of(p->peak_idle_bytes, sizes, 1));
}

static void say_advice(const footprint *f)
{
    advice all[ADVICE_MOST];
    int count = advise(f, all);
    char sizes[3][48];
    printf("\nWhat would help\n");
    for (int i = 0; i < count; i++)
        printf("  %s %s less: %s\n", all[i].measured ? "measured," : "at most, ",
               text_of(all[i].saved, sizes, 0), all[i].text);
    if (count == 0)
        printf("  Nothing known here saves a hundredth of it.\n");
    if (f->plan == NULL)
        printf("  No iteration repeats in this recording, so there is nothing to plan.\n");
    else if (f->has_gap)
        printf("  With a plan made beforehand (pleat plan) the steady iteration takes %s, %.2f %% "
               "beyond what is live.\n",
               text_of(f->gap.physical, sizes, 0),
               share(f->gap.physical - f->gap.live, f->gap.live));
}

static void print_json(const options *o, const footprint *f)
{
    advice all[ADVICE_MOST];
    int count = advise(f, all);
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "trace", o->trace);
    footprint_json(&json, f);
    json_array(&json, "advice");
    for (int i = 0; i < count; i++) {
        json_object(&json, NULL);
        json_string(&json, "what", all[i].what);
        json_string(&json, "text", all[i].text);
        json_uint(&json, "saved_bytes", all[i].saved);
        json_bool(&json, "measured", all[i].measured);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_end_object(&json);
    json_finish(&json);
}

static int explain(const options *o)
{
    static const char *const policies[] = {"native", "expandable", "pleat"};
    const footprint_options wanted = {
        .policies = policies, .policy_count = 3, .device_bytes = o->device_bytes};
    pleat_trace *trace;
    footprint f;
    pleat_result result = pleat__trace_open(o->trace, &trace);
    if (result != PLEAT_OK)
        return cli_failed("explain", result);
    result = footprint_make(trace, &wanted, &f);
    if (result == PLEAT_OK && o->json) {
        print_json(o, &f);
    } else if (result == PLEAT_OK) {
        say_peak(&f);
        say_native(&f);
        say_advice(&f);
    }
    int code = result == PLEAT_OK ? CLI_DONE : cli_failed("explain", result);
    if (result == PLEAT_OK)
        footprint_free(&f);
    pleat_trace_free(trace);
    return code;
}

int cli_explain(int argc, char **argv)
{
    options o = {0};
    const cli_option table[] = {
        OPTION_MEMORY(&o.device_bytes),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "explain",
        .synopsis = "TRACE [options]",
        .text = "Says in words which tensors make a recorded job's peak, why PyTorch's native "
                "allocator takes\n"
                "more than that, and what would help, with figures.\n"
                "TRACE is a trace or whatever 'pleat import' reads.\n",
        .options = table,
        .operand = "one trace",
        .value = &o.trace,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    return code != CLI_GO_ON ? code : explain(&o);
}
