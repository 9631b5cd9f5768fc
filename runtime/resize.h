/*
 * resize.h: a plan file with a recipe (plan/elastic.h), in a job whose microbatch or length
 * changes.
 *
 * The plan's places are those of the x that it was laid out for, and they serve every smaller x as
 * well: requests are then smaller than their slots, nothing moves, and nothing is mapped. So at the
 * first requests of an iteration that depend on x their sizes say which x it is, and from then on
 * the sizes at that x are expected.
 *
 * A larger x has no places here; its requests go where unexpected ones go.
 */
#ifndef PLEAT_RUNTIME_RESIZE_H
#define PLEAT_RUNTIME_RESIZE_H

#include <plan/elastic.h>
#include <runtime/follow.h>

typedef struct pleat__resize {
    pleat__arena *arena;
    const pleat_plan *plan; /* NULL: none, or one without a recipe */
    pleat__follow *follow;  /* the plan's */
    uint64_t *values;       /* of each function at x; UINT64_MAX where it has none */
    pleat__x x;             /* whose sizes are expected */
    pleat__x_finder finder;
    uint32_t left; /* requests of this iteration that are still looked at */
} pleat__resize;

/* `plan` and `follow` stay. Nothing is done for a plan without a recipe. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__resize_init(pleat__resize *resize, pleat__arena *arena,
                                                const pleat_plan *plan, pleat__follow *follow);
void pleat__resize_release(pleat__resize *resize);
/* An iteration begins. */
void pleat__resize_mark(pleat__resize *resize);
/* A request comes while the plan is followed and pleat__resize_asks. */
void pleat__resize_ask(pleat__resize *resize, uint64_t bytes, uint16_t stream);

static inline bool pleat__resize_asks(const pleat__resize *resize, const pleat__follow *followed)
{
    return resize->left != 0 && resize->follow == followed;
}

#endif
