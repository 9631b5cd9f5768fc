/*
 * address_index.h: where allocations begin, in order of address: the one at or before an address,
 * and the next one. A bit for each granule of the pages that have had any, and bitset.h over the
 * pages.
 *
 * A lookup reads at most a page's row of 64 words and one word a level above it, however much is
 * allocated. Rows stay once they are there: 512 bytes for 2 MiB of address space in use.
 */
#ifndef PLEAT_RUNTIME_MEMORY_ADDRESS_INDEX_H
#define PLEAT_RUNTIME_MEMORY_ADDRESS_INDEX_H

#include <pleat/vmm.h>
#include <runtime/base/bitset.h>
#include <stdbool.h>

typedef struct pleat__address_index {
    pleat__arena *arena;
    pleat_va base;
    uint64_t pages;
    uint64_t **rows;   /* by page; NULL: none began there yet. NULL as a whole: not in use */
    pleat__bits begun; /* pages in which any begins */
} pleat__address_index;

/* For addresses from `base` on; none begins yet. */
PLEAT_NODISCARD pleat_result pleat__address_index_create(pleat__address_index *index,
                                                         pleat__arena *arena, pleat_va base,
                                                         uint64_t bytes);
void pleat__address_index_destroy(pleat__address_index *index);
/* pre: a multiple of the granule within the range. */
PLEAT_NODISCARD pleat_result pleat__address_index_add(pleat__address_index *index,
                                                      pleat_va address);
void pleat__address_index_remove(pleat__address_index *index, pleat_va address);
/* The last beginning at or before an address, and the first at or behind it; 0 when there is none.
 */
pleat_va pleat__address_index_at_most(const pleat__address_index *index, pleat_va address);
pleat_va pleat__address_index_at_least(const pleat__address_index *index, pleat_va address);

#endif
