/*
 * accidental_static.c: requests that only seem to repeat.
 *
 * Where sizes change from iteration to iteration, now and then one comes out the same in all that
 * were profiled: an expert got as many tokens twice. As a static request it would be given a slot
 * that it fits in one iteration of a hundred, and the runtime would lose its way there. Such a
 * request stands where several dynamic ones are, and beside one about as large, and hardly any
 * static request has its size, while what is fixed in an expert (its weights' gradients) is so in
 * all of them. Taken for dynamic by mistake it costs next to nothing: a lane has room for it either
 * way (docs/decisions.md, D579).
 */
#include <plan/model/model.h>

#include <internal/error.h>
#include <internal/search.h>
#include <plan/base/sort.h>

#define BESIDE 4u  /* requests before and behind among which there is a dynamic one ... */
#define LIKE   8u  /* ... at most so many times larger or smaller, */
#define AROUND 24u /* and among which there are as many as ... */
#define DENSE  4u  /* ... that */
#define RARE   16u /* static requests, fewer of which have the size */

static bool is_dynamic(const pleat__sequence *steady, uint32_t index)
{
    return steady->slots[index].class == PLEAT__CLASS_DYNAMIC;
}

/* Dynamic requests no further away than `reach`, and no more than `times` larger or smaller. */
static uint32_t count_around(const pleat__sequence *steady, uint32_t index, uint32_t reach,
                             uint64_t times)
{
    uint64_t size = steady->slots[index].size;
    uint32_t count = 0;
    for (uint32_t i = index > reach ? index - reach : 0;
         i < steady->slot_count && i <= index + reach; i++)
        count += is_dynamic(steady, i) && size / times <= steady->slots[i].size &&
                 steady->slots[i].size / times <= size;
    return count;
}

/* Whether few of the sizes, which ascend, are this one. pre: one is */
static bool is_rare(const uint64_t *sizes, uint32_t count, uint64_t size)
{
    uint32_t at;
    PLEAT__FIRST(at, count, sizes[at] >= size);
    return count - at < RARE || sizes[at + RARE - 1] != size;
}

pleat_result pleat__model_take_chances(const pleat__model *model, pleat_plan *plan)
{
    pleat__sequence *steady = &plan->steady;
    uint32_t slots = steady->slot_count, count = 0;
    uint64_t *sizes = pleat__arena_alloc(model->arena, (2ull * slots + 1) * sizeof *sizes);
    if (sizes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the sizes of %u requests", slots);
    for (uint32_t i = 0; i < slots; i++)
        if (!is_dynamic(steady, i))
            sizes[count++] = steady->slots[i].size;
    pleat__sort_keys(sizes, sizes + slots, count);
    /* What was taken for dynamic counts for those behind it. */
    for (uint32_t i = 0; i < slots; i++)
        if (!is_dynamic(steady, i) && count_around(steady, i, BESIDE, LIKE) > 0 &&
            count_around(steady, i, AROUND, UINT64_MAX) >= DENSE &&
            is_rare(sizes, count, steady->slots[i].size))
            steady->slots[i].class = PLEAT__CLASS_DYNAMIC;
    pleat__arena_free(model->arena, sizes);
    return PLEAT_OK;
}
