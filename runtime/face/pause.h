/*
 * pause.h: memory of live tensors goes back to the device for a while, and comes back at the same
 * addresses.
 *
 * The chunks on which only what is to be paused lives are laid to rest (pleat__space_rest), what is
 * free on them is held, and what lives is copied to host memory before, or discarded. What the
 * program frees meanwhile is kept back until they are awake again, since nothing may come to lie
 * there. A tensor keeps its place in every table, so nothing else in the runtime knows of a pause.
 *
 * TAGS    A thread may have a tag (pleat_tag); what it allocates meanwhile has it too.
 * HOST    Pinned memory is dear to make, so it is kept for the next pause until the caches are
 *         emptied.
 */
#ifndef PLEAT_RUNTIME_FACE_PAUSE_H
#define PLEAT_RUNTIME_FACE_PAUSE_H

#include <pleat/runtime.h>
#include <runtime/base/address_map.h>
#include <runtime/base/driver_lock.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct pleat__pause pleat__pause;

/* Pinned memory, in blocks. */
typedef struct pleat__pinned {
    void *memory;
    uint64_t bytes;
    bool used;
} pleat__pinned;

typedef struct pleat__pauses {
    pleat__pause *first;       /* those that hold, the newest first */
    pleat__address_map tagged; /* allocations to their tags; made when the first is */
    pleat__address_map kept;   /* frees that are kept back, to their bytes */
    pleat__pinned *blocks;
    size_t block_count, block_capacity;
} pleat__pauses;

/* Whether any thread of the process ever had a tag, or a runtime spills: allocations are noted. */
extern atomic_bool pleat__allocations_are_noted;

/* From now on. */
void pleat__note_allocations(void);

/* With the lock. Before an allocation of a thread that has a tag; and after it. */
PLEAT_NODISCARD pleat_result pleat__tag_reserve(pleat_runtime *runtime);
void pleat__tag_note(pleat_runtime *runtime, pleat_va address);
/* The allocation is freed. */
void pleat__tag_forget(pleat_runtime *runtime, pleat_va address);
/* Whether a free is kept back, because something of the allocation is paused; it is from now on.
 * *again: it was so before. With the lock. */
bool pleat__pause_keeps(pleat_runtime *runtime, pleat_va address, uint64_t bytes, bool *again);
/* Moves what lies on chunks to memory of the host's, or back to the device's, at the same places;
 * `bytes_most` at a time. With the turn; the lock is left. PLEAT_E_BUDGET, PLEAT_E_OUT_OF_MEMORY,
 * PLEAT_E_UNSUPPORTED: nothing of this call's last part moved. */
PLEAT_NODISCARD pleat_result pleat__pause_move(pleat_runtime *runtime, pleat__chunk *const *chunks,
                                               size_t count, bool on_host);
/* Pinned memory that no pause uses goes. With the turn, the lock left. */
void pleat__pauses_trim(pleat_runtime *runtime);
/* At the end of the runtime: no verb on its memory is issued. */
void pleat__pauses_release(pleat_runtime *runtime);

#endif
