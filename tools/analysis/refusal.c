/*
 * refusal.c: see refusal.h.
 */
#include <tools/analysis/refusal.h>
#include <tools/cli.h>
#include <tools/replay/replay.h>

#include <internal/error.h>
#include <internal/range.h>

/* A replay's device where what an allocator takes is asked, and not whether it fits. */
#define PLENTY_BYTES (1ull << 40)

bool refusal_is_last(const pleat_trace *trace)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    for (size_t i = pleat__trace_refusal(trace).event; i < pleat_trace_event_count(trace); i++)
        if (events[i].kind == PLEAT_EVENT_ALLOC)
            return false;
    return true;
}

static void sum_up(const pleat_trace *trace, refusal *r)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    r->live_bytes = pleat__rounded(r->recorded.bytes);
    for (size_t i = 0; i < r->recorded.event; i++) {
        const pleat_trace_event *e = &events[i];
        r->live_bytes += e->kind == PLEAT_EVENT_ALLOC ? pleat__rounded(e->size) : 0;
        r->live_bytes -= e->kind == PLEAT_EVENT_FREE_COMPLETED ? pleat__rounded(e->size) : 0;
        r->held_bytes += e->kind == PLEAT_EVENT_SEGMENT_ALLOC ? e->size : 0;
        r->held_bytes -= e->kind == PLEAT_EVENT_SEGMENT_FREE ? e->size : 0;
    }
}

/* What came before it, and the request. */
static pleat_result trace_to(const pleat_trace *trace, const pleat__refusal *recorded,
                             pleat_trace **out)
{
    PLEAT_TRY(pleat__trace_copy(trace, recorded->event, out));
    const pleat_trace_event *events = pleat_trace_events(*out);
    pleat_trace_event event = {.kind = PLEAT_EVENT_ALLOC,
                               .device = recorded->device,
                               .request = pleat_trace_request_count(*out),
                               .size = recorded->bytes};
    if (recorded->event > 0) {
        event.label = events[recorded->event - 1].label;
        event.time_us = events[recorded->event - 1].time_us;
    }
    pleat_result result = pleat_trace_add_stream(*out, recorded->stream, &event.stream);
    if (result == PLEAT_OK)
        result = pleat_trace_add(*out, &event);
    if (result != PLEAT_OK)
        pleat_trace_free(*out);
    return result;
}

static pleat_result run_policy(const pleat_trace *trace, uint64_t room, refusal_policy *p)
{
    replay_result ran;
    replay_options options = {.policy = p->name, .device_bytes = room};
    PLEAT_TRY(replay_run(trace, &options, &ran));
    p->fits = !ran.oom;
    options.device_bytes = PLENTY_BYTES;
    if (ran.oom && room < PLENTY_BYTES)
        PLEAT_TRY(replay_run(trace, &options, &ran));
    p->bytes = ran.oom ? 0 : ran.peak_physical_bytes;
    return PLEAT_OK;
}

pleat_result refusal_find(const pleat_trace *trace, uint64_t device_bytes, refusal *r)
{
    static const char *const policies[REFUSAL_POLICIES] = {"native", "expandable", "pleat"};
    pleat_trace *until;
    *r = (refusal){.recorded = pleat__trace_refusal(trace)};
    if (r->recorded.count == 0)
        return PLEAT_OK;
    r->last = refusal_is_last(trace);
    sum_up(trace, r);
    r->room_bytes = r->held_bytes != 0 && device_bytes == 0
                        ? r->held_bytes + r->recorded.free_bytes
                        : replay_device_bytes(trace, device_bytes);
    for (int i = 0; i < REFUSAL_POLICIES; i++)
        r->policies[i].name = policies[i];
    /* What is larger than any replay's device is refused without one: a trace need not have room
     * for its size. */
    if (r->recorded.bytes > r->room_bytes && r->recorded.bytes > PLENTY_BYTES)
        return PLEAT_OK;
    PLEAT_TRY(trace_to(trace, &r->recorded, &until));
    pleat_result result = PLEAT_OK;
    for (int i = 0; i < REFUSAL_POLICIES && result == PLEAT_OK; i++)
        result = run_policy(until, r->room_bytes, &r->policies[i]);
    pleat_trace_free(until);
    return result;
}

void refusal_line(const pleat__refusal *recorded, bool last)
{
    char asked[48], left[48];
    if (recorded->count == 0)
        return;
    printf("The recording %s a refusal: %s were asked for, with %s free on device %u",
           last ? "ends with" : "has", cli_format_size(recorded->bytes, asked, sizeof asked),
           cli_format_size(recorded->free_bytes, left, sizeof left), recorded->device);
    if (recorded->count > 1)
        printf(" (the last of %u)", recorded->count);
    puts(".");
}

static void say_policy(const refusal_policy *p, const char *name)
{
    char takes[48];
    cli_format_size(p->bytes, takes, sizeof takes);
    if (p->fits)
        printf("    %s: serves it, and takes %s\n", name, takes);
    else if (p->bytes != 0)
        printf("    %s: refuses it; it would take %s\n", name, takes);
    else
        printf("    %s: refuses it\n", name);
}

/* Whether the room is what the recording had. */
static bool of_recording(const refusal *r)
{
    return r->held_bytes != 0 && r->room_bytes == r->held_bytes + r->recorded.free_bytes;
}

void refusal_text(const refusal *r)
{
    static const char *const names[REFUSAL_POLICIES] = {"PyTorch's native allocator",
                                                        "PyTorch's expandable segments", "Pleat"};
    char live[48], room[48], held[48];
    if (r->recorded.count == 0)
        return;
    printf("The refusal\n  ");
    refusal_line(&r->recorded, r->last);
    cli_format_size(r->room_bytes, room, sizeof room);
    printf("  With it %s are live", cli_format_size(r->live_bytes, live, sizeof live));
    if (r->held_bytes != 0)
        printf("; the allocator held %s", cli_format_size(r->held_bytes, held, sizeof held));
    if (of_recording(r))
        printf(", and with what was free %s", room);
    printf(".\n  In %s%s:\n", room,
           r->live_bytes > r->room_bytes ? ", less than what is live then, no allocator serves it"
                                         : "");
    for (int i = 0; i < REFUSAL_POLICIES; i++)
        say_policy(&r->policies[i], names[i]);
    if (r->policies[0].fits && of_recording(r))
        puts("  The recorded allocator had less than that: a limit of the process, or memory of "
             "others on the device.");
    putchar('\n');
}

void refusal_json(json_writer *json, const refusal *r)
{
    if (r->recorded.count == 0)
        return;
    json_object(json, "refusal");
    json_uint(json, "count", r->recorded.count);
    json_uint(json, "device", r->recorded.device);
    json_uint(json, "request_bytes", r->recorded.bytes);
    json_uint(json, "free_bytes", r->recorded.free_bytes);
    json_bool(json, "last", r->last);
    json_uint(json, "live_bytes", r->live_bytes);
    json_uint(json, "held_bytes", r->held_bytes);
    json_uint(json, "room_bytes", r->room_bytes);
    json_array(json, "policies");
    for (int i = 0; i < REFUSAL_POLICIES; i++) {
        json_object(json, NULL);
        json_string(json, "policy", r->policies[i].name);
        json_bool(json, "serves", r->policies[i].fits);
        json_uint(json, "takes_bytes", r->policies[i].bytes);
        json_end_object(json);
    }
    json_end_array(json);
    json_end_object(json);
}
