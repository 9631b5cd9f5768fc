/*
 * internal/hash.h: hashes for tables, and numbers that are drawn.
 */
#ifndef PLEAT_INTERNAL_HASH_H
#define PLEAT_INTERNAL_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

/* 2^64 over the golden ratio: a product with it spreads a value's low bits over the high ones. */
#define PLEAT__HASH_MULTIPLIER UINT64_C(0x9e3779b97f4a7c15) /* D481 */

/* One round of mixing: the multiplication spreads upwards, the rotation brings it down again. */
static inline uint64_t pleat__mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * PLEAT__HASH_MULTIPLIER;
    return hash << 29 | hash >> 35;
}

static inline uint64_t pleat__hash_text(uint64_t hash, const char *text, size_t length)
{
    hash = pleat__mix(hash, length);
    for (size_t i = 0; i < length; i++)
        hash = pleat__mix(hash, (unsigned char)text[i]);
    return hash;
}

/* The kernel's random bytes of this process, for a table of what a file holds and of which nothing
 * reads the order: a file that knew them could have all its texts go to one place. */
static inline uint64_t pleat__hash_secret(void)
{
    const void *random = (const void *)(uintptr_t)getauxval(AT_RANDOM);
    uint64_t bytes = 0;
    if (random != NULL)
        memcpy(&bytes, random, sizeof bytes);
    return bytes;
}

/* The next of a sequence of numbers that is the same in each run (splitmix64). */
static inline uint64_t pleat__random(uint64_t *state)
{
    uint64_t z = (*state += PLEAT__HASH_MULTIPLIER);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
