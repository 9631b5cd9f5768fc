/*
 * chunks.h: the physical memory a runtime lives on, and where each chunk can be reached.
 *
 * Chunks are numbered from 0. Each has one home: a page in the region at the bottom of the window,
 * where it is mapped for as long as it exists. Chunks that are neighbours by number are neighbours
 * by home unless the second is marked as a break, so a run of free granules without a break is a
 * run of addresses. Further maps of a chunk (the plan's folds, stitched views) are aliases
 * elsewhere in the window.
 *
 * Which bytes are in use is `occupancy`'s to say, for all addresses of a chunk at once.
 */
#ifndef PLEAT_RUNTIME_MEMORY_CHUNKS_H
#define PLEAT_RUNTIME_MEMORY_CHUNKS_H

#include <plan/base/plan.h>
#include <runtime/base/gate.h>
#include <runtime/memory/occupancy.h>

/* New memory comes in handles of several chunks where it is wanted side by side: a handle costs
 * what a chunk alone does (H200: 22 us for 16 MiB, 24 us for 2 MiB), to make and in every view. A
 * view needs whole handles, though, so what is free beside a live tensor in its handle is of use to
 * fewer requests. There are about as many such places as there are large tensors, whatever the
 * job's size; so a handle has at most one chunk for each PLEAT__HANDLE_SHARE chunks that exist, or
 * for each PLEAT__RUN_SHARE that are made for one request, whichever is more, and at most
 * PLEAT__HANDLE_CHUNKS (docs/decisions.md, D24, D486, D491); the second only as far as it is one
 * chunk for each PLEAT__RUN_ROOM that may still be made. The nearer the budget is, the more such a
 * place matters: a handle has at most one chunk, too, for each PLEAT__ROOM_SHARE that may still be
 * made (D277, D145). What else they may follow is the same trade, of memory for the driver's time:
 * the holes that there are, the request, what is stuck beside live tensors (D543 to D545). */
#define PLEAT__HANDLE_CHUNKS 64u
#define PLEAT__HANDLE_SHARE  512u
#define PLEAT__RUN_SHARE     64u
#define PLEAT__RUN_ROOM      2048u
#define PLEAT__ROOM_SHARE    256u
/* What was at rest may come back in handles so many times as large: a job that gives its memory
 * back in turns waits for each handle (D341). */
#define PLEAT__JOINED 2u
/* Chunks that a pool has numbers for, in the device's size: what is paused or in the host's memory
 * keeps its numbers and homes, and takes none of the device (D530). */
#define PLEAT__HOMES 4u

/* Neighbouring pages of the window. */
typedef struct pleat__page_run {
    uint64_t page;
    uint64_t pages;
} pleat__page_run;

/* The chunks [first, behind) of one handle; of a chunk that was given back none, from itself on. */
typedef struct pleat__chunk_span {
    uint32_t first;
    uint32_t behind;
} pleat__chunk_span;

typedef struct pleat__chunk_pool {
    pleat__arena *arena;
    pleat__gate *gate;
    pleat__space *space;
    pleat_va base;
    uint64_t page_bytes;
    pleat__occupancy occupancy;
    pleat__chunk **chunks;   /* by number; NULL: given back to the space, counted as occupied */
    pleat__chunk_span *span; /* its handle's */
    uint32_t *home;          /* its page */
    uint8_t *breaks;         /* 1: does not follow on the chunk before */
    uint32_t count;          /* numbers in use */
    uint32_t most;           /* numbers that there may be: the tables are made for all of them */
    uint32_t absent;         /* numbers without a chunk */
    uint64_t region_pages;   /* taken at the bottom of the window for homes ... */
    uint64_t taken_page;     /* ... from this one on by this pool */
    /* All that was taken for homes: the region, and where that is full as many pages as the device
     * has, wherever the window has them. */
    pleat__page_run homes[PLEAT__HOMES];
    uint32_t home_count;
    uint64_t next_home;  /* a page; the end of its run: the next home is in the run behind */
    uint64_t view_pages; /* alias pages mapped now, without those that are being unmapped */
    /* rest.c's: handles at rest because nothing lay there, and what is free on paused ones. */
    uint32_t *resting;
    size_t resting_count, resting_capacity;
    pleat__run *held_runs;
    size_t held_run_count, held_run_capacity;
    uint64_t held; /* granules that count as in use for either */
    bool joins;    /* neighbours at rest become one handle: no plan says where handles end */
} pleat__chunk_pool;

/* With a plan its chunks are mapped as it says, the folds too, and all of them rest. `again`: the
 * pages are taken already that a pool without a plan takes. */
PLEAT_NODISCARD pleat_result pleat__chunk_pool_init(pleat__chunk_pool *pool, pleat__arena *arena,
                                                    pleat__space *space, pleat__gate *gate,
                                                    const pleat_plan *plan, bool again);
/* The plan of a new pool is not to be followed after all: its chunks and pages go back. pre: all of
 * its chunks rest. */
void pleat__chunk_pool_unload(pleat__chunk_pool *pool);
/* Metadata only: the space unmaps. */
void pleat__chunk_pool_release(pleat__chunk_pool *pool);

/* The functions below issue verbs: pre: the turn; the gate's lock is left meanwhile. */

/* `chunks` more, mapped and free, those at rest first; `visit` is told of each run of granules.
 * Some may have been made when it fails for memory; they stay. */
PLEAT_NODISCARD pleat_result pleat__chunk_pool_grow(pleat__chunk_pool *pool, uint32_t chunks,
                                                    pleat__occupancy_visit visit, void *context);
/* The same, all of them new. */
PLEAT_NODISCARD pleat_result pleat__chunk_pool_make(pleat__chunk_pool *pool, uint32_t chunks,
                                                    pleat__occupancy_visit visit, void *context);
/* `chunks` more, mapped and at rest: they have no memory before something comes to lie there. The
 * lock is not left. All or none. */
PLEAT_NODISCARD pleat_result pleat__chunk_pool_promise(pleat__chunk_pool *pool, uint32_t chunks);
/* Gives wholly free chunks back to the space, of streams that are fenced, when the GPU is past the
 * fences; how many went: all or, where nobody says that it is, none. `numbers` is in descending
 * order. pre: whole handles, and no alias of them is mapped. */
uint32_t pleat__chunk_pool_shrink(pleat__chunk_pool *pool, const uint32_t *numbers, uint32_t count,
                                  pleat__fences *fences);
/* A view: the chunks' aliases side by side. pre: whole handles, something of each is occupied. */
PLEAT_NODISCARD pleat_result pleat__chunk_pool_view(pleat__chunk_pool *pool, const uint32_t *chunks,
                                                    uint32_t count, uint64_t *page);

/* Parts of a view's pages, which show whole handles, show others instead: those of `chunks`, which
 * has one for each page of the view. On failure nothing of it is mapped any more, and its pages are
 * given back. pre: the GPU uses nothing of it any more. */
PLEAT_NODISCARD pleat_result pleat__chunk_pool_remap(pleat__chunk_pool *pool, pleat__page_run view,
                                                     const uint32_t *chunks,
                                                     const pleat__page_run *parts, uint32_t count);

/* A handle at rest, which begins with this chunk and is mapped at home only, is given back. */
void pleat__chunk_pool_drop(pleat__chunk_pool *pool, uint32_t first);
/* Makes one handle of two neighbours at rest, which begin with these chunks. false: they lie apart,
 * or the space does not have it. */
bool pleat__chunk_pool_join(pleat__chunk_pool *pool, uint32_t first, uint32_t next);
/* Makes two handles of one at rest: the second begins with chunk `at`. false: it stays one. */
bool pleat__chunk_pool_split(pleat__chunk_pool *pool, uint32_t at);

/* memory_audit.c: handles, homes and what is gone (R3, R5 in docs/invariants.md). */
bool pleat__chunks_audit(const pleat__chunk_pool *pool);
/* So many granules are in use, and what is held is (R4, R19). pre: nothing is reserved for verbs
 * that are on their way. */
bool pleat__used_audit(const pleat__chunk_pool *pool, uint64_t live);

static inline uint32_t pleat__chunk_of(const pleat__chunk_pool *pool, uint32_t granule)
{
    return granule >> pool->occupancy.shift;
}

/* The home address of a granule. */
static inline pleat_va pleat__chunk_pool_address(const pleat__chunk_pool *pool, uint32_t granule)
{
    uint64_t page = pool->home[granule >> pool->occupancy.shift];
    uint64_t offset = granule & (pool->occupancy.full - 1);
    return pool->base + page * pool->page_bytes + (offset << PLEAT__GRANULE_SHIFT);
}

/* The most chunks of a handle that others were joined to. */
uint32_t pleat__chunk_pool_joined_most(const pleat__chunk_pool *pool);
/* The first chunk of its handle; itself where it was given back. */
static inline uint32_t pleat__first_of(const pleat__chunk_pool *pool, uint32_t chunk)
{
    return pool->span[chunk].first;
}

/* Chunks of its handle; 0: it was given back. */
static inline uint32_t pleat__handle_chunks(const pleat__chunk_pool *pool, uint32_t chunk)
{
    return pool->span[chunk].behind - pool->span[chunk].first;
}

#endif
