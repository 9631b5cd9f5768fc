/*
 * scaled_job.h: a made-up job whose microbatch or length x changes, with a canary (job.h).
 */
#ifndef PLEAT_TESTS_RUNTIME_SCALED_JOB_H
#define PLEAT_TESTS_RUNTIME_SCALED_JOB_H

#include "job.h"

/* A job whose sizes are lines in x; its lives are the same at every x. */
typedef struct scaled_job {
    job_shape lives;
    uint64_t base[JOB_REQUESTS];
    uint64_t slope[JOB_REQUESTS];
} scaled_job;

static inline scaled_job scaled_make(uint64_t seed)
{
    scaled_job s = {.lives = job_shape_make(seed, 1)};
    test_random random = {seed + 1};
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        uint64_t kind = test_random_below(&random, 10);
        s.base[i] = kind < 3 ? 8 + test_random_below(&random, 40) * 1000 : kind < 5 ? 512 : 0;
        s.slope[i] = kind < 3   ? 0
                     : kind < 9 ? (1 + test_random_below(&random, 8)) * 4096
                                : (1 + test_random_below(&random, 4)) * 40960;
    }
    return s;
}

static inline job_shape at_x(const scaled_job *s, uint64_t x)
{
    job_shape shape = s->lives;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        shape.bytes[i] = s->base[i] + s->slope[i] * x;
    return shape;
}

/* Calls are the driver calls of the job's own thread: what is not used any more is unmapped by
 * another thread, at some time. */
typedef struct gained {
    uint64_t requests, planned, calls;
} gained;

static inline gained gained_between(const pleat_stats *before, const pleat_stats *after)
{
    return (gained){after->requests - before->requests, after->planned - before->planned,
                    after->driver_calls - after->mapper_calls -
                        (before->driver_calls - before->mapper_calls)};
}

static inline gained run_shape(job *j, const job_shape *shape, uint32_t count, job_disturbance what,
                               uint32_t at)
{
    pleat_stats before = pleat_stats_of(j->runtime);
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(pleat_mark(j->runtime));
        job_iterate(j, shape, what, at);
    }
    pleat_stats after = pleat_stats_of(j->runtime);
    return gained_between(&before, &after);
}

static inline gained run_x(job *j, const scaled_job *s, uint64_t x, uint32_t count)
{
    job_shape shape = at_x(s, x);
    return run_shape(j, &shape, count, JOB_PLAIN, 0);
}

static inline void assert_mostly_planned(gained g, uint32_t percent)
{
    if (g.planned * 100 < g.requests * percent)
        fail_msg("%llu of %llu planned", (unsigned long long)g.planned,
                 (unsigned long long)g.requests);
}

/* As planned, with nothing asked of the driver. */
static inline void assert_settled(gained g)
{
    assert_mostly_planned(g, 99);
    assert_int_equal(g.calls, 0);
}

#endif
