/*
 * verify.c: what the verifier proves and what it refuses, by hand and against a check of every pair
 * of bytes.
 */
#include "jobs.h"
#include "painting.h"
#include "plans.h"

#include <pleat/trace.h>

/* One thing wrong with a plan that is right otherwise. */
typedef struct fault {
    const char *name;
    void (*apply)(pleat_plan *plan);
    pleat_result expected;
    const char *text; /* part of the message */
} fault;

static void run_faults(const fault *faults, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        pleat_plan *plan = test_plan();
        assert_ok(pleat_plan_verify(plan, NULL));
        faults[i].apply(plan);
        pleat_result result = pleat_plan_verify(plan, NULL);
        if (result != faults[i].expected ||
            strstr(pleat_last_error()->text, faults[i].text) == NULL)
            fail_msg("%s: %s: %s", faults[i].name, pleat_result_name(result),
                     pleat_last_error()->text);
        pleat_plan_free(plan);
    }
}

#define CHANGE(name, ...)                                                                          \
    static void name(pleat_plan *plan)                                                             \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
#define FAULT(name, expected, text)                                                                \
    {                                                                                              \
#name, name, expected, text                                                                \
    }

CHANGE(chunk_zero, plan->chunk_bytes = 0)
CHANGE(chunk_odd, plan->chunk_bytes = 4000)
CHANGE(chunk_huge, plan->chunk_bytes = 1ull << 41)
CHANGE(window_huge, plan->virtual_bytes = UINT64_MAX)
CHANGE(window_small, plan->virtual_bytes = 5 * TEST_CHUNK)
CHANGE(physical_more, plan->physical_bytes += TEST_CHUNK)
CHANGE(physical_over_device, plan->device_bytes = 3 * TEST_CHUNK)
CHANGE(handle_empty, plan->handles[1].chunks = 0)
CHANGE(handle_gap, plan->handles[2].first_chunk = 4)
CHANGE(handle_huge, plan->handles[2].chunks = UINT32_MAX)
CHANGE(map_of_nothing, plan->maps[4].handle = 3)
CHANGE(map_out_of_order, plan->maps[1].page = 4)
CHANGE(map_overlap, plan->maps[1].page = 1)
CHANGE(map_beyond, plan->maps[4].page = 6)
CHANGE(map_far_beyond, plan->maps[4].page = UINT64_MAX)
CHANGE(map_alias_strange, plan->maps[4].alias = 2)
CHANGE(map_two_firsts, plan->maps[4].alias = 0)
CHANGE(map_only_alias, plan->maps[0].alias = 1)
CHANGE(handle_unmapped, plan->map_count = 4; plan->maps[2] = (pleat__plan_map){3, 1, 1})
CHANGE(slot_huge, plan->steady.slots[0].size = UINT64_MAX)
CHANGE(slot_beyond, plan->steady.slots[2].size = 2 * TEST_CHUNK + 1)
CHANGE(slot_far_beyond, plan->steady.slots[2].place = UINT64_MAX - 1023)
CHANGE(slot_crooked, plan->steady.slots[3].place = 1025)
CHANGE(slot_class, plan->steady.slots[3].class = 5)
CHANGE(slot_small, plan->steady.slots[3].small = 2)
CHANGE(slot_stream, plan->steady.slots[3].stream = 2)
CHANGE(slot_phase, plan->steady.slots[3].alloc_phase = 2)
CHANGE(slot_free_phase, plan->first.slots[1].free_phase = 1)
CHANGE(slot_alloc_late, plan->steady.slots[4].alloc_at = 8)
CHANGE(slot_free_late, plan->steady.slots[2].free_at = 8)
CHANGE(slot_out_of_order, plan->steady.slots[2].alloc_at = 1)
CHANGE(slot_first_wraps, plan->first.slots[1].free_at = 0)
CHANGE(slot_dynamic_placed, plan->steady.slots[4].place = 0)
CHANGE(slot_static_lane, plan->steady.slots[3].lane = 0)
CHANGE(slot_lane, plan->steady.slots[4].lane = 1)
CHANGE(phase_label, plan->steady.phases[1].label = 2)
CHANGE(phase_order, plan->steady.phases[0].begin_at = 5)
CHANGE(phase_late, plan->steady.phases[1].begin_at = 9)
CHANGE(lane_beyond, plan->lanes[0].bytes = 5 * TEST_CHUNK + 1)
CHANGE(lane_far_beyond, plan->lanes[0].place = UINT64_MAX - 511)
CHANGE(lane_crooked, plan->lanes[0].place = TEST_CHUNK + 1)
CHANGE(lane_late, plan->lanes[0].begin_at = 8)
CHANGE(lane_end_late, plan->lanes[0].end_at = 9)
CHANGE(requests_few, plan->requests = 7)
CHANGE(requests_steady, plan->steady_request = 10)
CHANGE(requests_first, plan->requests = 1; plan->steady_request = 0; plan->steady.slot_count = 1)

static void verify_refuses_what_is_no_plan(void **state)
{
    (void)state;
    const fault faults[] = {
        FAULT(chunk_zero, PLEAT_E_INPUT, "chunk of 0 bytes"),
        FAULT(chunk_odd, PLEAT_E_INPUT, "4000"),
        FAULT(chunk_huge, PLEAT_E_INPUT, "chunk of"),
        FAULT(window_huge, PLEAT_E_INPUT, "window"),
        FAULT(window_small, PLEAT_E_INPUT, "map 4"),
        FAULT(physical_more, PLEAT_E_INPUT, "physical"),
        FAULT(physical_over_device, PLEAT_E_INPUT, "device"),
        FAULT(handle_empty, PLEAT_E_INPUT, "handle 1"),
        FAULT(handle_gap, PLEAT_E_INPUT, "handle 2"),
        FAULT(handle_huge, PLEAT_E_INPUT, "handle 2"),
        FAULT(map_of_nothing, PLEAT_E_INPUT, "map 4"),
        FAULT(map_out_of_order, PLEAT_E_INPUT, "map 2"),
        FAULT(map_overlap, PLEAT_E_INPUT, "map 1"),
        FAULT(map_beyond, PLEAT_E_INPUT, "map 4"),
        FAULT(map_far_beyond, PLEAT_E_INPUT, "map 4"),
        FAULT(map_alias_strange, PLEAT_E_INPUT, "map 4"),
        FAULT(map_two_firsts, PLEAT_E_INPUT, "map 4"),
        FAULT(map_only_alias, PLEAT_E_INPUT, "handle 0"),
        FAULT(handle_unmapped, PLEAT_E_INPUT, "handle 2"),
        FAULT(slot_huge, PLEAT_E_INPUT, "steady request 0"),
        FAULT(slot_beyond, PLEAT_E_INPUT, "steady request 2"),
        FAULT(slot_far_beyond, PLEAT_E_INPUT, "steady request 2"),
        FAULT(slot_crooked, PLEAT_E_INPUT, "steady request 3"),
        FAULT(slot_class, PLEAT_E_INPUT, "steady request 3"),
        FAULT(slot_small, PLEAT_E_INPUT, "steady request 3"),
        FAULT(slot_stream, PLEAT_E_INPUT, "steady request 3"),
        FAULT(slot_phase, PLEAT_E_INPUT, "steady request 3"),
        FAULT(slot_free_phase, PLEAT_E_INPUT, "first request 1"),
        FAULT(slot_alloc_late, PLEAT_E_INPUT, "steady request 4"),
        FAULT(slot_free_late, PLEAT_E_INPUT, "steady request 2"),
        FAULT(slot_out_of_order, PLEAT_E_INPUT, "steady request 2"),
        FAULT(slot_first_wraps, PLEAT_E_INPUT, "first request 1"),
        FAULT(slot_dynamic_placed, PLEAT_E_INPUT, "dynamic"),
        FAULT(slot_static_lane, PLEAT_E_INPUT, "lane"),
        FAULT(slot_lane, PLEAT_E_INPUT, "lane 1"),
        FAULT(phase_label, PLEAT_E_INPUT, "phase 1"),
        FAULT(phase_order, PLEAT_E_INPUT, "phase 1"),
        FAULT(phase_late, PLEAT_E_INPUT, "phase 1"),
        FAULT(lane_beyond, PLEAT_E_INPUT, "lane 0"),
        FAULT(lane_far_beyond, PLEAT_E_INPUT, "lane 0"),
        FAULT(lane_crooked, PLEAT_E_INPUT, "lane 0"),
        FAULT(lane_late, PLEAT_E_INPUT, "lane 0"),
        FAULT(lane_end_late, PLEAT_E_INPUT, "lane 0"),
        FAULT(requests_few, PLEAT_E_INPUT, "7 requests"),
        FAULT(requests_steady, PLEAT_E_INPUT, "request 10"),
        FAULT(requests_first, PLEAT_E_INPUT, "of 1 requests"),
    };
    run_faults(faults, sizeof faults / sizeof *faults);
}

/* Each of a few requests lies on all of a large window's pages: to walk over them would take long.
 */
static void verify_refuses_more_pages_than_can_be_walked(void **state)
{
    (void)state;
    enum { REQUESTS = 17, PAGES = PLEAT__PAGES_MOST };
    pleat_plan *plan = test_plan();
    plan->device_bytes = 0;
    plan->chunk_bytes = PLEAT__ALIGNMENT;
    plan->virtual_bytes = plan->physical_bytes = (uint64_t)PAGES * PLEAT__ALIGNMENT;
    plan->handles[0] = (pleat__plan_handle){PAGES, 0};
    plan->handle_count = plan->map_count = 1;
    plan->maps[0] = (pleat__plan_map){0, 0, 0};
    plan->first.slot_count = plan->lane_count = 0;
    plan->requests = REQUESTS;
    plan->steady_request = 0;
    plan->steady.slot_count = REQUESTS;
    plan->steady.events = 2 * REQUESTS;
    plan->steady.slots = test_array(plan, REQUESTS, sizeof *plan->steady.slots);
    for (uint32_t i = 0; i < REQUESTS; i++)
        plan->steady.slots[i] = test_slot(plan->virtual_bytes, 0, 2 * i, 2 * i + 1);
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "plan with larger chunks"));
    plan->steady.slot_count = 1;
    assert_ok(pleat_plan_verify(plan, NULL));
    pleat_plan_free(plan);
}

/* steady 1 lives until 5, when 2 is there through the aliases. */
CHANGE(overlap_alias, plan->steady.slots[1].free_at = 5)
CHANGE(overlap_bytes, plan->steady.slots[1].place = TEST_CHUNK)
CHANGE(overlap_wrap, plan->steady.slots[0].place = 0)
CHANGE(overlap_wrap_end, plan->steady.slots[2].place = 0)
CHANGE(overlap_persistent, plan->steady.slots[3].place = 512)
CHANGE(overlap_persistent_rounding, plan->first.slots[0].size = 1025)
CHANGE(overlap_persistent_first, plan->first.slots[1].place = 512)
CHANGE(overlap_self, plan->steady.slots[1].size = 3 * TEST_CHUNK)
CHANGE(overlap_forever, plan->steady.slots[1].free_at = PLEAT__NEVER)
CHANGE(lane_slot, plan->lanes[0].begin_at = 2)
CHANGE(lane_always, plan->lanes[0].begin_at = 0; plan->lanes[0].end_at = 0)
CHANGE(lane_alias, plan->lanes[0].bytes = 4 * TEST_CHUNK)
CHANGE(lane_short, plan->lanes[0].end_at = 7)
CHANGE(lane_outlived, plan->steady.slots[4].free_at = 1)
CHANGE(hole, plan->handle_count = 2; plan->map_count = 4; plan->physical_bytes = 3 * TEST_CHUNK;
       plan->maps[2] = (pleat__plan_map){5, 1, 1}; plan->map_count = 3)
CHANGE(streams_apart, plan->steady.slots[2].stream = 1)
CHANGE(streams_first, plan->first.slots[1].stream = 1)
CHANGE(streams_lane, plan->steady.slots[4].stream = 1)

static void lane_lane(pleat_plan *plan)
{
    pleat__lane *lanes = test_array(plan, 2, sizeof *lanes);
    lanes[0] = plan->lanes[0];
    lanes[1] = (pleat__lane){TEST_CHUNK + 512, 512, 7, 8};
    plan->lanes = lanes;
    plan->lane_count = 2;
}

static void streams_in_lane(pleat_plan *plan)
{
    pleat__slot *slots = test_array(plan, 6, sizeof *slots);
    memcpy(slots, plan->steady.slots, 5 * sizeof *slots);
    slots[4].alloc_at = 6;
    slots[5] = slots[4];
    slots[5].alloc_at = 7;
    slots[5].stream = 1;
    plan->steady.slots = slots;
    plan->steady.slot_count = 6;
}

static void verify_refuses_what_is_in_the_way(void **state)
{
    (void)state;
    const fault faults[] = {
        FAULT(overlap_alias, PLEAT_E_VERIFY, "steady request 1 (8192 bytes"),
        FAULT(overlap_bytes, PLEAT_E_VERIFY, "steady request 0"),
        FAULT(overlap_wrap, PLEAT_E_VERIFY, "physical bytes 0 to 1024"),
        FAULT(overlap_wrap_end, PLEAT_E_VERIFY, "steady request 2"),
        FAULT(overlap_persistent, PLEAT_E_VERIFY, "first request 0"),
        FAULT(overlap_persistent_rounding, PLEAT_E_VERIFY, "physical bytes 1024 to 1536"),
        FAULT(overlap_persistent_first, PLEAT_E_VERIFY, "first request 1"),
        FAULT(overlap_self, PLEAT_E_VERIFY, "lies twice"),
        FAULT(overlap_forever, PLEAT_E_VERIFY, "steady request 1"),
        FAULT(lane_slot, PLEAT_E_VERIFY, "lane 0"),
        FAULT(lane_always, PLEAT_E_VERIFY, "lane 0"),
        FAULT(lane_alias, PLEAT_E_VERIFY, "lane 0"),
        FAULT(lane_short, PLEAT_E_VERIFY, "request 4 is in lane 0, which is not there"),
        FAULT(lane_outlived, PLEAT_E_VERIFY, "request 4 is in lane 0, which is not there"),
        FAULT(lane_lane, PLEAT_E_VERIFY, "lane 1"),
        FAULT(hole, PLEAT_E_VERIFY, "not mapped"),
        FAULT(streams_apart, PLEAT_E_VERIFY, "different streams"),
        FAULT(streams_first, PLEAT_E_VERIFY, "different streams"),
        FAULT(streams_lane, PLEAT_E_VERIFY, "different streams"),
        FAULT(streams_in_lane, PLEAT_E_VERIFY, "lane 0 with requests of another stream"),
    };
    run_faults(faults, sizeof faults / sizeof *faults);
}

/* --- against every pair of bytes ---------------------------------------------------------------*/

#define UNIT 512u

/* Which physical unit a unit of the window is, or -1. */
static int physical_unit(const pleat_plan *plan, uint64_t unit)
{
    uint64_t page = unit * UNIT / plan->chunk_bytes, rest = unit * UNIT % plan->chunk_bytes;
    for (uint32_t i = 0; i < plan->map_count; i++) {
        const pleat__plan_map *map = &plan->maps[i];
        const pleat__plan_handle *handle = &plan->handles[map->handle];
        if (page >= map->page && page < map->page + handle->chunks)
            return (int)(((handle->first_chunk + page - map->page) * plan->chunk_bytes + rest) /
                         UNIT);
    }
    return -1;
}

/* At each time of the steady iteration, paints every physical unit. */
static bool holds(const pleat_plan *plan)
{
    for (uint32_t at = 0; at < plan->steady.events; at++) {
        bool taken[512] = {false};
        for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
            const pleat__slot *slot = &plan->steady.slots[i];
            if (!test_lives_at(slot, at))
                continue;
            for (uint64_t u = slot->place / UNIT; u * UNIT < slot->place + slot->size; u++) {
                int unit = physical_unit(plan, u);
                if (unit < 0 || taken[unit])
                    return false;
                taken[unit] = true;
            }
        }
    }
    return true;
}

/* Handles of one to three chunks, each mapped once and some again, then slots at random places. */
static pleat_plan *random_plan(test_random *random)
{
    pleat_plan *plan;
    assert_ok(pleat__plan_new(&plan));
    uint32_t handles = 1 + (uint32_t)test_random_below(random, 6), chunks = 0;
    plan->chunk_bytes = 1024;
    plan->handle_count = handles;
    plan->handles = test_array(plan, handles, sizeof *plan->handles);
    plan->maps = test_array(plan, 3 * handles, sizeof *plan->maps);
    uint64_t page = 0;
    for (uint32_t h = 0; h < handles; h++) {
        plan->handles[h] = (pleat__plan_handle){1 + (uint32_t)test_random_below(random, 3), chunks};
        chunks += plan->handles[h].chunks;
    }
    for (uint32_t i = 0; i < 3 * handles; i++) {
        uint32_t h = i < handles ? i : (uint32_t)test_random_below(random, handles);
        if (i >= handles && test_random_below(random, 2) == 0)
            continue;
        plan->maps[plan->map_count++] = (pleat__plan_map){page, h, i >= handles};
        page += plan->handles[h].chunks + (test_random_below(random, 16) == 0);
    }
    plan->physical_bytes = chunks * plan->chunk_bytes;
    plan->virtual_bytes = page * plan->chunk_bytes;
    plan->stream_count = 1;
    plan->streams = test_array(plan, 1, sizeof *plan->streams);
    uint32_t count = 1 + (uint32_t)test_random_below(random, 7);
    plan->requests = count;
    plan->steady.events = 2 * count;
    plan->steady.slot_count = count;
    plan->steady.slots = test_array(plan, count, sizeof *plan->steady.slots);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t units = page * 2, unit = test_random_below(random, units);
        uint64_t most = units - unit < 6 ? units - unit : 6;
        uint64_t size = test_random_below(random, most + 1) * UNIT;
        uint32_t free_at = (uint32_t)test_random_below(random, 2 * count);
        pleat__slot *slot = &plan->steady.slots[i];
        *slot =
            test_slot(size, unit * UNIT, 2 * i + (uint32_t)test_random_below(random, 2), free_at);
        if (test_random_below(random, 8) == 0)
            slot->class = PLEAT__CLASS_PERSISTENT;
    }
    return plan;
}

static void verify_agrees_with_painting_every_byte(void **state)
{
    (void)state;
    test_random random = test_random_begin("verify_agrees_with_painting_every_byte", 0x9a12);
    uint32_t held = 0, rounds = 4000;
    for (uint32_t i = 0; i < rounds; i++) {
        pleat_plan *plan = random_plan(&random);
        bool expected = holds(plan);
        pleat_result result = pleat_plan_verify(plan, NULL);
        if (result != (expected ? PLEAT_OK : PLEAT_E_VERIFY))
            fail_msg("plan %u %s: %s: %s", i, expected ? "holds" : "does not hold",
                     pleat_result_name(result), pleat_last_error()->text);
        held += expected;
        pleat_plan_free(plan);
    }
    /* Neither answer is the rule. */
    assert_in_range(held, rounds / 10, rounds - rounds / 10);
}

/* Many slots side by side and one behind the other: right, and wrong in its very last one. */
static void verify_finds_one_in_many(void **state)
{
    (void)state;
    const uint32_t count = 50000, side = 100;
    pleat_plan *plan;
    assert_ok(pleat__plan_new(&plan));
    plan->chunk_bytes = 2 << 20;
    plan->handle_count = plan->map_count = 1;
    plan->handles = test_array(plan, 1, sizeof *plan->handles);
    plan->handles[0].chunks = side;
    plan->maps = test_array(plan, 1, sizeof *plan->maps);
    plan->physical_bytes = plan->virtual_bytes = side * plan->chunk_bytes;
    plan->stream_count = 1;
    plan->streams = test_array(plan, 1, sizeof *plan->streams);
    plan->requests = plan->steady.slot_count = count;
    plan->steady.events = 2 * count;
    plan->steady.slots = test_array(plan, count, sizeof *plan->steady.slots);
    for (uint32_t i = 0; i < count; i++)
        plan->steady.slots[i] = test_slot(plan->chunk_bytes, i % side * plan->chunk_bytes, 2 * i,
                                          (2 * i + 2 * side - 1) % (2 * count));
    assert_ok(pleat_plan_verify(plan, NULL));
    plan->steady.slots[count - 1].place -= 512;
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_VERIFY);
    assert_non_null(strstr(pleat_last_error()->text, "steady request 49999"));
    assert_non_null(strstr(pleat_last_error()->text, "steady request 49998"));
    pleat_plan_free(plan);
}

/* --- against a trace ---------------------------------------------------------------------------*/

static void add(pleat_trace *trace, pleat_event_kind kind, uint32_t request, uint64_t size)
{
    pleat_trace_event event = {.kind = (uint8_t)kind, .request = request, .size = size};
    assert_ok(pleat_trace_add(trace, &event));
}

static void add_free(pleat_trace *trace, uint32_t request)
{
    add(trace, PLEAT_EVENT_FREE_REQUESTED, request, 0);
    add(trace, PLEAT_EVENT_FREE_COMPLETED, request, 0);
}

/* What test_plan is for: its first part, an iteration with one request, and the steady one. */
static pleat_trace *test_trace(void)
{
    pleat_trace *trace;
    uint16_t stream;
    assert_ok(pleat_trace_new(&trace));
    assert_ok(pleat_trace_add_stream(trace, 0, &stream));
    add(trace, PLEAT_EVENT_ALLOC, 0, 1000);
    add(trace, PLEAT_EVENT_ALLOC, 1, 700);
    add_free(trace, 1);
    add(trace, PLEAT_EVENT_ALLOC, 2, TEST_CHUNK - 1024); /* the one before slot 3 */
    add(trace, PLEAT_EVENT_ALLOC, 3, TEST_CHUNK);        /* the steady iteration's event 0 */
    add(trace, PLEAT_EVENT_ALLOC, 4, 2 * TEST_CHUNK);
    add_free(trace, 4);
    add_free(trace, 3);
    add(trace, PLEAT_EVENT_ALLOC, 5, 2 * TEST_CHUNK);
    add(trace, PLEAT_EVENT_ALLOC, 6, TEST_CHUNK - 1024);
    add_free(trace, 5);
    add(trace, PLEAT_EVENT_ALLOC, 7, 200);
    add(trace, PLEAT_EVENT_ALLOC, 8, 5);
    return trace;
}

CHANGE(trace_fingerprint, plan->fingerprint++)
CHANGE(trace_device, plan->device = 1)
CHANGE(trace_requests, plan->requests++)
CHANGE(trace_size, plan->steady.slots[0].size--)
CHANGE(trace_dynamic_size, plan->steady.slots[4].size = 199)
CHANGE(trace_alloc, plan->steady.slots[4].alloc_at = 6)
CHANGE(trace_free, plan->steady.slots[2].free_at = 7)
CHANGE(trace_first_free, plan->first.slots[1].free_at = PLEAT__NEVER)
CHANGE(trace_stream, plan->streams[0] = 7)
CHANGE(trace_shift, plan->steady_request--)
CHANGE(trace_first_short, plan->first.slot_count = 1)
CHANGE(trace_short, plan->steady.slot_count = 4)
CHANGE(trace_late, plan->steady_request = 4; plan->steady.slots += 1; plan->steady.slot_count = 4)

static void verify_holds_the_plan_against_the_trace(void **state)
{
    (void)state;
    const fault faults[] = {
        FAULT(trace_fingerprint, PLEAT_E_VERIFY, "fingerprint"),
        FAULT(trace_device, PLEAT_E_VERIFY, "on device 1"),
        FAULT(trace_requests, PLEAT_E_VERIFY, "10 requests"),
        FAULT(trace_size, PLEAT_E_VERIFY, "steady request 0"),
        FAULT(trace_dynamic_size, PLEAT_E_VERIFY, "steady request 4"),
        FAULT(trace_alloc, PLEAT_E_VERIFY, "steady request 4"),
        FAULT(trace_free, PLEAT_E_VERIFY, "steady request 2"),
        FAULT(trace_first_free, PLEAT_E_VERIFY, "first request 1"),
        FAULT(trace_stream, PLEAT_E_VERIFY, "stream"),
        FAULT(trace_shift, PLEAT_E_VERIFY, "steady request 0"),
        FAULT(trace_first_short, PLEAT_E_VERIFY, "more than 1 requests in the first 3 events"),
        FAULT(trace_short, PLEAT_E_VERIFY, "more than 4 requests in the iteration's 8 events"),
        FAULT(trace_late, PLEAT_E_VERIFY, "more than 4 requests in the iteration's 8 events"),
    };
    pleat_trace *trace = test_trace();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        pleat_plan *plan = test_plan();
        plan->fingerprint = pleat_trace_fingerprint(trace);
        assert_ok(pleat_plan_verify(plan, trace));
        faults[i].apply(plan);
        assert_ok(pleat_plan_verify(plan, NULL));
        pleat_result result = pleat_plan_verify(plan, trace);
        if (result != faults[i].expected ||
            strstr(pleat_last_error()->text, faults[i].text) == NULL)
            fail_msg("%s: %s: %s", faults[i].name, pleat_result_name(result),
                     pleat_last_error()->text);
        pleat_plan_free(plan);
    }
    pleat_trace_free(trace);
}

/* On the stream that does the work, whichever came first, memory is free when the GPU is done with
 * it, on others when the program says so: to the planner, and to the proof. */
static void verify_counts_frees_as_streams_have_them(void **state)
{
    (void)state;
    enum { A, SIDE, B, C, EACH };
    static const pleat_plan_options options = {.size = sizeof options, .chunk_bytes = 4096};
    for (uint16_t main_stream = 0; main_stream < 2; main_stream++) {
        test_jobber j = {0};
        uint16_t stream;
        pleat_plan *plan;
        assert_ok(pleat_trace_new(&j.trace));
        assert_ok(pleat_trace_add_stream(j.trace, 0, &stream));
        assert_ok(pleat_trace_add_stream(j.trace, 16, &stream));
        for (int i = 0; i < 4; i++, j.next += EACH) {
            test_job_add(&j, PLEAT_EVENT_MARK, 0, 0, 0);
            test_job_add(&j, PLEAT_EVENT_ALLOC, j.next + A, 8000, main_stream);
            test_job_add(&j, PLEAT_EVENT_ALLOC, j.next + SIDE, 5000, 1 - main_stream);
            test_job_add(&j, PLEAT_EVENT_FREE_REQUESTED, j.next + SIDE, 0, 0);
            test_job_add(&j, PLEAT_EVENT_ALLOC, j.next + B, 9000, main_stream);
            test_job_add(&j, PLEAT_EVENT_FREE_REQUESTED, j.next + A, 0, 0);
            test_job_add(&j, PLEAT_EVENT_ALLOC, j.next + C, 7000, main_stream);
            test_job_add(&j, PLEAT_EVENT_FREE_COMPLETED, j.next + A, 0, 0);
            test_job_add(&j, PLEAT_EVENT_FREE_COMPLETED, j.next + SIDE, 0, 0);
            test_job_free(&j, j.next + B);
            test_job_free(&j, j.next + C);
        }
        test_job_add(&j, PLEAT_EVENT_MARK, 0, 0, 0);
        assert_ok(pleat_plan_make(j.trace, &options, &plan));
        assert_int_equal(plan->steady.slot_count, EACH);
        assert_int_equal(plan->steady.slots[SIDE].free_at, 2);
        assert_int_equal(plan->steady.slots[A].free_at, 5);
        assert_ok(pleat_plan_verify(plan, j.trace));
        plan->steady.slots[SIDE].free_at = 4;
        assert_result(pleat_plan_verify(plan, j.trace), PLEAT_E_VERIFY);
        pleat_plan_free(plan);
        pleat_trace_free(j.trace);
    }
}

/* Like iterations: `A` lives until `B` is there, and a batch until it is gone in the next one, the
 * last one but to the end of the job. Those from `marked` on have marks. */
enum { A, B, BATCH, EACH, BATCHES = 5 };
static pleat_plan *plan_of_batches(test_jobber *j, int marked)
{
    static const pleat_plan_options options = {.size = sizeof options, .chunk_bytes = 4096};
    uint16_t stream;
    pleat_plan *plan;
    assert_ok(pleat_trace_new(&j->trace));
    assert_ok(pleat_trace_add_stream(j->trace, 0, &stream));
    for (int i = 0; i < BATCHES; i++, j->next += EACH) {
        if (i >= marked)
            test_job_add(j, PLEAT_EVENT_MARK, 0, 0, 0);
        test_job_add(j, PLEAT_EVENT_ALLOC, j->next + A, 8000, 0);
        test_job_add(j, PLEAT_EVENT_ALLOC, j->next + B, 8000, 0);
        test_job_free(j, j->next + A);
        test_job_free(j, j->next + B);
        if (i > 0)
            test_job_free(j, j->next + BATCH - EACH);
        test_job_add(j, PLEAT_EVENT_ALLOC, j->next + BATCH, 7000, 0);
    }
    test_job_add(j, PLEAT_EVENT_MARK, 0, 0, 0);
    test_job_free(j, j->next + BATCH - EACH);
    assert_ok(pleat_plan_make(j->trace, &options, &plan));
    assert_int_equal(plan->steady.slot_count, EACH);
    return plan;
}

/* The recorded iteration is the last one: how long its batch would live the one before shows. */
static void verify_holds_what_outlives_its_iteration_against_the_one_before(void **state)
{
    (void)state;
    test_jobber j = {0};
    pleat_plan *plan = plan_of_batches(&j, 0);
    pleat__slot *slots = plan->steady.slots;
    assert_int_equal(slots[BATCH].free_at, 4);
    assert_ok(pleat_plan_verify(plan, j.trace));
    slots[BATCH].free_at = 0; /* and something lies there meanwhile */
    slots[A].place = slots[BATCH].place;
    slots[B].place = slots[A].place + 8192;
    assert_ok(pleat_plan_verify(plan, NULL));
    assert_result(pleat_plan_verify(plan, j.trace), PLEAT_E_VERIFY);
    assert_non_null(strstr(pleat_last_error()->text, "steady request 2 lives for 1 events"));
    pleat_plan_free(plan);
    pleat_trace_free(j.trace);
}

/* One iteration is between marks, and its like lies before the first one: that one, too, shows how
 * long a batch lives, and a plan of the job's end was refused by its own proof. */
static void verify_agrees_with_plans_of_one_marked_iteration(void **state)
{
    (void)state;
    test_jobber j = {0};
    pleat_plan *plan = plan_of_batches(&j, BATCHES - 1);
    assert_int_equal(plan->steady.slots[BATCH].free_at, 4);
    pleat_plan_free(plan);
    pleat_trace_free(j.trace);
}

/* A lane is there for `A` as long as the plan says that it lives, which the trace says, too. */
static void verify_holds_what_lies_in_a_lane_against_the_trace(void **state)
{
    (void)state;
    test_jobber j = {0};
    pleat_plan *plan = plan_of_batches(&j, 0);
    pleat__slot *slots = plan->steady.slots;
    plan->lanes = test_array(plan, 1, sizeof *plan->lanes);
    plan->lanes[0] = (pleat__lane){.place = slots[A].place, .bytes = 8192, .end_at = 2};
    plan->lane_count = 1;
    slots[A].class = PLEAT__CLASS_DYNAMIC;
    slots[A].place = PLEAT__NOWHERE;
    slots[A].lane = 0;
    assert_ok(pleat_plan_verify(plan, j.trace));
    plan->lanes[0].end_at = 1; /* and `B` lies there from then on */
    slots[B].place = plan->lanes[0].place;
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_VERIFY);
    assert_non_null(strstr(pleat_last_error()->text, "lane 0, which is not there all its life"));
    slots[A].free_at = 1;
    assert_ok(pleat_plan_verify(plan, NULL));
    assert_result(pleat_plan_verify(plan, j.trace), PLEAT_E_VERIFY);
    assert_non_null(strstr(pleat_last_error()->text, "freed at 1 in the plan, at 2 in the trace"));
    pleat_plan_free(plan);
    pleat_trace_free(j.trace);
}

/* One that is there always is there for what is freed in the next iteration. */
static void verify_lane_that_never_ends_is_there_for_all(void **state)
{
    (void)state;
    test_jobber j = {0};
    pleat_plan *plan = plan_of_batches(&j, 0);
    pleat__slot *slots = plan->steady.slots;
    plan->lanes = test_array(plan, 1, sizeof *plan->lanes);
    plan->lanes[0] =
        (pleat__lane){.place = slots[BATCH].place, .bytes = 7168, .end_at = plan->steady.events};
    plan->lane_count = 1;
    slots[BATCH].class = PLEAT__CLASS_DYNAMIC;
    slots[BATCH].place = PLEAT__NOWHERE;
    slots[BATCH].lane = 0;
    assert_ok(pleat_plan_verify(plan, j.trace));
    plan->lanes[0].begin_at = 4; /* as long as `BATCH` lives, but for an event */
    plan->lanes[0].end_at = 3;
    assert_result(pleat_plan_verify(plan, NULL), PLEAT_E_VERIFY);
    pleat_plan_free(plan);
    pleat_trace_free(j.trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verify_refuses_what_is_no_plan),
        cmocka_unit_test(verify_refuses_more_pages_than_can_be_walked),
        cmocka_unit_test(verify_refuses_what_is_in_the_way),
        cmocka_unit_test(verify_agrees_with_painting_every_byte),
        cmocka_unit_test(verify_finds_one_in_many),
        cmocka_unit_test(verify_holds_the_plan_against_the_trace),
        cmocka_unit_test(verify_counts_frees_as_streams_have_them),
        cmocka_unit_test(verify_holds_what_outlives_its_iteration_against_the_one_before),
        cmocka_unit_test(verify_agrees_with_plans_of_one_marked_iteration),
        cmocka_unit_test(verify_holds_what_lies_in_a_lane_against_the_trace),
        cmocka_unit_test(verify_lane_that_never_ends_is_there_for_all),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
