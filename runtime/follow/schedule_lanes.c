/*
 * schedule_lanes.c: which lane a request without a slot goes to (see schedule.h).
 *
 * In order: the lane of the item that it is, and the lanes of the items around, because where the
 * number of requests changes more of them come than were profiled. (To look through all others as
 * well brings nothing: D469 in docs/decisions.md.)
 */
#include <runtime/follow/schedule.h>
#include <runtime/memory/rest.h>

#define BESIDE 64u /* items looked at, before and behind (D182) */

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

/* Whether the plan knows the request and gave it no lane: it outlives the iteration, and in another
 * request's lane it would be in the way of whatever has the same memory later (D531). */
static bool has_none(const pleat__schedule *schedule, uint32_t item)
{
    return item < schedule->count && schedule->items[item].kind == PLEAT__ITEM_DYNAMIC &&
           schedule->items[item].lane == PLEAT__NO_LANE;
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

bool pleat__schedule_in_lane(pleat__schedule *schedule, pleat__heap *heap, uint32_t item,
                             uint32_t granules, uint16_t stream, pleat__place *place, bool *rests)
{
    search s = {
        .schedule = schedule, .heap = heap, .granules = granules, .stream = stream, .place = place};
    bool found = !has_none(schedule, item) && (take_own(&s, item) || take_beside(&s));
    *rests = s.rests;
    return found && !s.rests;
}
