/*
 * place_map.h: what is allocated now, by address, with all that a free needs in the entry itself:
 * the slot, far away in a table of all requests, is not looked at.
 *
 * Open addressing with linear probing, at most half full; a removal shifts what follows back, so
 * that nothing is left behind. (address_map.h keeps pointers; the second miss it costs is what the
 * planned path cannot afford.)
 *
 * ORDER  Which allocation holds an address is asked of `index`, which is made when the question is
 *        first asked, and kept up to date from then on: jobs that do not ask do not pay. It goes
 *        again when an iteration passed without a question (pleat__placed_forget).
 */
#ifndef PLEAT_RUNTIME_MEMORY_PLACE_MAP_H
#define PLEAT_RUNTIME_MEMORY_PLACE_MAP_H

#include <runtime/memory/address_index.h>
#include <runtime/memory/heap.h>

typedef struct pleat__placed {
    pleat__arena *arena;
    pleat__place *entries; /* address 0: empty */
    uint32_t mask;
    uint32_t shift; /* 64 - log2(entries) */
    uint32_t count;
    uint32_t asked; /* questions since the last pleat__placed_forget */
    pleat_va base;  /* all addresses lie in these bytes */
    uint64_t bytes;
    pleat__address_index index;
} pleat__placed;

PLEAT_NODISCARD pleat_result pleat__placed_init(pleat__placed *placed, pleat__arena *arena,
                                                pleat_va base, uint64_t bytes);
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

/* Notes the beginning in `index`; without host memory `index` goes, until it is wanted again. */
void pleat__placed_note(pleat__placed *placed, pleat_va address);

/* pre: room was made; the address is not in the table. */
static inline void pleat__placed_insert(pleat__placed *placed, const pleat__place *place)
{
    uint32_t at = pleat__placed_home(placed, place->address);
    while (placed->entries[at].address != 0)
        at = (at + 1) & placed->mask;
    placed->count++;
    placed->entries[at] = *place;
    if (__builtin_expect(placed->index.rows != NULL, 0))
        pleat__placed_note(placed, place->address);
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
/* The allocation that holds an address, which may lie anywhere inside it; NULL when none does. The
 * first question after a while takes a walk through the table. */
pleat__place *pleat__placed_holding(pleat__placed *placed, pleat_va address);
/* The first allocation that begins at or behind an address, or NULL. */
pleat__place *pleat__placed_next(pleat__placed *placed, pleat_va address);
/* An iteration has passed. */
void pleat__placed_forget(pleat__placed *placed);

#endif
