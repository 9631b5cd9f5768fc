/*
 * reuse.c: finding the reusable space, and its table in a plan file. See reuse.h.
 *
 * TABLE  [[count]] and then rows of three: window, place, bytes; in order of window, then of size,
 *        so that the first stretch with room is the tightest.
 *
 * A stretch that is smaller than the smallest request of its window is left out.
 */
#include <plan/stweaver/reuse.h>

#include <internal/error.h>
#include <plan/base/sort.h>

#define ROW_NUMBERS 3
#define MOST_ROWS   (1u << 20)

/* A window's dynamic requests: when they live, and the smallest of them. */
typedef struct window_span {
    uint32_t begin_at;
    uint32_t end_at; /* 0: the window has none */
    uint64_t least;
} window_span;

/* The spans of all windows, from `arena`. A request that wraps around, or is not freed, makes its
 * window last the whole iteration. */
static pleat_result list_spans(const pleat_plan *plan, const pleat__range *lasts,
                               pleat__arena *arena, window_span **spans, uint32_t *count)
{
    const pleat__sequence *steady = &plan->steady;
    uint32_t windows = 0;
    for (uint32_t i = 0; i < steady->slot_count; i++)
        if (steady->slots[i].class == PLEAT__CLASS_DYNAMIC && steady->slots[i].window >= windows)
            windows = steady->slots[i].window + 1;
    *count = windows;
    /* They part the allocations and frees. */
    if (windows / 2 > steady->slot_count)
        return pleat__fail(PLEAT_E_INPUT, "a plan of %u windows for %u requests", windows,
                           steady->slot_count);
    *spans = pleat__arena_calloc(arena, windows + 1ull, sizeof **spans);
    if (*spans == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u windows", windows);
    for (uint32_t i = 0; i < steady->slot_count; i++) {
        const pleat__slot *slot = &steady->slots[i];
        if (slot->class != PLEAT__CLASS_DYNAMIC)
            continue;
        window_span *span = &(*spans)[slot->window];
        bool wraps = slot->free_at == PLEAT__NEVER || slot->free_at <= slot->alloc_at;
        uint32_t begin_at = wraps ? 0 : slot->alloc_at;
        uint32_t end_at = wraps ? steady->events : slot->free_at;
        bool none = span->end_at == 0;
        span->begin_at = none || begin_at < span->begin_at ? begin_at : span->begin_at;
        span->least = none || slot->size < span->least ? slot->size : span->least;
        span->end_at = end_at > span->end_at ? end_at : span->end_at;
    }
    for (uint32_t w = 0; w < windows && lasts != NULL; w++) {
        window_span *span = &(*spans)[w];
        if (span->end_at == 0)
            continue;
        span->begin_at =
            lasts[w].begin < span->begin_at ? (uint32_t)lasts[w].begin : span->begin_at;
        span->end_at = lasts[w].end > span->end_at ? (uint32_t)lasts[w].end : span->end_at;
    }
    return PLEAT_OK;
}

static bool is_placed(const pleat__slot *slot)
{
    return slot->class != PLEAT__CLASS_DYNAMIC && slot->place != PLEAT__NOWHERE && slot->size > 0;
}

/* Whether a slot, of `first` where `once`, holds its place at some time of a span. */
static bool lives_within(const pleat__slot *slot, bool once, const window_span *span)
{
    if (!is_placed(slot))
        return false;
    if (once)
        return slot->class == PLEAT__CLASS_PERSISTENT;
    if (slot->free_at == PLEAT__NEVER)
        return true;
    bool wraps = slot->free_at <= slot->alloc_at;
    return wraps ? span->begin_at < slot->free_at || span->end_at > slot->alloc_at
                 : span->begin_at < slot->free_at && span->end_at > slot->alloc_at;
}

typedef struct reuse_job {
    pleat_plan *plan;
    uint32_t *order; /* placed slots by place: those of `first` from 0 on, then the steady ones */
    uint32_t count;
    uint64_t end; /* of the pool */
    size_t capacity;
} reuse_job;

static const pleat__slot *slot_of(const reuse_job *job, uint32_t index)
{
    uint32_t first = job->plan->first.slot_count;
    return index < first ? &job->plan->first.slots[index] : &job->plan->steady.slots[index - first];
}

static uint64_t end_of(const pleat__slot *slot)
{
    return slot->place + pleat__rounded(slot->size);
}

static pleat_result order_slots(reuse_job *job, pleat__arena *scratch)
{
    uint32_t all = job->plan->first.slot_count + job->plan->steady.slot_count;
    uint64_t *keys = pleat__arena_alloc(scratch, (all + 1ull) * sizeof *keys);
    uint32_t *spare = pleat__arena_alloc(scratch, (all + 1ull) * sizeof *spare);
    job->order = pleat__arena_alloc(scratch, (all + 1ull) * sizeof *job->order);
    bool room = keys != NULL && spare != NULL && job->order != NULL;
    for (uint32_t i = 0; i < all && room; i++) {
        const pleat__slot *slot = slot_of(job, i);
        if (!is_placed(slot))
            continue;
        keys[i] = slot->place;
        job->order[job->count++] = i;
        job->end = end_of(slot) > job->end ? end_of(slot) : job->end;
    }
    if (room)
        pleat__sort_by_key(job->order, spare, job->count, keys);
    pleat__arena_free(scratch, keys);
    pleat__arena_free(scratch, spare);
    return room ? PLEAT_OK
                : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order %u requests", all);
}

static pleat_result add_row(reuse_job *job, uint32_t window, uint64_t begin, uint64_t end,
                            uint64_t least)
{
    pleat_plan *plan = job->plan;
    if (end <= begin || end - begin < least || plan->reusable_count == MOST_ROWS)
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_grow(plan->arena, &plan->reusable, &job->capacity, plan->reusable_count,
                                sizeof *plan->reusable));
    plan->reusable[plan->reusable_count++] = (pleat__reusable){window, begin, end - begin};
    return PLEAT_OK;
}

static pleat_result add_window(reuse_job *job, uint32_t window, const window_span *span)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        bool once = job->order[i] < job->plan->first.slot_count;
        const pleat__slot *slot = slot_of(job, job->order[i]);
        if (!lives_within(slot, once, span))
            continue;
        PLEAT_TRY(add_row(job, window, at, slot->place, span->least));
        at = end_of(slot) > at ? end_of(slot) : at;
    }
    return add_row(job, window, at, job->end, span->least);
}

/* A window's rows by size; few of them, and nearly in order as often as not. */
static pleat_result order_rows(pleat_plan *plan, uint32_t first, pleat__arena *scratch)
{
    uint32_t count = plan->reusable_count - first;
    uint64_t *keys = pleat__arena_alloc(scratch, (count + 1ull) * sizeof *keys);
    uint32_t *order = pleat__arena_alloc(scratch, (2ull * count + 1) * sizeof *order);
    pleat__reusable *rows = pleat__arena_alloc(scratch, (count + 1ull) * sizeof *rows);
    bool room = keys != NULL && order != NULL && rows != NULL;
    for (uint32_t i = 0; i < count && room; i++) {
        rows[i] = plan->reusable[first + i];
        keys[i] = rows[i].bytes;
        order[i] = i;
    }
    if (room)
        pleat__sort_by_key(order, order + count, count, keys);
    for (uint32_t i = 0; i < count && room; i++)
        plan->reusable[first + i] = rows[order[i]];
    pleat__arena_free(scratch, keys);
    pleat__arena_free(scratch, order);
    pleat__arena_free(scratch, rows);
    return room ? PLEAT_OK
                : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u stretches", count);
}

pleat_result pleat__reuse_make(pleat_plan *plan, const pleat__range *lasts, pleat__arena *scratch)
{
    reuse_job job = {.plan = plan};
    window_span *spans;
    uint32_t windows;
    if (plan->stream_count > 1)
        return PLEAT_OK;
    PLEAT_TRY(list_spans(plan, lasts, scratch, &spans, &windows));
    pleat_result result = order_slots(&job, scratch);
    for (uint32_t w = 0; w < windows && result == PLEAT_OK; w++) {
        uint32_t first = plan->reusable_count;
        if (spans[w].end_at == 0)
            continue;
        result = add_window(&job, w, &spans[w]);
        if (result == PLEAT_OK)
            result = order_rows(plan, first, scratch);
    }
    pleat__arena_free(scratch, job.order);
    pleat__arena_free(scratch, spans);
    return result;
}

/* --- the table ---------------------------------------------------------------------------------*/

static void give_row(const void *context, uint64_t index, uint64_t *row)
{
    const pleat__reusable *reusable = &((const pleat_plan *)context)->reusable[index];
    row[0] = reusable->window;
    row[1] = reusable->place;
    row[2] = reusable->bytes;
}

void pleat__reuse_put(pleat__pack_writer *writer, const pleat_plan *plan)
{
    pleat__pack_put_count(writer, plan->reusable_count);
    pleat__pack_put_rows(writer, plan->reusable_count, ROW_NUMBERS, give_row, plan);
}

static pleat_result take_row(void *context, uint64_t index, const uint64_t *row)
{
    pleat_plan *plan = context;
    if (row[0] > UINT32_MAX)
        return pleat__fail(PLEAT_E_INPUT, "a number of the row is out of range");
    plan->reusable[index] = (pleat__reusable){(uint32_t)row[0], row[1], row[2]};
    return PLEAT_OK;
}

pleat_result pleat__reuse_take(pleat__pack_reader *pack, pleat_plan *plan)
{
    PLEAT_TRY(
        pleat__pack_count(pack, MOST_ROWS, "stretches of reusable space", &plan->reusable_count));
    plan->reusable =
        pleat__arena_calloc(plan->arena, plan->reusable_count + 1ull, sizeof *plan->reusable);
    if (plan->reusable == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u stretches",
                           plan->reusable_count);
    return pleat__pack_rows(pack, plan->reusable_count, ROW_NUMBERS, take_row, plan);
}
