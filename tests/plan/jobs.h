/*
 * jobs.h: small jobs as traces: model load, four iterations that repeat, several streams.
 */
#ifndef PLEAT_TESTS_PLAN_JOBS_H
#define PLEAT_TESTS_PLAN_JOBS_H

#include "test.h"

#include <pleat/trace.h>
#include <stdbool.h>

typedef struct test_jobber {
    pleat_trace *trace;
    uint32_t next;
    uint32_t live[64];
    uint32_t live_count;
} test_jobber;

static inline void test_job_add(test_jobber *j, pleat_event_kind kind, uint32_t request,
                                uint64_t size, uint16_t stream)
{
    pleat_trace_event event = {
        .kind = (uint8_t)kind, .request = request, .size = size, .stream = stream};
    assert_ok(pleat_trace_add(j->trace, &event));
}

static inline void test_job_free(test_jobber *j, uint32_t request)
{
    test_job_add(j, PLEAT_EVENT_FREE_REQUESTED, request, 0, 0);
    test_job_add(j, PLEAT_EVENT_FREE_COMPLETED, request, 0, 0);
}

/* Every fifth request of a varying job is larger in every iteration: it gets a lane. */
static inline void test_job_iterate(test_jobber *j, uint64_t seed, uint32_t streams,
                                    uint32_t iteration, bool varies, int steps)
{
    test_random random = {seed};
    test_job_add(j, PLEAT_EVENT_MARK, 0, 0, 0);
    for (int k = 0; k < steps; k++) {
        uint64_t dice = test_random_next(&random);
        if (j->live_count == 0 || (dice % 2 == 0 && j->live_count < 64)) {
            uint64_t size = (1ull << (dice >> 8) % 23) + (dice >> 40) % 100;
            size += varies && k % 5 == 0 ? iteration * 100000u : 0;
            j->live[j->live_count++] = j->next;
            test_job_add(j, PLEAT_EVENT_ALLOC, j->next++, size, (uint16_t)((dice >> 32) % streams));
        } else {
            uint32_t at = (dice >> 8) % j->live_count;
            test_job_free(j, j->live[at]);
            j->live[at] = j->live[--j->live_count];
        }
    }
    if (iteration == 0) /* optimizer state */
        test_job_add(j, PLEAT_EVENT_ALLOC, j->next++, 3000000, 0);
    while (j->live_count > 0)
        test_job_free(j, j->live[--j->live_count]);
}

static inline pleat_trace *test_job(test_random *random, uint32_t streams, bool varies, int steps)
{
    test_jobber j = {0};
    uint16_t stream;
    assert_ok(pleat_trace_new(&j.trace));
    for (uint32_t i = 0; i < streams; i++)
        assert_ok(pleat_trace_add_stream(j.trace, i * 16, &stream));
    for (int i = 0; i < 5; i++)
        test_job_add(&j, PLEAT_EVENT_ALLOC, j.next++, test_random_below(random, 5000000),
                     (uint16_t)test_random_below(random, streams));
    for (int i = 0; i < 20; i++) {
        test_job_add(&j, PLEAT_EVENT_ALLOC, j.next, test_random_below(random, 3000000),
                     (uint16_t)test_random_below(random, streams));
        test_job_free(&j, j.next++);
    }
    uint64_t seed = test_random_next(random);
    for (uint32_t i = 0; i < 4; i++)
        test_job_iterate(&j, seed, streams, i, varies, steps);
    return j.trace;
}

/* Streams by turns: each holds `tensors` of `bytes` while the others hold none. The first one keeps
 * something. */
static inline pleat_trace *test_job_of_turns(uint32_t streams, uint32_t tensors, uint64_t bytes)
{
    test_jobber j = {0};
    uint16_t stream;
    assert_ok(pleat_trace_new(&j.trace));
    for (uint32_t s = 0; s < streams; s++)
        assert_ok(pleat_trace_add_stream(j.trace, s * 16, &stream));
    test_job_add(&j, PLEAT_EVENT_ALLOC, j.next++, 512, 0);
    for (uint32_t i = 0; i < 4; i++) {
        test_job_add(&j, PLEAT_EVENT_MARK, 0, 0, 0);
        for (uint32_t s = 0; s < streams; s++) {
            uint32_t first = j.next;
            for (uint32_t t = 0; t < tensors; t++)
                test_job_add(&j, PLEAT_EVENT_ALLOC, j.next++, bytes + 512ull * t, (uint16_t)s);
            for (uint32_t t = 0; t < tensors; t++)
                test_job_free(&j, first + t);
        }
    }
    test_job_add(&j, PLEAT_EVENT_MARK, 0, 0, 0);
    return j.trace;
}

#endif
