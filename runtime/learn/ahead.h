/*
 * ahead.h: chunks and views made before they are needed, by a thread of its own.
 *
 * Who knows what requests will take of the driver (rehearsal.h) lists it, in order and some at a
 * time: so many chunks, a view of these chunks, and when they are due. The thread makes them while
 * the job goes on, and lists on when all that is due is made.
 *
 * UNSEEN   What was made ahead is there for nobody until a request would make it: then the pool
 *          grows by chunks that are mapped already (pool->stocked), or a view of most of its chunks
 *          is there, and the others are mapped into that (patch.h). So on which chunks requests lie
 *          does not depend on how far the thread has come, nor on whether there is one; in which
 *          order a view shows them does.
 * WAITING  What is asked for now and is on its way is waited for: the driver would serialise the
 *          two anyhow.
 * WRONG    Where the job takes something else, what was made stays unseen until it goes back: when
 *          it is long overdue, at the end, or when memory is short. Where a view that was due
 *          served nobody, no more of them are made, whose chunks would be others; where the pool
 *          grew, only as many chunks as are then still missing.
 * MEMORY   Within the budget, without asking anybody to give back.
 * THREADS  The runtime's lock guards it. The thread takes the turn for some chunks or pages at a
 *          time, and lets requests that wait for it go first.
 */
#ifndef PLEAT_RUNTIME_LEARN_AHEAD_H
#define PLEAT_RUNTIME_LEARN_AHEAD_H

#include <runtime/base/worker.h>
#include <runtime/learn/patch.h>

typedef struct pleat__step {
    uint32_t due;   /* in what the caller counts; none is due before the one it follows */
    uint32_t grow;  /* chunks; 0: a view */
    uint32_t exist; /* numbers that the pool has then */
    uint32_t first; /* a view's chunks are chunks[first], ..., in the list */
    uint32_t count;
    uint64_t page; /* of the view, with room for more pages behind it */
    uint32_t made; /* chunks or pages */
    bool taken;    /* a view: it is a request's */
} pleat__step;

typedef struct pleat__steps {
    pleat__arena *arena;
    pleat__step *steps;
    size_t step_capacity;
    uint32_t count;
    uint32_t *chunks;
    size_t chunk_capacity;
    uint32_t chunk_count;
} pleat__steps;

PLEAT_NODISCARD pleat_result pleat__steps_grow(pleat__steps *steps, uint32_t due, uint32_t exist,
                                               uint32_t chunks);
PLEAT_NODISCARD pleat_result pleat__steps_view(pleat__steps *steps, uint32_t due, uint32_t exist,
                                               const uint32_t *chunks, uint32_t count);

/* Lists the next steps, without the lock: all that are due until *until. UINT32_MAX: those were the
 * last, and it is not called again; nor is it where `steps` is NULL: no more are wanted. */
typedef pleat_result (*pleat__ahead_list)(void *context, pleat__steps *steps, uint32_t *until);

/* By when a step is due: it goes back where it was made for nobody before `late`; a request waits
 * for it until `now`; it may be made until `soon`. */
typedef struct pleat__when {
    uint32_t late, now, soon;
} pleat__when;

/* Where views have their room: alias pages in all, and who drops idle views, the oldest first,
 * until so many are left (the heap). */
typedef struct pleat__view_room {
    uint64_t limit;
    bool (*drop)(void *context, uint64_t keep_pages);
    void *context;
} pleat__view_room;

struct pleat__ahead {
    pleat__arena *arena; /* NULL: off */
    pleat__pool *pool;
    pleat__worker worker;
    bool waits; /* who begins it or allows more waits until that is made */
    pleat__view_room room;
    pleat__ahead_list list;
    void *context;
    pleat__steps steps;
    pleat__when when;
    uint32_t next;   /* the step to be carried out */
    uint32_t first;  /* the first step that was not looked at when it was late */
    uint32_t listed; /* steps due until then are */
    uint32_t block;
    bool listing;   /* not all is listed, and the thread may do so */
    bool loose;     /* views that were due served nobody: no more are made */
    bool over;      /* nothing more is made */
    bool leftovers; /* something may have been made that is not taken */
};

void pleat__ahead_init(pleat__ahead *ahead, pleat__arena *arena, pleat__pool *pool,
                       pleat__view_room room, bool waits);
/* Waits for the thread. Mapped it stays: the space unmaps what is left. pre: the lock is not held
 */
void pleat__ahead_release(pleat__ahead *ahead);

/* ---- with the lock held; it may be left where `waits` is set ---- */

/* From now on what `list` says is made, as far as it is due. false: it cannot be now. The context
 * must stay until pleat__ahead_is_listing says that it is not needed any more. */
bool pleat__ahead_begin(pleat__ahead *ahead, pleat__ahead_list list, void *context,
                        pleat__when when);
/* Time passes. */
void pleat__ahead_allow(pleat__ahead *ahead, pleat__when when);
/* Nothing more is made, and what nobody took goes back, on the thread. */
void pleat__ahead_end(pleat__ahead *ahead);
/* The same at once; whether anything went. pre: the turn; the lock is left meanwhile. */
bool pleat__ahead_drop(pleat__ahead *ahead);
static inline bool pleat__ahead_is_listing(const pleat__ahead *ahead)
{
    return ahead->listing;
}

/* Waits until the stock has so many chunks, or no more are on their way for now; lock and turn may
 * be left meanwhile. */
void pleat__ahead_await(pleat__ahead *ahead, uint32_t chunks);
/* Waits for a piece of work where the view that shows most of these chunks is on its way, or may be
 * listed yet. false: it did not. `ahead` may be NULL. Likewise. */
bool pleat__ahead_await_view(pleat__ahead *ahead, const uint32_t *chunks, uint32_t count);
/* The view that shows most of these chunks, which are put into its order but for their ends; NULL:
 * none shows three quarters of them. It is nobody's until it is taken; the turn must be held till
 * then. */
const pleat__step *pleat__ahead_find(pleat__ahead *ahead, pleat__patch_ends ends, uint32_t *chunks,
                                     uint32_t count);
/* Takes what was found: the chunks are mapped from *page on. On failure nothing is. pre: the turn;
 * the lock is left meanwhile. */
PLEAT_NODISCARD pleat_result pleat__ahead_take(pleat__ahead *ahead, const pleat__step *step,
                                               const uint32_t *chunks, uint32_t count,
                                               uint64_t *page);

#endif
