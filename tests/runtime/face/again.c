/*
 * again.c: a request that is refused because another thread has the turn begins again when it has
 * it. It is still one request: it lies where it would have lain, and so do those behind it.
 */
#include "scaled_job.h"

#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/policy/pleat_internal.h>
#include <stdatomic.h>
#include <time.h>

#define SEEDS        3
#define ITERATIONS   10u
#define MOST_REFUSED 5u

/* A thread that has the turn until a request waits for it. */
static struct {
    pleat__gate *gate;
    pthread_t thread;
    atomic_bool wanted; /* the turn is to be taken */
    atomic_bool taken;
    atomic_bool ending;
    uint64_t refused;
} thief;

static void pause_shortly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000}, NULL);
}

static void hold_turn(void)
{
    pthread_mutex_lock(&thief.gate->turn);
    atomic_store(&thief.taken, true);
    while (atomic_load(&thief.wanted) && atomic_load(&thief.gate->awaited) == 0)
        pause_shortly();
    thief.refused += atomic_load(&thief.gate->awaited) != 0;
    atomic_store(&thief.wanted, false);
    pthread_mutex_unlock(&thief.gate->turn);
    atomic_store(&thief.taken, false);
}

static void *steal(void *unused)
{
    (void)unused;
    while (!atomic_load(&thief.ending)) {
        if (atomic_load(&thief.wanted))
            hold_turn();
        else
            pause_shortly();
    }
    return NULL;
}

static void begin_stealing(job *j)
{
    thief.gate = &j->runtime->gate;
    thief.refused = 0;
    atomic_store(&thief.wanted, false);
    atomic_store(&thief.ending, false);
    assert_int_equal(pthread_create(&thief.thread, NULL, steal, NULL), 0);
}

static void end_stealing(void)
{
    atomic_store(&thief.ending, true);
    pthread_join(thief.thread, NULL);
}

static void set_stolen(bool stolen)
{
    atomic_store(&thief.wanted, stolen);
    while (atomic_load(&thief.taken) != stolen)
        pause_shortly();
}

/* Where the requests of a job's iterations lay, counted from its first one. */
typedef struct served {
    int64_t offset[ITERATIONS][JOB_REQUESTS];
    uint64_t planned, diverged, refused;
    uint64_t asked; /* as the learner counted them */
} served;

/* Requests as the learner counts them. */
static uint64_t asked_of(const job *j)
{
    return ((const pleat__pleat *)j->runtime->policy)->learner.requests;
}

/* An iteration of which requests find the turn taken, until `most` of those needed it. */
static void run_refused(job *j, const job_shape *shape, uint64_t most, int64_t *offset)
{
    job_ends ends = job_ends_of(shape);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        bool steals = thief.refused < most;
        if (steals)
            set_stolen(true);
        job_request(j, shape, i, 0);
        if (steals)
            set_stolen(false);
        offset[i] = (int64_t)j->now[i].address;
        job_end_at(j, &ends, i);
    }
    job_turn(j);
}

static void serve(uint64_t seed, uint64_t most, served *s)
{
    static const uint64_t xs[ITERATIONS] = {3, 3, 3, 3, 4, 4, 4, 4, 3, 3};
    const pleat_runtime_options options = {.size = sizeof options, .waits = 1};
    job j = {0};
    scaled_job scaled = scaled_make(seed);
    job_host_timeless(&j.vmm);
    assert_ok(pleat_runtime_create(j.vmm, &options, &j.runtime));
    begin_stealing(&j);
    for (uint32_t n = 0; n < ITERATIONS; n++) {
        job_shape shape = at_x(&scaled, xs[n]);
        assert_ok(pleat_mark(j.runtime));
        run_refused(&j, &shape, most, s->offset[n]);
    }
    end_stealing();
    s->asked = asked_of(&j);
    int64_t first = s->offset[0][0];
    for (uint32_t n = 0; n < ITERATIONS; n++)
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            s->offset[n][i] -= first;
    pleat_stats stats = pleat_stats_of(j.runtime);
    s->planned = stats.planned;
    s->diverged = stats.diverged;
    s->refused = thief.refused;
    finish(&j);
}

static void again_is_the_same_request(void **state)
{
    (void)state;
    static served one, other;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        serve(seed, 0, &one);
        for (uint64_t most = 1; most <= MOST_REFUSED; most++) {
            serve(seed, most, &other);
            assert_int_equal(other.refused, most);
            assert_int_equal(other.planned, one.planned);
            assert_int_equal(other.diverged, one.diverged);
            assert_int_equal(other.asked, ITERATIONS * JOB_REQUESTS);
            assert_memory_equal(other.offset, one.offset, sizeof one.offset);
        }
    }
}

/* A policy whose requests give up so often before they are served, or are refused in between. */
static struct {
    const pleat__policy_ops *ops;
    uint32_t not_ready, refused;
} balky;

static pleat_result alloc_at_last(void *policy, uint64_t bytes, pleat_stream stream,
                                  pleat_va *address)
{
    if (balky.not_ready != 0) {
        balky.not_ready--;
        return PLEAT_E_NOT_READY;
    }
    if (balky.refused != 0) {
        balky.refused--;
        balky.not_ready = 2;
        return PLEAT_E_OUT_OF_MEMORY;
    }
    return balky.ops->alloc(policy, bytes, stream, address);
}

/* Where the turn is left while something on its way is waited for, all may be another again, and so
 * once more: the program must not hear of it. */
static void again_is_as_often_as_it_takes(void **state)
{
    (void)state;
    for (uint32_t refused = 0; refused < 2; refused++) {
        job j;
        job_start(&j, "pleat", NULL, 0);
        balky.ops = j.runtime->ops;
        pleat__policy_ops ops = *balky.ops;
        ops.alloc = alloc_at_last;
        j.runtime->ops = &ops;
        /* Idle, so that giving it back helps. */
        job_tensor cached = job_alloc(&j, 100000, 0);
        job_free(&j, &cached);
        balky.not_ready = 3;
        balky.refused = refused;
        job_tensor t = job_alloc(&j, 100000, 0);
        assert_int_equal(balky.not_ready, 0);
        assert_int_equal(balky.refused, 0);
        assert_int_equal(pleat_stats_of(j.runtime).requests, 2);
        job_free(&j, &t);
        j.runtime->ops = balky.ops;
        job_stop(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(again_is_the_same_request),
        cmocka_unit_test(again_is_as_often_as_it_takes),
    };
    return cmocka_run_group_tests_name("again", tests, NULL, NULL);
}
