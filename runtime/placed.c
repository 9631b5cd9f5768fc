/*
 * placed.c: growth and removal of the table of what is allocated (see placed.h).
 */
#include <runtime/placed.h>

#include <internal/error.h>

static pleat_result entries_make(pleat__placed *placed, uint32_t bits)
{
    pleat__place *entries = pleat__arena_calloc(placed->arena, (size_t)1 << bits, sizeof *entries);
    if (entries == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of 2^%u allocations",
                           bits);
    placed->entries = entries;
    placed->mask = (1u << bits) - 1;
    placed->shift = 64 - bits;
    return PLEAT_OK;
}

pleat_result pleat__placed_init(pleat__placed *placed, pleat__arena *arena)
{
    *placed = (pleat__placed){.arena = arena};
    return entries_make(placed, 12);
}

void pleat__placed_release(pleat__placed *placed)
{
    if (placed->arena != NULL)
        pleat__arena_free(placed->arena, placed->entries);
    *placed = (pleat__placed){0};
}

pleat_result pleat__placed_grow(pleat__placed *placed)
{
    pleat__placed old = *placed;
    if (placed->shift <= 33)
        return pleat__fail(PLEAT_E_LIMIT, "more than 2^30 allocations");
    PLEAT_TRY(entries_make(placed, 65 - placed->shift));
    placed->count = 0;
    for (uint32_t i = 0; i <= old.mask; i++)
        if (old.entries[i].address != 0)
            pleat__placed_insert(placed, &old.entries[i]);
    pleat__arena_free(old.arena, old.entries);
    return PLEAT_OK;
}

void pleat__placed_remove(pleat__placed *placed, pleat__place *entry)
{
    uint32_t hole = (uint32_t)(entry - placed->entries);
    for (uint32_t at = (hole + 1) & placed->mask;; at = (at + 1) & placed->mask) {
        const pleat__place *next = &placed->entries[at];
        if (next->address == 0)
            break;
        /* An entry may move back to the hole when its home is not between the two. */
        uint32_t home = pleat__placed_home(placed, next->address);
        if (((at - home) & placed->mask) >= ((at - hole) & placed->mask)) {
            placed->entries[hole] = *next;
            hole = at;
        }
    }
    placed->entries[hole].address = 0;
    placed->count--;
}

pleat__place *pleat__placed_holding(const pleat__placed *placed, pleat_va address)
{
    pleat__place *first = pleat__placed_find(placed, address);
    if (first != NULL)
        return first;
    for (uint32_t i = 0; i <= placed->mask; i++) {
        pleat__place *entry = &placed->entries[i];
        uint64_t bytes = (uint64_t)entry->granules << PLEAT__GRANULE_SHIFT;
        if (entry->address != 0 && address - entry->address < bytes)
            return entry;
    }
    return NULL;
}
