/*
 * table.h: a table of evictable tensors: what each would cost to compute again, and since when
 * nobody used it. What chooses tensors to evict looks at nothing else but this and their places.
 *
 * COST  A tensor that is evicted takes with it what is computed from it, if that is evicted too. So
 *       its projected cost is its own and that of all evicted tensors around it. These are kept as
 *       sets that only ever join (DTR, arXiv 2006.09616, section 4.1 and appendix C.3: the
 *       heuristic h_DTR^eq): a tensor that comes back leaves the sum of its set, not the set's
 *       connections.
 *
 * UNITS Bytes and nanoseconds; times are those of the caller's clock. Projected costs are kept up
 * to date at each eviction and return, so that reading one is a load.
 */
#ifndef PLEAT_PLAN_REMAT_TABLE_H
#define PLEAT_PLAN_REMAT_TABLE_H

#include <internal/arena.h>

#define PLEAT__REMAT_NONE UINT32_MAX

/* What a search reads of a tensor. */
typedef struct pleat__remat_hot {
    uint64_t projected_ns;
    uint64_t used_ns; /* when it was last used */
    uint64_t bytes;
    uint32_t held; /* above 0 it cannot be evicted: it is in use, or not there */
} pleat__remat_hot;

typedef struct pleat__remat_table {
    pleat__arena *arena;
    pleat__remat_hot *hot;
    struct pleat__remat_cold *cold;
    struct pleat__remat_node *nodes; /* one an eviction */
    size_t node_count, node_room;
    uint32_t count;
    uint32_t capacity;
    uint32_t stamp, round;
} pleat__remat_table;

/* Room for `capacity` tensors, from `arena`, which outlives the table. */
PLEAT_NODISCARD pleat_result pleat__remat_table_create(pleat__arena *arena, uint32_t capacity,
                                                       pleat__remat_table *table);
/* A tensor that is not there yet. pre: there is room. */
uint32_t pleat__remat_add(pleat__remat_table *table, uint64_t bytes);
/* Computing it again takes so much more. pre: it is not evicted. */
void pleat__remat_cost(pleat__remat_table *table, uint32_t tensor, uint64_t ns);
/* One of them is computed from the other. */
PLEAT_NODISCARD pleat_result pleat__remat_link(pleat__remat_table *table, uint32_t a, uint32_t b);

/* It is there from now on, and held once less. pre: it was not. */
void pleat__remat_made(pleat__remat_table *table, uint32_t tensor);
/* It is gone, and held once more. pre: it was there and nobody held it. */
PLEAT_NODISCARD pleat_result pleat__remat_evicted(pleat__remat_table *table, uint32_t tensor);
bool pleat__remat_is_there(const pleat__remat_table *table, uint32_t tensor);

static inline void pleat__remat_hold(pleat__remat_table *table, uint32_t tensor)
{
    table->hot[tensor].held++;
}

static inline void pleat__remat_let_go(pleat__remat_table *table, uint32_t tensor)
{
    table->hot[tensor].held--;
}

/* Nanoseconds since its last use; at least 1. */
static inline uint64_t pleat__remat_staleness(const pleat__remat_hot *hot, uint64_t now)
{
    return now > hot->used_ns ? now - hot->used_ns : 1;
}

#endif
