/*
 * learner.h: which schedule there is, whether it is followed, and when that changes (states.h has
 * the diagram).
 *
 * There is at most one schedule: the plan file's (or what its recipe was laid out as for larger
 * sizes), or an iteration as it lay in the heap. Where too many requests do not match it is
 * suspended: the heap serves, and the next iteration begins with it again; a learned one that is
 * suspended in two in a row goes. Two iterations in a row that are alike (recording.h) make one.
 * A plan file that would be suspended while it is on trial (judge.h), or takes too much memory when
 * that ends, is another job's, and left.
 */
#ifndef PLEAT_RUNTIME_LEARN_LEARNER_H
#define PLEAT_RUNTIME_LEARN_LEARNER_H

#include <runtime/base/policy.h>
#include <runtime/base/states.h>
#include <runtime/learn/judge.h>
#include <runtime/learn/layout_job.h>
#include <runtime/learn/recording.h>

/* A schedule is suspended when PLEAT__WATCH_MISSED of PLEAT__WATCH_REQUESTS requests, or fewer, did
 * not match, or found the slots of a plan on trial in use (docs/decisions.md, D113, D114, D614). */
#define PLEAT__WATCH_REQUESTS 256u
#define PLEAT__WATCH_MISSED   64u
/* Things to be done before the next request. */
#define PLEAT__DUE_ITERATION 1u /* an iteration that nothing marked has ended */
#define PLEAT__DUE_LEAVE     2u /* the plan file is to be left */

typedef struct pleat__learner {
    pleat__arena *arena;
    pleat_stats *stats;
    pleat__heap *heap;
    bool on;                   /* setting learn */
    pleat__schedule *schedule; /* NULL: there is none */
    pleat__schedule *current;  /* the schedule while it is followed, else NULL */
    uint64_t epoch;            /* changes whenever `current` does */
    uint64_t requests;
    uint32_t watched;     /* requests since divergence was judged last */
    uint32_t missed;      /* of them, those that speak against the schedule */
    bool diverged;        /* the schedule was suspended within this iteration ... */
    bool diverged_before; /* ... and within the one before */
    bool waits;           /* a mark waits for a layout that is being made */
    uint8_t due;          /* bits of PLEAT__DUE_ */
    uint64_t most_live;   /* bytes, so far; the statistics' peak is restarted by who reads it */
    uint64_t most_used;   /* bytes that lived or waited, while a plan file was on trial */
    /* Requests at which the iteration that runs is over, where nothing marks iterations. */
    uint64_t iteration_until;
    pleat__states states;
    pleat__recording record;
    pleat__judge judge;          /* of a plan file */
    pleat__layouts layouts;      /* of a plan file */
    pleat__size_parameter sizes; /* of a plan file with a recipe */
} pleat__learner;

void pleat__learner_init(pleat__learner *learner, pleat__arena *arena, pleat_stats *stats,
                         pleat__heap *heap, const pleat__conf *conf, bool waits);
/* pre: the lock is not held */
void pleat__learner_release(pleat__learner *learner);
/* Begins with a plan file, on trial; `guessed`: nobody named it (judge.h). */
PLEAT_NODISCARD pleat_result pleat__learner_load(pleat__learner *learner, pleat__place_map *places,
                                                 const pleat_plan *plan, bool guessed);
/* How a plan on trial fits. */
pleat__plan_fit pleat__learner_fit(const pleat__learner *learner);
/* A request was served while a plan is on trial; `missed`: it is none of the plan's. */
void pleat__learner_try(pleat__learner *learner, uint64_t bytes, bool missed);
/* The plan file is another job's: it is not followed any more, and its views go as soon as nothing
 * lies in them. The job is learned. false: it cannot be done now. */
bool pleat__learner_leave(pleat__learner *learner);
/* The job says that an iteration begins. */
void pleat__learner_mark(pleat__learner *learner);
/* The same without a word of the job. pre: PLEAT__DUE_ITERATION */
void pleat__learner_pace(pleat__learner *learner);
/* A request was served that follows nothing: it is recorded, unless a schedule is suspended. */
void pleat__learner_record(pleat__learner *learner, uint64_t bytes, uint16_t stream,
                           const pleat__place *place);
/* Judges the last PLEAT__WATCH_REQUESTS, or fewer where too many of them missed. */
void pleat__learner_watch(pleat__learner *learner);

/* Whether sizes follow a parameter while the schedule is followed. */
static inline bool pleat__learner_has_sizes(const pleat__learner *learner)
{
    return learner->sizes.plan != NULL;
}

/* A request was served; `missed`: it did not match what is followed; `busy`: it did, and its slot
 * was in use, which speaks against a plan on trial as well (docs/decisions.md, D614). A recipe's
 * are too small where the job's sizes are larger. */
static inline void pleat__learner_request(pleat__learner *learner, uint64_t bytes, uint16_t stream,
                                          const pleat__place *place, bool missed, bool busy)
{
    learner->requests++;
    if (learner->stats->live_bytes > learner->most_live)
        learner->most_live = learner->stats->live_bytes;
    if (learner->current == NULL)
        pleat__learner_record(learner, bytes, stream, place);
    if (__builtin_expect(learner->requests >= learner->iteration_until, 0))
        learner->due |= PLEAT__DUE_ITERATION;
    if (learner->current == NULL)
        return;
    learner->missed += missed || (busy && learner->judge.on && !pleat__learner_has_sizes(learner));
    if (__builtin_expect(learner->judge.on, 0))
        pleat__learner_try(learner, bytes, missed);
    if (__builtin_expect(++learner->watched >= PLEAT__WATCH_REQUESTS, 0) ||
        __builtin_expect(learner->missed >= PLEAT__WATCH_MISSED, 0))
        pleat__learner_watch(learner);
}

#endif
