/*
 * memory_audit.c: auditors of chunks and views (docs/invariants.md, R3 to R8, R12). Each prints
 * what disagrees. They only read.
 */
#include <runtime/memory/views.h>

#include <stdio.h>

static bool disagree(const char *what, uint64_t at, uint64_t is, uint64_t should)
{
    fprintf(stderr, "pleat: %s (at %llu): %llu, %llu by what it is derived from\n", what,
            (unsigned long long)at, (unsigned long long)is, (unsigned long long)should);
    return false;
}

/* A chunk that is there: its handle is the one of the chunk it begins with, and it is within. */
static bool audit_handle(const pleat__chunk_pool *pool, uint32_t c)
{
    uint32_t first = pool->span[c].first;
    if (first > c || pool->chunks[first] != pool->chunks[c])
        return disagree("first chunk of a handle", c, first, c);
    if (c - first >= pool->chunks[c]->pages ||
        pleat__handle_chunks(pool, c) != pool->chunks[c]->pages)
        return disagree("chunks of a handle", c, pool->chunks[c]->pages, c - first + 1);
    return true;
}

static bool audit_home(const pleat__chunk_pool *pool, uint32_t c)
{
    if (c != 0 && pool->breaks[c] == 0 && pool->home[c] != pool->home[c - 1] + 1)
        return disagree("home of a chunk without a break", c, pool->home[c], pool->home[c - 1] + 1);
    return true;
}

bool pleat__chunks_audit(const pleat__chunk_pool *pool)
{
    uint32_t absent = 0, full = pool->occupancy.full;
    if (pool->count > pool->most)
        return disagree("chunks", 0, pool->count, pool->most);
    for (uint32_t c = 0; c < pool->count; c++) {
        if (!audit_home(pool, c))
            return false;
        if (pool->chunks[c] != NULL) {
            if (!audit_handle(pool, c))
                return false;
            continue;
        }
        absent++;
        if (pool->span[c].first != c || pool->span[c].behind != c)
            return disagree("chunks of what is gone", c, pleat__handle_chunks(pool, c), 0);
        if (pool->occupancy.used[c] != full)
            return disagree("occupied of a chunk that is gone", c, pool->occupancy.used[c], full);
    }
    return absent == pool->absent || disagree("chunks that are gone", 0, pool->absent, absent);
}

/* Whole handles that exist, in order. */
static bool audit_view(const pleat__chunk_pool *pool, const pleat__view *view)
{
    for (uint32_t i = 0, pages; i < view->pages; i += pages) {
        uint32_t c = view->chunks[i];
        if (c >= pool->count || pool->chunks[c] == NULL || pool->span[c].first != c)
            return disagree("chunk in a view", view->page + i, c, pool->count);
        pages = pool->chunks[c]->pages;
        for (uint32_t k = 0; k < pages; k++)
            if (i + k >= view->pages || view->chunks[i + k] != c + k)
                return disagree("handle in a view", view->page + i, pages, k);
    }
    if (view->dead || view->live > view->slices)
        return disagree("slices of a view", view->page, view->live, view->slices);
    return true;
}

bool pleat__views_audit(const pleat__heap *heap, bool followed, uint64_t layout_pages,
                        uint64_t live)
{
    uint64_t pages = layout_pages, maps = 0, slices = 0;
    uint32_t count = 0;
    for (const pleat__view *view = heap->newest; view != NULL; view = view->older, count++) {
        if (!audit_view(heap->pool, view))
            return false;
        if ((view->older != NULL ? view->older->newer : heap->oldest) != view)
            return disagree("order of views", view->page, count, heap->view_count);
        pages += view->pages;
        maps += view->maps;
        slices += view->live;
    }
    if (count != heap->view_count)
        return disagree("kept views", 0, heap->view_count, count);
    if (slices != live)
        return disagree("slices in use", 0, slices, live);
    if (heap->has_schedule != followed)
        return disagree("a schedule is followed", 0, heap->has_schedule, followed);
    if (maps != heap->view_maps)
        return disagree("maps of views", 0, heap->view_maps, maps);
    return pages == heap->pool->view_pages ||
           disagree("alias pages", 0, heap->pool->view_pages, pages);
}

bool pleat__used_audit(const pleat__chunk_pool *pool, uint64_t live)
{
    uint64_t used = 0;
    for (uint32_t c = 0; c < pool->count; c++)
        used += pool->chunks[c] != NULL ? pool->occupancy.used[c] : 0;
    return used == live + pool->held || disagree("granules in use", 0, used, live + pool->held);
}
