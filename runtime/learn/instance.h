/*
 * instance.h: the iteration of a scale at one x, with a place for each request in the pool as it
 * is: what outlives iterations stays where it lies, and is worked around to the byte.
 *
 * An instance laid out for one x serves every smaller x too, at the same addresses: requests are
 * then smaller than their slots (pleat__instance_fit). So the largest x decides what is mapped, and
 * a smaller one costs no remap; it is laid out anew only where its own memory is to be less.
 */
#ifndef PLEAT_RUNTIME_LEARN_INSTANCE_H
#define PLEAT_RUNTIME_LEARN_INSTANCE_H

#include <runtime/follow/schedule.h>
#include <runtime/learn/scale.h>
#include <runtime/memory/place_map.h>

typedef struct pleat__coming pleat__coming; /* coming.h */

typedef struct pleat__instance {
    pleat__follow *follow; /* item i is the scale's term i */
    pleat__x x;            /* laid out for */
    pleat__x fitted;       /* the x of the sizes that are expected now */
    pleat__page_run *views;
    uint32_t view_runs;
    uint32_t view_pages; /* in all */
    uint32_t list_count; /* its places of several runs, in what is followed */
    uint64_t end_page;   /* behind the last home that it uses */
    uint64_t used;       /* the caller's clock */
    bool planned;        /* a plan file's: what is followed and the views' pages are not its own */
    bool left;           /* of such a one: what was followed is its own, and goes with it */
    bool stale;          /* chunks that it uses were given back: it is not taken up any more */
} pleat__instance;

/* How the sweep uses its freedom; tried out once, and then kept for every x. */
typedef struct pleat__sweep_choice {
    uint32_t life;    /* items that live so long lie low, the others high; 0: not chosen yet */
    uint32_t largest; /* so many of the largest items are placed before all others */
    uint32_t maps;    /* alias pages that it took where it was tried out ... */
    uint32_t pages;   /* ... in so many pages */
} pleat__sweep_choice;

/* A request of the iteration that is under way: it stays where it is. */
typedef struct pleat__held {
    pleat_va address;
    uint64_t bytes;
    uint32_t term; /* that it is, or PLEAT__NEVER */
    uint16_t stream;
} pleat__held;

/* What an instance is made in. */
typedef struct pleat__ground {
    pleat__arena *arena;
    pleat__heap *heap;
    const pleat__placed *placed;
    /* Whether what is allocated there will be freed in the coming iteration. */
    bool (*crosses)(const void *context, pleat_va address);
    const void *context;
    /* What a plan has in its beginning, while the job is there; NULL: it is over, or none was. */
    const pleat__follow *beginning;
    const pleat__held *held; /* in runs at home, no smaller than they are to be */
    uint32_t held_count;
    bool tight;  /* no more chunks than it needs are used, although there are more */
    bool frugal; /* it may have no new chunks */
    /* Who makes what is missing while the instance is followed; NULL: it is made at once. */
    pleat__coming *coming;
} pleat__ground;

/* An empty one, with room for so many runs of views. */
PLEAT_NODISCARD pleat_result pleat__instance_new(pleat__arena *arena, uint32_t runs,
                                                 const pleat__x *x, pleat__instance **out);
/* Lays the scale out for x and maps what it needs. *choice is for the caller to keep from one to
 * the next. On failure some chunks may be new and free. pre: the turn; the gate's lock is left
 * meanwhile, and the scale must stay. */
PLEAT_NODISCARD pleat_result pleat__instance_make(const pleat__ground *ground,
                                                  const pleat__scale *scale, const pleat__x *x,
                                                  pleat__sweep_choice *choice,
                                                  pleat__instance **out);
/* A plan file's own places, which are those at its reference. */
PLEAT_NODISCARD pleat_result pleat__instance_of_plan(const pleat__ground *ground,
                                                     const pleat_plan *plan, pleat__follow *follow,
                                                     pleat__instance **out);
/* The chunks that the pool would have with an instance for x in it, were it laid out in no more
 * than `cap` where that is possible. Nothing is mapped or kept. pre: as above. */
PLEAT_NODISCARD pleat_result pleat__instance_takes(const pleat__ground *ground,
                                                   const pleat__scale *scale, const pleat__x *x,
                                                   pleat__sweep_choice choice, uint32_t cap,
                                                   uint32_t *chunks);
/* From now on the sizes at x, which instance->x holds, are expected. */
void pleat__instance_fit(pleat__instance *instance, const pleat__scale *scale, const pleat__x *x);

/* The scale `after` has the requests of `before`, which it was made for (pleat__scale_is_same): its
 * sizes are expected from now on, at the x that was; what has become too large for its place has
 * none. false, and nothing is changed: that is more than `most` granules. */
bool pleat__instance_refit(pleat__instance *instance, const pleat__scale *before,
                           const pleat__scale *after, uint64_t most);

/* ---- instance_end.c ---- */

/* Whether anything allocated lies in a view of it, or in a place of several runs, whose list is its
 * own: it must stay then. */
bool pleat__instance_in_use(const pleat__instance *instance, const pleat__heap *heap,
                            const pleat__placed *placed);
/* Leaves its views to the mapper, which unmaps them when the GPU has finished with them. false: it
 * could not be told, and the instance stays. pre: not in use. */
bool pleat__instance_free(pleat__instance *instance, pleat__heap *heap);
/* Only what it takes of host memory. */
void pleat__instance_release(pleat__instance *instance, pleat__arena *arena);

#endif
