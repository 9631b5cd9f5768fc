/*
 * bins.c: see bins.h. Treaps after Seidel and Aragon, "Randomized Search Trees" (1996), section 3,
 * with insertion by splitting and removal by joining, both top-down and without recursion.
 */
#include <runtime/baselines/torch/bins.h>

#include <internal/check.h>
#include <internal/hash.h>
#include <stdio.h>

/* Bin of a size: the exponent of its count of 512s, and the three bits below the leading one. */
static unsigned bin_of(uint64_t bytes)
{
    uint64_t units = bytes >> 9;
    unsigned exponent = 63u - (unsigned)__builtin_clzll(units);
    if (exponent < 3)
        return (unsigned)units;
    return (exponent - 2) * 8 + (unsigned)((units >> (exponent - 3)) & 7);
}

static uint64_t priority(const pleat__block *block)
{
    return (block->address >> 9) * PLEAT__HASH_MULTIPLIER;
}

static bool before(const pleat__block *block, uint64_t bytes, pleat_va address)
{
    return block->bytes != bytes ? block->bytes < bytes : block->address < address;
}

void pleat__bins_insert(pleat__bins *bins, pleat__block *block)
{
    unsigned bin = bin_of(block->bytes);
    bins->words[bin / 64] |= 1ull << (bin % 64);
    bins->summary |= 1ull << (bin / 64);
    pleat__block **at = &bins->roots[bin];
    uint64_t mine = priority(block);
    while (*at != NULL && priority(*at) >= mine)
        at = before(*at, block->bytes, block->address) ? &(*at)->right : &(*at)->left;
    /* The block takes this place; what hung here is split around it. */
    pleat__block *rest = *at;
    pleat__block **low = &block->left, **high = &block->right;
    *at = block;
    while (rest != NULL) {
        if (before(rest, block->bytes, block->address)) {
            *low = rest;
            low = &rest->right;
            rest = rest->right;
        } else {
            *high = rest;
            high = &rest->left;
            rest = rest->left;
        }
    }
    *low = *high = NULL;
}

void pleat__bins_remove(pleat__bins *bins, pleat__block *block)
{
    unsigned bin = bin_of(block->bytes);
    pleat__block **at = &bins->roots[bin];
    while (*at != block) {
        PLEAT_CHECK(*at != NULL);
        at = before(*at, block->bytes, block->address) ? &(*at)->right : &(*at)->left;
    }
    pleat__block *low = block->left, *high = block->right;
    while (low != NULL && high != NULL) {
        if (priority(low) >= priority(high)) {
            *at = low;
            at = &low->right;
            low = low->right;
        } else {
            *at = high;
            at = &high->left;
            high = high->left;
        }
    }
    *at = low != NULL ? low : high;
    block->left = block->right = NULL;
    if (bins->roots[bin] == NULL) {
        bins->words[bin / 64] &= ~(1ull << (bin % 64));
        if (bins->words[bin / 64] == 0)
            bins->summary &= ~(1ull << (bin / 64));
    }
}

/* The lowest bin above `bin` that has a block; PLEAT__BIN_COUNT when none has. */
static unsigned next_bin(const pleat__bins *bins, unsigned bin)
{
    unsigned word = bin / 64;
    uint64_t rest = bins->words[word] & (~0ull << (bin % 64) << 1);
    if (rest == 0) {
        uint64_t words = bins->summary & (~0ull << word << 1);
        if (words == 0)
            return PLEAT__BIN_COUNT;
        word = (unsigned)__builtin_ctzll(words);
        rest = bins->words[word];
    }
    return word * 64 + (unsigned)__builtin_ctzll(rest);
}

pleat__block *pleat__bins_at_least(const pleat__bins *bins, uint64_t bytes, pleat_va address)
{
    unsigned bin = bin_of(bytes);
    pleat__block *found = NULL;
    for (pleat__block *at = bins->roots[bin]; at != NULL;) {
        if (before(at, bytes, address)) {
            at = at->right;
        } else {
            found = at;
            at = at->left;
        }
    }
    if (found != NULL)
        return found;
    bin = next_bin(bins, bin);
    if (bin == PLEAT__BIN_COUNT)
        return NULL;
    found = bins->roots[bin];
    while (found->left != NULL)
        found = found->left;
    return found;
}

pleat__block *pleat__bins_last(const pleat__bins *bins)
{
    if (bins->summary == 0)
        return NULL;
    unsigned word = 63u - (unsigned)__builtin_clzll(bins->summary);
    unsigned bin = word * 64 + 63u - (unsigned)__builtin_clzll(bins->words[word]);
    pleat__block *at = bins->roots[bin];
    while (at->right != NULL)
        at = at->right;
    return at;
}

/* Counts a treap in order; *last is the greatest seen so far. Depth is that of a treap: small. */
static bool audit_treap(const pleat__block *at, unsigned bin, const pleat__block **last,
                        uint64_t *count)
{
    if (at == NULL)
        return true;
    if (!audit_treap(at->left, bin, last, count))
        return false;
    if (bin_of(at->bytes) != bin || at->state != PLEAT__BLOCK_FREE ||
        (*last != NULL && !before(*last, at->bytes, at->address))) {
        fprintf(stderr, "bins: block %#llx of %llu bytes is out of order in bin %u\n",
                (unsigned long long)at->address, (unsigned long long)at->bytes, bin);
        return false;
    }
    *last = at;
    (*count)++;
    return audit_treap(at->right, bin, last, count);
}

bool pleat__bins_audit(const pleat__bins *bins, uint64_t *count)
{
    const pleat__block *last = NULL;
    for (unsigned bin = 0; bin < PLEAT__BIN_COUNT; bin++) {
        bool marked = bins->words[bin / 64] >> (bin % 64) & 1;
        if (marked != (bins->roots[bin] != NULL)) {
            fprintf(stderr, "bins: bin %u is marked %d and has root %p\n", bin, marked,
                    (void *)bins->roots[bin]);
            return false;
        }
        if (!audit_treap(bins->roots[bin], bin, &last, count))
            return false;
    }
    return true;
}
