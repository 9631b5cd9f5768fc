/*
 * judge.h: drops a schedule that does not pay.
 *
 * The one place where that is decided. It looks at whole iterations: how long their requests waited
 * for views to be mapped ("the driver"), whether memory was made for them, and how many lay in
 * slots and lanes.
 *
 *   PLAN FILE  One that served less than half of the requests in four iterations, before it served
 *              one well, is another job's. It is left for good.
 *   COST       An iteration is bad if its requests waited for the driver for more than 1/200 of its
 *              time. A bad iteration adds two points, a good one takes one off; at six points a
 *              learned schedule is dropped, and the heap serves alone for a number of iterations,
 *              the back-off; each is twice as long as the one before.
 *   GROWTH     A learned schedule goes after an iteration for which new memory was made although no
 *              more lived than before, and what is alike is learned anew, where it lies then:
 *              places that are kept leave the heap less choice, and it would grow again and again.
 *              An iteration in which the schedule was suspended does not count (D495 in
 *              docs/decisions.md).
 *
 *   STREAMS    What a stream takes over from another lies in pieces, and each large request is a
 *              new view of them. Requests may wait for such views for 1/16 of the time; what they
 *              wait beyond that adds up, and what they do not wait is taken off. At a quarter of a
 *              second, in an iteration that follows nothing, streams share no memory any more
 *              before new memory is made. Time for views of a stream's own memory is no reason:
 *              keeping streams apart would not save it (D502, D504 in docs/decisions.md).
 *
 * The first two iterations of a learned schedule are not judged: places that cross into the first
 * one settle in the second. Where the program marks no iterations, as many requests as the last
 * schedule has count as one, and at least 1,024.
 */
#ifndef PLEAT_RUNTIME_LEARN_JUDGE_H
#define PLEAT_RUNTIME_LEARN_JUDGE_H

#include <pleat/runtime.h>
#include <runtime/memory/heap.h>

/* Counters at the end of an iteration. */
typedef struct pleat__judge_counts {
    uint64_t placed;    /* requests in slots and lanes */
    uint64_t strays;    /* of those the ones in lanes that matched nothing of the schedule */
    uint64_t elsewhere; /* requests in the heap */
    uint64_t view_ns;   /* time that requests waited while views were mapped ... */
    uint64_t shared_ns; /* ... of that where memory of another stream was taken over for them */
    uint64_t most_live; /* bytes, so far; the statistics' peak is restarted by who reads it */
    uint32_t chunks;    /* the most that there were at the end of an iteration */
    uint64_t now_ns;
} pleat__judge_counts;

typedef enum pleat__followed {
    PLEAT__FOLLOWED_NOTHING = 0,
    PLEAT__FOLLOWED_LEARNED, /* a schedule, to the end */
    PLEAT__FOLLOWED_PART,    /* the same until it was suspended */
    PLEAT__FOLLOWED_FILE,
} pleat__followed;

typedef enum pleat__verdict {
    PLEAT__VERDICT_KEEP = 0,
    PLEAT__VERDICT_DROP, /* the learned schedule: the heap serves alone while judge->backoff != 0 */
    PLEAT__VERDICT_RELEARN,    /* the learned schedule goes, and what is alike is the next one */
    PLEAT__VERDICT_KEEP_APART, /* the streams' memory */
    PLEAT__VERDICT_LEAVE,      /* the plan file: it is another job's */
} pleat__verdict;

/* What bad iterations add up to. */
typedef struct pleat__judge_points {
    uint32_t iterations; /* judged since the schedule was adopted */
    uint32_t bad;        /* points: +2 for a bad iteration, -1 for a good one */
} pleat__judge_points;

typedef struct pleat__judge {
    pleat__judge_counts before;
    pleat__judge_points followed; /* of iterations that followed the learned schedule */
    uint64_t sharing_ns; /* what sharing between streams has cost beyond its part of the time */
    uint32_t backoff;    /* iterations left in which nothing is followed and nothing recorded */
    uint32_t backoffs;   /* so far: the next one is BACKOFF << backoffs iterations */
    uint64_t most_live;  /* bytes, so far: the learner counts them */
    uint64_t strays;  /* requests in lanes that matched nothing, so far: the policy counts them */
    uint32_t strikes; /* iterations of which the plan file served less than half */
    bool fits;        /* the plan file served half of an iteration or more */
} pleat__judge;

/* Another schedule was learned, and is followed from now on. */
void pleat__judge_adopt(pleat__judge *judge);
/* An iteration ended. */
pleat__verdict pleat__judge_iteration(pleat__judge *judge, const pleat__heap *heap,
                                      const pleat_stats *stats, pleat__followed followed);

#endif
