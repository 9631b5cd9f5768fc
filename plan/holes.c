/*
 * holes.c: see holes.h.
 */
#include <plan/holes.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

#define BLOCK PLEAT__HOLE_BLOCK

void pleat__holes_create(pleat__holes *holes, pleat__arena *arena)
{
    *holes = (pleat__holes){.arena = arena};
}

void pleat__holes_destroy(pleat__holes *holes)
{
    pleat__arena_free(holes->arena, holes->blocks);
    pleat__arena_free(holes->arena, holes->spares);
    pleat__arena_free(holes->arena, holes->order);
    pleat__arena_free(holes->arena, holes->first);
    pleat__arena_free(holes->arena, holes->largest);
    *holes = (pleat__holes){0};
}

static pleat_result grow_directory(pleat__holes *holes)
{
    uint32_t capacity = holes->order_capacity ? holes->order_capacity * 2 : 16;
    uint32_t *order = pleat__arena_realloc(holes->arena, holes->order, capacity * sizeof *order);
    if (order != NULL)
        holes->order = order;
    uint32_t *spares = pleat__arena_realloc(holes->arena, holes->spares, capacity * sizeof *spares);
    if (spares != NULL)
        holes->spares = spares;
    uint64_t *first = pleat__arena_realloc(holes->arena, holes->first, capacity * sizeof *first);
    if (first != NULL)
        holes->first = first;
    uint64_t *largest =
        pleat__arena_realloc(holes->arena, holes->largest, capacity * sizeof *largest);
    if (largest != NULL)
        holes->largest = largest;
    if (order == NULL || spares == NULL || first == NULL || largest == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u blocks of holes", capacity);
    holes->order_capacity = capacity;
    return PLEAT_OK;
}

/* Puts an empty block into the directory at `slot`. */
static pleat_result add_block(pleat__holes *holes, uint32_t slot)
{
    if (holes->order_count == holes->order_capacity)
        PLEAT_TRY(grow_directory(holes));
    uint32_t block;
    if (holes->spare_count > 0) {
        block = holes->spares[--holes->spare_count];
    } else {
        PLEAT_TRY(pleat__arena_grow(holes->arena, &holes->blocks, &holes->block_capacity,
                                    holes->block_count, sizeof *holes->blocks));
        block = holes->block_count++;
    }
    uint32_t behind = holes->order_count - slot;
    memmove(holes->order + slot + 1, holes->order + slot, behind * sizeof *holes->order);
    memmove(holes->first + slot + 1, holes->first + slot, behind * sizeof *holes->first);
    memmove(holes->largest + slot + 1, holes->largest + slot, behind * sizeof *holes->largest);
    holes->order[slot] = block;
    holes->blocks[block].count = 0;
    holes->order_count++;
    holes->work += behind / 16;
    return PLEAT_OK;
}

static void remove_block(pleat__holes *holes, uint32_t slot)
{
    holes->spares[holes->spare_count++] = holes->order[slot];
    uint32_t behind = holes->order_count - slot - 1;
    memmove(holes->order + slot, holes->order + slot + 1, behind * sizeof *holes->order);
    memmove(holes->first + slot, holes->first + slot + 1, behind * sizeof *holes->first);
    memmove(holes->largest + slot, holes->largest + slot + 1, behind * sizeof *holes->largest);
    holes->order_count--;
    holes->work += behind / 16;
}

static void refresh(pleat__holes *holes, uint32_t slot)
{
    const pleat__hole_block *block = &holes->blocks[holes->order[slot]];
    uint64_t largest = 0;
    for (uint32_t i = 0; i < block->count; i++)
        largest = block->size[i] > largest ? block->size[i] : largest;
    holes->largest[slot] = largest;
    holes->first[slot] = block->begin[0];
}

/* The block that holds, or would hold, an address: the last that begins at or below it. */
static uint32_t slot_of(const pleat__holes *holes, uint64_t address)
{
    uint32_t low = 0, high = holes->order_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (holes->first[middle] <= address)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The number of holes of the block that begin at or below `address`. */
static uint32_t count_below(const pleat__hole_block *block, uint64_t address)
{
    uint32_t low = 0, high = block->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (block->begin[middle] <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void open_gap(pleat__hole_block *block, uint32_t index)
{
    memmove(block->begin + index + 1, block->begin + index,
            (block->count - index) * sizeof *block->begin);
    memmove(block->size + index + 1, block->size + index,
            (block->count - index) * sizeof *block->size);
    block->count++;
}

static void close_gap(pleat__hole_block *block, uint32_t index)
{
    block->count--;
    memmove(block->begin + index, block->begin + index + 1,
            (block->count - index) * sizeof *block->begin);
    memmove(block->size + index, block->size + index + 1,
            (block->count - index) * sizeof *block->size);
}

static pleat_result split_block(pleat__holes *holes, uint32_t slot)
{
    PLEAT_TRY(add_block(holes, slot + 1));
    pleat__hole_block *lower = &holes->blocks[holes->order[slot]];
    pleat__hole_block *upper = &holes->blocks[holes->order[slot + 1]];
    uint32_t keep = BLOCK / 2;
    upper->count = lower->count - keep;
    memcpy(upper->begin, lower->begin + keep, upper->count * sizeof *upper->begin);
    memcpy(upper->size, lower->size + keep, upper->count * sizeof *upper->size);
    lower->count = keep;
    refresh(holes, slot);
    refresh(holes, slot + 1);
    return PLEAT_OK;
}

static pleat_result insert(pleat__holes *holes, uint64_t begin, uint64_t size)
{
    uint32_t slot = slot_of(holes, begin);
    if (holes->blocks[holes->order[slot]].count == BLOCK) {
        PLEAT_TRY(split_block(holes, slot));
        slot = slot_of(holes, begin);
    }
    pleat__hole_block *block = &holes->blocks[holes->order[slot]];
    uint32_t index = count_below(block, begin);
    open_gap(block, index);
    block->begin[index] = begin;
    block->size[index] = size;
    if (size > holes->largest[slot] || block->count == 1)
        holes->largest[slot] = size;
    holes->first[slot] = block->begin[0];
    return PLEAT_OK;
}

static void erase(pleat__holes *holes, uint32_t slot, uint32_t index)
{
    pleat__hole_block *block = &holes->blocks[holes->order[slot]];
    uint64_t size = block->size[index];
    close_gap(block, index);
    if (block->count == 0 && holes->order_count > 1) {
        remove_block(holes, slot);
        return;
    }
    if (size == holes->largest[slot])
        refresh(holes, slot);
    else
        holes->first[slot] = block->begin[0];
}

static void resize(pleat__holes *holes, uint32_t slot, uint32_t index, uint64_t begin,
                   uint64_t size)
{
    pleat__hole_block *block = &holes->blocks[holes->order[slot]];
    uint64_t before = block->size[index];
    block->begin[index] = begin;
    block->size[index] = size;
    if (before == holes->largest[slot] && size < before)
        refresh(holes, slot);
    else if (size > holes->largest[slot])
        holes->largest[slot] = size;
    holes->first[slot] = block->begin[0];
}

pleat_result pleat__holes_reset(pleat__holes *holes, const pleat__range *ranges, uint32_t count)
{
    holes->block_count = 0;
    holes->spare_count = 0;
    holes->order_count = 0;
    PLEAT_TRY(add_block(holes, 0));
    holes->first[0] = 0;
    holes->largest[0] = 0;
    for (uint32_t i = 0; i < count; i++)
        PLEAT_TRY(insert(holes, ranges[i].begin, pleat__range_size(ranges[i])));
    return PLEAT_OK;
}

static pleat__hole hole_at(const pleat__holes *holes, uint32_t slot, uint32_t index)
{
    const pleat__hole_block *block = &holes->blocks[holes->order[slot]];
    return (pleat__hole){slot, index, block->begin[index], block->size[index]};
}

pleat__hole pleat__holes_lowest(pleat__holes *holes, uint64_t size)
{
    uint32_t slot = 0, index = 0;
    while (holes->largest[slot] < size)
        slot++;
    const pleat__hole_block *block = &holes->blocks[holes->order[slot]];
    while (block->size[index] < size)
        index++;
    holes->work += 2 + slot / 8 + index / 8;
    return hole_at(holes, slot, index);
}

pleat__hole pleat__holes_tightest(pleat__holes *holes, uint64_t size, uint64_t cap)
{
    pleat__hole best = {.slot = PLEAT__NO_HOLE, .size = UINT64_MAX};
    uint32_t slot = 0;
    for (; slot < holes->order_count && holes->first[slot] < cap; slot++) {
        if (holes->largest[slot] < size)
            continue;
        const pleat__hole_block *block = &holes->blocks[holes->order[slot]];
        for (uint32_t i = 0; i < block->count && block->begin[i] < cap; i++)
            if (block->size[i] >= size && block->size[i] < best.size)
                best = hole_at(holes, slot, i);
        holes->work += block->count / 8;
        if (best.size == size)
            break;
    }
    holes->work += 2 + slot / 8;
    return best.slot != PLEAT__NO_HOLE ? best : pleat__holes_lowest(holes, size);
}

uint64_t pleat__holes_highest(pleat__holes *holes, uint64_t size, uint64_t cap)
{
    if (size > cap)
        return UINT64_MAX;
    holes->work += 2;
    for (uint32_t slot = slot_of(holes, cap - size) + 1; slot-- > 0;) {
        holes->work++;
        if (holes->largest[slot] < size)
            continue;
        const pleat__hole_block *block = &holes->blocks[holes->order[slot]];
        for (uint32_t i = block->count; i-- > 0;) {
            if (block->size[i] < size || block->begin[i] > cap - size)
                continue;
            uint64_t room = cap - block->begin[i];
            return block->begin[i] + (block->size[i] < room ? block->size[i] : room) - size;
        }
        holes->work += block->count / 8;
    }
    return UINT64_MAX;
}

pleat__hole pleat__holes_begin(const pleat__holes *holes)
{
    return hole_at(holes, 0, 0);
}

pleat__hole pleat__holes_next(const pleat__holes *holes, pleat__hole hole)
{
    if (hole.index + 1 < holes->blocks[holes->order[hole.slot]].count)
        return hole_at(holes, hole.slot, hole.index + 1);
    if (hole.slot + 1 < holes->order_count)
        return hole_at(holes, hole.slot + 1, 0);
    return (pleat__hole){.slot = PLEAT__NO_HOLE};
}

pleat_result pleat__holes_take(pleat__holes *holes, uint64_t begin, uint64_t size, bool *taken)
{
    uint32_t slot = slot_of(holes, begin);
    pleat__hole_block *block = &holes->blocks[holes->order[slot]];
    uint32_t index = count_below(block, begin);
    holes->work += 3;
    *taken = index-- > 0 && block->size[index] >= size &&
             begin - block->begin[index] <= block->size[index] - size;
    if (!*taken)
        return PLEAT_OK;
    uint64_t before = begin - block->begin[index];
    uint64_t behind = block->size[index] - before - size;
    if (before == 0 && behind == 0) {
        erase(holes, slot, index);
        return PLEAT_OK;
    }
    if (before == 0) {
        resize(holes, slot, index, begin + size, behind);
        return PLEAT_OK;
    }
    resize(holes, slot, index, begin - before, before);
    return behind == 0 ? PLEAT_OK : insert(holes, begin + size, behind);
}

pleat_result pleat__holes_give(pleat__holes *holes, uint64_t begin, uint64_t size)
{
    uint64_t end = begin + size;
    uint32_t slot = slot_of(holes, begin);
    pleat__hole_block *block = &holes->blocks[holes->order[slot]];
    uint32_t index = count_below(block, begin);
    holes->work += 3;
    bool joins_before = index > 0 && block->begin[index - 1] + block->size[index - 1] == begin;
    uint32_t next_slot = slot, next_index = index;
    if (index == block->count && slot + 1 < holes->order_count) {
        next_slot = slot + 1;
        next_index = 0;
    }
    const pleat__hole_block *next = &holes->blocks[holes->order[next_slot]];
    bool joins_behind = next_index < next->count && next->begin[next_index] == end;
    PLEAT_ASSERT(index == 0 || block->begin[index - 1] + block->size[index - 1] <= begin);
    uint64_t next_size = joins_behind ? next->size[next_index] : 0;
    if (joins_before && joins_behind) {
        uint64_t joined = block->begin[index - 1];
        uint64_t whole = block->size[index - 1] + size + next_size;
        erase(holes, next_slot, next_index);
        resize(holes, slot, index - 1, joined, whole);
        return PLEAT_OK;
    }
    if (joins_before) {
        resize(holes, slot, index - 1, block->begin[index - 1], block->size[index - 1] + size);
        return PLEAT_OK;
    }
    if (joins_behind) {
        resize(holes, next_slot, next_index, begin, size + next_size);
        return PLEAT_OK;
    }
    return insert(holes, begin, size);
}
