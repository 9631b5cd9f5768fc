/*
 * beat.c: finding the iterations of jobs that mark none and whose sizes are others each time, on a
 * real runtime with a canary; and where they are found to begin, on beats alone.
 */
#include "nested.h"

#include <runtime/learn/beat.h>

/* ---- a job ---- */

/* An iteration at another x: what a layer works on grows with it, parameters do not. */
static void iterate_at(job *j, nested *n, uint64_t x)
{
    nested now = *n;
    for (uint32_t r = 0; r < n->requests; r++) {
        now.forward[r] *= x;
        now.backward[r] *= x;
    }
    now.embedding *= x;
    now.loss *= x;
    nested_iterate(j, &now);
    memcpy(n->states, now.states, sizeof n->states);
    memcpy(n->gradients, now.gradients, sizeof n->gradients);
    n->count = now.count;
}

/* At so many different xs until that many requests have come. */
static pleat_stats run(job *j, nested *n, test_random *random, uint64_t requests)
{
    pleat_stats before = pleat_stats_of(j->runtime), after;
    do {
        iterate_at(j, n, 2 + test_random_below(random, 7));
        after = pleat_stats_of(j->runtime);
    } while (after.requests < before.requests + requests);
    after.requests -= before.requests;
    after.planned += after.lane - before.planned - before.lane;
    after.driver_calls -= before.driver_calls;
    after.divergences -= before.divergences;
    return after;
}

static void assert_planned(pleat_stats stats, uint32_t percent)
{
    if (stats.planned * 100 < stats.requests * percent)
        fail_msg("%llu of %llu planned, %llu divergences", (unsigned long long)stats.planned,
                 (unsigned long long)stats.requests, (unsigned long long)stats.divergences);
}

static void stop(job *j, nested *n)
{
    nested_end(j, n);
    assert_int_equal(j->errors, 0);
    assert_int_equal(pleat_stats_of(j->runtime).live_bytes, 0);
    job_stop(j);
}

static void beat_varying_job_is_followed_without_marks(void **state)
{
    (void)state;
    test_random random = test_random_begin("varying", 0xbea7);
    static const uint32_t microbatches[] = {1, 2, 3, 4, 8};
    for (uint32_t i = 0; i < sizeof microbatches / sizeof *microbatches; i++) {
        job j;
        nested n = nested_make(&random, microbatches[i]);
        job_start(&j, "pleat", NULL, 0);
        run(&j, &n, &random, 60000);
        pleat_stats stats = run(&j, &n, &random, 20000);
        assert_planned(stats, 98);
        assert_int_equal(stats.divergences, 0);
        assert_true(stats.driver_calls <= stats.requests / 100);
        stop(&j, &n);
    }
}

/* A layer's even requests have sizes that are drawn anew each time, as those of experts. */
static uint64_t routed_bytes(const nested *n, uint32_t r, test_random *random)
{
    return r % 2 == 1 ? n->forward[r] : 512 * (20 + test_random_below(random, 100));
}

static void iterate_routed(job *j, nested *n, test_random *random)
{
    static job_tensor kept[NESTED_KEPT];
    n->count = 0;
    job_tensor embedding = nested_alloc(j, n, n->embedding);
    for (uint32_t i = 0; i < n->layers * n->requests; i++) {
        kept[i] = nested_alloc(j, n, routed_bytes(n, i % n->requests, random));
        if (i % 5 == 1)
            job_free(j, &kept[i]);
    }
    for (uint32_t i = n->layers * n->requests; i-- > 0;) {
        job_tensor t = nested_alloc(j, n, routed_bytes(n, i % n->requests, random));
        job_free(j, &kept[i]);
        job_free(j, &t);
    }
    for (uint32_t i = 0; i < n->layers * 4; i++)
        n->gradients[i] = nested_alloc(j, n, n->parameters[i % 4]);
    nested_step(j, n);
    job_free(j, &embedding);
}

static void beat_routed_job_is_followed_without_marks(void **state)
{
    (void)state;
    test_random random = test_random_begin("routed", 0x40e);
    for (uint32_t i = 0; i < 4; i++) {
        job j;
        nested n = nested_make(&random, 1);
        n.keeps_gradients = false;
        job_start(&j, "pleat", NULL, 0);
        pleat_stats before = {0};
        for (uint32_t requests = 0; requests < 60000; requests += n.count) {
            if (requests < 40000)
                before = pleat_stats_of(j.runtime);
            iterate_routed(&j, &n, &random);
        }
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_true(after.divergences <= 1);
        after.requests -= before.requests;
        after.planned += after.lane - before.planned - before.lane;
        /* What stays is half of it. */
        assert_planned(after, 50);
        stop(&j, &n);
    }
}

/* Something of the job's own between two iterations. */
static void evaluate(job *j, const nested *n, uint64_t x)
{
    job_tensor held[NESTED_LAYER];
    for (uint32_t layer = 0; layer < 2 * n->layers; layer++) {
        for (uint32_t r = 0; r < n->requests; r++)
            held[r] = job_alloc(j, n->forward[r] * x + 512, 0);
        for (uint32_t r = 0; r < n->requests; r++)
            job_free(j, &held[r]);
    }
}

static void beat_evaluations_cost_themselves_only(void **state)
{
    (void)state;
    test_random random = test_random_begin("evaluations", 0xe7a1);
    for (uint32_t i = 0; i < 4; i++) {
        job j;
        nested n = nested_make(&random, 1 + i);
        job_start(&j, "pleat", NULL, 0);
        run(&j, &n, &random, 40000);
        pleat_stats stats = {0};
        for (uint32_t k = 0; k < 8; k++) {
            evaluate(&j, &n, 2 + test_random_below(&random, 7));
            stats = run(&j, &n, &random, 30000);
        }
        assert_planned(stats, 60);
        stop(&j, &n);
    }
}

static void beat_job_that_begins_to_mark_is_believed(void **state)
{
    (void)state;
    test_random random = test_random_begin("marks", 0x3a4);
    job j;
    nested n = nested_make(&random, 2);
    job_start(&j, "pleat", NULL, 0);
    run(&j, &n, &random, 30000);
    pleat_stats before = {0};
    for (uint32_t i = 0; i < 40; i++) {
        if (i == 20)
            before = pleat_stats_of(j.runtime);
        assert_ok(pleat_mark(j.runtime));
        iterate_at(&j, &n, 2 + test_random_below(&random, 7));
    }
    pleat_stats after = pleat_stats_of(j.runtime);
    after.requests -= before.requests;
    after.planned += after.lane - before.planned - before.lane;
    assert_planned(after, 98);
    stop(&j, &n);
}

/* ---- beats alone ---- */

#define STEPS 700u /* requests of an iteration */

/* Lives of an iteration's requests: how many are freed before each, and what is live. */
typedef struct score {
    uint32_t frees[STEPS];
    uint64_t live[STEPS];
} score;

/* The first half adds to what is live, the second takes it away. */
static score score_make(test_random *random)
{
    score s;
    for (uint32_t i = 0; i < STEPS; i++) {
        s.frees[i] = (uint32_t)test_random_below(random, 5);
        s.live[i] = 1000000 + 1000 * (i < STEPS / 2 ? i : STEPS - i);
    }
    return s;
}

static pleat__beat_says play(pleat__beat *beat, const score *s, uint32_t i, uint64_t bytes)
{
    beat->frees = s->frees[i];
    return pleat__beat_request(beat, bytes, 0, s->live[i]);
}

static void beat_begins_where_the_least_is_live(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__beat beat;
    test_random random = test_random_begin("least", 0x1ea57);
    assert_ok(pleat__arena_create(&arena));
    for (uint32_t round = 0; round < 20; round++) {
        score s = score_make(&random);
        uint32_t found = 0, begins = 0, first = (uint32_t)test_random_below(&random, STEPS);
        pleat__beat_init(&beat, arena, false);
        for (uint32_t at = first; at < 40 * STEPS; at++) {
            pleat__beat_says says =
                play(&beat, &s, at % STEPS, at % STEPS < STEPS - 100 ? 512 * (at + 1u) : 512);
            found += says == PLEAT__BEAT_FOUND;
            if (says == PLEAT__BEAT_FOUND)
                assert_int_equal((first + beat.begin) % STEPS, 0);
            if (says == PLEAT__BEAT_BEGIN)
                assert_int_equal((at + 1) % STEPS, 0);
            begins += says == PLEAT__BEAT_BEGIN;
            assert_int_not_equal(says, PLEAT__BEAT_LOST);
        }
        assert_int_equal(found, 1);
        assert_true(begins >= 20);
        pleat__beat_restart(&beat);
    }
    pleat__arena_destroy(arena);
}

/* Each time something is added or left out. */
static void beat_keeps_time_when_requests_come_and_go(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__beat beat;
    test_random random = test_random_begin("come and go", 0xc09);
    assert_ok(pleat__arena_create(&arena));
    score s = score_make(&random);
    uint32_t begins = 0, right = 0, lost = 0;
    uint64_t bytes = 512;
    pleat__beat_init(&beat, arena, false);
    for (uint32_t iteration = 0; iteration < 100; iteration++) {
        uint32_t at = 100 + (uint32_t)test_random_below(&random, STEPS - 200);
        bool adds = test_random_below(&random, 2) == 0;
        for (uint32_t i = 0; i < STEPS; i++) {
            if (iteration >= 30 && i == at && !adds)
                continue;
            pleat__beat_says says = play(&beat, &s, i, bytes += 512);
            if (iteration >= 30 && i == at) {
                beat.frees = 9;
                says = pleat__beat_request(&beat, bytes += 512, 0, s.live[i]);
            }
            begins += says == PLEAT__BEAT_BEGIN;
            right += says == PLEAT__BEAT_BEGIN && i == STEPS - 1;
            lost += says == PLEAT__BEAT_LOST;
        }
    }
    assert_int_equal(lost, 0);
    assert_int_equal(begins, right);
    assert_true(begins >= 80);
    pleat__beat_restart(&beat);
    pleat__arena_destroy(arena);
}

/* The first iteration is longer by what it makes for all others. */
static void beat_is_known_when_the_third_iteration_begins(void **state)
{
    (void)state;
    enum { LONG = 6000, STAYS = 100 };
    static uint32_t frees[LONG];
    pleat__arena *arena;
    pleat__beat beat;
    test_random random = test_random_begin("third", 0x3d);
    assert_ok(pleat__arena_create(&arena));
    for (uint32_t round = 0; round < 20; round++) {
        uint32_t more = 200 + (uint32_t)test_random_below(&random, 1200), at = 0, found = 0;
        for (uint32_t i = 0; i < LONG; i++)
            frees[i] = (uint32_t)test_random_below(&random, 5);
        pleat__beat_init(&beat, arena, false);
        for (; at < 3 * LONG + more && found == 0; at++) {
            uint32_t i = at < LONG ? at : at < LONG + more ? LONG : (at - LONG - more) % LONG;
            uint64_t high = i < LONG / 2 ? i : LONG - i;
            beat.frees = i < LONG ? frees[i] : 0;
            found = pleat__beat_request(&beat, i < LONG - STAYS ? 512 * (at + 1ull) : 512, 0,
                                        1000000 + 1000 * high) == PLEAT__BEAT_FOUND;
        }
        assert_int_equal(found, 1);
        assert_int_equal(beat.found.length, LONG);
        assert_int_equal(beat.found.before, LONG + more);
        assert_int_equal(beat.begin, 2 * LONG + more);
        pleat__beat_restart(&beat);
    }
    pleat__arena_destroy(arena);
}

/* What grows with each repeat is an iteration's part: layers, tokens that are generated. */
static void beat_loops_that_leave_something_are_none(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__beat beat;
    test_random random = test_random_begin("loops", 0x100);
    assert_ok(pleat__arena_create(&arena));
    score s = score_make(&random);
    uint64_t bytes = 512;
    pleat__beat_init(&beat, arena, false);
    for (uint32_t at = 0; at < 60 * STEPS; at++) {
        beat.frees = s.frees[at % STEPS];
        uint64_t live = s.live[at % STEPS] + at / STEPS * 20000;
        assert_int_equal(pleat__beat_request(&beat, bytes += 512, 0, live), PLEAT__BEAT_NONE);
    }
    pleat__beat_restart(&beat);
    pleat__arena_destroy(arena);
}

/* Where sizes are equal it is learn.c's to find the iteration. */
static void beat_says_nothing_where_sizes_are_equal(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__beat beat;
    test_random random = test_random_begin("equal", 0xe9);
    assert_ok(pleat__arena_create(&arena));
    score s = score_make(&random);
    pleat__beat_init(&beat, arena, false);
    for (uint32_t at = 0; at < 60 * STEPS; at++)
        assert_int_equal(play(&beat, &s, at % STEPS, 512 * (at % STEPS + 1u)), PLEAT__BEAT_NONE);
    pleat__beat_restart(&beat);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beat_begins_where_the_least_is_live),
        cmocka_unit_test(beat_keeps_time_when_requests_come_and_go),
        cmocka_unit_test(beat_is_known_when_the_third_iteration_begins),
        cmocka_unit_test(beat_loops_that_leave_something_are_none),
        cmocka_unit_test(beat_says_nothing_where_sizes_are_equal),
        cmocka_unit_test(beat_varying_job_is_followed_without_marks),
        cmocka_unit_test(beat_routed_job_is_followed_without_marks),
        cmocka_unit_test(beat_evaluations_cost_themselves_only),
        cmocka_unit_test(beat_job_that_begins_to_mark_is_believed),
    };
    return cmocka_run_group_tests_name("beat", tests, NULL, NULL);
}
