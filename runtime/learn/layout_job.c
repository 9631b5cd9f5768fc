/*
 * layout_job.c: see layout_job.h.
 */
#include <runtime/learn/layout_job.h>

#include <internal/error.h>
#include <internal/search.h>
#include <runtime/memory/deferred_unmap.h>
#include <string.h>

/* By how much a layout may have more alive at its peak than ever lived: 1/BEYOND, since requests
 * that differ by iteration count with the most that was recorded of them (D465). */
#define BEYOND 16u

/* ---- making one: the thread ---- */

/* A layout on its way into memory. */
typedef struct placing {
    pleat__layouts *layouts;
    pleat_plan *plan;
    uint64_t page_bytes;
    uint32_t *table; /* page of the plan -> its chunk, then -> the pool's */
    uint64_t table_pages;
    uint64_t view_page; /* of the plan: views lie from here on */
    uint32_t *homes;    /* page below the views -> the pool's chunk that is at home there */
    uint32_t *numbers;  /* chunk of the plan -> the pool's */
    uint64_t page;      /* in the window, where the views are mapped */
    pleat__chunk **handles;
    pleat__layout_made *made;
} placing;

static uint64_t pages_of(const pleat_plan *plan)
{
    return pleat__ceil_div(plan->virtual_bytes, plan->chunk_bytes);
}

static uint64_t view_pages(const placing *p)
{
    return p->table_pages > p->view_page ? p->table_pages - p->view_page : 0;
}

/* By page below the views, the number of the pool's chunk that is at home there, or
 * PLEAT__NO_CHUNK. */
static void find_homes(placing *p)
{
    const pleat__chunk_pool *pool = p->layouts->heap->pool;
    for (uint64_t page = 0; page < p->view_page; page++)
        p->homes[page] = PLEAT__NO_CHUNK;
    for (uint32_t c = 0; c < pool->count; c++)
        if (pool->chunks[c] != NULL && pool->home[c] < p->view_page)
            p->homes[pool->home[c]] = c;
}

static uint64_t home_pages(const placing *p)
{
    return p->table_pages < p->view_page ? p->table_pages : p->view_page;
}

/* Pages below the views at which the plan has a chunk and the pool has none. */
static uint32_t missing_chunks(const placing *p)
{
    uint32_t missing = 0;
    for (uint64_t page = 0; page < home_pages(p); page++)
        missing += p->table[page] != PLEAT__NO_CHUNK && p->homes[page] == PLEAT__NO_CHUNK;
    return missing;
}

/* Chunks at the plan's homes, new ones as far as they are missing: they have memory when something
 * comes to lie there. Where the budget does not hold them all the heap takes less. */
static pleat_result make_chunks(placing *p)
{
    pleat__chunk_pool *pool = p->layouts->heap->pool;
    find_homes(p);
    uint32_t missing = missing_chunks(p);
    uint64_t resting = pool->held >> pool->occupancy.shift;
    if (missing == 0)
        return PLEAT_OK;
    if (pleat__space_room(pool->space) < (missing + resting) * p->page_bytes)
        return pleat__fail(PLEAT_E_BUDGET, "no room for %u chunks of a larger layout", missing);
    PLEAT_TRY(pleat__chunk_pool_promise(pool, missing));
    find_homes(p);
    return PLEAT_OK;
}

/* From the plan's chunks to the pool's, by the page that both are at home at. */
static void translate(placing *p)
{
    for (uint64_t page = 0; page < home_pages(p); page++)
        if (p->table[page] != PLEAT__NO_CHUNK)
            p->numbers[p->table[page]] = p->homes[page];
    for (uint64_t page = 0; page < p->table_pages; page++)
        if (p->table[page] != PLEAT__NO_CHUNK)
            p->table[page] = p->numbers[p->table[page]];
}

/* Whether a view of one page shows it: whoever had the turn meanwhile may have given it back. */
static bool is_single(const placing *p, uint32_t chunk)
{
    return chunk != PLEAT__NO_CHUNK && pleat__handle_chunks(p->layouts->heap->pool, chunk) == 1;
}

/* The end of the views that can be mapped by one call: pages with single chunks behind them. */
static uint64_t mapped_together(placing *p, uint64_t page)
{
    const pleat__chunk_pool *pool = p->layouts->heap->pool;
    uint64_t end = page;
    while (end < p->table_pages && is_single(p, p->table[end])) {
        p->handles[end - page] = pool->chunks[p->table[end]];
        end++;
    }
    return end;
}

/* Views mapped at pages of the window. */
static pleat_result note_views(pleat__layouts *layouts, pleat__layout_made *made, uint64_t page,
                               uint64_t pages)
{
    PLEAT_TRY(pleat__arena_grow(layouts->arena, &made->views, &made->view_capacity,
                                made->view_count, sizeof *made->views));
    made->views[made->view_count++] = (pleat__page_run){page, pages};
    return PLEAT_OK;
}

/* pre: the turn; the lock is left meanwhile. What is not mapped is taken out of the table: its
 * slots then have no place. */
static pleat_result map_views(placing *p)
{
    pleat__chunk_pool *pool = p->layouts->heap->pool;
    for (uint64_t page = p->view_page, end; page < p->table_pages; page = end) {
        uint64_t at = p->page + (page - p->view_page);
        end = mapped_together(p, page);
        if (end == page) {
            p->table[end++] = PLEAT__NO_CHUNK;
            continue;
        }
        PLEAT_TRY(note_views(p->layouts, p->made, at, end - page));
        pleat__gate_leave(pool->gate);
        pleat_result result = pleat__space_map(pool->space, at, p->handles, end - page);
        pleat__gate_enter(pool->gate);
        p->made->view_count -= result != PLEAT_OK;
        PLEAT_TRY(result);
        pool->view_pages += end - page;
        p->layouts->stats->instance_maps += end - page;
        /* Requests that need the driver go first. */
        pleat__gate_unlock(pool->gate);
        pleat__gate_let_pass(pool->gate);
        pleat__gate_lock_turn(pool->gate);
    }
    return PLEAT_OK;
}

/* pre: the turn; the lock is left meanwhile. */
static void unmap_views(placing *p)
{
    pleat__chunk_pool *pool = p->layouts->heap->pool;
    for (uint32_t i = 0; i < p->made->view_count; i++) {
        pleat__page_run run = p->made->views[i];
        pool->view_pages -= run.pages;
        pleat__gate_leave(pool->gate);
        (void)!pleat__space_unmap(pool->space, run.page, run.pages);
        pleat__gate_enter(pool->gate);
    }
    pleat__space_give(pool->space, p->page, view_pages(p));
}

/* pre: the turn and the lock, which is left meanwhile. */
static pleat_result place(placing *p)
{
    pleat__layouts *layouts = p->layouts;
    pleat__chunk_pool *pool = layouts->heap->pool;
    uint64_t views = view_pages(p);
    PLEAT_TRY(make_chunks(p));
    translate(p);
    if (views != 0)
        PLEAT_TRY(pleat__space_take(pool->space, views, &p->page));
    pleat_result result = map_views(p);
    pleat__plan_pages pages = {.chunks = p->table,
                               .moved_from = p->view_page,
                               .moved_by = views != 0 ? p->page - p->view_page : 0};
    if (result == PLEAT_OK) {
        /* Nobody else knows of it yet, and what it reads of the pool never changes. */
        pleat__schedule *schedule = NULL;
        pleat__gate_leave(pool->gate);
        result = pleat__schedule_layout(layouts->arena, pool, p->plan, &pages, &schedule);
        pleat__gate_enter(pool->gate);
        p->made->schedule = schedule;
    }
    if (result != PLEAT_OK && views != 0)
        unmap_views(p);
    return result;
}

static void forget(pleat__layouts *layouts, pleat__layout_made *made)
{
    pleat__schedule_free(made->schedule);
    pleat__arena_free(layouts->arena, made->views);
    if (made->plan != NULL)
        pleat_plan_free(made->plan);
    *made = (pleat__layout_made){0};
}

static pleat_result tables_new(placing *p)
{
    pleat__arena *arena = p->layouts->arena;
    p->table_pages = pages_of(p->plan);
    PLEAT_TRY(pleat__plan_page_table(p->plan, arena, &p->table));
    p->handles = pleat__arena_alloc(arena, (view_pages(p) + 1) * sizeof *p->handles);
    p->homes = pleat__arena_alloc(arena, (p->view_page + 1) * sizeof *p->homes);
    p->numbers = pleat__arena_alloc(arena, (p->plan->physical_bytes / p->page_bytes + 1) *
                                               sizeof *p->numbers);
    return p->handles != NULL && p->homes != NULL && p->numbers != NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a larger layout");
}

static void tables_free(placing *p)
{
    pleat__arena_free(p->layouts->arena, p->numbers);
    pleat__arena_free(p->layouts->arena, p->homes);
    pleat__arena_free(p->layouts->arena, p->handles);
    pleat__arena_free(p->layouts->arena, p->table);
}

/* Whether so many bytes may have lived. An x that half of the requests fit by chance would take
 * several times what the job does (D465 in docs/decisions.md). */
static bool may_have_lived(uint64_t bytes, uint64_t most_live)
{
    return bytes <= most_live + most_live / BEYOND;
}

/* The plan at the sizes that are wanted. Where too much lives in it, *beyond is how much. */
static pleat_result plan_layout(const pleat__layouts *layouts, pleat_plan **plan, uint64_t *beyond)
{
    PLEAT_TRY(pleat__elastic_instance(layouts->plan, layouts->wanted, NULL, NULL, plan));
    if (may_have_lived((*plan)->max_live_bytes, layouts->most_live))
        return PLEAT_OK;
    *beyond = (*plan)->max_live_bytes;
    return pleat__fail(PLEAT_E_LIMIT, "%llu bytes would live in a larger layout, and %llu have",
                       (unsigned long long)*beyond, (unsigned long long)layouts->most_live);
}

/* The planner without the lock, then the memory with it and the turn. */
static void make(pleat__layouts *layouts)
{
    pleat__gate *gate = layouts->heap->pool->gate;
    placing p = {.layouts = layouts,
                 .page_bytes = layouts->heap->pool->page_bytes,
                 .view_page = layouts->plan->recipe->view_page,
                 .made = &layouts->made};
    uint64_t beyond = 0;
    pleat_result result = plan_layout(layouts, &p.plan, &beyond);
    if (result == PLEAT_OK)
        result = tables_new(&p);
    pleat__gate_lock_turn(gate);
    if (result == PLEAT_OK)
        result = place(&p);
    layouts->state = result == PLEAT_OK ? PLEAT__LAYOUT_MADE : PLEAT__LAYOUT_NONE;
    layouts->made.plan = p.plan;
    layouts->made.x = layouts->wanted;
    if (result != PLEAT_OK) {
        layouts->failed = layouts->wanted;
        layouts->failed_live = beyond;
        forget(layouts, &layouts->made);
    }
    pthread_cond_broadcast(&layouts->done);
    pleat__gate_unlock(gate);
    tables_free(&p);
}

static pleat_result work(void *context, pleat_result ready)
{
    pleat__layouts *layouts = context;
    make(layouts);
    return ready;
}

/* ---- which there are ---- */

pleat_result pleat__layouts_load(pleat__layouts *layouts, pleat__arena *arena, pleat__heap *heap,
                                 pleat__place_map *places, pleat_stats *stats,
                                 const pleat_plan *plan, pleat__schedule **schedule)
{
    *layouts = (pleat__layouts){
        .arena = arena, .heap = heap, .places = places, .stats = stats, .plan = plan};
    pthread_cond_init(&layouts->done, NULL);
    PLEAT_TRY(pleat__schedule_plan(arena, heap->pool, plan, &layouts->file.schedule));
    if (plan->recipe != NULL)
        layouts->file.x = plan->recipe->reference;
    layouts->lanes = layouts->file.schedule->lane_count;
    *schedule = layouts->file.schedule;
    return PLEAT_OK;
}

void pleat__layouts_release(pleat__layouts *layouts)
{
    if (layouts->arena == NULL)
        return;
    pleat__mapper_destroy(layouts->thread);
    forget(layouts, &layouts->file);
    forget(layouts, &layouts->now);
    forget(layouts, &layouts->made);
    for (uint32_t i = 0; i < layouts->retired_count; i++)
        forget(layouts, &layouts->retired[i]);
    pthread_cond_destroy(&layouts->done);
    *layouts = (pleat__layouts){0};
}

/* Where too much would have lived it is for as long as that is so. */
static bool has_failed(const pleat__layouts *layouts, pleat__fraction x, uint64_t most_live)
{
    return layouts->failed.num != 0 && pleat__fraction_compare(x, layouts->failed) >= 0 &&
           (layouts->failed_live == 0 || !may_have_lived(layouts->failed_live, most_live));
}

/* Whether the lanes of one layout more have numbers: all layouts of a plan have as many, and a
 * number is used once, since what lies in a retired layout is given back by it. */
static bool has_lane_numbers(const pleat__layouts *layouts)
{
    return layouts->lanes + layouts->file.schedule->lane_count <= PLEAT__MOST_LANES;
}

static const pleat__layout_made *largest_of(const pleat__layouts *layouts)
{
    return layouts->now.schedule != NULL ? &layouts->now : &layouts->file;
}

/* Whether there is a layout for x. */
static bool is_laid_out(const pleat__layouts *layouts, pleat__fraction x)
{
    return pleat__fraction_compare(largest_of(layouts)->x, x) >= 0;
}

void pleat__layouts_ask(pleat__layouts *layouts, pleat__fraction x, uint64_t most_live)
{
    if (layouts->plan == NULL || layouts->plan->recipe == NULL ||
        layouts->state != PLEAT__LAYOUT_NONE || layouts->retired_count == PLEAT__RETIRED ||
        is_laid_out(layouts, x) || !has_lane_numbers(layouts))
        return;
    if (has_failed(layouts, x, most_live))
        return;
    if (layouts->thread == NULL &&
        pleat__mapper_create(layouts->heap->vmm, layouts->arena, &layouts->thread) != PLEAT_OK)
        return;
    layouts->wanted = x;
    layouts->most_live = most_live;
    layouts->job = (pleat__job){.call = work, .context = layouts, .forgotten = true};
    pleat__mapper_submit(layouts->thread, &layouts->job);
    layouts->state = PLEAT__LAYOUT_MAKING;
}

void pleat__layouts_await(pleat__layouts *layouts)
{
    while (layouts->state == PLEAT__LAYOUT_MAKING)
        pleat__gate_wait(layouts->heap->pool->gate, &layouts->done);
}

static void retire(pleat__layouts *layouts, pleat__layout_made *made)
{
    if (made->schedule != NULL)
        layouts->retired[layouts->retired_count++] = *made;
    *made = (pleat__layout_made){0};
}

pleat__schedule *pleat__layouts_take(pleat__layouts *layouts)
{
    if (layouts->state != PLEAT__LAYOUT_MADE)
        return NULL;
    layouts->state = PLEAT__LAYOUT_NONE;
    retire(layouts, &layouts->now);
    layouts->now = layouts->made;
    layouts->made = (pleat__layout_made){0};
    layouts->now.schedule->lane_base = layouts->lanes;
    layouts->lanes += layouts->now.schedule->lane_count;
    layouts->stats->instances++;
    return layouts->now.schedule;
}

/* ---- what is retired ---- */

typedef struct looking {
    const pleat__chunk_pool *pool;
    const pleat__layout_made *made;
} looking;

/* Whether a schedule says of which runs a place is made. */
static bool is_made_by(const pleat__schedule *schedule, const pleat__place *place)
{
    return place->several >= schedule->several &&
           place->several < schedule->several + schedule->several_count;
}

/* Whether a place begins in none of a layout's views, which are in order of their pages, and is
 * none of its schedule's of several runs: such a one need not lie in a view, since a plan from
 * anywhere may have the homes of its chunks in any order. */
static bool lies_elsewhere(void *context, pleat__place *place)
{
    const looking *at = context;
    const pleat__page_run *views = at->made->views;
    if (is_made_by(at->made->schedule, place))
        return false;
    uint64_t page = (place->address - at->pool->base) / at->pool->page_bytes;
    size_t first;
    PLEAT__FIRST(first, at->made->view_count, views[first].page + views[first].pages > page);
    return first == at->made->view_count || page < views[first].page;
}

/* The map is walked rather than asked where the next place begins: an index for that is made anew
 * for each question that comes alone, and takes a page of host memory for each one in use. */
static bool is_unused(const pleat__layouts *layouts, const pleat__layout_made *made)
{
    for (uint32_t i = 0; i < made->schedule->lane_count; i++)
        if (made->schedule->lanes[i].live != 0)
            return false;
    looking at = {layouts->heap->pool, made};
    return (made->view_count == 0 && made->schedule->several_count == 0) ||
           pleat__place_map_each(layouts->places, lies_elsewhere, &at);
}

/* Pages of the plan file's own views stay taken: homes may come to lie beside them. */
static bool unmap(pleat__layouts *layouts, const pleat__layout_made *made)
{
    if (made->view_count == 0)
        return true;
    pleat__deferred_unmap *deferred =
        pleat__deferred_unmap_new(layouts->heap, made->view_count, made->plan != NULL);
    if (deferred == NULL)
        return false;
    for (uint16_t s = 0; s < layouts->heap->stream_count; s++)
        if (!pleat__deferred_unmap_fence(deferred, s)) {
            pleat__deferred_unmap_free(deferred);
            return false;
        }
    for (uint32_t i = 0; i < made->view_count; i++) {
        pleat__deferred_unmap_add(deferred, made->views[i]);
        layouts->heap->pool->view_pages -= made->views[i].pages;
    }
    pleat__deferred_unmap_hand_over(deferred);
    return true;
}

bool pleat__layouts_sweep(pleat__layouts *layouts)
{
    uint32_t kept = 0, count = layouts->retired_count;
    for (uint32_t i = 0; i < count; i++) {
        pleat__layout_made *made = &layouts->retired[i];
        if (is_unused(layouts, made) && unmap(layouts, made))
            forget(layouts, made);
        else
            layouts->retired[kept++] = *made;
    }
    layouts->retired_count = kept;
    return kept != count;
}

/* The plan file's own views, neighbours in one run. */
static pleat_result list_file_views(pleat__layouts *layouts)
{
    const pleat_plan *plan = layouts->plan;
    pleat__layout_made *file = &layouts->file;
    file->view_count = 0;
    for (uint32_t i = 0; i < plan->map_count; i++) {
        uint64_t page = plan->maps[i].page, pages = plan->handles[plan->maps[i].handle].chunks;
        pleat__page_run *last = file->view_count != 0 ? &file->views[file->view_count - 1] : NULL;
        if (plan->maps[i].alias && last != NULL && last->page + last->pages == page)
            last->pages += pages;
        else if (plan->maps[i].alias)
            PLEAT_TRY(note_views(layouts, file, page, pages));
    }
    return PLEAT_OK;
}

bool pleat__layouts_leave(pleat__layouts *layouts)
{
    uint32_t more = layouts->state == PLEAT__LAYOUT_MADE ? 3 : 2;
    if (layouts->state == PLEAT__LAYOUT_MAKING || layouts->retired_count + more > PLEAT__RETIRED ||
        list_file_views(layouts) != PLEAT_OK)
        return false;
    (void)pleat__layouts_take(layouts); /* one that nobody follows yet goes with the others */
    retire(layouts, &layouts->file);
    retire(layouts, &layouts->now);
    layouts->plan = NULL;
    return true;
}

static uint64_t pages_in(const pleat__layout_made *made)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < made->view_count; i++)
        pages += made->views[i].pages;
    return pages;
}

uint64_t pleat__layouts_view_pages(const pleat__layouts *layouts)
{
    const pleat_plan *plan = layouts->plan;
    uint64_t pages = pages_in(&layouts->now) + pages_in(&layouts->made);
    for (uint32_t i = 0; i < layouts->retired_count; i++)
        pages += pages_in(&layouts->retired[i]);
    for (uint32_t i = 0; plan != NULL && i < plan->map_count; i++)
        pages += plan->maps[i].alias ? plan->handles[plan->maps[i].handle].chunks : 0;
    return pages;
}

static pleat__lane_space *lane_in(const pleat__layout_made *made, uint32_t lane)
{
    return made->schedule != NULL ? pleat__schedule_lane(made->schedule, lane) : NULL;
}

pleat__lane_space *pleat__layouts_lane(const pleat__layouts *layouts, uint32_t lane)
{
    pleat__lane_space *found = lane_in(&layouts->file, lane);
    if (found == NULL)
        found = lane_in(&layouts->now, lane);
    for (uint32_t i = 0; i < layouts->retired_count && found == NULL; i++)
        found = lane_in(&layouts->retired[i], lane);
    return found;
}
