/*
 * next_use.c: the slots of each chunk (see next_use.h), as one array in order of chunk and item.
 */
#include <runtime/follow/next_use.h>

#include <internal/error.h>
#include <string.h>

/* Chunks of a run that are looked at: a hole of more is judged by its beginning. */
#define LOOKED_AT 64u

/* Of a lane's requests one in so many is noted: there are thousands, and a lane is hundreds of
 * chunks. */
#define LANE_EVERY 64u

typedef struct filler {
    pleat__foresee *foresee;
    bool counting;
    uint32_t item;
    uint32_t last; /* chunk filled last: two runs of a slot may meet in one */
} filler;

static void fill_run(filler *f, pleat__extent run)
{
    pleat__foresee *foresee = f->foresee;
    uint32_t end = ((run.begin + run.count - 1) >> foresee->shift) + 1;
    for (uint32_t c = run.begin >> foresee->shift; c < end && c < foresee->chunks; c++) {
        if (c == f->last)
            continue;
        f->last = c;
        if (f->counting)
            foresee->first[c + 1]++;
        else
            foresee->items[foresee->first[c]++] = f->item;
    }
}

static void fill_runs(filler *f, const pleat__extent *runs, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++)
        fill_run(f, runs[k]);
}

/* `noted` has for each lane the item noted last, plus one. */
static void fill_lane(filler *f, const pleat__expected *item, const pleat__lane_space *lanes,
                      uint32_t *noted)
{
    if (item->kind != PLEAT__ITEM_DYNAMIC || item->lane == PLEAT__NO_LANE ||
        (noted[item->lane] != 0 && f->item + 1 - noted[item->lane] < LANE_EVERY))
        return;
    noted[item->lane] = f->item + 1;
    fill_runs(f, lanes[item->lane].runs, lanes[item->lane].run_count);
}

static void fill_all(pleat__foresee *foresee, const pleat__lane_space *lanes, uint32_t *noted,
                     bool counting)
{
    for (uint32_t i = 0; i < foresee->match->count; i++) {
        const pleat__expected *item = &foresee->match->items[i];
        filler f = {.foresee = foresee, .counting = counting, .item = i, .last = UINT32_MAX};
        if (item->kind != PLEAT__ITEM_SLOT)
            fill_lane(&f, item, lanes, noted);
        else if (item->place.several == NULL)
            fill_run(&f, item->place.run);
        else
            fill_runs(&f, item->place.several->runs, item->place.several->count);
    }
}

static pleat_result fill(pleat__foresee *foresee, const pleat__lane_space *lanes,
                         uint32_t lane_count, uint32_t *noted)
{
    fill_all(foresee, lanes, noted, true);
    uint64_t sum = 0;
    for (uint32_t c = 0; c < foresee->chunks; c++)
        sum += foresee->first[c + 1];
    foresee->items =
        sum > UINT32_MAX ? NULL : pleat__arena_alloc(foresee->arena, sum * sizeof *foresee->items);
    if (foresee->items == NULL)
        return PLEAT_E_NO_MEMORY;
    for (uint32_t c = 0; c < foresee->chunks; c++)
        foresee->first[c + 1] += foresee->first[c];
    memset(noted, 0, lane_count * sizeof *noted);
    fill_all(foresee, lanes, noted, false);
    /* Filling moved each beginning to the next one's. */
    for (uint32_t c = foresee->chunks; c > 0; c--)
        foresee->first[c] = foresee->first[c - 1];
    foresee->first[0] = 0;
    return PLEAT_OK;
}

static bool is_wanted(const pleat__foresee *foresee, uint32_t chunk)
{
    return foresee->first[chunk] != foresee->first[chunk + 1];
}

static pleat_result list_never(pleat__foresee *foresee)
{
    uint32_t runs = 1;
    for (uint32_t c = 0; c < foresee->chunks; c++)
        runs += !is_wanted(foresee, c) && (c == 0 || is_wanted(foresee, c - 1));
    foresee->never = pleat__arena_alloc(foresee->arena, runs * sizeof *foresee->never);
    if (foresee->never == NULL)
        return PLEAT_E_NO_MEMORY;
    for (uint32_t c = 0; c < foresee->chunks; c++) {
        if (is_wanted(foresee, c))
            continue;
        if (c == 0 || is_wanted(foresee, c - 1))
            foresee->never[foresee->never_count++] = (pleat__extent){c << foresee->shift, 0};
        foresee->never[foresee->never_count - 1].count += 1u << foresee->shift;
    }
    uint32_t behind = foresee->chunks << foresee->shift;
    foresee->never[foresee->never_count++] = (pleat__extent){behind, UINT32_MAX - behind};
    return PLEAT_OK;
}

pleat_result pleat__foresee_init(pleat__foresee *foresee, pleat__arena *arena,
                                 const pleat__match *match, const pleat__lane_space *lanes,
                                 uint32_t lane_count, const pleat__pool *pool)
{
    *foresee = (pleat__foresee){
        .arena = arena, .match = match, .shift = pool->occupancy.shift, .chunks = pool->count};
    foresee->first = pleat__arena_calloc(arena, foresee->chunks + 1, sizeof *foresee->first);
    uint32_t *noted = pleat__arena_calloc(arena, lane_count + 1, sizeof *noted);
    pleat_result result = PLEAT_E_NO_MEMORY;
    if (foresee->first != NULL && noted != NULL)
        result = fill(foresee, lanes, lane_count, noted);
    if (result == PLEAT_OK)
        result = list_never(foresee);
    pleat__arena_free(arena, noted);
    if (result == PLEAT_OK)
        return PLEAT_OK;
    pleat__foresee_release(foresee);
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the slots of chunks");
}

void pleat__foresee_release(pleat__foresee *foresee)
{
    if (foresee->arena == NULL)
        return;
    pleat__arena_free(foresee->arena, foresee->first);
    pleat__arena_free(foresee->arena, foresee->items);
    pleat__arena_free(foresee->arena, foresee->never);
    *foresee = (pleat__foresee){0};
}

/* The first of a chunk's items from `from` on; UINT32_MAX when there is none. */
static uint32_t next_item(const pleat__foresee *foresee, uint32_t chunk, uint32_t from)
{
    uint32_t low = foresee->first[chunk], end = foresee->first[chunk + 1], high = end;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (foresee->items[middle] < from)
            low = middle + 1;
        else
            high = middle;
    }
    return low == end ? UINT32_MAX : foresee->items[low];
}

uint32_t pleat__foresee_wanted(const void *opaque, pleat__extent run)
{
    const pleat__foresee *foresee = opaque;
    const pleat__match *match = foresee->match;
    uint32_t nearest = UINT32_MAX;
    uint32_t first = run.begin >> foresee->shift;
    uint32_t end = ((run.begin + run.count - 1) >> foresee->shift) + 1;
    if (end - first > LOOKED_AT)
        end = first + LOOKED_AT;
    for (uint32_t c = first; c < end && c < foresee->chunks; c++) {
        uint32_t item = next_item(foresee, c, match->cursor), away = item - match->cursor;
        if (item == UINT32_MAX) {
            item = next_item(foresee, c, match->begin);
            away = match->count - match->cursor + (item - match->begin);
        }
        if (item != UINT32_MAX && away < nearest)
            nearest = away;
    }
    return nearest;
}
