/*
 * host.c: see host.h.
 */
#include "host.h"

#include <internal/error.h>
#include <vmm/host/host_internal.h>

pleat_result pleat__host_stream_hold(const pleat_vmm *vmm, pleat_stream stream)
{
    return pleat__host_direct(vmm, stream, true, false, 0);
}

pleat_result pleat__host_stream_advance(const pleat_vmm *vmm, pleat_stream stream, uint64_t points)
{
    return pleat__host_direct(vmm, stream, true, false, points);
}

pleat_result pleat__host_set_other(const pleat_vmm *vmm, int device, uint64_t bytes, uint64_t limit)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    pthread_mutex_lock(&host->lock);
    host->devices[device].other = bytes;
    host->devices[device].limit = limit;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}

pleat_result pleat__host_holdings_of(const pleat_vmm *vmm, pleat__host_holdings *out)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pthread_mutex_lock(&host->lock);
    *out = (pleat__host_holdings){.handles = host->shadow.live_handles,
                                  .memories = host->shadow.live_pieces,
                                  .reservations = host->shadow.reservation_count,
                                  .mapped_pages = host->shadow.mapped_pages,
                                  .areas = host->areas,
                                  .events = host->live_events,
                                  .streams = host->live_streams,
                                  .blocks = host->live_blocks};
    for (int d = 0; d < host->device_count; d++) {
        out->memory_bytes += host->devices[d].used;
        out->host_bytes += host->devices[d].on_host;
    }
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}
