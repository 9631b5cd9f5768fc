/*
 * plans.h: plans made by hand for tests of what reads plans.
 */
#ifndef PLEAT_TESTS_PLAN_PLANS_H
#define PLEAT_TESTS_PLAN_PLANS_H

#include "test.h"

#include <plan/base/plan.h>
#include <string.h>

#define TEST_CHUNK 4096u

static inline void *test_array(pleat_plan *plan, uint32_t count, size_t size)
{
    void *array = pleat__arena_calloc(plan->arena, count, size);
    assert_non_null(array);
    return array;
}

static inline char *test_text(pleat_plan *plan, const char *text)
{
    char *copy = test_array(plan, (uint32_t)strlen(text) + 1, 1);
    return strcpy(copy, text);
}

static inline pleat__slot test_slot(uint64_t size, uint64_t place, uint32_t alloc_at,
                                    uint32_t free_at)
{
    return (pleat__slot){.size = size,
                         .place = place,
                         .alloc_at = alloc_at,
                         .free_at = free_at,
                         .class =
                             free_at <= alloc_at ? PLEAT__CLASS_CROSSING : PLEAT__CLASS_TRANSIENT,
                         .small = 1,
                         .lane = PLEAT__NO_LANE};
}

/*
 * Four chunks A B C D; handles {A B}, {C}, {D}; a window of six pages, the last two of them
 * aliases:
 *
 *   page     0 1 2 3 4 5
 *   chunk    A B C D C D
 *
 *   first    persistent, 1000 bytes at the beginning of A; a transient in B
 *   steady   0: all of B, events 0 to 3
 *            1: C and D, events 1 to 2
 *            2: C and D through the aliases, events 4 to 6
 *            3: the rest of A, wraps from 5 to 1
 *            4: dynamic, in lane 0: B, from event 3 to event 0 of the next iteration
 */
static inline pleat_plan *test_plan(void)
{
    pleat_plan *plan;
    assert_ok(pleat__plan_new(&plan));
    plan->fingerprint = 0x123456789abcdef0u;
    plan->requests = 9;
    plan->steady_request = 3;
    plan->chunk_bytes = TEST_CHUNK;
    plan->device_bytes = 1 << 20;
    plan->max_live_bytes = 3 * TEST_CHUNK;
    plan->first_max_live_bytes = 2048;
    plan->virtual_bytes = 6 * TEST_CHUNK;
    plan->physical_bytes = 4 * TEST_CHUNK;
    plan->options = test_text(plan, "algorithm=hand");
    plan->label_count = 2;
    plan->labels = test_array(plan, 2, sizeof *plan->labels);
    plan->labels[0] = test_text(plan, "");
    plan->labels[1] = test_text(plan, "F");
    plan->stream_count = 2;
    plan->streams = test_array(plan, 2, sizeof *plan->streams);
    plan->streams[1] = 0xfffffff000001234u;
    plan->handle_count = 3;
    plan->handles = test_array(plan, 3, sizeof *plan->handles);
    plan->handles[0] = (pleat__plan_handle){2, 0};
    plan->handles[1] = (pleat__plan_handle){1, 2};
    plan->handles[2] = (pleat__plan_handle){1, 3};
    plan->map_count = 5;
    plan->maps = test_array(plan, 5, sizeof *plan->maps);
    plan->maps[0] = (pleat__plan_map){0, 0, 0};
    plan->maps[1] = (pleat__plan_map){2, 1, 0};
    plan->maps[2] = (pleat__plan_map){3, 2, 0};
    plan->maps[3] = (pleat__plan_map){4, 1, 1};
    plan->maps[4] = (pleat__plan_map){5, 2, 1};
    plan->lane_count = 1;
    plan->lanes = test_array(plan, 1, sizeof *plan->lanes);
    plan->lanes[0] = (pleat__lane){.place = TEST_CHUNK, .bytes = TEST_CHUNK, .begin_at = 3};

    pleat__sequence *first = &plan->first, *steady = &plan->steady;
    first->slot_count = 2;
    first->events = 3;
    first->slots = test_array(plan, 2, sizeof *first->slots);
    first->slots[0] = test_slot(1000, 0, 0, PLEAT__NEVER);
    first->slots[0].class = PLEAT__CLASS_PERSISTENT;
    first->slots[1] = test_slot(700, TEST_CHUNK, 1, 2);
    first->phase_count = 1;
    first->phases = test_array(plan, 1, sizeof *first->phases);
    steady->slot_count = 5;
    steady->events = 8;
    steady->slots = test_array(plan, 5, sizeof *steady->slots);
    steady->slots[0] = test_slot(TEST_CHUNK, TEST_CHUNK, 0, 3);
    steady->slots[1] = test_slot(2 * TEST_CHUNK, 2 * TEST_CHUNK, 1, 2);
    steady->slots[2] = test_slot(2 * TEST_CHUNK, 4 * TEST_CHUNK, 4, 6);
    steady->slots[3] = test_slot(TEST_CHUNK - 1024, 1024, 5, 1);
    steady->slots[4] = test_slot(300, PLEAT__NOWHERE, 7, PLEAT__NEVER);
    steady->slots[4].class = PLEAT__CLASS_DYNAMIC;
    steady->slots[4].lane = 0;
    steady->phase_count = 2;
    steady->phases = test_array(plan, 2, sizeof *steady->phases);
    steady->phases[1] = (pleat__phase){1, 4};
    steady->slots[2].alloc_phase = steady->slots[2].free_phase = 1;
    return plan;
}

/* The same with its iteration twice: what wraps around is freed in the other one. */
static inline pleat_plan *test_plan_unrolled(void)
{
    pleat_plan *plan = test_plan();
    pleat__sequence *steady = &plan->steady;
    uint32_t slots = steady->slot_count, events = steady->events;
    pleat__slot *twice = test_array(plan, 2 * slots, sizeof *twice);
    for (uint32_t i = 0; i < 2 * slots; i++) {
        bool second = i >= slots;
        twice[i] = steady->slots[i % slots];
        bool wraps = twice[i].free_at <= twice[i].alloc_at;
        twice[i].alloc_at += second ? events : 0;
        if (twice[i].free_at != PLEAT__NEVER)
            twice[i].free_at += second != wraps ? events : 0;
        if (wraps && !second)
            twice[i].class = PLEAT__CLASS_SCOPED;
    }
    pleat__lane *lanes = test_array(plan, 2, sizeof *lanes);
    lanes[0] = lanes[1] = plan->lanes[0];
    lanes[0].end_at += events;
    lanes[1].begin_at += events;
    plan->lanes = lanes;
    plan->lane_count = 2;
    twice[2 * slots - 1].lane = 1;
    steady->slots = twice;
    steady->slot_count = 2 * slots;
    steady->events = 2 * events;
    plan->unroll = 2;
    return plan;
}

#endif
