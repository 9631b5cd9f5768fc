/*
 * bench_pause.c: `pleat bench pause`: what a pause and a resume take beside the copy at the link's
 * bandwidth, verb by verb, and how fast host memory is pinned.
 *
 * Tensors of one size are allocated one by one, as a trainer makes its weights and states. They are
 * paused and resumed in turns: with nobody else on the device; with somebody who takes all of it
 * meanwhile and gives it back, as a server does; and with half a second after that. Each time the
 * same bytes are copied, too, to memory that the driver makes at that moment for nothing else: what
 * a resume takes longer than that is Pleat's, the rest is the driver's. To memory that was kept,
 * and by threads of the device, the same copies tell where the driver's part comes from. What the
 * tensors hold is checked after each resume.
 */
#include <tools/bench/bench_pause.h>
#include <tools/json.h>
#include <tools/options.h>

#include <internal/error.h>
#include <pleat/runtime.h>
#include <string.h>
#include <time.h>

#define MIB         (1024.0 * 1024)
#define MOST_TAKEN  4096
#define TAKEN_BYTES (256ull << 20)
#define SETTLE_NS   500000000

#define VERB(b, name, ...) ((b)->vmm.ops->name((b)->vmm.self, __VA_ARGS__))

/* ---- pauses ---- */

typedef struct tensors {
    timed_vmm timed;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pleat_va *all;
    size_t count;
    pleat_va *bare; /* addresses for as many tensors, one behind the other */
    uint64_t bare_bytes;
    size_t bare_count; /* mapped there */
    void *host;        /* pinned, of a tensor's size */
    pleat_stream streams[2];
    pleat_event events[2];
} tensors;

static pleat_result tensors_begin(const pause_bench *b, tensors *t)
{
    size_t wanted = (size_t)(b->bytes / b->tensor_bytes);
    pleat_runtime_options options = {.size = sizeof options, .device = b->device};
    t->all = pleat__arena_calloc(b->arena, wanted, sizeof *t->all);
    t->bare = pleat__arena_calloc(b->arena, wanted, sizeof *t->bare);
    if (t->all == NULL || t->bare == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a list of tensors");
    t->bare_bytes = (b->tensor_bytes + CLI_LEAST_MEMORY - 1) / CLI_LEAST_MEMORY * CLI_LEAST_MEMORY;
    PLEAT_TRY(VERB(b, reserve, b->device, wanted * t->bare_bytes, 0, &t->bare[0]));
    for (size_t i = 1; i < wanted; i++)
        t->bare[i] = t->bare[0] + i * t->bare_bytes;
    PLEAT_TRY(timed_vmm_begin(b->vmm, b->arena, &t->timed, &t->vmm));
    PLEAT_TRY(pleat_runtime_create(t->vmm, &options, &t->runtime));
    for (; t->count < wanted; t->count++)
        PLEAT_TRY(pleat_alloc(t->runtime, b->tensor_bytes, 0, &t->all[t->count]));
    PLEAT_TRY(VERB(b, host_alloc, b->device, b->tensor_bytes, &t->host));
    for (int s = 0; s < 2; s++) {
        PLEAT_TRY(VERB(b, stream_create, b->device, &t->streams[s]));
        PLEAT_TRY(VERB(b, event_create, b->device, &t->events[s]));
    }
    return PLEAT_OK;
}

static void tensors_end(const pause_bench *b, tensors *t)
{
    for (int s = 0; s < 2; s++) {
        if (t->events[s] != 0)
            (void)VERB(b, event_destroy, t->events[s]);
        if (t->streams[s] != 0)
            (void)VERB(b, stream_destroy, b->device, t->streams[s]);
    }
    if (t->host != NULL)
        (void)VERB(b, host_free, b->device, t->host);
    for (size_t i = 0; i < t->count; i++)
        (void)pleat_free(t->runtime, t->all[i]);
    pleat_runtime_destroy(t->runtime);
    if (t->bare != NULL && t->bare[0] != 0)
        (void)VERB(b, free_range, t->bare[0], b->bytes / b->tensor_bytes * t->bare_bytes);
    pleat__arena_free(b->arena, t->bare);
    pleat__arena_free(b->arena, t->all);
}

/* Somebody takes what the device has, and gives it back. */
static void take_all(const pause_bench *b)
{
    static pleat_handle taken[MOST_TAKEN];
    size_t count = 0;
    while (count < MOST_TAKEN &&
           VERB(b, create, b->device, TAKEN_BYTES, 0, &taken[count]) == PLEAT_OK)
        count++;
    while (count > 0)
        (void)VERB(b, release, taken[--count]);
}

static void meet(const pause_bench *b, neighbour who)
{
    if (who != NEIGHBOUR_NONE)
        take_all(b);
    if (who == NEIGHBOUR_TOOK)
        (void)nanosleep(&(struct timespec){.tv_nsec = SETTLE_NS}, NULL);
}

static void begin_verbs(tensors *t)
{
    memset(t->timed.by_verb, 0, sizeof t->timed.by_verb);
}

static double seconds_since(uint64_t begun)
{
    return (double)(clock_now() - begun) * 1e-9;
}

static pleat_result copy_one(const pause_bench *b, const tensors *t, pleat_stream stream,
                             pleat_va to, bool reads)
{
    uint64_t from = (uint64_t)(uintptr_t)t->host;
    return reads ? VERB(b, copy_by_threads, b->device, stream, to, from, b->tensor_bytes / 16 * 16)
                 : VERB(b, copy, b->device, stream, to, from, b->tensor_bytes);
}

/* What a resume copies, to addresses `to` of as many tensors, with nothing else to do; with `reads`
 * by threads of the device. */
static pleat_result copy_all(const pause_bench *b, const tensors *t, const pleat_va *to, bool reads)
{
    for (size_t i = 0; i < t->count; i++)
        PLEAT_TRY(copy_one(b, t, t->streams[i % 2], to[i], reads));
    for (int s = 0; s < 2; s++) {
        PLEAT_TRY(VERB(b, event_record, t->events[s], t->streams[s]));
        PLEAT_TRY(VERB(b, event_wait, t->events[s]));
    }
    return PLEAT_OK;
}

/* Makes memory for all tensors by verbs alone, a handle for each, and copies to it. */
static pleat_result bare_copy(const pause_bench *b, tensors *t, bool reads)
{
    for (; t->bare_count < t->count; t->bare_count++) {
        pleat_va at = t->bare[t->bare_count];
        pleat_handle handle;
        PLEAT_TRY(VERB(b, create, b->device, t->bare_bytes, 0, &handle));
        pleat_result result = VERB(b, map, at, t->bare_bytes, handle);
        (void)VERB(b, release, handle); /* the map keeps it */
        PLEAT_TRY(result);
    }
    PLEAT_TRY(VERB(b, set_access, t->bare[0], t->count * t->bare_bytes, &b->device, 1));
    return copy_all(b, t, t->bare, reads);
}

static void bare_drop(const pause_bench *b, tensors *t)
{
    if (t->bare_count > 0)
        (void)VERB(b, unmap, t->bare[0], t->bare_count * t->bare_bytes);
    t->bare_count = 0;
}

static pleat_result measure_turn(pause_bench *b, tensors *t, neighbour who, turn_row *row)
{
    PLEAT_TRY(bench_contents_write(b, t->all, t->count));
    begin_verbs(t);
    uint64_t begun = clock_now();
    PLEAT_TRY(pleat_pause(t->runtime, NULL));
    row->seconds[PART_PAUSE] = seconds_since(begun);
    memcpy(row->pause_verbs, t->timed.by_verb, sizeof row->pause_verbs);
    meet(b, who);
    begin_verbs(t);
    begun = clock_now();
    PLEAT_TRY(pleat_resume(t->runtime, NULL));
    row->seconds[PART_RESUME] = seconds_since(begun);
    memcpy(row->resume_verbs, t->timed.by_verb, sizeof row->resume_verbs);
    PLEAT_TRY(bench_contents_check(b, t->all, t->count));
    begun = clock_now();
    PLEAT_TRY(copy_all(b, t, t->all, false));
    row->seconds[PART_COPY] = seconds_since(begun);
    return PLEAT_OK;
}

/* The same turn, but that the memory which comes back is bare. */
static pleat_result measure_bare(const pause_bench *b, tensors *t, neighbour who, bool reads,
                                 turn_row *row)
{
    PLEAT_TRY(pleat_pause(t->runtime, NULL));
    meet(b, who);
    uint64_t begun = clock_now();
    pleat_result result = bare_copy(b, t, reads);
    row->seconds[reads ? PART_READ : PART_BARE] = seconds_since(begun);
    bare_drop(b, t);
    PLEAT_TRY(result);
    return pleat_resume(t->runtime, NULL);
}

/* The same neighbour, but that the tensors keep their memory. */
static pleat_result measure_had(const pause_bench *b, tensors *t, neighbour who, turn_row *row)
{
    meet(b, who);
    uint64_t begun = clock_now();
    PLEAT_TRY(copy_all(b, t, t->all, false));
    row->seconds[PART_HAD] = seconds_since(begun);
    return PLEAT_OK;
}

static const char *const neighbours[] = {"alone", "after somebody took all",
                                         "half a second after that"};

/* As it comes: a run that is cut off has told something. */
static void print_turn(const pause_bench *b, neighbour who, const turn_row *row)
{
    if (b->json)
        return;
    printf("    %-24s pause %.3f s, resume %.3f; copied %.3f, to new memory %.3f, to kept %.3f",
           neighbours[who], row->seconds[PART_PAUSE], row->seconds[PART_RESUME],
           row->seconds[PART_COPY], row->seconds[PART_BARE], row->seconds[PART_HAD]);
    if (b->reads)
        printf(", by threads %.3f", row->seconds[PART_READ]);
    printf("\n");
    fflush(stdout);
}

/* A turn of each kind. */
static pleat_result measure_kinds(pause_bench *b, tensors *t, neighbour who, turn_row *row)
{
    PLEAT_TRY(measure_turn(b, t, who, row));
    PLEAT_TRY(measure_bare(b, t, who, false, row));
    PLEAT_TRY(measure_had(b, t, who, row));
    if (b->reads)
        PLEAT_TRY(measure_bare(b, t, who, true, row));
    print_turn(b, who, row);
    return PLEAT_OK;
}

static pleat_result measure_turns(pause_bench *b)
{
    tensors t = {0};
    turn_row first;
    pleat_result result = tensors_begin(b, &t);
    if (result == PLEAT_OK)
        result = measure_turn(b, &t, NEIGHBOUR_NONE, &first);
    if (result == PLEAT_OK)
        b->first_pause = first.seconds[PART_PAUSE];
    for (uint32_t turn = 0; turn < b->turns; turn++)
        for (neighbour who = 0; who < NEIGHBOURS && result == PLEAT_OK; who++)
            result = measure_kinds(b, &t, who, &b->rows[who][turn]);
    pleat_error why = pleat__failure(result);
    tensors_end(b, &t);
    return pleat__fail_again(&why);
}

/* ---- what is printed ---- */

static const char *const verb_names[] = {
#define NAME(verb, ...) #verb,
    PLEAT__VMM_VERBS(NAME)
#undef NAME
};

/* The median of the turns' seconds. */
static double median(const turn_row *rows, uint32_t count, part of)
{
    uint64_t ns[MOST_TURNS];
    for (uint32_t i = 0; i < count; i++)
        ns[i] = (uint64_t)(rows[i].seconds[of] * 1e9);
    return (double)clock_quantile(ns, count, 0.5) * 1e-9;
}

/* The best of the link, inward and outward. */
static double link_rate(const pause_bench *b, bool out)
{
    double best = 0;
    for (const copy_row *row = b->copies; row < b->copies + b->copy_rows; row++) {
        double rate = out ? row->out : row->in;
        best = rate > best ? rate : best;
    }
    return best;
}

/* Of all turns, a turn's share: calls and ns of a verb. */
static timed_verb average(const turn_row *rows, uint32_t count, int verb, bool resume)
{
    timed_verb sum = {0};
    for (uint32_t i = 0; i < count; i++) {
        const timed_verb *of = resume ? &rows[i].resume_verbs[verb] : &rows[i].pause_verbs[verb];
        sum.calls += of->calls;
        sum.ns += of->ns;
    }
    return (timed_verb){sum.calls / count, sum.ns / count};
}

/* Of all turns, a turn's share: seconds that no verb took. */
static double outside_verbs(const pause_bench *b, const turn_row *rows, bool resume)
{
    double seconds = 0;
    for (uint32_t i = 0; i < b->turns; i++)
        seconds += rows[i].seconds[resume ? PART_RESUME : PART_PAUSE];
    seconds /= b->turns;
    for (int v = 0; v < TIMED_VERBS; v++)
        seconds -= (double)average(rows, b->turns, v, resume).ns * 1e-9;
    return seconds;
}

static void print_verbs(const pause_bench *b, const turn_row *rows, bool resume)
{
    for (int v = 0; v < TIMED_VERBS; v++) {
        timed_verb of = average(rows, b->turns, v, resume);
        if (of.calls > 0)
            printf("    %-14s %6llu calls %9.2f ms\n", verb_names[v], (unsigned long long)of.calls,
                   (double)of.ns * 1e-6);
    }
    printf("    %-14s              %9.2f ms\n", "no verb", 1e3 * outside_verbs(b, rows, resume));
}

static void print_beside(const char *to, double resume, double copy)
{
    printf("    the same bytes copied to %s: %.3f s, the resume takes %.2f of it\n", to, copy,
           resume / copy);
}

static void print_half(const pause_bench *b, const char *name, const turn_row *rows, bool resume)
{
    double seconds = median(rows, b->turns, resume ? PART_RESUME : PART_PAUSE);
    double copy = (double)b->bytes / link_rate(b, !resume);
    printf("%s %s: %.3f s, %.2f of the copy's %.3f s\n", resume ? "resume" : "pause", name, seconds,
           seconds / copy, copy);
    if (resume) {
        print_beside("the same memory, when it is there", seconds,
                     median(rows, b->turns, PART_COPY));
        print_beside("memory that is made for it alone", seconds,
                     median(rows, b->turns, PART_BARE));
        print_beside("memory that was kept, as late", seconds, median(rows, b->turns, PART_HAD));
        if (b->reads)
            print_beside("memory that is made for it alone, by threads of the device", seconds,
                         median(rows, b->turns, PART_READ));
    }
    print_verbs(b, rows, resume);
}

/* What was measured before the turns. */
static void print_host(const pause_bench *b)
{
    char size[32];
    printf("pinned, %s, in turns:\n", cli_format_size(b->pin_bytes, size, sizeof size));
    for (const pin_row *row = b->pins; row < b->pins + b->pin_rows; row++)
        printf("    %-20s %d thread%s %8.3f s %8.2f GB/s\n", row->way, row->threads,
               row->threads == 1 ? " " : "s", row->seconds,
               (double)b->pin_bytes * 1e-9 / row->seconds);
    printf("copied, best of eight:\n");
    for (const copy_row *row = b->copies; row < b->copies + b->copy_rows; row++)
        printf("    %-20s %d stream%s in %6.2f GB/s, out %6.2f GB/s\n", row->way, row->streams,
               row->streams == 1 ? " " : "s", row->in * 1e-9, row->out * 1e-9);
    if (b->reads)
        printf("    %-20s by threads of the device in %6.2f GB/s\n", b->read.way,
               b->read.in * 1e-9);
    printf("paused and resumed, %s in tensors of %.0f MiB, in turns:\n",
           cli_format_size(b->bytes, size, sizeof size), (double)b->tensor_bytes / MIB);
    fflush(stdout);
}

static void print_text(const pause_bench *b)
{
    char size[32];
    printf("paused, %s in tensors of %.0f MiB: first %.3f s, %.2f GB/s\n",
           cli_format_size(b->bytes, size, sizeof size), (double)b->tensor_bytes / MIB,
           b->first_pause, (double)b->bytes * 1e-9 / b->first_pause);
    printf("all that came back was as before: %s in %llu resumes\n",
           cli_format_size(b->checked_bytes, size, sizeof size), (unsigned long long)b->written);
    print_half(b, neighbours[NEIGHBOUR_NONE], b->rows[NEIGHBOUR_NONE], false);
    for (neighbour who = 0; who < NEIGHBOURS; who++)
        print_half(b, neighbours[who], b->rows[who], true);
}

static void json_verbs(json_writer *json, const char *key, const pause_bench *b,
                       const turn_row *rows, bool resume)
{
    json_object(json, key);
    for (int v = 0; v < TIMED_VERBS; v++) {
        timed_verb of = average(rows, b->turns, v, resume);
        if (of.calls == 0)
            continue;
        json_object(json, verb_names[v]);
        json_uint(json, "calls", of.calls);
        json_uint(json, "ns", of.ns);
        json_end_object(json);
    }
    json_end_object(json);
}

static void json_turns(json_writer *json, const char *key, const pause_bench *b,
                       const turn_row *rows)
{
    json_object(json, key);
    json_double(json, "pause_seconds", median(rows, b->turns, PART_PAUSE));
    json_double(json, "resume_seconds", median(rows, b->turns, PART_RESUME));
    json_double(json, "resume_to_copy",
                median(rows, b->turns, PART_RESUME) * link_rate(b, false) / (double)b->bytes);
    json_double(json, "copy_seconds", median(rows, b->turns, PART_COPY));
    json_double(json, "bare_seconds", median(rows, b->turns, PART_BARE));
    json_double(json, "kept_seconds", median(rows, b->turns, PART_HAD));
    if (b->reads)
        json_double(json, "bare_by_threads_seconds", median(rows, b->turns, PART_READ));
    json_double(json, "pause_outside_verbs_seconds", outside_verbs(b, rows, false));
    json_double(json, "resume_outside_verbs_seconds", outside_verbs(b, rows, true));
    json_verbs(json, "pause_verbs", b, rows, false);
    json_verbs(json, "resume_verbs", b, rows, true);
    json_end_object(json);
}

static void print_json(const pause_bench *b)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "backend", b->vmm.ops->name);
    json_uint(&json, "pin_bytes", b->pin_bytes);
    json_array(&json, "pins");
    for (const pin_row *row = b->pins; row < b->pins + b->pin_rows; row++) {
        json_object(&json, NULL);
        json_string(&json, "way", row->way);
        json_uint(&json, "threads", (uint64_t)row->threads);
        json_double(&json, "bytes_per_second", (double)b->pin_bytes / row->seconds);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_array(&json, "copies");
    for (const copy_row *row = b->copies; row < b->copies + b->copy_rows; row++) {
        json_object(&json, NULL);
        json_string(&json, "way", row->way);
        json_uint(&json, "streams", (uint64_t)row->streams);
        json_double(&json, "in_bytes_per_second", row->in);
        json_double(&json, "out_bytes_per_second", row->out);
        json_end_object(&json);
    }
    json_end_array(&json);
    if (b->reads)
        json_double(&json, "in_by_threads_bytes_per_second", b->read.in);
    json_uint(&json, "paused_bytes", b->bytes);
    json_uint(&json, "checked_bytes", b->checked_bytes);
    json_double(&json, "first_pause_seconds", b->first_pause);
    json_turns(&json, "alone", b, b->rows[NEIGHBOUR_NONE]);
    json_turns(&json, "contested", b, b->rows[NEIGHBOUR_TAKES]);
    json_turns(&json, "settled", b, b->rows[NEIGHBOUR_TOOK]);
    json_end_object(&json);
    json_finish(&json);
}

/* ---- the command ---- */

static int parse(pause_bench *b, int argc, char **argv)
{
    const char *backend = "host";
    uint32_t device = 0;
    const cli_option table[] = {
        OPTION_BACKEND(&backend),
        OPTION_COUNT('\0', "device", &device, "N", 0, UINT8_MAX, "which device (0)"),
        OPTION_BYTES('s', "size", &b->bytes, "SIZE", CLI_LEAST_MEMORY,
                     "bytes that are paused, in whole tensors (host 256MiB, cuda 12GiB)"),
        OPTION_BYTES('t', "tensor", &b->tensor_bytes, "SIZE", 512, "bytes of a tensor (64MiB)"),
        OPTION_BYTES('P', "pin", &b->pin_bytes, "SIZE", CLI_LEAST_MEMORY,
                     "bytes that are pinned by each way (host 64MiB, cuda 4GiB)"),
        OPTION_COUNT('n', "turns", &b->turns, "N", 1, MOST_TURNS, "pauses of each kind (5)"),
        OPTION_JSON(&b->json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "bench pause",
        .synopsis = "[options]",
        .text =
            "Measures how fast host memory is pinned, by each way and by one thread and eight,\n"
            "copies by one, two and four streams, and what a pause and a resume take beside the\n"
            "copy alone, verb by verb: with nobody else, after somebody took all memory and gave\n"
            "it back, and half a second after that.\n",
        .options = table,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    b->cuda = strcmp(backend, "cuda") == 0;
    b->device = (int)device;
    b->bytes = b->bytes != 0 ? b->bytes : b->cuda ? 12ull << 30 : 256ull << 20;
    b->pin_bytes = b->pin_bytes != 0 ? b->pin_bytes : b->cuda ? 4ull << 30 : 64ull << 20;
    if (b->pin_bytes % CLI_LEAST_MEMORY != 0)
        return cli_bad_use("bench pause", "--pin is a multiple of 2 MiB");
    if (b->tensor_bytes > b->bytes)
        return cli_bad_use("bench pause", "--tensor is no more than --size");
    b->bytes -= b->bytes % b->tensor_bytes; /* what no tensor holds is not paused */
    return CLI_GO_ON;
}

static pleat_result open_backend(pause_bench *b)
{
    pleat_host_options options = {.size = sizeof options, .devices = b->device + 1};
    options.device_bytes = 2 * b->bytes + (1ull << 30);
    return b->cuda ? pleat_vmm_cuda(&b->vmm) : pleat_vmm_host(&options, &b->vmm);
}

int bench_pause(int argc, char **argv)
{
    static pause_bench b;
    b = (pause_bench){.turns = 5, .tensor_bytes = 64ull << 20};
    int code = parse(&b, argc, argv);
    if (code != CLI_GO_ON)
        return code;
    pleat_result result = pleat__arena_create(&b.arena);
    if (result == PLEAT_OK)
        result = open_backend(&b);
    if (result == PLEAT_OK)
        result = bench_pins(&b);
    if (result == PLEAT_OK)
        result = bench_copies(&b);
    if (result == PLEAT_OK && !b.json)
        print_host(&b);
    if (result == PLEAT_OK)
        result = measure_turns(&b);
    code = result == PLEAT_OK ? CLI_DONE : cli_failed("bench pause", result);
    if (result == PLEAT_OK && b.json)
        print_json(&b);
    else if (result == PLEAT_OK)
        print_text(&b);
    canary_cuda_destroy(b.canary);
    pleat_vmm_destroy(&b.vmm);
    pleat__arena_destroy(b.arena);
    return code;
}
