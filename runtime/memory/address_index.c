/*
 * address_index.c: rows of bits under a set of pages (see address_index.h).
 */
#include <runtime/memory/address_index.h>
#include <runtime/memory/occupancy.h>

#include <internal/error.h>
#include <internal/range.h>

#define PAGE_SHIFT 21u /* a row's addresses: as large as the driver's chunks (D481) */
#define ROW_BITS   (1u << (PAGE_SHIFT - PLEAT__GRANULE_SHIFT))
#define ROW_WORDS  (ROW_BITS / 64)

typedef struct position {
    uint64_t page;
    uint32_t word;
    uint32_t bit;
} position;

static position position_of(const pleat__address_index *index, pleat_va address)
{
    uint64_t offset = address - index->base;
    uint32_t granule = (uint32_t)(offset >> PLEAT__GRANULE_SHIFT) & (ROW_BITS - 1);
    return (position){offset >> PAGE_SHIFT, granule / 64, granule % 64};
}

static pleat_va address_of(const pleat__address_index *index, position at)
{
    return index->base + (at.page << PAGE_SHIFT) +
           ((uint64_t)(at.word * 64 + at.bit) << PLEAT__GRANULE_SHIFT);
}

pleat_result pleat__address_index_create(pleat__address_index *index, pleat__arena *arena,
                                         pleat_va base, uint64_t bytes)
{
    *index = (pleat__address_index){
        .arena = arena, .base = base, .pages = pleat__ceil_div(bytes, UINT64_C(1) << PAGE_SHIFT)};
    PLEAT_TRY(pleat__bits_create(arena, index->pages, &index->begun));
    index->rows = pleat__arena_calloc(arena, index->pages, sizeof *index->rows);
    if (index->rows == NULL) {
        pleat__bits_destroy(arena, &index->begun);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the blocks of %llu pages",
                           (unsigned long long)index->pages);
    }
    return PLEAT_OK;
}

void pleat__address_index_destroy(pleat__address_index *index)
{
    if (index->rows == NULL)
        return;
    for (uint64_t page = 0; page < index->pages; page++)
        pleat__arena_free(index->arena, index->rows[page]);
    pleat__arena_free(index->arena, index->rows);
    pleat__bits_destroy(index->arena, &index->begun);
    *index = (pleat__address_index){0};
}

pleat_result pleat__address_index_add(pleat__address_index *index, pleat_va address)
{
    position at = position_of(index, address);
    uint64_t *row = index->rows[at.page];
    if (row == NULL) {
        row = pleat__arena_calloc(index->arena, ROW_WORDS, sizeof *row);
        if (row == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the blocks of a page");
        index->rows[at.page] = row;
    }
    row[at.word] |= UINT64_C(1) << at.bit;
    pleat__bits_set(&index->begun, at.page);
    return PLEAT_OK;
}

void pleat__address_index_remove(pleat__address_index *index, pleat_va address)
{
    position at = position_of(index, address);
    uint64_t *row = index->rows[at.page];
    row[at.word] &= ~(UINT64_C(1) << at.bit);
    for (uint32_t word = 0; row[at.word] == 0 && word < ROW_WORDS; word++)
        if (row[word] != 0)
            return;
    if (row[at.word] == 0)
        pleat__bits_clear(&index->begun, at.page);
}

/* The last bit at or before a position in its page's row. */
static bool row_at_most(const pleat__address_index *index, position *at)
{
    const uint64_t *row = index->rows[at->page];
    uint64_t mask = ~UINT64_C(0) >> (63 - at->bit);
    for (uint32_t word = at->word + 1; row != NULL && word-- > 0; mask = ~UINT64_C(0)) {
        if ((row[word] & mask) == 0)
            continue;
        at->word = word;
        at->bit = 63 - (uint32_t)__builtin_clzll(row[word] & mask);
        return true;
    }
    return false;
}

static bool row_at_least(const pleat__address_index *index, position *at)
{
    const uint64_t *row = index->rows[at->page];
    uint64_t mask = ~UINT64_C(0) << at->bit;
    for (uint32_t word = at->word; row != NULL && word < ROW_WORDS; word++, mask = ~UINT64_C(0)) {
        if ((row[word] & mask) == 0)
            continue;
        at->word = word;
        at->bit = (uint32_t)__builtin_ctzll(row[word] & mask);
        return true;
    }
    return false;
}

pleat_va pleat__address_index_at_most(const pleat__address_index *index, pleat_va address)
{
    if (address < index->base)
        return 0;
    position at = position_of(index, address);
    if (at.page >= index->pages)
        at = (position){index->pages - 1, ROW_WORDS - 1, 63};
    if (row_at_most(index, &at))
        return address_of(index, at);
    uint64_t page =
        at.page == 0 ? PLEAT__BITS_NONE : pleat__bits_at_most(&index->begun, at.page - 1);
    at = (position){page, ROW_WORDS - 1, 63};
    return page != PLEAT__BITS_NONE && row_at_most(index, &at) ? address_of(index, at) : 0;
}

pleat_va pleat__address_index_at_least(const pleat__address_index *index, pleat_va address)
{
    position at = {0};
    if (address > index->base) {
        pleat_va up = address + (1u << PLEAT__GRANULE_SHIFT) - 1;
        at = position_of(index, up);
    }
    if (at.page >= index->pages)
        return 0;
    if (row_at_least(index, &at))
        return address_of(index, at);
    at = (position){pleat__bits_at_least(&index->begun, at.page + 1), 0, 0};
    return at.page != PLEAT__BITS_NONE && row_at_least(index, &at) ? address_of(index, at) : 0;
}
