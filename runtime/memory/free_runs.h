/*
 * free_runs.h: free runs of granules, found by size or by place. Neighbours become one run.
 *
 * Two treaps over the same nodes: by begin (to join and to carve) and by (count, begin) (best fit:
 * the smallest run that is large enough, the lowest among equals). A node's priority is a hash of
 * its number, so that the same calls give the same trees.
 */
#ifndef PLEAT_RUNTIME_MEMORY_FREE_RUNS_H
#define PLEAT_RUNTIME_MEMORY_FREE_RUNS_H

#include <runtime/memory/occupancy.h>

typedef struct pleat__extent_node {
    pleat__extent run;
    uint32_t left[2], right[2]; /* of the two trees; 0 is none */
} pleat__extent_node;

typedef struct pleat__extents {
    pleat__arena *arena;
    pleat__extent_node *nodes; /* nodes[0] is not used */
    size_t capacity;
    size_t made;
    uint32_t root[2];
    uint32_t spare; /* nodes given back, linked by left[0] */
    uint32_t count;
    uint64_t granules;
} pleat__extents;

void pleat__extents_init(pleat__extents *extents, pleat__arena *arena);
void pleat__extents_release(pleat__extents *extents);
PLEAT_NODISCARD pleat_result pleat__extents_grow(pleat__extents *extents, uint32_t nodes);
/* So many nodes more without allocation: what makes a later insertion unable to fail. */
PLEAT_NODISCARD static inline pleat_result pleat__extents_reserve(pleat__extents *extents,
                                                                  uint32_t nodes)
{
    return extents->made + nodes <= extents->capacity ? PLEAT_OK
                                                      : pleat__extents_grow(extents, nodes);
}

/* Adds a run; no granule of it is in yet. pre: one node reserved. Joins the neighbour before it
 * when `join_before`, the one behind when `join_after`. */
void pleat__extents_add(pleat__extents *extents, pleat__extent run, bool join_before,
                        bool join_after);
/* Takes a run out of the one that holds it whole; false when none does. pre: one node reserved. */
bool pleat__extents_carve(pleat__extents *extents, pleat__extent run);
/* The best fit for `count` granules; a run of count 0 when there is none. */
pleat__extent pleat__extents_best(const pleat__extents *extents, uint32_t count);
/* The run that follows (count, begin) in order of size; count 0 at the end. */
pleat__extent pleat__extents_after(const pleat__extents *extents, pleat__extent run);
/* The run that holds a granule; count 0 when none does. */
pleat__extent pleat__extents_at(const pleat__extents *extents, uint32_t granule);

#endif
