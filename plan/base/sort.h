/*
 * sort.h: stable radix sort of 64-bit keys, the same everywhere.
 */
#ifndef PLEAT_PLAN_BASE_SORT_H
#define PLEAT_PLAN_BASE_SORT_H

#include <pleat/base.h>

/* Sorts `keys` ascending. `spare` has room for as many. O(count) a byte in which keys differ. */
void pleat__sort_keys(uint64_t *keys, uint64_t *spare, size_t count);

/* Sorts `indices` by keys[index] ascending; equal keys keep their order. */
void pleat__sort_by_key(uint32_t *indices, uint32_t *spare, size_t count, const uint64_t *keys);

#endif
