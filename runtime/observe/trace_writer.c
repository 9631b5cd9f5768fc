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
    if (given != NULL && given->size < sizeof(uint32_t))
        return pleat__fail(PLEAT_E_ABI, "pleat_record_options of %u bytes: set its size field",
                           given->size);
    if (given != NULL)
        memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    *record = (pleat__record){
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
    *record = (pleat__record){0};
}

pleat_result pleat__record_copy(const pleat__record *record, pleat_trace **out)
{
    if (record->trace == NULL)
        return pleat__fail(PLEAT_E_STATE, "this runtime does not record");
    if (record->failed.result != PLEAT_OK)
        return pleat__fail(record->failed.result, "recording ended after %zu events: %s",
                           pleat_trace_event_count(record->trace), record->failed.text);
    return pleat__trace_copy(record->trace, pleat_trace_event_count(record->trace), out);
}

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
    record->bytes += bytes;
    end_with(record, add_alloc(record, address, bytes, stream));
}

void pleat__record_free(pleat__record *record, pleat_va address, pleat_event_kind kind)
{
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
    if (pleat_trace_stream_count(record->trace) == 0)
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

void pleat__record_phase(pleat__record *record, const char *name)
{
    char label[256] = "phase=";
    size_t length = strlen(label);
    length += pleat__utf8_line(name, strlen(name), label + length, sizeof label - length);
    end_with(record, pleat_trace_add_label(record->trace, label, length, &record->label));
}
