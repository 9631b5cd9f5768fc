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

#define BESIDE 64u /* items looked at, before and behind */

static bool take(pleat__schedule *schedule, pleat__heap *heap, uint32_t lane, uint32_t granules,
                 uint16_t stream, pleat__place *place)
{
    if (!pleat__lane_alloc(&schedule->lanes[lane], heap, granules, stream, place))
        return false;
    place->lane = schedule->lane_base + lane + 1;
    return true;
}

static uint32_t lane_of(const pleat__schedule *schedule, uint32_t item)
{
    return item < schedule->count && schedule->items[item].kind == PLEAT__ITEM_DYNAMIC
               ? schedule->items[item].lane
               : PLEAT__NO_LANE;
}

static bool take_beside(pleat__schedule *schedule, pleat__heap *heap, uint32_t granules,
                        uint16_t stream, pleat__place *place)
{
    uint32_t cursor = schedule->matcher.cursor, tried = PLEAT__NO_LANE;
    for (uint32_t i = 0; i < BESIDE; i++) {
        uint32_t both[2] = {lane_of(schedule, cursor - 1 - i), lane_of(schedule, cursor + i)};
        for (int k = 0; k < 2; k++) {
            if (both[k] == PLEAT__NO_LANE || both[k] == tried)
                continue;
            if (take(schedule, heap, both[k], granules, stream, place))
                return true;
            tried = both[k];
        }
    }
    return false;
}

static bool take_any(pleat__schedule *schedule, pleat__heap *heap, uint32_t granules,
                     uint16_t stream, pleat__place *place)
{
    uint32_t best = PLEAT__NO_LANE, now = schedule->matcher.cursor;
    uint64_t least = UINT64_MAX;
    for (uint32_t l = 0; l < schedule->lane_count; l++) {
        const pleat__lane_space *lane = &schedule->lanes[l];
        if (lane->granules < granules || !pleat__lane_is_open(lane, now))
            continue;
        pleat__run hole = pleat__free_runs_best(&lane->free, granules);
        uint64_t cost = now > lane->last ? hole.count : UINT64_MAX - 1 - lane->free.granules;
        if (hole.count != 0 && cost < least) {
            least = cost;
            best = l;
        }
    }
    return best != PLEAT__NO_LANE && take(schedule, heap, best, granules, stream, place);
}

bool pleat__schedule_in_lane(pleat__schedule *schedule, pleat__heap *heap, uint32_t item,
                             uint32_t granules, uint16_t stream, pleat__place *place)
{
    uint32_t lane = lane_of(schedule, item);
    return (lane != PLEAT__NO_LANE && take(schedule, heap, lane, granules, stream, place)) ||
           take_beside(schedule, heap, granules, stream, place) ||
           take_any(schedule, heap, granules, stream, place);
}
