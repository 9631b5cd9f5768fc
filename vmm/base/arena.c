/*
 * arena.c: metadata arenas: failures on purpose, and the counts. Blocks are arena_blocks.h's.
 */
#include "arena_blocks.h"

#include <internal/error.h>
#include <internal/range.h>

#include <string.h>

/* ---- failures on purpose ---- */

static _Thread_local struct {
    uint64_t left; /* allocations until one fails; 0: none will */
    bool forever;
    uint64_t failed;
} failing;

void pleat__arena_fail(uint64_t nth, bool forever)
{
    failing.left = nth;
    failing.forever = forever;
    failing.failed = 0;
}

uint64_t pleat__arena_failed(void)
{
    return failing.failed;
}

static bool fails(void)
{
    if (__builtin_expect(failing.left == 0, 1) || --failing.left > 0)
        return false;
    failing.left = failing.forever;
    failing.failed++;
    return true;
}

/* ---- arenas ---- */

pleat_result pleat__arena_create(pleat__arena **out)
{
    return pleat__blocks_open(out);
}

void pleat__arena_destroy(pleat__arena *arena)
{
    if (arena != NULL)
        pleat__blocks_close(arena);
}

static void count_in(pleat__arena *arena, const void *pointer)
{
    uint64_t size = pleat__blocks_size(arena, pointer);
    uint64_t now = atomic_fetch_add_explicit(&arena->allocated, size, memory_order_relaxed) + size;
    uint64_t peak = atomic_load_explicit(&arena->peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(
                             &arena->peak, &peak, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void count_out(pleat__arena *arena, uint64_t size)
{
    atomic_fetch_sub_explicit(&arena->allocated, size, memory_order_relaxed);
}

static void *allocate(pleat__arena *arena, size_t size, pleat__contents contents)
{
    if (fails())
        return NULL;
    void *pointer = pleat__blocks_take(arena, size ? size : 1, contents);
    if (pointer != NULL)
        count_in(arena, pointer);
    return pointer;
}

void *pleat__arena_alloc(pleat__arena *arena, size_t size)
{
    return allocate(arena, size, PLEAT__CONTENTS_ANY);
}

void *pleat__arena_calloc(pleat__arena *arena, size_t count, size_t size)
{
    uint64_t total;
    if (!pleat__mul(count, size, &total))
        return NULL;
    return allocate(arena, total, PLEAT__CONTENTS_ZERO);
}

void *pleat__arena_calloc_sparse(pleat__arena *arena, size_t count, size_t size)
{
    uint64_t total;
    return pleat__mul(count, size, &total) ? allocate(arena, total, PLEAT__CONTENTS_SPARSE) : NULL;
}

void *pleat__arena_realloc(pleat__arena *arena, void *pointer, size_t size)
{
    if (pointer == NULL)
        return pleat__arena_alloc(arena, size);
    if (fails())
        return NULL;
    uint64_t before = pleat__blocks_size(arena, pointer);
    void *moved = pleat__blocks_resize(arena, pointer, size ? size : 1);
    if (moved == NULL)
        return NULL;
    count_out(arena, before);
    count_in(arena, moved);
    return moved;
}

void pleat__arena_free(pleat__arena *arena, void *pointer)
{
    if (pointer == NULL)
        return;
    count_out(arena, pleat__blocks_size(arena, pointer));
    pleat__blocks_give(arena, pointer);
}

pleat__arena_bytes pleat__arena_bytes_of(const pleat__arena *arena)
{
    return (pleat__arena_bytes){
        .allocated = atomic_load_explicit(&arena->allocated, memory_order_relaxed),
        .peak = atomic_load_explicit(&arena->peak, memory_order_relaxed),
    };
}

pleat_result pleat__arena_reserve(pleat__arena *arena, void *items, size_t *capacity, size_t count,
                                  size_t size)
{
    if (count <= *capacity)
        return PLEAT_OK;
    uint64_t wanted = *capacity ? (uint64_t)*capacity * 2 : 16, bytes;
    bool fits = true;
    while (wanted < count && fits)
        fits = pleat__mul(wanted, 2, &wanted);
    if (!fits || !pleat__mul(wanted, size, &bytes))
        return pleat__fail(PLEAT_E_NO_MEMORY, "an array of %zu items is too large", count);
    void *old;
    memcpy(&old, items, sizeof old);
    void *grown = pleat__arena_realloc(arena, old, bytes);
    if (grown == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an array of %llu bytes",
                           (unsigned long long)bytes);
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return PLEAT_OK;
}

pleat_result pleat__arena_grow(pleat__arena *arena, void *items, size_t *capacity, size_t count,
                               size_t size)
{
    return pleat__arena_reserve(arena, items, capacity, count + 1, size);
}
