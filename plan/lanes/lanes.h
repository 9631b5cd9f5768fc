/*
 * lanes.h: where the requests go whose size or presence differs between iterations.
 *
 * A lane is a stretch of the window for one lifetime class of them: those allocated in one window
 * of the iteration and freed in another (STWeaver's HomoLayer groups, section 5.2 of the paper,
 * with both ends). It is placed like any item: live from its first allocation to its last free, as
 * large as its class ever was in the profiled iterations, and more for what those did not show.
 * Within it the runtime places byte by byte, best fit.
 *
 * WINDOWS
 * A window is a stretch of the iteration in which such requests come and go without a long pause: a
 * mixture-of-experts layer's forward or backward, seen from its allocations. The requests of a
 * class differ one by one while their sum stays the same (a token goes to some expert), so windows
 * that hold all of a layer need next to no margin. Which pause is long is tried out: the one whose
 * lanes cost least at the iteration's peak. Where one number changes all sizes together, a
 * sequence's length, every request has a lane of its own: all are at their largest in the same
 * iteration.
 *
 * MARGIN
 * Given by how much the profiles differ, and never more than 15 % of the need: a lane whose need
 * was the same in all of them gets none, one seen once gets all of it.
 */
#ifndef PLEAT_PLAN_LANES_LANES_H
#define PLEAT_PLAN_LANES_LANES_H

#include <plan/fold/fold.h>

/* Makes lanes for the plan's dynamic slots: fills plan->lanes (places are PLEAT__NOWHERE) and the
 * slots' lane and window. `sizes` has for each profile and each dynamic slot, in order, the bytes
 * it took there, 0 when it was absent: sizes[profile * dynamic + rank]. Slots that are not freed
 * within an iteration get no lane. items[plan->lane_count], from `scratch`, are what is to be
 * placed: the lanes as items. PLEAT_E_NO_MEMORY; PLEAT_E_INPUT: a profile's add up to 2^62 bytes.
 */
PLEAT_NODISCARD pleat_result pleat__lanes_make(pleat_plan *plan, const uint64_t *sizes,
                                               uint32_t profiles, pleat__arena *scratch,
                                               pleat__item **items);

/* A request within a lane: positions of one iteration; with end <= begin it wraps around. */
typedef struct pleat__lane_request {
    uint64_t size; /* a multiple of PLEAT__ALIGNMENT */
    uint32_t begin;
    uint32_t end;
} pleat__lane_request;

/* Places requests by best fit, as the runtime does; *height is the highest end in use. pre: they
 * add up to less than 2^62 bytes. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__lane_fit(const pleat__lane_request *requests, uint32_t count,
                                             pleat__arena *scratch, uint64_t *height);

#endif
