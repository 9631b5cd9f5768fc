/*
 * instance_internal.h: what laying an instance out (instance_layout.c), making it (instance.c) and
 * listing what is made later (instance_coming.c) share.
 */
#ifndef PLEAT_RUNTIME_LEARN_INSTANCE_INTERNAL_H
#define PLEAT_RUNTIME_LEARN_INSTANCE_INTERNAL_H

#include <plan/fold/fold_internal.h>
#include <runtime/learn/coming.h>

#define PLEAT__LARGEST 32u /* of the largest items, at most so many are placed first */
#define PLEAT__NO_HOME UINT32_MAX

/* Bytes that a layout must leave alone: pages from the lowest home on, side by side. */
typedef struct pleat__obstacle {
    uint64_t at;
    uint64_t bytes;
    pleat_va address; /* of the allocation that lies there; 0: no chunk can come there */
    uint32_t end;     /* of its life, from the beginning on; 0: it outlives iterations */
} pleat__obstacle;

/* What a layout takes. */
typedef struct pleat__layout_cost {
    uint32_t chunks;
    uint32_t maps;
} pleat__layout_cost;

/* An instance being laid out. Pages are the pool's homes, from the lowest on. */
typedef struct pleat__maker {
    const pleat__ground *ground;
    const pleat__scale *scale;
    pleat__pool *pool;
    pleat__arena *arena;
    const pleat__x *x;
    bool as_it_is;      /* chunks that were given back do not come again */
    bool thorough;      /* nobody waits for it: every choice is tried */
    bool promised;      /* what is missing comes later */
    uint32_t end;       /* then: of the pages that are to have chunks */
    uint32_t pages;     /* homes, with or without a chunk */
    uint64_t home0;     /* the lowest */
    uint32_t *chunk_at; /* page -> chunk, which may have been given back, or PLEAT__NO_HOME */
    pleat__fold_handle *handles; /* by page, as chunk_at */
    pleat__obstacle *obstacles;
    size_t obstacle_capacity;
    uint32_t obstacle_count;
    pleat__item *items; /* the scale's terms, then what is fixed; times are from `cut` on */
    size_t item_capacity;
    uint32_t item_count;
    uint32_t cut;            /* of the iteration: where the fewest bytes live */
    pleat__passing *passing; /* obstacles that end */
    size_t passing_capacity;
    uint32_t passing_count;
    pleat__problem problem;
    pleat__fold_jobs jobs;
    pleat__try *tries; /* by job; all have the same places */
    uint64_t *places;
    uint8_t *policy;
    const pleat__layout_cost *beaten; /* a sweep that takes as much is given up; NULL: none is */
    uint32_t largest[PLEAT__LARGEST]; /* items, the largest first */
    uint32_t largest_count;
} pleat__maker;

static inline uint32_t pleat__granules_of(uint64_t bytes)
{
    return (uint32_t)pleat__ceil_div(bytes, PLEAT__GRANULE_BYTES);
}

/* Has no place. */
static inline bool pleat__term_is_loose(const pleat__term *term)
{
    return (term->loose && !term->reserved) || term->end == PLEAT__NEVER;
}

/* Of a plan's beginning: whether it stays in memory. */
static inline bool pleat__term_stays(const pleat__scale *scale, uint32_t term)
{
    return scale->plan->first.slots[term].class == PLEAT__CLASS_PERSISTENT;
}

/* The pool's homes, and what outlives iterations in them. */
PLEAT_NODISCARD pleat_result pleat__maker_gather(pleat__maker *m);
/* The problem at m->x, around what was gathered, in the place of any posed before; asks nothing of
 * the pool but what never changes. What was gathered and posed is given back by unpose. */
PLEAT_NODISCARD pleat_result pleat__maker_pose(pleat__maker *m);
void pleat__maker_unpose(pleat__maker *m);
/* The pool's homes and their chunks, as they are now. */
PLEAT_NODISCARD pleat_result pleat__maker_list_pages(pleat__maker *m);
/* Pages that no chunk can come to. */
uint32_t pleat__maker_missing(const pleat__maker *m);
/* One sweep, in `cap` pages where they do; fills m->tries and m->places. It takes milliseconds and
 * reads nothing but the problem. */
PLEAT_NODISCARD pleat_result pleat__maker_sweep(pleat__maker *m, uint32_t cap,
                                                pleat__sweep_choice choice,
                                                pleat__layout_cost *taken);
/* By the choice that there is, or, where that is none or takes much, by the best of several. */
PLEAT_NODISCARD pleat_result pleat__maker_sweep_well(pleat__maker *m, uint32_t cap,
                                                     pleat__sweep_choice *choice,
                                                     pleat__layout_cost *taken);

/* The job of a stream. */
uint32_t pleat__maker_job_of(const pleat__maker *m, uint16_t stream);
/* Marks where the runs of pages that views show begin and end. */
void pleat__maker_mark_cuts(const pleat__try *try, uint8_t *pages);

/* ---- instance_coming.c ---- */

/* Whether chunks for the pages before `end` that have none can come later. */
bool pleat__maker_may_promise(const pleat__maker *m, uint32_t end);
/* What is missing of the layout: chunks before m->end, and the views, all one behind the other,
 * those of a job from first_view[job] on. */
PLEAT_NODISCARD pleat_result pleat__maker_list_pieces(pleat__maker *m, const uint32_t *first_view,
                                                      uint32_t view_pages, pleat__pieces *pieces);

#endif
