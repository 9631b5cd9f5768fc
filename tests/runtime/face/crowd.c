/*
 * crowd.c: threads that all call what there is to call, in any order, on runtimes of one device and
 * of another that share a ledger whose terms change: whatever comes between, a tensor holds what
 * its thread wrote to it, and at the end nothing is left. With verbs that fail now and then; with
 * children of fork; while one thread runs a job that is learned.
 */
#include "child.h"
#include "failing.h"
#include "ledger_folder.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include <vmm/tenants/tenants.h>

#define PAGE     ((uint64_t)JOB_PAGE)
#define RUNTIMES 3u /* the first two on device 0 */
#define DEVICE   (192 * PAGE)
#define BUDGET   (64 * PAGE)
#define WORKERS  4u
#define TENSORS  24u
#define REQUESTS 80u /* of the job's iteration: enough to be learned */
#define STREAMS  3u
#define STEPS    1500u

typedef struct tensor {
    job_tensor t; /* address 0: none */
    uint32_t runtime;
    bool tagged, paused; /* by the worker's own tag */
    bool unknown;        /* nobody knows what it holds */
    bool piece;          /* of a capture */
    uint64_t discards;   /* of its runtime, when it was written */
} tensor;

typedef struct crowd crowd;

typedef struct worker {
    crowd *all;
    uint32_t index;
    char tag[8];
    uint32_t step;
    test_random random;
    tensor tensors[TENSORS + REQUESTS]; /* those of the job last */
    pleat_capture *captures[RUNTIMES];
    bool open[RUNTIMES];
    pthread_t thread;
} worker;

/* What a runtime is to all. */
typedef struct shared {
    pleat_runtime *runtime;
    pthread_rwlock_t touched; /* held to read where tensors are, to write where all are paused */
    bool paused;              /* under it: all, or nobody can say */
    uint64_t discards;        /* under it: how often all was paused and not kept */
    pthread_mutex_t pausing;  /* who pauses or resumes all */
} shared;

struct crowd {
    uint64_t seed;
    pleat_vmm host, vmm;
    bool fails, spills, shares;
    FILE *nowhere;
    shared runtimes[RUNTIMES];
    uint64_t bytes[REQUESTS];
    uint32_t last[REQUESTS];
    worker workers[WORKERS];
    atomic_uint pauses, captured, shared_pieces, terms;
};

static _Thread_local worker *here;

static uint32_t below(worker *w, uint64_t bound)
{
    return (uint32_t)test_random_below(&w->random, bound);
}

/* Threads must not leave a test by a jump. */
#define CHECK(w, holds)                                                                            \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, "PLEAT_TEST_SEED=0x%llx, worker %u, step %u: not so: %s (%s)\n",       \
                    (unsigned long long)(w)->all->seed, (w)->index, (w)->step, #holds,             \
                    pleat_last_error()->text);                                                     \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#define MAY(result) (1u << PLEAT_##result)
#define NO_ROOM     (MAY(E_BUDGET) | MAY(E_OUT_OF_MEMORY))

static bool is_done(worker *w, pleat_result result, unsigned may)
{
    CHECK(w, result == PLEAT_OK || w->all->fails || (may >> result & 1) != 0);
    return result == PLEAT_OK;
}

/* ---- tensors ---- */

static shared *of(worker *w, uint32_t runtime)
{
    return &w->all->runtimes[runtime];
}

/* Whether a tensor may be looked at. With `touched`. */
static bool is_there(const shared *s, const tensor *one)
{
    return !s->paused && !one->paused;
}

static bool is_known(const shared *s, const tensor *one)
{
    return is_there(s, one) && !one->unknown && one->discards == s->discards;
}

static void check_contents(worker *w, const tensor *one)
{
    shared *s = of(w, one->runtime);
    pthread_rwlock_rdlock(&s->touched);
    if (is_known(s, one))
        for (uint64_t g = 0; g * 512 + 8 <= one->t.bytes; g++)
            CHECK(w, *job_word(&one->t, g) == one->t.pattern + g);
    pthread_rwlock_unlock(&s->touched);
}

/* Spilling moves memory in the order of streams, which what a thread writes is not in. */
static void fill(worker *w, tensor *one)
{
    shared *s = of(w, one->runtime);
    pthread_rwlock_rdlock(&s->touched);
    one->unknown = !is_there(s, one) || w->all->spills;
    one->discards = s->discards;
    if (!one->unknown)
        job_fill(&one->t);
    pthread_rwlock_unlock(&s->touched);
}

static void free_one(worker *w, tensor *one)
{
    if (one->t.address == 0)
        return;
    check_contents(w, one);
    CHECK(w, pleat_free(of(w, one->runtime)->runtime, one->t.address) == PLEAT_OK);
    *one = (tensor){0};
}

static void alloc_one(worker *w, tensor *one, uint32_t runtime, uint64_t bytes, pleat_stream stream,
                      bool tagged)
{
    if (one->t.address != 0)
        return;
    tensor made = {.runtime = runtime, .piece = stream >= 100};
    made.tagged = tagged && !made.piece;
    made.t = (job_tensor){.bytes = bytes, .pattern = test_random_next(&w->random)};
    CHECK(w, pleat_tag(tagged ? w->tag : NULL) == PLEAT_OK);
    pleat_result result = pleat_alloc(of(w, runtime)->runtime, bytes, stream, &made.t.address);
    CHECK(w, pleat_tag(NULL) == PLEAT_OK);
    if (!is_done(w, result, NO_ROOM))
        return;
    fill(w, &made);
    *one = made;
}

static tensor *any(worker *w)
{
    return &w->tensors[below(w, TENSORS)];
}

/* Asked for memory the thread that wants it frees something of its own, or does not. */
static int give_one(void *context, uint64_t bytes, pleat_stream stream)
{
    (void)context;
    (void)bytes;
    (void)stream;
    if (here == NULL)
        return 0;
    tensor *one = any(here);
    bool gives = one->t.address != 0 && below(here, 2) == 0;
    if (gives)
        free_one(here, one);
    return gives;
}

/* ---- calls ---- */

static void call_alloc(worker *w)
{
    uint32_t runtime = below(w, RUNTIMES);
    uint64_t most = below(w, 4) == 0 ? 16 * PAGE : 3 * PAGE;
    bool captures = w->open[runtime] && below(w, 2) == 0;
    alloc_one(w, any(w), runtime, 1 + below(w, most), captures ? 100 + w->index : below(w, STREAMS),
              below(w, 3) == 0);
}

static void call_free(worker *w)
{
    free_one(w, any(w));
}

static void call_job(worker *w)
{
    tensor *of_job = w->tensors + TENSORS;
    shared *s = of(w, 0);
    if (w->index != 0)
        return;
    (void)is_done(w, pleat_mark(s->runtime), 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        alloc_one(w, &of_job[i], 0, w->all->bytes[i], 0, false);
        for (uint32_t r = 0; r < REQUESTS; r++)
            if (w->all->last[r] == i)
                free_one(w, &of_job[r]);
    }
}

/* ---- pauses ---- */

static void pause_own(worker *w, uint32_t runtime, uint32_t offload)
{
    const pleat_pause_options options = {.size = sizeof options, .offload = offload, .tag = w->tag};
    if (!is_done(w, pleat_pause(of(w, runtime)->runtime, &options),
                 MAY(E_STATE) | MAY(E_NOT_FOUND) | NO_ROOM))
        return;
    atomic_fetch_add(&w->all->pauses, 1);
    for (uint32_t i = 0; i < TENSORS; i++) {
        tensor *one = &w->tensors[i];
        if (one->t.address == 0 || one->runtime != runtime || !one->tagged)
            continue;
        one->paused = true;
        one->unknown |= offload == PLEAT_OFFLOAD_DISCARD;
    }
}

static void resume_own(worker *w, uint32_t runtime)
{
    pleat_result result = pleat_resume(of(w, runtime)->runtime, w->tag);
    if (!is_done(w, result, NO_ROOM | MAY(E_STATE) | MAY(E_NOT_FOUND)) && result != PLEAT_E_STATE)
        return;
    for (uint32_t i = 0; i < TENSORS; i++)
        if (w->tensors[i].runtime == runtime)
            w->tensors[i].paused = false;
}

static void set_paused(shared *s, bool paused, bool discards)
{
    pthread_rwlock_wrlock(&s->touched);
    s->paused = paused;
    s->discards += discards;
    pthread_rwlock_unlock(&s->touched);
}

static void pause_all(worker *w, shared *s, uint32_t offload)
{
    const pleat_pause_options options = {.size = sizeof options, .offload = offload};
    bool was = s->paused;
    set_paused(s, true, false);
    bool done = is_done(w, pleat_pause(s->runtime, &options), MAY(E_STATE) | NO_ROOM);
    set_paused(s, done || was, done && offload == PLEAT_OFFLOAD_DISCARD);
    atomic_fetch_add(&w->all->pauses, done);
}

/* What worker's own tags paused is resumed too: each learns so when it asks next. */
static void resume_all(worker *w, shared *s)
{
    pleat_result result = pleat_resume(s->runtime, NULL);
    bool over = is_done(w, result, NO_ROOM | MAY(E_STATE)) || result == PLEAT_E_STATE;
    set_paused(s, s->paused && !over, false);
}

static void call_pause(worker *w)
{
    uint32_t runtime = below(w, RUNTIMES);
    uint32_t offload = below(w, 4) == 0 ? PLEAT_OFFLOAD_DISCARD : PLEAT_OFFLOAD_HOST;
    shared *s = of(w, runtime);
    /* A verb that fails may lose a place of what is paused. */
    if (w->all->fails)
        return;
    if (below(w, 4) != 0) {
        pause_own(w, runtime, offload);
    } else if (pthread_mutex_trylock(&s->pausing) == 0) {
        pause_all(w, s, offload);
        pthread_mutex_unlock(&s->pausing);
    }
}

static void call_resume(worker *w)
{
    uint32_t runtime = below(w, RUNTIMES);
    shared *s = of(w, runtime);
    if (below(w, 4) != 0) {
        resume_own(w, runtime);
    } else if (pthread_mutex_trylock(&s->pausing) == 0) {
        resume_all(w, s);
        pthread_mutex_unlock(&s->pausing);
    }
}

/* ---- others ---- */

static void call_record(worker *w)
{
    const tensor *one = any(w);
    if (one->t.address != 0)
        (void)is_done(w,
                      pleat_record_stream(of(w, one->runtime)->runtime,
                                          one->t.address + below(w, one->t.bytes),
                                          below(w, STREAMS)),
                      0);
}

static void call_stream(worker *w)
{
    pleat_stream stream = 1 + below(w, STREAMS - 1);
    CHECK(w, (below(w, 2) == 0 ? pleat__host_stream_trail(&w->all->host, stream)
                               : pleat__host_stream_release(&w->all->host, stream)) == PLEAT_OK);
}

static void call_capture(worker *w)
{
    uint32_t r = below(w, RUNTIMES);
    pleat_runtime *runtime = of(w, r)->runtime;
    if (w->captures[r] == NULL) {
        w->open[r] = is_done(
            w, pleat_capture_begin(runtime, 100 + w->index, 4 * PAGE, &w->captures[r]), NO_ROOM);
        atomic_fetch_add(&w->all->captured, w->open[r]);
    } else if (w->open[r]) {
        (void)is_done(w, pleat_capture_end(runtime, w->captures[r], NULL), 0);
        w->open[r] = false;
    } else {
        (void)is_done(w, pleat_capture_free(runtime, w->captures[r]), 0);
        w->captures[r] = NULL;
    }
}

/* Sends a tensor's memory to a runtime of the other device or to its own, and looks at it there. */
static void call_share(worker *w)
{
    tensor *one = any(w);
    pleat_share share;
    pleat_va import;
    bool good = true;
    if (!w->all->shares || one->t.address == 0 || one->piece)
        return;
    pleat_runtime *from = of(w, one->runtime)->runtime, *to = of(w, below(w, 2) * 2)->runtime;
    if (!is_done(w, pleat_share_of(from, one->t.address, &share), 0) ||
        !is_done(w, pleat_import_begin(to, share.bytes, &import), MAY(E_LIMIT)))
        return;
    for (uint32_t i = 0; i < share.pieces && good; i++) {
        int fd = -1;
        uint64_t bytes = 0;
        good = is_done(w, pleat_share_piece(from, one->t.address, i, &fd, &bytes),
                       NO_ROOM | MAY(E_STATE)) &&
               is_done(w, pleat_import_piece(to, import, fd, bytes), 0);
        if (fd >= 0)
            close(fd);
    }
    shared *s = of(w, one->runtime);
    pthread_rwlock_rdlock(&s->touched);
    if (good && is_known(s, one))
        CHECK(w, *(uint64_t *)(uintptr_t)(import + share.offset) == one->t.pattern ||
                     one->t.bytes < 8);
    pthread_rwlock_unlock(&s->touched);
    (void)is_done(w, pleat_import_end(to, import), 0);
    atomic_fetch_add(&w->all->shared_pieces, good);
}

static void note_block(void *context, const pleat_block *block)
{
    pleat_va *until = context;
    CHECK(here, block->address >= *until && block->bytes > 0);
    *until = block->address + block->bytes;
}

static void call_memory(worker *w)
{
    pleat_runtime *runtime = of(w, below(w, RUNTIMES))->runtime;
    uint64_t given;
    switch (below(w, 5)) {
    case 0:
        (void)is_done(w, pleat_mark(runtime), 0);
        break;
    case 1:
        (void)is_done(w, pleat_trim(runtime, below(w, BUDGET), &given), 0);
        break;
    case 2:
        (void)is_done(w, pleat_empty_cache(runtime), 0);
        break;
    case 3:
        (void)is_done(w, pleat_set_budget(runtime, BUDGET / 2 + below(w, BUDGET)), 0);
        break;
    case 4:
        (void)is_done(w, pleat_add_peer(runtime, (int)below(w, 2)), NO_ROOM);
        break;
    }
}

static void call_tell(worker *w)
{
    pleat_runtime *runtime = of(w, below(w, RUNTIMES))->runtime;
    pleat_limits limits = {.size = sizeof limits};
    pleat_trace *trace;
    pleat_va until = 0;
    uint64_t most;
    switch (below(w, 9)) {
    case 0:
        (void)is_done(w, pleat_walk(runtime, note_block, &until), 0);
        break;
    case 1:
        (void)is_done(w,
                      pleat_dump(runtime, below(w, 2) == 0 ? PLEAT_DUMP_TEXT : PLEAT_DUMP_JSON,
                                 w->all->nowhere),
                      0);
        break;
    case 2:
        (void)is_done(w, pleat_phase(runtime, below(w, 2) == 0 ? w->tag : ""), 0);
        break;
    case 3:
        (void)pleat_reset_peaks(runtime);
        break;
    case 4:
        (void)is_done(w, pleat_limits_of(runtime, &limits), 0);
        break;
    case 5:
        if (is_done(w, pleat_record_copy(runtime, &trace), MAY(E_STATE)))
            pleat_trace_free(trace);
        else if (!is_done(w, pleat_record_begin(runtime, NULL), MAY(E_STATE)))
            pleat_record_end(runtime);
        break;
    case 6:
        (void)is_done(w, pleat_max_microbatch(runtime, 1, &most), MAY(E_NOT_FOUND));
        break;
    case 7:
        pleat_end_log(runtime);
        break;
    case 8:
        (void)is_done(w, pleat_keep_plan(runtime),
                      MAY(E_STATE) | MAY(E_NOT_FOUND) | MAY(E_INPUT) | MAY(E_LIMIT));
        break;
    }
}

/* Somebody sets other terms. */
static void call_terms(worker *w)
{
    char name[96];
    pleat__tenants *all;
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    uint32_t count;
    snprintf(name, sizeof name, "pleat-u%u-host-0.tenants", geteuid());
    if (!is_done(w, pleat__tenants_open(name, &all), MAY(E_IO)))
        return;
    if (is_done(w, pleat__tenants_list(all, entries, &count), 0) && count > 0) {
        uint64_t serial = entries[below(w, count)].serial, guarantee = below(w, DEVICE);
        uint64_t cap = below(w, 2) == 0 ? DEVICE : below(w, DEVICE);
        uint32_t priority = below(w, 3);
        pleat_result result = below(w, 3) == 0
                                  ? pleat__tenants_reclaim(all, serial)
                                  : pleat__tenants_set(all, serial, &guarantee, &cap, &priority);
        atomic_fetch_add(&w->all->terms, is_done(w, result, MAY(E_LIMIT)));
    }
    pleat__tenants_close(all);
}

/* A child may not touch what its parent has, and harms nothing. (At a fork jemalloc takes more
 * locks than the thread sanitizer counts.) */
static void call_fork(worker *w)
{
#ifdef __SANITIZE_THREAD__
    (void)w;
#else
    pid_t child = fork();
    CHECK(w, child >= 0);
    if (child == 0) {
        pleat_va address;
        pleat_runtime *runtime = of(w, below(w, RUNTIMES))->runtime;
        bool good = pleat_alloc(runtime, PAGE, 0, &address) == PLEAT_E_STATE &&
                    pleat_trim(runtime, 0, NULL) == PLEAT_E_STATE &&
                    pleat_resume(runtime, NULL) == PLEAT_E_STATE;
        pleat_runtime_destroy(runtime);
        _exit(!good);
    }
    int status;
    CHECK(w, waitpid(child, &status, 0) == child && status == 0);
#endif
}

typedef struct call {
    void (*call)(worker *w);
    uint32_t often;
} call;

static const call calls[] = {
    {call_alloc, 200}, {call_free, 160},  {call_job, 20},   {call_pause, 20},   {call_resume, 40},
    {call_record, 40}, {call_stream, 10}, {call_share, 10}, {call_capture, 10}, {call_memory, 30},
    {call_tell, 20},   {call_terms, 5},   {call_fork, 1}};

static void call_any(worker *w)
{
    uint32_t sum = 0, at;
    const call *one = calls;
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        sum += calls[c].often;
    for (at = below(w, sum); at >= one->often; one++)
        at -= one->often;
    one->call(w);
}

static void arm(worker *w)
{
    pleat__fault_plan plan = {.verb = failing_verbs[below(w, FAILING_VERBS)],
                              .nth = 1 + below(w, 6),
                              .carried_out = below(w, 2) == 0};
    pleat__fault_arm(&w->all->vmm, plan);
}

static void *work(void *context)
{
    worker *w = here = context;
    for (; w->step < STEPS; w->step++) {
        if (w->all->fails && w->index == 0 && w->step % 8 == 0)
            arm(w);
        call_any(w);
    }
    return NULL;
}

/* ---- rounds ---- */

static void start_runtime(crowd *c, uint32_t r)
{
    static const char *const others[RUNTIMES] = {",guarantee:2m,priority:1,keep:on",
                                                 ",log:auto,log_ms:1", ",watermark:1m"};
    char conf[192];
    snprintf(conf, sizeof conf, "small:4k,views:64,spill:%s,share:%s,tenants:user,grace_ms:1%s",
             c->spills ? "host" : "off", c->shares ? "on" : "off", others[r]);
    const pleat_runtime_options options = {.size = sizeof options,
                                           .device = (int)(r / 2),
                                           .conf = conf,
                                           .budget_bytes = BUDGET,
                                           .memory_callback = give_one};
    shared *s = &c->runtimes[r];
    assert_ok(pleat_runtime_create(c->vmm, &options, &s->runtime));
    pthread_rwlock_init(&s->touched, NULL);
    pthread_mutex_init(&s->pausing, NULL);
}

static void start(crowd *c)
{
    const pleat_host_options options = {
        .size = sizeof options, .devices = 2, .device_bytes = DEVICE, .granularity = JOB_PAGE};
    test_random random = {c->seed};
    assert_ok(pleat_vmm_host(&options, &c->host));
    c->vmm = c->host;
    if (c->fails)
        assert_ok(pleat__fault_create(c->host, &c->vmm));
    c->spills = test_random_below(&random, 4) == 0;
    c->shares = test_random_below(&random, 2) == 0;
    assert_non_null(c->nowhere = fopen("/dev/null", "w"));
    for (uint32_t i = 0; i < REQUESTS; i++) {
        c->bytes[i] = 1 + test_random_below(&random, i % 5 == 0 ? 3 * PAGE : PAGE / 2);
        c->last[i] = (i + 1 + (uint32_t)test_random_below(&random, 20)) % REQUESTS;
    }
    for (uint32_t r = 0; r < RUNTIMES; r++)
        start_runtime(c, r);
    for (uint32_t i = 0; i < WORKERS; i++) {
        worker *w = &c->workers[i];
        w->all = c;
        w->index = i;
        w->random = (test_random){test_random_next(&random)};
        snprintf(w->tag, sizeof w->tag, "w%u", i);
        assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
    }
}

static void end_worker(worker *w)
{
    for (uint32_t r = 0; r < RUNTIMES; r++)
        while (w->captures[r] != NULL) {
            pleat_runtime *runtime = of(w, r)->runtime;
            if (w->open[r])
                assert_ok(pleat_capture_end(runtime, w->captures[r], NULL));
            w->open[r] = false;
            assert_ok(pleat_capture_free(runtime, w->captures[r]));
            w->captures[r] = NULL;
        }
    for (uint32_t i = 0; i < TENSORS + REQUESTS; i++) {
        w->tensors[i].paused = false;
        free_one(w, &w->tensors[i]);
    }
}

static void stop(crowd *c, uint64_t *planned)
{
    for (uint32_t i = 0; i < WORKERS; i++)
        assert_int_equal(pthread_join(c->workers[i].thread, NULL), 0);
    if (c->fails)
        pleat__fault_arm(&c->vmm, (pleat__fault_plan){0});
    for (pleat_stream stream = 1; stream < STREAMS; stream++)
        assert_ok(pleat__host_stream_release(&c->host, stream));
    for (uint32_t r = 0; r < RUNTIMES; r++) {
        shared *s = &c->runtimes[r];
        assert_ok(pleat_set_budget(s->runtime, 0));
        pleat_result result = pleat_resume(s->runtime, NULL);
        s->paused = result != PLEAT_OK && result != PLEAT_E_STATE;
    }
    for (uint32_t i = 0; i < WORKERS; i++)
        end_worker(&c->workers[i]);
    for (uint32_t r = 0; r < RUNTIMES; r++) {
        pleat_runtime *runtime = c->runtimes[r].runtime;
        pleat_stats stats = pleat_stats_of(runtime);
        *planned += stats.planned;
        assert_int_equal(stats.live_bytes, 0);
        pleat_runtime_destroy(runtime);
        pthread_rwlock_destroy(&c->runtimes[r].touched);
        pthread_mutex_destroy(&c->runtimes[r].pausing);
    }
    fclose(c->nowhere);
    if (c->fails)
        pleat_vmm_destroy(&c->vmm);
    assert_nothing_held(&c->host);
    pleat_vmm_destroy(&c->host);
}

static void play_rounds(const char *name, uint64_t count, bool fails)
{
    uint64_t planned = 0, pauses = 0, shared_pieces = 0, terms = 0, captured = 0;
    test_random first = test_random_begin(name, 1);
    for (uint64_t round = 0; round < test_rounds(count); round++) {
        crowd *c = calloc(1, sizeof *c);
        assert_non_null(c);
        c->seed = first.state + round;
        c->fails = fails;
        start(c);
        stop(c, &planned);
        pauses += c->pauses;
        shared_pieces += c->shared_pieces;
        terms += c->terms;
        captured += c->captured;
        free(c);
    }
    print_message("%s: %llu planned, %llu pauses, %llu shared, %llu terms, %llu captures\n", name,
                  (unsigned long long)planned, (unsigned long long)pauses,
                  (unsigned long long)shared_pieces, (unsigned long long)terms,
                  (unsigned long long)captured);
    assert_true(terms > 0 && captured > 0 && (fails || pauses > 0));
}

static void crowd_finds_its_tensors_as_it_left_them(void **state)
{
    (void)state;
    play_rounds("crowd", 4, false);
}

static void crowd_finds_its_tensors_where_verbs_fail(void **state)
{
    (void)state;
    play_rounds("failing", 3, true);
}

/* Ledgers, kept plans and logs of this program. */
static int open_folders(void **state)
{
    return open_ledger_folder(state) != 0 || setenv("XDG_CACHE_HOME", test_folder(), 1) != 0 ||
           setenv("XDG_RUNTIME_DIR", test_folder(), 1) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crowd_finds_its_tensors_as_it_left_them),
        cmocka_unit_test(crowd_finds_its_tensors_where_verbs_fail),
    };
    return cmocka_run_group_tests_name("crowd", tests, open_folders, NULL);
}
