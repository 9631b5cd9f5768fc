/*
 * caching.h: a caching allocator: segments of a space, cut into blocks, blocks kept for reuse.
 *
 * It follows PyTorch's native allocator rule by rule, so that what it holds for a job is what that
 * job would hold under PyTorch (`native`), and, with `expandable`, what it would hold with
 * expandable segments. The policies gmlake and stweaver serve by it what they do not serve
 * themselves.
 *
 * RULES    Sizes are rounded up to 512, or by `divisions` to a part of a power of two. Requests of
 * at most 1 MiB live in small segments (2 MiB), those under 10 MiB in segments of 20 MiB, larger
 * ones in segments of their own size rounded up to 2 MiB. A free block is found by (stream, size,
 * address): the smallest that holds the request, the lowest among equals. A block is cut when what
 * is left is at least 512 bytes (small) or over 1 MiB (large). Neighbours that are free become one.
 * EXPANDABLE  A stream and pool has one long range that grows in place by handles of 2 MiB (small)
 *          or 20 MiB (large); every remainder of 512 bytes and more is cut off.
 * STREAMS  A block belongs to the stream it was first allocated for, for ever.
 * FREE     allocates nothing and cannot fail once the address is known.
 * THREADS  The caller holds the gate's lock, which is left for verbs.
 */
#ifndef PLEAT_RUNTIME_BASELINES_TORCH_CACHING_H
#define PLEAT_RUNTIME_BASELINES_TORCH_CACHING_H

#include <internal/arena.h>
#include <pleat/runtime.h>
#include <runtime/base/conf.h>
#include <runtime/base/gate.h>
#include <stdbool.h>

#define PLEAT__ROUND_BYTES         512u        /* every block is a multiple of it (D477) */
#define PLEAT__SMALL_LIMIT_BYTES   (1u << 20)  /* the largest request of the small pool */
#define PLEAT__SMALL_SEGMENT_BYTES (2u << 20)  /* a segment of the small pool */
#define PLEAT__LARGE_SEGMENT_BYTES (20u << 20) /* a segment for a request under the next line */
#define PLEAT__LARGE_REQUEST_BYTES (10u << 20) /* from here on a request has its own segment */
#define PLEAT__SEGMENT_ROUND_BYTES (2u << 20)  /* rounded up to this */

typedef struct pleat__caching_options {
    bool expandable;
    uint64_t range_bytes; /* expandable: address space of one segment */
    uint64_t
        max_split_bytes; /* larger blocks are never cut nor given to smaller requests; 0: none */
    uint64_t max_round_bytes;    /* how much larger than the request a block over that may be */
    pleat__divisions divisions;  /* requests are rounded up to such parts of a power of two */
    double gc_threshold;         /* share of `*limit_bytes` above which old blocks go; 0: never */
    const uint64_t *limit_bytes; /* the device's memory or the budget, which may change */
    /* Asked before new memory is taken for a request: the program may free something. Non-zero: it
     * is looked once more among the free. Lock and turn are left meanwhile, and had again. NULL:
     * nobody is asked. */
    pleat_memory_callback early_callback;
    void *memory_context; /* its */
} pleat__caching_options;

typedef struct pleat__caching pleat__caching;

typedef struct pleat__caching_stats {
    uint64_t reserved_bytes;  /* backed now */
    uint64_t allocated_bytes; /* in blocks handed out, now */
    uint64_t blocks;          /* handed out, now */
    uint64_t segments;        /* now */
} pleat__caching_stats;

/* `options` may be NULL. PLEAT_E_UNSUPPORTED: segments are not whole pages of the space. */
PLEAT_NODISCARD pleat_result pleat__caching_create(pleat__arena *arena, pleat__space *space,
                                                   pleat__gate *gate,
                                                   const pleat__caching_options *options,
                                                   pleat__caching **out);
/* Gives every segment back, also those in use. NULL is allowed. */
void pleat__caching_destroy(pleat__caching *caching);

/* pre: bytes is not 0. PLEAT_E_OUT_OF_MEMORY, PLEAT_E_BUDGET (nothing that is cached is given back
 * for it: the caller runs the steps of out of memory, runtime/face/reclaim.c), PLEAT_E_NO_MEMORY
 * (host), PLEAT_E_NOT_READY (another thread has the turn), or what the space says; nothing is
 * changed then. */
PLEAT_NODISCARD pleat_result pleat__caching_alloc(pleat__caching *caching, uint64_t bytes,
                                                  pleat_stream stream, pleat_va *address);
/* PLEAT_E_NOT_FOUND (without an error text: the caller may have other places to look) when the
 * address is not one that alloc gave. *bytes, when not NULL, are as asked for. */
pleat_result pleat__caching_free(pleat__caching *caching, pleat_va address, uint64_t *bytes);
/* Whether the address lies in one of its segments. */
bool pleat__caching_owns(const pleat__caching *caching, pleat_va address);

/* Gives cached segments back to the device. pre: the turn. Large: with max_split_bytes set, and for
 * a request of the large pool, blocks of the stream over it, the smallest that has `bytes`, else
 * the largest first; whether as much went as the request needs. All: every segment, or with
 * expandable ones every handle, that is free; their bytes. */
bool pleat__caching_release_large(pleat__caching *caching, uint64_t bytes, pleat_stream stream);
uint64_t pleat__caching_release_all(pleat__caching *caching);

/* The block that holds an address (also one inside it), O(log n). PLEAT_E_NOT_FOUND, no text. */
pleat_result pleat__caching_block_of(const pleat__caching *caching, pleat_va address,
                                     pleat_block *out);
/* Free bytes directly before and behind the block that holds an address. */
pleat_result pleat__caching_adjacent_free(const pleat__caching *caching, pleat_va address,
                                          uint64_t *before, uint64_t *after);
/* Where the first live block at or behind an address begins; 0: there is none. */
pleat_va pleat__caching_next(const pleat__caching *caching, pleat_va address);
/* The largest request of the stream that a cached block would serve now. */
uint64_t pleat__caching_largest(const pleat__caching *caching, pleat_stream stream);

pleat__caching_stats pleat__caching_stats_of(const pleat__caching *caching);
/* Re-derives all totals and orders; prints what disagrees. */
bool pleat__caching_audit(const pleat__caching *caching);

#endif
