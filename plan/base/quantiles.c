/*
 * quantiles.c: see quantiles.h.
 */
#include <plan/base/quantiles.h>

#include <internal/error.h>
#include <plan/base/sort.h>

pleat_result pleat__quantiles(pleat__arena *arena, pleat__life_of life_of, const void *job,
                              uint32_t count, uint32_t lives[PLEAT__QUANTILES])
{
    uint64_t *sorted = pleat__arena_alloc(arena, 2 * (count + UINT64_C(1)) * sizeof *sorted);
    if (sorted == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order %u lives", count);
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = life_of(job, i);
    pleat__sort_keys(sorted, sorted + count + 1, count);
    for (uint32_t q = 0; q < PLEAT__QUANTILES; q++)
        lives[q] = count == 0 ? 0 : (uint32_t)sorted[(uint64_t)count * q / PLEAT__QUANTILES];
    pleat__arena_free(arena, sorted);
    return PLEAT_OK;
}
