/*
 * ahead.h: chunks and views made before they are needed, by a thread of its own.
 *
 * Who knows what requests will take of the driver (rehearsal.h) lists it, in order and some at a
 * time: so many chunks, a view of these chunks, and when they are due. The thread makes them while
 * the job goes on, and lists on when all that is due is made.
 *
 * UNSEEN   What was made ahead is there for nobody until a request would make it: then the pool
 *          grows by chunks that are mapped already (pool->stocked), or a view of exactly its chunks
 *          is there. So where requests lie does not depend on how far the thread has come, nor on
 *          whether there is one.
 * WAITING  What is asked for now and is on its way is waited for: the driver would serialise the
 *          two anyhow.
 * WRONG    Where the job takes something else, what was made stays unseen until it goes back: when
 *          it is long overdue, at the end, or when memory is short. Where it made a view by itself,
 *          or the pool grew, no more views are made, whose chunks would be others, and only as many
 *          chunks as are then still missing.
 * MEMORY   Within the budget, without asking anybody to give back.
 * THREADS  The runtime's lock guards it. The thread takes the turn for some chunks or pages at a
 *          time, and lets requests that wait for it go first.
 */
#ifndef PLEAT_RUNTIME_AHEAD_H
#define PLEAT_RUNTIME_AHEAD_H

#include <runtime/pool.h>
#include <runtime/worker.h>

typedef struct pleat__step {
    uint32_t due;   /* in what the caller counts; none is due before the one it follows */
    uint32_t grow;  /* chunks; 0: a view */
    uint32_t exist; /* numbers that the pool has then */
    uint32_t first; /* a view's chunks are chunks[first], ..., in the list */
    uint32_t count;
    uint64_t page; /* of the view */
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

struct pleat__ahead {
    pleat__arena *arena; /* NULL: off */
    pleat__pool *pool;
    pleat__worker worker;
    bool waits;          /* who begins it or allows more waits until that is made */
    uint64_t view_limit; /* alias pages in all */
    pleat__ahead_list list;
    void *context;
    pleat__steps steps;
    pleat__when when;
    uint32_t next;   /* the step to be carried out */
    uint32_t first;  /* the first step that was not looked at when it was late */
    uint32_t listed; /* steps due until then are */
    uint32_t block;
    bool listing;   /* not all is listed, and the thread may do so */
    bool loose;     /* the job took something else: no more views are made */
    bool over;      /* nothing more is made */
    bool leftovers; /* something may have been made that is not taken */
};

void pleat__ahead_init(pleat__ahead *ahead, pleat__arena *arena, pleat__pool *pool,
                       uint64_t view_limit, bool waits);
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
/* A view of exactly these chunks that was made, or is on its way; false: there is none. Likewise.
 */
bool pleat__ahead_view(pleat__ahead *ahead, const uint32_t *chunks, uint32_t count, uint64_t *page);

#endif
