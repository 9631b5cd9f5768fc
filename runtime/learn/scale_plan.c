/*
 * scale_plan.c: a plan's recipe as a scale (see scale.h).
 */
#include <runtime/learn/scale.h>

#include <internal/error.h>

/* Requests that follow no function have places where they are at most one in so many. */
#define FEW 64u

/* Whether a size may only grow with x; +1, or -1, or 0 where it is the same at every x. */
static int64_t rise_of(const pleat__recipe *recipe, uint32_t index)
{
    if (index == PLEAT__NO_FUNCTION || !pleat__function_varies(&recipe->functions[index]))
        return 0;
    for (int k = 1; k < PLEAT__TERMS; k++)
        if (recipe->functions[index].k[k] < 0)
            return -1;
    return 1;
}

static void put_term(pleat__scale *scale, const pleat__slot *slot, uint32_t function,
                     pleat__term *term)
{
    const pleat__recipe *recipe = scale->plan->recipe;
    bool known = function != PLEAT__NO_FUNCTION;
    *term = (pleat__term){.bytes = slot->size,
                          .rise = rise_of(recipe, function),
                          .most = known ? recipe->functions[function].most : UINT64_MAX,
                          .begin = slot->alloc_at,
                          .end = slot->free_at,
                          .function = function,
                          .stream = slot->stream,
                          .dynamic = slot->class == PLEAT__CLASS_DYNAMIC};
    term->loose = term->dynamic || !known;
}

static void reserve_few(pleat__scale *scale)
{
    uint32_t dynamic = 0;
    for (uint32_t i = scale->first; i < scale->count; i++)
        dynamic += scale->terms[i].dynamic;
    for (uint32_t i = scale->first; i < scale->count; i++)
        scale->terms[i].reserved =
            scale->terms[i].dynamic && dynamic <= (scale->count - scale->first) / FEW;
}

pleat_result pleat__scale_of_plan(pleat__arena *arena, const pleat_plan *plan, pleat__scale **out)
{
    const pleat__recipe *recipe = plan->recipe;
    uint32_t first = plan->first.slot_count, steady = plan->steady.slot_count;
    pleat__scale *scale = pleat__arena_calloc(arena, 1, sizeof *scale);
    pleat__term *terms = pleat__arena_calloc(arena, (uint64_t)first + steady, sizeof *terms);
    if (scale == NULL || terms == NULL) {
        pleat__arena_free(arena, scale);
        pleat__arena_free(arena, terms);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the sizes of %u requests",
                           first + steady);
    }
    *scale = (pleat__scale){.arena = arena,
                            .terms = terms,
                            .count = first + steady,
                            .first = first,
                            .horizon = plan->steady.events,
                            .from = recipe->lowest,
                            .to = recipe->highest,
                            .plan = plan};
    for (uint32_t i = 0; i < first; i++) {
        put_term(scale, &plan->first.slots[i], recipe->first[i], &terms[i]);
        /* Nothing is laid out for what comes once. */
        terms[i].begin = 0;
        terms[i].end = PLEAT__NEVER;
    }
    for (uint32_t i = 0; i < steady; i++)
        put_term(scale, &plan->steady.slots[i], recipe->steady[i], &terms[first + i]);
    reserve_few(scale);
    for (uint32_t i = 0; i < scale->count; i++)
        scale->loose += terms[i].loose;
    *out = scale;
    return PLEAT_OK;
}
