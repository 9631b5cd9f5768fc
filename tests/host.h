/*
 * host.h: what tests alone tell the host backend and ask it: streams that others wait for until
 * they are let on, memory that is not Pleat's, and what is held now.
 *
 * Every function takes a pleat_vmm that pleat_vmm_host made; any other gives PLEAT_E_INVALID.
 */
#ifndef PLEAT_TESTS_HOST_H
#define PLEAT_TESTS_HOST_H

#include <vmm/host/host.h>

/* From now on points of `stream` wait for advance. */
PLEAT_NODISCARD pleat_result pleat__host_stream_hold(const pleat_vmm *vmm, pleat_stream stream);
/* Lets the next `points` recorded or still to be recorded points pass. */
PLEAT_NODISCARD pleat_result pleat__host_stream_advance(const pleat_vmm *vmm, pleat_stream stream,
                                                        uint64_t points);

/* The process has so many bytes more of the device, by means that are not the backend's (as a
 * context and libraries do), and is held to `limit` bytes in all; 0: to none. */
PLEAT_NODISCARD pleat_result pleat__host_set_other(const pleat_vmm *vmm, int device, uint64_t bytes,
                                                   uint64_t limit);

/* What the backend holds now. A leak check compares two of these. */
typedef struct pleat__host_holdings {
    uint64_t handles;      /* not yet released */
    uint64_t memories;     /* pieces of physical memory, mapped or held by a handle */
    uint64_t memory_bytes; /* of all devices; imported ones are not counted */
    uint64_t reservations;
    uint64_t mapped_pages;
    uint64_t areas; /* kernel map areas in the reservations, what vm.max_map_count counts */
    uint64_t events;
    uint64_t host_bytes; /* made with PLEAT_CREATE_HOST */
    uint64_t streams;    /* made by stream_create */
    uint64_t blocks;     /* of host_alloc */
} pleat__host_holdings;
PLEAT_NODISCARD pleat_result pleat__host_holdings_of(const pleat_vmm *vmm,
                                                     pleat__host_holdings *out);

#endif
