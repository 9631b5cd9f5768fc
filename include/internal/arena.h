/*
 * internal/arena.h: host memory for Pleat's own metadata. Each arena is one jemalloc arena:
 * counted, and destroyed whole, so that the job's malloc is left alone and nothing needs to be
 * walked to be freed. One arena a device or a file being read.
 *
 * THREADS  Allocation and free may be called from any thread; create and destroy from one at a time
 *          for the same arena. After destroy every pointer from the arena is gone.
 */
#ifndef PLEAT_INTERNAL_ARENA_H
#define PLEAT_INTERNAL_ARENA_H

#include <pleat/base.h>
#include <stdbool.h>

typedef struct pleat__arena pleat__arena;

/* PLEAT_E_NO_MEMORY when jemalloc refuses. */
PLEAT_NODISCARD pleat_result pleat__arena_create(pleat__arena **out);
/* NULL is allowed. */
void pleat__arena_destroy(pleat__arena *arena);

/* Uninitialised memory, aligned to 16; NULL when there is none. A size of 0 gives a unique pointer.
 */
void *pleat__arena_alloc(pleat__arena *arena, size_t size);
/* Zeroed memory for `count` items; NULL also when the product overflows. */
void *pleat__arena_calloc(pleat__arena *arena, size_t count, size_t size);
/* The same for a table of which little will ever be written: it takes only the pages written. */
void *pleat__arena_calloc_sparse(pleat__arena *arena, size_t count, size_t size);
/* As realloc: NULL leaves the old block as it was. */
void *pleat__arena_realloc(pleat__arena *arena, void *pointer, size_t size);
/* NULL is allowed. */
void pleat__arena_free(pleat__arena *arena, void *pointer);

/* For tests: of the allocations of the calling thread, in any arena, the nth from now on fails (0:
 * none does), and with `forever` all after it. Restarts the count of those that failed. */
void pleat__arena_fail(uint64_t nth, bool forever);
uint64_t pleat__arena_failed(void);

/* Bytes now handed out, and the most there ever were. Cheap. */
typedef struct pleat__arena_bytes {
    uint64_t allocated;
    uint64_t peak;
} pleat__arena_bytes;
pleat__arena_bytes pleat__arena_bytes_of(const pleat__arena *arena);

/* Makes room for `count` items in a growing array: `*items` of `*capacity` items of `size` bytes.
 * Doubles. PLEAT_E_NO_MEMORY leaves the array as it was. */
PLEAT_NODISCARD pleat_result pleat__arena_reserve(pleat__arena *arena, void *items,
                                                  size_t *capacity, size_t count, size_t size);
/* The same for one item more than `count`. */
PLEAT_NODISCARD pleat_result pleat__arena_grow(pleat__arena *arena, void *items, size_t *capacity,
                                               size_t count, size_t size);

#endif
