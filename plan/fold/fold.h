/*
 * fold.h: from a contiguous placement to a layout whose physical chunks are max-live's.
 *
 * A layout is a place in the window for each item and a table of the window's pages: which chunk is
 * mapped at each. The contiguous placement's pages come first, one chunk each; behind them lie
 * views: runs of pages over chunks that are mapped in front already. An item moved into a view
 * costs no chunk of its own, one map a page.
 *
 *   pleat__fold_make    items + contiguous places -> layout
 *   pleat__layout_cut   layout -> the plan's handles and maps
 *
 * CONFLICT   Two items are in each other's way when they are live at the same time, and also when
 *            their streams differ: memory passes from one stream to another only behind a recorded
 *            dependency, and traces record none. An item that is live always meets every other
 *            anyway. Contiguous placements must keep the same rule.
 *
 * FIXED      Items with a fixed place keep it, and their pages keep a chunk of their own. Pages
 * that carry no item have no chunk: physical is the number of chunks used, not the height.
 *
 * UNITS      Work is counted in steps of inner loops, roughly 10 ns each on a server core of 2023,
 *            so that a limit on it gives the same layout on any machine.
 */
#ifndef PLEAT_PLAN_FOLD_FOLD_H
#define PLEAT_PLAN_FOLD_FOLD_H

#include <plan/base/plan.h>
#include <plan/place/place.h>

#define PLEAT__NO_CHUNK UINT32_MAX

/* What a layout takes of the driver and the host: a map costs 4 KiB of host memory and a call of
 * the driver, a chunk is worth 512 of them. */
static inline uint64_t pleat__fold_cost(uint32_t chunks, uint32_t alias_pages)
{
    return (uint64_t)chunks * 512 + alias_pages;
}

typedef struct pleat__fold_options {
    uint64_t chunk_bytes; /* a multiple of every item's alignment; not 0 */
    uint64_t view_page;   /* the views are at this page of the window or above */
    bool contiguous;      /* no views at all: only the page table of the placement */
} pleat__fold_options;

typedef struct pleat__layout {
    uint64_t *places;      /* one for each item: byte in the window */
    uint32_t *pages;       /* page of the window -> chunk, or PLEAT__NO_CHUNK. A chunk has the
                            number of its base page */
    uint32_t page_count;   /* pages in the table */
    uint32_t base_pages;   /* the views begin behind this one */
    uint32_t chunks;       /* physical: different chunks in `pages` */
    uint32_t floor_chunks; /* what max-live needs: no layout has fewer */
    uint32_t alias_pages;  /* mapped pages beyond each chunk's first */
    uint32_t folded;       /* items that lie in views */
    uint32_t views;        /* runs of pages made by folding */
    uint64_t work;         /* units spent */
} pleat__layout;

/* `places` is a contiguous placement of the problem in which no two items are in each other's way,
 * fixed items at their fixed places. The layout's arrays are taken from `arena`; temporary memory
 * comes from it too and is given back. Never more chunks than the contiguous placement takes.
 * PLEAT_E_NO_MEMORY; PLEAT_E_LIMIT when there are more pages than a plan may have. */
PLEAT_NODISCARD pleat_result pleat__fold_make(const pleat__problem *problem, const uint64_t *places,
                                              const pleat__fold_options *options,
                                              pleat__arena *arena, pleat__layout *out);
void pleat__layout_free(pleat__layout *layout, pleat__arena *arena);

/* The chunks that no layout can do without: max-live, stream by stream, in chunks. */
PLEAT_NODISCARD pleat_result pleat__floor_chunks(const pleat__problem *problem,
                                                 uint64_t chunk_bytes, pleat__arena *arena,
                                                 uint32_t *chunks);

/* Cuts the chunks into handles so that chunks that are neighbours in every page run they appear in
 * share one, and lists the maps in ascending order of page. Fills handles, handle_count, maps,
 * map_count, virtual_bytes and physical_bytes of the plan, in the plan's arena; chunk_bytes must be
 * set. */
PLEAT_NODISCARD pleat_result pleat__layout_cut(const pleat__layout *layout, pleat_plan *plan);

#endif
