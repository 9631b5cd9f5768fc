/*
 * place_map.c: growth and removal of the table of what is allocated (see place_map.h).
 */
#include <runtime/memory/place_map.h>

#include <internal/error.h>

static pleat_result entries_make(pleat__place_map *map, uint32_t bits)
{
    pleat__place *entries = pleat__arena_calloc(map->arena, (size_t)1 << bits, sizeof *entries);
    if (entries == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of 2^%u allocations",
                           bits);
    map->entries = entries;
    map->mask = (1u << bits) - 1;
    map->shift = 64 - bits;
    return PLEAT_OK;
}

pleat_result pleat__place_map_init(pleat__place_map *map, pleat__arena *arena, pleat_va base,
                                   uint64_t bytes)
{
    *map = (pleat__place_map){.arena = arena, .base = base, .bytes = bytes};
    return entries_make(map, 12);
}

void pleat__place_map_release(pleat__place_map *map)
{
    if (map->arena != NULL)
        pleat__arena_free(map->arena, map->entries);
    pleat__address_index_destroy(&map->index);
    *map = (pleat__place_map){0};
}

pleat_result pleat__place_map_grow(pleat__place_map *map)
{
    pleat__place_map old = *map;
    if (map->shift <= 33)
        return pleat__fail(PLEAT_E_LIMIT, "more than 2^30 allocations");
    PLEAT_TRY(entries_make(map, 65 - map->shift));
    map->count = 0;
    for (uint32_t i = 0; i <= old.mask; i++)
        if (old.entries[i].address != 0)
            pleat__place_map_insert(map, &old.entries[i]);
    pleat__arena_free(old.arena, old.entries);
    return PLEAT_OK;
}

void pleat__place_map_remove(pleat__place_map *map, pleat__place *entry)
{
    uint32_t hole = (uint32_t)(entry - map->entries);
    if (__builtin_expect(map->index.rows != NULL, 0))
        pleat__address_index_remove(&map->index, entry->address);
    for (uint32_t at = (hole + 1) & map->mask;; at = (at + 1) & map->mask) {
        const pleat__place *next = &map->entries[at];
        if (next->address == 0)
            break;
        /* An entry may move back to the hole when its home is not between the two. */
        uint32_t home = pleat__place_map_home(map, next->address);
        if (((at - home) & map->mask) >= ((at - hole) & map->mask)) {
            map->entries[hole] = *next;
            hole = at;
        }
    }
    map->entries[hole].address = 0;
    map->count--;
}

/* ---- order ---- */

void pleat__place_map_note(pleat__place_map *map, pleat_va address)
{
    if (pleat__address_index_add(&map->index, address) != PLEAT_OK)
        pleat__address_index_destroy(&map->index);
}

static pleat_result index_make(pleat__place_map *map)
{
    if (map->index.rows != NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat__address_index_create(&map->index, map->arena, map->base, map->bytes));
    for (uint32_t i = 0; i <= map->mask; i++) {
        if (map->entries[i].address == 0)
            continue;
        pleat_result result = pleat__address_index_add(&map->index, map->entries[i].address);
        if (result != PLEAT_OK) {
            pleat__address_index_destroy(&map->index);
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
static pleat__place *scan(const pleat__place_map *map, pleat_va address, bool next)
{
    pleat__place *found = NULL;
    for (uint32_t i = 0; i <= map->mask; i++) {
        pleat__place *entry = &map->entries[i];
        if (!next && holds(entry, address))
            return entry;
        if (next && entry->address >= address && entry->address != 0 &&
            (found == NULL || entry->address < found->address))
            found = entry;
    }
    return found;
}

pleat__place *pleat__place_map_holding(pleat__place_map *map, pleat_va address)
{
    pleat__place *entry = pleat__place_map_find(map, address);
    if (entry != NULL || address - map->base >= map->bytes)
        return entry;
    map->asked++;
    if (index_make(map) != PLEAT_OK)
        return scan(map, address, false);
    entry = pleat__place_map_find(map, pleat__address_index_at_most(&map->index, address));
    return entry != NULL && holds(entry, address) ? entry : NULL;
}

pleat__place *pleat__place_map_next(pleat__place_map *map, pleat_va address)
{
    map->asked++;
    if (index_make(map) != PLEAT_OK)
        return scan(map, address, true);
    return pleat__place_map_find(map, pleat__address_index_at_least(&map->index, address));
}

void pleat__place_map_forget(pleat__place_map *map)
{
    if (map->asked == 0)
        pleat__address_index_destroy(&map->index);
    map->asked = 0;
}
