/*
 * states.h: what the policy `pleat` is doing, and why.
 *
 *             alike (adopt)               diverged (suspend)
 *      +-> heap ----------> following ------------------------> suspended
 *      |    ^                 |   ^                              |    |
 *      |    |  misfit (drop)  |   |       resumed (resume)       |    |
 *      |    +-----------------+   +------------------------------+    |
 *      |                                                              |
 *      +-------------------- again, misfit (drop) --------------------+
 *
 * heap       nothing is followed: the heap serves, and the recording waits for iterations that are
 *            alike
 * following  a schedule is followed: a plan file's (cause file; laid_out where a larger layout
 *            takes its place, followed or suspended), or an iteration as it lay (alike)
 * suspended  there is a schedule, but this iteration is another; the heap serves
 *
 * The cause `misfit`: a plan file is left for good, as another job's; `again`: a learned schedule
 * was suspended in the iteration before, too.
 *
 * The functions named are learner.c's, the only ones that set a state.
 */
#ifndef PLEAT_RUNTIME_BASE_STATES_H
#define PLEAT_RUNTIME_BASE_STATES_H

#include <stdint.h>

#define PLEAT__STATES(X) X(heap) X(following) X(suspended)
#define PLEAT__CAUSES(X)                                                                           \
    X(start)                                                                                       \
    X(file)                                                                                        \
    X(alike)                                                                                       \
    X(diverged)                                                                                    \
    X(resumed)                                                                                     \
    X(again)                                                                                       \
    X(laid_out)                                                                                    \
    X(misfit)

typedef enum pleat__state {
#define PLEAT__STATE_ENUM(name) PLEAT__STATE_##name,
    PLEAT__STATES(PLEAT__STATE_ENUM)
#undef PLEAT__STATE_ENUM
        PLEAT__STATE_COUNT
} pleat__state;

typedef enum pleat__cause {
#define PLEAT__CAUSE_ENUM(name) PLEAT__CAUSE_##name,
    PLEAT__CAUSES(PLEAT__CAUSE_ENUM)
#undef PLEAT__CAUSE_ENUM
        PLEAT__CAUSE_COUNT
} pleat__cause;

typedef struct pleat__states {
    pleat__state now;
    uint64_t entered[PLEAT__STATE_COUNT];
    uint64_t caused[PLEAT__CAUSE_COUNT];
} pleat__states;

/* The one setter. Traps on a transition that the diagram does not have (R12 in
 * docs/invariants.md). */
void pleat__states_set(pleat__states *states, pleat__state next, pleat__cause cause);
const char *pleat__state_name(pleat__state state);
const char *pleat__cause_name(pleat__cause cause);

#endif
