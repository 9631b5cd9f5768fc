/*
 * states.c: the transitions that there are (see states.h).
 */
#include <runtime/base/states.h>

#include <internal/check.h>
#include <stdbool.h>

typedef struct transition {
    pleat__state from;
    pleat__state to;
    pleat__cause cause;
} transition;

#define T(from, to, cause)                                                                         \
    {                                                                                              \
        PLEAT__STATE_##from, PLEAT__STATE_##to, PLEAT__CAUSE_##cause                               \
    }
static const transition transitions[] = {
    T(heap, heap, start),
    T(heap, following, file),
    T(heap, following, alike),
    T(following, following, laid_out),
    T(following, suspended, diverged),
    T(suspended, following, resumed),
    T(suspended, following, laid_out),
    T(suspended, heap, again),
    T(following, heap, misfit),
    T(suspended, heap, misfit),
};
#undef T

static bool is_transition(pleat__state from, pleat__state to, pleat__cause cause)
{
    for (unsigned i = 0; i < sizeof transitions / sizeof *transitions; i++)
        if (transitions[i].from == from && transitions[i].to == to && transitions[i].cause == cause)
            return true;
    return false;
}

void pleat__states_set(pleat__states *states, pleat__state next, pleat__cause cause)
{
    PLEAT_CHECK(is_transition(states->now, next, cause));
    states->now = next;
    states->entered[next]++;
    states->caused[cause]++;
}

const char *pleat__state_name(pleat__state state)
{
    static const char *const names[] = {
#define STATE_NAME(name) #name,
        PLEAT__STATES(STATE_NAME)
#undef STATE_NAME
    };
    return state < PLEAT__STATE_COUNT ? names[state] : "unknown";
}

const char *pleat__cause_name(pleat__cause cause)
{
    static const char *const names[] = {
#define CAUSE_NAME(name) #name,
        PLEAT__CAUSES(CAUSE_NAME)
#undef CAUSE_NAME
    };
    return cause < PLEAT__CAUSE_COUNT ? names[cause] : "unknown";
}
