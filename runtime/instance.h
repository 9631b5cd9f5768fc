/*
 * instance.h: the iteration of a scale at one x, with a place for each request in the pool as it
 * is: what outlives iterations stays where it lies, and is worked around to the byte.
 *
 * An instance laid out for one x serves every smaller x too, at the same addresses: requests are
 * then smaller than their slots (pleat__instance_fit). So the largest x decides what is mapped, and
 * a smaller one costs no remap; it is laid out anew only where its own memory is to be less.
 */
#ifndef PLEAT_RUNTIME_INSTANCE_H
#define PLEAT_RUNTIME_INSTANCE_H

#include <runtime/follow.h>
#include <runtime/placed.h>
#include <runtime/scale.h>

typedef struct pleat__instance {
    pleat__follow *follow; /* item i is the scale's term i */
    uint64_t x;            /* laid out for */
    uint64_t fitted;       /* the x of the sizes that are expected now */
    uint64_t view_page;    /* its views, mapped one behind the other */
    uint32_t view_pages;
    uint32_t end_page; /* behind the last home that it uses */
    uint64_t used;     /* the caller's clock */
    bool stale;        /* chunks that it uses were given back: it is not taken up any more */
} pleat__instance;

/* How the sweep uses its freedom; tried out once, and then kept for every x. */
typedef struct pleat__sweep_choice {
    uint32_t life;    /* items that live so long lie low, the others high; 0: not chosen yet */
    uint32_t largest; /* so many of the largest items are placed before all others */
} pleat__sweep_choice;

/* What an instance is made in. */
typedef struct pleat__ground {
    pleat__arena *arena;
    pleat__heap *heap;
    const pleat__placed *placed;
    /* Whether what is allocated there will be freed in the coming iteration. */
    bool (*crosses)(const void *context, pleat_va address);
    const void *context;
} pleat__ground;

/* Lays the scale out for x and maps what it needs. *choice is for the caller to keep from one to
 * the next. On failure some chunks may be new and free. */
PLEAT_NODISCARD pleat_result pleat__instance_make(const pleat__ground *ground,
                                                  const pleat__scale *scale, uint64_t x,
                                                  pleat__sweep_choice *choice,
                                                  pleat__instance **out);
/* The chunks that the pool would have with an instance for x in it, were it laid out in no more
 * than `cap` where that is possible. Nothing is mapped or kept. */
PLEAT_NODISCARD pleat_result pleat__instance_takes(const pleat__ground *ground,
                                                   const pleat__scale *scale, uint64_t x,
                                                   pleat__sweep_choice choice, uint32_t cap,
                                                   uint32_t *chunks);
/* From now on the sizes at x, which is at most instance->x, are expected. */
void pleat__instance_fit(pleat__instance *instance, const pleat__scale *scale, uint64_t x);
/* Whether anything allocated lies in its views, or in a place of it that is of several runs, whose
 * list is its own: it must stay then. */
bool pleat__instance_in_use(const pleat__instance *instance, const pleat__placed *placed,
                            const pleat__pool *pool);
/* Leaves its views to the mapper, which unmaps them when the GPU has finished with them. false: it
 * could not be told, and the instance stays. pre: not in use. */
bool pleat__instance_free(pleat__instance *instance, pleat__heap *heap);

#endif
