/*
 * snapshot_replay.c: what a snapshot's entries mean, as a trace.
 *
 * HOW  Entries of expandable segments are cut into pieces that are mapped and unmapped whole.
 * Then two passes over time, keyed by address, because addresses are reused. All addresses are
 * sorted first: a file can choose those that collide in any table of hashes.
 *
 * find_starts looks for what was live before the first event. The recording is a ring that loses
 * its oldest events, so some frees have no allocation, and some blocks of the final segments were
 * never seen to be allocated. In the same pass annotations are put to what lives at their address.
 *
 * replay emits those in order of address, then the events in their order in the list (times are
 * not always in order).
 *
 * RULES  A request ends for the program at free_requested and for the allocator at free_completed.
 * An allocation at an address that is still taken ends the earlier request first: its free was not
 * recorded. A free at an address that is already free is passed over.
 */
#include <plan/trace/snapshot.h>

#include <plan/trace/snapshot_annotations.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/range.h>
#include <internal/search.h>
#include <plan/base/sort.h>

#include <stdlib.h>

#define ENTRIES_MOST (16u << 20)

/* What is at an address now. */
enum { STATE_UNSEEN, STATE_LIVE, STATE_FREE_REQUESTED, STATE_GONE };
typedef struct tenant {
    uint64_t address;
    uint32_t number; /* of the request or segment */
    uint32_t event;  /* that allocated it, one more than its index; 0: not seen */
    uint32_t site;   /* where that was not seen: its annotations */
    uint16_t stream;
    uint8_t state;
} tenant;

/* One for each address that any entry has, in order of address. */
typedef struct tenants {
    tenant *items;
    size_t count;
    uint32_t next; /* number of the next request or segment */
} tenants;

/* A label of LONG_LABEL bytes or more. A pickle can give one text to any number of events, in two
 * bytes each, so what takes long to compare is looked up once. */
#define LONG_LABEL   256u
#define LABELS_LEAST 64u
typedef struct long_label {
    const char *text; /* in the pickle; NULL: none is here */
    uint32_t index;
} long_label;

typedef struct replayer {
    pleat__snapshot *recording;
    pleat__annotations annotations;
    pleat__entries starts; /* live before the first event */
    tenants requests;
    tenants segment_tenants;
    pleat_trace *trace;
    long_label *labels;    /* long ones that were looked up, by where they stand */
    uint32_t label_places; /* of `labels`, a power of two */
    uint32_t label_count;
    const char *last_label; /* of the event before: most events have the same */
    uint32_t last_index;
} replayer;

pleat_result pleat__entries_add(const pleat__snapshot *recording, pleat__entries *to,
                                const pleat__entry *added)
{
    if (to->count == ENTRIES_MOST)
        return pleat__fail(PLEAT_E_INPUT, "'%s': more than %u events; record fewer (max_entries)",
                           recording->path, ENTRIES_MOST);
    PLEAT_TRY(
        pleat__arena_grow(recording->arena, &to->items, &to->capacity, to->count, sizeof *added));
    to->items[to->count++] = *added;
    return PLEAT_OK;
}

pleat_result pleat__sites_add(pleat__snapshot *to, const pleat__site *added, uint32_t *index)
{
    do { /* the first is none */
        PLEAT_TRY(pleat__arena_grow(to->arena, &to->sites, &to->site_capacity, to->site_count,
                                    sizeof *to->sites));
        to->sites[to->site_count++] = (pleat__site){0};
    } while (to->site_count == 1);
    *index = (uint32_t)to->site_count - 1;
    to->sites[*index] = *added;
    return PLEAT_OK;
}

/* --- expandable segments -----------------------------------------------------------------------*/

/* Ranges mapped at one time are unmapped in other ranges. So all are cut at every place where any
 * of them begins or ends: each piece is mapped and unmapped whole. */
static bool is_mapping(const pleat__entry *e)
{
    return e->action == PLEAT__ACTION_SEGMENT_MAP || e->action == PLEAT__ACTION_SEGMENT_UNMAP;
}

static int compare_numbers(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

typedef struct cuts {
    uint64_t *items; /* ascending, each once */
    size_t count;
    size_t capacity;
} cuts;

static pleat_result add_cuts(replayer *s, cuts *to, const pleat__entries *from)
{
    for (size_t i = 0; i < from->count; i++) {
        const pleat__entry *e = &from->items[i];
        uint64_t ends[2] = {e->address, 0};
        if (!is_mapping(e))
            continue;
        if (!pleat__add(e->address, e->size, &ends[1]))
            return pleat__fail(PLEAT_E_INPUT, "'%s': a range mapped at 0x%llx ends beyond 2^64",
                               s->recording->path, (unsigned long long)e->address);
        for (int k = 0; k < 2; k++) {
            PLEAT_TRY(pleat__arena_grow(s->recording->arena, &to->items, &to->capacity, to->count,
                                        sizeof *to->items));
            to->items[to->count++] = ends[k];
        }
    }
    return PLEAT_OK;
}

static void sort_cuts(cuts *all)
{
    qsort(all->items, all->count, sizeof *all->items, compare_numbers);
    size_t kept = 0;
    for (size_t i = 0; i < all->count; i++) {
        if (kept == 0 || all->items[kept - 1] != all->items[i])
            all->items[kept++] = all->items[i];
    }
    all->count = kept;
}

static pleat_result cut_entry(replayer *s, const cuts *all, const pleat__entry *whole,
                              pleat__entries *to)
{
    size_t at;
    PLEAT__FIRST(at, all->count, all->items[at] >= whole->address);
    pleat__entry piece = *whole;
    piece.action = whole->action == PLEAT__ACTION_SEGMENT_MAP ? PLEAT__ACTION_SEGMENT_ALLOC
                                                              : PLEAT__ACTION_SEGMENT_FREE;
    for (; all->items[at] < whole->address + whole->size; at++) {
        piece.address = all->items[at];
        piece.size = all->items[at + 1] - piece.address;
        PLEAT_TRY(pleat__entries_add(s->recording, to, &piece));
    }
    return PLEAT_OK;
}

/* *at, a place between them, moves with them. */
static pleat_result cut_entries(replayer *s, const cuts *all, pleat__entries *from, size_t *at)
{
    pleat__entries cut = {0};
    size_t place = *at;
    for (size_t i = 0; i < from->count; i++) {
        const pleat__entry *e = &from->items[i];
        *at = i == place ? cut.count : *at;
        PLEAT_TRY(is_mapping(e) ? cut_entry(s, all, e, &cut)
                                : pleat__entries_add(s->recording, &cut, e));
    }
    *at = place == from->count ? cut.count : *at;
    pleat__arena_free(s->recording->arena, from->items);
    *from = cut;
    return PLEAT_OK;
}

static pleat_result cut_mappings(replayer *s)
{
    cuts all = {0};
    size_t none = 0;
    PLEAT_TRY(add_cuts(s, &all, &s->recording->events));
    PLEAT_TRY(add_cuts(s, &all, &s->recording->finals));
    if (all.count == 0)
        return PLEAT_OK;
    sort_cuts(&all);
    PLEAT_TRY(cut_entries(s, &all, &s->recording->events, &s->recording->refusal.event));
    PLEAT_TRY(cut_entries(s, &all, &s->recording->finals, &none));
    pleat__arena_free(s->recording->arena, all.items);
    return PLEAT_OK;
}

/* --- two passes over time ----------------------------------------------------------------------*/

static bool of_segment(const pleat__entry *e)
{
    return e->action == PLEAT__ACTION_SEGMENT_ALLOC || e->action == PLEAT__ACTION_SEGMENT_FREE;
}

static tenants *tenants_for(replayer *s, const pleat__entry *e)
{
    return of_segment(e) ? &s->segment_tenants : &s->requests;
}

static size_t list_addresses(const pleat__entries *entries, bool segments, uint64_t *to)
{
    size_t count = 0;
    for (size_t i = 0; i < entries->count; i++)
        if (of_segment(&entries->items[i]) == segments)
            to[count++] = entries->items[i].address;
    return count;
}

/* Makes the tenants of segments, or those of requests. */
static pleat_result make_tenants(replayer *s, bool segments, tenants *all)
{
    pleat__arena *arena = s->recording->arena;
    const pleat__entries *events = &s->recording->events, *finals = &s->recording->finals;
    size_t room = events->count + finals->count + 1;
    uint64_t *addresses = pleat__arena_alloc(arena, 2 * room * sizeof *addresses);
    if (addresses == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its addresses",
                           s->recording->path);
    size_t count = list_addresses(events, segments, addresses);
    count += list_addresses(finals, segments, addresses + count);
    pleat__sort_keys(addresses, addresses + room, count);
    all->items = pleat__arena_calloc(arena, count + 1, sizeof *all->items);
    for (size_t i = 0; i < count && all->items != NULL; i++)
        if (i == 0 || addresses[i] != addresses[i - 1])
            all->items[all->count++].address = addresses[i];
    pleat__arena_free(arena, addresses);
    return all->items != NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its addresses",
                             s->recording->path);
}

/* pre: an entry of its kind has the address. */
static tenant *tenant_at(replayer *s, const pleat__entry *e)
{
    const tenants *all = tenants_for(s, e);
    size_t at;
    PLEAT__FIRST(at, all->count - 1, all->items[at].address >= e->address);
    return &all->items[at];
}

/* What was there from the start. */
static pleat_result add_start(replayer *s, const pleat__entry *e, const tenant *at)
{
    pleat__entry start = *e;
    start.site = at->site;
    return pleat__entries_add(s->recording, &s->starts, &start);
}

/* Of memory that is free nothing can be said. */
static pleat_result annotate(replayer *s, pleat__entry *e, tenant *at)
{
    e->action = PLEAT__ACTION_NONE;
    if (at->state == STATE_GONE || e->label == NULL)
        return PLEAT_OK;
    uint32_t *site = at->event != 0 ? &s->recording->events.items[at->event - 1].site : &at->site;
    return pleat__annotate(&s->annotations, e->label, e->label_length, site);
}

/* Follows the event of an index; what is freed without having been seen was there from the start.
 * Frees of what is free already become PLEAT__ACTION_NONE, and so do annotations. */
static pleat_result observe(replayer *s, size_t index)
{
    pleat__entry *e = &s->recording->events.items[index];
    tenant *at = tenant_at(s, e);
    if (e->action == PLEAT__ACTION_ANNOTATE)
        return annotate(s, e, at);
    if (e->action == PLEAT__ACTION_ALLOC || e->action == PLEAT__ACTION_SEGMENT_ALLOC) {
        at->state = STATE_LIVE;
        at->event = (uint32_t)index + 1;
        return PLEAT_OK;
    }
    bool requested_only = e->action == PLEAT__ACTION_FREE_REQUESTED;
    if (at->state == STATE_UNSEEN) {
        PLEAT_TRY(add_start(s, e, at));
    } else if (at->state == STATE_GONE || (requested_only && at->state != STATE_LIVE)) {
        e->action = PLEAT__ACTION_NONE;
        return PLEAT_OK;
    }
    at->state = requested_only ? STATE_FREE_REQUESTED : STATE_GONE;
    return PLEAT_OK;
}

static int compare_starts(const void *left, const void *right)
{
    const pleat__entry *a = left, *b = right;
    if (of_segment(a) != of_segment(b))
        return of_segment(a) ? -1 : 1;
    return (a->address > b->address) - (a->address < b->address);
}

static pleat_result find_starts(replayer *s)
{
    for (size_t i = 0; i < s->recording->events.count; i++)
        PLEAT_TRY(observe(s, i));
    for (size_t i = 0; i < s->recording->finals.count; i++) {
        const pleat__entry *e = &s->recording->finals.items[i];
        tenant *at = tenant_at(s, e);
        if (at->state == STATE_UNSEEN)
            PLEAT_TRY(add_start(s, e, at));
        at->state = STATE_LIVE;
    }
    if (s->starts.count > 0)
        qsort(s->starts.items, s->starts.count, sizeof *s->starts.items, compare_starts);
    for (size_t i = 0; i < s->starts.count; i++) {
        pleat__entry *e = &s->starts.items[i];
        e->action = of_segment(e) ? PLEAT__ACTION_SEGMENT_ALLOC : PLEAT__ACTION_ALLOC;
        e->label = NULL;
        e->label_length = 0;
        e->time_us = s->recording->events.count > 0 ? s->recording->events.items[0].time_us : 0;
    }
    return PLEAT_OK;
}

static void forget_tenants(tenants *all)
{
    for (size_t i = 0; i < all->count; i++)
        all->items[i].state = STATE_UNSEEN;
}

/* Without the last line's end. */
static size_t line_end(const pleat__site *site)
{
    return site->length - (site->annotated > 0 && site->annotated == site->length);
}

static pleat_result site_of(replayer *s, const pleat__entry *e, uint32_t *index)
{
    if (e->site == 0)
        return PLEAT_OK;
    pleat__site *site = &s->recording->sites[e->site];
    if (site->index == 0)
        PLEAT_TRY(pleat_trace_add_site(s->trace, site->text, line_end(site), &site->index));
    *index = site->index;
    return PLEAT_OK;
}

/* Where a text is, or would be; there is room. */
static long_label *place_of(long_label *all, uint32_t places, const char *text)
{
    size_t at = (size_t)pleat__mix(pleat__hash_secret(), (uintptr_t)text);
    while (all[at & (places - 1)].text != NULL && all[at & (places - 1)].text != text)
        at++;
    return &all[at & (places - 1)];
}

static pleat_result make_room(replayer *s)
{
    uint32_t places = s->label_places != 0 ? 2 * s->label_places : LABELS_LEAST;
    if (s->label_count < s->label_places / 2)
        return PLEAT_OK;
    long_label *grown = pleat__arena_calloc(s->recording->arena, places, sizeof *grown);
    if (grown == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its labels",
                           s->recording->path);
    for (uint32_t i = 0; i < s->label_places; i++)
        if (s->labels[i].text != NULL)
            *place_of(grown, places, s->labels[i].text) = s->labels[i];
    pleat__arena_free(s->recording->arena, s->labels);
    s->labels = grown;
    s->label_places = places;
    return PLEAT_OK;
}

static pleat_result look_up(replayer *s, const pleat__entry *e, uint32_t *index)
{
    if (e->label_length < LONG_LABEL)
        return pleat_trace_add_label(s->trace, e->label, e->label_length, index);
    PLEAT_TRY(make_room(s));
    long_label *known = place_of(s->labels, s->label_places, e->label);
    if (known->text == NULL) {
        PLEAT_TRY(pleat_trace_add_label(s->trace, e->label, e->label_length, &known->index));
        known->text = e->label;
        s->label_count++;
    }
    *index = known->index;
    return PLEAT_OK;
}

static pleat_result label_of(replayer *s, const pleat__entry *e, uint32_t *index)
{
    if (e->label == NULL)
        return pleat_trace_add_label(s->trace, "", 0, index);
    if (e->label != s->last_label)
        PLEAT_TRY(look_up(s, e, &s->last_index));
    s->last_label = e->label;
    *index = s->last_index;
    return PLEAT_OK;
}

static pleat_result emit(replayer *s, const pleat__entry *e, const tenant *at,
                         pleat_event_kind kind)
{
    uint32_t label;
    PLEAT_TRY(label_of(s, e, &label));
    pleat_trace_event event = {.kind = (uint8_t)kind,
                               .device = (uint8_t)s->recording->device,
                               .stream = at->stream,
                               .label = label,
                               .request = at->number,
                               .time_us = e->time_us};
    if (kind == PLEAT_EVENT_ALLOC || kind == PLEAT_EVENT_SEGMENT_ALLOC)
        event.size = e->size;
    if (kind == PLEAT_EVENT_ALLOC)
        PLEAT_TRY(site_of(s, e, &event.site));
    return pleat_trace_add(s->trace, &event);
}

/* Ends what lives at an address. */
static pleat_result emit_end(replayer *s, const pleat__entry *e, tenant *at)
{
    uint8_t state = at->state;
    at->state = STATE_GONE;
    if (of_segment(e))
        return emit(s, e, at, PLEAT_EVENT_SEGMENT_FREE);
    if (state == STATE_LIVE)
        PLEAT_TRY(emit(s, e, at, PLEAT_EVENT_FREE_REQUESTED));
    return emit(s, e, at, PLEAT_EVENT_FREE_COMPLETED);
}

static pleat_result replay_entry(replayer *s, const pleat__entry *e)
{
    if (e->action == PLEAT__ACTION_NONE)
        return PLEAT_OK;
    tenant *at = tenant_at(s, e);
    if (e->action == PLEAT__ACTION_FREE_REQUESTED) {
        at->state = STATE_FREE_REQUESTED;
        return emit(s, e, at, PLEAT_EVENT_FREE_REQUESTED);
    }
    if (e->action != PLEAT__ACTION_ALLOC && e->action != PLEAT__ACTION_SEGMENT_ALLOC)
        return emit_end(s, e, at);
    if (at->state == STATE_LIVE || at->state == STATE_FREE_REQUESTED)
        PLEAT_TRY(emit_end(s, e, at));
    at->number = tenants_for(s, e)->next++;
    at->state = STATE_LIVE;
    PLEAT_TRY(pleat_trace_add_stream(s->trace, e->stream, &at->stream));
    return emit(s, e, at, of_segment(e) ? PLEAT_EVENT_SEGMENT_ALLOC : PLEAT_EVENT_ALLOC);
}

static pleat_result replay(replayer *s)
{
    forget_tenants(&s->requests);
    forget_tenants(&s->segment_tenants);
    const pleat__entries *both[2] = {&s->starts, &s->recording->events};
    pleat__refusal refusal = s->recording->refusal;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < both[k]->count; i++) {
            if (k == 1 && i == s->recording->refusal.event)
                refusal.event = pleat_trace_event_count(s->trace);
            pleat_result result = replay_entry(s, &both[k]->items[i]);
            if (result != PLEAT_OK)
                return pleat__context(result, "'%s': %s %zu, address 0x%llx", s->recording->path,
                                      k == 0 ? "live at the start" : "event", i,
                                      (unsigned long long)both[k]->items[i].address);
        }
    }
    if (s->recording->refusal.event == s->recording->events.count)
        refusal.event = pleat_trace_event_count(s->trace);
    pleat__trace_set_refusal(s->trace, &refusal);
    return PLEAT_OK;
}

pleat_result pleat__snapshot_replay(pleat__snapshot *recording, pleat_trace *trace)
{
    replayer s = {.recording = recording, .trace = trace, .annotations = {.recording = recording}};
    PLEAT_TRY(cut_mappings(&s));
    PLEAT_TRY(make_tenants(&s, false, &s.requests));
    PLEAT_TRY(make_tenants(&s, true, &s.segment_tenants));
    PLEAT_TRY(find_starts(&s));
    return replay(&s);
}
