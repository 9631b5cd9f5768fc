/*
 * window.c: Coop's sliding window: of all runs of neighbouring blocks that are long enough, and no
 * longer than they must be, the cheapest one. Two ends move over the blocks once, so a search is
 * O(blocks).
 */
#include <plan/remat/policy.h>

/* What a block adds to a window; false where no window may cross it. */
static bool weight_of(const pleat__remat_table *table, const pleat__remat_block *block,
                      uint64_t now, uint64_t *weight)
{
    *weight = 0;
    if (block->owner == PLEAT__REMAT_FREE)
        return true;
    if (block->owner == PLEAT__REMAT_HELD || table->hot[block->owner].held > 0)
        return false;
    *weight = pleat__remat_weight(&table->hot[block->owner], now);
    return true;
}

/* A figure that orders runs; that of the root is squared. */
static double score_of(pleat__remat_weighing weighing, uint64_t weight, uint64_t bytes)
{
    double w = (double)weight, b = (double)bytes;
    switch (weighing) {
    case PLEAT__REMAT_BY_ROOT:
        return w * w / b;
    case PLEAT__REMAT_BY_BYTE:
        return w / b;
    default:
        return w;
    }
}

/* The tensors of blocks [first, last], each once: one that lies on several chunks may come again.
 */
static void collect(const pleat__remat_pool *pool, size_t first, size_t last,
                    pleat__remat_victims *victims)
{
    for (size_t i = first; i <= last; i++) {
        uint32_t owner = pool->blocks[i].owner;
        bool there = owner == PLEAT__REMAT_FREE;
        for (uint32_t v = 0; v < victims->count && !there; v++)
            there = victims->tensors[v] == owner;
        if (!there)
            victims->tensors[victims->count++] = owner;
    }
}

typedef struct window {
    size_t first, last;
    uint64_t weight, bytes;
} window;

/* Leaves out of a window what it does not need, from its beginning. */
static void shorten(const pleat__remat_table *table, const pleat__remat_pool *pool,
                    const pleat__remat_need *need, window *w)
{
    uint64_t weight;
    while (w->bytes - pool->blocks[w->first].bytes >= need->bytes) {
        (void)weight_of(table, &pool->blocks[w->first], need->now_ns, &weight);
        w->weight -= weight;
        w->bytes -= pool->blocks[w->first++].bytes;
    }
}

uint64_t pleat__remat_search_window(const pleat__remat_table *table, const pleat__remat_pool *pool,
                                    const pleat__remat_need *need, pleat__remat_victims *victims)
{
    window at = {.first = 0}, best = {.weight = UINT64_MAX};
    double best_score = 0;
    uint64_t weight;
    victims->count = 0;
    for (at.last = 0; at.last < pool->count; at.last++) {
        if (!weight_of(table, &pool->blocks[at.last], need->now_ns, &weight)) {
            at = (window){.first = at.last + 1, .last = at.last};
            continue;
        }
        at.weight += weight;
        at.bytes += pool->blocks[at.last].bytes;
        if (at.bytes < need->bytes)
            continue;
        shorten(table, pool, need, &at);
        double score = score_of(need->weighing, at.weight, at.bytes);
        if (best.bytes == 0 || score < best_score) {
            best = at;
            best_score = score;
        }
    }
    if (best.bytes > 0)
        collect(pool, best.first, best.last, victims);
    return best.weight;
}
