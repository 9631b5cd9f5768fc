/*
 * dry.h: a backend without memory: it counts what is asked for and gives addresses that lead
 * nowhere, so that it can be asked what a runtime would take of a device. It costs next to nothing
 * and takes no address space of the process. Streams pass every point at once; time stands still.
 */
#ifndef PLEAT_VMM_DRY_H
#define PLEAT_VMM_DRY_H

#include <pleat/vmm.h>

/* One device of so many bytes, in chunks of `granularity` bytes. It checks nothing: what a runtime
 * may not ask for, other backends refuse. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__vmm_dry(uint64_t device_bytes, uint64_t granularity,
                                            pleat_vmm *out);

#endif
