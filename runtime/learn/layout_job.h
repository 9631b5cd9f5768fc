/*
 * layout_job.h: what a plan file laid out, and what is laid out for sizes larger than that.
 *
 * A plan file with a recipe serves every size up to the one that it was laid out for: smaller
 * requests take the beginnings of their slots. When the job comes at a larger size, the heap serves
 * what no slot holds, and a thread lays the plan out anew for that size, by the planner's own sweep
 * (pleat__elastic_instance). It then sees that there is room for the chunks that are missing, which
 * get their memory when something comes to lie there, and maps the views. From the next iteration
 * on the new layout is followed, and serves all smaller sizes as well. Tensors that stay have the
 * same places in every layout of a plan, so nothing has to move.
 *
 *   NONE --ask--> MAKING --thread--> MADE --take--> followed --a larger one--> retired --> gone
 *                    |                                              (nothing lies in it any more)
 *                    +--no memory, no layout--> NONE, and that size is not asked for again
 *                    +--more than ever lived--> NONE, until as much has lived
 *
 * THREADS  The planner runs without any lock. The rest is under the runtime's lock, with the turn
 * for what is mapped.
 */
#ifndef PLEAT_RUNTIME_LEARN_LAYOUT_JOB_H
#define PLEAT_RUNTIME_LEARN_LAYOUT_JOB_H

#include <pleat/runtime.h>
#include <runtime/follow/size_parameter.h>
#include <runtime/memory/place_map.h>

#define PLEAT__RETIRED 8u /* D196 */

/* A plan as it lies in memory. */
typedef struct pleat__layout_made {
    pleat_plan *plan; /* owned, but for the plan file's own */
    pleat__schedule *schedule;
    pleat__fraction x; /* it serves sizes up to here */
    /* Where its views are mapped in the window. The plan file's own are listed when it is left. */
    pleat__page_run *views;
    size_t view_capacity;
    uint32_t view_count;
} pleat__layout_made;

typedef enum pleat__layout_state {
    PLEAT__LAYOUT_NONE = 0,
    PLEAT__LAYOUT_MAKING,
    PLEAT__LAYOUT_MADE,
} pleat__layout_state;

typedef struct pleat__layouts {
    pleat__arena *arena;
    pleat__heap *heap;
    pleat__place_map *places;
    pleat_stats *stats;
    const pleat_plan *plan; /* the file's; NULL: there is none (any more) */
    pleat__layout_made file;
    pleat__layout_made now; /* larger than the file's; its schedule is NULL: there is none */
    pleat__layout_made retired[PLEAT__RETIRED];
    uint32_t retired_count;
    uint32_t lanes; /* numbers given to the lanes of all schedules so far */
    pleat__layout_state state;
    pleat__layout_made made;
    pleat__fraction wanted; /* what is being made ... */
    uint64_t most_live;     /* ... and the most bytes that had lived when it was asked for */
    pleat__fraction failed; /* not asked for again from here on; 0: none failed */
    uint64_t failed_live;   /* bytes that would live in it, where that was why; else 0 */
    pleat__mapper *thread;
    pleat__job job;
    pthread_cond_t done;
} pleat__layouts;

/* From a plan file, which stays; *schedule is its schedule, and stays the layouts'. */
PLEAT_NODISCARD pleat_result pleat__layouts_load(pleat__layouts *layouts, pleat__arena *arena,
                                                 pleat__heap *heap, pleat__place_map *places,
                                                 pleat_stats *stats, const pleat_plan *plan,
                                                 pleat__schedule **schedule);
/* Waits for what is being made. pre: the lock is not held */
void pleat__layouts_release(pleat__layouts *layouts);
/* A layout for x is wanted: begins with it, unless there is one or it cannot be had. At least
 * half of an iteration at x was found, and at most `most_live` bytes have lived so far. */
void pleat__layouts_ask(pleat__layouts *layouts, pleat__fraction x, uint64_t most_live);
/* Waits for one that is being made; lock and turn are left meanwhile. */
void pleat__layouts_await(pleat__layouts *layouts);
/* The schedule of one that was made, which takes the place of the last one; NULL: none was. */
pleat__schedule *pleat__layouts_take(pleat__layouts *layouts);
/* Unmaps the views of retired layouts in which nothing lies any more; whether any went. */
bool pleat__layouts_sweep(pleat__layouts *layouts);
/* The plan file is another job's: its layouts are retired. false, and nothing is changed: one is
 * being made, or too many are retired. */
bool pleat__layouts_leave(pleat__layouts *layouts);
/* Alias pages that are mapped for all layouts (R8 in docs/invariants.md). */
uint64_t pleat__layouts_view_pages(const pleat__layouts *layouts);
/* The lane of that number. */
pleat__lane_space *pleat__layouts_lane(const pleat__layouts *layouts, uint32_t lane);

#endif
