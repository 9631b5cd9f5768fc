/*
 * trace_writer.c: see trace_writer.h.
 *
 * Events go into a pleat_trace as they come, under the runtime's lock, so their order is the one in
 * which the allocator saw them. A free of memory that was allocated before recording began is left
 * out. Recording ends at the mark that completes the wanted iterations; one event more would begin
 * an iteration that is not whole.
 */
#include <runtime/observe/trace_writer.h>

#include <internal/error.h>
#include <internal/sized.h>
#include <internal/utf8.h>
#include <plan/trace/import.h>
#include <string.h>

#define EVENTS_MOST (UINT64_C(4) << 20) /* D199 */
/* Iterations that are enough where the last SAME asked for as many bytes as the one before each
 * (D291). */
#define STEADY 8u
#define SAME   4u

pleat_result pleat__record_begin(pleat__record *record, pleat__arena *arena, int device,
                                 uint64_t device_bytes, const pleat_record_options *given)
{
    pleat_record_options options = {0};
    if (record->trace != NULL)
        return pleat__fail(PLEAT_E_STATE, "this runtime records already");
    PLEAT_TRY(
        pleat__read_sized("pleat_record_options", given, sizeof options, &options, sizeof options));
    *record = (pleat__record){
        .number = record->number + 1,
        .arena = arena,
        .device = (uint8_t)device,
        .most_marks = options.iterations == 0 ? UINT32_MAX : options.iterations,
        .most_events = options.events == 0 ? EVENTS_MOST : options.events,
    };
    pleat_trace *trace;
    PLEAT_TRY(pleat__address_map_create(arena, &record->live));
    pleat_result result = pleat_trace_new(&trace);
    if (result != PLEAT_OK) {
        pleat__address_map_destroy(&record->live);
        return result;
    }
    pleat_trace_set_device_bytes(trace, device_bytes);
    record->trace = trace;
    return PLEAT_OK;
}

void pleat__record_release(pleat__record *record)
{
    if (record->trace == NULL)
        return;
    pleat_trace_free(record->trace);
    pleat__address_map_destroy(&record->live);
    *record = (pleat__record){.number = record->number};
}

/* ---- a copy, while the job goes on ---- */

typedef struct copying {
    const pleat__record *record;
    uint64_t number; /* the recording's */
    pleat_trace *to;
    size_t end; /* events that are to be copied, known once all names are; a recording only grows */
    size_t at, count; /* events before those that were read, and these */
    pleat_trace_event events[PLEAT__COPIED_AT_ONCE];
} copying;

/* Under the lock, as the next two: whether the recording that is copied is there still. */
static pleat_result find_recording(copying *c)
{
    const pleat__record *record = c->record;
    if (record->trace == NULL || (c->number != 0 && c->number != record->number))
        return pleat__fail(PLEAT_E_STATE, c->number == 0
                                              ? "this runtime does not record"
                                              : "recording was ended while it was copied");
    if (record->failed.result != PLEAT_OK)
        return pleat__fail(record->failed.result, "recording ended after %zu events: %s",
                           pleat_trace_event_count(record->trace), record->failed.text);
    c->number = record->number;
    return PLEAT_OK;
}

/* PLEAT_E_NOT_READY: there are more. */
static pleat_result read_names(copying *c)
{
    PLEAT_TRY(find_recording(c));
    PLEAT_TRY(pleat__trace_add_names(c->record->trace, PLEAT__COPIED_AT_ONCE, c->to));
    c->end = pleat_trace_event_count(c->record->trace);
    return PLEAT_OK;
}

static pleat_result read_events(copying *c)
{
    PLEAT_TRY(find_recording(c));
    c->count = c->end - c->at < PLEAT__COPIED_AT_ONCE ? c->end - c->at : PLEAT__COPIED_AT_ONCE;
    memcpy(c->events, pleat_trace_events(c->record->trace) + c->at, c->count * sizeof *c->events);
    return PLEAT_OK;
}

static pleat_result locked(pleat__gate *gate, pleat_result (*read)(copying *), copying *c)
{
    pleat__gate_lock(gate);
    pleat_result result = read(c);
    pleat__gate_unlock(gate);
    return result;
}

static pleat_result copy_all(pleat__gate *gate, copying *c)
{
    pleat_result result;
    do
        result = locked(gate, read_names, c);
    while (result == PLEAT_E_NOT_READY);
    PLEAT_TRY(result);
    for (; c->at < c->end; c->at += c->count) {
        PLEAT_TRY(locked(gate, read_events, c));
        for (size_t i = 0; i < c->count; i++)
            PLEAT_TRY(pleat_trace_add(c->to, &c->events[i]));
    }
    return PLEAT_OK;
}

pleat_result pleat__record_copy(const pleat__record *record, pleat__gate *gate, pleat_trace **out)
{
    copying c;
    c.record = record;
    c.number = 0;
    c.at = 0;
    PLEAT_TRY(pleat_trace_new(&c.to));
    pleat_result result = copy_all(gate, &c);
    if (result == PLEAT_OK)
        *out = c.to;
    else
        pleat_trace_free(c.to);
    return result;
}

/* ---- what happens ---- */

static void end_with(pleat__record *record, pleat_result result)
{
    if (result == PLEAT_OK)
        return;
    record->failed = pleat__failure(result);
    record->complete = true;
}

static pleat_result add(pleat__record *record, pleat_trace_event event)
{
    event.device = record->device;
    event.label = record->label;
    PLEAT_TRY(pleat_trace_add(record->trace, &event));
    if (pleat_trace_event_count(record->trace) >= record->most_events)
        record->complete = true;
    return PLEAT_OK;
}

static pleat_result stream_index(pleat__record *record, pleat_stream stream)
{
    if (record->has_stream && record->last_stream == stream)
        return PLEAT_OK;
    PLEAT_TRY(pleat_trace_add_stream(record->trace, stream, &record->last_index));
    record->last_stream = stream;
    record->has_stream = true;
    return PLEAT_OK;
}

/* Request and stream as the table's value, which is never NULL. */
static void *pack(uint32_t request, uint16_t stream)
{
    return (void *)(((uintptr_t)request + 1) << 16 | stream);
}

static uint32_t request_of(const void *packed)
{
    return (uint32_t)(((uintptr_t)packed >> 16) - 1);
}

static pleat_result add_alloc(pleat__record *record, pleat_va address, uint64_t bytes,
                              pleat_stream stream)
{
    uint32_t request = pleat_trace_request_count(record->trace);
    PLEAT_TRY(stream_index(record, stream));
    PLEAT_TRY(pleat__address_map_reserve(&record->live));
    PLEAT_TRY(add(record, (pleat_trace_event){.kind = PLEAT_EVENT_ALLOC,
                                              .stream = record->last_index,
                                              .request = request,
                                              .size = bytes}));
    pleat__address_map_insert(&record->live, address, pack(request, record->last_index));
    return PLEAT_OK;
}

void pleat__record_alloc(pleat__record *record, pleat_va address, uint64_t bytes,
                         pleat_stream stream)
{
    if (!pleat__records(record))
        return;
    record->bytes += bytes;
    end_with(record, add_alloc(record, address, bytes, stream));
}

void pleat__record_free(pleat__record *record, pleat_va address, pleat_event_kind kind)
{
    if (!pleat__records(record))
        return;
    void *found = kind == PLEAT_EVENT_FREE_COMPLETED
                      ? pleat__address_map_remove(&record->live, address)
                      : pleat__address_map_find(&record->live, address);
    if (found == NULL)
        return;
    pleat_trace_event event = {
        .kind = (uint8_t)kind, .stream = (uint16_t)(uintptr_t)found, .request = request_of(found)};
    end_with(record, add(record, event));
}

void pleat__record_mark(pleat__record *record)
{
    /* Events name a stream: a mark before the first request has none to name, and ends nothing. */
    if (!pleat__records(record) || pleat_trace_stream_count(record->trace) == 0)
        return;
    end_with(record, add(record, (pleat_trace_event){.kind = PLEAT_EVENT_MARK}));
    record->alike = record->bytes == record->iteration_bytes ? record->alike + 1 : 0;
    record->iteration_bytes = record->bytes;
    record->bytes = 0;
    if (++record->marks >= record->most_marks)
        record->complete = true;
}

bool pleat__record_is_enough(const pleat__record *record)
{
    return record->complete || (record->marks >= STEADY && record->alike >= SAME);
}

size_t pleat__phase_label(const char *name, char label[PLEAT__PHASE_BYTES])
{
    strcpy(label, PLEAT__PHASE_BEGIN);
    char *own = label + strlen(label);
    bool is_left = *name == '\0';
    name = is_left ? PLEAT__NO_PHASE : name;
    size_t length =
        pleat__utf8_line(name, strlen(name), own, PLEAT__PHASE_BYTES - sizeof PLEAT__PHASE_BEGIN);
    own[length] = '\0';
    for (char *at = own; (at = strchr(at, ';')) != NULL;)
        *at = '?';
    if (!is_left && strcmp(own, PLEAT__NO_PHASE) == 0)
        *own = '?';
    return strlen(label);
}

void pleat__record_phase(pleat__record *record, const char *label, size_t length)
{
    if (!pleat__records(record))
        return;
    end_with(record, pleat_trace_add_label(record->trace, label, length, &record->label));
}
