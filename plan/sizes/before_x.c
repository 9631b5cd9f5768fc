/*
 * before_x.c: places for what is persistent, one behind the other, and above it for what is
 * allocated before x is known: the same at every x (sizes.h, WHAT STAYS).
 */
#include <plan/sizes/layout.h>

#include <internal/error.h>
#include <plan/base/free_ranges.h>

/* The prologue's slots of one stream, in memory of their own from *end on. */
typedef struct ahead {
    pleat_plan *plan;
    pleat__gaps gaps;
    uint32_t *dying; /* event -> slot freed there, or PLEAT__NEVER */
    uint16_t stream;
    uint64_t end;
} ahead;

static pleat_result place_ahead(ahead *a, pleat__slot *slot)
{
    uint64_t size = pleat__rounded(slot->size);
    if (!pleat__gaps_lowest(&a->gaps, size, &slot->place))
        return PLEAT_OK;
    a->end = slot->place + size > a->end ? slot->place + size : a->end;
    return pleat__gaps_take(&a->gaps, (pleat__range){slot->place, slot->place + size});
}

/* Gives back what is freed in events [from, to). */
static pleat_result bury(ahead *a, uint32_t from, uint32_t to)
{
    for (uint32_t at = from; at < to; at++) {
        if (a->dying[at] == PLEAT__NEVER)
            continue;
        const pleat__slot *slot = &a->plan->steady.slots[a->dying[at]];
        PLEAT_TRY(pleat__gaps_give(
            &a->gaps, (pleat__range){slot->place, slot->place + pleat__rounded(slot->size)}));
    }
    return PLEAT_OK;
}

static bool is_ahead(const ahead *a, const pleat__slot *slot)
{
    return slot->class != PLEAT__CLASS_DYNAMIC && slot->stream == a->stream && slot->size != 0;
}

/* First fit in order of allocation. What crosses into the next iteration is there when this one
 * begins: it goes first, and keeps its place for good. */
static pleat_result place_in_order(ahead *a)
{
    pleat__sequence *steady = &a->plan->steady;
    uint32_t now = 0;
    for (uint32_t i = 0; i < a->plan->recipe->prologue; i++)
        if (is_ahead(a, &steady->slots[i]) && steady->slots[i].class == PLEAT__CLASS_CROSSING)
            PLEAT_TRY(place_ahead(a, &steady->slots[i]));
    for (uint32_t at = 0; at < steady->events; at++)
        a->dying[at] = PLEAT__NEVER;
    for (uint32_t i = 0; i < a->plan->recipe->prologue; i++) {
        pleat__slot *slot = &steady->slots[i];
        if (!is_ahead(a, slot) || slot->class == PLEAT__CLASS_CROSSING)
            continue;
        PLEAT_TRY(bury(a, now, slot->alloc_at));
        now = slot->alloc_at;
        PLEAT_TRY(place_ahead(a, slot));
        if (slot->free_at < steady->events)
            a->dying[slot->free_at] = i;
    }
    return PLEAT_OK;
}

static pleat_result place_stream(pleat_plan *plan, uint16_t stream, pleat__arena *scratch,
                                 uint64_t *end)
{
    ahead a = {.plan = plan, .stream = stream, .end = *end};
    pleat__gaps_init(&a.gaps, scratch);
    a.dying = pleat__arena_alloc(scratch, (plan->steady.events + 1ull) * sizeof *a.dying);
    pleat_result result =
        a.dying == NULL
            ? pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u events", plan->steady.events)
            : pleat__gaps_give(&a.gaps, (pleat__range){*end, UINT64_MAX});
    if (result == PLEAT_OK)
        result = place_in_order(&a);
    *end = a.end;
    pleat__gaps_done(&a.gaps);
    pleat__arena_free(scratch, a.dying);
    return result;
}

pleat_result pleat__elastic_place_prologue(pleat_plan *plan, pleat__arena *scratch)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < plan->first.slot_count; i++) {
        pleat__slot *slot = &plan->first.slots[i];
        if (slot->class != PLEAT__CLASS_PERSISTENT)
            continue;
        slot->place = end;
        end += pleat__rounded(slot->size);
    }
    for (uint32_t s = 0; s < plan->stream_count; s++)
        PLEAT_TRY(place_stream(plan, (uint16_t)s, scratch, &end));
    return PLEAT_OK;
}
