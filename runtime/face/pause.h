/*
 * pause.h: memory of live tensors goes back to the device for a while, and comes back at the same
 * addresses.
 *
 * The chunks on which only what is to be paused lives are laid to rest (pleat__space_rest), what is
 * free on them is held, and what lives is copied to host memory before, or discarded. Copying one
 * part and unmapping or mapping the next go on at once, so that a pause and a resume take little
 * longer than the copy. What the program frees meanwhile waits until they are resumed
 * (pending_free.h); chunks on which nothing else lived need not wake then. A tensor keeps its place
 * in every table, so nothing else in the runtime knows of a pause.
 */
#ifndef PLEAT_RUNTIME_FACE_PAUSE_H
#define PLEAT_RUNTIME_FACE_PAUSE_H

#include <pleat/runtime.h>
#include <runtime/base/gate.h>
#include <runtime/transfer/transfer.h>

typedef struct pleat__pause {
    struct pleat__pause *next;
    uint32_t tag;  /* 0: all */
    bool internal; /* of a move: the program knows nothing of it */
    bool copies;   /* what lives comes back with its contents */
    bool wakes;    /* `waker` resumes it, and may leave the turn to wait for room */
    pthread_t waker;
    pleat__chunk **chunks;
    size_t chunk_count, chunk_capacity;
    pleat__transfer transfer;
} pleat__pause;

/* Whether the free of the block at an address waits: something of it lies on chunks of a pause, or
 * is lost. With the lock. */
bool pleat__pause_holds(void *runtime, pleat_va address);
/* At the end of the runtime: no verb on its memory is issued. */
void pleat__pauses_release(pleat_runtime *runtime);

/* ---- for what is moved (move.h); all with the turn ---- */

PLEAT_NODISCARD pleat_result pleat__pause_new(pleat_runtime *runtime, pleat__pause **out);
/* Adds a chunk, once. */
PLEAT_NODISCARD pleat_result pleat__pause_add(pleat_runtime *runtime, pleat__pause *pause,
                                              pleat__chunk *chunk);
/* Lists what lies on its chunks, to be copied. */
PLEAT_NODISCARD pleat_result pleat__pause_list_copies(pleat_runtime *runtime, pleat__pause *pause);
/* Prepares frees of what lies on its chunks, and holds what is free on its chunks: from now on it
 * is one of the runtime's pauses. Where that fails, drop it. */
PLEAT_NODISCARD pleat_result pleat__pause_begin(pleat_runtime *runtime, pleat__pause *pause);
/* It never began. */
void pleat__pause_drop(pleat_runtime *runtime, pleat__pause *pause);
/* Waits for the GPU, copies what is to be kept, and lays the chunks to rest; the lock is left.
 * Where that fails they are awake, or torn: end it. */
PLEAT_NODISCARD pleat_result pleat__pause_rest(pleat_runtime *runtime, pleat__pause *pause);
/* Wakes the chunks, copies what was kept, and ends the pause; the lock is left. */
PLEAT_NODISCARD pleat_result pleat__pause_wake(pleat_runtime *runtime, pleat__pause *pause);
/* What is not at rest is the program's again, and the pause is gone, unless something is torn. */
void pleat__pause_end(pleat_runtime *runtime, pleat__pause *pause);

#endif
