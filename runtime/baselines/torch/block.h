/*
 * block.h: a block of a caching allocator, and the segment it is cut from.
 *
 *              back/grow              split, alloc
 *   UNBACKED ------------> FREE ----------------------> LIVE
 *      ^                   |  ^                          |
 *      |   unback/shrink   |  |          free            |
 *      +-------------------+  +--------------------------+
 *      (DEAD while the lock is left for the unback; for ever when it was refused)
 *
 * All blocks of a segment form one list in order of address that covers the segment without a
 * hole. No two FREE neighbours exist, nor two UNBACKED ones. A FREE block is in its pool's bins, a
 * LIVE one in the map of live addresses, an UNBACKED one (expandable segments only) in its pool's
 * list.
 */
#ifndef PLEAT_RUNTIME_BASELINES_TORCH_BLOCK_H
#define PLEAT_RUNTIME_BASELINES_TORCH_BLOCK_H

#include <pleat/runtime.h>

typedef enum pleat__block_state {
    PLEAT__BLOCK_UNBACKED = 0,
    PLEAT__BLOCK_FREE = 1,
    PLEAT__BLOCK_LIVE = 2,
    PLEAT__BLOCK_DEAD = 3, /* being unbacked, or quarantined: nobody knows what is behind it */
} pleat__block_state;

typedef struct pleat__block {
    pleat_va address;
    uint64_t bytes;
    uint64_t requested; /* LIVE */
    struct pleat__block *previous;
    struct pleat__block *next;
    struct pleat__block *left;  /* FREE: in its bin */
    struct pleat__block *right; /* FREE: in its bin; UNBACKED: in its list; being unbacked: in its
                                   list; unused: free nodes */
    struct pleat__caching_segment *segment;
    uint32_t age;  /* FREE: the count of searches when it became so */
    uint8_t state; /* pleat__block_state */
    uint8_t unused[3];
} pleat__block;

#endif
