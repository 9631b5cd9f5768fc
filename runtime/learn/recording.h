/*
 * recording.h: the requests of the last iterations, in order, each with the place that the heap
 * gave it, and whether the iteration that has just ended is like the one before.
 *
 * It is the only record of requests that is learned from. It is a ring: positions count what was
 * recorded since the runtime began, and the newest are held, from the job's first mark on. Each
 * held place pins its view's record in host memory.
 *
 * ALIKE  Two iterations are alike if nearly all requests of the later one are in the earlier one
 *        too, in the same order, and no more than two in a row are missing. Only what is alike is
 * worth following: where sizes change the heap takes less memory, and no more time
 * (docs/decisions.md, D1 and D3). Where most are not like the one before, two that are say nothing
 * of the next (D442). A job that marks nothing is not learned: what repeats in it first is a loop
 * within its iteration (D8).
 *
 * Each request is compared as it comes, so that a mark has nothing to align.
 * THREADS  The runtime's lock guards it.
 */
#ifndef PLEAT_RUNTIME_LEARN_RECORDING_H
#define PLEAT_RUNTIME_LEARN_RECORDING_H

#include <internal/arena.h>
#include <runtime/follow/schedule.h>

/* Requests of a segment, a power of two, and segments of the ring, which hold more than are ever
 * held at a time. As the recording grows nothing of it moves (D190). */
#define PLEAT__SEGMENT  1024u
#define PLEAT__SEGMENTS 2048u

#define PLEAT__RECORDED_BYTES ((UINT64_C(1) << 48) - 1) /* that a request may have (D514) */

/* A request as it is recorded: half of what a schedule keeps of it (D514). Its first word is put
 * together and written at once: fields of bits wait for each other (D527). */
typedef struct pleat__recorded_request {
    uint64_t what; /* bytes as requested, from bit 48 on the stream's index, and these (D527): */
#define PLEAT__RECORDED_IN_VIEW (UINT64_C(1) << 56) /* its place is a slice of a view (D527) */
    pleat_va address;
    union {
        pleat__runs *several; /* of the slice, which is pinned */
        uint64_t begin;       /* the first granule */
    };
} pleat__recorded_request;

static inline uint64_t pleat__recorded_bytes(const pleat__recorded_request *recorded)
{
    return recorded->what & PLEAT__RECORDED_BYTES;
}

static inline uint16_t pleat__recorded_stream(const pleat__recorded_request *recorded)
{
    return recorded->what >> 48 & 0xff;
}

_Static_assert(sizeof(pleat__recorded_request) == 24, "each request writes one");
_Static_assert(PLEAT__STREAMS <= 256, "a stream's index has 8 bits");

/* The iteration that runs beside the one before it. */
typedef struct pleat__comparison {
    uint64_t cursor; /* position, in the one before, of the request that is expected next */
    uint32_t length; /* requests of the one before; 0: none is held */
    uint32_t found;  /* requests that were there */
    bool open;       /* nearly all may be */
} pleat__comparison;

typedef struct pleat__recording {
    pleat__arena *arena;
    pleat__recorded_request **segments; /* a ring of PLEAT__SEGMENTS; NULL: nothing was recorded */
    uint64_t oldest, next;              /* numbers of the segments that have memory */
    uint64_t begin, end;                /* positions that are held */
    uint64_t pinned;  /* from here on places are pinned, also of what is held no more */
    uint64_t mark_at; /* position of the last mark; PLEAT__NO_MARK: none since recording began */
    uint32_t unasked; /* iterations that are not recorded: many before were not like the one before
                         them, or host memory was refused */
    uint32_t unlike;  /* points of iterations that were not like the one before */
    bool marked;      /* the job marks its iterations */
    pleat__comparison compared;
} pleat__recording;

#define PLEAT__NO_MARK UINT64_MAX

/* An iteration that is like the one before it. */
typedef struct pleat__alike {
    uint64_t first; /* position */
    uint32_t count; /* requests; 0: it is not */
} pleat__alike;

void pleat__recording_init(pleat__recording *recording, pleat__arena *arena);
void pleat__recording_release(pleat__recording *recording);
/* Records a request, if the job has marked and no iterations are left out. */
void pleat__recording_add(pleat__recording *recording, uint64_t bytes, uint16_t stream,
                          const pleat__place *place);
/* The job marks the end of an iteration, which is what was recorded since the last mark. */
pleat__alike pleat__recording_mark(pleat__recording *recording);
/* An iteration as a schedule, whose places are pinned by that from now on: nothing of it can be
 * taken again. Recording goes on. */
PLEAT_NODISCARD pleat_result pleat__recording_take(pleat__recording *recording,
                                                   const pleat__alike *iteration,
                                                   pleat__schedule **out);
/* Forgets what was recorded. Its memory goes by and by. */
void pleat__recording_restart(pleat__recording *recording);
/* Gives memory back of that many segments, as far as nothing of them is held any more. (All of
 * 262,144 requests at once took a call a millisecond.) */
void pleat__recording_sweep(pleat__recording *recording, uint32_t most);
static inline pleat__recorded_request *pleat__recording_at(const pleat__recording *recording,
                                                           uint64_t position)
{
    uint64_t segment = position / PLEAT__SEGMENT % PLEAT__SEGMENTS;
    return &recording->segments[segment][position % PLEAT__SEGMENT];
}

#endif
