/*
 * views.h: views that stay mapped, and the places in them.
 *
 * A view is a run of pages over chunks that were free when a request needed them side by side
 * (stitch.c). Its chunks stay mapped at home too and serve other requests; occupancy says what is
 * free. It shows whole handles, also where the request needs a part of the first and of the last
 * only. So a view is one more order in which the same memory is contiguous, for any request: a
 * place in it (a "slice") begins and ends at any granule, whatever else lies in the rest of the
 * view. Nothing is mapped for it.
 *
 * VIEW   made -> kept, used by 0, 1 or several slices -> dropped (pleat__heap_drop_views): its
 *        pages are the mapper's, its record stays as long as there is a slice. Or an idle one is
 *        remapped in part: its pages are another record's (remap.c).
 * SLICE  made for a request (pleat__view_slice; counted when it is occupied), or held by a place
 *        that is remembered (pleat__view_pin) -> freed with the last of them. In a dropped view it
 *        cannot be taken.
 */
#ifndef PLEAT_RUNTIME_MEMORY_VIEWS_H
#define PLEAT_RUNTIME_MEMORY_VIEWS_H

#include <runtime/memory/heap.h>

struct pleat__view {
    uint64_t page;
    uint32_t *chunks; /* behind its pages, in order */
    uint32_t pages;
    uint32_t maps;              /* handles that it showed when it was mapped */
    uint32_t live;              /* slices in use */
    uint32_t slices;            /* that exist */
    uint32_t busy;              /* a page; something lay there when it was looked into last */
    pleat__view *newer, *older; /* among those that are kept, by when a slice was taken last */
    pleat_event idle;           /* a point of its stream; 0: none */
    bool fenced; /* behind `idle` the GPU uses nothing of it, as long as nothing is live */
    uint16_t stream;
    bool dead;
};

/* A record without pages; NULL: no host memory. */
pleat__view *pleat__view_new(pleat__heap *heap, uint32_t pages, uint16_t stream);
/* The handles that it shows, each by all of its chunks. */
uint32_t pleat__view_handles(const pleat__heap *heap, const pleat__view *view);
/* A record that has no slices and is in no list. */
void pleat__view_free(pleat__heap *heap, pleat__view *view);
/* Among the views that are kept, as the one that was used last. */
void pleat__views_add(pleat__heap *heap, pleat__view *view);

/* A slice at granule `offset` of the view's chunk `first`, not taken; false: no host memory. */
bool pleat__view_slice(pleat__heap *heap, pleat__view *view, uint32_t first, uint32_t offset,
                       uint32_t granules, pleat__place *place);
/* The first free stretch of a kept view, of the zone's chunks alone, that holds the request, in the
 * smallest view that has one, of those used last: occupied. false: there is none, or the search
 * ended before it came to one. pre: the sets are up to date. */
bool pleat__views_reuse(pleat__heap *heap, uint32_t granules, uint8_t zone, pleat__place *place);

/* remap.c: an idle view of which some handles in use are exchanged for free ones so that it holds
 * the request: occupied. PLEAT_E_NOT_FOUND, without a text: there is none that costs less than a
 * new view. pre: the turn, and the sets are up to date; the lock may be left meanwhile. */
PLEAT_NODISCARD pleat_result pleat__views_remap(pleat__heap *heap, uint32_t granules, uint8_t zone,
                                                pleat__place *place);
/* An idle view is dead: its pages and its point are another record's, and a slice that is still
 * remembered in it cannot be taken. */
void pleat__view_hand_over(pleat__heap *heap, pleat__view *from, pleat__view *to);

/* Views in which no place is remembered, and of which all chunks rest, are given up: they would be
 * mapped again with their chunks, and keep neighbours from becoming one handle. Without a verb.
 * pre: the turn. */
void pleat__views_drop_resting(pleat__heap *heap);

/* memory_audit.c: the views that are kept, with `live` slices in use, and the alias pages of
 * layouts, are all that is mapped, and the heap knows whether there is a schedule (R6, R7, R8, R12
 * in docs/invariants.md). pre: no view is on its way. */
bool pleat__views_audit(const pleat__heap *heap, bool followed, uint64_t layout_pages,
                        uint64_t live);

/* Metadata only: the space unmaps. */
void pleat__views_release(pleat__heap *heap);
/* The largest request of a stream that is served when all of the device that nothing lies on has
 * been given back, and so many bytes are new. */
uint64_t pleat__stitch_most(pleat__heap *heap, uint16_t stream, uint64_t new_bytes);

#endif
