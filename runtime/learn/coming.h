/*
 * coming.h: the memory of a layout that is followed already, made by a thread of its own.
 *
 * A new largest x (elastic.h) takes chunks that do not exist yet, and views; on the thread that
 * allocates they cost an iteration 20 us each. But where it lies every request is told by the
 * layout alone. So the layout is published with chunks that are absent, as if they had been given
 * back, and views that are not mapped; and a thread makes them, those first that the iteration
 * needs first.
 *
 * REFUSED  A place with an absent chunk is occupied, one in a view that is not mapped cannot be
 *          taken: nobody gets what is not there.
 * WAITING  A request whose place is refused so has its pieces made next, and waits for them: some
 *          0.4 ms, and for what is being made just then. Where the thread is ahead of the job
 *          nobody waits.
 * SHORT    Whether there is room is asked before anything is promised. When the driver refuses all
 *          the same the rest stays absent, and the layout is stale: it is made anew, or not, when
 *          its x comes again. The heap makes absent chunks too when it grows, for itself.
 * CAPTURE  While a stream captures a graph nothing is made, nor waited for.
 * THREADS  The runtime's lock guards it. The thread takes the turn for one piece at a time, and
 *          lets requests that wait for it go first.
 */
#ifndef PLEAT_RUNTIME_LEARN_COMING_H
#define PLEAT_RUNTIME_LEARN_COMING_H

#include <runtime/base/worker.h>
#include <runtime/learn/instance.h>

/* Chunks of neighbouring numbers and homes, or pages of the views: no more than are made with the
 * turn taken once. */
typedef struct pleat__piece {
    uint32_t first; /* number, or page of the views */
    uint32_t count;
    bool view;
    bool made;
    bool urgent; /* a request waits for it, or did */
} pleat__piece;

/* What is to come: the lists and the marked pages are the coming's from begin on. */
typedef struct pleat__pieces {
    pleat__piece *pieces; /* in the order in which they are made */
    uint32_t count;
    uint32_t *sorted;     /* pieces by where they are: chunks by number, then pages of the views */
    uint32_t chunk_count; /* pieces of chunks */
    uint32_t *urgent;     /* room for those that requests wait for */
    uint32_t block;       /* chunks of a handle at most */
    uint32_t *shown;      /* the chunk behind each page of the views */
    pleat__cuts cuts;     /* handles begin where pieces do */
    uint8_t *cut_pages;
} pleat__pieces;

struct pleat__coming {
    pleat__arena *arena; /* NULL: off */
    pleat__heap *heap;
    uint64_t *waited; /* counter of requests that did */
    pleat__worker worker;
    bool waits;                /* who begins it waits until all is made */
    pleat__instance *instance; /* whose memory it is; NULL: nothing is coming */
    uint64_t round;            /* changes with it */
    pleat__pieces pieces;
    uint32_t next; /* those before are made */
    /* Of pieces.urgent, in the order in which they were wanted: the next, and how many. */
    uint32_t urgent_next, urgent_count;
    bool over;
    pleat__x refused; /* of a layout that was left without its memory, or PLEAT__NO_X */
};

void pleat__coming_init(pleat__coming *coming, pleat__arena *arena, pleat__heap *heap, bool waits,
                        uint64_t *waited);
/* Waits for the thread. Mapped stays what is: the space unmaps it. pre: the lock is not held */
void pleat__coming_release(pleat__coming *coming);
void pleat__pieces_free(pleat__arena *arena, pleat__pieces *pieces);

/* ---- with the lock held ---- */

/* The instance's memory comes, its views where they will be; the chunks are promised. The lock may
 * be left where `waits` is set. pre: nothing is coming. */
void pleat__coming_begin(pleat__coming *coming, pleat__instance *instance,
                         const pleat__pieces *pieces);
/* After a capture. */
void pleat__coming_go_on(pleat__coming *coming);
/* Waits until what the place lies on is there. false: it was not waited for, or did not come. The
 * lock is left meanwhile: what is followed may be another then. */
bool pleat__coming_await(pleat__coming *coming, const pleat__place *place);
/* No more is made than is on its way, and the instance is stale. */
void pleat__coming_stop(pleat__coming *coming);
/* The same, and waits for that; the lock may be left. */
void pleat__coming_clear(pleat__coming *coming);

static inline bool pleat__coming_is_for(const pleat__coming *coming,
                                        const pleat__instance *instance)
{
    return coming->instance != NULL && coming->instance == instance;
}

#endif
