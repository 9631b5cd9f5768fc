/*
 * views.c: keeping views, finding places in them, dropping them (see views.h).
 *
 * REUSE  Views are looked through in the order of their sizes, chunk by chunk: a counter says that
 *        a chunk is free as a whole; the free end of the chunk before, and the free beginning of
 *        the one behind, lengthen the stretch. In a mixture-of-experts job whose sizes change with
 *        every iteration this found a place for three of four requests that no hole held, where a
 *        view as a whole, beginning at its first granule, served one in four; and what is not found
 *        costs 25 us a chunk to map. A look at 20,000 pages takes 20 us; most views are known not
 *        to hold the request after a look at a few of their chunks (has_row).
 * DROP   Idle views beyond a limit of maps (setting `views`) and one of pages go, the longest
 *        unused first, also those that a followed slot lies in: it then finds its place dead, and
 *        gets another. Their requests were freed in their stream's order, so the GPU may still use
 *        them (deferred_unmap.h). All of a drop are one job of the mapper's, with one event a
 *        stream: memory that runs short may find thousands of them.
 */
#include <runtime/memory/deferred_unmap.h>
#include <runtime/memory/heap_internal.h>
#include <runtime/memory/views.h>

#include <internal/check.h>
#include <internal/search.h>
#include <string.h>

/* Maps of a view for which a point is recorded whenever it becomes idle (D484 in
 * docs/decisions.md). */
#define LEAST_REMAPPED 64u

/* `runs` comes first: places point to it. */
typedef struct slice {
    pleat__runs runs;
    uint32_t references; /* by what is allocated in it, and by pins */
    pleat__run own[];    /* runs.runs */
} slice;

/* ---- records ---- */

pleat__view *pleat__view_new(pleat__heap *heap, uint32_t pages, uint16_t stream)
{
    pleat__view *view = pleat__arena_calloc(heap->arena, 1, sizeof *view);
    if (view == NULL)
        return NULL;
    *view = (pleat__view){.chunks = pleat__arena_alloc(heap->arena, pages * sizeof *view->chunks),
                          .pages = pages,
                          .stream = stream};
    if (view->chunks != NULL)
        return view;
    pleat__arena_free(heap->arena, view);
    return NULL;
}

uint32_t pleat__view_handles(const pleat__heap *heap, const pleat__view *view)
{
    uint32_t handles = 0;
    for (uint32_t i = 0; i < view->pages; i += pleat__handle_chunks(heap->pool, view->chunks[i]))
        handles++;
    return handles;
}

static void drop_point(pleat__heap *heap, pleat__view *view)
{
    if (view->idle != 0)
        (void)heap->vmm.ops->event_destroy(heap->vmm.self, view->idle);
    view->idle = 0;
}

void pleat__view_free(pleat__heap *heap, pleat__view *view)
{
    drop_point(heap, view);
    pleat__arena_free(heap->arena, view->chunks);
    pleat__arena_free(heap->arena, view);
}

pleat_result pleat__views_reserve(pleat__heap *heap)
{
    return pleat__arena_grow(heap->arena, &heap->views, &heap->view_capacity, heap->view_count,
                             sizeof *heap->views);
}

/* The first view in the list that has so many pages. */
static uint32_t first_of(const pleat__heap *heap, uint32_t pages)
{
    uint32_t at;
    PLEAT__FIRST(at, heap->view_count, heap->views[at]->pages >= pages);
    return at;
}

/* In the order of their sizes, behind those of its own. */
void pleat__views_add(pleat__heap *heap, pleat__view *view)
{
    uint32_t at = first_of(heap, view->pages + 1);
    memmove(&heap->views[at + 1], &heap->views[at], (heap->view_count - at) * sizeof *heap->views);
    heap->views[at] = view;
    heap->view_count++;
    heap->view_maps += view->maps;
}

/* ---- slices ---- */

/* Its runs, neighbours joined, into `runs` where that is not NULL; how many. A view shows a
 * handle's chunks in their order, so what it shows of one is one run. */
static uint32_t list_runs(const pleat__heap *heap, const pleat__view *view, uint32_t first,
                          uint32_t offset, uint32_t granules, pleat__run *runs)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint32_t count = 0, end = 0;
    for (uint32_t i = first; granules != 0;) {
        uint32_t chunk = view->chunks[i], behind = pool->span[chunk].behind;
        uint32_t begin = (chunk << pool->occupancy.shift) + offset;
        uint32_t part = (behind << pool->occupancy.shift) - begin;
        bool joins = count != 0 && begin == end;
        part = part < granules ? part : granules;
        count += !joins;
        if (runs != NULL && joins)
            runs[count - 1].count += part;
        else if (runs != NULL)
            runs[count - 1] = (pleat__run){begin, part};
        end = begin + part;
        granules -= part;
        i += behind - chunk;
        offset = 0;
    }
    return count;
}

bool pleat__view_slice(pleat__heap *heap, pleat__view *view, uint32_t first, uint32_t offset,
                       uint32_t granules, pleat__place *place)
{
    uint32_t count = list_runs(heap, view, first, offset, granules, NULL);
    slice *made = pleat__arena_alloc(heap->arena, sizeof *made + count * sizeof *made->own);
    if (made == NULL)
        return false;
    made->runs = (pleat__runs){.runs = made->own, .count = count, .granules = granules};
    made->runs.view = view;
    made->references = 0;
    list_runs(heap, view, first, offset, granules, made->own);
    view->slices++;
    *place =
        (pleat__place){.address = heap->pool->base + (view->page + first) * heap->pool->page_bytes +
                                  ((uint64_t)offset << PLEAT__GRANULE_SHIFT),
                       .several = &made->runs,
                       .granules = granules,
                       .stream = view->stream & 63u};
    return true;
}

static slice *slice_of(const pleat__place *place)
{
    return place->several != NULL && place->several->view != NULL ? (slice *)place->several : NULL;
}

static void let_go(pleat__arena *arena, slice *held)
{
    pleat__view *view = held->runs.view;
    if (held->references-- > 1)
        return;
    pleat__arena_free(arena, held);
    if (--view->slices == 0 && view->dead) {
        pleat__arena_free(arena, view->chunks);
        pleat__arena_free(arena, view);
    }
}

void pleat__view_pin(const pleat__place *place)
{
    slice *held = slice_of(place);
    if (held != NULL)
        held->references++;
}

void pleat__view_unpin(pleat__arena *arena, const pleat__place *place)
{
    slice *held = slice_of(place);
    if (held != NULL)
        let_go(arena, held);
}

void pleat__view_use(pleat__heap *heap, const pleat__place *place)
{
    slice *held = slice_of(place);
    if (held == NULL)
        return;
    held->references++;
    held->runs.view->live++;
    held->runs.view->used = heap->asked;
}

/* Behind this point the stream uses nothing of it: it may show something else. Streams that share
 * an index would be made to wait for each other, every time. */
static void note_idle(pleat__heap *heap, pleat__view *view)
{
    if (view->maps < LEAST_REMAPPED || view->stream == PLEAT__OVERFLOW)
        return;
    if (view->idle == 0 &&
        heap->vmm.ops->event_create(heap->vmm.self, heap->device, &view->idle) != PLEAT_OK)
        view->idle = 0;
    view->fenced = view->idle != 0 && pleat__heap_fence(heap, view->stream, view->idle) == PLEAT_OK;
}

void pleat__view_leave(pleat__heap *heap, const pleat__place *place)
{
    slice *held = slice_of(place);
    if (held == NULL)
        return;
    if (--held->runs.view->live == 0 && !held->runs.view->dead)
        note_idle(heap, held->runs.view);
    let_go(heap->arena, held);
}

bool pleat__view_serves(const pleat__place *place, uint16_t stream)
{
    const slice *held = slice_of(place);
    return held == NULL || (!held->runs.view->dead && held->runs.view->stream == stream);
}

/* ---- reuse ---- */

/* A stretch of free granules: from `offset` in the chunk `first` on. */
typedef struct stretch {
    pleat__view *view;
    uint32_t first;
    uint32_t offset;
} stretch;

/* Chunks in a row that are free as a whole in any stretch of so many granules: all but those that
 * it begins and ends in. */
static uint32_t whole_chunks(const pleat__heap *heap, uint32_t granules)
{
    uint32_t ends = 2 * (heap->pool->occupancy.full - 1);
    return granules > ends ? (uint32_t)pleat__ceil_div(granules - ends, heap->pool->occupancy.full)
                           : 0;
}

/* Whether so many of a view's chunks in a row are free as a whole. Each row is looked at from its
 * end: behind a chunk in use the next one begins, so few are looked at where many are wanted. */
static bool has_row(const pleat__heap *heap, const pleat__view *view, uint32_t wanted, uint8_t zone)
{
    uint32_t begin = 0;
    while (begin + wanted <= view->pages) {
        uint32_t at = begin + wanted;
        while (at > begin && pleat__heap_is_free(heap, view->chunks[at - 1], zone))
            at--;
        if (at == begin)
            return true;
        begin = at;
    }
    return false;
}

/* Where a free stretch may begin: in the end of a chunk in use, with what is unused of it, or with
 * the next; and the whole chunks behind. */
typedef struct opening {
    uint32_t chunk; /* of the view */
    uint32_t unused;
    uint64_t whole;
} opening;

/* Whether the stretch up to the chunk `end`, of which so many granules are unused, holds as many as
 * are wanted. How many of the ends' are free side by side is asked only where all of them would do.
 */
static bool holds(const pleat__heap *heap, pleat__view *view, opening from, uint32_t end,
                  uint32_t unused, uint32_t granules, stretch *found)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    uint32_t full = occupancy->full, tail = 0;
    uint64_t count = from.whole * full;
    if (from.unused + count + unused < granules)
        return false;
    if (from.unused != 0) {
        pleat__run chunk = {view->chunks[from.chunk] << occupancy->shift, full};
        tail = pleat__occupancy_free_tail(occupancy, chunk);
    }
    count += tail + (unused != 0 ? pleat__occupancy_head(occupancy, view->chunks[end]) : 0);
    *found =
        tail != 0 ? (stretch){view, from.chunk, full - tail} : (stretch){view, from.chunk + 1, 0};
    return count >= granules;
}

/* The first of a view's free stretches that holds the request; false: none does. */
static bool look_into(const pleat__heap *heap, pleat__view *view, uint32_t granules, uint8_t zone,
                      stretch *found)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    opening from = {.chunk = UINT32_MAX}; /* the next one is the view's first */
    for (uint32_t i = 0; i <= view->pages; i++) {
        bool ours = i < view->pages && heap->zone_of[view->chunks[i]] == zone;
        uint32_t unused = ours ? occupancy->full - occupancy->used[view->chunks[i]] : 0;
        if (unused == occupancy->full) {
            from.whole++;
            continue;
        }
        if (holds(heap, view, from, i, unused, granules, found))
            return true;
        from = (opening){.chunk = i, .unused = unused};
    }
    return false;
}

bool pleat__views_reuse(pleat__heap *heap, uint32_t granules, uint8_t zone, pleat__place *place)
{
    uint32_t pages = granules / heap->pool->occupancy.full, row = whole_chunks(heap, granules);
    stretch found = {0};
    bool any = false;
    for (uint32_t i = first_of(heap, pages); i < heap->view_count && !any; i++)
        any = heap->views[i]->stream == pleat__zone_stream(zone) &&
              has_row(heap, heap->views[i], row, zone) &&
              look_into(heap, heap->views[i], granules, zone, &found);
    if (!any || !pleat__view_slice(heap, found.view, found.first, found.offset, granules, place))
        return false;
    heap->views_reused++;
    PLEAT_CHECK(pleat__heap_occupy(heap, place));
    return true;
}

/* ---- dropping ---- */

/* An idle view: how long it is unused, and where it is in the list. */
typedef struct idle_view {
    uint64_t used;
    uint32_t at;
} idle_view;

static bool is_older(idle_view a, idle_view b)
{
    return a.used != b.used ? a.used < b.used : a.at < b.at;
}

/* Puts the view at `at` of a heap whose oldest is first where it belongs below. */
static void sink(idle_view *views, uint32_t count, uint32_t at)
{
    idle_view moved = views[at];
    for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && is_older(views[child + 1], views[child]))
            child++;
        if (!is_older(views[child], moved))
            break;
        views[at] = views[child];
        at = child;
    }
    views[at] = moved;
}

/* All idle views as a heap, the one that was used the longest ago first; how many. */
static uint32_t list_idle(const pleat__heap *heap, idle_view *idle)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < heap->view_count; i++)
        if (heap->views[i]->live == 0)
            idle[count++] = (idle_view){heap->views[i]->used, i};
    for (uint32_t i = count / 2; i-- > 0;)
        sink(idle, count, i);
    return count;
}

/* Its maps are mapped no more, or are on their way to be unmapped. */
static void count_out(pleat__heap *heap, const pleat__view *view)
{
    heap->pool->view_pages -= view->pages;
    heap->view_maps -= view->maps;
}

/* At most so many views have to go that no more stays than that: each has a page, and a map. */
static uint64_t too_many(const pleat__heap *heap, uint64_t keep_pages, uint64_t keep_maps)
{
    uint64_t pages = pleat__beyond(heap->pool->view_pages, keep_pages);
    uint64_t maps = pleat__beyond(heap->view_maps, keep_maps);
    return pages > maps ? pages : maps;
}

/* Its record stays as long as a place in it is remembered. */
static void retire(pleat__heap *heap, pleat__view *view)
{
    view->dead = true;
    if (view->slices == 0)
        pleat__view_free(heap, view);
}

/* Hands a view's pages over and leaves its place in the list empty. false: it stays. */
static bool view_drop(pleat__heap *heap, uint32_t at, pleat__deferred_unmap *deferred)
{
    pleat__view *view = heap->views[at];
    if (!pleat__deferred_unmap_fence(deferred, view->stream))
        return false;
    pleat__deferred_unmap_add(deferred, (pleat__page_run){view->page, view->pages});
    heap->views[at] = NULL;
    count_out(heap, view);
    drop_point(heap, view);
    retire(heap, view);
    return true;
}

static void close_gaps(pleat__heap *heap)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < heap->view_count; i++)
        if (heap->views[i] != NULL)
            heap->views[kept++] = heap->views[i];
    heap->view_count = kept;
}

void pleat__view_hand_over(pleat__heap *heap, pleat__view *from, pleat__view *to)
{
    to->idle = from->idle;
    from->idle = 0;
    for (uint32_t i = 0; i < heap->view_count; i++)
        if (heap->views[i] == from)
            heap->views[i] = NULL;
    close_gaps(heap);
    heap->view_maps -= from->maps;
    retire(heap, from);
}

/* What a stream that captures may use stays, and others' views go. */
static bool drop_oldest(pleat__heap *heap, uint64_t keep_pages, uint64_t keep_maps, idle_view *idle)
{
    uint32_t count = list_idle(heap, idle);
    uint64_t most = too_many(heap, keep_pages, keep_maps);
    bool any = false;
    pleat__deferred_unmap *deferred =
        count != 0 ? pleat__deferred_unmap_new(heap, count < most ? count : (uint32_t)most, true)
                   : NULL;
    if (deferred == NULL)
        return false;
    while (count != 0 && too_many(heap, keep_pages, keep_maps) != 0) {
        any = view_drop(heap, idle[0].at, deferred) || any;
        idle[0] = idle[--count];
        sink(idle, count, 0);
    }
    close_gaps(heap);
    if (any)
        pleat__deferred_unmap_hand_over(deferred);
    else
        pleat__deferred_unmap_free(deferred);
    return any;
}

bool pleat__heap_drop_views(pleat__heap *heap, uint64_t keep_pages, uint64_t keep_maps)
{
    bool any = pleat__deferred_unmap_again(heap);
    if (heap->view_count == 0 || too_many(heap, keep_pages, keep_maps) == 0)
        return any;
    idle_view *idle = pleat__arena_alloc(heap->arena, heap->view_count * sizeof *idle);
    any = (idle != NULL && drop_oldest(heap, keep_pages, keep_maps, idle)) || any;
    pleat__arena_free(heap->arena, idle);
    return any;
}

static bool is_at_rest(const pleat__heap *heap, const pleat__view *view)
{
    const pleat__chunk_pool *pool = heap->pool;
    for (uint32_t i = 0; i < view->pages; i += pool->chunks[view->chunks[i]]->pages) {
        const pleat__chunk *handle = pool->chunks[view->chunks[i]];
        if (!handle->rests || handle->torn)
            return false;
    }
    return true;
}

void pleat__views_drop_resting(pleat__heap *heap)
{
    pleat__chunk_pool *pool = heap->pool;
    for (uint32_t i = 0; i < heap->view_count; i++) {
        pleat__view *view = heap->views[i];
        if (view->slices != 0 || !is_at_rest(heap, view))
            continue;
        (void)!pleat__space_unmap(pool->space, view->page, view->pages); /* a matter of tables */
        pleat__space_give(pool->space, view->page, view->pages);
        count_out(heap, view);
        heap->views[i] = NULL;
        pleat__view_free(heap, view);
    }
    close_gaps(heap);
}

void pleat__views_release(pleat__heap *heap)
{
    pleat__deferred_unmap_release(heap);
    for (uint32_t i = 0; i < heap->view_count; i++)
        pleat__view_free(heap, heap->views[i]);
    heap->view_count = 0;
}
