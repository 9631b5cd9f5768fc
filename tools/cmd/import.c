/*
 * import.c: `pleat import`: a recording as a trace file, and what is in it.
 */
#include <tools/analysis/refusal.h>
#include <tools/cli.h>
#include <tools/json.h>
#include <tools/options.h>
#include <tools/replay/devices.h>
#include <tools/replay/replay.h>

#include <internal/error.h>
#include <plan/trace/import.h>
#include <stdio.h>
#include <string.h>

typedef struct options {
    const char *input;
    const char *output;
    const char *device;
    uint64_t device_bytes;
    uint32_t iterations; /* 0: all */
    pleat__trace_form form;
    bool json;
} options;

/* What a trace holds. */
typedef struct summary {
    uint64_t kinds[PLEAT_EVENT_SEGMENT_FREE + 1];
    uint64_t peak_live_bytes;
    uint64_t peak_segment_bytes;
    bool devices[UINT8_MAX + 1];
} summary;

static summary summarize(const pleat_trace *trace)
{
    summary s = {0};
    uint64_t segments = 0;
    const pleat_trace_event *events = pleat_trace_events(trace);
    s.peak_live_bytes = replay_peak_live(trace);
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++) {
        s.kinds[events[i].kind]++;
        s.devices[events[i].device] = true;
        if (events[i].kind == PLEAT_EVENT_SEGMENT_ALLOC)
            segments += events[i].size;
        if (events[i].kind == PLEAT_EVENT_SEGMENT_FREE)
            segments -= events[i].size;
        s.peak_segment_bytes = segments > s.peak_segment_bytes ? segments : s.peak_segment_bytes;
    }
    return s;
}

static void print_json(const pleat_trace *trace, const summary *s, pleat__trace_form form)
{
    json_writer json;
    const pleat__refusal refused = pleat__trace_refusal(trace);
    char fingerprint[24];
    snprintf(fingerprint, sizeof fingerprint, "%016llx",
             (unsigned long long)pleat_trace_fingerprint(trace));
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "form", pleat__trace_form_name(form));
    json_uint(&json, "entries", pleat_trace_event_count(trace));
    json_uint(&json, "requests", pleat_trace_request_count(trace));
    json_uint(&json, "frees", s->kinds[PLEAT_EVENT_FREE_REQUESTED]);
    json_uint(&json, "marks", s->kinds[PLEAT_EVENT_MARK]);
    json_uint(&json, "segments", s->kinds[PLEAT_EVENT_SEGMENT_ALLOC]);
    json_uint(&json, "peak_live_bytes", s->peak_live_bytes);
    json_uint(&json, "peak_segment_bytes", s->peak_segment_bytes);
    json_uint(&json, "streams", pleat_trace_stream_count(trace));
    json_uint(&json, "labels", pleat_trace_label_count(trace) - 1);
    json_array(&json, "devices");
    for (int d = 0; d <= UINT8_MAX; d++) {
        if (s->devices[d])
            json_uint(&json, NULL, (uint64_t)d);
    }
    json_end_array(&json);
    json_uint(&json, "device_bytes", pleat_trace_device_bytes(trace));
    json_uint(&json, "refusals", refused.count);
    if (refused.count > 0) {
        json_uint(&json, "refused_bytes", refused.bytes);
        json_uint(&json, "refused_free_bytes", refused.free_bytes);
    }
    json_string(&json, "fingerprint", fingerprint);
    json_end_object(&json);
    json_finish(&json);
}

/* written: NULL: nothing was. */
static void print_table(const pleat_trace *trace, const summary *s, const options *o,
                        const char *written)
{
    char input[DEVICE_PATH_MOST], plain[4 * DEVICE_PATH_MOST];
    const char *headings[2] = {pleat__trace_form_name(o->form), ""};
    cli_table table;
    if (cli_table_begin(&table, 2, headings)) {
        cli_table_count(&table, "entries", pleat_trace_event_count(trace));
        cli_table_count(&table, "requests", pleat_trace_request_count(trace));
        cli_table_count(&table, "marks of iterations", s->kinds[PLEAT_EVENT_MARK]);
        cli_table_count(&table, "streams", pleat_trace_stream_count(trace));
        cli_table_count(&table, "labels", pleat_trace_label_count(trace) - 1);
        cli_table_size(&table, "peak live", s->peak_live_bytes);
        cli_table_size(&table, "peak of recorded segments", s->peak_segment_bytes);
        cli_table_end(&table, stdout);
    }
    if (written != NULL)
        printf("written to %s\n", cli_plain(written, strlen(written), plain, sizeof plain));
    const pleat__refusal refused = pleat__trace_refusal(trace);
    refusal_line(&refused, refusal_is_last(trace));
    if (refused.count > 0)
        printf("Who would have served it: pleat explain %s. Only recordings say it, not what is "
               "written here.\n",
               cli_quote(o->input, input, sizeof input));
}

/* The device of the trace's first allocation is the one whose iterations count. */
static pleat_result keep_beginning(uint32_t iterations, pleat_trace **trace)
{
    pleat_trace *beginning;
    PLEAT_TRY(
        pleat__trace_beginning(*trace, (uint32_t)device_first(*trace), iterations, &beginning));
    pleat_trace_free(*trace);
    *trace = beginning;
    return PLEAT_OK;
}

static int import(void *self, pleat_trace *trace, int device)
{
    const options *o = self;
    char path[DEVICE_PATH_MOST];
    const char *output = o->output != NULL ? device_path(o->output, trace, path) : NULL;
    pleat_result result = PLEAT_OK;
    (void)device;
    if (o->device_bytes != 0)
        pleat_trace_set_device_bytes(trace, o->device_bytes);
    if (o->iterations != 0) {
        result = keep_beginning(o->iterations, &trace);
        if (result != PLEAT_OK)
            result = pleat__context(result, "'%s'", o->input);
    }
    if (result == PLEAT_OK && output != NULL)
        result = pleat_trace_write(trace, output);
    int code = CLI_DONE;
    summary s = summarize(trace);
    if (result != PLEAT_OK)
        code = cli_failed("import", result);
    else if (o->json)
        print_json(trace, &s, o->form);
    else
        print_table(trace, &s, o, output);
    pleat_trace_free(trace);
    return code;
}

int cli_import(int argc, char **argv)
{
    options o = {0};
    const cli_option table[] = {
        OPTION_FILE('o', "output", &o.output, "TRACE", "the file to write"),
        OPTION_DEVICE(&o.device),
        OPTION_COUNT('n', "iterations", &o.iterations, "N", 1, 1000000,
                     "only the first N iterations, and what came before them"),
        OPTION_MEMORY_OF('d', "device-memory", &o.device_bytes,
                         "what the device has, or a GPU's name, for the trace to say"),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "import",
        .synopsis = "RECORDING [-o TRACE] [options]",
        .text =
            "Reads a recording and writes it as a trace, which other commands read faster.\n"
            "Without -o it only says what is in the recording. RECORDING, gzipped or not:\n"
            "  a torch memory snapshot    torch.cuda.memory._dump_snapshot(), or pickle.dump of\n"
            "                             torch.cuda.memory._snapshot() after\n"
            "                             torch.cuda.memory._record_memory_history()\n"
            "  a table of lifetimes       lines of id,lower,upper,size below such a header\n"
            "  a trace                    as this command writes them\n"
            "  -                          any of these from standard input\n",
        .options = table,
        .operand = "one recording",
        .is_input = true,
        .value = &o.input,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    code = devices_overwrite("import", o.input, o.output);
    if (code != CLI_DONE)
        return code;
    return devices_run(&(device_run){.command = "import",
                                     .path = o.input,
                                     .asked = o.device,
                                     .json = o.json,
                                     .takes_empty = true,
                                     .outputs = {o.output},
                                     .form = &o.form,
                                     .run = import,
                                     .options = &o});
}
