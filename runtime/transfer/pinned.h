/*
 * pinned.h: host memory that the device copies from and to at the link's full speed. It is dear to
 * make, so what nobody uses is kept for the next one who wants some, and threads make new blocks,
 * several at once, while those that are there already are copied to: the host's pages are made and
 * pinned as fast as its cores can.
 */
#ifndef PLEAT_RUNTIME_TRANSFER_PINNED_H
#define PLEAT_RUNTIME_TRANSFER_PINNED_H

#include <internal/arena.h>
#include <internal/thread.h>
#include <pleat/vmm.h>

#define PLEAT__PINNED_BLOCK_BYTES (UINT64_C(256) << 20) /* D215 */
#define PLEAT__PIN_THREADS        8                     /* at most, the caller's counted (D340) */

typedef struct pleat__pinned_block {
    void *memory;
    uint64_t bytes;
    bool used;
} pleat__pinned_block;

typedef struct pleat__pinned {
    pleat_vmm vmm;
    int device;
    uint64_t page_bytes;  /* blocks are whole ones */
    uint64_t block_bytes; /* of a block; the last of what is wanted is smaller */
    pleat__arena *arena;
    bool by_threads; /* threads of the device can read it */
    pleat__pinned_block *blocks;
    size_t count, capacity;
    /* ---- between open and close ---- */
    pleat__thread threads[PLEAT__PIN_THREADS];
    int thread_count;
    pthread_mutex_t lock;   /* guards the blocks and all below */
    pthread_cond_t changed; /* a block is there, or none will be */
    uint64_t left;          /* bytes for which no block has been begun */
    size_t begun;           /* blocks that are being made now */
    pleat_error failure;    /* with another result than PLEAT_OK: no more are begun */
} pleat__pinned;

/* From now on until it is closed there are blocks for `bytes`: those that nobody uses, and new ones
 * that threads make meanwhile. Close it, whatever comes of it. Making takes a second for some 10
 * GB: not under a lock, as all that follow. */
PLEAT_NODISCARD pleat_result pleat__pinned_open(pleat__pinned *pinned, uint64_t bytes);
/* One of them, which is waited for, or made on the calling thread; *index names it until it is
 * given back. PLEAT_E_STATE: there were enough for all bytes. */
PLEAT_NODISCARD pleat_result pleat__pinned_take(pleat__pinned *pinned, size_t *index);
/* Ends the threads; what nobody took stays for the next one. */
void pleat__pinned_close(pleat__pinned *pinned);
void pleat__pinned_give(pleat__pinned *pinned, size_t index);
/* All goes back to the host, where nothing of it is used. */
void pleat__pinned_trim(pleat__pinned *pinned);
void pleat__pinned_release(pleat__pinned *pinned);

#endif
