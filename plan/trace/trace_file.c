/*
 * trace_file.c: a trace as a file.
 *
 * FORMAT  A stream of msgpack records, all arrays:
 *   header   ["pleat trace", 1, device bytes or 0, labels, streams, events]: the last three count;
 *            of a trace with sites: ["pleat trace", 2, device bytes or 0, labels, streams, events,
 *            sites]
 *   labels   [text, ...]: as many records as it takes; label 0, which is empty, is not among them
 *   streams  [value, ...]: likewise
 *   sites    [text, ...]: as labels; only where the header counts them
 *   events   [number, ...]: likewise. Each event is a code with its numbers, whole in one record:
 *
 *     0 size dt         ALLOC; requests are numbered in order of appearance
 *     1 back dt         FREE_REQUESTED of request (requests so far) - back
 *     2 back dt         FREE_COMPLETED
 *     3 dt              MARK
 *     4 size dt         SEGMENT_ALLOC; segments are numbered likewise
 *     5 back dt         SEGMENT_FREE
 *     6 back dt dt      FREE_REQUESTED and FREE_COMPLETED, one behind the other
 *     7 label stream device   holds for the events that follow; all are 0 at the start
 *     8 site         the next event, an ALLOC, was made there
 *
 *   dt is the recorded time in us less that of the event before (0 before the first); it may be
 *   negative. Numbers are msgpack integers of the shortest form, so the same trace gives the same
 *   bytes. An event of a training job takes about 6 bytes.
 *
 *   checksum [CRC-32]
 *
 * READING  pack.h says how it is bounded; all events pass pleat_trace_add.
 */
#include <plan/trace/import.h>

#include <internal/error.h>
#include <plan/base/file.h>
#include <plan/base/pack.h>

#include <string.h>

#define NAME          "pleat trace"
#define VERSION       1
#define VERSION_SITES 2

enum { CODE_FREED = 6, CODE_CONTEXT = 7, CODE_SITE = 8 };

typedef struct writer {
    const pleat_trace *trace;
    pleat__pack_writer pack;
    int64_t numbers[PLEAT__PACK_RECORD_ITEMS];
    size_t count;
    uint64_t time;
    uint32_t label;
    uint32_t requests;
    uint32_t segments;
    uint16_t stream;
    uint8_t device;
} writer;

/* Ends a record of numbers. */
static void flush(writer *w)
{
    if (w->count == 0)
        return;
    msgpack_pack_array(&w->pack.packer, w->count);
    for (size_t i = 0; i < w->count; i++)
        msgpack_pack_int64(&w->pack.packer, w->numbers[i]);
    w->count = 0;
}

static void put(writer *w, int64_t number)
{
    w->numbers[w->count++] = number;
}

static void put_time(writer *w, const pleat_trace_event *event)
{
    put(w, (int64_t)(event->time_us - w->time));
    w->time = event->time_us;
}

static void put_context(writer *w, const pleat_trace_event *event)
{
    if (event->label == w->label && event->stream == w->stream && event->device == w->device)
        return;
    put(w, CODE_CONTEXT);
    put(w, w->label = event->label);
    put(w, w->stream = event->stream);
    put(w, w->device = event->device);
}

/* Whether the event after a FREE_REQUESTED completes it in the same context. */
static bool completes(const pleat_trace_event *event, const pleat_trace_event *next)
{
    return event->kind == PLEAT_EVENT_FREE_REQUESTED && next->kind == PLEAT_EVENT_FREE_COMPLETED &&
           next->request == event->request && next->label == event->label &&
           next->stream == event->stream && next->device == event->device;
}

/* Returns how many events it wrote. */
static size_t put_event(writer *w, const pleat_trace_event *event, size_t left)
{
    put_context(w, event);
    if (event->site != 0) {
        put(w, CODE_SITE);
        put(w, event->site);
    }
    bool both = left > 1 && completes(event, event + 1);
    put(w, both ? CODE_FREED : event->kind);
    switch (event->kind) {
    case PLEAT_EVENT_ALLOC:
    case PLEAT_EVENT_SEGMENT_ALLOC:
        put(w, (int64_t)event->size);
        *(event->kind == PLEAT_EVENT_ALLOC ? &w->requests : &w->segments) += 1;
        break;
    case PLEAT_EVENT_FREE_REQUESTED:
    case PLEAT_EVENT_FREE_COMPLETED:
        put(w, w->requests - event->request);
        break;
    case PLEAT_EVENT_SEGMENT_FREE:
        put(w, w->segments - event->request);
        break;
    }
    put_time(w, event);
    if (both)
        put_time(w, event + 1);
    return both ? 2 : 1;
}

static void write_events(writer *w)
{
    const size_t longest = 10; /* a context, a site and an event */
    size_t count = pleat_trace_event_count(w->trace);
    const pleat_trace_event *events = pleat_trace_events(w->trace);
    for (size_t i = 0; i < count;) {
        if (w->count + longest > PLEAT__PACK_RECORD_ITEMS)
            flush(w);
        i += put_event(w, &events[i], count - i);
    }
    flush(w);
}

static const char *give_label(const void *trace, uint64_t index)
{
    return pleat_trace_label(trace, (uint32_t)index + 1);
}

static const char *give_site(const void *trace, uint64_t index)
{
    return pleat_trace_site(trace, (uint32_t)index + 1);
}

static void give_stream(const void *trace, uint64_t index, uint64_t *row)
{
    row[0] = pleat_trace_stream(trace, (uint16_t)index);
}

enum {
    HEADER_DEVICE_BYTES,
    HEADER_LABELS,
    HEADER_STREAMS,
    HEADER_EVENTS,
    HEADER_SITES,
    HEADER_NUMBERS
};

static void write_all(writer *w)
{
    const uint64_t header[HEADER_NUMBERS] = {
        [HEADER_DEVICE_BYTES] = pleat_trace_device_bytes(w->trace),
        [HEADER_LABELS] = pleat_trace_label_count(w->trace) - 1,
        [HEADER_STREAMS] = pleat_trace_stream_count(w->trace),
        [HEADER_EVENTS] = pleat_trace_event_count(w->trace),
        [HEADER_SITES] = pleat_trace_site_count(w->trace) - 1,
    };
    bool sites = header[HEADER_SITES] != 0;
    pleat__pack_put_header(&w->pack, NAME, sites ? VERSION_SITES : VERSION, header,
                           sites ? HEADER_NUMBERS : HEADER_SITES);
    pleat__pack_put_texts(&w->pack, header[HEADER_LABELS], give_label, w->trace);
    pleat__pack_put_rows(&w->pack, header[HEADER_STREAMS], 1, give_stream, w->trace);
    pleat__pack_put_texts(&w->pack, header[HEADER_SITES], give_site, w->trace);
    write_events(w);
}

pleat_result pleat_trace_write(const pleat_trace *trace, const char *path)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_result result;
    writer *w = pleat__arena_calloc(arena, 1, sizeof *w);
    if (w == NULL) {
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to write '%s'", path);
    } else {
        w->trace = trace;
        pleat__pack_open(&w->pack, arena);
        write_all(w);
        result = pleat__pack_save(&w->pack, path);
    }
    pleat__arena_destroy(arena);
    return result;
}

typedef struct reader {
    pleat__pack_reader pack;
    pleat_trace *trace;
    uint64_t events;
    pleat_trace_event context; /* label, stream, device, time of the event before */
    uint32_t requests;
    uint32_t segments;
} reader;

/* Names of a trace are written once each, in their order. */
static pleat_result check_order(const char *what, uint32_t got, uint64_t expected)
{
    return got == expected ? PLEAT_OK : pleat__fail(PLEAT_E_INPUT, "%s %u again", what, got);
}

static pleat_result take_label(void *trace, uint64_t index, const char *text, size_t length)
{
    uint32_t got;
    PLEAT_TRY(pleat_trace_add_label(trace, text, length, &got));
    return check_order("label", got, index + 1);
}

static pleat_result take_site(void *trace, uint64_t index, const char *text, size_t length)
{
    uint32_t got;
    PLEAT_TRY(pleat_trace_add_site(trace, text, length, &got));
    return check_order("site", got, index + 1);
}

static pleat_result take_stream(void *trace, uint64_t index, const uint64_t *row)
{
    uint16_t got;
    PLEAT_TRY(pleat_trace_add_stream(trace, row[0], &got));
    return check_order("stream", got, index);
}

/* The numbers of one record, taken from the front. */
typedef struct numbers {
    const msgpack_object *items;
    uint32_t count;
    uint32_t at;
} numbers;

static bool take(numbers *n, uint64_t most, uint64_t *out)
{
    return n->at < n->count && pleat__pack_u64(&n->items[n->at++], most, out);
}

static bool take_time(numbers *n, uint64_t *time)
{
    int64_t step;
    if (n->at >= n->count || !pleat__pack_i64(&n->items[n->at++], &step))
        return false;
    *time += (uint64_t)step;
    return true;
}

/* For the next event; one that is no ALLOC is refused, or the file would not be what is written. */
static bool take_site_code(reader *r, numbers *n)
{
    uint64_t site;
    if (!take(n, UINT32_MAX, &site) || site == 0 || r->context.site != 0 || n->at >= n->count ||
        n->items[n->at].type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
        n->items[n->at].via.u64 != PLEAT_EVENT_ALLOC)
        return false;
    r->context.site = (uint32_t)site;
    return true;
}

static bool take_context(numbers *n, pleat_trace_event *context)
{
    uint64_t label, stream, device;
    if (!take(n, UINT32_MAX, &label) || !take(n, UINT16_MAX, &stream) ||
        !take(n, UINT8_MAX, &device))
        return false;
    context->label = (uint32_t)label;
    context->stream = (uint16_t)stream;
    context->device = (uint8_t)device;
    return true;
}

/* A `back` as a number; one that points before the first is left to pleat_trace_add to refuse. */
static bool take_back(numbers *n, uint32_t so_far, uint32_t *request)
{
    uint64_t back;
    if (!take(n, UINT32_MAX, &back))
        return false;
    *request = so_far - (uint32_t)back;
    return true;
}

/* Decodes one event of code 0 to 6 into *event; false when its numbers are wrong. */
static bool take_event(reader *r, numbers *n, uint64_t code, pleat_trace_event *event)
{
    *event = r->context;
    event->kind = (uint8_t)(code == CODE_FREED ? PLEAT_EVENT_FREE_REQUESTED : code);
    bool taken = true;
    switch (code) {
    case PLEAT_EVENT_ALLOC:
        taken = take(n, UINT64_MAX, &event->size);
        event->request = r->requests++;
        break;
    case PLEAT_EVENT_SEGMENT_ALLOC:
        taken = take(n, UINT64_MAX, &event->size);
        event->request = r->segments++;
        break;
    case PLEAT_EVENT_FREE_REQUESTED:
    case PLEAT_EVENT_FREE_COMPLETED:
    case CODE_FREED:
        taken = take_back(n, r->requests, &event->request);
        break;
    case PLEAT_EVENT_SEGMENT_FREE:
        taken = take_back(n, r->segments, &event->request);
        break;
    }
    taken = taken && take_time(n, &event->time_us);
    r->context.time_us = event->time_us;
    r->context.site = 0;
    return taken;
}

static pleat_result read_event(reader *r, numbers *n)
{
    uint32_t first = n->at;
    uint64_t code;
    if (!take(n, CODE_SITE, &code))
        return pleat__pack_fail(&r->pack, "item %u is no event code", first);
    if (code == CODE_CONTEXT) {
        if (take_context(n, &r->context))
            return PLEAT_OK;
        return pleat__pack_fail(&r->pack, "item %u: wrong label, stream or device", first);
    }
    if (code == CODE_SITE) {
        if (take_site_code(r, n))
            return PLEAT_OK;
        return pleat__pack_fail(&r->pack, "item %u: a wrong site, or of no allocation", first);
    }
    pleat_trace_event event;
    if (!take_event(r, n, code, &event))
        return pleat__pack_fail(&r->pack, "item %u: an event is cut off, or no number", first);
    pleat_result result = pleat_trace_add(r->trace, &event);
    if (result == PLEAT_OK && code == CODE_FREED) {
        event.kind = PLEAT_EVENT_FREE_COMPLETED;
        if (!take_time(n, &event.time_us))
            return pleat__pack_fail(&r->pack, "item %u: an event is cut off, or no number", first);
        r->context.time_us = event.time_us;
        result = pleat_trace_add(r->trace, &event);
    }
    return result == PLEAT_OK ? PLEAT_OK : pleat__pack_refused(&r->pack, result, first);
}

static pleat_result read_events(reader *r)
{
    while (pleat_trace_event_count(r->trace) < r->events) {
        msgpack_object_array array;
        PLEAT_TRY(pleat__pack_array(&r->pack, &array));
        if (array.size == 0)
            return pleat__pack_fail(&r->pack, "no events in it");
        numbers n = {array.ptr, array.size, 0};
        while (n.at < n.count)
            PLEAT_TRY(read_event(r, &n));
    }
    if (pleat_trace_event_count(r->trace) != r->events)
        return pleat__pack_fail(&r->pack, "%zu events where the header says %llu",
                                pleat_trace_event_count(r->trace), (unsigned long long)r->events);
    return pleat__pack_finish(&r->pack);
}

/* Of either version. */
static pleat_result read_header(reader *r, uint64_t *header)
{
    const pleat__pack_reader start = r->pack;
    header[HEADER_SITES] = 0;
    pleat_result result = pleat__pack_header(&r->pack, NAME, VERSION, header, HEADER_SITES);
    if (result != PLEAT_E_ABI)
        return result;
    pleat__pack_end(&r->pack);
    pleat__pack_begin(&r->pack, start.path, start.bytes, start.size);
    return pleat__pack_header(&r->pack, NAME, VERSION_SITES, header, HEADER_NUMBERS);
}

static pleat_result read_all(reader *r)
{
    uint64_t header[HEADER_NUMBERS];
    PLEAT_TRY(read_header(r, header));
    pleat_trace_set_device_bytes(r->trace, header[HEADER_DEVICE_BYTES]);
    r->events = header[HEADER_EVENTS];
    if (r->events > PLEAT__TRACE_EVENTS_MOST)
        return pleat__pack_fail(&r->pack,
                                "%llu events, and at most %u are read; record fewer iterations",
                                (unsigned long long)r->events, PLEAT__TRACE_EVENTS_MOST);
    PLEAT_TRY(pleat__pack_texts(&r->pack, header[HEADER_LABELS], take_label, r->trace));
    PLEAT_TRY(pleat__pack_rows(&r->pack, header[HEADER_STREAMS], 1, take_stream, r->trace));
    PLEAT_TRY(pleat__pack_texts(&r->pack, header[HEADER_SITES], take_site, r->trace));
    return read_events(r);
}

pleat_result pleat__trace_decode(const char *path, const uint8_t *bytes, size_t size,
                                 pleat_trace **out)
{
    reader r = {0};
    PLEAT_TRY(pleat_trace_new(&r.trace));
    pleat__pack_begin(&r.pack, path, bytes, size);
    pleat_result result = read_all(&r);
    pleat__pack_end(&r.pack);
    if (result == PLEAT_OK)
        *out = r.trace;
    else
        pleat_trace_free(r.trace);
    return result;
}

pleat_result pleat_trace_read(const char *path, pleat_trace **out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    uint8_t *bytes;
    size_t size;
    pleat_result result = pleat__file_read_any(path, arena, &bytes, &size);
    if (result == PLEAT_OK)
        result = pleat__trace_decode(path, bytes, size, out);
    pleat__arena_destroy(arena);
    return result;
}
