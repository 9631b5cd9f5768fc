/*
 * runview.c: see runview.h.
 */
#include <tools/analysis/runview.h>

#include <tools/words.h>

#include <math.h>
#include <string.h>

#define SECOND        1e9
#define CHART_ROWS    10
#define CHART_SECONDS 60.0
#define CHART_MOST    512

typedef struct figures {
    const pleat__log_record *last; /* of the intervals; NULL: nothing was written yet */
    double seconds;
    uint64_t peak_live, peak_physical;
    /* The first and the last whole iteration that `rates` is the mean of, the first of all being 1;
     * all 0: there are too few to say. */
    uint64_t rated_from, rated_to;
    runlog_rates rates;
} figures;

static figures figures_of(const runlog *log)
{
    figures f = {.last = runlog_last(log, PLEAT__LOG_INTERVALS)};
    const pleat__log_record *begin, *end;
    if (f.last == NULL)
        return f;
    f.seconds = (double)f.last->to_ns / SECOND;
    f.peak_live = f.last->stats.peak_live_bytes;
    f.peak_physical = f.last->stats.peak_physical_bytes;
    if (!runlog_last_iterations(log, &begin, &end) || end->iterations <= begin->iterations)
        return f;
    f.rated_from = begin->iterations;
    f.rated_to = end->iterations - 1;
    f.rates = runlog_between(begin, end);
    f.rates.planned_share = fmax(f.rates.planned_share, 0); /* of no requests: none */
    return f;
}

static double efficiency(const figures *f)
{
    return f->peak_physical != 0 ? (double)f->peak_live / (double)f->peak_physical : 0;
}

static const char *clock_text(double seconds, char *text, size_t size)
{
    unsigned long long s = (unsigned long long)seconds;
    snprintf(text, size, "%llu:%02llu:%02llu", s / 3600, s / 60 % 60, s % 60);
    return text;
}

/* ---- JSON ---- */

void runview_json_log(json_writer *json, const char *path, const runlog *log)
{
    json_string(json, "log", path);
    json_uint(json, "pid", log->numbers.pid);
    json_uint(json, "device", log->numbers.device);
    json_string(json, "policy", log->policy);
    json_string(json, "command", log->command);
    json_string(json, "status", runlog_status_name(log->status));
}

void runview_json(json_writer *json, const char *path, const runlog *log)
{
    figures f = figures_of(log);
    json_object(json, NULL);
    runview_json_log(json, path, log);
    json_double(json, "seconds", f.seconds);
    if (f.last != NULL) {
        json_string(json, "state", runlog_state(log, f.last));
        json_uint(json, "iterations", f.last->iterations);
        json_uint(json, "rated_from", f.rated_from);
        json_uint(json, "rated_to", f.rated_to);
        json_double(json, "iteration_seconds", f.rates.seconds);
        json_double(json, "efficiency", efficiency(&f));
        json_double(json, "planned_share", f.rates.planned_share);
        json_double(json, "iteration_driver_calls", f.rates.driver_calls);
        json_uint(json, "limit_bytes", f.last->limit_bytes);
#define COUNTER_JSON(name, text) json_uint(json, #name, f.last->stats.name);
        PLEAT_COUNTERS(COUNTER_JSON)
#undef COUNTER_JSON
    }
    if (log->numbers.plan_requests != 0) {
        json_object(json, "plan");
        json_uint(json, "iteration_requests", log->numbers.plan_requests);
        json_uint(json, "max_live_bytes", log->numbers.plan_max_live_bytes);
        json_uint(json, "physical_bytes", log->numbers.plan_physical_bytes);
        json_uint(json, "virtual_bytes", log->numbers.plan_virtual_bytes);
        json_end_object(json);
    }
    json_end_object(json);
}

/* ---- all of them, a line each ---- */

const char *const runview_headings[RUNVIEW_COLUMNS] = {
    "process",  "device", "status",     "time",      "state",       "live",
    "physical", "limit",  "efficiency", "iteration", "s/iteration", "command"};

/* A command line from its program's name on: a cell has room for little more. */
static const char *without_folder(const char *command)
{
    const char *name = command;
    for (const char *c = command; *c != '\0' && *c != ' '; c++)
        if (*c == '/')
            name = c + 1;
    return name;
}

void runview_line(cli_table *table, const runlog *log)
{
    char size[48], time[32];
    figures f = figures_of(log);
    if (!cli_table_row(table))
        return;
    cli_table_cell(table, 0, "%llu", (unsigned long long)log->numbers.pid);
    cli_table_cell(table, 1, "%llu", (unsigned long long)log->numbers.device);
    cli_table_cell(table, 2, "%s", runlog_status_name(log->status));
    cli_table_cell(table, 3, "%s", clock_text(f.seconds, time, sizeof time));
    if (f.last != NULL) {
        cli_table_cell(table, 4, "%s",
                       f.last->state != 0 ? runlog_state(log, f.last) : log->policy);
        cli_table_cell(table, 5, "%s",
                       cli_format_size(f.last->stats.live_bytes, size, sizeof size));
        cli_table_cell(table, 6, "%s",
                       cli_format_size(f.last->stats.physical_bytes, size, sizeof size));
        cli_table_cell(table, 7, "%s", cli_format_size(f.last->limit_bytes, size, sizeof size));
        cli_table_cell(table, 8, "%.2f %%", efficiency(&f) * 100);
        cli_table_cell(table, 9, "%llu", (unsigned long long)f.last->iterations);
        if (f.rates.seconds > 0)
            cli_table_cell(table, 10, "%s", cli_format_number(f.rates.seconds, size, sizeof size));
    }
    cli_table_cell(table, 11, "%s", without_folder(log->command));
}

/* ---- one of them ---- */

static void put_bar(FILE *out, const char *name, uint64_t bytes, uint64_t peak, uint64_t whole,
                    int width)
{
    char now[48], most[48];
    double share = whole != 0 ? (double)bytes / (double)whole : 0;
    double top = whole != 0 ? (double)peak / (double)whole : 0;
    fprintf(out, "%-9s %12s  [", name, cli_format_size(bytes, now, sizeof now));
    for (int i = 0; i < width; i++)
        fputc(i < share * width ? '#' : i < top * width ? '-' : ' ', out);
    if (peak != 0)
        fprintf(out, "]  at most %s\n", cli_format_size(peak, most, sizeof most));
    else
        fputs("]\n", out);
}

typedef struct column {
    uint64_t live, physical;
} column;

static void raise_to(uint64_t *most, uint64_t value)
{
    *most = value > *most ? value : *most;
}

/* Seconds that a chart shows: the last minute, or what there is. */
static double chart_seconds(const runlog *log)
{
    const runlog_series *series = &log->series[PLEAT__LOG_INTERVALS];
    double from = (double)series->records[0].from_ns / SECOND;
    double span = (double)series->records[series->count - 1].to_ns / SECOND - from;
    return span < CHART_SECONDS ? fmax(span, 1e-3) : CHART_SECONDS;
}

/* Those in as many columns: the most of each. */
static void fill_chart(const runlog *log, column *bars, int width)
{
    const runlog_series *series = &log->series[PLEAT__LOG_INTERVALS];
    double end = (double)series->records[series->count - 1].to_ns / SECOND;
    double span = chart_seconds(log), begin = end - span;
    for (size_t i = 0; i < series->count; i++) {
        const pleat__log_record *record = &series->records[i];
        double from = ((double)record->from_ns / SECOND - begin) / span * width;
        double to = ((double)record->to_ns / SECOND - begin) / span * width;
        for (int c = from > 0 ? (int)from : 0; c <= to && c < width; c++) {
            raise_to(&bars[c].live, record->high_live_bytes);
            raise_to(&bars[c].physical, record->high_physical_bytes);
        }
    }
}

static void put_chart(FILE *out, const runlog *log, int width)
{
    column bars[CHART_MOST] = {0};
    char size[48];
    uint64_t most = 1;
    width = width < CHART_MOST ? width : CHART_MOST;
    fill_chart(log, bars, width);
    for (int c = 0; c < width; c++)
        most = bars[c].physical > most ? bars[c].physical : most;
    fprintf(out, "\nthe last %s seconds: # live, : physical beyond it\n",
            cli_format_number(chart_seconds(log), size, sizeof size));
    for (int r = CHART_ROWS; r > 0; r--) {
        double from = (double)most * (r - 0.5) / CHART_ROWS;
        bool labelled = r == CHART_ROWS || r == CHART_ROWS / 2;
        fprintf(out, "%12s |",
                labelled ? cli_format_size(most * (uint64_t)r / CHART_ROWS, size, sizeof size)
                         : "");
        for (int c = 0; c < width; c++)
            fputc((double)bars[c].live >= from       ? '#'
                  : (double)bars[c].physical >= from ? ':'
                                                     : ' ',
                  out);
        fputc('\n', out);
    }
    fprintf(out, "%12s +", "0 B");
    for (int c = 0; c < width; c++)
        fputc('-', out);
    fputc('\n', out);
}

static void put_plan(FILE *out, const runlog *log, const figures *f)
{
    char live[48], physical[48];
    const pleat__log_numbers *n = &log->numbers;
    if (n->plan_requests == 0)
        return;
    fprintf(out,
            "planned   %12s  live at most %s, in %llu requests an iteration; so far %+.2f %%\n",
            cli_format_size(n->plan_physical_bytes, physical, sizeof physical),
            cli_format_size(n->plan_max_live_bytes, live, sizeof live),
            (unsigned long long)n->plan_requests,
            n->plan_physical_bytes != 0
                ? 100 * ((double)f->peak_physical / (double)n->plan_physical_bytes - 1)
                : 0.0);
}

/* X(counter, name): what requests and the driver came to. */
#define SHOWN(X)                                                                                   \
    X(requests, "requests")                                                                        \
    X(planned, "in their slot")                                                                    \
    X(lane, "in a lane")                                                                           \
    X(stitched, "stitched")                                                                        \
    X(cached, "cached")                                                                            \
    X(diverged, "not as planned")                                                                  \
    X(driver_calls, "driver calls")                                                                \
    X(map_waits, "waited for them")                                                                \
    X(out_of_memory, "refused")

static void put_state(FILE *out, const runlog *log, const figures *f)
{
    char text[32];
    const char *state = runlog_state(log, f->last);
    fprintf(out, "%s%s%s", f->last->state != 0 ? "state " : "", state,
            f->last->state != 0 ? ", " : "");
    if (f->last->iterations == 0)
        fputs("no iteration has begun\n", out);
    else
        fprintf(out, "iteration %llu has begun\n", (unsigned long long)f->last->iterations);
    if (f->rated_to == 0)
        return;
    bool several = f->rated_from < f->rated_to;
    if (several)
        fprintf(out, "mean of iterations %llu to ", (unsigned long long)f->rated_from);
    fprintf(out, several ? "%llu: " : "iteration %llu: ", (unsigned long long)f->rated_to);
    if (f->rates.seconds > 0)
        fprintf(out, "%s s, ", cli_format_number(f->rates.seconds, text, sizeof text));
    fprintf(out, "%s driver calls, %.1f %% of requests as planned\n",
            cli_format_number(f->rates.driver_calls, text, sizeof text),
            f->rates.planned_share * 100);
}

static void put_counters(FILE *out, const runlog *log)
{
    const runlog_series *series = &log->series[PLEAT__LOG_ITERATIONS];
    const pleat__log_record *last = runlog_last(log, PLEAT__LOG_INTERVALS);
    size_t count = series->count;
    char whole[40] = "";
    const char *headings[] = {"", "since it began", whole};
    cli_table table;
    bool known = count >= 2 &&
                 series->records[count - 1].iterations == series->records[count - 2].iterations + 1;
    if (known)
        snprintf(whole, sizeof whole, "in iteration %llu",
                 (unsigned long long)series->records[count - 2].iterations);
    if (!cli_table_begin(&table, known ? 3 : 2, headings))
        return;
#define SHOW(counter, name)                                                                        \
    if (cli_table_row(&table)) {                                                                   \
        cli_table_cell(&table, 0, name);                                                           \
        cli_table_cell(&table, 1, "%llu", (unsigned long long)last->stats.counter);                \
        if (known)                                                                                 \
            cli_table_cell(&table, 2, "%llu",                                                      \
                           (unsigned long long)(series->records[count - 1].stats.counter -         \
                                                series->records[count - 2].stats.counter));        \
    }
    SHOWN(SHOW)
#undef SHOW
    cli_table_end(&table, out);
}

void runview_text(FILE *out, const runlog *log, int columns)
{
    char time[32];
    figures f = figures_of(log);
    const pleat__log_record *last = f.last;
    fprintf(out, "process %llu, device %llu, policy %s, %s after %s\n",
            (unsigned long long)log->numbers.pid, (unsigned long long)log->numbers.device,
            log->policy, runlog_status_name(log->status), clock_text(f.seconds, time, sizeof time));
    fprintf(out, "%s\n", log->command);
    if (last == NULL) {
        fputs("\nnothing is written yet\n", out);
        return;
    }
    put_state(out, log, &f);
    fputc('\n', out);
    int width = columns > 48 + 8 ? columns - 48 : 8;
    put_bar(out, "live", last->stats.live_bytes, f.peak_live, last->limit_bytes, width);
    put_bar(out, "physical", last->stats.physical_bytes, f.peak_physical, last->limit_bytes, width);
    put_bar(out, "virtual", last->stats.virtual_bytes, 0, last->limit_bytes, width);
    put_bar(out, "limit", last->limit_bytes, 0, last->limit_bytes, width);
    put_plan(out, log, &f);
    fprintf(out, "efficiency %.2f %% (most live / most physical)\n", efficiency(&f) * 100);
    put_chart(out, log, columns > 30 ? columns - 16 : 14);
    fputc('\n', out);
    put_counters(out, log);
    words_explain(out, "slot,lane,stitched");
}
