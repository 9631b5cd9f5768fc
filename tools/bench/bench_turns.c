/*
 * bench_turns.c: `pleat bench turns`: what it costs a trainer to give its memory back in turns:
 * the verbs of each trim, pause and resume, and of the iteration after it, and what it holds while
 * it rests.
 *
 * The trainer is a chain of square layers of fp32 under Adam, request by request as PyTorch makes
 * them on a GPU: gradients are added in place, each of the two threads that multiply has a
 * workspace of cuBLAS's, and the optimizer's step ends an iteration while the gradients live. No
 * kernel runs and no byte is written, so on the host backend 80 GiB take no memory. It is the one
 * of tests/pytorch/tenants.py.
 *
 * With --evaluate it has evaluated more rows before, as a job does between two epochs, and goes on
 * training while another tenant of the device asks for all that it can get: what it gets is what
 * the trainer's schedule has no use for.
 */
#include <tools/bench/bench.h>
#include <tools/json.h>
#include <tools/options.h>
#include <tools/replay/timed_vmm.h>

#include <tools/clock.h>

#include <internal/arena.h>
#include <internal/error.h>
#include <pleat/runtime.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_LAYERS  1024u
#define WARM_UP      8
#define WIDTH        4096u          /* of a layer */
#define DEVICE_BYTES (80ull << 30)  /* of the host backend */
#define PIECE_BYTES  (256ull << 20) /* of what the borrower asks for at once */
#define WORKSPACE    (32ull << 20)  /* cuBLAS's on an H100, for a thread */
#define CONF         "tenants:user,guarantee:%llu,tenant:trainer"

typedef struct layer {
    pleat_va weight, step, first_moment, second_moment, gradient, input, hidden;
} layer;

/* What one step of a turn took. */
typedef struct step_figures {
    uint64_t ns;
    timed_verb verbs[TIMED_VERBS];
} step_figures;

/* What is measured of each turn. */
typedef enum turn_step {
    TRIM,
    AFTER_TRIM,
    DISCARD,
    RESUME,
    AFTER_RESUME,
    STEPS,
} turn_step;

static const char *const step_names[] = {"trim", "iteration after it", "pause by discarding",
                                         "resume", "iteration after that"};

/* Who asks for all that there is while the trainer works. It has a backend of its own, as another
 * process would: to the ledger they share one device. */
typedef struct borrower {
    pleat_vmm backend;
    pleat_runtime *runtime;
    uint64_t bytes, ns; /* that it got, and how long that took */
    atomic_bool done;
} borrower;

typedef struct turns_bench {
    bool cuda, json, varies;
    uint32_t device, layer_count, rows, turns, seed, evaluated, every, iterations;
    uint64_t budget_bytes;
    pleat_vmm backend, vmm;
    timed_vmm timed;
    pleat__arena *arena;
    pleat_runtime *runtime;
    bool has_states;
    layer layers[MOST_LAYERS];
    pleat_va output, loss, workspaces[2]; /* of forward and of backward */
    uint64_t random;
    step_figures steps[STEPS];   /* sums over the turns */
    double over_mean, over_most; /* what is held at rest beyond what lives, a share of it */
    double over_then;            /* the same, after pauses */
    uint64_t live, peak_live, peak;
    borrower borrower;
    uint64_t had, kept;     /* of the trainer's, before the borrower asked and then */
    step_figures iteration; /* of the trainer's, after that */
} turns_bench;

/* ---- backends ---- */

static pleat_result open_backend(const turns_bench *b, pleat_vmm *backend)
{
    const pleat_host_options options = {
        .size = sizeof options, .devices = (int)b->device + 1, .device_bytes = DEVICE_BYTES};
    return b->cuda ? pleat_vmm_cuda(backend) : pleat_vmm_host(&options, backend);
}

/* ---- the trainer ---- */

static pleat_result take(turns_bench *b, uint64_t bytes, pleat_va *address)
{
    return pleat_alloc(b->runtime, bytes, 0, address);
}

static pleat_result give(turns_bench *b, pleat_va address)
{
    return pleat_free(b->runtime, address);
}

static uint64_t weight_bytes(void)
{
    return (uint64_t)WIDTH * WIDTH * sizeof(float);
}

/* An activation: of all rows or, in an iteration in which they vary, of a quarter and more. */
static uint64_t draw_bytes(turns_bench *b)
{
    uint64_t rows = b->rows;
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    if (b->varies && ++b->iterations % b->every == 0)
        rows = rows / 4 + (b->random >> 33) % (rows - rows / 4 + 1);
    return (rows > 0 ? rows : 1) * WIDTH * sizeof(float);
}

/* What multiplies first takes it, and keeps it. */
static pleat_result take_workspace(turns_bench *b, pleat_va *workspace)
{
    return *workspace != 0 ? PLEAT_OK : take(b, WORKSPACE, workspace);
}

static pleat_result go_forward(turns_bench *b, uint64_t bytes)
{
    pleat_va passing;
    PLEAT_TRY(take(b, bytes, &b->layers[0].input));
    for (uint32_t l = 0; l < b->layer_count; l++) {
        bool last = l + 1 == b->layer_count;
        PLEAT_TRY(take(b, bytes, &b->layers[l].hidden));
        PLEAT_TRY(take_workspace(b, &b->workspaces[0]));
        PLEAT_TRY(take(b, bytes, &passing));
        PLEAT_TRY(take(b, bytes, last ? &b->output : &b->layers[l + 1].input));
        PLEAT_TRY(give(b, passing));
    }
    return PLEAT_OK;
}

/* A layer's gradients. That of its input is added to that of its output; the first layer's input
 * has none. */
static pleat_result go_back(turns_bench *b, uint32_t l, uint64_t bytes)
{
    pleat_va hidden, input = 0;
    PLEAT_TRY(take(b, bytes, &hidden));
    PLEAT_TRY(give(b, b->layers[l].hidden));
    PLEAT_TRY(take_workspace(b, &b->workspaces[1]));
    PLEAT_TRY(take(b, weight_bytes(), &b->layers[l].gradient));
    if (l > 0)
        PLEAT_TRY(take(b, bytes, &input));
    PLEAT_TRY(give(b, hidden));
    PLEAT_TRY(give(b, b->layers[l].input));
    return l > 0 ? give(b, input) : PLEAT_OK;
}

/* The mean of the output's squares. */
static pleat_result lose(turns_bench *b, uint64_t bytes)
{
    pleat_va square;
    PLEAT_TRY(take(b, bytes, &square));
    PLEAT_TRY(take(b, sizeof(float), &b->loss));
    return give(b, square);
}

/* The loss's gradient is spread over the squares, each of which is twice its root. */
static pleat_result begin_backward(turns_bench *b, uint64_t bytes, pleat_va *gradient)
{
    pleat_va one, spread, root, twice;
    PLEAT_TRY(take(b, sizeof(float), &one));
    PLEAT_TRY(take(b, bytes, &spread));
    PLEAT_TRY(take(b, bytes, &root));
    PLEAT_TRY(take(b, bytes, &twice));
    PLEAT_TRY(take(b, bytes, gradient));
    PLEAT_TRY(give(b, root));
    PLEAT_TRY(give(b, twice));
    PLEAT_TRY(give(b, spread));
    return give(b, one);
}

static pleat_result go_backward(turns_bench *b, uint64_t bytes)
{
    pleat_va gradient;
    PLEAT_TRY(begin_backward(b, bytes, &gradient));
    for (uint32_t l = b->layer_count; l > 0; l--)
        PLEAT_TRY(go_back(b, l - 1, bytes));
    PLEAT_TRY(give(b, gradient));
    return give(b, b->output);
}

/* Adam's states come with the first one. */
static pleat_result update(turns_bench *b)
{
    for (uint32_t l = 0; l < b->layer_count && !b->has_states; l++) {
        PLEAT_TRY(take(b, sizeof(float), &b->layers[l].step));
        PLEAT_TRY(take(b, weight_bytes(), &b->layers[l].first_moment));
        PLEAT_TRY(take(b, weight_bytes(), &b->layers[l].second_moment));
    }
    b->has_states = true;
    return pleat_mark(b->runtime);
}

static pleat_result iterate(turns_bench *b)
{
    uint64_t bytes = draw_bytes(b);
    PLEAT_TRY(go_forward(b, bytes));
    PLEAT_TRY(lose(b, bytes));
    PLEAT_TRY(go_backward(b, bytes));
    PLEAT_TRY(update(b));
    for (uint32_t l = 0; l < b->layer_count; l++)
        PLEAT_TRY(give(b, b->layers[l].gradient));
    return give(b, b->loss);
}

static pleat_result evaluate(turns_bench *b)
{
    PLEAT_TRY(go_forward(b, (uint64_t)b->evaluated * WIDTH * sizeof(float)));
    for (uint32_t l = 0; l < b->layer_count; l++) {
        PLEAT_TRY(give(b, b->layers[l].input));
        PLEAT_TRY(give(b, b->layers[l].hidden));
    }
    return give(b, b->output);
}

static pleat_result begin_trainer(turns_bench *b)
{
    char conf[96];
    snprintf(conf, sizeof conf, CONF, (unsigned long long)DEVICE_BYTES);
    const pleat_runtime_options options = {.size = sizeof options,
                                           .conf = b->evaluated != 0 ? conf : NULL,
                                           .device = (int)b->device,
                                           .budget_bytes = b->budget_bytes,
                                           .waits = 1};
    PLEAT_TRY(timed_vmm_begin(b->backend, b->arena, &b->timed, &b->vmm));
    PLEAT_TRY(pleat_runtime_create(b->vmm, &options, &b->runtime));
    for (uint32_t l = 0; l < b->layer_count; l++)
        PLEAT_TRY(take(b, weight_bytes(), &b->layers[l].weight));
    for (int i = 0; i < WARM_UP; i++)
        PLEAT_TRY(iterate(b));
    return PLEAT_OK;
}

/* ---- the turns ---- */

static pleat_result do_step(turns_bench *b, turn_step step)
{
    const pleat_pause_options discard = {.size = sizeof discard, .offload = PLEAT_OFFLOAD_DISCARD};
    switch (step) {
    case TRIM:
        return pleat_trim(b->runtime, 0, NULL);
    case DISCARD:
        return pleat_pause(b->runtime, &discard);
    case RESUME:
        return pleat_resume(b->runtime, NULL);
    default:
        return iterate(b);
    }
}

static pleat_result measure_verbs(turns_bench *b, turn_step step, step_figures *sum)
{
    memset(b->timed.by_verb, 0, sizeof b->timed.by_verb);
    uint64_t begun = clock_now();
    PLEAT_TRY(do_step(b, step));
    sum->ns += clock_now() - begun;
    for (int v = 0; v < TIMED_VERBS; v++) {
        sum->verbs[v].calls += b->timed.by_verb[v].calls;
        sum->verbs[v].ns += b->timed.by_verb[v].ns;
    }
    return PLEAT_OK;
}

static pleat_result measure_step(turns_bench *b, turn_step step)
{
    return measure_verbs(b, step, &b->steps[step]);
}

/* What is held beyond what lives. */
static double over_live(const turns_bench *b)
{
    pleat_stats now = pleat_stats_of(b->runtime);
    return (double)now.physical_bytes / (double)now.live_bytes - 1;
}

static void note_rest(turns_bench *b)
{
    double over = over_live(b);
    b->over_mean += over / b->turns;
    b->over_most = over > b->over_most ? over : b->over_most;
}

/* ---- lending ---- */

static void *borrow(void *context)
{
    borrower *all = context;
    pleat_va address;
    uint64_t begun = clock_now();
    while (pleat_alloc(all->runtime, PIECE_BYTES, 0, &address) == PLEAT_OK) {
        all->bytes += PIECE_BYTES;
        all->ns = clock_now() - begun;
    }
    atomic_store(&all->done, true);
    return NULL;
}

/* Iterations, until it has what it gets. */
static pleat_result train_meanwhile(turns_bench *b)
{
    pthread_t thread;
    pleat_result result = PLEAT_OK;
    if (pthread_create(&thread, NULL, borrow, &b->borrower) != 0)
        return pleat__fail(PLEAT_E_LIMIT, "no thread to borrow with");
    while (!atomic_load(&b->borrower.done) && result == PLEAT_OK)
        result = iterate(b);
    pthread_join(thread, NULL);
    return result;
}

static pleat_result measure_lending(turns_bench *b)
{
    const pleat_runtime_options options = {
        .size = sizeof options, .device = (int)b->device, .conf = "tenants:user,tenant:borrower"};
    PLEAT_TRY(evaluate(b));
    for (int i = 0; i < WARM_UP; i++)
        PLEAT_TRY(iterate(b));
    b->had = pleat_stats_of(b->runtime).physical_bytes;
    PLEAT_TRY(open_backend(b, &b->borrower.backend));
    PLEAT_TRY(pleat_runtime_create(b->borrower.backend, &options, &b->borrower.runtime));
    PLEAT_TRY(train_meanwhile(b));
    b->kept = pleat_stats_of(b->runtime).physical_bytes;
    return measure_verbs(b, AFTER_TRIM, &b->iteration);
}

static pleat_result measure(turns_bench *b)
{
    PLEAT_TRY(begin_trainer(b));
    if (b->evaluated != 0)
        return measure_lending(b);
    /* The first turn joins handles; it does not count. */
    PLEAT_TRY(do_step(b, TRIM));
    PLEAT_TRY(do_step(b, AFTER_TRIM));
    for (uint32_t turn = 0; turn < b->turns; turn++) {
        PLEAT_TRY(measure_step(b, TRIM));
        note_rest(b);
        PLEAT_TRY(measure_step(b, AFTER_TRIM));
    }
    PLEAT_TRY(do_step(b, DISCARD));
    PLEAT_TRY(do_step(b, RESUME));
    PLEAT_TRY(do_step(b, AFTER_RESUME));
    for (uint32_t turn = 0; turn < b->turns; turn++)
        for (turn_step step = DISCARD; step < STEPS; step++)
            PLEAT_TRY(measure_step(b, step));
    PLEAT_TRY(do_step(b, TRIM));
    b->over_then = over_live(b);
    pleat_stats end = pleat_stats_of(b->runtime);
    b->live = end.live_bytes;
    b->peak_live = end.peak_live_bytes;
    b->peak = end.peak_physical_bytes;
    return PLEAT_OK;
}

/* ---- what is printed ---- */

static void print_lending(const turns_bench *b)
{
    uint64_t calls = 0;
    for (int v = 0; v < TIMED_VERBS; v++)
        calls += b->iteration.verbs[v].calls;
    if (b->json) {
        json_writer json;
        json_begin(&json, stdout);
        json_object(&json, NULL);
        json_uint(&json, "had_bytes", b->had);
        json_uint(&json, "kept_bytes", b->kept);
        json_uint(&json, "borrowed_bytes", b->borrower.bytes);
        json_uint(&json, "borrowed_ns", b->borrower.ns);
        json_uint(&json, "iteration_calls", calls);
        json_end_object(&json);
        json_finish(&json);
        return;
    }
    char had[32], kept[32], got[32], free_bytes[32];
    printf("the trainer had %s and keeps %s; %s were free\n",
           cli_format_size(b->had, had, sizeof had), cli_format_size(b->kept, kept, sizeof kept),
           cli_format_size(DEVICE_BYTES - b->had, free_bytes, sizeof free_bytes));
    printf("the borrower got %s, the last of them after %.1f ms\n",
           cli_format_size(b->borrower.bytes, got, sizeof got), (double)b->borrower.ns * 1e-6);
    printf("memory verbs of the trainer's next iteration: %llu\n", (unsigned long long)calls);
}

/* The verbs that handles cost. */
static const int shown[] = {TIMED_create, TIMED_map, TIMED_set_access, TIMED_unmap, TIMED_release};
static const char *const shown_names[] = {"create", "map", "set_access", "unmap", "release"};
#define SHOWN (sizeof shown / sizeof *shown)

static void print_text(const turns_bench *b)
{
    char live[32], peak_live[32], peak[32];
    printf("live at rest %s; at the peak %s live in %s\n",
           cli_format_size(b->live, live, sizeof live),
           cli_format_size(b->peak_live, peak_live, sizeof peak_live),
           cli_format_size(b->peak, peak, sizeof peak));
    printf("held at rest beyond what lives: %.2f %% on average, %.2f %% at most\n",
           100 * b->over_mean, 100 * b->over_most);
    printf("the same after pauses: %.2f %%\n", 100 * b->over_then);
    for (int s = 0; s < STEPS; s++) {
        printf("%s: %.2f ms\n", step_names[s], (double)b->steps[s].ns * 1e-6 / b->turns);
        for (size_t v = 0; v < SHOWN; v++) {
            const timed_verb *of = &b->steps[s].verbs[shown[v]];
            if (of->calls > 0)
                printf("    %-12s %6llu calls %9.2f ms\n", shown_names[v],
                       (unsigned long long)(of->calls / b->turns),
                       (double)of->ns * 1e-6 / b->turns);
        }
    }
}

static void print_json(const turns_bench *b)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "backend", b->backend.ops->name);
    json_uint(&json, "live_bytes", b->live);
    json_uint(&json, "peak_live_bytes", b->peak_live);
    json_uint(&json, "peak_bytes", b->peak);
    json_double(&json, "over_mean", b->over_mean);
    json_double(&json, "over_most", b->over_most);
    json_double(&json, "over_after_pauses", b->over_then);
    json_array(&json, "steps");
    for (int s = 0; s < STEPS; s++) {
        json_object(&json, NULL);
        json_string(&json, "step", step_names[s]);
        json_uint(&json, "ns", b->steps[s].ns / b->turns);
        for (size_t v = 0; v < SHOWN; v++) {
            json_object(&json, shown_names[v]);
            json_uint(&json, "calls", b->steps[s].verbs[shown[v]].calls / b->turns);
            json_uint(&json, "ns", b->steps[s].verbs[shown[v]].ns / b->turns);
            json_end_object(&json);
        }
        json_end_object(&json);
    }
    json_end_array(&json);
    json_end_object(&json);
    json_finish(&json);
}

/* ---- the command ---- */

static int parse(turns_bench *b, int argc, char **argv)
{
    const char *backend = "host";
    const cli_option table[] = {
        OPTION_BACKEND(&backend),
        OPTION_COUNT('\0', "device", &b->device, "N", 0, UINT8_MAX, "which device (0)"),
        OPTION_COUNT('l', "layers", &b->layer_count, "N", 1, MOST_LAYERS, "layers (64)"),
        OPTION_COUNT('r', "rows", &b->rows, "N", 1, 1048576, "rows of an iteration (8192)"),
        OPTION_COUNT('e', "evaluate", &b->evaluated, "N", 1, 1048576,
                     "rows that were evaluated before: what another tenant gets then"),
        OPTION_FLAG('v', "vary", &b->varies, "rows are drawn anew each time, a quarter and more"),
        OPTION_COUNT('\0', "every", &b->every, "N", 1, 1000000,
                     "of so many iterations one has rows that vary (1)"),
        OPTION_COUNT('s', "seed", &b->seed, "N", 0, UINT32_MAX, "of what is drawn (1)"),
        OPTION_COUNT('n', "turns", &b->turns, "N", 1, 10000, "turns of each kind (5)"),
        OPTION_BUDGET(&b->budget_bytes),
        OPTION_JSON(&b->json),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "bench turns",
        .synopsis = "[options]",
        .text =
            "Measures what giving its memory back in turns costs a trainer: the verbs of each\n"
            "trim, pause and resume, and of the iteration after it, and what it holds at rest.\n"
            "With --evaluate: what another tenant of the device gets while it trains.\n",
        .options = table,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    b->cuda = strcmp(backend, "cuda") == 0;
    b->random = b->seed;
    if (b->cuda && b->evaluated != 0)
        return cli_bad_use("bench turns", "--evaluate is for the host backend");
    return CLI_GO_ON;
}

/* With a ledger of its own, that goes with it. */
static pleat_result in_own_ledger(turns_bench *b)
{
    char folder[] = "/dev/shm/pleat-bench-XXXXXX", path[96];
    if (mkdtemp(folder) == NULL || setenv("PLEAT_TENANTS_DIR", folder, 1) != 0)
        return pleat__fail(PLEAT_E_IO, "%s cannot be made", folder);
    pleat_result result = measure(b);
    snprintf(path, sizeof path, "%s/pleat-u%lu-host-%u.tenants", folder, (unsigned long)geteuid(),
             b->device);
    (void)unlink(path);
    (void)rmdir(folder);
    return result;
}

int bench_turns(int argc, char **argv)
{
    static turns_bench b;
    b = (turns_bench){.layer_count = 64, .rows = 8192, .turns = 5, .seed = 1, .every = 1};
    int code = parse(&b, argc, argv);
    if (code != CLI_GO_ON)
        return code;
    pleat_result result = pleat__arena_create(&b.arena);
    if (result == PLEAT_OK)
        result = open_backend(&b, &b.backend);
    if (result == PLEAT_OK)
        result = b.evaluated != 0 ? in_own_ledger(&b) : measure(&b);
    code = result == PLEAT_OK ? CLI_DONE : cli_failed("bench turns", result);
    if (result == PLEAT_OK && b.evaluated != 0)
        print_lending(&b);
    else if (result == PLEAT_OK && b.json)
        print_json(&b);
    else if (result == PLEAT_OK)
        print_text(&b);
    pleat_runtime_destroy(b.borrower.runtime);
    pleat_vmm_destroy(&b.borrower.backend);
    pleat_runtime_destroy(b.runtime);
    pleat_vmm_destroy(&b.backend);
    pleat__arena_destroy(b.arena);
    return code;
}
