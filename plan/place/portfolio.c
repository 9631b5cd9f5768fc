/*
 * portfolio.c: see portfolio.h. What lives always goes to the bottom, then each stream is
 * placed on its own above the one before.
 */
#include <plan/place/portfolio.h>

#include <internal/check.h>
#include <internal/error.h>
#include <plan/base/sort.h>
#include <string.h>

static const char *const names[] = {
#define ALGORITHM_NAME(name, text) #name,
    PLEAT__ALGORITHMS(ALGORITHM_NAME)
#undef ALGORITHM_NAME
};

/* In the order in which they are tried: what is cheap and strong first, since nothing is tried once
 * the height is max-live's. `most`: spans beyond which auto leaves an algorithm out. Two-ended
 * sweeps of 280,000 spans take 2 ms each, one order 350 ms and the groups three of those. */
static const struct {
    pleat__algorithm algorithm;
    uint32_t most;
    pleat__place_step step;
} steps[] = {
    {PLEAT__ALGORITHM_sweep, UINT32_MAX, pleat__place_sweep},
    {PLEAT__ALGORITHM_size, 500000, pleat__place_size},
    {PLEAT__ALGORITHM_lifetime, 100000, pleat__place_lifetime},
    {PLEAT__ALGORITHM_stweaver, 15000, pleat__place_stweaver},
};
#define STEPS (sizeof steps / sizeof *steps)

/* Max-live's chunks are enough where rounding to them is less than this part: a problem of a few
 * chunks is worth better. */
#define CLOSE 512

bool pleat__algorithm_find(const char *name, uint32_t *algorithms)
{
    if (strcmp(name, "auto") == 0) {
        *algorithms = 0;
        return true;
    }
    for (uint32_t i = 0; i < PLEAT__ALGORITHM_COUNT; i++)
        if (strcmp(name, names[i]) == 0) {
            *algorithms = 1u << i;
            return true;
        }
    return false;
}

const char *pleat__algorithm_name(uint32_t algorithm)
{
    return names[algorithm];
}

void pleat__placing_offer(pleat__placing *placing, pleat__algorithm algorithm, uint64_t height)
{
    if (height >= placing->height)
        return;
    uint64_t *swap = placing->places;
    placing->places = placing->trial;
    placing->trial = swap;
    placing->height = height;
    placing->best = algorithm;
}

/* Takes the fixed items' ranges, rounded outward, out of the holes. Entries may overlap. */
static pleat_result take_fixed(const pleat__problem *problem, pleat__arena *scratch,
                               pleat__gaps *gaps, pleat__place_report *report)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < problem->count; i++)
        count += problem->items[i].fixed != UINT64_MAX && problem->items[i].size > 0;
    if (count == 0)
        return PLEAT_OK;
    uint64_t *keys = pleat__arena_alloc(scratch, problem->count * sizeof *keys);
    uint32_t *order = pleat__arena_alloc(scratch, 2 * (uint64_t)count * sizeof *order);
    if (keys == NULL || order == NULL) {
        pleat__arena_free(scratch, keys);
        pleat__arena_free(scratch, order);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u fixed requests", count);
    }
    count = 0;
    for (uint32_t i = 0; i < problem->count; i++) {
        keys[i] = problem->items[i].fixed;
        if (problem->items[i].fixed != UINT64_MAX && problem->items[i].size > 0)
            order[count++] = i;
    }
    pleat__sort_by_key(order, order + count, count, keys);
    pleat_result result = PLEAT_OK;
    uint64_t end = 0;
    for (uint32_t i = 0; i < count && result == PLEAT_OK; i++) {
        const pleat__item *item = &problem->items[order[i]];
        uint64_t begin = pleat__round_down(item->fixed, 512), item_end;
        if (!pleat__add(item->fixed, item->size, &item_end) ||
            !pleat__round_up(item_end, 512, &item_end)) {
            result = pleat__fail(PLEAT_E_INVALID, "a fixed request ends beyond all addresses");
            break;
        }
        begin = begin > end ? begin : end;
        if (item_end > begin)
            result = pleat__gaps_take(gaps, (pleat__range){begin, item_end});
        end = item_end > end ? item_end : end;
    }
    report->height = end > report->height ? end : report->height;
    pleat__arena_free(scratch, keys);
    pleat__arena_free(scratch, order);
    return result;
}

/* Places what lives always, lowest first in the given order, so that requests of one moment lie
 * together. */
static pleat_result place_always(const pleat__problem *problem, pleat__gaps *gaps, uint64_t *places,
                                 pleat__place_report *report)
{
    for (uint32_t i = 0; i < problem->count; i++) {
        const pleat__item *item = &problem->items[i];
        places[i] = item->fixed != UINT64_MAX ? item->fixed : 0;
        if (item->fixed != UINT64_MAX || !pleat__item_always(problem, item))
            continue;
        /* There always is one: the last range has no end. */
        PLEAT_CHECK(pleat__gaps_lowest(gaps, item->size, &places[i]));
        PLEAT_TRY(pleat__gaps_take(gaps, (pleat__range){places[i], places[i] + item->size}));
        if (places[i] + item->size > report->height)
            report->height = places[i] + item->size;
    }
    report->floor = report->height;
    return PLEAT_OK;
}

static pleat_result list_free(pleat__gaps *gaps, pleat__arena *scratch, pleat__range **free,
                              uint32_t *count)
{
    size_t capacity = 0;
    pleat__gap_at at;
    *count = 0;
    for (bool any = pleat__gaps_from(gaps, 0, &at); any; any = pleat__gaps_next(gaps, &at)) {
        PLEAT_TRY(pleat__arena_grow(scratch, free, &capacity, *count, sizeof **free));
        (*free)[(*count)++] = pleat__gaps_get(gaps, at);
    }
    return PLEAT_OK;
}

static void add_height(uint64_t *total, uint64_t height)
{
    /* Streams lie above each other, so the last height is the whole one; an algorithm that the last
     * stream did not need has none. */
    if (*total != UINT64_MAX)
        *total = height;
}

static pleat_result run_steps(pleat__placing *placing, uint32_t algorithms,
                              pleat__place_report *report)
{
    for (size_t i = 0; i < STEPS; i++) {
        pleat__algorithm algorithm = steps[i].algorithm;
        bool wanted = (algorithms >> algorithm & 1) != 0;
        if (algorithms == 0)
            wanted = placing->strip->count <= steps[i].most && !pleat__placing_done(placing);
        uint64_t height = UINT64_MAX;
        if (wanted)
            PLEAT_TRY(steps[i].step(placing, &height, &report->work[algorithm]));
        add_height(&report->heights[algorithm], wanted ? height : 0);
    }
    /* An algorithm asked for by name may give up; a plan is still wanted. */
    if (placing->height == UINT64_MAX) {
        uint64_t height;
        PLEAT_TRY(pleat__place_sweep(placing, &height, &report->work[PLEAT__ALGORITHM_sweep]));
    }
    return PLEAT_OK;
}

static pleat_result placing_create(pleat__placing *placing, const pleat__strip *strip,
                                   const pleat__place_options *options)
{
    uint64_t count = strip->count;
    *placing = (pleat__placing){.strip = strip, .arena = strip->arena, .height = UINT64_MAX};
    uint64_t close = strip->floor + strip->floor / CLOSE;
    if (options->chunk_bytes > 0 &&
        pleat__round_up(strip->floor, options->chunk_bytes, &placing->enough))
        placing->enough = placing->enough < close ? placing->enough : close;
    else
        placing->enough = strip->floor;
    pleat__gaps_init(&placing->gaps, strip->arena);
    placing->places = pleat__arena_alloc(strip->arena, count * sizeof *placing->places);
    placing->trial = pleat__arena_alloc(strip->arena, count * sizeof *placing->trial);
    if (placing->places == NULL || placing->trial == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to place %u requests", strip->count);
    return PLEAT_OK;
}

static void placing_destroy(pleat__placing *placing)
{
    pleat__gaps_done(&placing->gaps);
    pleat__arena_free(placing->arena, placing->places);
    pleat__arena_free(placing->arena, placing->trial);
}

/* A problem being placed, stream by stream. */
struct placement {
    const pleat__problem *problem;
    const pleat__place_options *options;
    pleat__arena *scratch;
    uint64_t *places;
    pleat__place_report *report;
    const pleat__range *free;
    uint32_t free_count;
    uint32_t most_spans; /* of a stream so far */
};

static void keep_stream(struct placement *placement, const pleat__placing *placing)
{
    const pleat__strip *strip = placing->strip;
    pleat__place_report *report = placement->report;
    for (uint32_t i = 0; i < strip->count; i++)
        placement->places[strip->items[i]] = placing->places[i];
    report->height = placing->height > report->height ? placing->height : report->height;
    report->floor = strip->floor > report->floor ? strip->floor : report->floor;
    if (strip->count > placement->most_spans) {
        placement->most_spans = strip->count;
        report->best = placing->best;
    }
}

static pleat_result place_stream(struct placement *placement, const uint32_t *members,
                                 uint32_t count)
{
    pleat__strip strip;
    pleat__placing placing = {0};
    PLEAT_TRY(pleat__strip_make(placement->problem, members, count, placement->free,
                                placement->free_count, placement->scratch, &strip));
    pleat_result result = placing_create(&placing, &strip, placement->options);
    if (result == PLEAT_OK)
        result = run_steps(&placing, placement->options->algorithms, placement->report);
    if (result == PLEAT_OK)
        keep_stream(placement, &placing);
    placing_destroy(&placing);
    pleat__strip_free(&strip);
    return result;
}

/* Streams in ascending order, each above the one before, from a chunk of its own on: at run time
 * memory is one stream's by the chunk. */
static pleat_result place_streams(struct placement *placement)
{
    const pleat__item *items = placement->problem->items;
    pleat__range above = {0, UINT64_MAX};
    uint32_t *members, count;
    PLEAT_TRY(pleat__strip_members(placement->problem, placement->scratch, &members, &count));
    pleat_result result = PLEAT_OK;
    for (uint32_t at = 0, end = 0; at < count && result == PLEAT_OK; at = end) {
        while (end < count && items[members[end]].stream == items[members[at]].stream)
            end++;
        result = place_stream(placement, members + at, end - at);
        uint64_t height = placement->report->height;
        if (placement->options->chunk_bytes == 0 ||
            !pleat__round_up(height, placement->options->chunk_bytes, &above.begin))
            above.begin = height;
        placement->free = &above;
        placement->free_count = 1;
    }
    pleat__arena_free(placement->scratch, members);
    return result;
}

pleat_result pleat__place_make(const pleat__problem *problem, const pleat__place_options *options,
                               pleat__arena *scratch, uint64_t *places, pleat__place_report *report)
{
    struct placement placement = {.problem = problem,
                                  .options = options,
                                  .scratch = scratch,
                                  .places = places,
                                  .report = report};
    pleat__gaps gaps;
    pleat__range *free = NULL;
    *report = (pleat__place_report){0};
    pleat__gaps_init(&gaps, scratch);
    pleat_result result = pleat__gaps_give(&gaps, (pleat__range){0, UINT64_MAX});
    if (result == PLEAT_OK)
        result = take_fixed(problem, scratch, &gaps, report);
    if (result == PLEAT_OK)
        result = place_always(problem, &gaps, places, report);
    if (result == PLEAT_OK)
        result = list_free(&gaps, scratch, &free, &placement.free_count);
    pleat__gaps_done(&gaps);
    placement.free = free;
    if (result == PLEAT_OK)
        result = place_streams(&placement);
    pleat__arena_free(scratch, free);
    return result;
}
