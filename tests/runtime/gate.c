/*
 * gate.c: no driver verb, no wait for the GPU and no question to the device is under the lock that
 * allocations take.
 *
 * Between the runtime and the host backend lies a table whose verbs, before they do their work, ask
 * another thread to allocate and free on the same runtime, and wait for it: a verb under the lock
 * would wait for ever. (The presets with assertions also trap at such a verb, in every test.)
 */
#include "held.h"

#include <pleat/runtime.h>
#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <vmm/host/host.h>

#define MIB (1ull << 20)

static const char *const policies[] = {"native", "expandable", "gmlake", "pleat"};
#define POLICIES (sizeof policies / sizeof *policies)

/* X(verb): those that are issued while the other thread allocates. */
#define VERBS(X) X(create) X(map) X(set_access) X(unmap) X(release) X(event_wait) X(memory_info)

enum {
#define VERB_ENUM(verb) VERB_##verb,
    VERBS(VERB_ENUM)
#undef VERB_ENUM
        VERB_COUNT
};

static struct {
    pleat_vmm host;
    pleat_vmm_ops ops;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pthread_t other;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t asked, answered;
    uint64_t questions, answers;
    bool probing, ending;
    long delay_ns; /* of each verb, when it is not probing */
    uint64_t verbs[VERB_COUNT];
    uint64_t stuck;
    const char *failure;
} b;

/* ---- the other thread ---- */

/* Memory that is there already: it must be served while a verb is on its way. */
static const char *use_runtime(void)
{
    pleat_va small;
    pleat_block block;
    if (pleat_alloc(b.runtime, 2000, 0, &small) != PLEAT_OK)
        return "an allocation failed";
    if (pleat_block_of(b.runtime, small, &block) != PLEAT_OK)
        return "a question failed";
    return pleat_free(b.runtime, small) == PLEAT_OK ? NULL : "a free failed";
}

static void *answer(void *context)
{
    (void)context;
    pthread_mutex_lock(&b.lock);
    for (;;) {
        while (b.answers == b.questions && !b.ending)
            pthread_cond_wait(&b.asked, &b.lock);
        if (b.answers == b.questions)
            break;
        pthread_mutex_unlock(&b.lock);
        const char *failure = use_runtime();
        pthread_mutex_lock(&b.lock);
        b.failure = failure != NULL ? failure : b.failure;
        b.answers++;
        pthread_cond_broadcast(&b.answered);
    }
    pthread_mutex_unlock(&b.lock);
    return NULL;
}

/* ---- verbs ---- */

static void ask_other(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    uint64_t question = ++b.questions;
    pthread_cond_signal(&b.asked);
    while (b.answers < question) {
        if (pthread_cond_timedwait(&b.answered, &b.lock, &until) != 0) {
            b.stuck++;
            b.probing = false; /* once is enough */
            return;
        }
    }
}

static void before(int verb)
{
    pthread_mutex_lock(&b.lock);
    b.verbs[verb]++;
    long delay = b.delay_ns;
    if (b.probing)
        ask_other();
    pthread_mutex_unlock(&b.lock);
    if (delay > 0)
        nanosleep(&(struct timespec){0, delay}, NULL);
}

static pleat_result create(void *self, int device, uint64_t bytes, uint32_t flags,
                           pleat_handle *handle)
{
    before(VERB_create);
    return b.host.ops->create(self, device, bytes, flags, handle);
}

static pleat_result map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    before(VERB_map);
    return b.host.ops->map(self, va, bytes, handle);
}

static pleat_result set_access(void *self, pleat_va va, uint64_t bytes, const int *devices,
                               int count)
{
    before(VERB_set_access);
    return b.host.ops->set_access(self, va, bytes, devices, count);
}

static pleat_result unmap(void *self, pleat_va va, uint64_t bytes)
{
    before(VERB_unmap);
    return b.host.ops->unmap(self, va, bytes);
}

static pleat_result release(void *self, pleat_handle handle)
{
    before(VERB_release);
    return b.host.ops->release(self, handle);
}

static pleat_result event_wait(void *self, pleat_event event)
{
    before(VERB_event_wait);
    return b.host.ops->event_wait(self, event);
}

static pleat_result memory_info(void *self, int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    before(VERB_memory_info);
    return b.host.ops->memory_info(self, device, free_bytes, total_bytes);
}

/* ---- the fixture ---- */

static void begin_with(const char *policy, uint64_t budget, const char *conf)
{
    memset(&b, 0, sizeof b);
    pleat_host_options host = {.size = sizeof host, .device_bytes = 4096 * MIB};
    assert_ok(pleat_vmm_host(&host, &b.host));
    b.ops = *b.host.ops;
#define VERB_SET(verb) b.ops.verb = verb;
    VERBS(VERB_SET)
#undef VERB_SET
    b.vmm = (pleat_vmm){&b.ops, b.host.self};
    pthread_mutex_init(&b.lock, NULL);
    pthread_cond_init(&b.asked, NULL);
    pthread_cond_init(&b.answered, NULL);
    pleat_runtime_options options = {
        .size = sizeof options, .policy = policy, .budget_bytes = budget, .conf = conf};
    assert_ok(pleat_runtime_create(b.vmm, &options, &b.runtime));
    assert_int_equal(pthread_create(&b.other, NULL, answer, NULL), 0);
}

static void begin(const char *policy, uint64_t budget)
{
    begin_with(policy, budget, NULL);
}

static void probe(void)
{
    pthread_mutex_lock(&b.lock);
    b.probing = true;
    pthread_mutex_unlock(&b.lock);
}

static void end(void)
{
    pthread_mutex_lock(&b.lock);
    b.probing = false;
    b.ending = true;
    pthread_cond_signal(&b.asked);
    pthread_mutex_unlock(&b.lock);
    assert_int_equal(pthread_join(b.other, NULL), 0);
    pleat_runtime_destroy(b.runtime);
    assert_nothing_held(&b.host);
    pleat_vmm_destroy(&b.host);
    pthread_cond_destroy(&b.answered);
    pthread_cond_destroy(&b.asked);
    pthread_mutex_destroy(&b.lock);
}

static pleat_va take(uint64_t bytes, pleat_stream stream)
{
    pleat_va address;
    assert_ok(pleat_alloc(b.runtime, bytes, stream, &address));
    return address;
}

/* Growth, views, views found again, views given up, memory given back, memory refused. */
static void use_every_verb(void)
{
    for (uint64_t round = 0; round < 4; round++) {
        pleat_va parts[6], whole, none;
        assert_ok(pleat_mark(b.runtime));
        for (unsigned p = 0; p < 6; p++)
            parts[p] = take((40 + 3 * p + round) * MIB + 700 * p, p % 2);
        for (unsigned p = 0; p < 6; p += 2)
            assert_ok(pleat_free(b.runtime, parts[p]));
        whole = take((100 + round) * MIB, 0); /* of three pieces */
        assert_ok(pleat_record_stream(b.runtime, whole, 7));
        assert_ok(pleat_free(b.runtime, whole));
        assert_result(pleat_alloc(b.runtime, 390 * MIB, 0, &none), PLEAT_E_BUDGET);
        for (unsigned p = 1; p < 6; p += 2)
            assert_ok(pleat_free(b.runtime, parts[p]));
        assert_ok(pleat_free(b.runtime, take(370 * MIB, 1))); /* all else goes for it */
        assert_ok(pleat_empty_cache(b.runtime));
    }
    assert_ok(pleat_set_budget(b.runtime, 100 * MIB));
}

/* R11. */
static void gate_no_verb_is_issued_under_the_lock(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        begin(policies[i], 400 * MIB);
        pleat_va kept = take(3000, 0); /* with room beside it, which stays */
        probe();
        use_every_verb();
        pthread_mutex_lock(&b.lock);
        assert_int_equal(b.stuck, 0);
        assert_null(b.failure);
        for (int v = 0; v < VERB_COUNT; v++)
            assert_true(b.verbs[v] > 0);
        assert_true(b.questions > 100);
        pthread_mutex_unlock(&b.lock);
        assert_ok(pleat_free(b.runtime, kept));
        end();
    }
}

/* New chunks, which the canary fills before they are used, on one stream and another. */
static void gate_canary_does_not_wait_under_the_lock(void **state)
{
    (void)state;
    begin_with("pleat", 400 * MIB, "canary:on");
    pleat_va kept = take(3000, 0), parts[6];
    probe();
    for (unsigned p = 0; p < 6; p++)
        parts[p] = take((5 + p) * MIB, p % 2);
    pthread_mutex_lock(&b.lock);
    assert_int_equal(b.stuck, 0);
    assert_null(b.failure);
    assert_true(b.questions > 6);
    pthread_mutex_unlock(&b.lock);
    pleat_canary canary;
    assert_ok(pleat_canary_of(b.runtime, &canary));
    assert_int_equal(canary.words, 0);
    for (unsigned p = 0; p < 6; p++)
        assert_ok(pleat_free(b.runtime, parts[p]));
    assert_ok(pleat_free(b.runtime, kept));
    end();
}

/* ---- several that need verbs at once ---- */

#define THREADS 4
#define HELD    6

typedef struct worker {
    uint64_t seed;
    const char *said;
} worker;

typedef struct piece {
    pleat_va address;
    uint64_t bytes, mark;
} piece;

/* The first and the last word of a piece and one in between. */
static uint64_t *word(const piece *p, int which)
{
    uint64_t at = which == 0 ? 0 : which == 1 ? p->bytes / 2 / 8 * 8 : p->bytes / 8 * 8 - 8;
    return (uint64_t *)(uintptr_t)(p->address + at);
}

static const char *work_on(const worker *w)
{
    test_random random = {w->seed};
    piece held[HELD] = {{0}};
    for (int i = 0; i < 120; i++) {
        piece *p = &held[test_random_below(&random, HELD)];
        for (int k = 0; k < 3 && p->address != 0; k++)
            if (*word(p, k) != p->mark)
                return "memory was written over";
        if (pleat_free(b.runtime, p->address) != PLEAT_OK)
            return "a free failed";
        *p = (piece){.bytes = 64 + test_random_below(&random, 24 * MIB),
                     .mark = test_random_next(&random)};
        pleat_result result =
            pleat_alloc(b.runtime, p->bytes, test_random_below(&random, 2), &p->address);
        if (result != PLEAT_OK && result != PLEAT_E_BUDGET && result != PLEAT_E_OUT_OF_MEMORY)
            return "an allocation failed";
        for (int k = 0; k < 3 && p->address != 0; k++)
            *word(p, k) = p->mark;
        if (i % 40 == 39 && pleat_empty_cache(b.runtime) != PLEAT_OK)
            return "the cache could not be emptied";
        if (i % 30 == 29 && pleat_mark(b.runtime) != PLEAT_OK)
            return "a mark failed";
    }
    for (int h = 0; h < HELD; h++)
        if (pleat_free(b.runtime, held[h].address) != PLEAT_OK)
            return "a free failed";
    return NULL;
}

static void *work(void *context)
{
    worker *w = context;
    w->said = work_on(w);
    return NULL;
}

static void gate_threads_need_verbs_at_once(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a7e);
    for (size_t i = 0; i < POLICIES; i++) {
        worker workers[THREADS];
        pthread_t threads[THREADS];
        begin(policies[i], 300 * MIB);
        b.delay_ns = 20000;
        for (int t = 0; t < THREADS; t++) {
            workers[t] = (worker){.seed = test_random_next(&random)};
            assert_int_equal(pthread_create(&threads[t], NULL, work, &workers[t]), 0);
        }
        for (int t = 0; t < THREADS; t++) {
            assert_int_equal(pthread_join(threads[t], NULL), 0);
            assert_null(workers[t].said);
        }
        pleat_stats stats = pleat_stats_of(b.runtime);
        assert_int_equal(stats.live_bytes, 0);
        assert_true(stats.peak_physical_bytes <= 300 * MIB);
        assert_ok(pleat_empty_cache(b.runtime));
        assert_int_equal(pleat_stats_of(b.runtime).physical_bytes, 0);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gate_no_verb_is_issued_under_the_lock),
        cmocka_unit_test(gate_canary_does_not_wait_under_the_lock),
        cmocka_unit_test(gate_threads_need_verbs_at_once),
    };
    return cmocka_run_group_tests_name("gate", tests, NULL, NULL);
}
