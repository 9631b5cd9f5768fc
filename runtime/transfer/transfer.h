/*
 * transfer.h: what lies at addresses of the device goes to pinned host memory, and comes back.
 *
 * Inward one stream's copies are made by copy engines, the other's by threads of the device, where
 * they can. Each takes the next pieces when it has room for them, so whichever is faster takes
 * more: engines are slow while the driver clears memory (D415 in docs/decisions.md).
 *
 * The pieces are listed in the order of their addresses, so that whoever unmaps memory, or maps it,
 * in that order can do so while the copies run: it asks for all below an address.
 */
#ifndef PLEAT_RUNTIME_TRANSFER_TRANSFER_H
#define PLEAT_RUNTIME_TRANSFER_TRANSFER_H

#include <runtime/transfer/pinned.h>

#define PLEAT__COPY_STREAMS 2 /* outward one copy is set up while the other one runs (D215) */
#define PLEAT__COPY_TAKES   2 /* inward, of a stream: one is set up while the other one runs */

/* A piece, and where it is kept. */
typedef struct pleat__transfer_piece {
    pleat_va address;
    uint64_t bytes;
    char *host;
} pleat__transfer_piece;

typedef struct pleat__transfer {
    pleat__transfer_piece *pieces;
    size_t count, capacity;
    size_t *blocks; /* of pinned memory, by index */
    size_t block_count, block_capacity;
} pleat__transfer;

/* Adds [from, to), which lies behind all that was added before. */
PLEAT_NODISCARD pleat_result pleat__transfer_add(pleat__arena *arena, pleat__transfer *transfer,
                                                 pleat_va from, pleat_va to);
void pleat__transfer_release(pleat__transfer *transfer, pleat__pinned *pinned);

/* Pieces up to here have been given to the streams. */
typedef struct pleat__copy_mark {
    pleat_va from; /* where the first one begins that the mark before did not cover */
    pleat_event events[PLEAT__COPY_STREAMS];
} pleat__copy_mark;

/* What copies, and the points by which it is waited for. */
typedef struct pleat__copy_stream {
    pleat_stream stream;
    bool by_threads;                       /* of the device, not by its copy engines */
    pleat_event points[PLEAT__COPY_TAKES]; /* inward: the ends of its last takes */
    uint64_t bytes[PLEAT__COPY_TAKES];     /* of those takes */
    uint64_t given, over;                  /* takes */
    uint64_t copied;                       /* bytes, of takes that are over */
} pleat__copy_stream;

/* A transfer that runs, one way. */
typedef struct pleat__copying {
    pleat_vmm vmm;
    int device;
    pleat__arena *arena;
    const pleat__transfer *transfer; /* inward */
    bool out;                        /* to the host */
    size_t next;                     /* piece that no stream has been given yet */
    pleat__copy_stream streams[PLEAT__COPY_STREAMS];
    pleat__copy_mark *marks; /* outward */
    bool marked_all;
    size_t mark_count, mark_capacity;
    size_t passed; /* marks that were waited for */
} pleat__copying;

/* Outward: each piece gets its place, a long one becoming several, and the streams are given it as
 * soon as there is one, with a mark every `part_bytes`. End it, whatever comes of it. Not under a
 * lock, like all that follow. */
PLEAT_NODISCARD pleat_result pleat__copying_out(pleat__copying *copying, pleat__pinned *pinned,
                                                pleat__transfer *transfer, uint64_t part_bytes);
/* Inward: the streams are given nothing yet. End it, too. */
PLEAT_NODISCARD pleat_result pleat__copying_in(pleat__copying *copying, const pleat__pinned *pinned,
                                               const pleat__transfer *transfer);
/* Outward: waits until all that begins below `end` is copied. Inward: all that lies below it may be
 * written: the streams are given what they have room for, and behind UINT64_MAX all of it. */
PLEAT_NODISCARD pleat_result pleat__copying_reach(pleat__copying *copying, pleat_va end);
/* Waits for all that the streams were given. */
PLEAT_NODISCARD pleat_result pleat__copying_wait(pleat__copying *copying);
/* The same, and frees what it has. Returns `result`, whose text is kept, or what the wait says. */
PLEAT_NODISCARD pleat_result pleat__copying_end(pleat__copying *copying, pleat_result result);

#endif
