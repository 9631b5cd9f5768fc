/*
 * judge.h: does what is followed serve the job?
 *
 * The one place where a schedule is dropped for what it costs. It looks at whole iterations: the
 * driver's time that their requests waited for, whether memory grew, and how many requests lay in
 * slots and lanes.
 *
 *   A PLAN FILE that served less than half of the requests in two iterations is another job's, and
 *   is left for good.
 *   ANY SCHEDULE whose iterations again and again cost the driver more than a two-hundredth of
 *   their time, or grow memory while a quarter of their requests have no slot, is dropped; a plan
 *   file is left for good. After a learned one the heap serves alone for a number of iterations,
 *   the rest. Each rest is twice as long as the one before.
 *
 * Its first iterations are not judged: places that cross into the first one settle in the second.
 * Where nothing marks iterations, as many requests as the schedule has are taken for one.
 */
#ifndef PLEAT_RUNTIME_LEARN_JUDGE_H
#define PLEAT_RUNTIME_LEARN_JUDGE_H

#include <pleat/runtime.h>
#include <runtime/memory/heap.h>

/* Counters at the end of an iteration. */
typedef struct pleat__judge_counts {
    uint64_t placed;    /* requests in slots and lanes */
    uint64_t elsewhere; /* and in the heap */
    uint64_t driver_ns; /* that requests waited for while views were mapped */
    uint64_t now_ns;
    uint32_t chunks;
} pleat__judge_counts;

typedef enum pleat__followed {
    PLEAT__FOLLOWED_NOTHING = 0,
    PLEAT__FOLLOWED_LEARNED,
    PLEAT__FOLLOWED_FILE,
} pleat__followed;

typedef enum pleat__verdict {
    PLEAT__VERDICT_KEEP = 0,
    PLEAT__VERDICT_DROP,  /* the learned schedule: the heap serves alone while judge->rest != 0 */
    PLEAT__VERDICT_LEAVE, /* the plan file: it is another job's, or costs too much */
} pleat__verdict;

typedef struct pleat__judge {
    pleat__judge_counts before;
    uint32_t iterations; /* judged since the schedule was adopted */
    uint32_t bad;        /* badness: +2 per bad iteration, -1 per good one */
    uint32_t rest;       /* iterations left in which nothing is followed and nothing recorded */
    uint32_t rests;      /* so far; doubles the next one */
    uint32_t strikes;    /* iterations that the plan file served badly */
    bool fits;           /* the plan file served one iteration well */
} pleat__judge;

/* Another schedule is followed from now on. */
void pleat__judge_adopt(pleat__judge *judge);
/* An iteration ended. */
pleat__verdict pleat__judge_iteration(pleat__judge *judge, const pleat__heap *heap,
                                      const pleat_stats *stats, pleat__followed followed);

#endif
