/*
 * free_runs.h: free runs of granules, found by size or by place. Neighbours become one run.
 *
 * Two ordered sets of the same runs: by begin (to join and to carve) and by (count, begin) (best
 * fit: the smallest run that is large enough, the lowest among equals).
 */
#ifndef PLEAT_RUNTIME_MEMORY_FREE_RUNS_H
#define PLEAT_RUNTIME_MEMORY_FREE_RUNS_H

#include <runtime/base/key_set.h>
#include <runtime/memory/occupancy.h>

typedef struct pleat__free_runs {
    pleat__key_set by_place; /* keys: begin << 32 | count */
    pleat__key_set by_size;  /* keys: count << 32 | begin */
    uint64_t granules;
} pleat__free_runs;

/* A free run, and where it is in the order of sizes, from which the next one is found without a
 * search: until the sets change. */
typedef struct pleat__hole {
    pleat__run run; /* count 0: there is none */
    pleat__key_gap behind;
} pleat__hole;

void pleat__free_runs_init(pleat__free_runs *runs, pleat__arena *arena);
void pleat__free_runs_release(pleat__free_runs *runs);
/* Leaves them empty, with the memory they have. */
void pleat__free_runs_clear(pleat__free_runs *runs);
/* Room for so many runs more: what makes a later insertion unable to fail. */
PLEAT_NODISCARD static inline pleat_result pleat__free_runs_reserve(pleat__free_runs *runs,
                                                                    uint32_t more)
{
    pleat_result result = pleat__key_set_reserve(&runs->by_place, more);
    return result == PLEAT_OK ? pleat__key_set_reserve(&runs->by_size, more) : result;
}

/* Adds a run; no granule of it is in yet. pre: room for one reserved. Joins the neighbour before it
 * when `join_before`, the one behind when `join_after`. What it has become. */
pleat__run pleat__free_runs_add(pleat__free_runs *runs, pleat__run run, bool join_before,
                                bool join_after);
/* Takes a run out of the one that holds it whole; false when none does. pre: room for one reserved.
 */
PLEAT_NODISCARD bool pleat__free_runs_try_carve(pleat__free_runs *runs, pleat__run run);
/* The same where one does. */
void pleat__free_runs_carve(pleat__free_runs *runs, pleat__run run);
/* The same out of a hole, which holds it. */
void pleat__free_runs_carve_hole(pleat__free_runs *runs, pleat__hole hole, pleat__run run);
/* The best fit for `count` granules, and the one that follows a hole in order of size. */
pleat__hole pleat__free_runs_best(const pleat__free_runs *runs, uint32_t count);
pleat__hole pleat__free_runs_larger(const pleat__free_runs *runs, pleat__hole hole);
/* The last one in order of size, and the one before a hole. */
pleat__hole pleat__free_runs_largest(const pleat__free_runs *runs);
pleat__hole pleat__free_runs_smaller(const pleat__free_runs *runs, pleat__hole hole);
/* The run that holds a granule; count 0 when none does. */
pleat__run pleat__free_runs_at(const pleat__free_runs *runs, uint32_t granule);
/* What is free next from a granule on: the rest of the run that holds it, or the first one behind;
 * count 0: none. */
pleat__run pleat__free_runs_from(const pleat__free_runs *runs, uint32_t granule);

/* Whether both sets are in order and as large as each other. */
bool pleat__free_runs_audit(const pleat__free_runs *runs);

#endif
