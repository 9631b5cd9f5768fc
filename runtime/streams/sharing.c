/*
 * sharing.c: see sharing.h.
 */
#include <runtime/streams/sharing.h>

/* It costs too much once it has cost more than 1/PART of the time by so many ns in all: what it
 * costs falls while a job's sizes are new to it (D504). */
#define PART     16u
#define APART_NS UINT64_C(250000000)

bool pleat__sharing_end_iteration(pleat__sharing *sharing, uint64_t now_ns)
{
    /* A recording's clock may stand still, or start again: no time has passed then. */
    uint64_t passed = now_ns > sharing->ended_ns ? now_ns - sharing->ended_ns : 0;
    uint64_t cost = sharing->cost_ns + sharing->waited_ns, part = passed / PART;
    *sharing = (pleat__sharing){.cost_ns = cost > part ? cost - part : 0, .ended_ns = now_ns};
    return sharing->cost_ns > APART_NS;
}
