/*
 * placed.h: what is allocated now, by address, with all that a free needs in the entry itself: the
 * slot, far away in a table of all requests, is not looked at.
 *
 * Open addressing with linear probing, at most half full; a removal shifts what follows back, so
 * that nothing is left behind. (live.h keeps pointers; the second miss it costs is what the planned
 * path cannot afford.)
 */
#ifndef PLEAT_RUNTIME_PLACED_H
#define PLEAT_RUNTIME_PLACED_H

#include <runtime/heap.h>

typedef struct pleat__placed {
    pleat__arena *arena;
    pleat__place *entries; /* address 0: empty */
    uint32_t mask;
    uint32_t shift; /* 64 - log2(entries) */
    uint32_t count;
} pleat__placed;

PLEAT_NODISCARD pleat_result pleat__placed_init(pleat__placed *placed, pleat__arena *arena);
void pleat__placed_release(pleat__placed *placed);
PLEAT_NODISCARD pleat_result pleat__placed_grow(pleat__placed *placed);

/* Makes room for one more. */
PLEAT_NODISCARD static inline pleat_result pleat__placed_reserve(pleat__placed *placed)
{
    return placed->count < placed->mask / 2 ? PLEAT_OK : pleat__placed_grow(placed);
}

static inline uint32_t pleat__placed_home(const pleat__placed *placed, pleat_va address)
{
    return (uint32_t)((address >> PLEAT__GRANULE_SHIFT) * UINT64_C(0x9e3779b97f4a7c15) >>
                      placed->shift);
}

/* pre: room was made; the address is not in the table. */
static inline void pleat__placed_insert(pleat__placed *placed, const pleat__place *place)
{
    uint32_t at = pleat__placed_home(placed, place->address);
    while (placed->entries[at].address != 0)
        at = (at + 1) & placed->mask;
    placed->count++;
    placed->entries[at] = *place;
}

/* NULL when the address is not the first of an allocation. */
static inline pleat__place *pleat__placed_find(const pleat__placed *placed, pleat_va address)
{
    uint32_t at = pleat__placed_home(placed, address);
    while (placed->entries[at].address != address) {
        if (placed->entries[at].address == 0)
            return NULL;
        at = (at + 1) & placed->mask;
    }
    return address == 0 ? NULL : &placed->entries[at];
}

void pleat__placed_remove(pleat__placed *placed, pleat__place *entry);
/* The allocation that holds an address; NULL when none does. A search through the table where the
 * address is not an allocation's first. */
pleat__place *pleat__placed_holding(const pleat__placed *placed, pleat_va address);

#endif
