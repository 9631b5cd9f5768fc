/*
 * runlog.c: see runlog.h.
 */
#include <tools/analysis/runlog.h>

#include <internal/error.h>
#include <plan/base/file.h>
#include <plan/base/pack.h>
#include <tools/replay/log_kind.h>

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COLUMN_BYTES   9
#define LEVELS_MOST    16u
#define FILE_MOST      (PLEAT__LOG_BYTES_MOST + PLEAT__LOG_HEADER_BYTES)
#define LAST_MOST      16 /* records of iterations that say how it goes now */
#define NUMBER_COUNT   (sizeof(pleat__log_numbers) / sizeof(uint64_t))
#define COLUMN_UNKNOWN UINT32_MAX

typedef struct reading {
    const char *path;
    runlog *log;
    const uint8_t *bytes;
    size_t size;
    size_t record_bytes;
    uint32_t columns[RUNLOG_COLUMNS_MOST]; /* the file's -> where it goes in pleat__log_record */
} reading;

static const char *const known_columns[] = {
#define KNOWN_COLUMN(name)          #name,
#define KNOWN_COUNTER(counter, say) #counter,
    PLEAT__LOG_COLUMNS(KNOWN_COLUMN) PLEAT_COUNTERS(KNOWN_COUNTER)
#undef KNOWN_COUNTER
#undef KNOWN_COLUMN
};

/* ---- the header ---- */

/* Printable ASCII only: it goes to terminals. */
static void copy_text(char *into, size_t size, const char *text, size_t length)
{
    length = length < size ? length : size - 1;
    for (size_t i = 0; i < length; i++)
        into[i] = (char)(text[i] < ' ' || text[i] > '~' ? '.' : text[i]);
    into[length] = '\0';
}

static pleat_result take_name(void *context, uint64_t index, const char *text, size_t length)
{
    runlog *log = context;
    if (index == 0)
        copy_text(log->policy, sizeof log->policy, text, length);
    else
        copy_text(log->command, sizeof log->command, text, length);
    return PLEAT_OK;
}

static pleat_result take_column(void *context, uint64_t index, const char *text, size_t length)
{
    reading *r = context;
    r->columns[index] = COLUMN_UNKNOWN;
    for (uint32_t i = 0; i < PLEAT__LOG_COLUMN_COUNT; i++)
        if (strlen(known_columns[i]) == length && memcmp(known_columns[i], text, length) == 0)
            r->columns[index] = i;
    return PLEAT_OK;
}

static pleat_result take_state(void *context, uint64_t index, const char *text, size_t length)
{
    runlog *log = context;
    copy_text(log->states[index], sizeof log->states[index], text, length);
    return PLEAT_OK;
}

/* What the numbers say must fit the file. */
static pleat_result check_numbers(reading *r)
{
    const pleat__log_numbers *n = &r->log->numbers;
    if (n->columns == 0 || n->columns > RUNLOG_COLUMNS_MOST || n->states > RUNLOG_STATES_MOST ||
        n->levels == 0 || n->levels > LEVELS_MOST || n->slots == 0 || n->slots > UINT32_MAX)
        return pleat__fail(PLEAT_E_INPUT,
                           "'%s': a log of %llu columns, %llu levels of %llu records", r->path,
                           (unsigned long long)n->columns, (unsigned long long)n->levels,
                           (unsigned long long)n->slots);
    r->record_bytes = PLEAT__LOG_RECORD_BYTES(n->columns);
    uint64_t wanted =
        PLEAT__LOG_HEADER_BYTES + n->slots * n->levels * PLEAT__LOG_SERIES * r->record_bytes;
    if (wanted != r->size)
        return pleat__fail(PLEAT_E_INPUT, "'%s': %zu bytes, and its header speaks of %llu", r->path,
                           r->size, (unsigned long long)wanted);
    return PLEAT_OK;
}

static pleat_result read_header(reading *r)
{
    pleat__pack_reader pack;
    if (r->size < PLEAT__LOG_HEADER_BYTES)
        return pleat__fail(PLEAT_E_INPUT, "'%s': %zu bytes are no log", r->path, r->size);
    pleat__pack_begin(&pack, r->path, r->bytes, PLEAT__LOG_HEADER_BYTES);
    pleat_result result = pleat__pack_header(&pack, PLEAT__LOG_NAME, PLEAT__LOG_VERSION,
                                             &r->log->numbers.pid, NUMBER_COUNT);
    if (result == PLEAT_OK)
        result = check_numbers(r);
    if (result == PLEAT_OK)
        result = pleat__pack_texts(&pack, 2, take_name, r->log);
    if (result == PLEAT_OK)
        result = pleat__pack_texts(&pack, r->log->numbers.columns, take_column, r);
    if (result == PLEAT_OK)
        result = pleat__pack_texts(&pack, r->log->numbers.states, take_state, r->log);
    pleat__pack_end(&pack);
    /* The counters may be another version's, the first columns may not. */
    for (uint32_t i = 0; i < PLEAT__LOG_COLUMN_COUNT - PLEAT__LOG_COUNTER_COUNT; i++) {
        bool found = false;
        for (uint64_t k = 0; result == PLEAT_OK && k < r->log->numbers.columns; k++)
            found = found || r->columns[k] == i;
        if (result == PLEAT_OK && !found)
            return pleat__fail(PLEAT_E_INPUT, "'%s': a log without a column '%s'", r->path,
                               known_columns[i]);
    }
    return result;
}

/* ---- records ---- */

static uint64_t get_u64(const uint8_t *at)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | at[i];
    return value;
}

/* false: the slot is empty or torn; *torn says which. */
static bool decode(const reading *r, const uint8_t *at, pleat__log_record *record, bool *torn)
{
    uint64_t columns = r->log->numbers.columns;
    uint64_t *values = &record->series;
    const uint8_t *number = at + 3;
    *torn = at[0] != 0xc0;
    if (at[0] != 0xdc || ((uint64_t)at[1] << 8 | at[2]) != columns + 1)
        return false;
    *record = (pleat__log_record){0};
    for (uint64_t i = 0; i <= columns; i++, number += COLUMN_BYTES) {
        if (*number != 0xcf)
            return false;
        if (i < columns && r->columns[i] != COLUMN_UNKNOWN)
            values[r->columns[i]] = get_u64(number + 1);
    }
    return get_u64(number - COLUMN_BYTES + 1) ==
           pleat__pack_checksum(at, r->record_bytes - COLUMN_BYTES);
}

/* A record belongs where it lies, and time goes forwards in it. */
static bool makes_sense(const reading *r, const pleat__log_record *record, uint64_t series,
                        uint64_t level, uint64_t slot)
{
    const pleat__log_numbers *n = &r->log->numbers;
    return record->series == series && record->level == level &&
           record->number % n->slots == slot && record->from_ns <= record->to_ns &&
           record->state <= n->states;
}

static int compare(const void *left, const void *right)
{
    const pleat__log_record *a = left, *b = right;
    if (a->level != b->level)
        return a->level < b->level ? 1 : -1;
    return (a->number > b->number) - (a->number < b->number);
}

/* Keeps, of records in order of falling level and rising number, one for every moment: coarse ones
 * until the next finer level begins. Ends of coarse records are ends of fine ones too. */
static size_t choose(pleat__log_record *records, size_t count)
{
    uint64_t cursor = 0;
    size_t kept = 0;
    for (size_t at = 0; at < count;) {
        size_t end = at;
        while (end < count && records[end].level == records[at].level)
            end++;
        uint64_t finer = end < count ? records[end].from_ns : UINT64_MAX;
        for (size_t i = at; i < end; i++) {
            if (records[i].from_ns < cursor || records[i].from_ns >= finer)
                continue;
            cursor = records[i].to_ns;
            records[kept++] = records[i];
        }
        at = end;
    }
    return kept;
}

static pleat_result read_series(reading *r, uint32_t series)
{
    const pleat__log_numbers *n = &r->log->numbers;
    runlog_series *out = &r->log->series[series];
    size_t capacity = 0;
    for (uint64_t i = 0; i < n->levels * n->slots; i++) {
        uint64_t at =
            PLEAT__LOG_HEADER_BYTES + (series * n->levels * n->slots + i) * r->record_bytes;
        pleat__log_record record;
        bool torn;
        if (!decode(r, r->bytes + at, &record, &torn) ||
            !makes_sense(r, &record, series, i / n->slots, i % n->slots)) {
            r->log->torn += torn;
            continue;
        }
        PLEAT_TRY(pleat__arena_grow(r->log->arena, &out->records, &capacity, out->count,
                                    sizeof *out->records));
        out->records[out->count++] = record;
    }
    if (out->count == 0)
        return PLEAT_OK;
    qsort(out->records, out->count, sizeof *out->records, compare);
    out->count = choose(out->records, out->count);
    return PLEAT_OK;
}

static pleat_result read_all(reading *r)
{
    PLEAT_TRY(read_header(r));
    for (uint32_t series = 0; series < PLEAT__LOG_SERIES; series++)
        PLEAT_TRY(read_series(r, series));
    return PLEAT_OK;
}

/* ---- public ---- */

static runlog_status status_of(const char *path, const runlog *log)
{
    if (log->numbers.ended_unix_ns != 0)
        return RUNLOG_ENDED;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return RUNLOG_GONE;
    /* A writer locks its log or makes none, so where no lock can be this is a copy. */
    bool held = pleat__log_is_locked(fd, false);
    close(fd);
    return held ? RUNLOG_RUNNING : RUNLOG_GONE;
}

/* Only a whole file can be unfolded, and a log may be one that is being written. */
static pleat_result not_read(const char *path, const char *why)
{
    if (log_kind_of(path) == LOG_KIND_GZIPPED)
        return pleat__fail(PLEAT_E_INPUT, "'%s': this is a gzipped log: gunzip it first", path);
    return pleat__fail(PLEAT_E_INPUT,
                       "%s; a log is what `pleat run --log FILE` or PLEAT_CONF=log:FILE writes",
                       why);
}

pleat_result runlog_open(const char *path, runlog *log)
{
    uint8_t *bytes;
    struct stat status;
    reading r = {.path = path, .log = log};
    *log = (runlog){0};
    /* A pipe that nobody writes into would be waited for, for ever. */
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        return pleat__fail(PLEAT_E_INPUT, "'%s': a log is a regular file", path);
    PLEAT_TRY(pleat__arena_create(&log->arena));
    pleat_result result = pleat__file_read(path, FILE_MOST, log->arena, &bytes, &r.size);
    if (result == PLEAT_OK) {
        r.bytes = bytes;
        result = read_all(&r);
    }
    if (result != PLEAT_OK) {
        const pleat_error wrong = *pleat_last_error();
        runlog_close(log);
        return result != PLEAT_E_INPUT ? result : not_read(path, wrong.text);
    }
    log->status = status_of(path, log);
    return PLEAT_OK;
}

void runlog_close(runlog *log)
{
    pleat__arena_destroy(log->arena);
    *log = (runlog){0};
}

const pleat__log_record *runlog_last(const runlog *log, uint32_t series)
{
    const runlog_series *of = &log->series[series];
    return of->count > 0 ? &of->records[of->count - 1] : NULL;
}

static double part(double of, double whole)
{
    return whole > 0 ? of / whole : NAN;
}

runlog_rates runlog_between(const pleat__log_record *begin, const pleat__log_record *end)
{
    double iterations = (double)(end->iterations - begin->iterations);
    double requests = (double)(end->stats.requests - begin->stats.requests);
    double planned = (double)(end->stats.planned + end->stats.lane) -
                     (double)(begin->stats.planned + begin->stats.lane);
    double calls = (double)(end->stats.driver_calls - begin->stats.driver_calls);
    return (runlog_rates){.requests = part(requests, iterations),
                          .driver_calls = part(calls, iterations),
                          .seconds = part((double)(end->to_ns - begin->to_ns) * 1e-9, iterations),
                          .planned_share = part(planned, requests)};
}

bool runlog_last_iterations(const runlog *log, const pleat__log_record **begin,
                            const pleat__log_record **end)
{
    const runlog_series *series = &log->series[PLEAT__LOG_ITERATIONS];
    if (series->count < 2)
        return false;
    size_t back = series->count - 1 < LAST_MOST ? series->count - 1 : LAST_MOST;
    *end = &series->records[series->count - 1];
    *begin = *end - back;
    return true;
}

const char *runlog_state(const runlog *log, const pleat__log_record *record)
{
    return record->state > 0 ? log->states[record->state - 1] : "";
}

const char *runlog_status_name(runlog_status status)
{
    static const char *const names[] = {"running", "ended", "gone"};
    return names[status];
}
