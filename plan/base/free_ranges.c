/*
 * free_ranges.c: see free_ranges.h. A set changes in one place only, `replace`: up to two ranges in
 * a row of one block are exchanged for up to two others, the block is split when it is full and
 * dropped when it is empty.
 */
#include <plan/base/free_ranges.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/search.h>
#include <stdio.h>
#include <string.h>

void pleat__gaps_init(pleat__gaps *gaps, pleat__arena *arena)
{
    *gaps = (pleat__gaps){.arena = arena};
}

void pleat__gaps_done(pleat__gaps *gaps)
{
    pleat__arena_free(gaps->arena, gaps->blocks);
    pleat__arena_free(gaps->arena, gaps->ranges);
    pleat__arena_free(gaps->arena, gaps->spare);
    pleat__gaps_init(gaps, gaps->arena);
}

void pleat__gaps_clear(pleat__gaps *gaps)
{
    for (uint32_t b = 0; b < gaps->block_count; b++)
        gaps->spare[gaps->spare_count++] = gaps->blocks[b].id;
    gaps->block_count = 0;
}

static pleat__range *ranges_of(const pleat__gaps *gaps, uint32_t block)
{
    return gaps->ranges + (uint64_t)gaps->blocks[block].id * PLEAT__GAP_BLOCK;
}

/* Room for one more block. */
static pleat_result reserve(pleat__gaps *gaps)
{
    if (gaps->spare_count != 0)
        return PLEAT_OK;
    size_t blocks = gaps->capacity, ranges = gaps->capacity, spare = gaps->capacity;
    size_t used = gaps->capacity;
    PLEAT_TRY(pleat__arena_grow(gaps->arena, &gaps->blocks, &blocks, used, sizeof *gaps->blocks));
    PLEAT_TRY(pleat__arena_grow(gaps->arena, &gaps->ranges, &ranges, used,
                                PLEAT__GAP_BLOCK * sizeof *gaps->ranges));
    PLEAT_TRY(pleat__arena_grow(gaps->arena, &gaps->spare, &spare, used, sizeof *gaps->spare));
    size_t capacity = blocks < ranges ? blocks : ranges;
    for (size_t id = capacity; id-- > used;)
        gaps->spare[gaps->spare_count++] = (uint32_t)id;
    gaps->capacity = (uint32_t)capacity;
    return PLEAT_OK;
}

/* pre: reserve() */
static void insert_block(pleat__gaps *gaps, uint32_t at)
{
    memmove(gaps->blocks + at + 1, gaps->blocks + at,
            (gaps->block_count - at) * sizeof *gaps->blocks);
    gaps->block_count++;
    gaps->blocks[at] = (pleat__gap_block){.id = gaps->spare[--gaps->spare_count]};
}

static void remove_block(pleat__gaps *gaps, uint32_t at)
{
    gaps->spare[gaps->spare_count++] = gaps->blocks[at].id;
    gaps->block_count--;
    memmove(gaps->blocks + at, gaps->blocks + at + 1,
            (gaps->block_count - at) * sizeof *gaps->blocks);
}

static void refresh(pleat__gaps *gaps, uint32_t at)
{
    pleat__gap_block *block = &gaps->blocks[at];
    const pleat__range *ranges = ranges_of(gaps, at);
    uint64_t largest = 0;
    for (uint32_t i = 0; i < block->count; i++) {
        uint64_t size = ranges[i].end - ranges[i].begin;
        largest = size > largest ? size : largest;
    }
    block->first = ranges[0].begin;
    block->largest = largest;
}

/* Moves the upper half of a full block into one of its own. pre: reserve() */
static void split(pleat__gaps *gaps, uint32_t at)
{
    insert_block(gaps, at + 1);
    uint32_t half = gaps->blocks[at].count / 2, rest = gaps->blocks[at].count - half;
    memcpy(ranges_of(gaps, at + 1), ranges_of(gaps, at) + half, rest * sizeof(pleat__range));
    gaps->blocks[at].count = half;
    gaps->blocks[at + 1].count = rest;
    refresh(gaps, at);
    refresh(gaps, at + 1);
}

/* In block `at`, `old` ranges from `index` on become the `count` given ones. pre: reserve() */
static void replace(pleat__gaps *gaps, pleat__gap_at at, uint32_t old, const pleat__range *with,
                    uint32_t count)
{
    if (gaps->blocks[at.block].count - old + count > PLEAT__GAP_BLOCK) {
        split(gaps, at.block);
        uint32_t half = gaps->blocks[at.block].count;
        if (at.index > half || (at.index == half && old != 0))
            at = (pleat__gap_at){at.block + 1, at.index - half};
    }
    pleat__gap_block *block = &gaps->blocks[at.block];
    pleat__range *ranges = ranges_of(gaps, at.block);
    memmove(ranges + at.index + count, ranges + at.index + old,
            (block->count - at.index - old) * sizeof *ranges);
    for (uint32_t i = 0; i < count; i++)
        ranges[at.index + i] = with[i];
    block->count = block->count - old + count;
    gaps->work += 2;
    if (block->count == 0)
        remove_block(gaps, at.block);
    else
        refresh(gaps, at.block);
}

/* The last block that begins at or below `place`, or the first one. pre: there is one */
static uint32_t block_of(const pleat__gaps *gaps, uint64_t place)
{
    uint32_t block;
    PLEAT__FIRST(block, gaps->block_count - 1, gaps->blocks[block + 1].first > place);
    return block;
}

/* Index of the first range in the block that ends above `place`; the block's count when none. */
static uint32_t index_of(const pleat__gaps *gaps, uint32_t block, uint64_t place)
{
    const pleat__range *ranges = ranges_of(gaps, block);
    uint32_t index;
    PLEAT__FIRST(index, gaps->blocks[block].count, ranges[index].end > place);
    return index;
}

bool pleat__gaps_from(pleat__gaps *gaps, uint64_t from, pleat__gap_at *at)
{
    if (gaps->block_count == 0)
        return false;
    at->block = block_of(gaps, from);
    at->index = index_of(gaps, at->block, from);
    gaps->work++;
    if (at->index < gaps->blocks[at->block].count)
        return true;
    *at = (pleat__gap_at){at->block + 1, 0};
    return at->block < gaps->block_count;
}

bool pleat__gaps_next(pleat__gaps *gaps, pleat__gap_at *at)
{
    if (++at->index < gaps->blocks[at->block].count)
        return true;
    *at = (pleat__gap_at){at->block + 1, 0};
    return at->block < gaps->block_count;
}

static void give_first(pleat__gaps *gaps, pleat__range range)
{
    insert_block(gaps, 0);
    gaps->blocks[0].count = 1;
    ranges_of(gaps, 0)[0] = range;
    refresh(gaps, 0);
}

/* Neighbours that touch the range melt into it; the one above may begin the next block. */
static void give_between(pleat__gaps *gaps, pleat__range range)
{
    uint32_t block = block_of(gaps, range.begin), index = index_of(gaps, block, range.begin);
    const pleat__range *ranges = ranges_of(gaps, block);
    uint32_t old = 0;
    if (index < gaps->blocks[block].count) {
        if (ranges[index].begin == range.end) {
            range.end = ranges[index].end;
            old = 1;
        }
    } else if (block + 1 < gaps->block_count && ranges_of(gaps, block + 1)[0].begin == range.end) {
        range.end = ranges_of(gaps, block + 1)[0].end;
        replace(gaps, (pleat__gap_at){block + 1, 0}, 1, NULL, 0);
    }
    if (index > 0 && ranges[index - 1].end == range.begin) {
        range.begin = ranges[--index].begin;
        old++;
    }
    replace(gaps, (pleat__gap_at){block, index}, old, &range, 1);
}

pleat_result pleat__gaps_give(pleat__gaps *gaps, pleat__range range)
{
    if (pleat__range_empty(range))
        return PLEAT_OK;
    PLEAT_TRY(reserve(gaps));
    if (gaps->block_count == 0)
        give_first(gaps, range);
    else
        give_between(gaps, range);
    return PLEAT_OK;
}

/* The one range that holds all of `range`. */
static bool find(pleat__gaps *gaps, pleat__range range, pleat__gap_at *at)
{
    if (!pleat__gaps_from(gaps, range.begin, at))
        return false;
    return pleat__range_contains(pleat__gaps_get(gaps, *at), range);
}

pleat_result pleat__gaps_take(pleat__gaps *gaps, pleat__range range)
{
    if (pleat__range_empty(range))
        return PLEAT_OK;
    pleat__gap_at at;
    PLEAT_CHECK(find(gaps, range, &at));
    pleat__range old = pleat__gaps_get(gaps, at), left[2];
    uint32_t count = 0;
    if (old.begin < range.begin)
        left[count++] = (pleat__range){old.begin, range.begin};
    if (range.end < old.end)
        left[count++] = (pleat__range){range.end, old.end};
    PLEAT_TRY(reserve(gaps));
    replace(gaps, at, 1, left, count);
    return PLEAT_OK;
}

bool pleat__gaps_lowest(pleat__gaps *gaps, uint64_t size, uint64_t *place)
{
    gaps->work += 1 + gaps->block_count / 8;
    for (uint32_t b = 0; b < gaps->block_count; b++) {
        if (gaps->blocks[b].largest < size)
            continue;
        const pleat__range *range = ranges_of(gaps, b);
        while (range->end - range->begin < size)
            range++;
        *place = range->begin;
        return true;
    }
    return false;
}

bool pleat__gaps_highest(pleat__gaps *gaps, uint64_t size, uint64_t *place)
{
    gaps->work += 1 + gaps->block_count / 8;
    for (uint32_t b = gaps->block_count; b-- > 0;) {
        if (gaps->blocks[b].largest < size)
            continue;
        const pleat__range *range = ranges_of(gaps, b) + gaps->blocks[b].count - 1;
        while (range->end - range->begin < size)
            range--;
        *place = range->end - size;
        return true;
    }
    return false;
}

bool pleat__gaps_highest_below(pleat__gaps *gaps, uint64_t size, uint64_t cap, uint64_t *place)
{
    gaps->work += 1 + gaps->block_count / 8;
    for (uint32_t b = gaps->block_count; b-- > 0 && size <= cap;) {
        if (gaps->blocks[b].largest < size || gaps->blocks[b].first > cap - size)
            continue;
        const pleat__range *first = ranges_of(gaps, b), *range = first + gaps->blocks[b].count;
        while (range-- > first) {
            uint64_t end = range->end < cap ? range->end : cap;
            if (range->begin > end || end - range->begin < size)
                continue;
            *place = end - size;
            return true;
        }
    }
    return false;
}

bool pleat__gaps_tightest(pleat__gaps *gaps, uint64_t size, uint64_t *place)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t b = 0; b < gaps->block_count; b++) {
        if (gaps->blocks[b].largest < size)
            continue;
        const pleat__range *range = ranges_of(gaps, b), *end = range + gaps->blocks[b].count;
        for (; range < end; range++)
            if (range->end - range->begin >= size && range->end - range->begin - size < best) {
                best = range->end - range->begin - size;
                *place = range->begin;
            }
        gaps->work += PLEAT__GAP_BLOCK / 8;
        if (best == 0)
            break;
    }
    gaps->work += 1 + gaps->block_count / 8;
    return best != UINT64_MAX;
}

bool pleat__gaps_part(pleat__gaps *gaps, pleat__range range, pleat__range *part)
{
    pleat__gap_at at;
    if (pleat__range_empty(range) || !pleat__gaps_from(gaps, range.begin, &at))
        return false;
    *part = pleat__gaps_get(gaps, at);
    part->begin = part->begin > range.begin ? part->begin : range.begin;
    part->end = part->end < range.end ? part->end : range.end;
    return !pleat__range_empty(*part);
}

bool pleat__gaps_holds(pleat__gaps *gaps, pleat__range range)
{
    pleat__gap_at at;
    return pleat__range_empty(range) || find(gaps, range, &at);
}

static bool audit_block(const pleat__gaps *gaps, uint32_t b, uint64_t *last)
{
    const pleat__gap_block *block = &gaps->blocks[b];
    const pleat__range *ranges = ranges_of(gaps, b);
    uint64_t largest = 0;
    for (uint32_t i = 0; i < block->count; i++) {
        bool first = b == 0 && i == 0;
        if (ranges[i].begin >= ranges[i].end || (!first && ranges[i].begin <= *last)) {
            fprintf(stderr, "gaps: range %llu..%llu follows %llu\n",
                    (unsigned long long)ranges[i].begin, (unsigned long long)ranges[i].end,
                    (unsigned long long)*last);
            return false;
        }
        *last = ranges[i].end;
        if (ranges[i].end - ranges[i].begin > largest)
            largest = ranges[i].end - ranges[i].begin;
    }
    if (block->count == 0 || block->first != ranges[0].begin || block->largest != largest) {
        fprintf(stderr, "gaps: block %u says first %llu, largest %llu; has %llu, %llu\n", b,
                (unsigned long long)block->first, (unsigned long long)block->largest,
                (unsigned long long)ranges[0].begin, (unsigned long long)largest);
        return false;
    }
    return true;
}

bool pleat__gaps_audit(const pleat__gaps *gaps)
{
    uint64_t last = 0;
    for (uint32_t b = 0; b < gaps->block_count; b++)
        if (!audit_block(gaps, b, &last))
            return false;
    if (gaps->block_count + gaps->spare_count != gaps->capacity) {
        fprintf(stderr, "gaps: %u + %u of %u blocks\n", gaps->block_count, gaps->spare_count,
                gaps->capacity);
        return false;
    }
    return true;
}
