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
#include <runtime/base/driver_lock.h>
#include <runtime/memory/occupancy.h>

/* New memory comes in handles of several chunks where it is wanted side by side: one costs what a
 * chunk alone does (H200: 22 us for 16 MiB, 24 us for 2 MiB), to make and in every view. A view
 * needs whole handles, though, so what is free beside a live tensor in its handle is of use to
 * fewer requests. There are as many such places as there are large tensors, whatever the job's
 * size: a handle has at most one chunk for each PLEAT__BLOCK_SHARE that exist, at most
 * PLEAT__BLOCK; and one where fewer than PLEAT__BLOCK_FROM exist, whose making takes little time.
 * (As against a 3,072th throughout: eleven recorded jobs of 12 GiB and more lose 10 to 44 % less of
 * their first iteration to the driver, and all but one, whose layout is made beside it, 6 to 82 %
 * less afterwards, for 0.04 % more memory on average and 0.18 % at most. A 1,536th throughout costs
 * smaller jobs up to 0.28 %, a 1,024th all of them 0.1 %.) */
#define PLEAT__BLOCK       16u
#define PLEAT__BLOCK_SHARE 1536u
#define PLEAT__BLOCK_FROM  6144u

/* Pages of the window at which new handles have to begin, because of the views that are to be made.
 * Who knows those knows what they need: handles may be larger then. */
#define PLEAT__LAID_OUT_SHARE 512u
typedef struct pleat__cuts {
    const uint8_t *pages; /* 1: it is one of them */
    uint64_t first;       /* page of the window */
    uint64_t count;
} pleat__cuts;

/* Neighbouring pages of the window. */
typedef struct pleat__page_run {
    uint64_t page;
    uint64_t pages;
} pleat__page_run;

typedef struct pleat__ahead pleat__ahead; /* ahead.h */

typedef struct pleat__pool {
    pleat__arena *arena;
    pleat__gate *gate;
    pleat__space *space;
    pleat_va base;
    uint64_t page_bytes;
    pleat__occupancy occupancy;
    pleat__chunk **chunks; /* by number; NULL: given back to the space, counted as occupied */
    uint32_t *first;       /* the first chunk of its handle */
    uint32_t *home;        /* its page */
    uint8_t *breaks;       /* 1: does not follow on the chunk before */
    uint32_t count;        /* numbers in use */
    uint32_t capacity;
    uint32_t absent; /* numbers without a chunk */
    /* Where handles for absent numbers have to begin; NULL: anywhere. Who sets it keeps it. */
    const pleat__cuts *cuts;
    bool large_go; /* a plan's handles are given back too, however large they are */
    /* Chunks made ahead, mapped at their homes and there for nobody yet: the numbers from `count`
     * on. pleat__pool_grow gives them out first. */
    uint32_t stocked;
    uint64_t region_pages; /* taken at the bottom of the window for homes */
    uint64_t next_home;
    uint64_t view_pages; /* alias pages mapped now, without those that are being unmapped */
    pleat__ahead *ahead; /* who makes some of it ahead; NULL: nobody */
} pleat__pool;

/* With a plan its chunks come mapped as it says, the folds too; nothing is occupied. */
PLEAT_NODISCARD pleat_result pleat__pool_init(pleat__pool *pool, pleat__arena *arena,
                                              pleat__space *space, pleat__gate *gate,
                                              const pleat_plan *plan);
/* Room for so many numbers in its tables. */
PLEAT_NODISCARD pleat_result pleat__pool_reserve(pleat__pool *pool, uint32_t chunks);
/* Metadata only: the space unmaps. */
void pleat__pool_release(pleat__pool *pool);

/* The functions below issue verbs: pre: the turn; the gate's lock is left meanwhile. */

/* `chunks` more, mapped and free, in handles that begin at all `cuts` (may be NULL: none are
 * known); `visit` is told of each run of new granules. Some may have been made when it fails for
 * memory; they stay. With the stock a few more may come: whole handles. pre: none where it is in
 * the stock already (pool->stocked), and no cuts; then the lock is not left. */
PLEAT_NODISCARD pleat_result pleat__pool_grow(pleat__pool *pool, uint32_t chunks,
                                              const pleat__cuts *cuts, pleat__occupancy_visit visit,
                                              void *context);
/* `chunks` numbers more without a chunk, as if it had been given back, with homes in the region.
 * pre: no stock. It issues no verb. On failure nothing is changed. */
PLEAT_NODISCARD pleat_result pleat__pool_promise(pleat__pool *pool, uint32_t chunks);
/* Chunks for those of the numbers, `count` from `first` on, that have none, in handles of at most
 * `block`; else as pleat__pool_grow. */
PLEAT_NODISCARD pleat_result pleat__pool_make(pleat__pool *pool, uint32_t first, uint32_t count,
                                              uint32_t block, pleat__occupancy_visit visit,
                                              void *context);
/* `chunks` more for the stock, in handles of at most `block`. pre: none is absent, and the turn;
 * the lock is left meanwhile. Fewer may have been made when it fails. */
PLEAT_NODISCARD pleat_result pleat__pool_stock(pleat__pool *pool, uint32_t chunks, uint32_t block);
/* Gives the stock back. pre: the turn; the lock is left meanwhile. */
void pleat__pool_unstock(pleat__pool *pool);
/* The most chunks of a handle where the pool grows by so many, behind the stock. */
uint32_t pleat__pool_handle(const pleat__pool *pool, uint32_t chunks);
/* The same where handles begin at cuts. */
uint32_t pleat__pool_cut_handle(const pleat__pool *pool, uint32_t chunks);
/* Gives wholly free chunks back to the space, of streams that are marked, when the GPU is past the
 * marks; how many went: all or, where nobody says that it is, none. `numbers` is in descending
 * order. pre: whole handles, and no alias of them is mapped. */
uint32_t pleat__pool_shrink(pleat__pool *pool, const uint32_t *numbers, uint32_t count,
                            pleat__marks *marks);
/* How many of the chunks, at most about `most`, are whole handles one behind the other. */
uint32_t pleat__pool_whole(const pleat__pool *pool, const uint32_t *chunks, uint32_t count,
                           uint32_t most);
/* A view: the chunks' aliases side by side. pre: whole handles, something of each is occupied. */
PLEAT_NODISCARD pleat_result pleat__pool_view(pleat__pool *pool, const uint32_t *chunks,
                                              uint32_t count, uint64_t *page);
/* Unmaps pages of a view that the GPU has never used; they stay taken. pre: the turn; the lock is
 * left meanwhile. */
void pleat__pool_unview(pleat__pool *pool, uint64_t page, uint32_t pages);

static inline uint32_t pleat__pool_chunk_of(const pleat__pool *pool, uint32_t granule)
{
    return granule >> pool->occupancy.shift;
}

/* The home address of a granule. */
static inline pleat_va pleat__pool_address(const pleat__pool *pool, uint32_t granule)
{
    uint64_t page = pool->home[granule >> pool->occupancy.shift];
    uint64_t offset = granule & (pool->occupancy.full - 1);
    return pool->base + page * pool->page_bytes + (offset << PLEAT__GRANULE_SHIFT);
}

/* Chunks of its handle, its own first among them at pool->first[chunk]; 0: it was given back, or
 * the handle is larger than views and single returns are for. */
static inline uint32_t pleat__pool_block(const pleat__pool *pool, uint32_t chunk)
{
    const pleat__chunk *handle = pool->chunks[chunk];
    return handle != NULL && handle->pages <= PLEAT__BLOCK ? handle->pages : 0;
}

/* Chunks of its handle when it can be given back. */
static inline uint32_t pleat__pool_returnable(const pleat__pool *pool, uint32_t chunk)
{
    const pleat__chunk *handle = pool->chunks[chunk];
    return handle != NULL && pool->large_go ? handle->pages : pleat__pool_block(pool, chunk);
}

#endif
