/*
 * pinned.h: host memory that the device copies from and to at the link's full speed. It is dear to
 * make, so what nobody uses is kept for the next one who wants some.
 */
#ifndef PLEAT_RUNTIME_TRANSFER_PINNED_H
#define PLEAT_RUNTIME_TRANSFER_PINNED_H

#include <runtime/transfer/pinning.h>

#define PLEAT__PINNED_BLOCK_BYTES (UINT64_C(256) << 20) /* D215 */

typedef struct pleat__pinned {
    pleat_vmm vmm;
    int device;
    uint64_t page_bytes;  /* blocks are whole ones */
    uint64_t block_bytes; /* of a block; the last of what is wanted is smaller */
    pleat__arena *arena;
    pleat__pinned_block *blocks;
    size_t count, capacity;
    pleat__pinning pinning; /* between open and close */
    bool by_threads;        /* threads of the device can read it */
} pleat__pinned;

/* From now on until it is closed there are blocks for `bytes`: those that nobody uses, and new ones
 * that threads make meanwhile. Close it, whatever comes of it. Making takes a second for some 10
 * GB: not under a lock, as all that follow. */
PLEAT_NODISCARD pleat_result pleat__pinned_open(pleat__pinned *pinned, uint64_t bytes);
/* One of them; *index names it until it is given back. */
PLEAT_NODISCARD pleat_result pleat__pinned_take(pleat__pinned *pinned, size_t *index);
void pleat__pinned_close(pleat__pinned *pinned);
void pleat__pinned_give(pleat__pinned *pinned, size_t index);
/* All goes back to the host, where nothing of it is used. */
void pleat__pinned_trim(pleat__pinned *pinned);
void pleat__pinned_release(pleat__pinned *pinned);

#endif
