/*
 * patch.h: a view of some chunks made into one of others, by mapping anew what differs.
 *
 * WHY   A view that was made ahead (ahead.h) was to show the chunks that are free when its request
 *       comes. Where sizes vary from iteration to iteration some of them are others: of the 2,376
 *       pages of a mixture of experts' largest tensor 2 to 100. To map those takes 2 % of the time
 *       of a new view.
 * HOW   The order of a view's chunks is free but for its ends, of which it may show a part only. So
 *       what both show stays where it is, and its gaps are filled with the rest, handle by handle;
 *       where none fits, what lies at the end is taken for it, or the gap grows.
 */
#ifndef PLEAT_RUNTIME_LEARN_PATCH_H
#define PLEAT_RUNTIME_LEARN_PATCH_H

#include <runtime/memory/chunks.h>

/* Chunks at a view's beginning and end that stay there: whole handles, or none. */
typedef struct pleat__patch_ends {
    uint32_t head, tail;
} pleat__patch_ends;

/* A table of what exists in which `chunks`, whole handles, are marked; the caller frees it. NULL:
 * no host memory. */
uint8_t *pleat__patch_marks(const pleat__pool *pool, const uint32_t *chunks, uint32_t count);
/* How many of the chunks, some of which may not exist yet, are marked. */
uint32_t pleat__patch_common(const pleat__pool *pool, const uint8_t *marks, const uint32_t *there,
                             uint32_t there_count);
/* Orders `chunks` so that many of them are where `there` has them. Nothing happens without host
 * memory. */
void pleat__patch_order(const pleat__pool *pool, const uint32_t *there, uint32_t there_count,
                        pleat__patch_ends ends, uint32_t *chunks, uint32_t count);
/* Maps `chunks` from `page` on, where `there` is mapped and nothing behind it. On failure nothing
 * is mapped there. pre: the turn; the lock is left meanwhile. The GPU has used none of it. */
PLEAT_NODISCARD pleat_result pleat__patch_map(pleat__pool *pool, uint64_t page,
                                              const uint32_t *there, uint32_t there_count,
                                              const uint32_t *chunks, uint32_t count);

#endif
