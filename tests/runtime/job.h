/*
 * job.h: a made-up training job on a real runtime over host memory, with a canary: every live
 * tensor's memory holds its own pattern, checked when it is freed.
 */
#ifndef PLEAT_TESTS_RUNTIME_JOB_H
#define PLEAT_TESTS_RUNTIME_JOB_H

#include "test.h"

#include <pleat/runtime.h>
#include <stdbool.h>
#include <string.h>
#include <vmm/host/host.h>

#define JOB_PAGE     (64u << 10) /* the backend's granularity: memory of this machine is real */
#define JOB_REQUESTS 600u
#define JOB_LIVE     (JOB_REQUESTS * 2)

/* One iteration: request i is allocated, then those whose last request is i are freed. */
typedef struct job_shape {
    uint64_t bytes[JOB_REQUESTS];
    uint32_t last[JOB_REQUESTS]; /* below i: in the next iteration */
} job_shape;

typedef struct job_tensor {
    pleat_va address;
    uint64_t bytes;
    uint64_t pattern;
} job_tensor;

typedef struct job {
    pleat_vmm vmm;
    pleat_runtime *runtime;
    job_tensor now[JOB_REQUESTS];    /* of this iteration, by request */
    job_tensor before[JOB_REQUESTS]; /* of the one before, those that cross */
    uint64_t next_pattern;
    uint64_t errors; /* the canary's */
} job;

static inline void job_host(pleat_vmm *host)
{
    pleat_host_options options = {
        .size = sizeof options, .device_bytes = 1ull << 30, .granularity = JOB_PAGE};
    assert_ok(pleat_vmm_host(&options, host));
}

/* What is stitched and what is bought depends on the time that maps take: here they take none. */
static inline void job_host_timeless(pleat_vmm *host)
{
    job_host(host);
    assert_ok(pleat__host_clock_set(host, 1000000000));
}

static inline void job_open(job *j, const pleat_runtime_options *options)
{
    memset(j, 0, sizeof *j);
    job_host_timeless(&j->vmm);
    assert_ok(pleat_runtime_create(j->vmm, options, &j->runtime));
}

/* Marks wait for plans, so that the same job does the same every time. */
static inline void job_start_with(job *j, const char *policy, const pleat_plan *plan,
                                  uint64_t budget, const char *conf)
{
    pleat_runtime_options options = {.size = sizeof options,
                                     .policy = policy,
                                     .plan = plan,
                                     .budget_bytes = budget,
                                     .conf = conf,
                                     .waits = 1};
    job_open(j, &options);
}

static inline void job_start(job *j, const char *policy, const pleat_plan *plan, uint64_t budget)
{
    job_start_with(j, policy, plan, budget, "");
}

static inline void job_stop(job *j)
{
    pleat_runtime_destroy(j->runtime);
    pleat_vmm_destroy(&j->vmm);
}

/* The words of a tensor that carry its pattern: one in every 512 bytes, so that no granule that two
 * tensors share goes unseen. */
static inline uint64_t *job_word(const job_tensor *t, uint64_t granule)
{
    return (uint64_t *)(uintptr_t)(t->address + granule * 512);
}

static inline void job_fill(const job_tensor *t)
{
    for (uint64_t g = 0; g * 512 + 8 <= t->bytes; g++)
        *job_word(t, g) = t->pattern + g;
}

static inline job_tensor job_alloc(job *j, uint64_t bytes, pleat_stream stream)
{
    job_tensor t = {.bytes = bytes, .pattern = ++j->next_pattern * 0x9e3779b97f4a7c15u};
    assert_ok(pleat_alloc(j->runtime, bytes, stream, &t.address));
    job_fill(&t);
    return t;
}

static inline void job_free(job *j, job_tensor *t)
{
    if (t->address == 0)
        return;
    for (uint64_t g = 0; g * 512 + 8 <= t->bytes; g++)
        j->errors += *job_word(t, g) != t->pattern + g;
    assert_ok(pleat_free(j->runtime, t->address));
    t->address = 0;
}

/* Sizes of a few classes, small and large, lives from short to across the boundary. */
static inline job_shape job_shape_make(uint64_t seed, uint64_t scale)
{
    job_shape shape;
    test_random random = {seed};
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        uint64_t kind = test_random_below(&random, 10);
        shape.bytes[i] = kind < 4   ? 8 + test_random_below(&random, 16) * 300
                         : kind < 9 ? scale * (1 + test_random_below(&random, 6)) * 20000
                                    : scale * (1 + test_random_below(&random, 3)) * 400000;
        uint32_t life = 1 + (uint32_t)test_random_below(&random, kind < 9 ? 60 : 20);
        shape.last[i] = (i + life) % JOB_REQUESTS;
    }
    return shape;
}

typedef enum job_disturbance {
    JOB_PLAIN,
    JOB_EXTRA,
    JOB_MISSING,
    JOB_SWAPPED,
    JOB_RESIZED,
    JOB_DISTURBANCES,
} job_disturbance;

/* Requests by the request that they end at: looked up, as a search of all at each request is what
 * an iteration would be made of. */
typedef struct job_ends {
    uint32_t first[JOB_REQUESTS], next[JOB_REQUESTS]; /* JOB_REQUESTS: none */
} job_ends;

static inline job_ends job_ends_of(const job_shape *shape)
{
    job_ends ends;
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        ends.first[i] = JOB_REQUESTS;
    for (uint32_t k = JOB_REQUESTS; k-- > 0;) {
        ends.next[k] = ends.first[shape->last[k]];
        ends.first[shape->last[k]] = k;
    }
    return ends;
}

/* Frees what ends at request i, in order. */
static inline void job_end_at(job *j, const job_ends *ends, uint32_t i)
{
    for (uint32_t k = ends->first[i]; k < JOB_REQUESTS; k = ends->next[k])
        job_free(j, k <= i ? &j->now[k] : &j->before[k]);
}

static inline void job_request(job *j, const job_shape *shape, uint32_t i, uint64_t more)
{
    j->now[i] = job_alloc(j, shape->bytes[i] + more, 0);
}

/* An iteration ends: what is left of it crosses. */
static inline void job_turn(job *j)
{
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        job_free(j, &j->before[i]);
        j->before[i] = j->now[i];
        j->now[i] = (job_tensor){0};
    }
}

/* One iteration, with something odd at request `at`. */
static inline void job_iterate(job *j, const job_shape *shape, job_disturbance what, uint32_t at)
{
    job_tensor extra = {0};
    job_ends ends = job_ends_of(shape);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        bool here = i == at;
        if (here && what == JOB_EXTRA)
            extra = job_alloc(j, 123456, 0);
        if (what == JOB_SWAPPED && here && i + 1 < JOB_REQUESTS)
            job_request(j, shape, i + 1, 0);
        if (!(here && what == JOB_MISSING) && !(what == JOB_SWAPPED && i == at + 1))
            job_request(j, shape, i, here && what == JOB_RESIZED ? 5000 : 0);
        job_end_at(j, &ends, i);
    }
    job_free(j, &extra);
    job_turn(j);
}

/* Iterations as they are, each begun by a mark. */
static inline void job_iterate_marked(job *j, const job_shape *shape, int count)
{
    for (int i = 0; i < count; i++) {
        assert_ok(pleat_mark(j->runtime));
        job_iterate(j, shape, JOB_PLAIN, 0);
    }
}

static inline void job_drain(job *j)
{
    for (uint32_t i = 0; i < JOB_REQUESTS; i++)
        job_free(j, &j->before[i]);
}

/* All is freed, as it was filled, and the runtime goes. */
static inline void finish(job *j)
{
    job_drain(j);
    assert_int_equal(j->errors, 0);
    assert_int_equal(pleat_stats_of(j->runtime).live_bytes, 0);
    job_stop(j);
}

/* An iteration of which any request may be refused. */
static inline void job_try_iterate(job *j, const job_shape *shape)
{
    assert_ok(pleat_mark(j->runtime));
    job_ends ends = job_ends_of(shape);
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        pleat_va address;
        if (pleat_alloc(j->runtime, shape->bytes[i], 0, &address) == PLEAT_OK) {
            j->now[i] = (job_tensor){address, shape->bytes[i], ++j->next_pattern};
            for (uint64_t g = 0; g * 512 + 8 <= shape->bytes[i]; g++)
                *job_word(&j->now[i], g) = j->now[i].pattern + g;
        }
        job_end_at(j, &ends, i);
    }
    job_turn(j);
}

#endif
