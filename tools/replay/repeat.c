/*
 * repeat.c: see repeat.h.
 */
#include <tools/replay/repeat.h>

#include <tools/progress.h>

#include <internal/error.h>
#include <plan/model/requests.h>
#include <stdlib.h>

/* What one end of a request is paired with: the same end of its like an iteration later. */
typedef struct crossing {
    uint64_t size;
    uint32_t stream;
    uint32_t request;
} crossing;

/* The events of the iteration: [first, last). */
typedef struct stretch {
    const pleat_trace_event *events;
    size_t first, last, count;
    uint32_t *later; /* by request that the stretch frees and has not allocated: its like that the
                        stretch allocates and does not free; NOBODY: there is none */
} stretch;

#define NOBODY UINT32_MAX

static bool is_ours(const replay_iteration *iteration, const pleat_trace_event *event)
{
    return event->device == iteration->device &&
           (event->kind == PLEAT_EVENT_ALLOC || pleat__ends_life(event, iteration->busiest));
}

static stretch find_stretch(const replay_iteration *iteration)
{
    stretch s = {.events = pleat_trace_events(iteration->trace),
                 .count = pleat_trace_event_count(iteration->trace)};
    uint32_t position = 0;
    for (size_t i = 0; i < s.count && position < iteration->end; i++) {
        if (!is_ours(iteration, &s.events[i]))
            continue;
        if (position++ == iteration->begin)
            s.first = i;
        s.last = i + 1;
    }
    return s;
}

static int compare_crossings(const void *left, const void *right)
{
    const crossing *a = left, *b = right;
    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    if (a->stream != b->stream)
        return a->stream < b->stream ? -1 : 1;
    return (a->request > b->request) - (a->request < b->request);
}

/* The stretch's requests of which it has one end only, in order of size: allocated and not freed,
 * or freed and not allocated. later[] counts ends on the way: 1 allocated, 2 freed. */
static size_t list_crossings(const replay_iteration *iteration, const stretch *s, bool allocated,
                             crossing *list)
{
    size_t count = 0;
    for (size_t i = s->first; i < s->last; i++) {
        const pleat_trace_event *event = &s->events[i];
        if (is_ours(iteration, event) && (event->kind == PLEAT_EVENT_ALLOC) == allocated &&
            s->later[event->request] == (allocated ? 1 : 2))
            list[count++] = (crossing){event->size, event->stream, event->request};
    }
    qsort(list, count, sizeof *list, compare_crossings);
    return count;
}

/* What lives from one iteration into the next is freed by the next: as early as the recording
 * frees its like. */
static pleat_result pair_crossings(const replay_iteration *iteration, stretch *s)
{
    uint32_t requests = 0;
    for (size_t i = 0; i < s->count; i++)
        if (is_ours(iteration, &s->events[i]) && s->events[i].request >= requests)
            requests = s->events[i].request + 1;
    s->later = calloc((size_t)requests + 1, sizeof *s->later);
    crossing *lists = calloc(2 * (s->last - s->first) + 1, sizeof *lists);
    if (s->later == NULL || lists == NULL) {
        free(lists);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to repeat an iteration");
    }
    for (size_t i = s->first; i < s->last; i++)
        if (is_ours(iteration, &s->events[i]))
            s->later[s->events[i].request] |= s->events[i].kind == PLEAT_EVENT_ALLOC ? 1 : 2;
    crossing *outs = lists, *ins = lists + (s->last - s->first);
    size_t out_count = list_crossings(iteration, s, true, outs);
    size_t in_count = list_crossings(iteration, s, false, ins);
    for (uint32_t r = 0; r < requests; r++)
        s->later[r] = NOBODY;
    for (size_t i = 0, o = 0; i < in_count && o < out_count;) {
        crossing in = ins[i], out = outs[o];
        in.request = out.request;
        int order = compare_crossings(&in, &out);
        if (order == 0)
            s->later[ins[i].request] = out.request;
        i += order <= 0;
        o += order >= 0;
    }
    free(lists);
    return PLEAT_OK;
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
        if (event->kind != PLEAT_EVENT_ALLOC && s->later[event->request] != NOBODY)
            PLEAT_TRY(drop(runtime, &iteration->addresses[s->later[event->request]]));
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

/* What the recording holds of an iteration that begins behind this one. */
static pleat_result drop_tail(pleat_runtime *runtime, const replay_iteration *iteration,
                              const stretch *s)
{
    for (size_t i = s->last; i < s->count; i++)
        if (is_ours(iteration, &s->events[i]) && s->events[i].kind == PLEAT_EVENT_ALLOC)
            PLEAT_TRY(drop(runtime, &iteration->addresses[s->events[i].request]));
    return PLEAT_OK;
}

pleat_result replay_repeat(pleat_runtime *runtime, const replay_iteration *iteration,
                           uint32_t count, replay_repeats *repeats)
{
    stretch s = find_stretch(iteration);
    progress bar;
    *repeats = (replay_repeats){.count = count};
    pleat_result result = pair_crossings(iteration, &s);
    if (result == PLEAT_OK)
        result = drop_tail(runtime, iteration, &s);
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
    free(s.later);
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
    progress bar;
    *visits = (replay_visits){0};
    pleat_result result = pair_crossings(&shapes[0], &s[0]);
    if (result == PLEAT_OK)
        result = pair_crossings(&shapes[1], &s[1]);
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
    free(s[0].later);
    free(s[1].later);
    return result;
}
