/*
 * script.c: see script.h.
 */
#include <tools/replay/script.h>

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

static pleat_result find_device(const pleat_trace *trace, uint32_t *device)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    size_t count = pleat_trace_event_count(trace);
    for (size_t i = 0; i < count; i++) {
        if (events[i].kind == PLEAT_EVENT_ALLOC) {
            *device = events[i].device;
            return PLEAT_OK;
        }
    }
    return pleat__fail(PLEAT_E_INPUT, "the trace has no allocation");
}

static pleat_result measure_job(replay_script *s)
{
    const pleat_trace_event *events = pleat_trace_events(s->trace);
    size_t count = pleat_trace_event_count(s->trace);
    uint64_t *sizes = pleat__arena_calloc(s->arena, pleat_trace_request_count(s->trace), 8);
    if (sizes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the trace's requests");
    uint64_t live = 0;
    for (size_t i = 0; i < count; i++) {
        if (!replay_is_ours(s, &events[i]))
            continue;
        uint64_t *size = &sizes[events[i].request];
        if (events[i].kind == PLEAT_EVENT_ALLOC) {
            live += *size = pleat__rounded(events[i].size);
            s->job.total_bytes += *size;
        } else {
            live -= *size;
        }
        s->job.peak_bytes = live > s->job.peak_bytes ? live : s->job.peak_bytes;
    }
    s->job.requests = pleat_trace_request_count(s->trace);
    pleat__arena_free(s->arena, sizes);
    return PLEAT_OK;
}

pleat_result replay_requests(const pleat_trace *trace, pleat__arena *arena, uint32_t *device,
                             pleat__requests *requests)
{
    PLEAT_TRY(find_device(trace, device));
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
    if (result == PLEAT_OK)
        result = measure_job(s);
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
