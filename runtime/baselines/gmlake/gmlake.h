/*
 * gmlake.h: GMLake's blocks: primitive ones, which own chunks, and views stitched over them.
 * policy_gmlake.c says how they serve requests.
 */
#ifndef PLEAT_RUNTIME_BASELINES_GMLAKE_GMLAKE_H
#define PLEAT_RUNTIME_BASELINES_GMLAKE_GMLAKE_H

#include <runtime/base/address_map.h>
#include <runtime/base/bitset.h>
#include <runtime/base/policy.h>
#include <runtime/baselines/torch/addresses.h>
#include <runtime/baselines/torch/bins.h>
#include <runtime/baselines/torch/caching.h>

#define BUCKETS 256u /* D478 */

typedef struct pool {
    struct pool *next;
    pleat_stream stream;
    uint64_t free_bytes;
    pleat__bins free;
} pool;

/* Chunks of one page each, mapped at their home for good. `block` comes first: bins hold it. */
typedef struct primitive {
    pleat__block block;
    pool *pool;
} primitive;

typedef struct run {
    pleat_va address; /* of the home of its chunks */
    uint64_t bytes;
} run;

typedef struct view {
    struct view *next;            /* in its bucket */
    struct view *older, *younger; /* by last use */
    pool *pool;
    pleat_va address;
    uint64_t bytes;
    uint64_t requested; /* 0: idle, as far as this view goes */
    size_t run_count;
    run runs[];
} view;

typedef struct policy {
    pleat__policy_context context;
    pleat__caching *small;
    pool *pools;
    uint64_t unit;
    pleat_va base;
    pleat__bits starts;        /* pages at which a primitive begins */
    pleat__address_map blocks; /* begin of a primitive, FREE or LIVE -> primitive */
    pleat__address_map live;   /* address -> view in use */
    view *buckets[BUCKETS];    /* by size */
    view *oldest, *youngest;
    uint64_t stitched_pages;
} policy;

static inline uint64_t page_of(const policy *self, pleat_va address)
{
    return (address - self->base) / self->unit;
}

static inline primitive *of_block(pleat__block *block)
{
    return (primitive *)block;
}

static inline view **bucket_of(policy *self, uint64_t bytes)
{
    return &self->buckets[bytes / self->unit % BUCKETS];
}

/* NULL: no host memory. */
pool *pleat__gmlake_find_pool(policy *self, pleat_stream stream);
/* Room for one more primitive: adding it cannot fail. */
PLEAT_NODISCARD pleat_result pleat__gmlake_new_primitive(policy *self, pool *owner,
                                                         primitive **out);
/* Cuts a LIVE primitive to its first `bytes`; the rest, in `node`, becomes free. */
void pleat__gmlake_cut(policy *self, primitive *block, uint64_t bytes, primitive *node);
/* A FREE primitive leaves its bin and is LIVE. */
void pleat__gmlake_take(primitive *block);
/* A LIVE primitive becomes free, joined with free neighbours. */
void pleat__gmlake_free_primitive(policy *self, primitive *block);
/* Forgets a primitive that is in no bin. */
void pleat__gmlake_remove_primitive(policy *self, primitive *gone);
/* New memory: a LIVE primitive. The paper's Alloc, the only source of chunks. pre: the turn. */
PLEAT_NODISCARD pleat_result pleat__gmlake_alloc_primitive(policy *self, pool *owner,
                                                           uint64_t bytes, primitive **out);
/* Not in use, and all its chunks lie in free primitives. */
bool pleat__gmlake_is_idle(const policy *self, const view *v);
/* Makes a run, which lies in one free primitive, a LIVE primitive of its own. */
PLEAT_NODISCARD pleat_result pleat__gmlake_carve(policy *self, const run *r);
/* The first `count` runs of a view, each a LIVE primitive, become free. */
void pleat__gmlake_free_runs(policy *self, const view *v, size_t count);
/* Out of the order of use, and in as the last used. */
void pleat__gmlake_age_out(policy *self, view *v);
void pleat__gmlake_make_youngest(policy *self, view *v);
/* StitchFree: idle views go, the oldest first, until `keep` pages are stitched. pre: the turn. */
bool pleat__gmlake_stitch_free(policy *self, uint64_t keep);
/* Stitches the primitives in `v`, all LIVE. pre: the turn. */
PLEAT_NODISCARD pleat_result pleat__gmlake_stitch(policy *self, view *v);

#endif
