/*
 * fold_internal.h: what the files of folding share.
 *
 * A job is the items of one stream (with the first of them, everything that is live always or
 * fixed): jobs share no byte, so each is folded by itself in pages of its own. A try is one
 * complete answer for a job; the best is kept.
 *
 * PLACES  of a try are bytes of the job's base pages, or, from PLEAT__IN_VIEWS on, bytes of its
 *         views: all views lie one behind the other in a space of their own, and the page table
 *         `views` says which base page's chunk is behind each.
 */
#ifndef PLEAT_PLAN_FOLD_FOLD_INTERNAL_H
#define PLEAT_PLAN_FOLD_FOLD_INTERNAL_H

#include <plan/base/free_ranges.h>
#include <plan/fold/fold.h>

#define PLEAT__IN_VIEWS ((uint64_t)1 << 62)

typedef struct pleat__fold_job {
    const pleat__problem *problem;
    const pleat__fold_options *options;
    pleat__arena *arena;
    uint64_t chunk;
    const uint32_t *births;      /* the job's items that are not live always, by begin */
    const uint32_t *deaths;      /* the same by end */
    const uint32_t *always;      /* items live always: the first job has them */
    const uint32_t *fixed_pages; /* pages of fixed items, ascending: the first job has them */
    uint32_t birth_count;
    uint32_t always_count;
    uint32_t fixed_page_count;
    uint32_t first_page; /* the job's base pages are from here on, besides the fixed ones */
    uint32_t floor;      /* chunks that its max-live needs, fixed pages counted */
    uint64_t work;       /* spent */
} pleat__fold_job;

typedef struct pleat__fold_jobs {
    const pleat__problem *problem;
    pleat__arena *arena;
    uint64_t chunk;
    pleat__fold_job *jobs;
    uint32_t count; /* at least 1 */
    uint32_t first_stream;
    uint32_t *births; /* of all jobs */
    uint32_t *deaths;
    uint32_t *always;
    uint32_t *fixed_pages;
    uint32_t birth_count;
    uint32_t always_count;
    uint64_t floor_bytes; /* max-live, stream by stream */
    uint32_t floor_chunks;
} pleat__fold_jobs;

/* job.c: PLEAT_E_LIMIT when there are more pages, or chunks, than a plan may have. */
PLEAT_NODISCARD pleat_result pleat__pages_check(uint64_t pages);
/* job.c: the first page behind `page` and behind all pages of fixed items, which the job has. */
uint32_t pleat__fold_behind(const pleat__fold_job *job, uint32_t page);
/* job.c. Arrays are from the arena. */
PLEAT_NODISCARD pleat_result pleat__fold_jobs_make(const pleat__problem *problem, uint64_t chunk,
                                                   pleat__arena *arena, pleat__fold_jobs *out);
void pleat__fold_jobs_free(pleat__fold_jobs *jobs);

/* Both are live at some time. pre: neither is empty */
bool pleat__items_meet(const pleat__problem *problem, uint32_t a, uint32_t b);

typedef struct pleat__try {
    uint64_t *places; /* by item of the problem; only the job's are set */
    uint32_t *views;  /* page of the view space -> base page */
    size_t view_capacity;
    uint32_t view_pages;
    uint32_t chunks;   /* base pages in use */
    uint32_t end_page; /* behind the highest base page */
    uint32_t folded;   /* items in views */
    uint32_t runs;     /* views */
} pleat__try;

/* Which hole an item takes. */
typedef enum pleat__policy_bit {
    PLEAT__FOLD_LOW = 0,
    PLEAT__FOLD_HIGH = 1,
} pleat__policy_bit;

/* sweep.c: places everything in order of birth. */
typedef struct pleat__sweep pleat__sweep;
PLEAT_NODISCARD pleat_result pleat__sweep_create(pleat__fold_job *job, pleat__sweep **out);
void pleat__sweep_destroy(pleat__sweep *sweep);
typedef struct pleat__sweep_limits {
    uint32_t cap;    /* chunks to begin with */
    uint32_t chunks; /* given up above so many */
    uint64_t cost;   /* and when pleat__fold_cost comes to this */
} pleat__sweep_limits;

/* policy: pleat__policy_bit by position in births. reserved: positions in births placed ahead of
 * all others. *done: no limit was met. *stuck: the position of the first item for which the base
 * had to grow beyond the cap, UINT32_MAX when there is none. */
PLEAT_NODISCARD pleat_result pleat__sweep_run(pleat__sweep *sweep, const uint8_t *policy,
                                              const uint32_t *reserved, uint32_t reserved_count,
                                              const pleat__sweep_limits *limits, pleat__try *out,
                                              bool *done, uint32_t *stuck);

/* search.c: sweeps until one takes no more chunks than the floor and no maps, or the work of a pass
 * is spent. `best` holds what is to be beaten, and then what did. */
PLEAT_NODISCARD pleat_result pleat__fold_search(pleat__fold_job *job, pleat__try *best,
                                                pleat__try *next);

#endif
