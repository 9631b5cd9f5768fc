/*
 * requests.c: see requests.h. One pass over the trace's events; labels are understood once each,
 * not once an event.
 */
#include <plan/model/requests.h>

#include <internal/error.h>
#include <stdlib.h>
#include <string.h>

#define NO_ITERATION UINT32_MAX
#define NO_PHASE     UINT16_MAX

/* What a label says. */
typedef struct label_meaning {
    uint32_t iteration; /* or NO_ITERATION */
    uint32_t module;    /* the first label of the same module; 0: it names none */
    uint32_t alike;     /* the first label of the same phase; 0: it names none */
    uint16_t phase;     /* or NO_PHASE: it says nothing about the phase */
} label_meaning;

/* The value of `key` in "key=value;key=value", or NULL. */
static const char *value_of(const char *label, const char *key, size_t *length)
{
    size_t key_length = strlen(key);
    for (const char *at = label; at != NULL; at = strchr(at, ';')) {
        at += *at == ';';
        if (strncmp(at, key, key_length) == 0 && at[key_length] == '=') {
            at += key_length + 1;
            *length = strcspn(at, ";");
            return at;
        }
    }
    return NULL;
}

static uint32_t iteration_of(const char *label)
{
    size_t length;
    const char *digits = value_of(label, "iter", &length);
    if (digits == NULL || length == 0 || length > 9)
        return NO_ITERATION;
    uint32_t number = 0;
    for (size_t i = 0; i < length; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return NO_ITERATION;
        number = number * 10 + (uint32_t)(digits[i] - '0');
    }
    return number;
}

const char *pleat__phase_text(const char *label, size_t *length)
{
    const char *text = value_of(label, "phase", length);
    if (text != NULL)
        return text;
    *length = iteration_of(label) == NO_ITERATION ? strlen(label) : 0;
    return label;
}

/* What of a label is numbered: the phase and its microbatch, or the module. */
typedef struct label_text {
    const char *text, *mb;
    size_t length, mb_length;
    uint32_t label;
} label_text;

static int order_text(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t shorter = a_length < b_length ? a_length : b_length;
    int order = shorter == 0 ? 0 : memcmp(a, b, shorter);
    return order != 0 ? order : (a_length > b_length) - (a_length < b_length);
}

static int order_texts(const label_text *x, const label_text *y)
{
    int order = order_text(x->text, x->length, y->text, y->length);
    return order != 0 ? order : order_text(x->mb, x->mb_length, y->mb, y->mb_length);
}

/* Among equal ones the first label first. */
static int by_text(const void *a, const void *b)
{
    const label_text *x = a, *y = b;
    int order = order_texts(x, y);
    return order != 0 ? order : (x->label > y->label) - (x->label < y->label);
}

/* Tells each label that names a phase the first one that names the same of the same microbatch; or
 * each that names a module the first one that names the same. */
static pleat_result match_labels(const pleat__requests *requests, const pleat_trace *trace,
                                 bool modules, label_meaning *meanings, uint32_t count)
{
    label_text *texts = pleat__arena_calloc(requests->arena, count, sizeof *texts);
    if (texts == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u labels", count);
    uint32_t named = 0;
    for (uint32_t i = 0; i < count; i++) {
        const char *label = pleat_trace_label(trace, i);
        label_text *at = &texts[named];
        *at = (label_text){.label = i};
        if (modules) {
            at->text = value_of(label, "module", &at->length);
        } else {
            at->text = pleat__phase_text(label, &at->length);
            at->mb = value_of(label, "mb", &at->mb_length);
        }
        named += at->length > 0;
    }
    qsort(texts, named, sizeof *texts, by_text);
    for (uint32_t i = 0, first = 0; i < named; i++) {
        label_meaning *meaning = &meanings[texts[i].label];
        if (i == 0 || order_texts(&texts[i], &texts[i - 1]) != 0)
            first = texts[i].label;
        *(modules ? &meaning->module : &meaning->alike) = first;
    }
    pleat__arena_free(requests->arena, texts);
    return PLEAT_OK;
}

/* The label's phase, added when new. A job with more than 65,000 kinds of phases labels something
 * else; those beyond count as the phase in force. */
static pleat_result number_phase(pleat__requests *requests, label_meaning *meanings, uint32_t label,
                                 size_t *capacity)
{
    label_meaning *own = &meanings[label];
    own->phase = own->alike == label ? NO_PHASE : meanings[own->alike].phase;
    if (own->alike != label || label == 0 || requests->phase_count == NO_PHASE)
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_grow(requests->arena, &requests->phase_labels, capacity,
                                requests->phase_count, sizeof *requests->phase_labels));
    requests->phase_labels[requests->phase_count] = label;
    own->phase = (uint16_t)requests->phase_count++;
    return PLEAT_OK;
}

/* Phase 0 is "none yet": label 0, which is the empty one. */
static pleat_result read_labels(pleat__requests *requests, const pleat_trace *trace,
                                label_meaning **out)
{
    size_t capacity = 0;
    uint32_t count = pleat_trace_label_count(trace);
    label_meaning *meanings = pleat__arena_calloc(requests->arena, count, sizeof *meanings);
    if (meanings == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u labels", count);
    *out = meanings;
    PLEAT_TRY(pleat__arena_grow(requests->arena, &requests->phase_labels, &capacity, 0,
                                sizeof *requests->phase_labels));
    requests->phase_labels[requests->phase_count++] = 0;
    PLEAT_TRY(match_labels(requests, trace, false, meanings, count));
    for (uint32_t i = 0; i < count; i++) {
        meanings[i].iteration = iteration_of(pleat_trace_label(trace, i));
        PLEAT_TRY(number_phase(requests, meanings, i, &capacity));
    }
    return match_labels(requests, trace, true, meanings, count);
}

/* What the pass over the events carries along. */
struct reading {
    const pleat_trace *trace;
    const label_meaning *meanings;
    uint32_t *item_of; /* request number in the trace -> item */
    size_t mark_capacity;
    size_t pass_capacity;
    uint32_t iteration; /* the highest seen */
    uint32_t module;    /* in force; 0: none */
    uint16_t phase;
    bool enters;      /* the next event is under another module or in another phase */
    uint16_t busiest; /* stream */
};

static pleat_result add_mark(pleat__requests *requests, struct reading *reading)
{
    if (requests->mark_count > 0 &&
        requests->marks[requests->mark_count - 1] == requests->event_count)
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_grow(requests->arena, &requests->marks, &reading->mark_capacity,
                                requests->mark_count, sizeof *requests->marks));
    requests->marks[requests->mark_count++] = requests->event_count;
    return PLEAT_OK;
}

/* The phase in force at this event, and a mark where labels begin an iteration. */
static pleat_result follow_label(pleat__requests *requests, struct reading *reading, uint32_t label,
                                 bool marked)
{
    label_meaning meaning = reading->meanings[label];
    bool newer = meaning.iteration != NO_ITERATION &&
                 (reading->iteration == NO_ITERATION || meaning.iteration > reading->iteration);
    if (newer) {
        reading->iteration = meaning.iteration;
        if (!marked)
            PLEAT_TRY(add_mark(requests, reading));
    }
    bool old = meaning.iteration != NO_ITERATION && meaning.iteration < reading->iteration;
    if (label == 0 || old)
        return PLEAT_OK;
    uint16_t phase = meaning.phase != NO_PHASE ? meaning.phase : reading->phase;
    reading->enters |= phase != reading->phase || meaning.module != reading->module;
    reading->phase = phase;
    reading->module = meaning.module;
    return PLEAT_OK;
}

/* A pass begins where a module was named before or is now; before the first one none does. */
static pleat_result follow_pass(pleat__requests *requests, struct reading *reading)
{
    if (!reading->enters || (reading->module == 0 && requests->pass_count == 0))
        return PLEAT_OK;
    reading->enters = false;
    uint32_t count = requests->pass_count == 0 && requests->event_count > 0 ? 2 : 1;
    for (; count > 0; count--) {
        PLEAT_TRY(pleat__arena_grow(requests->arena, &requests->passes, &reading->pass_capacity,
                                    requests->pass_count, sizeof *requests->passes));
        requests->passes[requests->pass_count++] = count == 2 ? 0 : requests->event_count;
    }
    return PLEAT_OK;
}

static uint32_t pass_now(const pleat__requests *requests)
{
    return requests->pass_count > 0 ? requests->pass_count - 1 : 0;
}

static void add_alloc(pleat__requests *requests, struct reading *reading,
                      const pleat_trace_event *event)
{
    pleat__request *item = &requests->items[requests->count];
    *item = (pleat__request){.size = event->size,
                             .alloc_at = requests->event_count,
                             .free_at = PLEAT__NEVER,
                             .alloc_phase = reading->phase,
                             .free_phase = reading->phase,
                             .alloc_pass = pass_now(requests),
                             .free_pass = pass_now(requests),
                             .stream = event->stream};
    reading->item_of[event->request] = requests->count;
    requests->numbers[requests->count] = event->request;
    requests->events[requests->event_count++] = requests->count++ * 2;
}

static void add_free(pleat__requests *requests, struct reading *reading,
                     const pleat_trace_event *event)
{
    uint32_t index = reading->item_of[event->request];
    requests->items[index].free_at = requests->event_count;
    requests->items[index].free_phase = reading->phase;
    requests->items[index].free_pass = pass_now(requests);
    requests->events[requests->event_count++] = index * 2 + 1;
}

static pleat_result read_events(pleat__requests *requests, struct reading *reading, uint32_t device,
                                bool marked)
{
    const pleat_trace_event *events = pleat_trace_events(reading->trace);
    size_t count = pleat_trace_event_count(reading->trace);
    for (size_t i = 0; i < count; i++) {
        const pleat_trace_event *event = &events[i];
        if (event->kind == PLEAT_EVENT_MARK)
            PLEAT_TRY(add_mark(requests, reading));
        bool ends = pleat__ends_life(event, reading->busiest);
        if (event->kind != PLEAT_EVENT_ALLOC && event->kind != PLEAT_EVENT_FREE_REQUESTED &&
            event->kind != PLEAT_EVENT_FREE_COMPLETED)
            continue;
        PLEAT_TRY(follow_label(requests, reading, event->label, marked));
        if (event->device != device)
            continue;
        PLEAT_TRY(follow_pass(requests, reading));
        if (event->kind == PLEAT_EVENT_ALLOC)
            add_alloc(requests, reading, event);
        else if (ends)
            add_free(requests, reading, event);
    }
    return PLEAT_OK;
}

typedef struct event_counts {
    uint64_t allocs;
    uint64_t frees;
    bool marked;
} event_counts;

uint16_t pleat__busiest_stream(const pleat_trace *trace, uint32_t device)
{
    /* Those beyond are too many for any to be the one that does the work. */
    enum { COUNTED = 256 };
    uint32_t counts[COUNTED] = {0};
    const pleat_trace_event *events = pleat_trace_events(trace);
    uint16_t busiest = 0;
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++) {
        const pleat_trace_event *event = &events[i];
        if (event->kind != PLEAT_EVENT_ALLOC || event->device != device || event->stream >= COUNTED)
            continue;
        counts[event->stream]++;
        if (counts[event->stream] > counts[busiest])
            busiest = event->stream;
    }
    return busiest;
}

static event_counts count_events(const pleat_trace *trace, uint32_t device, uint16_t busiest)
{
    event_counts counts = {0};
    const pleat_trace_event *events = pleat_trace_events(trace);
    size_t count = pleat_trace_event_count(trace);
    for (size_t i = 0; i < count; i++) {
        counts.marked |= events[i].kind == PLEAT_EVENT_MARK;
        if (events[i].device != device)
            continue;
        counts.allocs += events[i].kind == PLEAT_EVENT_ALLOC;
        counts.frees += pleat__ends_life(&events[i], busiest);
    }
    return counts;
}

pleat_result pleat__choose_device(const pleat_trace *trace, uint32_t wanted, uint32_t *device)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    bool has[UINT8_MAX + 1] = {false};
    uint32_t devices = 0, last = 0;
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++) {
        if (events[i].kind != PLEAT_EVENT_ALLOC || has[events[i].device])
            continue;
        has[events[i].device] = true;
        last = events[i].device;
        devices++;
    }
    *device = wanted == 0 && devices == 1 ? last : wanted;
    if (devices > 0 && (*device > UINT8_MAX || !has[*device]))
        return pleat__fail(PLEAT_E_INPUT,
                           "the trace allocates on %u device%s, such as %u, and not on device %u",
                           devices, devices == 1 ? "" : "s", last, wanted);
    return PLEAT_OK;
}

pleat_result pleat__requests_make(const pleat_trace *trace, uint32_t device, pleat__arena *arena,
                                  pleat__requests *out)
{
    *out = (pleat__requests){.arena = arena};
    uint16_t busiest = pleat__busiest_stream(trace, device);
    event_counts counts = count_events(trace, device, busiest);
    if (counts.allocs == 0)
        return pleat__fail(PLEAT_E_INPUT, "the trace holds no allocation on device %u", device);
    if (counts.allocs + counts.frees >= INT32_MAX)
        return pleat__fail(PLEAT_E_LIMIT, "the trace holds %llu events, more than the %d planned",
                           (unsigned long long)(counts.allocs + counts.frees), INT32_MAX);
    struct reading reading = {.trace = trace, .iteration = NO_ITERATION, .busiest = busiest};
    label_meaning *meanings = NULL;
    out->items = pleat__arena_calloc(arena, counts.allocs, sizeof *out->items);
    out->numbers = pleat__arena_calloc(arena, counts.allocs, sizeof *out->numbers);
    out->events = pleat__arena_calloc(arena, counts.allocs + counts.frees, sizeof *out->events);
    reading.item_of =
        pleat__arena_calloc(arena, pleat_trace_request_count(trace), sizeof(uint32_t));
    pleat_result result = PLEAT_OK;
    if (out->items == NULL || out->numbers == NULL || out->events == NULL ||
        reading.item_of == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %llu requests",
                             (unsigned long long)counts.allocs);
    if (result == PLEAT_OK)
        result = read_labels(out, trace, &meanings);
    reading.meanings = meanings;
    if (result == PLEAT_OK)
        result = read_events(out, &reading, device, counts.marked);
    out->labelled = out->mark_count > 0;
    pleat__arena_free(arena, reading.item_of);
    pleat__arena_free(arena, meanings);
    if (result != PLEAT_OK)
        pleat__requests_free(out);
    return result;
}

void pleat__requests_free(pleat__requests *requests)
{
    pleat__arena_free(requests->arena, requests->items);
    pleat__arena_free(requests->arena, requests->numbers);
    pleat__arena_free(requests->arena, requests->events);
    pleat__arena_free(requests->arena, requests->phase_labels);
    pleat__arena_free(requests->arena, requests->marks);
    pleat__arena_free(requests->arena, requests->passes);
    *requests = (pleat__requests){0};
}
