/*
 * layout.h: layouts of an elastic plan: from its slots' sizes at one x to places.
 */
#ifndef PLEAT_PLAN_SIZES_LAYOUT_H
#define PLEAT_PLAN_SIZES_LAYOUT_H

#include <plan/fold/fold.h>
#include <plan/sizes/sizes.h>

/* The problem that a plan's slots and lanes are, at the sizes that they have. */
typedef struct pleat__elastic_job {
    const pleat_plan *plan;
    pleat__arena *scratch;
    pleat__item *items; /* persistent slots of `first`, steady slots, lanes */
    uint32_t *slots;    /* of each item: index of the slot, or of the lane */
    uint32_t persistents;
    uint32_t lanes_from; /* the first item that is a lane */
    uint64_t view_page;
    pleat__problem problem;
} pleat__elastic_job;

/* Persistent slots and those below `prologue` that have a place keep it. PLEAT_E_NO_MEMORY,
 * PLEAT_E_INPUT. */
PLEAT_NODISCARD pleat_result pleat__elastic_job_make(const pleat_plan *plan, uint32_t prologue,
                                                     uint64_t view_page, pleat__arena *scratch,
                                                     pleat__elastic_job *out);
void pleat__elastic_job_free(pleat__elastic_job *job);

/* The layout at the job's sizes: the same for the same sizes, in bounded time. PLEAT_E_NO_MEMORY,
 * PLEAT_E_LIMIT. */
PLEAT_NODISCARD pleat_result pleat__elastic_lay_out(pleat__elastic_job *job, pleat__layout *out);

/* instance.c: puts the layout into the job's own plan: places, max-live, the places of `first`
 * unless `hosts` is NULL, handles and maps. */
PLEAT_NODISCARD pleat_result pleat__elastic_fill(pleat__elastic_job *job,
                                                 const pleat__layout *layout, const uint32_t *hosts,
                                                 pleat_plan *out);

/* before_x.c: gives persistent slots, which have their sizes, and those of the plan's prologue
 * their places. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__elastic_place_prologue(pleat_plan *plan, pleat__arena *scratch);

#endif
