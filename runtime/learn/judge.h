/*
 * judge.h: what does not pay is given up.
 *
 * It looks at whole iterations: how many requests lay in slots and lanes, and how long they waited
 * for the driver where streams shared memory.
 *
 *   PLAN FILE  One that served less than half of the requests in four iterations, before it served
 *              one well, is another job's. It is left for good.
 *   STREAMS    What a stream takes over from another lies in pieces, and each large request is a
 *              new view of them. Requests may wait for such views for 1/16 of the time; what they
 *              wait beyond that adds up, and what they do not wait is taken off. At a quarter of a
 *              second, in an iteration that follows nothing, streams share no memory any more
 *              before new memory is made. Time for views of a stream's own memory is no reason:
 *              keeping streams apart would not save it (D502, D504 in docs/decisions.md).
 *
 * A learned schedule is not judged: where iterations are alike its places cost nothing, and it ends
 * when they are not (D103, D495).
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
    uint64_t shared_ns; /* time that requests waited for views of what was taken over */
    uint64_t now_ns;
} pleat__judge_counts;

/* What an iteration followed. */
typedef enum pleat__followed {
    PLEAT__FOLLOWED_NOTHING = 0,
    PLEAT__FOLLOWED_LEARNED,
    PLEAT__FOLLOWED_FILE,
} pleat__followed;

typedef enum pleat__verdict {
    PLEAT__VERDICT_KEEP = 0,
    PLEAT__VERDICT_KEEP_APART, /* the streams' memory */
    PLEAT__VERDICT_LEAVE,      /* the plan file: it is another job's */
} pleat__verdict;

typedef struct pleat__judge {
    pleat__judge_counts before;
    uint64_t sharing_ns; /* what sharing between streams has cost beyond its part of the time */
    uint64_t strays;  /* requests in lanes that matched nothing, so far: the policy counts them */
    uint32_t strikes; /* iterations of which the plan file served less than half */
    bool fits;        /* the plan file served half of an iteration or more */
} pleat__judge;

/* An iteration ended. */
pleat__verdict pleat__judge_iteration(pleat__judge *judge, const pleat__heap *heap,
                                      const pleat_stats *stats, pleat__followed followed);

#endif
