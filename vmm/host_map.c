/*
 * host_map.c: reservations and maps of the host backend.
 *
 * STRICT   Kernel calls allow far more than the driver does (half an unmap, a map over a map). So
 *          this file keeps its own table of pages and refuses from it, before the kernel is asked.
 * AREAS    The kernel counts map areas (vm.max_map_count). mmap happens in set_access only, one
 *          call for each run of neighbours in the file, and the kernel joins areas of neighbouring
 *          calls. The count is kept exactly, so that the limit is an error which changes nothing,
 *          with some areas left for the rest of the process.
 */
#include "host_internal.h"

#include <errno.h>
#include <internal/error.h>
#include <internal/range.h>
#include <string.h>
#include <sys/mman.h>

/* The reservation that begins last at or before `va`, as an index + 1. */
size_t pleat__host_reservation_before(const pleat__host *host, pleat_va va)
{
    size_t low = 0, high = host->reservation_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (host->reservations[middle].va <= va)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The reservation that holds the whole of a range that is on the granularity; says why when none
 * does. */
static pleat_result find_range(const pleat__host *host, const char *verb, pleat_va va,
                               uint64_t bytes, pleat__host_reservation **out, uint64_t *first)
{
    pleat__range range;
    if (!pleat__host_is_granular(host, bytes) || va % host->granularity != 0 ||
        !pleat__range_make(va, bytes, &range))
        return pleat__fail(PLEAT_E_INVALID,
                           "%s: 0x%llx, %llu bytes: not on the granularity of %llu", verb,
                           (unsigned long long)va, (unsigned long long)bytes,
                           (unsigned long long)host->granularity);
    size_t at = pleat__host_reservation_before(host, va);
    pleat__host_reservation *found = at == 0 ? NULL : &host->reservations[at - 1];
    if (found == NULL ||
        !pleat__range_contains((pleat__range){found->va, found->va + found->bytes}, range))
        return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx, %llu bytes: not within one reservation",
                           verb, (unsigned long long)va, (unsigned long long)bytes);
    *out = found;
    *first = (va - found->va) / host->granularity;
    return PLEAT_OK;
}

/* ---- kernel areas ---- */

static int file_of(const pleat__host *host, const pleat__host_memory *memory)
{
    return memory->own_file >= 0 ? memory->own_file : host->devices[memory->device].file;
}

static uint64_t file_offset(const pleat__host *host, const pleat__host_page *page)
{
    const pleat__host_memory *memory = &host->memories[page->memory - 1];
    return (memory->own_file >= 0 ? 0 : memory->offset) + page->index * host->granularity;
}

/* Whether the kernel holds two neighbouring pages in one area. */
static bool joined(const pleat__host *host, const pleat__host_page *a, const pleat__host_page *b)
{
    if (a->flags == 0 || b->flags == 0)
        return a->flags == b->flags;
    return file_of(host, &host->memories[a->memory - 1]) ==
               file_of(host, &host->memories[b->memory - 1]) &&
           file_offset(host, a) + host->granularity == file_offset(host, b);
}

/* Borders between areas at the pages [first, last] and at both ends of them. */
static uint64_t borders(const pleat__host *host, const pleat__host_reservation *reservation,
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

static void *page_address(const pleat__host *host, const pleat__host_reservation *reservation,
                          uint64_t page)
{
    return (char *)(uintptr_t)reservation->va + page * host->granularity;
}

static bool hide(const pleat__host *host, const pleat__host_reservation *reservation,
                 uint64_t first, uint64_t count)
{
    return mmap(page_address(host, reservation, first), count * host->granularity, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* The end of the run of pages from `first` on that have just `flags` and lie together. */
static uint64_t run_end(const pleat__host *host, const pleat__host_reservation *reservation,
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
    if (!pleat__add(bytes, align, &room))
        return NULL;
    char *start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    uint64_t before = (align - (uintptr_t)start % align) % align;
    if (before > 0)
        munmap(start, before);
    munmap(start + before + bytes, align - before);
    return start + before;
}

static pleat_result add_reservation(pleat__host *host, pleat_va va, uint64_t bytes)
{
    uint64_t pages = bytes / host->granularity;
    PLEAT_TRY(pleat__arena_grow(host->arena, &host->reservations, &host->reservation_capacity,
                                host->reservation_count, sizeof *host->reservations));
    pleat__host_page *page = pleat__arena_calloc(host->arena, pages, sizeof *page);
    if (page == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "reserve: no host memory for a table of %llu pages",
                           (unsigned long long)pages);
    size_t at = pleat__host_reservation_before(host, va);
    memmove(&host->reservations[at + 1], &host->reservations[at],
            (host->reservation_count - at) * sizeof *host->reservations);
    host->reservations[at] = (pleat__host_reservation){va, bytes, pages, 0, page};
    host->reservation_count++;
    host->areas++;
    pleat__host_cost(host, host->costs.reserve);
    return PLEAT_OK;
}

pleat_result pleat__host_reserve(void *self, int device, uint64_t bytes, uint64_t align,
                                 pleat_va *va)
{
    pleat__host *host = self;
    if (!pleat__host_is_device(host, device))
        return pleat__host_no_device(host, device);
    if (!pleat__host_is_granular(host, bytes) || (align != 0 && !pleat__is_power_of_two(align)))
        return pleat__fail(PLEAT_E_INVALID,
                           "reserve: %llu bytes aligned to %llu: not on the "
                           "granularity of %llu, or no power of two",
                           (unsigned long long)bytes, (unsigned long long)align,
                           (unsigned long long)host->granularity);
    char *start = reserve_aligned(bytes, align > host->granularity ? align : host->granularity);
    if (start == NULL)
        return pleat__fail_errno(PLEAT_E_OUT_OF_MEMORY, "reserve: no room for %llu bytes",
                                 (unsigned long long)bytes);
    pthread_mutex_lock(&host->lock);
    pleat_result result = add_reservation(host, (uintptr_t)start, bytes);
    pthread_mutex_unlock(&host->lock);
    if (result == PLEAT_OK)
        *va = (uintptr_t)start;
    else
        munmap(start, bytes);
    return result;
}

static void drop_reservation(pleat__host *host, size_t at)
{
    pleat__arena_free(host->arena, host->reservations[at].page);
    host->reservation_count--;
    memmove(&host->reservations[at], &host->reservations[at + 1],
            (host->reservation_count - at) * sizeof *host->reservations);
    host->areas--;
    pleat__host_cost(host, host->costs.free_range);
}

pleat_result pleat__host_free_range(void *self, pleat_va va, uint64_t bytes)
{
    pleat__host *host = self;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    size_t at = pleat__host_reservation_before(host, va);
    const pleat__host_reservation *found = at == 0 ? NULL : &host->reservations[at - 1];
    if (found == NULL || found->va != va || found->bytes != bytes)
        result = pleat__fail(PLEAT_E_INVALID,
                             "free_range: 0x%llx, %llu bytes: not what reserve "
                             "gave",
                             (unsigned long long)va, (unsigned long long)bytes);
    else if (found->mapped != 0)
        result = pleat__fail(PLEAT_E_INVALID, "free_range: 0x%llx: %llu pages are mapped in it",
                             (unsigned long long)va, (unsigned long long)found->mapped);
    else if (munmap((void *)(uintptr_t)va, bytes) != 0)
        result = pleat__fail_errno(PLEAT_E_IO, "free_range: munmap");
    else
        drop_reservation(host, at - 1);
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* ---- maps ---- */

static pleat_result check_map(pleat__host *host, pleat_va va, uint64_t bytes, pleat_handle handle,
                              pleat__host_reservation **reservation, uint64_t *first,
                              uint32_t *memory)
{
    PLEAT_TRY(find_range(host, "map", va, bytes, reservation, first));
    const pleat__host_handle *slot = pleat__host_find_handle(host, handle);
    if (slot == NULL)
        return pleat__host_unknown_handle("map", handle);
    if (host->memories[slot->memory - 1].bytes != bytes)
        return pleat__fail(
            PLEAT_E_INVALID, "map: %llu bytes of a handle of %llu: whole handles only",
            (unsigned long long)bytes, (unsigned long long)host->memories[slot->memory - 1].bytes);
    for (uint64_t i = 0; i < bytes / host->granularity; i++)
        if ((*reservation)->page[*first + i].memory != 0)
            return pleat__fail(PLEAT_E_INVALID, "map: 0x%llx is mapped",
                               (unsigned long long)(va + i * host->granularity));
    *memory = slot->memory;
    return PLEAT_OK;
}

pleat_result pleat__host_map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    pleat__host *host = self;
    pleat__host_reservation *reservation;
    uint64_t first;
    uint32_t memory = 0;
    pthread_mutex_lock(&host->lock);
    pleat_result result = check_map(host, va, bytes, handle, &reservation, &first, &memory);
    if (result == PLEAT_OK) {
        uint64_t pages = bytes / host->granularity;
        for (uint64_t i = 0; i < pages; i++)
            reservation->page[first + i] =
                (pleat__host_page){.memory = memory, .index = (uint32_t)i & 0x3fffffff};
        reservation->mapped += pages;
        host->mapped_pages += pages;
        host->memories[memory - 1].maps++;
    }
    pleat__host_cost(host, host->costs.map);
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* Changes the flags of the pages that have `from`. */
static void reflag(const pleat__host_reservation *reservation, uint64_t first, uint64_t count,
                   uint32_t from, uint32_t to)
{
    for (uint64_t p = first; p < first + count; p++)
        if (reservation->page[p].flags == from && reservation->page[p].memory != 0)
            reservation->page[p].flags = to & 3;
}

/* Has the kernel map all pending pages; on failure hides them again. */
static pleat_result show_pending(const pleat__host *host,
                                 const pleat__host_reservation *reservation, uint64_t first,
                                 uint64_t count)
{
    uint64_t end = first + count, next;
    for (uint64_t p = first; p < end; p = next) {
        next = p + 1;
        if (reservation->page[p].flags != PLEAT__HOST_PENDING)
            continue;
        next = run_end(host, reservation, p, end, PLEAT__HOST_PENDING);
        const pleat__host_page *page = &reservation->page[p];
        if (mmap(page_address(host, reservation, p), (next - p) * host->granularity,
                 PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 file_of(host, &host->memories[page->memory - 1]),
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

static pleat_result check_access(const pleat__host *host, pleat_va va, uint64_t bytes,
                                 const int *devices, int count,
                                 pleat__host_reservation **reservation, uint64_t *first)
{
    PLEAT_TRY(find_range(host, "set_access", va, bytes, reservation, first));
    if (devices == NULL || count < 1)
        return pleat__fail(PLEAT_E_INVALID, "set_access: for no device");
    for (int d = 0; d < count; d++)
        if (!pleat__host_is_device(host, devices[d]))
            return pleat__host_no_device(host, devices[d]);
    for (uint64_t i = 0; i < bytes / host->granularity; i++)
        if ((*reservation)->page[*first + i].memory == 0)
            return pleat__fail(PLEAT_E_INVALID, "set_access: 0x%llx is not mapped",
                               (unsigned long long)(va + i * host->granularity));
    return PLEAT_OK;
}

static void cost_of_maps(pleat__host *host, const pleat__host_reservation *reservation,
                         uint64_t first, uint64_t count, double handle, double granule)
{
    if (!host->modelled)
        return;
    for (uint64_t p = first; p < first + count; p++)
        host->modelled_ns += (reservation->page[p].index == 0 ? handle : 0) + granule;
}

static pleat_result grant(pleat__host *host, const pleat__host_reservation *reservation,
                          uint64_t first, uint64_t count)
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
    pleat__host_reservation *reservation;
    uint64_t first;
    pthread_mutex_lock(&host->lock);
    pleat_result result = check_access(host, va, bytes, devices, count, &reservation, &first);
    if (result == PLEAT_OK) {
        result = grant(host, reservation, first, bytes / host->granularity);
        cost_of_maps(host, reservation, first, bytes / host->granularity, host->costs.access_handle,
                     host->costs.access_granule);
    }
    pthread_mutex_unlock(&host->lock);
    return result;
}

static pleat_result check_unmap(const pleat__host *host, pleat_va va, uint64_t bytes,
                                pleat__host_reservation **out, uint64_t *first)
{
    PLEAT_TRY(find_range(host, "unmap", va, bytes, out, first));
    const pleat__host_reservation *reservation = *out;
    uint64_t end = *first + bytes / host->granularity;
    for (uint64_t p = *first; p < end; p++)
        if (reservation->page[p].memory == 0)
            return pleat__fail(PLEAT_E_INVALID, "unmap: 0x%llx is not mapped",
                               (unsigned long long)(va + (p - *first) * host->granularity));
    const pleat__host_page *last = &reservation->page[end - 1];
    if (reservation->page[*first].index != 0 ||
        (last->index + 1ull) * host->granularity != host->memories[last->memory - 1].bytes)
        return pleat__fail(PLEAT_E_INVALID, "unmap: 0x%llx, %llu bytes: cuts a map",
                           (unsigned long long)va, (unsigned long long)bytes);
    return PLEAT_OK;
}

/* post of a kernel that has hidden the range */
static void forget_maps(pleat__host *host, pleat__host_reservation *reservation, uint64_t first,
                        uint64_t count)
{
    uint64_t before = borders(host, reservation, first, count);
    for (uint64_t p = first; p < first + count; p++) {
        pleat__host_page page = reservation->page[p];
        reservation->page[p].flags = 0;
        if (page.index == 0)
            host->memories[page.memory - 1].maps--;
    }
    host->areas = host->areas - before + borders(host, reservation, first, count);
    for (uint64_t p = first; p < first + count; p++) {
        pleat__host_page page = reservation->page[p];
        reservation->page[p] = (pleat__host_page){0};
        uint64_t pages = host->memories[page.memory - 1].bytes / host->granularity;
        if (page.index + 1ull == pages)
            pleat__host_drop_if_unused(host, page.memory);
    }
    reservation->mapped -= count;
    host->mapped_pages -= count;
}

pleat_result pleat__host_unmap(void *self, pleat_va va, uint64_t bytes)
{
    pleat__host *host = self;
    pleat__host_reservation *reservation;
    uint64_t first, count = bytes / host->granularity;
    pthread_mutex_lock(&host->lock);
    pleat_result result = check_unmap(host, va, bytes, &reservation, &first);
    if (result == PLEAT_OK && !hide(host, reservation, first, count))
        result = refused_by_kernel(host, "unmap");
    if (result == PLEAT_OK) {
        cost_of_maps(host, reservation, first, count, host->costs.unmap_handle,
                     host->costs.unmap_granule);
        forget_maps(host, reservation, first, count);
    }
    pthread_mutex_unlock(&host->lock);
    return result;
}

pleat_result pleat__host_physical(const pleat_vmm *vmm, pleat_va va, uint64_t *offset)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return pleat__fail(PLEAT_E_INVALID, "not a host backend");
    pleat_result result = PLEAT_E_NOT_FOUND;
    pthread_mutex_lock(&host->lock);
    size_t at = pleat__host_reservation_before(host, va);
    const pleat__host_reservation *found = at == 0 ? NULL : &host->reservations[at - 1];
    if (found != NULL && va - found->va < found->bytes) {
        const pleat__host_page *page = &found->page[(va - found->va) / host->granularity];
        if (page->memory != 0) {
            *offset = host->memories[page->memory - 1].offset + page->index * host->granularity +
                      va % host->granularity;
            result = PLEAT_OK;
        }
    }
    pthread_mutex_unlock(&host->lock);
    return result == PLEAT_OK
               ? result
               : pleat__fail(result, "nothing is mapped at 0x%llx", (unsigned long long)va);
}
