/*
 * strip.c: see strip.h. Also max-live, which needs no strip but the same walk.
 */
#include <plan/place/strip.h>

#include <internal/check.h>
#include <internal/error.h>
#include <plan/base/sort.h>
#include <string.h>

/* An event as a sorting key: time, then frees before allocations, then the item's number among the
 * members that are looked at. */
#define KEY_TIME(key)   ((uint32_t)((key) >> 32))
#define KEY_FREE(key)   (((key) >> 31 & 1) == 0)
#define KEY_MEMBER(key) ((uint32_t)((key)&INT32_MAX))

static uint64_t key_of(uint32_t time, bool is_free, uint32_t member)
{
    return (uint64_t)time << 32 | (uint64_t)!is_free << 31 | member;
}

static const pleat__item *item_of(const pleat__problem *problem, const uint32_t *members,
                                  uint64_t key)
{
    return &problem->items[members[KEY_MEMBER(key)]];
}

/* Counts the bytes live over the events, which begin with `live`. Where a wrap is freed it was
 * counted at the start. */
struct curve {
    uint64_t live;
    uint64_t highest;
    uint64_t lowest;
    uint32_t lowest_time; /* of the event behind which the least is live */
};

static struct curve follow(const pleat__problem *problem, const uint32_t *members,
                           const uint64_t *keys, size_t count, uint64_t live)
{
    struct curve curve = {.live = live, .highest = live, .lowest = live};
    for (size_t i = 0; i < count; i++) {
        uint64_t size = item_of(problem, members, keys[i])->size;
        curve.live += KEY_FREE(keys[i]) ? -size : size;
        if (curve.live > curve.highest)
            curve.highest = curve.live;
        bool settled = i + 1 == count || KEY_TIME(keys[i + 1]) != KEY_TIME(keys[i]);
        if (settled && curve.live < curve.lowest) {
            curve.lowest = curve.live;
            curve.lowest_time = KEY_TIME(keys[i]) + 1;
        }
    }
    return curve;
}

/* The keys of all members' events, unsorted. */
static void list_events(const pleat__problem *problem, const uint32_t *members, uint32_t count,
                        uint64_t *keys)
{
    for (uint32_t m = 0; m < count; m++) {
        const pleat__item *item = &problem->items[members[m]];
        keys[2 * m] = key_of(item->begin, false, m);
        keys[2 * m + 1] = key_of(item->end, true, m);
    }
}

static uint64_t sum_wraps(const pleat__problem *problem, const uint32_t *members, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t m = 0; m < count; m++) {
        const pleat__item *item = &problem->items[members[m]];
        sum += pleat__item_wraps(problem, item) ? item->size : 0;
    }
    return sum;
}

pleat_result pleat__max_live(const pleat__problem *problem, pleat__arena *scratch, uint64_t *bytes)
{
    uint64_t *keys = pleat__arena_alloc(scratch, 4 * (uint64_t)problem->count * sizeof *keys);
    uint32_t *members = pleat__arena_alloc(scratch, problem->count * sizeof *members);
    bool room = keys != NULL && members != NULL;
    uint64_t live = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < problem->count && room; i++)
        if (pleat__item_always(problem, &problem->items[i]))
            live += problem->items[i].size;
        else if (!pleat__item_empty(problem, &problem->items[i]))
            members[count++] = i;
    if (room) {
        list_events(problem, members, count, keys);
        pleat__sort_keys(keys, keys + 2 * (size_t)count, 2 * (size_t)count);
        live += sum_wraps(problem, members, count);
        *bytes = follow(problem, members, keys, 2 * (size_t)count, live).highest;
    }
    pleat__arena_free(scratch, keys);
    pleat__arena_free(scratch, members);
    return room ? PLEAT_OK
                : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u items", problem->count);
}

/* Moves the origin of time to `cut`, and sorts. */
static void rotate(const pleat__problem *problem, uint64_t *keys, uint64_t *spare, size_t count,
                   uint32_t cut)
{
    if (cut == 0 || cut >= problem->horizon)
        return;
    for (size_t i = 0; i < count; i++) {
        uint32_t time = KEY_TIME(keys[i]);
        time = time >= cut ? time - cut : time + (problem->horizon - cut);
        /* What ends where the circle closes ends at its end, unless it wraps there. */
        keys[i] = (uint64_t)time << 32 | (keys[i] & UINT32_MAX);
    }
    pleat__sort_keys(keys, spare, count);
}

/* Numbers the spans in order of allocation and the events by rank. `number` is by member. */
static void number_spans(pleat__strip *strip, const uint32_t *members, const uint64_t *keys,
                         uint32_t *number)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < strip->ranks; rank++)
        if (!KEY_FREE(keys[rank]))
            number[KEY_MEMBER(keys[rank])] = count++;
    for (uint32_t rank = 0; rank < strip->ranks; rank++) {
        uint32_t item = members[KEY_MEMBER(keys[rank])], span = number[KEY_MEMBER(keys[rank])];
        strip->events[rank] = span * 2 + KEY_FREE(keys[rank]);
        strip->spans[span].size = strip->problem->items[item].size;
        strip->items[span] = item;
        if (KEY_FREE(keys[rank]))
            strip->spans[span].end = rank;
        else
            strip->spans[span].begin = rank;
    }
}

static pleat_result list_wraps(pleat__strip *strip)
{
    for (uint32_t rank = 0; rank < strip->ranks; rank++) {
        const pleat__span *span = &strip->spans[strip->events[rank] / 2];
        strip->wrap_count += strip->events[rank] % 2 == 1 && pleat__span_wraps(span);
    }
    strip->wraps = pleat__arena_alloc(strip->arena, strip->wrap_count * sizeof *strip->wraps);
    if (strip->wraps == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", strip->wrap_count);
    uint32_t at = strip->wrap_count;
    for (uint32_t rank = 0; rank < strip->ranks; rank++) {
        uint32_t span = strip->events[rank] / 2;
        if (strip->events[rank] % 2 == 1 && pleat__span_wraps(&strip->spans[span]))
            strip->wraps[--at] = span;
    }
    return PLEAT_OK;
}

static void measure(pleat__strip *strip)
{
    uint64_t live = 0;
    for (uint32_t i = 0; i < strip->wrap_count; i++)
        live += strip->spans[strip->wraps[i]].size;
    strip->max_live = live;
    for (uint32_t rank = 0; rank < strip->ranks; rank++) {
        uint64_t size = strip->spans[strip->events[rank] / 2].size;
        live += strip->events[rank] % 2 == 1 ? -size : size;
        strip->max_live = live > strip->max_live ? live : strip->max_live;
    }
    uint64_t left = strip->max_live;
    for (uint32_t i = 0; i < strip->free_count && left > 0; i++) {
        uint64_t room = pleat__range_size(strip->free[i]);
        strip->floor = strip->free[i].begin + (left < room ? left : room);
        left -= left < room ? left : room;
    }
}

pleat_result pleat__strip_members(const pleat__problem *problem, pleat__arena *arena,
                                  uint32_t **members, uint32_t *count)
{
    uint64_t *keys = pleat__arena_alloc(arena, problem->count * sizeof *keys);
    *members = pleat__arena_alloc(arena, 2 * (uint64_t)problem->count * sizeof **members);
    *count = 0;
    if (keys == NULL || *members == NULL) {
        pleat__arena_free(arena, keys);
        pleat__arena_free(arena, *members);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to place %u requests",
                           problem->count);
    }
    for (uint32_t i = 0; i < problem->count; i++) {
        keys[i] = problem->items[i].stream;
        if (problem->items[i].fixed == UINT64_MAX &&
            pleat__item_comes_and_goes(problem, &problem->items[i]))
            (*members)[(*count)++] = i;
    }
    pleat__sort_by_key(*members, *members + *count, *count, keys);
    pleat__arena_free(arena, keys);
    return PLEAT_OK;
}

pleat_result pleat__strip_make(const pleat__problem *problem, const uint32_t *members,
                               uint32_t count, const pleat__range *free, uint32_t free_count,
                               pleat__arena *arena, pleat__strip *out)
{
    *out =
        (pleat__strip){.arena = arena, .problem = problem, .free = free, .free_count = free_count};
    uint64_t *keys = pleat__arena_alloc(arena, 4 * (uint64_t)count * sizeof *keys);
    uint32_t *number = pleat__arena_alloc(arena, count * sizeof *number);
    out->spans = pleat__arena_alloc(arena, count * sizeof *out->spans);
    out->items = pleat__arena_alloc(arena, count * sizeof *out->items);
    out->events = pleat__arena_alloc(arena, 2 * (uint64_t)count * sizeof *out->events);
    out->count = count;
    out->ranks = 2 * count;
    pleat_result result = PLEAT_OK;
    if (keys == NULL || number == NULL || out->spans == NULL || out->items == NULL ||
        out->events == NULL) {
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to place %u requests", count);
    } else {
        uint64_t *spare = keys + out->ranks;
        list_events(problem, members, count, keys);
        pleat__sort_keys(keys, spare, out->ranks);
        if (problem->circular) {
            uint64_t live = sum_wraps(problem, members, count);
            struct curve curve = follow(problem, members, keys, out->ranks, live);
            rotate(problem, keys, spare, out->ranks, curve.lowest_time);
        }
        number_spans(out, members, keys, number);
        result = list_wraps(out);
    }
    pleat__arena_free(arena, keys);
    pleat__arena_free(arena, number);
    if (result != PLEAT_OK) {
        pleat__strip_free(out);
        return result;
    }
    measure(out);
    return PLEAT_OK;
}

pleat_result pleat__strip_make_whole(const pleat__problem *problem, const pleat__range *free,
                                     uint32_t free_count, pleat__arena *arena, pleat__strip *out)
{
    uint32_t *members, count;
    PLEAT_TRY(pleat__strip_members(problem, arena, &members, &count));
    pleat_result result = pleat__strip_make(problem, members, count, free, free_count, arena, out);
    pleat__arena_free(arena, members);
    return result;
}

void pleat__strip_free(pleat__strip *strip)
{
    pleat__arena_free(strip->arena, strip->spans);
    pleat__arena_free(strip->arena, strip->items);
    pleat__arena_free(strip->arena, strip->events);
    pleat__arena_free(strip->arena, strip->wraps);
    *strip = (pleat__strip){0};
}
