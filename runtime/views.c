/*
 * views.c: keeping views, finding places in them, dropping them (see views.h).
 *
 * REUSE  Views are looked through in the order of their sizes, chunk by chunk: a counter says that
 *        a chunk is free as a whole; the free end of the chunk before, and the free beginning of
 *        the one behind, lengthen the stretch. In a mixture-of-experts job whose sizes change with
 *        every iteration this found a place for three of four requests that no hole held, where a
 *        view as a whole, beginning at its first granule, served one in four; and what is not found
 *        costs 25 us a chunk to map. A look at 20,000 pages takes 20 us.
 * DROP   Idle views beyond a limit of alias pages go, the longest unused first, also those that a
 *        followed slot lies in: it then finds its place dead, and gets another. Their requests were
 *        freed in their stream's order, so the GPU may still use them: the mapper unmaps them when
 *        an event recorded at the drop is over.
 */
#include <runtime/views.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

/* `runs` comes first: places point to it. */
typedef struct window {
    pleat__runs runs;
    uint32_t references; /* by what is allocated in it, and by pins */
    pleat__extent own[]; /* runs.runs */
} window;

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

void pleat__view_free(pleat__heap *heap, pleat__view *view)
{
    pleat__arena_free(heap->arena, view->chunks);
    pleat__arena_free(heap->arena, view);
}

pleat_result pleat__views_reserve(pleat__heap *heap)
{
    return pleat__arena_grow(heap->arena, &heap->views, &heap->view_capacity,
                             heap->view_count + heap->views_coming, sizeof *heap->views);
}

/* In the order of their sizes. */
void pleat__views_add(pleat__heap *heap, pleat__view *view)
{
    uint32_t at = heap->view_count++;
    while (at > 0 && heap->views[at - 1]->pages > view->pages) {
        heap->views[at] = heap->views[at - 1];
        at--;
    }
    heap->views[at] = view;
}

/* ---- windows ---- */

static pleat__extent part_of_chunk(const pleat__heap *heap, const pleat__view *view, uint32_t index,
                                   uint32_t offset, uint32_t left)
{
    uint32_t full = heap->pool->occupancy.full, count = full - offset;
    return (pleat__extent){(view->chunks[index] << heap->pool->occupancy.shift) + offset,
                           count < left ? count : left};
}

/* Its runs, neighbours joined, into `runs` where that is not NULL; how many. */
static uint32_t list_runs(const pleat__heap *heap, const pleat__view *view, uint32_t first,
                          uint32_t offset, uint32_t granules, pleat__extent *runs)
{
    uint32_t count = 0, end = 0;
    for (uint32_t i = first; granules != 0; i++) {
        pleat__extent part = part_of_chunk(heap, view, i, offset, granules);
        bool joins = count != 0 && part.begin == end;
        count += !joins;
        if (runs != NULL && joins)
            runs[count - 1].count += part.count;
        else if (runs != NULL)
            runs[count - 1] = part;
        end = part.begin + part.count;
        granules -= part.count;
        offset = 0;
    }
    return count;
}

bool pleat__window_in(pleat__heap *heap, pleat__view *view, uint32_t first, uint32_t offset,
                      uint32_t granules, pleat__place *place)
{
    uint32_t count = list_runs(heap, view, first, offset, granules, NULL);
    window *made = pleat__arena_alloc(heap->arena, sizeof *made + count * sizeof *made->own);
    if (made == NULL)
        return false;
    made->runs = (pleat__runs){.runs = made->own, .count = count, .granules = granules};
    made->runs.view = view;
    made->references = 0;
    list_runs(heap, view, first, offset, granules, made->own);
    view->windows++;
    *place =
        (pleat__place){.address = heap->pool->base + (view->page + first) * heap->pool->page_bytes +
                                  ((uint64_t)offset << PLEAT__GRANULE_SHIFT),
                       .several = &made->runs,
                       .granules = granules};
    return true;
}

static window *window_of(const pleat__place *place)
{
    return place->several != NULL && place->several->view != NULL ? (window *)place->several : NULL;
}

static void let_go(pleat__arena *arena, window *held)
{
    pleat__view *view = held->runs.view;
    if (held->references-- > 1)
        return;
    pleat__arena_free(arena, held);
    if (--view->windows == 0 && view->dead) {
        pleat__arena_free(arena, view->chunks);
        pleat__arena_free(arena, view);
    }
}

void pleat__view_pin(const pleat__place *place)
{
    window *held = window_of(place);
    if (held != NULL)
        held->references++;
}

void pleat__view_unpin(pleat__arena *arena, const pleat__place *place)
{
    window *held = window_of(place);
    if (held != NULL)
        let_go(arena, held);
}

void pleat__view_use(pleat__heap *heap, const pleat__place *place)
{
    window *held = window_of(place);
    if (held == NULL)
        return;
    held->references++;
    held->runs.view->live++;
    held->runs.view->used = heap->requests;
}

void pleat__view_leave(pleat__heap *heap, const pleat__place *place)
{
    window *held = window_of(place);
    if (held == NULL)
        return;
    held->runs.view->live--;
    let_go(heap->arena, held);
}

bool pleat__view_is_dead(const pleat__place *place)
{
    const window *held = window_of(place);
    return held != NULL && held->runs.view->dead;
}

/* ---- reuse ---- */

/* A stretch of free granules: from `offset` in the chunk `first` on. */
typedef struct stretch {
    pleat__view *view;
    uint32_t first;
    uint32_t offset;
    uint64_t granules; /* 0: none */
} stretch;

/* The tightest of a view's free stretches. */
static void look_into(const pleat__heap *heap, pleat__view *view, uint32_t granules, uint8_t zone,
                      stretch *best)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    stretch at = {.view = view};
    for (uint32_t i = 0; i <= view->pages; i++) {
        bool ours = i < view->pages && heap->zone_of[view->chunks[i]] == zone;
        uint32_t used = ours ? occupancy->used[view->chunks[i]] : occupancy->full;
        if (used == 0) {
            if (at.granules == 0)
                at = (stretch){.view = view, .first = i};
            at.granules += occupancy->full;
            continue;
        }
        bool part = ours && used < occupancy->full;
        if (part)
            at.granules += pleat__occupancy_head(occupancy, view->chunks[i]);
        if (at.granules >= granules && (best->granules == 0 || at.granules < best->granules))
            *best = at;
        pleat__extent whole = {ours ? view->chunks[i] << occupancy->shift : 0, occupancy->full};
        uint32_t tail = part ? pleat__occupancy_free_tail(occupancy, whole) : 0;
        at =
            (stretch){.view = view, .first = i, .offset = occupancy->full - tail, .granules = tail};
    }
}

bool pleat__views_reuse(pleat__heap *heap, uint32_t granules, uint8_t zone, pleat__place *place)
{
    uint32_t pages = granules / heap->pool->occupancy.full;
    stretch best = {0};
    for (uint32_t i = 0; i < heap->view_count && best.granules == 0; i++)
        if (heap->views[i]->pages >= pages && heap->views[i]->stream == zone / 2)
            look_into(heap, heap->views[i], granules, zone, &best);
    if (best.granules == 0 ||
        !pleat__window_in(heap, best.view, best.first, best.offset, granules, place))
        return false;
    heap->views_reused++;
    PLEAT_CHECK(pleat__heap_occupy(heap, place));
    return true;
}

/* ---- dropping ---- */

/* Pages of a view that is no more; the mapper's until they are unmapped. */
struct pleat__dropped {
    pleat__job job;
    pleat__heap *heap;
    pleat_event event; /* the last work that may have used it */
    uint64_t page;
    uint32_t pages;
    pleat__dropped *next; /* in the heap's list of those refused */
};

static void refuse(pleat__heap *heap, pleat__dropped *dropped)
{
    dropped->next = heap->refused;
    heap->refused = dropped;
}

/* The mapper's: unmaps, and forgets. Where nobody says that the GPU is done, it comes again at the
 * next drop. */
static pleat_result unmap_dropped(void *context, pleat_result ready)
{
    pleat__dropped *dropped = context;
    pleat__pool *pool = dropped->heap->pool;
    if (ready != PLEAT_OK) {
        pleat__gate_lock(pool->gate);
        refuse(dropped->heap, dropped);
        pleat__gate_unlock(pool->gate);
        return ready;
    }
    (void)dropped->heap->vmm.ops->event_destroy(dropped->heap->vmm.self, dropped->event);
    /* What the driver refuses to unmap is the space's to keep apart. */
    pleat_result result = pleat__space_unmap(pool->space, dropped->page, dropped->pages);
    pleat__space_give(pool->space, dropped->page, dropped->pages);
    pleat__arena_free(dropped->heap->arena, dropped);
    return result;
}

static void hand_over(pleat__heap *heap, pleat__dropped *dropped)
{
    pleat__mapper *mapper;
    if (pleat__gate_mapper(heap->pool->gate, &mapper) != PLEAT_OK ||
        pleat__mapper_submit(mapper, &dropped->job) != PLEAT_OK)
        refuse(heap, dropped);
}

static pleat__dropped *dropped_new(pleat__heap *heap, const pleat__view *view)
{
    const pleat_vmm_ops *ops = heap->vmm.ops;
    pleat__dropped *dropped = pleat__arena_alloc(heap->arena, sizeof *dropped);
    if (dropped == NULL)
        return NULL;
    *dropped = (pleat__dropped){.heap = heap, .page = view->page, .pages = view->pages};
    dropped->job = (pleat__job){.kind = PLEAT__JOB_CALL,
                                .call = unmap_dropped,
                                .context = dropped,
                                .forgotten = true,
                                .events = &dropped->event,
                                .event_count = 1};
    if (ops->event_create(heap->vmm.self, heap->device, &dropped->event) != PLEAT_OK)
        goto no_event;
    if (pleat__heap_mark(heap, view->stream, dropped->event) != PLEAT_OK)
        goto no_record;
    return dropped;
no_record:
    (void)ops->event_destroy(heap->vmm.self, dropped->event);
no_event:
    pleat__arena_free(heap->arena, dropped);
    return NULL;
}

/* Takes a view from the list and hands its pages to the mapper. false: it stays. */
static bool view_drop(pleat__heap *heap, uint32_t at)
{
    pleat__view *view = heap->views[at];
    pleat__dropped *dropped = dropped_new(heap, view);
    if (dropped == NULL)
        return false;
    heap->view_count--;
    memmove(&heap->views[at], &heap->views[at + 1], (heap->view_count - at) * sizeof *heap->views);
    heap->pool->view_pages -= view->pages;
    view->dead = true;
    if (view->windows == 0)
        pleat__view_free(heap, view);
    hand_over(heap, dropped);
    return true;
}

/* The idle view that was used the longest ago; view_count when there is none. */
static uint32_t view_oldest(const pleat__heap *heap)
{
    uint32_t oldest = heap->view_count;
    for (uint32_t i = 0; i < heap->view_count; i++) {
        const pleat__view *view = heap->views[i];
        if (view->live == 0 &&
            (oldest == heap->view_count || view->used < heap->views[oldest]->used))
            oldest = i;
    }
    return oldest;
}

bool pleat__heap_drop_views(pleat__heap *heap, uint64_t keep_pages)
{
    pleat__dropped *again = heap->refused;
    bool any = again != NULL;
    heap->refused = NULL;
    while (again != NULL) {
        pleat__dropped *next = again->next;
        hand_over(heap, again);
        again = next;
    }
    while (heap->pool->view_pages > keep_pages) {
        uint32_t oldest = view_oldest(heap);
        if (oldest == heap->view_count || !view_drop(heap, oldest))
            break;
        any = true;
    }
    return any;
}

void pleat__views_release(pleat__heap *heap)
{
    for (pleat__dropped *at = heap->refused, *next; at != NULL; at = next) {
        next = at->next;
        (void)heap->vmm.ops->event_destroy(heap->vmm.self, at->event);
        pleat__arena_free(heap->arena, at);
    }
    for (uint32_t i = 0; i < heap->view_count; i++)
        pleat__view_free(heap, heap->views[i]);
    heap->refused = NULL;
    heap->view_count = 0;
}
