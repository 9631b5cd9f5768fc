/*
 * pleat/trace.h: a recorded sequence of allocations and frees.
 *
 * FILE  A trace file is Pleat's own, which this library and the command `pleat` read and write;
 * what it holds is no part of the interface. It is untrusted input: reading one is bounded, and
 * every error names the file and the record.
 *
 * ORDER  Events are in the order the allocator saw them; an event's position in that order is its
 * time. Frees come before allocations only where they were so recorded.
 *
 * UNITS  Bytes as requested, before any rounding.
 *
 * THREADS  Any number may read a trace; one that fills it must be alone with it.
 */
#ifndef PLEAT_TRACE_H
#define PLEAT_TRACE_H

#include <pleat/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pleat_event_kind {
    PLEAT_EVENT_ALLOC = 0,
    /* The program gave the memory up. Other streams may still use it (record_stream). */
    PLEAT_EVENT_FREE_REQUESTED = 1,
    /* The memory may be used again. Where a recording has no such event of its own it directly
     * follows FREE_REQUESTED. */
    PLEAT_EVENT_FREE_COMPLETED = 2,
    /* An iteration begins. Given by the program or derived from labels. */
    PLEAT_EVENT_MARK = 3,
    /* The recorded allocator took or gave back device memory; kept so that an emulation can be held
     * against the recording. */
    PLEAT_EVENT_SEGMENT_ALLOC = 4,
    PLEAT_EVENT_SEGMENT_FREE = 5,
} pleat_event_kind;

/* One event. `request` numbers allocations from 0 in order of appearance (for segments: of
 * segments). `label` indexes the trace's labels; 0 is the empty one. A request's events come in the
 * order ALLOC, FREE_REQUESTED, FREE_COMPLETED; either free may be missing at the trace's end.
 * `site` indexes the trace's sites: where in the program an ALLOC was made; 0: not known. */
typedef struct pleat_trace_event {
    uint8_t kind;
    uint8_t device;  /* in a free, of what is freed (filled in) */
    uint16_t stream; /* index into the trace's streams; in a free, of what is freed (filled in) */
    uint32_t label;
    uint32_t request;
    uint32_t site;
    uint64_t size;    /* bytes; in a free, of what is freed (filled in by pleat_trace_add) */
    uint64_t time_us; /* as recorded; for display only */
} pleat_trace_event;

typedef struct pleat_trace pleat_trace;

/* Reads a trace file. The trace belongs to the caller. PLEAT_E_INPUT, PLEAT_E_IO, PLEAT_E_ABI. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_trace_read(const char *path, pleat_trace **out);
/* Writes one, whole or not at all (a temporary file is renamed). */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_trace_write(const pleat_trace *trace,
                                                         const char *path);
/* NULL is allowed. */
PLEAT_API void pleat_trace_free(pleat_trace *trace);

/* An empty trace to be filled by the calls below. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_trace_new(pleat_trace **out);
/* Index of a label or of a stream's value in the trace, added when it is new. Texts are UTF-8;
 * PLEAT_E_INPUT when not. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_trace_add_label(pleat_trace *trace, const char *text,
                                                             size_t length, uint32_t *index);
PLEAT_API PLEAT_NODISCARD pleat_result pleat_trace_add_stream(pleat_trace *trace, uint64_t stream,
                                                              uint16_t *index);
/* Index of a site in the trace, added when it is new: what the program said of the tensor, a line
 * each, in double quotes; then its stack frames, innermost first, a line each. Sites show, they do
 * not plan. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_trace_add_site(pleat_trace *trace, const char *text,
                                                            size_t length, uint32_t *index);
/* Appends a copy. The event is checked: an ALLOC's request is the next new number, a free's is
 * live, its label, stream and site were added before (the first stream too), sizes are at most
 * 2^48, and there are at most 2^25 events. PLEAT_E_INPUT when not. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_trace_add(pleat_trace *trace,
                                                       const pleat_trace_event *event);

PLEAT_API size_t pleat_trace_event_count(const pleat_trace *trace);
PLEAT_API const pleat_trace_event *pleat_trace_events(const pleat_trace *trace);
PLEAT_API uint32_t pleat_trace_request_count(const pleat_trace *trace);
PLEAT_API uint32_t pleat_trace_label_count(const pleat_trace *trace);
PLEAT_API const char *pleat_trace_label(const pleat_trace *trace, uint32_t index);
/* Site 0 is empty. */
PLEAT_API uint32_t pleat_trace_site_count(const pleat_trace *trace);
PLEAT_API const char *pleat_trace_site(const pleat_trace *trace, uint32_t index);
PLEAT_API uint32_t pleat_trace_stream_count(const pleat_trace *trace);
PLEAT_API uint64_t pleat_trace_stream(const pleat_trace *trace, uint16_t index);
/* Device memory the recording ran on, when known; else 0. */
PLEAT_API uint64_t pleat_trace_device_bytes(const pleat_trace *trace);
PLEAT_API void pleat_trace_set_device_bytes(pleat_trace *trace, uint64_t bytes);
/* A hash of all events, labels and streams, without recorded times, sites and segments: two traces
 * with the same one plan alike. */
PLEAT_API uint64_t pleat_trace_fingerprint(const pleat_trace *trace);

#ifdef __cplusplus
}
#endif

#endif
