/*
 * caching_internal.h: the caching allocator's state, shared by its files: caching.c (requests),
 * segments.c (taking and giving segments), caching_audit.c (queries and the auditor).
 */
#ifndef PLEAT_RUNTIME_BASELINES_TORCH_CACHING_INTERNAL_H
#define PLEAT_RUNTIME_BASELINES_TORCH_CACHING_INTERNAL_H

#include <runtime/base/address_map.h>
#include <runtime/base/bitset.h>
#include <runtime/baselines/torch/bins.h>
#include <runtime/baselines/torch/caching.h>

/* One (stream, size class). Never freed before the allocator. */
typedef struct pool {
    struct pool *next;
    pleat_stream stream;
    bool small;
    pleat__block *unbacked; /* expandable: in order of address, linked by `right` */
    pleat__bins free;
} pool;

/* A range of the space's window. Native: backed whole. Expandable: backed where its blocks are. */
typedef struct pleat__caching_segment {
    struct pleat__caching_segment *next; /* of those that go back */
    pool *pool;
    pleat_va address;
    uint64_t bytes;
    pleat__block *first;
    /* Finds the block around an address: the units in which a LIVE block begins. The small pool's
     * unit is 512 bytes, so a unit is an address; the large pool's blocks are over 1 MiB, so a
     * unit of 1 MiB has at most one, and by_unit (NULL in small segments) says which. */
    unsigned unit_shift;
    pleat__bits starts;
    pleat__block **by_unit;
} segment;

typedef struct block_slab {
    struct block_slab *next;
    pleat__block blocks[];
} block_slab;

struct pleat__caching {
    pleat__arena *arena;
    pleat__space *space;
    pleat__gate *gate;
    pleat__caching_options options;
    pleat__caching_stats stats;
    pool *pools;
    pool *last_pool[2];   /* by small: the pool of the last request */
    uint32_t searches[2]; /* by small: the clock of block ages */
    segment **segments;   /* in order of address */
    size_t segment_capacity;
    pleat__address_map live; /* address -> LIVE block */
    pleat__block *spare;     /* unused nodes, linked by `right` */
    uint64_t spares;
    block_slab *slabs;
    uint64_t calls; /* for audits now and then */
};

/* Nodes for `count` blocks are at hand; pleat__caching_node then cannot fail. */
PLEAT_NODISCARD pleat_result pleat__caching_reserve_nodes(pleat__caching *caching, uint64_t count);
pleat__block *pleat__caching_node(pleat__caching *caching, segment *owner, pleat_va address,
                                  uint64_t bytes);
void pleat__caching_node_put(pleat__caching *caching, pleat__block *block);
/* Cuts a block, in no list, to its first `bytes`; returns the rest, in no list. A node is at hand.
 */
pleat__block *pleat__caching_cut(pleat__caching *caching, pleat__block *block, uint64_t bytes);
/* The next block, in no list, becomes part of this one. */
void pleat__caching_join_next(pleat__caching *caching, pleat__block *block);
/* Joins FREE neighbours into a block that is in no list; they leave their bins. */
void pleat__caching_join(pleat__caching *caching, pool *owner, pleat__block *block);
/* Puts the block, whose neighbours are in other states, among the free. */
void pleat__caching_make_free(pleat__caching *caching, pool *owner, pleat__block *block);

/* segments.c: a FREE block of at least `bytes`, in no bin, from new memory. pre: the turn. The lock
 * is left meanwhile. */
PLEAT_NODISCARD pleat_result pleat__caching_extend(pleat__caching *caching, pool *owner,
                                                   uint64_t bytes, pleat__block **out);
/* How many segments begin at or before an address: the place of the next one among them. */
size_t pleat__caching_index_above(const pleat__caching *caching, pleat_va address);
/* The segment that holds an address, or NULL. */
segment *pleat__caching_segment_of(const pleat__caching *caching, pleat_va address);
/* Native: gives back cached segments that no search has wanted for longer than the mean, until
 * the share of gc_threshold is met. The lock is left meanwhile. */
void pleat__caching_collect(pleat__caching *caching);

#endif
