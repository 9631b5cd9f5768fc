/*
 * key_set.h: an ordered set of 64-bit keys, none of them 0, in sorted blocks of at most
 * PLEAT__KEY_BLOCK keys, with the blocks' lowest keys in one sorted array.
 *
 * A search halves that array, and then looks at some of a block's keys. An insertion or a removal
 * moves at most a block of keys, 1 KiB; one that splits or joins blocks moves the array as well, 16
 * bytes for at least 32 keys of the set. Two neighbouring blocks hold more than half a block of
 * keys together, so that a set of n keys has at most 4 n / PLEAT__KEY_BLOCK + 1 blocks.
 *
 * The keys of a few hundred runs lie in some lines of cache next to each other, where a tree of
 * nodes reads a line at each step (D273 in docs/decisions.md).
 */
#ifndef PLEAT_RUNTIME_BASE_KEY_SET_H
#define PLEAT_RUNTIME_BASE_KEY_SET_H

#include <internal/arena.h>
#include <stdbool.h>
#include <stdint.h>

#define PLEAT__KEY_BLOCK 128u
#define PLEAT__KEY_STEP  8u /* D525 */

typedef struct pleat__key_block {
    uint64_t low;   /* its lowest key */
    uint32_t block; /* its keys begin at keys[block * PLEAT__KEY_BLOCK] */
    uint32_t count;
} pleat__key_block;

typedef struct pleat__key_set {
    pleat__arena *arena;
    uint64_t *keys;
    pleat__key_block *index; /* in order; behind the last, the blocks that are free */
    uint32_t blocks;         /* in use */
    uint32_t capacity;       /* blocks there are */
    uint32_t count;          /* keys */
} pleat__key_set;

void pleat__key_set_init(pleat__key_set *set, pleat__arena *arena);
/* Leaves it empty, without memory. */
void pleat__key_set_release(pleat__key_set *set);
/* Leaves it empty, with the memory it has. */
static inline void pleat__key_set_clear(pleat__key_set *set)
{
    set->blocks = 0;
    set->count = 0;
}

/* Blocks that so many keys may take. */
static inline uint64_t pleat__key_blocks_of(uint64_t keys)
{
    return 4 * keys / PLEAT__KEY_BLOCK + 1;
}

PLEAT_NODISCARD pleat_result pleat__key_set_grow(pleat__key_set *set, uint64_t blocks);
/* Makes room for so many keys more than it holds: their insertions cannot fail then. */
PLEAT_NODISCARD static inline pleat_result pleat__key_set_reserve(pleat__key_set *set,
                                                                  uint32_t keys)
{
    uint64_t most = pleat__key_blocks_of((uint64_t)set->count + keys);
    return most <= set->capacity ? PLEAT_OK : pleat__key_set_grow(set, most);
}

/* ---- searching ---- */

/* Between two neighbouring keys of a set, until the set changes. */
typedef struct pleat__key_gap {
    uint32_t at;   /* in the order of the blocks */
    uint32_t rank; /* of that block's keys, how many are below */
} pleat__key_gap;

static inline uint64_t *pleat__key_block_keys(const pleat__key_set *set, uint32_t at)
{
    return set->keys + (size_t)set->index[at].block * PLEAT__KEY_BLOCK;
}

/* The last block whose lowest key is at or below `key`; the first when there is none. */
static inline uint32_t pleat__key_block_of(const pleat__key_set *set, uint64_t key)
{
    uint32_t at = 0;
    for (uint32_t left = set->blocks; left > 1;) {
        uint32_t half = left / 2;
        at += set->index[at + half].low <= key ? half : 0;
        left -= half;
    }
    return at;
}

/* How many of a block's keys are at or below `key`. Every eighth is looked at, and then eight side
 * by side: which they are does not wait for how the ones before compared, as it does where a block
 * is halved, and no branch hangs on it (D525). */
static inline uint32_t pleat__key_rank_of(const uint64_t *keys, uint32_t count, uint64_t key)
{
    uint32_t rank = 0;
    if (count < PLEAT__KEY_STEP) {
        while (rank < count && keys[rank] <= key)
            rank++;
        return rank;
    }
    for (uint32_t at = PLEAT__KEY_STEP; at <= count; at += PLEAT__KEY_STEP)
        rank += keys[at - 1] <= key ? PLEAT__KEY_STEP : 0;
    /* The last few are looked at together with some before them. */
    const uint64_t *last = keys + count - PLEAT__KEY_STEP;
    const uint64_t *from = keys + rank < last ? keys + rank : last;
    rank = (uint32_t)(from - keys);
    for (uint32_t i = 0; i < PLEAT__KEY_STEP; i++)
        rank += from[i] <= key;
    return rank;
}

/* The gap above the greatest key at or below `key`. */
static inline pleat__key_gap pleat__key_set_gap(const pleat__key_set *set, uint64_t key)
{
    if (set->count == 0)
        return (pleat__key_gap){0, 0};
    uint32_t at = pleat__key_block_of(set, key);
    return (pleat__key_gap){
        at, pleat__key_rank_of(pleat__key_block_keys(set, at), set->index[at].count, key)};
}

/* The key below a gap, and the one above it; 0: none. */
static inline uint64_t pleat__key_below(const pleat__key_set *set, pleat__key_gap gap)
{
    return gap.rank != 0 ? pleat__key_block_keys(set, gap.at)[gap.rank - 1] : 0;
}

static inline uint64_t pleat__key_above(const pleat__key_set *set, pleat__key_gap gap)
{
    if (gap.at >= set->blocks)
        return 0;
    if (gap.rank != set->index[gap.at].count)
        return pleat__key_block_keys(set, gap.at)[gap.rank];
    return gap.at + 1 < set->blocks ? set->index[gap.at + 1].low : 0;
}

/* The greatest key at or below `key`, and the lowest above it; 0: none. */
static inline uint64_t pleat__key_set_at_most(const pleat__key_set *set, uint64_t key)
{
    return pleat__key_below(set, pleat__key_set_gap(set, key));
}

static inline uint64_t pleat__key_set_above(const pleat__key_set *set, uint64_t key)
{
    return pleat__key_above(set, pleat__key_set_gap(set, key));
}

/* ---- changing ---- */

/* pre: not in the set; room was made. */
void pleat__key_set_insert(pleat__key_set *set, uint64_t key);
/* pre: in the set. */
void pleat__key_set_remove(pleat__key_set *set, uint64_t key);
/* Puts `key` in the place of `old`. pre: `old` is in the set, `key` is not, and room was made. */
void pleat__key_set_replace(pleat__key_set *set, uint64_t old, uint64_t key);

/* What is done at a gap needs no other search. pre: the key belongs there; room was made. */
void pleat__key_set_insert_at(pleat__key_set *set, pleat__key_gap gap, uint64_t key);
/* The neighbour below goes. pre: there is one. */
void pleat__key_set_remove_at(pleat__key_set *set, pleat__key_gap gap);
/* `key` in its place, wherever that belongs. pre: there is one; `key` is not in the set, and room
 * was made. */
void pleat__key_set_replace_at(pleat__key_set *set, pleat__key_gap gap, uint64_t key);

/* Another key in the neighbour's place. pre: the order stays as it is. */
static inline void pleat__key_set_put_at(pleat__key_set *set, pleat__key_gap gap, uint64_t key)
{
    uint64_t *keys = pleat__key_block_keys(set, gap.at);
    keys[gap.rank - 1] = key;
    set->index[gap.at].low = keys[0];
}

/* The gap whose neighbour below is this one's above. pre: it has one. */
static inline pleat__key_gap pleat__key_gap_above(const pleat__key_set *set, pleat__key_gap gap)
{
    if (gap.rank != set->index[gap.at].count)
        return (pleat__key_gap){gap.at, gap.rank + 1};
    return (pleat__key_gap){gap.at + 1, 1};
}

/* The gap whose neighbour above is this one's below. pre: it has one. */
static inline pleat__key_gap pleat__key_gap_below(const pleat__key_set *set, pleat__key_gap gap)
{
    if (gap.rank > 1 || gap.at == 0)
        return (pleat__key_gap){gap.at, gap.rank - 1};
    return (pleat__key_gap){gap.at - 1, set->index[gap.at - 1].count};
}

/* Whether order, counts and the blocks' number are as they must be; prints what is not. */
bool pleat__key_set_audit(const pleat__key_set *set);

#endif
