/*
 * script.c: see script.h.
 */
#include <tools/replay/script.h>

#include <tools/replay/devices.h>
#include <tools/replay/replay.h>

#include <internal/error.h>
#include <plan/model/iteration.h>

bool replay_is_ours(const replay_script *s, const pleat_trace_event *event)
{
    return event->device == s->device &&
           (event->kind == PLEAT_EVENT_ALLOC || pleat__ends_life(event, s->busiest));
}

bool replay_is_free(const replay_script *s, const pleat_trace_event *event)
{
    return event->device == s->device &&
           (event->kind == PLEAT_EVENT_FREE_REQUESTED || event->kind == PLEAT_EVENT_FREE_COMPLETED);
}

static canary_job job_of(const pleat__requests *requests, uint32_t request_count)
{
    canary_job job = {.requests = request_count};
    uint64_t live = 0;
    for (uint32_t at = 0; at < requests->event_count; at++) {
        uint64_t size = pleat__rounded(requests->items[requests->events[at] / 2].size);
        bool freed = requests->events[at] % 2 != 0;
        live = freed ? live - size : live + size;
        job.total_bytes += freed ? 0 : size;
        job.peak_bytes = live > job.peak_bytes ? live : job.peak_bytes;
    }
    return job;
}

pleat_result replay_requests(const pleat_trace *trace, pleat__arena *arena, uint32_t *device,
                             pleat__requests *requests)
{
    if (pleat_trace_request_count(trace) == 0)
        return pleat__fail(PLEAT_E_INPUT, "the trace has no allocation");
    *device = (uint32_t)device_first(trace);
    PLEAT_TRY(pleat__requests_make(trace, *device, arena, requests));
    if (requests->mark_count > 0)
        return PLEAT_OK;
    return pleat__marks_find(requests, &requests->marks, &requests->mark_count);
}

uint64_t replay_peak_live(const pleat_trace *trace)
{
    uint16_t busiest[UINT8_MAX + 1] = {0};
    bool known[UINT8_MAX + 1] = {false};
    uint64_t live = 0, peak = 0;
    const pleat_trace_event *events = pleat_trace_events(trace);
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++) {
        uint8_t device = events[i].device;
        if (!known[device])
            busiest[device] = pleat__busiest_stream(trace, device);
        known[device] = true;
        if (events[i].kind == PLEAT_EVENT_ALLOC)
            live += pleat__rounded(events[i].size);
        else if (pleat__ends_life(&events[i], busiest[device]))
            live -= pleat__rounded(events[i].size);
        peak = live > peak ? live : peak;
    }
    return peak;
}

pleat_result replay_script_write(const pleat_trace *trace, replay_script *s)
{
    *s = (replay_script){.trace = trace};
    PLEAT_TRY(pleat__arena_create(&s->arena));
    pleat__requests requests = {0};
    pleat_result result = replay_requests(trace, s->arena, &s->device, &requests);
    s->busiest = pleat__busiest_stream(trace, s->device);
    s->marks = requests.marks;
    s->mark_count = requests.mark_count;
    s->marked = requests.labelled;
    s->job = job_of(&requests, pleat_trace_request_count(trace));
    if (result != PLEAT_OK)
        pleat__arena_destroy(s->arena);
    return result;
}

uint32_t replay_whole_iterations(const replay_script *s)
{
    return s->mark_count > 1 ? s->mark_count - 1 : 1;
}

uint32_t replay_steady_mark(const replay_script *s)
{
    uint32_t iterations = replay_whole_iterations(s);
    return iterations > 2 ? 2 : iterations - 1;
}
