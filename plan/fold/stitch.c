/*
 * stitch.c: see stitch.h. A view is the tail of a chunk, whole chunks, the head of a
 * chunk, of as few free ranges as will do. A stitch walks the free ranges once.
 */
#include <plan/fold/stitch.h>

#include <internal/check.h>
#include <internal/error.h>

static pleat_result list_source(pleat__stitcher *stitcher, pleat__range range, uint64_t *whole)
{
    uint64_t chunk = stitcher->job->chunk;
    uint64_t low = pleat__ceil_div(range.begin, chunk) * chunk;
    uint64_t high = pleat__round_down(range.end, chunk);
    stitcher->gaps->work++;
    if (high < low)
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_grow(stitcher->job->arena, &stitcher->sources, &stitcher->capacity,
                                stitcher->count, sizeof *stitcher->sources));
    stitcher->sources[stitcher->count++] = (pleat__source){range.begin, range.end, low, high, 0};
    *whole += (high - low) / chunk;
    return PLEAT_OK;
}

/* Lists the free ranges with a chunk boundary in them. */
static pleat_result list_sources(pleat__stitcher *stitcher, uint64_t *whole)
{
    pleat__gap_at at;
    *whole = 0;
    stitcher->count = 0;
    for (bool more = pleat__gaps_from(stitcher->gaps, 0, &at); more;
         more = pleat__gaps_next(stitcher->gaps, &at))
        PLEAT_TRY(list_source(stitcher, pleat__gaps_get(stitcher->gaps, at), whole));
    stitcher->gaps->work += 2ull * stitcher->count;
    return PLEAT_OK;
}

#define NO_SOURCE UINT32_MAX

/* The source whose piece of a chunk (its tail before `low`, or its head behind `high`) is the
 * smallest that holds `bytes`, or with bytes == 0 the largest there is. A head of the chunk at
 * `except` is left out: a view shows no chunk twice. */
static uint32_t find_piece(const pleat__stitcher *stitcher, bool tail, uint64_t bytes,
                           uint64_t except)
{
    uint32_t best = NO_SOURCE;
    uint64_t best_size = 0;
    for (uint32_t i = 0; i < stitcher->count; i++) {
        const pleat__source *s = &stitcher->sources[i];
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
static bool choose_cut(const pleat__stitcher *stitcher, uint64_t size, uint64_t whole, cut *out)
{
    uint64_t chunk = stitcher->job->chunk, rest = size % chunk, need = size / chunk;
    *out = (cut){0, need, 0, NO_SOURCE, NO_SOURCE};
    if (need <= whole && rest == 0)
        return true;
    if (need <= whole) {
        out->head = rest;
        if ((out->head_from = find_piece(stitcher, false, rest, UINT64_MAX)) != NO_SOURCE)
            return true;
        out->head = 0;
        out->tail = rest;
        if ((out->tail_from = find_piece(stitcher, true, rest, 0)) != NO_SOURCE)
            return true;
    }
    for (uint32_t less = 0; less < 2; less++) {
        uint64_t pieces = rest + less * chunk;
        uint32_t tail = find_piece(stitcher, true, 0, 0);
        if (tail == NO_SOURCE || need < less || need - less > whole || pieces == 0)
            continue;
        uint64_t tail_bytes = stitcher->sources[tail].low - stitcher->sources[tail].begin;
        uint64_t tail_chunk = stitcher->sources[tail].low - chunk;
        if (tail_bytes >= pieces)
            continue;
        uint32_t head = find_piece(stitcher, false, pieces - tail_bytes, tail_chunk);
        if (head == NO_SOURCE)
            continue;
        *out = (cut){tail_bytes, need - less, pieces - tail_bytes, tail, head};
        return true;
    }
    *out = (cut){0, need + (rest != 0), 0, NO_SOURCE, NO_SOURCE};
    return out->whole <= whole;
}

/* Marks `need` whole chunks: of the smallest source that holds the rest, else of the largest. pre:
 * there are so many. */
static void choose_whole(pleat__stitcher *stitcher, uint64_t need)
{
    uint64_t chunk = stitcher->job->chunk;
    while (need != 0) {
        pleat__source *best = NULL;
        uint64_t best_size = 0;
        for (uint32_t i = 0; i < stitcher->count; i++) {
            pleat__source *s = &stitcher->sources[i];
            uint64_t size = s->take != 0 ? 0 : (s->high - s->low) / chunk;
            bool fits = size >= need, best_fits = best_size >= need;
            if (size > best_size ? !best_fits : fits && size < best_size) {
                best = s;
                best_size = size;
            }
        }
        stitcher->gaps->work += stitcher->count / 2;
        PLEAT_ASSERT(best != NULL);
        best->take = best_size < need ? best_size : need;
        need -= best->take;
    }
}

static pleat_result append_pages(pleat__stitcher *stitcher, uint64_t page, uint64_t count)
{
    pleat__try *out = stitcher->out;
    for (uint64_t i = 0; i < count; i++) {
        PLEAT_TRY(pleat__arena_grow(stitcher->job->arena, &out->views, &out->view_capacity,
                                    out->view_pages, sizeof *out->views));
        out->views[out->view_pages++] = (uint32_t)(page + i);
    }
    return PLEAT_OK;
}

/* The pages of a new view, the tail's chunk first and the head's last, neighbours side by side. */
static pleat_result append_view(pleat__stitcher *stitcher, const cut *how)
{
    uint64_t chunk = stitcher->job->chunk;
    pleat__try *out = stitcher->out;
    out->runs++;
    stitcher->gaps->work += stitcher->count / 4 + how->whole / 2;
    if (how->tail != 0) {
        const pleat__source *s = &stitcher->sources[how->tail_from];
        PLEAT_TRY(append_pages(stitcher, s->low / chunk - 1, 1));
        PLEAT_TRY(append_pages(stitcher, s->low / chunk, s->take));
    }
    for (uint32_t i = 0; i < stitcher->count; i++) {
        const pleat__source *s = &stitcher->sources[i];
        bool side =
            (how->tail != 0 && i == how->tail_from) || (how->head != 0 && i == how->head_from);
        if (!side)
            PLEAT_TRY(append_pages(stitcher, s->low / chunk, s->take));
    }
    if (how->head != 0) {
        const pleat__source *s = &stitcher->sources[how->head_from];
        if (how->tail == 0 || how->tail_from != how->head_from)
            PLEAT_TRY(append_pages(stitcher, s->high / chunk - s->take, s->take));
        PLEAT_TRY(append_pages(stitcher, s->high / chunk, 1));
    }
    return PLEAT_OK;
}

pleat_result pleat__stitcher_view(pleat__stitcher *stitcher, uint64_t size, uint64_t *place,
                                  bool *found)
{
    uint64_t whole, chunk = stitcher->job->chunk;
    cut how;
    *found = false;
    PLEAT_TRY(list_sources(stitcher, &whole));
    if (stitcher->count == 0 || !choose_cut(stitcher, size, whole, &how))
        return PLEAT_OK;
    uint64_t pages = how.whole + (how.tail != 0) + (how.head != 0);
    if (stitcher->out->view_pages + pages > UINT32_MAX)
        return PLEAT_OK;
    choose_whole(stitcher, how.whole);
    uint64_t first = (uint64_t)stitcher->out->view_pages * chunk;
    PLEAT_TRY(append_view(stitcher, &how));
    *place = PLEAT__IN_VIEWS + first + (how.tail != 0 ? chunk - how.tail : 0);
    *found = true;
    return PLEAT_OK;
}
