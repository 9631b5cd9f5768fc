/*
 * first_iterations.c: the first iterations of a trace, as a trace of their own: what a job's first
 * minutes would have shown, so that a plan made of them can be tried on what came after.
 */
#include <plan/model/iteration.h>
#include <plan/trace/import.h>

#include <internal/error.h>
#include <string.h>

/* How many of the trace's events (of all devices) there are up to the first one behind the mark
 * that ends iteration `count`: that one's label is the mark. */
static pleat_result find_end(const pleat_trace *trace, uint32_t device, uint32_t count,
                             pleat__arena *arena, size_t *end)
{
    pleat__requests requests;
    PLEAT_TRY(pleat__requests_make(trace, device, arena, &requests));
    if (requests.mark_count == 0)
        PLEAT_TRY(pleat__marks_find(&requests, &requests.marks, &requests.mark_count));
    if (requests.mark_count <= count)
        return pleat__fail(PLEAT_E_INPUT, "%u iterations are wanted, and %u whole ones are there",
                           count, requests.mark_count > 0 ? requests.mark_count - 1 : 0);
    uint64_t left = (uint64_t)requests.marks[count] + 1;
    const pleat_trace_event *events = pleat_trace_events(trace);
    size_t all = pleat_trace_event_count(trace);
    uint16_t busiest = pleat__busiest_stream(trace, device);
    for (*end = 0; *end < all && left != 0; ++*end)
        left -= events[*end].device == device && (events[*end].kind == PLEAT_EVENT_ALLOC ||
                                                  pleat__ends_life(&events[*end], busiest));
    return PLEAT_OK;
}

pleat_result pleat__trace_add_names(const pleat_trace *from, size_t most, pleat_trace *to)
{
    uint32_t label, site;
    uint16_t stream;
    for (uint32_t i; (i = pleat_trace_label_count(to)) < pleat_trace_label_count(from); most--) {
        const char *text = pleat_trace_label(from, i);
        if (most == 0)
            return PLEAT_E_NOT_READY;
        PLEAT_TRY(pleat_trace_add_label(to, text, strlen(text), &label));
    }
    for (uint32_t i; (i = pleat_trace_site_count(to)) < pleat_trace_site_count(from); most--) {
        const char *text = pleat_trace_site(from, i);
        if (most == 0)
            return PLEAT_E_NOT_READY;
        PLEAT_TRY(pleat_trace_add_site(to, text, strlen(text), &site));
    }
    for (uint32_t i; (i = pleat_trace_stream_count(to)) < pleat_trace_stream_count(from); most--) {
        if (most == 0)
            return PLEAT_E_NOT_READY;
        PLEAT_TRY(pleat_trace_add_stream(to, pleat_trace_stream(from, (uint16_t)i), &stream));
    }
    pleat_trace_set_device_bytes(to, pleat_trace_device_bytes(from));
    return PLEAT_OK;
}

static pleat_result add_events(const pleat_trace *from, size_t end, pleat_trace *to)
{
    const pleat_trace_event *events = pleat_trace_events(from);
    for (size_t i = 0; i < end; i++)
        PLEAT_TRY(pleat_trace_add(to, &events[i]));
    return PLEAT_OK;
}

pleat_result pleat__trace_copy_names(const pleat_trace *trace, pleat_trace **out)
{
    pleat_trace *made;
    PLEAT_TRY(pleat_trace_new(&made));
    pleat_result result = pleat__trace_add_names(trace, SIZE_MAX, made);
    if (result == PLEAT_OK)
        *out = made;
    else
        pleat_trace_free(made);
    return result;
}

pleat_result pleat__trace_beginning(const pleat_trace *trace, uint32_t device, uint32_t count,
                                    pleat_trace **out)
{
    pleat__arena *arena;
    size_t end = 0;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_result result = find_end(trace, device, count, arena, &end);
    pleat__arena_destroy(arena);
    PLEAT_TRY(result);
    return pleat__trace_copy(trace, end, out);
}

pleat_result pleat__trace_copy(const pleat_trace *trace, size_t events, pleat_trace **out)
{
    pleat_trace *made;
    PLEAT_TRY(pleat__trace_copy_names(trace, &made));
    pleat_result result = add_events(trace, events, made);
    if (result == PLEAT_OK)
        *out = made;
    else
        pleat_trace_free(made);
    return result;
}
