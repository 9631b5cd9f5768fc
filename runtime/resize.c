/*
 * resize.c: see resize.h. Sizes are set in one walk over the plan's items: each function is
 * evaluated once, not each request's.
 */
#include <runtime/resize.h>

#include <internal/error.h>

/* Requests of an iteration that may say its x, and sizes that must agree before it is believed. */
#define LOOKED_AT 256u
#define AGREED    3u

pleat_result pleat__resize_init(pleat__resize *resize, pleat__arena *arena, const pleat_plan *plan,
                                pleat__follow *follow)
{
    *resize = (pleat__resize){0};
    if (plan->recipe == NULL)
        return PLEAT_OK;
    uint64_t *values =
        pleat__arena_calloc(arena, plan->recipe->function_count + 1ull, sizeof *values);
    if (values == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u sizes",
                           plan->recipe->function_count);
    *resize = (pleat__resize){.arena = arena,
                              .plan = plan,
                              .follow = follow,
                              .values = values,
                              .x = plan->recipe->reference};
    pleat__resize_mark(resize);
    return PLEAT_OK;
}

void pleat__resize_release(pleat__resize *resize)
{
    if (resize->arena != NULL)
        pleat__arena_free(resize->arena, resize->values);
    *resize = (pleat__resize){0};
}

void pleat__resize_mark(pleat__resize *resize)
{
    if (resize->plan == NULL)
        return;
    pleat__x_begin(&resize->finder, resize->plan);
    resize->left = LOOKED_AT;
}

static void set_values(pleat__resize *resize)
{
    const pleat__recipe *recipe = resize->plan->recipe;
    for (uint32_t f = 0; f < recipe->function_count; f++)
        if (!pleat__function_at(&recipe->functions[f], &resize->x, &resize->values[f]))
            resize->values[f] = UINT64_MAX;
}

/* What has no size at this x, or more than its slot has, has no place either. */
static void set_item(pleat__expected *item, uint64_t bytes, uint64_t most)
{
    uint64_t granules = pleat__ceil_div(bytes, PLEAT__GRANULE_BYTES);
    if (bytes == UINT64_MAX || granules == 0 ||
        granules > pleat__ceil_div(most, PLEAT__GRANULE_BYTES)) {
        item->kind = PLEAT__ITEM_LOOSE;
        item->bytes = bytes;
        return;
    }
    item->kind = PLEAT__ITEM_SLOT;
    item->bytes = bytes;
    item->place.granules = (uint32_t)granules;
    if (item->place.several == NULL)
        item->place.run.count = (uint32_t)granules;
}

static void set_items(pleat__resize *resize, const pleat__sequence *sequence,
                      const uint32_t *functions, pleat__expected *items)
{
    const pleat__recipe *recipe = resize->plan->recipe;
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        uint32_t f = functions[i];
        if (f == PLEAT__NO_FUNCTION || !pleat__function_varies(&recipe->functions[f]))
            continue;
        if (slot->place == PLEAT__NOWHERE)
            items[i].bytes = resize->values[f];
        else
            set_item(&items[i], resize->values[f], slot->size);
    }
}

static void resize_to(pleat__resize *resize, const pleat__x *x)
{
    const pleat_plan *plan = resize->plan;
    pleat__follow *follow = resize->follow;
    resize->x = *x;
    set_values(resize);
    set_items(resize, &plan->first, plan->recipe->first, follow->items);
    set_items(resize, &plan->steady, plan->recipe->steady, follow->items + plan->first.slot_count);
    pleat__match_resized(&follow->match, follow->match.cursor);
}

void pleat__resize_ask(pleat__resize *resize, uint64_t bytes, uint16_t stream)
{
    const pleat__match *match = &resize->follow->match;
    uint32_t cursor = match->cursor, begin = match->begin;
    bool first = cursor < begin;
    resize->left--;
    if (match->items[cursor].stream != stream)
        return;
    uint32_t slot = first ? cursor : cursor - begin;
    pleat__x_state said = pleat__x_observe(&resize->finder, first, slot, bytes);
    if (said == PLEAT__X_CONTRADICTED) {
        /* One of the two was no request of the plan's: this one's word against the others'. */
        if (resize->finder.agreed >= AGREED)
            return;
        pleat__x_begin(&resize->finder, resize->plan);
        said = pleat__x_observe(&resize->finder, first, slot, bytes);
    }
    if (said != PLEAT__X_KNOWN)
        return;
    if (!pleat__x_equal(&resize->finder.x, &resize->x) &&
        pleat__x_in_range(resize->plan->recipe, &resize->finder.x))
        resize_to(resize, &resize->finder.x);
    if (!first && resize->finder.agreed >= AGREED)
        resize->left = 0;
}
