/*
 * place_map.c: growth and removal of the table of what is allocated (see place_map.h).
 */
#include <runtime/memory/place_map.h>

#include <internal/error.h>
#include <string.h>

/* Entries of the old table that a request looks at: all of them long before the new one is half
 * full. */
#define STEP       32u /* D488 */
#define FIRST_BITS 12u /* logarithm of the first table's entries (D488) */

static pleat_result table_make(pleat__place_map *map, uint32_t bits)
{
    pleat__place *entries = pleat__arena_calloc(map->arena, (size_t)1 << bits, sizeof *entries);
    if (entries == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of 2^%u allocations",
                           bits);
    map->old = map->table;
    map->moved = 0;
    map->table = (pleat__place_table){entries, (1u << bits) - 1, 64 - bits};
    map->limit = map->old.entries != NULL ? 0 : map->table.mask / 2;
    return PLEAT_OK;
}

pleat_result pleat__place_map_init(pleat__place_map *map, pleat__arena *arena, pleat_va base,
                                   uint64_t bytes)
{
    *map = (pleat__place_map){.arena = arena, .base = base, .bytes = bytes};
    PLEAT_TRY(table_make(map, FIRST_BITS));
    /* Written here, so that the first requests do not wait for its 128 KiB page by page. */
    memset(map->table.entries, 0, sizeof *map->table.entries << FIRST_BITS);
    return PLEAT_OK;
}

void pleat__place_map_release(pleat__place_map *map)
{
    if (map->arena != NULL) {
        pleat__arena_free(map->arena, map->table.entries);
        pleat__arena_free(map->arena, map->old.entries);
    }
    pleat__address_index_destroy(&map->index);
    *map = (pleat__place_map){0};
}

static void table_remove(pleat__place_table table, uint32_t hole)
{
    for (uint32_t at = (hole + 1) & table.mask;; at = (at + 1) & table.mask) {
        const pleat__place *next = &table.entries[at];
        if (next->address == 0)
            break;
        /* An entry may move back to the hole when its home is not between the two. */
        uint32_t home = pleat__place_table_home(&table, next->address);
        if (((at - home) & table.mask) >= ((at - hole) & table.mask)) {
            table.entries[hole] = *next;
            hole = at;
        }
    }
    table.entries[hole].address = 0;
}

/* Entries below `moved` stay empty: what is moved back comes from behind its hole. */
static void move_some(pleat__place_map *map)
{
    for (uint32_t step = 0; step < STEP && map->moved <= map->old.mask; step++) {
        const pleat__place *entry = &map->old.entries[map->moved];
        if (entry->address == 0) {
            map->moved++;
            continue;
        }
        pleat__place_table_put(&map->table, entry);
        table_remove(map->old, map->moved);
    }
    if (map->moved <= map->old.mask)
        return;
    pleat__arena_free(map->arena, map->old.entries);
    map->old = (pleat__place_table){0};
    map->limit = map->table.mask / 2;
}

pleat_result pleat__place_map_make_room(pleat__place_map *map)
{
    if (map->old.entries == NULL) {
        if (map->table.shift <= 33)
            return pleat__fail(PLEAT_E_LIMIT, "more than 2^30 allocations");
        PLEAT_TRY(table_make(map, 65 - map->table.shift));
    }
    move_some(map);
    return PLEAT_OK;
}

void pleat__place_map_remove(pleat__place_map *map, pleat__place *entry)
{
    bool is_old = __builtin_expect(map->old.entries != NULL, 0) && entry >= map->old.entries &&
                  entry <= &map->old.entries[map->old.mask];
    const pleat__place_table *table = is_old ? &map->old : &map->table;
    if (__builtin_expect(map->index.rows != NULL, 0))
        pleat__address_index_remove(&map->index, entry->address);
    table_remove(*table, (uint32_t)(entry - table->entries));
    map->count--;
}

static bool each_of(const pleat__place_table *table,
                    bool (*visit)(void *context, pleat__place *place), void *context)
{
    for (uint32_t i = 0; table->entries != NULL && i <= table->mask; i++)
        if (table->entries[i].address != 0 && !visit(context, &table->entries[i]))
            return false;
    return true;
}

bool pleat__place_map_each(const pleat__place_map *map,
                           bool (*visit)(void *context, pleat__place *place), void *context)
{
    return each_of(&map->table, visit, context) && each_of(&map->old, visit, context);
}

/* ---- order ---- */

void pleat__place_map_note(pleat__place_map *map, pleat_va address)
{
    if (pleat__address_index_add(&map->index, address) != PLEAT_OK)
        pleat__address_index_destroy(&map->index);
}

static bool index_add(void *context, pleat__place *place)
{
    return pleat__address_index_add(context, place->address) == PLEAT_OK;
}

static pleat_result index_make(pleat__place_map *map)
{
    if (map->index.rows != NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat__address_index_create(&map->index, map->arena, map->base, map->bytes));
    if (pleat__place_map_each(map, index_add, &map->index))
        return PLEAT_OK;
    pleat__address_index_destroy(&map->index);
    return PLEAT_E_NO_MEMORY;
}

static bool holds(const pleat__place *entry, pleat_va address)
{
    return address - entry->address < (uint64_t)entry->granules << PLEAT__GRANULE_SHIFT;
}

typedef struct place_scan {
    pleat_va address;
    bool next; /* the first at or behind the address, not the one that holds it */
    pleat__place *found;
} place_scan;

static bool scan_entry(void *context, pleat__place *entry)
{
    place_scan *scan = context;
    bool fits = scan->next ? entry->address >= scan->address : holds(entry, scan->address);
    if (fits && (scan->found == NULL || entry->address < scan->found->address))
        scan->found = entry;
    return true;
}

/* Without host memory for anything better. */
static pleat__place *scan_for(const pleat__place_map *map, pleat_va address, bool next)
{
    place_scan scan = {.address = address, .next = next};
    (void)pleat__place_map_each(map, scan_entry, &scan);
    return scan.found;
}

pleat__place *pleat__place_map_holding(pleat__place_map *map, pleat_va address)
{
    pleat__place *entry = pleat__place_map_find(map, address);
    if (entry != NULL || address - map->base >= map->bytes)
        return entry;
    map->asked++;
    if (index_make(map) != PLEAT_OK)
        return scan_for(map, address, false);
    entry = pleat__place_map_find(map, pleat__address_index_at_most(&map->index, address));
    return entry != NULL && holds(entry, address) ? entry : NULL;
}

pleat__place *pleat__place_map_next(pleat__place_map *map, pleat_va address)
{
    map->asked++;
    if (index_make(map) != PLEAT_OK)
        return scan_for(map, address, true);
    return pleat__place_map_find(map, pleat__address_index_at_least(&map->index, address));
}

void pleat__place_map_forget(pleat__place_map *map)
{
    if (map->asked == 0)
        pleat__address_index_destroy(&map->index);
    map->asked = 0;
}
