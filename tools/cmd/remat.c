/*
 * remat.c: `pleat remat`: what a training iteration would cost within a budget, tensors being
 * evicted and computed again by the policies of the papers, at real places.
 */
#include <tools/cli.h>
#include <tools/json.h>
#include <tools/options.h>
#include <tools/remat/ground.h>

#include <internal/error.h>
#include <string.h>

#define POLICIES   "dtr|dte|coop|stitched"
#define MOST_TIMES 10.0 /* a run that takes so many times its log's time is given up */
/* The smallest budget is one that at most doubles the time, as in DTR's and Coop's figures. */
#define SMALLEST_TIMES 2.0
#define COARSE_STEP    0.05
#define FINE_STEP      0.01

/* Where places count the pool is mapped, and a page of each 2 MiB of it written: no device has
 * more. */
#define POOL_MOST (1ull << 40)

static const double ratios[] = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3};

typedef struct options {
    const char *log;
    const char *policy;
    double budget;
    double times;
    uint64_t chunk_bytes;
    bool fungible, smallest, json;
} options;

/* One row of the answer. */
typedef struct row {
    double ratio;
    uint64_t budget_bytes;
    pleat__remat_options run;
    pleat__remat_figures figures;
    uint64_t maps; /* of the host backend */
} row;

typedef struct job {
    const options *o;
    pleat__operator_log log;
    uint64_t peak_bytes;
    json_writer json;
    cli_table table;
} job;

/* A handle has a chunk for each 1,024 that there are, 16 at most, as in the runtime; a power of
 * two.
 */
static uint64_t chunk_for(uint64_t pool_bytes)
{
    uint64_t chunk = 2u << 20;
    while (chunk < 32u << 20 && chunk * 2 <= pool_bytes / 1024)
        chunk *= 2;
    return chunk;
}

static pleat__remat_options run_options(const job *j, pleat__remat_policy policy, double ratio)
{
    uint64_t budget = (uint64_t)((double)j->peak_bytes * ratio);
    uint64_t pool = budget > j->log.constant_bytes ? budget - j->log.constant_bytes : 0;
    uint64_t chunk = j->o->chunk_bytes != 0 ? j->o->chunk_bytes : chunk_for(pool);
    return (pleat__remat_options){
        .policy = policy,
        .budget_bytes = budget,
        .fungible = j->o->fungible,
        .chunk_bytes = chunk,
        .map_ns = remat_map_ns(chunk),
        .overhead_most = j->o->times,
    };
}

/* On real memory; the rehearsal of `stitched` needs none. */
static pleat_result run_at(const job *j, pleat__remat_policy policy, double ratio, row *out)
{
    remat_ground *ground = NULL;
    pleat__remat_options asked = run_options(j, policy, ratio);
    uint64_t constants = j->log.constant_bytes;
    uint64_t pool = asked.budget_bytes > constants ? asked.budget_bytes - constants : 0;
    *out = (row){.ratio = ratio, .budget_bytes = asked.budget_bytes};
    if (!asked.fungible && pool > 0)
        PLEAT_TRY(remat_ground_create(pool, asked.chunk_bytes, j->log.tensors, &ground));
    if (ground != NULL)
        asked.ground = remat_ground_calls(ground);
    pleat_result result = pleat__remat_rehearse(&j->log, &asked, &out->run, &out->figures);
    if (ground != NULL)
        out->maps = remat_ground_maps(ground);
    remat_ground_destroy(ground);
    return result;
}

static pleat_result feasible(const job *j, pleat__remat_policy policy, double ratio, bool *out)
{
    pleat__remat_options asked = run_options(j, policy, ratio), best;
    pleat__remat_figures figures;
    asked.overhead_most = SMALLEST_TIMES;
    PLEAT_TRY(pleat__remat_rehearse(&j->log, &asked, &best, &figures));
    *out = figures.finished;
    return PLEAT_OK;
}

/* Steps down from the whole peak: feasible budgets may have holes, and below the first one nobody
 * relies on. 0: not even the peak is enough. */
static pleat_result find_smallest(const job *j, pleat__remat_policy policy, double *smallest)
{
    const double steps[] = {COARSE_STEP, FINE_STEP};
    double least = 1;
    bool works;
    PLEAT_TRY(feasible(j, policy, 1, &works));
    *smallest = 0;
    if (!works)
        return PLEAT_OK;
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        while (least - steps[s] > FINE_STEP / 2) {
            PLEAT_TRY(feasible(j, policy, least - steps[s], &works));
            if (!works)
                break;
            least -= steps[s];
        }
    }
    *smallest = least;
    return PLEAT_OK;
}

/* ---- the answer ---- */

static const char *outcome(const pleat__remat_figures *f)
{
    return f->finished ? "finished" : f->out_of_memory ? "out of memory" : "gave up";
}

static const char *variant(const pleat__remat_options *o, char *text, size_t size)
{
    static const char *const weighings[] = {"sum", "root", "byte"};
    snprintf(text, size, "by %s%s", weighings[o->weighing], o->chunks ? ", chunks" : "");
    return text;
}

static void print_json(job *j, const row *r)
{
    const pleat__remat_figures *f = &r->figures;
    char text[48];
    json_object(&j->json, NULL);
    json_string(&j->json, "policy", pleat__remat_policy_name(r->run.policy));
    json_double(&j->json, "ratio", r->ratio);
    json_uint(&j->json, "budget_bytes", r->budget_bytes);
    json_string(&j->json, "outcome", outcome(f));
    if (f->finished)
        json_double(&j->json, "overhead", f->overhead);
    if (r->run.policy == PLEAT__REMAT_STITCHED)
        json_string(&j->json, "variant", variant(&r->run, text, sizeof text));
    json_uint(&j->json, "recomputed_ns", f->again_ns);
    json_uint(&j->json, "evictions", f->evictions);
    json_uint(&j->json, "recomputations", f->recomputations);
    json_uint(&j->json, "chunk_bytes", r->run.chunk_bytes);
    json_uint(&j->json, "maps", f->maps);
    json_uint(&j->json, "real_maps", r->maps);
    json_uint(&j->json, "map_ns", f->map_ns);
    json_uint(&j->json, "peak_bytes", f->peak_bytes);
    json_uint(&j->json, "requests", f->requests);
    json_uint(&j->json, "searches", f->searches);
    json_double(&j->json, "search_blocks", f->search_blocks);
    json_uint(&j->json, "search_median_ns", f->search_median_ns);
    json_uint(&j->json, "search_most_ns", f->search_most_ns);
    json_uint(&j->json, "upkeep_ns", f->upkeep_ns);
    json_double(&j->json, "fragmentation", f->fragmentation);
    json_double(&j->json, "free_before", f->free_before);
    json_end_object(&j->json);
}

static bool print_row(job *j, const row *r)
{
    const pleat__remat_figures *f = &r->figures;
    char text[48];
    cli_table *t = &j->table;
    if (!cli_table_row(t))
        return false;
    cli_table_cell(t, 0, "%s", pleat__remat_policy_name(r->run.policy));
    cli_table_cell(t, 1, "%.2f", r->ratio);
    if (f->finished)
        cli_table_cell(t, 2, "%.3f", f->overhead);
    else
        cli_table_cell(t, 2, "%s", outcome(f));
    cli_table_cell(t, 3, "%llu", (unsigned long long)f->evictions);
    cli_table_cell(t, 4, "%llu", (unsigned long long)f->recomputations);
    cli_table_cell(t, 5, "%llu", (unsigned long long)f->maps);
    cli_table_cell(t, 6, "%.2f us", (double)f->search_median_ns / 1e3);
    cli_table_cell(t, 7, "%.0f", f->search_blocks);
    cli_table_cell(t, 8, "%.1f %%", 100 * f->fragmentation);
    if (r->run.policy == PLEAT__REMAT_STITCHED)
        cli_table_cell(t, 9, "%s", variant(&r->run, text, sizeof text));
    return true;
}

static pleat_result answer(job *j, const row *r)
{
    if (j->o->json)
        print_json(j, r);
    else if (!print_row(j, r))
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table");
    return PLEAT_OK;
}

static bool wanted(const options *o, pleat__remat_policy policy)
{
    if (o->fungible)
        return policy == PLEAT__REMAT_DTR;
    return o->policy == NULL || strcmp(o->policy, pleat__remat_policy_name(policy)) == 0;
}

static pleat_result run_policy(job *j, pleat__remat_policy policy)
{
    size_t count = j->o->budget > 0 ? 1 : sizeof ratios / sizeof *ratios;
    row r;
    for (size_t i = 0; i < count; i++) {
        PLEAT_TRY(run_at(j, policy, j->o->budget > 0 ? j->o->budget : ratios[i], &r));
        PLEAT_TRY(answer(j, &r));
    }
    return PLEAT_OK;
}

static pleat_result print_smallest(job *j, pleat__remat_policy policy)
{
    const char *name = pleat__remat_policy_name(policy);
    double ratio;
    char size[48];
    PLEAT_TRY(find_smallest(j, policy, &ratio));
    if (j->o->json)
        json_double(&j->json, name, ratio);
    else if (ratio > 0)
        printf("%-9s works down to %.2f of the peak, %s, at no more than %g times the time\n", name,
               ratio, cli_format_size((uint64_t)((double)j->peak_bytes * ratio), size, sizeof size),
               SMALLEST_TIMES);
    else
        printf("%-9s does not work within the peak\n", name);
    return PLEAT_OK;
}

static pleat_result run_all(job *j)
{
    for (int p = 0; p < PLEAT__REMAT_POLICIES; p++) {
        if (wanted(j->o, (pleat__remat_policy)p))
            PLEAT_TRY(run_policy(j, (pleat__remat_policy)p));
    }
    return PLEAT_OK;
}

static pleat_result smallest_all(job *j)
{
    for (int p = 0; p < PLEAT__REMAT_POLICIES && j->o->smallest; p++) {
        if (wanted(j->o, (pleat__remat_policy)p))
            PLEAT_TRY(print_smallest(j, (pleat__remat_policy)p));
    }
    return PLEAT_OK;
}

static pleat_result run_json(job *j)
{
    json_begin(&j->json, stdout);
    json_object(&j->json, NULL);
    json_uint(&j->json, "peak_bytes", j->peak_bytes);
    json_uint(&j->json, "constant_bytes", j->log.constant_bytes);
    json_uint(&j->json, "model_ns", j->log.model_ns);
    json_uint(&j->json, "operators", j->log.operators);
    json_array(&j->json, "runs");
    PLEAT_TRY(run_all(j));
    json_end_array(&j->json);
    if (j->o->smallest) {
        json_object(&j->json, "smallest_ratio");
        PLEAT_TRY(smallest_all(j));
        json_end_object(&j->json);
    }
    json_end_object(&j->json);
    json_finish(&j->json);
    return PLEAT_OK;
}

static pleat_result run_table(job *j)
{
    static const char *const headings[] = {"policy", "budget", "overhead", "evicted", "recomputed",
                                           "maps",   "search", "blocks",   "free",    "variant"};
    char size[48];
    printf("%u operators, %.1f ms, %s at the peak without a budget\n\n", j->log.operators,
           (double)j->log.model_ns / 1e6, cli_format_size(j->peak_bytes, size, sizeof size));
    if (!cli_table_begin(&j->table, sizeof headings / sizeof *headings, headings))
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table");
    pleat_result result = run_all(j);
    if (result != PLEAT_OK) {
        cli_table_drop(&j->table);
        return result;
    }
    cli_table_end(&j->table, stdout);
    if (j->o->smallest)
        printf("\n");
    return smallest_all(j);
}

static pleat_result check_pool(const job *j)
{
    char size[48];
    uint64_t most = j->peak_bytes - j->log.constant_bytes;
    if (j->o->fungible || most <= POOL_MOST)
        return PLEAT_OK;
    return pleat__fail(
        PLEAT_E_INPUT,
        "'%s': %s beside the constants are in use at once, more than any device has; "
        "with --fungible the log runs without places",
        j->o->log, cli_format_size(most, size, sizeof size));
}

static int remat(const options *o)
{
    pleat__arena *arena;
    job j = {.o = o};
    pleat_result result = pleat__arena_create(&arena);
    if (result != PLEAT_OK)
        return cli_failed("remat", result);
    result = pleat__operator_log_read(o->log, arena, &j.log);
    if (result == PLEAT_OK)
        result = pleat__remat_peak(&j.log, &j.peak_bytes);
    if (result == PLEAT_OK)
        result = check_pool(&j);
    if (result == PLEAT_OK)
        result = o->json ? run_json(&j) : run_table(&j);
    pleat__arena_destroy(arena);
    return result == PLEAT_OK ? CLI_DONE : cli_failed("remat", result);
}

static int check(const options *o)
{
    bool power = (o->chunk_bytes & (o->chunk_bytes - 1)) == 0;
    if (!power)
        return cli_bad_use("remat", "--chunk: a power of two is wanted: 2MiB, 4MiB, ...");
    if (o->fungible && o->policy != NULL && strcmp(o->policy, "dtr") != 0)
        return cli_bad_use("remat", "--fungible has no addresses, which '%s' looks at", o->policy);
    if (o->chunk_bytes != 0 && o->policy != NULL && strcmp(o->policy, "stitched") != 0)
        return cli_bad_use("remat", "--chunk is what stitched maps, '%s' maps nothing", o->policy);
    return CLI_GO_ON;
}

int cli_remat(int argc, char **argv)
{
    options o = {.times = MOST_TIMES};
    const cli_option table[] = {
        OPTION_NUMBER('B', "budget", &o.budget, "RATIO", 0.01, 1,
                      "a share of the peak (0.9, 0.8, ... 0.3)"),
        OPTION_CHOICE('p', "policy", &o.policy, "NAME", POLICIES, POLICIES " (all)"),
        OPTION_FLAG('s', "smallest", &o.smallest,
                    "find the smallest budget that at most doubles the time, too"),
        OPTION_FLAG('\0', "fungible", &o.fungible,
                    "dtr without addresses: any free bytes will do, as in its own simulator"),
        OPTION_BYTES('\0', "chunk", &o.chunk_bytes, "SIZE", CLI_LEAST_MEMORY,
                     "what stitched maps at once (1/1024 of the budget, 2MiB to 32MiB)"),
        OPTION_NUMBER('\0', "times", &o.times, "N", 1, 1000,
                      "give up a run that takes so many times its log's time (10)"),
        OPTION_JSON(&o.json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "remat",
        .synopsis = "LOG [options]",
        .text =
            "Runs an operator log within a memory budget: tensors are evicted when memory is\n"
            "short, and computed again when they are used. Each lies at a place on real memory.\n"
            "The log is one that DTR's patch of PyTorch records, gzipped or not.\n"
            "\n"
            "overhead: the time with what was computed again, and mapped, over the log's; free: "
            "the\n"
            "share of memory that was free, in pieces too small, when a request that had evicted "
            "was\n"
            "served; search: the median time of such a request's searches, over so many blocks.\n"
            "stitched runs the log under each of its variants, of which one is coop, and takes "
            "the\n"
            "best: an iteration that was recorded comes again.\n",
        .tail = "Exit status: 0; 2 bad use; 3 the file is bad.\n",
        .options = table,
        .operand = "one operator log",
        .value = &o.log,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code == CLI_GO_ON)
        code = check(&o);
    return code != CLI_GO_ON ? code : remat(&o);
}
