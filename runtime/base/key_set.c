/*
 * key_set.c: the ordered set of keys (see key_set.h).
 */
#include <runtime/base/key_set.h>

#include <internal/check.h>
#include <internal/error.h>
#include <stdio.h>
#include <string.h>

enum { HALF = PLEAT__KEY_BLOCK / 2 };

void pleat__key_set_init(pleat__key_set *set, pleat__arena *arena)
{
    *set = (pleat__key_set){.arena = arena};
}

void pleat__key_set_release(pleat__key_set *set)
{
    pleat__arena_free(set->arena, set->keys);
    pleat__arena_free(set->arena, set->index);
    *set = (pleat__key_set){.arena = set->arena};
}

pleat_result pleat__key_set_grow(pleat__key_set *set, uint64_t blocks)
{
    uint64_t wanted = set->capacity != 0 ? set->capacity : 1;
    if (blocks > UINT32_MAX / 2)
        return pleat__fail(PLEAT_E_LIMIT, "more than 2^31 blocks of keys");
    while (wanted < blocks)
        wanted *= 2;
    uint64_t *keys =
        pleat__arena_realloc(set->arena, set->keys, wanted * PLEAT__KEY_BLOCK * sizeof *keys);
    if (keys != NULL)
        set->keys = keys;
    pleat__key_block *index = pleat__arena_realloc(set->arena, set->index, wanted * sizeof *index);
    if (index != NULL)
        set->index = index;
    if (keys == NULL || index == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %llu blocks of keys",
                           (unsigned long long)wanted);
    while (set->capacity < wanted) {
        index[set->capacity] = (pleat__key_block){.block = set->capacity};
        set->capacity++;
    }
    return PLEAT_OK;
}

static inline uint64_t *keys_of(const pleat__key_set *set, uint32_t at)
{
    return pleat__key_block_keys(set, at);
}

/* ---- blocks ---- */

/* An empty block at `at` in the order. */
static void block_add(pleat__key_set *set, uint32_t at)
{
    PLEAT_CHECK(set->blocks < set->capacity);
    uint32_t block = set->index[set->blocks].block;
    memmove(&set->index[at + 1], &set->index[at], (set->blocks - at) * sizeof *set->index);
    set->index[at] = (pleat__key_block){.block = block};
    set->blocks++;
}

static void block_drop(pleat__key_set *set, uint32_t at)
{
    uint32_t block = set->index[at].block;
    set->blocks--;
    memmove(&set->index[at], &set->index[at + 1], (set->blocks - at) * sizeof *set->index);
    set->index[set->blocks] = (pleat__key_block){.block = block};
}

/* The upper half of a full block becomes one of its own. */
static void block_split(pleat__key_set *set, uint32_t at)
{
    block_add(set, at + 1);
    memcpy(keys_of(set, at + 1), keys_of(set, at) + HALF, HALF * sizeof *set->keys);
    set->index[at].count = HALF;
    set->index[at + 1].count = HALF;
    set->index[at + 1].low = *keys_of(set, at + 1);
}

/* Appends the block behind `at` to it where both are at most half a block. */
static bool block_join(pleat__key_set *set, uint32_t at)
{
    pleat__key_block *low = &set->index[at], *high = low + 1;
    if (low->count + high->count > HALF)
        return false;
    memcpy(keys_of(set, at) + low->count, keys_of(set, at + 1), high->count * sizeof *set->keys);
    low->count += high->count;
    low->low = *keys_of(set, at);
    block_drop(set, at + 1);
    return true;
}

/* A block has become smaller. */
static void block_settle(pleat__key_set *set, uint32_t at)
{
    if (set->index[at].count == 0)
        block_drop(set, at);
    else
        set->index[at].low = *keys_of(set, at);
    if (at + 1 < set->blocks)
        (void)block_join(set, at);
    if (at > 0 && at < set->blocks)
        (void)block_join(set, at - 1);
}

/* ---- keys ---- */

void pleat__key_set_insert_at(pleat__key_set *set, pleat__key_gap gap, uint64_t key)
{
    if (set->blocks == 0)
        block_add(set, 0);
    if (set->index[gap.at].count == PLEAT__KEY_BLOCK) {
        block_split(set, gap.at);
        if (gap.rank > HALF)
            gap = (pleat__key_gap){gap.at + 1, gap.rank - HALF};
    }
    pleat__key_block *block = &set->index[gap.at];
    uint64_t *keys = keys_of(set, gap.at) + gap.rank;
    memmove(keys + 1, keys, (block->count - gap.rank) * sizeof *keys);
    *keys = key;
    block->low = *keys_of(set, gap.at);
    block->count++;
    set->count++;
}

void pleat__key_set_remove_at(pleat__key_set *set, pleat__key_gap gap)
{
    pleat__key_block *block = &set->index[gap.at];
    uint64_t *keys = keys_of(set, gap.at) + gap.rank;
    memmove(keys - 1, keys, (block->count - gap.rank) * sizeof *keys);
    block->count--;
    set->count--;
    if (gap.rank == 1 || block->count <= HALF)
        block_settle(set, gap.at);
}

void pleat__key_set_insert(pleat__key_set *set, uint64_t key)
{
    pleat__key_set_insert_at(set, pleat__key_set_gap(set, key), key);
}

/* The gap above a key of the set. */
static inline pleat__key_gap gap_behind(const pleat__key_set *set, uint64_t key)
{
    pleat__key_gap gap = pleat__key_set_gap(set, key);
    PLEAT_CHECK(pleat__key_below(set, gap) == key);
    return gap;
}

void pleat__key_set_remove(pleat__key_set *set, uint64_t key)
{
    pleat__key_set_remove_at(set, gap_behind(set, key));
}

/* Whether a key belongs to a block as the blocks are. */
static inline bool is_of_block(const pleat__key_set *set, uint32_t at, uint64_t key)
{
    return (at == 0 || key >= set->index[at].low) &&
           (at + 1 == set->blocks || key < set->index[at + 1].low);
}

/* A key mostly goes by a few others, so these are moved one by one. */
void pleat__key_set_replace_at(pleat__key_set *set, pleat__key_gap gap, uint64_t key)
{
    if (!is_of_block(set, gap.at, key)) {
        pleat__key_set_remove_at(set, gap);
        pleat__key_set_insert(set, key);
        return;
    }
    uint64_t *keys = keys_of(set, gap.at);
    uint32_t at = gap.rank - 1, last = set->index[gap.at].count - 1;
    for (; at != last && keys[at + 1] < key; at++)
        keys[at] = keys[at + 1];
    for (; at != 0 && keys[at - 1] > key; at--)
        keys[at] = keys[at - 1];
    keys[at] = key;
    set->index[gap.at].low = keys[0];
}

void pleat__key_set_replace(pleat__key_set *set, uint64_t old, uint64_t key)
{
    pleat__key_set_replace_at(set, gap_behind(set, old), key);
}

/* ---- audit ---- */

static bool block_audit(const pleat__key_set *set, uint32_t at, uint64_t *last)
{
    const pleat__key_block *block = &set->index[at];
    const uint64_t *keys = keys_of(set, at);
    bool good = block->count != 0 && block->count <= PLEAT__KEY_BLOCK && block->low == keys[0];
    if (at + 1 < set->blocks)
        good = good && block->count + block[1].count > HALF;
    for (uint32_t i = 0; good && i < block->count; i++) {
        good = keys[i] > *last;
        *last = keys[i];
    }
    if (!good)
        fprintf(stderr, "pleat: block %u of %u of a set of keys is not in order\n", at,
                set->blocks);
    return good;
}

bool pleat__key_set_audit(const pleat__key_set *set)
{
    uint64_t last = 0, keys = 0;
    for (uint32_t at = 0; at < set->blocks; at++) {
        if (!block_audit(set, at, &last))
            return false;
        keys += set->index[at].count;
    }
    if (keys != set->count)
        fprintf(stderr, "pleat: %u keys counted, %llu found\n", set->count,
                (unsigned long long)keys);
    return keys == set->count;
}
