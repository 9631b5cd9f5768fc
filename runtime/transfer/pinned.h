/*
 * pinned.h: host memory that the device copies from and to at the link's full speed. It is dear to
 * make, so what nobody uses is kept for the next one who wants some.
 */
#ifndef PLEAT_RUNTIME_FACE_PINNED_H
#define PLEAT_RUNTIME_FACE_PINNED_H

#include <internal/arena.h>
#include <pleat/vmm.h>
#include <stdbool.h>

typedef struct pleat__pinned_block {
    void *memory;
    uint64_t bytes;
    bool used;
} pleat__pinned_block;

typedef struct pleat__pinned {
    pleat_vmm vmm;
    int device;
    uint64_t page_bytes; /* blocks are whole ones */
    pleat__arena *arena;
    pleat__pinned_block *blocks;
    size_t count, capacity;
} pleat__pinned;

/* A block that nobody uses, or a new one, of the size that helps most of `bytes`; *index names it
 * until it is given back. The verb may take a tenth of a second: not under a lock. */
PLEAT_NODISCARD pleat_result pleat__pinned_take(pleat__pinned *pinned, uint64_t bytes,
                                                size_t *index);
void pleat__pinned_give(pleat__pinned *pinned, size_t index);
/* All goes back to the host, where nothing of it is used. */
void pleat__pinned_trim(pleat__pinned *pinned);
void pleat__pinned_release(pleat__pinned *pinned);

#endif
