/*
 * judge.c: when a plan file is left and a learned schedule dropped, told by counters by hand.
 */
#include "test.h"

#include <runtime/learn/judge.h>
#include <vmm/host/host.h>

#define SETTLING UINT32_C(2) /* iterations that are not judged */
#define MS       UINT64_C(1000000)

typedef struct fixture {
    pleat_vmm host;
    pleat__chunk_pool pool;
    pleat__heap heap;
    pleat_stats stats;
    pleat__judge judge;
    uint64_t clock_ns;
    bool shares; /* views are of memory that was taken over */
} fixture;

static void begin(fixture *f)
{
    *f = (fixture){.clock_ns = 1000 * MS};
    f->heap.pool = &f->pool;
    assert_ok(pleat_vmm_host(NULL, &f->host));
    assert_ok(pleat__host_clock_set(&f->host, f->clock_ns));
    f->heap.vmm = f->host;
    pleat__judge_adopt(&f->judge);
}

static void end(fixture *f)
{
    pleat_vmm_destroy(&f->host);
}

/* An iteration of 100 ms. */
static pleat__verdict iterate(fixture *f, pleat__followed followed, uint64_t placed,
                              uint64_t elsewhere, uint64_t driver_ns)
{
    f->clock_ns += 100 * MS;
    assert_ok(pleat__host_clock_set(&f->host, f->clock_ns));
    f->stats.planned += placed;
    f->stats.cached += elsewhere;
    f->heap.view_ns += driver_ns;
    f->heap.shared_ns += f->shares ? driver_ns : 0;
    return pleat__judge_iteration(&f->judge, &f->heap, &f->stats, followed);
}

static pleat__verdict good(fixture *f, pleat__followed followed)
{
    return iterate(f, followed, 1000, 0, MS / 2);
}

static pleat__verdict bad(fixture *f, pleat__followed followed)
{
    return iterate(f, followed, 1000, 0, MS);
}

static void judge_leaves_a_plan_file_of_another_job(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (int i = 0; i < 3; i++)
        assert_int_equal(iterate(&f, PLEAT__FOLLOWED_FILE, 499, 501, 0), PLEAT__VERDICT_KEEP);
    /* Too few requests say nothing. */
    assert_int_equal(iterate(&f, PLEAT__FOLLOWED_FILE, 0, 63, 0), PLEAT__VERDICT_KEEP);
    assert_int_equal(iterate(&f, PLEAT__FOLLOWED_FILE, 499, 501, 0), PLEAT__VERDICT_LEAVE);
    end(&f);
}

static void judge_keeps_a_plan_file_that_served_once(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    assert_int_equal(iterate(&f, PLEAT__FOLLOWED_FILE, 0, 1000, 0), PLEAT__VERDICT_KEEP);
    /* In lanes is as good as in slots. */
    f.stats.lane += 300;
    assert_int_equal(iterate(&f, PLEAT__FOLLOWED_FILE, 200, 500, 0), PLEAT__VERDICT_KEEP);
    for (int i = 0; i < 50; i++)
        assert_int_equal(iterate(&f, PLEAT__FOLLOWED_FILE, 0, 1000, 0), PLEAT__VERDICT_KEEP);
    end(&f);
}

/* Lanes take what they have room for, another job's requests too. */
static void judge_leaves_a_plan_file_whose_lanes_took_what_matched_nothing(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (int i = 0; i < 4; i++) {
        f.stats.lane += 800;
        f.judge.strays += 600;
        assert_int_equal(iterate(&f, PLEAT__FOLLOWED_FILE, 100, 200, 0),
                         i < 3 ? PLEAT__VERDICT_KEEP : PLEAT__VERDICT_LEAVE);
    }
    end(&f);
}

/* Three bad iterations in a row, behind those in which it settles. */
static void drop_once(fixture *f)
{
    for (uint32_t i = 0; i < SETTLING + 2; i++)
        assert_int_equal(bad(f, PLEAT__FOLLOWED_LEARNED), PLEAT__VERDICT_KEEP);
    assert_int_equal(bad(f, PLEAT__FOLLOWED_LEARNED), PLEAT__VERDICT_DROP);
}

static void judge_drops_what_costs_and_backs_off_twice_as_long_each_time(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t n = 0; n < 10; n++) {
        uint32_t rest = 16u << (n < 6 ? n : 6);
        pleat__judge_adopt(&f.judge);
        drop_once(&f);
        assert_int_equal(f.judge.backoff, rest);
        for (; rest > 0; rest--) {
            assert_int_equal(f.judge.backoff, rest);
            assert_int_equal(good(&f, PLEAT__FOLLOWED_NOTHING), PLEAT__VERDICT_KEEP);
        }
        assert_int_equal(f.judge.backoff, 0);
    }
    end(&f);
}

/* An iteration of 100 ms that follows nothing, whose requests wait for views of what was taken over
 * for so many quarters of a ms beyond the sixteenth that they may. */
static pleat__verdict share(fixture *f, int64_t quarters)
{
    return iterate(f, PLEAT__FOLLOWED_NOTHING, 0, 1000,
                   (uint64_t)((int64_t)(100 * MS / 16) + quarters * (int64_t)MS / 4));
}

static void judge_keeps_streams_apart_where_sharing_costs(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < 20; i++) /* for views of a stream's own memory */
        assert_int_equal(share(&f, 100), PLEAT__VERDICT_KEEP);
    f.shares = true;
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(share(&f, 0), PLEAT__VERDICT_KEEP);
    /* What was not waited for is taken off, and no more than there was. */
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(share(&f, 80), PLEAT__VERDICT_KEEP);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(share(&f, -20), PLEAT__VERDICT_KEEP);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(share(&f, 80), PLEAT__VERDICT_KEEP);
    /* What follows a schedule adds up too, and says nothing. */
    assert_int_equal(iterate(&f, PLEAT__FOLLOWED_FILE, 1000, 0, 100 * MS / 16 + 10 * MS),
                     PLEAT__VERDICT_KEEP);
    assert_int_equal(share(&f, 0), PLEAT__VERDICT_KEEP);
    assert_int_equal(share(&f, 1), PLEAT__VERDICT_KEEP_APART);
    end(&f);
}

/* What is learned in its place costs more than it does (D554). */
static void judge_keeps_a_plan_file_that_costs(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(bad(&f, PLEAT__FOLLOWED_FILE), PLEAT__VERDICT_KEEP);
    end(&f);
}

/* One bad iteration in three is borne for ever; one in two is not. */
static void judge_forgets_what_was_bad_once(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < SETTLING; i++)
        assert_int_equal(good(&f, PLEAT__FOLLOWED_LEARNED), PLEAT__VERDICT_KEEP);
    for (uint32_t i = 0; i < 300; i++)
        assert_int_equal(i % 3 == 0 ? bad(&f, PLEAT__FOLLOWED_LEARNED)
                                    : good(&f, PLEAT__FOLLOWED_LEARNED),
                         PLEAT__VERDICT_KEEP);
    uint32_t count = 0;
    while (count < 100 &&
           (count % 2 == 0 ? bad(&f, PLEAT__FOLLOWED_LEARNED)
                           : good(&f, PLEAT__FOLLOWED_LEARNED)) != PLEAT__VERDICT_DROP)
        count++;
    assert_in_range(count, 6, 12);
    end(&f);
}

/* An iteration for which chunks were made; whether more lived in it than before. */
static pleat__verdict growing(fixture *f, pleat__followed followed, bool lived)
{
    f->pool.count++;
    f->judge.most_live += lived ? 512 : 0;
    return good(f, followed);
}

static void judge_has_learned_anew_what_takes_more_memory(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < SETTLING; i++)
        assert_int_equal(growing(&f, PLEAT__FOLLOWED_LEARNED, false), PLEAT__VERDICT_KEEP);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(growing(&f, PLEAT__FOLLOWED_LEARNED, true), PLEAT__VERDICT_KEEP);
    /* What goes and comes again is no growth. */
    f.pool.absent++;
    assert_int_equal(good(&f, PLEAT__FOLLOWED_LEARNED), PLEAT__VERDICT_KEEP);
    f.pool.absent--;
    assert_int_equal(good(&f, PLEAT__FOLLOWED_LEARNED), PLEAT__VERDICT_KEEP);
    assert_int_equal(growing(&f, PLEAT__FOLLOWED_PART, false), PLEAT__VERDICT_KEEP);
    assert_int_equal(growing(&f, PLEAT__FOLLOWED_LEARNED, false), PLEAT__VERDICT_RELEARN);
    assert_int_equal(f.judge.backoff, 0);
    end(&f);
}

/* A plan file has its memory: what is made beside it is for what is not in it. */
static void judge_lets_the_heap_grow_beside_a_plan_file(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(growing(&f, PLEAT__FOLLOWED_FILE, false), PLEAT__VERDICT_KEEP);
    end(&f);
}

/* The clock of a recording starts again. */
static void judge_outlives_a_clock_that_goes_back(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < 20; i++) {
        f.clock_ns = 0;
        assert_int_equal(iterate(&f, PLEAT__FOLLOWED_LEARNED, 1000, 0, 0), PLEAT__VERDICT_KEEP);
    }
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judge_leaves_a_plan_file_of_another_job),
        cmocka_unit_test(judge_keeps_a_plan_file_that_served_once),
        cmocka_unit_test(judge_leaves_a_plan_file_whose_lanes_took_what_matched_nothing),
        cmocka_unit_test(judge_drops_what_costs_and_backs_off_twice_as_long_each_time),
        cmocka_unit_test(judge_keeps_streams_apart_where_sharing_costs),
        cmocka_unit_test(judge_keeps_a_plan_file_that_costs),
        cmocka_unit_test(judge_forgets_what_was_bad_once),
        cmocka_unit_test(judge_has_learned_anew_what_takes_more_memory),
        cmocka_unit_test(judge_lets_the_heap_grow_beside_a_plan_file),
        cmocka_unit_test(judge_outlives_a_clock_that_goes_back),
    };
    return cmocka_run_group_tests_name("judge", tests, NULL, NULL);
}
