/*
 * stitch.c: a contiguous view for a large request from free memory that is not contiguous.
 *
 * WHY   When no hole is large enough there usually is enough free memory all the same. A map costs
 *       25 us a chunk on an H200, creating and mapping a new one 35 us and the memory itself.
 * HOW   GMLake's order (its section 4.3), S1 to S5:
 *         S1, S2 reuse    a cached view of the size, or a somewhat larger one, that is free now
 *         S3 stitch       whole free chunks, those of the smallest runs first
 *         S4 insufficient chunks of other streams, then just as many new chunks as are missing
 *         S5              the error of the device or the budget goes to the caller
 *       It departs from GMLake in three ways. Its runs are taken smallest first: largest first
 *       would destroy what the next large request needs. A view may begin in the middle of a chunk
 *       and end in the middle of one, where free leftovers do so, so that it costs no more bytes
 *       than the request has (without that: 0.3 to 1.1 % more memory on mixture-of-experts jobs).
 *       And the chunks stay mapped at home, where they serve other requests meanwhile: views are
 *       aliases, and occupancy keeps the two apart.
 * DROP  Idle views beyond a limit of alias pages go, the longest unused first, also those that a
 *       followed slot lies in: it then finds its place dead, and gets another. Their request was
 *       freed in its stream's order, so the GPU may still use them: the mapper unmaps them when an
 *       event recorded at the drop is over.
 * LOCK  What is gathered is occupied before the lock is left for the map (gate.h).
 */
#include <runtime/heap.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

/* A cached view serves a request of at least this share of its size: eighths. */
#define REUSE_EIGHTHS 4u

/* ---- S1, S2 ---- */

/* The first view of at least `granules`. */
static uint32_t view_floor(const pleat__heap *heap, uint32_t granules)
{
    uint32_t low = 0, high = heap->view_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (heap->views[middle]->runs.granules < granules)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static pleat__place place_in(pleat__view *view, uint32_t granules)
{
    return (pleat__place){
        .address = view->runs.address, .several = &view->runs, .granules = granules};
}

static bool view_is_free(const pleat__heap *heap, const pleat__view *view, uint32_t granules)
{
    for (uint32_t i = 0; granules != 0; i++) {
        pleat__extent run = view->runs.runs[i];
        if (run.count > granules)
            run.count = granules;
        if (!pleat__occupancy_is_free(&heap->pool->occupancy, run))
            return false;
        granules -= run.count;
    }
    return true;
}

/* Whether all its chunks are still of the stream's large zone: others may have taken them over. */
static bool view_is_of(const pleat__heap *heap, const pleat__view *view, uint8_t zone)
{
    if (view->stream != zone / 2)
        return false;
    for (uint32_t i = 0; i < view->runs.count; i++) {
        uint32_t first = pleat__pool_chunk_of(heap->pool, view->runs.runs[i].begin);
        uint32_t last = pleat__pool_chunk_of(heap->pool, view->runs.runs[i].begin +
                                                             view->runs.runs[i].count - 1);
        for (uint32_t c = first; c <= last; c++)
            if (heap->zone_of[c] != zone)
                return false;
    }
    return true;
}

static bool reuse(pleat__heap *heap, uint32_t granules, uint8_t zone, pleat__place *place)
{
    uint64_t most = (uint64_t)granules * 8 / REUSE_EIGHTHS;
    for (uint32_t i = view_floor(heap, granules);
         i < heap->view_count && heap->views[i]->runs.granules <= most; i++) {
        pleat__view *view = heap->views[i];
        if (!view_is_free(heap, view, granules) || !view_is_of(heap, view, zone))
            continue;
        heap->views_reused++;
        *place = place_in(view, granules);
        return true;
    }
    return false;
}

/* ---- S3 ---- */

static pleat_result gather_add(pleat__heap *heap, pleat__extent run)
{
    PLEAT_TRY(pleat__arena_grow(heap->arena, &heap->gathered, &heap->gathered_capacity,
                                heap->gathered_count, sizeof *heap->gathered));
    heap->gathered[heap->gathered_count++] = run;
    return PLEAT_OK;
}

static bool single(const pleat__heap *heap, uint32_t granule)
{
    return pleat__pool_single(heap->pool, pleat__pool_chunk_of(heap->pool, granule));
}

/* The longest free end of a chunk whose beginning is in use: where the view begins. */
static pleat__extent find_head(const pleat__heap *heap, const pleat__extents *zone)
{
    uint32_t full = heap->pool->occupancy.full;
    pleat__extent head = {0, 0};
    for (pleat__extent run = pleat__extents_best(zone, 1); run.count != 0;
         run = pleat__extents_after(zone, run)) {
        uint32_t offset = run.begin & (full - 1);
        if (offset != 0 && run.count >= full - offset && full - offset > head.count &&
            single(heap, run.begin))
            head = (pleat__extent){run.begin, full - offset};
    }
    return head;
}

/* The shortest free beginning of a chunk whose end is in use that holds the rest: where it ends. */
static pleat__extent find_tail(const pleat__heap *heap, const pleat__extents *zone, uint32_t rest,
                               pleat__extent head)
{
    uint32_t full = heap->pool->occupancy.full;
    for (pleat__extent run = pleat__extents_best(zone, rest); rest != 0 && run.count != 0;
         run = pleat__extents_after(zone, run)) {
        uint32_t end = run.begin + run.count, part = end & (full - 1);
        bool has_head = head.count != 0 && head.begin >= run.begin && head.begin < end;
        if (part >= rest && part <= run.count && !has_head && single(heap, end - part))
            return (pleat__extent){end - part, rest};
    }
    return (pleat__extent){0, 0};
}

/* Whole free chunks that can be mapped elsewhere, the smallest runs first. */
static pleat_result gather_whole(pleat__heap *heap, const pleat__extents *zone, uint32_t *missing)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    for (pleat__extent run = pleat__extents_best(zone, occupancy->full);
         run.count != 0 && *missing != 0; run = pleat__extents_after(zone, run)) {
        uint64_t first = pleat__ceil_div(run.begin, occupancy->full);
        uint64_t last = (run.begin + run.count) >> occupancy->shift;
        for (uint64_t c = first; c < last && *missing != 0; c++) {
            if (!pleat__pool_single(heap->pool, (uint32_t)c))
                continue;
            uint32_t count = *missing < occupancy->full ? *missing : occupancy->full;
            PLEAT_TRY(gather_add(heap, (pleat__extent){(uint32_t)c << occupancy->shift, count}));
            *missing -= count;
        }
    }
    return PLEAT_OK;
}

/* Fills heap->gathered with one run for each chunk of a view; *missing granules were not found. */
static pleat_result gather(pleat__heap *heap, uint8_t zone_index, uint32_t granules,
                           uint32_t *missing)
{
    const pleat__extents *zone = &heap->zones[zone_index];
    heap->gathered_count = 0;
    *missing = granules;
    pleat__extent head = find_head(heap, zone);
    if (head.count != 0) {
        PLEAT_TRY(gather_add(heap, head));
        *missing -= head.count;
    }
    pleat__extent tail = find_tail(heap, zone, *missing & (heap->pool->occupancy.full - 1), head);
    *missing -= tail.count;
    PLEAT_TRY(gather_whole(heap, zone, missing));
    return tail.count == 0 ? PLEAT_OK : gather_add(heap, tail);
}

/* ---- making a view ---- */

static void view_free(pleat__arena *arena, pleat__view *view)
{
    pleat__arena_free(arena, view->runs.runs);
    pleat__arena_free(arena, view);
}

/* What was gathered as a view's runs, neighbours joined. */
static pleat__view *view_new(pleat__heap *heap, uint32_t granules, uint8_t zone)
{
    pleat__view *view = pleat__arena_calloc(heap->arena, 1, sizeof *view);
    if (view == NULL)
        return NULL;
    pleat__extent *runs =
        pleat__arena_alloc(heap->arena, heap->gathered_count * sizeof *view->runs.runs);
    if (runs == NULL) {
        pleat__arena_free(heap->arena, view);
        return NULL;
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < heap->gathered_count; i++) {
        pleat__extent run = heap->gathered[i];
        if (count != 0 && runs[count - 1].begin + runs[count - 1].count == run.begin)
            runs[count - 1].count += run.count;
        else
            runs[count++] = run;
    }
    view->runs = (pleat__runs){.runs = runs, .count = count, .granules = granules};
    view->pages = heap->gathered_count;
    view->stream = zone / 2;
    return view;
}

static pleat_result view_map(pleat__heap *heap, pleat__view *view)
{
    uint32_t *chunks = pleat__arena_alloc(heap->arena, view->pages * sizeof *chunks);
    if (chunks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view");
    for (uint32_t i = 0; i < view->pages; i++)
        chunks[i] = pleat__pool_chunk_of(heap->pool, heap->gathered[i].begin);
    pleat_result result = pleat__pool_view(heap->pool, chunks, view->pages, &view->page);
    pleat__arena_free(heap->arena, chunks);
    uint64_t offset = heap->gathered[0].begin & (heap->pool->occupancy.full - 1);
    view->runs.address =
        heap->pool->base + view->page * heap->pool->page_bytes + (offset << PLEAT__GRANULE_SHIFT);
    return result;
}

static void view_insert(pleat__heap *heap, pleat__view *view)
{
    uint32_t at = view_floor(heap, view->runs.granules);
    memmove(&heap->views[at + 1], &heap->views[at], (heap->view_count - at) * sizeof *heap->views);
    heap->views[at] = view;
    heap->view_count++;
}

/* All idle views go, and the lock is left until they have gone. */
static bool make_room(pleat__heap *heap)
{
    if (!pleat__heap_drop_views(heap, 0))
        return false;
    pleat__gate_leave(heap->pool->gate);
    pleat__gate_drain(heap->pool->gate);
    pleat__gate_enter(heap->pool->gate);
    return true;
}

static pleat_result view_make(pleat__heap *heap, uint32_t granules, uint8_t zone,
                              pleat__place *place)
{
    PLEAT_TRY(pleat__arena_grow(heap->arena, &heap->views, &heap->view_capacity, heap->view_count,
                                sizeof *heap->views));
    if (heap->pool->view_pages + heap->gathered_count > heap->view_limit)
        pleat__heap_drop_views(heap, heap->view_limit > heap->gathered_count
                                         ? heap->view_limit - heap->gathered_count
                                         : 0);
    pleat__view *view = view_new(heap, granules, zone);
    if (view == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view");
    *place = place_in(view, granules);
    PLEAT_CHECK(pleat__heap_occupy(heap, place));
    pleat_result result = view_map(heap, view);
    if (result == PLEAT_E_LIMIT && make_room(heap))
        result = view_map(heap, view);
    if (result != PLEAT_OK) {
        pleat__heap_give(heap, place);
        view_free(heap->arena, view);
        return result;
    }
    view_insert(heap, view);
    *place = place_in(view, granules);
    return PLEAT_OK;
}

/* More whole chunks for the zone: other streams' first. */
static pleat_result supply(pleat__heap *heap, uint8_t zone, uint32_t chunks)
{
    uint32_t got;
    PLEAT_TRY(pleat__heap_steal(heap, zone, chunks, &got));
    return got == chunks ? PLEAT_OK : pleat__heap_grow(heap, zone, chunks - got);
}

/* Whether what is new has made one run of enough with what it lies beside. */
static bool in_one_run(pleat__heap *heap, uint32_t granules, uint8_t zone, pleat__place *place)
{
    pleat__extent run = pleat__extents_best(&heap->zones[zone], granules);
    if (run.count == 0)
        return false;
    run.count = granules;
    *place = (pleat__place){
        .address = pleat__pool_address(heap->pool, run.begin), .run = run, .granules = granules};
    return true;
}

pleat_result pleat__stitch(pleat__heap *heap, uint32_t granules, uint8_t zone, pleat__place *place)
{
    uint32_t full = heap->pool->occupancy.full, missing;
    if (reuse(heap, granules, zone, place)) {
        PLEAT_CHECK(pleat__heap_occupy(heap, place));
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__gate_turn(heap->pool->gate));
    PLEAT_TRY(gather(heap, zone, granules, &missing));
    while (missing != 0) {
        PLEAT_TRY(supply(heap, zone, (uint32_t)pleat__ceil_div(missing, full)));
        if (in_one_run(heap, granules, zone, place)) {
            PLEAT_CHECK(pleat__heap_occupy(heap, place));
            return PLEAT_OK;
        }
        PLEAT_TRY(gather(heap, zone, granules, &missing));
    }
    return view_make(heap, granules, zone, place);
}

/* ---- dropping ---- */

void pleat__view_pin(const pleat__place *place)
{
    if (place->several != NULL)
        ((pleat__view *)place->several)->pins++;
}

void pleat__view_unpin(pleat__arena *arena, const pleat__place *place)
{
    pleat__view *view = (pleat__view *)place->several;
    if (view != NULL && --view->pins == 0 && view->unmapped)
        view_free(arena, view);
}

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
    if (ops->event_record(heap->vmm.self, dropped->event, heap->streams[view->stream]) != PLEAT_OK)
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
    view->runs.dead = true;
    view->unmapped = true;
    if (view->pins == 0)
        view_free(heap->arena, view);
    hand_over(heap, dropped);
    return true;
}

/* The idle view that was used the longest ago; view_count when there is none. */
static uint32_t view_oldest(const pleat__heap *heap)
{
    uint32_t oldest = heap->view_count;
    for (uint32_t i = 0; i < heap->view_count; i++) {
        const pleat__view *view = heap->views[i];
        if (!view->runs.live &&
            (oldest == heap->view_count || view->runs.used < heap->views[oldest]->runs.used))
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

void pleat__stitch_release(pleat__heap *heap)
{
    for (pleat__dropped *at = heap->refused, *next; at != NULL; at = next) {
        next = at->next;
        (void)heap->vmm.ops->event_destroy(heap->vmm.self, at->event);
        pleat__arena_free(heap->arena, at);
    }
    for (uint32_t i = 0; i < heap->view_count; i++)
        view_free(heap->arena, heap->views[i]);
    heap->refused = NULL;
    heap->view_count = 0;
}
