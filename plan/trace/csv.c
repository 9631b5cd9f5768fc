/*
 * csv.c: a table of lifetimes as a trace.
 *
 * FORMAT  Lines of fields separated by commas. The first line names the columns, in any order; of
 * them id, lower, upper and size are used. A row is a request of `size` bytes that lives in [lower,
 * upper), whole numbers of any unit of time. No two rows have the same id. (This is the form
 * MiniMalloc's instances have.)
 *
 * TRACE  Events in order of time; at one time first the frees of earlier requests, then requests
 * that live for no time (allocated and freed at once), then allocations; each in order of the rows.
 * A mark in front says that the whole is one iteration. An event's recorded time is its `lower` or
 * `upper`.
 */
#include <plan/trace/import.h>

#include <internal/arena.h>
#include <internal/error.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A row is three events, behind one mark. */
#define ROWS_MOST ((PLEAT__TRACE_EVENTS_MOST - 1) / 3)

enum { ID, LOWER, UPPER, SIZE, COLUMNS };
static const char *const names[COLUMNS] = {"id", "lower", "upper", "size"};

typedef struct text {
    const char *begin;
    const char *end;
} text;

typedef struct row {
    text id;
    uint64_t lower;
    uint64_t upper;
    uint64_t size;
    uint32_t line;
    uint32_t request; /* its number in the trace, once it has one */
} row;

enum { RANK_FREE, RANK_MOMENT, RANK_ALLOC };
typedef struct moment {
    uint64_t time;
    uint32_t row;
    uint32_t rank;
} moment;

typedef struct table {
    const char *path;
    pleat__arena *arena;
    const char *at;
    const char *end;
    uint32_t line;
    int column_of[COLUMNS];
    row *rows;
    size_t count;
    size_t capacity;
} table;

PLEAT_PRINTF(2, 3) static pleat_result fail(const table *t, const char *format, ...)
{
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return pleat__fail(PLEAT_E_INPUT, "'%s': line %u: %s", t->path, t->line, reason);
}

/* For "%.*s": a field's length, cut to what a message can take. */
static int shown(text field)
{
    ptrdiff_t length = field.end - field.begin;
    return length < 40 ? (int)length : 40;
}

static text trimmed(const char *begin, const char *end)
{
    while (begin < end && (*begin == ' ' || *begin == '\t'))
        begin++;
    while (end > begin && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        end--;
    return (text){begin, end};
}

/* The next line that is not empty; false at the end. */
static bool next_line(table *t, text *line)
{
    while (t->at < t->end) {
        const char *newline = memchr(t->at, '\n', (size_t)(t->end - t->at));
        const char *stop = newline ? newline : t->end;
        *line = trimmed(t->at, stop);
        t->at = newline ? newline + 1 : t->end;
        t->line++;
        if (line->begin < line->end)
            return true;
    }
    return false;
}

/* Takes the next field off the line; false when there is none left. */
static bool next_field(text *line, text *field)
{
    if (line->begin == NULL)
        return false;
    const char *comma = memchr(line->begin, ',', (size_t)(line->end - line->begin));
    *field = trimmed(line->begin, comma ? comma : line->end);
    line->begin = comma ? comma + 1 : NULL;
    return true;
}

static bool equals(text field, const char *name)
{
    size_t length = (size_t)(field.end - field.begin);
    return strlen(name) == length && memcmp(field.begin, name, length) == 0;
}

static pleat_result read_header(table *t)
{
    text line, field;
    for (int c = 0; c < COLUMNS; c++)
        t->column_of[c] = -1;
    if (!next_line(t, &line))
        return fail(t, "the file is empty");
    for (int column = 0; next_field(&line, &field); column++) {
        for (int c = 0; c < COLUMNS; c++) {
            if (!equals(field, names[c]))
                continue;
            if (t->column_of[c] >= 0)
                return fail(t, "two columns are named '%s'", names[c]);
            t->column_of[c] = column;
        }
    }
    for (int c = 0; c < COLUMNS; c++) {
        if (t->column_of[c] < 0)
            return fail(
                t, "no column is named '%s': a table of lifetimes has id, lower, upper and size",
                names[c]);
    }
    return PLEAT_OK;
}

static pleat_result read_number(const table *t, text field, const char *name, uint64_t *out)
{
    uint64_t value = 0;
    if (field.begin == field.end)
        return fail(t, "'%s' is empty", name);
    for (const char *c = field.begin; c < field.end; c++) {
        if (*c < '0' || *c > '9')
            return fail(t, "'%s' is '%.*s', not a whole number", name, shown(field), field.begin);
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*c - '0'), &value))
            return fail(t, "'%s' is %.*s, above 2^64 - 1", name, shown(field), field.begin);
    }
    *out = value;
    return PLEAT_OK;
}

static pleat_result read_row(table *t, text line)
{
    text field, fields[COLUMNS] = {{NULL, NULL}};
    for (int column = 0; next_field(&line, &field); column++) {
        for (int c = 0; c < COLUMNS; c++) {
            if (t->column_of[c] == column)
                fields[c] = field;
        }
    }
    for (int c = 0; c < COLUMNS; c++) {
        if (fields[c].begin == NULL)
            return fail(t, "'%s' is missing", names[c]);
    }
    row made = {.id = fields[ID], .line = t->line};
    PLEAT_TRY(read_number(t, fields[LOWER], names[LOWER], &made.lower));
    PLEAT_TRY(read_number(t, fields[UPPER], names[UPPER], &made.upper));
    PLEAT_TRY(read_number(t, fields[SIZE], names[SIZE], &made.size));
    if (made.upper < made.lower)
        return fail(t, "'upper' is below 'lower'");
    if (t->count == ROWS_MOST)
        return fail(t, "more than %u rows; cut the table down to fewer", ROWS_MOST);
    PLEAT_TRY(pleat__arena_grow(t->arena, &t->rows, &t->capacity, t->count, sizeof made));
    t->rows[t->count++] = made;
    return PLEAT_OK;
}

static int compare_ids(const void *left, const void *right)
{
    const row *a = *(const row *const *)left, *b = *(const row *const *)right;
    size_t a_length = (size_t)(a->id.end - a->id.begin),
           b_length = (size_t)(b->id.end - b->id.begin);
    if (a_length != b_length)
        return a_length < b_length ? -1 : 1;
    int order = memcmp(a->id.begin, b->id.begin, a_length);
    return order != 0 ? order : (a->line > b->line) - (a->line < b->line);
}

static bool same_id(const row *a, const row *b)
{
    size_t length = (size_t)(a->id.end - a->id.begin);
    return length == (size_t)(b->id.end - b->id.begin) &&
           memcmp(a->id.begin, b->id.begin, length) == 0;
}

static pleat_result check_ids(table *t)
{
    const row **sorted = pleat__arena_calloc(t->arena, t->count, sizeof *sorted);
    if (sorted == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for %zu rows", t->path,
                           t->count);
    for (size_t i = 0; i < t->count; i++)
        sorted[i] = &t->rows[i];
    qsort(sorted, t->count, sizeof *sorted, compare_ids);
    for (size_t i = 1; i < t->count; i++) {
        if (!same_id(sorted[i - 1], sorted[i]))
            continue;
        t->line = sorted[i]->line;
        return fail(t, "id '%.*s' is that of line %u too", shown(sorted[i]->id),
                    sorted[i]->id.begin, sorted[i - 1]->line);
    }
    pleat__arena_free(t->arena, sorted);
    return PLEAT_OK;
}

static int compare_moments(const void *left, const void *right)
{
    const moment *a = left, *b = right;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

static pleat_result sorted_moments(table *t, moment **out, size_t *count)
{
    moment *all = pleat__arena_calloc(t->arena, t->count, 2 * sizeof *all);
    if (all == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for %zu rows", t->path,
                           t->count);
    size_t made = 0;
    for (size_t i = 0; i < t->count; i++) {
        const row *r = &t->rows[i];
        if (r->lower == r->upper) {
            all[made++] = (moment){r->lower, (uint32_t)i, RANK_MOMENT};
            continue;
        }
        all[made++] = (moment){r->lower, (uint32_t)i, RANK_ALLOC};
        all[made++] = (moment){r->upper, (uint32_t)i, RANK_FREE};
    }
    qsort(all, made, sizeof *all, compare_moments);
    *out = all;
    *count = made;
    return PLEAT_OK;
}

static pleat_result emit(table *t, pleat_trace *trace, row *r, const moment *m)
{
    pleat_trace_event event = {.time_us = m->time};
    t->line = r->line;
    pleat_result result = PLEAT_OK;
    if (m->rank != RANK_FREE) {
        event.request = r->request = pleat_trace_request_count(trace);
        event.size = r->size;
        result = pleat_trace_add(trace, &event);
    }
    event.request = r->request;
    event.kind = PLEAT_EVENT_FREE_REQUESTED;
    if (result == PLEAT_OK && m->rank != RANK_ALLOC)
        result = pleat_trace_add(trace, &event);
    event.kind = PLEAT_EVENT_FREE_COMPLETED;
    if (result == PLEAT_OK && m->rank != RANK_ALLOC)
        result = pleat_trace_add(trace, &event);
    if (result != PLEAT_OK)
        return pleat__context(result, "'%s': line %u", t->path, t->line);
    return PLEAT_OK;
}

static pleat_result emit_all(table *t, pleat_trace *trace)
{
    moment *moments = NULL;
    size_t count = 0;
    uint16_t stream;
    PLEAT_TRY(sorted_moments(t, &moments, &count));
    PLEAT_TRY(pleat_trace_add_stream(trace, 0, &stream));
    pleat_trace_event mark = {.kind = PLEAT_EVENT_MARK, .time_us = count > 0 ? moments[0].time : 0};
    PLEAT_TRY(pleat_trace_add(trace, &mark));
    for (size_t i = 0; i < count; i++)
        PLEAT_TRY(emit(t, trace, &t->rows[moments[i].row], &moments[i]));
    return PLEAT_OK;
}

static pleat_result decode(table *t, pleat_trace *trace)
{
    text line;
    PLEAT_TRY(read_header(t));
    while (next_line(t, &line))
        PLEAT_TRY(read_row(t, line));
    if (t->count == 0)
        return fail(t, "there are no rows");
    PLEAT_TRY(check_ids(t));
    return emit_all(t, trace);
}

pleat_result pleat__csv_decode(const char *path, const uint8_t *bytes, size_t size,
                               pleat_trace **out)
{
    table t = {.path = path, .at = (const char *)bytes, .end = (const char *)bytes + size};
    pleat_trace *trace;
    PLEAT_TRY(pleat__arena_create(&t.arena));
    pleat_result result = pleat_trace_new(&trace);
    if (result == PLEAT_OK) {
        result = decode(&t, trace);
        if (result == PLEAT_OK)
            *out = trace;
        else
            pleat_trace_free(trace);
    }
    pleat__arena_destroy(t.arena);
    return result;
}
