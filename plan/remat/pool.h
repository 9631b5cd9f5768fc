/*
 * pool.h: one address range of memory, as blocks in address order: each a tensor's, or free.
 *
 * The blocks are one array, so that a search over all of them reads memory in order; taking and
 * giving move what lies behind. No two free blocks are neighbours. Sizes are multiples of
 * PLEAT__ALIGNMENT.
 */
#ifndef PLEAT_PLAN_REMAT_POOL_H
#define PLEAT_PLAN_REMAT_POOL_H

#include <internal/arena.h>
#include <internal/range.h>

#define PLEAT__REMAT_FREE UINT32_MAX       /* as an owner */
#define PLEAT__REMAT_HELD (UINT32_MAX - 1) /* as an owner: in use, and no tensor's */

typedef struct pleat__remat_block {
    uint64_t begin;
    uint64_t bytes;
    uint32_t owner; /* a tensor of the table, or one of the above */
} pleat__remat_block;

typedef struct pleat__remat_pool {
    pleat__arena *arena;
    pleat__remat_block *blocks;
    size_t count, room;
    uint64_t bytes;
    uint64_t free_bytes;
    uint64_t chunk_bytes; /* a power of two; whole chunks can be mapped side by side */
    uint64_t *chunk_used; /* bytes in use of each whole chunk */
    uint64_t chunks;      /* whole ones; what is behind them belongs to none */
    uint64_t free_chunks;
} pleat__remat_pool;

PLEAT_NODISCARD pleat_result pleat__remat_pool_create(pleat__arena *arena, uint64_t bytes,
                                                      uint64_t chunk_bytes,
                                                      pleat__remat_pool *pool);
/* The smallest free block that holds a request, of equal ones the first; `count` of the pool where
 * none does. */
size_t pleat__remat_pool_find(const pleat__remat_pool *pool, uint64_t bytes);
/* Takes the left or the right end of a free block. */
PLEAT_NODISCARD pleat_result pleat__remat_pool_take(pleat__remat_pool *pool, size_t block,
                                                    uint64_t bytes, bool right, uint32_t owner,
                                                    uint64_t *begin);
/* Takes a free range, wherever in a free block. */
PLEAT_NODISCARD pleat_result pleat__remat_pool_take_range(pleat__remat_pool *pool,
                                                          pleat__range range, uint32_t owner);
/* What was taken at `begin` is free. Cannot fail. */
void pleat__remat_pool_give(pleat__remat_pool *pool, uint64_t begin);
/* Another owner of what was taken at `begin`. */
void pleat__remat_pool_hand_over(pleat__remat_pool *pool, uint64_t begin, uint32_t owner);
/* The block that begins at or before `at` and ends behind it. */
size_t pleat__remat_pool_at(const pleat__remat_pool *pool, uint64_t at);

/* Re-derives all totals; prints what disagrees. */
bool pleat__remat_pool_audit(const pleat__remat_pool *pool);

#endif
