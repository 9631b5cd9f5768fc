/*
 * window.c: the bitmap of a window's pages. See window.h.
 */
#include "window.h"

#include <internal/check.h>

/* The first page of [page, end) whose bit is `value`; `end` when there is none. */
static uint64_t next_with(const pleat__window *window, uint64_t page, uint64_t end, bool value)
{
    uint64_t flip = value ? 0 : UINT64_MAX;
    while (page < end) {
        uint64_t word = (window->taken[page / 64] ^ flip) >> page % 64;
        if (word != 0) {
            page += (uint64_t)__builtin_ctzll(word);
            break;
        }
        page += 64 - page % 64;
    }
    return page < end ? page : end;
}

bool pleat__window_find(const pleat__window *window, uint64_t pages, uint64_t *first)
{
    uint64_t all = window->pages, end;
    for (uint64_t begin = next_with(window, window->lowest, all, false); begin < all;
         begin = next_with(window, end, all, false)) {
        end = begin < window->top ? next_with(window, begin, all, true) : all;
        if (end - begin >= pages) {
            *first = begin;
            return true;
        }
    }
    return false;
}

bool pleat__window_all_taken(const pleat__window *window, uint64_t first, uint64_t pages)
{
    return next_with(window, first, first + pages, false) == first + pages;
}

bool pleat__window_all_free(const pleat__window *window, uint64_t first, uint64_t pages)
{
    return first >= window->top || next_with(window, first, first + pages, true) == first + pages;
}

static void set(pleat__window *window, uint64_t first, uint64_t pages, bool value)
{
    for (uint64_t page = first, end = first + pages; page < end;) {
        uint64_t stop = (page / 64 + 1) * 64 < end ? (page / 64 + 1) * 64 : end;
        uint64_t mask = (stop - page == 64 ? UINT64_MAX : (1ull << (stop - page)) - 1) << page % 64;
        if (value)
            window->taken[page / 64] |= mask;
        else
            window->taken[page / 64] &= ~mask;
        page = stop;
    }
}

void pleat__window_take(pleat__window *window, uint64_t first, uint64_t pages)
{
    PLEAT_ASSERT(pleat__window_all_free(window, first, pages));
    set(window, first, pages, true);
    if (first == window->lowest)
        window->lowest = first + pages;
    if (first + pages > window->top)
        window->top = first + pages;
}

void pleat__window_give(pleat__window *window, uint64_t first, uint64_t pages)
{
    PLEAT_ASSERT(pleat__window_all_taken(window, first, pages));
    set(window, first, pages, false);
    if (first < window->lowest)
        window->lowest = first;
}
