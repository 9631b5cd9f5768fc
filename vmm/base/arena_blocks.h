/*
 * arena_blocks.h: where an arena's blocks come from: arena_jemalloc.c, or under the address
 * sanitizer, which sees nothing of jemalloc's, arena_malloc.c.
 */
#ifndef PLEAT_VMM_BASE_ARENA_BLOCKS_H
#define PLEAT_VMM_BASE_ARENA_BLOCKS_H

#include <internal/arena.h>
#include <stdatomic.h>

/* Blocks of so many bytes or more begin at a multiple of it, where they are jemalloc's (D480). */
#define PLEAT__LARGE_PAGE_BYTES ((size_t)1 << 21)

/* What is kept of any arena, as the first thing of what its blocks' side keeps; zeroed. */
struct pleat__arena {
    _Atomic uint64_t allocated;
    _Atomic uint64_t peak;
};

/* What a new block holds. */
typedef enum pleat__contents {
    PLEAT__CONTENTS_ANY = 0,
    PLEAT__CONTENTS_ZERO,
    PLEAT__CONTENTS_SPARSE, /* zeroes, of which few will ever be written */
} pleat__contents;

/* PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__blocks_open(pleat__arena **out);
/* With all its blocks. */
void pleat__blocks_close(pleat__arena *arena);
/* size is not 0. NULL when there is no memory; resize leaves the old block as it was then. */
void *pleat__blocks_take(pleat__arena *arena, size_t size, pleat__contents contents);
void *pleat__blocks_resize(pleat__arena *arena, void *pointer, size_t size);
void pleat__blocks_give(pleat__arena *arena, void *pointer);
/* What a block takes. */
size_t pleat__blocks_size(const pleat__arena *arena, const void *pointer);

#endif
