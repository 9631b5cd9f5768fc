/*
 * sort.c: see sort.h. Least significant byte first; a byte that all keys share costs one look.
 */
#include <plan/base/sort.h>

#include <string.h>

/* `key_of` is a macro of an item. */
#define RADIX_SORT(items, spare, count, key_of)                                                    \
    do {                                                                                           \
        __typeof__(items) from = (items), to = (spare);                                            \
        for (unsigned shift = 0; shift < 64; shift += 8) {                                         \
            size_t starts[257] = {0};                                                              \
            for (size_t i = 0; i < (count); i++)                                                   \
                starts[(key_of(from[i]) >> shift & 255) + 1]++;                                    \
            if ((count) > 0 && starts[(key_of(from[0]) >> shift & 255) + 1] == (count))            \
                continue;                                                                          \
            for (unsigned b = 0; b < 256; b++)                                                     \
                starts[b + 1] += starts[b];                                                        \
            for (size_t i = 0; i < (count); i++)                                                   \
                to[starts[key_of(from[i]) >> shift & 255]++] = from[i];                            \
            __typeof__(items) swap = from;                                                         \
            from = to;                                                                             \
            to = swap;                                                                             \
        }                                                                                          \
        if (from != (items))                                                                       \
            memcpy((items), from, (count) * sizeof *(items));                                      \
    } while (0)

#define ITSELF(item)    (item)
#define LOOKED_UP(item) keys[item]

void pleat__sort_keys(uint64_t *keys, uint64_t *spare, size_t count)
{
    RADIX_SORT(keys, spare, count, ITSELF);
}

void pleat__sort_by_key(uint32_t *indices, uint32_t *spare, size_t count, const uint64_t *keys)
{
    RADIX_SORT(indices, spare, count, LOOKED_UP);
}
