/*
 * chunks.c: chunks and their homes. Verbs are issued with the lock left (gate.h): numbers,
 * homes and occupancy are settled before, and what came of it is published after.
 */
#include <runtime/memory/chunks.h>
#include <runtime/memory/rest.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

/* Granules are counted in 32 bits. */
static uint32_t most_of(const pleat__chunk_pool *pool, uint64_t device_pages)
{
    uint64_t wanted = pool->region_pages + (PLEAT__HOMES - 1) * device_pages;
    uint64_t counted = UINT32_MAX / (pool->page_bytes >> PLEAT__GRANULE_SHIFT);
    return (uint32_t)(wanted < counted ? wanted : counted);
}

/* Tables for all chunks that there may be: what was never used of them has no page (D513). */
static pleat_result tables_make(pleat__chunk_pool *pool)
{
    uint64_t most = pool->most;
    pool->chunks = pleat__arena_calloc_sparse(pool->arena, most, sizeof *pool->chunks);
    pool->span = pleat__arena_calloc_sparse(pool->arena, most, sizeof *pool->span);
    pool->home = pleat__arena_calloc_sparse(pool->arena, most, sizeof *pool->home);
    pool->breaks = pleat__arena_calloc_sparse(pool->arena, most, sizeof *pool->breaks);
    if (pool->chunks == NULL || pool->span == NULL || pool->home == NULL || pool->breaks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for tables of %llu chunks",
                           (unsigned long long)most);
    return pleat__occupancy_init(&pool->occupancy, pool->arena, pool->page_bytes, (uint32_t)most);
}

/* The most chunks of a handle when there are so many more, `run` of them for one request. */
static uint32_t block_for(const pleat__chunk_pool *pool, uint32_t chunks, uint32_t run)
{
    uint64_t exist = pool->count - pool->absent + chunks;
    uint64_t room = pleat__space_room(pool->space) / pool->page_bytes;
    uint64_t of_all = exist / PLEAT__HANDLE_SHARE, of_run = run / PLEAT__RUN_SHARE;
    of_run = of_run < room / PLEAT__RUN_ROOM ? of_run : room / PLEAT__RUN_ROOM;
    uint64_t most = of_all > of_run ? of_all : of_run;
    uint32_t block = 1;
    while (block < PLEAT__HANDLE_CHUNKS && 2 * block <= most &&
           2 * block <= room / PLEAT__ROOM_SHARE)
        block *= 2;
    return block;
}

uint32_t pleat__chunk_pool_joined_most(const pleat__chunk_pool *pool)
{
    uint32_t most = (pool->count - pool->absent) / (PLEAT__HANDLE_SHARE / PLEAT__JOINED);
    most =
        most < PLEAT__JOINED * PLEAT__HANDLE_CHUNKS ? most : PLEAT__JOINED * PLEAT__HANDLE_CHUNKS;
    return most > 0 ? most : 1;
}

/* The next chunks' handle, which gets its memory when something comes to lie there. */
static pleat_result promise(pleat__chunk_pool *pool, uint32_t pages)
{
    pleat__chunk *chunk;
    PLEAT_TRY(pleat__space_chunk_promise(pool->space, pages, &chunk));
    for (uint32_t p = 0, first = pool->count; p < pages; p++) {
        pool->span[pool->count] = (pleat__chunk_span){first, first + pages};
        pool->chunks[pool->count++] = chunk;
    }
    return PLEAT_OK;
}

/* The chunks of a plan's handles. Handles are small enough
 * that a request whose slot is in use in part is stitched from the rest of it. (A GPT-2 of 4.8 GiB
 * with a tensor of 8.5 MB more that stays, from its second iteration on: from handles of 128 chunks
 * nothing of a slot of 411 MB could be used again, and 0.864 of the memory was in use; so 0.995,
 * and it starts with 1,350 calls, not 60: some 30 ms on an H200.) */
static pleat_result plan_handles(pleat__chunk_pool *pool, const pleat_plan *plan)
{
    uint32_t most = block_for(pool, (uint32_t)(plan->physical_bytes / plan->chunk_bytes), 0);
    /* A larger size's views may begin and end at any chunk, and views show whole handles. */
    if (plan->recipe != NULL)
        most = 1;
    for (uint32_t i = 0; i < plan->handle_count; i++) {
        uint32_t pages = 0;
        for (uint32_t left = plan->handles[i].chunks; left != 0; left -= pages) {
            pages = left < most ? left : most;
            pleat_result result = promise(pool, pages);
            if (result != PLEAT_OK)
                return pleat__context(result, "the plan's memory");
        }
    }
    return PLEAT_OK;
}

static void plan_homes(pleat__chunk_pool *pool, const pleat_plan *plan)
{
    for (uint32_t i = 0; i < plan->map_count; i++) {
        const pleat__plan_map *map = &plan->maps[i];
        const pleat__plan_handle *handle = &plan->handles[map->handle];
        for (uint32_t c = 0; map->alias == 0 && c < handle->chunks; c++)
            pool->home[handle->first_chunk + c] = (uint32_t)(map->page + c);
    }
    for (uint32_t c = 0; c < pool->count; c++)
        pool->breaks[c] = c == 0 || pool->home[c] != pool->home[c - 1] + 1;
    /* Its views lie far above, so that there are homes for larger sizes below them. */
    for (uint32_t c = 0; c < pool->count && plan->recipe != NULL; c++)
        pool->next_home =
            c == 0 || pool->home[c] >= pool->next_home ? pool->home[c] + 1ull : pool->next_home;
}

/* Maps the plan's handles, neighbours in one call. What was mapped before a failure is
 * pleat__chunk_pool_unload's. */
static pleat_result plan_map(pleat__chunk_pool *pool, const pleat_plan *plan)
{
    uint64_t pages = pleat__ceil_div(plan->virtual_bytes, plan->chunk_bytes);
    pleat__chunk **run = pleat__arena_alloc(pool->arena, pages * sizeof *run);
    if (run == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u maps", plan->map_count);
    pleat_result result = PLEAT_OK;
    for (uint32_t i = 0; i < plan->map_count && result == PLEAT_OK;) {
        uint64_t page = plan->maps[i].page, next = page;
        uint32_t count = 0;
        while (i < plan->map_count && plan->maps[i].page == next) {
            const pleat__plan_handle *handle = &plan->handles[plan->maps[i].handle];
            for (uint32_t c = 0; c < handle->chunks; c += run[count++]->pages)
                run[count] = pool->chunks[handle->first_chunk + c];
            pool->view_pages += plan->maps[i].alias ? handle->chunks : 0;
            next += handle->chunks;
            i++;
        }
        result = pleat__space_map(pool->space, page, run, count);
    }
    pleat__arena_free(pool->arena, run);
    return result;
}

/* Its memory is made as far as the program comes along (rest.h). */
static pleat_result plan_rest(pleat__chunk_pool *pool)
{
    PLEAT_TRY(pleat__rest_reserve(pool, pool->count));
    for (uint32_t c = pool->count; c > 0; c = pool->span[c - 1].first)
        pleat__rest_promised(pool, pool->span[c - 1].first);
    return PLEAT_OK;
}

static pleat_result pool_load(pleat__chunk_pool *pool, const pleat_plan *plan)
{
    if (plan->chunk_bytes != pool->page_bytes)
        return pleat__fail(
            PLEAT_E_INPUT, "the plan is for chunks of %llu bytes, the device has %llu: plan again",
            (unsigned long long)plan->chunk_bytes, (unsigned long long)pool->page_bytes);
    uint64_t chunks = plan->physical_bytes / plan->chunk_bytes;
    if (chunks > pool->most)
        return pleat__fail(PLEAT_E_LIMIT, "the plan has %llu chunks, a runtime has at most %u",
                           (unsigned long long)chunks, pool->most);
    PLEAT_TRY(pleat__occupancy_grow(&pool->occupancy, (uint32_t)chunks));
    PLEAT_TRY(plan_handles(pool, plan));
    plan_homes(pool, plan);
    PLEAT_TRY(plan_map(pool, plan));
    return plan_rest(pool);
}

pleat_result pleat__chunk_pool_init(pleat__chunk_pool *pool, pleat__arena *arena,
                                    pleat__space *space, pleat__gate *gate, const pleat_plan *plan,
                                    bool again)
{
    *pool = (pleat__chunk_pool){
        .arena = arena,
        .gate = gate,
        .space = space,
        .base = pleat__space_base(space),
        .page_bytes = pleat__space_page_bytes(space),
        .joins = plan == NULL,
    };
    uint64_t plan_pages = plan == NULL ? 0 : pleat__ceil_div(plan->virtual_bytes, pool->page_bytes);
    uint64_t device_pages = pleat__space_device_bytes(space) / pool->page_bytes;
    if (plan_pages + device_pages > UINT32_MAX)
        return pleat__fail(PLEAT_E_LIMIT, "the window has too many pages");
    uint64_t taken = again ? device_pages : 0;
    pleat_result result = pleat__space_take_at(space, taken, plan_pages + device_pages - taken);
    if (result == PLEAT_OK) {
        pool->taken_page = taken;
        pool->region_pages = plan_pages + device_pages;
        pool->next_home = plan_pages;
        pool->homes[pool->home_count++] = (pleat__page_run){0, pool->region_pages};
        pool->most = most_of(pool, device_pages);
        result = tables_make(pool);
        if (result == PLEAT_OK && plan != NULL)
            result = pool_load(pool, plan);
    }
    if (result == PLEAT_OK)
        return PLEAT_OK;
    pleat_error why = pleat__failure(result);
    pleat__chunk_pool_unload(pool);
    pleat__chunk_pool_release(pool);
    return pleat__fail_again(&why);
}

/* Unmapping what rests is a matter of tables. */
void pleat__chunk_pool_unload(pleat__chunk_pool *pool)
{
    for (uint64_t page = 0, pages; page < pool->region_pages; page += pages) {
        const pleat__chunk *chunk = pleat__space_chunk_at(pool->space, page, NULL);
        pages = chunk != NULL ? chunk->pages : 1;
        if (chunk != NULL)
            (void)!pleat__space_unmap(pool->space, page, pages);
    }
    for (uint32_t c = 0, pages; c < pool->count; c += pages) {
        pages = pool->chunks[c]->pages;
        pleat__space_chunk_put(pool->space, pool->chunks[c]);
    }
    if (pool->region_pages > pool->taken_page)
        pleat__space_give(pool->space, pool->taken_page, pool->region_pages - pool->taken_page);
    pool->count = 0;
    pool->region_pages = 0;
}

void pleat__chunk_pool_release(pleat__chunk_pool *pool)
{
    pleat__occupancy_release(&pool->occupancy);
    pleat__rest_release(pool);
    pleat__arena_free(pool->arena, pool->chunks);
    pleat__arena_free(pool->arena, pool->span);
    pleat__arena_free(pool->arena, pool->home);
    pleat__arena_free(pool->arena, pool->breaks);
    pool->chunks = NULL;
    pool->span = NULL;
    pool->home = NULL;
    pool->breaks = NULL;
}

/* ---- growth ---- */

/* Chunks that are to come: their numbers, in order, and what was got for the first `made`. */
typedef struct growth {
    uint32_t *numbers;
    pleat__chunk **chunks;  /* by number */
    uint32_t *first;        /* the number of the first one of its handle */
    pleat__chunk **handles; /* of a run */
    uint32_t count;
    uint32_t made;
    uint32_t block; /* chunks of a handle at most; less once memory was refused */
} growth;

/* A page whose state a failed verb left unknown is passed by until it has been healed. */
static bool is_clean(const pleat__chunk_pool *pool, uint64_t page)
{
    return pleat__space_chunk_at(pool->space, page, NULL) == NULL;
}

/* Numbers that were given back come first: their homes are there. */
static void choose_absent(const pleat__chunk_pool *pool, growth *g, uint32_t wanted)
{
    uint32_t unseen = pool->absent;
    for (uint32_t c = 0; unseen > 0 && g->count < wanted; c++) {
        if (pool->chunks[c] != NULL)
            continue;
        unseen--;
        if (is_clean(pool, pool->home[c]))
            g->numbers[g->count++] = c;
    }
}

/* The run of homes in which the page before this one is. */
static uint32_t homes_before(const pleat__chunk_pool *pool, uint64_t page)
{
    uint32_t r = 0;
    while (page != 0 &&
           (page <= pool->homes[r].page || page > pool->homes[r].page + pool->homes[r].pages))
        r++;
    return r;
}

/* The homes that there were are taken, by what is paused or in the host's memory too. */
static pleat_result take_homes(pleat__chunk_pool *pool)
{
    pleat__page_run *last = &pool->homes[pool->home_count - 1];
    pleat__page_run more = {.pages = pleat__space_device_bytes(pool->space) / pool->page_bytes};
    if (pool->home_count == PLEAT__HOMES)
        return pleat__fail(PLEAT_E_LIMIT, "there are homes for %u chunks", pool->count);
    PLEAT_TRY(pleat__space_take(pool->space, more.pages, &more.page));
    if (more.page == last->page + last->pages)
        last->pages += more.pages;
    else
        pool->homes[pool->home_count++] = more;
    return PLEAT_OK;
}

/* The page itself, or where the run of homes ends there the first one of the next run. */
static pleat_result home_from(pleat__chunk_pool *pool, uint64_t *page)
{
    uint32_t run = homes_before(pool, *page);
    while (*page == pool->homes[run].page + pool->homes[run].pages) {
        if (run + 1 == pool->home_count)
            PLEAT_TRY(take_homes(pool));
        else
            *page = pool->homes[++run].page;
    }
    return PLEAT_OK;
}

/* Then new ones, with homes in the next clean pages. They are not in use yet: nobody sees them
 * before they are counted. */
static pleat_result choose_new(pleat__chunk_pool *pool, growth *g, uint32_t wanted)
{
    uint32_t number = pool->count, new = wanted - g->count;
    if (new > pool->most - number)
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY,
                           "%u more chunks of %llu bytes are more than there are numbers for "
                           "beside what is paused or in the host's memory",
                           wanted, (unsigned long long)pool->page_bytes);
    PLEAT_TRY(pleat__occupancy_grow(&pool->occupancy, number + new));
    pleat__space_expect(pool->space, pool->next_home, new);
    for (uint64_t page = pool->next_home; g->count < wanted; page++) {
        if (home_from(pool, &page) != PLEAT_OK)
            return pleat__context(PLEAT_E_OUT_OF_MEMORY, "%u more chunks of %llu bytes", wanted,
                                  (unsigned long long)pool->page_bytes);
        if (!is_clean(pool, page))
            continue;
        pool->home[number] = (uint32_t)page;
        pool->chunks[number] = NULL;
        pool->span[number] = (pleat__chunk_span){number, number};
        pool->breaks[number] = number == 0 || page != (uint64_t)pool->home[number - 1] + 1;
        g->numbers[g->count++] = number++;
    }
    return PLEAT_OK;
}

/* The end of the longest run from `first` on of numbers whose homes lie side by side. */
static uint32_t run_end(const pleat__chunk_pool *pool, const growth *g, uint32_t first,
                        uint32_t end)
{
    uint32_t i = first + 1;
    while (i < end && g->numbers[i] == g->numbers[i - 1] + 1 && !pool->breaks[g->numbers[i]])
        i++;
    return i;
}

/* A handle for the chunks from `first` on; smaller ones when memory is short. */
static pleat_result get_handle(const pleat__chunk_pool *pool, growth *g, uint32_t first,
                               uint32_t end, pleat__chunk **handle)
{
    uint32_t left = end - first < g->block ? end - first : g->block;
    while (g->block > 1 && left > 1) {
        uint32_t pages = g->block;
        while (pages > left)
            pages /= 2;
        pleat_result result = pleat__space_chunk_get(pool->space, pages, handle);
        if (!pleat__is_shortage(result))
            return result;
        g->block = pages / 2;
    }
    return pleat__space_chunk_get(pool->space, 1, handle);
}

/* Chunks for a run, in one map call; fewer when memory runs out. */
static pleat_result make_run(const pleat__chunk_pool *pool, growth *g, uint64_t home, uint32_t end)
{
    uint32_t got = g->made, handles = 0;
    pleat_result result = PLEAT_OK;
    while (got < end && result == PLEAT_OK) {
        result = get_handle(pool, g, got, end, &g->handles[handles]);
        if (result != PLEAT_OK)
            break;
        for (uint32_t p = 0, first = g->numbers[got]; p < g->handles[handles]->pages; p++) {
            g->first[got] = first;
            g->chunks[got++] = g->handles[handles];
        }
        handles++;
    }
    if (handles == 0)
        return result;
    pleat_result mapped = pleat__space_map(pool->space, home, g->handles, handles);
    if (mapped != PLEAT_OK) {
        while (handles > 0)
            pleat__space_chunk_put(pool->space, g->handles[--handles]);
        return mapped;
    }
    g->made = got;
    return result;
}

/* A chunk that was made, or promised, has its number. */
static void number(pleat__chunk_pool *pool, const growth *g, uint32_t i)
{
    uint32_t number = g->numbers[i], shift = pool->occupancy.shift;
    bool absent = number < pool->count;
    pool->chunks[number] = g->chunks[i];
    pool->span[number] =
        (pleat__chunk_span){g->first[i], g->first[i] + (uint32_t)g->chunks[i]->pages};
    if (absent) {
        pleat__occupancy_give(&pool->occupancy, (pleat__run){number << shift, 1u << shift});
        pool->absent--;
    } else {
        pool->count = number + 1;
        pool->next_home = (uint64_t)pool->home[number] + 1;
    }
}

/* What was made is there for everybody from now on. Every run is told of, also after a failure:
 * `visit` has said that it forgot the others. */
static pleat_result publish(pleat__chunk_pool *pool, const growth *g, pleat__occupancy_visit visit,
                            void *context)
{
    uint32_t shift = pool->occupancy.shift;
    pleat_result result = PLEAT_OK;
    for (uint32_t i = 0, end; i < g->made; i = end) {
        end = run_end(pool, g, i, g->made);
        pleat__run run = {g->numbers[i] << shift, (end - i) << shift};
        for (uint32_t k = i; k < end; k++)
            number(pool, g, k);
        pleat_result visited = visit(context, run);
        result = visited != PLEAT_OK ? visited : result;
    }
    return result;
}

/* The verbs, the lock left. */
static pleat_result make_all(pleat__chunk_pool *pool, growth *g)
{
    pleat_result result = PLEAT_OK;
    pleat__gate_leave(pool->gate);
    while (g->made < g->count && result == PLEAT_OK) {
        uint32_t end = run_end(pool, g, g->made, g->count);
        result = make_run(pool, g, pool->home[g->numbers[g->made]], end);
    }
    pleat__gate_enter(pool->gate);
    return result;
}

static pleat_result growth_new(const pleat__chunk_pool *pool, uint32_t chunks, growth *g)
{
    g->numbers = pleat__arena_alloc(pool->arena, chunks * sizeof *g->numbers);
    g->chunks = pleat__arena_alloc(pool->arena, chunks * sizeof *g->chunks);
    g->first = pleat__arena_alloc(pool->arena, chunks * sizeof *g->first);
    g->handles = pleat__arena_alloc(pool->arena, chunks * sizeof *g->handles);
    return g->numbers != NULL && g->chunks != NULL && g->first != NULL && g->handles != NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u chunks", chunks);
}

static void growth_free(const pleat__chunk_pool *pool, growth *g)
{
    pleat__arena_free(pool->arena, g->handles);
    pleat__arena_free(pool->arena, g->first);
    pleat__arena_free(pool->arena, g->chunks);
    pleat__arena_free(pool->arena, g->numbers);
}

static pleat_result choose(pleat__chunk_pool *pool, growth *g, uint32_t chunks)
{
    choose_absent(pool, g, chunks);
    return g->count < chunks ? choose_new(pool, g, chunks) : PLEAT_OK;
}

/* Chunks for the numbers that were chosen, one a handle, mapped at home. */
static pleat_result promise_all(const pleat__chunk_pool *pool, growth *g)
{
    pleat_result result = PLEAT_OK;
    for (; g->made < g->count && result == PLEAT_OK; g->made += result == PLEAT_OK) {
        uint32_t number = g->numbers[g->made];
        g->first[g->made] = number;
        result = pleat__space_chunk_promise(pool->space, 1, &g->chunks[g->made]);
        if (result != PLEAT_OK)
            break;
        result = pleat__space_map(pool->space, pool->home[number], &g->chunks[g->made], 1);
        if (result != PLEAT_OK)
            pleat__space_chunk_put(pool->space, g->chunks[g->made]);
    }
    return result;
}

static void unpromise(const pleat__chunk_pool *pool, growth *g)
{
    while (g->made > 0) {
        uint32_t number = g->numbers[--g->made];
        (void)!pleat__space_unmap(pool->space, pool->home[number], 1);
        pleat__space_chunk_put(pool->space, g->chunks[g->made]);
    }
}

pleat_result pleat__chunk_pool_promise(pleat__chunk_pool *pool, uint32_t chunks)
{
    growth g = {0};
    pleat_result result = growth_new(pool, chunks, &g);
    if (result == PLEAT_OK)
        result = choose(pool, &g, chunks);
    if (result == PLEAT_OK)
        result = pleat__rest_reserve(pool, chunks);
    if (result == PLEAT_OK)
        result = promise_all(pool, &g);
    if (result != PLEAT_OK)
        unpromise(pool, &g);
    for (uint32_t i = 0; i < g.made; i++)
        number(pool, &g, i);
    for (uint32_t i = g.made; i > 0; i--)
        pleat__rest_promised(pool, g.numbers[i - 1]);
    growth_free(pool, &g);
    return result;
}

pleat_result pleat__chunk_pool_make(pleat__chunk_pool *pool, uint32_t chunks,
                                    pleat__occupancy_visit visit, void *context)
{
    growth g = {.block = block_for(pool, chunks, chunks)};
    pleat_result result = growth_new(pool, chunks, &g);
    if (result != PLEAT_OK)
        goto end;
    result = choose(pool, &g, chunks);
    if (result != PLEAT_OK)
        goto end;
    result = make_all(pool, &g);
    pleat_result published = publish(pool, &g, visit, context);
    result = result != PLEAT_OK ? result : published;
end:
    growth_free(pool, &g);
    return result;
}

pleat_result pleat__chunk_pool_grow(pleat__chunk_pool *pool, uint32_t chunks,
                                    pleat__occupancy_visit visit, void *context)
{
    uint32_t woken;
    pleat_result result = pleat__rest_wake(pool, chunks, visit, context, &woken);
    uint32_t wanted = chunks - (woken < chunks ? woken : chunks);
    if (wanted == 0 || (result != PLEAT_OK && result != PLEAT_E_BUDGET))
        return result;
    /* The handles at rest may be larger than what is left of the budget. */
    pleat_result made = pleat__chunk_pool_make(pool, wanted, visit, context);
    return made == PLEAT_E_OUT_OF_MEMORY && result == PLEAT_E_BUDGET
               ? pleat__fail(result, "no room for %u chunks", wanted)
               : made;
}

/* ---- giving back, joining, views ---- */

static void occupy_all(pleat__chunk_pool *pool, const uint32_t *numbers, uint32_t count, bool take)
{
    for (uint32_t i = 0; i < count; i++) {
        pleat__run run = {numbers[i] << pool->occupancy.shift, pool->occupancy.full};
        PLEAT_ASSERT(pleat__handle_chunks(pool, numbers[i]) != 0);
        if (take)
            PLEAT_CHECK(pleat__occupancy_take(&pool->occupancy, run));
        else
            pleat__occupancy_give(&pool->occupancy, run);
    }
}

/* Unmaps homes, neighbours with one verb. What the driver refuses to unmap is quarantined by the
 * space, which takes the chunk all the same. */
static void unmap_homes(const pleat__chunk_pool *pool, const uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0, end; i < count; i = end) {
        end = i + 1;
        while (end < count && pool->home[numbers[end]] + 1 == pool->home[numbers[end - 1]])
            end++;
        (void)!pleat__space_unmap(pool->space, pool->home[numbers[end - 1]], end - i);
        for (uint32_t k = i; k < end; k++)
            if (pool->span[numbers[k]].first == numbers[k])
                pleat__space_chunk_put(pool->space, pool->chunks[numbers[k]]);
    }
}

/* The chunks of the span are this handle's, or (NULL) were given back. */
static void set_handle(pleat__chunk_pool *pool, pleat__chunk_span span, pleat__chunk *handle)
{
    for (uint32_t chunk = span.first; chunk < span.behind; chunk++) {
        pool->chunks[chunk] = handle;
        pool->span[chunk] = handle != NULL ? span : (pleat__chunk_span){chunk, chunk};
    }
}

uint32_t pleat__chunk_pool_shrink(pleat__chunk_pool *pool, const uint32_t *numbers, uint32_t count,
                                  pleat__fences *fences)
{
    occupy_all(pool, numbers, count, true);
    if (!pleat__gate_leave_fenced(pool->gate, fences)) {
        occupy_all(pool, numbers, count, false);
        return 0;
    }
    unmap_homes(pool, numbers, count);
    pleat__gate_enter(pool->gate);
    for (uint32_t i = 0; i < count; i++)
        set_handle(pool, (pleat__chunk_span){numbers[i], numbers[i] + 1}, NULL);
    pool->absent += count;
    return count;
}

void pleat__chunk_pool_drop(pleat__chunk_pool *pool, uint32_t first)
{
    pleat__chunk *handle = pool->chunks[first];
    uint32_t pages = handle->pages;
    (void)!pleat__space_unmap(pool->space, pool->home[first], pages); /* a matter of tables */
    pleat__space_chunk_put(pool->space, handle);
    set_handle(pool, (pleat__chunk_span){first, first + pages}, NULL);
    pool->absent += pages;
}

bool pleat__chunk_pool_join(pleat__chunk_pool *pool, uint32_t first, uint32_t next)
{
    pleat__chunk *handle = pool->chunks[first], *behind = pool->chunks[next];
    uint32_t end = next + behind->pages;
    if (pool->breaks[next] || !pleat__space_join(pool->space, handle, behind))
        return false;
    set_handle(pool, (pleat__chunk_span){first, end}, handle);
    return true;
}

bool pleat__chunk_pool_split(pleat__chunk_pool *pool, uint32_t at)
{
    uint32_t first = pool->span[at].first;
    pleat__chunk *handle = pool->chunks[at], *behind;
    if (pleat__space_split(pool->space, handle, at - first, &behind) != PLEAT_OK)
        return false;
    uint32_t end = at + behind->pages;
    set_handle(pool, (pleat__chunk_span){first, at}, handle);
    set_handle(pool, (pleat__chunk_span){at, end}, behind);
    return true;
}

/* The handles of a view's chunks into `run`; how many. */
static uint32_t list_handles(const pleat__chunk_pool *pool, const uint32_t *chunks, uint64_t count,
                             pleat__chunk **run)
{
    uint32_t handles = 0;
    for (uint64_t i = 0; i < count; i += run[handles++]->pages)
        run[handles] = pool->chunks[chunks[i]];
    return handles;
}

pleat_result pleat__chunk_pool_view(pleat__chunk_pool *pool, const uint32_t *chunks, uint32_t count,
                                    uint64_t *page)
{
    pleat__chunk **run = pleat__arena_alloc(pool->arena, count * sizeof *run);
    if (run == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view of %u chunks", count);
    uint32_t handles = list_handles(pool, chunks, count, run);
    pleat_result result = pleat__space_take(pool->space, count, page);
    if (result == PLEAT_OK) {
        pleat__space_expect(pool->space, *page, count);
        pleat__gate_leave(pool->gate);
        result = pleat__space_map(pool->space, *page, run, handles);
        pleat__gate_enter(pool->gate);
        if (result == PLEAT_OK)
            pool->view_pages += count;
        else
            pleat__space_give(pool->space, *page, count);
    }
    pleat__arena_free(pool->arena, run);
    return result;
}

/* Of a view whose part behind `part` or in front of it is whole. */
static void unmap_beside(const pleat__chunk_pool *pool, pleat__page_run view, pleat__page_run part)
{
    uint64_t behind = part.page + part.pages;
    if (part.page != 0)
        (void)!pleat__space_unmap(pool->space, view.page, part.page);
    if (behind != view.pages)
        (void)!pleat__space_unmap(pool->space, view.page + behind, view.pages - behind);
}

pleat_result pleat__chunk_pool_remap(pleat__chunk_pool *pool, pleat__page_run view,
                                     const uint32_t *chunks, const pleat__page_run *parts,
                                     uint32_t count)
{
    pleat__chunk **run = pleat__arena_alloc(pool->arena, view.pages * sizeof *run);
    pleat_result result = PLEAT_OK;
    pleat__gate_leave(pool->gate);
    if (run == NULL) {
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to remap a view");
        unmap_beside(pool, view, (pleat__page_run){0, 0});
    }
    for (uint32_t p = 0; p < count && result == PLEAT_OK; p++) {
        uint64_t page = view.page + parts[p].page;
        uint32_t handles = list_handles(pool, chunks + parts[p].page, parts[p].pages, run);
        result = pleat__space_unmap(pool->space, page, parts[p].pages);
        if (result == PLEAT_OK)
            result = pleat__space_map(pool->space, page, run, handles);
        if (result != PLEAT_OK)
            unmap_beside(pool, view, parts[p]);
    }
    pleat__gate_enter(pool->gate);
    if (result != PLEAT_OK) {
        pool->view_pages -= view.pages;
        pleat__space_give(pool->space, view.page, view.pages);
    }
    pleat__arena_free(pool->arena, run);
    return result;
}
