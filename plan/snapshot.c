/*
 * snapshot.c: a torch memory snapshot (`torch.cuda.memory._snapshot()`, pickled) as a trace.
 *
 * WHAT IT HOLDS  {"segments": [...], "device_traces": [one list of events a device], ...}: what the
 * caching allocator held when the snapshot was taken, and its recorded events. Only the keys in
 * WORDS are looked at; other keys and unknown actions are passed over, as torch adds some with
 * every version. A list instead of the outer dict is its "segments".
 *
 * HOW  read_segments and read_events turn what is used into a flat array of `entry`, checked;
 * entries of expandable segments are cut into pieces that are mapped and unmapped whole. Both then
 * go through the same two passes over time, keyed by address, because addresses are reused:
 *   find_starts   what was live before the first event. The recording is a ring that loses its
 *                 oldest events, so some frees have no allocation, and some blocks of the final
 *                 "segments" were never seen to be allocated.
 *   replay        emits those in order of address, then the events in their order in the list
 *                 (times are not always in order).
 *
 * RULES  A request ends for the program at free_requested and for the allocator at free_completed.
 * When a recording has no free_completed at all, it completes at once. An allocation at an address
 * that is still taken ends the earlier request first: its free was not recorded. A free at an
 * address that is already free is passed over. A private pool's memory is its own, so a stream in
 * such a pool counts as another stream.
 */
#include <plan/import.h>

#include <internal/arena.h>
#include <internal/error.h>
#include <internal/range.h>
#include <plan/pickle.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef pleat__pickle_value value;
typedef pleat__pickle_node node;

/* X(name, text): the keys, actions and states that are looked at. */
#define WORDS(X)                                                                                   \
    X(SEGMENTS, "segments")                                                                        \
    X(DEVICE_TRACES, "device_traces")                                                              \
    X(DEVICE, "device")                                                                            \
    X(ADDRESS, "address")                                                                          \
    X(TOTAL_SIZE, "total_size")                                                                    \
    X(STREAM, "stream")                                                                            \
    X(SEGMENT_POOL_ID, "segment_pool_id")                                                          \
    X(IS_EXPANDABLE, "is_expandable")                                                              \
    X(BLOCKS, "blocks")                                                                            \
    X(SIZE, "size")                                                                                \
    X(REQUESTED_SIZE, "requested_size")                                                            \
    X(STATE, "state")                                                                              \
    X(HISTORY, "history")                                                                          \
    X(REAL_SIZE, "real_size")                                                                      \
    X(ACTION, "action")                                                                            \
    X(ADDR, "addr")                                                                                \
    X(TIME_US, "time_us")                                                                          \
    X(USER_METADATA, "user_metadata")                                                              \
    X(POOL_ID, "pool_id")                                                                          \
    X(ACTIVE_ALLOCATED, "active_allocated")                                                        \
    X(ACTIVE_PENDING_FREE, "active_pending_free")                                                  \
    X(ACTIVE_AWAITING_FREE, "active_awaiting_free")                                                \
    X(ALLOC, "alloc")                                                                              \
    X(FREE, "free")                                                                                \
    X(FREE_REQUESTED, "free_requested")                                                            \
    X(FREE_COMPLETED, "free_completed")                                                            \
    X(SEGMENT_ALLOC, "segment_alloc")                                                              \
    X(SEGMENT_FREE, "segment_free")                                                                \
    X(SEGMENT_MAP, "segment_map")                                                                  \
    X(SEGMENT_UNMAP, "segment_unmap")

enum word {
    WORD_NONE,
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

/* An event, or something the final segments say is there. */
typedef struct entry {
    uint64_t address;
    uint64_t size;
    uint64_t stream; /* value in the trace: see stream_value */
    uint64_t time_us;
    const char *label;
    uint32_t label_length;
    uint8_t action; /* enum word; WORD_NONE: passed over */
} entry;

#define ENTRIES_MOST (32u << 20)

typedef struct entries {
    entry *items;
    size_t count;
    size_t capacity;
} entries;

/* What is at an address now. */
enum { STATE_UNSEEN, STATE_LIVE, STATE_FREE_REQUESTED, STATE_GONE };
typedef struct tenant {
    uint64_t address;
    uint32_t number; /* of the request or segment */
    uint16_t stream;
    uint8_t state;
    bool used; /* this place of the table */
} tenant;

/* Open addressing by address; entries stay once made. */
typedef struct tenants {
    tenant *places;
    size_t capacity; /* a power of two */
    size_t count;
    uint32_t next; /* number of the next request or segment */
} tenants;

/* Where in the snapshot work goes on, for messages. */
typedef enum place_kind {
    PLACE_TOP,
    PLACE_TRACE,
    PLACE_EVENT,
    PLACE_SEGMENT,
    PLACE_BLOCK,
} place_kind;

typedef struct importer {
    const char *path;
    size_t size; /* of the pickle */
    pleat__arena *arena;
    place_kind place;
    size_t outer; /* indices of the place */
    size_t inner;
    uint64_t visited; /* dicts and what they hold */
    int device;
    const node *segments; /* NULL: none */
    const node *events;
    entries entries; /* in order of time */
    entries finals;  /* live when the snapshot was taken: ALLOC, SEGMENT_ALLOC, SEGMENT_MAP */
    entries starts;  /* live before the first event */
    tenants requests;
    tenants segment_tenants;
    pleat_trace *trace;
    const char *label; /* the last one looked up, */
    uint32_t label_length;
    uint32_t label_index; /* and its index */
} importer;

static void format_place(const importer *s, char *text, size_t size)
{
    switch (s->place) {
    case PLACE_TOP:
        snprintf(text, size, "the snapshot");
        return;
    case PLACE_TRACE:
        snprintf(text, size, "device_traces[%zu]", s->outer);
        return;
    case PLACE_EVENT:
        snprintf(text, size, "device_traces[%zu][%zu]", s->outer, s->inner);
        return;
    case PLACE_SEGMENT:
        snprintf(text, size, "segments[%zu]", s->outer);
        return;
    case PLACE_BLOCK:
        snprintf(text, size, "segments[%zu]['blocks'][%zu]", s->outer, s->inner);
        return;
    }
}

PLEAT_PRINTF(2, 3) static pleat_result fail(const importer *s, const char *format, ...)
{
    char place[80], text[256];
    format_place(s, place, sizeof place);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return pleat__fail(PLEAT_E_INPUT, "'%s': %s: %s", s->path, place, text);
}

/* --- values ------------------------------------------------------------------------------------*/

/* A dict's values by word; NULL where it has no such key. */
typedef struct fields {
    const value *of[WORD_COUNT];
} fields;

/* A pickle can list one dict any number of times in two bytes each. One that lists each but once
 * has more bytes than what is visited here, which is done at most twice. */
static pleat_result read_fields(importer *s, const value *dict, fields *out)
{
    if (dict->type != PLEAT__PICKLE_DICT)
        return fail(s, "not a dict");
    *out = (fields){{NULL}};
    const node *items = dict->node;
    s->visited += 1 + items->count;
    if (s->visited / 4 > s->size)
        return fail(s, "the same values are listed again and again");
    for (uint32_t i = 0; i + 1 < items->count; i += 2) {
        if (items->items[i].type == PLEAT__PICKLE_TEXT)
            out->of[items->items[i].word] = &items->items[i + 1];
    }
    return PLEAT_OK;
}

/* A whole number from 0; `fallback` where there is none, if that is allowed. */
static pleat_result read_number(const importer *s, const fields *from, enum word word,
                                const uint64_t *fallback, uint64_t *out)
{
    const value *found = from->of[word];
    if (found == NULL && fallback != NULL) {
        *out = *fallback;
        return PLEAT_OK;
    }
    if (found == NULL)
        return fail(s, "'%s' is missing", words[word - 1]);
    if (found->type != PLEAT__PICKLE_NUMBER)
        return fail(s, "'%s' is not a whole number from 0 to 2^64 - 1", words[word - 1]);
    *out = found->number;
    return PLEAT_OK;
}

/* A stream's handle may be any number; a private pool is a pair of numbers, (0, 0) being none. In a
 * private pool the value is mixed from all three, its top bit set. */
static uint64_t stream_value(const value *stream, const value *pool)
{
    uint64_t handle = 0, pair[2] = {0, 0};
    if (stream != NULL &&
        (stream->type == PLEAT__PICKLE_NUMBER || stream->type == PLEAT__PICKLE_NEGATIVE))
        handle = stream->number;
    if (pool != NULL && pool->type == PLEAT__PICKLE_TUPLE && pool->node->count == 2) {
        for (int i = 0; i < 2; i++)
            pair[i] =
                pool->node->items[i].type == PLEAT__PICKLE_NUMBER ? pool->node->items[i].number : 0;
    }
    if (pair[0] == 0 && pair[1] == 0)
        return handle;
    uint64_t hash = (handle ^ pair[0] * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 31 ^ pair[1]) * 0x94d049bb133111ebu;
    return (hash ^ hash >> 31) | 1ull << 63;
}

static const node *list_of(const value *found)
{
    bool is_list =
        found != NULL && (found->type == PLEAT__PICKLE_LIST || found->type == PLEAT__PICKLE_TUPLE);
    return is_list ? found->node : NULL;
}

static pleat_result add_entry(importer *s, entries *to, const entry *added)
{
    if (to->count == ENTRIES_MOST)
        return fail(s, "more than %u events; record fewer (max_entries)", ENTRIES_MOST);
    PLEAT_TRY(pleat__arena_grow(s->arena, &to->items, &to->capacity, to->count, sizeof *added));
    to->items[to->count++] = *added;
    return PLEAT_OK;
}

/* --- the top and the choice of a device --------------------------------------------------------*/

static pleat_result mark_device(const importer *s, uint64_t device, bool *seen)
{
    if (device > UINT8_MAX)
        return fail(s, "device %llu; 0 to 255 are read", (unsigned long long)device);
    seen[device] = true;
    return PLEAT_OK;
}

static pleat_result find_devices(importer *s, const node *traces, bool *seen)
{
    const uint64_t zero = 0;
    for (uint32_t i = 0; traces != NULL && i < traces->count; i++) {
        s->place = PLACE_TRACE;
        s->outer = i;
        const node *events = list_of(&traces->items[i]);
        if (events == NULL)
            return fail(s, "not a list");
        if (events->count > 0)
            PLEAT_TRY(mark_device(s, i, seen));
    }
    for (uint32_t i = 0; s->segments != NULL && i < s->segments->count; i++) {
        s->place = PLACE_SEGMENT;
        s->outer = i;
        fields segment;
        uint64_t device;
        PLEAT_TRY(read_fields(s, &s->segments->items[i], &segment));
        PLEAT_TRY(read_number(s, &segment, WORD_DEVICE, &zero, &device));
        PLEAT_TRY(mark_device(s, device, seen));
    }
    s->place = PLACE_TOP;
    return PLEAT_OK;
}

static pleat_result choose_device(importer *s, const node *traces, int wanted)
{
    bool seen[UINT8_MAX + 1] = {false};
    PLEAT_TRY(find_devices(s, traces, seen));
    char names[128] = "";
    size_t used = 0;
    int count = 0;
    for (int i = 0; i <= UINT8_MAX; i++) {
        if (!seen[i])
            continue;
        s->device = count++ == 0 ? i : s->device;
        if (used < sizeof names - 8)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%d",
                                     count > 1 ? ", " : "", i);
    }
    if (count == 0)
        return fail(s, "it has no events and no segments; was the recording on?");
    if (wanted != PLEAT__ANY_DEVICE && (wanted < 0 || wanted > UINT8_MAX || !seen[wanted]))
        return fail(s, "it has no device %d, but %s", wanted, names);
    if (wanted == PLEAT__ANY_DEVICE && count > 1)
        return fail(s, "it has devices %s; choose one (--device)", names);
    if (wanted != PLEAT__ANY_DEVICE)
        s->device = wanted;
    return PLEAT_OK;
}

static pleat_result read_top(importer *s, const value *top, int wanted)
{
    const node *traces = NULL;
    if (top->type == PLEAT__PICKLE_LIST) {
        s->segments = top->node;
    } else {
        fields all;
        PLEAT_TRY(read_fields(s, top, &all));
        s->segments = list_of(all.of[WORD_SEGMENTS]);
        traces = list_of(all.of[WORD_DEVICE_TRACES]);
        if (s->segments == NULL && traces == NULL)
            return fail(s, "neither 'segments' nor 'device_traces' is a list in it");
    }
    PLEAT_TRY(choose_device(s, traces, wanted));
    if (traces != NULL && (uint32_t)s->device < traces->count)
        s->events = list_of(&traces->items[s->device]);
    return PLEAT_OK;
}

/* --- events and segments as entries ------------------------------------------------------------*/

/* The actions are the last of WORDS. */
static bool known_action(uint8_t word)
{
    return word >= WORD_ALLOC && word <= WORD_SEGMENT_UNMAP;
}

static pleat_result read_event(importer *s, const value *event, uint64_t *time_us)
{
    fields from;
    PLEAT_TRY(read_fields(s, event, &from));
    const value *action = from.of[WORD_ACTION];
    if (action == NULL || action->type != PLEAT__PICKLE_TEXT)
        return fail(s, "'action' is missing");
    if (!known_action(action->word))
        return PLEAT_OK;
    entry made = {.action = action->word,
                  .stream = stream_value(from.of[WORD_STREAM], from.of[WORD_POOL_ID])};
    PLEAT_TRY(read_number(s, &from, WORD_ADDR, NULL, &made.address));
    PLEAT_TRY(read_number(s, &from, WORD_SIZE, NULL, &made.size));
    PLEAT_TRY(read_number(s, &from, WORD_TIME_US, time_us, &made.time_us));
    *time_us = made.time_us;
    const value *label = from.of[WORD_USER_METADATA];
    if (label != NULL && label->type == PLEAT__PICKLE_TEXT) {
        made.label = label->text;
        made.label_length = label->length;
    }
    return add_entry(s, &s->entries, &made);
}

/* Where frees are never completed, they are at once. */
static void complete_frees(importer *s)
{
    for (size_t i = 0; i < s->entries.count; i++) {
        if (s->entries.items[i].action == WORD_FREE_COMPLETED)
            return;
    }
    for (size_t i = 0; i < s->entries.count; i++) {
        if (s->entries.items[i].action == WORD_FREE_REQUESTED)
            s->entries.items[i].action = WORD_FREE;
    }
}

static pleat_result read_events(importer *s)
{
    uint32_t count = s->events ? s->events->count : 0;
    s->place = PLACE_EVENT;
    s->outer = (size_t)s->device;
    uint64_t time_us = 0;
    for (uint32_t i = 0; i < count; i++) {
        s->inner = i;
        PLEAT_TRY(read_event(s, &s->events->items[i], &time_us));
    }
    complete_frees(s);
    return PLEAT_OK;
}

/* What was asked for: dumps of torch 2.0 keep it in the block's history. */
static pleat_result read_block_size(importer *s, const fields *block, uint64_t size, uint64_t *out)
{
    const node *history = list_of(block->of[WORD_HISTORY]);
    if (block->of[WORD_REQUESTED_SIZE] != NULL || history == NULL || history->count == 0)
        return read_number(s, block, WORD_REQUESTED_SIZE, &size, out);
    fields first;
    PLEAT_TRY(read_fields(s, &history->items[0], &first));
    return read_number(s, &first, WORD_REAL_SIZE, &size, out);
}

/* Blocks of old dumps have no address of their own, but lie one behind the other from *address. */
static pleat_result read_block(importer *s, const value *block, uint64_t stream, uint64_t *address)
{
    fields from;
    uint64_t size;
    entry made = {.action = WORD_ALLOC, .stream = stream};
    PLEAT_TRY(read_fields(s, block, &from));
    PLEAT_TRY(read_number(s, &from, WORD_SIZE, NULL, &size));
    PLEAT_TRY(read_number(s, &from, WORD_ADDRESS, address, &made.address));
    if (!pleat__add(made.address, size, address))
        return fail(s, "it ends beyond 2^64");
    const value *state = from.of[WORD_STATE];
    if (state == NULL || state->type != PLEAT__PICKLE_TEXT)
        return fail(s, "'state' is missing");
    if (state->word != WORD_ACTIVE_ALLOCATED && state->word != WORD_ACTIVE_PENDING_FREE &&
        state->word != WORD_ACTIVE_AWAITING_FREE)
        return PLEAT_OK;
    PLEAT_TRY(read_block_size(s, &from, size, &made.size));
    return add_entry(s, &s->finals, &made);
}

static pleat_result read_segment(importer *s, const value *segment)
{
    const uint64_t zero = 0;
    fields from;
    uint64_t device;
    PLEAT_TRY(read_fields(s, segment, &from));
    PLEAT_TRY(read_number(s, &from, WORD_DEVICE, &zero, &device));
    if (device != (uint64_t)s->device)
        return PLEAT_OK;
    const value *expandable = from.of[WORD_IS_EXPANDABLE];
    entry made = {.action = WORD_SEGMENT_ALLOC,
                  .stream = stream_value(from.of[WORD_STREAM], from.of[WORD_SEGMENT_POOL_ID])};
    if (expandable != NULL && expandable->type == PLEAT__PICKLE_BOOL && expandable->number)
        made.action = WORD_SEGMENT_MAP;
    PLEAT_TRY(read_number(s, &from, WORD_ADDRESS, NULL, &made.address));
    PLEAT_TRY(read_number(s, &from, WORD_TOTAL_SIZE, NULL, &made.size));
    PLEAT_TRY(add_entry(s, &s->finals, &made));
    const node *blocks = list_of(from.of[WORD_BLOCKS]);
    uint32_t count = blocks ? blocks->count : 0;
    uint64_t address = made.address;
    s->place = PLACE_BLOCK;
    for (uint32_t i = 0; i < count; i++) {
        s->inner = i;
        PLEAT_TRY(read_block(s, &blocks->items[i], made.stream, &address));
    }
    return PLEAT_OK;
}

static pleat_result read_segments(importer *s)
{
    for (uint32_t i = 0; s->segments != NULL && i < s->segments->count; i++) {
        s->place = PLACE_SEGMENT;
        s->outer = i;
        PLEAT_TRY(read_segment(s, &s->segments->items[i]));
    }
    s->place = PLACE_TOP;
    return PLEAT_OK;
}

/* --- expandable segments -----------------------------------------------------------------------*/

/* Ranges mapped at one time are unmapped in other ranges. So all are cut at every place where any
 * of them begins or ends: each piece is mapped and unmapped whole. */
static bool is_mapping(const entry *e)
{
    return e->action == WORD_SEGMENT_MAP || e->action == WORD_SEGMENT_UNMAP;
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

static pleat_result add_cuts(importer *s, cuts *to, const entries *from)
{
    for (size_t i = 0; i < from->count; i++) {
        const entry *e = &from->items[i];
        uint64_t ends[2] = {e->address, 0};
        if (!is_mapping(e))
            continue;
        if (!pleat__add(e->address, e->size, &ends[1]))
            return fail(s, "a mapped range ends beyond 2^64");
        for (int k = 0; k < 2; k++) {
            PLEAT_TRY(pleat__arena_grow(s->arena, &to->items, &to->capacity, to->count,
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

static pleat_result cut_entry(importer *s, const cuts *all, const entry *whole, entries *to)
{
    size_t low = 0, high = all->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (all->items[middle] < whole->address)
            low = middle + 1;
        else
            high = middle;
    }
    entry piece = *whole;
    piece.action = whole->action == WORD_SEGMENT_MAP ? WORD_SEGMENT_ALLOC : WORD_SEGMENT_FREE;
    for (; all->items[low] < whole->address + whole->size; low++) {
        piece.address = all->items[low];
        piece.size = all->items[low + 1] - piece.address;
        PLEAT_TRY(add_entry(s, to, &piece));
    }
    return PLEAT_OK;
}

static pleat_result cut_entries(importer *s, const cuts *all, entries *from)
{
    entries cut = {0};
    for (size_t i = 0; i < from->count; i++) {
        const entry *e = &from->items[i];
        PLEAT_TRY(is_mapping(e) ? cut_entry(s, all, e, &cut) : add_entry(s, &cut, e));
    }
    pleat__arena_free(s->arena, from->items);
    *from = cut;
    return PLEAT_OK;
}

static pleat_result cut_mappings(importer *s)
{
    cuts all = {0};
    PLEAT_TRY(add_cuts(s, &all, &s->entries));
    PLEAT_TRY(add_cuts(s, &all, &s->finals));
    if (all.count == 0)
        return PLEAT_OK;
    sort_cuts(&all);
    PLEAT_TRY(cut_entries(s, &all, &s->entries));
    PLEAT_TRY(cut_entries(s, &all, &s->finals));
    pleat__arena_free(s->arena, all.items);
    return PLEAT_OK;
}

/* --- two passes over time ----------------------------------------------------------------------*/

static size_t place_of(const tenants *all, uint64_t address)
{
    size_t place = (size_t)(address * 0x9e3779b97f4a7c15u >> 20) & (all->capacity - 1);
    while (all->places[place].used && all->places[place].address != address)
        place = (place + 1) & (all->capacity - 1);
    return place;
}

static pleat_result grow_tenants(importer *s, tenants *all)
{
    tenants larger = {.capacity = all->capacity ? all->capacity * 2 : 1024};
    larger.places = pleat__arena_calloc(s->arena, larger.capacity, sizeof *larger.places);
    if (larger.places == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its addresses", s->path);
    for (size_t i = 0; i < all->capacity; i++) {
        if (all->places[i].used)
            larger.places[place_of(&larger, all->places[i].address)] = all->places[i];
    }
    pleat__arena_free(s->arena, all->places);
    all->places = larger.places;
    all->capacity = larger.capacity;
    return PLEAT_OK;
}

static pleat_result tenant_at(importer *s, tenants *all, uint64_t address, tenant **out)
{
    if (all->count * 2 >= all->capacity)
        PLEAT_TRY(grow_tenants(s, all));
    tenant *found = &all->places[place_of(all, address)];
    if (!found->used) {
        *found = (tenant){.address = address, .used = true};
        all->count++;
    }
    *out = found;
    return PLEAT_OK;
}

static bool of_segment(const entry *e)
{
    return e->action == WORD_SEGMENT_ALLOC || e->action == WORD_SEGMENT_FREE;
}

static tenants *tenants_for(importer *s, const entry *e)
{
    return of_segment(e) ? &s->segment_tenants : &s->requests;
}

/* Follows one event; what is freed without having been seen was there from the start. Frees of what
 * is free already become WORD_NONE. */
static pleat_result observe(importer *s, entry *e)
{
    tenant *at;
    PLEAT_TRY(tenant_at(s, tenants_for(s, e), e->address, &at));
    if (e->action == WORD_ALLOC || e->action == WORD_SEGMENT_ALLOC) {
        at->state = STATE_LIVE;
        return PLEAT_OK;
    }
    bool requested_only = e->action == WORD_FREE_REQUESTED;
    if (at->state == STATE_UNSEEN) {
        PLEAT_TRY(add_entry(s, &s->starts, e));
    } else if (at->state == STATE_GONE || (requested_only && at->state != STATE_LIVE)) {
        e->action = WORD_NONE;
        return PLEAT_OK;
    }
    at->state = requested_only ? STATE_FREE_REQUESTED : STATE_GONE;
    return PLEAT_OK;
}

static int compare_starts(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    if (of_segment(a) != of_segment(b))
        return of_segment(a) ? -1 : 1;
    return (a->address > b->address) - (a->address < b->address);
}

static pleat_result find_starts(importer *s)
{
    for (size_t i = 0; i < s->entries.count; i++)
        PLEAT_TRY(observe(s, &s->entries.items[i]));
    for (size_t i = 0; i < s->finals.count; i++) {
        const entry *e = &s->finals.items[i];
        tenant *at;
        PLEAT_TRY(tenant_at(s, tenants_for(s, e), e->address, &at));
        if (at->state == STATE_UNSEEN)
            PLEAT_TRY(add_entry(s, &s->starts, e));
        at->state = STATE_LIVE;
    }
    if (s->starts.count > 0)
        qsort(s->starts.items, s->starts.count, sizeof *s->starts.items, compare_starts);
    for (size_t i = 0; i < s->starts.count; i++) {
        entry *e = &s->starts.items[i];
        e->action = of_segment(e) ? WORD_SEGMENT_ALLOC : WORD_ALLOC;
        e->label = NULL;
        e->label_length = 0;
        e->time_us = s->entries.count > 0 ? s->entries.items[0].time_us : 0;
    }
    return PLEAT_OK;
}

static void forget_tenants(tenants *all)
{
    for (size_t i = 0; i < all->capacity; i++)
        all->places[i].state = STATE_UNSEEN;
}

static pleat_result emit(importer *s, const entry *e, const tenant *at, pleat_event_kind kind)
{
    if (s->label == NULL || e->label != s->label || e->label_length != s->label_length) {
        PLEAT_TRY(pleat_trace_add_label(s->trace, e->label ? e->label : "", e->label_length,
                                        &s->label_index));
        s->label = e->label;
        s->label_length = e->label_length;
    }
    pleat_trace_event event = {.kind = (uint8_t)kind,
                               .device = (uint8_t)s->device,
                               .stream = at->stream,
                               .label = s->label_index,
                               .request = at->number,
                               .time_us = e->time_us};
    if (kind == PLEAT_EVENT_ALLOC || kind == PLEAT_EVENT_SEGMENT_ALLOC)
        event.size = e->size;
    return pleat_trace_add(s->trace, &event);
}

/* Ends what lives at an address. */
static pleat_result emit_end(importer *s, const entry *e, tenant *at)
{
    uint8_t state = at->state;
    at->state = STATE_GONE;
    if (of_segment(e))
        return emit(s, e, at, PLEAT_EVENT_SEGMENT_FREE);
    if (state == STATE_LIVE)
        PLEAT_TRY(emit(s, e, at, PLEAT_EVENT_FREE_REQUESTED));
    return emit(s, e, at, PLEAT_EVENT_FREE_COMPLETED);
}

static pleat_result replay_entry(importer *s, const entry *e)
{
    if (e->action == WORD_NONE)
        return PLEAT_OK;
    tenants *all = tenants_for(s, e);
    tenant *at;
    PLEAT_TRY(tenant_at(s, all, e->address, &at));
    if (e->action == WORD_FREE_REQUESTED) {
        at->state = STATE_FREE_REQUESTED;
        return emit(s, e, at, PLEAT_EVENT_FREE_REQUESTED);
    }
    if (e->action != WORD_ALLOC && e->action != WORD_SEGMENT_ALLOC)
        return emit_end(s, e, at);
    if (at->state == STATE_LIVE || at->state == STATE_FREE_REQUESTED)
        PLEAT_TRY(emit_end(s, e, at));
    at->number = all->next++;
    at->state = STATE_LIVE;
    PLEAT_TRY(pleat_trace_add_stream(s->trace, e->stream, &at->stream));
    return emit(s, e, at, of_segment(e) ? PLEAT_EVENT_SEGMENT_ALLOC : PLEAT_EVENT_ALLOC);
}

static pleat_result replay(importer *s)
{
    forget_tenants(&s->requests);
    forget_tenants(&s->segment_tenants);
    const entries *both[2] = {&s->starts, &s->entries};
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < both[k]->count; i++) {
            pleat_result result = replay_entry(s, &both[k]->items[i]);
            if (result != PLEAT_OK)
                return pleat__context(result, "'%s': %s %zu, address 0x%llx", s->path,
                                      k == 0 ? "live at the start" : "event", i,
                                      (unsigned long long)both[k]->items[i].address);
        }
    }
    return PLEAT_OK;
}

static pleat_result import(importer *s, const uint8_t *bytes, int device)
{
    value top;
    PLEAT_TRY(pleat__pickle_decode(s->path, bytes, s->size, words, WORD_COUNT - 1, s->arena, &top));
    PLEAT_TRY(read_top(s, &top, device));
    PLEAT_TRY(read_events(s));
    PLEAT_TRY(read_segments(s));
    PLEAT_TRY(cut_mappings(s));
    PLEAT_TRY(find_starts(s));
    return replay(s);
}

pleat_result pleat__snapshot_decode(const char *path, const uint8_t *bytes, size_t size, int device,
                                    pleat_trace **out)
{
    importer s = {.path = path, .size = size};
    PLEAT_TRY(pleat__arena_create(&s.arena));
    pleat_result result = pleat_trace_new(&s.trace);
    if (result == PLEAT_OK)
        result = import(&s, bytes, device);
    pleat__arena_destroy(s.arena);
    if (result == PLEAT_OK)
        *out = s.trace;
    else
        pleat_trace_free(s.trace);
    return result;
}
