/*
 * size_parameter.c: see size_parameter.h.
 */
#include <runtime/follow/size_parameter.h>

/* Items behind and ahead of the cursor whose sizes are kept at x: what the matcher and its
 * alignment look at (alignment.h, PLEAT__TRACK_BAND), with as many to spare. */
#define BEHIND 16u
#define AHEAD  (2 * PLEAT__TRACK_BAND)
/* Items from the cursor on that a request may be whose size says another x. */
#define NEAR 3u
/* Values of x that are tried in one iteration. A job that has left the recipe altogether then costs
 * no more than this. */
#define TRIES 16u

void pleat__size_parameter_init(pleat__size_parameter *sizes, const pleat_plan *plan)
{
    *sizes = (pleat__size_parameter){.plan = plan, .x = plan->recipe->reference, .passes = 2};
    pleat__x_begin(&sizes->finder, plan);
}

/* The function of an item's size, or NULL where it does not depend on x. */
static const pleat__function *function_of(const pleat__size_parameter *sizes,
                                          const pleat__follow *follow, uint32_t item)
{
    const pleat__recipe *recipe = sizes->plan->recipe;
    uint32_t begin = follow->match.begin;
    uint32_t index = item < begin ? recipe->first[item] : recipe->steady[item - begin];
    if (index == PLEAT__NO_FUNCTION || follow->items[item].kind == PLEAT__ITEM_DYNAMIC ||
        !pleat__function_varies(&recipe->functions[index]))
        return NULL;
    return &recipe->functions[index];
}

void pleat__size_parameter_begin(pleat__size_parameter *sizes, const pleat__follow *follow)
{
    uint32_t cursor = follow->match.cursor;
    sizes->agreed = 0;
    sizes->tries = 0;
    sizes->requests = 0;
    sizes->last = 0;
    sizes->sized_until = cursor < follow->match.begin ? 0 : follow->match.begin;
    sizes->passes += sizes->passes < 2;
    if (sizes->plan->recipe->parameters == 2)
        pleat__x_begin(&sizes->finder, sizes->plan);
}

void pleat__size_parameter_adopt(pleat__size_parameter *sizes, const pleat__follow *follow)
{
    sizes->passes = 0;
    pleat__size_parameter_begin(sizes, follow);
}

static void size_item(const pleat__size_parameter *sizes, pleat__follow *follow, uint32_t item)
{
    const pleat__function *function = function_of(sizes, follow, item);
    uint64_t bytes;
    if (function != NULL && pleat__function_at(function, &sizes->x, &bytes))
        pleat__match_resize(&follow->match, item, bytes);
}

void pleat__size_parameter_advance(pleat__size_parameter *sizes, pleat__follow *follow)
{
    uint32_t cursor = follow->match.cursor;
    /* Back by more than half of it: another iteration has begun, and nothing marked it. */
    if (cursor + (follow->count - follow->match.begin) / 2 < sizes->last)
        pleat__size_parameter_begin(sizes, follow);
    sizes->last = cursor;
    /* Two passes after x changed all items have their size. */
    if (sizes->passes >= 2)
        return;
    uint32_t end = cursor + AHEAD < follow->count ? cursor + AHEAD : follow->count;
    for (; sizes->sized_until < end; sizes->sized_until++)
        size_item(sizes, follow, sizes->sized_until);
}

static void change(pleat__size_parameter *sizes, pleat__follow *follow, const pleat__x *x)
{
    uint32_t cursor = follow->match.cursor, begin = follow->match.begin;
    uint32_t least = cursor < begin ? 0 : begin;
    sizes->x = *x;
    sizes->passes = 0;
    sizes->sized_until = cursor - least > BEHIND ? cursor - BEHIND : least;
    pleat__size_parameter_advance(sizes, follow);
}

/* One parameter: the x at which one of the next items has this size. */
static bool solve(const pleat__size_parameter *sizes, const pleat__follow *follow, uint64_t bytes,
                  uint16_t stream, pleat__x *x, uint32_t *item)
{
    uint32_t cursor = follow->match.cursor;
    for (*item = cursor; *item < cursor + NEAR && *item < follow->count; ++*item) {
        const pleat__function *function = function_of(sizes, follow, *item);
        *x = sizes->x;
        if (function != NULL && follow->items[*item].stream == stream &&
            pleat__function_solve(function, bytes, &x->u) && !pleat__x_equal(x, &sizes->x) &&
            pleat__x_in_range(sizes->plan->recipe, x))
            return true;
    }
    return false;
}

/* Two parameters are found from several requests together, each known by its place in the
 * iteration: the matcher's cursor stands still where sizes are others. */
static bool observe(pleat__size_parameter *sizes, const pleat__follow *follow, uint64_t bytes,
                    uint16_t stream, pleat__x *x, uint32_t *item)
{
    uint32_t begin = follow->match.begin;
    bool first = follow->match.cursor < begin;
    *item = (first ? 0 : begin) + sizes->requests++;
    if (*item >= (first ? begin : follow->count) || follow->items[*item].stream != stream ||
        pleat__x_observe(&sizes->finder, first, first ? *item : *item - begin, bytes) !=
            PLEAT__X_KNOWN)
        return false;
    *x = sizes->finder.x;
    return !pleat__x_equal(x, &sizes->x) && pleat__x_in_range(sizes->plan->recipe, x);
}

void pleat__size_parameter_infer(pleat__size_parameter *sizes, pleat__follow *follow,
                                 uint64_t bytes, uint16_t stream)
{
    bool two = sizes->plan->recipe->parameters == 2;
    pleat__x x;
    uint32_t item;
    if (pleat__size_parameter_is_known(sizes) || sizes->tries >= TRIES)
        return;
    if (!(two ? observe(sizes, follow, bytes, stream, &x, &item)
              : solve(sizes, follow, bytes, stream, &x, &item)))
        return;
    sizes->tries++;
    sizes->agreed = 0;
    change(sizes, follow, &x);
    if (follow->items[item].bytes == bytes)
        pleat__match_jump(&follow->match, item);
}

void pleat__size_parameter_matched(pleat__size_parameter *sizes, const pleat__follow *follow,
                                   uint32_t item)
{
    sizes->requests++;
    if (sizes->agreed < 2 && function_of(sizes, follow, item) != NULL)
        sizes->agreed++;
}
