/*
 * remap.c: an idle view that would hold a request but for a few handles shows free ones in their
 * place.
 *
 * WHY    A job whose largest tensor changes its size asks for nearly all that is free each time,
 *        and each time some small tensor lies where none lay before: no view has it all, and a new
 *        one takes a map for each of its handles. Of 440 handles of such a view 10 are in use
 *        (D483 in docs/decisions.md).
 * WHICH  The stretch of an idle view of which the fewest handles are in use, among the views that
 *        were used last: since then little has come to lie in them. It may begin with the free end
 *        of a handle and end with the free beginning of one, as a new view does (stitch.c).
 * COST   An exchange of so many handles as would take half of the time of a new view or more is
 *        none: a new view is made.
 * GPU    What lay in the view was freed in its stream's order. The GPU is to be past the point at
 *        which the view became idle, mostly in the iteration before; where it is not, a new view is
 *        made: to wait for the GPU takes longer.
 * PLACES While a schedule is followed, a view in which a place is remembered stays as it is: the
 *        schedule finds it there. Else its pages go to another record, and the place is lost to
 *        what has been recorded so far (D485).
 */
#include <runtime/memory/heap_internal.h>
#include <runtime/memory/views.h>

#include <internal/check.h>
#include <stdlib.h>
#include <string.h>

/* An exchange is two maps' worth of verbs: one goes, one comes (D483 in docs/decisions.md). */
#define PRICE 2u
/* Looks at views, and at handles of them, that a search may take (D558). */
#define EXCHANGE_LOOKS 4096u

/* Where the request would lie, and what is to be exchanged for it. */
typedef struct stretch {
    pleat__view *view;
    uint32_t begin;       /* granules of the view before it */
    uint32_t from, until; /* pages of the view among which handles are exchanged */
    uint32_t handles;     /* of them in use */
} stretch;

typedef struct search {
    pleat__heap *heap;
    uint32_t granules;
    uint8_t zone;
    uint32_t looks; /* at views and handles that are left to it */
    uint32_t *busy; /* handles in use before one, by its first page in the view looked into */
    int64_t most;   /* so many handles of that view may be exchanged, at most, to be the best */
    stretch best;
} search;

/* How many exchanged handles of a view cost no more than the maps of a new one over as many pages.
 */
static uint32_t worth(const search *s, const pleat__view *view)
{
    uint64_t pages = pleat__ceil_div(s->granules, s->heap->pool->occupancy.full);
    return (uint32_t)(view->maps * pages / ((uint64_t)PRICE * view->pages));
}

/* Free granules at the end of a handle of so many chunks. */
static uint32_t tail_of(const search *s, uint32_t first, uint32_t chunks)
{
    const pleat__occupancy *occupancy = &s->heap->pool->occupancy;
    uint32_t tail = 0, chunk = first + chunks;
    while (chunk > first && pleat__heap_is_free(s->heap, chunk - 1, s->zone)) {
        tail += occupancy->full;
        chunk--;
    }
    if (chunk == first || s->heap->zone_of[chunk - 1] != s->zone)
        return tail;
    pleat__run run = {(chunk - 1) << occupancy->shift, occupancy->full};
    return tail + pleat__occupancy_free_tail(occupancy, run);
}

/* Whether a handle's first granules are free. */
static bool begins_free(const search *s, uint32_t first, uint32_t granules)
{
    const pleat__occupancy *occupancy = &s->heap->pool->occupancy;
    for (; granules >= occupancy->full; granules -= occupancy->full)
        if (!pleat__heap_is_free(s->heap, first++, s->zone))
            return false;
    return granules == 0 || (s->heap->zone_of[first] == s->zone &&
                             pleat__occupancy_head(occupancy, first) >= granules);
}

/* The page behind the handle that begins at one. */
static uint32_t behind(const search *s, const pleat__view *view, uint32_t page)
{
    return page + pleat__handle_chunks(s->heap->pool, view->chunks[page]);
}

/* Whether anything lies on the handle at a page. */
static bool is_busy(const search *s, const pleat__view *view, uint32_t page)
{
    pleat__chunk_span handle = s->heap->pool->span[view->chunks[page]];
    return !pleat__heap_are_free(s->heap, handle.first, handle.behind, s->zone);
}

static void looked(search *s)
{
    s->looks -= s->looks != 0;
}

/* false: of the handles that any stretch of as many granules has as a whole more are in use than
 * may be exchanged. */
static bool count_busy(search *s, const pleat__view *view)
{
    uint32_t pages = s->granules >> s->heap->pool->occupancy.shift, spare = view->pages - pages;
    uint32_t busy = 0, needed = 0;
    for (uint32_t i = 0, next; i < view->pages; i = next) {
        bool is = is_busy(s, view, i);
        next = behind(s, view, i);
        s->busy[i] = busy;
        busy += is;
        needed += is && i >= spare && next <= pages;
        looked(s);
        if (needed > s->most)
            return false;
    }
    s->busy[view->pages] = busy;
    return true;
}

/* The stretch from granule `begin` on, where handles from page `from` on may be exchanged. */
static void look_at(search *s, pleat__view *view, uint32_t begin, uint32_t from)
{
    const pleat__occupancy *occupancy = &s->heap->pool->occupancy;
    uint64_t end = (uint64_t)begin + s->granules;
    if (end > (uint64_t)view->pages << occupancy->shift)
        return;
    uint32_t last = (uint32_t)((end - 1) >> occupancy->shift), chunk = view->chunks[last];
    uint32_t first = s->heap->pool->span[chunk].first, at = last - (chunk - first);
    if (at < from || s->busy[at] - s->busy[from] > s->most)
        return;
    uint32_t part = (uint32_t)end - (at << occupancy->shift), until = behind(s, view, at);
    bool exchanged = s->busy[until] != s->busy[at] && !begins_free(s, first, part);
    uint32_t handles = s->busy[at] - s->busy[from] + exchanged;
    if (handles > s->most)
        return;
    s->best = (stretch){view, begin, from, exchanged ? until : at, handles};
    s->most = (int64_t)handles - 1;
}

/* Whether a stretch could be better that begins in the handle on pages [page, next), however much
 * of that is free: no fewer handles are in use than behind it, as far as all of it would not reach.
 */
static bool may_begin_in(const search *s, const pleat__view *view, uint32_t page, uint32_t next)
{
    uint32_t end = page + (s->granules >> s->heap->pool->occupancy.shift);
    if (end >= view->pages)
        return false;
    uint32_t chunk = view->chunks[end], at = end - (chunk - pleat__first_of(s->heap->pool, chunk));
    return at <= next || s->busy[at] - s->busy[next] <= s->most;
}

static void look_into(search *s, pleat__view *view)
{
    uint32_t shift = s->heap->pool->occupancy.shift;
    if (!count_busy(s, view))
        return;
    uint64_t all = (uint64_t)view->pages << shift;
    for (uint32_t i = 0, next; ((uint64_t)i << shift) + s->granules <= all; i = next) {
        next = behind(s, view, i);
        look_at(s, view, i << shift, i);
        if (s->busy[next] == s->busy[i] || !may_begin_in(s, view, i, next))
            continue;
        uint32_t tail = tail_of(s, view->chunks[i], next - i);
        if (tail != 0)
            look_at(s, view, (next << shift) - tail, next);
    }
}

/* Whether it may show other handles, and one exchanged would pay. (At least one is in use, or it
 * would have been used as it is.) */
static bool may_change(const search *s, const pleat__view *view)
{
    bool wanted = s->heap->has_schedule && view->slices != 0;
    return !wanted && view->live == 0 && view->fenced &&
           view->pages >= pleat__ceil_div(s->granules, s->heap->pool->occupancy.full) &&
           view->stream == pleat__zone_stream(s->zone) && worth(s, view) != 0;
}

static bool is_passed(const search *s, const pleat__view *view)
{
    const pleat_vmm *vmm = &s->heap->vmm;
    return vmm->ops->event_query(vmm->self, view->idle) == PLEAT_OK;
}

/* The first view to look into. A GPU that lags behind has left none of those used last, and to ask
 * it takes as long as to look at a hundred handles: it is asked of the first, second, fourth,
 * eighth ... of them. */
static pleat__view *first_left(search *s)
{
    uint32_t count = 0, next = 1;
    pleat__view *view = s->heap->newest;
    for (; view != NULL && s->looks != 0; view = view->older) {
        looked(s);
        if (!may_change(s, view) || ++count != next)
            continue;
        if (is_passed(s, view))
            return view;
        next *= 2;
    }
    return NULL;
}

/* A view with less to exchange than the best so far, if the GPU has left it. */
static void consider(search *s, pleat__view *view)
{
    stretch before = s->best;
    s->most = worth(s, view);
    if (before.view != NULL && before.handles <= s->most)
        s->most = (int64_t)before.handles - 1;
    look_into(s, view);
    if (s->best.view != before.view && !is_passed(s, view))
        s->best = before;
}

/* false: none; or a new view costs less, or there is less free memory than it takes. */
static bool find(search *s)
{
    pleat__heap *heap = s->heap;
    if (heap->zones[s->zone].granules < s->granules)
        return false;
    s->busy = pleat__arena_alloc(heap->arena, (heap->pool->count + 1ull) * sizeof *s->busy);
    s->looks = s->busy != NULL ? EXCHANGE_LOOKS : 0;
    for (pleat__view *view = first_left(s); view != NULL && s->looks != 0; view = view->older) {
        looked(s);
        if (may_change(s, view))
            consider(s, view);
    }
    pleat__arena_free(heap->arena, s->busy);
    return s->best.view != NULL;
}

/* ---- what comes ---- */

/* A free handle that the view does not show. */
typedef struct pleat__loose {
    uint32_t first, pages;
    uint32_t order; /* in which it was found */
} loose;

typedef struct exchange {
    pleat__heap *heap;
    uint32_t loose_count;
    uint32_t *chunks; /* the view's, as they shall be */
    pleat__page_run *parts;
    uint32_t part_count;
    uint32_t handles; /* that come */
} exchange;

static bool add_loose(void *context, uint32_t first)
{
    exchange *x = context;
    if (x->heap->shown[first])
        return true;
    uint32_t pages = pleat__handle_chunks(x->heap->pool, first);
    x->heap->loose[x->loose_count] = (loose){first, pages, x->loose_count};
    x->loose_count++;
    return true;
}

/* The largest first; those that were found first among them. */
static int compare_loose(const void *left, const void *right)
{
    const loose *a = left, *b = right;
    if (a->pages != b->pages)
        return a->pages > b->pages ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

/* Pages [begin, end) get free handles, of which all together have as many. */
static bool fill(exchange *x, uint32_t begin, uint32_t end)
{
    uint32_t kept = 0, at = begin;
    for (uint32_t i = 0; i < x->loose_count; i++) {
        uint32_t first = x->heap->loose[i].first, pages = x->heap->loose[i].pages;
        if (pages > end - at) {
            x->heap->loose[kept++] = x->heap->loose[i];
            continue;
        }
        x->handles++;
        for (uint32_t k = 0; k < pages; k++)
            x->chunks[at++] = first + k;
    }
    x->loose_count = kept;
    x->parts[x->part_count++] = (pleat__page_run){begin, end - begin};
    return at == end;
}

/* Handles in use that are neighbours are exchanged together. */
static bool fill_all(const search *s, exchange *x)
{
    const stretch *best = &s->best;
    uint32_t begin = best->from;
    for (uint32_t i = best->from, next; i < best->until; i = next) {
        next = behind(s, best->view, i);
        if (is_busy(s, best->view, i))
            continue;
        if (begin < i && !fill(x, begin, i))
            return false;
        begin = next;
    }
    return begin >= best->until || fill(x, begin, best->until);
}

/* The tables by chunk stay. */
static bool make_tables(pleat__heap *heap)
{
    uint64_t most = heap->pool->most;
    if (heap->shown == NULL)
        heap->shown = pleat__arena_calloc_sparse(heap->arena, most, sizeof *heap->shown);
    if (heap->loose == NULL)
        heap->loose = pleat__arena_calloc_sparse(heap->arena, most, sizeof *heap->loose);
    return heap->shown != NULL && heap->loose != NULL;
}

/* false: free handles do not come out even, or are too many, or there is no host memory. */
static bool exchange_plan(exchange *x, const search *s)
{
    const pleat__chunk_pool *pool = x->heap->pool;
    const pleat__view *view = s->best.view;
    x->parts = pleat__arena_alloc(pool->arena, (s->best.handles + 1ull) * sizeof *x->parts);
    if (x->parts == NULL || !make_tables(x->heap))
        return false;
    memset(x->heap->shown, 0, pool->count);
    for (uint32_t i = 0; i < view->pages; i++)
        x->heap->shown[view->chunks[i]] = 1;
    pleat__heap_each_whole(x->heap, s->zone, add_loose, x);
    qsort(x->heap->loose, x->loose_count, sizeof *x->heap->loose, compare_loose);
    memcpy(x->chunks, view->chunks, view->pages * sizeof *x->chunks);
    return fill_all(s, x) && x->handles <= worth(s, view);
}

/* ---- the exchange ---- */

/* The view's pages go to another record, in which the request lies. */
static pleat_result take(search *s, exchange *x, pleat__view *made, pleat__place *place)
{
    pleat__heap *heap = s->heap;
    uint32_t full = heap->pool->occupancy.full;
    made->page = s->best.view->page;
    made->maps = pleat__view_handles(heap, made);
    if (!pleat__view_slice(heap, made, s->best.begin / full, s->best.begin % full, s->granules,
                           place))
        return PLEAT_E_NOT_FOUND;
    PLEAT_CHECK(pleat__heap_occupy(heap, place));
    /* The lock is left meanwhile; what the old record leaves is room for this one in the list. */
    pleat__view_hand_over(heap, s->best.view, made);
    pleat__page_run pages = {made->page, made->pages};
    pleat_result result =
        pleat__chunk_pool_remap(heap->pool, pages, made->chunks, x->parts, x->part_count);
    if (result == PLEAT_OK) {
        pleat__views_add(heap, made);
        return PLEAT_OK;
    }
    pleat__heap_give(heap, place);
    return PLEAT_E_NOT_FOUND; /* a new view may do; if it does not, it says why */
}

pleat_result pleat__views_remap(pleat__heap *heap, uint32_t granules, uint8_t zone,
                                pleat__place *place)
{
    search s = {.heap = heap, .granules = granules, .zone = zone};
    exchange x = {.heap = heap};
    if (!find(&s))
        return PLEAT_E_NOT_FOUND;
    pleat__view *made = pleat__view_new(heap, s.best.view->pages, pleat__zone_stream(zone));
    if (made == NULL)
        return PLEAT_E_NOT_FOUND;
    x.chunks = made->chunks;
    pleat_result result = PLEAT_E_NOT_FOUND;
    if (exchange_plan(&x, &s))
        result = take(&s, &x, made, place);
    if (result != PLEAT_OK)
        pleat__view_free(heap, made);
    pleat__arena_free(heap->arena, x.parts);
    return result;
}
