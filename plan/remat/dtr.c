/*
 * dtr.c: one tensor at a time, by h_DTR = cost / (bytes x staleness), and MegTaiChi's variant.
 */
#include <plan/remat/policy.h>

#include <math.h>

void pleat__remat_search_dtr(const pleat__remat_table *table, const pleat__remat_need *need,
                             pleat__remat_victims *victims)
{
    double best = INFINITY;
    victims->count = 0;
    for (uint32_t t = 0; t < table->count; t++) {
        const pleat__remat_hot *hot = &table->hot[t];
        if (hot->held > 0 || hot->bytes == 0)
            continue;
        double score = (double)hot->projected_ns /
                       ((double)hot->bytes * (double)pleat__remat_staleness(hot, need->now_ns));
        if (score <= best) {
            best = score;
            victims->tensors[0] = t;
            victims->count = 1;
        }
    }
}

static uint64_t free_bytes_of(const pleat__remat_pool *pool, size_t block)
{
    return pool->blocks[block].owner == PLEAT__REMAT_FREE ? pool->blocks[block].bytes : 0;
}

void pleat__remat_search_dte(const pleat__remat_table *table, const pleat__remat_pool *pool,
                             const pleat__remat_need *need, pleat__remat_victims *victims)
{
    double best = INFINITY;
    victims->count = 0;
    for (size_t i = 0; i < pool->count; i++) {
        const pleat__remat_block *b = &pool->blocks[i];
        if (b->owner >= PLEAT__REMAT_HELD || table->hot[b->owner].held > 0)
            continue;
        const pleat__remat_hot *hot = &table->hot[b->owner];
        uint64_t beside = (i > 0 ? free_bytes_of(pool, i - 1) : 0) +
                          (i + 1 < pool->count ? free_bytes_of(pool, i + 1) : 0);
        double score =
            (double)hot->projected_ns /
            ((double)(hot->bytes + beside) * (double)pleat__remat_staleness(hot, need->now_ns));
        if (score <= best) {
            best = score;
            victims->tensors[0] = b->owner;
            victims->count = 1;
        }
    }
}
