/*
 * handover.c: see handover.h.
 *
 * HOW   Each chunk has its uses: the lives of what lies on it. Those that meet are one cluster.
 *       Chunks with the fewest clusters are tried first, which are those that only the peak needs:
 *       each costs waits. A chunk can go when each of its clusters finds a chunk of another stream
 *       that is idle for it.
 * TIME  The iteration is a circle. A use that wraps around ends behind the horizon.
 */
#include <plan/fold/handover.h>

#include <internal/error.h>
#include <internal/search.h>
#include <plan/base/sort.h>
#include <plan/fold/fold_internal.h>
#include <stdlib.h>
#include <string.h>

#define NONE      UINT32_MAX
#define USES_MOST (8u << 20)
#define WORK_MOST (100u << 20) /* chunks and lives looked at; of views, pages compared */

typedef struct span {
    uint64_t begin;
    uint64_t end; /* behind the horizon where it wraps */
} span;

/* What lies on a chunk, and since when. */
typedef struct use {
    span life;
    uint32_t item; /* NONE: put there by a handover */
    uint32_t page; /* of the item's pages */
    uint32_t next; /* of the chunk's uses */
} use;

/* A page of an item that goes to another chunk. */
typedef struct move {
    uint32_t item;
    uint32_t page;
    uint32_t chunk;
} move;

/* Uses of a chunk that meet each other, and where they go. */
typedef struct cluster {
    span life;
    uint32_t chunk;
} cluster;

typedef struct chunk_state {
    uint32_t uses;       /* the first, those of a handover ahead of its own; NONE: none */
    uint32_t first_life; /* of its own clusters, in `lives` */
    uint32_t life_count;
    uint32_t pages;
    uint16_t stream;
    bool pinned; /* something on it is there always */
    bool gone;
    bool handed;
} chunk_state;

/* A chunk that may take a cluster of another stream's. */
typedef struct taker {
    uint32_t chunk;
    uint32_t other; /* the first taker behind it whose stream is another one */
} taker;

typedef struct handover {
    const pleat__problem *problem;
    const pleat__layout *layout;
    uint32_t first_lane; /* the problem's items from here on are lanes */
    pleat__arena *arena;
    uint64_t chunk_bytes;
    chunk_state *chunks; /* by base page */
    use *uses;
    size_t use_capacity;
    uint32_t use_count, own_uses;
    span *lives; /* of the chunks' own clusters, chunk by chunk, in order of begin */
    size_t life_capacity;
    uint32_t life_count;
    taker *takers; /* by chunk */
    uint32_t taker_count;
    uint32_t *order; /* chunks that may go, by how long they are in use */
    uint32_t order_count;
    move *moves;
    size_t move_capacity;
    uint32_t move_count;
    cluster *clusters; /* of the chunk that is tried */
    size_t cluster_capacity;
    uint32_t cluster_count;
    uint64_t work;
} handover;

static span life_of(const pleat__problem *problem, uint32_t item)
{
    const pleat__item *i = &problem->items[item];
    return (span){i->begin, i->end > i->begin ? i->end : (uint64_t)i->end + problem->horizon};
}

static bool meet(span a, span b)
{
    return a.begin < b.end && b.begin < a.end;
}

static bool is_whole_round(const handover *h, span life)
{
    return life.end - life.begin >= h->problem->horizon;
}

/* On the circle. */
static bool in_the_way(const handover *h, span a, span b)
{
    uint64_t round = h->problem->horizon;
    return meet(a, b) || meet(a, (span){b.begin + round, b.end + round}) ||
           meet((span){a.begin + round, a.end + round}, b);
}

/* ---- what lies where ---- */

static pleat_result add_use(handover *h, uint32_t chunk, use made)
{
    PLEAT_TRY(
        pleat__arena_grow(h->arena, &h->uses, &h->use_capacity, h->use_count, sizeof *h->uses));
    made.next = h->chunks[chunk].uses;
    h->uses[h->use_count] = made;
    h->chunks[chunk].uses = h->use_count++;
    return PLEAT_OK;
}

static pleat_result list_item(handover *h, uint32_t i)
{
    const pleat__item *item = &h->problem->items[i];
    uint64_t first = h->layout->places[i] / h->chunk_bytes;
    uint64_t last = (h->layout->places[i] + item->size - 1) / h->chunk_bytes;
    for (uint64_t page = first; page <= last; page++) {
        uint32_t chunk = h->layout->pages[page];
        h->chunks[chunk].stream = item->stream;
        if (i >= h->first_lane || item->fixed != UINT64_MAX ||
            pleat__item_always(h->problem, item)) {
            h->chunks[chunk].pinned = true;
            continue;
        }
        PLEAT_TRY(
            add_use(h, chunk, (use){life_of(h->problem, i), i, (uint32_t)(page - first), NONE}));
    }
    return PLEAT_OK;
}

/* *fits: there are not too many. */
static pleat_result list_uses(handover *h, bool *fits)
{
    const pleat__layout *layout = h->layout;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < h->problem->count; i++)
        pages += h->problem->items[i].size / h->chunk_bytes + 2;
    *fits = pages <= USES_MOST;
    if (!*fits)
        return PLEAT_OK;
    h->chunks = pleat__arena_calloc(h->arena, layout->base_pages + 1ull, sizeof *h->chunks);
    if (h->chunks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u chunks", layout->base_pages);
    for (uint32_t c = 0; c < layout->base_pages; c++)
        h->chunks[c].uses = NONE;
    for (uint32_t page = 0; page < layout->page_count; page++)
        if (layout->pages[page] != PLEAT__NO_CHUNK)
            h->chunks[layout->pages[page]].pages++;
    for (uint32_t i = 0; i < h->problem->count; i++)
        if (!pleat__item_empty(h->problem, &h->problem->items[i]))
            PLEAT_TRY(list_item(h, i));
    h->own_uses = h->use_count;
    return PLEAT_OK;
}

/* ---- one chunk ---- */

static int compare_clusters(const void *left, const void *right)
{
    const cluster *a = left, *b = right;
    if (a->life.begin != b->life.begin)
        return a->life.begin < b->life.begin ? -1 : 1;
    return (a->life.end > b->life.end) - (a->life.end < b->life.end);
}

static pleat_result find_clusters(handover *h, uint32_t chunk)
{
    uint32_t count = 0, made = 0;
    for (uint32_t u = h->chunks[chunk].uses; u != NONE; u = h->uses[u].next) {
        PLEAT_TRY(pleat__arena_grow(h->arena, &h->clusters, &h->cluster_capacity, count,
                                    sizeof *h->clusters));
        h->clusters[count++] = (cluster){h->uses[u].life, NONE};
    }
    qsort(h->clusters, count, sizeof *h->clusters, compare_clusters);
    for (uint32_t i = 0; i < count; i++) {
        span life = h->clusters[i].life;
        if (made > 0 && life.begin < h->clusters[made - 1].life.end) {
            if (life.end > h->clusters[made - 1].life.end)
                h->clusters[made - 1].life.end = life.end;
            continue;
        }
        h->clusters[made++] = h->clusters[i];
    }
    /* The last may reach around to the first ones. */
    uint32_t first = 0;
    span *last = &h->clusters[made - 1].life;
    for (; first + 1 < made; first++) {
        span turned = {h->clusters[first].life.begin + h->problem->horizon,
                       h->clusters[first].life.end + h->problem->horizon};
        if (turned.begin >= last->end)
            break;
        last->end = turned.end > last->end ? turned.end : last->end;
    }
    h->cluster_count = made - first;
    memmove(h->clusters, h->clusters + first, h->cluster_count * sizeof *h->clusters);
    return PLEAT_OK;
}

static pleat_result add_life(handover *h, span life)
{
    PLEAT_TRY(
        pleat__arena_grow(h->arena, &h->lives, &h->life_capacity, h->life_count, sizeof *h->lives));
    h->lives[h->life_count++] = life;
    return PLEAT_OK;
}

static bool may_pass(const chunk_state *chunk)
{
    return chunk->uses != NONE && !chunk->pinned;
}

static pleat_result list_lives(handover *h)
{
    for (uint32_t c = 0; c < h->layout->base_pages; c++) {
        chunk_state *chunk = &h->chunks[c];
        if (!may_pass(chunk))
            continue;
        PLEAT_TRY(find_clusters(h, c));
        chunk->first_life = h->life_count;
        chunk->life_count = h->cluster_count;
        for (uint32_t i = 0; i < h->cluster_count; i++)
            PLEAT_TRY(add_life(h, h->clusters[i].life));
    }
    return PLEAT_OK;
}

static pleat_result list_takers(handover *h)
{
    h->takers = pleat__arena_alloc(h->arena, (h->layout->base_pages + 1ull) * sizeof *h->takers);
    if (h->takers == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u chunks",
                           h->layout->base_pages);
    for (uint32_t c = 0; c < h->layout->base_pages; c++)
        if (may_pass(&h->chunks[c]))
            h->takers[h->taker_count++].chunk = c;
    for (uint32_t t = h->taker_count, other = t; t-- > 0;) {
        if (t + 1 < h->taker_count &&
            h->chunks[h->takers[t].chunk].stream != h->chunks[h->takers[t + 1].chunk].stream)
            other = t + 1;
        h->takers[t].other = other;
    }
    return PLEAT_OK;
}

/* What was found of the chunk by list_lives. */
static pleat_result take_clusters(handover *h, uint32_t from)
{
    const chunk_state *chunk = &h->chunks[from];
    PLEAT_TRY(pleat__arena_reserve(h->arena, &h->clusters, &h->cluster_capacity, chunk->life_count,
                                   sizeof *h->clusters));
    for (uint32_t i = 0; i < chunk->life_count; i++)
        h->clusters[i] = (cluster){h->lives[chunk->first_life + i], NONE};
    h->cluster_count = chunk->life_count;
    return PLEAT_OK;
}

static uint64_t use_time(const handover *h, uint32_t chunk)
{
    uint64_t time = 0;
    for (uint32_t u = h->chunks[chunk].uses; u != NONE; u = h->uses[u].next)
        time += h->uses[u].life.end - h->uses[u].life.begin;
    return time;
}

/* Each cluster of a chunk that goes is a wait for another stream, and often one more behind it. */
static pleat_result order_chunks(handover *h)
{
    uint32_t count = h->layout->base_pages;
    uint64_t *keys = pleat__arena_alloc(h->arena, (count + 1ull) * sizeof *keys);
    uint32_t *spare = pleat__arena_alloc(h->arena, (count + 1ull) * sizeof *spare);
    h->order = pleat__arena_alloc(h->arena, (count + 1ull) * sizeof *h->order);
    bool room = keys != NULL && spare != NULL && h->order != NULL;
    for (uint32_t c = 0; c < count && room; c++) {
        const chunk_state *chunk = &h->chunks[c];
        if (!may_pass(chunk) || chunk->pages != 1)
            continue;
        keys[c] = (uint64_t)chunk->life_count << 40 | use_time(h, c) >> 8;
        h->order[h->order_count++] = c;
    }
    if (room)
        pleat__sort_by_key(h->order, spare, h->order_count, keys);
    pleat__arena_free(h->arena, keys);
    pleat__arena_free(h->arena, spare);
    return room ? PLEAT_OK : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u chunks", count);
}

/* Whether a chunk's own clusters leave room for a life that begins in the first round. They are
 * apart, so that they end in the order in which they begin, and only the last may reach around. */
static bool is_clear(const handover *h, const chunk_state *chunk, span life)
{
    uint64_t round = h->problem->horizon;
    const span *lives = h->lives + chunk->first_life;
    uint32_t before; /* that begin before it ends */
    PLEAT__FIRST(before, chunk->life_count, lives[before].begin >= life.end);
    return (before == 0 || lives[before - 1].end <= life.begin) &&
           lives[0].begin + round >= life.end &&
           lives[chunk->life_count - 1].end <= life.begin + round;
}

/* pre: the life begins in the first round and is shorter than one */
static bool is_idle(handover *h, uint32_t chunk, span life)
{
    h->work++;
    for (uint32_t u = h->chunks[chunk].uses; u != NONE && u >= h->own_uses; u = h->uses[u].next) {
        h->work++;
        if (in_the_way(h, life, h->uses[u].life))
            return false;
    }
    return is_clear(h, &h->chunks[chunk], life);
}

static bool may_take(handover *h, uint32_t from, uint32_t chunk, span life)
{
    const chunk_state *to = &h->chunks[chunk];
    return may_pass(to) && !to->gone && to->stream != h->chunks[from].stream &&
           is_idle(h, chunk, life);
}

static uint32_t find_chunk(handover *h, uint32_t from, span life)
{
    if (is_whole_round(h, life))
        return NONE;
    for (uint32_t t = 0; t < h->taker_count && h->work < WORK_MOST;) {
        const taker *to = &h->takers[t];
        if (may_take(h, from, to->chunk, life))
            return to->chunk;
        t = h->chunks[to->chunk].stream == h->chunks[from].stream ? to->other : t + 1;
        h->work++;
    }
    return NONE;
}

/* The cluster that one of the chunk's own uses is of: clusters are apart and in order of begin, and
 * what begins before the first of them is of the last, which reaches around. */
static const cluster *cluster_of(const handover *h, span life)
{
    uint32_t behind;
    PLEAT__FIRST(behind, h->cluster_count, h->clusters[behind].life.begin > life.begin);
    return &h->clusters[behind > 0 ? behind - 1 : h->cluster_count - 1];
}

static pleat_result move_uses(handover *h, uint32_t from)
{
    for (uint32_t u = h->chunks[from].uses; u != NONE; u = h->uses[u].next) {
        PLEAT_TRY(pleat__arena_grow(h->arena, &h->moves, &h->move_capacity, h->move_count,
                                    sizeof *h->moves));
        h->moves[h->move_count++] =
            (move){h->uses[u].item, h->uses[u].page, cluster_of(h, h->uses[u].life)->chunk};
    }
    for (uint32_t i = 0; i < h->cluster_count; i++)
        h->chunks[h->clusters[i].chunk].handed = true;
    h->chunks[from].gone = true;
    return PLEAT_OK;
}

/* Clusters are put down one by one, so that two do not get the same chunk unless there is room for
 * both; taken up again when one finds none. */
static pleat_result try_chunk(handover *h, uint32_t from, bool *went)
{
    PLEAT_TRY(take_clusters(h, from));
    *went = true;
    uint32_t placed = 0;
    for (; placed < h->cluster_count && *went; placed++) {
        cluster *c = &h->clusters[placed];
        c->chunk = find_chunk(h, from, c->life);
        *went = c->chunk != NONE;
        if (*went)
            PLEAT_TRY(add_use(h, c->chunk, (use){c->life, NONE, 0, NONE}));
        else
            break;
    }
    if (*went)
        return move_uses(h, from);
    while (placed > 0) {
        uint32_t chunk = h->clusters[--placed].chunk;
        h->chunks[chunk].uses = h->uses[--h->use_count].next;
    }
    return PLEAT_OK;
}

/* ---- all chunks ---- */

/* *got: how many of the chunks that are wanted went. */
static pleat_result try_chunks(handover *h, uint32_t wanted, uint32_t *got)
{
    *got = 0;
    for (uint32_t i = 0; i < h->order_count && *got < wanted && h->work < WORK_MOST; i++) {
        bool went = false;
        if (!h->chunks[h->order[i]].handed)
            PLEAT_TRY(try_chunk(h, h->order[i], &went));
        *got += went;
    }
    return PLEAT_OK;
}

/* ---- the layout ---- */

static int compare_moves(const void *left, const void *right)
{
    const move *a = left, *b = right;
    if (a->item != b->item)
        return a->item < b->item ? -1 : 1;
    return (a->page > b->page) - (a->page < b->page);
}

static uint64_t pages_of(const handover *h, uint32_t item)
{
    uint64_t place = h->layout->places[item], size = h->problem->items[item].size;
    return (place + size - 1) / h->chunk_bytes - place / h->chunk_bytes + 1;
}

/* Pages of views that the moves need at most. */
static uint64_t count_pages(const handover *h)
{
    uint64_t pages = 0;
    for (uint32_t m = 0; m < h->move_count; m++)
        if (m == 0 || h->moves[m].item != h->moves[m - 1].item)
            pages += pages_of(h, h->moves[m].item);
    return pages;
}

/* A view there is of the same chunks, from page `first` on; else `last`. *work: how many pages may
 * be compared yet. */
static uint32_t find_view(const uint32_t *pages, uint32_t first, uint32_t last, uint64_t count,
                          uint64_t *work)
{
    for (uint32_t at = first; at + count <= last && *work != 0; at++) {
        uint64_t same = 0;
        for (; same < count && *work != 0 && pages[at + same] == pages[last + same]; same++)
            --*work;
        if (same == count)
            return at;
        *work -= *work != 0;
    }
    return last;
}

/* pages[]: the layout's, with room behind them. */
static void move_items(const handover *h, uint32_t *pages, pleat__layout *layout)
{
    uint32_t views = layout->page_count;
    uint64_t work = WORK_MOST;
    for (uint32_t m = 0; m < h->move_count;) {
        uint32_t item = h->moves[m].item;
        uint64_t place = layout->places[item], count = pages_of(h, item);
        memcpy(pages + layout->page_count, pages + place / h->chunk_bytes, count * sizeof *pages);
        for (; m < h->move_count && h->moves[m].item == item; m++)
            pages[layout->page_count + h->moves[m].page] = h->moves[m].chunk;
        uint32_t at = find_view(pages, views, layout->page_count, count, &work);
        layout->places[item] = at * h->chunk_bytes + place % h->chunk_bytes;
        layout->folded++;
        if (at != layout->page_count)
            continue;
        layout->views++;
        layout->page_count += (uint32_t)count;
        layout->alias_pages += (uint32_t)count;
    }
}

static pleat_result change(handover *h, uint32_t got, pleat__layout *layout, uint8_t **handed)
{
    qsort(h->moves, h->move_count, sizeof *h->moves, compare_moves);
    uint64_t added = count_pages(h);
    if (layout->page_count + added >= PLEAT__NO_CHUNK)
        return PLEAT_OK;
    uint32_t *pages = pleat__arena_alloc(h->arena, (layout->page_count + added) * sizeof *pages);
    *handed = pleat__arena_calloc(h->arena, layout->base_pages, 1);
    if (pages == NULL || *handed == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %llu pages",
                           (unsigned long long)added);
    memcpy(pages, layout->pages, layout->page_count * sizeof *pages);
    move_items(h, pages, layout);
    for (uint32_t c = 0; c < layout->base_pages; c++) {
        (*handed)[c] = h->chunks[c].handed;
        if (h->chunks[c].gone)
            pages[c] = PLEAT__NO_CHUNK;
    }
    pleat__arena_free(h->arena, layout->pages);
    layout->pages = pages;
    layout->chunks -= got;
    return PLEAT_OK;
}

static bool has_several_streams(const pleat__problem *problem)
{
    for (uint32_t i = 1; i < problem->count; i++)
        if (problem->items[i].stream != problem->items[0].stream)
            return true;
    return false;
}

pleat_result pleat__handover_make(const pleat__problem *problem, uint64_t chunk_bytes,
                                  uint32_t first_lane, pleat__arena *arena, pleat__layout *layout,
                                  uint8_t **handed)
{
    *handed = NULL;
    uint64_t live = 0;
    if (!problem->circular || !has_several_streams(problem))
        return PLEAT_OK;
    PLEAT_TRY(pleat__max_live(problem, arena, &live));
    uint64_t floor = pleat__ceil_div(live, chunk_bytes);
    if (layout->chunks <= floor)
        return PLEAT_OK;
    handover h = {.problem = problem,
                  .layout = layout,
                  .first_lane = first_lane,
                  .arena = arena,
                  .chunk_bytes = chunk_bytes};
    uint32_t got = 0;
    bool fits;
    pleat_result result = list_uses(&h, &fits);
    if (result == PLEAT_OK && fits)
        result = list_lives(&h);
    if (result == PLEAT_OK && fits)
        result = list_takers(&h);
    if (result == PLEAT_OK && fits)
        result = order_chunks(&h);
    if (result == PLEAT_OK && fits)
        result = try_chunks(&h, layout->chunks - (uint32_t)floor, &got);
    if (result == PLEAT_OK && got > 0)
        result = change(&h, got, layout, handed);
    pleat__arena_free(arena, h.chunks);
    pleat__arena_free(arena, h.uses);
    pleat__arena_free(arena, h.lives);
    pleat__arena_free(arena, h.takers);
    pleat__arena_free(arena, h.order);
    pleat__arena_free(arena, h.moves);
    pleat__arena_free(arena, h.clusters);
    return result;
}
