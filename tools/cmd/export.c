/*
 * export.c: `pleat export`: a trace in forms that other programs read.
 *
 * SNAPSHOT  A torch memory snapshot. A trace knows no addresses, so each request gets one of its
 *           own, one behind the other and never reused: PyTorch's viewer stacks tensors by time and
 *           tells them apart by address. `pleat import` reads it back to an equal trace (marks,
 *           which no snapshot has, aside).
 * PERFETTO  Chrome's trace event format, as ui.perfetto.dev opens it: live and reserved bytes as
 *           counters, phases as slices, iterations as instants, each tensor of 1 MiB or more as an
 *           asynchronous slice.
 * CSV       A table of lifetimes, `id,lower,upper,size`, in events of one device: MiniMalloc's.
 */
#include "../cli.h"
#include "../json.h"
#include "../options.h"
#include "../pickle_writer.h"
#include "../replay.h"

#include <internal/error.h>
#include <internal/range.h>
#include <plan/file.h>
#include <plan/import.h>

#include <stdlib.h>
#include <string.h>

typedef pleat_result (*exporter)(const pleat_trace *trace, FILE *out);

typedef struct options {
    const char *trace;
    const char *output;
    const char *format;
    exporter write;
    bool json;
} options;

/* ---- snapshot ---- */

#define ADDRESS_FIRST (1ull << 40)

/* X(name, text): what each event repeats; remembered by its position. */
#define WORDS(X)                                                                                   \
    X(ACTION, "action")                                                                            \
    X(ADDR, "addr")                                                                                \
    X(SIZE, "size")                                                                                \
    X(STREAM, "stream")                                                                            \
    X(TIME, "time_us")                                                                             \
    X(FRAMES, "frames")                                                                            \
    X(LABEL, "user_metadata")                                                                      \
    X(ALLOC, "alloc")                                                                              \
    X(FREE_REQUESTED, "free_requested")                                                            \
    X(FREE_COMPLETED, "free_completed")                                                            \
    X(SEGMENT_ALLOC, "segment_alloc")                                                              \
    X(SEGMENT_FREE, "segment_free")

enum word {
#define WORD_ENUM(name, text) WORD_##name,
    WORDS(WORD_ENUM)
#undef WORD_ENUM
        WORD_COUNT,
};

static const char *const words[] = {
#define WORD_TEXT(name, text) text,
    WORDS(WORD_TEXT)
#undef WORD_TEXT
};

typedef struct snapshot {
    const pleat_trace *trace;
    FILE *out;
    uint64_t *addresses[2]; /* of requests, of segments */
    uint64_t next;
    bool *known; /* labels, and behind them words, that were written before */
} snapshot;

static void put_known(snapshot *s, uint32_t slot, const char *text)
{
    if (s->known[slot]) {
        pickle_recall(s->out, slot);
        return;
    }
    pickle_text(s->out, text, strlen(text));
    pickle_remember(s->out, slot);
    s->known[slot] = true;
}

static void put_word(snapshot *s, enum word word)
{
    put_known(s, pleat_trace_label_count(s->trace) + word, words[word]);
}

static void put_number(snapshot *s, enum word word, uint64_t value)
{
    put_word(s, word);
    pickle_uint(s->out, value);
}

/* The event's address; an allocation gets its own. */
static pleat_result address_of(snapshot *s, const pleat_trace_event *event, uint64_t *address)
{
    bool segment =
        event->kind == PLEAT_EVENT_SEGMENT_ALLOC || event->kind == PLEAT_EVENT_SEGMENT_FREE;
    uint64_t *place = &s->addresses[segment][event->request];
    if (event->kind == PLEAT_EVENT_ALLOC || event->kind == PLEAT_EVENT_SEGMENT_ALLOC) {
        *place = s->next;
        if (!pleat__add(s->next, (event->size / 512 + 1) * 512, &s->next))
            return pleat__fail(PLEAT_E_LIMIT, "the trace allocates more bytes than addresses have");
    }
    *address = *place;
    return PLEAT_OK;
}

static enum word action_of(const pleat_trace_event *event)
{
    switch (event->kind) {
    case PLEAT_EVENT_ALLOC:
        return WORD_ALLOC;
    case PLEAT_EVENT_FREE_REQUESTED:
        return WORD_FREE_REQUESTED;
    case PLEAT_EVENT_FREE_COMPLETED:
        return WORD_FREE_COMPLETED;
    case PLEAT_EVENT_SEGMENT_ALLOC:
        return WORD_SEGMENT_ALLOC;
    case PLEAT_EVENT_SEGMENT_FREE:
        return WORD_SEGMENT_FREE;
    default:
        return WORD_COUNT;
    }
}

static pleat_result put_event(snapshot *s, const pleat_trace_event *event)
{
    uint64_t address;
    enum word action = action_of(event);
    if (action == WORD_COUNT)
        return PLEAT_OK;
    PLEAT_TRY(address_of(s, event, &address));
    pickle_dict(s->out);
    put_word(s, WORD_ACTION);
    put_word(s, action);
    put_number(s, WORD_ADDR, address);
    put_number(s, WORD_SIZE, event->size);
    put_number(s, WORD_STREAM, pleat_trace_stream(s->trace, event->stream));
    put_number(s, WORD_TIME, event->time_us);
    put_word(s, WORD_FRAMES);
    pickle_list(s->out);
    pickle_end_list(s->out);
    if (event->label != 0) {
        put_word(s, WORD_LABEL);
        put_known(s, event->label, pleat_trace_label(s->trace, event->label));
    }
    pickle_end_dict(s->out);
    return PLEAT_OK;
}

static pleat_result put_device(snapshot *s, unsigned device)
{
    const pleat_trace_event *events = pleat_trace_events(s->trace);
    pickle_list(s->out);
    for (size_t i = 0; i < pleat_trace_event_count(s->trace); i++)
        if (events[i].device == device)
            PLEAT_TRY(put_event(s, &events[i]));
    pickle_end_list(s->out);
    return PLEAT_OK;
}

static void put_empty(FILE *out, const char *key)
{
    pickle_text(out, key, strlen(key));
    pickle_list(out);
    pickle_end_list(out);
}

static pleat_result put_snapshot(snapshot *s)
{
    const pleat_trace_event *events = pleat_trace_events(s->trace);
    unsigned devices = 0;
    for (size_t i = 0; i < pleat_trace_event_count(s->trace); i++)
        devices = events[i].device >= devices ? events[i].device + 1u : devices;
    pickle_begin(s->out);
    pickle_dict(s->out);
    put_empty(s->out, "segments");
    put_empty(s->out, "external_annotations");
    pickle_text(s->out, "device_traces", strlen("device_traces"));
    pickle_list(s->out);
    for (unsigned device = 0; device < devices; device++)
        PLEAT_TRY(put_device(s, device));
    pickle_end_list(s->out);
    pickle_end_dict(s->out);
    pickle_end(s->out);
    return PLEAT_OK;
}

static size_t segments_of(const pleat_trace *trace)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    size_t count = 0;
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++)
        count += events[i].kind == PLEAT_EVENT_SEGMENT_ALLOC;
    return count;
}

static pleat_result write_snapshot(const pleat_trace *trace, FILE *out)
{
    snapshot s = {.trace = trace, .out = out, .next = ADDRESS_FIRST};
    s.addresses[0] = calloc(pleat_trace_request_count(trace) + 1u, sizeof(uint64_t));
    s.addresses[1] = calloc(segments_of(trace) + 1, sizeof(uint64_t));
    s.known = calloc(pleat_trace_label_count(trace) + (size_t)WORD_COUNT, sizeof *s.known);
    pleat_result result =
        s.addresses[0] == NULL || s.addresses[1] == NULL || s.known == NULL
            ? pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the trace's addresses")
            : put_snapshot(&s);
    free(s.addresses[0]);
    free(s.addresses[1]);
    free(s.known);
    return result;
}

/* ---- perfetto ---- */

#define SLICE_LEAST (1u << 20)

typedef struct timeline {
    const pleat_trace *trace;
    json_writer json;
    uint64_t live[256], reserved[256]; /* by device */
    char phase[256];                   /* in force, by its slice, since `begun` */
    uint64_t begun;
    uint64_t now; /* us since the first event */
} timeline;

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
    char size[48], id[16];
    if (event->size < SLICE_LEAST)
        return;
    cli_format_size(event->size, size, sizeof size);
    snprintf(id, sizeof id, "0x%x", event->request);
    open_event(t, kind, size, event->device);
    json_string(&t->json, "cat", "tensor");
    json_string(&t->json, "id", id);
    json_object(&t->json, "args");
    json_uint(&t->json, "request", event->request);
    json_uint(&t->json, "bytes", event->size);
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
    uint64_t rounded = (event->size + 511) & ~(uint64_t)511;
    unsigned device = event->device;
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
        open_event(t, "i", "iteration", device);
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
    if (t == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the timeline");
    t->trace = trace;
    bool timed = count > 0 && events[count - 1].time_us > events[0].time_us;
    json_begin(&t->json, out);
    json_object(&t->json, NULL);
    json_string(&t->json, "displayTimeUnit", "ms");
    json_array(&t->json, "traceEvents");
    for (size_t i = 0; i < count; i++) {
        uint64_t time = !timed ? i
                        : events[i].time_us > events[0].time_us
                            ? events[i].time_us - events[0].time_us
                            : 0;
        t->now = time > t->now ? time : t->now;
        put_timed(t, &events[i]);
    }
    if (count > 0)
        close_phase(t, events[count - 1].device);
    json_end_array(&t->json);
    json_end_object(&t->json);
    json_finish(&t->json);
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
} forms[] = {{"snapshot", write_snapshot}, {"perfetto", write_perfetto}, {"csv", write_csv}};

static exporter find_form(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, name) == 0)
            return forms[i].write;
    return NULL;
}

static pleat_result write_file(const options *o, const pleat_trace *trace, size_t *size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    if (out == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for '%s'", o->output);
    pleat_result result = o->write(trace, out);
    bool failed = ferror(out) != 0;
    if ((fclose(out) != 0 || failed) && result == PLEAT_OK)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for '%s'", o->output);
    if (result == PLEAT_OK)
        result = pleat__file_write(o->output, text, *size);
    free(text);
    return result;
}

static void print_done(const options *o, const pleat_trace *trace, size_t size)
{
    json_writer json;
    if (!o->json) {
        printf("%s: %zu events, %zu bytes\n", o->output, pleat_trace_event_count(trace), size);
        return;
    }
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "output", o->output);
    json_string(&json, "format", o->format);
    json_uint(&json, "events", pleat_trace_event_count(trace));
    json_uint(&json, "requests", pleat_trace_request_count(trace));
    json_uint(&json, "bytes", size);
    json_end_object(&json);
    json_finish(&json);
}

static int export(const options *o)
{
    pleat_trace *trace;
    size_t size;
    pleat_result result = pleat__trace_open(o->trace, &trace);
    if (result != PLEAT_OK)
        return cli_failed("export", result);
    result = write_file(o, trace, &size);
    int code = result == PLEAT_OK ? CLI_DONE : cli_failed("export", result);
    if (result == PLEAT_OK)
        print_done(o, trace, size);
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
        OPTION_TEXT('o', "output", &o.output, "FILE", "the file to write"),
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
        .value = &o.trace,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    if (o.format == NULL || o.output == NULL)
        return cli_bad_use("export", "needs --format FORM and -o FILE");
    o.write = find_form(o.format);
    return export(&o);
}
