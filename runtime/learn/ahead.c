/*
 * ahead.c: see ahead.h.
 */
#include <runtime/learn/ahead.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

/* Chunks or handles that are made with the turn taken once: a request that waits for it waits no
 * longer than that takes, some 0.4 ms on an H200. A multiple of all handles' sizes. */
#define BATCH PLEAT__BLOCK
/* A view serves a request for others where no more than one chunk in so many differs. */
#define MOSTLY 4u

/* ---- lists ---- */

static pleat_result add_step(pleat__steps *steps, pleat__step step)
{
    PLEAT_TRY(pleat__arena_grow(steps->arena, &steps->steps, &steps->step_capacity, steps->count,
                                sizeof *steps->steps));
    steps->steps[steps->count++] = step;
    return PLEAT_OK;
}

pleat_result pleat__steps_grow(pleat__steps *steps, uint32_t due, uint32_t exist, uint32_t chunks)
{
    return add_step(steps, (pleat__step){.due = due, .exist = exist, .grow = chunks});
}

pleat_result pleat__steps_view(pleat__steps *steps, uint32_t due, uint32_t exist,
                               const uint32_t *chunks, uint32_t count)
{
    uint32_t first = steps->chunk_count;
    for (uint32_t i = 0; i < count; i++) {
        PLEAT_TRY(pleat__arena_grow(steps->arena, &steps->chunks, &steps->chunk_capacity,
                                    steps->chunk_count, sizeof *steps->chunks));
        steps->chunks[steps->chunk_count++] = chunks[i];
    }
    return add_step(steps,
                    (pleat__step){.due = due, .exist = exist, .first = first, .count = count});
}

/* What was listed goes behind the rest. */
static pleat_result add_steps(pleat__steps *to, const pleat__steps *from)
{
    for (uint32_t i = 0; i < from->count; i++) {
        const pleat__step *step = &from->steps[i];
        PLEAT_TRY(step->grow != 0 ? pleat__steps_grow(to, step->due, step->exist, step->grow)
                                  : pleat__steps_view(to, step->due, step->exist,
                                                      from->chunks + step->first, step->count));
    }
    return PLEAT_OK;
}

static void free_steps(pleat__steps *steps)
{
    pleat__arena_free(steps->arena, steps->steps);
    pleat__arena_free(steps->arena, steps->chunks);
    *steps = (pleat__steps){.arena = steps->arena};
}

static void forget_steps(pleat__ahead *ahead)
{
    free_steps(&ahead->steps);
    ahead->next = 0;
    ahead->first = 0;
    ahead->listed = 0;
}

/* ---- making ---- */

/* Whether there is a step to be carried out that is due by then. */
static bool is_due(const pleat__ahead *ahead, uint32_t by)
{
    return !ahead->over && ahead->next < ahead->steps.count &&
           ahead->steps.steps[ahead->next].due <= by;
}

/* Some of the chunks of a step, with the turn. */
static pleat_result make_chunks(pleat__ahead *ahead, pleat__step *step)
{
    pleat__pool *pool = ahead->pool;
    uint32_t exist = pool->count + pool->stocked, all = step->exist + step->grow;
    if (pool->absent != 0)
        return pleat__fail(PLEAT_E_STATE, "chunks were given back");
    if (exist >= all) {
        step->made = step->grow;
        return PLEAT_OK;
    }
    uint32_t left = all - exist, some = left < BATCH ? left : BATCH;
    if (!pleat__space_has_room(pool->space, some * pool->page_bytes))
        return pleat__fail(PLEAT_E_BUDGET, "no room for %u chunks", some);
    if (step->made == 0)
        ahead->block = pleat__pool_handle(pool, left);
    PLEAT_TRY(pleat__pool_stock(pool, some, ahead->block));
    /* Chunks of the steps before may have been given back. */
    step->made = left - some < step->grow ? step->grow - (left - some) : 0;
    return PLEAT_OK;
}

/* Pages of a view's place: the one that takes it may have some more chunks. */
static uint32_t room_of(const pleat__step *step)
{
    return step->count + step->count / 64 + PLEAT__BLOCK;
}

/* Whether there may be a step's view. Views that nobody uses make room for it, as they would for
 * the request's. */
static bool may_view(pleat__ahead *ahead, const pleat__step *step)
{
    const pleat__pool *pool = ahead->pool;
    uint64_t limit = ahead->room.limit;
    if (ahead->loose || pool->count + pool->stocked < step->exist || step->count > limit)
        return false;
    if (pool->view_pages + step->count > limit)
        (void)ahead->room.drop(ahead->room.context, limit - step->count);
    return pool->view_pages + step->count <= limit;
}

/* Some of the pages of a view, with the turn. */
static pleat_result make_pages(pleat__ahead *ahead, pleat__step *step)
{
    pleat__pool *pool = ahead->pool;
    const uint32_t *chunks = ahead->steps.chunks + step->first;
    pleat__chunk *run[BATCH];
    uint32_t handles = 0, pages = step->made;
    if (pages == 0 && !may_view(ahead, step)) {
        ahead->next++;
        return PLEAT_OK;
    }
    if (pages == 0)
        PLEAT_TRY(pleat__space_take(pool->space, room_of(step), &step->page));
    while (pages < step->count && handles < BATCH) {
        uint32_t more = pleat__pool_whole(pool, chunks + pages, step->count - pages, 1);
        if (more == 0)
            break;
        run[handles++] = pool->chunks[chunks[pages]];
        pages += more;
    }
    pleat_result result = PLEAT_E_STATE;
    if (handles != 0) {
        pleat__gate_leave(pool->gate);
        result = pleat__space_map(pool->space, step->page + step->made, run, handles);
        pleat__gate_enter(pool->gate);
    }
    if (result == PLEAT_OK) {
        pool->view_pages += pages - step->made;
        step->made = pages;
    } else if (step->made == 0) {
        pleat__space_give(pool->space, step->page, room_of(step));
    }
    return result;
}

/* What was made of a view and nobody took. The GPU has never used it. pre: the turn. */
static void unmake_pages(pleat__ahead *ahead, pleat__step *step)
{
    pleat__pool *pool = ahead->pool;
    uint32_t pages = step->made;
    if (step->grow != 0 || pages == 0 || step->taken)
        return;
    step->made = 0;
    pleat__pool_unview(pool, step->page, pages);
    pleat__space_give(pool->space, step->page, room_of(step));
}

/* Chunks that nobody took. pre: the turn. */
static void unmake_stock(pleat__pool *pool)
{
    if (pool->stocked == 0)
        return;
    pleat__pool_unstock(pool);
    pleat__gate_leave(pool->gate);
    (void)pleat__space_trim(pool->space, 0);
    pleat__gate_enter(pool->gate);
}

/* All that nobody took. pre: the turn. */
static void drop_leftovers(pleat__ahead *ahead)
{
    for (uint32_t i = 0; i < ahead->steps.count; i++)
        unmake_pages(ahead, &ahead->steps.steps[i]);
    unmake_stock(ahead->pool);
    /* Not before: until then the list stays. */
    ahead->leftovers = false;
}

/* ---- what is overdue ---- */

static bool is_late(const pleat__ahead *ahead)
{
    return !ahead->listing && ahead->first < ahead->next &&
           ahead->steps.steps[ahead->first].due < ahead->when.late;
}

/* What is left of the first step, with the turn. Chunks may be a later step's, or in its view. */
static void unmake_late(pleat__ahead *ahead)
{
    unmake_pages(ahead, &ahead->steps.steps[ahead->first++]);
    if (ahead->first == ahead->steps.count)
        unmake_stock(ahead->pool);
}

/* With the turn: the next piece of work. false: there is none. */
static bool make_some(pleat__ahead *ahead)
{
    /* A verb would fail a capture in the driver's global mode; what is due then is looked at again
     * when more is, or at the next mark. */
    if (ahead->pool->gate->captured_count != 0)
        return false;
    if (ahead->over && ahead->leftovers) {
        drop_leftovers(ahead);
        return true;
    }
    if (is_late(ahead)) {
        unmake_late(ahead);
        return true;
    }
    if (!is_due(ahead, ahead->when.soon))
        return false;
    pleat__step *step = &ahead->steps.steps[ahead->next];
    ahead->leftovers = true;
    pleat_result result = step->grow != 0 ? make_chunks(ahead, step) : make_pages(ahead, step);
    /* It may have been ended meanwhile. */
    if (result != PLEAT_OK)
        ahead->over = true;
    else if (step->made == (step->grow != 0 ? step->grow : step->count))
        ahead->next++;
    return true;
}

/* With the turn and the lock, which are left meanwhile: some more steps, where they are still
 * wanted. They are added with the turn: who has it may be at the list without the lock. */
static void list_some(pleat__ahead *ahead)
{
    pleat__steps steps = {.arena = ahead->arena};
    uint32_t until = UINT32_MAX;
    bool wanted = !ahead->over;
    pleat__gate_unlock(ahead->pool->gate);
    pleat_result result = ahead->list(ahead->context, wanted ? &steps : NULL, &until);
    pleat__gate_lock_turn(ahead->pool->gate);
    if (result == PLEAT_OK)
        result = add_steps(&ahead->steps, &steps);
    free_steps(&steps);
    ahead->over = ahead->over || result != PLEAT_OK;
    ahead->listed = until;
    ahead->listing = wanted && until != UINT32_MAX;
}

/* The thread's. What fails costs what would have been saved. */
static bool work(void *context)
{
    pleat__ahead *ahead = context;
    bool more = make_some(ahead);
    if (!more && ahead->listing) {
        list_some(ahead);
        more = true;
    }
    return more;
}

/* ---- life ---- */

void pleat__ahead_init(pleat__ahead *ahead, pleat__arena *arena, pleat__pool *pool,
                       pleat__view_room room, bool waits)
{
    *ahead = (pleat__ahead){
        .arena = arena, .pool = pool, .room = room, .waits = waits, .steps = {.arena = arena}};
    pleat__worker_init(&ahead->worker, arena, pool->gate, work, ahead);
    pool->ahead = ahead;
}

void pleat__ahead_release(pleat__ahead *ahead)
{
    if (ahead->arena == NULL)
        return;
    pleat__gate *gate = ahead->pool->gate;
    pleat__gate_lock(gate);
    ahead->over = true;
    ahead->leftovers = false;
    pleat__gate_unlock(gate);
    pleat__worker_release(&ahead->worker);
    forget_steps(ahead);
    ahead->pool->ahead = NULL;
    *ahead = (pleat__ahead){0};
}

/* Has the thread look what there is to do. */
static bool wake(pleat__ahead *ahead)
{
    if (pleat__worker_wake(&ahead->worker) != PLEAT_OK)
        return false;
    while (ahead->waits && ahead->worker.busy)
        pleat__worker_wait(&ahead->worker);
    return true;
}

bool pleat__ahead_begin(pleat__ahead *ahead, pleat__ahead_list list, void *context,
                        pleat__when when)
{
    if (ahead->worker.busy || ahead->leftovers)
        return false;
    forget_steps(ahead);
    ahead->list = list;
    ahead->context = context;
    ahead->when = when;
    ahead->over = false;
    ahead->loose = false;
    ahead->listing = true;
    if (wake(ahead))
        return true;
    ahead->listing = false;
    return false;
}

void pleat__ahead_allow(pleat__ahead *ahead, pleat__when when)
{
    ahead->when = when;
    if (is_due(ahead, when.soon) || is_late(ahead))
        wake(ahead);
}

void pleat__ahead_end(pleat__ahead *ahead)
{
    ahead->over = true;
    if (ahead->leftovers)
        wake(ahead);
}

bool pleat__ahead_drop(pleat__ahead *ahead)
{
    bool any = ahead->leftovers;
    ahead->over = true;
    if (any)
        drop_leftovers(ahead);
    return any;
}

/* ---- taking ---- */

/* Whether something is on its way that is asked for now. */
static bool is_coming(const pleat__ahead *ahead)
{
    return ahead->worker.busy && !ahead->over &&
           ((ahead->listing && ahead->listed <= ahead->when.now) || is_due(ahead, ahead->when.now));
}

void pleat__ahead_await(pleat__ahead *ahead, uint32_t chunks)
{
    while (ahead->pool->stocked < chunks && is_coming(ahead))
        pleat__worker_wait(&ahead->worker);
}

/* Whether it is a view, as yet nobody's, that so many chunks have room in. */
static bool has_room(const pleat__step *step, uint32_t count)
{
    return step->grow == 0 && !step->taken && count <= room_of(step);
}

/* How much of a view there is, or will be soon: pages. */
static uint32_t comes(const pleat__ahead *ahead, const pleat__step *step)
{
    bool coming = !ahead->over && step >= ahead->steps.steps + ahead->next &&
                  step->due <= ahead->when.now && (step->made != 0 || !ahead->loose);
    return coming ? step->count : step->made;
}

/* The step whose view shows most of the chunks, as far as it is made or (`coming`) comes; NULL:
 * too many differ in all of them. */
static pleat__step *find_step(pleat__ahead *ahead, const uint32_t *chunks, uint32_t count,
                              bool coming)
{
    pleat__step *best = NULL;
    uint32_t most = count - count / MOSTLY - 1;
    uint8_t *marks =
        ahead->steps.count != 0 ? pleat__patch_marks(ahead->pool, chunks, count) : NULL;
    for (uint32_t i = 0; i < ahead->steps.count && marks != NULL; i++) {
        pleat__step *step = &ahead->steps.steps[i];
        const uint32_t *there = ahead->steps.chunks + step->first;
        uint32_t pages = coming ? comes(ahead, step) : step->made;
        if (!has_room(step, count) || pages <= most)
            continue;
        uint32_t common = pleat__patch_common(ahead->pool, marks, there, pages);
        if (common <= most)
            continue;
        best = step;
        most = common;
    }
    pleat__arena_free(ahead->pool->arena, marks);
    return best;
}

bool pleat__ahead_await_view(pleat__ahead *ahead, const uint32_t *chunks, uint32_t count)
{
    if (ahead == NULL || !is_coming(ahead))
        return false;
    const pleat__step *step = find_step(ahead, chunks, count, true);
    bool unknown = ahead->listing && ahead->listed <= ahead->when.now;
    if (step != NULL ? step->made == comes(ahead, step) : !unknown)
        return false;
    pleat__worker_wait(&ahead->worker);
    return true;
}

/* Views that were due and serve nobody: those to come would not either. */
static void judge(pleat__ahead *ahead)
{
    for (uint32_t i = 0; i < ahead->next; i++) {
        const pleat__step *step = &ahead->steps.steps[i];
        ahead->loose |= step->grow == 0 && !step->taken && step->due <= ahead->when.now;
    }
}

const pleat__step *pleat__ahead_find(pleat__ahead *ahead, pleat__patch_ends ends, uint32_t *chunks,
                                     uint32_t count)
{
    const pleat__step *best = find_step(ahead, chunks, count, false);
    if (best == NULL)
        judge(ahead);
    else
        pleat__patch_order(ahead->pool, ahead->steps.chunks + best->first, best->made, ends, chunks,
                           count);
    return best;
}

pleat_result pleat__ahead_take(pleat__ahead *ahead, const pleat__step *found,
                               const uint32_t *chunks, uint32_t count, uint64_t *page)
{
    uint32_t index = (uint32_t)(found - ahead->steps.steps), room = room_of(found);
    pleat__step *step = &ahead->steps.steps[index];
    step->taken = true;
    /* What is left of it is mapped here. */
    ahead->next += ahead->next == index;
    *page = step->page;
    pleat_result result = pleat__patch_map(ahead->pool, *page, ahead->steps.chunks + step->first,
                                           step->made, chunks, count);
    uint32_t used = result == PLEAT_OK ? count : 0;
    if (used != room)
        pleat__space_give(ahead->pool->space, *page + used, room - used);
    return result;
}
