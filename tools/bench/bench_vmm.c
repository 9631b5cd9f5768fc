/*
 * bench_vmm.c: `pleat bench vmm`: what the memory verbs cost here, and whether what Pleat promises
 * of them holds: a plan is mapped and given back in half a second each, and a thread that launches
 * kernels does not notice a mapper beside it.
 *
 * Verbs are timed one by one through the backend's table; the plan and the mapper run through the
 * space, as in a job.
 */
#include <tools/bench/bench_vmm.h>
#include <tools/json.h>
#include <tools/options.h>

#include <internal/error.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB        (1024.0 * 1024)
#define GIB        (1024.0 * 1024 * 1024)
#define LEAST_PLAN (64ull << 20)
#define USUAL_PLAN (100ull << 30)
#define PLAN_PAGE  7 /* where the plan lies in the window */

#define VERB(b, name, ...) ((b)->vmm.ops->name((b)->vmm.self, __VA_ARGS__))

void *bench_vmm_memory(const bench *b, uint64_t count, size_t size, pleat_result *result)
{
    void *pointer = pleat__arena_calloc(b->arena, count, size);
    *result = pointer != NULL ? PLEAT_OK
                              : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to measure with");
    return pointer;
}

/* ---- verbs ---- */

typedef struct batch {
    pleat_handle *handles;
    uint64_t count, created, mapped;
    pleat_va va;
    uint64_t bytes; /* of one handle */
} batch;

/* Also after a failure: whatever is still held. */
static void batch_end(bench *b, batch *t)
{
    if (t->mapped > 0)
        (void)!VERB(b, unmap, t->va, t->mapped * t->bytes);
    while (t->created > 0)
        (void)!VERB(b, release, t->handles[--t->created]);
    if (t->va != 0)
        (void)!VERB(b, free_range, t->va, t->count * t->bytes);
    pleat__arena_free(b->arena, t->handles);
}

static pleat_result batch_begin(bench *b, batch *t, uint64_t count, uint64_t bytes)
{
    pleat_result result;
    *t = (batch){.count = count, .bytes = bytes};
    t->handles = bench_vmm_memory(b, count, sizeof *t->handles, &result);
    if (result == PLEAT_OK)
        result = VERB(b, reserve, b->device, count * bytes, 0, &t->va);
    return result;
}

uint64_t bench_vmm_since(uint64_t *before, uint64_t count)
{
    uint64_t now = clock_now(), spent = now - *before;
    *before = now;
    return spent / count;
}

/* Creates, maps, grants, unmaps and releases once; ns a handle into `row`. */
static pleat_result time_batch(bench *b, batch *t, verb_row *row)
{
    pleat_result result = PLEAT_OK;
    uint64_t clock = clock_now();
    for (; t->created < t->count; t->created++)
        if ((result = VERB(b, create, b->device, t->bytes, 0, &t->handles[t->created])) != PLEAT_OK)
            return result;
    row->create = bench_vmm_since(&clock, t->count);
    for (; t->mapped < t->count; t->mapped++)
        if ((result = VERB(b, map, t->va + t->mapped * t->bytes, t->bytes,
                           t->handles[t->mapped])) != PLEAT_OK)
            return result;
    row->map = bench_vmm_since(&clock, t->count);
    if ((result = VERB(b, set_access, t->va, t->count * t->bytes, &b->device, 1)) != PLEAT_OK)
        return result;
    row->access = bench_vmm_since(&clock, t->count);
    if ((result = VERB(b, unmap, t->va, t->count * t->bytes)) != PLEAT_OK)
        return result;
    t->mapped = 0;
    row->unmap = bench_vmm_since(&clock, t->count);
    for (; t->created > 0; t->created--)
        if ((result = VERB(b, release, t->handles[t->created - 1])) != PLEAT_OK)
            return result;
    row->release = bench_vmm_since(&clock, t->count);
    return result;
}

static void keep_least(uint64_t *kept, uint64_t value, bool first)
{
    if (first || value < *kept)
        *kept = value;
}

/* The least of some rounds: what the call costs when nothing else is in its way. */
static pleat_result measure_verbs(bench *b, uint64_t bytes, uint64_t count)
{
    if (b->verb_rows == 2 * MOST_ROWS || bytes * count > b->free_bytes / 2)
        return PLEAT_OK;
    verb_row *best = &b->verbs[b->verb_rows];
    batch t;
    pleat_result result = batch_begin(b, &t, count, bytes);
    uint64_t rounds = count < 16 ? 32 : count < 1024 ? 5 : 2;
    for (uint64_t round = 0; result == PLEAT_OK && round < rounds; round++) {
        verb_row row;
        if ((result = time_batch(b, &t, &row)) != PLEAT_OK)
            break;
        keep_least(&best->create, row.create, round == 0);
        keep_least(&best->map, row.map, round == 0);
        keep_least(&best->access, row.access, round == 0);
        keep_least(&best->unmap, row.unmap, round == 0);
        keep_least(&best->release, row.release, round == 0);
    }
    best->bytes = bytes;
    best->batch = count;
    b->verb_rows += result == PLEAT_OK;
    batch_end(b, &t);
    return result;
}

static pleat_result measure_all_verbs(bench *b)
{
    static const uint64_t batches[] = {1, 8, 64, 512, 4096};
    static const uint64_t granules[] = {8, 64, 512, 1024, 4096};
    pleat_result result = PLEAT_OK;
    for (size_t i = 0; result == PLEAT_OK && i < sizeof batches / sizeof *batches; i++)
        result = measure_verbs(b, b->granule, batches[i]);
    for (size_t i = 0; result == PLEAT_OK && i < sizeof granules / sizeof *granules; i++)
        result = measure_verbs(b, granules[i] * b->granule, 1);
    return result;
}

/* ---- aliases ---- */

/* Maps one chunk at `aliases` places. */
static pleat_result measure_aliases(bench *b, uint64_t aliases)
{
    batch t;
    pleat_result result = batch_begin(b, &t, aliases, b->granule);
    if (result == PLEAT_OK)
        result = VERB(b, create, b->device, b->granule, 0, &t.handles[0]);
    t.created = result == PLEAT_OK;
    uint64_t clock = clock_now();
    for (; result == PLEAT_OK && t.mapped < aliases; t.mapped += result == PLEAT_OK)
        result = VERB(b, map, t.va + t.mapped * b->granule, b->granule, t.handles[0]);
    if (result == PLEAT_OK)
        result = VERB(b, set_access, t.va, aliases * b->granule, &b->device, 1);
    alias_row row = {.aliases = aliases, .map = bench_vmm_since(&clock, aliases)};
    if (result == PLEAT_OK && (result = VERB(b, unmap, t.va, aliases * b->granule)) == PLEAT_OK)
        t.mapped = 0;
    row.unmap = bench_vmm_since(&clock, aliases);
    if (result == PLEAT_OK)
        b->aliases[b->alias_rows++] = row;
    batch_end(b, &t);
    return result;
}

/* Ever more, until the backend refuses: the host's kernel counts map areas, a driver has a limit of
 * its own. */
static pleat_result measure_all_aliases(bench *b)
{
    static const uint64_t counts[] = {1024, 8192, 32768, 131072};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        pleat_result result = measure_aliases(b, counts[i]);
        if (result == PLEAT_E_LIMIT || result == PLEAT_E_OUT_OF_MEMORY) {
            b->aliases_refused = counts[i];
            return PLEAT_OK;
        }
        if (result != PLEAT_OK)
            return result;
    }
    return PLEAT_OK;
}

/* ---- a plan's start and end ---- */

/* What a plan needs: pages that nothing folds, in large handles, and folded ones: single chunks,
 * each mapped at a second place too, in any order. */
typedef struct plan_shape {
    uint64_t plain, folded; /* pages */
    uint32_t handle_pages;
} plan_shape;

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

void bench_vmm_shuffle(pleat__chunk **chunks, uint64_t count)
{
    uint32_t state = 1;
    for (uint64_t i = count; i > 1; i--) {
        uint64_t j = next_random(&state) % i;
        pleat__chunk *chunk = chunks[i - 1];
        chunks[i - 1] = chunks[j];
        chunks[j] = chunk;
    }
}

static pleat_result get_chunks(pleat__space *space, const plan_shape *shape, pleat__chunk **chunks,
                               uint64_t *count)
{
    uint64_t left = shape->plain + shape->folded;
    for (*count = 0; left > 0; ++*count) {
        uint32_t pages = left > shape->folded ? shape->handle_pages : 1;
        if (left > shape->folded && left - shape->folded < pages)
            pages = (uint32_t)(left - shape->folded);
        pleat_result result = pleat__space_chunk_get(space, pages, &chunks[*count]);
        if (result != PLEAT_OK)
            return result;
        left -= pages;
    }
    return PLEAT_OK;
}

static pleat_result map_plan(pleat__space *space, const plan_shape *shape, uint64_t page,
                             pleat__chunk **chunks, uint64_t *count)
{
    uint64_t pages = shape->plain + shape->folded;
    pleat_result result = pleat__space_take_at(space, page, pages + shape->folded);
    if (result == PLEAT_OK)
        result = get_chunks(space, shape, chunks, count);
    if (result == PLEAT_OK)
        result = pleat__space_map(space, page, chunks, *count);
    if (result != PLEAT_OK || shape->folded == 0)
        return result;
    pleat__chunk **folded = chunks + *count - shape->folded;
    bench_vmm_shuffle(folded, shape->folded);
    return pleat__space_map(space, page + pages, folded, shape->folded);
}

static pleat_result give_plan_back(pleat__space *space, const plan_shape *shape, uint64_t page,
                                   pleat__chunk *const *chunks, uint64_t count)
{
    uint64_t pages = shape->plain + 2 * shape->folded;
    pleat_result result = pleat__space_unmap(space, page, pages);
    if (result != PLEAT_OK)
        return result;
    pleat__space_give(space, page, pages);
    for (uint64_t c = 0; c < count; c++)
        pleat__space_chunk_put(space, chunks[c]);
    uint64_t wanted = (shape->plain + shape->folded) * pleat__space_page_bytes(space);
    return pleat__space_trim(space, 0) == wanted ? PLEAT_OK : pleat_last_error()->result;
}

static pleat_result measure_plan(bench *b, const plan_shape *shape, plan_times *times)
{
    pleat_result result;
    pleat__space *space = NULL;
    uint64_t count = 0;
    pleat__chunk **chunks =
        bench_vmm_memory(b, shape->plain + shape->folded + 1, sizeof(pleat__chunk *), &result);
    const pleat__space_options options = {.device = b->device};
    if (result == PLEAT_OK)
        result = pleat__space_create(b->vmm, b->arena, &options, &space);
    uint64_t clock = clock_now();
    if (result == PLEAT_OK)
        result = map_plan(space, shape, PLAN_PAGE, chunks, &count);
    times->map = (double)bench_vmm_since(&clock, 1) * 1e-9;
    if (result == PLEAT_OK)
        result = give_plan_back(space, shape, PLAN_PAGE, chunks, count);
    times->give_back = (double)bench_vmm_since(&clock, 1) * 1e-9;
    if (result == PLEAT_OK) {
        pleat__space_stats stats = pleat__space_stats_of(space);
        times->maps = stats.maps;
        times->driver_calls = stats.driver_calls;
    }
    pleat__space_destroy(space);
    pleat__arena_free(b->arena, chunks);
    return result;
}

static pleat_result measure_plans(bench *b)
{
    uint64_t pages = b->plan_bytes / b->granule;
    plan_shape folded = {pages - pages / 20, pages / 20, 1024};
    plan_shape single = {pages, 0, 1};
    pleat_result result = measure_plan(b, &folded, &b->folded);
    return result == PLEAT_OK ? measure_plan(b, &single, &b->single) : result;
}

/* ---- what came out ---- */

static bool goals_met(const bench *b)
{
    return b->folded.map <= 0.5 && b->folded.give_back <= 0.5 && b->launch_change <= 0.02;
}

static void print_json(const bench *b)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "backend", b->vmm.ops->name);
    json_uint(&json, "granularity", b->granule);
    json_array(&json, "verbs");
    for (const verb_row *row = b->verbs; row < b->verbs + b->verb_rows; row++) {
        json_object(&json, NULL);
        json_uint(&json, "handle_bytes", row->bytes);
        json_uint(&json, "batch", row->batch);
        json_uint(&json, "create_ns", row->create);
        json_uint(&json, "map_ns", row->map);
        json_uint(&json, "set_access_ns", row->access);
        json_uint(&json, "unmap_ns", row->unmap);
        json_uint(&json, "release_ns", row->release);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_array(&json, "aliases");
    for (const alias_row *row = b->aliases; row < b->aliases + b->alias_rows; row++) {
        json_object(&json, NULL);
        json_uint(&json, "aliases", row->aliases);
        json_uint(&json, "map_ns", row->map);
        json_uint(&json, "unmap_ns", row->unmap);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_uint(&json, "aliases_refused", b->aliases_refused);
    json_object(&json, "plan");
    json_uint(&json, "bytes", b->plan_bytes);
    json_double(&json, "folded_share", 0.05);
    json_uint(&json, "maps", b->folded.maps);
    json_double(&json, "map_seconds", b->folded.map);
    json_double(&json, "give_back_seconds", b->folded.give_back);
    json_uint(&json, "single_chunk_maps", b->single.maps);
    json_double(&json, "single_chunk_map_seconds", b->single.map);
    json_double(&json, "single_chunk_give_back_seconds", b->single.give_back);
    json_end_object(&json);
    if (b->cuda) {
        json_object(&json, "launch");
        json_uint(&json, "alone_ns", b->launch_alone);
        json_uint(&json, "alone_p99_ns", b->launch_alone_p99);
        json_uint(&json, "busy_ns", b->launch_busy);
        json_uint(&json, "busy_p99_ns", b->launch_busy_p99);
        json_double(&json, "change", b->launch_change);
        json_uint(&json, "remaps", b->remaps);
        json_double(&json, "remap_us", b->remap_us);
        json_end_object(&json);
    }
    json_object(&json, "stream");
    json_uint(&json, "bytes", b->stream_bytes);
    json_double(&json, "one_handle_bytes_per_second", b->whole_rate);
    json_double(&json, "shuffled_bytes_per_second", b->shuffled_rate);
    json_end_object(&json);
    json_bool(&json, "goals_met", goals_met(b));
    json_end_object(&json);
    json_finish(&json);
}

static bool print_verbs(const bench *b)
{
    static const char *const headings[] = {"handle",        "batch",    "create us", "map us",
                                           "set_access us", "unmap us", "release us"};
    cli_table table;
    if (!cli_table_begin(&table, 7, headings))
        return false;
    for (const verb_row *row = b->verbs; row < b->verbs + b->verb_rows; row++) {
        char size[32];
        const uint64_t ns[] = {row->create, row->map, row->access, row->unmap, row->release};
        if (!cli_table_row(&table))
            return false;
        cli_table_cell(&table, 0, "%s", cli_format_size(row->bytes, size, sizeof size));
        cli_table_cell(&table, 1, "%llu", (unsigned long long)row->batch);
        for (int c = 0; c < 5; c++)
            cli_table_cell(&table, 2 + c, "%.2f", (double)ns[c] * 1e-3);
    }
    cli_table_end(&table, stdout);
    return true;
}

static void print_text(const bench *b)
{
    printf("backend %s, granularity %.0f MiB; verbs in us a handle\n\n", b->vmm.ops->name,
           (double)b->granule / MIB);
    if (!print_verbs(b))
        fputs("pleat bench: no memory for the table\n", stderr);
    putchar('\n');
    for (const alias_row *row = b->aliases; row < b->aliases + b->alias_rows; row++)
        printf("%llu aliases of a chunk: %.2f us to map, %.2f us to unmap, each\n",
               (unsigned long long)row->aliases, (double)row->map * 1e-3,
               (double)row->unmap * 1e-3);
    if (b->aliases_refused != 0)
        printf("%llu aliases are refused\n", (unsigned long long)b->aliases_refused);
    printf("\nplan of %.0f GiB, 5 %% folded: mapped in %.3f s, given back in %.3f s (%llu maps)\n",
           (double)b->plan_bytes / GIB, b->folded.map, b->folded.give_back,
           (unsigned long long)b->folded.maps);
    printf("the same bytes in single chunks: %.3f s, %.3f s (%llu maps)\n", b->single.map,
           b->single.give_back, (unsigned long long)b->single.maps);
    if (b->cuda)
        printf("\nkernel launch: %.2f us, p99 %.2f; beside a busy mapper %.2f us, p99 %.2f "
               "(median %+.1f %%; a remap took %.1f us)\n",
               (double)b->launch_alone * 1e-3, (double)b->launch_alone_p99 * 1e-3,
               (double)b->launch_busy * 1e-3, (double)b->launch_busy_p99 * 1e-3,
               100 * b->launch_change, b->remap_us);
    printf("\nreading %.2f GiB: one handle %.1f GB/s, shuffled chunks %.1f GB/s\n",
           (double)b->stream_bytes / GIB, b->whole_rate * 1e-9, b->shuffled_rate * 1e-9);
}

/* ---- the command ---- */

static int parse(bench *b, int argc, char **argv)
{
    const char *backend = "host";
    uint32_t device = 0;
    const cli_option table[] = {
        OPTION_BACKEND(&backend),
        OPTION_COUNT('\0', "device", &device, "N", 0, UINT8_MAX, "which device (0)"),
        OPTION_BYTES('P', "plan", &b->plan_bytes, "SIZE", LEAST_PLAN,
                     "size of the plan (100GiB, or three\nquarters of what is free)"),
        OPTION_BYTES('s', "stream", &b->stream_bytes, "SIZE", READ_STEP,
                     "bytes read in the last part, a multiple of 32 MiB (host\n256MiB, cuda 8GiB)"),
        OPTION_FLAG('c', "check", &b->check,
                    "exit 1 unless plan and launches meet the goals: 0.5 s, 0.5 s, 2 %"),
        OPTION_JSON(&b->json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "bench vmm",
        .synopsis = "[options]",
        .text = "Measures the memory verbs by batch and handle size, aliases, how long a plan of "
                "which\n"
                "5 % is folded takes to map and to give back, kernel launches beside a busy "
                "mapper\n"
                "(cuda), and reading through shuffled chunks.\n",
        .options = table,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    b->cuda = strcmp(backend, "cuda") == 0;
    b->device = (int)device;
    if (b->stream_bytes == 0)
        b->stream_bytes = b->cuda ? 8ull << 30 : 256ull << 20;
    if (b->stream_bytes % READ_STEP != 0)
        return cli_bad_use("bench vmm", "--stream is a multiple of 32 MiB");
    return CLI_GO_ON;
}

static void say(const char *what)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "measuring %s ...\n", what);
}

/* What most GPUs of a training job are planned for, where this one has room for it. */
static uint64_t default_plan(uint64_t free_bytes)
{
    uint64_t most = free_bytes / 4 * 3;
    uint64_t bytes = most < USUAL_PLAN ? most : USUAL_PLAN;
    return bytes > LEAST_PLAN ? bytes : LEAST_PLAN;
}

static pleat_result measure(bench *b)
{
    uint64_t advised, total;
    pleat_result result = VERB(b, granularity, b->device, &b->granule, &advised);
    if (result == PLEAT_OK)
        result = VERB(b, memory_info, b->device, &b->free_bytes, &total);
    if (b->plan_bytes == 0)
        b->plan_bytes = default_plan(b->free_bytes);
    say("verbs");
    if (result == PLEAT_OK)
        result = measure_all_verbs(b);
    say("aliases");
    if (result == PLEAT_OK)
        result = measure_all_aliases(b);
    say("a plan");
    if (result == PLEAT_OK)
        result = measure_plans(b);
    say("launches");
    if (result == PLEAT_OK && b->cuda)
        result = bench_vmm_launches(b);
    say("reads");
    return result == PLEAT_OK ? bench_vmm_streaming(b) : result;
}

int bench_vmm(int argc, char **argv)
{
    bench b = {0};
    int code = parse(&b, argc, argv);
    if (code != CLI_GO_ON)
        return code;
    pleat_result result = pleat__arena_create(&b.arena);
    if (result == PLEAT_OK)
        result = b.cuda ? pleat_vmm_cuda(&b.vmm) : pleat_vmm_host(NULL, &b.vmm);
    if (result == PLEAT_OK)
        result = measure(&b);
    if (result != PLEAT_OK)
        code = cli_failed("bench vmm", result);
    else
        code = b.check && !goals_met(&b) ? CLI_NO : CLI_DONE;
    if (result == PLEAT_OK && b.json)
        print_json(&b);
    else if (result == PLEAT_OK)
        print_text(&b);
    pleat_vmm_destroy(&b.vmm);
    pleat__arena_destroy(b.arena);
    return code;
}
