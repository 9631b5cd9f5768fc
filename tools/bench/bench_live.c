/*
 * bench_live.c: see bench_live.h.
 *
 * So many tensors are allocated; then, again and again, one of them drawn at random is freed and
 * another one allocated, so that what is free falls apart into holes of all sizes. The sizes are a
 * training job's: one in 64 has 1 to 32 MiB, the others 512 bytes to 1 MiB, each as likely as one
 * twice as large. No program marks iterations, and nothing repeats: the heap serves it all. What
 * walks a list of tensors, free runs, chunks or views shows as time that grows with the list; a
 * search in a tree grows with its logarithm, and with what is in no cache any more.
 *
 * The host backend stands for a device of any size: nothing is written, so that 300 GB of tensors
 * take no memory. The backend's own time is taken off (call_times.h).
 */
#include <tools/bench/bench_live.h>

#include <tools/cli.h>
#include <tools/clock.h>
#include <tools/json.h>
#include <tools/replay/call_times.h>

#include <internal/error.h>
#include <pleat/runtime.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_BYTES  (1ull << 40)
#define ONE_IN        64u /* is large */
#define LARGE_BYTES   (1ull << 20)
#define SMALL_OCTAVES 11u /* 512 bytes to 1 MiB */
#define LARGE_OCTAVES 5u  /* 1 to 32 MiB */

typedef struct live_row {
    const char *policy;
    uint32_t live;
    call_figures allocs, frees;
    uint64_t alloc_longest_ns, free_longest_ns;
    uint64_t fill_longest_ns; /* of the first allocations: tables grow then */
    pleat_stats stats;
} live_row;

typedef struct churn {
    pleat_vmm backend, vmm;
    timed_vmm timed;
    pleat__arena *arena;
    pleat_runtime *runtime;
    uint64_t random;
    uint32_t live, timed_count;
    pleat_va *tensors;
    uint64_t *fill_ns, *alloc_ns, *free_ns;
    call_times fills, allocs, frees;
} churn;

/* ---- the job ---- */

static uint64_t draw(churn *job)
{
    job->random = job->random * 6364136223846793005u + 1442695040888963407u;
    return job->random >> 33;
}

/* 2^octave times `least` and up to as much again. */
static uint64_t draw_bytes(churn *job)
{
    bool large = draw(job) % ONE_IN == 0;
    uint64_t least = large ? LARGE_BYTES : LARGE_BYTES >> SMALL_OCTAVES;
    least <<= draw(job) % (large ? LARGE_OCTAVES : SMALL_OCTAVES);
    return least + draw(job) % least;
}

static pleat_result take(churn *job, call_times *times, pleat_va *tensor)
{
    uint64_t bytes = draw_bytes(job);
    call_moment begun = call_times_start(times);
    pleat_result result = pleat_alloc(job->runtime, bytes, 0, tensor);
    call_times_stop(times, begun);
    return result;
}

static pleat_result give(churn *job, call_times *times, pleat_va *tensor)
{
    call_moment begun = call_times_start(times);
    pleat_result result = pleat_free(job->runtime, *tensor);
    call_times_stop(times, begun);
    *tensor = 0;
    return result;
}

static pleat_result fill(churn *job)
{
    call_times_begin(&job->fills, &job->timed, job->fill_ns);
    for (uint32_t i = 0; i < job->live; i++)
        PLEAT_TRY(take(job, &job->fills, &job->tensors[i]));
    return PLEAT_OK;
}

static pleat_result replace(churn *job, uint32_t times)
{
    call_times_begin(&job->allocs, &job->timed, job->alloc_ns);
    call_times_begin(&job->frees, &job->timed, job->free_ns);
    for (uint32_t i = 0; i < times; i++) {
        pleat_va *tensor = &job->tensors[draw(job) % job->live];
        PLEAT_TRY(give(job, &job->frees, tensor));
        PLEAT_TRY(take(job, &job->allocs, tensor));
    }
    return PLEAT_OK;
}

/* ---- the measurement ---- */

static pleat_result begin(churn *job, const char *policy)
{
    const pleat_host_options host = {.size = sizeof host, .device_bytes = DEVICE_BYTES};
    const pleat_runtime_options options = {.size = sizeof options, .policy = policy};
    PLEAT_TRY(pleat__arena_create(&job->arena));
    job->tensors = pleat__arena_calloc(job->arena, job->live, sizeof *job->tensors);
    uint32_t most = job->live > job->timed_count ? job->live : job->timed_count;
    job->fill_ns = pleat__arena_calloc(job->arena, job->live, sizeof *job->fill_ns);
    job->alloc_ns = pleat__arena_calloc(job->arena, most, sizeof *job->alloc_ns);
    job->free_ns = pleat__arena_calloc(job->arena, most, sizeof *job->free_ns);
    if (job->tensors == NULL || job->fill_ns == NULL || job->alloc_ns == NULL ||
        job->free_ns == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u tensors", job->live);
    PLEAT_TRY(pleat_vmm_host(&host, &job->backend));
    PLEAT_TRY(timed_vmm_begin(job->backend, job->arena, &job->timed, &job->vmm));
    return pleat_runtime_create(job->vmm, &options, &job->runtime);
}

static void end(churn *job)
{
    pleat_runtime_destroy(job->runtime);
    pleat_vmm_destroy(&job->backend);
    pleat__arena_destroy(job->arena);
}

/* As many are replaced first as there are: what was laid side by side while there was nothing else
 * is not what a job has. */
static pleat_result churn_tensors(churn *job, const char *policy)
{
    PLEAT_TRY(begin(job, policy));
    PLEAT_TRY(fill(job));
    PLEAT_TRY(replace(job, job->live));
    return replace(job, job->timed_count);
}

static uint64_t longest(const call_times *times)
{
    return clock_quantile(times->ns, times->count, 1);
}

static void read_figures(churn *job, live_row *row)
{
    call_figures steady;
    call_times_figures(&job->allocs, &row->allocs, &steady);
    call_times_figures(&job->frees, &row->frees, &steady);
    row->fill_longest_ns = longest(&job->fills);
    row->alloc_longest_ns = longest(&job->allocs);
    row->free_longest_ns = longest(&job->frees);
    row->stats = pleat_stats_of(job->runtime);
}

static pleat_result measure(const char *policy, uint32_t live, uint32_t timed, live_row *row)
{
    churn job = {.live = live, .timed_count = timed, .random = 1};
    *row = (live_row){.policy = policy, .live = live};
    pleat_result result = churn_tensors(&job, policy);
    if (result == PLEAT_OK)
        read_figures(&job, row);
    end(&job);
    return result;
}

/* ---- what is printed ---- */

static void print_json(const live_row *rows, uint32_t count)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_array(&json, "rows");
    for (const live_row *row = rows; row < rows + count; row++) {
        json_object(&json, NULL);
        json_string(&json, "policy", row->policy);
        json_uint(&json, "live", row->live);
        json_uint(&json, "calls", row->allocs.calls);
        json_double(&json, "alloc_ns", row->allocs.median_ns);
        json_double(&json, "alloc_p999_ns", row->allocs.p999_ns);
        json_uint(&json, "alloc_longest_ns", row->alloc_longest_ns);
        json_double(&json, "free_ns", row->frees.median_ns);
        json_double(&json, "free_p999_ns", row->frees.p999_ns);
        json_uint(&json, "free_longest_ns", row->free_longest_ns);
        json_uint(&json, "fill_longest_ns", row->fill_longest_ns);
        json_uint(&json, "live_bytes", row->stats.live_bytes);
        json_uint(&json, "physical_bytes", row->stats.physical_bytes);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_end_object(&json);
    json_finish(&json);
}

static void print_table(const live_row *rows, uint32_t count)
{
    static const char *const headings[] = {"policy",  "live",    "alloc ns", "p99.9 ns",
                                           "most us", "free ns", "p99.9 ns", "most us",
                                           "fill us", "tensors"};
    cli_table table;
    char size[48];
    if (!cli_table_begin(&table, 10, headings))
        return;
    for (const live_row *row = rows; row < rows + count && cli_table_row(&table); row++) {
        cli_table_cell(&table, 0, "%s", row->policy);
        cli_table_cell(&table, 1, "%u", row->live);
        cli_table_cell(&table, 2, "%.0f", row->allocs.median_ns);
        cli_table_cell(&table, 3, "%.0f", row->allocs.p999_ns);
        cli_table_cell(&table, 4, "%.0f", (double)row->alloc_longest_ns * 1e-3);
        cli_table_cell(&table, 5, "%.0f", row->frees.median_ns);
        cli_table_cell(&table, 6, "%.0f", row->frees.p999_ns);
        cli_table_cell(&table, 7, "%.0f", (double)row->free_longest_ns * 1e-3);
        cli_table_cell(&table, 8, "%.0f", (double)row->fill_longest_ns * 1e-3);
        cli_table_cell(&table, 9, "%s", cli_format_size(row->stats.live_bytes, size, sizeof size));
    }
    cli_table_end(&table, stdout);
}

/* ---- the command ---- */

int bench_live(const char *const *policies, uint32_t policy_count, const uint64_t *counts,
               uint32_t count, uint32_t timed, bool json)
{
    uint32_t made = 0;
    live_row *rows = calloc((size_t)policy_count * count, sizeof *rows);
    pleat_result result =
        rows != NULL ? PLEAT_OK : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the figures");
    for (uint32_t p = 0; p < policy_count; p++)
        for (uint32_t i = 0; i < count && result == PLEAT_OK; i++)
            result = measure(policies[p], (uint32_t)counts[i], timed, &rows[made++]);
    if (result == PLEAT_OK && json)
        print_json(rows, made);
    else if (result == PLEAT_OK)
        print_table(rows, made);
    free(rows);
    return result == PLEAT_OK ? CLI_DONE : cli_failed("bench alloc", result);
}
