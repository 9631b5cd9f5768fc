/*
 * export_snapshot.c: see export_snapshot.h.
 *
 * ADDRESSES  A trace knows none. Each device's events are given to a runtime with PyTorch's native
 *            policy on the host backend, and get the addresses that it gives; what it maps and
 *            unmaps become the segments. So PyTorch's tools show the job as the native allocator
 *            holds it, fragmentation and all, whatever allocator it was recorded under.
 * SEGMENTS   Where an allocation took memory and none was given back, it lies at the beginning of
 *            the one segment that is new. Where memory was given back the mapped ranges are looked
 *            at, and what is new or gone is a segment: the native policy maps one at a time.
 * READING    `pleat import` reads it back to the same requests; marks, which no snapshot has, and
 *            recorded segments, which these stand in for, aside.
 */
#include <tools/export_snapshot.h>

#include <tools/pickle_writer.h>
#include <tools/progress.h>

#include <internal/arena.h>
#include <internal/error.h>
#include <internal/search.h>
#include <pleat/runtime.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES_MOST  256u
#define DEVICE_BYTES  (16ull << 40)
#define ADDRESS_EMPTY (1ull << 62) /* from here on: requests of no bytes, which have no address */
#define SMALL_SEGMENT (2ull << 20) /* torch's segments for requests of up to 1 MiB */

/* X(name, text): what events and segments repeat. */
#define WORDS(X)                                                                                   \
    X(ACTION, "action")                                                                            \
    X(ADDR, "addr")                                                                                \
    X(SIZE, "size")                                                                                \
    X(STREAM, "stream")                                                                            \
    X(TIME, "time_us")                                                                             \
    X(FRAMES, "frames")                                                                            \
    X(LABEL, "user_metadata")                                                                      \
    X(ALLOC, "alloc")                                                                              \
    X(FREE_REQUESTED, "free_requested")                                                            \
    X(FREE_COMPLETED, "free_completed")                                                            \
    X(SEGMENT_ALLOC, "segment_alloc")                                                              \
    X(SEGMENT_FREE, "segment_free")                                                                \
    X(ANNOTATE, "annotate")                                                                        \
    X(NAME, "name")                                                                                \
    X(FILENAME, "filename")                                                                        \
    X(LINE, "line")                                                                                \
    X(DEVICE, "device")                                                                            \
    X(ADDRESS, "address")                                                                          \
    X(TOTAL_SIZE, "total_size")                                                                    \
    X(ALLOCATED_SIZE, "allocated_size")                                                            \
    X(ACTIVE_SIZE, "active_size")                                                                  \
    X(REQUESTED_SIZE, "requested_size")                                                            \
    X(SEGMENT_TYPE, "segment_type")                                                                \
    X(SMALL, "small")                                                                              \
    X(LARGE, "large")                                                                              \
    X(BLOCKS, "blocks")                                                                            \
    X(STATE, "state")                                                                              \
    X(ALLOCATED, "active_allocated")                                                               \
    X(PENDING, "active_pending_free")                                                              \
    X(INACTIVE, "inactive")

enum word {
#define WORD_ENUM(name, text) WORD_##name,
    WORDS(WORD_ENUM)
#undef WORD_ENUM
        WORD_COUNT,
};

static const char *const words[] = {
#define WORD_TEXT(name, text) text,
    WORDS(WORD_TEXT)
#undef WORD_TEXT
};

typedef struct segment {
    pleat_va address;
    uint64_t bytes;
    uint64_t stream;
} segment;

typedef struct segments {
    segment *items; /* in order of address */
    size_t count;
    size_t capacity;
} segments;

/* What a request is at the end. */
typedef struct request {
    pleat_va address; /* 0: not live */
    uint32_t site;
    bool pending; /* its free was requested */
} request;

/* One device's emulation. */
typedef struct machine {
    pleat_vmm vmm;
    pleat_runtime *runtime; /* NULL: the device is not in the trace */
    segments now;
    uint64_t mapped, releases; /* the runtime's, when `now` was true */
} machine;

typedef struct snapshot {
    const pleat_trace *trace;
    FILE *out;
    pleat__arena *arena;
    request *requests;
    uint64_t empty; /* addresses given to requests of no bytes */
    /* Of labels, and behind them words: 0, or 1 + the number under which a reader remembers it.
     * Numbers count what is remembered: a reader has room for those alone. */
    uint32_t *known;
    uint32_t remembered;
    machine machines[DEVICES_MOST];
} snapshot;

/* ---- the emulation ---- */

static pleat_result begin_machine(machine *m)
{
    const pleat_host_options host = {.size = sizeof host, .device_bytes = DEVICE_BYTES};
    const pleat_runtime_options options = {.size = sizeof options, .policy = "native", .conf = ""};
    PLEAT_TRY(pleat_vmm_host(&host, &m->vmm));
    pleat_result result = pleat_runtime_create(m->vmm, &options, &m->runtime);
    if (result != PLEAT_OK)
        pleat_vmm_destroy(&m->vmm);
    return result;
}

static void end_machine(machine *m)
{
    if (m->runtime == NULL)
        return;
    pleat_runtime_destroy(m->runtime);
    pleat_vmm_destroy(&m->vmm);
}

/* Mapped ranges in order of address. */
typedef struct ranges {
    snapshot *snapshot;
    segments found;
    pleat_result failed;
} ranges;

static void add_range(void *context, const pleat_block *block)
{
    ranges *r = context;
    segments *all = &r->found;
    segment *last = all->count > 0 ? &all->items[all->count - 1] : NULL;
    if (last != NULL && last->address + last->bytes == block->address) {
        last->bytes += block->bytes;
        return;
    }
    if (r->failed == PLEAT_OK)
        r->failed = pleat__arena_grow(r->snapshot->arena, &all->items, &all->capacity, all->count,
                                      sizeof *all->items);
    if (r->failed == PLEAT_OK)
        all->items[all->count++] = (segment){.address = block->address, .bytes = block->bytes};
}

/* Whether it lies in one of the ranges, of which those before *at do not reach so far. */
static bool covers(const segments *mapped, size_t *at, const segment *one)
{
    while (*at < mapped->count &&
           mapped->items[*at].address + mapped->items[*at].bytes <= one->address)
        ++*at;
    return *at < mapped->count && mapped->items[*at].address <= one->address;
}

/* ---- writing ---- */

static void put_known(snapshot *s, size_t which, const char *text)
{
    if (s->known[which] != 0) {
        pickle_recall(s->out, s->known[which] - 1);
        return;
    }
    pickle_text(s->out, text, strlen(text));
    pickle_remember(s->out, s->remembered);
    s->known[which] = ++s->remembered;
}

static void put_word(snapshot *s, enum word word)
{
    put_known(s, (size_t)pleat_trace_label_count(s->trace) + word, words[word]);
}

static void put_number(snapshot *s, enum word word, uint64_t value)
{
    put_word(s, word);
    pickle_uint(s->out, value);
}

static void put_pair(snapshot *s, enum word key, enum word value)
{
    put_word(s, key);
    put_word(s, value);
}

/* A line of a site, "name (file:line)"; of what is none, nothing. */
static void put_frame(snapshot *s, const char *text, size_t length)
{
    const char *end = text + length, *open = memmem(text, length, " (", 2), *colon = end;
    if (open == NULL || end[-1] != ')')
        return;
    while (colon > open && colon[-1] != ':')
        colon--;
    const char *file = open + 2, *stop = colon > file ? colon - 1 : end - 1;
    pickle_dict(s->out);
    put_word(s, WORD_NAME);
    pickle_text(s->out, text, (size_t)(open - text));
    put_word(s, WORD_FILENAME);
    pickle_text(s->out, file, (size_t)(stop - file));
    put_number(s, WORD_LINE, colon > file ? strtoull(colon, NULL, 10) : 0);
    pickle_end_dict(s->out);
}

static void put_frames(snapshot *s, uint32_t site)
{
    put_word(s, WORD_FRAMES);
    pickle_list(s->out);
    for (const char *line = pleat_trace_site(s->trace, site); *line != '\0';) {
        size_t length = strcspn(line, "\n");
        put_frame(s, line, length);
        line += length + (line[length] == '\n');
    }
    pickle_end_list(s->out);
}

static void begin_event(snapshot *s, const pleat_trace_event *event, enum word action,
                        pleat_va address, uint64_t size)
{
    pickle_dict(s->out);
    put_pair(s, WORD_ACTION, action);
    put_number(s, WORD_ADDR, address);
    put_number(s, WORD_SIZE, size);
    put_number(s, WORD_STREAM, pleat_trace_stream(s->trace, event->stream));
    put_number(s, WORD_TIME, event->time_us);
}

static void put_event(snapshot *s, const pleat_trace_event *event, enum word action,
                      pleat_va address, uint64_t size)
{
    begin_event(s, event, action, address, size);
    put_frames(s, action == WORD_ALLOC ? event->site : 0);
    if (event->label != 0) {
        put_word(s, WORD_LABEL);
        put_known(s, event->label, pleat_trace_label(s->trace, event->label));
    }
    pickle_end_dict(s->out);
}

/* ---- segments as they come and go ---- */

/* Memory is given back for an allocation only where none of it serves that, which has a new segment
 * then: an old one that overlaps it is gone, though its addresses are mapped. */
static bool overlaps(const segment *one, const segment *placed)
{
    return one->address < placed->address + placed->bytes &&
           placed->address < one->address + one->bytes;
}

static void drop_segments(snapshot *s, machine *m, const segments *mapped, const segment *placed,
                          const pleat_trace_event *event)
{
    size_t kept = 0, range = 0;
    for (size_t i = 0; i < m->now.count; i++) {
        const segment one = m->now.items[i];
        if (covers(mapped, &range, &one) && !overlaps(&one, placed))
            m->now.items[kept++] = one;
        else
            put_event(s, event, WORD_SEGMENT_FREE, one.address, one.bytes);
    }
    m->now.count = kept;
}

static pleat_result insert_segment(snapshot *s, machine *m, size_t at, const segment *made)
{
    segments *all = &m->now;
    PLEAT_TRY(
        pleat__arena_grow(s->arena, &all->items, &all->capacity, all->count, sizeof *all->items));
    memmove(all->items + at + 1, all->items + at, (all->count - at) * sizeof *all->items);
    all->items[at] = *made;
    all->count++;
    return PLEAT_OK;
}

static pleat_result add_segment(snapshot *s, machine *m, size_t at, pleat_va address,
                                uint64_t bytes, const pleat_trace_event *event)
{
    const segment made = {address, bytes, pleat_trace_stream(s->trace, event->stream)};
    put_event(s, event, WORD_SEGMENT_ALLOC, made.address, made.bytes);
    return insert_segment(s, m, at, &made);
}

/* What of a mapped range no segment holds yet is a new one. */
static pleat_result find_new(snapshot *s, machine *m, const segment *range, size_t *at,
                             const pleat_trace_event *event)
{
    pleat_va from = range->address, end = range->address + range->bytes;
    while (from < end) {
        while (*at < m->now.count && m->now.items[*at].address < from)
            ++*at;
        pleat_va to =
            *at < m->now.count && m->now.items[*at].address < end ? m->now.items[*at].address : end;
        if (to > from)
            PLEAT_TRY(add_segment(s, m, (*at)++, from, to - from, event));
        from = to;
        if (*at < m->now.count && m->now.items[*at].address == from)
            from += m->now.items[(*at)++].bytes;
    }
    return PLEAT_OK;
}

static pleat_result look_at_segments(snapshot *s, machine *m, const segment *placed,
                                     const pleat_trace_event *event)
{
    ranges r = {.snapshot = s};
    PLEAT_TRY(pleat_walk(m->runtime, add_range, &r));
    PLEAT_TRY(r.failed);
    drop_segments(s, m, &r.found, placed, event);
    size_t at = 0;
    pleat_result result = PLEAT_OK;
    for (size_t i = 0; i < r.found.count && result == PLEAT_OK; i++)
        result = find_new(s, m, &r.found.items[i], &at, event);
    pleat__arena_free(s->arena, r.found.items);
    return result;
}

/* `address`: what the event allocated; 0: nothing. */
static pleat_result follow_segments(snapshot *s, machine *m, const pleat_trace_event *event,
                                    pleat_va address)
{
    const pleat_stats stats = pleat_stats_of(m->runtime);
    const segment placed = {address, address != 0 ? event->size : 0, 0};
    uint64_t mapped = m->mapped, releases = m->releases;
    size_t at;
    m->mapped = stats.virtual_bytes;
    m->releases = stats.releases;
    if (m->mapped == mapped && m->releases == releases)
        return PLEAT_OK;
    if (address == 0 || m->mapped < mapped || m->releases != releases)
        return look_at_segments(s, m, &placed, event);
    PLEAT__FIRST(at, m->now.count, m->now.items[at].address > address);
    return add_segment(s, m, at, address, m->mapped - mapped, event);
}

/* ---- a device's events ---- */

/* A trace has what was said of a tensor with its allocation, torch in an event of its own. */
static void put_annotations(snapshot *s, const pleat_trace_event *event, pleat_va address)
{
    for (const char *line = pleat_trace_site(s->trace, event->site); *line == '"';) {
        size_t length = strcspn(line, "\n");
        begin_event(s, event, WORD_ANNOTATE, address, event->size);
        put_frames(s, 0);
        put_word(s, WORD_LABEL);
        pickle_text(s->out, line + 1, length > 2 ? length - 2 : 0);
        pickle_end_dict(s->out);
        line += length + (line[length] == '\n');
    }
}

static pleat_result put_alloc(snapshot *s, machine *m, const pleat_trace_event *event)
{
    request *made = &s->requests[event->request];
    PLEAT_TRY(pleat_alloc(m->runtime, event->size, pleat_trace_stream(s->trace, event->stream),
                          &made->address));
    PLEAT_TRY(follow_segments(s, m, event, made->address));
    if (made->address == 0)
        made->address = ADDRESS_EMPTY + 512 * s->empty++;
    made->site = event->site;
    put_event(s, event, WORD_ALLOC, made->address, event->size);
    put_annotations(s, event, made->address);
    return PLEAT_OK;
}

static pleat_result put_any(snapshot *s, machine *m, const pleat_trace_event *event)
{
    request *one = &s->requests[event->request];
    switch (event->kind) {
    case PLEAT_EVENT_ALLOC:
        return put_alloc(s, m, event);
    case PLEAT_EVENT_FREE_REQUESTED:
        one->pending = true;
        put_event(s, event, WORD_FREE_REQUESTED, one->address, event->size);
        return PLEAT_OK;
    case PLEAT_EVENT_FREE_COMPLETED:
        put_event(s, event, WORD_FREE_COMPLETED, one->address, event->size);
        if (one->address < ADDRESS_EMPTY)
            PLEAT_TRY(pleat_free(m->runtime, one->address));
        one->address = 0;
        return follow_segments(s, m, event, 0);
    default:
        return PLEAT_OK;
    }
}

static pleat_result put_device(snapshot *s, unsigned device)
{
    const pleat_trace_event *events = pleat_trace_events(s->trace);
    machine *m = &s->machines[device];
    size_t count = pleat_trace_event_count(s->trace);
    pleat_result result = PLEAT_OK;
    progress bar;
    progress_begin(&bar, "snapshot", count);
    pickle_list(s->out);
    for (size_t i = 0; i < count && result == PLEAT_OK; i++) {
        if (i % 1024 == 0)
            progress_step(&bar, i);
        if (events[i].device != device)
            continue;
        if (m->runtime == NULL)
            result = begin_machine(m);
        if (result == PLEAT_OK)
            result = put_any(s, m, &events[i]);
    }
    pickle_end_list(s->out);
    progress_end(&bar);
    return result;
}

/* ---- what is there at the end ---- */

typedef struct live {
    pleat_va address;
    uint32_t request;
} live;

typedef struct final {
    snapshot *snapshot;
    unsigned device;
    const live *live; /* in order of address */
    size_t live_count;
} final;

static int compare_live(const void *left, const void *right)
{
    const live *a = left, *b = right;
    return (a->address > b->address) - (a->address < b->address);
}

static void begin_segment(final *f, const segment *one)
{
    snapshot *s = f->snapshot;
    pickle_dict(s->out);
    put_number(s, WORD_DEVICE, f->device);
    put_number(s, WORD_ADDRESS, one->address);
    put_number(s, WORD_TOTAL_SIZE, one->bytes);
    put_number(s, WORD_STREAM, one->stream);
    put_pair(s, WORD_SEGMENT_TYPE, one->bytes == SMALL_SEGMENT ? WORD_SMALL : WORD_LARGE);
    put_frames(s, 0);
    put_word(s, WORD_BLOCKS);
    pickle_list(s->out);
}

/* Sums follow the blocks. */
static void end_segment(final *f, uint64_t allocated, uint64_t requested)
{
    snapshot *s = f->snapshot;
    pickle_end_list(s->out);
    put_number(s, WORD_ALLOCATED_SIZE, allocated);
    put_number(s, WORD_ACTIVE_SIZE, allocated);
    put_number(s, WORD_REQUESTED_SIZE, requested);
    pickle_end_dict(s->out);
}

static void put_block(final *f, pleat_va address, uint64_t bytes, const pleat_block *block)
{
    snapshot *s = f->snapshot;
    const live key = {.address = address};
    const live *found = block->allocated && f->live_count > 0
                            ? bsearch(&key, f->live, f->live_count, sizeof key, compare_live)
                            : NULL;
    const request *of = found != NULL ? &s->requests[found->request] : NULL;
    pickle_dict(s->out);
    put_number(s, WORD_ADDRESS, address);
    put_number(s, WORD_SIZE, bytes);
    put_number(s, WORD_REQUESTED_SIZE, block->allocated ? block->requested : 0);
    put_pair(s, WORD_STATE,
             of == NULL    ? WORD_INACTIVE
             : of->pending ? WORD_PENDING
                           : WORD_ALLOCATED);
    put_frames(s, of != NULL ? of->site : 0);
    pickle_end_dict(s->out);
}

typedef struct blocks {
    snapshot *snapshot;
    pleat_block *items;
    size_t count;
    size_t capacity;
    pleat_result failed;
} blocks;

static void add_block(void *context, const pleat_block *block)
{
    blocks *b = context;
    if (b->failed == PLEAT_OK)
        b->failed = pleat__arena_grow(b->snapshot->arena, &b->items, &b->capacity, b->count,
                                      sizeof *b->items);
    if (b->failed == PLEAT_OK)
        b->items[b->count++] = *block;
}

/* The blocks that lie in a segment; free memory of two segments side by side is one block. */
static void put_segment(final *f, const segment *one, const blocks *all, size_t *at)
{
    uint64_t allocated = 0, requested = 0;
    pleat_va end = one->address + one->bytes;
    begin_segment(f, one);
    while (*at < all->count && all->items[*at].address + all->items[*at].bytes <= one->address)
        ++*at;
    for (size_t i = *at; i < all->count && all->items[i].address < end; i++) {
        const pleat_block *block = &all->items[i];
        pleat_va from = block->address > one->address ? block->address : one->address;
        pleat_va to = block->address + block->bytes < end ? block->address + block->bytes : end;
        put_block(f, from, to - from, block);
        allocated += block->allocated ? to - from : 0;
        requested += block->allocated ? block->requested : 0;
    }
    end_segment(f, allocated, requested);
}

static pleat_result put_segments_of(snapshot *s, unsigned device, const live *lives, size_t count)
{
    const machine *m = &s->machines[device];
    final f = {.snapshot = s, .device = device, .live = lives, .live_count = count};
    blocks all = {.snapshot = s};
    if (m->runtime == NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat_walk(m->runtime, add_block, &all));
    PLEAT_TRY(all.failed);
    size_t at = 0;
    for (size_t i = 0; i < m->now.count; i++)
        put_segment(&f, &m->now.items[i], &all, &at);
    pleat__arena_free(s->arena, all.items);
    return PLEAT_OK;
}

static pleat_result put_segments(snapshot *s)
{
    uint32_t requests = pleat_trace_request_count(s->trace);
    live *all = pleat__arena_calloc(s->arena, requests + 1u, sizeof *all);
    size_t count = 0;
    if (all == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", requests);
    for (uint32_t i = 0; i < requests; i++)
        if (s->requests[i].address != 0)
            all[count++] = (live){s->requests[i].address, i};
    qsort(all, count, sizeof *all, compare_live);
    pickle_text(s->out, "segments", strlen("segments"));
    pickle_list(s->out);
    for (unsigned device = 0; device < DEVICES_MOST; device++)
        PLEAT_TRY(put_segments_of(s, device, all, count));
    pickle_end_list(s->out);
    return PLEAT_OK;
}

static pleat_result put_snapshot(snapshot *s)
{
    const pleat_trace_event *events = pleat_trace_events(s->trace);
    unsigned devices = 0;
    for (size_t i = 0; i < pleat_trace_event_count(s->trace); i++)
        devices = events[i].device >= devices ? events[i].device + 1u : devices;
    pickle_begin(s->out);
    pickle_dict(s->out);
    pickle_text(s->out, "external_annotations", strlen("external_annotations"));
    pickle_list(s->out);
    pickle_end_list(s->out);
    pickle_text(s->out, "device_traces", strlen("device_traces"));
    pickle_list(s->out);
    for (unsigned device = 0; device < devices; device++)
        PLEAT_TRY(put_device(s, device));
    pickle_end_list(s->out);
    PLEAT_TRY(put_segments(s));
    pickle_end_dict(s->out);
    pickle_end(s->out);
    return PLEAT_OK;
}

pleat_result export_snapshot(const pleat_trace *trace, FILE *out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_result result;
    snapshot *s = pleat__arena_calloc(arena, 1, sizeof *s);
    if (s != NULL) {
        *s = (snapshot){.trace = trace, .out = out, .arena = arena};
        s->requests =
            pleat__arena_calloc(arena, pleat_trace_request_count(trace) + 1u, sizeof *s->requests);
        s->known = pleat__arena_calloc(arena, pleat_trace_label_count(trace) + (size_t)WORD_COUNT,
                                       sizeof *s->known);
    }
    result = s == NULL || s->requests == NULL || s->known == NULL
                 ? pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the trace's addresses")
                 : put_snapshot(s);
    for (unsigned device = 0; s != NULL && device < DEVICES_MOST; device++)
        end_machine(&s->machines[device]);
    pleat__arena_destroy(arena);
    return result;
}
