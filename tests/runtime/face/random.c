/*
 * random.c: calls in an order that nobody thought of: whatever comes between, a tensor holds what
 * was written to it, all that is allocated is found and walked once, and what is freed while others
 * use it is given to nobody before they are done. With and without a job that is learned or planned
 * besides, with verbs and host memory that fail now and then, and under the other policies.
 */
#include "failing.h"

#include <unistd.h>

#define PAGE     ((uint64_t)JOB_PAGE)
#define BUDGET   (96 * PAGE)
#define SEGMENTS (1024 * PAGE) /* the budget of policies whose segments are PyTorch's */
#define TENSORS  48u           /* allocated at random */
#define REQUESTS 96u           /* of the job's iteration: enough to be learned */
#define SLOTS    (TENSORS + REQUESTS)
#define STREAMS  4u
#define CAPTURES 7u /* the stream that does, and the one behind it that may join */
#define STEPS    1500u
#define TAGS     3u

static const char *const tags[TAGS] = {NULL, "first", "second"};

typedef struct tensor {
    job_tensor t; /* address 0: none */
    pleat_stream stream;
    uint32_t tag;
    uint32_t paused;   /* bits: by which tags' pauses */
    uint32_t promised; /* bits: of those that bring its contents back, for certain */
    bool lost;         /* what it holds is undefined */
    bool freed;        /* and waits */
    bool piece;        /* of a capture */
    pleat_va import;   /* another process's view of its memory; 0: none */
    uint64_t offset;   /* where it begins there */
} tensor;

typedef struct play {
    uint64_t seed;
    uint32_t step;
    test_random random;
    pleat_vmm host, vmm;
    pleat_runtime *runtime;
    FILE *nowhere;
    bool fails;  /* verbs and host memory do, now and then */
    bool failed; /* in this step */
    bool shares;
    const char *policy; /* NULL: pleat */
    uint64_t budget;
    tensor tensors[SLOTS]; /* those of the job last */
    uint64_t bytes[REQUESTS];
    uint32_t last[REQUESTS]; /* the request at which it is freed */
    uint32_t next;           /* request of the job */
    pleat_capture *capture;
    bool open, joined;
    uint64_t captures;       /* that have begun: their memory may wait too */
    uint64_t pauses, shared; /* that came to be */
} play;

/* What the rounds of a test did: that they did it at all. */
typedef struct done {
    uint64_t pauses, shared, moved, planned, stitched, waited, failed;
} done;

static uint32_t below(play *p, uint64_t bound)
{
    return (uint32_t)test_random_below(&p->random, bound);
}

#define CHECK(p, holds)                                                                            \
    do {                                                                                           \
        if (!(holds))                                                                              \
            fail_msg("PLEAT_TEST_SEED=0x%llx, step %u: not so: %s (%s)",                           \
                     (unsigned long long)(p)->seed, (p)->step, #holds, pleat_last_error()->text);  \
    } while (0)

/* ---- what may fail ---- */

#define MAY(result) (1u << PLEAT_##result)
#define NO_ROOM     (MAY(E_BUDGET) | MAY(E_OUT_OF_MEMORY))

/* Whether a call was successful; it may have failed for one of these reasons, or for any where
 * something was made to fail. */
static bool is_done(play *p, pleat_result result, unsigned may)
{
    if (p->fails)
        p->failed = pleat__fault_hits(&p->vmm) > 0 || pleat__arena_failed() > 0;
    CHECK(p, result == PLEAT_OK || p->failed || (may >> result & 1) != 0);
    return result == PLEAT_OK;
}

static void begin_step(play *p)
{
    p->failed = false;
    if (!p->fails)
        return;
    uint32_t kind = below(p, 16);
    pleat__arena_fail(kind == 0 ? 1 + below(p, 12) : 0, false);
    pleat__fault_plan plan = {.verb = PLEAT__FAULT_create};
    if (kind == 1)
        plan = (pleat__fault_plan){.verb = failing_verbs[below(p, FAILING_VERBS)],
                                   .nth = 1 + below(p, 6),
                                   .carried_out = below(p, 2) == 0};
    pleat__fault_arm(&p->vmm, plan);
}

static void end_step(play *p, done *all)
{
    if (!p->fails)
        return;
    (void)is_done(p, PLEAT_OK, 0);
    all->failed += p->failed;
    pleat__arena_fail(0, false);
    pleat__fault_arm(&p->vmm, (pleat__fault_plan){0});
}

/* ---- what is there ---- */

static bool is_there(const tensor *one)
{
    return one->t.address != 0 && !one->freed;
}

static bool holds_at(const tensor *one, pleat_va address)
{
    job_tensor seen = one->t;
    seen.address = address;
    for (uint64_t g = 0; g * 512 + 8 <= seen.bytes; g++)
        if (*job_word(&seen, g) != seen.pattern + g)
            return false;
    return true;
}

static void check_contents(play *p, const tensor *one)
{
    if (one->t.address == 0 || one->lost)
        return;
    CHECK(p, one->paused != 0 || holds_at(one, one->t.address));
    CHECK(p, one->import == 0 || holds_at(one, one->import + one->offset));
}

static void end_import(play *p, tensor *one)
{
    if (one->import != 0)
        (void)is_done(p, pleat_import_end(p->runtime, one->import), 0);
    one->import = 0;
}

/* Under the runtime's lock: what waited is not given out before. */
static void note_freed(void *context, pleat_va address)
{
    play *p = context;
    for (uint32_t i = 0; i < SLOTS; i++)
        if (p->tensors[i].freed && p->tensors[i].t.address == address) {
            check_contents(p, &p->tensors[i]);
            p->tensors[i] = (tensor){0};
            return;
        }
}

static void free_one(play *p, tensor *one)
{
    if (!is_there(one))
        return;
    check_contents(p, one);
    end_import(p, one);
    one->freed = true;
    CHECK(p, pleat_free(p->runtime, one->t.address) == PLEAT_OK);
    if (one->piece)
        *one = (tensor){0};
}

/* Asked for memory the program frees something, or does not. */
static int give_one(void *context, uint64_t bytes, pleat_stream stream)
{
    play *p = context;
    tensor *one = &p->tensors[below(p, TENSORS)];
    (void)bytes;
    (void)stream;
    bool gives = is_there(one);
    free_one(p, one);
    return gives;
}

static void alloc_one(play *p, tensor *one, uint64_t bytes, pleat_stream stream, uint32_t tag)
{
    if (one->t.address != 0)
        return;
    job_tensor t = {.bytes = bytes, .pattern = test_random_next(&p->random)};
    assert_ok(pleat_tag(tags[tag]));
    pleat_result result = pleat_alloc(p->runtime, bytes, stream, &t.address);
    assert_ok(pleat_tag(NULL));
    if (!is_done(p, result, NO_ROOM))
        return;
    bool piece = stream == CAPTURES || (stream == CAPTURES + 1 && p->joined);
    *one = (tensor){.t = t, .stream = stream, .tag = piece ? 0 : tag, .piece = piece};
    job_fill(&t);
}

/* ---- calls ---- */

static tensor *any(play *p)
{
    return &p->tensors[below(p, SLOTS)];
}

static void call_alloc(play *p)
{
    uint64_t most = below(p, 4) == 0 ? 24 * PAGE : 4 * PAGE;
    pleat_stream stream = below(p, STREAMS);
    if (p->open && below(p, 3) == 0)
        stream = p->joined ? CAPTURES + below(p, 2) : CAPTURES;
    alloc_one(p, &p->tensors[below(p, TENSORS)], 1 + below(p, most), stream, below(p, TAGS));
}

static void call_free(play *p)
{
    free_one(p, &p->tensors[below(p, TENSORS)]);
}

/* The next request of the job, and the frees behind it. */
static void job_step(play *p)
{
    tensor *of_job = p->tensors + TENSORS;
    uint32_t i = p->next++ % REQUESTS;
    if (i == 0)
        (void)is_done(p, pleat_mark(p->runtime), 0);
    alloc_one(p, &of_job[i], p->bytes[i], 0, 0);
    for (uint32_t r = 0; r < REQUESTS; r++)
        if (p->last[r] == i)
            free_one(p, &of_job[r]);
}

static void call_job(play *p)
{
    for (uint32_t r = below(p, REQUESTS); p->bytes[0] != 0 && r > 0; r--)
        job_step(p);
}

static void call_pause(play *p)
{
    uint32_t tag = below(p, TAGS);
    bool discards = below(p, 4) == 0;
    const pleat_pause_options options = {.size = sizeof options,
                                         .offload =
                                             discards ? PLEAT_OFFLOAD_DISCARD : PLEAT_OFFLOAD_HOST,
                                         .tag = tags[tag]};
    if (!is_done(p, pleat_pause(p->runtime, &options),
                 MAY(E_STATE) | MAY(E_NOT_FOUND) | (p->policy != NULL ? MAY(E_UNSUPPORTED) : 0)))
        return;
    p->pauses++;
    for (uint32_t i = 0; i < SLOTS; i++) {
        tensor *one = &p->tensors[i];
        if (one->t.address == 0 || (tag != 0 && one->tag != tag))
            continue;
        /* What was paused before by its tag, to be kept, is kept. */
        one->lost |= discards && (one->tag == 0 || (one->promised >> one->tag & 1) == 0);
        one->paused |= 1u << tag;
        one->promised |= discards ? 0 : 1u << tag;
    }
}

/* What was resumed is as it was. Where one of several fails those before it are resumed all the
 * same, and nobody says which. */
static void resume(play *p, uint32_t tag)
{
    pleat_result result = pleat_resume(p->runtime, tags[tag]);
    bool over =
        is_done(p, result, NO_ROOM | MAY(E_STATE) | MAY(E_NOT_FOUND)) || result == PLEAT_E_STATE;
    uint32_t stays = tag == 0 ? 0 : ~(1u << tag);
    for (uint32_t i = 0; i < SLOTS; i++) {
        p->tensors[i].promised &= stays;
        p->tensors[i].paused &= over ? stays : ~0u;
        check_contents(p, &p->tensors[i]);
    }
}

static void call_resume(play *p)
{
    resume(p, below(p, TAGS));
}

static void call_record(play *p)
{
    const tensor *one = any(p);
    if (is_there(one))
        (void)is_done(p,
                      pleat_record_stream(p->runtime, one->t.address + below(p, one->t.bytes),
                                          below(p, STREAMS)),
                      0);
}

/* A stream falls behind, or catches up. */
static void call_stream(play *p)
{
    pleat_stream stream = 1 + below(p, STREAMS - 1);
    bool trails = below(p, 2) == 0;
    (void)is_done(p,
                  trails ? pleat__host_stream_trail(&p->host, stream)
                         : pleat__host_stream_release(&p->host, stream),
                  0);
}

static void call_share(play *p)
{
    tensor *one = any(p);
    pleat_share share;
    if (!p->shares || !is_there(one) || one->paused != 0 || one->lost || one->import != 0 ||
        !is_done(p, pleat_share_of(p->runtime, one->t.address, &share), 0) ||
        !is_done(p, pleat_import_begin(p->runtime, share.bytes, &one->import), MAY(E_LIMIT)))
        return;
    one->offset = share.offset;
    bool shared = true;
    for (uint32_t i = 0; i < share.pieces && shared; i++) {
        int fd = -1;
        uint64_t bytes = 0;
        shared = is_done(p, pleat_share_piece(p->runtime, one->t.address, i, &fd, &bytes),
                         NO_ROOM | MAY(E_STATE));
        if (fd >= 0) {
            shared = is_done(p, pleat_import_piece(p->runtime, one->import, fd, bytes), 0);
            close(fd);
        }
    }
    p->shared += shared;
    if (!shared)
        end_import(p, one);
    check_contents(p, one);
}

static void call_capture(play *p)
{
    if (p->capture == NULL) {
        pleat_result result = pleat_capture_begin(p->runtime, CAPTURES, 8 * PAGE, &p->capture);
        p->open = is_done(p, result, NO_ROOM);
        p->captures += p->open;
    } else if (p->open && !p->joined && below(p, 2) == 0) {
        p->joined = is_done(p, pleat_capture_add(p->runtime, p->capture, CAPTURES + 1), 0);
    } else if (p->open) {
        (void)is_done(p, pleat_capture_end(p->runtime, p->capture, NULL), 0);
        p->open = p->joined = false;
    } else {
        (void)is_done(p, pleat_capture_free(p->runtime, p->capture), 0);
        p->capture = NULL;
    }
}

static void call_memory(play *p)
{
    switch (below(p, 4)) {
    case 0:
        (void)is_done(p, pleat_mark(p->runtime), 0);
        break;
    case 1:
        (void)is_done(p, pleat_trim(p->runtime, below(p, p->budget), NULL), 0);
        break;
    case 2:
        (void)is_done(p, pleat_empty_cache(p->runtime), 0);
        break;
    case 3:
        (void)is_done(p, pleat_set_budget(p->runtime, p->budget / 2 + below(p, p->budget)), 0);
        break;
    }
}

/* What is told of the runtime, and what makes no difference to what lies in it. */
static void call_tell(play *p)
{
    pleat_limits limits = {.size = sizeof limits};
    pleat_trace *trace;
    uint64_t most;
    switch (below(p, 7)) {
    case 0:
        CHECK(p, pleat_dump(p->runtime, below(p, 2) == 0 ? PLEAT_DUMP_TEXT : PLEAT_DUMP_JSON,
                            p->nowhere) == PLEAT_OK ||
                     p->fails);
        break;
    case 1:
        (void)is_done(p, pleat_phase(p->runtime, tags[1 + below(p, TAGS - 1)]), 0);
        break;
    case 2:
        (void)pleat_reset_peaks(p->runtime);
        break;
    case 3:
        if (is_done(p, pleat_limits_of(p->runtime, &limits), 0))
            CHECK(p, limits.limit_bytes == pleat_limit_of(p->runtime));
        break;
    case 4:
        if (is_done(p, pleat_record_copy(p->runtime, &trace),
                    MAY(E_STATE) | (p->fails ? MAY(E_NO_MEMORY) : 0)))
            pleat_trace_free(trace);
        else if (!is_done(p, pleat_record_begin(p->runtime, NULL), MAY(E_STATE)))
            pleat_record_end(p->runtime);
        break;
    case 5:
        (void)is_done(p, pleat_add_peer(p->runtime, 1), NO_ROOM);
        break;
    case 6:
        (void)is_done(p, pleat_max_microbatch(p->runtime, 1, &most),
                      MAY(E_NOT_FOUND) | (p->policy != NULL ? MAY(E_UNSUPPORTED) : 0));
        break;
    }
}

typedef struct walked {
    play *p;
    pleat_va until; /* where the last block ended */
    uint32_t allocated, waiting;
} walked;

static void note_block(void *context, const pleat_block *block)
{
    walked *w = context;
    CHECK(w->p, block->address >= w->until && block->bytes > 0);
    w->until = block->address + block->bytes;
    w->allocated += block->allocated != 0;
    w->waiting += block->allocated == 0 && block->requested != 0;
    for (uint32_t i = 0; i < SLOTS && block->requested != 0; i++) {
        const tensor *one = &w->p->tensors[i];
        if (one->t.address == block->address && !one->piece)
            CHECK(w->p, block->requested == one->t.bytes && block->stream == one->stream &&
                            block->allocated == !one->freed);
    }
}

/* What is asked of an address within a tensor. */
static void ask(play *p, const tensor *one)
{
    pleat_va within = one->t.address + below(p, one->t.bytes);
    pleat_result known = one->freed ? PLEAT_E_NOT_FOUND : PLEAT_OK;
    pleat_block block = {.address = one->t.address, .requested = one->t.bytes};
    uint64_t before, after;
    CHECK(p, pleat_block_of(p->runtime, within, &block) == known);
    CHECK(p, block.address == one->t.address && block.requested == one->t.bytes);
    CHECK(p, pleat_adjacent_free(p->runtime, within, &before, &after) == known);
    if (!one->freed)
        return;
    CHECK(p, pleat_free(p->runtime, one->t.address) == PLEAT_E_STATE);
    CHECK(p, pleat_record_stream(p->runtime, within, STREAMS) == PLEAT_E_STATE);
}

static void call_walk(play *p)
{
    walked w = {.p = p};
    pleat_stats stats = pleat_stats_of(p->runtime);
    CHECK(p, pleat_walk(p->runtime, note_block, &w) == PLEAT_OK);
    uint32_t live = 0, waiting = 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        const tensor *one = &p->tensors[i];
        live += is_there(one) && !one->piece;
        waiting += one->freed;
        if (one->t.address != 0)
            ask(p, one);
    }
    CHECK(p, stats.waiting_blocks - waiting <= p->captures);
    CHECK(p, w.waiting == stats.waiting_blocks && w.allocated - live <= p->captures);
}

typedef struct call {
    void (*call)(play *p);
    uint32_t often;
} call;

static const call calls[] = {{call_alloc, 10},  {call_free, 8},   {call_job, 2},    {call_pause, 2},
                             {call_resume, 4},  {call_record, 3}, {call_stream, 1}, {call_share, 1},
                             {call_capture, 1}, {call_memory, 3}, {call_walk, 1},   {call_tell, 1}};

static void call_any(play *p)
{
    uint32_t sum = 0, at;
    const call *one = calls;
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        sum += calls[c].often;
    for (at = below(p, sum); at >= one->often; one++)
        at -= one->often;
    one->call(p);
}

/* ---- rounds ---- */

/* Of two devices, so that one may be the other's peer, and a clock that stands. */
static void open_host(pleat_vmm *host)
{
    const pleat_host_options options = {
        .size = sizeof options, .devices = 2, .device_bytes = 1ull << 30, .granularity = JOB_PAGE};
    assert_ok(pleat_vmm_host(&options, host));
    assert_ok(pleat__host_clock_set(host, 1000000000));
}

static void start(play *p, bool fails, const pleat_plan *plan)
{
    static const char *const smalls[] = {"0", "4k", "64k", "1m"};
    static const char *const views[] = {"0", "8", "24k"};
    char conf[128];
    p->fails = fails;
    open_host(&p->host);
    p->vmm = p->host;
    if (fails)
        assert_ok(pleat__fault_create(p->host, &p->vmm));
    p->shares = below(p, 2) == 0;
    p->budget = p->policy == NULL ? BUDGET : SEGMENTS;
    snprintf(conf, sizeof conf, "small:%s,views:%s,spill:%s,share:%s", smalls[below(p, 4)],
             views[below(p, 3)], p->policy == NULL && below(p, 2) == 0 ? "host" : "off",
             p->shares ? "on" : "off");
    const pleat_runtime_options options = {.size = sizeof options,
                                           .policy = p->policy,
                                           .plan = plan,
                                           .conf = conf,
                                           .waits = 1,
                                           .memory_callback = below(p, 2) == 0 ? give_one : NULL,
                                           .memory_context = p};
    assert_ok(pleat_runtime_create(p->vmm, &options, &p->runtime));
    pleat_on_freed(p->runtime, note_freed, p);
    assert_non_null(p->nowhere = fopen("/dev/null", "w"));
}

static void stop(play *p, done *all)
{
    for (pleat_stream stream = 1; stream < STREAMS; stream++)
        assert_ok(pleat__host_stream_release(&p->host, stream));
    CHECK(p, pleat_set_budget(p->runtime, 0) == PLEAT_OK);
    resume(p, 0);
    while (p->capture != NULL)
        call_capture(p);
    for (uint32_t i = 0; i < SLOTS; i++)
        free_one(p, &p->tensors[i]);
    fclose(p->nowhere);
    CHECK(p, pleat_empty_cache(p->runtime) == PLEAT_OK);
    pleat_stats stats = pleat_stats_of(p->runtime);
    CHECK(p, stats.live_bytes == 0 && stats.waiting_blocks == 0 && stats.waiting_bytes == 0);
    all->pauses += p->pauses;
    all->shared += p->shared;
    all->moved += stats.moved_bytes;
    all->planned += stats.planned;
    all->stitched += stats.stitched;
    pleat_runtime_destroy(p->runtime);
    if (p->fails)
        pleat_vmm_destroy(&p->vmm);
    assert_nothing_held(&p->host);
    pleat_vmm_destroy(&p->host);
}

static void make_job(play *p)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        p->bytes[i] = 1 + below(p, i % 5 == 0 ? 4 * PAGE : PAGE / 2);
        p->last[i] = (i + 1 + below(p, 30)) % REQUESTS;
    }
}

/* A plan of the job alone. */
static pleat_plan *plan_job(const play *of)
{
    play *p = calloc(1, sizeof *p);
    pleat_trace *trace;
    pleat_plan *plan;
    done all = {0};
    assert_non_null(p);
    *p = *of;
    start(p, false, NULL);
    assert_ok(pleat_record_begin(p->runtime, NULL));
    for (uint32_t r = 0; r < 5 * REQUESTS + 1; r++)
        job_step(p);
    assert_ok(pleat_record_copy(p->runtime, &trace));
    pleat_plan_options options = {.size = sizeof options, .chunk_bytes = JOB_PAGE};
    assert_ok(pleat_plan_make(trace, &options, &plan));
    pleat_trace_free(trace);
    stop(p, &all);
    free(p);
    return plan;
}

static const char *const policies[] = {"native", "expandable", "gmlake", "stweaver"};

/* What goes on besides the calls, or is another. */
typedef enum besides { NOTHING, LEARNED, PLANNED, OTHER_POLICY } besides;

static void play_round(uint64_t seed, besides what, bool fails, done *all)
{
    play *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->seed = seed;
    p->random = (test_random){seed};
    if (what == OTHER_POLICY)
        p->policy = policies[seed % (sizeof policies / sizeof *policies)];
    else if (what != NOTHING)
        make_job(p);
    pleat_plan *plan = what == PLANNED ? plan_job(p) : NULL;
    start(p, fails, plan);
    for (; p->step < STEPS; p->step++) {
        begin_step(p);
        call_any(p);
        end_step(p, all);
        all->waited += pleat_stats_of(p->runtime).waiting_blocks;
    }
    stop(p, all);
    pleat_plan_free(plan);
    free(p);
}

static done play_rounds(const char *name, uint64_t count, besides what, bool fails)
{
    done all = {0};
    test_of_one_thread();
    test_random first = test_random_begin(name, 1);
    for (uint64_t round = 0; round < test_rounds(count); round++)
        play_round(first.state + round, what, fails, &all);
    assert_true((all.pauses > 0) == (what != OTHER_POLICY) && all.waited > 0);
    return all;
}

static void random_calls_leave_tensors_as_they_are(void **state)
{
    (void)state;
    done all = play_rounds("calls", 6, NOTHING, false);
    assert_true(all.stitched > 0);
}

static void random_calls_between_a_learned_jobs(void **state)
{
    (void)state;
    done all = play_rounds("learned", 6, LEARNED, false);
    assert_true(all.planned > 0);
}

static void random_calls_between_a_planned_jobs(void **state)
{
    (void)state;
    done all = play_rounds("planned", 4, PLANNED, false);
    assert_true(all.planned > 0);
}

static void random_calls_of_which_some_fail(void **state)
{
    (void)state;
    done all = play_rounds("failing", 8, LEARNED, true);
    assert_true(all.failed > 0);
}

static void random_calls_between_a_planned_jobs_of_which_some_fail(void **state)
{
    (void)state;
    done all = play_rounds("failing plans", 4, PLANNED, true);
    assert_true(all.failed > 0);
}

static void random_calls_of_other_policies(void **state)
{
    (void)state;
    (void)play_rounds("policies", 4, OTHER_POLICY, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_calls_leave_tensors_as_they_are),
        cmocka_unit_test(random_calls_between_a_learned_jobs),
        cmocka_unit_test(random_calls_between_a_planned_jobs),
        cmocka_unit_test(random_calls_of_which_some_fail),
        cmocka_unit_test(random_calls_between_a_planned_jobs_of_which_some_fail),
        cmocka_unit_test(random_calls_of_other_policies),
    };
    return cmocka_run_group_tests_name("random", tests, NULL, NULL);
}
