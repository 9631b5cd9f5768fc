/*
 * coming.c: see coming.h.
 */
#include <runtime/learn/coming.h>

#include <internal/error.h>

void pleat__pieces_free(pleat__arena *arena, pleat__pieces *pieces)
{
    pleat__arena_free(arena, pieces->pieces);
    pleat__arena_free(arena, pieces->sorted);
    pleat__arena_free(arena, pieces->urgent);
    pleat__arena_free(arena, pieces->shown);
    pleat__arena_free(arena, pieces->cut_pages);
    *pieces = (pleat__pieces){.count = 0};
}

void pleat__coming_release(pleat__coming *coming)
{
    if (coming->arena == NULL)
        return;
    pleat__gate *gate = coming->heap->pool->gate;
    pleat__gate_lock(gate);
    coming->over = true;
    pleat__gate_unlock(gate);
    pleat__worker_release(&coming->worker);
    pleat__pieces_free(coming->arena, &coming->pieces);
    coming->heap->pool->cuts = NULL;
    *coming = (pleat__coming){0};
}

/* ---- the end ---- */

/* Only what was mapped of the views is the instance's; the other pages go back. */
static void keep_mapped(pleat__coming *coming)
{
    pleat__instance *instance = coming->instance;
    pleat__space *space = coming->heap->pool->space;
    uint64_t page = instance->views[0].page;
    instance->view_runs = 0;
    instance->view_pages = 0;
    for (uint32_t i = 0; i < coming->pieces.count; i++) {
        const pleat__piece *piece = &coming->pieces.pieces[i];
        if (!piece->view)
            continue;
        if (!piece->made) {
            pleat__space_give(space, page + piece->first, piece->count);
            continue;
        }
        instance->views[instance->view_runs++] =
            (pleat__page_run){page + piece->first, piece->count};
        instance->view_pages += piece->count;
    }
}

/* All is there, or no more comes. */
static void finish(pleat__coming *coming)
{
    pleat__instance *instance = coming->instance;
    const pleat__follow *follow = instance->follow;
    if (coming->next < coming->pieces.count) {
        instance->stale = true;
        coming->refused = instance->x;
        keep_mapped(coming);
    } else {
        for (uint32_t i = 0; i < instance->list_count; i++)
            follow->several[i].unmapped = false;
    }
    pleat__pieces_free(coming->arena, &coming->pieces);
    coming->heap->pool->cuts = NULL;
    coming->instance = NULL;
}

/* ---- making ---- */

/* The chunks of a view that are missing: pieces of their own that are later in the list. */
static pleat_result make_shown(const pleat__coming *coming, const pleat__piece *piece)
{
    const uint32_t *shown = coming->pieces.shown + piece->first;
    pleat__chunk *const *chunks = coming->heap->pool->chunks;
    for (uint32_t i = 0, next; i < piece->count; i = next) {
        next = i + 1;
        if (chunks[shown[i]] != NULL)
            continue;
        while (next < piece->count && shown[next] == shown[next - 1] + 1 &&
               chunks[shown[next]] == NULL)
            next++;
        PLEAT_TRY(pleat__heap_make(coming->heap, shown[i], next - i, coming->pieces.block));
        chunks = coming->heap->pool->chunks;
    }
    return PLEAT_OK;
}

static pleat_result map_piece(const pleat__coming *coming, const pleat__piece *piece)
{
    pleat__pool *pool = coming->heap->pool;
    const uint32_t *shown = coming->pieces.shown + piece->first;
    PLEAT_TRY(make_shown(coming, piece));
    uint32_t handles = 0;
    pleat__chunk **run = pleat__arena_alloc(coming->arena, piece->count * sizeof *run);
    if (run == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view");
    /* A handle that memory was short for may be smaller, none is larger than its piece. */
    if (pleat__pool_whole(pool, shown, piece->count, piece->count) != piece->count) {
        pleat__arena_free(coming->arena, run);
        return pleat__fail(PLEAT_E_STATE, "a chunk of a view is not there");
    }
    for (uint32_t i = 0; i < piece->count; i += run[handles++]->pages)
        run[handles] = pool->chunks[shown[i]];
    uint64_t page = coming->instance->views[0].page + piece->first;
    pleat__gate_leave(pool->gate);
    pleat_result result = pleat__space_map(pool->space, page, run, handles);
    pleat__gate_enter(pool->gate);
    if (result == PLEAT_OK)
        pool->view_pages += piece->count;
    pleat__arena_free(coming->arena, run);
    return result;
}

/* The one that a request waits for, or the next. */
static pleat__piece *next_piece(pleat__coming *coming)
{
    pleat__piece *pieces = coming->pieces.pieces;
    for (; coming->urgent_next < coming->urgent_count; coming->urgent_next++) {
        pleat__piece *piece = &pieces[coming->pieces.urgent[coming->urgent_next]];
        if (!piece->made)
            return piece;
    }
    return &pieces[coming->next];
}

/* With the turn: the next piece. false: there is none for now. */
static bool work_on(void *context)
{
    pleat__coming *coming = context;
    pleat__pieces *pieces = &coming->pieces;
    if (coming->instance == NULL)
        return false;
    /* A verb would fail a capture in the driver's global mode. */
    if (!coming->over && coming->heap->pool->gate->captured_count != 0)
        return false;
    if (!coming->over) {
        pleat__piece *piece = next_piece(coming);
        pleat_result result =
            piece->view ? map_piece(coming, piece)
                        : pleat__heap_make(coming->heap, piece->first, piece->count, pieces->block);
        piece->made = result == PLEAT_OK;
        coming->over = coming->over || result != PLEAT_OK;
        while (coming->next < pieces->count && pieces->pieces[coming->next].made)
            coming->next++;
    }
    bool more = !coming->over && coming->next < pieces->count;
    if (!more)
        finish(coming);
    return more;
}

/* ---- life ---- */

void pleat__coming_init(pleat__coming *coming, pleat__arena *arena, pleat__heap *heap, bool waits,
                        uint64_t *waited)
{
    *coming = (pleat__coming){
        .arena = arena, .heap = heap, .waits = waits, .waited = waited, .refused = PLEAT__NO_X};
    pleat__worker_init(&coming->worker, arena, heap->pool->gate, work_on, coming);
}

void pleat__coming_begin(pleat__coming *coming, pleat__instance *instance,
                         const pleat__pieces *pieces)
{
    pleat__pool *pool = coming->heap->pool;
    coming->instance = instance;
    coming->round++;
    coming->pieces = *pieces;
    pool->cuts = &coming->pieces.cuts;
    coming->next = 0;
    coming->urgent_next = coming->urgent_count = 0;
    coming->over = false;
    coming->refused = PLEAT__NO_X;
    pleat__coming_go_on(coming);
    while (coming->waits && coming->worker.busy)
        pleat__worker_wait(&coming->worker);
}

void pleat__coming_go_on(pleat__coming *coming)
{
    if (coming->instance != NULL && coming->heap->pool->gate->captured_count == 0 &&
        pleat__worker_wake(&coming->worker) != PLEAT_OK)
        pleat__coming_stop(coming);
}

void pleat__coming_stop(pleat__coming *coming)
{
    if (coming->instance == NULL)
        return;
    coming->over = true;
    if (coming->worker.busy)
        return;
    /* Who has the turn may be growing the pool, and reads the cuts without the lock. */
    if (pleat__gate_turn(coming->heap->pool->gate) == PLEAT_OK)
        finish(coming);
    else
        (void)!pleat__worker_wake(&coming->worker);
}

void pleat__coming_clear(pleat__coming *coming)
{
    pleat__coming_stop(coming);
    while (coming->worker.busy)
        pleat__worker_wait(&coming->worker);
}

/* ---- waiting ---- */

/* Marks the pieces from sorted[low] to sorted[high - 1] that have something of first .. last; how
 * many are not made. */
static uint32_t press_range(pleat__coming *coming, uint32_t low, uint32_t high, uint64_t first,
                            uint64_t last)
{
    const uint32_t *sorted = coming->pieces.sorted;
    pleat__piece *pieces = coming->pieces.pieces;
    uint32_t end = high, count = 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const pleat__piece *piece = &pieces[sorted[middle]];
        if (piece->first + piece->count <= first)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < end && pieces[sorted[low]].first <= last; low++) {
        pleat__piece *piece = &pieces[sorted[low]];
        if (!piece->made && !piece->urgent)
            coming->pieces.urgent[coming->urgent_count++] = sorted[low];
        count += !piece->made;
        piece->urgent = true;
    }
    return count;
}

static uint32_t press_run(pleat__coming *coming, pleat__extent run)
{
    uint32_t shift = coming->heap->pool->occupancy.shift;
    return press_range(coming, 0, coming->pieces.chunk_count, run.begin >> shift,
                       (run.begin + run.count - 1) >> shift);
}

/* Where the place is in the views. */
static uint32_t press_views(pleat__coming *coming, const pleat__place *place)
{
    const pleat__pool *pool = coming->heap->pool;
    const pleat__page_run *views = &coming->instance->views[0];
    pleat_va begin = pool->base + views->page * pool->page_bytes;
    pleat_va end = begin + views->pages * pool->page_bytes;
    if (place->address < begin || place->address >= end)
        return 0;
    uint64_t at = place->address - begin;
    uint64_t last = at + ((uint64_t)place->granules << PLEAT__GRANULE_SHIFT) - 1;
    return press_range(coming, coming->pieces.chunk_count, coming->pieces.count,
                       at / pool->page_bytes, last / pool->page_bytes);
}

/* Marks what the place waits for; how many pieces, some of them twice. */
static uint32_t press(pleat__coming *coming, const pleat__place *place)
{
    uint32_t count = 0;
    if (place->several == NULL)
        count += press_run(coming, place->run);
    else
        for (uint32_t i = 0; i < place->several->count; i++)
            count += press_run(coming, place->several->runs[i]);
    return count + press_views(coming, place);
}

bool pleat__coming_await(pleat__coming *coming, const pleat__place *place)
{
    if (coming->instance == NULL || coming->over || place->granules == 0)
        return false;
    uint64_t round = coming->round;
    uint32_t missing = press(coming, place);
    pleat__coming_go_on(coming);
    *coming->waited += missing != 0 && coming->worker.busy;
    while (missing != 0 && coming->worker.busy) {
        pleat__worker_wait(&coming->worker);
        if (coming->round != round)
            return false;
        missing = coming->instance != NULL ? press(coming, place) : 0;
    }
    /* Its views are mapped. */
    if (missing == 0 && coming->instance != NULL && place->several != NULL)
        place->several->unmapped = false;
    return missing == 0;
}
