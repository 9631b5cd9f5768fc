/*
 * growing.h: random jobs whose sizes are functions of a number: their traces at any of
 * its values, and plans made of those.
 */
#ifndef PLEAT_TESTS_PLAN_GROWING_H
#define PLEAT_TESTS_PLAN_GROWING_H

#include "jobs.h"

#include <plan/sizes/planner.h>

#define CHUNK (1u << 16)

/* One kind of tensor: size(x) as recipes have it, in bytes. */
typedef struct kind {
    uint64_t constant, linear, square;
    uint64_t round; /* the program rounds up to so many; 0: not */
    uint64_t most;  /* and takes no more; 0: no bound */
    uint64_t least; /* and no less */
} kind;

static inline uint64_t size_of(const kind *k, uint64_t x)
{
    uint64_t size = k->constant + k->linear * x + k->square * x * x;
    if (k->round != 0)
        size = (size + k->round - 1) / k->round * k->round;
    size = size > k->least ? size : k->least;
    return k->most != 0 && size > k->most ? k->most : size;
}

typedef struct job {
    kind kinds[48];
    uint32_t kind_count;
    uint32_t workspaces; /* kinds behind those, which come for a moment every ten steps */
    uint64_t seed;
    uint32_t steps;
    uint64_t more_from; /* from this x on there is one more tensor in 40 steps; 0: never */
    uint32_t break_at;  /* this request behind the prologue breaks its function */
    uint32_t weights;   /* persistent tensors */
    uint32_t prologue;  /* constant requests at an iteration's beginning */
    uint64_t xs[24];    /* of each iteration */
    uint32_t iterations;
} job;

/* Most kinds are so many bytes for each sample; the others are constant, or have a constant part,
 * or a mask's square. */
static inline job random_job(test_random *random, bool squares)
{
    job j = {.seed = test_random_next(random),
             .steps = 400,
             .break_at = UINT32_MAX,
             .weights = 1 + (uint32_t)test_random_below(random, 20),
             .prologue = (uint32_t)test_random_below(random, 12),
             .kind_count = 24};
    for (uint32_t i = 0; i < j.kind_count; i++) {
        uint64_t unit = (1 + test_random_below(random, 64)) << test_random_below(random, 12);
        uint64_t dice = i < 16 ? 0 : 5 + test_random_below(random, 5);
        j.kinds[i] = dice < 6   ? (kind){.linear = unit}
                     : dice < 8 ? (kind){.constant = unit * 4}
                     : dice < 9 ? (kind){.constant = 8 * (unit % 100), .linear = unit}
                     : squares  ? (kind){.square = 1 + unit / 64}
                                : (kind){.linear = unit * 2};
    }
    return j;
}

static inline void add_request(test_jobber *t, uint64_t size)
{
    t->live[t->live_count++] = t->next;
    test_job_add(t, PLEAT_EVENT_ALLOC, t->next++, size, 0);
}

static inline void iterate(test_jobber *t, const job *j, uint64_t x)
{
    test_random random = {j->seed};
    test_job_add(t, PLEAT_EVENT_MARK, 0, 0, 0);
    uint32_t requests = 0;
    for (uint32_t i = 0; i < j->prologue; i++)
        add_request(t, 4096 * (i % 3 + 1));
    for (uint32_t step = 0; step < j->steps; step++) {
        uint64_t dice = test_random_next(&random);
        if (j->more_from != 0 && x >= j->more_from && step % 40 == 39) {
            test_job_add(t, PLEAT_EVENT_ALLOC, t->next, size_of(&j->kinds[step % 5], x), 0);
            test_job_free(t, t->next++);
        }
        if (j->workspaces != 0 && step % 10 == 9) {
            const kind *own = &j->kinds[j->kind_count + step / 10 % j->workspaces];
            test_job_add(t, PLEAT_EVENT_ALLOC, t->next, size_of(own, x), 0);
            test_job_free(t, t->next++);
        }
        if (t->live_count == 0 || (dice % 2 == 0 && t->live_count < 60)) {
            uint64_t size = size_of(&j->kinds[(dice >> 8) % j->kind_count], x);
            add_request(t, requests++ == j->break_at ? size / 4 + 12345 : size);
        } else {
            uint32_t at = (uint32_t)((dice >> 8) % t->live_count);
            test_job_free(t, t->live[at]);
            t->live[at] = t->live[--t->live_count];
        }
    }
    while (t->live_count > 0)
        test_job_free(t, t->live[--t->live_count]);
}

static inline pleat_trace *trace_of(const job *j)
{
    test_jobber t = {0};
    uint16_t stream;
    assert_ok(pleat_trace_new(&t.trace));
    assert_ok(pleat_trace_add_stream(t.trace, 0, &stream));
    for (uint32_t i = 0; i < j->weights; i++)
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 100000 + 7000 * i, 0);
    for (uint32_t i = 0; i < j->iterations; i++)
        iterate(&t, j, j->xs[i]);
    return t.trace;
}

static inline pleat_trace *trace_at(const job *j, uint64_t x)
{
    job at = *j;
    at.iterations = 3;
    for (int i = 0; i < 3; i++)
        at.xs[i] = x;
    return trace_of(&at);
}

static const pleat_plan_options small_chunks = {.size = sizeof small_chunks, .chunk_bytes = CHUNK};

/* A plan from traces at each of xs; names are the xs themselves. */
static inline pleat_plan *plan_of(const job *j, const uint64_t *xs, uint32_t count,
                                  const char *largest)
{
    const pleat_trace *traces[8];
    pleat__fraction most;
    for (uint32_t i = 0; i < count; i++)
        traces[i] = trace_at(j, xs[i]);
    pleat__elastic_options options = {.plan = &small_chunks, .names = xs};
    if (largest != NULL) {
        assert_true(pleat__x_parse(largest, &most));
        options.largest = &most;
    }
    pleat_plan *plan;
    assert_ok(pleat__elastic_plan_make(traces, count, &options, NULL, NULL, &plan));
    for (uint32_t i = 0; i < count; i++)
        pleat_trace_free((pleat_trace *)traces[i]);
    return plan;
}

/* As the runtime rounds sizes. */
static inline uint64_t to_512(uint64_t size)
{
    return (size + 511) / 512 * 512;
}

#endif
