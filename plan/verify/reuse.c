/*
 * reuse.c: proves the reusable space of a plan. See reuse.h.
 *
 * Each window's stretches are marked in order of place; then every slot that lives within the
 * window's span is held against the stretch before its end. The search for them (reuse.c) takes the
 * complement of the slots instead, and shares no step with this.
 */
#include <plan/stweaver/reuse.h>

#include <internal/error.h>
#include <plan/base/sort.h>

typedef unsigned long long ull;

static pleat_result check_row(const pleat_plan *plan, uint32_t row, uint32_t windows)
{
    const pleat__reusable *r = &plan->reusable[row];
    if (r->window >= windows || (row > 0 && r->window < plan->reusable[row - 1].window))
        return pleat__fail(PLEAT_E_VERIFY, "stretch %u is of window %u of %u", row, r->window,
                           windows);
    if (r->place % PLEAT__ALIGNMENT != 0 || r->bytes == 0 || r->place > plan->virtual_bytes ||
        r->bytes > plan->virtual_bytes - r->place)
        return pleat__fail(PLEAT_E_VERIFY,
                           "stretch %u: %llu bytes at byte %llu of a window of %llu", row,
                           (ull)r->bytes, (ull)r->place, (ull)plan->virtual_bytes);
    return PLEAT_OK;
}

/* The stretches of one window in order of place: places and ends. */
typedef struct stretches {
    uint64_t *places;
    uint64_t *ends;
    uint32_t count;
} stretches;

/* Whether [begin, end) shares a byte with one of them. They may overlap each other. */
static bool meets(const stretches *s, uint64_t begin, uint64_t end)
{
    uint32_t low = 0, high = s->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->places[middle] < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && s->ends[low - 1] > begin;
}

static pleat_result check_slots(const pleat_plan *plan, const pleat__sequence *sequence, bool once,
                                uint32_t window, const pleat__window_span *span, const stretches *s)
{
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        if (pleat__slot_lives_within(slot, once, span) &&
            meets(s, slot->place, slot->place + slot->size))
            return pleat__fail(PLEAT_E_VERIFY,
                               "reusable space of window %u has bytes of %s request %u", window,
                               once ? "first" : "steady", i);
    }
    (void)plan;
    return PLEAT_OK;
}

/* `ends` become the highest end up to each, so that one look finds any that reaches far. */
static void order(const pleat_plan *plan, uint32_t first, uint64_t *keys, uint32_t *indices,
                  uint32_t *spare, stretches *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        keys[i] = plan->reusable[first + i].place;
        indices[i] = i;
    }
    pleat__sort_by_key(indices, spare, s->count, keys);
    uint64_t highest = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        const pleat__reusable *r = &plan->reusable[first + indices[i]];
        highest = r->place + r->bytes > highest ? r->place + r->bytes : highest;
        s->places[i] = r->place;
        s->ends[i] = highest;
    }
}

static pleat_result check_windows(const pleat_plan *plan, const pleat__window_span *spans,
                                  uint64_t *numbers, uint32_t *indices)
{
    uint32_t all = plan->reusable_count;
    for (uint32_t first = 0; first < all;) {
        uint32_t window = plan->reusable[first].window, end = first;
        while (end < all && plan->reusable[end].window == window)
            end++;
        stretches s = {numbers, numbers + all, end - first};
        order(plan, first, numbers + 2ull * all, indices, indices + all, &s);
        PLEAT_TRY(check_slots(plan, &plan->first, true, window, &spans[window], &s));
        PLEAT_TRY(check_slots(plan, &plan->steady, false, window, &spans[window], &s));
        first = end;
    }
    return PLEAT_OK;
}

pleat_result pleat__reuse_verify(const pleat_plan *plan, pleat__arena *scratch)
{
    uint32_t count = plan->reusable_count, windows;
    pleat__window_span *spans;
    if (count == 0)
        return PLEAT_OK;
    PLEAT_TRY(pleat__window_spans(plan, scratch, &spans, &windows));
    pleat_result result = PLEAT_OK;
    for (uint32_t i = 0; i < count && result == PLEAT_OK; i++)
        result = check_row(plan, i, windows);
    uint64_t *numbers = pleat__arena_alloc(scratch, 3ull * count * sizeof *numbers);
    uint32_t *indices = pleat__arena_alloc(scratch, 2ull * count * sizeof *indices);
    if (result == PLEAT_OK && (numbers == NULL || indices == NULL))
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to verify %u stretches", count);
    if (result == PLEAT_OK)
        result = check_windows(plan, spans, numbers, indices);
    pleat__arena_free(scratch, numbers);
    pleat__arena_free(scratch, indices);
    pleat__arena_free(scratch, spans);
    return result;
}
