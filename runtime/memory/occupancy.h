/*
 * occupancy.h: which bytes of physical memory are in use now, exact to the granule of 512 bytes.
 *
 * Memory is numbered physically (chunk c holds granules c << shift ..), so two places that alias
 * the same chunk are in each other's way here whatever their addresses are. Every place that is
 * handed out goes through this check: a wrong plan then costs speed, never correctness.
 *
 * EQUATIONS  used[c] = granules in use of chunk c. A chunk taken whole has used = full and nothing
 *            else. Otherwise used = 64 x words[c].whole's bits + the bits set in its row: words
 *            that a run covers wholly are a bit of `whole`, the ends of runs are bits of the row,
 *            and `part` has a bit for each word of the row that is not 0. A chunk has a row while
 *            `part` is not 0 (D513).
 *
 * COST       A whole chunk is one counter; a part of one is its counter, two masks and at most two
 *            words of the row, so 3 or 4 cache lines however long it is (bits alone: up to 9; a
 *            free of 128 chunks read a line of each, and took 0.7 us).
 */
#ifndef PLEAT_RUNTIME_MEMORY_OCCUPANCY_H
#define PLEAT_RUNTIME_MEMORY_OCCUPANCY_H

#include <internal/arena.h>
#include <stdbool.h>
#include <stdint.h>

#define PLEAT__GRANULE_SHIFT 9u /* D200 */
#define PLEAT__GRANULE_BYTES (1u << PLEAT__GRANULE_SHIFT)

/* Granules that a request takes. */
static inline uint32_t pleat__granules_of(uint64_t bytes)
{
    return (uint32_t)((bytes + PLEAT__GRANULE_BYTES - 1) >> PLEAT__GRANULE_SHIFT);
}

/* Words of a chunk's row of granules; bit w is word w. */
typedef struct pleat__chunk_words {
    uint64_t whole; /* all 64 granules in use by one run */
    uint64_t part;  /* some in use, each by its bit */
    uint64_t *row;  /* its row, where `part` is not 0 */
} pleat__chunk_words;

typedef struct pleat__occupancy {
    pleat__arena *arena;
    uint16_t *used;            /* per chunk: at most 4,096 granules */
    pleat__chunk_words *masks; /* per chunk */
    uint64_t *rows;            /* `words` a row, one for each chunk that there may be */
    uint32_t rows_used;        /* so many of them were a chunk's at some time */
    uint64_t *free_row;        /* of those, the one given back last; its first word is the address
                                  of the next one; NULL: none */
    uint32_t shift;            /* granules per chunk: 1 << shift; at least 6 */
    uint32_t full;             /* that number */
    uint32_t words;            /* full / 64, at most 64 */
    uint32_t chunks;           /* that are accounted for */
    uint32_t most;             /* that there may be: tables are made for all of them, and what was
                                  never used of them has no page (D513) */
} pleat__occupancy;

/* A run of granules. */
typedef struct pleat__run {
    uint32_t begin;
    uint32_t count;
} pleat__run;

/* For at most so many chunks, none yet. chunk_bytes: a power of two from 32 KiB to 2 MiB;
 * PLEAT_E_UNSUPPORTED for others. */
PLEAT_NODISCARD pleat_result pleat__occupancy_init(pleat__occupancy *occupancy, pleat__arena *arena,
                                                   uint64_t chunk_bytes, uint32_t most);
void pleat__occupancy_release(pleat__occupancy *occupancy);
/* Room for at least `chunks`; new ones are free. */
PLEAT_NODISCARD pleat_result pleat__occupancy_grow(pleat__occupancy *occupancy, uint32_t chunks);

/* Asks for the memory that judging a run beginning there will read. */
static inline void pleat__occupancy_prefetch(const pleat__occupancy *occupancy, uint32_t granule)
{
    uint32_t chunk = granule >> occupancy->shift;
    __builtin_prefetch(&occupancy->used[chunk], 1);
    __builtin_prefetch(&occupancy->masks[chunk], 1);
}

/* Takes the run when all of it is free; otherwise false and nothing is changed. */
bool pleat__occupancy_take(pleat__occupancy *occupancy, pleat__run run);
/* pre: a run as it was taken, or several of those side by side that meet between chunks. Cannot
 * fail. */
void pleat__occupancy_give(pleat__occupancy *occupancy, pleat__run run);
bool pleat__occupancy_is_free(const pleat__occupancy *occupancy, pleat__run run);
/* How many granules at the run's end are free, up to the last one in use. */
uint32_t pleat__occupancy_free_tail(const pleat__occupancy *occupancy, pleat__run run);
/* Free granules at a chunk's beginning. */
uint32_t pleat__occupancy_head(const pleat__occupancy *occupancy, uint32_t chunk);

/* Calls `visit` for each longest free run within chunks [first, last), in order. A run ends at a
 * chunk for which `breaks` (may be NULL) is true: that chunk's memory does not follow on. Stops
 * when `visit` returns a failure. */
typedef pleat_result (*pleat__occupancy_visit)(void *context, pleat__run run);
pleat_result pleat__occupancy_walk_free(const pleat__occupancy *occupancy, uint32_t first,
                                        uint32_t last, const uint8_t *breaks,
                                        pleat__occupancy_visit visit, void *context);

/* Re-derives the counters from the bits; prints what disagrees (R1 in docs/invariants.md). */
bool pleat__occupancy_audit(const pleat__occupancy *occupancy);

#endif
