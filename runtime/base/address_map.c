/*
 * address_map.c: see address_map.h. Removal after Knuth, TAOCP volume 3, section 6.4, algorithm R.
 */
#include <runtime/base/address_map.h>

#include <internal/check.h>
#include <internal/error.h>

#define FIRST_BITS 10u

static uint64_t home(const pleat__live *live, pleat_va address)
{
    return ((address >> 9) * 0x9e3779b97f4a7c15u) >> live->shift;
}

pleat_result pleat__live_create(pleat__arena *arena, pleat__live *live)
{
    *live = (pleat__live){.arena = arena, .mask = (1u << FIRST_BITS) - 1, .shift = 64 - FIRST_BITS};
    live->entries = pleat__arena_calloc(arena, live->mask + 1, sizeof *live->entries);
    if (live->entries == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of live allocations");
    return PLEAT_OK;
}

void pleat__live_destroy(pleat__live *live)
{
    if (live->arena != NULL)
        pleat__arena_free(live->arena, live->entries);
    *live = (pleat__live){0};
}

pleat_result pleat__live_reserve(pleat__live *live)
{
    if ((live->count + live->promised) * 2 <= live->mask)
        return PLEAT_OK;
    pleat__live wider = *live;
    wider.mask = live->mask * 2 + 1;
    wider.shift = live->shift - 1;
    wider.count = 0;
    wider.entries = pleat__arena_calloc(live->arena, wider.mask + 1, sizeof *wider.entries);
    if (wider.entries == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of %llu allocations",
                           (unsigned long long)wider.mask + 1);
    for (uint64_t i = 0; i <= live->mask; i++)
        if (live->entries[i].address != 0)
            pleat__live_insert(&wider, live->entries[i].address, live->entries[i].value);
    pleat__arena_free(live->arena, live->entries);
    *live = wider;
    return PLEAT_OK;
}

pleat_result pleat__live_promise(pleat__live *live)
{
    PLEAT_TRY(pleat__live_reserve(live));
    live->promised++;
    return PLEAT_OK;
}

void pleat__live_give_up(pleat__live *live)
{
    PLEAT_ASSERT(live->promised > 0);
    live->promised--;
}

void pleat__live_insert(pleat__live *live, pleat_va address, void *value)
{
    PLEAT_ASSERT(address != 0 && live->count < live->mask);
    uint64_t at = home(live, address);
    while (live->entries[at].address != 0)
        at = (at + 1) & live->mask;
    live->entries[at] = (pleat__live_entry){address, value};
    live->count++;
}

static uint64_t position(const pleat__live *live, pleat_va address)
{
    uint64_t at = home(live, address);
    while (live->entries[at].address != address && live->entries[at].address != 0)
        at = (at + 1) & live->mask;
    return at;
}

void *pleat__live_find(const pleat__live *live, pleat_va address)
{
    return live->entries[position(live, address)].value;
}

void *pleat__live_remove(pleat__live *live, pleat_va address)
{
    uint64_t hole = position(live, address);
    void *value = live->entries[hole].value;
    if (live->entries[hole].address == 0)
        return NULL;
    for (uint64_t at = (hole + 1) & live->mask; live->entries[at].address != 0;
         at = (at + 1) & live->mask) {
        /* An entry may move back only as far as its home. */
        uint64_t distance = (at - home(live, live->entries[at].address)) & live->mask;
        if (distance >= ((at - hole) & live->mask)) {
            live->entries[hole] = live->entries[at];
            hole = at;
        }
    }
    live->entries[hole] = (pleat__live_entry){0};
    live->count--;
    return value;
}
