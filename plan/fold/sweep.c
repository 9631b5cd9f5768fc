/*
 * sweep.c: places a job's items in order of birth under a cap on chunks, stitching views where
 * no hole is left.
 *
 * WHY   Served in order of birth, an item of whole chunks always finds enough idle ones while live
 *       chunks stay under the cap (interval graphs colour optimally), and chunks idle at its birth
 *       stay idle for its life, because whoever comes later works around it. So the order is kept,
 *       and all freedom is in which hole an item takes: its policy bit.
 * HOW   An item takes the lowest or the highest hole, else a new view: the tail of a chunk, whole
 *       chunks, the head of a chunk (stitch.c). If even that fails (what is free lies in pieces of
 *       chunks), the base grows by a chunk, and the item is told to the caller, who may reserve it
 *       next time.
 * AHEAD  Items that wrap around the horizon and reserved ones are placed before the sweep; others
 *       that are live with them see their bytes as taken (`masked`).
 * COST  A hole is two short scans (free_ranges.h); a stitch walks the free ranges once.
 *
 * Two-ended order (long-lived low, short-lived high) is the caller's choice of bits.
 */
#include <plan/fold/stitch.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/search.h>
#include <stdlib.h>
#include <string.h>

/* A placed item that the sweep works around before it is born. */
typedef struct reserved_item {
    uint32_t item;
    uint32_t begin;
} reserved_item;

struct pleat__sweep {
    pleat__fold_job *job;
    pleat__gaps gaps;
    pleat__try *out;
    uint8_t *is_reserved; /* by position in births */
    reserved_item *reserved;
    size_t reserved_capacity;
    uint32_t reserved_count;
    uint32_t next_reserved; /* the first that is not born */
    pleat__range *masked;   /* free ranges taken out of `gaps` for a moment */
    size_t masked_capacity;
    uint32_t masked_count;
    pleat__stitcher stitcher;
    pleat__sweep_limits limits;
    bool over; /* a limit is passed */
};

pleat_result pleat__sweep_create(pleat__fold_job *job, pleat__sweep **out)
{
    pleat__sweep *sweep = pleat__arena_calloc(job->arena, 1, sizeof *sweep);
    uint8_t *is_reserved = pleat__arena_calloc(job->arena, job->birth_count + 1u, 1);
    if (sweep == NULL || is_reserved == NULL) {
        pleat__arena_free(job->arena, sweep);
        pleat__arena_free(job->arena, is_reserved);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for folding %u requests",
                           job->birth_count);
    }
    sweep->job = job;
    sweep->is_reserved = is_reserved;
    sweep->stitcher = (pleat__stitcher){.job = job, .gaps = &sweep->gaps};
    pleat__gaps_init(&sweep->gaps, job->arena);
    *out = sweep;
    return PLEAT_OK;
}

void pleat__sweep_destroy(pleat__sweep *sweep)
{
    if (sweep == NULL)
        return;
    pleat__arena *arena = sweep->job->arena;
    pleat__gaps_done(&sweep->gaps);
    pleat__arena_free(arena, sweep->is_reserved);
    pleat__arena_free(arena, sweep->reserved);
    pleat__arena_free(arena, sweep->masked);
    pleat__arena_free(arena, sweep->stitcher.sources);
    pleat__arena_free(arena, sweep);
}

static const pleat__item *item_of(const pleat__sweep *sweep, uint32_t item)
{
    return &sweep->job->problem->items[item];
}

static bool is_fixed(const pleat__sweep *sweep, uint32_t item)
{
    return item_of(sweep, item)->fixed != UINT64_MAX;
}

static uint64_t size_of(const pleat__sweep *sweep, uint32_t item)
{
    return item_of(sweep, item)->size;
}

/* The next run of physical bytes behind a place: from *at, at most `left` bytes. */
static pleat__range run_at(const pleat__try *out, uint64_t chunk, uint64_t at, uint64_t left)
{
    if (at < PLEAT__IN_VIEWS)
        return (pleat__range){at, at + left};
    uint64_t offset = at - PLEAT__IN_VIEWS, page = offset / chunk;
    uint64_t begin = out->views[page] * chunk + offset % chunk;
    uint64_t bytes = chunk - offset % chunk;
    while (bytes < left && out->views[page + 1] == out->views[page] + 1) {
        bytes += chunk;
        page++;
    }
    return (pleat__range){begin, begin + (bytes < left ? bytes : left)};
}

static pleat_result set_free(pleat__sweep *sweep, uint32_t item, bool is_free)
{
    uint64_t at = sweep->out->places[item], left = size_of(sweep, item);
    while (left != 0) {
        pleat__range run = run_at(sweep->out, sweep->job->chunk, at, left);
        PLEAT_TRY(is_free ? pleat__gaps_give(&sweep->gaps, run)
                          : pleat__gaps_take(&sweep->gaps, run));
        at += pleat__range_size(run);
        left -= pleat__range_size(run);
    }
    return PLEAT_OK;
}

/* Takes what is free of the run out of the set, until unmask() if it is kept. */
static pleat_result mask(pleat__sweep *sweep, pleat__range run, bool keep)
{
    pleat__range part;
    while (pleat__gaps_part(&sweep->gaps, run, &part)) {
        PLEAT_TRY(pleat__arena_grow(sweep->job->arena, &sweep->masked, &sweep->masked_capacity,
                                    sweep->masked_count, sizeof *sweep->masked));
        PLEAT_TRY(pleat__gaps_take(&sweep->gaps, part));
        if (keep)
            sweep->masked[sweep->masked_count++] = part;
        run.begin = part.end;
    }
    return PLEAT_OK;
}

/* The same of a placed item's bytes. */
static pleat_result take_free(pleat__sweep *sweep, uint32_t item, bool keep)
{
    uint64_t at = sweep->out->places[item], left = size_of(sweep, item);
    while (left != 0) {
        pleat__range run = run_at(sweep->out, sweep->job->chunk, at, left);
        at += pleat__range_size(run);
        left -= pleat__range_size(run);
        PLEAT_TRY(mask(sweep, run, keep));
    }
    return PLEAT_OK;
}

/* All but the first `kept`. */
static pleat_result unmask(pleat__sweep *sweep, uint32_t kept)
{
    while (sweep->masked_count > kept)
        PLEAT_TRY(pleat__gaps_give(&sweep->gaps, sweep->masked[--sweep->masked_count]));
    return PLEAT_OK;
}

/* More base pages; the fixed ones are there already. */
static pleat_result extend(pleat__sweep *sweep, uint32_t pages)
{
    const pleat__fold_job *job = sweep->job;
    pleat__try *out = sweep->out;
    uint32_t fixed;
    PLEAT__FIRST(fixed, job->fixed_page_count, job->fixed_pages[fixed] >= out->end_page);
    while (pages != 0) {
        for (; fixed < job->fixed_page_count && job->fixed_pages[fixed] == out->end_page; fixed++)
            out->end_page++;
        uint32_t count = pages;
        if (fixed < job->fixed_page_count && job->fixed_pages[fixed] - out->end_page < count)
            count = job->fixed_pages[fixed] - out->end_page;
        uint64_t begin = out->end_page * job->chunk;
        PLEAT_TRY(
            pleat__gaps_give(&sweep->gaps, (pleat__range){begin, begin + count * job->chunk}));
        out->end_page += count;
        out->chunks += count;
        pages -= count;
    }
    return PLEAT_OK;
}

static bool find_hole(pleat__sweep *sweep, uint64_t size, uint8_t policy, uint64_t *place)
{
    return policy & PLEAT__FOLD_HIGH ? pleat__gaps_highest(&sweep->gaps, size, place)
                                     : pleat__gaps_lowest(&sweep->gaps, size, place);
}

/* pre: what must not be used is masked. */
static pleat_result find_place(pleat__sweep *sweep, uint64_t size, uint8_t policy, uint64_t *place,
                               bool *grew)
{
    const pleat__sweep_limits *limits = &sweep->limits;
    bool found = find_hole(sweep, size, policy, place);
    while (!found && !sweep->over) {
        PLEAT_TRY(pleat__stitcher_view(&sweep->stitcher, size, place, &found));
        if (!found) {
            *grew = true;
            PLEAT_TRY(extend(sweep, 1));
            found = find_hole(sweep, size, policy, place);
        }
        uint64_t cost = pleat__fold_cost(sweep->out->chunks, sweep->out->view_pages);
        sweep->over = sweep->out->chunks > limits->chunks || cost >= limits->cost;
    }
    return PLEAT_OK;
}

/* None of the reserved items that are born before `end` lies in the range. */
static bool clear_of_reserved(pleat__sweep *sweep, pleat__range range, uint32_t end)
{
    for (uint32_t i = sweep->next_reserved;
         i < sweep->reserved_count && sweep->reserved[i].begin < end; i++) {
        uint32_t item = sweep->reserved[i].item;
        uint64_t at = sweep->out->places[item], left = size_of(sweep, item);
        sweep->gaps.work++;
        while (left != 0) {
            pleat__range run = run_at(sweep->out, sweep->job->chunk, at, left);
            if (pleat__range_overlaps(run, range))
                return false;
            at += pleat__range_size(run);
            left -= pleat__range_size(run);
        }
    }
    return true;
}

static bool find_quickly(pleat__sweep *sweep, uint32_t item, uint8_t policy, uint32_t end,
                         uint64_t *place)
{
    uint64_t size = size_of(sweep, item);
    return find_hole(sweep, size, policy, place) &&
           clear_of_reserved(sweep, (pleat__range){*place, *place + size}, end);
}

/* Places an item that is live from now to `end`. */
static pleat_result place_item(pleat__sweep *sweep, uint32_t item, uint8_t policy, uint32_t end,
                               bool *grew)
{
    uint64_t *place = &sweep->out->places[item];
    if (!find_quickly(sweep, item, policy, end, place)) {
        for (uint32_t i = sweep->next_reserved;
             i < sweep->reserved_count && sweep->reserved[i].begin < end; i++)
            PLEAT_TRY(take_free(sweep, sweep->reserved[i].item, true));
        PLEAT_TRY(find_place(sweep, size_of(sweep, item), policy, place, grew));
        PLEAT_TRY(unmask(sweep, 0));
        if (sweep->over)
            return PLEAT_OK;
    }
    sweep->out->folded += *place >= PLEAT__IN_VIEWS;
    return set_free(sweep, item, false);
}

/* Lives when the horizon begins: together with all others that do. pre: not empty */
static bool lives_at_begin(const pleat__sweep *sweep, uint32_t item)
{
    const pleat__item *it = item_of(sweep, item);
    return it->begin == 0 || (pleat__item_wraps(sweep->job->problem, it) && it->end != 0);
}

static pleat_result reserve(pleat__sweep *sweep, uint32_t position)
{
    const pleat__fold_job *job = sweep->job;
    uint32_t item = job->births[position];
    sweep->out->folded += sweep->out->places[item] >= PLEAT__IN_VIEWS;
    PLEAT_TRY(pleat__arena_grow(job->arena, &sweep->reserved, &sweep->reserved_capacity,
                                sweep->reserved_count, sizeof *sweep->reserved));
    sweep->reserved[sweep->reserved_count++] = (reserved_item){item, item_of(sweep, item)->begin};
    sweep->is_reserved[position] = 1;
    return PLEAT_OK;
}

/* Places an item ahead of the sweep, around the first `others` placed before it as far as it meets
 * them; those behind are masked already, and, where `masked`, those that live at the begin. */
static pleat_result place_reserved(pleat__sweep *sweep, uint32_t position, uint8_t policy,
                                   uint32_t others, bool masked)
{
    const pleat__fold_job *job = sweep->job;
    uint32_t item = job->births[position], kept = sweep->masked_count;
    for (uint32_t i = 0; i < others; i++) {
        uint32_t other = sweep->reserved[i].item;
        if (!(masked && lives_at_begin(sweep, other)) &&
            pleat__items_meet(job->problem, item, other))
            PLEAT_TRY(take_free(sweep, other, true));
    }
    uint64_t *place = &sweep->out->places[item];
    bool grew = false;
    PLEAT_TRY(find_place(sweep, size_of(sweep, item), policy, place, &grew));
    PLEAT_TRY(unmask(sweep, kept));
    return sweep->over ? PLEAT_OK : reserve(sweep, position);
}

/* What is fixed first, the others around it. */
static pleat_result place_fixed(pleat__sweep *sweep)
{
    const pleat__fold_job *job = sweep->job;
    for (uint32_t i = 0; i < job->always_count; i++)
        if (is_fixed(sweep, job->always[i])) {
            sweep->out->places[job->always[i]] = item_of(sweep, job->always[i])->fixed;
            PLEAT_TRY(take_free(sweep, job->always[i], false));
        }
    for (uint32_t b = 0; b < job->birth_count; b++)
        if (is_fixed(sweep, job->births[b])) {
            sweep->out->places[job->births[b]] = item_of(sweep, job->births[b])->fixed;
            PLEAT_TRY(reserve(sweep, b));
        }
    return PLEAT_OK;
}

/* Of what crosses the horizon, what lives when it begins, or what ends with it. Each of them meets
 * all others, at its end, so each is masked as it is placed (masked anew for each one, 1,600 around
 * as many took 570 times the work). */
static pleat_result place_crossing(pleat__sweep *sweep, const uint8_t *policy, uint32_t fixed,
                                   bool at_begin)
{
    const pleat__fold_job *job = sweep->job;
    for (uint32_t b = 0; b < job->birth_count && !sweep->over; b++) {
        uint32_t item = job->births[b];
        if (!pleat__item_wraps(job->problem, item_of(sweep, item)) || sweep->is_reserved[b] ||
            (item_of(sweep, item)->end != 0) != at_begin)
            continue;
        PLEAT_TRY(place_reserved(sweep, b, policy[b], fixed, at_begin));
        if (!sweep->over)
            PLEAT_TRY(take_free(sweep, item, true));
    }
    return PLEAT_OK;
}

/* Those of the reserved items from `first` to `end` that live when the horizon begins. */
static pleat_result mask_begin(pleat__sweep *sweep, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        if (lives_at_begin(sweep, sweep->reserved[i].item))
            PLEAT_TRY(take_free(sweep, sweep->reserved[i].item, true));
    return PLEAT_OK;
}

/* What crosses the horizon, around what is fixed. What only ends there may lie on fixed items that
 * only begin there: these are asked for one by one then. */
static pleat_result place_wrapping(pleat__sweep *sweep, const uint8_t *policy)
{
    const uint32_t fixed = sweep->reserved_count;
    PLEAT_TRY(mask_begin(sweep, 0, fixed));
    PLEAT_TRY(place_crossing(sweep, policy, fixed, true));
    PLEAT_TRY(unmask(sweep, 0));
    PLEAT_TRY(mask_begin(sweep, fixed, sweep->reserved_count));
    PLEAT_TRY(place_crossing(sweep, policy, fixed, false));
    return unmask(sweep, 0);
}

/* Everything that does not wait for its birth: what is fixed, live always, wraps around, or is
 * reserved. */
static pleat_result place_ahead(pleat__sweep *sweep, const uint8_t *policy,
                                const uint32_t *reserved, uint32_t reserved_count)
{
    const pleat__fold_job *job = sweep->job;
    bool grew = false;
    if (job->fixed_page_count != 0)
        PLEAT_TRY(place_fixed(sweep));
    for (uint32_t i = 0; i < job->always_count && !sweep->over; i++)
        if (!is_fixed(sweep, job->always[i]))
            PLEAT_TRY(place_item(sweep, job->always[i], PLEAT__FOLD_LOW, UINT32_MAX, &grew));
    if (!sweep->over)
        PLEAT_TRY(place_wrapping(sweep, policy));
    for (uint32_t i = 0; i < reserved_count && !sweep->over; i++)
        if (!sweep->is_reserved[reserved[i]])
            PLEAT_TRY(place_reserved(sweep, reserved[i], policy[reserved[i]], sweep->reserved_count,
                                     false));
    return PLEAT_OK;
}

static int compare_begins(const void *left, const void *right)
{
    const reserved_item *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->item > b->item) - (a->item < b->item);
}

/* Frees what is dead at time `now`. */
static pleat_result bury(pleat__sweep *sweep, uint32_t now, uint32_t *next)
{
    const pleat__fold_job *job = sweep->job;
    for (; *next < job->birth_count && item_of(sweep, job->deaths[*next])->end <= now; (*next)++)
        if (item_of(sweep, job->deaths[*next])->end != 0)
            PLEAT_TRY(set_free(sweep, job->deaths[*next], true));
    return PLEAT_OK;
}

static pleat_result sweep_all(pleat__sweep *sweep, const uint8_t *policy, uint32_t *stuck)
{
    const pleat__fold_job *job = sweep->job;
    uint32_t next_death = 0;
    for (uint32_t i = 0; i < sweep->reserved_count; i++) {
        uint32_t item = sweep->reserved[i].item;
        if (pleat__item_wraps(job->problem, item_of(sweep, item)) && item_of(sweep, item)->end != 0)
            PLEAT_TRY(set_free(sweep, item, false));
    }
    for (uint32_t b = 0; b < job->birth_count && !sweep->over; b++) {
        uint32_t now = item_of(sweep, job->births[b])->begin;
        PLEAT_TRY(bury(sweep, now, &next_death));
        for (; sweep->next_reserved < sweep->reserved_count &&
               sweep->reserved[sweep->next_reserved].begin == now;
             sweep->next_reserved++)
            PLEAT_TRY(set_free(sweep, sweep->reserved[sweep->next_reserved].item, false));
        if (sweep->is_reserved[b])
            continue;
        bool grew = false;
        PLEAT_TRY(place_item(sweep, job->births[b], policy[b], item_of(sweep, job->births[b])->end,
                             &grew));
        if (grew && *stuck == UINT32_MAX)
            *stuck = b;
    }
    return PLEAT_OK;
}

/* The base pages: `cap` of them, the fixed ones among them. */
static pleat_result begin_base(pleat__sweep *sweep, uint32_t cap)
{
    const pleat__fold_job *job = sweep->job;
    pleat__try *out = sweep->out;
    *out = (pleat__try){.places = out->places,
                        .views = out->views,
                        .view_capacity = out->view_capacity,
                        .end_page = job->first_page};
    pleat__gaps_clear(&sweep->gaps);
    for (uint32_t i = 0; i < job->fixed_page_count; i++) {
        uint64_t begin = job->fixed_pages[i] * job->chunk;
        out->chunks++;
        PLEAT_TRY(pleat__gaps_give(&sweep->gaps, (pleat__range){begin, begin + job->chunk}));
    }
    return out->chunks < cap ? extend(sweep, cap - out->chunks) : PLEAT_OK;
}

pleat_result pleat__sweep_run(pleat__sweep *sweep, const uint8_t *policy, const uint32_t *reserved,
                              uint32_t reserved_count, const pleat__sweep_limits *limits,
                              pleat__try *out, bool *done, uint32_t *stuck)
{
    pleat__fold_job *job = sweep->job;
    sweep->out = sweep->stitcher.out = out;
    sweep->over = false;
    sweep->reserved_count = sweep->next_reserved = sweep->masked_count = 0;
    sweep->limits = *limits;
    sweep->gaps.work = 0;
    *stuck = UINT32_MAX;
    memset(sweep->is_reserved, 0, job->birth_count);
    PLEAT_TRY(begin_base(sweep, limits->cap));
    PLEAT_TRY(place_ahead(sweep, policy, reserved, reserved_count));
    if (sweep->reserved_count > 1)
        qsort(sweep->reserved, sweep->reserved_count, sizeof *sweep->reserved, compare_begins);
    if (!sweep->over)
        PLEAT_TRY(sweep_all(sweep, policy, stuck));
    PLEAT_AUDIT(pleat__gaps_audit(&sweep->gaps));
    job->work += sweep->gaps.work + 4ull * job->birth_count + out->chunks / 16;
    *done = !sweep->over;
    return PLEAT_OK;
}
