/*
 * order.c: 8 threads on 4 streams, two of them held so that their work is done only when the test
 * says so. Every granule of memory carries the number of the allocation that had it last, so that
 * each new owner, at whatever address, can ask: has all work on what was here been done, or does my
 * stream wait for it?
 */
#include "host.h"
#include "job.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 8
#define STREAMS 4u /* 1 and 2 are held, 3 and 4 run freely */
#define EACH    1200u
#define USES    (THREADS * EACH + 1)
#define MAILED  48u

/* An allocation's last use: the points its streams had reached when it was freed. */
typedef struct use {
    pleat_va address;
    uint64_t bytes;
    uint32_t stream, other;       /* other: named by record_stream; 0: none */
    pleat_event done, other_done; /* 0: not freed yet */
} use;

typedef struct shared {
    job job;
    use uses[USES];
    atomic_uint next;
    pthread_mutex_t lock; /* of the mailbox */
    uint32_t mailbox[MAILED];
    uint32_t mailed;
    atomic_uint early, unordered, reused, failed;
} shared;

typedef struct worker {
    shared *s;
    uint64_t seed;
    pthread_t thread;
} worker;

#define VMM(s, name, ...) ((s)->job.vmm.ops->name((s)->job.vmm.self, __VA_ARGS__))

static bool passed(shared *s, pleat_event event)
{
    return VMM(s, event_query, event) == PLEAT_OK;
}

static pleat_event mark_point(shared *s, uint32_t stream)
{
    pleat_event event = 0;
    if (VMM(s, event_create, 0, &event) != PLEAT_OK ||
        VMM(s, event_record, event, stream) != PLEAT_OK)
        atomic_fetch_add(&s->failed, 1);
    return event;
}

/* The owners of the granules before, checked against the new one. Asked in an order in which what
 * other threads do meanwhile cannot make right look wrong. */
static void check_before(shared *s, const use *mine, pleat_event now, uint64_t granule)
{
    uint64_t number = *(uint64_t *)(uintptr_t)(mine->address + granule * 512);
    if (number == 0 || number >= USES)
        return;
    const use *before = &s->uses[number];
    atomic_fetch_add(&s->reused, 1);
    if (before->other != 0 && passed(s, now) && !passed(s, before->other_done))
        atomic_fetch_add(&s->early, 1);
    if (before->stream != mine->stream && passed(s, now) && !passed(s, before->done))
        atomic_fetch_add(&s->unordered, 1);
}

static void take(shared *s, test_random *random)
{
    uint32_t number = atomic_fetch_add(&s->next, 1);
    use *mine = &s->uses[number];
    mine->stream = 1 + (uint32_t)test_random_below(random, STREAMS);
    /* Some are worth a wait for what a stream has that works for this one. */
    uint64_t most = test_random_below(random, 32) == 0 ? 24 * JOB_PAGE : 6 * JOB_PAGE;
    mine->bytes = 512 * (1 + test_random_below(random, most / 512));
    if (pleat_alloc(s->job.runtime, mine->bytes, mine->stream, &mine->address) != PLEAT_OK) {
        atomic_fetch_add(&s->failed, 1);
        return;
    }
    pleat_event now = mark_point(s, mine->stream);
    for (uint64_t g = 0; g < mine->bytes / 512; g++) {
        check_before(s, mine, now, g);
        *(uint64_t *)(uintptr_t)(mine->address + g * 512) = number;
    }
    if (VMM(s, event_destroy, now) != PLEAT_OK)
        atomic_fetch_add(&s->failed, 1);
    if (test_random_below(random, 3) == 0) {
        mine->other = 1 + mine->stream % STREAMS;
        if (pleat_record_stream(s->job.runtime, mine->address, mine->other) != PLEAT_OK)
            atomic_fetch_add(&s->failed, 1);
    }
    pthread_mutex_lock(&s->lock);
    uint32_t slot = s->mailed < MAILED ? s->mailed++ : UINT32_MAX;
    if (slot != UINT32_MAX)
        s->mailbox[slot] = number;
    pthread_mutex_unlock(&s->lock);
    if (slot != UINT32_MAX)
        return;
    mine->done = mark_point(s, mine->stream);
    if (mine->other != 0)
        mine->other_done = mark_point(s, mine->other);
    if (pleat_free(s->job.runtime, mine->address) != PLEAT_OK)
        atomic_fetch_add(&s->failed, 1);
}

/* Frees what some thread, mostly another, has allocated. */
static bool give(shared *s, test_random *random)
{
    uint32_t number = 0;
    pthread_mutex_lock(&s->lock);
    if (s->mailed > 0) {
        uint32_t at = (uint32_t)test_random_below(random, s->mailed);
        number = s->mailbox[at];
        s->mailbox[at] = s->mailbox[--s->mailed];
    }
    pthread_mutex_unlock(&s->lock);
    if (number == 0)
        return false;
    use *theirs = &s->uses[number];
    theirs->done = mark_point(s, theirs->stream);
    if (theirs->other != 0)
        theirs->other_done = mark_point(s, theirs->other);
    if (pleat_free(s->job.runtime, theirs->address) != PLEAT_OK)
        atomic_fetch_add(&s->failed, 1);
    return true;
}

static void *work(void *context)
{
    const worker *w = context;
    shared *s = w->s;
    test_random random = {w->seed};
    for (uint32_t i = 0; i < EACH; i++) {
        take(s, &random);
        if (test_random_below(&random, 2) == 0)
            give(s, &random);
        if (test_random_below(&random, 8) == 0 &&
            pleat__host_stream_advance(&s->job.vmm, 1 + test_random_below(&random, 2),
                                       1 + test_random_below(&random, 6)) != PLEAT_OK)
            atomic_fetch_add(&s->failed, 1);
    }
    return NULL;
}

/* R17. */
static void streams_reuse_no_byte_before_its_event(void **state)
{
    (void)state;
    static shared s;
    worker workers[THREADS];
    test_random random = test_random_begin("streams", 0x5742);
    atomic_store(&s.next, 1);
    assert_int_equal(pthread_mutex_init(&s.lock, NULL), 0);
    job_start(&s.job, "pleat", NULL, 0);
    assert_ok(pleat__host_stream_hold(&s.job.vmm, 1));
    assert_ok(pleat__host_stream_hold(&s.job.vmm, 2));
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){.s = &s, .seed = test_random_next(&random)};
        assert_int_equal(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_join(workers[t].thread, NULL), 0);
    assert_ok(pleat__host_stream_release(&s.job.vmm, 1));
    assert_ok(pleat__host_stream_release(&s.job.vmm, 2));
    while (give(&s, &random))
        ;
    assert_int_equal(atomic_load(&s.failed), 0);
    assert_int_equal(atomic_load(&s.early), 0);
    assert_int_equal(atomic_load(&s.unordered), 0);
    assert_true(atomic_load(&s.reused) > 10000);
    /* Held streams fall behind: what waits for them is taken over behind them. */
    assert_true(pleat_stats_of(s.job.runtime).streams_ordered > 100);
    for (uint32_t i = 1; i < atomic_load(&s.next); i++) {
        assert_ok(VMM(&s, event_destroy, s.uses[i].done));
        if (s.uses[i].other_done != 0)
            assert_ok(VMM(&s, event_destroy, s.uses[i].other_done));
    }
    job_stop(&s.job);
    pthread_mutex_destroy(&s.lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_reuse_no_byte_before_its_event),
    };
    return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
