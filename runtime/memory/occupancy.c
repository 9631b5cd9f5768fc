/*
 * occupancy.c: the free check. Whole chunks are judged by their counter, so that a tensor of many
 * chunks costs one word a chunk; only the edges look at bits. The check comes first and the change
 * after it, so that a refusal leaves nothing to undo.
 */
#include <runtime/memory/occupancy.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <stdio.h>
#include <string.h>

pleat_result pleat__occupancy_init(pleat__occupancy *occupancy, pleat__arena *arena,
                                   uint64_t chunk_bytes, uint32_t most)
{
    uint64_t full = chunk_bytes >> PLEAT__GRANULE_SHIFT;
    if ((full & (full - 1)) != 0 || full < 64 || full > 64 * 64)
        return pleat__fail(PLEAT_E_UNSUPPORTED, "chunks of %llu bytes cannot be accounted for",
                           (unsigned long long)chunk_bytes);
    *occupancy = (pleat__occupancy){
        .arena = arena,
        .shift = (uint32_t)__builtin_ctzll(full),
        .full = (uint32_t)full,
        .words = (uint32_t)(full / 64),
        .most = most,
    };
    occupancy->used = pleat__arena_calloc_sparse(arena, most, sizeof *occupancy->used);
    occupancy->masks = pleat__arena_calloc_sparse(arena, most, sizeof *occupancy->masks);
    occupancy->rows =
        pleat__arena_calloc_sparse(arena, most, occupancy->words * sizeof *occupancy->rows);
    if (occupancy->used != NULL && occupancy->masks != NULL && occupancy->rows != NULL)
        return PLEAT_OK;
    pleat__occupancy_release(occupancy);
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to account for %u chunks", most);
}

void pleat__occupancy_release(pleat__occupancy *occupancy)
{
    pleat__arena_free(occupancy->arena, occupancy->used);
    pleat__arena_free(occupancy->arena, occupancy->masks);
    pleat__arena_free(occupancy->arena, occupancy->rows);
    *occupancy = (pleat__occupancy){0};
}

pleat_result pleat__occupancy_grow(pleat__occupancy *occupancy, uint32_t chunks)
{
    if (chunks <= occupancy->chunks)
        return PLEAT_OK;
    if (chunks > occupancy->most || chunks > UINT32_MAX >> occupancy->shift)
        return pleat__fail(PLEAT_E_LIMIT, "%u chunks are more than can be accounted for", chunks);
    /* They are 0 already, but a page that is read before it is written costs two faults. */
    uint32_t first = occupancy->chunks, count = chunks - first;
    memset(occupancy->used + first, 0, count * sizeof *occupancy->used);
    memset(occupancy->masks + first, 0, count * sizeof *occupancy->masks);
    occupancy->chunks = chunks;
    return PLEAT_OK;
}

/* A row of zeros for a chunk that comes to be in use in part: the one given back last, which the
 * processor still has. There is one for each chunk. */
static inline uint64_t *take_row(pleat__occupancy *occupancy)
{
    uint64_t *row = occupancy->free_row;
    if (row == NULL)
        row = occupancy->rows + (size_t)occupancy->rows_used++ * occupancy->words;
    else
        occupancy->free_row = (uint64_t *)(uintptr_t)row[0];
    row[0] = 0;
    return row;
}

/* pre: all of it is 0. */
static inline void give_row(pleat__occupancy *occupancy, uint64_t *row)
{
    row[0] = (uintptr_t)occupancy->free_row;
    occupancy->free_row = row;
}

/* A part of a chunk as words: those covered wholly, and those of its two ends, as masks. An end
 * that there is not has the other one's word, and no granule of it. */
typedef struct part {
    uint64_t whole, ends;
    uint64_t head, tail;  /* granules of the ends' words */
    uint32_t first, last; /* those words */
    uint32_t count;       /* granules; 0: no part */
} part;

/* From a granule on to the chunk's end. */
static inline part part_behind(const pleat__occupancy *occupancy, uint32_t offset)
{
    uint32_t first = offset / 64;
    part p = {.count = occupancy->full - offset, .first = first, .last = first};
    p.whole = ~UINT64_C(0) >> (64 - occupancy->words) & ~UINT64_C(0) << first;
    if (offset % 64 != 0) {
        p.head = ~UINT64_C(0) << offset % 64;
        p.ends = UINT64_C(1) << first;
        p.whole ^= p.ends;
    }
    return p;
}

/* The chunk's first granules. */
static inline part part_before(uint32_t count)
{
    uint32_t last = count / 64;
    part p = {.count = count, .first = last, .last = last};
    p.whole = (UINT64_C(1) << last) - 1;
    p.tail = (UINT64_C(1) << count % 64) - 1;
    p.ends = (uint64_t)(p.tail != 0) << last;
    return p;
}

/* pre: it does not reach the chunk's end. */
static inline part part_within(uint32_t offset, uint32_t count)
{
    uint32_t first = offset / 64, last = (offset + count) / 64;
    uint64_t head = ~UINT64_C(0) << offset % 64;
    part p = part_before(offset + count);
    p.count = count;
    p.first = first;
    if (first == last) {
        p.whole = 0;
        p.tail &= head;
        return p;
    }
    p.whole &= ~UINT64_C(0) << first;
    if (offset % 64 == 0) {
        p.first = last;
        return p;
    }
    p.head = head;
    p.whole ^= UINT64_C(1) << first;
    p.ends |= UINT64_C(1) << first;
    p.last = p.tail != 0 ? last : first;
    return p;
}

/* The granules of one word of a chunk that are in use. */
static inline uint64_t word_of(const pleat__chunk_words *masks, uint32_t word)
{
    if (masks->whole >> word & 1)
        return ~UINT64_C(0);
    return masks->part >> word & 1 ? masks->row[word] : 0;
}

static inline bool part_is_free(const pleat__occupancy *occupancy, uint32_t chunk, const part *p)
{
    uint32_t used = occupancy->used[chunk];
    if (used == 0)
        return true;
    if (used + p->count > occupancy->full)
        return false;
    const pleat__chunk_words *masks = &occupancy->masks[chunk];
    if (((masks->whole & (p->whole | p->ends)) | (masks->part & p->whole)) != 0)
        return false;
    return (masks->part & p->ends) == 0 ||
           ((masks->row[p->first] & p->head) | (masks->row[p->last] & p->tail)) == 0;
}

/* What follows is taken, or is given back. */

static inline void take_part(pleat__occupancy *occupancy, uint32_t chunk, const part *p)
{
    pleat__chunk_words *masks = &occupancy->masks[chunk];
    occupancy->used[chunk] = (uint16_t)(occupancy->used[chunk] + p->count);
    PLEAT_ASSERT((masks->whole & p->whole) == 0);
    masks->whole |= p->whole;
    if (p->ends == 0)
        return;
    if (masks->part == 0)
        masks->row = take_row(occupancy);
    PLEAT_ASSERT(((masks->row[p->first] & p->head) | (masks->row[p->last] & p->tail)) == 0);
    masks->part |= p->ends;
    masks->row[p->first] |= p->head;
    masks->row[p->last] |= p->tail;
}

static inline void give_part(pleat__occupancy *occupancy, uint32_t chunk, const part *p)
{
    pleat__chunk_words *masks = &occupancy->masks[chunk];
    occupancy->used[chunk] = (uint16_t)(occupancy->used[chunk] - p->count);
    PLEAT_ASSERT((masks->whole & p->whole) == p->whole);
    masks->whole &= ~p->whole;
    if (p->ends == 0)
        return;
    uint64_t *row = masks->row;
    PLEAT_ASSERT((row[p->first] & p->head) == p->head && (row[p->last] & p->tail) == p->tail);
    uint64_t head = row[p->first] &= ~p->head, tail = row[p->last] &= ~p->tail;
    masks->part &= ~((uint64_t)(head == 0) << p->first | (uint64_t)(tail == 0) << p->last);
    if (masks->part == 0)
        give_row(occupancy, row);
}

/* How a run that reaches a chunk's end lies: parts of the first chunk and of the last, and whole
 * ones between. */
typedef struct cut {
    uint32_t whole, whole_end;
    part head, tail; /* the head's chunk is the one before `whole`, the tail's is `whole_end` */
} cut;

/* Where a run begins in its chunk. */
static inline uint32_t offset_of(const pleat__occupancy *occupancy, pleat__run run)
{
    return run.begin & (occupancy->full - 1);
}

static inline bool is_within(const pleat__occupancy *occupancy, pleat__run run)
{
    return offset_of(occupancy, run) + run.count < occupancy->full;
}

static inline cut cut_of(const pleat__occupancy *occupancy, pleat__run run)
{
    uint32_t end = run.begin + run.count, offset = offset_of(occupancy, run);
    uint32_t over = end & (occupancy->full - 1);
    cut c = {.whole = run.begin >> occupancy->shift, .whole_end = end >> occupancy->shift};
    if (offset != 0) {
        c.head = part_behind(occupancy, offset);
        c.whole++;
    }
    if (over != 0)
        c.tail = part_before(over);
    return c;
}

static inline bool cut_is_free(const pleat__occupancy *occupancy, const cut *c)
{
    if (c->head.count != 0 && !part_is_free(occupancy, c->whole - 1, &c->head))
        return false;
    if (c->tail.count != 0 && !part_is_free(occupancy, c->whole_end, &c->tail))
        return false;
    uint16_t any = 0;
    for (uint32_t chunk = c->whole; chunk < c->whole_end; chunk++)
        any |= occupancy->used[chunk];
    return any == 0;
}

bool pleat__occupancy_is_free(const pleat__occupancy *occupancy, pleat__run run)
{
    if (run.count == 0)
        return true;
    if (is_within(occupancy, run)) {
        part p = part_within(offset_of(occupancy, run), run.count);
        return part_is_free(occupancy, run.begin >> occupancy->shift, &p);
    }
    cut c = cut_of(occupancy, run);
    return cut_is_free(occupancy, &c);
}

bool pleat__occupancy_take(pleat__occupancy *occupancy, pleat__run run)
{
    if (run.count == 0)
        return true;
    if (is_within(occupancy, run)) {
        uint32_t chunk = run.begin >> occupancy->shift;
        part p = part_within(offset_of(occupancy, run), run.count);
        if (!part_is_free(occupancy, chunk, &p))
            return false;
        take_part(occupancy, chunk, &p);
        return true;
    }
    cut c = cut_of(occupancy, run);
    if (!cut_is_free(occupancy, &c))
        return false;
    if (c.head.count != 0)
        take_part(occupancy, c.whole - 1, &c.head);
    for (uint32_t chunk = c.whole; chunk < c.whole_end; chunk++)
        occupancy->used[chunk] = (uint16_t)occupancy->full;
    if (c.tail.count != 0)
        take_part(occupancy, c.whole_end, &c.tail);
    return true;
}

void pleat__occupancy_give(pleat__occupancy *occupancy, pleat__run run)
{
    if (run.count == 0)
        return;
    if (is_within(occupancy, run)) {
        part p = part_within(offset_of(occupancy, run), run.count);
        give_part(occupancy, run.begin >> occupancy->shift, &p);
        return;
    }
    cut c = cut_of(occupancy, run);
    if (c.head.count != 0)
        give_part(occupancy, c.whole - 1, &c.head);
    for (uint32_t chunk = c.whole; chunk < c.whole_end; chunk++) {
        PLEAT_ASSERT(occupancy->used[chunk] == occupancy->full);
        occupancy->used[chunk] = 0;
    }
    if (c.tail.count != 0)
        give_part(occupancy, c.whole_end, &c.tail);
}

/* The same within a chunk: granules [offset, offset + count) of it. */
static uint32_t part_free_tail(const pleat__occupancy *occupancy, uint32_t chunk, uint32_t offset,
                               uint32_t count)
{
    if (occupancy->used[chunk] == 0)
        return count;
    if (occupancy->used[chunk] == occupancy->full)
        return 0;
    const pleat__chunk_words *masks = &occupancy->masks[chunk];
    for (uint32_t at = offset + count; at > offset;) {
        uint32_t word = (at - 1) / 64;
        uint64_t bits = word_of(masks, word) << (63 - (at - 1) % 64);
        uint32_t in_word = at - word * 64;
        if (bits != 0) {
            uint32_t tail = (uint32_t)__builtin_clzll(bits) + (offset + count - at);
            return tail < count ? tail : count;
        }
        at -= in_word < at - offset ? in_word : at - offset;
    }
    return count;
}

uint32_t pleat__occupancy_free_tail(const pleat__occupancy *occupancy, pleat__run run)
{
    uint32_t tail = 0;
    while (tail < run.count) {
        uint32_t end = run.begin + run.count - tail, chunk = (end - 1) >> occupancy->shift;
        uint32_t first = chunk << occupancy->shift, left = run.count - tail;
        uint32_t count = end - first < left ? end - first : left;
        uint32_t found = part_free_tail(occupancy, chunk, end - count - first, count);
        tail += found;
        if (found < count)
            break;
    }
    return tail;
}

uint32_t pleat__occupancy_head(const pleat__occupancy *occupancy, uint32_t chunk)
{
    const pleat__chunk_words *masks = &occupancy->masks[chunk];
    uint64_t busy = masks->whole | masks->part;
    if (busy == 0)
        return occupancy->used[chunk] == 0 ? occupancy->full : 0;
    uint32_t word = (uint32_t)__builtin_ctzll(busy);
    return 64 * word + (uint32_t)__builtin_ctzll(word_of(masks, word));
}

/* The first granule from `from` on of a chunk in part that is in use, or is not; full when none.
 * Only words that may hold one are looked at. */
static uint32_t next_bit(const pleat__occupancy *occupancy, uint32_t chunk, uint32_t from,
                         bool in_use)
{
    const pleat__chunk_words *masks = &occupancy->masks[chunk];
    if (from == occupancy->full)
        return from;
    uint64_t words = in_use ? masks->whole | masks->part : ~masks->whole;
    uint64_t bits = ~UINT64_C(0) << from % 64;
    for (words &= ~UINT64_C(0) << from / 64; words != 0; words &= words - 1) {
        uint32_t w = (uint32_t)__builtin_ctzll(words);
        if (w >= occupancy->words)
            break;
        uint64_t word = word_of(masks, w);
        word = (in_use ? word : ~word) & (w == from / 64 ? bits : ~UINT64_C(0));
        if (word != 0)
            return 64 * w + (uint32_t)__builtin_ctzll(word);
    }
    return occupancy->full;
}

typedef struct free_walk {
    pleat__occupancy_visit visit;
    void *context;
    pleat__run run; /* not yet visited */
} free_walk;

static pleat_result walk_flush(free_walk *walk)
{
    pleat__run run = walk->run;
    walk->run = (pleat__run){0};
    return run.count == 0 ? PLEAT_OK : walk->visit(walk->context, run);
}

static pleat_result walk_add(free_walk *walk, uint32_t begin, uint32_t count)
{
    if (walk->run.count != 0 && walk->run.begin + walk->run.count == begin) {
        walk->run.count += count;
        return PLEAT_OK;
    }
    PLEAT_TRY(walk_flush(walk));
    walk->run = (pleat__run){begin, count};
    return PLEAT_OK;
}

static pleat_result walk_part(free_walk *walk, const pleat__occupancy *occupancy, uint32_t chunk)
{
    uint32_t base = chunk << occupancy->shift;
    for (uint32_t at = 0; at < occupancy->full;) {
        uint32_t begin = next_bit(occupancy, chunk, at, false);
        at = next_bit(occupancy, chunk, begin, true);
        if (at > begin)
            PLEAT_TRY(walk_add(walk, base + begin, at - begin));
    }
    return PLEAT_OK;
}

/* The first of the chunks [next, last) that has another count than so many granules in use, or that
 * does not follow on the one before it. Four are looked at together: most are like their
 * neighbours. */
static uint32_t alike_end(const pleat__occupancy *occupancy, uint32_t next, uint32_t last,
                          uint16_t used, const uint8_t *breaks)
{
    uint64_t all = UINT64_C(0x0001000100010001) * used, theirs;
    uint32_t broken = 0;
    for (; next + 4 <= last; next += 4) {
        memcpy(&theirs, occupancy->used + next, sizeof theirs);
        if (breaks != NULL)
            memcpy(&broken, breaks + next, sizeof broken);
        if (theirs != all || broken != 0)
            break;
    }
    while (next < last && occupancy->used[next] == used && (breaks == NULL || !breaks[next]))
        next++;
    return next;
}

pleat_result pleat__occupancy_walk_free(const pleat__occupancy *occupancy, uint32_t first,
                                        uint32_t last, const uint8_t *breaks,
                                        pleat__occupancy_visit visit, void *context)
{
    free_walk walk = {.visit = visit, .context = context};
    for (uint32_t chunk = first, end; chunk < last; chunk = end) {
        uint16_t used = occupancy->used[chunk];
        bool in_part = used != 0 && used != occupancy->full;
        end = in_part ? chunk + 1 : alike_end(occupancy, chunk + 1, last, used, breaks);
        if (breaks != NULL && breaks[chunk])
            PLEAT_TRY(walk_flush(&walk));
        if (in_part)
            PLEAT_TRY(walk_part(&walk, occupancy, chunk));
        else if (used == 0)
            PLEAT_TRY(
                walk_add(&walk, chunk << occupancy->shift, (end - chunk) << occupancy->shift));
    }
    return walk_flush(&walk);
}

/* Whether the rows that no chunk has, in their list, are as many as were used and are none's now.
 */
static bool rows_audit(const pleat__occupancy *occupancy, uint32_t in_use)
{
    uint32_t listed = 0;
    const uint64_t *row = occupancy->free_row;
    for (; row != NULL && listed <= occupancy->rows_used; listed++)
        row = (const uint64_t *)(uintptr_t)row[0];
    if (in_use + listed == occupancy->rows_used)
        return true;
    fprintf(stderr, "pleat: of %u rows of granules chunks have %u, and %u are free\n",
            occupancy->rows_used, in_use, listed);
    return false;
}

bool pleat__occupancy_audit(const pleat__occupancy *occupancy)
{
    uint32_t rows = 0;
    for (uint32_t chunk = 0; chunk < occupancy->chunks; chunk++) {
        const pleat__chunk_words *masks = &occupancy->masks[chunk];
        uint32_t set = 64 * (uint32_t)__builtin_popcountll(masks->whole);
        uint64_t parts = 0;
        rows += masks->part != 0;
        const uint64_t *row = masks->part != 0 ? masks->row : NULL;
        for (uint32_t w = 0; row != NULL && w < occupancy->words; w++) {
            if (row[w] == 0) /* most, and a processor that is not asked for counts slowly */
                continue;
            set += (uint32_t)__builtin_popcountll(row[w]);
            parts |= UINT64_C(1) << w;
        }
        uint32_t used = occupancy->used[chunk];
        if (parts != masks->part || (parts & masks->whole) != 0 ||
            (set != used && !(used == occupancy->full && set == 0))) {
            fprintf(stderr, "pleat: chunk %u: %u granules counted, %u found\n", chunk, used, set);
            return false;
        }
    }
    return rows_audit(occupancy, rows);
}
