/*
 * bench_plan.c: `pleat bench plan FILE ...`: what the planner reaches on traces, snapshots and
 * lifetime tables, how long it takes and how much memory it wants.
 *
 * --tile N puts N copies of a job's iteration behind each other and plans them as one iteration:
 * more requests of the same kind than any one job at hand has. Where the plan is of two iterations
 * the copies are of both in turn.
 */
#include <tools/bench/bench.h>
#include <tools/replay/devices.h>

#include <tools/clock.h>
#include <tools/json.h>
#include <tools/options.h>

#include <internal/error.h>
#include <plan/planner.h>
#include <plan/trace/import.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_CHUNKS 8
#define MOST_RUNS   99

struct arguments {
    uint64_t chunks[MOST_CHUNKS];
    int chunk_count;
    uint32_t tile;
    uint32_t runs;
    uint32_t device; /* above UINT8_MAX: the only one */
    bool json;
};

struct row {
    const char *file;
    pleat_plan_summary summary;
    pleat__plan_report report;
    uint64_t chunk_bytes;
    uint64_t nanoseconds;
};

/* The events of the plan's iterations: what happens at each position. */
struct moment {
    uint32_t slot;
    bool is_free;
    bool any;
};

static struct moment *list_moments(const pleat__sequence *steady)
{
    struct moment *moments = calloc((size_t)steady->events + 1, sizeof *moments);
    for (uint32_t i = 0; moments != NULL && i < steady->slot_count; i++) {
        const pleat__slot *slot = &steady->slots[i];
        moments[slot->alloc_at] = (struct moment){i, false, true};
        if (slot->free_at != PLEAT__NEVER)
            moments[slot->free_at] = (struct moment){i, true, true};
    }
    return moments;
}

struct tiling {
    pleat_trace *trace;
    const pleat_plan *plan;
    struct moment *moments;
    uint32_t *live; /* by slot: its request now, or UINT32_MAX */
    uint32_t next;
};

static pleat_result add(struct tiling *tiling, pleat_event_kind kind, uint32_t request,
                        uint64_t size, uint16_t stream)
{
    pleat_trace_event event = {
        .kind = (uint8_t)kind, .request = request, .size = size, .stream = stream};
    return pleat_trace_add(tiling->trace, &event);
}

static pleat_result add_free(struct tiling *tiling, uint32_t slot)
{
    uint32_t request = tiling->live[slot];
    if (request == UINT32_MAX)
        return PLEAT_OK;
    tiling->live[slot] = UINT32_MAX;
    PLEAT_TRY(add(tiling, PLEAT_EVENT_FREE_REQUESTED, request, 0, 0));
    return add(tiling, PLEAT_EVENT_FREE_COMPLETED, request, 0, 0);
}

/* So many events of iterations in turn from `from` on, or only the frees among them, of what came
 * before. */
static pleat_result add_events(struct tiling *tiling, uint64_t from, uint64_t count,
                               bool frees_only)
{
    const pleat__sequence *steady = &tiling->plan->steady;
    for (uint64_t at = from; at < from + count; at++) {
        struct moment moment = tiling->moments[at % steady->events];
        const pleat__slot *slot = &steady->slots[moment.slot];
        if (!moment.any)
            continue;
        if (moment.is_free) {
            PLEAT_TRY(add_free(tiling, moment.slot));
        } else if (!frees_only) {
            /* What is not freed within an iteration may not pile up over copies. */
            PLEAT_TRY(add_free(tiling, moment.slot));
            tiling->live[moment.slot] = tiling->next++;
            PLEAT_TRY(add(tiling, PLEAT_EVENT_ALLOC, tiling->live[moment.slot], slot->size,
                          slot->stream));
        }
    }
    return PLEAT_OK;
}

static pleat_result fill_tiles(struct tiling *tiling, uint32_t copies)
{
    const pleat_plan *plan = tiling->plan;
    uint64_t events = (uint64_t)copies * pleat__iteration_events(plan);
    uint16_t stream;
    for (uint32_t i = 0; i < plan->stream_count; i++)
        PLEAT_TRY(pleat_trace_add_stream(tiling->trace, plan->streams[i], &stream));
    for (uint32_t i = 0; i < plan->first.slot_count; i++) {
        const pleat__slot *slot = &plan->first.slots[i];
        if (slot->class == PLEAT__CLASS_PERSISTENT)
            PLEAT_TRY(add(tiling, PLEAT_EVENT_ALLOC, tiling->next++, slot->size, slot->stream));
    }
    PLEAT_TRY(add(tiling, PLEAT_EVENT_MARK, 0, 0, 0));
    PLEAT_TRY(add_events(tiling, 0, events, false));
    PLEAT_TRY(add(tiling, PLEAT_EVENT_MARK, 0, 0, 0));
    return add_events(tiling, events, plan->steady.events, true);
}

static pleat_result tile(const pleat_trace *trace, uint32_t copies, pleat_trace **out)
{
    pleat_plan_options options = {.size = sizeof options, .algorithm = "size", .no_fold = 1};
    pleat_plan *plan;
    PLEAT_TRY(pleat_plan_make(trace, &options, &plan));
    struct tiling tiling = {.plan = plan, .moments = list_moments(&plan->steady)};
    tiling.live = malloc(((size_t)plan->steady.slot_count + 1) * sizeof *tiling.live);
    pleat_result result = PLEAT_OK;
    if (tiling.moments == NULL || tiling.live == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u copies", copies);
    if (result == PLEAT_OK) {
        for (uint32_t i = 0; i < plan->steady.slot_count; i++)
            tiling.live[i] = UINT32_MAX;
        result = pleat_trace_new(&tiling.trace);
    }
    if (result == PLEAT_OK)
        result = fill_tiles(&tiling, copies);
    free(tiling.moments);
    free(tiling.live);
    pleat_plan_free(plan);
    if (result == PLEAT_OK)
        *out = tiling.trace;
    else
        pleat_trace_free(tiling.trace);
    return result;
}

/* The planner has one thread, so its time on a core is its time wherever cores are to be had. */
static uint64_t core_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static pleat_result measure(const pleat_trace *trace, const struct arguments *arguments,
                            struct row *row)
{
    uint64_t times[MOST_RUNS];
    pleat_plan_options options = {
        .size = sizeof options, .seconds = NAN, .chunk_bytes = row->chunk_bytes};
    for (uint32_t run = 0; run < arguments->runs; run++) {
        pleat_plan *plan;
        uint64_t begin = core_now();
        PLEAT_TRY(pleat__plan_make(trace, &options, NULL, &row->report, &plan));
        times[run] = core_now() - begin;
        row->summary = pleat_plan_summary_of(plan);
        pleat_plan_free(plan);
    }
    row->nanoseconds = clock_quantile(times, (size_t)arguments->runs, 0.5);
    return PLEAT_OK;
}

static double ratio(uint64_t bytes, uint64_t of)
{
    return of == 0 ? 1 : (double)bytes / (double)of;
}

static bool was_reached(const struct row *row, uint32_t algorithm)
{
    uint64_t height = row->report.place.heights[algorithm];
    return height != 0 && height != UINT64_MAX;
}

static double to_max_live(const struct row *row, uint64_t height)
{
    uint64_t live = row->summary.max_live_bytes;
    return ratio(pleat__contiguous_bytes(&row->report, live, height), live);
}

static double bytes_a_request(const struct row *row)
{
    return (double)row->report.scratch_bytes / (double)(row->summary.requests + 1);
}

static void print_json(const struct row *rows, int count)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_array(&json, "plans");
    for (int i = 0; i < count; i++) {
        const struct row *row = &rows[i];
        json_object(&json, NULL);
        json_string(&json, "file", row->file);
        json_uint(&json, "requests", row->summary.requests);
        json_uint(&json, "iteration_requests", row->summary.iteration_requests);
        json_uint(&json, "max_live_bytes", row->summary.max_live_bytes);
        json_uint(&json, "chunk_bytes", row->chunk_bytes);
        json_double(&json, "contiguous_ratio", to_max_live(row, row->report.place.height));
        json_uint(&json, "physical_bytes", row->summary.physical_bytes);
        json_double(&json, "ratio",
                    ratio(row->summary.physical_bytes, row->summary.max_live_bytes));
        json_uint(&json, "alias_maps", row->summary.alias_maps);
        json_uint(&json, "handles", row->summary.handles);
        json_double(&json, "seconds", (double)row->nanoseconds * 1e-9);
        json_uint(&json, "planner_bytes", row->report.scratch_bytes);
        json_object(&json, "algorithms");
        for (uint32_t a = 0; a < PLEAT__ALGORITHM_COUNT; a++)
            if (was_reached(row, a))
                json_double(&json, pleat__algorithm_name(a),
                            to_max_live(row, row->report.place.heights[a]));
        json_end_object(&json);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_end_object(&json);
    json_finish(&json);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void print_placement(const struct row *rows, int count)
{
    const char *headings[4 + PLEAT__ALGORITHM_COUNT] = {"contiguous", "requests", "max-live"};
    int columns = 3;
    for (uint32_t a = 0; a < PLEAT__ALGORITHM_COUNT; a++)
        headings[columns++] = pleat__algorithm_name(a);
    headings[columns++] = "best";
    cli_table table;
    char size[48];
    if (!cli_table_begin(&table, columns, headings))
        return;
    for (int i = 0; i < count; i++) {
        const struct row *row = &rows[i];
        if ((i > 0 && row->file == rows[i - 1].file) || !cli_table_row(&table))
            continue;
        uint64_t live = row->summary.max_live_bytes;
        cli_table_cell(&table, 0, "%.40s", base_name(row->file));
        cli_table_cell(&table, 1, "%llu", (unsigned long long)row->summary.iteration_requests);
        cli_table_cell(&table, 2, "%s", cli_format_size(live, size, sizeof size));
        for (uint32_t a = 0; a < PLEAT__ALGORITHM_COUNT; a++)
            if (was_reached(row, a))
                cli_table_cell(&table, 3 + (int)a, "%.5f",
                               to_max_live(row, row->report.place.heights[a]));
            else
                cli_table_cell(&table, 3 + (int)a, "-");
        cli_table_cell(&table, columns - 1, "%.5f", to_max_live(row, row->report.place.height));
    }
    cli_table_end(&table, stdout);
}

static void print_folds(const struct row *rows, int count)
{
    static const char *const headings[] = {"folded", "chunk",   "ratio",      "chunks over",
                                           "maps",   "aliases", "handles",    "lanes",
                                           "s",      "MiB",     "B a request"};
    cli_table table;
    char size[48];
    if (!cli_table_begin(&table, 11, headings))
        return;
    for (int i = 0; i < count; i++) {
        const struct row *row = &rows[i];
        if (!cli_table_row(&table))
            continue;
        int64_t over =
            (int64_t)(row->summary.physical_bytes / row->chunk_bytes) -
            (int64_t)((row->summary.max_live_bytes + row->chunk_bytes - 1) / row->chunk_bytes);
        cli_table_cell(&table, 0, "%.40s", base_name(row->file));
        cli_table_cell(&table, 1, "%s", cli_format_size(row->chunk_bytes, size, sizeof size));
        cli_table_cell(&table, 2, "%.5f",
                       ratio(row->summary.physical_bytes, row->summary.max_live_bytes));
        cli_table_cell(&table, 3, "%lld", (long long)over);
        cli_table_cell(&table, 4, "%llu", (unsigned long long)row->summary.maps);
        cli_table_cell(&table, 5, "%llu", (unsigned long long)row->summary.alias_maps);
        cli_table_cell(&table, 6, "%llu", (unsigned long long)row->summary.handles);
        cli_table_cell(&table, 7, "%llu", (unsigned long long)row->summary.lanes);
        cli_table_cell(&table, 8, "%.3f", (double)row->nanoseconds * 1e-9);
        cli_table_cell(&table, 9, "%.1f", (double)row->report.scratch_bytes / (1 << 20));
        cli_table_cell(&table, 10, "%.0f", bytes_a_request(row));
    }
    cli_table_end(&table, stdout);
}

/* All chunk sizes of one file: rows[chunk_count]. */
static pleat_result measure_file(const char *file, const struct arguments *arguments,
                                 struct row *rows)
{
    pleat_trace *trace, *tiled = NULL;
    PLEAT_TRY(device_import(
        file, arguments->device <= UINT8_MAX ? (int)arguments->device : PLEAT__ANY_DEVICE, NULL,
        &trace));
    pleat_result result = PLEAT_OK;
    if (arguments->tile > 1)
        result = tile(trace, arguments->tile, &tiled);
    for (int c = 0; c < arguments->chunk_count && result == PLEAT_OK; c++) {
        rows[c] = (struct row){.file = file, .chunk_bytes = arguments->chunks[c]};
        result = measure(tiled != NULL ? tiled : trace, arguments, &rows[c]);
    }
    pleat_trace_free(trace);
    pleat_trace_free(tiled);
    return result == PLEAT_OK ? PLEAT_OK : pleat__context(result, "'%s'", file);
}

static int bench_files(const struct arguments *arguments, char **files, int count)
{
    struct row *rows = calloc((size_t)count * (size_t)arguments->chunk_count, sizeof *rows);
    pleat_result result = PLEAT_OK;
    if (rows == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %d files", count);
    for (int i = 0; i < count && result == PLEAT_OK; i++)
        result = measure_file(files[i], arguments, rows + i * arguments->chunk_count);
    if (result == PLEAT_OK && arguments->json) {
        print_json(rows, count * arguments->chunk_count);
    } else if (result == PLEAT_OK) {
        print_placement(rows, count * arguments->chunk_count);
        putchar('\n');
        print_folds(rows, count * arguments->chunk_count);
    }
    free(rows);
    return result == PLEAT_OK ? CLI_DONE : cli_failed("bench plan", result);
}

/* CLI_GO_ON, or CLI_BAD_USE with a message. */
static int parse_chunks(const char *list, struct arguments *arguments)
{
    arguments->chunk_count = 0;
    for (const char *text = list; text != NULL;) {
        char one[64];
        uint64_t bytes;
        size_t length = strcspn(text, ",");
        if (arguments->chunk_count == MOST_CHUNKS)
            return cli_bad_use("bench plan", "--chunk is up to %d sizes, not '%s'", MOST_CHUNKS,
                               list);
        snprintf(one, sizeof one, "%.*s", (int)length, text);
        if (length >= sizeof one || !cli_parse_size(one, &bytes) || !cli_is_chunk(bytes))
            return cli_no_chunk("bench plan", one);
        arguments->chunks[arguments->chunk_count++] = bytes;
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    return CLI_GO_ON;
}

int bench_plan(int argc, char **argv)
{
    struct arguments arguments = {.tile = 1, .runs = 1, .device = UINT32_MAX};
    const char *chunks = "2MiB";
    int first;
    const cli_option table[] = {
        OPTION_TEXT('c', "chunk", &chunks, "SIZE[,SIZE]", "chunk sizes to fold at (2MiB)"),
        OPTION_COUNT('t', "tile", &arguments.tile, "N", 1, 100000,
                     "N copies of the iteration as one"),
        OPTION_COUNT('r', "runs", &arguments.runs, "N", 1, MOST_RUNS, "to take the median of (1)"),
        OPTION_ONE_DEVICE(&arguments.device),
        OPTION_JSON(&arguments.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "bench plan",
        .synopsis = "FILE ... [options]",
        .text = "Plans each FILE (whatever 'pleat import' reads) and prints max-live, what every\n"
                "contiguous algorithm reaches against it, and for each chunk size the folded ratio "
                "with\n"
                "its aliased pages and handles. Times are seconds of one core for the whole plan, "
                "reading\n"
                "aside: the median.\n",
        .options = table,
        .operand = "one FILE or more",
    };
    int code = cli_read(argc, argv, &usage, &first);
    if (code != CLI_GO_ON)
        return code;
    code = parse_chunks(chunks, &arguments);
    if (code != CLI_GO_ON)
        return code;
    return bench_files(&arguments, argv + first, argc - first);
}
