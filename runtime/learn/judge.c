/*
 * judge.c: see judge.h.
 */
#include <runtime/learn/judge.h>

/* What half and twice these values do: docs/decisions.md, D100 to D107. */

/* An iteration is bad if requests wait for the driver for more than 1/COSTS of its time. */
#define COSTS 200u
/* Iterations after a schedule is adopted that are not judged. */
#define SETTLING 2u
/* Points at which a schedule is dropped; a bad iteration adds 2, a good one takes 1 off. */
#define DROPPED 6u
/* Streams share no more once that has cost more than 1/SHARING of the time by so many ns in all. It
 * is for good, and what sharing costs falls while a job's sizes are new to it (D504). */
#define SHARING  16u
#define APART_NS UINT64_C(250000000)
/* Iterations of the first back-off, and how often it doubles at most. */
#define BACKOFF       16u
#define MOST_BACKOFFS 6u
/* An iteration of fewer requests says nothing about a plan file. */
#define FEW 64u
/* Iterations of which the plan file served less than half, until it is left. */
#define STRIKES 4u

void pleat__judge_adopt(pleat__judge *judge)
{
    judge->followed = (pleat__judge_points){0};
}

static pleat__judge_counts count(const pleat__judge *judge, const pleat__heap *heap,
                                 const pleat_stats *stats)
{
    uint32_t chunks = heap->pool->count - heap->pool->absent;
    return (pleat__judge_counts){.placed = stats->planned + stats->lane,
                                 .strays = judge->strays,
                                 .elsewhere = stats->stitched + stats->cached,
                                 .view_ns = heap->view_ns,
                                 .shared_ns = heap->shared_ns,
                                 .most_live = judge->most_live,
                                 .chunks =
                                     chunks > judge->before.chunks ? chunks : judge->before.chunks,
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

/* Whether memory was made although no more lived than before. */
static bool grew(const pleat__judge_counts *before, const pleat__judge_counts *now)
{
    return now->chunks > before->chunks && now->most_live == before->most_live;
}

/* Whether what is followed costs more time than it gives. */
static bool is_dear(pleat__judge_points *points, bool bad)
{
    if (points->iterations++ < SETTLING)
        return false;
    points->bad += bad ? 2 : 0;
    points->bad -= !bad && points->bad != 0;
    return points->bad >= DROPPED;
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
    /* A recording's clock may stand still, or start again: no time has passed then. */
    uint64_t passed = now.now_ns > before.now_ns ? now.now_ns - before.now_ns : 0;
    judge->before = now;
    judge->backoff -= judge->backoff != 0;
    bool waits = (now.view_ns - before.view_ns) * COSTS > passed;
    bool apart = is_sharing_dear(judge, now.shared_ns - before.shared_ns, passed);
    if (followed == PLEAT__FOLLOWED_NOTHING)
        return apart ? PLEAT__VERDICT_KEEP_APART : PLEAT__VERDICT_KEEP;
    if (followed == PLEAT__FOLLOWED_FILE) {
        uint64_t strays = now.strays - before.strays;
        return is_misfit(judge, placed - strays, placed + elsewhere) ? PLEAT__VERDICT_LEAVE
                                                                     : PLEAT__VERDICT_KEEP;
    }
    bool settled = judge->followed.iterations >= SETTLING;
    if (!is_dear(&judge->followed, waits))
        return followed == PLEAT__FOLLOWED_LEARNED && settled && grew(&before, &now)
                   ? PLEAT__VERDICT_RELEARN
                   : PLEAT__VERDICT_KEEP;
    judge->backoff = BACKOFF << judge->backoffs;
    judge->backoffs += judge->backoffs < MOST_BACKOFFS;
    return PLEAT__VERDICT_DROP;
}
