/*
 * pending.h: frees that wait for other streams.
 *
 * An allocation that further streams use (record_stream) is not free when the program frees it, but
 * when the work that those streams had been given by then is done. Until then the policy does not
 * hear of the free.
 *
 *            record            free                    events passed
 *   (unknown) ----> RECORDED -------> WAITING [events] -------------> the policy's free
 *
 * On a stream that captures a graph no event is recorded before the capture has ended.
 *
 * Free allocates nothing: a use's node and its event are made when it is recorded. Where an event
 * cannot be recorded at the free it is tried again later, which only waits longer.
 * THREADS  None of its own: the caller holds a lock.
 */
#ifndef PLEAT_RUNTIME_PENDING_H
#define PLEAT_RUNTIME_PENDING_H

#include <runtime/gate.h>
#include <runtime/live.h>

typedef struct pleat__pending_use {
    struct pleat__pending_use *next;
    pleat_stream stream;
    pleat_event event;
    bool recorded; /* the event */
} pleat__pending_use;

typedef struct pleat__pending_entry {
    struct pleat__pending_entry *next; /* WAITING: the queue; unused: the spares */
    pleat_va address;
    pleat__pending_use *uses;
    bool waiting;
} pleat__pending_entry;

typedef struct pleat__pending {
    pleat_vmm vmm;
    int device;
    pleat__arena *arena;
    const pleat__gate *gate;
    pleat__live entries;                 /* address -> entry */
    pleat__pending_entry *first, **last; /* WAITING, oldest first */
    pleat__pending_entry *spare_entries;
    pleat__pending_use *spare_uses;
    uint64_t waiting;
} pleat__pending;

/* Called with an address whose free is due. */
typedef void (*pleat__pending_done)(void *context, pleat_va address);

PLEAT_NODISCARD pleat_result pleat__pending_create(pleat_vmm vmm, int device, pleat__arena *arena,
                                                   const pleat__gate *gate,
                                                   pleat__pending *pending);
/* Forgets all; waits for nothing. */
void pleat__pending_destroy(pleat__pending *pending);

/* `stream` uses the allocation. PLEAT_E_STATE when its free is waiting already. */
PLEAT_NODISCARD pleat_result pleat__pending_record(pleat__pending *pending, pleat_va address,
                                                   pleat_stream stream);
/* Whether the free of this address must wait; if so it is queued. PLEAT_E_STATE as above. */
PLEAT_NODISCARD pleat_result pleat__pending_free(pleat__pending *pending, pleat_va address,
                                                 bool *waits);
/* Hands over the frees that are due; looks at most at `most` that are not. Returns how many. */
uint64_t pleat__pending_poll(pleat__pending *pending, uint64_t most, pleat__pending_done done,
                             void *context);
/* The events that all frees wait for, as far as the driver recorded them, to be waited for without
 * the caller's lock; how many. The array is the caller's to free; events are never destroyed before
 * pleat__pending_destroy. 0 when there is no host memory for it. */
size_t pleat__pending_events(pleat__pending *pending, pleat_event **out);

#endif
