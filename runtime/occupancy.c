/*
 * occupancy.c: the free check. Whole chunks are judged by their counter, so that a tensor of many
 * chunks costs one word a chunk; only the edges look at bits. The check comes first and the change
 * after it, so that a refusal leaves nothing to undo.
 */
#include <runtime/occupancy.h>

#include <internal/check.h>
#include <internal/error.h>
#include <stdio.h>
#include <string.h>

pleat_result pleat__occupancy_init(pleat__occupancy *occupancy, pleat__arena *arena,
                                   uint64_t chunk_bytes, uint32_t chunks)
{
    uint64_t full = chunk_bytes >> PLEAT__GRANULE_SHIFT;
    if ((full & (full - 1)) != 0 || full < 64 || full > 1u << 24)
        return pleat__fail(PLEAT_E_UNSUPPORTED, "chunks of %llu bytes cannot be accounted for",
                           (unsigned long long)chunk_bytes);
    *occupancy = (pleat__occupancy){
        .arena = arena,
        .shift = (uint32_t)__builtin_ctzll(full),
        .full = (uint32_t)full,
        .words = (uint32_t)(full / 64),
    };
    return pleat__occupancy_grow(occupancy, chunks);
}

void pleat__occupancy_release(pleat__occupancy *occupancy)
{
    pleat__arena_free(occupancy->arena, occupancy->used);
    pleat__arena_free(occupancy->arena, occupancy->bits);
    *occupancy = (pleat__occupancy){0};
}

pleat_result pleat__occupancy_grow(pleat__occupancy *occupancy, uint32_t chunks)
{
    if (chunks <= occupancy->chunks)
        return PLEAT_OK;
    if (chunks > UINT32_MAX >> occupancy->shift)
        return pleat__fail(PLEAT_E_LIMIT, "%u chunks are more than can be accounted for", chunks);
    size_t row = occupancy->words * sizeof *occupancy->bits;
    uint32_t *used = pleat__arena_realloc(occupancy->arena, occupancy->used, chunks * sizeof *used);
    if (used == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to account for %u chunks", chunks);
    occupancy->used = used;
    uint64_t *bits = pleat__arena_realloc(occupancy->arena, occupancy->bits, chunks * row);
    if (bits == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to account for %u chunks", chunks);
    occupancy->bits = bits;
    uint32_t old = occupancy->chunks;
    memset(used + old, 0, (chunks - old) * sizeof *used);
    memset((char *)bits + old * row, 0, (chunks - old) * row);
    occupancy->chunks = chunks;
    return PLEAT_OK;
}

/* The mask of bits [from, to) of a word, to in 1..64. */
static inline uint64_t mask_of(uint32_t from, uint32_t to)
{
    return (~UINT64_C(0) << from) & (~UINT64_C(0) >> (64 - to));
}

static inline uint64_t *row_of(const pleat__occupancy *occupancy, uint32_t chunk)
{
    return occupancy->bits + (size_t)chunk * occupancy->words;
}

static inline bool part_is_free(const pleat__occupancy *occupancy, uint32_t chunk, uint32_t offset,
                                uint32_t count)
{
    uint32_t used = occupancy->used[chunk];
    if (used == 0)
        return true;
    if (used + count > occupancy->full)
        return false;
    const uint64_t *row = row_of(occupancy, chunk);
    uint32_t first = offset / 64, last = (offset + count - 1) / 64;
    uint32_t end = (offset + count - 1) % 64 + 1;
    if (first == last)
        return (row[first] & mask_of(offset % 64, end)) == 0;
    uint64_t seen = (row[first] & mask_of(offset % 64, 64)) | (row[last] & mask_of(0, end));
    for (uint32_t w = first + 1; w < last; w++)
        seen |= row[w];
    return seen == 0;
}

static inline void part_set(pleat__occupancy *occupancy, uint32_t chunk, uint32_t offset,
                            uint32_t count)
{
    uint64_t *row = row_of(occupancy, chunk);
    uint32_t first = offset / 64, last = (offset + count - 1) / 64;
    uint32_t end = (offset + count - 1) % 64 + 1;
    occupancy->used[chunk] += count;
    if (first == last) {
        row[first] |= mask_of(offset % 64, end);
        return;
    }
    row[first] |= mask_of(offset % 64, 64);
    for (uint32_t w = first + 1; w < last; w++)
        row[w] = ~UINT64_C(0);
    row[last] |= mask_of(0, end);
}

/* Is every bit of the part set? */
static bool part_is_set(const pleat__occupancy *occupancy, uint32_t chunk, uint32_t offset,
                        uint32_t count)
{
    const uint64_t *row = row_of(occupancy, chunk);
    for (uint32_t at = offset; at < offset + count;) {
        uint32_t end = (at | 63) + 1;
        if (end > offset + count)
            end = offset + count;
        uint64_t mask = mask_of(at % 64, (end - 1) % 64 + 1);
        if ((row[at / 64] & mask) != mask)
            return false;
        at = end;
    }
    return true;
}

static void part_clear(pleat__occupancy *occupancy, uint32_t chunk, uint32_t offset, uint32_t count)
{
    uint64_t *row = row_of(occupancy, chunk);
    uint32_t first = offset / 64, last = (offset + count - 1) / 64;
    uint32_t end = (offset + count - 1) % 64 + 1;
    /* A whole chunk has no bits; one that is given in part gets them first. A chunk that parts
     * filled has them all already. */
    if (occupancy->used[chunk] == occupancy->full && row[first] == 0)
        memset(row, 0xff, occupancy->words * sizeof *row);
    PLEAT_ASSERT(part_is_set(occupancy, chunk, offset, count));
    occupancy->used[chunk] -= count;
    if (first == last) {
        row[first] &= ~mask_of(offset % 64, end);
        return;
    }
    row[first] &= ~mask_of(offset % 64, 64);
    for (uint32_t w = first + 1; w < last; w++)
        row[w] = 0;
    row[last] &= ~mask_of(0, end);
}

static inline void whole_clear(pleat__occupancy *occupancy, uint32_t chunk)
{
    PLEAT_ASSERT(occupancy->used[chunk] == occupancy->full);
    /* Either no bit or all: parts may have filled it and be given back together. */
    uint64_t *row = row_of(occupancy, chunk);
    if (row[0] != 0)
        memset(row, 0, occupancy->words * sizeof *row);
    occupancy->used[chunk] = 0;
}

/* How a run lies over chunks: a head and a tail in part, whole chunks between. */
typedef struct cut {
    uint32_t first, head_offset, head; /* head of 0: none */
    uint32_t whole, whole_end;
    uint32_t tail;
} cut;

static inline cut cut_of(const pleat__occupancy *occupancy, pleat__extent run)
{
    uint32_t mask = occupancy->full - 1, end = run.begin + run.count;
    cut c = {.first = run.begin >> occupancy->shift, .head_offset = run.begin & mask};
    c.whole = c.first;
    c.whole_end = end >> occupancy->shift;
    c.tail = end & mask;
    if (c.head_offset != 0) {
        c.head = occupancy->full - c.head_offset;
        c.whole++;
    }
    return c;
}

static inline bool within_one(const pleat__occupancy *occupancy, pleat__extent run)
{
    return (run.begin & (occupancy->full - 1)) + run.count <= occupancy->full &&
           run.count != occupancy->full;
}

bool pleat__occupancy_is_free(const pleat__occupancy *occupancy, pleat__extent run)
{
    if (run.count == 0)
        return true;
    if (within_one(occupancy, run))
        return part_is_free(occupancy, run.begin >> occupancy->shift,
                            run.begin & (occupancy->full - 1), run.count);
    cut c = cut_of(occupancy, run);
    if (c.head != 0 && !part_is_free(occupancy, c.first, c.head_offset, c.head))
        return false;
    if (c.tail != 0 && !part_is_free(occupancy, c.whole_end, 0, c.tail))
        return false;
    uint32_t any = 0;
    for (uint32_t chunk = c.whole; chunk < c.whole_end; chunk++)
        any |= occupancy->used[chunk];
    return any == 0;
}

static inline void run_set(pleat__occupancy *occupancy, pleat__extent run)
{
    if (run.count == 0)
        return;
    if (within_one(occupancy, run)) {
        part_set(occupancy, run.begin >> occupancy->shift, run.begin & (occupancy->full - 1),
                 run.count);
        return;
    }
    cut c = cut_of(occupancy, run);
    if (c.head != 0)
        part_set(occupancy, c.first, c.head_offset, c.head);
    for (uint32_t chunk = c.whole; chunk < c.whole_end; chunk++)
        occupancy->used[chunk] = occupancy->full;
    if (c.tail != 0)
        part_set(occupancy, c.whole_end, 0, c.tail);
}

bool pleat__occupancy_take(pleat__occupancy *occupancy, pleat__extent run)
{
    if (!pleat__occupancy_is_free(occupancy, run))
        return false;
    run_set(occupancy, run);
    return true;
}

void pleat__occupancy_give(pleat__occupancy *occupancy, pleat__extent run)
{
    if (run.count == 0)
        return;
    if (within_one(occupancy, run)) {
        part_clear(occupancy, run.begin >> occupancy->shift, run.begin & (occupancy->full - 1),
                   run.count);
        return;
    }
    cut c = cut_of(occupancy, run);
    if (c.head != 0)
        part_clear(occupancy, c.first, c.head_offset, c.head);
    for (uint32_t chunk = c.whole; chunk < c.whole_end; chunk++)
        whole_clear(occupancy, chunk);
    if (c.tail != 0)
        part_clear(occupancy, c.whole_end, 0, c.tail);
}

bool pleat__occupancy_take_all(pleat__occupancy *occupancy, const pleat__extent *runs,
                               uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!pleat__occupancy_is_free(occupancy, runs[i]))
            return false;
    for (uint32_t i = 0; i < count; i++)
        run_set(occupancy, runs[i]);
    return true;
}

void pleat__occupancy_give_all(pleat__occupancy *occupancy, const pleat__extent *runs,
                               uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        pleat__occupancy_give(occupancy, runs[i]);
}

/* The first granule of [from, full) of a chunk in part whose bit is `set`; full when none is. */
static uint32_t next_bit(const uint64_t *row, uint32_t from, uint32_t full, bool set)
{
    while (from < full) {
        uint64_t word = (set ? row[from / 64] : ~row[from / 64]) & (~UINT64_C(0) << from % 64);
        if (word != 0)
            return (from & ~63u) + (uint32_t)__builtin_ctzll(word);
        from = (from | 63) + 1;
    }
    return full;
}

typedef struct free_walk {
    pleat__occupancy_visit visit;
    void *context;
    pleat__extent run; /* not yet visited */
} free_walk;

static pleat_result walk_flush(free_walk *walk)
{
    pleat__extent run = walk->run;
    walk->run = (pleat__extent){0};
    return run.count == 0 ? PLEAT_OK : walk->visit(walk->context, run);
}

static pleat_result walk_add(free_walk *walk, uint32_t begin, uint32_t count)
{
    if (walk->run.count != 0 && walk->run.begin + walk->run.count == begin) {
        walk->run.count += count;
        return PLEAT_OK;
    }
    PLEAT_TRY(walk_flush(walk));
    walk->run = (pleat__extent){begin, count};
    return PLEAT_OK;
}

static pleat_result walk_chunk(free_walk *walk, const pleat__occupancy *occupancy, uint32_t chunk)
{
    uint32_t base = chunk << occupancy->shift;
    uint32_t used = occupancy->used[chunk];
    if (used == occupancy->full)
        return PLEAT_OK;
    if (used == 0)
        return walk_add(walk, base, occupancy->full);
    const uint64_t *row = row_of(occupancy, chunk);
    for (uint32_t at = 0; at < occupancy->full;) {
        uint32_t begin = next_bit(row, at, occupancy->full, false);
        at = next_bit(row, begin, occupancy->full, true);
        if (at > begin)
            PLEAT_TRY(walk_add(walk, base + begin, at - begin));
    }
    return PLEAT_OK;
}

pleat_result pleat__occupancy_walk_free(const pleat__occupancy *occupancy, uint32_t first,
                                        uint32_t last, const uint8_t *breaks,
                                        pleat__occupancy_visit visit, void *context)
{
    free_walk walk = {.visit = visit, .context = context};
    for (uint32_t chunk = first; chunk < last; chunk++) {
        if (breaks != NULL && breaks[chunk])
            PLEAT_TRY(walk_flush(&walk));
        PLEAT_TRY(walk_chunk(&walk, occupancy, chunk));
    }
    return walk_flush(&walk);
}

bool pleat__occupancy_audit(const pleat__occupancy *occupancy)
{
    for (uint32_t chunk = 0; chunk < occupancy->chunks; chunk++) {
        const uint64_t *row = row_of(occupancy, chunk);
        uint32_t set = 0;
        for (uint32_t w = 0; w < occupancy->words; w++)
            set += (uint32_t)__builtin_popcountll(row[w]);
        uint32_t used = occupancy->used[chunk];
        if (set != used && !(used == occupancy->full && set == 0)) {
            fprintf(stderr, "pleat: chunk %u: %u granules counted, %u bits set\n", chunk, used,
                    set);
            return false;
        }
    }
    return true;
}
