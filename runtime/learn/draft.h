/*
 * draft.h: a plan for a job in progress whose requests vary from iteration to iteration, made in
 * the background.
 *
 * What varies has no place that could be remembered: each iteration it finds the place it had last
 * time in use and is stitched anew, large tensors at some 20 us a page. A planner that sees a few
 * iterations gives it lanes. So iterations are recorded while a job learns; from two on a thread
 * makes a plan of them (draft_make.c): the planner's model and lanes, laid out in the memory that
 * there is, around what outlives iterations, to the byte. It maps the views and from the first mark
 * behind that on the plan is followed as one from a file would be. Where iterations keep being
 * recorded, because the plan serves badly, a better one takes its place.
 *
 *   record (draft.c)  --2 iterations-->  plan (draft_make.c, own thread)  --mark-->  followed
 *
 * FIRST    A program that marks where iterations end marks the first one's end first: that one is
 *          found in what came before it (draft_trace.c), so recording begins with the job.
 *
 * MEMORY   A draft lies in the chunks that there are; what has no room in them is not followed.
 *          Where one serves badly, as many more are made as setting `spare` says.
 * REFUSED  Jobs whose requests do not vary keep the places that the heap gave (learn.h); those
 *          whose sizes all follow one number are elastic.h's.
 * THREADS  The runtime's lock guards it. The thread that makes a draft reads copies; it takes the
 *          turn to map views, and leaves the lock for that.
 */
#ifndef PLEAT_RUNTIME_LEARN_DRAFT_H
#define PLEAT_RUNTIME_LEARN_DRAFT_H

#include <runtime/learn/instance.h>
#include <runtime/learn/served.h>
#include <runtime/observe/trace_writer.h>

#define PLEAT__DRAFTS 40u /* at once: followed, kept, and those in which something lies still */
/* Iterations that are recorded for one, at most. */
#define PLEAT__DRAFT_ITERATIONS 8u

/* A plan that was made, as what is followed: its names are the plan's. */
typedef struct pleat__drafted {
    pleat__instance *instance;
    pleat_plan *plan;
    uint32_t eighths; /* of the size they should have, that its lanes have */
    bool retired;     /* goes when nothing lies in it any more */
} pleat__drafted;

typedef struct pleat__draft_job pleat__draft_job; /* draft_make.h */

typedef struct pleat__draft {
    pleat__arena *arena;
    bool on;
    pleat__heap *heap;
    const pleat__placed *placed;
    pleat_stats *stats;
    pleat__record record;
    bool wanted;  /* recording begins at the next mark */
    bool waits;   /* a mark waits for what is being made */
    bool waiting; /* a thread does for the job, the lock left */
    /* Events recorded before each iteration. `early`: what comes before the first may have one too.
     */
    size_t begins[PLEAT__DRAFT_ITERATIONS + 1];
    uint32_t begin_count;
    bool early;
    uint32_t whole;        /* iterations recorded */
    bool missed;           /* the last try was refused for what may pass */
    uint32_t due;          /* that is worth a draft when there are so many */
    pleat__mapper *worker; /* NULL until it is first wanted */
    pleat__draft_job *job; /* being made, or NULL */
    pleat__drafted made[PLEAT__DRAFTS];
    uint32_t made_count;
    pleat__served served; /* the last iteration, also while this is off */
    uint32_t poor, well;  /* iterations in a row */
    uint32_t rest;        /* iterations to pass before recording begins again */
    uint32_t tries;
    /* The same after one that would come to nothing again, where something diverged. */
    uint32_t vain, vains;
} pleat__draft;

/* It is off: nothing is recorded or made. */
void pleat__draft_init(pleat__draft *draft, pleat__arena *arena, pleat__heap *heap,
                       const pleat__placed *placed, pleat_stats *stats);
/* On; `waits`: a mark waits for what is being made. `early`: nothing was allocated yet, and
 * recording begins at once. */
void pleat__draft_start(pleat__draft *draft, bool waits, bool early);
/* Waits for what is being made. pre: the lock is not held */
void pleat__draft_release(pleat__draft *draft);

/* Iterations are recorded from the next mark on; or not any more. */
void pleat__draft_want(pleat__draft *draft);
void pleat__draft_end(pleat__draft *draft);
/* The same, and what may be stitched in expectation of a plan (map_budget.h) is not any more. */
void pleat__draft_settle(pleat__draft *draft);
/* The same, and nothing is recorded for so many iterations. */
void pleat__draft_rest(pleat__draft *draft, uint32_t iterations);
/* What was recorded from the beginning on goes where it has become too much without an iteration
 * known. */
void pleat__draft_tire(pleat__draft *draft);
/* Iterations were found that nobody marks: the last one began `ahead` requests ago, and `repeats`
 * before it have `length` requests each; the one before those has `first`, or is not known (0).
 * Their ends are told from now on. */
void pleat__draft_found(pleat__draft *draft, uint32_t length, uint32_t ahead, uint32_t repeats,
                        uint32_t first);
/* An iteration ended. `ours`: what was followed is a draft. */
void pleat__draft_mark(pleat__draft *draft, bool ours);
/* Whether enough was recorded to make one, and what is followed is not good enough. */
bool pleat__draft_is_due(const pleat__draft *draft, bool ours);
/* Begins to make one; `followed`: one that is and serves badly, or NULL. false: it cannot be. */
bool pleat__draft_submit(pleat__draft *draft, const pleat__follow *followed);
/* Whether what was begun is over, or is to be waited for. */
bool pleat__draft_is_over(const pleat__draft *draft);
/* What came of it, the lock left where it is waited for; NULL: nothing. What it gives is followed,
 * and kept, as long as the caller likes. pre: it is over */
pleat__follow *pleat__draft_take(pleat__draft *draft);
/* One that was not made here goes with those that were: what a plan file laid out, and is followed
 * no more. pre: it was off until now */
void pleat__draft_adopt(pleat__draft *draft, pleat__instance *instance);
/* Its follow is not followed or kept any more; false where it is no draft's. */
bool pleat__draft_retire(pleat__draft *draft, const pleat__follow *follow);
/* Whether it is a draft's. */
bool pleat__draft_holds(const pleat__draft *draft, const pleat__follow *follow);
/* Chunks were given back. */
void pleat__draft_shrunk(pleat__draft *draft);
/* Memory is short: gives up what is being made, and the views of those that were retired. true:
 * some went. pre: the turn; the lock may be left meanwhile */
bool pleat__draft_drop(pleat__draft *draft);
/* The lane of that number, from 0; NULL where it is no draft's. */
pleat__lane_space *pleat__draft_lane(const pleat__draft *draft, uint32_t lane);

/* What is allocated and freed; of use while it records. */
static inline void pleat__draft_allocated(pleat__draft *draft, uint64_t bytes, pleat_stream stream,
                                          pleat_va address)
{
    if (__builtin_expect(pleat__records(&draft->record), 0))
        pleat__record_alloc(&draft->record, address, bytes, stream);
}

static inline void pleat__draft_freed(pleat__draft *draft, pleat_va address)
{
    if (__builtin_expect(!pleat__records(&draft->record), 1))
        return;
    pleat__record_free(&draft->record, address, PLEAT_EVENT_FREE_REQUESTED);
    pleat__record_free(&draft->record, address, PLEAT_EVENT_FREE_COMPLETED);
}

#endif
