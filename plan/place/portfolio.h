/*
 * portfolio.h: contiguous placement: all algorithms tried on a problem, the best kept.
 */
#ifndef PLEAT_PLAN_PLACE_PORTFOLIO_H
#define PLEAT_PLAN_PLACE_PORTFOLIO_H

#include <plan/base/free_ranges.h>
#include <plan/base/plan.h>
#include <plan/place/place.h>
#include <plan/place/strip.h>

/* X(name, text): every algorithm; `auto` tries all of them. */
#define PLEAT__ALGORITHMS(X)                                                                       \
    X(size, "largest first, lowest gap")                                                           \
    X(lifetime, "longest-lived first, lowest gap")                                                 \
    X(sweep, "in order of birth or death, long-lived low, short-lived high")                       \
    X(stweaver, "groups by phase and size, memory layers")

typedef enum pleat__algorithm {
#define PLEAT__ALGORITHM_ENUM(name, text) PLEAT__ALGORITHM_##name,
    PLEAT__ALGORITHMS(PLEAT__ALGORITHM_ENUM)
#undef PLEAT__ALGORITHM_ENUM
        PLEAT__ALGORITHM_COUNT
} pleat__algorithm;

typedef struct pleat__place_options {
    uint64_t chunk_bytes; /* nothing is tried further once the height fits max-live's chunks */
    uint32_t algorithms;  /* a bit each; 0: all */
} pleat__place_options;

/* What became of each algorithm: heights of all streams together; 0: not run for the last. */
typedef struct pleat__place_report {
    uint64_t heights[PLEAT__ALGORITHM_COUNT]; /* UINT64_MAX: gave up */
    uint64_t work[PLEAT__ALGORITHM_COUNT];
    uint64_t height;
    uint64_t floor; /* no contiguous placement is lower */
    uint32_t best;  /* pleat__algorithm; of the stream with the most spans */
} pleat__place_report;

/* false: no such algorithm. "auto" is all of them (0). */
bool pleat__algorithm_find(const char *name, uint32_t *algorithms);
const char *pleat__algorithm_name(uint32_t algorithm);

/* places[problem->count]; items that take no room are placed at 0. Temporary memory is from
 * `scratch` and given back. */
PLEAT_NODISCARD pleat_result pleat__place_make(const pleat__problem *problem,
                                               const pleat__place_options *options,
                                               pleat__arena *scratch, uint64_t *places,
                                               pleat__place_report *report);

/* One strip being placed: the best so far, and what algorithms share. */
typedef struct pleat__placing {
    const pleat__strip *strip;
    pleat__arena *arena;
    pleat__gaps gaps;
    uint64_t *places; /* of the best placement, by span */
    uint64_t *trial;  /* of the one being tried */
    uint64_t height;  /* of the best; UINT64_MAX: none yet */
    uint64_t enough;  /* a height that need not be improved */
    uint32_t best;    /* pleat__algorithm */
} pleat__placing;

/* Keeps the trial when it is lower than the best. */
void pleat__placing_offer(pleat__placing *placing, pleat__algorithm algorithm, uint64_t height);
static inline bool pleat__placing_done(const pleat__placing *placing)
{
    return placing->height <= placing->enough;
}

/* The algorithms: each offers its placements; *work and *height are for the report. */
typedef pleat_result (*pleat__place_step)(pleat__placing *placing, uint64_t *height,
                                          uint64_t *work);
pleat_result pleat__place_size(pleat__placing *placing, uint64_t *height, uint64_t *work);
pleat_result pleat__place_lifetime(pleat__placing *placing, uint64_t *height, uint64_t *work);
pleat_result pleat__place_sweep(pleat__placing *placing, uint64_t *height, uint64_t *work);
pleat_result pleat__place_stweaver(pleat__placing *placing, uint64_t *height, uint64_t *work);

#endif
