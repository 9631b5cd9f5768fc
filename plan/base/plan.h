/*
 * plan/base/plan.h: the plan as the planner builds it, the verifier proves it and the runtime
 * follows it. (include/pleat/plan.h is the public, opaque face.)
 *
 * SEQUENCES  A job's requests fall into two ordered sequences. `first` is everything before the
 * first steady iteration: model load, and the first iteration with its one-time requests. `steady`
 * is one iteration, or two that are alike (`unroll`), and repeats. Time within a sequence is the
 * position of an event (allocation or completed free) in it, 0 .. events.
 *
 * LAYOUT  Slots are byte ranges of the window, from its page 0 on. The window's pages carry maps:
 * each map puts one handle (a run of whole chunks) at a page. Every handle is mapped at least once;
 * further maps of a handle are aliases: two pages with the same handle are the same memory.
 *
 * PHYSICAL  The chunks of all handles, numbered one handle behind the other: chunk c of handle h is
 * `first_chunk[h] + c`. Bytes of physical memory are numbered likewise, so every slot is a short
 * list of physical byte ranges, and two slots are in each other's way exactly when those overlap.
 *
 * RULE  No two slots of one sequence that are live at the same time overlap in physical bytes. A
 * steady slot with free_at <= alloc_at is live across the iteration boundary: in [alloc_at, events)
 * and [0, free_at). A persistent slot is live always, in both sequences, from its allocation in
 * `first` on. Memory passes from one stream to another by the chunk, and only on the chunks that
 * the plan says are handed over: on all others slots of different streams share no byte at any
 * time, on those they are on no chunk at the same time. Who takes a chunk that was another stream's
 * waits for that stream. verify.c lists all that must hold.
 *
 * UNITS  Bytes as noted; a slot's place is a multiple of 512, and the slot takes its size rounded
 * up to one.
 */
#ifndef PLEAT_PLAN_BASE_PLAN_H
#define PLEAT_PLAN_BASE_PLAN_H

#include <internal/arena.h>
#include <internal/range.h>
#include <pleat/plan.h>
#include <stdbool.h>

#define PLEAT__NOWHERE UINT64_MAX /* slot without a planned place */
#define PLEAT__NEVER   UINT32_MAX /* free_at of a request that is not freed in its sequence */
#define PLEAT__NO_LANE UINT32_MAX

/* What a plan may say at most. Nobody who reads one takes memory or time without measure, and sums
 * and products of what is within these fit in 64 bits: after verify.c nobody checks them again. */
#define PLEAT__PAGES_MOST   (1u << 24)   /* pages of a window, chunks: 32 TiB of 2 MiB */
#define PLEAT__CHUNK_MOST   (1ull << 40) /* bytes of a chunk */
#define PLEAT__BYTES_MOST   (1ull << 57) /* of a window, and of physical memory */
#define PLEAT__SIZE_MOST    (1ull << 48) /* bytes of a request */
#define PLEAT__SLOTS_MOST   (1u << 25)   /* requests of both sequences: a trace has no more (T5) */
#define PLEAT__NAMES_MOST   (1u << 16)   /* labels, streams, phases of a sequence */
#define PLEAT__EVENTS_MORE  (1u << 16)   /* events of a sequence beyond two for each slot */
#define PLEAT__TOUCHED_MOST (1ull << 28) /* pages that slots and lanes lie on, each counted */

typedef enum pleat__class {
    PLEAT__CLASS_TRANSIENT = 0,  /* allocated and freed within one phase */
    PLEAT__CLASS_SCOPED = 1,     /* freed in a later phase of the same iteration */
    PLEAT__CLASS_CROSSING = 2,   /* freed in the next iteration: wraps around */
    PLEAT__CLASS_PERSISTENT = 3, /* live across iterations */
    PLEAT__CLASS_DYNAMIC = 4,    /* size or presence differs between iterations: has no slot */
} pleat__class;
#define PLEAT__CLASSES 5

/* One request of a sequence, in order of allocation. */
typedef struct pleat__slot {
    uint64_t size;  /* bytes requested; for dynamic requests the largest seen */
    uint64_t place; /* byte in the window, or PLEAT__NOWHERE */
    uint32_t alloc_at;
    uint32_t free_at;
    uint16_t alloc_phase;
    uint16_t free_phase;
    uint16_t stream; /* index into the plan's streams */
    uint8_t class;   /* pleat__class */
    uint8_t small;   /* under the small limit: pooled apart at run time when it has no place */
    uint32_t lane;   /* dynamic: index of its lane, or PLEAT__NO_LANE */
    uint32_t window; /* dynamic: index of its window (module or phase) */
} pleat__slot;

typedef struct pleat__phase {
    uint32_t label;    /* index into labels */
    uint32_t begin_at; /* event position */
} pleat__phase;

typedef struct pleat__sequence {
    pleat__slot *slots;
    uint32_t slot_count;
    uint32_t events; /* length in events */
    pleat__phase *phases;
    uint32_t phase_count;
} pleat__sequence;

/* Physical memory: a run of `chunks` chunks that is always mapped together. */
typedef struct pleat__plan_handle {
    uint32_t chunks;
    uint32_t first_chunk;
} pleat__plan_handle;

/* handle at window page `page`. In ascending order of page, no overlap. */
typedef struct pleat__plan_map {
    uint64_t page;
    uint32_t handle;
    uint32_t alias; /* 0 for the handle's first map, 1 for the others */
} pleat__plan_map;

/* A view over idle memory where the dynamic requests of some windows are placed. Its chunks carry
 * no static slot that is live within [begin_at, end_at) of the steady iteration (which may wrap).
 */
typedef struct pleat__lane {
    uint64_t place; /* byte in the window */
    uint64_t bytes;
    uint32_t begin_at;
    uint32_t end_at;
} pleat__lane;

/* Bytes that no slot uses while a window's dynamic requests may live (reuse.h). */
typedef struct pleat__reusable {
    uint32_t window;
    uint64_t place;
    uint64_t bytes;
} pleat__reusable;

/* Chunks that requests of different streams are on, one after the other (handover.h). */
typedef struct pleat__handed {
    uint32_t first_chunk;
    uint32_t chunks;
} pleat__handed;

struct pleat_plan {
    pleat__arena *arena;  /* holds everything below */
    uint64_t fingerprint; /* of the trace planned from */
    uint32_t device;      /* which of the trace's devices */
    uint32_t requests;    /* the trace has on that device */
    /* Slot i of `first` is that device's request i, slot i of `steady` its request
     * steady_request + i, counted in order of allocation; of an unrolled one slot i is
     * request steady_request + i % pleat__iteration_slots. */
    uint32_t steady_request;
    /* It answers questions (--at, --fit) and is not followed: where it was tried on what it was
     * made of, learning did as well, or it fits no other run. */
    bool answers_only;
    uint64_t chunk_bytes;
    uint64_t device_bytes;
    uint64_t max_live_bytes; /* of the steady iteration as recorded, sizes rounded to 512 */
    uint64_t first_max_live_bytes;
    uint64_t virtual_bytes;
    uint64_t physical_bytes;
    char *options; /* the options that made it, as text */
    char **labels;
    uint32_t label_count;
    uint64_t *streams;
    uint32_t stream_count;
    pleat__sequence first;
    pleat__sequence steady;
    uint32_t unroll; /* iterations that `steady` is, each of as many slots and events */
    pleat__plan_handle *handles;
    uint32_t handle_count;
    pleat__plan_map *maps;
    uint32_t map_count;
    pleat__lane *lanes;
    uint32_t lane_count;
    pleat__reusable *reusable; /* of a plan for the policy stweaver; by window, then by size */
    uint32_t reusable_count;
    pleat__handed *handed; /* in ascending order, no two side by side */
    uint32_t handed_count;
    struct pleat__recipe *recipe; /* plan/sizes/sizes.h; NULL: the plan is for one size only */
};

/* An empty plan with an arena of its own, which holds the struct too: see pleat_plan_free. */
PLEAT_NODISCARD pleat_result pleat__plan_new(pleat_plan **out);

/* Notes the device's memory, or 0 (unknown) where the plan takes more: what it takes is worth
 * knowing all the same, and a larger device may follow it. */
static inline void pleat__plan_note_device(pleat_plan *plan, uint64_t device_bytes)
{
    plan->device_bytes = plan->physical_bytes <= device_bytes ? device_bytes : 0;
}

/* Slots and events of one iteration. */
static inline uint32_t pleat__iteration_slots(const pleat_plan *plan)
{
    return plan->steady.slot_count / plan->unroll;
}
static inline uint32_t pleat__iteration_events(const pleat_plan *plan)
{
    return plan->steady.events / plan->unroll;
}

/* Requests of an iteration whose size or presence differs. */
uint32_t pleat__iteration_dynamic(const pleat_plan *plan);
/* The same of the whole steady sequence. */
uint32_t pleat__dynamic_requests(const pleat_plan *plan);

/* A plan file's bytes: see pleat_plan_read. `path` is for messages. */
PLEAT_NODISCARD pleat_result pleat__plan_decode(const char *path, const uint8_t *bytes, size_t size,
                                                pleat_plan **out);

/* Whether a file of these bytes begins as a plan does. */
bool pleat__plan_begins(const uint8_t *bytes, size_t size);
/* The same of a file; of a pipe, which could not be read again, it says no. PLEAT_E_IO. */
PLEAT_NODISCARD pleat_result pleat__plan_is_file(const char *path, bool *is);

/* Window page -> physical chunk, from the maps: an array of virtual_bytes / chunk_bytes entries in
 * `arena`, UINT32_MAX where nothing is mapped. */
PLEAT_NODISCARD pleat_result pleat__plan_page_table(const pleat_plan *plan, pleat__arena *arena,
                                                    uint32_t **out);

#endif
