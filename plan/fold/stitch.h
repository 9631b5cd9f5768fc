/*
 * stitch.h: new views over the chunks that a sweep has free (sweep.c).
 */
#ifndef PLEAT_PLAN_FOLD_STITCH_H
#define PLEAT_PLAN_FOLD_STITCH_H

#include <plan/fold/fold_internal.h>

/* A free range that a stitch may draw on: [begin, end) holds the chunk boundaries low..high. */
typedef struct pleat__source {
    uint64_t begin;
    uint64_t end;
    uint64_t low;  /* first boundary at or above begin */
    uint64_t high; /* last boundary at or below end; not below `low` */
    uint64_t take; /* whole chunks chosen */
} pleat__source;

typedef struct pleat__stitcher {
    pleat__fold_job *job;
    pleat__gaps *gaps; /* what is free */
    pleat__try *out;   /* gets the views */
    pleat__source *sources;
    size_t capacity;
    uint32_t count;
} pleat__stitcher;

/* A new view for `size` bytes; *found is false when what is free cannot be stitched, or the job's
 * maps are used up. */
PLEAT_NODISCARD pleat_result pleat__stitcher_view(pleat__stitcher *stitcher, uint64_t size,
                                                  uint64_t *place, bool *found);

#endif
