/*
 * chunks.c: whole chunks from anywhere, mapped side by side, are as good as one block. So what is
 * cheapest by the byte can go, wherever it lies, as long as whole chunks become free.
 *
 * HOW  Tensors go by weight a byte until enough chunks are free; then, from the dearest back, those
 *      without which there are still enough stay. Where Coop's window weighs less than that and its
 *      maps, it is taken instead.
 */
#include <plan/remat/policy.h>

#include <internal/error.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct pleat__remat_candidate {
    double density; /* weight a byte */
    uint32_t owner;
    uint32_t block;
} candidate;

pleat_result pleat__remat_scratch_create(pleat__arena *arena, uint32_t tensors, uint64_t chunks,
                                         pleat__remat_scratch *scratch)
{
    /* A tensor has a block for each of its chunks at most, and one more. */
    uint64_t blocks = tensors + chunks;
    scratch->candidates = pleat__arena_calloc(arena, blocks, sizeof *scratch->candidates);
    scratch->chunk_left = pleat__arena_calloc(arena, chunks, sizeof *scratch->chunk_left);
    scratch->run = pleat__arena_calloc(arena, tensors, sizeof *scratch->run);
    if (scratch->candidates == NULL || scratch->chunk_left == NULL || scratch->run == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to search among %llu blocks",
                           (unsigned long long)blocks);
    return PLEAT_OK;
}

static int by_density(const void *left, const void *right)
{
    const candidate *a = left, *b = right;
    if (a->density != b->density)
        return a->density < b->density ? -1 : 1;
    if (a->owner != b->owner)
        return a->owner < b->owner ? -1 : 1;
    return (a->block > b->block) - (a->block < b->block);
}

static size_t list(const pleat__remat_table *table, const pleat__remat_pool *pool, uint64_t now,
                   candidate *all)
{
    size_t count = 0;
    for (size_t i = 0; i < pool->count; i++) {
        uint32_t owner = pool->blocks[i].owner;
        if (owner >= PLEAT__REMAT_HELD || table->hot[owner].held > 0)
            continue;
        const pleat__remat_hot *hot = &table->hot[owner];
        all[count++] =
            (candidate){.density = (double)pleat__remat_weight(hot, now) / (double)hot->bytes,
                        .owner = owner,
                        .block = (uint32_t)i};
    }
    qsort(all, count, sizeof *all, by_density);
    return count;
}

/* A block leaves its chunks, or comes back; the change in chunks that are free. */
static int64_t move(const pleat__remat_pool *pool, uint64_t *left, const candidate *c, bool out)
{
    const pleat__remat_block *b = &pool->blocks[c->block];
    uint64_t end = b->begin + b->bytes;
    int64_t change = 0;
    for (uint64_t at = b->begin; at < end && at / pool->chunk_bytes < pool->chunks;) {
        uint64_t chunk = at / pool->chunk_bytes, next = (chunk + 1) * pool->chunk_bytes;
        uint64_t part = (next < end ? next : end) - at;
        change -= left[chunk] == 0;
        left[chunk] = out ? left[chunk] - part : left[chunk] + part;
        change += left[chunk] == 0;
        at = next;
    }
    return change;
}

typedef struct set {
    const pleat__remat_pool *pool;
    candidate *all;
    uint64_t *left;
    size_t count;   /* of `all`, as far as it went */
    int64_t chunks; /* free with them gone */
} set;

/* The blocks of the tensor whose first one is `from`; they are neighbours in the list. */
static size_t owner_end(const set *s, size_t from, size_t count)
{
    size_t end = from;
    while (end < count && s->all[end].owner == s->all[from].owner)
        end++;
    return end;
}

static int64_t move_owner(const set *s, size_t from, size_t end, bool out)
{
    int64_t change = 0;
    for (size_t i = from; i < end; i++)
        change += move(s->pool, s->left, &s->all[i], out);
    return change;
}

/* Lets them go in order until there are `wanted` chunks; false where there never are. */
static bool gather(set *s, size_t count, int64_t wanted)
{
    for (uint64_t c = 0; c < s->pool->chunks; c++)
        s->left[c] = s->pool->chunk_used[c];
    s->chunks = (int64_t)s->pool->free_chunks;
    while (s->chunks < wanted && s->count < count) {
        size_t end = owner_end(s, s->count, count);
        s->chunks += move_owner(s, s->count, end, true);
        s->count = end;
    }
    return s->chunks >= wanted;
}

/* Keeps those that are not needed, the dearest first; what is left goes to `victims`. */
static void prune(set *s, int64_t wanted, pleat__remat_victims *victims)
{
    victims->count = 0;
    for (size_t end = s->count; end > 0;) {
        size_t from = end - 1;
        while (from > 0 && s->all[from - 1].owner == s->all[end - 1].owner)
            from--;
        int64_t change = move_owner(s, from, end, false);
        if (s->chunks + change >= wanted) {
            s->chunks += change;
        } else {
            (void)move_owner(s, from, end, true);
            victims->tensors[victims->count++] = s->all[from].owner;
        }
        end = from;
    }
}

/* What a set weighs with its maps: as much more as it takes longer. */
static double weight_of(const pleat__remat_table *table, const pleat__remat_need *need,
                        const pleat__remat_victims *victims, uint64_t maps_ns)
{
    double weight = 0, ns = 0;
    for (uint32_t i = 0; i < victims->count; i++) {
        const pleat__remat_hot *hot = &table->hot[victims->tensors[i]];
        weight += (double)pleat__remat_weight(hot, need->now_ns);
        ns += (double)hot->projected_ns;
    }
    return ns > 0 ? weight * (ns + (double)maps_ns) / ns : 0;
}

/* Whole chunks for the request; false where there are none to be had. */
static bool choose_chunks(const pleat__remat_table *table, const pleat__remat_pool *pool,
                          const pleat__remat_need *need, int64_t wanted,
                          pleat__remat_scratch *scratch, pleat__remat_victims *victims)
{
    set s = {.pool = pool, .all = scratch->candidates, .left = scratch->chunk_left};
    if (!gather(&s, list(table, pool, need->now_ns, s.all), wanted))
        return false;
    prune(&s, wanted, victims);
    return true;
}

void pleat__remat_search_chunks(const pleat__remat_table *table, const pleat__remat_pool *pool,
                                const pleat__remat_need *need, pleat__remat_scratch *scratch,
                                pleat__remat_victims *victims)
{
    uint64_t wanted = pleat__ceil_div(need->bytes, pool->chunk_bytes);
    double weight = INFINITY;
    victims->count = 0;
    /* A request of one chunk needs no map: the run's search finds that chunk, too. */
    if (wanted > 1 && choose_chunks(table, pool, need, (int64_t)wanted, scratch, victims))
        weight = weight_of(table, need, victims, wanted * need->map_ns);
    pleat__remat_victims run = {.tensors = scratch->run};
    double other = (double)pleat__remat_search_window(table, pool, need, &run);
    if (run.count == 0 || weight <= other)
        return;
    memcpy(victims->tensors, run.tensors, run.count * sizeof *run.tensors);
    victims->count = run.count;
}
