/*
 * reuse.c: proves V9 of verify.c: no byte of a window's stretches is a slot's while requests of the
 * window may live. It is not known here how the stretches were found.
 *
 * TIMES     A slot lives in one range of events, or in two where it wraps around; always where it
 *           is persistent or not freed. A window lasts from the first to the last event of its
 *           dynamic requests: the hull of their ranges.
 * STRETCHES Those of a window in order of place, each with the highest end so far, so that one look
 *           says whether a slot shares a byte with any of them.
 */
#include <plan/verify/verify.h>

#include <internal/error.h>
#include <internal/search.h>
#include <plan/base/sort.h>

/* Windows times requests that are looked at: some seconds. */
#define LOOKS_MOST (1ull << 30)

typedef unsigned long long ull;

/* The stretches of one window: rows [first, end) of the plan's. */
typedef struct window {
    uint32_t number;
    uint32_t first;
    uint32_t end;
    pleat__range events; /* empty: it has no requests */
} window;

typedef struct checking {
    const pleat_plan *plan;
    window *windows; /* in order of number */
    uint32_t window_count;
    uint64_t *places; /* of the stretches, window by window in order of place */
    uint64_t *ends;   /* the highest so far in the window */
} checking;

/* --- stretches ---------------------------------------------------------------------------------*/

static pleat_result check_row(const pleat_plan *plan, uint32_t row)
{
    const pleat__reusable *r = &plan->reusable[row];
    if (row > 0 && r->window < plan->reusable[row - 1].window)
        return pleat__fail(PLEAT_E_VERIFY, "stretch %u of window %u is behind one of window %u",
                           row, r->window, plan->reusable[row - 1].window);
    /* Windows part the allocations and frees. */
    if (r->window / 2 > plan->steady.slot_count)
        return pleat__fail(PLEAT_E_INPUT, "stretch %u is of window %u, of a plan of %u requests",
                           row, r->window, plan->steady.slot_count);
    if (r->place % PLEAT__ALIGNMENT != 0 || r->bytes == 0 || r->place > plan->virtual_bytes ||
        r->bytes > plan->virtual_bytes - r->place)
        return pleat__fail(PLEAT_E_VERIFY,
                           "stretch %u: %llu bytes at byte %llu of a window of %llu", row,
                           (ull)r->bytes, (ull)r->place, (ull)plan->virtual_bytes);
    return PLEAT_OK;
}

static pleat_result list_windows(checking *c)
{
    for (uint32_t row = 0; row < c->plan->reusable_count; row++) {
        PLEAT_TRY(check_row(c->plan, row));
        uint32_t number = c->plan->reusable[row].window;
        if (c->window_count == 0 || c->windows[c->window_count - 1].number != number)
            c->windows[c->window_count++] = (window){.number = number, .first = row};
        c->windows[c->window_count - 1].end = row + 1;
    }
    return PLEAT_OK;
}

static void order_stretches(checking *c, const window *w, uint64_t *keys, uint32_t *order)
{
    uint32_t count = w->end - w->first;
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = c->plan->reusable[w->first + i].place;
        order[i] = i;
    }
    pleat__sort_by_key(order, order + count, count, keys);
    uint64_t highest = 0;
    for (uint32_t i = 0; i < count; i++) {
        const pleat__reusable *r = &c->plan->reusable[w->first + order[i]];
        uint64_t end = r->place + r->bytes;
        highest = end > highest ? end : highest;
        c->places[w->first + i] = r->place;
        c->ends[w->first + i] = highest;
    }
}

/* Whether a stretch of the window shares a byte with [begin, end). */
static bool shares_byte(const checking *c, const window *w, uint64_t begin, uint64_t end)
{
    uint32_t behind;
    PLEAT__FIRST(behind, w->end - w->first, c->places[w->first + behind] >= end);
    return behind > 0 && c->ends[w->first + behind - 1] > begin;
}

/* --- times -------------------------------------------------------------------------------------*/

/* The ranges of events of the steady iteration in which a slot lives; how many. */
static int list_events(const pleat_plan *plan, const pleat__slot *slot, pleat__range ranges[2])
{
    uint64_t all = plan->steady.events;
    if (slot->class == PLEAT__CLASS_PERSISTENT || slot->free_at == PLEAT__NEVER) {
        ranges[0] = (pleat__range){0, all};
        return 1;
    }
    if (slot->alloc_at < slot->free_at) {
        ranges[0] = (pleat__range){slot->alloc_at, slot->free_at};
        return 1;
    }
    ranges[0] = (pleat__range){slot->alloc_at, all};
    ranges[1] = (pleat__range){0, slot->free_at};
    return 2;
}

static window *find_window(const checking *c, uint32_t number)
{
    uint32_t at;
    PLEAT__FIRST(at, c->window_count, c->windows[at].number >= number);
    bool is = at < c->window_count && c->windows[at].number == number;
    return is ? &c->windows[at] : NULL;
}

static void extend(pleat__range *hull, pleat__range by)
{
    if (pleat__range_empty(by))
        return;
    bool none = pleat__range_empty(*hull);
    hull->begin = none || by.begin < hull->begin ? by.begin : hull->begin;
    hull->end = none || by.end > hull->end ? by.end : hull->end;
}

static void time_windows(checking *c)
{
    const pleat__sequence *steady = &c->plan->steady;
    for (uint32_t i = 0; i < steady->slot_count; i++) {
        pleat__range ranges[2];
        if (steady->slots[i].class != PLEAT__CLASS_DYNAMIC)
            continue;
        window *w = find_window(c, steady->slots[i].window);
        for (int k = w == NULL ? 0 : list_events(c->plan, &steady->slots[i], ranges); k > 0; k--)
            extend(&w->events, ranges[k - 1]);
    }
}

/* --- slots against stretches -------------------------------------------------------------------*/

static bool meets(const checking *c, const window *w, const pleat__slot *slot)
{
    pleat__range ranges[2];
    bool lives = false;
    for (int k = list_events(c->plan, slot, ranges); k > 0; k--)
        lives |= pleat__range_overlaps(ranges[k - 1], w->events);
    return lives && shares_byte(c, w, slot->place, slot->place + pleat__placed_size(slot));
}

static pleat_result check_slots(const checking *c, const pleat__sequence *sequence)
{
    /* Of what comes before the iterations only this is still there in them. */
    bool once = sequence == &c->plan->first;
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        if (slot->place == PLEAT__NOWHERE || slot->size == 0 ||
            (once && slot->class != PLEAT__CLASS_PERSISTENT))
            continue;
        for (uint32_t k = 0; k < c->window_count; k++)
            if (meets(c, &c->windows[k], slot))
                return pleat__fail(PLEAT_E_VERIFY,
                                   "reusable space of window %u has bytes of %s request %u",
                                   c->windows[k].number, once ? "first" : "steady", i);
    }
    return PLEAT_OK;
}

static pleat_result check_all(checking *c, uint64_t *keys, uint32_t *order)
{
    const pleat_plan *plan = c->plan;
    PLEAT_TRY(list_windows(c));
    uint64_t slots = (uint64_t)plan->first.slot_count + plan->steady.slot_count;
    if (slots != 0 && c->window_count > LOOKS_MOST / slots)
        return pleat__fail(PLEAT_E_LIMIT,
                           "reusable space of %u windows beside %llu requests takes too long to "
                           "prove",
                           c->window_count, (ull)slots);
    for (uint32_t k = 0; k < c->window_count; k++)
        order_stretches(c, &c->windows[k], keys, order);
    time_windows(c);
    for (uint32_t k = 0; k < c->window_count; k++)
        if (pleat__range_empty(c->windows[k].events))
            return pleat__fail(PLEAT_E_VERIFY, "stretch %u is of window %u, which has no requests",
                               c->windows[k].first, c->windows[k].number);
    PLEAT_TRY(check_slots(c, &plan->first));
    return check_slots(c, &plan->steady);
}

pleat_result pleat__verify_reuse(const pleat_plan *plan, pleat__arena *scratch)
{
    checking c = {.plan = plan};
    uint64_t count = plan->reusable_count;
    if (count == 0)
        return PLEAT_OK;
    c.windows = pleat__arena_calloc(scratch, count, sizeof *c.windows);
    c.places = pleat__arena_alloc(scratch, 3 * count * sizeof *c.places);
    uint32_t *order = pleat__arena_alloc(scratch, 2 * count * sizeof *order);
    c.ends = c.places + count;
    pleat_result result =
        c.windows == NULL || c.places == NULL || order == NULL
            ? pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to verify %llu stretches", (ull)count)
            : check_all(&c, c.places + 2 * count, order);
    pleat__arena_free(scratch, c.windows);
    pleat__arena_free(scratch, c.places);
    pleat__arena_free(scratch, order);
    return result;
}
