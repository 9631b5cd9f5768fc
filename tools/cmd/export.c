/*
 * export.c: `pleat export`: a trace in forms that other programs read.
 *
 * SNAPSHOT  A torch memory snapshot: tools/export_snapshot.c.
 * PERFETTO  Chrome's trace event format, as ui.perfetto.dev opens it: live and reserved bytes as
 *           counters, phases as slices, iterations as numbered instants, each tensor of 1 MiB or
 *           more as an asynchronous slice with the place in the program where it was allocated.
 * CSV       A table of lifetimes, `id,lower,upper,size`, in events of one device: MiniMalloc's. It
 *           knows no iterations.
 */
#include <tools/analysis/sites.h>
#include <tools/cli.h>
#include <tools/export_snapshot.h>
#include <tools/json.h>
#include <tools/options.h>
#include <tools/progress.h>
#include <tools/replay/devices.h>
#include <tools/replay/replay.h>

#include <internal/error.h>
#include <internal/range.h>
#include <internal/utf8.h>
#include <plan/trace/import.h>

#include <stdlib.h>
#include <string.h>

typedef pleat_result (*exporter)(const pleat_trace *trace, FILE *out);

/* Marks and labels that a form has no place for. */
typedef struct lost {
    uint32_t marks, labels;
} lost;

typedef struct options {
    const char *trace;
    const char *output;
    const char *device;
    const char *format;
    exporter write;
    bool json;
} options;

/* ---- perfetto ---- */

#define SLICE_LEAST (1u << 20)

typedef struct timeline {
    const pleat_trace *trace;
    json_writer json;
    uint64_t live[256], reserved[256]; /* by device */
    char phase[256];                   /* in force, by its slice, since `begun` */
    uint64_t begun;
    uint64_t now;       /* us since the first event */
    uint32_t *sites;    /* of each request */
    uint32_t iteration; /* marks so far */
} timeline;

static void name_device(timeline *t, unsigned device, const char *what, const char *name)
{
    json_object(&t->json, NULL);
    json_string(&t->json, "ph", "M");
    json_string(&t->json, "name", what);
    json_uint(&t->json, "pid", device);
    json_uint(&t->json, "tid", 0);
    json_uint(&t->json, "ts", 0);
    json_object(&t->json, "args");
    json_string(&t->json, "name", name);
    json_end_object(&t->json);
    json_end_object(&t->json);
}

static void name_devices(timeline *t)
{
    const pleat_trace_event *events = pleat_trace_events(t->trace);
    bool there[256] = {false};
    char name[32];
    for (size_t i = 0; i < pleat_trace_event_count(t->trace); i++)
        there[events[i].device] = true;
    for (unsigned device = 0; device < 256; device++) {
        snprintf(name, sizeof name, "GPU %u", device);
        if (there[device]) {
            name_device(t, device, "process_name", name);
            name_device(t, device, "thread_name", "phases");
        }
    }
}

static void open_event(timeline *t, const char *kind, const char *name, unsigned device)
{
    json_object(&t->json, NULL);
    json_string(&t->json, "ph", kind);
    json_string(&t->json, "name", name);
    json_uint(&t->json, "pid", device);
    json_uint(&t->json, "tid", 0);
    json_uint(&t->json, "ts", t->now);
}

static void put_counter(timeline *t, const char *name, unsigned device, uint64_t bytes)
{
    open_event(t, "C", name, device);
    json_object(&t->json, "args");
    json_uint(&t->json, "bytes", bytes);
    json_end_object(&t->json);
    json_end_object(&t->json);
}

static void put_tensor(timeline *t, const pleat_trace_event *event, const char *kind)
{
    char size[48], id[16], name[256];
    const char *frame;
    uint32_t site = t->sites[event->request];
    if (event->size < SLICE_LEAST)
        return;
    int length = (int)site_frame(t->trace, site, &frame);
    cli_format_size(event->size, size, sizeof size);
    snprintf(id, sizeof id, "0x%x", event->request);
    int room = (int)pleat__utf8_prefix(frame, (size_t)length, sizeof name - 64);
    snprintf(name, sizeof name, "%s%s%.*s", size, length > 0 ? " at " : "", room, frame);
    open_event(t, kind, name, event->device);
    json_string(&t->json, "cat", "tensor");
    json_string(&t->json, "id", id);
    json_object(&t->json, "args");
    json_uint(&t->json, "request", event->request);
    json_uint(&t->json, "bytes", event->size);
    if (site != 0)
        json_string(&t->json, "allocated_at", pleat_trace_site(t->trace, site));
    json_end_object(&t->json);
    json_end_object(&t->json);
}

static void close_phase(timeline *t, unsigned device)
{
    if (t->phase[0] == '\0')
        return;
    uint64_t now = t->now;
    t->now = t->begun;
    open_event(t, "X", t->phase, device);
    t->now = now;
    json_uint(&t->json, "dur", now - t->begun);
    json_end_object(&t->json);
}

static void enter_phase(timeline *t, const pleat_trace_event *event)
{
    size_t length;
    const char *text = pleat__phase_text(pleat_trace_label(t->trace, event->label), &length);
    length = length < sizeof t->phase ? length : sizeof t->phase - 1;
    if (event->label == 0 || (strlen(t->phase) == length && memcmp(t->phase, text, length) == 0))
        return;
    close_phase(t, event->device);
    memcpy(t->phase, text, length);
    t->phase[length] = '\0';
    t->begun = t->now;
}

static void put_timed(timeline *t, const pleat_trace_event *event)
{
    uint64_t rounded = pleat__rounded(event->size);
    unsigned device = event->device;
    char name[32];
    enter_phase(t, event);
    switch (event->kind) {
    case PLEAT_EVENT_ALLOC:
        put_tensor(t, event, "b");
        put_counter(t, "live", device, t->live[device] += rounded);
        break;
    case PLEAT_EVENT_FREE_COMPLETED:
        put_tensor(t, event, "e");
        put_counter(t, "live", device, t->live[device] -= rounded);
        break;
    case PLEAT_EVENT_SEGMENT_ALLOC:
        put_counter(t, "reserved as recorded", device, t->reserved[device] += event->size);
        break;
    case PLEAT_EVENT_SEGMENT_FREE:
        put_counter(t, "reserved as recorded", device, t->reserved[device] -= event->size);
        break;
    case PLEAT_EVENT_MARK:
        snprintf(name, sizeof name, "iteration %u", ++t->iteration);
        open_event(t, "i", name, device);
        json_string(&t->json, "s", "g");
        json_end_object(&t->json);
        break;
    default:
        break;
    }
}

/* Recorded times, or positions where there are none; never backwards, as recordings sometimes go.
 */
static pleat_result write_perfetto(const pleat_trace *trace, FILE *out)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    size_t count = pleat_trace_event_count(trace);
    timeline *t = calloc(1, sizeof *t);
    if (t != NULL)
        t->sites = sites_of_requests(trace);
    if (t == NULL || t->sites == NULL) {
        free(t);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the timeline");
    }
    t->trace = trace;
    progress bar;
    progress_begin(&bar, "perfetto", count);
    bool timed = count > 0 && events[count - 1].time_us > events[0].time_us;
    json_begin(&t->json, out);
    json_object(&t->json, NULL);
    json_string(&t->json, "displayTimeUnit", "ms");
    json_array(&t->json, "traceEvents");
    name_devices(t);
    for (size_t i = 0; i < count; i++) {
        uint64_t time = !timed ? i
                        : events[i].time_us > events[0].time_us
                            ? events[i].time_us - events[0].time_us
                            : 0;
        t->now = time > t->now ? time : t->now;
        put_timed(t, &events[i]);
        if (i % 1024 == 0)
            progress_step(&bar, i);
    }
    progress_end(&bar);
    if (count > 0)
        close_phase(t, events[count - 1].device);
    json_end_array(&t->json);
    json_end_object(&t->json);
    json_finish(&t->json);
    free(t->sites);
    free(t);
    return PLEAT_OK;
}

/* ---- csv ---- */

static pleat_result write_csv(const pleat_trace *trace, FILE *out)
{
    pleat__arena *arena;
    pleat__requests requests;
    uint32_t device;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_result result = replay_requests(trace, arena, &device, &requests);
    if (result == PLEAT_OK) {
        fputs("id,lower,upper,size\n", out);
        for (uint32_t i = 0; i < requests.count; i++) {
            const pleat__request *r = &requests.items[i];
            fprintf(out, "%u,%u,%u,%llu\n", i, r->alloc_at,
                    r->free_at == PLEAT__NEVER ? requests.event_count : r->free_at,
                    (unsigned long long)r->size);
        }
    }
    pleat__arena_destroy(arena);
    return result;
}

/* ---- the command ---- */

static const struct {
    const char *name;
    exporter write;
} forms[] = {{"snapshot", export_snapshot}, {"perfetto", write_perfetto}, {"csv", write_csv}};

static exporter find_form(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, name) == 0)
            return forms[i].write;
    return NULL;
}

static pleat_result write_file(const options *o, const pleat_trace *trace, size_t *size)
{
    cli_text text;
    PLEAT_TRY(cli_text_begin(&text, o->output));
    pleat_result result = cli_text_write(&text, o->output, o->write(trace, text.out));
    *size = text.size;
    return result;
}

/* What a form has no place for, and import would look for: the iterations. */
static lost lost_by(const options *o, const pleat_trace *trace)
{
    lost l = {0};
    const pleat_trace_event *events = pleat_trace_events(trace);
    if (o->write == write_perfetto)
        return l;
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++)
        l.marks += events[i].kind == PLEAT_EVENT_MARK;
    if (o->write == write_csv)
        l.labels = pleat_trace_label_count(trace) - 1;
    return l;
}

static void print_done(const options *o, const pleat_trace *trace, size_t size)
{
    json_writer json;
    lost l = lost_by(o, trace);
    if (!o->json) {
        printf("%s: %zu entr%s, %zu bytes\n", o->output, pleat_trace_event_count(trace),
               pleat_trace_event_count(trace) == 1 ? "y" : "ies", size);
        if (o->write == write_csv && l.marks + l.labels > 0)
            printf("a table of lifetimes says nothing of iterations and phases: read back it is "
                   "one iteration\n");
        else if (l.marks > 0)
            printf("a snapshot has no marks: read back, its iterations are found by labels or by "
                   "the period of requests\n");
        return;
    }
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "output", o->output);
    json_string(&json, "format", o->format);
    json_uint(&json, "entries", pleat_trace_event_count(trace));
    json_uint(&json, "requests", pleat_trace_request_count(trace));
    json_uint(&json, "bytes", size);
    json_uint(&json, "marks_left_out", l.marks);
    json_uint(&json, "labels_left_out", l.labels);
    json_end_object(&json);
    json_finish(&json);
}

static int export(void *self, pleat_trace *trace, int device)
{
    options o = *(const options *)self;
    char output[DEVICE_PATH_MOST];
    size_t size;
    (void)device;
    o.output = device_path(o.output, trace, output);
    progress_whole("export", 1);
    progress_stage();
    pleat_result result = write_file(&o, trace, &size);
    progress_whole_end();
    int code = result == PLEAT_OK ? CLI_DONE : cli_failed("export", result);
    if (result == PLEAT_OK)
        print_done(&o, trace, size);
    pleat_trace_free(trace);
    return code;
}

int cli_export(int argc, char **argv)
{
    options o = {0};
    const cli_option table[] = {
        OPTION_CHOICE('f', "format", &o.format, "FORM", "snapshot|perfetto|csv",
                      "snapshot   for PyTorch's memory viewer (pytorch.org/memory_viz, or\n"
                      "           python -m torch.cuda._memory_viz trace_plot FILE)\n"
                      "perfetto   for ui.perfetto.dev and chrome://tracing\n"
                      "csv        a table of lifetimes: id,lower,upper,size"),
        OPTION_FILE('o', "output", &o.output, "FILE", "the file to write"),
        OPTION_DEVICE(&o.device),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "export",
        .synopsis = "TRACE --format FORM -o FILE [--json]",
        .text = "Writes a recorded job in a form that other programs read.\n"
                "TRACE is a trace or whatever 'pleat import' reads.\n",
        .options = table,
        .operand = "one trace",
        .is_input = true,
        .value = &o.trace,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    if (o.format == NULL || o.output == NULL)
        return cli_bad_use("export", "needs --format FORM and -o FILE");
    code = devices_overwrite("export", o.trace, o.output);
    o.write = find_form(o.format);
    if (code != CLI_DONE)
        return code;
    return devices_run(&(device_run){.command = "export",
                                     .path = o.trace,
                                     .asked = o.device,
                                     .json = o.json,
                                     .outputs = {o.output},
                                     .run = export,
                                     .options = &o});
}
