/*
 * states.h: what the policy is doing with a job, and why it changed.
 *
 *         agreed, varies          made                switched
 *   LEARNING ---------> PLANNING ---------> SWITCHING ---------> PLANNED
 *    ^   ^                |  ^                                  |  |  ^
 *    |   |   no_memory,   |  |              diverged            |  |  |
 *    |   |   refused      |  |             +--------------------+  |  |
 *    |   +----------------+  |             |                       |  |
 *    |                       |             v                       |  |
 *    |                       |         DIVERGED                    |  |
 *    |                       |             | unknown               |  |
 *    |                agreed |             v                       |  |
 *    |                varies +-------- RELEARNING -----------------|--+
 *    |                                              returned       |
 *    +-------------------------------------------------------------+
 *      varies: iterations were recorded, and their requests vary: a plan is made in the background
 *      made: from PLANNED to SWITCHING as well: such a plan takes the place of what is followed
 *      refused: nothing came of it
 *      returned: from PLANNING too, from LEARNING, where what was followed was given up, and from
 *      PLANNED, where that takes nearly anything for its own
 *      scaled: to PLANNED from LEARNING, PLANNING, RELEARNING and PLANNED: an iteration's first
 *      requests say which x it has, and the instance of that x is taken up (elastic.h)
 *      refitted: from PLANNED to LEARNING: sizes follow x in another way than was known
 *      marked: the job begins to mark its iterations, and one found by its period was followed
 *      misfit: from PLANNED to LEARNING too: a plan file turned out to be another job's
 *
 *   LEARNING    requests go to the heap and are recorded (learn.c)
 *   PLANNING    what is to be followed is made from what was recorded: at once, from an iteration
 *               that repeats the one before, or in the background; requests go on as in LEARNING
 *   SWITCHING   it is taken up, at the boundary of an iteration; persistent tensors stay
 *   PLANNED     requests are matched; what does not match goes to the heap
 *   DIVERGED    too many did not match: what is followed is put aside
 *   RELEARNING  as LEARNING; a shape that was followed before is taken up when it returns
 *
 * A runtime that is given a plan file begins in PLANNED (cause: file).
 */
#ifndef PLEAT_RUNTIME_BASE_STATES_H
#define PLEAT_RUNTIME_BASE_STATES_H

#include <stdint.h>

#define PLEAT__STATES(X) X(learning) X(planning) X(switching) X(planned) X(diverged) X(relearning)
#define PLEAT__CAUSES(X)                                                                           \
    X(start)                                                                                       \
    X(file)                                                                                        \
    X(agreed)                                                                                      \
    X(varies)                                                                                      \
    X(refused)                                                                                     \
    X(made)                                                                                        \
    X(no_memory)                                                                                   \
    X(switched)                                                                                    \
    X(diverged)                                                                                    \
    X(unknown)                                                                                     \
    X(returned)                                                                                    \
    X(marked)                                                                                      \
    X(scaled)                                                                                      \
    X(refitted)                                                                                    \
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

/* The one setter. Traps on a transition that the diagram does not have. */
void pleat__states_set(pleat__states *states, pleat__state next, pleat__cause cause);
const char *pleat__state_name(pleat__state state);
const char *pleat__cause_name(pleat__cause cause);

#endif
