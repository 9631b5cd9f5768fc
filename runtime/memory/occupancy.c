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
        .free_row = PLEAT__NO_ROW,
        .most = most,
    };
    uint64_t blocks = pleat__ceil_div(most, PLEAT__ROWS);
    occupancy->used = pleat__arena_calloc_sparse(arena, most, sizeof *occupancy->used);
    occupancy->masks = pleat__arena_calloc_sparse(arena, most, sizeof *occupancy->masks);
    occupancy->rows = pleat__arena_calloc(arena, blocks, sizeof *occupancy->rows);
    if (occupancy->used != NULL && occupancy->masks != NULL && occupancy->rows != NULL)
        return PLEAT_OK;
    pleat__occupancy_release(occupancy);
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to account for %u chunks", most);
}

void pleat__occupancy_release(pleat__occupancy *occupancy)
{
    pleat__arena_free(occupancy->arena, occupancy->used);
    pleat__arena_free(occupancy->arena, occupancy->masks);
    for (uint32_t block = 0; block * PLEAT__ROWS < occupancy->chunks; block++)
        pleat__arena_free(occupancy->arena, occupancy->rows[block]);
    pleat__arena_free(occupancy->arena, occupancy->rows);
    *occupancy = (pleat__occupancy){0};
}

/* They are 0 already, but a page that is read before it is written costs two faults. */
static void clear_tables(const pleat__occupancy *occupancy, uint32_t first, uint32_t end)
{
    uint32_t count = (end < occupancy->most ? end : occupancy->most) - first;
    memset(occupancy->used + first, 0, count * sizeof *occupancy->used);
    memset(occupancy->masks + first, 0, count * sizeof *occupancy->masks);
}

/* Blocks of rows, as many as are wanted: what was made before a failure stays. */
static bool grow_rows(pleat__occupancy *occupancy, uint32_t chunks)
{
    while (occupancy->chunks < chunks) {
        uint64_t *rows = pleat__arena_calloc(occupancy->arena,
                                             (size_t)PLEAT__ROWS * occupancy->words, sizeof *rows);
        if (rows == NULL)
            return false;
        occupancy->rows[occupancy->chunks / PLEAT__ROWS] = rows;
        clear_tables(occupancy, occupancy->chunks, occupancy->chunks + PLEAT__ROWS);
        occupancy->chunks += PLEAT__ROWS;
    }
    return true;
}

pleat_result pleat__occupancy_grow(pleat__occupancy *occupancy, uint32_t chunks)
{
    if (chunks <= occupancy->chunks)
        return PLEAT_OK;
    if (chunks > occupancy->most || chunks > UINT32_MAX >> occupancy->shift)
        return pleat__fail(PLEAT_E_LIMIT, "%u chunks are more than can be accounted for", chunks);
    if (!grow_rows(occupancy, chunks))
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to account for %u chunks", chunks);
    return PLEAT_OK;
}

static inline uint64_t *row_at(const pleat__occupancy *occupancy, uint32_t row)
{
    return occupancy->rows[row / PLEAT__ROWS] + (size_t)(row % PLEAT__ROWS) * occupancy->words;
}

/* A row of zeros for a chunk that comes to be in use in part: the one given back last, which the
 * processor still has. There is one for each chunk. */
static inline uint32_t take_row(pleat__occupancy *occupancy)
{
    uint32_t row = occupancy->free_row;
    if (row == PLEAT__NO_ROW)
        return occupancy->rows_used++;
    uint64_t *words = row_at(occupancy, row);
    occupancy->free_row = (uint32_t)words[0];
    words[0] = 0;
    return row;
}

/* pre: all of it is 0. */
static inline void give_row(pleat__occupancy *occupancy, uint32_t row)
{
    row_at(occupancy, row)[0] = occupancy->free_row;
    occupancy->free_row = row;
}

/* The mask of bits [from, to) of a word, to in 1..64. */
static inline uint64_t mask_of(uint32_t from, uint32_t to)
{
    return (~UINT64_C(0) << from) & (~UINT64_C(0) >> (64 - to));
}

/* A part of a chunk as words: those covered wholly as a mask, and at most two ends. */
typedef struct part {
    uint32_t count; /* granules; 0: no part */
    uint64_t whole;
    uint32_t first, last; /* words of the ends */
    uint64_t head, tail;  /* masks in them; 0: none */
} part;

static inline part part_of(uint32_t offset, uint32_t count)
{
    uint32_t end = offset + count;
    part p = {.count = count, .first = offset / 64, .last = end / 64};
    if (p.first == p.last) {
        p.head = mask_of(offset % 64, end % 64);
        return p;
    }
    uint32_t from = p.first;
    if (offset % 64 != 0) {
        p.head = ~UINT64_C(0) << offset % 64;
        from++;
    }
    if (end % 64 != 0)
        p.tail = mask_of(0, end % 64);
    if (from < p.last)
        p.whole = mask_of(from, p.last);
    return p;
}

/* The granules of one word of a chunk that are in use. */
static inline uint64_t word_of(const pleat__occupancy *occupancy, const pleat__chunk_words *masks,
                               uint32_t word)
{
    if (masks->whole >> word & 1)
        return ~UINT64_C(0);
    return masks->part >> word & 1 ? row_at(occupancy, masks->row)[word] : 0;
}

static inline bool part_is_free(const pleat__occupancy *occupancy, uint32_t chunk, const part *p)
{
    uint32_t used = occupancy->used[chunk];
    if (used == 0)
        return true;
    if (used + p->count > occupancy->full)
        return false;
    const pleat__chunk_words *masks = &occupancy->masks[chunk];
    if (((masks->whole | masks->part) & p->whole) != 0)
        return false;
    return (p->head == 0 || (word_of(occupancy, masks, p->first) & p->head) == 0) &&
           (p->tail == 0 || (word_of(occupancy, masks, p->last) & p->tail) == 0);
}

/* What follows is taken where `in_use`, or else given back. */

static inline void change_end(pleat__chunk_words *masks, uint64_t *row, uint32_t word,
                              uint64_t mask, bool in_use)
{
    PLEAT_ASSERT((row[word] & mask) == (in_use ? 0 : mask));
    row[word] = in_use ? row[word] | mask : row[word] & ~mask;
    if (in_use)
        masks->part |= UINT64_C(1) << word;
    else if (row[word] == 0)
        masks->part &= ~(UINT64_C(1) << word);
}

static inline void change_part(pleat__occupancy *occupancy, uint32_t chunk, const part *p,
                               bool in_use)
{
    pleat__chunk_words *masks = &occupancy->masks[chunk];
    PLEAT_ASSERT((masks->whole & p->whole) == (in_use ? 0 : p->whole));
    occupancy->used[chunk] =
        (uint16_t)(occupancy->used[chunk] + (in_use ? p->count : 0 - p->count));
    masks->whole = in_use ? masks->whole | p->whole : masks->whole & ~p->whole;
    if ((p->head | p->tail) == 0)
        return;
    if (masks->part == 0)
        masks->row = take_row(occupancy);
    uint64_t *row = row_at(occupancy, masks->row);
    if (p->head != 0)
        change_end(masks, row, p->first, p->head, in_use);
    if (p->tail != 0)
        change_end(masks, row, p->last, p->tail, in_use);
    if (masks->part == 0)
        give_row(occupancy, masks->row);
}

static inline void change_whole(pleat__occupancy *occupancy, uint32_t chunk, bool in_use)
{
    PLEAT_ASSERT(occupancy->used[chunk] == (in_use ? 0 : occupancy->full));
    occupancy->used[chunk] = in_use ? (uint16_t)occupancy->full : 0;
}

/* How a run lies over chunks: parts of the first and of the last, whole chunks between. */
typedef struct cut {
    uint32_t first; /* the chunk of the head */
    uint32_t whole, whole_end;
    part head, tail; /* the tail's chunk is `whole_end` */
} cut;

static inline cut cut_of(const pleat__occupancy *occupancy, pleat__run run)
{
    uint32_t mask = occupancy->full - 1, end = run.begin + run.count;
    uint32_t offset = run.begin & mask;
    cut c = {.first = run.begin >> occupancy->shift, .whole_end = end >> occupancy->shift};
    c.whole = c.first;
    if (offset + run.count < occupancy->full) {
        c.head = part_of(offset, run.count);
        c.whole_end = c.first;
        return c;
    }
    if (offset != 0) {
        c.head = part_of(offset, occupancy->full - offset);
        c.whole++;
    }
    if ((end & mask) != 0)
        c.tail = part_of(0, end & mask);
    return c;
}

static inline bool cut_is_free(const pleat__occupancy *occupancy, const cut *c)
{
    if (c->head.count != 0 && !part_is_free(occupancy, c->first, &c->head))
        return false;
    if (c->tail.count != 0 && !part_is_free(occupancy, c->whole_end, &c->tail))
        return false;
    uint16_t any = 0;
    for (uint32_t chunk = c->whole; chunk < c->whole_end; chunk++)
        any |= occupancy->used[chunk];
    return any == 0;
}

static inline void change(pleat__occupancy *occupancy, const cut *c, bool in_use)
{
    if (c->head.count != 0)
        change_part(occupancy, c->first, &c->head, in_use);
    for (uint32_t chunk = c->whole; chunk < c->whole_end; chunk++)
        change_whole(occupancy, chunk, in_use);
    if (c->tail.count != 0)
        change_part(occupancy, c->whole_end, &c->tail, in_use);
}

bool pleat__occupancy_is_free(const pleat__occupancy *occupancy, pleat__run run)
{
    if (run.count == 0)
        return true;
    cut c = cut_of(occupancy, run);
    return cut_is_free(occupancy, &c);
}

bool pleat__occupancy_take(pleat__occupancy *occupancy, pleat__run run)
{
    if (run.count == 0)
        return true;
    cut c = cut_of(occupancy, run);
    if (!cut_is_free(occupancy, &c))
        return false;
    change(occupancy, &c, true);
    return true;
}

void pleat__occupancy_give(pleat__occupancy *occupancy, pleat__run run)
{
    if (run.count == 0)
        return;
    cut c = cut_of(occupancy, run);
    change(occupancy, &c, false);
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
        uint64_t bits = word_of(occupancy, masks, word) << (63 - (at - 1) % 64);
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
    return 64 * word + (uint32_t)__builtin_ctzll(word_of(occupancy, masks, word));
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
        uint64_t word = word_of(occupancy, masks, w);
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
    uint32_t listed = 0, row = occupancy->free_row;
    for (; row < occupancy->rows_used && listed <= occupancy->rows_used; listed++)
        row = (uint32_t)row_at(occupancy, row)[0];
    if (row == PLEAT__NO_ROW && in_use + listed == occupancy->rows_used)
        return true;
    fprintf(stderr, "pleat: of %u rows of granules chunks have %u, and %u are free\n",
            occupancy->rows_used, in_use, listed);
    return false;
}

bool pleat__occupancy_audit(const pleat__occupancy *occupancy)
{
    uint32_t rows = 0;
    for (uint32_t chunk = 0; chunk < occupancy->chunks && chunk < occupancy->most; chunk++) {
        const pleat__chunk_words *masks = &occupancy->masks[chunk];
        uint32_t set = 64 * (uint32_t)__builtin_popcountll(masks->whole);
        uint64_t parts = 0;
        rows += masks->part != 0;
        const uint64_t *row = masks->part != 0 ? row_at(occupancy, masks->row) : NULL;
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
