/*
 * trace.c: a trace in memory. Whatever fills one, a reader of untrusted files included, does so
 * through pleat_trace_add, so that every trace there is keeps these rules:
 *
 *   T1  ALLOC and SEGMENT_ALLOC events number their requests and segments 0, 1, 2, ...
 *   T2  a request is freed at most once: FREE_REQUESTED, then FREE_COMPLETED, after its ALLOC; a
 *       segment is freed at most once after its SEGMENT_ALLOC; with its size, stream and device
 *   T3  label, site and stream indices are in range; label 0 and site 0 are the empty text; no two
 *       are equal; texts are UTF-8
 *   T4  a size is at most 2^48, and what is live at once, rounded to 512, at most 2^56: sums of
 *       live bytes cannot overflow
 *   T5  there are at most PLEAT__TRACE_EVENTS_MOST events, and TEXTS_MOST labels or sites
 */
#include <internal/error.h>
#include <internal/hash.h>
#include <internal/range.h>
#include <internal/utf8.h>
#include <plan/trace/import.h>

#include <internal/arena.h>
#include <string.h>

#define SIZE_MOST    (1ull << 48)
#define LIVE_MOST    (1ull << 56)
#define TEXT_LONGEST 65535u
#define TEXTS_MOST   (4u << 20) /* of labels, and of sites */

enum { STATE_LIVE, STATE_FREE_REQUESTED, STATE_FREED };

/* What a request or a segment is: for T2, and so that a free knows its size, stream and device. */
typedef struct life {
    uint64_t size : 56;
    uint64_t state : 8;
    uint16_t stream;
    uint8_t device;
} life;

typedef struct lives {
    life *items;
    size_t count;
    size_t capacity;
} lives;

/* Open addressing over indices of labels or streams; EMPTY marks a free place. */
#define EMPTY UINT32_MAX
typedef struct lookup {
    uint32_t *places;
    size_t capacity; /* a power of two, at least twice the count; or 0 */
} lookup;

typedef struct string {
    char *bytes; /* ends in a zero byte */
    uint32_t length;
} string;

/* Labels, or sites. */
typedef struct texts {
    string *items;
    size_t count;
    size_t capacity;
    lookup lookup;
} texts;

struct pleat_trace {
    pleat__arena *arena; /* holds this struct too */
    pleat_trace_event *events;
    size_t event_count;
    size_t event_capacity;
    lives requests;
    lives segments;
    uint64_t live_bytes;
    texts labels;
    texts sites;
    uint64_t *streams;
    size_t stream_count;
    size_t stream_capacity;
    lookup stream_lookup;
    uint64_t device_bytes;
    pleat__refusal refusal;
};

pleat_result pleat_trace_new(pleat_trace **out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_trace *trace = pleat__arena_calloc(arena, 1, sizeof *trace);
    if (trace == NULL) {
        pleat__arena_destroy(arena);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a trace");
    }
    trace->arena = arena;
    uint32_t empty;
    pleat_result result = pleat_trace_add_label(trace, "", 0, &empty);
    if (result == PLEAT_OK)
        result = pleat_trace_add_site(trace, "", 0, &empty);
    if (result != PLEAT_OK) {
        pleat__arena_destroy(arena);
        return result;
    }
    *out = trace;
    return PLEAT_OK;
}

void pleat_trace_free(pleat_trace *trace)
{
    if (trace != NULL)
        pleat__arena_destroy(trace->arena);
}

/* Doubles a lookup that is half full: `hash_of(of, i)` gives the hashes of its `count` items. */
static pleat_result lookup_grow(pleat_trace *trace, lookup *table, size_t count,
                                uint64_t (*hash_of)(const void *, size_t), const void *of)
{
    if (count * 2 < table->capacity)
        return PLEAT_OK;
    size_t capacity = table->capacity ? table->capacity * 2 : 64;
    uint32_t *places = pleat__arena_alloc(trace->arena, capacity * sizeof *places);
    if (places == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an index of %zu entries",
                           capacity);
    memset(places, 0xff, capacity * sizeof *places);
    for (size_t i = 0; i < count; i++) {
        size_t place = hash_of(of, i) & (capacity - 1);
        while (places[place] != EMPTY)
            place = (place + 1) & (capacity - 1);
        places[place] = (uint32_t)i;
    }
    pleat__arena_free(trace->arena, table->places);
    *table = (lookup){places, capacity};
    return PLEAT_OK;
}

static uint64_t text_hash(const void *of, size_t index)
{
    const texts *all = of;
    return pleat__hash_text(pleat__hash_secret(), all->items[index].bytes,
                            all->items[index].length);
}

static pleat_result append_text(pleat_trace *trace, texts *all, const char *bytes, size_t length,
                                const char *what)
{
    if (length > TEXT_LONGEST || memchr(bytes, '\0', length) != NULL)
        return pleat__fail(PLEAT_E_INPUT, "a %s is at most %u bytes, none of them zero", what,
                           TEXT_LONGEST);
    size_t good = pleat__utf8_prefix(bytes, length, length);
    if (good != length)
        return pleat__fail(PLEAT_E_INPUT, "a %s is UTF-8, and byte %zu of it is not", what, good);
    if (all->count == TEXTS_MOST)
        return pleat__fail(PLEAT_E_INPUT, "a trace has at most %u %ss", TEXTS_MOST, what);
    PLEAT_TRY(pleat__arena_grow(trace->arena, &all->items, &all->capacity, all->count,
                                sizeof *all->items));
    char *copy = pleat__arena_alloc(trace->arena, length + 1);
    if (copy == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a %s", what);
    memcpy(copy, bytes, length);
    copy[length] = '\0';
    all->items[all->count++] = (string){copy, (uint32_t)length};
    return PLEAT_OK;
}

static pleat_result add_text(pleat_trace *trace, texts *all, const char *bytes, size_t length,
                             const char *what, uint32_t *index)
{
    PLEAT_TRY(lookup_grow(trace, &all->lookup, all->count, text_hash, all));
    size_t mask = all->lookup.capacity - 1;
    size_t place = pleat__hash_text(pleat__hash_secret(), bytes, length) & mask;
    for (uint32_t at; (at = all->lookup.places[place]) != EMPTY; place = (place + 1) & mask) {
        if (all->items[at].length == length && memcmp(all->items[at].bytes, bytes, length) == 0) {
            *index = at;
            return PLEAT_OK;
        }
    }
    PLEAT_TRY(append_text(trace, all, bytes, length, what));
    *index = (uint32_t)(all->count - 1);
    all->lookup.places[place] = *index;
    return PLEAT_OK;
}

pleat_result pleat_trace_add_label(pleat_trace *trace, const char *bytes, size_t length,
                                   uint32_t *index)
{
    return add_text(trace, &trace->labels, bytes, length, "label", index);
}

pleat_result pleat_trace_add_site(pleat_trace *trace, const char *bytes, size_t length,
                                  uint32_t *index)
{
    return add_text(trace, &trace->sites, bytes, length, "site", index);
}

/* Once more, so that what differs in high bits differs in low ones whatever the secret is. */
static uint64_t hash_stream(uint64_t stream)
{
    return pleat__mix(pleat__mix(pleat__hash_secret(), stream), 0);
}

static uint64_t stream_hash(const void *of, size_t index)
{
    const pleat_trace *trace = of;
    return hash_stream(trace->streams[index]);
}

pleat_result pleat_trace_add_stream(pleat_trace *trace, uint64_t stream, uint16_t *index)
{
    PLEAT_TRY(lookup_grow(trace, &trace->stream_lookup, trace->stream_count, stream_hash, trace));
    size_t mask = trace->stream_lookup.capacity - 1;
    size_t place = hash_stream(stream) & mask;
    for (uint32_t at; (at = trace->stream_lookup.places[place]) != EMPTY;
         place = (place + 1) & mask) {
        if (trace->streams[at] == stream) {
            *index = (uint16_t)at;
            return PLEAT_OK;
        }
    }
    if (trace->stream_count > UINT16_MAX)
        return pleat__fail(PLEAT_E_INPUT, "a trace has at most 65,536 streams");
    PLEAT_TRY(pleat__arena_grow(trace->arena, &trace->streams, &trace->stream_capacity,
                                trace->stream_count, sizeof *trace->streams));
    *index = (uint16_t)trace->stream_count;
    trace->streams[trace->stream_count++] = stream;
    trace->stream_lookup.places[place] = *index;
    return PLEAT_OK;
}

/* An ALLOC or a SEGMENT_ALLOC: T1, T4. */
static pleat_result begin_life(pleat_trace *trace, lives *all, const pleat_trace_event *event,
                               const char *what)
{
    if (event->request != all->count)
        return pleat__fail(PLEAT_E_INPUT, "%s %u where %zu comes next", what, event->request,
                           all->count);
    if (event->size > SIZE_MOST)
        return pleat__fail(PLEAT_E_INPUT, "%s %u has %llu bytes, more than any device", what,
                           event->request, (unsigned long long)event->size);
    PLEAT_TRY(pleat__arena_grow(trace->arena, &all->items, &all->capacity, all->count,
                                sizeof *all->items));
    all->items[all->count++] = (life){event->size, STATE_LIVE, event->stream, event->device};
    return PLEAT_OK;
}

static pleat_result begin_request(pleat_trace *trace, const pleat_trace_event *event)
{
    if (event->size <= SIZE_MOST && pleat__rounded(event->size) > LIVE_MOST - trace->live_bytes)
        return pleat__fail(PLEAT_E_INPUT, "more than 2^56 bytes are live at request %u",
                           event->request);
    PLEAT_TRY(begin_life(trace, &trace->requests, event, "request"));
    trace->live_bytes += pleat__rounded(event->size);
    return PLEAT_OK;
}

/* A free of either kind: T2. Its event gets the size, the stream and the device. */
static pleat_result end_life(lives *all, pleat_trace_event *event, const char *what, unsigned from,
                             unsigned to)
{
    if (event->request >= all->count)
        return pleat__fail(PLEAT_E_INPUT, "a free of %s %u, which was never allocated", what,
                           event->request);
    life *one = &all->items[event->request];
    if (one->state != from)
        return pleat__fail(PLEAT_E_INPUT, "%s %u is %s", what, event->request,
                           one->state == STATE_LIVE ? "freed before its free was requested"
                                                    : "freed twice");
    one->state = to;
    event->size = one->size;
    event->stream = one->stream;
    event->device = one->device;
    return PLEAT_OK;
}

static pleat_result check_event(pleat_trace *trace, pleat_trace_event *event)
{
    switch (event->kind) {
    case PLEAT_EVENT_ALLOC:
        return begin_request(trace, event);
    case PLEAT_EVENT_FREE_REQUESTED:
        return end_life(&trace->requests, event, "request", STATE_LIVE, STATE_FREE_REQUESTED);
    case PLEAT_EVENT_FREE_COMPLETED:
        PLEAT_TRY(end_life(&trace->requests, event, "request", STATE_FREE_REQUESTED, STATE_FREED));
        trace->live_bytes -= pleat__rounded(event->size);
        return PLEAT_OK;
    case PLEAT_EVENT_MARK:
        event->request = 0;
        event->size = 0;
        return PLEAT_OK;
    case PLEAT_EVENT_SEGMENT_ALLOC:
        return begin_life(trace, &trace->segments, event, "segment");
    case PLEAT_EVENT_SEGMENT_FREE:
        return end_life(&trace->segments, event, "segment", STATE_LIVE, STATE_FREED);
    default:
        return pleat__fail(PLEAT_E_INPUT, "%u is no kind of event", event->kind);
    }
}

pleat_result pleat_trace_add(pleat_trace *trace, const pleat_trace_event *given)
{
    pleat_trace_event event = *given;
    if (event.label >= trace->labels.count)
        return pleat__fail(PLEAT_E_INPUT, "label %u of %zu", event.label, trace->labels.count);
    if (event.kind != PLEAT_EVENT_ALLOC)
        event.site = 0;
    if (event.site >= trace->sites.count)
        return pleat__fail(PLEAT_E_INPUT, "site %u of %zu", event.site, trace->sites.count);
    if (event.stream >= trace->stream_count)
        return pleat__fail(PLEAT_E_INPUT, "stream %u of %zu", event.stream, trace->stream_count);
    if (trace->event_count == PLEAT__TRACE_EVENTS_MOST)
        return pleat__fail(PLEAT_E_INPUT, "more than %u events; record fewer iterations",
                           PLEAT__TRACE_EVENTS_MOST);
    PLEAT_TRY(pleat__arena_grow(trace->arena, &trace->events, &trace->event_capacity,
                                trace->event_count, sizeof event));
    PLEAT_TRY(check_event(trace, &event));
    trace->events[trace->event_count++] = event;
    return PLEAT_OK;
}

size_t pleat_trace_event_count(const pleat_trace *trace)
{
    return trace->event_count;
}

const pleat_trace_event *pleat_trace_events(const pleat_trace *trace)
{
    return trace->events;
}

uint32_t pleat_trace_request_count(const pleat_trace *trace)
{
    return (uint32_t)trace->requests.count;
}

uint32_t pleat_trace_label_count(const pleat_trace *trace)
{
    return (uint32_t)trace->labels.count;
}

const char *pleat_trace_label(const pleat_trace *trace, uint32_t index)
{
    return index < trace->labels.count ? trace->labels.items[index].bytes : "";
}

uint32_t pleat_trace_site_count(const pleat_trace *trace)
{
    return (uint32_t)trace->sites.count;
}

const char *pleat_trace_site(const pleat_trace *trace, uint32_t index)
{
    return index < trace->sites.count ? trace->sites.items[index].bytes : "";
}

uint32_t pleat_trace_stream_count(const pleat_trace *trace)
{
    return (uint32_t)trace->stream_count;
}

uint64_t pleat_trace_stream(const pleat_trace *trace, uint16_t index)
{
    return index < trace->stream_count ? trace->streams[index] : 0;
}

uint64_t pleat_trace_device_bytes(const pleat_trace *trace)
{
    return trace->device_bytes;
}

void pleat_trace_set_device_bytes(pleat_trace *trace, uint64_t bytes)
{
    trace->device_bytes = bytes;
}

pleat__refusal pleat__trace_refusal(const pleat_trace *trace)
{
    return trace->refusal;
}

void pleat__trace_set_refusal(pleat_trace *trace, const pleat__refusal *refusal)
{
    trace->refusal = *refusal;
}

/* Recorded times and sites are left out, and what the recorded allocator took of the device: they
 * show, they do not plan. */
uint64_t pleat_trace_fingerprint(const pleat_trace *trace)
{
    uint64_t hash = pleat__mix(pleat__mix(0, trace->labels.count), trace->stream_count);
    for (size_t i = 0; i < trace->labels.count; i++)
        hash = pleat__mix(
            hash, pleat__hash_text(0, trace->labels.items[i].bytes, trace->labels.items[i].length));
    for (size_t i = 0; i < trace->stream_count; i++)
        hash = pleat__mix(hash, trace->streams[i]);
    for (size_t i = 0; i < trace->event_count; i++) {
        const pleat_trace_event *event = &trace->events[i];
        if (event->kind > PLEAT_EVENT_MARK)
            continue;
        hash = pleat__mix(hash, (uint64_t)event->kind << 56 | (uint64_t)event->device << 48 |
                                    (uint64_t)event->stream << 32 | event->request);
        hash = pleat__mix(hash, event->size);
        hash = pleat__mix(hash, event->label);
    }
    return hash;
}
