/*
 * canary.h: proof, while a job runs, that no two of its tensors share memory. See canary.c.
 *
 * THREADS  None of its own: the runtime holds its lock around every call.
 */
#ifndef PLEAT_RUNTIME_OBSERVE_CANARY_H
#define PLEAT_RUNTIME_OBSERVE_CANARY_H

#include <pleat/runtime.h>
#include <runtime/base/address_map.h>
#include <vmm/paint.h>
#include <vmm/space.h>

#define PLEAT__GUARD 512u /* D200 */

typedef struct pleat__canary {
    pleat__arena *arena;
    pleat__space *space;
    pleat_vmm vmm;
    pleat__paint *paint;     /* NULL: no canary */
    pleat_event event;       /* behind the last new chunks that were filled */
    bool fills;              /* the GPU may not be past it */
    pleat__address_map live; /* address -> what guards it */
    uint64_t guard;          /* bytes more that each request asks for */
    uint32_t serial;
    uint64_t checked;
} pleat__canary;

/* `guards`: every request takes PLEAT__GUARD bytes more; not where a plan counts on its sizes. */
PLEAT_NODISCARD pleat_result pleat__canary_create(pleat_vmm vmm, int device, pleat__arena *arena,
                                                  pleat__space *space, bool guards,
                                                  pleat__canary *canary);
/* One that was never made is allowed. */
void pleat__canary_destroy(pleat__canary *canary);

/* A block has been given out, for a request of `bytes`. */
PLEAT_NODISCARD pleat_result pleat__canary_taken(pleat__canary *canary, const pleat_block *block,
                                                 uint64_t bytes);
/* The block at an address comes free, nothing of the device uses it any more but in its stream's
 * order. */
PLEAT_NODISCARD pleat_result pleat__canary_freed(pleat__canary *canary, pleat_va address);

#endif
