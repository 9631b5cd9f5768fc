/*
 * rehearse.c: see rehearse.h.
 */
#include <runtime/face/rehearse.h>

#include <internal/arena.h>
#include <internal/error.h>
#include <plan/model/requests.h>
#include <string.h>
#include <vmm/host/dry.h>

typedef struct rehearsal {
    const pleat_trace *trace;
    uint32_t device;
    pleat_runtime *runtime;
    pleat_va *addresses; /* by request; 0: it does not live */
    uint32_t label;      /* that the runtime was told of */
} rehearsal;

static pleat_result tell_phase(rehearsal *r, uint32_t label)
{
    size_t length;
    char name[256];
    const char *text = pleat__phase_text(pleat_trace_label(r->trace, label), &length);
    length = length < sizeof name ? length : sizeof name - 1;
    memcpy(name, text, length);
    name[length] = '\0';
    r->label = label;
    return pleat_phase(r->runtime, name);
}

static pleat_result repeat_event(rehearsal *r, const pleat_trace_event *event)
{
    if (event->label != r->label)
        PLEAT_TRY(tell_phase(r, event->label));
    if (event->kind == PLEAT_EVENT_MARK)
        return pleat_mark(r->runtime);
    pleat_va *address = &r->addresses[event->request];
    if (event->kind == PLEAT_EVENT_ALLOC)
        return pleat_alloc(r->runtime, event->size, pleat_trace_stream(r->trace, event->stream),
                           address);
    pleat_va freed = *address;
    *address = 0;
    return pleat_free(r->runtime, freed);
}

static bool is_meant(const rehearsal *r, const pleat_trace_event *event)
{
    return event->device == r->device &&
           (event->kind == PLEAT_EVENT_ALLOC || event->kind == PLEAT_EVENT_FREE_COMPLETED ||
            event->kind == PLEAT_EVENT_MARK);
}

static pleat_result repeat_all(rehearsal *r)
{
    const pleat_trace_event *events = pleat_trace_events(r->trace);
    size_t count = pleat_trace_event_count(r->trace);
    for (size_t i = 0; i < count; i++)
        if (is_meant(r, &events[i]))
            PLEAT_TRY(repeat_event(r, &events[i]));
    return PLEAT_OK;
}

static pleat_result run(rehearsal *r, pleat_vmm vmm, const pleat_plan *plan, uint64_t *peak_bytes)
{
    /* Not the environment's settings: no log is written, nobody is a tenant. */
    const pleat_runtime_options options = {
        .size = sizeof options, .plan = plan, .conf = "", .waits = 1};
    PLEAT_TRY(pleat_runtime_create(vmm, &options, &r->runtime));
    pleat_result result = repeat_all(r);
    pleat_stats stats = pleat_stats_of(r->runtime);
    *peak_bytes = stats.peak_physical_bytes;
    if (result == PLEAT_OK && stats.left_at != 0)
        result = pleat__fail(PLEAT_E_LIMIT, "a plan does not fit what it was made of");
    pleat_runtime_destroy(r->runtime);
    return result;
}

pleat_result pleat__rehearse(const pleat_trace *trace, uint32_t device, const pleat_plan *plan,
                             uint64_t device_bytes, uint64_t chunk_bytes, uint64_t *peak_bytes)
{
    rehearsal r = {.trace = trace, .device = device};
    pleat__arena *arena;
    pleat_vmm vmm;
    *peak_bytes = 0;
    PLEAT_TRY(pleat__arena_create(&arena));
    r.addresses = pleat__arena_calloc(arena, (size_t)pleat_trace_request_count(trace) + 1,
                                      sizeof *r.addresses);
    pleat_result result =
        r.addresses != NULL
            ? pleat__vmm_dry(device_bytes, chunk_bytes, &vmm)
            : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a recording's addresses");
    if (result == PLEAT_OK) {
        result = run(&r, vmm, plan, peak_bytes);
        pleat_vmm_destroy(&vmm);
    }
    pleat__arena_destroy(arena);
    return result;
}
