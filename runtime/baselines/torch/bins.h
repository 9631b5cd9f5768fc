/*
 * bins.h: free blocks ordered by (size, address), for exact best fit.
 *
 * Eight bins to a power of two of the size, each a treap; a bitmap says which bins have any. Most
 * bins hold a few blocks, so a search touches a few cache lines where one tree over all would touch
 * a path of twenty. A treap's priorities are a hash of the address, so its shape depends on what is
 * in it and on nothing else.
 */
#ifndef PLEAT_RUNTIME_BASELINES_TORCH_BINS_H
#define PLEAT_RUNTIME_BASELINES_TORCH_BINS_H

#include <runtime/baselines/torch/block.h>
#include <stdbool.h>

#define PLEAT__BIN_COUNT 512 /* D478 */

typedef struct pleat__bins {
    uint64_t summary;                      /* bit w: some bit of words[w] is set */
    uint64_t words[PLEAT__BIN_COUNT / 64]; /* bit b: bin b has a block */
    pleat__block *roots[PLEAT__BIN_COUNT];
} pleat__bins;

/* pre: bytes is a multiple of 512, not 0; the block is in no bins. */
void pleat__bins_insert(pleat__bins *bins, pleat__block *block);
/* pre: the block is in these bins, its bytes and address as when inserted. */
void pleat__bins_remove(pleat__bins *bins, pleat__block *block);
/* The first block at or behind (bytes, address) in order; NULL when there is none. */
pleat__block *pleat__bins_at_least(const pleat__bins *bins, uint64_t bytes, pleat_va address);
/* The last block in order: the largest; NULL when there is none. */
pleat__block *pleat__bins_last(const pleat__bins *bins);
/* Whether the order and the bitmap hold; counts the blocks. */
bool pleat__bins_audit(const pleat__bins *bins, uint64_t *count);

#endif
