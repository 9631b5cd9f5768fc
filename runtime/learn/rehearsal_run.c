/*
 * rehearsal_run.c: copying a heap, and running an iteration's requests against the copy (see
 * rehearsal.h).
 */
#include <runtime/learn/rehearsal_run.h>

#include <internal/error.h>
#include <runtime/memory/views.h>
#include <string.h>
#include <vmm/dry.h>

#define NONE UINT32_MAX
/* Requests that are rehearsed in one go, unless they come to so many steps before: some
 * milliseconds, for which a request of the job that needs the driver waits where it is not yet
 * known whether that is on its way. (All in one go took 14 to 118 ms on a busy machine.) */
#define PIECE 512u
#define STEPS 32u

/* Of a request. */
enum { EVENT_ALLOC, EVENT_WAIT, EVENT_FREE, EVENTS };

/* ---- the copy ---- */

static void *copy(pleat__arena *arena, const void *from, size_t bytes)
{
    void *to = pleat__arena_alloc(arena, bytes + 1);
    if (to != NULL && bytes != 0)
        memcpy(to, from, bytes);
    return to;
}

static bool copy_chunks(pleat__score *score, const pleat__heap *heap)
{
    const pleat__pool *pool = heap->pool;
    pleat__arena *arena = score->arena;
    uint32_t count = pool->count;
    if (pool->absent != 0 || heap->zone_capacity < count)
        return false;
    score->chunk_count = count;
    score->next_home = pool->next_home;
    score->home = copy(arena, pool->home, count * sizeof *pool->home);
    score->first = copy(arena, pool->first, count * sizeof *pool->first);
    score->breaks = copy(arena, pool->breaks, count);
    score->zone_of = copy(arena, heap->zone_of, count);
    score->tenants = copy(arena, heap->tenants, count * sizeof *heap->tenants);
    score->pages = pleat__arena_alloc(arena, count * sizeof *score->pages + 1);
    if (score->home == NULL || score->first == NULL || score->breaks == NULL ||
        score->zone_of == NULL || score->tenants == NULL || score->pages == NULL)
        return false;
    for (uint32_t c = 0; c < count; c++)
        score->pages[c] = pool->chunks[c]->pages;
    return true;
}

static bool copy_views(pleat__score *score, const pleat__heap *heap)
{
    score->views = pleat__arena_alloc(score->arena, heap->view_count * sizeof *score->views + 1);
    score->view_count = heap->view_count;
    for (uint32_t i = 0; score->views != NULL && i < heap->view_count; i++) {
        const pleat__view *view = heap->views[i];
        uint32_t *chunks = copy(score->arena, view->chunks, view->pages * sizeof *chunks);
        if (chunks == NULL)
            return false;
        score->views[i] =
            (pleat__view_copy){chunks, view->pages, view->live, view->used, view->stream};
    }
    return score->views != NULL;
}

static bool copy_several(pleat__score *score, pleat__place *place)
{
    const pleat__runs *from = place->several;
    pleat__runs *to = pleat__arena_alloc(score->arena, sizeof *to);
    if (to == NULL)
        return false;
    *to = (pleat__runs){.runs = copy(score->arena, from->runs, from->count * sizeof *from->runs),
                        .count = from->count,
                        .granules = from->granules};
    place->several = to;
    return to->runs != NULL;
}

static bool copy_live(pleat__score *score, const pleat__placed *placed)
{
    score->live = pleat__arena_alloc(score->arena, (placed->count + 1u) * sizeof *score->live);
    for (uint32_t i = 0; score->live != NULL && i <= placed->mask; i++) {
        pleat__place *place = &score->live[score->live_count];
        if (placed->entries[i].address == 0)
            continue;
        *place = placed->entries[i];
        if (place->lane != 0 || (place->several != NULL && !copy_several(score, place)))
            return false;
        score->live_count++;
    }
    return score->live != NULL;
}

pleat__score *pleat__score_new(pleat__heap *heap, const pleat__placed *placed)
{
    pleat__arena *arena;
    /* What was given back lately is found in another way than the rest: the copy has no such notes.
     */
    if (heap->stream_count > PLEAT__BEYOND || pleat__heap_sync(heap) != PLEAT_OK ||
        pleat__arena_create(&arena) != PLEAT_OK)
        return NULL;
    pleat__score *score = pleat__arena_calloc(arena, 1, sizeof *score);
    if (score == NULL) {
        pleat__arena_destroy(arena);
        return NULL;
    }
    *score = (pleat__score){.arena = arena,
                            .page_bytes = heap->pool->page_bytes,
                            .device_bytes = pleat__space_device_bytes(heap->pool->space),
                            .view_limit = heap->view_limit,
                            .view_pages = heap->pool->view_pages,
                            .asked = heap->asked,
                            .stream_count = heap->stream_count,
                            .lends = heap->lends,
                            .small_granules = heap->small_granules,
                            .account = heap->account,
                            .now_ns = pleat__account_now(&heap->account),
                            .most_used = heap->most_used};
    memcpy(score->streams, heap->streams, sizeof score->streams);
    if (copy_chunks(score, heap) && copy_views(score, heap) && copy_live(score, placed))
        return score;
    pleat__score_free(score);
    return NULL;
}

void pleat__score_free(pleat__score *score)
{
    if (score != NULL)
        pleat__arena_destroy(score->arena);
}

/* ---- a heap like it ---- */

/* What is played on. */
struct pleat__stage {
    pleat__score *score;
    pleat__arena *arena;
    pleat__steps *steps;
    pleat__dry dry;
    pleat__space *space;
    pleat__gate gate;
    pleat__pool pool;
    pleat__heap heap;
    uint64_t ordered;
    /* By request of the iteration before: where it is. granules 0: it is not. */
    pleat__place *places;
    pleat__live live; /* by address: the places of what is there */
    /* Requests whose frees wait, the oldest of each stream first; by request the one behind it. */
    uint32_t *behind;
    uint32_t oldest[PLEAT__STREAMS], newest[PLEAT__STREAMS];
    uint64_t live_bytes;
    /* By position what becomes of which request: EVENTS times its number, and which of them; NONE:
     * nothing of this iteration. The next one, and the request that came last. */
    uint32_t *events;
    uint32_t event_count, at, request;
};

static pleat_result set_chunks(pleat__stage *s)
{
    const pleat__score *score = s->score;
    pleat__pool *pool = &s->pool;
    PLEAT_TRY(pleat__pool_reserve(pool, score->chunk_count + 1));
    for (uint32_t c = 0; c < score->chunk_count; c++) {
        pool->home[c] = score->home[c];
        pool->first[c] = score->first[c];
        pool->breaks[c] = score->breaks[c];
        if (score->first[c] != c) {
            pool->chunks[c] = pool->chunks[c - 1];
            continue;
        }
        /* Not mapped: nobody asks for what lies at a home that is in use. */
        PLEAT_TRY(pleat__space_chunk_get(s->space, score->pages[c], &pool->chunks[c]));
    }
    pool->count = score->chunk_count;
    pool->next_home = score->next_home;
    return PLEAT_OK;
}

static pleat_result set_views(pleat__stage *s)
{
    const pleat__score *score = s->score;
    for (uint32_t i = 0; i < score->view_count; i++) {
        const pleat__view_copy *from = &score->views[i];
        PLEAT_TRY(pleat__views_reserve(&s->heap));
        pleat__view *view = pleat__view_new(&s->heap, from->pages, from->stream);
        if (view == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view");
        memcpy(view->chunks, from->chunks, from->pages * sizeof *view->chunks);
        view->live = from->live;
        view->used = from->used;
        pleat__views_add(&s->heap, view);
        /* Not mapped either, but it may be dropped, and its pages are given then. */
        PLEAT_TRY(pleat__space_take(s->space, view->pages, &view->page));
    }
    return PLEAT_OK;
}

static bool take_run(pleat__stage *s, pleat__extent run)
{
    return pleat__occupancy_take(&s->pool.occupancy, run);
}

static bool take_place(pleat__stage *s, const pleat__place *place)
{
    if (place->several == NULL)
        return take_run(s, (pleat__extent){place->run.begin, place->granules});
    uint32_t left = place->granules;
    for (uint32_t k = 0; left != 0; k++) {
        pleat__extent run = place->several->runs[k];
        run.count = run.count < left ? run.count : left;
        if (!take_run(s, run))
            return false;
        left -= run.count;
    }
    return true;
}

static pleat_result set_live(pleat__stage *s)
{
    PLEAT_TRY(pleat__live_create(s->arena, &s->live));
    for (uint32_t i = 0; i < s->score->live_count; i++) {
        pleat__place *place = &s->score->live[i];
        if (!take_place(s, place))
            return pleat__fail(PLEAT_E_STATE, "two allocations in one place");
        PLEAT_TRY(pleat__live_reserve(&s->live));
        pleat__live_insert(&s->live, place->address, place);
    }
    return PLEAT_OK;
}

/* With the turn of a gate of its own, as a heap is used. */
static pleat_result set_heap(pleat__stage *s, pleat_vmm vmm)
{
    const pleat__score *score = s->score;
    pleat__conf conf;
    PLEAT_TRY(pleat__conf_read("", &conf));
    PLEAT_TRY(pleat__pool_init(&s->pool, s->arena, s->space, &s->gate, NULL));
    PLEAT_TRY(pleat__heap_init(&s->heap, vmm, 0, s->arena, &s->pool, &conf));
    s->heap.streams_ordered = &s->ordered;
    s->heap.small_granules = score->small_granules;
    s->heap.view_limit = score->view_limit;
    s->heap.asked = score->asked;
    s->pool.view_pages = score->view_pages;
    s->heap.most_used = score->most_used;
    s->heap.stream_count = score->stream_count;
    s->heap.lends = score->lends;
    memcpy(s->heap.streams, score->streams, sizeof s->heap.streams);
    s->heap.account = score->account;
    s->heap.account.vmm = vmm;
    pleat__gate_leave(&s->gate);
    pleat_result result = set_chunks(s);
    pleat__gate_enter(&s->gate);
    PLEAT_TRY(result);
    PLEAT_TRY(set_views(s));
    PLEAT_TRY(set_live(s));
    PLEAT_TRY(pleat__heap_sync(&s->heap));
    memcpy(s->heap.zone_of, score->zone_of, score->chunk_count);
    memcpy(s->heap.tenants, score->tenants, score->chunk_count * sizeof *score->tenants);
    s->heap.stale = true;
    return PLEAT_OK;
}

static pleat_result list_events(pleat__stage *s)
{
    const pleat__score *score = s->score;
    uint32_t origin = score->before[score->begin].begin, count = score->before_end - origin;
    s->events = pleat__arena_alloc(s->arena, (count + 1u) * sizeof *s->events);
    if (s->events == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to rehearse %u events", count);
    for (uint32_t i = 0; i < count; i++)
        s->events[i] = NONE;
    for (uint32_t i = score->begin; i < score->before_count; i++) {
        const pleat__life *life = &score->before[i];
        s->events[life->begin - origin] = EVENTS * i + EVENT_ALLOC;
        if (life->asked != PLEAT__NEVER)
            s->events[life->asked - origin] = EVENTS * i + EVENT_WAIT;
        if (life->end != PLEAT__NEVER)
            s->events[life->end - origin] = EVENTS * i + EVENT_FREE;
    }
    s->event_count = count;
    s->at = score->before[score->last].begin - origin + 1;
    s->request = score->last;
    return PLEAT_OK;
}

static pleat_result set_requests(pleat__stage *s)
{
    pleat__score *score = s->score;
    uint32_t requests = score->before_count - score->begin;
    s->places = pleat__arena_calloc(s->arena, score->before_count, sizeof *s->places);
    score->least_live =
        pleat__arena_calloc(score->arena, requests / PLEAT__BAR + 1u, sizeof *score->least_live);
    s->behind = pleat__arena_alloc(s->arena, score->before_count * sizeof *s->behind);
    if (s->places == NULL || s->behind == NULL || score->least_live == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to rehearse %u requests", requests);
    for (uint32_t i = 0; i < PLEAT__STREAMS; i++)
        s->oldest[i] = NONE;
    PLEAT_TRY(list_events(s));
    s->live_bytes = score->live_bytes;
    return PLEAT_OK;
}

/* Arrays and records go with the arena; the space and the gate hold more. */
static pleat_result set_up(pleat__score *score)
{
    const pleat__space_options options = {.device = 0};
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat__stage *s = pleat__arena_calloc(arena, 1, sizeof *s);
    if (s == NULL) {
        pleat__arena_destroy(arena);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to rehearse");
    }
    score->stage = s;
    s->score = score;
    s->arena = arena;
    s->dry = (pleat__dry){.page_bytes = score->page_bytes,
                          .device_bytes = score->device_bytes,
                          .clock_ns = score->now_ns,
                          .page_ns = score->account.page_ns};
    pleat_vmm vmm = pleat__vmm_dry(&s->dry);
    PLEAT_TRY(pleat__space_create(vmm, arena, &options, &s->space));
    pleat_result result = pleat__gate_init(&s->gate, vmm, 0, arena, s->space);
    if (result != PLEAT_OK) {
        pleat__space_destroy(s->space);
        s->space = NULL;
        return result;
    }
    pleat__gate_lock_turn(&s->gate);
    result = set_heap(s, vmm);
    if (result == PLEAT_OK)
        result = set_requests(s);
    pleat__gate_unlock(&s->gate);
    return result;
}

static void tear_down(pleat__score *score)
{
    pleat__stage *s = score->stage;
    score->stage = NULL;
    if (s == NULL)
        return;
    if (s->space != NULL) {
        pleat__gate_release(&s->gate);
        pleat__space_destroy(s->space);
    }
    pleat__arena_destroy(s->arena);
}

/* ---- playing ---- */

/* What the opening of this iteration allocated is there under its names of the one before, and is
 * not what lay there then. */
static void set_opening(pleat__stage *s)
{
    const pleat__score *score = s->score;
    for (uint32_t i = 0; i < 2 * PLEAT__OPENING && score->begin + i < score->before_count; i++) {
        const pleat__place *place =
            score->opening[i] != 0 ? pleat__live_remove(&s->live, score->opening[i]) : NULL;
        if (place != NULL)
            s->places[score->begin + i] = *place;
    }
}

/* Whether a request of the iteration before is not made again: it is there. */
static bool stays(const pleat__stage *s, const pleat__life *life)
{
    return life->end == PLEAT__NEVER && life->address != 0 &&
           pleat__live_find(&s->live, life->address) != NULL;
}

static uint64_t bytes_of(uint32_t granules)
{
    return (uint64_t)granules << PLEAT__GRANULE_SHIFT;
}

static pleat_result play_alloc(pleat__stage *s, uint32_t request)
{
    const pleat__life *life = &s->score->before[request];
    uint32_t due = request - s->score->begin, exist = s->pool.count;
    uint64_t reused = s->heap.views_reused;
    bool stitched;
    pleat__place *place = &s->places[request];
    uint32_t granules = (uint32_t)pleat__ceil_div(life->bytes, PLEAT__GRANULE_BYTES);
    PLEAT_TRY(
        pleat__heap_alloc(&s->heap, granules, life->stream, PLEAT__KNOWN_NOT, place, &stitched));
    s->live_bytes += bytes_of(granules);
    if (s->pool.count != exist)
        PLEAT_TRY(pleat__steps_grow(s->steps, due, exist, s->pool.count - exist));
    if (stitched && s->heap.views_reused == reused)
        PLEAT_TRY(pleat__steps_view(s->steps, due, s->pool.count, place->several->view->chunks,
                                    place->several->view->pages));
    return PLEAT_OK;
}

static void play_free(pleat__stage *s, uint32_t request)
{
    pleat__place *place = &s->places[request];
    if (place->granules == 0)
        return;
    s->live_bytes -= bytes_of(place->granules);
    pleat__heap_give(&s->heap, place);
    *place = (pleat__place){0};
}

/* Its free waits for other streams. */
static void play_wait(pleat__stage *s, uint32_t request)
{
    uint16_t stream = s->score->before[request].stream;
    if (s->oldest[stream] == NONE)
        s->oldest[stream] = request;
    else
        s->behind[s->newest[stream]] = request;
    s->newest[stream] = request;
    s->behind[request] = NONE;
}

static pleat_result play_event(pleat__stage *s, uint32_t event, uint32_t request)
{
    if (event == EVENT_FREE)
        play_free(s, request);
    else if (event == EVENT_WAIT && s->places[request].granules != 0)
        play_wait(s, request);
    else if (event == EVENT_ALLOC && !stays(s, &s->score->before[request]))
        return play_alloc(s, request);
    return PLEAT_OK;
}

/* The heap wants back what waits: the oldest first. What has come back by itself is passed over. */
static bool order(void *opaque, uint16_t stream, uint32_t granules)
{
    pleat__stage *s = opaque;
    uint32_t given = 0;
    while ((s->score->waiting >> stream & 1) != 0 && s->oldest[stream] != NONE &&
           given < granules) {
        uint32_t request = s->oldest[stream];
        s->oldest[stream] = s->behind[request];
        given += s->places[request].granules;
        play_free(s, request);
    }
    return given != 0;
}

static void note_live(pleat__stage *s, uint32_t request)
{
    pleat__score *score = s->score;
    uint32_t bar = (request - score->begin) / PLEAT__BAR;
    for (; score->bars <= bar; score->bars++)
        score->least_live[score->bars] = s->live_bytes;
    if (s->live_bytes < score->least_live[bar])
        score->least_live[bar] = s->live_bytes;
}

/* The next piece, up to an allocation. */
static pleat_result play(pleat__stage *s)
{
    uint32_t end = s->request + PIECE;
    for (; s->at < s->event_count && s->request < end && s->steps->count < STEPS; s->at++) {
        uint32_t event = s->events[s->at];
        if (event == NONE)
            continue;
        s->request = event % EVENTS == EVENT_ALLOC ? event / EVENTS : s->request;
        PLEAT_TRY(play_event(s, event % EVENTS, event / EVENTS));
        note_live(s, s->request);
    }
    return PLEAT_OK;
}

static pleat_result play_piece(pleat__score *score, pleat__steps *steps, uint32_t *until)
{
    bool begins = score->stage == NULL;
    if (begins)
        PLEAT_TRY(set_up(score));
    pleat__stage *s = score->stage;
    pleat__gate_lock_turn(&s->gate);
    s->steps = steps;
    s->heap.order = order;
    s->heap.order_context = s;
    if (begins)
        set_opening(s);
    pleat_result result = play(s);
    pleat__gate_unlock(&s->gate);
    if (result == PLEAT_OK && s->at < s->event_count)
        *until = s->request - score->begin;
    return result;
}

pleat_result pleat__score_play(void *opaque, pleat__steps *steps, uint32_t *until)
{
    pleat__score *score = opaque;
    *until = UINT32_MAX;
    pleat_result result = steps != NULL ? play_piece(score, steps, until) : PLEAT_OK;
    if (*until == UINT32_MAX)
        tear_down(score);
    return result;
}
