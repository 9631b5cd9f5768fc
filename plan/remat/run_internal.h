/*
 * run_internal.h: the state of a run, for the three files that make it up: run.c goes through the
 * log, operators.c executes and computes again, places.c finds memory and evicts.
 */
#ifndef PLEAT_PLAN_REMAT_RUN_INTERNAL_H
#define PLEAT_PLAN_REMAT_RUN_INTERNAL_H

#include <plan/remat/run.h>

/* A value that the log computed. Several may share a memory: the first one made it, the others are
 * views, each of which an operator must make again when the memory comes back. */
typedef struct pleat__value {
    uint32_t memory;
    uint32_t operation;
    uint32_t handles;
    uint32_t next; /* of the same memory */
    bool defined;
    bool view;
} pleat__value;

typedef struct pleat__operation {
    const pleat__operator_log_step *step; /* NULL: a constant */
    uint32_t *arguments;                  /* values */
    uint32_t *order;                      /* the same ones, as they are fetched */
    uint32_t argument_count;
    uint32_t first; /* of its results, values in a row */
    uint32_t result_count;
    bool ran;
} pleat__operation;

/* Where a memory lies: nowhere (no ranges), in one range, or in several that are mapped side by
 * side. */
typedef struct pleat__remat_place {
    pleat__range one;
    pleat__range *several; /* NULL: `one` */
    uint32_t count;
} pleat__remat_place;

/* What the run knows of a memory beside the table, under the same number. */
typedef struct pleat__memory {
    pleat__remat_place place;
    uint32_t handles;
    uint32_t values; /* the first of them */
    uint32_t costs;  /* one more than the last operation whose time it costs; 0: none yet */
    bool constant;
} pleat__memory;

/* An operation that waits for its arguments. */
typedef struct pleat__frame {
    uint32_t operation;
    uint32_t held; /* so many arguments, the first of its order, are there and held */
} pleat__frame;

/* What a result of the operation at hand gets: memory, or that of an argument. */
typedef struct pleat__made {
    pleat__remat_place place;
    uint32_t from; /* PLEAT__REMAT_NONE: `place` */
} pleat__made;

typedef struct pleat__remat_state {
    const pleat__operator_log *log;
    const pleat__remat_options *options;
    pleat__remat_figures *figures;
    pleat__arena *arena;
    pleat__remat_table table;
    pleat__remat_pool pool;
    pleat__remat_scratch scratch;
    pleat__remat_victims victims;
    pleat__value *values;
    uint32_t value_count;
    pleat__operation *operations;
    uint32_t operation_count;
    pleat__memory *memories; /* as many as the table has */
    uint32_t *handles;       /* a handle's value, or PLEAT__REMAT_NONE */
    pleat__frame *frames;
    size_t frame_count, frame_room;
    uint32_t *missing;   /* of the arguments of the operation at hand */
    pleat__made *made;   /* one for each result of the operation at hand */
    uint64_t *search_ns; /* of each request that searched */
    size_t search_room;
    uint64_t clock_ns; /* of the log: operators and maps so far */
    uint64_t used_bytes;
    bool infeasible; /* no more can be done within the budget */
} pleat__remat_state;

/* ---- places.c ---- */

/* Memory for `bytes`, evicting what must go. run->infeasible where there is none. */
PLEAT_NODISCARD pleat_result pleat__remat_run_obtain(pleat__remat_state *run, uint64_t bytes,
                                                     bool cheap, pleat__remat_place *place);
void pleat__remat_run_give(pleat__remat_state *run, uint64_t bytes, pleat__remat_place *place);
/* A memory that was not there lies at `place` from now on. */
PLEAT_NODISCARD pleat_result pleat__remat_run_settle(pleat__remat_state *run, uint32_t memory,
                                                     pleat__remat_place *place);
PLEAT_NODISCARD pleat_result pleat__remat_run_evict(pleat__remat_state *run, uint32_t memory);
/* `to` lies where `from` was, which is evicted. pre: nobody holds it. */
PLEAT_NODISCARD pleat_result pleat__remat_run_hand_over(pleat__remat_state *run, uint32_t from,
                                                        uint32_t to);

/* ---- operators.c ---- */

/* Runs an operation, and before it whatever must be computed again for it. */
PLEAT_NODISCARD pleat_result pleat__remat_run_execute(pleat__remat_state *run, uint32_t operation);

#endif
