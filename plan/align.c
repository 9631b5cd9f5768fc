/*
 * align.c: lays one iteration against another, request by request.
 *
 * Two requests play the same part when stream and size agree, or when stream and rhythm do: the
 * number of events since the allocation before and the number of events they live. Rhythm is what
 * stays when a sequence length changes every size; size is what stays when routing adds and removes
 * neighbours. Both sequences are walked side by side; where neither agrees, the nearest pair of
 * places from which most of the next requests agree is looked for, and the walk goes on there.
 * What was skipped is paired by position when both skipped as many, else by size. Where there is no
 * such place nearby (the first optimizer step allocates its state between everything else), the
 * walk goes on at the next run of sizes that the other sequence has exactly once.
 *
 * This is not a longest common subsequence: at ten thousand differing requests that costs seconds,
 * and repeats inside an iteration make it no more right than the nearest place.
 */
#include <plan/iteration.h>

#include <plan/sort.h>

#define REACH    128 /* requests looked ahead in both sequences together */
#define RUN      6   /* requests compared behind a candidate place */
#define RUN_SAME 5   /* of which must agree */
#define GRAM     8   /* sizes in a run that is looked for from afar */
#define FAR      512 /* how far, in both sequences together */
#define FAILURES                                                                                   \
    256 /* places not found in a row after which the sequences have no more in common */

struct walk {
    const pleat__request *items;
    pleat__stretch a, b;
    uint32_t *pairs;
    uint32_t paired;
    uint64_t *grams; /* of b: hash in the upper half, place in the lower; ascending */
    uint32_t gram_count;
    bool listed;
};

static uint32_t gap_before(const struct walk *walk, pleat__stretch stretch, uint32_t index)
{
    const pleat__request *item = &walk->items[stretch.item + index];
    return item->alloc_at - (index == 0 ? stretch.begin_at : item[-1].alloc_at);
}

static bool same_part(const struct walk *walk, uint32_t i, uint32_t j)
{
    const pleat__request *a = &walk->items[walk->a.item + i];
    const pleat__request *b = &walk->items[walk->b.item + j];
    if (a->stream != b->stream)
        return false;
    return a->size == b->size ||
           (a->free_at != PLEAT__NEVER && a->free_at - a->alloc_at == b->free_at - b->alloc_at &&
            gap_before(walk, walk->a, i) == gap_before(walk, walk->b, j));
}

static bool good_place(const struct walk *walk, uint32_t i, uint32_t j)
{
    uint32_t left_a = walk->a.items - i, left_b = walk->b.items - j;
    uint32_t run = left_a < left_b ? left_a : left_b;
    if (run == 0)
        return left_a == left_b;
    if (!same_part(walk, i, j))
        return false;
    run = run < RUN ? run : RUN;
    uint32_t wrong = 0;
    for (uint32_t k = 1; k < run; k++)
        if (!same_part(walk, i + k, j + k) && ++wrong > RUN - RUN_SAME)
            return false;
    return true;
}

/* The nearest good place at or behind (i, j); equal steps in both first. */
static bool find_place(const struct walk *walk, uint32_t i, uint32_t j, uint32_t *step_a,
                       uint32_t *step_b)
{
    for (uint32_t reach = 1; reach <= REACH; reach++) {
        for (uint32_t k = 0; k <= reach; k++) {
            /* reach/2, reach/2 + 1, reach/2 - 1, ... */
            uint32_t half = reach / 2, off = (k + 1) / 2;
            uint32_t da = k % 2 == 1 ? half + off : half - off;
            uint32_t db = reach - da;
            if (da > reach || i + da > walk->a.items || j + db > walk->b.items)
                continue;
            if (good_place(walk, i + da, j + db)) {
                *step_a = da;
                *step_b = db;
                return true;
            }
        }
    }
    return false;
}

static void pair(struct walk *walk, uint32_t i, uint32_t j)
{
    walk->pairs[i] = walk->b.item + j;
    walk->paired++;
}

/* Pairs what lies in two skipped pieces. */
static void pair_skipped(struct walk *walk, uint32_t i, uint32_t count_a, uint32_t j,
                         uint32_t count_b)
{
    if (count_a == count_b) {
        for (uint32_t k = 0; k < count_a; k++)
            pair(walk, i + k, j + k);
        return;
    }
    uint32_t next = 0;
    for (uint32_t k = 0; k < count_a; k++) {
        uint32_t at = next;
        while (at < count_b &&
               walk->items[walk->a.item + i + k].size != walk->items[walk->b.item + j + at].size)
            at++;
        if (at < count_b) {
            pair(walk, i + k, j + at);
            next = at + 1;
        }
    }
}

static uint64_t gram_at(const struct walk *walk, uint32_t item)
{
    uint64_t hash = 0;
    for (uint32_t k = 0; k < GRAM; k++) {
        hash = (hash ^ walk->items[item + k].size) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash >> 32 << 32;
}

/* Lists b's grams in order. Without memory for that there are none, and the walk ends early. */
static void list_grams(struct walk *walk, pleat__arena *arena)
{
    walk->listed = true;
    if (walk->b.items < GRAM)
        return;
    uint32_t count = walk->b.items - GRAM + 1;
    walk->grams = pleat__arena_alloc(arena, 2 * (uint64_t)count * sizeof *walk->grams);
    if (walk->grams == NULL)
        return;
    for (uint32_t j = 0; j < count; j++)
        walk->grams[j] = gram_at(walk, walk->b.item + j) | j;
    pleat__sort_keys(walk->grams, walk->grams + count, count);
    walk->gram_count = count;
}

/* The place of a gram that b has once; UINT32_MAX when it has none or several. */
static uint32_t place_of_gram(const struct walk *walk, uint64_t gram)
{
    uint32_t low = 0, high = walk->gram_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (walk->grams[middle] < gram)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == walk->gram_count || walk->grams[low] >> 32 != gram >> 32 ||
        (low + 1 < walk->gram_count && walk->grams[low + 1] >> 32 == gram >> 32))
        return UINT32_MAX;
    return (uint32_t)walk->grams[low];
}

/* The next place behind (i, j) at which a gram says that both go on alike. */
static bool find_far(const struct walk *walk, uint32_t i, uint32_t j, uint32_t *step_a,
                     uint32_t *step_b)
{
    for (uint32_t to = i + 1; to < i + FAR && to + GRAM <= walk->a.items; to++) {
        uint32_t at = place_of_gram(walk, gram_at(walk, walk->a.item + to));
        if (at == UINT32_MAX || at < j || at - j > FAR - (to - i) || !good_place(walk, to, at))
            continue;
        *step_a = to - i;
        *step_b = at - j;
        return true;
    }
    return false;
}

uint32_t pleat__align(const pleat__requests *requests, pleat__stretch a, pleat__stretch b,
                      uint32_t *pairs)
{
    struct walk walk = {.items = requests->items, .a = a, .b = b, .pairs = pairs};
    for (uint32_t i = 0; i < a.items; i++)
        pairs[i] = PLEAT__NEVER;
    uint32_t i = 0, j = 0, failures = 0;
    while (i < a.items && j < b.items && failures < FAILURES) {
        uint32_t step_a = 1, step_b = 1;
        if (same_part(&walk, i, j)) {
            failures = 0;
            pair(&walk, i, j);
        } else {
            bool found = find_place(&walk, i, j, &step_a, &step_b);
            if (!found && !walk.listed)
                list_grams(&walk, requests->arena);
            found = found || find_far(&walk, i, j, &step_a, &step_b);
            failures = found ? 0 : failures + 1;
            pair_skipped(&walk, i, step_a, j, step_b);
        }
        i += step_a;
        j += step_b;
    }
    pleat__arena_free(requests->arena, walk.grams);
    return walk.paired;
}
