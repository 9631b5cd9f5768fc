/*
 * spill.h: slow instead of dead (setting spill:host). Where a request would be refused, what is
 * used least often goes to memory of the host's nearest NUMA node, mapped at the same addresses,
 * and the request gets the device's memory that it had.
 *
 * WHICH   What has outlived an iteration's end, the youngest first: an optimizer makes its states
 *         after the weights, and reads and writes them once an iteration; then what is of this
 *         iteration, the oldest first: an activation of the first layers waits longest for its
 *         backward. Chunks go whole, so only those on which nothing else lies.
 * BACK    At an iteration's end as much comes back as the next one will leave room for, if it needs
 *         what the last one needed at its peak.
 * COST    While the setting is off one branch of an allocation. When it is on each allocation is
 *         noted (known.h).
 */
#ifndef PLEAT_RUNTIME_FACE_SPILL_H
#define PLEAT_RUNTIME_FACE_SPILL_H

#include <pleat/runtime.h>
#include <runtime/base/conf.h>
#include <stdbool.h>
#include <vmm/space.h>

typedef struct pleat__spill {
    bool on;
    uint64_t requests;  /* that were served; their numbers are known (known.h) */
    uint64_t marked;    /* requests by the last iteration's end */
    uint64_t peak_live; /* bytes, in this iteration */
} pleat__spill;

/* PLEAT_E_INVALID: another setting than off and host. PLEAT_E_UNSUPPORTED: the device has no memory
 * of the host's, or the policy moves none. */
PLEAT_NODISCARD pleat_result pleat__spill_begin(pleat_runtime *runtime, const pleat__conf *conf);

/* All with the lock. */
/* The number of a request that has just been served, from 1 on; 0 where it is off. */
uint64_t pleat__spill_born(pleat_runtime *runtime);
/* Makes room for so many bytes of the device's; whether any was made. With the turn. */
bool pleat__spill_out(pleat_runtime *runtime, uint64_t bytes);
/* What is held beside what lived in the host's memory is free again where nothing lives there any
 * more. */
void pleat__spill_let_go(pleat_runtime *runtime);
/* A chunk has memory of the device, which other processes can see: it comes back where it was
 * spilled, and others go for it. With the turn. PLEAT_E_STATE: something is paused, or a stream
 * captures a graph. */
PLEAT_NODISCARD pleat_result pleat__spill_fetch(pleat_runtime *runtime, pleat__chunk *chunk);
/* An iteration ends: brings back what fits, where no other thread has the turn. */
void pleat__spill_mark(pleat_runtime *runtime);

#endif
