/*
 * stweaver.c: the policy `stweaver`: a planned job lives in its pool, whatever is not as planned
 * beside it, and no byte is ever given to two.
 */
#include "job.h"

#include <plan/base/plan.h>

typedef struct recorder {
    pleat_trace *trace;
    uint32_t next;
    int64_t now[JOB_REQUESTS], before[JOB_REQUESTS]; /* -1: not live */
} recorder;

static void record(recorder *r, pleat_event_kind kind, uint32_t request, uint64_t size)
{
    pleat_trace_event event = {.kind = (uint8_t)kind, .request = request, .size = size};
    assert_ok(pleat_trace_add(r->trace, &event));
}

static void record_free(recorder *r, int64_t *request)
{
    if (*request < 0)
        return;
    record(r, PLEAT_EVENT_FREE_REQUESTED, (uint32_t)*request, 0);
    record(r, PLEAT_EVENT_FREE_COMPLETED, (uint32_t)*request, 0);
    *request = -1;
}

/* What job_iterate does; every request of `odd` is larger by `more`. */
static void record_iteration(recorder *r, const job_shape *shape, uint32_t odd, uint64_t more)
{
    job_ends ends = job_ends_of(shape);
    record(r, PLEAT_EVENT_MARK, 0, 0);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        r->now[i] = r->next;
        record(r, PLEAT_EVENT_ALLOC, r->next++,
               shape->bytes[i] + (odd != 0 && i % odd == 0 ? more : 0));
        for (uint32_t k = ends.first[i]; k < JOB_REQUESTS; k = ends.next[k])
            record_free(r, k <= i ? &r->now[k] : &r->before[k]);
    }
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        record_free(r, &r->before[i]);
        r->before[i] = r->now[i];
        r->now[i] = -1;
    }
}

/* Plans four recorded iterations, in which every `odd`th request (0: none) differs in size. */
static pleat_plan *plan_of(const job_shape *shape, uint32_t odd)
{
    recorder r = {0};
    uint16_t stream;
    pleat_plan *plan;
    pleat_plan_options options = {
        .size = sizeof options, .algorithm = "stweaver", .chunk_bytes = JOB_PAGE, .no_fold = 1};
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        r.now[i] = r.before[i] = -1;
    assert_ok(pleat_trace_new(&r.trace));
    assert_ok(pleat_trace_add_stream(r.trace, 0, &stream));
    for (uint64_t i = 0; i < 4; i++)
        record_iteration(&r, shape, odd, i * 1536);
    record(&r, PLEAT_EVENT_MARK, 0, 0);
    assert_ok(pleat_plan_make(r.trace, &options, &plan));
    pleat_trace_free(r.trace);
    return plan;
}

static void run_iterations(job *j, const job_shape *shape, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(pleat_mark(j->runtime));
        job_iterate(j, shape, JOB_PLAIN, 0);
    }
}

static void stweaver_serves_a_planned_job_from_its_pool(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(5, 2);
    pleat_plan *plan = plan_of(&shape, 0);
    job_start(&j, "stweaver", plan, 0);
    pleat_stats start = pleat_stats_of(j.runtime);
    run_iterations(&j, &shape, 5);
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.planned, stats.requests);
    assert_int_equal(stats.cached, 0);
    assert_int_equal(stats.driver_calls, start.driver_calls);
    assert_int_equal(stats.peak_physical_bytes, start.physical_bytes);
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    assert_int_equal(pleat_stats_of(j.runtime).live_bytes, 0);
    job_stop(&j);
    pleat_plan_free(plan);
}

/* Six iterations of a plan's job, in which each request that the plan has as dynamic grows: no byte
 * is given to two, and as many as are returned lie in the pool's reusable space. */
static uint64_t run_growing(const job_shape *shape, pleat_plan *plan)
{
    job j;
    job_start(&j, "stweaver", plan, 0);
    for (uint32_t i = 0; i < 6; i++) {
        job_shape now = *shape;
        for (uint32_t k = 0; k < JOB_REQUESTS; k += 7)
            now.bytes[k] += i * 1024;
        run_iterations(&j, &now, 1);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.planned + stats.lane + stats.cached, stats.requests);
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
    return stats.lane;
}

static void stweaver_puts_dynamic_requests_where_the_pool_is_idle(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(6, 2);
    pleat_plan *plan = plan_of(&shape, 7);
    assert_true(pleat_plan_summary_of(plan).dynamic_requests > 0);
    assert_true(run_growing(&shape, plan) > 0);
    pleat_plan_free(plan);
}

/* A file's stretches are not proved clear of its slots (D562): occupancy is asked. */
static void stweaver_stretches_over_live_slots_cost_no_data(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(6, 2);
    pleat_plan *plan = plan_of(&shape, 7);
    assert_true(plan->reusable_count > 0);
    for (uint32_t i = 0; i < plan->reusable_count; i++) {
        plan->reusable[i].place = 0;
        plan->reusable[i].bytes = plan->virtual_bytes;
    }
    assert_ok(pleat_plan_verify(plan, NULL));
    assert_true(run_growing(&shape, plan) > 0);
    pleat_plan_free(plan);
}

/* The pool's memory goes from request to request without an event: one stream's only. */
static void stweaver_stream_that_the_plan_does_not_know_gets_none_of_the_pool(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(6, 2);
    pleat_plan *plan = plan_of(&shape, 7);
    job_start(&j, "stweaver", plan, 0);
    run_iterations(&j, &shape, 1);
    pleat_stats before = pleat_stats_of(j.runtime);
    assert_ok(pleat_mark(j.runtime));
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        pleat_block block;
        job_tensor t = job_alloc(&j, shape.bytes[i], 9);
        assert_ok(pleat_block_of(j.runtime, t.address, &block));
        assert_int_equal(block.stream, 9);
        job_free(&j, &t);
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.planned + stats.lane, before.planned + before.lane);
    assert_int_equal(stats.cached - before.cached, JOB_REQUESTS);
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
    pleat_plan_free(plan);
}

static void stweaver_odd_requests_cost_themselves_only(void **state)
{
    (void)state;
    job j;
    test_random random = test_random_begin(__func__, 0x5eed0006);
    job_shape shape = job_shape_make(7, 2);
    pleat_plan *plan = plan_of(&shape, 0);
    job_start(&j, "stweaver", plan, 0);
    for (uint32_t i = 0; i < 40; i++) {
        assert_ok(pleat_mark(j.runtime));
        job_iterate(&j, &shape, (job_disturbance)test_random_below(&random, JOB_DISTURBANCES),
                    (uint32_t)test_random_below(&random, JOB_REQUESTS));
    }
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_true(stats.cached > 0);
    assert_true(stats.planned >= stats.requests * 0.95);
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    job_stop(&j);
    pleat_plan_free(plan);
}

/* One that is refused comes again when memory has been given back, and is the same request. */
static void stweaver_matches_a_request_once(void **state)
{
    (void)state;
    job j;
    job_shape shape = job_shape_make(5, 2);
    pleat_plan *plan = plan_of(&shape, 0);
    pleat_va address;
    job_start(&j, "stweaver", plan, 0);
    uint64_t pool = pleat_stats_of(j.runtime).physical_bytes;
    assert_ok(pleat_set_budget(j.runtime, pool + (20u << 20)));
    assert_ok(pleat_alloc(j.runtime, 12u << 20, 0, &address));
    assert_ok(pleat_free(j.runtime, address));
    assert_ok(pleat_alloc(j.runtime, 14u << 20, 0, &address));
    pleat_stats stats = pleat_stats_of(j.runtime);
    assert_int_equal(stats.physical_bytes, pool + (14u << 20));
    assert_int_equal(stats.diverged, 2);
    assert_ok(pleat_free(j.runtime, address));
    job_stop(&j);
    pleat_plan_free(plan);
}

static void stweaver_answers_about_its_blocks(void **state)
{
    (void)state;
    job j;
    pleat_block block;
    uint64_t before, after;
    job_shape shape = job_shape_make(8, 2);
    pleat_plan *plan = plan_of(&shape, 0);
    job_start(&j, "stweaver", plan, 0);
    job_tensor planned = job_alloc(&j, shape.bytes[0], 0), cached = job_alloc(&j, 77777777, 0);
    assert_ok(pleat_block_of(j.runtime, planned.address + shape.bytes[0] - 1, &block));
    assert_int_equal(block.address, planned.address);
    assert_int_equal(block.requested, shape.bytes[0]);
    assert_ok(pleat_adjacent_free(j.runtime, planned.address, &before, &after));
    assert_true(before + after > 0);
    assert_ok(pleat_block_of(j.runtime, cached.address + 70000000, &block));
    assert_int_equal(block.address, cached.address);
    job_free(&j, &planned);
    assert_result(pleat_free(j.runtime, block.address + 512), PLEAT_E_NOT_FOUND);
    assert_result(pleat_block_of(j.runtime, 4096, &block), PLEAT_E_NOT_FOUND);
    job_free(&j, &cached);
    job_stop(&j);
    pleat_plan_free(plan);
}

/* Nothing repeats, so there is no pool: it holds what native holds, to the byte. */
static void stweaver_without_a_plan_is_its_caching_allocator(void **state)
{
    (void)state;
    pleat_stats stats[2];
    static const char *const policies[2] = {"stweaver", "native"};
    for (int p = 0; p < 2; p++) {
        job j;
        job_start(&j, policies[p], NULL, 0);
        for (uint32_t i = 0; i < 4; i++) {
            job_shape shape = job_shape_make(20 + i, 2);
            run_iterations(&j, &shape, 1);
            job_drain(&j);
        }
        stats[p] = pleat_stats_of(j.runtime);
        assert_int_equal(stats[p].cached, stats[p].requests);
        assert_int_equal(j.errors, 0);
        job_stop(&j);
    }
    assert_int_equal(stats[0].peak_physical_bytes, stats[1].peak_physical_bytes);
    assert_int_equal(stats[0].driver_calls, stats[1].driver_calls);
}

/* One request of `bytes` in an iteration, in a handle of its own, which is mapped once or twice. */
static pleat_plan *plan_of_one(uint64_t chunk_bytes, uint64_t bytes, uint32_t maps)
{
    pleat_plan *plan;
    uint64_t chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
    assert_ok(pleat__plan_new(&plan));
    plan->streams = pleat__arena_calloc(plan->arena, 1, sizeof *plan->streams);
    plan->handles = pleat__arena_calloc(plan->arena, 1, sizeof *plan->handles);
    plan->maps = pleat__arena_calloc(plan->arena, 2, sizeof *plan->maps);
    plan->steady.slots = pleat__arena_calloc(plan->arena, 1, sizeof *plan->steady.slots);
    assert_true(plan->streams != NULL && plan->handles != NULL && plan->maps != NULL &&
                plan->steady.slots != NULL);
    plan->requests = plan->stream_count = plan->handle_count = 1;
    plan->map_count = maps;
    plan->maps[1] = (pleat__plan_map){.page = chunks, .alias = 1};
    plan->chunk_bytes = chunk_bytes;
    plan->physical_bytes = chunks * chunk_bytes;
    plan->virtual_bytes = maps * plan->physical_bytes;
    plan->handles[0].chunks = (uint32_t)chunks;
    plan->first.events = 1;
    plan->steady.events = 2;
    plan->steady.slot_count = 1;
    plan->steady.slots[0] = (pleat__slot){.size = bytes, .free_at = 1, .lane = PLEAT__NO_LANE};
    assert_ok(pleat_plan_verify(plan, NULL));
    return plan;
}

static void stweaver_refuses_plans_it_cannot_follow(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    job_shape shape = job_shape_make(9, 2);
    pleat_plan *folded = plan_of_one(JOB_PAGE, 512, 2);
    pleat_plan *larger = plan_of(&shape, 0);
    job_host(&vmm);
    pleat_runtime_options options = {.size = sizeof options, .policy = "stweaver", .plan = folded};
    assert_int_equal(pleat_plan_summary_of(folded).alias_maps, 1);
    assert_result(pleat_runtime_create(vmm, &options, &runtime), PLEAT_E_INVALID);
    options.plan = larger;
    options.budget_bytes = pleat_plan_summary_of(larger).physical_bytes / 2;
    assert_result(pleat_runtime_create(vmm, &options, &runtime), PLEAT_E_BUDGET);
    pleat_plan_free(folded);
    pleat_plan_free(larger);
    pleat_vmm_destroy(&vmm);
}

/* A granule's number has 32 bits: of 2 TiB and 512 bytes that leaves 512. */
static void stweaver_refuses_a_pool_it_cannot_count(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    const uint64_t chunk = 2u << 20;
    const pleat_host_options host = {
        .size = sizeof host, .device_bytes = 16ull << 40, .granularity = chunk};
    assert_ok(pleat_vmm_host(&host, &vmm));
    pleat_plan *plan = plan_of_one(chunk, (2ull << 40) + 512, 1);
    pleat_runtime_options options = {.size = sizeof options, .policy = "stweaver", .plan = plan};
    assert_result(pleat_runtime_create(vmm, &options, &runtime), PLEAT_E_LIMIT);
    assert_non_null(strstr(pleat_last_error()->text, "one pool of at most"));
    pleat_plan_free(plan);
    pleat_vmm_destroy(&vmm);
}

static void stweaver_refuses_chunks_of_another_size(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    job_host(&vmm);
    pleat_plan *plan = plan_of_one(2 * JOB_PAGE, 512, 1);
    pleat_runtime_options options = {.size = sizeof options, .policy = "stweaver", .plan = plan};
    assert_result(pleat_runtime_create(vmm, &options, &runtime), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "plan again"));
    pleat_plan_free(plan);
    pleat_vmm_destroy(&vmm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stweaver_serves_a_planned_job_from_its_pool),
        cmocka_unit_test(stweaver_puts_dynamic_requests_where_the_pool_is_idle),
        cmocka_unit_test(stweaver_stretches_over_live_slots_cost_no_data),
        cmocka_unit_test(stweaver_stream_that_the_plan_does_not_know_gets_none_of_the_pool),
        cmocka_unit_test(stweaver_odd_requests_cost_themselves_only),
        cmocka_unit_test(stweaver_matches_a_request_once),
        cmocka_unit_test(stweaver_answers_about_its_blocks),
        cmocka_unit_test(stweaver_without_a_plan_is_its_caching_allocator),
        cmocka_unit_test(stweaver_refuses_plans_it_cannot_follow),
        cmocka_unit_test(stweaver_refuses_a_pool_it_cannot_count),
        cmocka_unit_test(stweaver_refuses_chunks_of_another_size),
    };
    return cmocka_run_group_tests_name("stweaver", tests, NULL, NULL);
}
