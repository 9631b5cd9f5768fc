/*
 * report.h: what planning tells while it goes on and when it is done.
 */
#ifndef PLEAT_PLAN_MODEL_REPORT_H
#define PLEAT_PLAN_MODEL_REPORT_H

#include <plan/place/portfolio.h>

/* Told when each step of planning begins, and with NULL at the end: who wants times brings the
 * clock. */
typedef struct pleat__plan_watch {
    void (*step)(void *self, const char *name);
    void *self;
} pleat__plan_watch;

/* `watch` may be NULL. */
static inline void pleat__plan_step(const pleat__plan_watch *watch, const char *name)
{
    if (watch != NULL)
        watch->step(watch->self, name);
}

typedef struct pleat__plan_report {
    pleat__place_report place;
    uint64_t whole_max_live;   /* of the steady iteration, dynamic requests included */
    uint64_t placed_max_live;  /* of what was placed: lanes for dynamic requests */
    uint64_t dynamic_max_live; /* of dynamic requests alone, at their own peak */
    uint32_t floor_chunks;
    uint32_t folded;
    uint32_t views;
    uint32_t handed_waits;  /* of an iteration: for chunks that were another stream's */
    uint32_t profiles;      /* iterations compared */
    uint32_t period;        /* 0: the program marked its iterations */
    uint64_t scratch_bytes; /* most host memory at once */
} pleat__plan_report;

/* What a job takes whose requests with a place lie within `height` bytes: what has none lies beside
 * them, so that it is no less than max-live. */
static inline uint64_t pleat__contiguous_bytes(const pleat__plan_report *report, uint64_t max_live,
                                               uint64_t height)
{
    uint64_t placed = report->placed_max_live;
    return height + (max_live > placed ? max_live - placed : 0);
}

#endif
