/*
 * host_map.c: reservations and maps of the host backend.
 *
 * AREAS    The kernel counts map areas (vm.max_map_count). mmap happens in set_access only, one
 *          call for each run of neighbours in the file, and the kernel joins areas of neighbouring
 *          calls. The count is kept exactly, so that the limit is an error which changes nothing,
 *          with some areas left for the rest of the process.
 */
#include "host_internal.h"

#include <errno.h>
#include <internal/error.h>
#include <internal/range.h>
#include <sys/mman.h>

/* ---- kernel areas ---- */

static int file_of(const pleat__host *host, const pleat__shadow_piece *piece)
{
    return piece->file >= 0 ? piece->file : host->devices[piece->device].file;
}

static uint64_t file_offset(const pleat__host *host, const pleat__shadow_page *page)
{
    const pleat__shadow_piece *piece = pleat__shadow_piece_at(&host->shadow, page->piece);
    return (piece->file >= 0 ? 0 : piece->native) + page->index * host->shadow.granularity;
}

/* Whether the kernel holds two neighbouring pages in one area. */
static bool joined(const pleat__host *host, const pleat__shadow_page *a,
                   const pleat__shadow_page *b)
{
    if (a->flags == 0 || b->flags == 0)
        return a->flags == b->flags;
    return file_of(host, pleat__shadow_piece_at(&host->shadow, a->piece)) ==
               file_of(host, pleat__shadow_piece_at(&host->shadow, b->piece)) &&
           file_offset(host, a) + host->shadow.granularity == file_offset(host, b);
}

/* Borders between areas at the pages [first, last] and at both ends of them. */
static uint64_t borders(const pleat__host *host, const pleat__reservation *reservation,
                        uint64_t first, uint64_t count)
{
    uint64_t end = first + count < reservation->pages ? first + count : reservation->pages - 1;
    uint64_t sum = 0;
    for (uint64_t p = first == 0 ? 1 : first; p <= end; p++)
        sum += !joined(host, &reservation->page[p - 1], &reservation->page[p]);
    return sum;
}

static pleat_result refused_by_kernel(const pleat__host *host, const char *verb)
{
    int code = errno;
    if (code == ENOMEM)
        return pleat__fail_native(
            PLEAT_E_LIMIT, code, "ENOMEM",
            "%s: the kernel refuses another map area; %llu are in use here. Raise "
            "vm.max_map_count (sysctl -w vm.max_map_count=1048576)",
            verb, (unsigned long long)host->areas);
    return pleat__fail_errno(PLEAT_E_IO, "%s: mmap", verb);
}

static void *page_address(const pleat__host *host, const pleat__reservation *reservation,
                          uint64_t page)
{
    return (char *)(uintptr_t)reservation->va + page * host->shadow.granularity;
}

static bool hide(const pleat__host *host, const pleat__reservation *reservation, uint64_t first,
                 uint64_t count)
{
    return mmap(page_address(host, reservation, first), count * host->shadow.granularity, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* The end of the run of pages from `first` on that have just `flags` and lie together. */
static uint64_t run_end(const pleat__host *host, const pleat__reservation *reservation,
                        uint64_t first, uint64_t end, uint32_t flags)
{
    uint64_t p = first + 1;
    while (p < end && reservation->page[p].flags == flags &&
           joined(host, &reservation->page[p - 1], &reservation->page[p]))
        p++;
    return p;
}

/* ---- address space ---- */

/* An aligned PROT_NONE range from the kernel: takes more and trims. NULL: refused. */
static char *reserve_aligned(uint64_t bytes, uint64_t align)
{
    uint64_t room;
    if (!pleat__add(bytes, align, &room)) {
        errno = ENOMEM;
        return NULL;
    }
    char *start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    uint64_t before = (align - (uintptr_t)start % align) % align;
    if (before > 0)
        munmap(start, before);
    munmap(start + before + bytes, align - before);
    return start + before;
}

pleat_result pleat__host_reserve(void *self, int device, uint64_t bytes, uint64_t align,
                                 pleat_va *va)
{
    pleat__host *host = self;
    uint64_t granularity = host->shadow.granularity;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    PLEAT_TRY(pleat__shadow_check_reserve(&host->shadow, bytes, align));
    char *start = reserve_aligned(bytes, align > granularity ? align : granularity);
    if (start == NULL)
        return pleat__fail_errno(PLEAT_E_OUT_OF_MEMORY, "reserve: no room for %llu bytes",
                                 (unsigned long long)bytes);
    pthread_mutex_lock(&host->lock);
    pleat_result result = pleat__shadow_add_range(&host->shadow, (uintptr_t)start, bytes);
    host->areas += result == PLEAT_OK;
    pleat__host_cost(host, 0, host->costs.reserve, 0);
    pthread_mutex_unlock(&host->lock);
    if (result == PLEAT_OK)
        *va = (uintptr_t)start;
    else
        munmap(start, bytes);
    return result;
}

pleat_result pleat__host_free_range(void *self, pleat_va va, uint64_t bytes)
{
    pleat__host *host = self;
    pthread_mutex_lock(&host->lock);
    pleat_result result = pleat__shadow_check_free(&host->shadow, va, bytes);
    if (result == PLEAT_OK && munmap((void *)(uintptr_t)va, bytes) != 0)
        result = pleat__fail_errno(PLEAT_E_IO, "free_range: munmap");
    if (result == PLEAT_OK) {
        pleat__shadow_drop_range(&host->shadow, va);
        host->areas--;
    }
    pleat__host_cost(host, 0, host->costs.free_range, 0);
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* ---- maps ---- */

pleat_result pleat__host_map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    pleat__host *host = self;
    pleat__shadow_span span;
    pthread_mutex_lock(&host->lock);
    pleat_result result = pleat__shadow_check_map(&host->shadow, va, bytes, handle, &span);
    if (result == PLEAT_OK)
        pleat__shadow_set_map(&host->shadow, &span);
    if (host->shadow.mapped_pages > host->most_mapped_pages)
        host->most_mapped_pages = host->shadow.mapped_pages;
    pleat__host_cost(host, bytes, host->costs.map_handle, 0);
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* Changes the flags of the pages that have `from`. */
static void reflag(const pleat__reservation *reservation, uint64_t first, uint64_t count,
                   uint32_t from, uint32_t to)
{
    for (uint64_t p = first; p < first + count; p++)
        if (reservation->page[p].flags == from && reservation->page[p].piece != 0)
            reservation->page[p].flags = to & 3;
}

/* Has the kernel map all pending pages; on failure hides them again. */
static pleat_result show_pending(const pleat__host *host, const pleat__reservation *reservation,
                                 uint64_t first, uint64_t count)
{
    uint64_t end = first + count, next;
    for (uint64_t p = first; p < end; p = next) {
        next = p + 1;
        if (reservation->page[p].flags != PLEAT__HOST_PENDING)
            continue;
        next = run_end(host, reservation, p, end, PLEAT__HOST_PENDING);
        const pleat__shadow_page *page = &reservation->page[p];
        if (mmap(page_address(host, reservation, p), (next - p) * host->shadow.granularity,
                 PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 file_of(host, pleat__shadow_piece_at(&host->shadow, page->piece)),
                 (off_t)file_offset(host, page)) != MAP_FAILED)
            continue;
        pleat_result result = refused_by_kernel(host, "set_access");
        for (uint64_t q = first; q < p; q++)
            if (reservation->page[q].flags == PLEAT__HOST_PENDING && !hide(host, reservation, q, 1))
                return pleat__context(result, "a part of the range stays accessible");
        return result;
    }
    return PLEAT_OK;
}

static void cost_of_maps(pleat__host *host, const pleat__shadow_span *span, double handle,
                         double granule)
{
    if (!host->modelled)
        return;
    for (uint64_t p = span->first; p < span->first + span->count; p++)
        pleat__host_spend(host, (span->reservation->page[p].index == 0 ? handle : 0) + granule);
}

static pleat_result grant(pleat__host *host, const pleat__reservation *reservation, uint64_t first,
                          uint64_t count)
{
    uint64_t before = borders(host, reservation, first, count);
    reflag(reservation, first, count, 0, PLEAT__HOST_PENDING);
    uint64_t areas = host->areas - before + borders(host, reservation, first, count);
    pleat_result result;
    if (areas > host->area_limit && areas > host->areas)
        result = pleat__fail(PLEAT_E_LIMIT,
                             "set_access: %llu map areas would be needed and %llu are allowed. "
                             "Raise vm.max_map_count (sysctl -w vm.max_map_count=1048576)",
                             (unsigned long long)areas, (unsigned long long)host->area_limit);
    else
        result = show_pending(host, reservation, first, count);
    if (result == PLEAT_OK)
        host->areas = areas;
    reflag(reservation, first, count, PLEAT__HOST_PENDING,
           result == PLEAT_OK ? PLEAT__HOST_ACCESS : 0);
    return result;
}

pleat_result pleat__host_set_access(void *self, pleat_va va, uint64_t bytes, const int *devices,
                                    int count)
{
    pleat__host *host = self;
    pleat__shadow_span span;
    PLEAT_TRY(pleat__vmm_check_access(host->device_count, devices, count));
    pthread_mutex_lock(&host->lock);
    pleat_result result = pleat__shadow_check_maps(&host->shadow, "set_access", va, bytes, &span);
    if (result == PLEAT_OK) {
        result = grant(host, span.reservation, span.first, span.count);
        cost_of_maps(host, &span, host->costs.access_handle, host->costs.access_granule);
    }
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* post of a kernel that has hidden the range */
static void forget_maps(pleat__host *host, const pleat__shadow_span *span)
{
    uint64_t before = borders(host, span->reservation, span->first, span->count);
    for (uint64_t p = span->first; p < span->first + span->count; p++)
        span->reservation->page[p].flags = 0;
    host->areas = host->areas - before + borders(host, span->reservation, span->first, span->count);
    pleat__shadow_clear_maps(&host->shadow, span);
}

pleat_result pleat__host_unmap(void *self, pleat_va va, uint64_t bytes)
{
    pleat__host *host = self;
    pleat__shadow_span span;
    pthread_mutex_lock(&host->lock);
    pleat_result result = pleat__shadow_check_maps(&host->shadow, "unmap", va, bytes, &span);
    if (result == PLEAT_OK && !hide(host, span.reservation, span.first, span.count))
        result = refused_by_kernel(host, "unmap");
    if (result == PLEAT_OK) {
        pleat__host_copies_lose(host, va, bytes);
        cost_of_maps(host, &span, host->costs.unmap_handle, host->costs.unmap_granule);
        forget_maps(host, &span);
    }
    pthread_mutex_unlock(&host->lock);
    return result;
}
