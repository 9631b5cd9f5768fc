/*
 * address_map.c: see address_map.h. Removal after Knuth, TAOCP volume 3, section 6.4, algorithm R.
 */
#include <runtime/base/address_map.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/hash.h>

#define FIRST_BITS 10u /* D199 */

static uint64_t home(const pleat__address_map *map, pleat_va address)
{
    return ((address >> 9) * PLEAT__HASH_MULTIPLIER) >> map->shift;
}

pleat_result pleat__address_map_create(pleat__arena *arena, pleat__address_map *map)
{
    *map = (pleat__address_map){
        .arena = arena, .mask = (1u << FIRST_BITS) - 1, .shift = 64 - FIRST_BITS};
    map->entries = pleat__arena_calloc(arena, map->mask + 1, sizeof *map->entries);
    if (map->entries != NULL)
        return PLEAT_OK;
    *map = (pleat__address_map){0};
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of live allocations");
}

void pleat__address_map_destroy(pleat__address_map *map)
{
    if (map->arena != NULL)
        pleat__arena_free(map->arena, map->entries);
    *map = (pleat__address_map){0};
}

pleat_result pleat__address_map_reserve(pleat__address_map *map)
{
    if ((map->count + map->promised) * 2 <= map->mask)
        return PLEAT_OK;
    pleat__address_map wider = *map;
    wider.mask = map->mask * 2 + 1;
    wider.shift = map->shift - 1;
    wider.count = 0;
    wider.entries = pleat__arena_calloc(map->arena, wider.mask + 1, sizeof *wider.entries);
    if (wider.entries == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of %llu allocations",
                           (unsigned long long)wider.mask + 1);
    for (uint64_t i = 0; i <= map->mask; i++)
        if (map->entries[i].address != 0)
            pleat__address_map_insert(&wider, map->entries[i].address, map->entries[i].value);
    pleat__arena_free(map->arena, map->entries);
    *map = wider;
    return PLEAT_OK;
}

pleat_result pleat__address_map_promise(pleat__address_map *map)
{
    PLEAT_TRY(pleat__address_map_reserve(map));
    map->promised++;
    return PLEAT_OK;
}

void pleat__address_map_give_up(pleat__address_map *map)
{
    PLEAT_ASSERT(map->promised > 0);
    map->promised--;
}

void pleat__address_map_insert(pleat__address_map *map, pleat_va address, void *value)
{
    PLEAT_ASSERT(address != 0 && map->count < map->mask);
    uint64_t at = home(map, address);
    while (map->entries[at].address != 0)
        at = (at + 1) & map->mask;
    map->entries[at] = (pleat__address_map_entry){address, value};
    map->count++;
}

static uint64_t position(const pleat__address_map *map, pleat_va address)
{
    uint64_t at = home(map, address);
    while (map->entries[at].address != address && map->entries[at].address != 0)
        at = (at + 1) & map->mask;
    return at;
}

void *pleat__address_map_find(const pleat__address_map *map, pleat_va address)
{
    return map->entries[position(map, address)].value;
}

void *pleat__address_map_remove(pleat__address_map *map, pleat_va address)
{
    uint64_t hole = position(map, address);
    void *value = map->entries[hole].value;
    if (map->entries[hole].address == 0)
        return NULL;
    for (uint64_t at = (hole + 1) & map->mask; map->entries[at].address != 0;
         at = (at + 1) & map->mask) {
        /* An entry may move back only as far as its home. */
        uint64_t distance = (at - home(map, map->entries[at].address)) & map->mask;
        if (distance >= ((at - hole) & map->mask)) {
            map->entries[hole] = map->entries[at];
            hole = at;
        }
    }
    map->entries[hole] = (pleat__address_map_entry){0};
    map->count--;
    return value;
}
