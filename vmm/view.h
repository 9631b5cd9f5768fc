/*
 * view.h: contiguous addresses stitched over any chunks, and a cache of them. Stitching costs a
 * verb a chunk and a grant; a view that was stitched before over the same chunks in the same order
 * costs nothing. Idle views are kept until their pages or their chunks are wanted, the least
 * recently used go first.
 *
 * A view's chunks stay the caller's: the cache knows nothing of who uses them. A chunk that idle
 * views still map can be used for anything, but not put into the pool: pleat__views_release_chunk
 * takes those views away first.
 *
 * THREADS  A cache locks for itself, no lock is held over a verb. A view that is in use belongs to
 *          one caller.
 */
#ifndef PLEAT_VMM_VIEW_H
#define PLEAT_VMM_VIEW_H

#include <vmm/space.h>

typedef struct pleat__views pleat__views;

/* Read by callers, written by the cache only. */
typedef struct pleat__view {
    uint64_t page; /* of the window */
    uint64_t pages;
    uint64_t count;
    pleat__chunk **chunks; /* from `page` on */
    /* ---- */
    uint64_t hash;
    bool idle;
    pleat_event event;                 /* the last work that used it, while idle; 0: none */
    struct pleat__view *older, *newer; /* idle: by their last use */
    struct pleat__view *next;          /* in its bucket */
} pleat__view;

typedef struct pleat__views_stats {
    uint64_t views, idle_views; /* now */
    uint64_t pages, idle_pages; /* now */
    uint64_t hits;              /* gets that found their view */
    uint64_t stitched;          /* gets that stitched one */
    uint64_t released;          /* views unmapped again */
    uint64_t failed_releases;   /* of them, those that ended in quarantine */
} pleat__views_stats;

/* `idle_pages`: more idle pages than this are not kept; 0: no limit. The space outlives it. */
PLEAT_NODISCARD pleat_result pleat__views_create(pleat__space *space, pleat__arena *arena,
                                                 uint64_t idle_pages, pleat__views **out);
/* Unmaps every view. pre: none is in use by the GPU. NULL is allowed. */
void pleat__views_destroy(pleat__views *views);

/* A view over just these chunks in this order: a cached idle one, else a new one. When window or
 * map areas run out, idle views are released and it is tried again. */
PLEAT_NODISCARD pleat_result pleat__view_get(pleat__views *views, pleat__chunk *const *chunks,
                                             uint64_t count, pleat__view **out);
/* The view becomes idle. `event` (0: none) passes to the cache: work that still uses the view; it
 * is waited for before an unmap. Another get of the view does not wait: stream order is the
 * caller's matter. */
void pleat__view_put(pleat__views *views, pleat__view *view, pleat_event event);
/* An idle view of exactly that many pages, the most recently used first, or the one that follows
 * `after`; NULL when there is none. It is not taken: pleat__view_get over its chunks does that. */
const pleat__view *pleat__view_idle(pleat__views *views, uint64_t pages, const pleat__view *after);

/* Unmaps idle views, the least recently used first, until at most `keep_pages` idle pages are left;
 * returns the pages given back. */
uint64_t pleat__views_trim(pleat__views *views, uint64_t keep_pages);
/* Unmaps the idle views over a chunk; returns how many there were. */
uint64_t pleat__views_release_chunk(pleat__views *views, const pleat__chunk *chunk);

pleat__views_stats pleat__views_stats_of(pleat__views *views);
/* Re-derives the totals; prints what disagrees. */
bool pleat__views_audit(pleat__views *views);

#endif
