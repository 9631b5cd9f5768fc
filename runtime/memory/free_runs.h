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

typedef struct pleat__free_run_node {
    pleat__run run;
    uint32_t left[2], right[2]; /* of the two trees; 0 is none */
} pleat__free_run_node;

typedef struct pleat__free_runs {
    pleat__arena *arena;
    pleat__free_run_node *nodes; /* nodes[0] is not used */
    size_t capacity;
    size_t made;
    uint32_t root[2];
    uint32_t spare; /* nodes given back, linked by left[0] */
    uint32_t count;
    uint64_t granules;
} pleat__free_runs;

void pleat__free_runs_init(pleat__free_runs *runs, pleat__arena *arena);
void pleat__free_runs_release(pleat__free_runs *runs);
PLEAT_NODISCARD pleat_result pleat__free_runs_grow(pleat__free_runs *runs, uint32_t nodes);
/* So many nodes more without allocation: what makes a later insertion unable to fail. */
PLEAT_NODISCARD static inline pleat_result pleat__free_runs_reserve(pleat__free_runs *runs,
                                                                    uint32_t nodes)
{
    return runs->made + nodes <= runs->capacity ? PLEAT_OK : pleat__free_runs_grow(runs, nodes);
}

/* Adds a run; no granule of it is in yet. pre: one node reserved. Joins the neighbour before it
 * when `join_before`, the one behind when `join_after`. */
void pleat__free_runs_add(pleat__free_runs *runs, pleat__run run, bool join_before,
                          bool join_after);
/* Takes a run out of the one that holds it whole; false when none does. pre: one node reserved. */
bool pleat__free_runs_carve(pleat__free_runs *runs, pleat__run run);
/* The best fit for `count` granules; a run of count 0 when there is none. */
pleat__run pleat__free_runs_best(const pleat__free_runs *runs, uint32_t count);
/* The run that follows (count, begin) in order of size; count 0 at the end. */
pleat__run pleat__free_runs_after(const pleat__free_runs *runs, pleat__run run);
/* The run that holds a granule; count 0 when none does. */
pleat__run pleat__free_runs_at(const pleat__free_runs *runs, uint32_t granule);

#endif
