/*
 * host.h: what a replay tells the host backend: streams and a clock that move only when told, and a
 * model of what the calls would have cost on a GPU. Tests have more of it in tests/host.h.
 *
 * Every function takes a pleat_vmm that pleat_vmm_host made; any other gives PLEAT_E_INVALID.
 */
#ifndef PLEAT_VMM_HOST_H
#define PLEAT_VMM_HOST_H

#include <pleat/vmm.h>
#include <stdbool.h>

/* STREAMS  A stream is a row of points; each event_record adds one and marks it. By default a point
 * is passed at once. A held stream passes points only as it is let. A stream that waits for an
 * event passes no later point before that event, held or not.
 *
 * COPIES   A copy is carried out when event_wait or event_query say that its stream has passed a
 * point behind it; never, where memory that it reads or writes is unmapped or freed before, or the
 * stream destroyed. So what forgets to wait for a copy finds other bytes. */

/* Holds the stream, but nobody is kept waiting for it: event_wait lets it pass the point, as does
 * event_query on a thread of Pleat's own, which asks until then; streams that wait for it go on. It
 * only is behind for who asks, as a GPU is for a program that never comes to wait for it. */
PLEAT_NODISCARD pleat_result pleat__host_stream_trail(const pleat_vmm *vmm, pleat_stream stream);
/* Ends the hold: all points pass, those to come too. */
PLEAT_NODISCARD pleat_result pleat__host_stream_release(const pleat_vmm *vmm, pleat_stream stream);

/* The clock stands at `ns` until set again; what calls would have cost passes on it too, while that
 * is summed up. */
PLEAT_NODISCARD pleat_result pleat__host_clock_set(const pleat_vmm *vmm, uint64_t ns);

/* Nanoseconds of GPU driver calls: each by the handle, and a little by the granule in it. */
typedef struct pleat__host_costs {
    double reserve, free_range;
    double create_handle, create_granule;
    double release_handle, release_granule;
    double map_handle;
    double access_handle, access_granule;
    double unmap_handle, unmap_granule;
} pleat__host_costs;

/* Measured by `pleat bench vmm` on one H200, driver 580.159: granules of 2 MiB, long batches. */
extern const pleat__host_costs pleat__host_costs_h200;

/* Sums up from now on what the calls would cost; NULL ends it. Restarts the sum. */
PLEAT_NODISCARD pleat_result pleat__host_set_costs(const pleat_vmm *vmm,
                                                   const pleat__host_costs *costs);
/* aside_ns (may be NULL): what mappers' calls would cost, which are not among the others, nor on
 * the clock. */
PLEAT_NODISCARD pleat_result pleat__host_modelled_ns(const pleat_vmm *vmm, uint64_t *ns,
                                                     uint64_t *aside_ns);

/* The most bytes of addresses that were mapped at once. */
PLEAT_NODISCARD pleat_result pleat__host_most_mapped(const pleat_vmm *vmm, uint64_t *bytes);

#endif
