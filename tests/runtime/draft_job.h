/*
 * draft_job.h: a made-up job of layers in which half of the requests vary from iteration to
 * iteration, as experts' do.
 */
#ifndef PLEAT_TESTS_RUNTIME_DRAFT_JOB_H
#define PLEAT_TESTS_RUNTIME_DRAFT_JOB_H

#include "job.h"

#define LAYER   30u
#define EXPERTS 15u /* of a layer's requests */

/* Requests that vary: some of each layer, which are freed a few requests later. */
static inline bool is_expert(uint32_t i)
{
    return i % LAYER < EXPERTS;
}

static inline job_shape layers_make(uint64_t seed)
{
    job_shape shape = job_shape_make(seed, 1);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        if (is_expert(i))
            shape.last[i] = i - i % LAYER + EXPERTS + i % 4;
    return shape;
}

/* A layer's tokens among its experts: their sum stays. */
static inline void route(job_shape *shape, test_random *random)
{
    for (uint32_t layer = 0; layer < JOB_REQUESTS; layer += LAYER)
        for (uint32_t i = layer, left = EXPERTS * 300; i < layer + EXPERTS; i++) {
            uint32_t others = layer + EXPERTS - 1 - i;
            uint32_t tokens = others == 0 ? left : 200 + (uint32_t)test_random_below(random, 200);
            tokens = tokens > left - others * 100 ? left - others * 100 : tokens;
            shape->bytes[i] = tokens * UINT64_C(256);
            left -= tokens;
        }
}

typedef struct gained {
    uint64_t requests, placed, calls;
} gained;

static inline gained run(job *j, job_shape *shape, test_random *random, uint32_t iterations)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    for (uint32_t i = 0; i < iterations; i++) {
        assert_ok(pleat_mark(j->runtime));
        if (random != NULL)
            route(shape, random);
        job_iterate(j, shape, JOB_PLAIN, 0);
    }
    pleat_stats after = pleat_stats_of(j->runtime);
    return (gained){after.requests - before.requests,
                    after.planned + after.lane - before.planned - before.lane,
                    after.driver_calls - before.driver_calls};
}

#endif
