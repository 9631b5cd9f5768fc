/*
 * window.h: which pages of a window are taken: a bitmap. A window of 1.1 TiB has 70 KiB of bits, a
 * search reads 64 pages a step, and giving a range back needs no memory and cannot fail, whatever
 * part of what was taken it is.
 *
 * THREADS  None of its own: the space's lock guards it.
 */
#ifndef PLEAT_VMM_WINDOW_H
#define PLEAT_VMM_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pleat__window {
    uint64_t *taken; /* pages / 64 words, rounded up, zero at first; the owner's */
    uint64_t pages;
    uint64_t lowest; /* no page below is free */
    uint64_t top;    /* no page from here on was ever taken */
} pleat__window;

/* The lowest free run of `pages` pages; false when there is none. Takes nothing. */
bool pleat__window_find(const pleat__window *window, uint64_t pages, uint64_t *first);
/* Whether every page of the range is (not) taken. pre: within the window. */
bool pleat__window_all_taken(const pleat__window *window, uint64_t first, uint64_t pages);
bool pleat__window_all_free(const pleat__window *window, uint64_t first, uint64_t pages);
void pleat__window_take(pleat__window *window, uint64_t first, uint64_t pages);
void pleat__window_give(pleat__window *window, uint64_t first, uint64_t pages);

#endif
