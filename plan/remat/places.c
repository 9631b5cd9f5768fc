/*
 * places.c: finds memory for a request: a hole; for `stitched`, chunks from anywhere; else by
 * evicting what the policy says.
 */
#include "run_internal.h"

#include <internal/check.h>
#include <internal/error.h>

#include <string.h>

static uint64_t clock_of(const pleat__remat_state *run)
{
    const pleat__remat_ground *ground = run->options->ground;
    return ground != NULL && ground->clock_ns != NULL ? ground->clock_ns(ground->self) : 0;
}

static const pleat__range *ranges_of(const pleat__remat_place *place)
{
    return place->several != NULL ? place->several : &place->one;
}

static void use(pleat__remat_state *run, uint64_t bytes)
{
    run->used_bytes += bytes;
    if (run->used_bytes > run->figures->peak_bytes)
        run->figures->peak_bytes = run->used_bytes;
}

/* ---- holes and chunks ---- */

static pleat_result take_hole(pleat__remat_state *run, uint64_t bytes, bool cheap,
                              pleat__remat_place *place)
{
    bool right = cheap && run->options->policy >= PLEAT__REMAT_COOP;
    size_t block = pleat__remat_pool_find(&run->pool, bytes);
    if (block == run->pool.count)
        return PLEAT_OK;
    PLEAT_TRY(pleat__remat_pool_take(&run->pool, block, bytes, right, PLEAT__REMAT_HELD,
                                     &place->one.begin));
    place->one.end = place->one.begin + bytes;
    place->count = 1;
    return PLEAT_OK;
}

/* The chunk whose free beginning holds the last bytes of a request and is the shortest that does;
 * PLEAT__REMAT_NONE where none is. */
static uint64_t chunk_for_tail(const pleat__remat_pool *pool, uint64_t bytes)
{
    uint64_t best = UINT64_MAX, best_room = pool->chunk_bytes;
    for (size_t i = 0; i < pool->count; i++) {
        const pleat__remat_block *b = &pool->blocks[i];
        uint64_t end = b->begin + b->bytes, chunk = end / pool->chunk_bytes;
        uint64_t room = end % pool->chunk_bytes;
        bool from_its_beginning = b->begin <= chunk * pool->chunk_bytes;
        if (b->owner == PLEAT__REMAT_FREE && from_its_beginning && room >= bytes &&
            room < best_room && chunk < pool->chunks) {
            best = chunk;
            best_room = room;
        }
    }
    return best;
}

/* Takes whole free chunks from the left, and the beginning of one more for what is over. */
static pleat_result take_chunks(pleat__remat_state *run, uint64_t bytes, pleat__remat_place *place)
{
    pleat__remat_pool *pool = &run->pool;
    uint64_t whole = bytes / pool->chunk_bytes, tail = bytes % pool->chunk_bytes;
    uint64_t tail_chunk = tail > 0 ? chunk_for_tail(pool, tail) : UINT64_MAX;
    bool tail_whole = tail > 0 && tail_chunk == UINT64_MAX;
    uint64_t wanted = whole + tail_whole;
    if (pool->free_chunks < wanted)
        return PLEAT_OK;
    place->several = pleat__arena_calloc(run->arena, wanted + 1, sizeof *place->several);
    if (place->several == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a place of %llu chunks",
                           (unsigned long long)wanted);
    for (uint64_t c = 0; c < pool->chunks && place->count < wanted; c++) {
        uint64_t begin = c * pool->chunk_bytes;
        if (pool->chunk_used[c] == 0)
            place->several[place->count++] = (pleat__range){begin, begin + pool->chunk_bytes};
    }
    if (tail_whole)
        place->several[place->count - 1].end -= pool->chunk_bytes - tail;
    else if (tail > 0)
        place->several[place->count++] =
            (pleat__range){tail_chunk * pool->chunk_bytes, tail_chunk * pool->chunk_bytes + tail};
    for (uint32_t i = 0; i < place->count; i++)
        PLEAT_TRY(pleat__remat_pool_take_range(pool, place->several[i], PLEAT__REMAT_HELD));
    run->figures->maps += place->count;
    run->figures->map_ns += place->count * run->options->map_ns;
    run->clock_ns += place->count * run->options->map_ns;
    return PLEAT_OK;
}

static pleat_result take(pleat__remat_state *run, uint64_t bytes, bool cheap,
                         pleat__remat_place *place)
{
    PLEAT_TRY(take_hole(run, bytes, cheap, place));
    if (place->count == 0 && run->options->chunks && bytes > run->pool.chunk_bytes)
        return take_chunks(run, bytes, place);
    return PLEAT_OK;
}

/* ---- evicting ---- */

static void search(pleat__remat_state *run, uint64_t bytes)
{
    const pleat__remat_options *options = run->options;
    pleat__remat_need need = {bytes, run->clock_ns, options->map_ns, options->weighing};
    if (options->policy == PLEAT__REMAT_DTR)
        pleat__remat_search_dtr(&run->table, &need, &run->victims);
    else if (options->policy == PLEAT__REMAT_DTE)
        pleat__remat_search_dte(&run->table, &run->pool, &need, &run->victims);
    else if (options->chunks)
        pleat__remat_search_chunks(&run->table, &run->pool, &need, &run->scratch, &run->victims);
    else
        (void)pleat__remat_search_window(&run->table, &run->pool, &need, &run->victims);
}

/* One search and its evictions; what it took is added to *search_ns. */
static pleat_result evict_for(pleat__remat_state *run, uint64_t bytes, uint64_t *search_ns)
{
    uint64_t began = clock_of(run);
    search(run, bytes);
    *search_ns += clock_of(run) - began;
    run->infeasible = run->victims.count == 0;
    for (uint32_t i = 0; i < run->victims.count; i++)
        PLEAT_TRY(pleat__remat_run_evict(run, run->victims.tensors[i]));
    run->figures->evictions += run->victims.count;
    return PLEAT_OK;
}

static bool fits(pleat__remat_state *run, uint64_t bytes)
{
    return run->used_bytes + bytes <= run->options->budget_bytes;
}

/* Of no memory nothing is free. */
static double free_share(const pleat__remat_state *run)
{
    bool fungible = run->options->fungible;
    uint64_t all = fungible ? run->options->budget_bytes : run->pool.bytes;
    uint64_t used = fungible ? run->used_bytes : all - run->pool.free_bytes;
    return all != 0 ? 1 - (double)used / (double)all : 0;
}

static pleat_result count_search(pleat__remat_state *run, uint64_t search_ns, double free_before)
{
    pleat__remat_figures *f = run->figures;
    PLEAT_TRY(pleat__arena_grow(run->arena, &run->search_ns, &run->search_room, f->searches,
                                sizeof *run->search_ns));
    run->search_ns[f->searches++] = search_ns;
    f->search_blocks += (double)run->pool.count;
    f->free_before += free_before;
    f->fragmentation += free_share(run);
    return PLEAT_OK;
}

static pleat_result try(pleat__remat_state *run, uint64_t bytes, bool cheap,
                        pleat__remat_place *place)
{
    if (!run->options->fungible)
        return take(run, bytes, cheap, place);
    place->count = fits(run, bytes);
    return PLEAT_OK;
}

pleat_result pleat__remat_run_obtain(pleat__remat_state *run, uint64_t bytes, bool cheap,
                                     pleat__remat_place *place)
{
    uint64_t asked = run->options->fungible ? bytes : pleat__rounded(bytes), search_ns = 0;
    bool searched = false;
    *place = (pleat__remat_place){.count = 0};
    if (bytes == 0)
        return PLEAT_OK;
    run->figures->requests++;
    double free_before = free_share(run);
    for (;;) {
        PLEAT_TRY(try(run, asked, cheap, place));
        if (place->count > 0 || run->infeasible)
            break;
        PLEAT_TRY(evict_for(run, asked, &search_ns));
        searched = true;
    }
    run->figures->out_of_memory |= run->infeasible;
    if (place->count > 0)
        use(run, bytes);
    return searched ? count_search(run, search_ns, free_before) : PLEAT_OK;
}

void pleat__remat_run_give(pleat__remat_state *run, uint64_t bytes, pleat__remat_place *place)
{
    const pleat__range *ranges = ranges_of(place);
    for (uint32_t i = 0; i < place->count && !run->options->fungible; i++)
        pleat__remat_pool_give(&run->pool, ranges[i].begin);
    if (place->count > 0)
        run->used_bytes -= bytes;
    pleat__arena_free(run->arena, place->several);
    *place = (pleat__remat_place){.count = 0};
}

static void own(pleat__remat_state *run, const pleat__remat_place *place, uint32_t memory)
{
    const pleat__range *ranges = ranges_of(place);
    for (uint32_t i = 0; i < place->count && !run->options->fungible; i++)
        pleat__remat_pool_hand_over(&run->pool, ranges[i].begin, memory);
}

static void made(pleat__remat_state *run, uint32_t memory)
{
    uint64_t began = clock_of(run);
    pleat__remat_made(&run->table, memory);
    run->figures->upkeep_ns += clock_of(run) - began;
}

/* Its values are gone with it. */
static pleat_result left(pleat__remat_state *run, uint32_t memory)
{
    uint64_t began = clock_of(run);
    for (uint32_t v = run->memories[memory].values; v != PLEAT__REMAT_NONE; v = run->values[v].next)
        run->values[v].defined = false;
    PLEAT_TRY(pleat__remat_evicted(&run->table, memory));
    run->figures->upkeep_ns += clock_of(run) - began;
    return PLEAT_OK;
}

pleat_result pleat__remat_run_settle(pleat__remat_state *run, uint32_t memory,
                                     pleat__remat_place *place)
{
    const pleat__remat_ground *ground = run->options->ground;
    own(run, place, memory);
    run->memories[memory].place = *place;
    made(run, memory);
    if (ground == NULL || ground->place == NULL || place->count == 0)
        return PLEAT_OK;
    return ground->place(ground->self, memory, ranges_of(&run->memories[memory].place),
                         place->count);
}

pleat_result pleat__remat_run_evict(pleat__remat_state *run, uint32_t memory)
{
    const pleat__remat_ground *ground = run->options->ground;
    pleat__remat_place *place = &run->memories[memory].place;
    if (ground != NULL && ground->leave != NULL && place->count > 0)
        PLEAT_TRY(ground->leave(ground->self, memory));
    pleat__remat_run_give(run, run->table.hot[memory].bytes, place);
    return left(run, memory);
}

pleat_result pleat__remat_run_hand_over(pleat__remat_state *run, uint32_t from, uint32_t to)
{
    const pleat__remat_ground *ground = run->options->ground;
    pleat__memory *memories = run->memories;
    own(run, &memories[from].place, to);
    memories[to].place = memories[from].place;
    memories[from].place = (pleat__remat_place){.count = 0};
    made(run, to);
    PLEAT_TRY(left(run, from));
    run->figures->evictions++;
    if (ground == NULL || ground->hand_over == NULL)
        return PLEAT_OK;
    return ground->hand_over(ground->self, from, to);
}
