/*
 * sort.c: see sort.h. Least significant byte first; a byte that all keys share costs one look.
 */
#include <plan/base/sort.h>

#include <string.h>

void pleat__sort_keys(uint64_t *keys, uint64_t *spare, size_t count)
{
    uint64_t *from = keys, *to = spare;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        size_t starts[257] = {0};
        for (size_t i = 0; i < count; i++)
            starts[(from[i] >> shift & 255) + 1]++;
        if (count > 0 && starts[(from[0] >> shift & 255) + 1] == count)
            continue;
        for (unsigned b = 0; b < 256; b++)
            starts[b + 1] += starts[b];
        for (size_t i = 0; i < count; i++)
            to[starts[from[i] >> shift & 255]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != keys)
        memcpy(keys, from, count * sizeof *keys);
}

void pleat__sort_by_key(uint32_t *indices, uint32_t *spare, size_t count, const uint64_t *keys)
{
    uint32_t *from = indices, *to = spare;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        size_t starts[257] = {0};
        for (size_t i = 0; i < count; i++)
            starts[(keys[from[i]] >> shift & 255) + 1]++;
        if (count > 0 && starts[(keys[from[0]] >> shift & 255) + 1] == count)
            continue;
        for (unsigned b = 0; b < 256; b++)
            starts[b + 1] += starts[b];
        for (size_t i = 0; i < count; i++)
            to[starts[keys[from[i]] >> shift & 255]++] = from[i];
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != indices)
        memcpy(indices, from, count * sizeof *indices);
}
