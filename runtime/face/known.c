/*
 * known.c: see known.h.
 */
#include <runtime/face/known.h>

#include <runtime/face/runtime_internal.h>

#include <internal/error.h>
#include <string.h>

/* ---- the table ---- */

/* As the table's value: the number of the request, 15 bits of tag (there are fewer), a flag. */
static void *pack(pleat__known known)
{
    return (void *)(uintptr_t)(known.born << 16 | (uint64_t)known.tag << 1 |
                               (uint64_t)known.shared);
}

pleat__known pleat__known_of(const pleat_runtime *runtime, pleat_va address)
{
    const pleat__address_map *known = &runtime->known;
    uint64_t value = known->count != 0 ? (uintptr_t)pleat__address_map_find(known, address) : 0;
    return (pleat__known){
        .born = value >> 16, .tag = (uint32_t)(value & 0xffff) >> 1, .shared = (value & 1) != 0};
}

pleat_result pleat__known_set(pleat_runtime *runtime, pleat_va address, pleat__known known)
{
    pleat__address_map *map = &runtime->known;
    void *packed = pack(known);
    if (map->entries == NULL)
        PLEAT_TRY(pleat__address_map_create(runtime->arena, map));
    if (pleat__address_map_remove(map, address) == NULL && packed != NULL)
        PLEAT_TRY(pleat__address_map_reserve(map));
    if (packed != NULL)
        pleat__address_map_insert(map, address, packed);
    return PLEAT_OK;
}

void pleat__known_forget(pleat_runtime *runtime, pleat_va address)
{
    (void)pleat__address_map_remove(&runtime->known, address);
}

/* ---- tags ---- */

#define TAGS_MOST 256 /* names, in a process (D199) */

atomic_bool pleat__has_tags;
static _Thread_local uint32_t tag_now; /* 0: none */
static pthread_mutex_t tags_lock = PTHREAD_MUTEX_INITIALIZER;
static char tag_names[TAGS_MOST][64];
static uint32_t tag_count;

/* Its number, from 1 on; 0: it is not known, and, where it is to be added, there is no room. */
static uint32_t tag_of(const char *name, bool add)
{
    pthread_mutex_lock(&tags_lock);
    uint32_t tag = 0;
    while (tag < tag_count && strcmp(tag_names[tag], name) != 0)
        tag++;
    bool found = tag < tag_count;
    if (!found && add && tag_count < TAGS_MOST) {
        snprintf(tag_names[tag_count++], sizeof *tag_names, "%s", name);
        found = true;
    }
    pthread_mutex_unlock(&tags_lock);
    return found ? tag + 1 : 0;
}

pleat_result pleat_tag(const char *name)
{
    if (name == NULL || *name == '\0') {
        tag_now = 0;
        return PLEAT_OK;
    }
    uint32_t tag = strlen(name) < sizeof *tag_names ? tag_of(name, true) : 0;
    if (tag == 0)
        return pleat__fail(PLEAT_E_LIMIT, "tag '%s': there may be %d, of up to %zu letters", name,
                           TAGS_MOST, sizeof *tag_names - 1);
    tag_now = tag;
    atomic_store_explicit(&pleat__has_tags, true, memory_order_relaxed);
    return PLEAT_OK;
}

uint32_t pleat__tag_now(void)
{
    return tag_now;
}

pleat_result pleat__tag_named(const char *name, uint32_t *tag)
{
    *tag = name != NULL && *name != '\0' ? tag_of(name, false) : 0;
    return name == NULL || *name == '\0' || *tag != 0
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NOT_FOUND, "nothing was ever allocated with the tag '%s'",
                             name);
}
