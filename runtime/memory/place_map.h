/*
 * place_map.h: what is allocated now, by address, with all that a free needs in the entry itself:
 * the slot, far away in a table of all requests, is not looked at.
 *
 * Open addressing with linear probing, at most half full; a removal shifts what follows back, so
 * that nothing is left behind. (address_map.h keeps pointers; the second miss it costs is what the
 * planned path cannot afford.)
 *
 * GROWTH  A table that is half full is followed by one of twice its size, into which requests move
 *         what it has, a few entries each: memory that is touched first costs more than what moves.
 *         (2,047 places at once took a call 0.4 ms.) Meanwhile what is not in the one is looked for
 *         in the other.
 * ORDER  Which allocation holds an address is asked of `index`, which is made when the question is
 *        first asked, and kept up to date from then on: jobs that do not ask do not pay. It goes
 *        again when an iteration passed without a question (pleat__place_map_forget).
 */
#ifndef PLEAT_RUNTIME_MEMORY_PLACE_MAP_H
#define PLEAT_RUNTIME_MEMORY_PLACE_MAP_H

#include <internal/hash.h>
#include <runtime/memory/address_index.h>
#include <runtime/memory/heap.h>

typedef struct pleat__place_table {
    pleat__place *entries; /* address 0: empty */
    uint32_t mask;
    uint32_t shift; /* 64 - log2(entries) */
} pleat__place_table;

typedef struct pleat__place_map {
    pleat__arena *arena;
    pleat__place_table table;
    pleat__place_table old; /* the one before, as long as something may be in it; else no entries */
    uint32_t moved;         /* of its entries, so many are empty */
    uint32_t limit;         /* of `count`, up to which a request has nothing to do here */
    uint32_t count;
    uint32_t asked; /* questions since the last pleat__place_map_forget */
    pleat_va base;  /* all addresses lie in these bytes */
    uint64_t bytes;
    pleat__address_index index;
} pleat__place_map;

PLEAT_NODISCARD pleat_result pleat__place_map_init(pleat__place_map *map, pleat__arena *arena,
                                                   pleat_va base, uint64_t bytes);
void pleat__place_map_release(pleat__place_map *map);
PLEAT_NODISCARD pleat_result pleat__place_map_make_room(pleat__place_map *map);

/* Makes room for one more. */
PLEAT_NODISCARD static inline pleat_result pleat__place_map_reserve(pleat__place_map *map)
{
    return map->count < map->limit ? PLEAT_OK : pleat__place_map_make_room(map);
}

static inline uint32_t pleat__place_table_home(const pleat__place_table *table, pleat_va address)
{
    return (uint32_t)((address >> PLEAT__GRANULE_SHIFT) * PLEAT__HASH_MULTIPLIER >> table->shift);
}

/* A place at this address will be put in: its entry is fetched meanwhile. */
static inline void pleat__place_map_expect(const pleat__place_map *map, pleat_va address)
{
    __builtin_prefetch(&map->table.entries[pleat__place_table_home(&map->table, address)], 1);
}

/* Notes the beginning in `index`; without host memory `index` goes, until it is wanted again. */
void pleat__place_map_note(pleat__place_map *map, pleat_va address);

static inline pleat__place *pleat__place_table_put(const pleat__place_table *table,
                                                   const pleat__place *place)
{
    uint32_t at = pleat__place_table_home(table, place->address);
    while (table->entries[at].address != 0)
        at = (at + 1) & table->mask;
    table->entries[at] = *place;
    return &table->entries[at];
}

/* The entry of a place, until another one is put in or removed. pre: room was made; the address is
 * not in the table. */
static inline pleat__place *pleat__place_map_insert(pleat__place_map *map,
                                                    const pleat__place *place)
{
    map->count++;
    if (__builtin_expect(map->index.rows != NULL, 0))
        pleat__place_map_note(map, place->address);
    return pleat__place_table_put(&map->table, place);
}

static inline pleat__place *pleat__place_table_find(const pleat__place_table *table,
                                                    pleat_va address)
{
    uint32_t at = pleat__place_table_home(table, address);
    while (table->entries[at].address != address) {
        if (table->entries[at].address == 0)
            return NULL;
        at = (at + 1) & table->mask;
    }
    return address == 0 ? NULL : &table->entries[at];
}

/* NULL when the address is not the first of an allocation. */
static inline pleat__place *pleat__place_map_find(const pleat__place_map *map, pleat_va address)
{
    pleat__place *entry = pleat__place_table_find(&map->table, address);
    if (__builtin_expect(entry == NULL && map->old.entries != NULL, 0))
        entry = pleat__place_table_find(&map->old, address);
    return entry;
}

void pleat__place_map_remove(pleat__place_map *map, pleat__place *entry);
/* The allocation that holds an address, which may lie anywhere inside it; NULL when none does. The
 * first question after a while takes a walk through the table. */
pleat__place *pleat__place_map_holding(pleat__place_map *map, pleat_va address);
/* The first allocation that begins at or behind an address, or NULL. */
pleat__place *pleat__place_map_next(pleat__place_map *map, pleat_va address);
/* An iteration has passed. */
void pleat__place_map_forget(pleat__place_map *map);
/* Calls `visit` for each, in no order, until it says false; whether it never did. */
bool pleat__place_map_each(const pleat__place_map *map,
                           bool (*visit)(void *context, pleat__place *place), void *context);

#endif
