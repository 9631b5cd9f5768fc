/*
 * address_map.h: what is allocated, by address: a hash table from an allocation's first byte to a
 * pointer.
 *
 * Open addressing with linear probing, at most half full; a removal shifts what follows back, so
 * nothing is left behind and a removal allocates nothing. One lookup is one cache miss.
 */
#ifndef PLEAT_RUNTIME_BASE_ADDRESS_MAP_H
#define PLEAT_RUNTIME_BASE_ADDRESS_MAP_H

#include <internal/arena.h>
#include <pleat/vmm.h>

typedef struct pleat__address_map_entry {
    pleat_va address; /* 0: empty */
    void *value;
} pleat__address_map_entry;

typedef struct pleat__address_map {
    pleat__arena *arena;
    pleat__address_map_entry *entries;
    uint64_t mask; /* entries - 1 */
    uint64_t count;
    uint64_t promised; /* room that others may not use */
    unsigned shift;    /* 64 - log2(entries) */
} pleat__address_map;

PLEAT_NODISCARD pleat_result pleat__address_map_create(pleat__arena *arena,
                                                       pleat__address_map *map);
void pleat__address_map_destroy(pleat__address_map *map);
/* Makes room for one more; the insertion that follows cannot fail. */
PLEAT_NODISCARD pleat_result pleat__address_map_reserve(pleat__address_map *map);
/* Makes room and keeps it, whatever is inserted meanwhile, until it is given up: then the insertion
 * that follows cannot fail. */
PLEAT_NODISCARD pleat_result pleat__address_map_promise(pleat__address_map *map);
void pleat__address_map_give_up(pleat__address_map *map);
/* pre: room was made; the address is not 0 and not in the table. */
void pleat__address_map_insert(pleat__address_map *map, pleat_va address, void *value);
/* NULL when the address is not there. */
void *pleat__address_map_find(const pleat__address_map *map, pleat_va address);
/* The value, removed; NULL when the address is not there. */
void *pleat__address_map_remove(pleat__address_map *map, pleat_va address);

#endif
