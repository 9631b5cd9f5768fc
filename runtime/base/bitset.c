/*
 * bitset.c: see bitset.h.
 */
#include <runtime/base/bitset.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>

pleat_result pleat__bits_create(pleat__arena *arena, uint64_t count, pleat__bits *bits)
{
    uint64_t words[PLEAT__BITS_LEVELS], total = 0;
    *bits = (pleat__bits){.count = count};
    do {
        count = pleat__ceil_div(count, 64);
        words[bits->depth++] = count;
        total += count;
    } while (count > 1 && bits->depth < PLEAT__BITS_LEVELS);
    uint64_t *memory = count <= 1 ? pleat__arena_calloc(arena, total, sizeof *memory) : NULL;
    if (memory == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a set of %llu words",
                           (unsigned long long)total);
    for (int level = 0; level < bits->depth; level++) {
        bits->levels[level] = memory;
        memory += words[level];
    }
    return PLEAT_OK;
}

void pleat__bits_destroy(pleat__arena *arena, pleat__bits *bits)
{
    pleat__arena_free(arena, bits->levels[0]);
    *bits = (pleat__bits){0};
}

void pleat__bits_set(pleat__bits *bits, uint64_t number)
{
    for (int level = 0; level < bits->depth; level++) {
        uint64_t *word = &bits->levels[level][number / 64];
        uint64_t was = *word;
        *word = was | 1ull << (number % 64);
        if (was != 0)
            return;
        number /= 64;
    }
}

void pleat__bits_clear(pleat__bits *bits, uint64_t number)
{
    for (int level = 0; level < bits->depth; level++) {
        uint64_t *word = &bits->levels[level][number / 64];
        *word &= ~(1ull << (number % 64));
        if (*word != 0)
            return;
        number /= 64;
    }
}

uint64_t pleat__bits_at_most(const pleat__bits *bits, uint64_t number)
{
    /* Up to the first level with a bit at or below, in the words of the same parent. */
    for (int level = 0; level < bits->depth; level++) {
        unsigned bit = (unsigned)(number % 64);
        uint64_t mask = bit == 63 ? ~0ull : (2ull << bit) - 1;
        uint64_t word = bits->levels[level][number / 64] & mask;
        if (word != 0) {
            number = number / 64 * 64 + 63 - (uint64_t)__builtin_clzll(word);
            while (level > 0) {
                level--;
                word = bits->levels[level][number];
                PLEAT_ASSERT(word != 0);
                number = number * 64 + 63 - (uint64_t)__builtin_clzll(word);
            }
            return number;
        }
        /* One word further up, strictly before this one. */
        if (number / 64 == 0)
            return PLEAT__BITS_NONE;
        number = number / 64 - 1;
    }
    return PLEAT__BITS_NONE;
}

uint64_t pleat__bits_at_least(const pleat__bits *bits, uint64_t number)
{
    /* Up to the first level with a bit at or above, in the words of the same parent. */
    for (uint64_t level = 0, count = bits->count; level < (uint64_t)bits->depth && number < count;
         level++, count = (count + 63) / 64) {
        uint64_t word = bits->levels[level][number / 64] >> number % 64;
        if (word == 0) {
            number = number / 64 + 1; /* one word further up, strictly behind this one */
            continue;
        }
        number += (uint64_t)__builtin_ctzll(word);
        while (level > 0) {
            word = bits->levels[--level][number];
            PLEAT_ASSERT(word != 0);
            number = number * 64 + (uint64_t)__builtin_ctzll(word);
        }
        return number;
    }
    return PLEAT__BITS_NONE;
}
