/*
 * place_map.c: growth and removal of the table of what is allocated (see place_map.h).
 */
#include <runtime/memory/place_map.h>

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

pleat_result pleat__placed_init(pleat__placed *placed, pleat__arena *arena, pleat_va base,
                                uint64_t bytes)
{
    *placed = (pleat__placed){.arena = arena, .base = base, .bytes = bytes};
    return entries_make(placed, 12);
}

void pleat__placed_release(pleat__placed *placed)
{
    if (placed->arena != NULL)
        pleat__arena_free(placed->arena, placed->entries);
    pleat__address_index_destroy(&placed->index);
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
    if (__builtin_expect(placed->index.rows != NULL, 0))
        pleat__address_index_remove(&placed->index, entry->address);
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

/* ---- order ---- */

void pleat__placed_note(pleat__placed *placed, pleat_va address)
{
    if (pleat__address_index_add(&placed->index, address) != PLEAT_OK)
        pleat__address_index_destroy(&placed->index);
}

static pleat_result starts_make(pleat__placed *placed)
{
    if (placed->index.rows != NULL)
        return PLEAT_OK;
    PLEAT_TRY(
        pleat__address_index_create(&placed->index, placed->arena, placed->base, placed->bytes));
    for (uint32_t i = 0; i <= placed->mask; i++) {
        if (placed->entries[i].address == 0)
            continue;
        pleat_result result = pleat__address_index_add(&placed->index, placed->entries[i].address);
        if (result != PLEAT_OK) {
            pleat__address_index_destroy(&placed->index);
            return result;
        }
    }
    return PLEAT_OK;
}

static bool holds(const pleat__place *entry, pleat_va address)
{
    return entry->address != 0 && address - entry->address < (uint64_t)entry->granules
                                                                 << PLEAT__GRANULE_SHIFT;
}

/* Without host memory for anything better. */
static pleat__place *scan(const pleat__placed *placed, pleat_va address, bool next)
{
    pleat__place *found = NULL;
    for (uint32_t i = 0; i <= placed->mask; i++) {
        pleat__place *entry = &placed->entries[i];
        if (!next && holds(entry, address))
            return entry;
        if (next && entry->address >= address && entry->address != 0 &&
            (found == NULL || entry->address < found->address))
            found = entry;
    }
    return found;
}

pleat__place *pleat__placed_holding(pleat__placed *placed, pleat_va address)
{
    pleat__place *entry = pleat__placed_find(placed, address);
    if (entry != NULL || address - placed->base >= placed->bytes)
        return entry;
    placed->asked++;
    if (starts_make(placed) != PLEAT_OK)
        return scan(placed, address, false);
    entry = pleat__placed_find(placed, pleat__address_index_at_most(&placed->index, address));
    return entry != NULL && holds(entry, address) ? entry : NULL;
}

pleat__place *pleat__placed_next(pleat__placed *placed, pleat_va address)
{
    placed->asked++;
    if (starts_make(placed) != PLEAT_OK)
        return scan(placed, address, true);
    return pleat__placed_find(placed, pleat__address_index_at_least(&placed->index, address));
}

void pleat__placed_forget(pleat__placed *placed)
{
    if (placed->asked == 0)
        pleat__address_index_destroy(&placed->index);
    placed->asked = 0;
}
