/*
 * dry.h: a backend without memory: its verbs succeed and do nothing. What a heap would ask of the
 * driver is found out by running it on this one.
 *
 * Only its clock moves: by what a page takes wherever access to it is granted, because what a heap
 * does depends on what its maps took.
 */
#ifndef PLEAT_VMM_DRY_H
#define PLEAT_VMM_DRY_H

#include <pleat/vmm.h>

/* The caller's; it outlives the backend, whose one device it is. */
typedef struct pleat__dry {
    uint64_t page_bytes;
    uint64_t device_bytes;
    uint64_t clock_ns;
    uint64_t page_ns; /* that access to a page takes */
    uint64_t handles; /* made so far */
} pleat__dry;

/* Nothing is to be destroyed. One thread. */
pleat_vmm pleat__vmm_dry(pleat__dry *dry);

#endif
