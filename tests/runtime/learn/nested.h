/*
 * nested.h: made-up training jobs whose iterations hold loops in loops: layers forward and backward
 * in microbatches, then an optimizer that goes over the parameters. Only sizes and lives are made
 * up; what a job does between and inside iterations (evaluation, logging, other sizes) is the
 * test's.
 */
#ifndef PLEAT_TESTS_RUNTIME_NESTED_H
#define PLEAT_TESTS_RUNTIME_NESTED_H

#include "job.h"

#define NESTED_LAYER      24u
#define NESTED_LAYERS     12u
#define NESTED_PARAMETERS (NESTED_LAYERS * 4u)
#define NESTED_KEPT       (NESTED_LAYERS * NESTED_LAYER)

typedef struct nested {
    uint32_t layers, requests, microbatches; /* requests of a layer, forward and backward each */
    uint64_t forward[NESTED_LAYER], backward[NESTED_LAYER];
    uint64_t embedding, loss;
    uint64_t parameters[4]; /* of a layer */
    bool keeps_gradients;   /* they are not freed between iterations */
    job_tensor states[NESTED_PARAMETERS];
    job_tensor gradients[NESTED_PARAMETERS];
    uint32_t count; /* requests of an iteration but the first */
} nested;

static inline nested nested_make(test_random *random, uint32_t microbatches)
{
    nested n = {.layers = 3 + (uint32_t)test_random_below(random, NESTED_LAYERS - 2),
                .requests = 8 + (uint32_t)test_random_below(random, NESTED_LAYER - 7),
                .microbatches = microbatches,
                .keeps_gradients = test_random_below(random, 3) == 0};
    for (uint32_t i = 0; i < n.requests; i++) {
        n.forward[i] = 512 * (1 + test_random_below(random, 60));
        n.backward[i] = 512 * (1 + test_random_below(random, 60));
    }
    n.embedding = 512 * (61 + test_random_below(random, 10));
    n.loss = 512 * (71 + test_random_below(random, 10));
    for (uint32_t i = 0; i < 4; i++)
        n.parameters[i] = 512 * (81 + test_random_below(random, 20));
    return n;
}

static inline job_tensor nested_alloc(job *j, nested *n, uint64_t bytes)
{
    n->count++;
    return job_alloc(j, bytes, 0);
}

static inline void nested_microbatch(job *j, nested *n)
{
    static job_tensor kept[NESTED_KEPT];
    job_tensor embedding = nested_alloc(j, n, n->embedding);
    for (uint32_t layer = 0; layer < n->layers; layer++)
        for (uint32_t i = 0; i < n->requests; i++) {
            job_tensor *t = &kept[layer * NESTED_LAYER + i];
            *t = nested_alloc(j, n, n->forward[i]);
            if (i % 3 == 1)
                job_free(j, t);
        }
    job_tensor loss = nested_alloc(j, n, n->loss);
    for (uint32_t layer = n->layers; layer-- > 0;) {
        for (uint32_t i = 0; i < n->requests; i++) {
            job_tensor t = nested_alloc(j, n, n->backward[i]);
            job_free(j, &kept[layer * NESTED_LAYER + i]);
            job_free(j, &t);
        }
        for (uint32_t i = 0; i < 4; i++) {
            job_tensor *gradient = &n->gradients[layer * 4 + i];
            job_tensor t = nested_alloc(j, n, n->parameters[i]);
            if (gradient->address == 0)
                *gradient = t;
            else
                job_free(j, &t);
        }
    }
    job_free(j, &loss);
    job_free(j, &embedding);
}

static inline void nested_step(job *j, nested *n)
{
    for (uint32_t i = 0; i < n->layers * 4; i++) {
        job_tensor update = nested_alloc(j, n, n->parameters[i % 4] + 512);
        if (n->states[i].address == 0)
            n->states[i] = nested_alloc(j, n, n->parameters[i % 4]);
        job_tensor norm = nested_alloc(j, n, 512);
        job_free(j, &update);
        job_free(j, &norm);
        if (!n->keeps_gradients)
            job_free(j, &n->gradients[i]);
    }
}

static inline void nested_iterate(job *j, nested *n)
{
    n->count = 0;
    for (uint32_t i = 0; i < n->microbatches; i++)
        nested_microbatch(j, n);
    nested_step(j, n);
}

static inline void nested_end(job *j, nested *n)
{
    for (uint32_t i = 0; i < NESTED_PARAMETERS; i++) {
        job_free(j, &n->gradients[i]);
        job_free(j, &n->states[i]);
    }
}

#endif
