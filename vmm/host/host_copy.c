/*
 * host_copy.c: copies of the host backend. One is carried out when the program learns that its
 * stream has passed a point behind it, and never where its memory goes before or its stream ends:
 * so late a GPU may be, and what does not wait for it finds other bytes than it copied. See host.h.
 */
#include "host_internal.h"

#include <internal/error.h>
#include <internal/range.h>
#include <string.h>

/* Whether what of a range lies in a reservation can be read and written. */
static bool has_access(const pleat__reservation *reservation, pleat_va at, pleat_va end,
                       uint64_t granule)
{
    pleat_va until = reservation->va + reservation->bytes;
    at = at > reservation->va ? at : reservation->va;
    end = end < until ? end : until;
    for (uint64_t page = (at - reservation->va) / granule;
         at < end && page <= (end - 1 - reservation->va) / granule; page++)
        if ((reservation->page[page].flags & PLEAT__HOST_ACCESS) == 0)
            return false;
    return true;
}

/* What lies in no reservation is the program's own. */
static bool is_reachable(const pleat__host *host, pleat_va at, uint64_t bytes)
{
    const pleat__shadow *shadow = &host->shadow;
    pleat_va end;
    if (!pleat__add(at, bytes, &end))
        return false;
    for (size_t r = 0; r < shadow->reservation_count; r++)
        if (!has_access(&shadow->reservations[r], at, end, shadow->granularity))
            return false;
    return true;
}

pleat_result pleat__host_copy(void *self, int device, pleat_stream stream, uint64_t to,
                              uint64_t from, uint64_t bytes)
{
    pleat__host *host = self;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    pthread_mutex_lock(&host->lock);
    pleat_result result =
        is_reachable(host, to, bytes) && is_reachable(host, from, bytes)
            ? pleat__arena_grow(host->arena, &host->copies, &host->copy_capacity, host->copy_count,
                                sizeof *host->copies)
            : pleat__fail(PLEAT_E_INVALID, "copy of %llu bytes from 0x%llx to 0x%llx: not mapped",
                          (unsigned long long)bytes, (unsigned long long)from,
                          (unsigned long long)to);
    uint32_t index = result == PLEAT_OK ? pleat__host_stream_index(host, stream) : 0;
    if (index != 0)
        host->copies[host->copy_count++] =
            (pleat__host_copying){.to = to,
                                  .from = from,
                                  .bytes = bytes,
                                  .stream = index,
                                  .behind = host->streams[index - 1].recorded};
    else if (result == PLEAT_OK)
        result = pleat__host_no_stream();
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* Those of no bytes are over. */
static void forget_over(pleat__host *host)
{
    size_t left = 0;
    for (size_t c = 0; c < host->copy_count; c++)
        if (host->copies[c].bytes != 0)
            host->copies[left++] = host->copies[c];
    host->copy_count = left;
}

void pleat__host_copies_pass(pleat__host *host, uint32_t stream, uint64_t point)
{
    for (size_t c = 0; c < host->copy_count; c++) {
        pleat__host_copying *copy = &host->copies[c];
        if (copy->stream != stream || copy->behind >= point || copy->bytes == 0)
            continue;
        memcpy((void *)(uintptr_t)copy->to, (const void *)(uintptr_t)copy->from, copy->bytes);
        copy->bytes = 0;
    }
    forget_over(host);
}

void pleat__host_copies_lose(pleat__host *host, uint64_t begin, uint64_t bytes)
{
    for (size_t c = 0; c < host->copy_count; c++) {
        pleat__host_copying *copy = &host->copies[c];
        if ((copy->to < begin + bytes && begin < copy->to + copy->bytes) ||
            (copy->from < begin + bytes && begin < copy->from + copy->bytes))
            copy->bytes = 0;
    }
    forget_over(host);
}

void pleat__host_copies_end(pleat__host *host, uint32_t stream)
{
    for (size_t c = 0; c < host->copy_count; c++)
        if (host->copies[c].stream == stream)
            host->copies[c].bytes = 0;
    forget_over(host);
}
