/*
 * learn.c: finding a job's iteration, and what repeats in it.
 *
 * Every request is recorded with the place that the heap gave it, at O(1). Where an iteration ends
 * is said by a mark, or found: a table from the hash of the last GRAM sizes to where they were last
 * gives a candidate for the period; it is believed when as many requests as it is long have
 * repeated those a period before. An inner loop (layers, microbatches) is a period too, until it
 * ends; then the job diverges from it, the policy rejects it, and only longer ones are looked for,
 * so the iteration is reached in a few steps.
 *
 * While an iteration is recorded it is matched against the one before. What both have is static;
 * what only the later one has is dynamic. When most is static the later one is followed, each
 * static request at the place where it just was. That this needs no planner was a measurement: the
 * heap's own places, with views that waste nothing, are 0.02 to 0.6 % above max-live on seven
 * recorded jobs, which is where a planner started from a blank sheet gets, and here persistent
 * tensors already stand, nothing has to move, and physical memory cannot grow at the switch. It
 * takes no time either: making what is followed is a sort of its size index (4 ms for 12,000
 * requests), done at the boundary and not in a thread of its own. A request that finds its place
 * taken (by one that crosses the boundary, which the iteration before had elsewhere) gets another
 * from the heap and keeps that.
 */
#include <runtime/learn.h>

#include <internal/error.h>
#include <string.h>

#define GRAM       8u
#define SEEN_BITS  16u
#define MOST       (1u << 20) /* requests of one iteration */
#define LEAST      64u        /* requests of an iteration that is worth following */
#define PATIENCE   4096u      /* requests without a mark before periods are looked for */
#define AGREE_HALF 2u         /* one in so many must be static */

pleat_result pleat__learn_init(pleat__learn *learn, pleat__arena *arena, const pleat__conf *conf)
{
    *learn = (pleat__learn){
        .arena = arena, .least = LEAST, .off = !conf->learn, .no_period = !conf->period};
    learn->seen = pleat__arena_calloc(arena, 1u << SEEN_BITS, sizeof *learn->seen);
    if (learn->seen == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to learn a job's iteration");
    return PLEAT_OK;
}

static void items_drop(pleat__learn *learn)
{
    for (uint32_t i = 0; i < learn->count; i++)
        pleat__view_unpin(learn->arena, &learn->items[i].place);
    learn->count = 0;
    learn->agreed = 0;
    learn->period = 0;
    learn->repeated = 0;
    learn->full = false;
}

void pleat__learn_restart(pleat__learn *learn)
{
    items_drop(learn);
    pleat__follow_free(learn->before);
    learn->before = NULL;
    learn->whole = false;
}

void pleat__learn_release(pleat__learn *learn)
{
    if (learn->arena == NULL)
        return;
    pleat__learn_restart(learn);
    pleat__arena_free(learn->arena, learn->items);
    pleat__arena_free(learn->arena, learn->seen);
    *learn = (pleat__learn){0};
}

static pleat__boundary period_step(pleat__learn *learn);

/* ---- recording ---- */

pleat__boundary pleat__learn_request(pleat__learn *learn, uint64_t bytes, uint16_t stream,
                                     const pleat__place *place)
{
    if (learn->full || learn->off)
        return PLEAT__BOUNDARY_NONE;
    if (learn->count == MOST || pleat__arena_grow(learn->arena, &learn->items, &learn->capacity,
                                                  learn->count, sizeof *learn->items) != PLEAT_OK) {
        items_drop(learn);
        learn->full = true;
        return PLEAT__BOUNDARY_NONE;
    }
    bool agrees = learn->before != NULL &&
                  pleat__match_next(&learn->before->match, bytes, stream) != PLEAT__NO_ITEM;
    learn->agreed += agrees;
    pleat__view_pin(place);
    learn->items[learn->count++] = (pleat__expected){
        .bytes = bytes,
        .place = *place,
        .lane = PLEAT__NO_LANE,
        .stream = stream,
        .kind = agrees ? PLEAT__ITEM_SLOT : PLEAT__ITEM_DYNAMIC,
    };
    return learn->marks || learn->no_period ? PLEAT__BOUNDARY_NONE : period_step(learn);
}

/* For comparison all of the stretch before counts as static. */
static pleat_result keep_as_before(pleat__learn *learn)
{
    pleat__follow *before = NULL;
    for (uint32_t i = 0; i < learn->count; i++)
        learn->items[i].kind = PLEAT__ITEM_SLOT;
    if (learn->count >= LEAST) {
        PLEAT_TRY(pleat__follow_learned(learn->arena, learn->items, learn->count, &before));
        learn->items = NULL;
        learn->capacity = 0;
        learn->count = 0;
    }
    pleat__follow_free(learn->before);
    learn->before = before;
    return PLEAT_OK;
}

pleat__boundary pleat__learn_mark(pleat__learn *learn)
{
    learn->marks = true;
    if (learn->before != NULL && learn->count >= LEAST &&
        learn->agreed >= learn->count / AGREE_HALF)
        return PLEAT__BOUNDARY_AGREED;
    /* Half an iteration would call the other half dynamic. */
    if (!learn->whole || keep_as_before(learn) != PLEAT_OK)
        pleat__learn_restart(learn);
    items_drop(learn);
    learn->whole = true;
    return PLEAT__BOUNDARY_NONE;
}

pleat_result pleat__learn_take(pleat__learn *learn, pleat__follow **out)
{
    for (uint32_t i = 0; i < learn->count; i++)
        if (learn->items[i].kind == PLEAT__ITEM_DYNAMIC) {
            pleat__view_unpin(learn->arena, &learn->items[i].place);
            learn->items[i].place = (pleat__place){0};
        }
    PLEAT_TRY(pleat__follow_learned(learn->arena, learn->items, learn->count, out));
    learn->items = NULL;
    learn->capacity = 0;
    learn->count = 0;
    pleat__learn_restart(learn);
    return PLEAT_OK;
}

/* ---- periods ---- */

void pleat__learn_reject(pleat__learn *learn, uint32_t period)
{
    if (learn->least <= period && period < MOST / 2)
        learn->least = period + period / 2;
}

static bool same(const pleat__expected *a, const pleat__expected *b)
{
    return a->bytes == b->bytes && a->stream == b->stream;
}

/* A candidate from where the last GRAM requests were before. */
static void period_find(pleat__learn *learn)
{
    uint64_t h = 0;
    if (learn->count < GRAM)
        return;
    for (uint32_t i = learn->count - GRAM; i < learn->count; i++)
        h = (h ^ learn->items[i].bytes) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t *seen = &learn->seen[h >> (64 - SEEN_BITS)];
    uint32_t at = *seen, end = learn->count;
    *seen = end;
    if (learn->period == 0 && at != 0 && at < end && end - at >= learn->least) {
        learn->period = end - at;
        learn->repeated = 0;
    }
}

/* The last `period` requests become the iteration; those before are forgotten. */
static void keep_last(pleat__learn *learn, uint32_t period)
{
    uint32_t first = learn->count - period;
    for (uint32_t i = 0; i < first; i++)
        pleat__view_unpin(learn->arena, &learn->items[i].place);
    memmove(learn->items, learn->items + first, period * sizeof *learn->items);
    for (uint32_t i = 0; i < period; i++)
        learn->items[i].kind = PLEAT__ITEM_SLOT;
    learn->count = period;
}

static pleat__boundary period_step(pleat__learn *learn)
{
    uint32_t last = learn->count - 1;
    if (learn->period != 0) {
        if (same(&learn->items[last], &learn->items[last - learn->period]))
            learn->repeated++;
        else
            learn->period = 0;
    }
    period_find(learn);
    if (learn->period == 0 || learn->repeated < learn->period || learn->count < PATIENCE)
        return PLEAT__BOUNDARY_NONE;
    keep_last(learn, learn->period);
    return PLEAT__BOUNDARY_AGREED;
}
