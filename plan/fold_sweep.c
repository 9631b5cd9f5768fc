/*
 * fold_sweep.c: places a job's items in order of birth under a cap on chunks, stitching views where
 * no hole is left.
 *
 * WHY   Served in order of birth, an item of whole chunks always finds enough idle ones while live
 *       chunks stay under the cap (interval graphs colour optimally), and chunks idle at its birth
 *       stay idle for its life, because whoever comes later works around it. So the order is kept,
 *       and all freedom is in which hole an item takes: its policy bit.
 * HOW   An item takes its contiguous place if it is hinted and free, else the lowest or the highest
 *       hole, else bytes of the view space that are free, else a new view: the tail of a chunk,
 * whole chunks, the head of a chunk. If even that fails (what is free lies in pieces of chunks),
 * the base grows by a chunk, and the item is told to the caller, who may reserve it next time.
 *       Items that wrap around the horizon and reserved ones are placed ahead of the sweep; others
 *       that are live with them see their bytes as taken (`masked`).
 * COST  A hole is two short scans (gaps.h); a stitch walks the free ranges once.
 *
 * PAGED  With every size rounded up to chunks nothing is ever stuck, and the sweep takes what pure
 *        paging takes: the bound for problems whose items are of about a chunk.
 *
 * Two-ended order (long-lived low, short-lived high) is the caller's choice of bits.
 */
#include <plan/fold_internal.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

/* A placed item that the sweep works around before it is born. */
typedef struct reserved_item {
    uint32_t item;
    uint32_t begin;
} reserved_item;

/* A free range that a stitch may draw on: [begin, end) holds the chunk boundaries low..high. */
typedef struct source {
    uint64_t begin;
    uint64_t end;
    uint64_t low;  /* first boundary at or above begin */
    uint64_t high; /* last boundary at or below end; not below `low` */
    uint32_t unit; /* chunks are taken in multiples of it; above 1 the range is whole handles */
    uint64_t take; /* whole chunks chosen */
} source;

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
    source *sources;
    size_t source_capacity;
    uint32_t source_count;
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
    pleat__arena_free(arena, sweep->sources);
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

/* The bytes an item takes; what is fixed lies where it lies. */
static uint64_t size_of(const pleat__sweep *sweep, uint32_t item)
{
    uint64_t size = item_of(sweep, item)->size;
    if (!sweep->limits.paged || is_fixed(sweep, item))
        return size;
    return pleat__ceil_div(size, sweep->job->chunk) * sweep->job->chunk;
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

/* Takes what is free of a placed item's bytes out of the set, until unmask() if it is kept. */
static pleat_result take_free(pleat__sweep *sweep, uint32_t item, bool keep)
{
    uint64_t at = sweep->out->places[item], left = size_of(sweep, item);
    while (left != 0) {
        pleat__range run = run_at(sweep->out, sweep->job->chunk, at, left);
        at += pleat__range_size(run);
        left -= pleat__range_size(run);
        pleat__gap_at gap;
        while (pleat__gaps_from(&sweep->gaps, run.begin, &gap)) {
            pleat__range part = pleat__gaps_get(&sweep->gaps, gap);
            part.begin = part.begin > run.begin ? part.begin : run.begin;
            part.end = part.end < run.end ? part.end : run.end;
            if (pleat__range_empty(part))
                break;
            PLEAT_TRY(pleat__arena_grow(sweep->job->arena, &sweep->masked, &sweep->masked_capacity,
                                        sweep->masked_count, sizeof *sweep->masked));
            PLEAT_TRY(pleat__gaps_take(&sweep->gaps, part));
            if (keep)
                sweep->masked[sweep->masked_count++] = part;
            run.begin = part.end;
        }
    }
    return PLEAT_OK;
}

static pleat_result unmask(pleat__sweep *sweep)
{
    while (sweep->masked_count != 0)
        PLEAT_TRY(pleat__gaps_give(&sweep->gaps, sweep->masked[--sweep->masked_count]));
    return PLEAT_OK;
}

/* More base pages; the fixed ones are there already. */
static pleat_result extend(pleat__sweep *sweep, uint32_t pages)
{
    const pleat__fold_job *job = sweep->job;
    pleat__try *out = sweep->out;
    uint32_t low = 0, high = job->fixed_page_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (job->fixed_pages[middle] < out->end_page)
            low = middle + 1;
        else
            high = middle;
    }
    while (pages != 0) {
        for (; low < job->fixed_page_count && job->fixed_pages[low] == out->end_page; low++)
            out->end_page++;
        uint32_t count = pages;
        if (low < job->fixed_page_count && job->fixed_pages[low] - out->end_page < count)
            count = job->fixed_pages[low] - out->end_page;
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

/* The lowest place in the view of the pages first .. last - 1 behind which `size` bytes are free.
 */
static bool find_in_view(pleat__sweep *sweep, uint32_t first, uint32_t last, uint64_t size,
                         uint64_t *place)
{
    const pleat__try *out = sweep->out;
    uint64_t chunk = sweep->job->chunk, end = PLEAT__IN_VIEWS + last * chunk;
    uint64_t begin = PLEAT__IN_VIEWS, free_bytes = 0; /* free now: [begin, begin + free_bytes) */
    for (uint64_t at = begin + first * chunk; at < end;) {
        pleat__range run = run_at(out, chunk, at, end - at);
        uint64_t base = at - run.begin;
        pleat__gap_at gap;
        bool more = pleat__gaps_from(&sweep->gaps, run.begin, &gap);
        for (; more; more = pleat__gaps_next(&sweep->gaps, &gap)) {
            pleat__range part = pleat__gaps_get(&sweep->gaps, gap);
            if (part.begin >= run.end)
                break;
            part.begin = part.begin > run.begin ? part.begin : run.begin;
            part.end = part.end < run.end ? part.end : run.end;
            if (base + part.begin != begin + free_bytes) {
                begin = base + part.begin;
                free_bytes = 0;
            }
            free_bytes += part.end - part.begin;
            sweep->gaps.work++;
            if (free_bytes >= size) {
                *place = begin;
                return true;
            }
        }
        at += pleat__range_size(run);
    }
    return false;
}

/* Views are searched one by one: two in a row may show the same chunk. */
static bool find_in_views(pleat__sweep *sweep, uint64_t size, uint64_t *place)
{
    const pleat__try *out = sweep->out;
    for (uint32_t v = 0; v < out->runs; v++) {
        uint32_t last = v + 1 < out->runs ? out->starts[v + 1] : out->view_pages;
        if ((last - out->starts[v]) * sweep->job->chunk >= size &&
            find_in_view(sweep, out->starts[v], last, size, place))
            return true;
    }
    return false;
}

/* Chunks of the handle behind a base page. */
static uint32_t handle_at(const pleat__sweep *sweep, uint64_t page, uint32_t *index)
{
    const pleat__fold_job *job = sweep->job;
    *index = page < job->handle_count ? job->handles[page].index : 0;
    return page < job->handle_count ? job->handles[page].pages : 1;
}

static pleat_result list_source(pleat__sweep *sweep, pleat__range range, uint32_t unit,
                                uint64_t *whole)
{
    uint64_t chunk = sweep->job->chunk;
    uint64_t low = pleat__ceil_div(range.begin, chunk) * chunk;
    uint64_t high = pleat__round_down(range.end, chunk);
    sweep->gaps.work++;
    if (high < low)
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_grow(sweep->job->arena, &sweep->sources, &sweep->source_capacity,
                                sweep->source_count, sizeof *sweep->sources));
    sweep->sources[sweep->source_count++] = (source){range.begin, range.end, low, high, unit, 0};
    *whole += (high - low) / chunk;
    return PLEAT_OK;
}

/* The sources of a free range's beginning: a stretch of handles of one size, whole ones where that
 * is more than a chunk. Returns where it ends. */
static pleat_result list_stretch(pleat__sweep *sweep, pleat__range range, uint64_t *whole,
                                 uint64_t *end)
{
    uint64_t chunk = sweep->job->chunk, page = range.begin / chunk;
    uint32_t index, unit = handle_at(sweep, page, &index), next = unit;
    if (unit == 1) {
        while (page * chunk < range.end && page < sweep->job->handle_count &&
               handle_at(sweep, page, &index) == 1)
            page++;
        *end =
            page < sweep->job->handle_count && page * chunk < range.end ? page * chunk : range.end;
        return list_source(sweep, (pleat__range){range.begin, *end}, 1, whole);
    }
    /* One whose beginning is in use is passed by. */
    if (index != 0 || page * chunk < range.begin) {
        *end = (page - index + unit) * chunk;
        *end = *end < range.end ? *end : range.end;
        return PLEAT_OK;
    }
    uint64_t first = page;
    while (next == unit && (page + unit) * chunk <= range.end) {
        page += unit;
        next = handle_at(sweep, page, &index);
    }
    *end = page == first ? range.end : page * chunk;
    if (page == first)
        return PLEAT_OK;
    return list_source(sweep, (pleat__range){first * chunk, *end}, unit, whole);
}

/* Lists the free ranges with a chunk boundary in them. */
static pleat_result list_sources(pleat__sweep *sweep, uint64_t *whole)
{
    pleat__gap_at at;
    *whole = 0;
    sweep->source_count = 0;
    for (bool more = pleat__gaps_from(&sweep->gaps, 0, &at); more;
         more = pleat__gaps_next(&sweep->gaps, &at)) {
        pleat__range range = pleat__gaps_get(&sweep->gaps, at);
        while (range.begin < range.end)
            PLEAT_TRY(list_stretch(sweep, range, whole, &range.begin));
    }
    sweep->gaps.work += 2ull * sweep->source_count;
    return PLEAT_OK;
}

#define NO_SOURCE UINT32_MAX

/* The source whose piece of a chunk (its tail before `low`, or its head behind `high`) is the
 * smallest that holds `bytes`, or with bytes == 0 the largest there is. A head of the chunk at
 * `except` is left out: a view shows no chunk twice. */
static uint32_t find_piece(const pleat__sweep *sweep, bool tail, uint64_t bytes, uint64_t except)
{
    uint32_t best = NO_SOURCE;
    uint64_t best_size = 0;
    for (uint32_t i = 0; i < sweep->source_count; i++) {
        const source *s = &sweep->sources[i];
        uint64_t size = tail ? s->low - s->begin : s->end - s->high;
        if (size == 0 || size < bytes || (!tail && s->high == except))
            continue;
        if (best == NO_SOURCE || (bytes != 0 ? size < best_size : size > best_size)) {
            best = i;
            best_size = size;
        }
    }
    return best;
}

/* How an item is cut: `tail` bytes at the end of a chunk, whole chunks, `head` bytes at the
 * beginning of one. */
typedef struct cut {
    uint64_t tail;
    uint64_t whole;
    uint64_t head;
    uint32_t tail_from;
    uint32_t head_from;
} cut;

/* The rest beyond whole chunks goes into one piece of a chunk if one holds it; else into two, for
 * one whole chunk less; else a whole chunk is spent on it. false: nothing fits. */
static bool choose_cut(const pleat__sweep *sweep, uint64_t size, uint64_t whole, cut *out)
{
    uint64_t chunk = sweep->job->chunk, rest = size % chunk, need = size / chunk;
    *out = (cut){0, need, 0, NO_SOURCE, NO_SOURCE};
    if (need <= whole && rest == 0)
        return true;
    if (need <= whole) {
        out->head = rest;
        if ((out->head_from = find_piece(sweep, false, rest, UINT64_MAX)) != NO_SOURCE)
            return true;
        out->head = 0;
        out->tail = rest;
        if ((out->tail_from = find_piece(sweep, true, rest, 0)) != NO_SOURCE)
            return true;
    }
    for (uint32_t less = 0; less < 2; less++) {
        uint64_t pieces = rest + less * chunk;
        uint32_t tail = find_piece(sweep, true, 0, 0);
        if (tail == NO_SOURCE || need < less || need - less > whole || pieces == 0)
            continue;
        uint64_t tail_bytes = sweep->sources[tail].low - sweep->sources[tail].begin;
        uint64_t tail_chunk = sweep->sources[tail].low - chunk;
        if (tail_bytes >= pieces)
            continue;
        uint32_t head = find_piece(sweep, false, pieces - tail_bytes, tail_chunk);
        if (head == NO_SOURCE)
            continue;
        *out = (cut){tail_bytes, need - less, pieces - tail_bytes, tail, head};
        return true;
    }
    *out = (cut){0, need + (rest != 0), 0, NO_SOURCE, NO_SOURCE};
    return out->whole <= whole;
}

/* Marks `need` whole chunks: of the smallest source that holds the rest, else of the one that holds
 * the most of it. false: what is left is in handles of more than is needed. */
static bool choose_whole(pleat__sweep *sweep, uint64_t need)
{
    uint64_t chunk = sweep->job->chunk;
    while (need != 0) {
        source *best = NULL;
        uint64_t best_size = 0, best_part = 0;
        for (uint32_t i = 0; i < sweep->source_count; i++) {
            source *s = &sweep->sources[i];
            uint64_t size = s->take != 0 ? 0 : (s->high - s->low) / chunk;
            uint64_t part = (size < need ? size : need) / s->unit * s->unit;
            bool fits = part == need, best_fits = best_part == need;
            if (part == 0 || (best_fits && !fits))
                continue;
            if (best == NULL || (fits && !best_fits) ||
                (fits ? size < best_size : part > best_part)) {
                best = s;
                best_size = size;
                best_part = part;
            }
        }
        sweep->gaps.work += sweep->source_count / 2;
        if (best == NULL)
            return false;
        best->take = best_part;
        need -= best->take;
    }
    return true;
}

static pleat_result append_pages(pleat__sweep *sweep, uint64_t page, uint64_t count)
{
    pleat__try *out = sweep->out;
    for (uint64_t i = 0; i < count; i++) {
        PLEAT_TRY(pleat__arena_grow(sweep->job->arena, &out->views, &out->view_capacity,
                                    out->view_pages, sizeof *out->views));
        out->views[out->view_pages++] = (uint32_t)(page + i);
    }
    return PLEAT_OK;
}

/* The pages of a new view, the tail's chunk first and the head's last, neighbours side by side. */
static pleat_result append_view(pleat__sweep *sweep, const cut *how, uint8_t policy)
{
    uint64_t chunk = sweep->job->chunk;
    pleat__try *out = sweep->out;
    PLEAT_TRY(pleat__arena_grow(sweep->job->arena, &out->starts, &out->start_capacity, out->runs,
                                sizeof *out->starts));
    out->starts[out->runs++] = out->view_pages;
    sweep->gaps.work += sweep->source_count / 4 + how->whole / 2;
    if (how->tail != 0) {
        const source *s = &sweep->sources[how->tail_from];
        PLEAT_TRY(append_pages(sweep, s->low / chunk - 1, 1));
        PLEAT_TRY(append_pages(sweep, s->low / chunk, s->take));
    }
    for (uint32_t i = 0; i < sweep->source_count; i++) {
        const source *s = &sweep->sources[i];
        bool side =
            (how->tail != 0 && i == how->tail_from) || (how->head != 0 && i == how->head_from);
        uint64_t low = policy & PLEAT__FOLD_HIGH ? s->high / chunk - s->take : s->low / chunk;
        if (!side)
            PLEAT_TRY(append_pages(sweep, low, s->take));
    }
    if (how->head != 0) {
        const source *s = &sweep->sources[how->head_from];
        if (how->tail == 0 || how->tail_from != how->head_from)
            PLEAT_TRY(append_pages(sweep, s->high / chunk - s->take, s->take));
        PLEAT_TRY(append_pages(sweep, s->high / chunk, 1));
    }
    return PLEAT_OK;
}

/* A new view for `size` bytes; *found is false when what is free cannot be stitched. */
static pleat_result stitch(pleat__sweep *sweep, uint64_t size, uint8_t policy, uint64_t *place,
                           bool *found)
{
    uint64_t whole, chunk = sweep->job->chunk;
    cut how;
    *found = false;
    PLEAT_TRY(list_sources(sweep, &whole));
    if (sweep->source_count == 0 || !choose_cut(sweep, size, whole, &how))
        return PLEAT_OK;
    uint64_t pages = how.whole + (how.tail != 0) + (how.head != 0);
    if (sweep->out->view_pages + pages > sweep->job->max_maps)
        return PLEAT_OK;
    if (!choose_whole(sweep, how.whole))
        return PLEAT_OK;
    uint64_t first = (uint64_t)sweep->out->view_pages * chunk;
    PLEAT_TRY(append_view(sweep, &how, policy));
    *place = PLEAT__IN_VIEWS + first + (how.tail != 0 ? chunk - how.tail : 0);
    *found = true;
    return PLEAT_OK;
}

/* pre: what must not be used is masked. */
static pleat_result find_place(pleat__sweep *sweep, uint64_t size, uint8_t policy, uint64_t *place,
                               bool *grew)
{
    bool views = !sweep->job->options->contiguous;
    for (bool found = false; !found;) {
        if (find_hole(sweep, size, policy, place))
            return PLEAT_OK;
        if (views && !*grew && find_in_views(sweep, size, place))
            return PLEAT_OK;
        if (views)
            PLEAT_TRY(stitch(sweep, size, policy, place, &found));
        if (found)
            break;
        *grew = true;
        PLEAT_TRY(extend(sweep, 1));
        if (sweep->out->chunks > sweep->limits.chunks)
            break;
    }
    const pleat__sweep_limits *limits = &sweep->limits;
    uint64_t cost = (uint64_t)sweep->out->chunks * limits->maps_for_chunk + sweep->out->view_pages;
    sweep->over = sweep->out->chunks > limits->chunks || cost >= limits->cost;
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
    uint64_t size = size_of(sweep, item), hint = sweep->job->hints[item];
    pleat__range range = {hint, hint + size};
    if ((policy & PLEAT__FOLD_HINT) && pleat__gaps_holds(&sweep->gaps, range) &&
        clear_of_reserved(sweep, range, end)) {
        *place = hint;
        return true;
    }
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
        PLEAT_TRY(unmask(sweep));
        if (sweep->over)
            return PLEAT_OK;
    }
    sweep->out->folded += *place >= PLEAT__IN_VIEWS;
    return set_free(sweep, item, false);
}

/* Places an item ahead of the sweep, around those placed before it that it meets. */
static pleat_result place_reserved(pleat__sweep *sweep, uint32_t position, uint8_t policy)
{
    const pleat__fold_job *job = sweep->job;
    uint32_t item = job->births[position];
    for (uint32_t i = 0; i < sweep->reserved_count; i++)
        if (pleat__items_meet(job->problem, item, sweep->reserved[i].item))
            PLEAT_TRY(take_free(sweep, sweep->reserved[i].item, true));
    uint64_t size = size_of(sweep, item), *place = &sweep->out->places[item];
    pleat__range hint = {job->hints[item], job->hints[item] + size};
    bool grew = false;
    if (is_fixed(sweep, item))
        *place = item_of(sweep, item)->fixed;
    else if ((policy & PLEAT__FOLD_HINT) && pleat__gaps_holds(&sweep->gaps, hint))
        *place = hint.begin;
    else
        PLEAT_TRY(find_place(sweep, size, policy, place, &grew));
    PLEAT_TRY(unmask(sweep));
    if (sweep->over)
        return PLEAT_OK;
    sweep->out->folded += *place >= PLEAT__IN_VIEWS;
    PLEAT_TRY(pleat__arena_grow(job->arena, &sweep->reserved, &sweep->reserved_capacity,
                                sweep->reserved_count, sizeof *sweep->reserved));
    sweep->reserved[sweep->reserved_count++] = (reserved_item){item, item_of(sweep, item)->begin};
    sweep->is_reserved[position] = 1;
    return PLEAT_OK;
}

/* What is fixed first, the others around it. */
static pleat_result place_fixed(pleat__sweep *sweep, const uint8_t *policy)
{
    const pleat__fold_job *job = sweep->job;
    for (uint32_t i = 0; i < job->always_count; i++)
        if (is_fixed(sweep, job->always[i])) {
            sweep->out->places[job->always[i]] = item_of(sweep, job->always[i])->fixed;
            PLEAT_TRY(take_free(sweep, job->always[i], false));
        }
    for (uint32_t b = 0; b < job->birth_count; b++)
        if (is_fixed(sweep, job->births[b]))
            PLEAT_TRY(place_reserved(sweep, b, policy[b]));
    return PLEAT_OK;
}

/* Everything that does not wait for its birth: what is fixed, live always, wraps around, or is
 * reserved. */
static pleat_result place_ahead(pleat__sweep *sweep, const uint8_t *policy,
                                const uint32_t *reserved, uint32_t reserved_count)
{
    const pleat__fold_job *job = sweep->job;
    bool grew = false;
    if (job->fixed_page_count != 0)
        PLEAT_TRY(place_fixed(sweep, policy));
    for (uint32_t i = 0; i < job->always_count && !sweep->over; i++)
        if (!is_fixed(sweep, job->always[i]))
            PLEAT_TRY(place_item(sweep, job->always[i], PLEAT__FOLD_LOW, UINT32_MAX, &grew));
    for (uint32_t b = 0; b < job->birth_count && !sweep->over; b++)
        if (pleat__item_wraps(job->problem, job->births[b]) && !sweep->is_reserved[b])
            PLEAT_TRY(place_reserved(sweep, b, policy[b]));
    for (uint32_t i = 0; i < reserved_count && !sweep->over; i++)
        if (!sweep->is_reserved[reserved[i]])
            PLEAT_TRY(place_reserved(sweep, reserved[i], policy[reserved[i]]));
    return PLEAT_OK;
}

static void sort_reserved(pleat__sweep *sweep)
{
    for (uint32_t i = 1; i < sweep->reserved_count; i++) {
        reserved_item moved = sweep->reserved[i];
        uint32_t j = i;
        for (; j > 0 && sweep->reserved[j - 1].begin > moved.begin; j--)
            sweep->reserved[j] = sweep->reserved[j - 1];
        sweep->reserved[j] = moved;
    }
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
        if (pleat__item_wraps(job->problem, item) && item_of(sweep, item)->end != 0)
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
                        .starts = out->starts,
                        .start_capacity = out->start_capacity,
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
    sweep->out = out;
    sweep->over = false;
    sweep->reserved_count = sweep->next_reserved = sweep->masked_count = 0;
    sweep->limits = *limits;
    sweep->gaps.work = 0;
    *stuck = UINT32_MAX;
    memset(sweep->is_reserved, 0, job->birth_count);
    PLEAT_TRY(begin_base(sweep, limits->cap));
    PLEAT_TRY(place_ahead(sweep, policy, reserved, reserved_count));
    sort_reserved(sweep);
    if (!sweep->over)
        PLEAT_TRY(sweep_all(sweep, policy, stuck));
    PLEAT_AUDIT(pleat__gaps_audit(&sweep->gaps));
    job->work += sweep->gaps.work + 4ull * job->birth_count + out->chunks / 16;
    *done = !sweep->over;
    return PLEAT_OK;
}
