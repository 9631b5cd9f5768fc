/*
 * pinning.h: threads that make blocks of pinned memory, several at once, while the blocks that are
 * there already are copied to: the host's pages are made and pinned as fast as its cores can.
 */
#ifndef PLEAT_RUNTIME_TRANSFER_PINNING_H
#define PLEAT_RUNTIME_TRANSFER_PINNING_H

#include <internal/arena.h>
#include <internal/thread.h>
#include <pleat/vmm.h>

#define PLEAT__PIN_THREADS 8 /* at most, the caller's counted (D340) */

typedef struct pleat__pinned_block {
    void *memory;
    uint64_t bytes;
    bool used;
} pleat__pinned_block;

typedef struct pleat__pinning {
    pleat_vmm vmm;
    int device;
    pleat__arena *arena;
    uint64_t block_bytes; /* of all but the last */
    pleat__thread threads[PLEAT__PIN_THREADS];
    int thread_count;
    pthread_mutex_t lock;        /* guards all below */
    pthread_cond_t changed;      /* a block is there, or none will be */
    uint64_t left;               /* bytes for which no block has been begun */
    size_t begun;                /* blocks that are being made now */
    pleat__pinned_block *blocks; /* that are there; the first `taken` are the caller's */
    size_t count, taken;
    pleat_error failure; /* with another result than PLEAT_OK: no more are begun */
} pleat__pinning;

/* Begins to make blocks for `bytes`, in whole pages. Whatever comes of it, end it. */
PLEAT_NODISCARD pleat_result pleat__pinning_begin(pleat__pinning *pinning, uint64_t page_bytes,
                                                  uint64_t bytes);
/* The next block, which is the caller's; waits for it, or makes it on the calling thread.
 * PLEAT_E_STATE: there were enough for all bytes. */
PLEAT_NODISCARD pleat_result pleat__pinning_next(pleat__pinning *pinning,
                                                 pleat__pinned_block *block);
/* Ends the threads, and gives back the blocks that nobody took. */
void pleat__pinning_end(pleat__pinning *pinning);

#endif
