/*
 * table.h: what a table of verbs must be before Pleat uses it.
 */
#ifndef PLEAT_VMM_TABLE_H
#define PLEAT_VMM_TABLE_H

#include <internal/arena.h>
#include <internal/check.h>
#include <pleat/vmm.h>

/* Checks a backend's table and gives one in which every entry can be called: entries that the
 * table is too short for, or leaves NULL, say PLEAT_E_UNSUPPORTED (destroy does nothing). The
 * filled table lies in `arena`; a table with nothing missing is used as it is.
 * PLEAT_E_ABI for another major version or a size that cannot be; PLEAT_E_INVALID when a verb that
 * nothing works without is missing. */
PLEAT_NODISCARD pleat_result pleat__vmm_complete(pleat_vmm vmm, pleat__arena *arena,
                                                 pleat_vmm *out);

/* The verb clock_ns: the system's. */
uint64_t pleat__vmm_clock_ns(void *self);

/* The way to every wait for the GPU: never under a lock that allocations take (R11). */
static inline pleat_result pleat__vmm_wait(pleat_vmm vmm, pleat_event event)
{
    PLEAT__HOT_ASSERT();
    return vmm.ops->event_wait(vmm.self, event);
}

#endif
