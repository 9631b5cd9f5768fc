/*
 * valleys.c: finds where iterations begin by what is live, when nobody says so.
 *
 * What an iteration allocates it frees, but for what stays for good. So live bytes come back to the
 * same low level once an iteration, however much its sizes and its number of requests change. A
 * VALLEY is where live bytes are least between two rises; only those count that reach the level of
 * the lowest ones behind them. Where a job comes down several times an iteration (after each
 * microbatch, before and after the optimizer's step), the numbers of requests from valley to valley
 * repeat every few of them.
 */
#include <plan/model/marks.h>

#include <internal/error.h>

#define RISE   4  /* a valley's sides are at least 1/RISE as high as those of the deepest one */
#define LEVEL  64 /* valleys are as low where they differ by 1/LEVEL of that */
#define EVEN   65 /* percent of the requests of the longer stretches that the shorter ones have */
#define MOST   64 /* valleys of an iteration */
#define TRIED  6  /* numbers of them that are tried */
#define BETTER 20 /* percent by which more of them must agree better */
#define READY  8  /* requests before it that may be for it */

typedef struct valley {
    uint32_t at; /* the last position as low as the lowest valley behind it is */
    uint64_t level;
} valley;

typedef struct valleys {
    valley *all;
    uint32_t count;
    size_t capacity;
    uint64_t depth; /* of the deepest in the later half of the trace */
} valleys;

/* How far the deepest valley in [left, right] lies below the lower of its sides. */
static uint64_t deepest(const uint64_t *live, uint32_t left, uint32_t right)
{
    uint64_t left_most = 0, right_most = 0, depth = 0;
    while (left < right) {
        bool from_left = live[left] < live[right];
        uint64_t here = from_left ? live[left++] : live[right--];
        uint64_t *most = from_left ? &left_most : &right_most;
        *most = here > *most ? here : *most;
        depth = *most - here > depth ? *most - here : depth;
    }
    return depth;
}

static pleat_result add_valley(const pleat__requests *requests, valleys *found, valley one)
{
    PLEAT_TRY(pleat__arena_grow(requests->arena, &found->all, &found->capacity, found->count,
                                sizeof *found->all));
    found->all[found->count++] = one;
    return PLEAT_OK;
}

/* All valleys whose sides are high enough. */
static pleat_result list_valleys(const pleat__requests *requests, const uint64_t *live,
                                 valleys *found)
{
    uint64_t rise = found->depth / RISE;
    valley turn = {0};
    bool rising = true;
    for (uint32_t at = 0; at <= requests->event_count; at++) {
        if (rising ? live[at] >= turn.level : live[at] <= turn.level) {
            turn = (valley){at, live[at]};
            continue;
        }
        if ((rising ? turn.level - live[at] : live[at] - turn.level) <= rise)
            continue;
        if (!rising)
            PLEAT_TRY(add_valley(requests, found, turn));
        turn = (valley){at, live[at]};
        rising = !rising;
    }
    return PLEAT_OK;
}

/* The last iteration has no rise behind it: it ends behind its last allocation and the frees of its
 * own requests, where that comes down as far. */
static pleat_result close_last(const pleat__requests *requests, const uint64_t *live,
                               valleys *found)
{
    valley last = found->all[found->count - 1];
    uint32_t end = pleat__open_end(requests, last.at);
    if (end <= last.at || live[end] > last.level + found->depth / LEVEL)
        return PLEAT_OK;
    return add_valley(requests, found, (valley){end, live[end]});
}

/* The level of the lowest valley in the later half of the trace. */
static uint64_t late_level(const pleat__requests *requests, const valleys *found)
{
    uint64_t lowest = UINT64_MAX;
    for (uint32_t i = 0; i < found->count; i++)
        if (found->all[i].at >= requests->event_count / 2 && found->all[i].level < lowest)
            lowest = found->all[i].level;
    return lowest;
}

/* From the valley's bottom on the last position as low as `level`: what the first iteration leaves
 * for good is allocated behind its bottom. */
static valley raised(const pleat__requests *requests, const uint64_t *live, const valleys *found,
                     valley one, uint64_t level)
{
    uint64_t most = level + found->depth / RISE;
    for (uint32_t at = one.at; at <= requests->event_count && live[at] <= most; at++)
        if (live[at] <= level)
            one = (valley){at, live[at]};
    return one;
}

/* Keeps the valleys that are as low as the lowest one behind them. The last have none behind them:
 * the later half of the trace says how low that is. */
static void drop_high(const pleat__requests *requests, const uint64_t *live, valleys *found)
{
    uint64_t lowest = late_level(requests, found), margin = found->depth / LEVEL;
    uint32_t kept = found->count;
    for (uint32_t i = found->count; i-- > 0;) {
        valley one = found->all[i];
        if (one.level > lowest && one.level - lowest > margin)
            continue;
        found->all[--kept] = one.level < lowest ? raised(requests, live, found, one, lowest) : one;
        lowest = one.level < lowest ? one.level : lowest;
    }
    found->count -= kept;
    for (uint32_t i = 0; i < found->count; i++)
        found->all[i] = found->all[kept + i];
}

static uint32_t requests_between(const pleat__requests *requests, const valleys *found, uint32_t i)
{
    return pleat__stretch_of(requests, found->all[i].at, found->all[i + 1].at).items;
}

static uint64_t sum_of(const uint32_t *lengths, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += lengths[i];
    return sum;
}

/* Whether every so many stretches, counted from the end, are together about as long as those
 * before. */
static bool comes_every(const uint32_t *lengths, uint32_t count, uint32_t every)
{
    uint64_t less = 0, more = 0;
    for (uint32_t end = count; end >= 2 * every; end -= every) {
        uint64_t late = sum_of(lengths + end - every, every);
        uint64_t early = sum_of(lengths + end - 2 * every, every);
        less += late < early ? late : early;
        more += late < early ? early : late;
    }
    return more > 0 && less * 100 >= more * EVEN;
}

/* Which of the `every` valleys of an iteration is its beginning: that behind the optimizer's step,
 * a stretch by itself where it has much shorter ones, else a part of the longest. */
static uint32_t beginning_of(const uint32_t *lengths, uint32_t count, uint32_t every)
{
    uint32_t first = count - every, longest = first;
    uint64_t all = sum_of(lengths + first, every);
    for (uint32_t i = first; i < count; i++)
        longest = lengths[i] > lengths[longest] ? i : longest;
    for (uint32_t i = first; i < count; i++) {
        uint64_t behind = lengths[i + 1 < count ? i + 1 : first];
        if (2ull * every * lengths[i] < all && 2 * every * behind >= all)
            return (i + 1) % every;
    }
    return (longest + 1) % every;
}

/* Where the iteration behind a valley begins: before what is made ready for it in the last requests
 * before it rises, its batch say, which may take the place of the last one; but at `least` or
 * later, since the iteration before it has requests of its own. */
static uint32_t begin_at(const pleat__requests *requests, uint32_t at, uint32_t next,
                         uint32_t least)
{
    uint32_t begin = at;
    for (uint32_t i = at, allocs = 0; i-- > least && allocs < READY;) {
        uint32_t event = requests->events[i], free_at = requests->items[event / 2].free_at;
        allocs += event % 2 == 0;
        if (event % 2 == 0 && free_at >= at && free_at < next)
            begin = i;
    }
    return begin;
}

/* Marks at each `every`th valley, in the order of their positions. */
static uint32_t mark_every(const pleat__requests *requests, const valleys *found,
                           const uint32_t *lengths, uint32_t every, uint32_t *marks)
{
    uint32_t count = 0;
    for (uint32_t i = beginning_of(lengths, found->count - 1, every); i < found->count;
         i += every) {
        uint32_t least = count > 0 ? marks[count - 1] + 1 : 0;
        marks[count++] = i + 1 < found->count
                             ? begin_at(requests, found->all[i].at, found->all[i + 1].at, least)
                             : found->all[i].at;
    }
    return count;
}

/* How many valleys an iteration has: of the numbers with which the lengths repeat that with which
 * the requests do best, and the least of those that are about as good. */
static pleat_result choose_every(const pleat__requests *requests, const valleys *found,
                                 const uint32_t *lengths, uint32_t *marks, uint32_t *out)
{
    uint32_t best = 0, tried = 0, stretches = found->count - 1;
    *out = 1;
    for (uint32_t every = 1; every <= MOST && 2 * every <= stretches && tried < TRIED; every++) {
        if (!comes_every(lengths, stretches, every))
            continue;
        uint32_t percent, count = mark_every(requests, found, lengths, every, marks);
        PLEAT_TRY(pleat__marks_rate(requests, marks, count, &percent));
        if (percent > best + BETTER) {
            best = percent;
            *out = every;
        }
        tried++;
        if (best + BETTER >= 100)
            break;
    }
    return PLEAT_OK;
}

static pleat_result keep_marks(const pleat__requests *requests, const valleys *found,
                               uint32_t **marks, uint32_t *count)
{
    uint32_t stretches = found->count - 1, every;
    uint32_t *lengths = pleat__arena_alloc(requests->arena, stretches * sizeof *lengths);
    *marks = pleat__arena_alloc(requests->arena, found->count * sizeof **marks);
    if (lengths == NULL || *marks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u marks", found->count);
    for (uint32_t i = 0; i < stretches; i++)
        lengths[i] = requests_between(requests, found, i);
    PLEAT_TRY(choose_every(requests, found, lengths, *marks, &every));
    *count = mark_every(requests, found, lengths, every, *marks);
    pleat__arena_free(requests->arena, lengths);
    return PLEAT_OK;
}

static pleat_result find(const pleat__requests *requests, const uint64_t *live, valleys *found,
                         uint32_t **marks, uint32_t *count)
{
    found->depth = deepest(live, requests->event_count / 2, requests->event_count);
    if (found->depth == 0)
        return PLEAT_OK;
    PLEAT_TRY(list_valleys(requests, live, found));
    if (found->count == 0)
        return PLEAT_OK;
    PLEAT_TRY(close_last(requests, live, found));
    drop_high(requests, live, found);
    if (found->count < 2)
        return PLEAT_OK;
    return keep_marks(requests, found, marks, count);
}

pleat_result pleat__valleys_find(const pleat__requests *requests, const uint64_t *live,
                                 uint32_t **marks, uint32_t *count)
{
    valleys found = {0};
    *marks = NULL;
    *count = 0;
    pleat_result result = find(requests, live, &found, marks, count);
    pleat__arena_free(requests->arena, found.all);
    return result;
}
