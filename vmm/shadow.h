/*
 * shadow.h: a backend's own copy of what it has handed out, as a hypervisor's of the page tables:
 * reservations, what is mapped on each of their pages, handles and the pieces of memory behind
 * them. From it a backend refuses whatever pleat/vmm.h forbids before the kernel or the driver is
 * asked: both allow more than the contract (a driver takes an unmap of nothing, access over a hole,
 * a map beyond a reservation) and a handle that it does not know can crash it.
 *
 * Handles here carry a generation: a stale one is known as such, whatever became of its number.
 * What is left in it at the end was left behind (W5, and R16 of the runtime, in
 * docs/invariants.md).
 *
 * THREADS  None of its own: the backend's lock guards it. A `span` is good until it is given up.
 */
#ifndef PLEAT_VMM_SHADOW_H
#define PLEAT_VMM_SHADOW_H

#include <internal/arena.h>
#include <pleat/vmm.h>
#include <stdbool.h>

/* A piece of physical memory. It lives while a handle or a map refers to it. */
typedef struct pleat__shadow_piece {
    uint64_t bytes; /* 0: this record is free */
    uint64_t maps;
    uint32_t handles;
    uint32_t next_free;
    /* The backend's own. */
    uint64_t native; /* the driver's handle; an offset in a file */
    int device;
    int file;     /* of this piece alone, or -1 */
    bool foreign; /* from another process */
    bool on_host; /* PLEAT_CREATE_HOST */
} pleat__shadow_piece;

typedef struct pleat__shadow_handle {
    uint32_t piece; /* index + 1; 0: this record is free */
    uint32_t generation;
    uint32_t next_free;
} pleat__shadow_handle;

/* A page of a reservation. */
typedef struct pleat__shadow_page {
    uint32_t piece;      /* index + 1; 0: nothing is mapped */
    uint32_t flags : 2;  /* the backend's own; 0 when mapped */
    uint32_t index : 30; /* which granule of the piece */
} pleat__shadow_page;

typedef struct pleat__reservation {
    pleat_va va;
    uint64_t bytes;
    uint64_t pages;
    uint64_t mapped;
    pleat__shadow_page *page;
} pleat__reservation;

typedef struct pleat__shadow {
    pleat__arena *arena;
    uint64_t granularity;
    /* Told of a piece that nothing refers to any more; may be NULL. */
    void (*dropped)(void *owner, const pleat__shadow_piece *piece);
    void *owner;

    pleat__shadow_piece *pieces;
    size_t piece_count, piece_capacity;
    uint32_t free_piece; /* index + 1 */
    pleat__shadow_handle *handles;
    size_t handle_count, handle_capacity;
    uint32_t free_handle;
    pleat__reservation *reservations; /* by address */
    size_t reservation_count, reservation_capacity;
    uint64_t live_pieces, live_handles, mapped_pages;
} pleat__shadow;

/* Pages of one reservation. */
typedef struct pleat__shadow_span {
    pleat__reservation *reservation;
    uint64_t first, count;
    uint32_t piece; /* of a map to be made: index + 1 */
} pleat__shadow_span;

static inline pleat__shadow_piece *pleat__shadow_piece_at(const pleat__shadow *shadow,
                                                          uint32_t piece)
{
    return &shadow->pieces[piece - 1];
}

/* Whether it is some granules long. */
bool pleat__shadow_granular(const pleat__shadow *shadow, uint64_t bytes);

/* Reservations: whether one may be made, or ended; and that it was. */
PLEAT_NODISCARD pleat_result pleat__shadow_check_reserve(const pleat__shadow *shadow,
                                                         uint64_t bytes, uint64_t align);
PLEAT_NODISCARD pleat_result pleat__shadow_add_range(pleat__shadow *shadow, pleat_va va,
                                                     uint64_t bytes);
PLEAT_NODISCARD pleat_result pleat__shadow_check_free(const pleat__shadow *shadow, pleat_va va,
                                                      uint64_t bytes);
void pleat__shadow_drop_range(pleat__shadow *shadow, pleat_va va);
/* The page of an address, in *span; false: not reserved. */
bool pleat__shadow_find(const pleat__shadow *shadow, pleat_va va, pleat__shadow_span *span);

/* Whether a piece may be made. */
PLEAT_NODISCARD pleat_result pleat__shadow_check_create(const pleat__shadow *shadow, uint64_t bytes,
                                                        uint32_t flags);
/* A piece with its first handle; a further handle; 0: no host memory. */
pleat_handle pleat__shadow_add_piece(pleat__shadow *shadow, const pleat__shadow_piece *piece);
pleat_handle pleat__shadow_add_handle(pleat__shadow *shadow, uint32_t piece);
/* The piece (index + 1) of a handle; PLEAT_E_INVALID when it is none. */
PLEAT_NODISCARD pleat_result pleat__shadow_piece_of(const pleat__shadow *shadow, const char *verb,
                                                    pleat_handle handle, uint32_t *piece);
/* pre: it is one */
void pleat__shadow_drop_handle(pleat__shadow *shadow, pleat_handle handle);

/* Whether the verb's range is as it must be; gives the span. */
PLEAT_NODISCARD pleat_result pleat__shadow_check_map(const pleat__shadow *shadow, pleat_va va,
                                                     uint64_t bytes, pleat_handle handle,
                                                     pleat__shadow_span *span);
PLEAT_NODISCARD pleat_result pleat__shadow_check_maps(const pleat__shadow *shadow, const char *verb,
                                                      pleat_va va, uint64_t bytes,
                                                      pleat__shadow_span *span);
void pleat__shadow_set_map(pleat__shadow *shadow, const pleat__shadow_span *span);
void pleat__shadow_clear_maps(pleat__shadow *shadow, const pleat__shadow_span *span);

#endif
