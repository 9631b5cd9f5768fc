/*
 * judge.c: when a plan file is left and when streams are kept apart, told by counters by hand.
 */
#include "test.h"

#include <runtime/learn/judge.h>
#include <vmm/host/host.h>

#define MS UINT64_C(1000000)

typedef struct fixture {
    pleat_vmm host;
    pleat__chunk_pool pool;
    pleat__heap heap;
    pleat_stats stats;
    pleat__judge judge;
    uint64_t clock_ns;
} fixture;

static void begin(fixture *f)
{
    *f = (fixture){.clock_ns = 1000 * MS};
    f->heap.pool = &f->pool;
    assert_ok(pleat_vmm_host(NULL, &f->host));
    assert_ok(pleat__host_clock_set(&f->host, f->clock_ns));
    f->heap.vmm = f->host;
}

static void end(fixture *f)
{
    pleat_vmm_destroy(&f->host);
}

/* An iteration of 100 ms. */
static pleat__verdict iterate(fixture *f, pleat__followed followed, uint64_t placed,
                              uint64_t elsewhere, uint64_t shared_ns)
{
    f->clock_ns += 100 * MS;
    assert_ok(pleat__host_clock_set(&f->host, f->clock_ns));
    f->stats.planned += placed;
    f->stats.cached += elsewhere;
    f->heap.shared_ns += shared_ns;
    return pleat__judge_iteration(&f->judge, &f->heap, &f->stats, followed);
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
    assert_int_equal(iterate(&f, PLEAT__FOLLOWED_FILE, 1000, 0, 100 * MS / 16 + MS / 4),
                     PLEAT__VERDICT_KEEP);
    assert_int_equal(share(&f, 0), PLEAT__VERDICT_KEEP_APART);
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
        assert_int_equal(iterate(&f, PLEAT__FOLLOWED_NOTHING, 0, 1000, 0), PLEAT__VERDICT_KEEP);
    }
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judge_leaves_a_plan_file_of_another_job),
        cmocka_unit_test(judge_keeps_a_plan_file_that_served_once),
        cmocka_unit_test(judge_leaves_a_plan_file_whose_lanes_took_what_matched_nothing),
        cmocka_unit_test(judge_keeps_streams_apart_where_sharing_costs),
        cmocka_unit_test(judge_outlives_a_clock_that_goes_back),
    };
    return cmocka_run_group_tests_name("judge", tests, NULL, NULL);
}
