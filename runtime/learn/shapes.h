/*
 * shapes.h: which shape of the job is followed, which others are kept, and when that changes
 * (states.h has the diagram).
 *
 * A shape is a sequence of requests with their places (schedule.h): a plan file's, or an iteration
 * that was learned (learn.h). A job has several when it alternates between sequence lengths; one
 * that is put aside is kept, and taken up again when the job's requests are its own again.
 */
#ifndef PLEAT_RUNTIME_LEARN_SHAPES_H
#define PLEAT_RUNTIME_LEARN_SHAPES_H

#include <pleat/runtime.h>
#include <runtime/base/states.h>
#include <runtime/learn/beat.h>
#include <runtime/learn/fit.h>
#include <runtime/learn/kept.h>
#include <runtime/learn/learn.h>
#include <runtime/learn/misfit.h>

/* Divergence is judged over this many requests, of which so many may not match. */
#define PLEAT__WATCH_REQUESTS 256u
#define PLEAT__WATCH_MISSED   64u
/* Before the next request: an iteration begins; the plan file is to be judged. */
#define PLEAT__DUE_BEGIN 1u
#define PLEAT__DUE_JUDGE 2u

typedef struct pleat__shapes {
    pleat__arena *arena;
    pleat_stats *stats;
    pleat__heap *heap;      /* told when free memory is wanted next */
    pleat__follow *current; /* PLANNED: what is followed */
    uint64_t epoch;         /* changes with it */
    uint32_t watched;       /* requests since divergence was judged last */
    uint32_t missed;        /* of them, those that did not match */
    uint32_t unplanned;     /* of them, those that lie in no slot or lane */
    uint64_t requests;
    uint64_t begun; /* of them, when an iteration began that nothing marked: once, however often its
                       first request begins again */
    pleat__states states;
    pleat__learn learn;
    pleat__elastic elastic;
    pleat__draft draft;
    /* Of a job that does not mark its iterations, while nothing is followed. `paced`: they have so
     * many requests, and are taken as marked; `due`: so is the next request. */
    pleat__beat beat;
    uint32_t paced;
    uint64_t paced_at;        /* requests before the last */
    uint8_t due;              /* bits of PLEAT__DUE_ */
    pleat__misfit misfit;     /* a plan file's */
    pleat__kept kept;         /* with what is followed, where that is no layout for a size */
    pleat__returned returned; /* nothing, or a loose shape, is followed: what may be again */
    uint32_t looking;         /* a loose one: requests for which that is looked for */
    /* PLANNED: requests are recorded all the same, until so many have come. */
    bool recording;
    uint64_t record_until;
    pleat__fit fit;  /* of what was learned */
    uint32_t doubts; /* divergences since it went well for long */
    /* Requests since the last long stretch was judged, and those of them without a slot; stretches
     * that went well; tries since, and when the next may begin. */
    uint32_t chronic_seen, chronic_missed, calm, tries;
    uint64_t retry_at;
} pleat__shapes;

PLEAT_NODISCARD pleat_result pleat__shapes_init(pleat__shapes *shapes, pleat__arena *arena,
                                                pleat_stats *stats, pleat__heap *heap,
                                                const pleat__placed *placed,
                                                const pleat__conf *conf);
/* Follows the job to other microbatches and lengths from now on; see pleat__elastic_init. */
PLEAT_NODISCARD pleat_result pleat__shapes_elastic(pleat__shapes *shapes,
                                                   const pleat__placed *placed);
void pleat__shapes_release(pleat__shapes *shapes);
/* Begins with a plan file's shape, which becomes the shapes' and is dropped only when it turns out
 * to be another job's. */
void pleat__shapes_begin(pleat__shapes *shapes, const pleat_plan *plan, pleat__follow *follow);
/* It did: the shape goes as soon as nothing lies in it any more, and the job is learned. false: it
 * cannot be done now. */
bool pleat__shapes_leave(pleat__shapes *shapes, const pleat_plan *plan);
/* An iteration begins: the job says so. */
void pleat__shapes_mark(pleat__shapes *shapes);
/* The same without a word of the job. pre: PLEAT__DUE_BEGIN */
void pleat__shapes_pace(pleat__shapes *shapes);
/* Records a request; `unplanned`: it lies in no slot and no lane. */
void pleat__shapes_record(pleat__shapes *shapes, uint64_t bytes, uint16_t stream,
                          const pleat__place *place, bool unplanned);
/* A request comes, and a scale is known: its iteration may be one at another x. PLEAT_E_NOT_READY
 * as in driver_lock.h. */
PLEAT_NODISCARD pleat_result pleat__shapes_ask(pleat__shapes *shapes, uint64_t bytes,
                                               uint16_t stream);
/* Memory is short: gives views back that are not followed, and where nothing is allocated at all
 * those that are. true: some went. pre: the turn; the lock may be left meanwhile */
bool pleat__shapes_drop(pleat__shapes *shapes);
/* The lane of that number. */
pleat__lane_space *pleat__shapes_lane(const pleat__shapes *shapes, uint32_t lane);
/* A request came: is a shape back that is kept? */
void pleat__shapes_look(pleat__shapes *shapes, uint64_t bytes, uint16_t stream);
/* Judges the last PLEAT__WATCH_REQUESTS, or fewer where too many of them missed. */
void pleat__shapes_judge(pleat__shapes *shapes);

/* A request was served; `missed`: it did not match what is followed. */
static inline void pleat__shapes_watch(pleat__shapes *shapes, uint64_t bytes, uint16_t stream,
                                       const pleat__place *place, bool unplanned, bool missed)
{
    if (shapes->current == NULL) {
        pleat__shapes_record(shapes, bytes, stream, place, true);
        return;
    }
    const pleat__follow *current = shapes->current;
    if (__builtin_expect(shapes->looking != 0, 0)) {
        shapes->looking--;
        pleat__shapes_look(shapes, bytes, stream);
        if (current != shapes->current)
            return;
    }
    /* Slots that are taken when a shape is taken up settle within two iterations. */
    unplanned =
        missed || (unplanned && shapes->requests - current->adopted > 2 * (uint64_t)current->count);
    shapes->missed += missed;
    shapes->unplanned += unplanned;
    if (__builtin_expect(shapes->recording, 0)) {
        pleat__shapes_record(shapes, bytes, stream, place, unplanned);
        if (current != shapes->current)
            return;
    }
    if (__builtin_expect(shapes->paced != 0, 0) && !missed &&
        current->match.cursor == current->match.begin)
        shapes->due |= shapes->requests - shapes->paced_at >= shapes->paced / 2;
    if (__builtin_expect(++shapes->watched >= PLEAT__WATCH_REQUESTS, 0) ||
        __builtin_expect(missed && shapes->missed >= PLEAT__WATCH_MISSED, 0))
        pleat__shapes_judge(shapes);
}

#endif
