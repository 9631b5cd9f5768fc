/*
 * pool.c: see pool.h.
 */
#include <plan/remat/pool.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/search.h>

#include <stdio.h>
#include <string.h>

pleat_result pleat__remat_pool_create(pleat__arena *arena, uint64_t bytes, uint64_t chunk_bytes,
                                      pleat__remat_pool *pool)
{
    bytes = pleat__round_down(bytes, PLEAT__ALIGNMENT);
    *pool = (pleat__remat_pool){
        .arena = arena,
        .bytes = bytes,
        .free_bytes = bytes,
        .chunk_bytes = chunk_bytes,
        .chunks = bytes / chunk_bytes,
        .free_chunks = bytes / chunk_bytes,
    };
    pool->chunk_used = pleat__arena_calloc(arena, pool->chunks, sizeof *pool->chunk_used);
    if (pool->chunk_used == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a pool of %llu chunks",
                           (unsigned long long)pool->chunks);
    PLEAT_TRY(
        pleat__arena_grow(arena, &pool->blocks, &pool->room, pool->count, sizeof *pool->blocks));
    if (bytes > 0)
        pool->blocks[pool->count++] =
            (pleat__remat_block){.bytes = bytes, .owner = PLEAT__REMAT_FREE};
    return PLEAT_OK;
}

size_t pleat__remat_pool_find(const pleat__remat_pool *pool, uint64_t bytes)
{
    size_t best = pool->count;
    uint64_t best_bytes = UINT64_MAX;
    for (size_t i = 0; i < pool->count; i++) {
        const pleat__remat_block *b = &pool->blocks[i];
        if (b->owner != PLEAT__REMAT_FREE || b->bytes < bytes || b->bytes >= best_bytes)
            continue;
        best = i;
        best_bytes = b->bytes;
    }
    return best;
}

size_t pleat__remat_pool_at(const pleat__remat_pool *pool, uint64_t at)
{
    size_t next;
    PLEAT__FIRST(next, pool->count, pool->blocks[next].begin > at);
    return next > 0 ? next - 1 : 0;
}

/* Bytes of a range that lie in one whole chunk. */
static uint64_t within(const pleat__remat_pool *pool, pleat__range range, uint64_t chunk)
{
    pleat__range all = {chunk * pool->chunk_bytes, (chunk + 1) * pool->chunk_bytes};
    pleat__range part = pleat__range_meet(range, all);
    return pleat__range_empty(part) ? 0 : pleat__range_size(part);
}

/* The chunks' counts follow what is taken or given. */
static void count_chunks(pleat__remat_pool *pool, pleat__range range, bool taken)
{
    for (uint64_t c = range.begin / pool->chunk_bytes;
         c < pool->chunks && c * pool->chunk_bytes < range.end; c++) {
        uint64_t part = within(pool, range, c);
        pool->free_chunks -= taken && pool->chunk_used[c] == 0;
        pool->chunk_used[c] += taken ? part : -part;
        pool->free_chunks += !taken && pool->chunk_used[c] == 0;
    }
    uint64_t size = pleat__range_size(range);
    pool->free_bytes += taken ? -size : size;
}

static void insert(pleat__remat_pool *pool, size_t at, pleat__remat_block block)
{
    memmove(pool->blocks + at + 1, pool->blocks + at, (pool->count - at) * sizeof block);
    pool->blocks[at] = block;
    pool->count++;
}

static void drop(pleat__remat_pool *pool, size_t at)
{
    pool->count--;
    memmove(pool->blocks + at, pool->blocks + at + 1, (pool->count - at) * sizeof *pool->blocks);
}

/* Room for two blocks more, what a take in the middle of one needs. */
static pleat_result make_room(pleat__remat_pool *pool)
{
    PLEAT_TRY(pleat__arena_grow(pool->arena, &pool->blocks, &pool->room, pool->count,
                                sizeof *pool->blocks));
    return pleat__arena_grow(pool->arena, &pool->blocks, &pool->room, pool->count + 1,
                             sizeof *pool->blocks);
}

pleat_result pleat__remat_pool_take_range(pleat__remat_pool *pool, pleat__range range,
                                          uint32_t owner)
{
    PLEAT_TRY(make_room(pool));
    size_t at = pleat__remat_pool_at(pool, range.begin);
    pleat__remat_block *b = &pool->blocks[at];
    uint64_t end = b->begin + b->bytes;
    PLEAT_CHECK(b->owner == PLEAT__REMAT_FREE && range.begin >= b->begin && range.end <= end);
    bool before = range.begin > b->begin, behind = range.end < end;
    pleat__remat_block taken = {range.begin, pleat__range_size(range), owner};
    if (before) {
        b->bytes = range.begin - b->begin;
        insert(pool, ++at, taken);
    } else {
        *b = taken;
    }
    if (behind)
        insert(pool, at + 1, (pleat__remat_block){range.end, end - range.end, PLEAT__REMAT_FREE});
    count_chunks(pool, range, true);
    return PLEAT_OK;
}

pleat_result pleat__remat_pool_take(pleat__remat_pool *pool, size_t block, uint64_t bytes,
                                    bool right, uint32_t owner, uint64_t *begin)
{
    const pleat__remat_block *b = &pool->blocks[block];
    *begin = right ? b->begin + b->bytes - bytes : b->begin;
    return pleat__remat_pool_take_range(pool, (pleat__range){*begin, *begin + bytes}, owner);
}

void pleat__remat_pool_give(pleat__remat_pool *pool, uint64_t begin)
{
    size_t at = pleat__remat_pool_at(pool, begin);
    pleat__remat_block *b = &pool->blocks[at];
    PLEAT_CHECK(b->begin == begin && b->owner != PLEAT__REMAT_FREE);
    count_chunks(pool, (pleat__range){begin, begin + b->bytes}, false);
    b->owner = PLEAT__REMAT_FREE;
    if (at + 1 < pool->count && b[1].owner == PLEAT__REMAT_FREE) {
        b->bytes += b[1].bytes;
        drop(pool, at + 1);
    }
    if (at > 0 && b[-1].owner == PLEAT__REMAT_FREE) {
        b[-1].bytes += b->bytes;
        drop(pool, at);
    }
}

void pleat__remat_pool_hand_over(pleat__remat_pool *pool, uint64_t begin, uint32_t owner)
{
    pleat__remat_block *b = &pool->blocks[pleat__remat_pool_at(pool, begin)];
    PLEAT_CHECK(b->begin == begin && b->owner != PLEAT__REMAT_FREE);
    b->owner = owner;
}

bool pleat__remat_pool_audit(const pleat__remat_pool *pool)
{
    uint64_t at = 0, free_bytes = 0;
    bool sound = true, was_free = false;
    for (size_t i = 0; i < pool->count; i++) {
        const pleat__remat_block *b = &pool->blocks[i];
        bool is_free = b->owner == PLEAT__REMAT_FREE;
        if (b->begin != at || b->bytes == 0 || (was_free && is_free)) {
            fprintf(stderr, "pool: block %zu begins at %llu, the one before ends at %llu\n", i,
                    (unsigned long long)b->begin, (unsigned long long)at);
            sound = false;
        }
        free_bytes += is_free ? b->bytes : 0;
        at = b->begin + b->bytes;
        was_free = is_free;
    }
    if (at != pool->bytes || free_bytes != pool->free_bytes) {
        fprintf(stderr, "pool: %llu bytes of %llu, %llu free of %llu\n", (unsigned long long)at,
                (unsigned long long)pool->bytes, (unsigned long long)free_bytes,
                (unsigned long long)pool->free_bytes);
        sound = false;
    }
    return sound;
}
