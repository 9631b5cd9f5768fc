/*
 * rehearsal.c: made-up training jobs that make an optimizer's state at the end of their first
 * iteration, on a real runtime over host memory with a canary: the second iteration finds all it
 * asks of the driver made already, in the same places and with no more memory than without; jobs
 * that do something else than was rehearsed go on as they were, and nothing is left over.
 */
#include "held.h"
#include "job.h"

#include <runtime/face/runtime_internal.h>
#include <runtime/policy/pleat_internal.h>
#include <sched.h>
#include <vmm/fault.h>
#include <vmm/host.h>

#define LAYERS  24u
#define STATE   30u
#define WEIGHTS 20u
#define JOBS    4
#define OPENING 24u /* small requests by which an iteration is known */

typedef struct net {
    job j;
    uint64_t sizes[LAYERS][3]; /* what a layer keeps, and two temporaries */
    job_tensor weights[WEIGHTS], kept[LAYERS], gradients[WEIGHTS], state[STATE];
    bool late;   /* gradients are freed between forward and backward */
    bool trails; /* the losses are summed up behind the optimizer's step, where the mark is */
    uint32_t layers;
} net;

static uint64_t some_bytes(test_random *random, uint64_t most)
{
    return 512 * (1 + test_random_below(random, most / 512));
}

static void net_build(net *n, test_random *random)
{
    n->layers = LAYERS;
    for (uint32_t i = 0; i < LAYERS; i++)
        for (uint32_t k = 0; k < 3; k++)
            n->sizes[i][k] = some_bytes(random, k == 0 ? 12 * JOB_PAGE : 30 * JOB_PAGE);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        n->weights[i] = job_alloc(&n->j, (1 + i % 7) * JOB_PAGE / 2, 0);
}

/* What is stitched and what is bought depends on the time that maps take: here they take none. */
static void stop_clock(const pleat_vmm *host)
{
    assert_ok(pleat__host_clock_set(host, 1000000000));
}

static void net_open(net *n, test_random *random, const char *conf, int waits, uint64_t budget)
{
    pleat_runtime_options options = {
        .size = sizeof options, .conf = conf, .waits = waits, .budget_bytes = budget};
    memset(n, 0, sizeof *n);
    job_open(&n->j, &options);
    stop_clock(&n->j.vmm);
    net_build(n, random);
}

static void free_gradients(net *n)
{
    for (uint32_t i = 0; i < WEIGHTS; i++)
        job_free(&n->j, &n->gradients[i]);
}

static void forward(net *n)
{
    job_tensor batch[OPENING];
    for (uint32_t i = 0; i < OPENING; i++)
        batch[i] = job_alloc(&n->j, 777 + 512 * i, 0);
    for (uint32_t i = 0; i < n->layers; i++) {
        job_tensor wide = job_alloc(&n->j, n->sizes[i][1], 0);
        job_tensor wider = job_alloc(&n->j, n->sizes[i][2], 0);
        n->kept[i] = job_alloc(&n->j, n->sizes[i][0], 0);
        job_free(&n->j, &wide);
        job_free(&n->j, &wider);
    }
    for (uint32_t i = 0; i < OPENING; i++)
        job_free(&n->j, &batch[i]);
}

static void backward(net *n)
{
    for (uint32_t i = n->layers; i-- > 0;) {
        job_tensor wide = job_alloc(&n->j, n->sizes[i][1], 0);
        if (i < WEIGHTS)
            n->gradients[i] = job_alloc(&n->j, n->weights[i].bytes, 0);
        job_free(&n->j, &n->kept[i]);
        job_free(&n->j, &wide);
    }
}

static void step(net *n)
{
    for (uint32_t i = 0; i < STATE && n->state[i].address == 0; i++)
        n->state[i] = job_alloc(&n->j, (3 + i % 5) * JOB_PAGE + 512 * i, 0);
    assert_ok(pleat_mark(n->j.runtime));
    for (uint32_t i = 0; i < 3 && n->trails; i++) {
        job_tensor loss = job_alloc(&n->j, 777 + 512 * (i == 0), 0);
        job_free(&n->j, &loss);
    }
}

static void iterate(net *n)
{
    if (!n->late)
        free_gradients(n);
    forward(n);
    if (n->late)
        free_gradients(n);
    backward(n);
    step(n);
}

static void net_close(net *n)
{
    free_gradients(n);
    for (uint32_t i = 0; i < STATE; i++)
        job_free(&n->j, &n->state[i]);
    for (uint32_t i = 0; i < WEIGHTS; i++)
        job_free(&n->j, &n->weights[i]);
    assert_int_equal(n->j.errors, 0);
    assert_int_equal(pleat_stats_of(n->j.runtime).live_bytes, 0);
    job_stop(&n->j);
}

/* Driver calls on the thread that allocates. */
static uint64_t own_calls(const net *n)
{
    pleat_stats stats = pleat_stats_of(n->j.runtime);
    return stats.driver_calls - stats.mapper_calls;
}

typedef struct outcome {
    uint64_t first, second, third; /* driver calls on the thread that allocates */
    pleat_stats stats;
} outcome;

static outcome run_net(uint64_t seed, const char *conf, int waits, bool trails)
{
    net *n = calloc(1, sizeof *n);
    test_random random = {seed};
    outcome o;
    assert_non_null(n);
    net_open(n, &random, conf, waits, 0);
    n->trails = trails;
    iterate(n);
    o.first = own_calls(n);
    iterate(n);
    o.second = own_calls(n) - o.first;
    iterate(n);
    o.third = own_calls(n) - o.second - o.first;
    o.stats = pleat_stats_of(n->j.runtime);
    net_close(n);
    free(n);
    return o;
}

static void rehearsal_leaves_the_second_iteration_hardly_a_driver_call(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a01);
    uint64_t with_calls = 0, without_calls = 0;
    for (int i = 0; i < JOBS; i++) {
        uint64_t seed = test_random_next(&random);
        outcome with = run_net(seed, "", 1, i % 2), without = run_net(seed, "ahead:off", 1, i % 2);
        assert_int_equal(with.first, without.first);
        with_calls += with.second;
        without_calls += without.second;
        assert_int_equal(without.stats.mapper_calls, 0);
        /* In the same places. */
        assert_int_equal(with.stats.stitched, without.stats.stitched);
        assert_int_equal(with.stats.creates, without.stats.creates);
        assert_int_equal(with.stats.physical_bytes, without.stats.physical_bytes);
        assert_int_equal(with.stats.peak_physical_bytes, without.stats.peak_physical_bytes);
    }
    assert_true(without_calls > JOBS * 100);
    assert_true(with_calls * 20 <= without_calls);
}

/* The thread comes as far as it comes. */
static void rehearsal_beside_a_job_that_does_not_wait_changes_no_place(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a02);
    for (int i = 0; i < JOBS; i++) {
        uint64_t seed = test_random_next(&random);
        outcome with = run_net(seed, "", 0, i % 2), without = run_net(seed, "ahead:off", 0, i % 2);
        assert_int_equal(with.stats.stitched, without.stats.stitched);
        assert_int_equal(with.stats.peak_physical_bytes, without.stats.peak_physical_bytes);
    }
}

/* Views make room for others, in the rehearsal as in the job. */
static void rehearsal_drops_views_that_have_no_room(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a09);
    uint64_t with_calls = 0, without_calls = 0;
    for (int i = 0; i < JOBS; i++) {
        uint64_t seed = test_random_next(&random);
        outcome with = run_net(seed, "views:8388608", 1, i % 2);
        outcome without = run_net(seed, "views:8388608,ahead:off", 1, i % 2);
        with_calls += with.second;
        without_calls += without.second;
    }
    assert_true(with_calls * 3 <= without_calls * 2);
}

/* An expert or two have a few pages more or fewer than before. */
static void vary(net *n, test_random *random)
{
    for (uint32_t i = 2; i < LAYERS; i += 8) {
        uint64_t more = test_random_below(random, 3) * JOB_PAGE;
        n->sizes[i][1] =
            n->sizes[i][1] + more > 2 * JOB_PAGE ? n->sizes[i][1] + more - JOB_PAGE : JOB_PAGE;
    }
}

/* The second iteration's calls on the thread that allocates, where sizes vary. */
static uint64_t second_that_varies(uint64_t seed, const char *conf, uint64_t *stitched)
{
    net *n = calloc(1, sizeof *n);
    test_random random = {seed};
    assert_non_null(n);
    net_open(n, &random, conf, 1, 0);
    for (uint32_t i = 0; i < LAYERS; i++)
        n->sizes[i][2] = 30 * JOB_PAGE + some_bytes(&random, 60 * JOB_PAGE);
    iterate(n);
    uint64_t first = own_calls(n), before = pleat_stats_of(n->j.runtime).stitched;
    vary(n, &random);
    iterate(n);
    uint64_t calls = own_calls(n) - first;
    *stitched += pleat_stats_of(n->j.runtime).stitched - before;
    net_close(n);
    free(n);
    return calls;
}

/* Views are made of nearly the chunks that are wanted, and the others are mapped into them. */
static void rehearsal_serves_sizes_that_vary_a_little(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a0c);
    uint64_t with = 0, without = 0, stitched[2] = {0, 0};
    for (int i = 0; i < 3 * JOBS; i++) {
        uint64_t seed = test_random_next(&random);
        with += second_that_varies(seed, "", &stitched[0]);
        without += second_that_varies(seed, "ahead:off", &stitched[1]);
    }
    assert_true(with * 5 < without * 2);
}

/* What was thought to stay goes: no more memory than one part in a hundred for that. */
static void rehearsal_ends_where_what_was_to_stay_is_freed(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a03);
    for (int i = 0; i < JOBS; i++) {
        uint64_t peaks[2], seed = test_random_next(&random);
        for (int off = 0; off < 2; off++) {
            net *n = calloc(1, sizeof *n);
            test_random same = {seed};
            assert_non_null(n);
            net_open(n, &same, off ? "ahead:off" : "", 1, 0);
            n->late = true;
            for (int k = 0; k < 4; k++)
                iterate(n);
            peaks[off] = pleat_stats_of(n->j.runtime).peak_physical_bytes;
            net_close(n);
            free(n);
        }
        assert_true(peaks[0] <= peaks[1] + peaks[1] / 100);
    }
}

/* The rest of a long list is not known yet, and the job goes on meanwhile: what is due moves on
 * with it, so that a request waits for what is on its way. Only whether all is as rehearsed is not.
 */
static void rehearsal_lets_the_list_on_while_it_is_made(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a0a);
    net *n = calloc(1, sizeof *n);
    assert_non_null(n);
    net_open(n, &random, "", 0, 0);
    iterate(n);
    free_gradients(n);
    forward(n);
    pleat__rehearsal *rehearsal = &((pleat__planned *)n->j.runtime->policy)->rehearsal;
    pleat__ahead *ahead = &rehearsal->ahead;
    pleat__gate_lock(ahead->pool->gate);
    while (ahead->worker.busy)
        pleat__worker_wait(&ahead->worker);
    assert_non_null(rehearsal->score);
    uint32_t reach = rehearsal->reach;
    ahead->when = (pleat__when){0};
    ahead->listing = true;
    pleat__rehearsal_look(rehearsal);
    uint32_t request = rehearsal->lives->count - rehearsal->lives->previous;
    assert_true(ahead->when.now > request);
    assert_int_equal(ahead->when.soon, ahead->when.now + reach);
    assert_int_equal(rehearsal->reach, reach);
    ahead->listing = false;
    pleat__gate_unlock(ahead->pool->gate);
    backward(n);
    step(n);
    iterate(n);
    net_close(n);
    free(n);
}

/* Half of a network, as an evaluation: what was made for the rest goes back. */
static void rehearsal_gives_back_what_nobody_took(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a04);
    net *n = calloc(1, sizeof *n);
    assert_non_null(n);
    net_open(n, &random, "", 1, 0);
    iterate(n);
    n->layers = LAYERS / 2;
    iterate(n);
    pleat_stats after = pleat_stats_of(n->j.runtime);
    assert_true(after.mapper_calls > 0);
    n->layers = 2;
    iterate(n);
    assert_ok(pleat_empty_cache(n->j.runtime));
    pleat_stats left = pleat_stats_of(n->j.runtime);
    assert_true(left.physical_bytes <= after.physical_bytes);
    n->layers = LAYERS;
    for (int i = 0; i < 4; i++)
        iterate(n);
    assert_int_equal(pleat_stats_of(n->j.runtime).quarantined_bytes, 0);
    net_close(n);
    free(n);
}

/* Layers in another order: of what was made for the old one nothing is left when the iteration
 * ends, so the next one makes no driver call for it. */
static void rehearsal_gives_back_what_is_overdue(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a08);
    for (int i = 0; i < JOBS; i++) {
        net *n = calloc(1, sizeof *n);
        assert_non_null(n);
        net_open(n, &random, "draft:off", 1, 0);
        iterate(n);
        for (uint32_t l = 1; l < LAYERS / 2; l++) {
            uint64_t bytes = n->sizes[l][1];
            n->sizes[l][1] = n->sizes[LAYERS - 1 - l][1];
            n->sizes[LAYERS - 1 - l][1] = bytes;
        }
        free_gradients(n);
        forward(n);
        backward(n);
        uint64_t before = pleat_stats_of(n->j.runtime).mapper_calls;
        assert_true(before > 0);
        step(n);
        assert_int_equal(pleat_stats_of(n->j.runtime).mapper_calls, before);
        net_close(n);
        free(n);
    }
}

/* In the middle of the iteration all that is idle goes, what was made ahead too. */
static void rehearsal_lets_go_where_memory_is_wanted(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a05);
    for (int waits = 0; waits < 2; waits++) {
        net *n = calloc(1, sizeof *n);
        assert_non_null(n);
        net_open(n, &random, "", waits, 0);
        iterate(n);
        free_gradients(n);
        forward(n);
        assert_ok(pleat_empty_cache(n->j.runtime));
        pleat_stats stats = pleat_stats_of(n->j.runtime);
        /* Live tensors' ends share chunks with nothing; beyond that there is nothing idle. */
        assert_true(stats.physical_bytes <=
                    stats.live_bytes + (LAYERS + WEIGHTS + STATE) * 2 * JOB_PAGE);
        backward(n);
        step(n);
        iterate(n);
        net_close(n);
        free(n);
    }
}

/* Exactly as much as the job takes: it is never exceeded, and nobody is refused. */
static void rehearsal_stays_within_the_budget(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0a06);
    for (int i = 0; i < 3; i++) {
        uint64_t seed = test_random_next(&random);
        uint64_t peak = run_net(seed, "ahead:off", 1, false).stats.peak_physical_bytes;
        for (int waits = 0; waits < 2; waits++) {
            net *n = calloc(1, sizeof *n);
            test_random same = {seed};
            assert_non_null(n);
            net_open(n, &same, "", waits, peak);
            for (int k = 0; k < 3; k++)
                iterate(n);
            pleat_stats stats = pleat_stats_of(n->j.runtime);
            assert_true(stats.peak_physical_bytes <= peak);
            assert_int_equal(stats.out_of_memory, 0);
            net_close(n);
            free(n);
        }
    }
}

/* Every verb of what is made ahead fails in turn: the job does it by itself. */
static void rehearsal_that_fails_costs_only_what_it_would_have_saved(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_create, PLEAT__FAULT_map,
                                              PLEAT__FAULT_set_access};
    test_random random = test_random_begin(__func__, 0x5eed0a07);
    uint64_t hits = 0;
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++)
        for (uint64_t nth = 1; nth < 400; nth += 1 + nth) {
            net *n = calloc(1, sizeof *n);
            pleat_vmm host;
            test_random same = random;
            assert_non_null(n);
            job_host(&host);
            assert_ok(pleat__fault_create(host, &n->j.vmm));
            stop_clock(&host);
            pleat_runtime_options runtime = {.size = sizeof runtime, .conf = "", .waits = 1};
            assert_ok(pleat_runtime_create(n->j.vmm, &runtime, &n->j.runtime));
            net_build(n, &same);
            iterate(n);
            uint64_t mapper = pleat_stats_of(n->j.runtime).mapper_calls;
            pleat__fault_arm(&n->j.vmm, (pleat__fault_plan){.verb = verbs[v], .nth = nth});
            iterate(n);
            assert_true(pleat_stats_of(n->j.runtime).mapper_calls > mapper);
            hits += pleat__fault_hits(&n->j.vmm);
            iterate(n);
            net_close(n);
            assert_nothing_held(&host);
            pleat_vmm_destroy(&host);
            free(n);
        }
    assert_true(hits > 10);
}

/* Another stream's work keeps what is freed: frees that wait are rehearsed too. */
static void rehearsal_knows_frees_that_wait(void **state)
{
    (void)state;
    uint64_t calls[2], peaks[2];
    for (int off = 0; off < 2; off++) {
        job j;
        pleat_runtime_options options = {
            .size = sizeof options, .conf = off ? "ahead:off" : "", .waits = 1};
        job_tensor kept[STATE] = {0};
        job_open(&j, &options);
        stop_clock(&j.vmm);
        assert_ok(pleat__host_stream_trail(&j.vmm, 9));
        for (int iteration = 0; iteration < 2; iteration++) {
            pleat_stats before = pleat_stats_of(j.runtime);
            for (uint32_t i = 0; i < 100; i++) {
                job_tensor gathered = job_alloc(&j, (4 + i % 9) * JOB_PAGE, 1);
                job_tensor work = job_alloc(&j, (2 + i % 5) * JOB_PAGE + 512, 0);
                job_tensor more = job_alloc(&j, 700 + i, 0);
                assert_ok(pleat_record_stream(j.runtime, gathered.address, 9));
                job_free(&j, &gathered);
                if (i % 8 == 7)
                    assert_ok(pleat__host_stream_advance(&j.vmm, 9, 4));
                job_free(&j, &work);
                job_free(&j, &more);
            }
            for (uint32_t i = 0; i < STATE && iteration == 0; i++)
                kept[i] = job_alloc(&j, (3 + i % 5) * JOB_PAGE, (pleat_stream)(i % 2));
            pleat_stats after = pleat_stats_of(j.runtime);
            calls[off] = after.driver_calls - after.mapper_calls -
                         (before.driver_calls - before.mapper_calls);
            assert_ok(pleat_mark(j.runtime));
        }
        peaks[off] = pleat_stats_of(j.runtime).peak_physical_bytes;
        for (uint32_t i = 0; i < STATE; i++)
            job_free(&j, &kept[i]);
        assert_int_equal(j.errors, 0);
        assert_ok(pleat__host_stream_release(&j.vmm, 9));
        job_stop(&j);
    }
    assert_true(calls[1] > 0);
    assert_true(calls[0] <= calls[1]);
    assert_true(peaks[0] <= peaks[1] + peaks[1] / 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rehearsal_leaves_the_second_iteration_hardly_a_driver_call),
        cmocka_unit_test(rehearsal_beside_a_job_that_does_not_wait_changes_no_place),
        cmocka_unit_test(rehearsal_drops_views_that_have_no_room),
        cmocka_unit_test(rehearsal_serves_sizes_that_vary_a_little),
        cmocka_unit_test(rehearsal_ends_where_what_was_to_stay_is_freed),
        cmocka_unit_test(rehearsal_lets_the_list_on_while_it_is_made),
        cmocka_unit_test(rehearsal_gives_back_what_nobody_took),
        cmocka_unit_test(rehearsal_gives_back_what_is_overdue),
        cmocka_unit_test(rehearsal_lets_go_where_memory_is_wanted),
        cmocka_unit_test(rehearsal_stays_within_the_budget),
        cmocka_unit_test(rehearsal_that_fails_costs_only_what_it_would_have_saved),
        cmocka_unit_test(rehearsal_knows_frees_that_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
