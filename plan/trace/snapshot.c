/*
 * snapshot.c: a torch memory snapshot (`torch.cuda.memory._snapshot()`, pickled) as a trace.
 *
 * WHAT IT HOLDS  {"segments": [...], "device_traces": [one list of events a device], ...}: what the
 * caching allocator held when the snapshot was taken, and its recorded events. Only the keys in
 * WORDS are looked at; other keys are passed over, as torch adds some with every version. An action
 * that is none of WORDS might change what is live: the file is refused by its name. A list instead
 * of the outer dict is its "segments". tests/snapshots has files of torch 2.1 to 2.14.
 *
 * HOW  read_events and read_segments turn what is used into entries (snapshot.h), checked; what
 * they mean is snapshot_replay.c's to find out. A private pool's memory is its own, so a stream in
 * such a pool counts as another stream. When a recording has no free_completed at all, a free
 * completes at once.
 */
#include <plan/trace/import.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/range.h>
#include <plan/trace/pickle.h>
#include <plan/trace/snapshot.h>
#include <plan/trace/snapshot_frames.h>

#include <stdarg.h>
#include <stdio.h>

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
    X(FRAMES, "frames")                                                                            \
    X(FILENAME, "filename")                                                                        \
    X(LINE, "line")                                                                                \
    X(NAME, "name")                                                                                \
    X(POOL_ID, "pool_id")                                                                          \
    X(ACTIVE_ALLOCATED, "active_allocated")                                                        \
    X(ACTIVE_PENDING_FREE, "active_pending_free")                                                  \
    X(ACTIVE_AWAITING_FREE, "active_awaiting_free")                                                \
    X(DEVICE_FREE, "device_free")                                                                  \
    X(OOM, "oom")                                                                                  \
    X(SNAPSHOT, "snapshot")                                                                        \
    X(USER_DEFINED, "user_defined")                                                                \
    X(ALLOC, "alloc")                                                                              \
    X(FREE, "free")                                                                                \
    X(FREE_REQUESTED, "free_requested")                                                            \
    X(FREE_COMPLETED, "free_completed")                                                            \
    X(SEGMENT_ALLOC, "segment_alloc")                                                              \
    X(SEGMENT_FREE, "segment_free")                                                                \
    X(SEGMENT_MAP, "segment_map")                                                                  \
    X(SEGMENT_UNMAP, "segment_unmap")                                                              \
    X(ANNOTATE, "annotate")

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

/* Where in the snapshot work goes on, for messages. */
typedef enum place_kind {
    PLACE_TOP,
    PLACE_TRACE,
    PLACE_EVENT,
    PLACE_SEGMENT,
    PLACE_BLOCK,
} place_kind;

typedef struct importer {
    size_t size;   /* of the pickle */
    bool *devices; /* is told which there are; NULL: nobody */
    place_kind place;
    size_t outer; /* indices of the place */
    size_t inner;
    uint64_t visited;     /* dicts and what they hold */
    const node *segments; /* NULL: none */
    const node *events;
    pleat__snapshot recording;
    pleat__frames frames;
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
    return pleat__fail(PLEAT_E_INPUT, "'%s': %s: %s", s->recording.path, place, text);
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

/* The same of what becomes an entry: a dict of two keys is a byte, MARK, two pairs of two opcodes
 * of two bytes, and SETITEMS, which are 11 bytes. */
#define ENTRY_LEAST 10u
static pleat_result add_entry(importer *s, pleat__entries *to, const pleat__entry *added)
{
    if (to->count >= s->size / ENTRY_LEAST)
        return fail(s, "the same values are listed again and again");
    return pleat__entries_add(&s->recording, to, added);
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
    uint64_t hash = (handle ^ pair[0] * PLEAT__HASH_MULTIPLIER) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 31 ^ pair[1]) * 0x94d049bb133111ebu;
    return (hash ^ hash >> 31) | 1ull << 63;
}

static const node *list_of(const value *found)
{
    bool is_list =
        found != NULL && (found->type == PLEAT__PICKLE_LIST || found->type == PLEAT__PICKLE_TUPLE);
    return is_list ? found->node : NULL;
}

/* --- the top and the choice of a device --------------------------------------------------------*/

static pleat_result mark_device(const importer *s, uint64_t device, bool *seen)
{
    if (device > UINT8_MAX)
        return fail(s, "device %llu; 0 to 255 are read", (unsigned long long)device);
    seen[device] = true;
    return PLEAT_OK;
}

/* Memory that was refused, a snapshot taken, a range of the program's own named. */
static bool changes_nothing(uint8_t word)
{
    return word == WORD_OOM || word == WORD_SNAPSHOT || word == WORD_USER_DEFINED;
}

/* Whether something there may change what is live; what is said of it elsewhere is no event. */
static pleat_result has_events(importer *s, const node *events, bool *any)
{
    s->place = PLACE_EVENT;
    *any = false;
    for (uint32_t i = 0; i < events->count && !*any; i++) {
        fields from;
        s->inner = i;
        PLEAT_TRY(read_fields(s, &events->items[i], &from));
        const value *action = from.of[WORD_ACTION];
        *any =
            action == NULL || action->type != PLEAT__PICKLE_TEXT || !changes_nothing(action->word);
    }
    return PLEAT_OK;
}

/* Those with events; where none has any, those with segments. */
static pleat_result find_devices(importer *s, const node *traces, bool *seen)
{
    const uint64_t zero = 0;
    bool any, found = false;
    for (uint32_t i = 0; traces != NULL && i < traces->count; i++) {
        s->place = PLACE_TRACE;
        s->outer = i;
        const node *events = list_of(&traces->items[i]);
        if (events == NULL)
            return fail(s, "not a list");
        PLEAT_TRY(has_events(s, events, &any));
        s->place = PLACE_TRACE;
        if (any)
            PLEAT_TRY(mark_device(s, i, seen));
        found |= any;
    }
    for (uint32_t i = 0; !found && s->segments != NULL && i < s->segments->count; i++) {
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

#define RECORDING_ON                                                                               \
    "was the recording on? torch.cuda.memory._record_memory_history() begins it, before what is "  \
    "to be seen"

static pleat_result choose_device(importer *s, const node *traces, int wanted)
{
    bool own[UINT8_MAX + 1] = {false}, *seen = s->devices != NULL ? s->devices : own;
    PLEAT_TRY(find_devices(s, traces, seen));
    char names[128] = "";
    size_t used = 0;
    int count = 0;
    for (int i = 0; i <= UINT8_MAX; i++) {
        if (!seen[i])
            continue;
        s->recording.device = count++ == 0 ? i : s->recording.device;
        if (used < sizeof names - 8)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%d",
                                     count > 1 ? ", " : "", i);
    }
    if (count == 0)
        return fail(s, "it has no events and no segments; " RECORDING_ON);
    if (wanted != PLEAT__ANY_DEVICE && (wanted < 0 || wanted > UINT8_MAX || !seen[wanted]))
        return fail(s, "it has no events of device %d, but of %s", wanted, names);
    if (wanted == PLEAT__ANY_DEVICE && count > 1)
        return fail(s, "it has devices %s; choose one (--device)", names);
    if (wanted != PLEAT__ANY_DEVICE)
        s->recording.device = wanted;
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
    if (traces != NULL && (uint32_t)s->recording.device < traces->count)
        s->events = list_of(&traces->items[s->recording.device]);
    return PLEAT_OK;
}

/* --- events and segments as entries ------------------------------------------------------------*/

/* The actions are the last of WORDS, in the order of pleat__action. */
static bool known_action(uint8_t word)
{
    return word >= WORD_ALLOC && word <= WORD_ANNOTATE;
}

static pleat_result fail_action(const importer *s, const value *action)
{
    int length = 0;
    while (length < 40 && length < (int)action->length && action->text[length] > ' ' &&
           action->text[length] <= '~')
        length++;
    return fail(s, "the action '%.*s' is none that is known here: it may change what is live",
                length, action->text);
}

/* The last one is kept. */
static pleat_result read_refusal(importer *s, const fields *from)
{
    const uint64_t unknown = 0;
    pleat__refusal *refusal = &s->recording.refusal;
    refusal->count++;
    refusal->device = (uint8_t)s->recording.device;
    refusal->stream = stream_value(from->of[WORD_STREAM], from->of[WORD_POOL_ID]);
    refusal->event = s->recording.events.count;
    PLEAT_TRY(read_number(s, from, WORD_SIZE, &unknown, &refusal->bytes));
    return read_number(s, from, WORD_DEVICE_FREE, &unknown, &refusal->free_bytes);
}

static pleat_result read_event(importer *s, const value *event, uint64_t *time_us)
{
    fields from;
    PLEAT_TRY(read_fields(s, event, &from));
    const value *action = from.of[WORD_ACTION];
    if (action == NULL || action->type != PLEAT__PICKLE_TEXT)
        return fail(s, "'action' is missing");
    if (action->word == WORD_OOM)
        return read_refusal(s, &from);
    if (changes_nothing(action->word))
        return PLEAT_OK;
    if (!known_action(action->word))
        return fail_action(s, action);
    pleat__entry made = {.action = (uint8_t)(action->word - WORD_ALLOC + PLEAT__ACTION_ALLOC),
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
    if (made.action == PLEAT__ACTION_ALLOC)
        PLEAT_TRY(pleat__frames_site(&s->frames, from.of[WORD_FRAMES], &made.site));
    return add_entry(s, &s->recording.events, &made);
}

/* Where frees are never completed, they are at once. */
static void complete_frees(pleat__entries *events)
{
    for (size_t i = 0; i < events->count; i++) {
        if (events->items[i].action == PLEAT__ACTION_FREE_COMPLETED)
            return;
    }
    for (size_t i = 0; i < events->count; i++) {
        if (events->items[i].action == PLEAT__ACTION_FREE_REQUESTED)
            events->items[i].action = PLEAT__ACTION_FREE;
    }
}

static pleat_result read_events(importer *s)
{
    uint32_t count = s->events ? s->events->count : 0;
    s->place = PLACE_EVENT;
    s->outer = (size_t)s->recording.device;
    uint64_t time_us = 0;
    for (uint32_t i = 0; i < count; i++) {
        s->inner = i;
        PLEAT_TRY(read_event(s, &s->events->items[i], &time_us));
    }
    complete_frees(&s->recording.events);
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
    pleat__entry made = {.action = PLEAT__ACTION_ALLOC, .stream = stream};
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
    return add_entry(s, &s->recording.finals, &made);
}

static pleat_result read_segment(importer *s, const value *segment)
{
    const uint64_t zero = 0;
    fields from;
    uint64_t device;
    PLEAT_TRY(read_fields(s, segment, &from));
    PLEAT_TRY(read_number(s, &from, WORD_DEVICE, &zero, &device));
    if (device != (uint64_t)s->recording.device)
        return PLEAT_OK;
    const value *expandable = from.of[WORD_IS_EXPANDABLE];
    pleat__entry made = {.action = PLEAT__ACTION_SEGMENT_ALLOC,
                         .stream =
                             stream_value(from.of[WORD_STREAM], from.of[WORD_SEGMENT_POOL_ID])};
    if (expandable != NULL && expandable->type == PLEAT__PICKLE_BOOL && expandable->number)
        made.action = PLEAT__ACTION_SEGMENT_MAP;
    PLEAT_TRY(read_number(s, &from, WORD_ADDRESS, NULL, &made.address));
    PLEAT_TRY(read_number(s, &from, WORD_TOTAL_SIZE, NULL, &made.size));
    PLEAT_TRY(add_entry(s, &s->recording.finals, &made));
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

static pleat_result read_snapshot(importer *s, const uint8_t *bytes, int device)
{
    value top;
    PLEAT_TRY(pleat__pickle_decode(s->recording.path, bytes, s->size, words, WORD_COUNT - 1,
                                   s->recording.arena, &top));
    PLEAT_TRY(read_top(s, &top, device));
    PLEAT_TRY(read_events(s));
    return read_segments(s);
}

pleat_result pleat__snapshot_decode(const char *path, const uint8_t *bytes, size_t size, int device,
                                    bool *devices, pleat_trace **out)
{
    importer s = {.size = size, .devices = devices, .recording = {.path = path}};
    s.frames = (pleat__frames){.recording = &s.recording,
                               .bytes = size,
                               .name = WORD_NAME,
                               .file = WORD_FILENAME,
                               .line = WORD_LINE};
    pleat_trace *trace = NULL;
    PLEAT_TRY(pleat__arena_create(&s.recording.arena));
    pleat_result result = read_snapshot(&s, bytes, device);
    if (result == PLEAT_OK)
        result = pleat_trace_new(&trace);
    if (result == PLEAT_OK)
        result = pleat__snapshot_replay(&s.recording, trace);
    if (result == PLEAT_OK && s.recording.events.count == 0)
        result = fail(&s, "it holds what was live at the end and no events: " RECORDING_ON);
    pleat__arena_destroy(s.recording.arena);
    if (result == PLEAT_OK)
        *out = trace;
    else
        pleat_trace_free(trace);
    return result;
}
