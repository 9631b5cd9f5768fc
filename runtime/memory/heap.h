/*
 * heap.h: where requests without a slot go: all requests while no schedule is followed, the dynamic
 * and the unexpected ones while one is.
 *
 * The heap places by the granule, in all memory that is free, idle slots included. A large request
 * gets the first of these that there is (docs/design.md, Memory):
 *
 *   1 a hole: a free run that holds it, at the chunks' homes (heap_fit.c)
 *   2 a hole that comes from frees of its stream that wait for other streams (waiting_frees.h)
 *   3 until the second mark behind a plan's loading, a hole of chunks at rest, which are woken
 *     (rest.h)
 *   4 a free stretch of a view that is mapped (views.c), or one that is free once a few handles of
 *     it are exchanged (remap.c)
 *   5 a new view over whole free handles and parts of two more at its ends, so that no byte is
 *     wasted (stitch.c)
 *   6 the same with as many chunks more as are missing (heap_grow.c): a helping stream's, those at
 *     rest, new ones, and where those are refused any other stream's
 *
 * In a plan's first iteration all of its memory is about to be wanted. A request that is not in the
 * plan lies in none of it then, where no size varies and there is memory besides.
 *
 * So physical memory is what is live plus the leftovers that are too small for any request.
 *
 * ZONES   A chunk's free memory belongs to one zone: a stream, and large or small requests. Small
 *         ones lie apart, so that they pin no large free runs. Memory goes from one stream to
 *         another only as whole free chunks, and the stream that takes them waits for the other's
 *         work so far, or up to its last large free where that is known. That happens in three
 *         cases: a slot lies there, there is no new memory, or new memory would be needed and one
 *         of the two does the job's work while the other helps it (pleat__heap_helps), so that
 *         they wait for each other anyway. Unrelated streams would lose their overlap.
 * SHARED  Streams after the first 62 have one zone, PLEAT__OVERFLOW's. What they free comes back
 *         when the GPU is past it (pending_free.h), so nobody has to wait for what is free there,
 *         and what others freed never goes there (D640).
 * TRUTH   Occupancy says what is free; the zones' sets are derived from it. Slots change occupancy
 *         without touching the sets: they leave a note, and notes are worked off before the sets
 *         are used next. When notes overflow (a planned job never looks at the sets) the sets are
 *         stale, and are made anew from occupancy when they are wanted: that takes no longer than
 *         to work off so many (D444 in docs/decisions.md).
 * FREE    Giving memory back leaves a note too: it allocates nothing and cannot fail.
 * WAITING Before a stream gets new memory, it is made to wait for frees of its own that wait for
 *         other streams (waiting_frees.h).
 */
#ifndef PLEAT_RUNTIME_MEMORY_HEAP_H
#define PLEAT_RUNTIME_MEMORY_HEAP_H

#include <runtime/base/conf.h>
#include <runtime/memory/chunks.h>
#include <runtime/memory/free_runs.h>
#include <runtime/streams/sharing.h>

#define PLEAT__STREAMS  63u /* D194 */
#define PLEAT__ZONES    (2 * PLEAT__STREAMS)
#define PLEAT__OVERFLOW (PLEAT__STREAMS - 1) /* of all streams after the first 62 together */
#define PLEAT__NOTES    512u

typedef struct pleat__view pleat__view; /* views.h */

/* Memory at one address that is not one run. */
typedef struct pleat__runs {
    pleat__run *runs;
    uint32_t count;
    uint32_t granules; /* all of them */
    pleat__view *view; /* the view it is a slice of; NULL: it is a slot's or a lane's */
} pleat__runs;

/* Where a request lies. */
typedef struct pleat__place {
    pleat_va address;
    pleat__run run;       /* valid when several is NULL */
    pleat__runs *several; /* else the place is the first `granules` granules of these */
    uint32_t granules;
    /* Set for a live place: bytes of its last granule that were not asked for, its stream, and its
     * lane counted from 1 (0: none). */
    uint32_t slack : 9;
    uint32_t stream : 6;
    uint32_t lane : 17;
} pleat__place;

/* The runs of a place's granules, one after the other, from {0, place->granules} on. */
typedef struct pleat__place_walk {
    uint32_t at, left;
} pleat__place_walk;

static inline bool pleat__place_next(const pleat__place *place, pleat__place_walk *walk,
                                     pleat__run *run)
{
    if (walk->left == 0)
        return false;
    *run = place->several == NULL ? place->run : place->several->runs[walk->at++];
    run->count = run->count < walk->left ? run->count : walk->left;
    walk->left -= run->count;
    return true;
}

_Static_assert(sizeof(pleat__place) == 32, "two to a cache line");
_Static_assert(PLEAT__STREAMS <= 64, "a stream's index has 6 bits");

#define PLEAT__MOST_LANES 131000u /* D199 */

typedef struct pleat__note {
    pleat__run run;
    bool give;
} pleat__note;

typedef struct pleat__deferred_unmap pleat__deferred_unmap; /* deferred_unmap.h */

typedef struct pleat__heap {
    pleat_vmm vmm;
    int device;
    pleat__arena *arena;
    pleat__chunk_pool *pool;
    pleat__free_runs zones[PLEAT__ZONES];
    uint8_t *zone_of; /* chunk -> zone; for all that there may be */
    pleat_stream streams[PLEAT__STREAMS];
    uint32_t stream_count;
    uint64_t requests[PLEAT__STREAMS]; /* of each stream, so far: the policy counts them */
    uint32_t small_granules;           /* requests below are small */
    pleat__note *notes;
    uint32_t note_count;
    bool stale;
    uint64_t views_reused;
    uint64_t *streams_ordered;          /* the runtime's counter */
    pleat_event points[PLEAT__STREAMS]; /* of a stream whose bit is set in has_point: behind all
                                           uses of what is free in its zones */
    uint64_t has_point;
    pleat__view *newest, *oldest; /* of the views that are kept, by when they were used last */
    uint32_t view_count;
    uint64_t view_maps;      /* of all views */
    uint64_t view_maps_most; /* with idle ones */
    uint64_t view_pages_most;
    bool keeps_apart;     /* before new memory is made no stream takes over another's
                             (streams/sharing.h) */
    uint8_t waking_marks; /* marks until then: what rests is about to be wanted by a plan's first
                            iteration, and a hole there is as good as any (D272) */
    uint32_t planned;     /* chunks of the plan that was loaded: what has no place lies behind them,
                             first, also once it is left (D450, D517); 0: anywhere */
    bool planned_varies;  /* ... and its sizes vary: no more memory is made for its first iteration
                             than for any (D518) */
    bool has_schedule;    /* there is a schedule, also a suspended one: views in which it may find
                             its places stay */
    pleat__sharing sharing;
    uint32_t *gathered; /* chunks of a view that would be made, until the lock is left */
    size_t gathered_capacity;
    uint32_t gathered_count;
    uint8_t *shown;                        /* remap.c's, by chunk: a view shows it ... */
    struct pleat__loose *loose;            /* ... and free handles that it does not show */
    pleat__deferred_unmap *refused;        /* pages of views that could not be unmapped yet */
    struct pleat__waiting_frees *waiting;  /* waiting_frees.h; NULL: nothing waits */
    const struct pleat__place_map *places; /* where a place will be noted; NULL: nowhere */
} pleat__heap;

PLEAT_NODISCARD pleat_result pleat__heap_init(pleat__heap *heap, pleat_vmm vmm, int device,
                                              pleat__arena *arena, pleat__chunk_pool *pool,
                                              const pleat__conf *conf);
void pleat__heap_release(pleat__heap *heap);

/* A stream's index; new ones are added. The first 62 have memory of their own; those after them
 * share theirs. */
uint16_t pleat__heap_stream(pleat__heap *heap, pleat_stream stream);

/* Places a request and marks it occupied. *stitched: it lies in a view. On failure nothing is
 * changed, except that some new memory may be free. PLEAT_E_NOT_READY, without a text: verbs are
 * needed, and another thread has the turn. The lock may have been left when it returns. */
PLEAT_NODISCARD pleat_result pleat__heap_alloc(pleat__heap *heap, uint32_t granules,
                                               uint16_t stream, pleat__place *place,
                                               bool *stitched);
/* The same for one that a plan has no place for, or whose place is taken: in the plan's memory it
 * would be in the way of the plan's slots, so it lies behind the plan's chunks where there is a
 * hole. `makes`: in the plan's first iteration new memory is made there, where there is room for
 * both (D450, D517). */
PLEAT_NODISCARD pleat_result pleat__heap_alloc_beside(pleat__heap *heap, uint32_t granules,
                                                      uint16_t stream, bool makes,
                                                      pleat__place *place, bool *stitched);
/* Takes a known place when all of it is free and its memory is this stream's or can become so (R9
 * in docs/invariants.md). */
bool pleat__heap_take(pleat__heap *heap, const pleat__place *place, uint16_t stream);
/* The same for its first `granules`; false where it has fewer. */
bool pleat__heap_take_resized(pleat__heap *heap, pleat__place *place, uint32_t granules,
                              uint16_t stream);
/* Gives a place back, of the heap or of a slot. */
void pleat__heap_give(pleat__heap *heap, const pleat__place *place);

/* A place that is remembered keeps its view in host memory; mapped it stays only while it is used.
 */
void pleat__view_pin(const pleat__place *place);
void pleat__view_unpin(pleat__arena *arena, const pleat__place *place);
/* A place that is taken or given back, where it lies in a view; and whether that was dropped. */
void pleat__view_use(pleat__heap *heap, const pleat__place *place);
void pleat__view_leave(pleat__heap *heap, const pleat__place *place);
/* Whether a request of this stream may lie there: a view is used by its own stream alone, which is
 * the one that is asked before its pages change (R17 in docs/invariants.md). */
bool pleat__view_serves(const pleat__place *place, uint16_t stream);

/* Drops idle views until at most so many alias pages are mapped, by so many maps of views, the
 * longest unused first; true when any went, or goes again that could not be unmapped before. The
 * mapper unmaps them, those that the GPU may still use later. pre: the turn. */
bool pleat__heap_drop_views(pleat__heap *heap, uint64_t keep_pages, uint64_t keep_maps);
/* Gives wholly free handles without aliases back to the space, `chunks` or, with the last handle, a
 * few more, the highest first, when the GPU is done with them; how many. What a stream has left
 * over that captures unannounced stays. pre: the turn; the lock is left meanwhile. */
uint32_t pleat__heap_shrink(pleat__heap *heap, uint32_t chunks);
/* The largest free run of a stream, and all free bytes; whole handles count as one run, because
 * they can be stitched. */
void pleat__heap_idle(pleat__heap *heap, uint16_t stream, uint64_t *largest, uint64_t *total);
/* Free granules directly before and behind a run. */
void pleat__heap_adjacent(pleat__heap *heap, pleat__run run, uint64_t *before, uint64_t *after);
/* What is in the sets and noted is what is free (R1, R2 in docs/invariants.md); it only reads. */
bool pleat__heap_audit(const pleat__heap *heap);

/* ---- for views and layouts ---- */

/* Brings the sets up to date. */
PLEAT_NODISCARD pleat_result pleat__heap_sync(pleat__heap *heap);
/* New chunks into a zone, where a plan's memory that rests does not come short by it, and none of
 * that is woken. pre: the turn; the lock is left meanwhile, and the sets are up to date after. */
PLEAT_NODISCARD pleat_result pleat__heap_make(pleat__heap *heap, uint8_t zone, uint32_t chunks);
/* A hole at rest of so many granules is woken for a zone, where there is one and what rests is
 * about to be wanted. PLEAT_E_NOT_READY; the lock may be left meanwhile, and the sets are up to
 * date after. */
PLEAT_NODISCARD pleat_result pleat__heap_wake(pleat__heap *heap, uint8_t zone, uint32_t granules,
                                              bool *woken);
/* Chunks that a zone got from other streams: from those that share with it, before there was new
 * memory, which keeping streams apart ends; and from any, where that was refused. */
typedef struct pleat__supplied {
    uint32_t shared;
    uint32_t refused;
} pleat__supplied;
/* That many whole free chunks more for a zone: those of a stream that helps it or that it helps
 * (pleat__heap_helps), new ones, and where these are refused any other stream's, counted in
 * `supplied`. PLEAT_E_NOT_READY; the lock may be left meanwhile, and the sets are up to date
 * after. */
PLEAT_NODISCARD pleat_result pleat__heap_supply(pleat__heap *heap, uint8_t zone, uint32_t chunks,
                                                pleat__supplied *supplied);
/* Frees of a zone's stream that wait for other streams: about so many granules come back. The sets
 * are then up to date. */
bool pleat__heap_order(pleat__heap *heap, uint8_t zone, uint32_t granules);
/* A view for a request of at least one chunk; occupied. */
PLEAT_NODISCARD pleat_result pleat__stitch(pleat__heap *heap, uint32_t granules, uint8_t zone,
                                           pleat__place *place);

/* An iteration has ended: where it cost too much that streams share memory they share no more. */
void pleat__heap_end_iteration(pleat__heap *heap);
/* The backend's clock; on the host that can be a recording's, which may stand still. */
static inline uint64_t pleat__heap_now(const pleat__heap *heap)
{
    return heap->vmm.ops->clock_ns(heap->vmm.self);
}

/* The number of a zone: its stream's, and whether it is for small requests. */
static inline uint8_t pleat__zone_of(uint16_t stream, bool small)
{
    return (uint8_t)(2 * stream) | small;
}

static inline uint16_t pleat__zone_stream(uint8_t zone)
{
    return zone / 2;
}

static inline bool pleat__zone_is_small(uint8_t zone)
{
    return zone & 1;
}

/* Its stream's for large requests. */
static inline uint8_t pleat__zone_large(uint8_t zone)
{
    return zone & ~1u;
}

/* Granules of a zone where they are mapped for as long as they exist. (Written field by field: a
 * copy of what was just put together waits for it.) */
static inline void pleat__heap_at_home(const pleat__heap *heap, pleat__run run, uint8_t zone,
                                       pleat__place *place)
{
    place->address = pleat__chunk_pool_address(heap->pool, run.begin);
    place->run = run;
    place->several = NULL;
    place->granules = run.count;
    place->slack = 0;
    place->stream = pleat__zone_stream(zone) & 63u;
    place->lane = 0;
}

/* The occupancy of a place, and its notes. */
bool pleat__heap_occupy(pleat__heap *heap, const pleat__place *place);

/* Makes room for a note: the sets are stale, and the newest notes stay. */
void pleat__heap_forget_oldest(pleat__heap *heap);
static inline void pleat__heap_note(pleat__heap *heap, pleat__run run, bool give)
{
    if (heap->stale && heap->note_count == 0)
        return;
    if (heap->note_count == PLEAT__NOTES)
        pleat__heap_forget_oldest(heap);
    heap->notes[heap->note_count++] = (pleat__note){run, give};
}

#endif
