/*
 * views.c: keeping views, finding places in them, dropping them (see views.h).
 *
 * REUSE  Views are looked through, those that were used last first, chunk by chunk; the smallest
 *        that holds the request serves it. A counter says that a chunk is free as a whole; the free
 *        end of the chunk before, and the free beginning of the one behind, lengthen the stretch.
 *        In a mixture-of-experts job whose sizes change with every iteration this found a place for
 *        three of four requests that no hole held, where a view as a whole, beginning at its first
 *        granule, served one in four; and what is not found costs 25 us a chunk to map. Most views
 *        are known not to hold the request after a look at the chunk that was in use when they were
 *        looked into last (has_row). A search ends after VIEW_LOOKS looks, however many views
 *        there are.
 * DROP   Idle views beyond a limit of maps (setting `views`) and one of pages go, the longest
 *        unused first, also those that a followed slot lies in: it then finds its place dead, and
 *        gets another. The list of views is walked from its old end on, over those in use, to the
 *        last one that goes. Their requests were freed in their stream's order, so the GPU may
 *        still use them (deferred_unmap.h). All of a drop are one job of the mapper's, with one
 *        event a stream: memory that runs short may find thousands of them.
 */
#include <runtime/memory/deferred_unmap.h>
#include <runtime/memory/heap_internal.h>
#include <runtime/memory/views.h>

#include <internal/check.h>
#include <string.h>

/* Maps of a view for which a point is recorded whenever it becomes idle (D484 in
 * docs/decisions.md). */
#define LEAST_REMAPPED 64u
/* Looks at views and chunks that a search may take beside those at the chunks of the request
 * (D558). */
#define VIEW_LOOKS 1024u

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

static void link_in(pleat__heap *heap, pleat__view *view)
{
    view->newer = NULL;
    view->older = heap->newest;
    *(heap->newest != NULL ? &heap->newest->newer : &heap->oldest) = view;
    heap->newest = view;
}

static void link_out(pleat__heap *heap, pleat__view *view)
{
    *(view->newer != NULL ? &view->newer->older : &heap->newest) = view->older;
    *(view->older != NULL ? &view->older->newer : &heap->oldest) = view->newer;
    view->newer = NULL;
}

void pleat__views_add(pleat__heap *heap, pleat__view *view)
{
    link_in(heap, view);
    heap->view_count++;
    heap->view_maps += view->maps;
}

/* Its pages are another's from now on, or are on their way to be unmapped. */
static void remove_view(pleat__heap *heap, pleat__view *view)
{
    link_out(heap, view);
    heap->view_count--;
    heap->view_maps -= view->maps;
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
    /* The last one is there already, and one that is not kept is in no list. */
    if (held->runs.view->newer == NULL)
        return;
    link_out(heap, held->runs.view);
    link_in(heap, held->runs.view);
}

/* Behind this point the stream uses nothing of it: it may show something else. Where streams share
 * their memory there is no such point to record. */
static void note_idle(pleat__heap *heap, pleat__view *view)
{
    if (view->maps < LEAST_REMAPPED || view->stream == PLEAT__OVERFLOW)
        return;
    if (view->idle == 0 &&
        heap->vmm.ops->event_create(heap->vmm.self, heap->device, &view->idle) != PLEAT_OK)
        view->idle = 0;
    view->fenced = view->idle != 0 && pleat__gate_record(heap->pool->gate, view->idle,
                                                         heap->streams[view->stream]) == PLEAT_OK;
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

/* What is looked for in views. */
typedef struct search {
    const pleat__heap *heap;
    uint32_t granules;
    uint32_t pages; /* that a view has at least */
    uint32_t row;   /* of them side by side are free as a whole */
    uint8_t zone;
    uint32_t looks; /* at views and chunks that are left to it */
} search;

static void looked(search *s, uint32_t looks)
{
    s->looks -= looks < s->looks ? looks : s->looks;
}

/* Whether so many of a view's chunks in a row are free as a whole. Each row is looked at from its
 * end: behind a chunk in use the next one begins, so few are looked at where many are wanted. One
 * that was in use the last time mostly still is, and each row of as many reaches over it. */
static bool has_row(search *s, pleat__view *view)
{
    uint32_t begin = 0, wanted = s->row;
    if (view->busy < wanted && view->pages - view->busy <= wanted &&
        !pleat__heap_is_free(s->heap, view->chunks[view->busy], s->zone))
        return false;
    while (begin + wanted <= view->pages && s->looks > 0) {
        uint32_t at = begin + wanted;
        while (at > begin && pleat__heap_is_free(s->heap, view->chunks[at - 1], s->zone))
            at--;
        looked(s, begin + wanted - at);
        if (at == begin)
            return true;
        view->busy = at - 1;
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
    if (count < granules)
        return false;
    *found =
        tail != 0 ? (stretch){view, from.chunk, full - tail} : (stretch){view, from.chunk + 1, 0};
    return true;
}

/* The first of a view's free stretches that holds the request; false: none does. */
static bool look_into(search *s, pleat__view *view, stretch *found)
{
    const pleat__heap *heap = s->heap;
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    opening from = {.chunk = UINT32_MAX}; /* the next one is the view's first */
    looked(s, view->pages);
    for (uint32_t i = 0; i <= view->pages; i++) {
        bool ours = i < view->pages && heap->zone_of[view->chunks[i]] == s->zone;
        uint32_t unused = ours ? occupancy->full - occupancy->used[view->chunks[i]] : 0;
        if (unused == occupancy->full) {
            from.whole++;
            continue;
        }
        if (holds(heap, view, from, i, unused, s->granules, found))
            return true;
        from = (opening){.chunk = i, .unused = unused};
    }
    return false;
}

/* The smallest view that has a stretch for it, and of those of one size the one that was used the
 * longest ago, among those that it looks at. */
static bool find(search *s, stretch *found)
{
    bool any = false;
    for (pleat__view *view = s->heap->newest; view != NULL && s->looks != 0; view = view->older) {
        bool better = view->pages >= s->pages && (!any || view->pages <= found->view->pages);
        looked(s, 1);
        if (better && view->stream == pleat__zone_stream(s->zone) && has_row(s, view) &&
            look_into(s, view, found))
            any = true;
    }
    return any;
}

bool pleat__views_reuse(pleat__heap *heap, uint32_t granules, uint8_t zone, pleat__place *place)
{
    search s = {.heap = heap,
                .granules = granules,
                .pages = granules / heap->pool->occupancy.full,
                .row = whole_chunks(heap, granules),
                .zone = zone};
    stretch found;
    s.looks = VIEW_LOOKS + s.pages;
    if (!find(&s, &found) ||
        !pleat__view_slice(heap, found.view, found.first, found.offset, granules, place))
        return false;
    heap->views_reused++;
    PLEAT_CHECK(pleat__heap_occupy(heap, place));
    return true;
}

/* ---- dropping ---- */

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

/* Hands a view's pages over. false: it stays. */
static bool view_drop(pleat__heap *heap, pleat__view *view, pleat__deferred_unmap *deferred)
{
    if (!pleat__deferred_unmap_fence(deferred, view->stream))
        return false;
    pleat__deferred_unmap_add(deferred, (pleat__page_run){view->page, view->pages});
    heap->pool->view_pages -= view->pages;
    remove_view(heap, view);
    drop_point(heap, view);
    retire(heap, view);
    return true;
}

void pleat__view_hand_over(pleat__heap *heap, pleat__view *from, pleat__view *to)
{
    to->idle = from->idle;
    from->idle = 0;
    remove_view(heap, from);
    retire(heap, from);
}

/* What a stream that captures may use stays, and others' views go. */
bool pleat__heap_drop_views(pleat__heap *heap, uint64_t keep_pages, uint64_t keep_maps)
{
    bool any = pleat__deferred_unmap_again(heap), more = false;
    uint64_t most = too_many(heap, keep_pages, keep_maps);
    most = most < heap->view_count ? most : heap->view_count;
    pleat__deferred_unmap *deferred =
        most != 0 ? pleat__deferred_unmap_new(heap, (uint32_t)most, true) : NULL;
    if (deferred == NULL)
        return any;
    for (pleat__view *view = heap->oldest, *newer;
         view != NULL && too_many(heap, keep_pages, keep_maps) != 0; view = newer) {
        newer = view->newer;
        more = (view->live == 0 && view_drop(heap, view, deferred)) || more;
    }
    if (more)
        pleat__deferred_unmap_hand_over(deferred);
    else
        pleat__deferred_unmap_free(deferred);
    return any || more;
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
    for (pleat__view *view = heap->newest, *older; view != NULL; view = older) {
        older = view->older;
        if (view->slices != 0 || !is_at_rest(heap, view))
            continue;
        (void)!pleat__space_unmap(pool->space, view->page, view->pages); /* a matter of tables */
        pleat__space_give(pool->space, view->page, view->pages);
        pool->view_pages -= view->pages;
        remove_view(heap, view);
        pleat__view_free(heap, view);
    }
}

void pleat__views_release(pleat__heap *heap)
{
    pleat__deferred_unmap_release(heap);
    while (heap->newest != NULL) {
        pleat__view *view = heap->newest;
        heap->newest = view->older;
        pleat__view_free(heap, view);
    }
    heap->view_count = 0;
}
