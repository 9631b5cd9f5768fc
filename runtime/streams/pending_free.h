/*
 * pending_free.h: frees that wait.
 *
 * An allocation that further streams use (record_stream) is not free when the program frees it, but
 * when the work that those streams had been given by then is done; nor is one whose memory is held
 * (paused), before that is over. Until then the policy does not hear of the free. Where streams
 * share their memory (heap.h) the policy records the block's own stream so.
 *
 *      record, prepare         free                    events passed, not held
 *   (unknown) ----> RECORDED -------> WAITING [events] -----------------------> the policy's free
 *                                            |         ordered, not held           ^
 *                                            +-------------------------------------+
 *
 * ORDERED  A program may be an iteration ahead of the GPU, and what it frees then piles up. The
 *          block's own stream can be made to wait for the events instead: whatever it is given
 *          later comes behind them, and so may lie in that memory. That is done only where the
 *          memory is wanted, since it takes from the streams some of their freedom to run apart,
 *          and never to the stream that does most of the work (runtime/memory/waiting_frees.h).
 *
 * On a stream that captures a graph no event is recorded before the capture has ended.
 *
 * Free allocates nothing: a use's node and its event are made when it is recorded, what a free of
 * held memory is noted in when that is prepared. Where an event
 * cannot be recorded at the free it is tried again later, which only waits longer.
 * THREADS  None of its own: the caller holds a lock.
 */
#ifndef PLEAT_RUNTIME_STREAMS_PENDING_FREE_H
#define PLEAT_RUNTIME_STREAMS_PENDING_FREE_H

#include <runtime/base/address_map.h>
#include <runtime/base/gate.h>

/* Whether the memory of the block that begins at an address is held. */
typedef bool (*pleat__pending_held)(void *context, pleat_va address);
/* Called with the address and the bytes of a block whose free is due. */
typedef void (*pleat__pending_done)(void *context, pleat_va address, uint64_t bytes);

typedef struct pleat__pending_use {
    struct pleat__pending_use *next;
    pleat_stream stream;
    pleat_event event;
    bool recorded; /* whether the event is */
} pleat__pending_use;

typedef struct pleat__pending_entry {
    struct pleat__pending_entry *next;  /* WAITING: the queue, or held back; unused: the spares */
    struct pleat__pending_entry **link; /* in the queue: what points to it */
    pleat_va address;
    uint64_t bytes; /* as asked for */
    pleat__pending_use *uses;
    bool waiting;
} pleat__pending_entry;

typedef struct pleat__pending {
    pleat_vmm vmm;
    int device;
    pleat__arena *arena;
    const pleat__gate *gate;
    pleat__pending_held held;
    pleat__pending_done done;
    void *context;                       /* of both */
    pleat__address_map entries;          /* address -> entry */
    pleat__pending_entry *first, **last; /* WAITING, oldest first */
    pleat__pending_entry
        *asked; /* of them, where the next poll or search goes on; NULL: at the first */
    pleat__pending_entry *held_back; /* WAITING, past their streams, and held */
    pleat__pending_entry *spare_entries;
    pleat__pending_use *spare_uses;
    uint64_t waiting; /* in the queue */
    uint64_t ordered; /* streams made to wait, since creation */
} pleat__pending;

PLEAT_NODISCARD pleat_result pleat__pending_create(pleat_vmm vmm, int device, pleat__arena *arena,
                                                   const pleat__gate *gate,
                                                   pleat__pending_held held,
                                                   pleat__pending_done done, void *context,
                                                   pleat__pending *pending);
/* Forgets all; waits for nothing. */
void pleat__pending_destroy(pleat__pending *pending);

/* `stream` uses the allocation of `bytes`. PLEAT_E_STATE when its free is waiting already. */
PLEAT_NODISCARD pleat_result pleat__pending_record(pleat__pending *pending, pleat_va address,
                                                   uint64_t bytes, pleat_stream stream);
/* Before the memory of the allocation of `bytes` is held: its free can wait. */
PLEAT_NODISCARD pleat_result pleat__pending_prepare(pleat__pending *pending, pleat_va address,
                                                    uint64_t bytes);
/* The stream that was recorded first. pre: one was */
pleat_stream pleat__pending_first(const pleat__pending *pending, pleat_va address);
/* Later work of the block's own stream, `owner`, comes behind all that the others that use it have
 * been given by now. false: the free is not to wait for its own stream, or waits already, or a
 * stream captures. */
bool pleat__pending_come_behind(pleat__pending *pending, pleat_va address, pleat_stream owner);
/* Whether the allocation at an address has been freed, and waits. */
bool pleat__pending_waits(const pleat__pending *pending, pleat_va address);
/* *bytes of the allocation when its free must wait: it is queued. 0: no other stream uses it, and
 * it is not held. PLEAT_E_STATE as above. */
PLEAT_NODISCARD pleat_result pleat__pending_free(pleat__pending *pending, pleat_va address,
                                                 uint64_t *bytes);
/* Hands over the frees that are due: looks at the oldest, up to `most` that are not, and at as many
 * from where the last poll ended, so that those of a slow stream are in no other's way. Returns how
 * many. */
uint64_t pleat__pending_poll(pleat__pending *pending, uint64_t most);
/* Memory is held no more: hands over what waited for that and nothing else. */
void pleat__pending_resume(pleat__pending *pending);
/* Whether a free that waits is wanted now; *owner is then the stream of its block. */
typedef bool (*pleat__pending_wanted)(void *context, pleat_va address, pleat_stream *owner);
/* The one that was just wanted is handed over. */
typedef void (*pleat__pending_granted)(void *context);
/* Hands over the frees that are wanted, behind their events in the order of their blocks' streams;
 * how many. It looks at the oldest, and at as many from where the last search or poll ended. One
 * whose events or stream the driver refuses waits on. */
uint64_t pleat__pending_order(pleat__pending *pending, pleat__pending_wanted wanted,
                              pleat__pending_granted granted, void *wishes);
/* The events that all frees wait for, as far as the driver recorded them, to be waited for without
 * the caller's lock; how many. The array is the caller's to free; events are never destroyed before
 * pleat__pending_destroy. 0 when there is no host memory for it. */
size_t pleat__pending_events(pleat__pending *pending, pleat_event **out);

#endif
