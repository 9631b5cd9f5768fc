/*
 * operator_log.c: see operator_log.h.
 *
 * JSON  A line is one object of texts, whole numbers, and lists of these; what else JSON has is
 *       refused. Texts are names: an escape in one is kept as it is written.
 */
#include <plan/remat/operator_log.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/range.h>
#include <internal/utf8.h>
#include <plan/base/file.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct text {
    const char *begin;
    size_t length;
} text;

/* X(field): what a line may have; any other is ignored. */
#define FIELDS(X)                                                                                  \
    X(INSTRUCTION)                                                                                 \
    X(NAME) X(MEMORY) X(ALIAS) X(ARGS) X(RESULT) X(MUTATE) X(TIME) X(DST) X(SRC) X(ANNOTATION)
#define FIELD_ENUM(name) FIELD_##name,
typedef enum { FIELDS(FIELD_ENUM) FIELD_COUNT } field;
#define FIELD_NAME(name) #name,
static const char *const field_names[] = {FIELDS(FIELD_NAME)};

typedef struct names {
    text *entries; /* by hash; length 0: empty, and the handle of each */
    uint32_t *handles;
    uint64_t mask;
    uint32_t count;
} names;

typedef struct reader {
    const char *path;
    pleat__arena *arena;
    const char *at, *end;
    uint32_t line;
    /* Of the line at hand: the first value of each field, and how many values it has. */
    size_t first[FIELD_COUNT], values[FIELD_COUNT];
    bool has[FIELD_COUNT];
    text *all;
    size_t count, room;
    names names;
    size_t step_room;
    pleat__operator_log *log;
} reader;

PLEAT_PRINTF(2, 3) static pleat_result fail(const reader *r, const char *format, ...)
{
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return pleat__fail(PLEAT_E_INPUT, "'%s': line %u: %s", r->path, r->line, reason);
}

static int shown(text t)
{
    return t.length < 40 ? (int)t.length : 40;
}

static bool equals(text t, const char *name)
{
    return strlen(name) == t.length && memcmp(t.begin, name, t.length) == 0;
}

/* ---- a line of JSON ---- */

static void skip_space(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
}

/* Takes one character where it is the next one. */
static bool take(reader *r, char c)
{
    skip_space(r);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

/* A text without its quotes, or a whole number. */
static pleat_result read_value(reader *r, text *out)
{
    bool quoted = take(r, '"');
    const char *begin = r->at;
    if (quoted) {
        while (r->at < r->end && *r->at != '"' && *r->at != '\n')
            r->at += *r->at == '\\' && r->at + 1 < r->end ? 2 : 1;
        if (r->at >= r->end || *r->at != '"')
            return fail(r, "a text that does not end");
    } else {
        while (r->at < r->end && (*r->at == '-' || (*r->at >= '0' && *r->at <= '9')))
            r->at++;
        if (r->at == begin)
            return fail(r, "neither a text nor a whole number at '%.*s'",
                        shown((text){begin, (size_t)(r->end - begin)}), begin);
    }
    *out = (text){begin, (size_t)(r->at - begin)};
    r->at += quoted;
    if (pleat__utf8_prefix(begin, out->length, out->length) != out->length)
        return fail(r, "a text that is not UTF-8");
    return PLEAT_OK;
}

static pleat_result keep_value(reader *r)
{
    text value;
    PLEAT_TRY(read_value(r, &value));
    if (r->count == PLEAT__OPERATOR_VALUES_MOST)
        return fail(r, "more than %u values", PLEAT__OPERATOR_VALUES_MOST);
    PLEAT_TRY(pleat__arena_grow(r->arena, &r->all, &r->room, r->count, sizeof value));
    r->all[r->count++] = value;
    return PLEAT_OK;
}

static pleat_result read_list(reader *r)
{
    if (take(r, ']'))
        return PLEAT_OK;
    do {
        PLEAT_TRY(keep_value(r));
    } while (take(r, ','));
    return take(r, ']') ? PLEAT_OK : fail(r, "a list that does not end");
}

static field field_of(text name)
{
    int f = 0;
    while (f < FIELD_COUNT && !equals(name, field_names[f]))
        f++;
    return (field)f;
}

static pleat_result read_field(reader *r)
{
    text name;
    PLEAT_TRY(read_value(r, &name));
    if (!take(r, ':'))
        return fail(r, "no ':' behind '%.*s'", shown(name), name.begin);
    field f = field_of(name);
    size_t first = r->count;
    PLEAT_TRY(take(r, '[') ? read_list(r) : keep_value(r));
    if (f == FIELD_COUNT)
        return PLEAT_OK;
    if (r->has[f])
        return fail(r, "'%s' is there twice", field_names[f]);
    r->has[f] = true;
    r->first[f] = first;
    r->values[f] = r->count - first;
    return PLEAT_OK;
}

static pleat_result read_object(reader *r)
{
    if (!take(r, '{'))
        return fail(r, "no JSON object: '{' is wanted");
    memset(r->has, 0, sizeof r->has);
    r->count = 0;
    do {
        PLEAT_TRY(read_field(r));
    } while (take(r, ','));
    if (!take(r, '}'))
        return fail(r, "the object does not end with '}'");
    skip_space(r);
    return r->at == r->end || *r->at == '\n' ? PLEAT_OK : fail(r, "more than one object");
}

/* Reads the next line that is not empty; *more is false at the end. */
static pleat_result next_object(reader *r, bool *more)
{
    for (;;) {
        r->line++;
        skip_space(r);
        *more = r->at < r->end;
        if (!*more)
            return PLEAT_OK;
        if (*r->at != '\n')
            break;
        r->at++;
    }
    PLEAT_TRY(read_object(r));
    r->at += r->at < r->end;
    return PLEAT_OK;
}

/* ---- its values ---- */

static pleat_result text_of(const reader *r, field f, text *out)
{
    if (!r->has[f] || r->values[f] != 1)
        return fail(r, "'%s' is missing, or not one value", field_names[f]);
    *out = r->all[r->first[f]];
    return PLEAT_OK;
}

static pleat_result number_in(const reader *r, text t, const char *what, uint64_t most,
                              uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < t.length; i++) {
        if (t.begin[i] < '0' || t.begin[i] > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(t.begin[i] - '0'), &value))
            return fail(r, "%s is '%.*s', not a whole number below 2^64", what, shown(t), t.begin);
    }
    if (t.length == 0 || value > most)
        return fail(r, "%s is '%.*s'; it is at most %llu", what, shown(t), t.begin,
                    (unsigned long long)most);
    *out = value;
    return PLEAT_OK;
}

static pleat_result number_of(const reader *r, field f, uint64_t most, uint64_t *out)
{
    text t;
    PLEAT_TRY(text_of(r, f, &t));
    return number_in(r, t, field_names[f], most, out);
}

/* The place of a name in the table, or the empty one where it belongs. */
static uint64_t slot_of(const names *n, text t)
{
    uint64_t at = pleat__hash_text(pleat__hash_secret(), t.begin, t.length) & n->mask;
    while (n->entries[at].length != 0 &&
           (n->entries[at].length != t.length || memcmp(n->entries[at].begin, t.begin, t.length)))
        at = (at + 1) & n->mask;
    return at;
}

static pleat_result make_names(pleat__arena *arena, uint64_t room, names *out)
{
    *out = (names){
        .entries = pleat__arena_calloc(arena, room, sizeof *out->entries),
        .handles = pleat__arena_calloc(arena, room, sizeof *out->handles),
        .mask = room - 1,
    };
    if (out->entries == NULL || out->handles == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %llu names",
                           (unsigned long long)room);
    return PLEAT_OK;
}

/* The table stays half empty at least. */
static pleat_result grow_names(reader *r)
{
    names old = r->names, grown;
    if (old.count < (old.mask + 1) / 2)
        return PLEAT_OK;
    PLEAT_TRY(make_names(r->arena, (old.mask + 1) * 2, &grown));
    grown.count = old.count;
    for (uint64_t i = 0; i <= old.mask; i++) {
        if (old.entries[i].length == 0)
            continue;
        uint64_t at = slot_of(&grown, old.entries[i]);
        grown.entries[at] = old.entries[i];
        grown.handles[at] = old.handles[i];
    }
    r->names = grown;
    pleat__arena_free(r->arena, old.entries);
    pleat__arena_free(r->arena, old.handles);
    return PLEAT_OK;
}

static pleat_result handle_in(reader *r, text t, uint32_t *out)
{
    if (t.length == 0)
        return fail(r, "a tensor without a name");
    PLEAT_TRY(grow_names(r));
    uint64_t at = slot_of(&r->names, t);
    if (r->names.entries[at].length == 0) {
        r->names.entries[at] = t;
        r->names.handles[at] = r->names.count++;
    }
    *out = r->names.handles[at];
    return PLEAT_OK;
}

static pleat_result handle_of(reader *r, field f, uint32_t *out)
{
    text t;
    PLEAT_TRY(text_of(r, f, &t));
    return handle_in(r, t, out);
}

static void *room_for(reader *r, size_t count, size_t size)
{
    void *made = pleat__arena_calloc(r->arena, count, size);
    if (made == NULL)
        (void)pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for line %u", r->path, r->line);
    return made;
}

/* ---- steps ---- */

static pleat_result add_step(reader *r, pleat__operator_log_step step)
{
    if (r->log->count == PLEAT__OPERATOR_STEPS_MOST || r->log->tensors > PLEAT__OPERATOR_STEPS_MOST)
        return fail(r, "more than %u steps, or tensors: record fewer iterations",
                    PLEAT__OPERATOR_STEPS_MOST);
    PLEAT_TRY(
        pleat__arena_grow(r->arena, &r->log->steps, &r->step_room, r->log->count, sizeof step));
    r->log->steps[r->log->count++] = step;
    return PLEAT_OK;
}

/* An operator's; they are few unless it has thousands of both. */
static pleat_result count_pairs(reader *r, uint64_t arguments, uint64_t results)
{
    r->log->pairs += arguments * results;
    return r->log->pairs <= PLEAT__OPERATOR_PAIRS_MOST
               ? PLEAT_OK
               : fail(r, "more than %u pairs of an argument and a result of one operator",
                      PLEAT__OPERATOR_PAIRS_MOST);
}

static pleat_result read_operator(reader *r, pleat__operator_log_step *step)
{
    text name;
    PLEAT_TRY(text_of(r, FIELD_NAME, &name));
    PLEAT_TRY(number_of(r, FIELD_TIME, PLEAT__OPERATOR_NS_MOST, &step->ns));
    if (!r->has[FIELD_ARGS])
        return fail(r, "'ARGS' is missing");
    char *copy = room_for(r, name.length + 1, 1);
    step->argument_count = (uint32_t)r->values[FIELD_ARGS];
    step->arguments = room_for(r, step->argument_count, sizeof *step->arguments);
    if (copy == NULL || step->arguments == NULL)
        return PLEAT_E_NO_MEMORY;
    memcpy(copy, name.begin, name.length);
    step->name = copy;
    for (uint32_t i = 0; i < step->argument_count; i++)
        PLEAT_TRY(handle_in(r, r->all[r->first[FIELD_ARGS] + i], &step->arguments[i]));
    r->log->model_ns += step->ns;
    r->log->operators++;
    return r->log->model_ns <= PLEAT__OPERATORS_NS_MOST
               ? PLEAT_OK
               : fail(r, "the operators take longer than %llu ns", PLEAT__OPERATORS_NS_MOST);
}

/* The MEMORY and the ALIAS line of one result. */
static pleat_result read_result(reader *r, const pleat__operator_log_step *step,
                                pleat__operator_log_result *result)
{
    bool more;
    uint32_t handle;
    uint64_t alias;
    text t;
    PLEAT_TRY(next_object(r, &more));
    if (!more || !r->has[FIELD_MEMORY])
        return fail(r, "the MEMORY of a result is wanted");
    PLEAT_TRY(handle_of(r, FIELD_NAME, &handle));
    PLEAT_TRY(number_of(r, FIELD_MEMORY, PLEAT__OPERATOR_BYTES_MOST, &result->bytes));
    if (handle != result->handle)
        return fail(r, "the MEMORY of another tensor than the result");
    PLEAT_TRY(next_object(r, &more));
    if (!more || !r->has[FIELD_ALIAS])
        return fail(r, "the ALIAS of a result is wanted");
    PLEAT_TRY(handle_of(r, FIELD_NAME, &handle));
    PLEAT_TRY(text_of(r, FIELD_ALIAS, &t));
    if (handle != result->handle)
        return fail(r, "the ALIAS of another tensor than the result");
    result->alias = -1;
    if (equals(t, "-1"))
        return PLEAT_OK;
    PLEAT_TRY(number_in(r, t, "ALIAS", step->argument_count - 1ull, &alias));
    if (alias >= step->argument_count)
        return fail(r, "'ALIAS' of a result whose operator has no arguments");
    result->alias = (int32_t)alias;
    result->bytes = 0;
    return PLEAT_OK;
}

static pleat_result read_call(reader *r)
{
    pleat__operator_log_step step = {.kind = PLEAT__OPERATOR_LOG_CALL, .line = r->line};
    PLEAT_TRY(read_operator(r, &step));
    if (!r->has[FIELD_RESULT] || r->values[FIELD_RESULT] == 0)
        return fail(r, "'RESULT' is missing or empty");
    step.result_count = (uint32_t)r->values[FIELD_RESULT];
    PLEAT_TRY(count_pairs(r, step.argument_count, step.result_count));
    step.results = room_for(r, step.result_count, sizeof *step.results);
    if (step.results == NULL)
        return PLEAT_E_NO_MEMORY;
    for (uint32_t i = 0; i < step.result_count; i++)
        PLEAT_TRY(handle_in(r, r->all[r->first[FIELD_RESULT] + i], &step.results[i].handle));
    for (uint32_t i = 0; i < step.result_count; i++)
        PLEAT_TRY(read_result(r, &step, &step.results[i]));
    r->log->tensors += step.result_count;
    return add_step(r, step);
}

static pleat_result read_mutate(reader *r)
{
    pleat__operator_log_step step = {.kind = PLEAT__OPERATOR_LOG_MUTATE, .line = r->line};
    PLEAT_TRY(read_operator(r, &step));
    if (!r->has[FIELD_MUTATE] || r->values[FIELD_MUTATE] == 0)
        return fail(r, "'MUTATE' is missing or empty");
    step.written_count = (uint32_t)r->values[FIELD_MUTATE];
    PLEAT_TRY(count_pairs(r, step.argument_count, step.written_count));
    step.written = room_for(r, step.written_count, sizeof *step.written);
    if (step.written == NULL)
        return PLEAT_E_NO_MEMORY;
    for (uint32_t i = 0; i < step.written_count; i++) {
        uint64_t index;
        PLEAT_TRY(number_in(r, r->all[r->first[FIELD_MUTATE] + i], "MUTATE", UINT32_MAX, &index));
        if (index >= step.argument_count)
            return fail(r, "'MUTATE' names argument %llu of %u", (unsigned long long)index,
                        step.argument_count);
        step.written[i] = (uint32_t)index;
    }
    r->log->tensors += step.written_count;
    return add_step(r, step);
}

static pleat_result read_constant(reader *r)
{
    pleat__operator_log_step step = {.kind = PLEAT__OPERATOR_LOG_CONSTANT, .line = r->line};
    bool more;
    uint32_t handle;
    PLEAT_TRY(handle_of(r, FIELD_NAME, &step.handle));
    PLEAT_TRY(next_object(r, &more));
    if (!more || !r->has[FIELD_MEMORY])
        return fail(r, "the MEMORY of a constant is wanted");
    PLEAT_TRY(handle_of(r, FIELD_NAME, &handle));
    PLEAT_TRY(number_of(r, FIELD_MEMORY, PLEAT__OPERATOR_BYTES_MOST, &step.bytes));
    if (handle != step.handle)
        return fail(r, "the MEMORY of another tensor than the constant");
    if (!pleat__add(r->log->constant_bytes, step.bytes, &r->log->constant_bytes))
        return fail(r, "constants of more than 2^64 bytes");
    r->log->tensors++;
    return add_step(r, step);
}

static pleat_result read_handles(reader *r, pleat__operator_log_kind kind)
{
    pleat__operator_log_step step = {.kind = kind, .line = r->line};
    PLEAT_TRY(
        handle_of(r, kind == PLEAT__OPERATOR_LOG_RELEASE ? FIELD_NAME : FIELD_DST, &step.handle));
    if (kind != PLEAT__OPERATOR_LOG_RELEASE)
        PLEAT_TRY(handle_of(r, FIELD_SRC, &step.other));
    return add_step(r, step);
}

static pleat_result read_step(reader *r, bool *started)
{
    text t;
    PLEAT_TRY(text_of(r, FIELD_INSTRUCTION, &t));
    if (equals(t, "ANNOTATE")) {
        PLEAT_TRY(text_of(r, FIELD_ANNOTATION, &t));
        *started = *started || equals(t, "START");
        return PLEAT_OK;
    }
    if (!*started)
        return PLEAT_OK;
    if (equals(t, "CALL"))
        return read_call(r);
    if (equals(t, "MUTATE"))
        return read_mutate(r);
    if (equals(t, "CONSTANT"))
        return read_constant(r);
    if (equals(t, "COPY"))
        return read_handles(r, PLEAT__OPERATOR_LOG_COPY);
    if (equals(t, "COPY_FROM"))
        return read_handles(r, PLEAT__OPERATOR_LOG_COPY_FROM);
    if (equals(t, "RELEASE"))
        return read_handles(r, PLEAT__OPERATOR_LOG_RELEASE);
    return fail(r, "'%.*s' is no instruction that is known here", shown(t), t.begin);
}

pleat_result pleat__operator_log_decode(const char *path, const uint8_t *bytes, size_t size,
                                        pleat__arena *arena, pleat__operator_log *out)
{
    reader r = {.path = path,
                .arena = arena,
                .at = (const char *)bytes,
                .end = (const char *)bytes + size,
                .log = out};
    bool started = false, more = true;
    *out = (pleat__operator_log){.path = path};
    PLEAT_TRY(make_names(arena, 1024, &r.names));
    for (;;) {
        PLEAT_TRY(next_object(&r, &more));
        if (!more)
            break;
        PLEAT_TRY(read_step(&r, &started));
    }
    out->handles = r.names.count;
    if (!started)
        return fail(&r, "an operator log begins with the annotation START; there is none");
    if (out->operators == 0)
        return fail(&r, "there is no operator in the log");
    return PLEAT_OK;
}

pleat_result pleat__operator_log_read(const char *path, pleat__arena *arena,
                                      pleat__operator_log *out)
{
    uint8_t *bytes;
    size_t size;
    PLEAT_TRY(pleat__file_read_any(path, arena, &bytes, &size));
    if (size > 0 && (bytes[0] & 0x80) != 0) /* a trace, a pickle: no text of JSON */
        return pleat__fail(PLEAT_E_INPUT,
                           "'%s': this is no operator log: DTR's patch of PyTorch writes one, an "
                           "object of JSON a line; recordings are for 'pleat explain' and others",
                           path);
    return pleat__operator_log_decode(path, bytes, size, arena, out);
}
