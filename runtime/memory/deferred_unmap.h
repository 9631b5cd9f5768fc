/*
 * deferred_unmap.h: pages of views that are no more. The GPU may still use them: they are the
 * mapper's, which unmaps them when the streams are past what they had been given. Until then they
 * keep their chunks from being given back.
 *
 *   made -> streams fenced, pages added -> handed over -> unmapped and forgotten, or refused: there
 *           is no thread for the mapper, or nobody can say that the GPU is done. Then they stay
 *           mapped, and are handed over again when views are dropped next
 *           (pleat__deferred_unmap_again).
 */
#ifndef PLEAT_RUNTIME_MEMORY_DEFERRED_UNMAP_H
#define PLEAT_RUNTIME_MEMORY_DEFERRED_UNMAP_H

#include <runtime/memory/heap.h>

/* For so many runs of pages, which are given back to the space where it `gives`. NULL: no host
 * memory. */
pleat__deferred_unmap *pleat__deferred_unmap_new(pleat__heap *heap, uint32_t runs, bool gives);
/* One that was not handed over. */
void pleat__deferred_unmap_free(pleat__deferred_unmap *deferred);
/* The stream may use what is added. false: its point cannot be fenced. */
bool pleat__deferred_unmap_fence(pleat__deferred_unmap *deferred, uint16_t stream);
/* pre: room, and the streams that may use the pages are fenced. */
void pleat__deferred_unmap_add(pleat__deferred_unmap *deferred, pleat__page_run run);
/* To the mapper. It is not the caller's any more. */
void pleat__deferred_unmap_hand_over(pleat__deferred_unmap *deferred);
/* Those that were refused; whether there were any. */
bool pleat__deferred_unmap_again(pleat__heap *heap);
/* Their records only: the space unmaps. */
void pleat__deferred_unmap_release(pleat__heap *heap);

#endif
