/*
 * replay_repeat.c: see replay_repeat.h.
 */
#include "replay_repeat.h"

#include "progress.h"

#include <internal/error.h>

/* The events of the iteration: [first, last). */
typedef struct stretch {
    const pleat_trace_event *events;
    size_t first, last;
} stretch;

static bool is_ours(const replay_iteration *iteration, const pleat_trace_event *event)
{
    return event->device == iteration->device &&
           (event->kind == PLEAT_EVENT_ALLOC || event->kind == PLEAT_EVENT_FREE_COMPLETED);
}

static stretch find_stretch(const replay_iteration *iteration)
{
    stretch s = {.events = pleat_trace_events(iteration->trace)};
    size_t count = pleat_trace_event_count(iteration->trace);
    uint32_t position = 0;
    for (size_t i = 0; i < count && position < iteration->end; i++) {
        if (!is_ours(iteration, &s.events[i]))
            continue;
        if (position++ == iteration->begin)
            s.first = i;
        s.last = i + 1;
    }
    return s;
}

static pleat_result drop(pleat_runtime *runtime, pleat_va *address)
{
    pleat_va gone = *address;
    *address = 0;
    return pleat_free(runtime, gone);
}

static pleat_result run_once(pleat_runtime *runtime, const replay_iteration *iteration,
                             const stretch *s)
{
    if (iteration->tells)
        PLEAT_TRY(pleat_mark(runtime));
    for (size_t i = s->first; i < s->last; i++) {
        const pleat_trace_event *event = &s->events[i];
        if (!is_ours(iteration, event))
            continue;
        pleat_va *address = &iteration->addresses[event->request];
        PLEAT_TRY(drop(runtime, address));
        if (event->kind == PLEAT_EVENT_ALLOC)
            PLEAT_TRY(pleat_alloc(runtime, event->size,
                                  pleat_trace_stream(iteration->trace, event->stream), address));
    }
    return PLEAT_OK;
}

static bool is_unchanged(const pleat_stats *a, const pleat_stats *b)
{
    return a->physical_bytes == b->physical_bytes && a->virtual_bytes == b->virtual_bytes &&
           a->metadata_bytes == b->metadata_bytes && a->quarantined_bytes == b->quarantined_bytes;
}

pleat_result replay_repeat(pleat_runtime *runtime, const replay_iteration *iteration,
                           uint32_t count, replay_repeats *repeats)
{
    stretch s = find_stretch(iteration);
    pleat_result result = PLEAT_OK;
    progress bar;
    *repeats = (replay_repeats){.count = count};
    progress_begin(&bar, "repeats", count);
    for (uint32_t n = 0; n < count && result == PLEAT_OK; n++) {
        result = run_once(runtime, iteration, &s);
        if (n + 1 == REPLAY_REPEATS_EARLY || n + 1 == count)
            repeats->late = pleat_stats_of(runtime);
        if (n + 1 <= REPLAY_REPEATS_EARLY)
            repeats->early = repeats->late;
        progress_step(&bar, n);
    }
    progress_end(&bar);
    repeats->unchanged = is_unchanged(&repeats->early, &repeats->late);
    return result;
}

/* What the iteration allocated and did not free. */
static pleat_result drop_rest(pleat_runtime *runtime, const replay_iteration *iteration,
                              const stretch *s)
{
    for (size_t i = s->first; i < s->last; i++)
        if (is_ours(iteration, &s->events[i]) && s->events[i].kind == PLEAT_EVENT_ALLOC)
            PLEAT_TRY(drop(runtime, &iteration->addresses[s->events[i].request]));
    return PLEAT_OK;
}

pleat_result replay_alternate(pleat_runtime *runtime, const replay_iteration shapes[2],
                              replay_visits *visits)
{
    stretch s[2] = {find_stretch(&shapes[0]), find_stretch(&shapes[1])};
    pleat_result result = PLEAT_OK;
    progress bar;
    *visits = (replay_visits){0};
    progress_begin(&bar, "visits", REPLAY_VISITS);
    pleat_reset_peaks(runtime);
    while (visits->count < REPLAY_VISITS && result == PLEAT_OK) {
        uint32_t at = visits->count, which = at % 2;
        pleat_stats before = pleat_stats_of(runtime);
        for (uint32_t n = 0; n < REPLAY_VISIT && result == PLEAT_OK; n++)
            result = run_once(runtime, &shapes[which], &s[which]);
        pleat_stats after = pleat_stats_of(runtime);
        uint64_t planned = after.planned + after.lane - before.planned - before.lane;
        visits->planned_share[at] =
            (double)planned / (double)(after.requests - before.requests + !planned);
        visits->driver_calls[at] = after.driver_calls - before.driver_calls;
        visits->peak_physical_bytes[at] = after.peak_physical_bytes;
        if (result == PLEAT_OK)
            result = drop_rest(runtime, &shapes[which], &s[which]);
        visits->count++;
        progress_step(&bar, visits->count);
    }
    progress_end(&bar);
    return result;
}
