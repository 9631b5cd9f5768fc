/*
 * repeat.c: see repeat.h.
 */
#include <tools/replay/repeat.h>

#include <tools/progress.h>

#include <internal/error.h>
#include <stdlib.h>

/* What one end of a request is paired with: the same end of its like an iteration later. */
typedef struct crossing {
    uint64_t size;
    uint32_t stream;
    uint32_t request;
} crossing;

typedef struct repeater {
    const replay_script *script;
    pleat_runtime *runtime;
    pleat_va *addresses; /* by request; 0: not live */
    bool tells;          /* each repeat begins with a mark */
    const pleat_trace_event *events;
    size_t first, last, count; /* the iteration's are [first, last) of all */
    uint32_t *later; /* by request that the iteration frees and has not allocated: its like that the
                        iteration allocates and does not free; NOBODY: there is none */
} repeater;

#define NOBODY UINT32_MAX

static bool is_ours(const repeater *r, size_t at)
{
    return replay_is_ours(r->script, &r->events[at]);
}

/* The last whole iteration's events. */
static void find_events(repeater *r)
{
    const replay_script *s = r->script;
    uint32_t position = 0;
    for (size_t i = 0; i < r->count && position < s->marks[s->mark_count - 1]; i++) {
        if (!is_ours(r, i))
            continue;
        if (position++ == s->marks[s->mark_count - 2])
            r->first = i;
        r->last = i + 1;
    }
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

/* The iteration's requests of which it has one end only, in order of size: allocated and not freed,
 * or freed and not allocated. later[] counts ends on the way: 1 allocated, 2 freed. */
static size_t list_crossings(const repeater *r, bool allocated, crossing *list)
{
    size_t count = 0;
    for (size_t i = r->first; i < r->last; i++) {
        const pleat_trace_event *event = &r->events[i];
        if (is_ours(r, i) && (event->kind == PLEAT_EVENT_ALLOC) == allocated &&
            r->later[event->request] == (allocated ? 1 : 2))
            list[count++] = (crossing){event->size, event->stream, event->request};
    }
    qsort(list, count, sizeof *list, compare_crossings);
    return count;
}

/* What lives from one iteration into the next is freed by the next: as early as the recording
 * frees its like. */
static pleat_result pair_crossings(repeater *r)
{
    uint32_t requests = pleat_trace_request_count(r->script->trace);
    r->later = calloc((size_t)requests + 1, sizeof *r->later);
    crossing *lists = calloc(2 * (r->last - r->first) + 1, sizeof *lists);
    if (r->later == NULL || lists == NULL) {
        free(lists);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to repeat an iteration");
    }
    for (size_t i = r->first; i < r->last; i++)
        if (is_ours(r, i))
            r->later[r->events[i].request] |= r->events[i].kind == PLEAT_EVENT_ALLOC ? 1 : 2;
    crossing *outs = lists, *ins = lists + (r->last - r->first);
    size_t out_count = list_crossings(r, true, outs);
    size_t in_count = list_crossings(r, false, ins);
    for (uint32_t i = 0; i < requests; i++)
        r->later[i] = NOBODY;
    for (size_t i = 0, o = 0; i < in_count && o < out_count;) {
        crossing in = ins[i], out = outs[o];
        in.request = out.request;
        int order = compare_crossings(&in, &out);
        if (order == 0)
            r->later[ins[i].request] = out.request;
        i += order <= 0;
        o += order >= 0;
    }
    free(lists);
    return PLEAT_OK;
}

static pleat_result drop(const repeater *r, uint32_t request)
{
    pleat_va gone = r->addresses[request];
    r->addresses[request] = 0;
    return pleat_free(r->runtime, gone);
}

static pleat_result run_once(const repeater *r)
{
    if (r->tells)
        PLEAT_TRY(pleat_mark(r->runtime));
    for (size_t i = r->first; i < r->last; i++) {
        const pleat_trace_event *event = &r->events[i];
        if (!is_ours(r, i))
            continue;
        PLEAT_TRY(drop(r, event->request));
        if (event->kind != PLEAT_EVENT_ALLOC && r->later[event->request] != NOBODY)
            PLEAT_TRY(drop(r, r->later[event->request]));
        if (event->kind == PLEAT_EVENT_ALLOC)
            PLEAT_TRY(pleat_alloc(r->runtime, event->size,
                                  pleat_trace_stream(r->script->trace, event->stream),
                                  &r->addresses[event->request]));
    }
    return PLEAT_OK;
}

static bool is_unchanged(const pleat_stats *a, const pleat_stats *b)
{
    return a->physical_bytes == b->physical_bytes && a->virtual_bytes == b->virtual_bytes &&
           a->metadata_bytes == b->metadata_bytes && a->quarantined_bytes == b->quarantined_bytes;
}

/* What the recording holds of an iteration that begins behind this one. */
static pleat_result drop_tail(const repeater *r)
{
    for (size_t i = r->last; i < r->count; i++)
        if (is_ours(r, i) && r->events[i].kind == PLEAT_EVENT_ALLOC)
            PLEAT_TRY(drop(r, r->events[i].request));
    return PLEAT_OK;
}

pleat_result replay_repeat(const replay_script *script, pleat_runtime *runtime, pleat_va *addresses,
                           bool tells, uint32_t count, replay_repeats *repeats)
{
    repeater r = {.script = script,
                  .runtime = runtime,
                  .addresses = addresses,
                  .tells = tells,
                  .events = pleat_trace_events(script->trace),
                  .count = pleat_trace_event_count(script->trace)};
    progress bar;
    if (script->mark_count < 2)
        return pleat__fail(PLEAT_E_INPUT,
                           "no whole iteration to repeat: in a recording of two iterations or more "
                           "there is one");
    *repeats = (replay_repeats){.count = count};
    find_events(&r);
    pleat_result result = pair_crossings(&r);
    if (result == PLEAT_OK)
        result = drop_tail(&r);
    progress_begin(&bar, "repeats", count);
    for (uint32_t n = 0; n < count && result == PLEAT_OK; n++) {
        result = run_once(&r);
        if (n + 1 == REPLAY_REPEATS_EARLY || n + 1 == count)
            repeats->late = pleat_stats_of(runtime);
        if (n + 1 <= REPLAY_REPEATS_EARLY)
            repeats->early = repeats->late;
        progress_step(&bar, n);
    }
    progress_end(&bar);
    free(r.later);
    repeats->unchanged = is_unchanged(&repeats->early, &repeats->late);
    return result;
}
