/*
 * judge.c: see judge.h.
 */
#include <runtime/learn/judge.h>

/* Streams share no more once that has cost more than 1/SHARING of the time by so many ns in all. It
 * is for good, and what sharing costs falls while a job's sizes are new to it (D504). */
#define SHARING  16u
#define APART_NS UINT64_C(250000000)
/* An iteration of fewer requests says nothing about a plan file (D106). */
#define FEW 64u
/* Iterations of which the plan file served less than half, until it is left (D107). */
#define STRIKES 4u

static pleat__judge_counts count(const pleat__judge *judge, const pleat__heap *heap,
                                 const pleat_stats *stats)
{
    return (pleat__judge_counts){.placed = stats->planned + stats->lane,
                                 .strays = judge->strays,
                                 .elsewhere = stats->stitched + stats->cached,
                                 .shared_ns = heap->shared_ns,
                                 .now_ns = pleat__heap_now(heap)};
}

/* Whether the plan file is another job's. A lane takes any request that it has room for: one that
 * matched nothing does not speak for the plan. */
static bool is_misfit(pleat__judge *judge, uint64_t matched, uint64_t asked)
{
    if (judge->fits || asked < FEW)
        return false;
    judge->fits = 2 * matched >= asked;
    judge->strikes += !judge->fits;
    return judge->strikes >= STRIKES;
}

/* Whether it costs too much that streams share memory. */
static bool is_sharing_dear(pleat__judge *judge, uint64_t shared_ns, uint64_t passed)
{
    uint64_t cost = judge->sharing_ns + shared_ns, part = passed / SHARING;
    judge->sharing_ns = cost > part ? cost - part : 0;
    return judge->sharing_ns > APART_NS;
}

pleat__verdict pleat__judge_iteration(pleat__judge *judge, const pleat__heap *heap,
                                      const pleat_stats *stats, pleat__followed followed)
{
    const pleat__judge_counts before = judge->before, now = count(judge, heap, stats);
    uint64_t placed = now.placed - before.placed, elsewhere = now.elsewhere - before.elsewhere;
    uint64_t strays = now.strays - before.strays;
    /* A recording's clock may stand still, or start again: no time has passed then. */
    uint64_t passed = now.now_ns > before.now_ns ? now.now_ns - before.now_ns : 0;
    judge->before = now;
    bool apart = is_sharing_dear(judge, now.shared_ns - before.shared_ns, passed);
    if (followed == PLEAT__FOLLOWED_NOTHING && apart)
        return PLEAT__VERDICT_KEEP_APART;
    if (followed == PLEAT__FOLLOWED_FILE && is_misfit(judge, placed - strays, placed + elsewhere))
        return PLEAT__VERDICT_LEAVE;
    return PLEAT__VERDICT_KEEP;
}
