/*
 * known.c: see known.h.
 */
#include <runtime/face/known.h>

#include <runtime/face/runtime_internal.h>

/* As the table's value: the number of the request, 14 bits of tag (tags.c has fewer), two flags. */
static void *pack(pleat__known known)
{
    return (void *)(uintptr_t)(known.born << 16 | (uint64_t)known.tag << 2 |
                               (uint64_t)known.freed << 1 | (uint64_t)known.shared);
}

static pleat__known unpack(const void *packed)
{
    uint64_t value = (uintptr_t)packed;
    return (pleat__known){.born = value >> 16,
                          .tag = (uint32_t)(value & 0xffff) >> 2,
                          .shared = (value & 1) != 0,
                          .freed = (value & 2) != 0};
}

pleat_result pleat__known_promise(pleat_runtime *runtime, uint64_t count)
{
    pleat__address_map *known = &runtime->known;
    uint64_t made = 0;
    pleat_result result =
        known->entries == NULL ? pleat__address_map_create(runtime->arena, known) : PLEAT_OK;
    while (made < count && result == PLEAT_OK) {
        result = pleat__address_map_promise(known);
        made += result == PLEAT_OK;
    }
    if (result != PLEAT_OK)
        pleat__known_give_up(runtime, made);
    return result;
}

void pleat__known_give_up(pleat_runtime *runtime, uint64_t count)
{
    for (uint64_t n = 0; n < count; n++)
        pleat__address_map_give_up(&runtime->known);
}

pleat__known pleat__known_of(const pleat_runtime *runtime, pleat_va address)
{
    const pleat__address_map *known = &runtime->known;
    return unpack(known->count != 0 ? pleat__address_map_find(known, address) : NULL);
}

void pleat__known_set(pleat_runtime *runtime, pleat_va address, pleat__known known)
{
    void *packed = pack(known);
    (void)pleat__address_map_remove(&runtime->known, address);
    if (packed != NULL)
        pleat__address_map_insert(&runtime->known, address, packed);
}

void pleat__known_forget(pleat_runtime *runtime, pleat_va address)
{
    void *packed = pleat__address_map_remove(&runtime->known, address);
    if (unpack(packed).freed)
        pleat__address_map_insert(&runtime->known, address, packed);
}
