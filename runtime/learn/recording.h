/*
 * recording.h: the requests of the last iterations, in order, each with the place that the heap
 * gave it, and whether the iteration that has just ended is like the one before.
 *
 * It is the only record of requests; everything that learns reads it. It is a ring: positions count
 * what was recorded since the runtime began, and the newest are held. Each held place pins its
 * view's record in host memory.
 *
 * ALIKE  Two iterations are alike if nearly all requests of the later one are in the earlier one
 *        too, in the same order. Only what is alike is worth following: where sizes change the heap
 *        takes less memory, and no more time (docs/decisions.md, D1 and D3). Where most are not
 *        like the one before, two that are say nothing of the next (D442).
 *
 * Each request is compared as it comes, so that a mark has nothing to align.
 * THREADS  The runtime's lock guards it.
 */
#ifndef PLEAT_RUNTIME_LEARN_RECORDING_H
#define PLEAT_RUNTIME_LEARN_RECORDING_H

#include <internal/hash.h>
#include <runtime/follow/schedule.h>
#include <runtime/learn/period.h>

/* Requests of a segment, a power of two, and segments of the ring, which hold more than are ever
 * held at a time. As the recording grows nothing of it moves (D190). */
#define PLEAT__SEGMENT  1024u
#define PLEAT__SEGMENTS 2048u

#define PLEAT__RECORDED_BYTES ((UINT64_C(1) << 48) - 1) /* that a request may have (D514) */

/* A request as it is recorded: half of what a schedule keeps of it (D514). Its first word is put
 * together and written at once: fields of bits wait for each other (D527). */
typedef struct pleat__recorded_request {
    uint64_t what; /* bytes as requested, from bit 48 on the stream's index, and these (D527): */
#define PLEAT__RECORDED_FOUND   (UINT64_C(1) << 56) /* the iteration before had it (D527) */
#define PLEAT__RECORDED_PLACED  (UINT64_C(1) << 57) /* its place outlives a plan (D527) */
#define PLEAT__RECORDED_IN_VIEW (UINT64_C(1) << 58) /* which is a slice of a view (D527) */
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

typedef struct pleat__recording {
    pleat__arena *arena;
    pleat__recorded_request **segments; /* a ring of PLEAT__SEGMENTS; NULL: nothing was recorded */
    uint64_t oldest, next;              /* numbers of the segments that have memory */
    uint64_t begin, end;                /* positions that are held */
    uint64_t pinned;   /* from here on places are pinned, also of what is held no more */
    uint32_t unfound;  /* requests without marks since a repeat was found */
    uint32_t patience; /* of them, so many until it is looked for more seldom */
    uint32_t unasked;  /* requests, or iterations with marks, that are not recorded: many
                          before did not repeat themselves, or host memory was refused */
    bool marked;       /* the job marks its iterations */
    uint64_t mark_at;  /* position of the last mark; PLEAT__NO_MARK: none since recording began */
    uint32_t unlike;   /* points of marked iterations that were not like the one before */
    pleat__period period;
} pleat__recording;

#define PLEAT__NO_MARK UINT64_MAX

/* A stretch of the recording that is like the one before it. */
typedef struct pleat__repeat {
    uint64_t first; /* position */
    uint32_t count; /* 0: none */
} pleat__repeat;

/* `unmarked`: iterations are looked for without marks too. */
PLEAT_NODISCARD pleat_result pleat__recording_init(pleat__recording *recording, pleat__arena *arena,
                                                   bool unmarked);
void pleat__recording_release(pleat__recording *recording);
/* Records a request. A stretch that is alike where the job marks nothing and one has just ended. */
pleat__repeat pleat__recording_add(pleat__recording *recording, uint64_t bytes, uint16_t stream,
                                   const pleat__place *place);
/* The job marks the end of an iteration, which is what was recorded since the last mark. That
 * iteration where it is alike. */
pleat__repeat pleat__recording_mark(pleat__recording *recording);
/* A stretch as a schedule, whose places are pinned by that from now on: nothing of it can be taken
 * again. Recording goes on. */
PLEAT_NODISCARD pleat_result pleat__recording_take(pleat__recording *recording,
                                                   const pleat__repeat *stretch,
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

/* A byte made of a request's size and stream, by which rows of them are known. */
static inline uint8_t pleat__recording_key_of(uint64_t bytes, uint16_t stream)
{
    uint64_t word = (bytes ^ (uint64_t)stream << 56) * PLEAT__HASH_MULTIPLIER;
    /* Twice: those of sizes that grow by the same would do so as well. */
    return (uint8_t)((word ^ word >> 32) * PLEAT__HASH_MULTIPLIER >> 56);
}

static inline bool pleat__recording_same(const pleat__recorded_request *a,
                                         const pleat__recorded_request *b)
{
    return ((a->what ^ b->what) & (PLEAT__RECORDED_FOUND - 1)) == 0;
}

/* --- period.c: the steps that need the recording ----------------------------------------------*/

/* The newest request is compared with what the lag expects. A stretch that repeats. */
pleat__repeat pleat__period_step(pleat__recording *recording);
/* Whether there is a lag and nearly all of what it has compared so far agreed; one that was just
 * opened counts. */
bool pleat__period_goes_well(const pleat__recording *recording);
/* The same between marks: an iteration is compared with the one before. */
void pleat__period_step_marked(pleat__recording *recording);
/* The lag compares what comes from now on with what lies from `begin` on. */
void pleat__period_mark(pleat__recording *recording, uint64_t begin);

#endif
