/*
 * schedule_lanes.c: which lane a request without a slot goes to (see schedule.h).
 *
 * In order: the lane of the item that it is; the lanes of the items around, because where the
 * number of requests changes more of them come than were profiled; then any lane that is open. Of
 * those the ones that expect nothing more come first, best fit: no item expects what is left of
 * them. Taking the smallest hole of all instead fills a lane that its own requests are about to
 * need, and they then do the same to the next.
 */
#include <runtime/follow/schedule.h>
#include <runtime/memory/rest.h>

#include <internal/error.h>

#define BESIDE 64u /* items looked at, before and behind (D182) */

/* ---- which lanes are open ---- */

static uint32_t part_of(const pleat__schedule *schedule, uint32_t item)
{
    return (uint32_t)((uint64_t)item * PLEAT__LANE_PARTS / schedule->count);
}

/* Into the lists of the parts that hold items from `first` to before `end`; `counts` alone where
 * there are no lists yet. */
static void open_in(pleat__schedule *schedule, uint32_t lane, uint32_t first, uint32_t end)
{
    uint32_t last = end < schedule->count ? end : schedule->count;
    for (uint32_t p = first < last ? part_of(schedule, first) : PLEAT__LANE_PARTS;
         p < PLEAT__LANE_PARTS && p <= part_of(schedule, last - 1); p++) {
        if (schedule->open_lanes != NULL)
            schedule->open_lanes[schedule->open_from[p]] = lane;
        schedule->open_from[p]++;
    }
}

static void open_all(pleat__schedule *schedule)
{
    for (uint32_t l = 0; l < schedule->lane_count; l++) {
        const pleat__lane_space *lane = &schedule->lanes[l];
        bool wraps = lane->first >= lane->end;
        open_in(schedule, l, lane->first, wraps ? schedule->count : lane->end);
        if (wraps)
            open_in(schedule, l, 0, lane->end);
    }
}

/* From how many there are in each part, or where each part's list ended, to where it begins. */
static void counts_to_begins(uint32_t *from)
{
    uint32_t begin = 0;
    for (uint32_t p = 0; p <= PLEAT__LANE_PARTS; p++) {
        uint32_t count = from[p];
        from[p] = begin;
        begin += count;
    }
}

static void ends_to_begins(uint32_t *from)
{
    for (uint32_t p = PLEAT__LANE_PARTS; p > 0; p--)
        from[p] = from[p - 1];
    from[0] = 0;
}

pleat_result pleat__schedule_index_lanes(pleat__schedule *schedule)
{
    const size_t size = sizeof *schedule->open_from;
    if (schedule->lane_count == 0)
        return PLEAT_OK;
    schedule->open_from = pleat__arena_calloc(schedule->arena, PLEAT__LANE_PARTS + 1, size);
    if (schedule->open_from != NULL) {
        open_all(schedule);
        counts_to_begins(schedule->open_from);
        schedule->open_lanes = pleat__arena_alloc(
            schedule->arena, (schedule->open_from[PLEAT__LANE_PARTS] + 1) * size);
    }
    if (schedule->open_lanes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an index of %u lanes",
                           schedule->lane_count);
    open_all(schedule);
    ends_to_begins(schedule->open_from);
    return PLEAT_OK;
}

/* ---- looking for one with room ---- */

/* A request on its way into a lane. */
typedef struct search {
    pleat__schedule *schedule;
    pleat__heap *heap;
    uint32_t granules;
    uint16_t stream;
    pleat__place *place;
    bool rests; /* a lane has room that rests: that is the place, not taken */
} search;

/* Whether the lane's hole for it rests. */
static bool finds_rest(search *s, const pleat__lane_space *lane)
{
    if (s->heap->pool->resting_count == 0 ||
        !pleat__lane_hole(lane, s->heap->arena, s->granules, s->place))
        return false;
    s->rests = pleat__rest_holds(s->heap->pool, s->place);
    if (!s->rests)
        pleat__arena_free(s->heap->arena, s->place->several);
    return s->rests;
}

/* Whether the search ends here. What rests counts as in use, and is not to be passed over. */
static bool take(search *s, uint32_t lane)
{
    pleat__lane_space *space = &s->schedule->lanes[lane];
    if (finds_rest(s, space))
        return true;
    if (!pleat__lane_alloc(space, s->heap, s->granules, s->stream, s->place))
        return false;
    s->place->lane = s->schedule->lane_base + lane + 1;
    return true;
}

static uint32_t lane_of(const pleat__schedule *schedule, uint32_t item)
{
    return item < schedule->count && schedule->items[item].kind == PLEAT__ITEM_DYNAMIC
               ? schedule->items[item].lane
               : PLEAT__NO_LANE;
}

static bool take_own(search *s, uint32_t item)
{
    uint32_t lane = lane_of(s->schedule, item);
    return lane != PLEAT__NO_LANE && take(s, lane);
}

static bool take_beside(search *s)
{
    uint32_t cursor = s->schedule->matcher.cursor, tried = PLEAT__NO_LANE;
    for (uint32_t i = 0; i < BESIDE; i++) {
        uint32_t both[2] = {lane_of(s->schedule, cursor - 1 - i), lane_of(s->schedule, cursor + i)};
        for (int k = 0; k < 2; k++) {
            if (both[k] == PLEAT__NO_LANE || both[k] == tried)
                continue;
            if (take(s, both[k]))
                return true;
            tried = both[k];
        }
    }
    return false;
}

static bool take_any(search *s)
{
    const pleat__schedule *schedule = s->schedule;
    uint32_t best = PLEAT__NO_LANE, now = schedule->matcher.cursor;
    const uint32_t *from = &schedule->open_from[part_of(schedule, now)];
    uint64_t least = UINT64_MAX;
    for (uint32_t i = from[0]; i < from[1]; i++) {
        uint32_t l = schedule->open_lanes[i];
        const pleat__lane_space *lane = &schedule->lanes[l];
        if (lane->granules < s->granules || !pleat__lane_is_open(lane, now))
            continue;
        pleat__run hole = pleat__lane_best(lane, s->granules);
        uint64_t cost = now > lane->last ? hole.count : UINT64_MAX - 1 - pleat__lane_free(lane);
        if (hole.count != 0 && cost < least) {
            least = cost;
            best = l;
        }
    }
    return best != PLEAT__NO_LANE && take(s, best);
}

bool pleat__schedule_in_lane(pleat__schedule *schedule, pleat__heap *heap, uint32_t item,
                             uint32_t granules, uint16_t stream, pleat__place *place, bool *rests)
{
    search s = {
        .schedule = schedule, .heap = heap, .granules = granules, .stream = stream, .place = place};
    bool found = take_own(&s, item) || take_beside(&s) || take_any(&s);
    *rests = s.rests;
    return found && !s.rests;
}
