/*
 * stweaver.c: the static planner of "STWeaver: efficient GPU memory management for large language
 * model training with spatio-temporal planning" (EuroSys 2026), section 5.1.
 *
 *   1  HomoPhase groups and their fusion (groups.c). A group becomes one request as large
 *      as its block, live from its first birth to its last death.
 *   2  HomoSize groups: requests of one size, sizes in descending order.
 *   3  For each size, first into the free intervals of the memory layers of larger sizes; the rest
 *      gets layers of its own (Algorithm 1): by birth, each behind the request that ends last
 *      before it.
 *   4  Layers lie above each other; the address of a group's member is its block's plus its own.
 *
 * The dynamic half (section 5.2) is windows.c and reuse.c.
 *
 * DEPARTURES
 *   - A group that uses its block badly is dissolved, as the authors' program does. How badly is
 *     too badly differs from job to job, so a few limits are tried and the lowest plan is kept.
 *   - A request goes to the lowest free interval of the larger layers, even across the border of
 *     two of them and in the bubbles of groups: layers are addresses, and what is free is free.
 *   - Requests that are live across the end of the iteration are placed alone, before all others of
 *     their size; the paper plans one iteration that begins and ends empty.
 */
#include <plan/place/timeline.h>
#include <plan/stweaver/stweaver.h>

#include <internal/error.h>
#include <internal/search.h>
#include <plan/base/sort.h>
#include <string.h>

/* Time-memory products below which a group is dissolved; 2: all of them. */
static const double limits[] = {0.7, 0.9, 2};
#define LIMITS (sizeof limits / sizeof *limits)

/* Requests and blocks as a strip of their own: unit i is group units[i].group or one span. */
struct unit {
    uint32_t group; /* or UINT32_MAX */
    uint32_t span;
};

struct weaving {
    pleat__placing *placing;
    const pleat__grouping *grouping;
    pleat__arena *arena;
    struct unit *units;
    pleat__item *items;
    bool *grouped; /* spans that lie in a block */
    uint32_t count;
    pleat__problem problem;
    pleat__strip strip;
    pleat__timeline timeline;
    uint64_t *places;   /* by the unit strip's span */
    uint32_t *sequence; /* by size descending, then birth */
    uint64_t height;    /* of the layers there are */
    uint64_t work;
};

static pleat_result no_memory(const struct weaving *weaving)
{
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to weave %u requests",
                       weaving->placing->strip->count);
}

static void add_unit(struct weaving *weaving, uint32_t group, uint32_t span, uint64_t size,
                     uint32_t begin, uint32_t end)
{
    weaving->units[weaving->count] = (struct unit){group, span};
    weaving->items[weaving->count++] =
        (pleat__item){.size = size, .fixed = UINT64_MAX, .begin = begin, .end = end};
}

/* Times of units are ranks of the spans; a wrap frees its rank's place before it takes it again. */
static void list_units(struct weaving *weaving, double limit)
{
    const pleat__strip *strip = weaving->placing->strip;
    weaving->count = 0;
    memset(weaving->grouped, 0, strip->count);
    for (uint32_t g = 0; g < weaving->grouping->group_count; g++) {
        const pleat__group *group = &weaving->grouping->groups[g];
        if (group->count < 2 || pleat__group_product(group) < limit)
            continue;
        for (uint32_t i = 0; i < group->count; i++)
            weaving->grouped[weaving->grouping->members[group->first + i].span] = true;
        add_unit(weaving, g, 0, group->size, group->begin, group->end);
    }
    for (uint32_t i = 0; i < strip->count; i++)
        if (!weaving->grouped[i])
            add_unit(weaving, UINT32_MAX, i, strip->spans[i].size, strip->spans[i].begin,
                     strip->spans[i].end);
    weaving->problem = (pleat__problem){.items = weaving->items,
                                        .count = weaving->count,
                                        .horizon = strip->ranks,
                                        .circular = strip->problem->circular};
}

static pleat_result order_units(struct weaving *weaving)
{
    uint32_t count = weaving->strip.count;
    uint64_t *keys = pleat__arena_alloc(weaving->arena, count * sizeof *keys);
    uint32_t *spare = pleat__arena_alloc(weaving->arena, count * sizeof *spare);
    if (keys != NULL && spare != NULL) {
        for (uint32_t i = 0; i < count; i++) {
            keys[i] = ~weaving->strip.spans[i].size;
            weaving->sequence[i] = i;
        }
        pleat__sort_by_key(weaving->sequence, spare, count, keys);
    }
    pleat__arena_free(weaving->arena, keys);
    pleat__arena_free(weaving->arena, spare);
    return keys != NULL && spare != NULL ? PLEAT_OK : no_memory(weaving);
}

static pleat_result put(struct weaving *weaving, uint32_t span, uint64_t place)
{
    uint64_t end = place + weaving->strip.spans[span].size;
    weaving->height = end > weaving->height ? end : weaving->height;
    return pleat__timeline_put(&weaving->timeline, span, place);
}

/* Algorithm 1: spans of one size by birth. `ends` and `bases` are the layers' last deaths and
 * addresses, kept in order of death, so that the closest before a birth is found by halving. */
static pleat_result build_layers(struct weaving *weaving, const uint32_t *spans, uint32_t count,
                                 uint32_t *ends, uint64_t *bases)
{
    uint32_t layers = 0;
    for (uint32_t i = 0; i < count; i++) {
        const pleat__span *span = &weaving->strip.spans[spans[i]];
        uint32_t later;
        PLEAT__FIRST(later, layers, ends[later] > span->begin);
        uint64_t base;
        if (later > 0) {
            base = bases[later - 1];
            memmove(ends + later - 1, ends + later, (layers - later) * sizeof *ends);
            memmove(bases + later - 1, bases + later, (layers - later) * sizeof *bases);
            layers--;
        } else {
            /* Above all layers; where the strip's free ranges have a gap, above that. */
            base = pleat__timeline_above(&weaving->timeline, weaving->height, span->size);
        }
        PLEAT_TRY(put(weaving, spans[i], base));
        uint32_t at = layers;
        for (; at > 0 && ends[at - 1] > span->end; at--)
            ;
        memmove(ends + at + 1, ends + at, (layers - at) * sizeof *ends);
        memmove(bases + at + 1, bases + at, (layers - at) * sizeof *bases);
        ends[at] = span->end;
        bases[at] = base;
        layers++;
    }
    return PLEAT_OK;
}

/* Places all units of one size: spans[count], by birth. */
static pleat_result place_size(struct weaving *weaving, uint32_t *spans, uint32_t count,
                               uint32_t *ends, uint64_t *bases)
{
    uint64_t top = weaving->height;
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++) {
        const pleat__span *span = &weaving->strip.spans[spans[i]];
        uint64_t place = pleat__timeline_find(&weaving->timeline, spans[i]);
        if (place + span->size <= top || pleat__span_wraps(span))
            PLEAT_TRY(put(weaving, spans[i], place));
        else
            spans[left++] = spans[i];
    }
    return build_layers(weaving, spans, left, ends, bases);
}

static pleat_result place_units(struct weaving *weaving)
{
    uint32_t count = weaving->strip.count;
    uint32_t *ends = pleat__arena_alloc(weaving->arena, count * sizeof *ends);
    uint64_t *bases = pleat__arena_alloc(weaving->arena, count * sizeof *bases);
    pleat_result result = ends == NULL || bases == NULL ? no_memory(weaving) : PLEAT_OK;
    for (uint32_t i = 0; i < count && result == PLEAT_OK;) {
        uint32_t end = i;
        uint64_t size = weaving->strip.spans[weaving->sequence[i]].size;
        while (end < count && weaving->strip.spans[weaving->sequence[end]].size == size)
            end++;
        result = place_size(weaving, weaving->sequence + i, end - i, ends, bases);
        i = end;
    }
    pleat__arena_free(weaving->arena, ends);
    pleat__arena_free(weaving->arena, bases);
    return result;
}

/* The spans' places from their units'. */
static void spread(const struct weaving *weaving, uint64_t *places)
{
    for (uint32_t i = 0; i < weaving->strip.count; i++) {
        const struct unit *unit = &weaving->units[weaving->strip.items[i]];
        if (unit->group == UINT32_MAX) {
            places[unit->span] = weaving->places[i];
            continue;
        }
        const pleat__group *group = &weaving->grouping->groups[unit->group];
        const pleat__member *members = &weaving->grouping->members[group->first];
        for (uint32_t k = 0; k < group->count; k++)
            places[members[k].span] = weaving->places[i] + members[k].at;
    }
}

static pleat_result weave(struct weaving *weaving, double limit, uint64_t *height)
{
    const pleat__strip *whole = weaving->placing->strip;
    weaving->items = pleat__arena_alloc(weaving->arena, whole->count * sizeof *weaving->items);
    if (weaving->items == NULL)
        return no_memory(weaving);
    list_units(weaving, limit);
    PLEAT_TRY(pleat__strip_make_whole(&weaving->problem, whole->free, whole->free_count,
                                      weaving->arena, &weaving->strip));
    weaving->height = 0;
    pleat__arena_free(weaving->arena, weaving->items);
    weaving->items = NULL;
    weaving->strip.problem = NULL;
    pleat_result result = order_units(weaving);
    if (result == PLEAT_OK)
        result = pleat__timeline_create(&weaving->timeline, &weaving->strip, weaving->places);
    if (result == PLEAT_OK)
        result = place_units(weaving);
    if (result == PLEAT_OK) {
        spread(weaving, weaving->placing->trial);
        *height = weaving->height < *height ? weaving->height : *height;
        pleat__placing_offer(weaving->placing, PLEAT__ALGORITHM_stweaver, weaving->height);
    }
    weaving->work += weaving->timeline.work;
    pleat__timeline_destroy(&weaving->timeline);
    pleat__strip_free(&weaving->strip);
    return result;
}

pleat_result pleat__place_stweaver(pleat__placing *placing, uint64_t *height, uint64_t *work)
{
    uint32_t count = placing->strip->count;
    pleat__grouping grouping;
    PLEAT_TRY(pleat__grouping_make(placing->strip, &grouping));
    struct weaving weaving = {.placing = placing, .grouping = &grouping, .arena = placing->arena};
    weaving.units = pleat__arena_alloc(placing->arena, count * sizeof *weaving.units);
    weaving.grouped = pleat__arena_alloc(placing->arena, count * sizeof *weaving.grouped);
    weaving.places = pleat__arena_alloc(placing->arena, count * sizeof *weaving.places);
    weaving.sequence = pleat__arena_alloc(placing->arena, count * sizeof *weaving.sequence);
    pleat_result result = PLEAT_OK;
    if (weaving.units == NULL || weaving.grouped == NULL || weaving.places == NULL ||
        weaving.sequence == NULL)
        result = no_memory(&weaving);
    for (size_t i = 0; i < LIMITS && result == PLEAT_OK; i++)
        result = weave(&weaving, limits[i], height);
    *work += grouping.work + weaving.work;
    pleat__arena_free(placing->arena, weaving.units);
    pleat__arena_free(placing->arena, weaving.items);
    pleat__arena_free(placing->arena, weaving.grouped);
    pleat__arena_free(placing->arena, weaving.places);
    pleat__arena_free(placing->arena, weaving.sequence);
    pleat__grouping_free(&grouping);
    return result;
}
