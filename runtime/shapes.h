/*
 * shapes.h: which shape of the job is followed, which others are kept, and when that changes
 * (states.h has the diagram).
 *
 * A shape is a sequence of requests with their places (follow.h): a plan file's, or an iteration
 * that was learned (learn.h). A job has several when it alternates between sequence lengths; one
 * that is put aside is kept, and taken up again when the job's requests are its own again.
 */
#ifndef PLEAT_RUNTIME_SHAPES_H
#define PLEAT_RUNTIME_SHAPES_H

#include <pleat/runtime.h>
#include <runtime/learn.h>
#include <runtime/states.h>

/* Shapes that are kept. */
#define PLEAT__SHAPES 8u
/* Divergence is judged over this many requests. */
#define PLEAT__WATCH_REQUESTS 256u

typedef struct pleat__shapes {
    pleat__arena *arena;
    pleat_stats *stats;
    pleat__heap *heap;      /* told when free memory is wanted next */
    pleat__follow *current; /* PLANNED: what is followed */
    uint64_t epoch;         /* changes with it */
    uint32_t watched;       /* requests since divergence was judged last */
    uint32_t missed;        /* of them */
    uint64_t requests;
    pleat__states states;
    pleat__learn learn;
    pleat__follow *kept[PLEAT__SHAPES];
    uint32_t kept_count;
    /* A kept one that may have returned, and how many requests in a row it has matched. */
    pleat__follow *candidate;
    uint32_t candidate_hits;
} pleat__shapes;

PLEAT_NODISCARD pleat_result pleat__shapes_init(pleat__shapes *shapes, pleat__arena *arena,
                                                pleat_stats *stats, pleat__heap *heap,
                                                const pleat__conf *conf);
void pleat__shapes_release(pleat__shapes *shapes);
/* Begins with a plan file's shape, which becomes the shapes' and is never dropped. */
void pleat__shapes_begin(pleat__shapes *shapes, pleat__follow *plan);
/* An iteration begins. */
void pleat__shapes_mark(pleat__shapes *shapes);
/* A request that was served while nothing is followed. */
void pleat__shapes_learn(pleat__shapes *shapes, uint64_t bytes, uint16_t stream,
                         const pleat__place *place);
/* Judges the last PLEAT__WATCH_REQUESTS. */
void pleat__shapes_judge(pleat__shapes *shapes);

/* A request that was served while one is followed. */
static inline void pleat__shapes_watch(pleat__shapes *shapes, bool missed)
{
    shapes->missed += missed;
    if (__builtin_expect(++shapes->watched == PLEAT__WATCH_REQUESTS, 0))
        pleat__shapes_judge(shapes);
}

#endif
