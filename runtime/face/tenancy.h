/*
 * tenancy.h: a runtime among others on its device. With the setting `tenants` it claims what it
 * makes of the ledger that they share (vmm/tenants/tenants.h), and gives way; with `watermark` it
 * gives way to whoever else takes memory of the device, in this process or another.
 *
 * GIVING  A thread looks at the ledger a hundred times a second. What the runtime has borrowed and
 *         the lender wants back goes at once as far as it is idle, and the rest at the end of the
 *         iteration, when more is. Where others ask for more than there is and this process rests
 *         (it has allocated nothing for a while), its idle memory goes too: the cache of a trainer
 *         that waits is of no use to it. While it works only that goes which the schedule that it
 *         follows has no use for: what an evaluation left, say. People may ask for idle memory
 *         (`pleat tenants reclaim`). With a watermark it goes while the process rests and the
 *         device has less than that free.
 * ASKING  A request that the others leave no room for is put into the ledger, and waits until room
 *         comes, for the grace time at most, before it is refused.
 */
#ifndef PLEAT_RUNTIME_FACE_TENANCY_H
#define PLEAT_RUNTIME_FACE_TENANCY_H

#include <pleat/runtime.h>
#include <runtime/base/conf.h>
#include <stdbool.h>

typedef struct pleat__tenancy pleat__tenancy;

/* Joins, before the runtime makes memory; NULL where the settings ask for neither. */
PLEAT_NODISCARD pleat_result pleat__tenancy_join(pleat_runtime *runtime, const pleat__conf *conf,
                                                 pleat__tenancy **out);
/* Starts the thread, when the runtime is complete. NULL does nothing. */
PLEAT_NODISCARD pleat_result pleat__tenancy_begin(pleat__tenancy *tenancy);
/* Ends the thread: nothing of the runtime is touched any more. NULL is allowed. */
void pleat__tenancy_end(pleat__tenancy *tenancy);
/* Leaves, when the runtime's memory is gone. NULL is allowed. */
void pleat__tenancy_leave(pleat__tenancy *tenancy);

/* The functions below are called with the lock; NULL is allowed. */

/* An iteration ends: what is owed is paid as far as it is idle. Where another thread has the turn
 * the tenancy's own thread does it. */
void pleat__tenancy_mark(pleat__tenancy *tenancy);
/* One request that waits for room; it begins with its bytes and nothing else. Several threads' wait
 * at once, each for a grace time of its own. */
typedef struct pleat__room_request {
    uint64_t bytes;
    uint64_t since_ns; /* when it began to wait; 0: it has not */
    uint64_t tried;    /* in vain: room, and what was idle, of which other threads free some and
                          requests that are refused leave some; UINT64_MAX where the room was
                          enough: then the device has less than the ledger says, and it is tried
                          again after a moment */
} pleat__room_request;
/* The request finds no room. Whether there is more than when it was asked last: after waiting for
 * it, for as long as its grace time lasts. pre: the turn, which is left meanwhile, as the lock is.
 */
bool pleat__tenancy_await(pleat__tenancy *tenancy, pleat__room_request *request);
/* The request has ended, served or not, and whether or not it waited. pre: the turn; the lock is
 * left meanwhile */
void pleat__tenancy_served(pleat__tenancy *tenancy, const pleat__room_request *request);
/* The runtime's own cap is so many bytes by now. */
void pleat__tenancy_raise(pleat__tenancy *tenancy, uint64_t cap_bytes);
/* What exists of the memory of all tenants that this process has in the ledger. Without a lock. */
uint64_t pleat__tenancy_process_bytes(const pleat__tenancy *tenancy);
/* The most that the runtime may have now: less than its cap while it owes. */
uint64_t pleat__tenancy_allowed(const pleat__tenancy *tenancy, uint64_t cap);

#endif
