/*
 * instance_coming.c: an instance whose chunks and views are made while it is followed (coming.h):
 * its new chunks are promised here, and what is missing is cut into pieces, in the order in which
 * the iteration needs them.
 */
#include <runtime/learn/coming.h>
#include <runtime/learn/instance_internal.h>

#include <internal/error.h>
#include <plan/base/sort.h>
#include <string.h>

/* Handles of a piece: some 0.4 ms on an H200. */
#define MOST 16u

typedef struct lister {
    pleat__maker *m;
    pleat__pieces pieces;
    size_t capacity;
    uint64_t *keys; /* by piece: when it is needed, and its number */
    size_t key_capacity;
    uint32_t *home_need; /* by page: the position at which it is needed */
    uint32_t *view_need;
    uint32_t pages, view_pages;
    uint32_t now; /* the position of the last request that is there */
} lister;

bool pleat__maker_may_promise(const pleat__maker *m, uint32_t end)
{
    const pleat__pool *pool = m->pool;
    uint64_t missing = pool->absent + (end > m->pages ? end - m->pages : 0);
    return m->ground->coming != NULL && m->ground->coming->arena != NULL && pool->stocked == 0 &&
           pleat__space_has_room(pool->space, missing * pool->page_bytes);
}

/* ---- when what is needed ---- */

static uint32_t position_now(const pleat__maker *m)
{
    uint32_t now = 0;
    for (uint32_t i = 0; i < m->ground->held_count; i++) {
        uint32_t held = m->scale->terms[m->ground->held[i].term].begin;
        now = held > now ? held : now;
    }
    return now;
}

/* Positions from now on to the next request of an item. */
static uint32_t wait_for(const lister *l, uint32_t i)
{
    uint32_t begin = l->m->scale->terms[i].begin;
    return begin >= l->now ? begin - l->now : begin + l->m->scale->horizon - l->now;
}

static void need(uint32_t *needs, uint32_t page, uint32_t at)
{
    needs[page] = at < needs[page] ? at : needs[page];
}

static void need_item(lister *l, uint32_t i, uint32_t first_view)
{
    const pleat__maker *m = l->m;
    const pleat__try *try = &m->tries[pleat__maker_job_of(m, m->items[i].stream)];
    uint64_t page_bytes = m->pool->page_bytes, at = m->places[i];
    bool in_view = at >= PLEAT__IN_VIEWS;
    at -= in_view ? PLEAT__IN_VIEWS : 0;
    uint64_t last = (at + m->items[i].size - 1) / page_bytes;
    uint32_t when = wait_for(l, i);
    for (uint64_t p = at / page_bytes; p <= last; p++) {
        if (in_view)
            need(l->view_need, first_view + (uint32_t)p, when);
        need(l->home_need, in_view ? try->views[p] : (uint32_t)p, when);
    }
}

static pleat_result list_needs(lister *l, const uint32_t *first_view)
{
    pleat__maker *m = l->m;
    l->home_need = pleat__arena_alloc(m->arena, l->pages * sizeof *l->home_need);
    l->view_need = pleat__arena_alloc(m->arena, (l->view_pages + 1u) * sizeof *l->view_need);
    if (l->home_need == NULL || l->view_need == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u pages", l->pages);
    memset(l->home_need, 0xff, l->pages * sizeof *l->home_need);
    memset(l->view_need, 0xff, (l->view_pages + 1u) * sizeof *l->view_need);
    for (uint32_t i = 0; i < m->scale->count; i++)
        if (m->items[i].size != 0 && !pleat__term_is_loose(&m->scale->terms[i]))
            need_item(l, i, first_view[pleat__maker_job_of(m, m->items[i].stream)]);
    return PLEAT_OK;
}

/* ---- pieces ---- */

static pleat_result add_piece(lister *l, pleat__piece piece, const uint32_t *needs)
{
    uint32_t when = UINT32_MAX, number = l->pieces.count;
    for (uint32_t i = 0; i < piece.count; i++)
        when = needs[i] < when ? needs[i] : when;
    PLEAT_TRY(pleat__arena_grow(l->m->arena, &l->pieces.pieces, &l->capacity, number,
                                sizeof *l->pieces.pieces));
    PLEAT_TRY(pleat__arena_grow(l->m->arena, &l->keys, &l->key_capacity, number, sizeof *l->keys));
    l->keys[number] = (uint64_t)when << 32 | number;
    l->pieces.pieces[l->pieces.count++] = piece;
    return PLEAT_OK;
}

static bool is_missing(const lister *l, uint32_t page)
{
    uint32_t chunk = l->m->chunk_at[page];
    return chunk != PLEAT__NO_HOME && l->m->pool->chunks[chunk] == NULL;
}

/* The chunks that are missing. Handles are to begin where a piece does, so that no
 * handle is in two. */
static pleat_result list_chunks(lister *l)
{
    const pleat__maker *m = l->m;
    uint32_t end = m->end;
    for (uint32_t p = 0, next; p < end; p = next) {
        next = p + 1;
        if (!is_missing(l, p))
            continue;
        while (next < end && next - p < MOST * l->pieces.block && is_missing(l, next) &&
               m->chunk_at[next] == m->chunk_at[next - 1] + 1 &&
               !m->pool->breaks[m->chunk_at[next]] && !l->pieces.cut_pages[next])
            next++;
        l->pieces.cut_pages[p] = l->pieces.cut_pages[next] = 1;
        PLEAT_TRY(add_piece(l, (pleat__piece){.first = m->chunk_at[p], .count = next - p},
                            l->home_need + p));
    }
    return PLEAT_OK;
}

/* Pages of the views from `v` on that are mapped together: a handle's, or those of a piece's
 * chunks. 0: they are not all there. */
static uint32_t whole_at(const lister *l, uint32_t v)
{
    const pleat__maker *m = l->m;
    const uint32_t *shown = l->pieces.shown;
    uint32_t chunk = shown[v], count = 1;
    if (m->pool->chunks[chunk] != NULL)
        return pleat__pool_whole(m->pool, shown + v, l->view_pages - v, 1);
    while (v + count < l->view_pages && shown[v + count] == chunk + count &&
           m->pool->chunks[chunk + count] == NULL &&
           !l->pieces.cut_pages[m->pool->home[chunk + count] - m->home0])
        count++;
    return count;
}

static pleat_result list_views(lister *l)
{
    for (uint32_t v = 0, next; v < l->view_pages; v = next) {
        uint32_t handles = 0;
        for (next = v; next < l->view_pages;) {
            uint32_t more = whole_at(l, next);
            if (more == 0)
                return pleat__fail(PLEAT_E_LIMIT, "a chunk that is mapped with others");
            handles += (more - 1) / l->pieces.block + 1;
            if (next != v && handles > MOST)
                break;
            next += more;
        }
        PLEAT_TRY(add_piece(l, (pleat__piece){.first = v, .count = next - v, .view = true},
                            l->view_need + v));
    }
    return PLEAT_OK;
}

static pleat_result list_shown(lister *l)
{
    pleat__maker *m = l->m;
    uint32_t count = 0;
    l->pieces.shown = pleat__arena_alloc(m->arena, (l->view_pages + 1u) * sizeof *l->pieces.shown);
    l->pieces.cut_pages = pleat__arena_calloc(m->arena, l->pages + 2u, 1);
    if (l->pieces.shown == NULL || l->pieces.cut_pages == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u pages", l->pages);
    l->pieces.cuts =
        (pleat__cuts){.pages = l->pieces.cut_pages, .first = m->home0, .count = l->pages + 2u};
    for (uint32_t j = 0; j < m->jobs.count; j++) {
        pleat__maker_mark_cuts(&m->tries[j], l->pieces.cut_pages);
        for (uint32_t v = 0; v < m->tries[j].view_pages; v++)
            l->pieces.shown[count++] = m->chunk_at[m->tries[j].views[v]];
    }
    return PLEAT_OK;
}

/* The pieces by where they are: chunks by number, then pages of the views. */
static void sort_pieces(lister *l, uint32_t *spare)
{
    pleat__pieces *pieces = &l->pieces;
    for (uint32_t i = 0; i < pieces->count; i++) {
        const pleat__piece *piece = &pieces->pieces[i];
        l->keys[i] = (uint64_t)piece->view << 32 | piece->first;
        pieces->sorted[i] = i;
        pieces->chunk_count += !piece->view;
    }
    pleat__sort_by_key(pieces->sorted, spare, pieces->count, l->keys);
}

/* The pieces as they are needed; of two at once chunks come before views. */
static pleat_result order_pieces(lister *l)
{
    uint32_t count = l->pieces.count;
    if (count == 0)
        return PLEAT_OK;
    uint64_t *other = pleat__arena_alloc(l->m->arena, count * sizeof *other);
    pleat__piece *pieces = pleat__arena_alloc(l->m->arena, count * sizeof *pieces);
    l->pieces.sorted = pleat__arena_alloc(l->m->arena, count * sizeof *l->pieces.sorted);
    l->pieces.urgent = pleat__arena_alloc(l->m->arena, count * sizeof *l->pieces.urgent);
    if (other == NULL || pieces == NULL || l->pieces.sorted == NULL || l->pieces.urgent == NULL) {
        pleat__arena_free(l->m->arena, other);
        pleat__arena_free(l->m->arena, pieces);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order %u pieces", count);
    }
    pleat__sort_keys(l->keys, other, count);
    for (uint32_t i = 0; i < count; i++)
        pieces[i] = l->pieces.pieces[l->keys[i] & UINT32_MAX];
    pleat__arena_free(l->m->arena, l->pieces.pieces);
    l->pieces.pieces = pieces;
    pleat__arena_free(l->m->arena, other);
    /* Nothing is urgent yet. */
    sort_pieces(l, l->pieces.urgent);
    return PLEAT_OK;
}

/* ---- all of it ---- */

static pleat_result list_pieces(lister *l, const uint32_t *first_view)
{
    PLEAT_TRY(list_shown(l));
    PLEAT_TRY(list_needs(l, first_view));
    l->pieces.block = pleat__pool_cut_handle(l->m->pool, l->m->pool->absent);
    PLEAT_TRY(list_chunks(l));
    PLEAT_TRY(list_views(l));
    return order_pieces(l);
}

pleat_result pleat__maker_list_pieces(pleat__maker *m, const uint32_t *first_view,
                                      uint32_t view_pages, pleat__pieces *pieces)
{
    lister l = {.m = m, .pages = m->pages, .view_pages = view_pages, .now = position_now(m)};
    pleat_result result = list_pieces(&l, first_view);
    pleat__arena_free(m->arena, l.home_need);
    pleat__arena_free(m->arena, l.view_need);
    pleat__arena_free(m->arena, l.keys);
    *pieces = l.pieces;
    if (result != PLEAT_OK)
        pleat__pieces_free(m->arena, pieces);
    return result;
}
