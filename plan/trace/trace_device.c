/*
 * trace_device.c: what of a trace is on one of its devices: its events, requests and segments
 * numbered anew; names as they are.
 */
#include <plan/trace/import.h>

#include <internal/arena.h>
#include <internal/error.h>

typedef struct numbers {
    uint32_t *of; /* the trace's number -> the copy's */
    uint32_t count;
} numbers;

typedef struct copying {
    numbers requests, segments;
    pleat_trace *to;
} copying;

static bool is_segment(const pleat_trace_event *event)
{
    return event->kind == PLEAT_EVENT_SEGMENT_ALLOC || event->kind == PLEAT_EVENT_SEGMENT_FREE;
}

static pleat_result copy_event(copying *c, pleat_trace_event event)
{
    numbers *all = is_segment(&event) ? &c->segments : &c->requests;
    if (event.kind == PLEAT_EVENT_ALLOC || event.kind == PLEAT_EVENT_SEGMENT_ALLOC)
        all->of[event.request] = all->count++;
    if (event.kind != PLEAT_EVENT_MARK)
        event.request = all->of[event.request];
    return pleat_trace_add(c->to, &event);
}

static pleat_result copy_events(const pleat_trace *trace, int device, copying *c)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++)
        if (events[i].device == device)
            PLEAT_TRY(copy_event(c, events[i]));
    return c->requests.count > 0
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_INPUT, "it holds no allocation on device %d", device);
}

pleat_result pleat__trace_of_device(const pleat_trace *trace, int device, pleat_trace **out)
{
    pleat__arena *arena;
    copying c = {.to = NULL};
    size_t most = pleat_trace_event_count(trace) + 1;
    PLEAT_TRY(pleat__arena_create(&arena));
    c.requests.of = pleat__arena_calloc(arena, most, sizeof *c.requests.of);
    c.segments.of = pleat__arena_calloc(arena, most, sizeof *c.segments.of);
    pleat_result result = c.requests.of != NULL && c.segments.of != NULL
                              ? pleat__trace_copy_names(trace, &c.to)
                              : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for requests");
    if (result == PLEAT_OK)
        result = copy_events(trace, device, &c);
    pleat__arena_destroy(arena);
    if (result == PLEAT_OK)
        *out = c.to;
    else
        pleat_trace_free(c.to);
    return result;
}
