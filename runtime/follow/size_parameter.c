/*
 * size_parameter.c: see size_parameter.h.
 */
#include <runtime/follow/size_parameter.h>

/* Items behind and ahead of the cursor whose sizes are kept at x: ahead what the matcher looks at,
 * with as many to spare, behind some of those that it passed over (D201). */
#define BEHIND 16u
#define AHEAD  (2 * PLEAT__AHEAD)
/* Values of x that are tried in one iteration. A job that has left the recipe altogether then costs
 * no more than this (D184). */
#define TRIES 16u

void pleat__size_parameter_init(pleat__size_parameter *sizes, const pleat_plan *plan)
{
    *sizes = (pleat__size_parameter){
        .plan = plan, .x = plan->recipe->reference, .passes = 2, .missed = PLEAT__NO_ITEM};
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        uint32_t function = plan->recipe->steady[i];
        sizes->varying += function != PLEAT__NO_FUNCTION &&
                          plan->steady.slots[i].class != PLEAT__CLASS_DYNAMIC &&
                          pleat__function_varies(&plan->recipe->functions[function]);
    }
}

/* The function of an item's size, or NULL where it has none. */
static const pleat__function *any_function_of(const pleat__size_parameter *sizes,
                                              const pleat__schedule *schedule, uint32_t item)
{
    const pleat__recipe *recipe = sizes->plan->recipe;
    uint32_t begin = schedule->matcher.begin;
    uint32_t index = item < begin ? recipe->first[item] : recipe->steady[item - begin];
    if (index == PLEAT__NO_FUNCTION || schedule->items[item].kind == PLEAT__ITEM_DYNAMIC)
        return NULL;
    return &recipe->functions[index];
}

/* The same, and NULL where it does not depend on x. */
static const pleat__function *function_of(const pleat__size_parameter *sizes,
                                          const pleat__schedule *schedule, uint32_t item)
{
    const pleat__function *function = any_function_of(sizes, schedule, item);
    return function != NULL && pleat__function_varies(function) ? function : NULL;
}

void pleat__size_parameter_begin(pleat__size_parameter *sizes, const pleat__schedule *schedule)
{
    uint32_t cursor = schedule->matcher.cursor;
    sizes->seen = pleat__size_parameter_is_seen(sizes);
    sizes->agreed = 0;
    sizes->tries = 0;
    sizes->as_said = 0;
    sizes->requests = 0;
    sizes->last = 0;
    sizes->missed = PLEAT__NO_ITEM;
    sizes->sized_until = cursor < schedule->matcher.begin ? 0 : schedule->matcher.begin;
    sizes->passes += sizes->passes < 2;
}

/* The first item whose size is to be that at x when the cursor is where it is. */
static uint32_t first_to_size(const pleat__schedule *schedule)
{
    uint32_t cursor = schedule->matcher.cursor, begin = schedule->matcher.begin;
    uint32_t least = cursor < begin ? 0 : begin;
    return cursor - least > BEHIND ? cursor - BEHIND : least;
}

void pleat__size_parameter_adopt(pleat__size_parameter *sizes, const pleat__schedule *schedule)
{
    pleat__size_parameter_begin(sizes, schedule);
    sizes->passes = 0;
    sizes->sized_until = first_to_size(schedule);
}

static void size_item(const pleat__size_parameter *sizes, pleat__schedule *schedule, uint32_t item)
{
    const pleat__function *function = any_function_of(sizes, schedule, item);
    uint64_t bytes;
    if (function != NULL && pleat__function_at(function, sizes->x, &bytes))
        schedule->items[item].bytes = bytes;
}

void pleat__size_parameter_advance(pleat__size_parameter *sizes, pleat__schedule *schedule)
{
    uint32_t cursor = schedule->matcher.cursor,
             half = (schedule->count - schedule->matcher.begin) / 2;
    sizes->requests++;
    /* Back by more than half of it: another iteration has begun, and nothing marked it. */
    if (cursor + half < sizes->last && sizes->requests > half)
        pleat__size_parameter_begin(sizes, schedule);
    sizes->last = cursor;
    /* Two passes after x changed all items have their size. */
    if (sizes->passes >= 2)
        return;
    uint32_t end = cursor + AHEAD < schedule->count ? cursor + AHEAD : schedule->count;
    for (; sizes->sized_until < end; sizes->sized_until++)
        size_item(sizes, schedule, sizes->sized_until);
}

static void change(pleat__size_parameter *sizes, pleat__schedule *schedule, pleat__fraction x)
{
    sizes->x = x;
    sizes->passes = 0;
    sizes->sized_until = first_to_size(schedule);
    pleat__size_parameter_advance(sizes, schedule);
}

/* Another x, at which the item at the cursor has this size. */
static bool solve(const pleat__size_parameter *sizes, const pleat__schedule *schedule,
                  uint64_t bytes, uint16_t stream, pleat__fraction *x)
{
    uint32_t item = schedule->matcher.cursor;
    const pleat__function *function = function_of(sizes, schedule, item);
    return function != NULL && schedule->items[item].stream == stream &&
           pleat__function_solve(function, bytes, x) && !pleat__fraction_equal(*x, sizes->x) &&
           pleat__x_in_range(sizes->plan->recipe, *x);
}

void pleat__size_parameter_infer(pleat__size_parameter *sizes, pleat__schedule *schedule,
                                 uint64_t bytes, uint16_t stream)
{
    uint32_t item = schedule->matcher.cursor;
    pleat__fraction x;
    if (sizes->tries >= TRIES || schedule->items[item].bytes == bytes ||
        !solve(sizes, schedule, bytes, stream, &x))
        return;
    sizes->tries++;
    sizes->agreed = 0;
    change(sizes, schedule, x);
    if (schedule->items[item].bytes == bytes)
        pleat__matcher_jump(&schedule->matcher, item);
}

void pleat__size_parameter_matched(pleat__size_parameter *sizes, const pleat__schedule *schedule,
                                   uint32_t item)
{
    if (pleat__size_parameter_is_proven(sizes) || function_of(sizes, schedule, item) == NULL)
        return;
    sizes->as_said++;
    if (sizes->agreed < 2)
        sizes->agreed++;
}

/* Whether a request that is not as expected may be the item all the same. */
static bool may_be(const pleat__schedule *schedule, uint32_t item, uint64_t bytes, uint16_t stream)
{
    const pleat__expected *expected = &schedule->items[item];
    return expected->kind == PLEAT__ITEM_SLOT && expected->stream == stream &&
           expected->bytes != bytes;
}

void pleat__size_parameter_correct(pleat__size_parameter *sizes, pleat__schedule *schedule,
                                   uint32_t expected, uint32_t item, uint64_t bytes,
                                   uint16_t stream)
{
    uint32_t missed = sizes->missed, confirms = sizes->confirms;
    /* The one behind it has the size that it was expected to have, and was taken for it. */
    if (missed != PLEAT__NO_ITEM && item == missed && confirms == missed + 1 &&
        confirms < schedule->count && schedule->items[confirms].bytes == bytes) {
        sizes->confirms++;
        return;
    }
    if (missed != PLEAT__NO_ITEM && item == confirms) {
        if (sizes->taken_for != PLEAT__NO_ITEM)
            pleat__size_parameter_outgrew(sizes, schedule,
                                          &schedule->items[sizes->taken_for].place);
        sizes->missed = PLEAT__NO_ITEM;
        schedule->items[missed].bytes = sizes->missed_bytes;
        /* It may have been taken for one further ahead of the same size. */
        if (item != expected)
            pleat__matcher_jump(&schedule->matcher,
                                item + 1 < schedule->count ? item + 1 : schedule->matcher.begin);
        return;
    }
    sizes->missed = PLEAT__NO_ITEM;
    if (item == expected || !pleat__size_parameter_is_known(sizes) ||
        !may_be(schedule, expected, bytes, stream))
        return;
    sizes->missed = expected;
    sizes->missed_bytes = bytes;
    sizes->taken_for = item;
    sizes->confirms = expected + 1;
}

void pleat__size_parameter_outgrew(pleat__size_parameter *sizes, pleat__schedule *schedule,
                                   const pleat__place *place)
{
    sizes->taken_for = PLEAT__NO_ITEM;
    if (sizes->missed != PLEAT__NO_ITEM &&
        place->granules > schedule->items[sizes->missed].place.granules)
        pleat__schedule_replace(schedule, sizes->missed, place);
}
