/*
 * first_iterations.c: the first iterations of a trace, as a trace of their own: what a job's first
 * minutes would have shown, so that a plan made of them can be tried on what came after.
 */
#include <plan/model/iteration.h>
#include <plan/trace/import.h>

#include <internal/error.h>

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
