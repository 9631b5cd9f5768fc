/*
 * follow.c: the policy `pleat` with plans made by hand: slots, folds, lanes, and what a wrong plan
 * does.
 */
#include "host.h"
#include "job.h"

#include <internal/arena.h>
#include <plan/base/plan.h>
#include <runtime/base/conf.h>
#include <runtime/follow/schedule.h>

typedef struct plan_of_job {
    pleat_plan plan;
    pleat__slot slots[JOB_REQUESTS];
    pleat__plan_handle handles[2];
    pleat__plan_map maps[4];
    pleat__lane lanes[1];
    pleat__slot weights; /* of make_plan_behind() */
} plan_of_job;

/* Whether two requests of an iteration that repeats are ever live together. */
static bool meet(const job_shape *shape, uint32_t a, uint32_t b)
{
    for (uint32_t at = a;; at = (at + 1) % JOB_REQUESTS) {
        if (at == b)
            return true;
        if (at == shape->last[a])
            break;
    }
    for (uint32_t at = b;; at = (at + 1) % JOB_REQUESTS) {
        if (at == a)
            return true;
        if (at == shape->last[b])
            return false;
    }
}

#define NOT_YET UINT64_MAX /* it has no place */

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 511) & ~511ull;
}

/* Whether request k has a place that reaches into that of i while both live. */
static bool is_in_the_way(const job_shape *shape, const uint64_t *places, uint32_t k, uint32_t i)
{
    return places[k] < places[i] + rounded(shape->bytes[i]) &&
           places[i] < places[k] + rounded(shape->bytes[k]) && meet(shape, k, i);
}

/* The lowest place for request i beside those that have one. */
static void place_one(const job_shape *shape, uint64_t *places, uint32_t i)
{
    places[i] = 0;
    for (uint32_t k = 0; k < JOB_REQUESTS; k++)
        if (k != i && places[k] != NOT_YET && is_in_the_way(shape, places, k, i)) {
            places[i] = places[k] + rounded(shape->bytes[k]);
            k = UINT32_MAX;
        }
}

/* First fit, the largest first; returns the height. */
static uint64_t place_all(const job_shape *shape, uint64_t places[JOB_REQUESTS])
{
    uint64_t height = 0;
    memset(places, 0xff, JOB_REQUESTS * sizeof *places);
    for (uint32_t placed = 0; placed < JOB_REQUESTS; placed++) {
        uint32_t largest = JOB_REQUESTS;
        for (uint32_t i = 0; i < JOB_REQUESTS; i++)
            if (places[i] == NOT_YET &&
                (largest == JOB_REQUESTS || shape->bytes[i] > shape->bytes[largest]))
                largest = i;
        place_one(shape, places, largest);
        uint64_t end = places[largest] + rounded(shape->bytes[largest]);
        height = end > height ? end : height;
    }
    return height;
}

static void make_plan(plan_of_job *p, const job_shape *shape)
{
    uint64_t places[JOB_REQUESTS];
    uint32_t chunks = (uint32_t)((place_all(shape, places) + JOB_PAGE - 1) / JOB_PAGE);
    memset(p, 0, sizeof *p);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        p->slots[i] = (pleat__slot){.size = shape->bytes[i],
                                    .place = places[i],
                                    .lane = PLEAT__NO_LANE,
                                    .class = PLEAT__CLASS_TRANSIENT};
    p->handles[0] = (pleat__plan_handle){.chunks = chunks};
    p->plan = (pleat_plan){.unroll = 1,
                           .chunk_bytes = JOB_PAGE,
                           .virtual_bytes = (uint64_t)chunks * JOB_PAGE,
                           .physical_bytes = (uint64_t)chunks * JOB_PAGE,
                           .steady = {.slots = p->slots, .slot_count = JOB_REQUESTS},
                           .handles = p->handles,
                           .handle_count = 1,
                           .maps = p->maps,
                           .map_count = 1,
                           .lanes = p->lanes};
}

static void run_marked(job *j, const job_shape *shape, uint32_t iterations)
{
    for (uint32_t i = 0; i < iterations; i++) {
        assert_ok(pleat_mark(j->runtime));
        job_iterate(j, shape, JOB_PLAIN, 0);
    }
}

static void follow_every_request_of_a_plan_has_its_slot(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(21, 1);
    make_plan(&p, &shape);
    job_start(&j, "pleat", &p.plan, 0);
    run_marked(&j, &shape, 1);
    uint64_t calls = pleat_stats_of(j.runtime).driver_calls;
    run_marked(&j, &shape, 4);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.planned, stats.requests);
    assert_int_equal(stats.driver_calls, calls);
    assert_int_equal(stats.peak_physical_bytes, p.plan.physical_bytes);
    finish(&j);
}

/* A plan of whose requests only the first ones come takes memory for those. */
static void follow_plan_has_memory_as_far_as_the_program_comes(void **state)
{
    (void)state;
    job j;
    pleat__slot slots[] = {{.size = 4 * JOB_PAGE, .place = 0, .lane = PLEAT__NO_LANE},
                           {.size = 600 * JOB_PAGE, .place = 4 * JOB_PAGE, .lane = PLEAT__NO_LANE}};
    pleat__plan_handle handles[] = {{.chunks = 604}};
    pleat__plan_map maps[] = {{.page = 0, .handle = 0}};
    pleat_plan plan = {.unroll = 1,
                       .chunk_bytes = JOB_PAGE,
                       .virtual_bytes = 604 * JOB_PAGE,
                       .physical_bytes = 604 * JOB_PAGE,
                       .steady = {.slots = slots, .slot_count = 2},
                       .handles = handles,
                       .handle_count = 1,
                       .maps = maps,
                       .map_count = 1};
    job_start(&j, "pleat", &plan, 0);
    assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, 0);
    assert_ok(pleat_mark(j.runtime));
    job_tensor a = job_alloc(&j, 4 * JOB_PAGE, 0);
    assert_int_equal(pleat_stats_of(j.runtime).physical_bytes, 4 * JOB_PAGE);
    job_tensor b = job_alloc(&j, 600 * JOB_PAGE, 0);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.planned, 2);
    assert_int_equal(stats.physical_bytes, 604 * JOB_PAGE);
    job_free(&j, &a);
    job_free(&j, &b);
    finish(&j);
}

/* Moves a slot onto another that is live at the same time. */
static void spoil(plan_of_job *p, const job_shape *shape, test_random *random)
{
    for (;;) {
        uint32_t a = (uint32_t)test_random_below(random, JOB_REQUESTS);
        uint32_t b = (uint32_t)test_random_below(random, JOB_REQUESTS);
        uint64_t end = p->slots[b].place + rounded(shape->bytes[a]);
        if (a == b || !meet(shape, a, b) || end > p->plan.virtual_bytes || shape->bytes[a] < 512 ||
            shape->bytes[b] < 512)
            continue;
        p->slots[a].place = p->slots[b].place;
        return;
    }
}

/* A plan that no proof has seen: two slots over one memory are wanted at the same time. (R9.) */
static void follow_slots_that_meet_are_never_both_given_out(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    test_random random = test_random_begin("follow", 0x5107);
    for (int i = 0; i < 100; i++) {
        job_shape shape = job_shape_make(100 + (uint64_t)(i % 10), 1);
        make_plan(&p, &shape);
        spoil(&p, &shape, &random);
        job_start(&j, "pleat", &p.plan, 0);
        run_marked(&j, &shape, 2);
        assert_true(pleat_stats_of(j.runtime).slot_busy > 0);
        finish(&j);
    }
}

/* A plan's slots with as much between them as they take: nothing of it serves the job. (D615.) */
static void follow_plan_that_takes_too_much_is_left_when_its_trial_ends(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(29, 4);
    make_plan(&p, &shape);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        p.slots[i].place *= 2;
    p.handles[0].chunks *= 2;
    p.plan.virtual_bytes *= 2;
    p.plan.physical_bytes *= 2;
    job_start(&j, "pleat", &p.plan, 0);
    run_marked(&j, &shape, 1);
    assert_int_equal(pleat_stats_of(j.runtime).left_at, JOB_REQUESTS);
    run_marked(&j, &shape, 2);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.physical_bytes < stats.peak_live_bytes + stats.peak_live_bytes / 8);
    finish(&j);
}

/* What waits for another stream is in use, with a plan and without. (D615.) */
static void follow_plan_is_not_left_for_what_waits(void **state)
{
    (void)state;
    enum { CHUNKS = 40 };
    job j;
    pleat__slot slots[] = {{.size = CHUNKS * JOB_PAGE, .lane = PLEAT__NO_LANE},
                           {.size = CHUNKS * JOB_PAGE, .lane = PLEAT__NO_LANE}};
    pleat__plan_handle handles[] = {{.chunks = CHUNKS}};
    pleat__plan_map maps[] = {{.page = 0, .handle = 0}};
    pleat_plan plan = {.unroll = 1,
                       .chunk_bytes = JOB_PAGE,
                       .virtual_bytes = CHUNKS * JOB_PAGE,
                       .physical_bytes = CHUNKS * JOB_PAGE,
                       .steady = {.slots = slots, .slot_count = 2},
                       .handles = handles,
                       .handle_count = 1,
                       .maps = maps,
                       .map_count = 1};
    job_start(&j, "pleat", &plan, 0);
    assert_ok(pleat__host_stream_hold(&j.vmm, 5));
    assert_ok(pleat_mark(j.runtime));
    job_tensor copied = job_alloc(&j, CHUNKS * JOB_PAGE, 0);
    assert_ok(pleat_record_stream(j.runtime, copied.address, 5));
    job_free(&j, &copied);
    job_tensor next = job_alloc(&j, CHUNKS * JOB_PAGE, 0);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.waiting_bytes, CHUNKS * JOB_PAGE);
    assert_int_equal(stats.peak_live_bytes, CHUNKS * JOB_PAGE);
    assert_int_equal(stats.physical_bytes, 2 * CHUNKS * JOB_PAGE);
    assert_int_equal(stats.left_at, 0);
    job_free(&j, &next);
    assert_ok(pleat__host_stream_release(&j.vmm, 5));
    finish(&j);
}

/* A plan whose slots are in use when their requests come, each of which it knows. (D614.) */
static void follow_plan_whose_slots_are_in_use_is_left(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(29, 1);
    make_plan(&p, &shape);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        p.slots[i].place = 0;
    job_start(&j, "pleat", &p.plan, 0);
    run_marked(&j, &shape, 1);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.slot_busy >= 64);
    assert_in_range(stats.left_at, 64, 256);
    finish(&j);
}

/* Two slots at different addresses over the same chunks, never live together. */
static void follow_folded_slots_share_chunks(void **state)
{
    (void)state;
    job j;
    pleat__slot slots[] = {
        {.size = 3 * JOB_PAGE, .place = 0, .lane = PLEAT__NO_LANE},
        {.size = 2 * JOB_PAGE, .place = 3 * JOB_PAGE + 512, .lane = PLEAT__NO_LANE},
        {.size = 4 * JOB_PAGE, .place = 8 * JOB_PAGE, .lane = PLEAT__NO_LANE},
        {.size = 100, .place = 0, .lane = PLEAT__NO_LANE},
    };
    pleat__plan_handle handles[] = {{.chunks = 2, .first_chunk = 0},
                                    {.chunks = 4, .first_chunk = 2}};
    /* The view's chunks are in another order than at home. */
    pleat__plan_map maps[] = {{.page = 0, .handle = 0},
                              {.page = 2, .handle = 1},
                              {.page = 8, .handle = 1, .alias = 1},
                              {.page = 12, .handle = 0, .alias = 1}};
    pleat_plan plan = {.unroll = 1,
                       .chunk_bytes = JOB_PAGE,
                       .virtual_bytes = 14 * JOB_PAGE,
                       .physical_bytes = 6 * JOB_PAGE,
                       .steady = {.slots = slots, .slot_count = 4},
                       .handles = handles,
                       .handle_count = 2,
                       .maps = maps,
                       .map_count = 4};
    job_start(&j, "pleat", &plan, 0);
    for (int i = 0; i < 3; i++) {
        assert_ok(pleat_mark(j.runtime));
        job_tensor a = job_alloc(&j, 3 * JOB_PAGE, 0), b = job_alloc(&j, 2 * JOB_PAGE, 0);
        job_free(&j, &a);
        job_free(&j, &b);
        job_tensor view = job_alloc(&j, 4 * JOB_PAGE, 0), small = job_alloc(&j, 100, 0);
        job_free(&j, &view);
        job_free(&j, &small);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.planned, stats.requests);
    assert_int_equal(stats.peak_physical_bytes, 6 * JOB_PAGE);
    /* The first is still there when the view is wanted: it goes elsewhere. */
    assert_ok(pleat_mark(j.runtime));
    job_tensor a = job_alloc(&j, 3 * JOB_PAGE, 0), b = job_alloc(&j, 2 * JOB_PAGE, 0);
    job_tensor view = job_alloc(&j, 4 * JOB_PAGE, 0);
    assert_int_equal(pleat_stats_of(j.runtime).slot_busy, 1);
    job_free(&j, &view);
    job_free(&j, &a);
    job_free(&j, &b);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

static void follow_dynamic_requests_lie_in_their_lane(void **state)
{
    (void)state;
    job j;
    pleat__slot slots[] = {
        {.size = 2 * JOB_PAGE, .place = 0, .lane = PLEAT__NO_LANE},
        {.size = JOB_PAGE, .place = PLEAT__NOWHERE, .class = PLEAT__CLASS_DYNAMIC, .lane = 0},
        {.size = JOB_PAGE, .place = PLEAT__NOWHERE, .class = PLEAT__CLASS_DYNAMIC, .lane = 0},
        {.size = JOB_PAGE, .place = PLEAT__NOWHERE, .class = PLEAT__CLASS_DYNAMIC, .lane = 0},
        {.size = JOB_PAGE + 512, .place = 2 * JOB_PAGE, .lane = PLEAT__NO_LANE},
    };
    /* The lane's chunks are not neighbours: its requests may lie across the seam. */
    pleat__plan_handle handles[] = {{.chunks = 2, .first_chunk = 0},
                                    {.chunks = 2, .first_chunk = 2},
                                    {.chunks = 2, .first_chunk = 4}};
    pleat__plan_map maps[] = {{.page = 0, .handle = 0},
                              {.page = 2, .handle = 1},
                              {.page = 4, .handle = 2},
                              {.page = 8, .handle = 2, .alias = 1},
                              {.page = 10, .handle = 0, .alias = 1}};
    pleat__lane lanes[] = {{.place = 8 * JOB_PAGE, .bytes = 4 * JOB_PAGE}};
    pleat_plan plan = {.unroll = 1,
                       .chunk_bytes = JOB_PAGE,
                       .virtual_bytes = 12 * JOB_PAGE,
                       .physical_bytes = 6 * JOB_PAGE,
                       .steady = {.slots = slots, .slot_count = 5},
                       .handles = handles,
                       .handle_count = 3,
                       .maps = maps,
                       .map_count = 5,
                       .lanes = lanes,
                       .lane_count = 1};
    test_random random = test_random_begin("lane", 0x1a9e);
    job_start(&j, "pleat", &plan, 0);
    for (int i = 0; i < 50; i++) {
        assert_ok(pleat_mark(j.runtime));
        job_tensor slot = job_alloc(&j, 2 * JOB_PAGE, 0), some[3];
        job_free(&j, &slot);
        for (int k = 0; k < 3; k++)
            some[k] = job_alloc(&j, JOB_PAGE + 1 + test_random_below(&random, JOB_PAGE / 4), 0);
        job_tensor last = job_alloc(&j, JOB_PAGE + 512, 0);
        for (int k = 0; k < 3; k++)
            job_free(&j, &some[(k + i) % 3]);
        job_free(&j, &last);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.lane, 150);
    assert_int_equal(stats.planned, 100);
    assert_int_equal(stats.peak_physical_bytes, 6 * JOB_PAGE);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

/* The plan of make_plan() behind a tensor of three chunks that stays. */
static void make_plan_behind(plan_of_job *p, const job_shape *shape)
{
    make_plan(p, shape);
    p->weights = (pleat__slot){.size = 3 * JOB_PAGE,
                               .place = p->plan.virtual_bytes,
                               .lane = PLEAT__NO_LANE,
                               .class = PLEAT__CLASS_PERSISTENT};
    p->plan.first = (pleat__sequence){.slots = &p->weights, .slot_count = 1};
    p->handles[0].chunks += 3;
    p->plan.virtual_bytes += 3 * JOB_PAGE;
    p->plan.physical_bytes += 3 * JOB_PAGE;
}

/* What comes after: every request where the plan, or the first iterations, had it. */
static void assert_settled(job *j, const job_shape *shape)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    run_marked(j, shape, 5);
    pleat_stats after = pleat_stats_of(j->runtime);
    assert_int_equal(after.planned - before.planned, after.requests - before.requests);
    assert_int_equal(after.driver_calls, before.driver_calls);
}

/* A tensor that no plan knows is in the way of no slot while the plan's memory is about to be
 * wanted: it takes the chunks that it needs, and no more calls than they do. */
static void follow_stray_of_the_first_iteration_lies_beside_the_plan(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(29, 4);
    make_plan_behind(&p, &shape);
    const uint64_t sizes[] = {512, JOB_PAGE, 2 * JOB_PAGE + 512};
    for (uint64_t i = 0; i < 9; i++) {
        uint64_t bytes = sizes[i % 3], chunks = (bytes + JOB_PAGE - 1) / JOB_PAGE;
        job_tensor strays[2] = {{0}};
        job_start(&j, "pleat", &p.plan, 0);
        if (i / 3 == 0)
            strays[0] = job_alloc(&j, bytes, 0);
        job_tensor held = job_alloc(&j, 3 * JOB_PAGE, 0);
        if (i / 3 == 1)
            strays[0] = job_alloc(&j, bytes, 0);
        run_marked(&j, &shape, 1);
        if (i / 3 == 2)
            strays[0] = job_alloc(&j, bytes, 0);
        strays[1] = job_alloc(&j, bytes, 0);
        run_marked(&j, &shape, 4);
        assert_settled(&j, &shape);
        pleat_stats stats = pleat_stats_of(j.runtime);
        assert_int_equal(stats.slot_busy, 0);
        assert_int_equal(stats.planned, stats.requests - 2);
        assert_true(stats.peak_physical_bytes <= p.plan.physical_bytes + 2 * chunks * JOB_PAGE);
        job_free(&j, &strays[0]);
        job_free(&j, &strays[1]);
        job_free(&j, &held);
        finish(&j);
    }
}

/* What a job does before a plan that does not know it, and lets go, takes no more than the plan,
 * where it is large; nor where the budget holds no more. */
static void follow_large_stray_that_goes_takes_no_more(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(29, 4);
    make_plan_behind(&p, &shape);
    const uint64_t part[] = {4, 20}, budgets[] = {0, p.plan.physical_bytes};
    for (int i = 0; i < 2; i++) {
        job_start(&j, "pleat", &p.plan, budgets[i]);
        job_tensor stray = job_alloc(&j, p.plan.physical_bytes / part[i], 0);
        job_free(&j, &stray);
        job_tensor held = job_alloc(&j, 3 * JOB_PAGE, 0);
        run_marked(&j, &shape, 5);
        assert_settled(&j, &shape);
        assert_int_equal(pleat_stats_of(j.runtime).slot_busy, 0);
        assert_int_equal(pleat_stats_of(j.runtime).peak_physical_bytes, p.plan.physical_bytes);
        job_free(&j, &held);
        finish(&j);
    }
}

/* Where sizes vary, more than the plan has comes in every iteration: it has no memory of its own.
 */
static void follow_stray_beside_dynamic_requests_takes_no_more(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(29, 4);
    make_plan_behind(&p, &shape);
    p.slots[JOB_REQUESTS / 2].class = PLEAT__CLASS_DYNAMIC;
    job_start(&j, "pleat", &p.plan, 0);
    job_tensor stray = job_alloc(&j, p.plan.physical_bytes / 20, 0);
    job_free(&j, &stray);
    job_tensor held = job_alloc(&j, 3 * JOB_PAGE, 0);
    run_marked(&j, &shape, 5);
    assert_true(pleat_stats_of(j.runtime).peak_physical_bytes <
                p.plan.physical_bytes + p.plan.physical_bytes / 40);
    job_free(&j, &held);
    finish(&j);
}

/* A small one that stays does not keep a slot from its place there: it has a chunk. */
static void follow_small_stray_beside_dynamic_requests_is_in_no_way(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(29, 4);
    make_plan_behind(&p, &shape);
    p.slots[JOB_REQUESTS / 2].class = PLEAT__CLASS_DYNAMIC;
    p.slots[JOB_REQUESTS / 2].lane = PLEAT__NO_LANE;
    job_start(&j, "pleat", &p.plan, 0);
    job_tensor stray = job_alloc(&j, 512, 0), held = job_alloc(&j, 3 * JOB_PAGE, 0);
    /* One that goes leaves its chunk to the next, and to one that stays. */
    for (int i = 0; i < 20; i++) {
        job_free(&j, &stray);
        stray = job_alloc(&j, 512, 0);
    }
    run_marked(&j, &shape, 5);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.slot_busy, 0);
    assert_true(stats.peak_physical_bytes <= p.plan.physical_bytes + JOB_PAGE);
    job_free(&j, &stray);
    job_free(&j, &held);
    finish(&j);
}

/* Where there is no memory besides, a tensor that stays lies in slots. They are served elsewhere,
 * at the same place in every iteration. */
static void follow_stray_within_the_budget_is_worked_around(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(27, 1);
    make_plan_behind(&p, &shape);
    const uint64_t sizes[] = {512, JOB_PAGE};
    for (int i = 0; i < 2; i++) {
        job_start(&j, "pleat", &p.plan, p.plan.physical_bytes);
        job_tensor held = job_alloc(&j, 3 * JOB_PAGE, 0), stray = job_alloc(&j, sizes[i], 0);
        assert_true(stray.address < held.address); /* which lies at the plan's end */
        run_marked(&j, &shape, 5);
        assert_settled(&j, &shape);
        assert_true(pleat_stats_of(j.runtime).slot_busy > 0);
        assert_int_equal(pleat_stats_of(j.runtime).peak_physical_bytes, p.plan.physical_bytes);
        job_free(&j, &stray);
        job_free(&j, &held);
        finish(&j);
    }
}

/* Small ones have a chunk of their own beside the plan, whenever they come, and one of a chunk has
 * another. */
static void follow_stray_of_a_chunk_lies_beside_the_plan_at_any_time(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(29, 4);
    make_plan_behind(&p, &shape);
    job_start(&j, "pleat", &p.plan, 0);
    job_tensor held = job_alloc(&j, 3 * JOB_PAGE, 0);
    run_marked(&j, &shape, 3);
    job_tensor strays[] = {job_alloc(&j, 512, 0), job_alloc(&j, 3000, 0),
                           job_alloc(&j, JOB_PAGE, 0)};
    run_marked(&j, &shape, 5);
    assert_settled(&j, &shape);
    assert_int_equal(pleat_stats_of(j.runtime).slot_busy, 0);
    assert_int_equal(pleat_stats_of(j.runtime).peak_physical_bytes,
                     p.plan.physical_bytes + 2 * JOB_PAGE);
    for (int i = 0; i < 3; i++)
        job_free(&j, &strays[i]);
    job_free(&j, &held);
    finish(&j);
}

/* Of a job that is continued the optimizer's states are there from the start, and not made in the
 * first step: the heap has them, and nothing else. */
static void follow_tensor_that_stays_may_come_early(void **state)
{
    (void)state;
    enum { STEPS = 40, STATES = 2 };
    job j;
    static plan_of_job p;
    pleat__slot first[1 + STEPS + STATES];
    job_tensor states[STATES];
    job_shape shape = job_shape_make(29, 1);
    make_plan_behind(&p, &shape);
    first[0] = p.weights;
    for (uint32_t i = 0; i < STEPS; i++)
        first[1 + i] = (pleat__slot){
            .size = 512 * (i + 1), .lane = PLEAT__NO_LANE, .class = PLEAT__CLASS_TRANSIENT};
    for (uint32_t i = 0; i < STATES; i++)
        first[1 + STEPS + i] = (pleat__slot){.size = 5 * JOB_PAGE,
                                             .place = p.plan.virtual_bytes + i * 5ull * JOB_PAGE,
                                             .lane = PLEAT__NO_LANE,
                                             .class = PLEAT__CLASS_PERSISTENT};
    p.plan.first = (pleat__sequence){.slots = first, .slot_count = 1 + STEPS + STATES};
    p.handles[0].chunks += 5 * STATES;
    p.plan.virtual_bytes += 5ull * STATES * JOB_PAGE;
    p.plan.physical_bytes += 5ull * STATES * JOB_PAGE;
    job_start(&j, "pleat", &p.plan, 0);
    job_tensor held = job_alloc(&j, 3 * JOB_PAGE, 0);
    for (uint32_t i = 0; i < STATES; i++)
        states[i] = job_alloc(&j, 5 * JOB_PAGE, 0);
    for (uint32_t i = 0; i < STEPS; i++) {
        job_tensor step = job_alloc(&j, first[1 + i].size, 0);
        job_free(&j, &step);
    }
    run_marked(&j, &shape, 5);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.planned, stats.requests - STATES);
    assert_int_equal(stats.peak_physical_bytes, p.plan.physical_bytes);
    job_free(&j, &held);
    for (uint32_t i = 0; i < STATES; i++)
        job_free(&j, &states[i]);
    finish(&j);
}

static void follow_stray_that_stays_costs_what_it_has(void **state)
{
    (void)state;
    job j;
    static plan_of_job p;
    job_shape shape = job_shape_make(28, 1);
    make_plan(&p, &shape);
    job_start(&j, "pleat", &p.plan, 0);
    run_marked(&j, &shape, 3);
    job_tensor stray = job_alloc(&j, 3 * JOB_PAGE, 0);
    run_marked(&j, &shape, 3);
    pleat_stats before = pleat_stats_of(j.runtime);
    assert_true(before.slot_busy > 0);
    run_marked(&j, &shape, 10);
    pleat_stats after = pleat_stats_of(j.runtime);
    assert_int_equal(after.planned - before.planned, after.requests - before.requests);
    assert_int_equal(after.driver_calls, before.driver_calls);
    job_free(&j, &stray);
    finish(&j);
}

/* What outlives its iteration has no lane: in another's it would be in the way of a slot. */
static void follow_what_has_no_lane_is_in_no_lane(void **state)
{
    (void)state;
    enum { LANE = 8, IN_IT = 3 };
    job j;
    pleat__slot slots[] = {
        {.size = IN_IT * JOB_PAGE, .class = PLEAT__CLASS_DYNAMIC},
        {.size = JOB_PAGE, .lane = PLEAT__NO_LANE, .class = PLEAT__CLASS_DYNAMIC},
        {.size = LANE * JOB_PAGE, .lane = PLEAT__NO_LANE, .class = PLEAT__CLASS_TRANSIENT}};
    pleat__lane lane = {.bytes = LANE * JOB_PAGE, .end_at = 3};
    pleat__plan_handle handle = {.chunks = LANE};
    pleat__plan_map map = {0};
    pleat_plan plan = {.unroll = 1,
                       .chunk_bytes = JOB_PAGE,
                       .virtual_bytes = LANE * JOB_PAGE,
                       .physical_bytes = LANE * JOB_PAGE,
                       .steady = {.slots = slots, .slot_count = 3},
                       .lanes = &lane,
                       .lane_count = 1,
                       .handles = &handle,
                       .handle_count = 1,
                       .maps = &map,
                       .map_count = 1};
    job_tensor kept = {0};
    job_start(&j, "pleat", &plan, 0);
    for (int i = 0; i < 6; i++) {
        assert_ok(pleat_mark(j.runtime));
        job_tensor a = job_alloc(&j, IN_IT * JOB_PAGE, 0), next = job_alloc(&j, JOB_PAGE, 0);
        job_free(&j, &kept);
        kept = next;
        job_free(&j, &a);
        job_tensor b = job_alloc(&j, LANE * JOB_PAGE, 0);
        job_free(&j, &b);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.lane, 6);
    assert_int_equal(stats.planned, 6);
    assert_int_equal(stats.peak_physical_bytes, (LANE + 2) * JOB_PAGE);
    job_free(&j, &kept);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

/* A slot of many chunks of which one is in use is not made of new memory. */
static void follow_slot_in_use_is_stitched_from_its_rest(void **state)
{
    (void)state;
    enum { LARGE = 64, OTHER = 32 };
    job j;
    pleat__slot slots[] = {
        {.size = LARGE * JOB_PAGE, .lane = PLEAT__NO_LANE, .class = PLEAT__CLASS_TRANSIENT},
        {.size = OTHER * JOB_PAGE,
         .place = LARGE * JOB_PAGE,
         .lane = PLEAT__NO_LANE,
         .class = PLEAT__CLASS_TRANSIENT}};
    pleat__plan_handle handle = {.chunks = LARGE + OTHER};
    pleat__plan_map map = {0};
    pleat_plan plan = {.unroll = 1,
                       .chunk_bytes = JOB_PAGE,
                       .virtual_bytes = (LARGE + OTHER) * JOB_PAGE,
                       .physical_bytes = (LARGE + OTHER) * JOB_PAGE,
                       .steady = {.slots = slots, .slot_count = 2},
                       .handles = &handle,
                       .handle_count = 1,
                       .maps = &map,
                       .map_count = 1};
    job_tensor stray = {0};
    job_start(&j, "pleat", &plan, 0);
    for (int i = 0; i < 6; i++) {
        assert_ok(pleat_mark(j.runtime));
        if (i == 2)
            stray = job_alloc(&j, 512, 0);
        job_tensor a = job_alloc(&j, LARGE * JOB_PAGE, 0), b = job_alloc(&j, OTHER * JOB_PAGE, 0);
        job_free(&j, &a);
        job_free(&j, &b);
    }
    assert_true(pleat_stats_of(j.runtime).peak_physical_bytes <=
                plan.physical_bytes + 2 * JOB_PAGE);
    job_free(&j, &stray);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
}

static void follow_plan_for_other_chunks_is_refused(void **state)
{
    (void)state;
    static plan_of_job p;
    job_shape shape = job_shape_make(22, 1);
    pleat_host_options host = {.size = sizeof host, .device_bytes = 1ull << 30};
    pleat_runtime_options options = {.size = sizeof options, .plan = &p.plan};
    pleat_vmm vmm;
    pleat_runtime *runtime;
    make_plan(&p, &shape);
    assert_ok(pleat_vmm_host(&host, &vmm));
    assert_result(pleat_runtime_create(vmm, &options, &runtime), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "plan again"));
    pleat_vmm_destroy(&vmm);
}

static void follow_plan_over_the_budget_is_refused_and_leaves_nothing(void **state)
{
    (void)state;
    static plan_of_job p;
    job_shape shape = job_shape_make(23, 1);
    make_plan(&p, &shape);
    pleat_runtime_options options = {
        .size = sizeof options, .plan = &p.plan, .budget_bytes = p.plan.physical_bytes - JOB_PAGE};
    pleat_vmm vmm;
    pleat_runtime *runtime;
    job_host(&vmm);
    assert_result(pleat_runtime_create(vmm, &options, &runtime), PLEAT_E_BUDGET);
    /* A policy that follows none leaves it alone. */
    options.policy = "native";
    assert_ok(pleat_runtime_create(vmm, &options, &runtime));
    pleat_runtime_destroy(runtime);
    options.policy = "pleat";
    options.budget_bytes = p.plan.physical_bytes;
    assert_ok(pleat_runtime_create(vmm, &options, &runtime));
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
}

static void conf_reads_sizes_and_switches_and_names_what_is_wrong(void **state)
{
    (void)state;
    pleat__conf conf;
    assert_ok(pleat__conf_read("", &conf));
    assert_true(conf.small == 64 << 10 && conf.learn);
    assert_ok(pleat__conf_read("small:512k,views:3g,learn:off", &conf));
    assert_true(conf.small == 512 << 10 && conf.views == 3ull << 30 && !conf.learn);
    assert_string_equal(pleat__conf_line_of(&conf, 0).value, "512k");
    size_t off = 0;
    for (size_t i = 0; pleat__conf_line_of(&conf, i).key != NULL; i++)
        off += strcmp(pleat__conf_line_of(&conf, i).value, "off") == 0;
    pleat__conf defaults;
    assert_ok(pleat__conf_read("", &defaults));
    for (size_t i = 0; pleat__conf_line_of(&defaults, i).key != NULL; i++)
        off -= strcmp(pleat__conf_line_of(&defaults, i).value, "off") == 0;
    assert_int_equal(off, 1);
    assert_null(pleat__conf_line_of(&conf, 99).key);
    assert_string_equal(pleat__conf_line_of(&conf, 0).takes, "a size");
    assert_string_equal(pleat__conf_line_of(&conf, 2).takes, "on or off");
    assert_ok(pleat__conf_read("small:512KiB, views:2K, max_split:1Gb,log_bytes:128kb", &conf));
    assert_true(conf.small == 512 << 10 && conf.views == 2048 && conf.max_split == 1 << 30);
    assert_int_equal(conf.log_bytes, 128 << 10);
    static const char *const wrong[][2] = {
        {"smal:1", "'smal'"},
        {"small", "key:value"},
        {"small:1q", "'1q'"},
        {"small:", "''"},
        {"learn:yes", "'learn' takes on or off, not 'yes'"},
        {"small:1,small:2", "twice"},
        {"small:99999999999g", "99g"},
        {"small:1,,views:1", "key:"},
        {"small:x", "takes a size such as 64k, 4m or 2g, not 'x'"},
        {"small:64kk", "'64kk'"},
        {"views:x", "takes a number such as 1000 or 16k, not 'x'"},
        {"views:16kb", "takes a number"},
        {"divisions:3", "a list of them such as [256:1,512:2,>:4], not '3'"},
        {"spill:on", "'spill' takes off or host, not 'on'"},
        {"spill:of", "'of'"},
        {"log_ms:0", "takes 1 to 3600000, not '0'"},
        {"log_ms:3600001", "takes 1 to 3600000"},
        {"log_bytes:1", "takes 128k to 64m, not '1'"},
        {"collect:101", "takes 0 to 99, not '101'"},
        {"max_split:1m", "takes 0 or 20m or more, not '1m'"},
        {"max_round:0", "takes 20m or more"},
        {"priority:5g", "takes 0 to 4294967295"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_result(pleat__conf_read(wrong[i][0], &conf), PLEAT_E_INVALID);
        assert_non_null(strstr(pleat_last_error()->text, wrong[i][1]));
        assert_ptr_equal(strstr(pleat_last_error()->text, "conf: "), pleat_last_error()->text);
    }
    /* Whoever wrote it finds it where he wrote it. */
    assert_int_equal(setenv("PLEAT_CONF", "small:1q", 1), 0);
    assert_result(pleat__conf_read(NULL, &conf), PLEAT_E_INVALID);
    assert_non_null(strstr(pleat_last_error()->text, "PLEAT_CONF: 'small'"));
    assert_int_equal(setenv("PLEAT_CONF", "priority:1", 1), 0);
    assert_ok(pleat__conf_read(NULL, &conf));
    assert_result(pleat__conf_check(NULL, &conf), PLEAT_E_INVALID);
    assert_non_null(strstr(pleat_last_error()->text, "PLEAT_CONF: 'guarantee'"));
    assert_result(pleat__conf_check("priority:1", &conf), PLEAT_E_INVALID);
    assert_ptr_equal(strstr(pleat_last_error()->text, "conf: 'guarantee'"),
                     pleat_last_error()->text);
    unsetenv("PLEAT_CONF");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follow_every_request_of_a_plan_has_its_slot),
        cmocka_unit_test(follow_plan_has_memory_as_far_as_the_program_comes),
        cmocka_unit_test(follow_slots_that_meet_are_never_both_given_out),
        cmocka_unit_test(follow_plan_that_takes_too_much_is_left_when_its_trial_ends),
        cmocka_unit_test(follow_plan_is_not_left_for_what_waits),
        cmocka_unit_test(follow_plan_whose_slots_are_in_use_is_left),
        cmocka_unit_test(follow_folded_slots_share_chunks),
        cmocka_unit_test(follow_dynamic_requests_lie_in_their_lane),
        cmocka_unit_test(follow_stray_of_the_first_iteration_lies_beside_the_plan),
        cmocka_unit_test(follow_large_stray_that_goes_takes_no_more),
        cmocka_unit_test(follow_stray_beside_dynamic_requests_takes_no_more),
        cmocka_unit_test(follow_small_stray_beside_dynamic_requests_is_in_no_way),
        cmocka_unit_test(follow_stray_within_the_budget_is_worked_around),
        cmocka_unit_test(follow_stray_of_a_chunk_lies_beside_the_plan_at_any_time),
        cmocka_unit_test(follow_tensor_that_stays_may_come_early),
        cmocka_unit_test(follow_stray_that_stays_costs_what_it_has),
        cmocka_unit_test(follow_what_has_no_lane_is_in_no_lane),
        cmocka_unit_test(follow_slot_in_use_is_stitched_from_its_rest),
        cmocka_unit_test(follow_plan_for_other_chunks_is_refused),
        cmocka_unit_test(follow_plan_over_the_budget_is_refused_and_leaves_nothing),
        cmocka_unit_test(conf_reads_sizes_and_switches_and_names_what_is_wrong),
    };
    return cmocka_run_group_tests_name("follow", tests, NULL, NULL);
}
