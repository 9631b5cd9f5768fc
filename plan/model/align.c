/*
 * align.c: lays one iteration against another, request by request.
 *
 * Two requests play the same part when stream and size agree, or when stream and rhythm do: the
 * number of events since the allocation before and the number of events they live. Rhythm is what
 * stays when a sequence length changes every size; size is what stays when routing adds and removes
 * neighbours.
 *
 * Where the two go on alike they are walked side by side. Where they do not, the cheapest way from
 * one to the other is looked for, with a price on each request that has no partner and on each pair
 * that is not alike (an edit distance: Needleman and Wunsch 1970). All ways are kept that stay
 * within BAND requests of the best so far, and the walk goes on when the best has gone so long
 * without a price that no other can catch up. Looking for the nearest place from which on both go
 * on alike instead is cheaper and mistakes one expert's size for another's: it took 890 of a
 * mixture-of-experts iteration's 21,000 requests for dynamic that were not, and 180 for static that
 * were dynamic.
 */
#include <plan/model/iteration.h>

#define BAND      256u  /* places in b that are kept for each request of a */
#define ROWS      4096u /* requests of a, after which a choice is made in any case */
#define ALONE     3u    /* the price of a request without a partner */
#define OTHER     6u    /* of a pair with nothing in common */
#define SURE      24u   /* requests in a row of which the last way back is no longer looked at */
#define LIFE_PART 32ull /* lives are the same when they differ by no more than such a part */
#define NEVER     UINT16_MAX

typedef enum step {
    STEP_PAIR = 0,   /* both */
    STEP_ONLY_A = 1, /* the request of a has no partner */
    STEP_ONLY_B = 2,
} step;

typedef struct path {
    const pleat__request *items;
    pleat__stretch a, b;
    uint32_t a_part, b_part; /* sizes in these proportions are equal, too */
    uint32_t *pairs;
    uint32_t paired;
    uint8_t *steps;  /* by row and place: how the cheapest way got there */
    uint32_t *begin; /* by row: the first place of its band */
} path;

static uint32_t gap_before(const path *walk, pleat__stretch stretch, uint32_t index)
{
    const pleat__request *item = &walk->items[stretch.item + index];
    return item->alloc_at - (index == 0 ? stretch.begin_at : item[-1].alloc_at);
}

bool pleat__same_life(const pleat__request *a, const pleat__request *b)
{
    if (a->free_at == PLEAT__NEVER || b->free_at == PLEAT__NEVER)
        return a->free_at == b->free_at;
    uint32_t one = a->free_at - a->alloc_at, other = b->free_at - b->alloc_at;
    uint32_t more = one > other ? one : other;
    return (more - (one < other ? one : other)) * LIFE_PART <= more;
}

static bool same_size(const path *walk, const pleat__request *a, const pleat__request *b)
{
    return a->size == b->size ||
           (walk->a_part != walk->b_part && a->size * walk->b_part == b->size * walk->a_part);
}

static bool alike(const path *walk, uint32_t i, uint32_t j)
{
    const pleat__request *a = &walk->items[walk->a.item + i];
    const pleat__request *b = &walk->items[walk->b.item + j];
    return a->stream == b->stream && same_size(walk, a, b) &&
           gap_before(walk, walk->a, i) == gap_before(walk, walk->b, j);
}

static uint32_t price(const path *walk, uint32_t i, uint32_t j)
{
    const pleat__request *a = &walk->items[walk->a.item + i];
    const pleat__request *b = &walk->items[walk->b.item + j];
    if (a->stream != b->stream)
        return 2 * OTHER;
    uint32_t gap = gap_before(walk, walk->a, i) != gap_before(walk, walk->b, j);
    bool life = pleat__same_life(a, b);
    /* Of two sizes that may be equal by chance the one that lives alike is meant. */
    if (same_size(walk, a, b))
        return gap + (walk->a_part != walk->b_part && !life);
    if (life)
        return 1 + gap;
    return a->size / 2 > b->size || b->size / 2 > a->size ? OTHER : OTHER / 2 + gap;
}

static void pair(path *walk, uint32_t i, uint32_t j)
{
    walk->pairs[i] = walk->b.item + j;
    walk->paired += price(walk, i, j) < OTHER;
}

/* One row: costs[k] is the price of the cheapest way to have passed request i of a and the first
 * begin + k of b; `last` is the row before it, which began at `last_begin`. Returns the k of the
 * cheapest. */
static uint32_t fill_row(const path *walk, uint32_t i, uint32_t begin, const uint16_t *last,
                         uint32_t last_begin, uint16_t *costs, uint8_t *steps)
{
    uint32_t best = 0, moved = begin - last_begin;
    for (uint32_t k = 0; k < BAND; k++) {
        uint32_t cost = NEVER, from = k + moved;
        steps[k] = STEP_ONLY_A;
        if (begin + k > walk->b.items) {
            costs[k] = NEVER;
            continue;
        }
        if (from < BAND && last[from] != NEVER)
            cost = last[from] + ALONE;
        if (from > 0 && from <= BAND && last[from - 1] != NEVER && begin + k > 0) {
            uint32_t pairing = last[from - 1] + price(walk, i, begin + k - 1);
            if (pairing <= cost) {
                cost = pairing;
                steps[k] = STEP_PAIR;
            }
        }
        if (k > 0 && costs[k - 1] + ALONE < cost) {
            cost = costs[k - 1] + ALONE;
            steps[k] = STEP_ONLY_B;
        }
        costs[k] = (uint16_t)(cost < NEVER ? cost : NEVER);
        best = costs[k] < costs[best] ? k : best;
    }
    return best;
}

/* The way back from row `rows` and place `at` to row 0; pairs what it pairs. */
static void trace_back(path *walk, uint32_t i, uint32_t rows, uint32_t at)
{
    for (uint32_t row = rows; row > 0;) {
        uint8_t way = walk->steps[(uint64_t)(row - 1) * BAND + (at - walk->begin[row])];
        if (way == STEP_PAIR)
            pair(walk, i + row - 1, at - 1);
        row -= way != STEP_ONLY_B;
        at -= way != STEP_ONLY_A;
    }
}

/* At the end of both, what is left of b has no partner either: the cheapest place with that. */
static uint32_t cheapest_end(const path *walk, const uint16_t *costs, uint32_t begin, uint32_t best)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t k = 0; k < BAND && begin + k <= walk->b.items; k++) {
        uint64_t cost = costs[k] + (uint64_t)ALONE * (walk->b.items - begin - k);
        if (costs[k] != NEVER && cost < least) {
            least = cost;
            best = k;
        }
    }
    return best;
}

/* Moves *i and *j over a stretch where the two differ. */
static void cross(path *walk, uint32_t *i, uint32_t *j)
{
    uint16_t rows[2][BAND];
    uint32_t row = 0, best = 0, alike_rows = 0;
    walk->begin[0] = *j;
    for (uint32_t k = 0; k < BAND; k++)
        rows[0][k] = *j + k <= walk->b.items ? (uint16_t)(k * ALONE) : NEVER;
    while (row < ROWS && *i + row < walk->a.items && alike_rows < SURE) {
        uint32_t begin = walk->begin[row], was = begin + best;
        if (best > BAND / 2)
            begin += best - BAND / 2;
        uint16_t *last = rows[row % 2], *next = rows[(row + 1) % 2];
        /* Prices count from the cheapest, so that they stay small. */
        uint16_t least = last[best];
        for (uint32_t k = 0; k < BAND; k++)
            last[k] = last[k] == NEVER ? NEVER : (uint16_t)(last[k] - least);
        best = fill_row(walk, *i + row, begin, last, walk->begin[row], next,
                        walk->steps + (uint64_t)row * BAND);
        walk->begin[row + 1] = begin;
        bool on = begin + best == was + 1 && next[best] == 0 && alike(walk, *i + row, was);
        alike_rows = on ? alike_rows + 1 : 0;
        row++;
    }
    if (*i + row == walk->a.items)
        best = cheapest_end(walk, rows[row % 2], walk->begin[row], best);
    trace_back(walk, *i, row, walk->begin[row] + best);
    *i += row;
    *j = walk->begin[row] + best;
}

/* Pairs each request with the one that has its number, where each of these pairs is alike but for a
 * size or a gap. Every other way leaves two requests alone at least, to go on beside partners that
 * are no better. (Iterations of a job whose sizes follow its batch are like that; to keep all ways
 * of 8,637 requests took 41 ms.) */
static bool pair_straight(path *walk)
{
    if (walk->a.items != walk->b.items)
        return false;
    for (uint32_t i = 0; i < walk->a.items; i++)
        if (price(walk, i, i) > 1)
            return false;
    for (uint32_t i = 0; i < walk->a.items; i++)
        pair(walk, i, i);
    return true;
}

uint32_t pleat__align(const pleat__requests *requests, pleat__stretch a, pleat__stretch b,
                      uint32_t *pairs)
{
    return pleat__align_scaled(requests, a, b, 1, 1, pairs);
}

uint32_t pleat__align_scaled(const pleat__requests *requests, pleat__stretch a, pleat__stretch b,
                             uint32_t a_part, uint32_t b_part, uint32_t *pairs)
{
    path walk = {.items = requests->items,
                 .a = a,
                 .b = b,
                 .a_part = a_part,
                 .b_part = b_part,
                 .pairs = pairs};
    for (uint32_t i = 0; i < a.items; i++)
        pairs[i] = PLEAT__NEVER;
    if (pair_straight(&walk))
        return walk.paired;
    uint32_t rows = a.items < ROWS ? a.items : ROWS;
    walk.steps = pleat__arena_alloc(requests->arena, (uint64_t)rows * BAND + 1);
    walk.begin = pleat__arena_alloc(requests->arena, (rows + 1ull) * sizeof *walk.begin);
    /* Without host memory for more, only what goes on alike from the beginning is paired. */
    bool can_cross = walk.steps != NULL && walk.begin != NULL;
    uint32_t i = 0, j = 0;
    while (i < a.items && j < b.items) {
        if (alike(&walk, i, j))
            pair(&walk, i++, j++);
        else if (can_cross)
            cross(&walk, &i, &j);
        else
            break;
    }
    pleat__arena_free(requests->arena, walk.begin);
    pleat__arena_free(requests->arena, walk.steps);
    return walk.paired;
}
