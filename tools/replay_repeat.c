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
