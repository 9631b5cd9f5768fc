/*
 * host.c: memory verbs without a GPU. A device is one memfd, a reservation a PROT_NONE range, a map
 * a MAP_SHARED|MAP_FIXED mmap of a part of the file, so aliases and stitches are real and their
 * data can be checked. Memory is sparse: what nobody touches costs nothing, and a hole is punched
 * when the last reference of a piece goes.
 *
 * STRICT   Kernel calls allow far more than the driver does (half an unmap, a map over a map). So
 *          this file keeps its own table of pages and refuses from it, before the kernel is asked.
 * AREAS    The kernel counts map areas (vm.max_map_count). mmap happens in set_access only, one
 *          call for each run of neighbours in the file, and the kernel joins areas of neighbouring
 *          calls. The count is kept exactly, so that the limit is an error which changes nothing,
 *          with some areas left for the rest of the process.
 * OFFSETS  A device's file offsets are handed out once and never again (a file may be 2^62 bytes
 *          long, holes cost nothing): no allocator is needed, and an offset identifies a piece.
 */
#include "host_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_DEVICE_BYTES (140ull << 30)
#define DEFAULT_GRANULARITY  (2ull << 20)
#define FILE_BYTES           (1ull << 62)
#define SPARE_AREAS          2048 /* left for the process's own libraries, heap and threads */

const pleat__host_costs pleat__host_costs_h200 = {
    .reserve = 2000,
    .free_range = 2000,
    .create = 8000,
    .release = 10000,
    .map = 600,
    .access_handle = 25000,
    .access_granule = 48,
    .unmap_handle = 14500,
    .unmap_granule = 10,
};

/* ---- looking things up, all under the lock ---- */

static void cost(pleat__host *host, double ns)
{
    if (host->modelled)
        host->modelled_ns += ns;
}

static bool is_device(const pleat__host *host, int device)
{
    return device >= 0 && device < host->device_count;
}

static pleat_result no_device(const pleat__host *host, int device)
{
    return pleat__fail(PLEAT_E_NO_DEVICE, "device %d: there are %d", device, host->device_count);
}

static bool is_granular(const pleat__host *host, uint64_t bytes)
{
    return bytes != 0 && bytes % host->granularity == 0;
}

static pleat__host_handle *find_handle(pleat__host *host, pleat_handle handle)
{
    uint64_t index = (handle & UINT32_MAX) - 1;
    if (handle == 0 || index >= host->handle_count)
        return NULL;
    pleat__host_handle *slot = &host->handles[index];
    return slot->memory != 0 && slot->generation == handle >> 32 ? slot : NULL;
}

/* The reservation that begins last at or before `va`, as an index + 1. */
static size_t reservation_before(const pleat__host *host, pleat_va va)
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
    if (!is_granular(host, bytes) || va % host->granularity != 0 ||
        !pleat__range_make(va, bytes, &range))
        return pleat__fail(PLEAT_E_INVALID,
                           "%s: 0x%llx, %llu bytes: not on the granularity of %llu", verb,
                           (unsigned long long)va, (unsigned long long)bytes,
                           (unsigned long long)host->granularity);
    size_t at = reservation_before(host, va);
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

/* ---- devices and address space ---- */

static pleat_result device_count(void *self, int *count)
{
    *count = ((const pleat__host *)self)->device_count;
    return PLEAT_OK;
}

static pleat_result granularity(void *self, int device, uint64_t *minimum, uint64_t *recommended)
{
    const pleat__host *host = self;
    if (!is_device(host, device))
        return no_device(host, device);
    *minimum = *recommended = host->granularity;
    return PLEAT_OK;
}

static pleat_result memory_info(void *self, int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    pleat__host *host = self;
    if (!is_device(host, device))
        return no_device(host, device);
    pthread_mutex_lock(&host->lock);
    *free_bytes = host->device_bytes - host->devices[device].used;
    pthread_mutex_unlock(&host->lock);
    *total_bytes = host->device_bytes;
    return PLEAT_OK;
}

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
    size_t at = reservation_before(host, va);
    memmove(&host->reservations[at + 1], &host->reservations[at],
            (host->reservation_count - at) * sizeof *host->reservations);
    host->reservations[at] = (pleat__host_reservation){va, bytes, pages, 0, page};
    host->reservation_count++;
    host->areas++;
    cost(host, host->costs.reserve);
    return PLEAT_OK;
}

static pleat_result reserve(void *self, int device, uint64_t bytes, uint64_t align, pleat_va *va)
{
    pleat__host *host = self;
    if (!is_device(host, device))
        return no_device(host, device);
    if (!is_granular(host, bytes) || (align != 0 && !pleat__is_power_of_two(align)))
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
    cost(host, host->costs.free_range);
}

static pleat_result free_range(void *self, pleat_va va, uint64_t bytes)
{
    pleat__host *host = self;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    size_t at = reservation_before(host, va);
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

/* ---- physical memory ---- */

/* A place in the table of pieces; 0 when there is no host memory. */
static uint32_t memory_slot(pleat__host *host)
{
    if (host->free_memory != 0) {
        uint32_t slot = host->free_memory;
        host->free_memory = host->memories[slot - 1].next_free;
        return slot;
    }
    if (host->memory_count >= UINT32_MAX - 1 ||
        pleat__arena_grow(host->arena, &host->memories, &host->memory_capacity, host->memory_count,
                          sizeof *host->memories) != PLEAT_OK)
        return 0;
    return (uint32_t)++host->memory_count;
}

static uint32_t handle_slot(pleat__host *host)
{
    if (host->free_handle != 0) {
        uint32_t slot = host->free_handle;
        host->free_handle = host->handles[slot - 1].next_free;
        return slot;
    }
    if (host->handle_count >= UINT32_MAX - 1 ||
        pleat__arena_grow(host->arena, &host->handles, &host->handle_capacity, host->handle_count,
                          sizeof *host->handles) != PLEAT_OK)
        return 0;
    host->handles[host->handle_count] = (pleat__host_handle){0};
    return (uint32_t)++host->handle_count;
}

static void drop_memory_slot(pleat__host *host, uint32_t slot)
{
    host->memories[slot - 1].next_free = host->free_memory;
    host->memories[slot - 1].handles = 0;
    host->memories[slot - 1].bytes = 0;
    host->free_memory = slot;
}

/* Gives a piece back once nothing refers to it. */
static void drop_if_unused(pleat__host *host, uint32_t slot)
{
    pleat__host_memory *memory = &host->memories[slot - 1];
    if (memory->handles != 0 || memory->maps != 0)
        return;
    if (memory->own_file >= 0)
        close(memory->own_file);
    else if (fallocate(host->devices[memory->device].file,
                       FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)memory->offset,
                       (off_t)memory->bytes) != 0)
        PLEAT_ASSERT(errno == EINTR || errno == ENOMEM); /* the bytes stay until the file goes */
    if (!memory->foreign)
        host->devices[memory->device].used -= memory->bytes;
    host->live_memories--;
    drop_memory_slot(host, slot);
}

/* A new handle of a piece; 0: no host memory. */
static pleat_handle add_handle(pleat__host *host, uint32_t memory)
{
    uint32_t slot = handle_slot(host);
    if (slot == 0)
        return 0;
    pleat__host_handle *handle = &host->handles[slot - 1];
    handle->memory = memory;
    handle->generation++;
    host->memories[memory - 1].handles++;
    host->live_handles++;
    return (uint64_t)handle->generation << 32 | slot;
}

/* A piece with one handle. `own_file` becomes the piece's on success only. */
static pleat_result add_memory(pleat__host *host, int device, uint64_t bytes, int own_file,
                               bool foreign, pleat_handle *handle)
{
    pleat__host_device *owner = &host->devices[device];
    if (!foreign && bytes > host->device_bytes - owner->used)
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY,
                           "create: device %d has %llu bytes left, %llu are asked for", device,
                           (unsigned long long)(host->device_bytes - owner->used),
                           (unsigned long long)bytes);
    if (bytes > FILE_BYTES - owner->next_offset)
        return pleat__fail(PLEAT_E_LIMIT, "create: the file of device %d has been used up", device);
    uint32_t slot = memory_slot(host);
    if (slot == 0)
        return pleat__fail(PLEAT_E_NO_MEMORY, "create: no host memory for its record");
    host->memories[slot - 1] = (pleat__host_memory){.offset = owner->next_offset,
                                                    .bytes = bytes,
                                                    .device = device,
                                                    .own_file = own_file,
                                                    .foreign = foreign};
    pleat_handle made = add_handle(host, slot);
    if (made == 0) {
        drop_memory_slot(host, slot);
        return pleat__fail(PLEAT_E_NO_MEMORY, "create: no host memory for its record");
    }
    owner->next_offset += bytes;
    if (!foreign)
        owner->used += bytes;
    host->live_memories++;
    *handle = made;
    return PLEAT_OK;
}

/* A memfd of `bytes`; -1 with the error text set. */
static int make_file(const char *name, uint64_t bytes)
{
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)bytes) == 0)
        return file;
    pleat__fail_errno(PLEAT_E_IO, "memfd of %llu bytes", (unsigned long long)bytes);
    if (file >= 0)
        close(file);
    return -1;
}

static pleat_result create(void *self, int device, uint64_t bytes, uint32_t flags,
                           pleat_handle *handle)
{
    pleat__host *host = self;
    if (!is_device(host, device))
        return no_device(host, device);
    if (!is_granular(host, bytes) ||
        (flags & ~(uint32_t)(PLEAT_CREATE_SHAREABLE | PLEAT_CREATE_RDMA)) != 0)
        return pleat__fail(PLEAT_E_INVALID,
                           "create: %llu bytes, flags 0x%x: not on the granularity of %llu, or "
                           "unknown flags",
                           (unsigned long long)bytes, flags, (unsigned long long)host->granularity);
    int file = -1;
    if ((flags & PLEAT_CREATE_SHAREABLE) != 0 && (file = make_file("pleat-shared", bytes)) < 0)
        return PLEAT_E_IO;
    pthread_mutex_lock(&host->lock);
    pleat_result result = add_memory(host, device, bytes, file, false, handle);
    cost(host, host->costs.create);
    pthread_mutex_unlock(&host->lock);
    if (result != PLEAT_OK && file >= 0)
        close(file);
    return result;
}

static pleat_result unknown_handle(const char *verb, pleat_handle handle)
{
    return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx is no handle", verb,
                       (unsigned long long)handle);
}

static void drop_handle(pleat__host *host, pleat__host_handle *slot)
{
    uint32_t memory = slot->memory;
    slot->memory = 0;
    slot->next_free = host->free_handle;
    host->free_handle = (uint32_t)(slot - host->handles) + 1;
    host->live_handles--;
    host->memories[memory - 1].handles--;
    drop_if_unused(host, memory);
}

static pleat_result release(void *self, pleat_handle handle)
{
    pleat__host *host = self;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    pleat__host_handle *slot = find_handle(host, handle);
    if (slot == NULL)
        result = unknown_handle("release", handle);
    else
        drop_handle(host, slot);
    cost(host, host->costs.release);
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* ---- maps ---- */

static pleat_result check_map(pleat__host *host, pleat_va va, uint64_t bytes, pleat_handle handle,
                              pleat__host_reservation **reservation, uint64_t *first,
                              uint32_t *memory)
{
    PLEAT_TRY(find_range(host, "map", va, bytes, reservation, first));
    const pleat__host_handle *slot = find_handle(host, handle);
    if (slot == NULL)
        return unknown_handle("map", handle);
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

static pleat_result map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
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
    cost(host, host->costs.map);
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
        if (!is_device(host, devices[d]))
            return no_device(host, devices[d]);
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

static pleat_result set_access(void *self, pleat_va va, uint64_t bytes, const int *devices,
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
            drop_if_unused(host, page.memory);
    }
    reservation->mapped -= count;
    host->mapped_pages -= count;
}

static pleat_result unmap(void *self, pleat_va va, uint64_t bytes)
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

/* ---- sharing ---- */

static pleat_result export_handle(void *self, pleat_handle handle, int *fd)
{
    pleat__host *host = self;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    const pleat__host_handle *slot = find_handle(host, handle);
    int file = slot == NULL ? -1 : host->memories[slot->memory - 1].own_file;
    int copy = -1;
    if (slot == NULL)
        result = unknown_handle("export", handle);
    else if (file < 0)
        result = pleat__fail(PLEAT_E_INVALID, "export: 0x%llx was not created shareable",
                             (unsigned long long)handle);
    else if ((copy = fcntl(file, F_DUPFD_CLOEXEC, 0)) < 0)
        result = pleat__fail_errno(PLEAT_E_IO, "export: dup");
    else
        *fd = copy;
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* The piece whose file this is, as index + 1; 0: another process's. */
static uint32_t memory_of_file(const pleat__host *host, const struct stat *file)
{
    for (size_t m = 0; m < host->memory_count; m++) {
        struct stat own;
        const pleat__host_memory *memory = &host->memories[m];
        if (memory->bytes != 0 && memory->own_file >= 0 && fstat(memory->own_file, &own) == 0 &&
            own.st_dev == file->st_dev && own.st_ino == file->st_ino)
            return (uint32_t)m + 1;
    }
    return 0;
}

static pleat_result import_foreign(pleat__host *host, int device, int fd, uint64_t bytes,
                                   pleat_handle *handle)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return pleat__fail_errno(PLEAT_E_IO, "import: dup");
    pleat_result result = add_memory(host, device, bytes, copy, true, handle);
    if (result != PLEAT_OK)
        close(copy);
    return result;
}

static pleat_result import_handle(void *self, int device, int fd, uint64_t bytes,
                                  pleat_handle *handle)
{
    pleat__host *host = self;
    struct stat file;
    if (!is_device(host, device))
        return no_device(host, device);
    if (!is_granular(host, bytes) || fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &file) != 0 ||
        (uint64_t)file.st_size != bytes)
        return pleat__fail(PLEAT_E_INVALID,
                           "import: descriptor %d is no exported handle of %llu bytes", fd,
                           (unsigned long long)bytes);
    pthread_mutex_lock(&host->lock);
    pleat_result result = PLEAT_OK;
    uint32_t memory = memory_of_file(host, &file);
    if (memory == 0)
        result = import_foreign(host, device, fd, bytes, handle);
    else if ((*handle = add_handle(host, memory)) == 0)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "import: no host memory for its record");
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* ---- its life ---- */

/* Also what a caller left behind goes. */
static void destroy(void *self)
{
    pleat__host *host = self;
    for (size_t r = 0; r < host->reservation_count; r++)
        munmap((void *)(uintptr_t)host->reservations[r].va, host->reservations[r].bytes);
    for (size_t m = 0; m < host->memory_count; m++)
        if (host->memories[m].bytes != 0 && host->memories[m].own_file >= 0)
            close(host->memories[m].own_file);
    for (int d = 0; d < host->device_count; d++)
        if (host->devices[d].file >= 0)
            close(host->devices[d].file);
    pthread_mutex_destroy(&host->lock);
    pthread_cond_destroy(&host->passed);
    pleat__arena_destroy(host->arena);
}

static const pleat_vmm_ops host_ops = {
    .abi = PLEAT_VMM_ABI,
    .size = sizeof(pleat_vmm_ops),
    .name = "host",
    .destroy = destroy,
    .device_count = device_count,
    .granularity = granularity,
    .memory_info = memory_info,
    .reserve = reserve,
    .free_range = free_range,
    .create = create,
    .release = release,
    .map = map,
    .set_access = set_access,
    .unmap = unmap,
    .export_handle = export_handle,
    .import_handle = import_handle,
    .event_create = pleat__host_event_create,
    .event_destroy = pleat__host_event_destroy,
    .event_record = pleat__host_event_record,
    .event_query = pleat__host_event_query,
    .event_wait = pleat__host_event_wait,
    .stream_wait = pleat__host_stream_wait,
    .clock_ns = pleat__host_clock_ns,
};

static uint64_t read_area_limit(void)
{
    unsigned long long limit = 65530;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    if (file != NULL) {
        if (fscanf(file, "%llu", &limit) != 1)
            limit = 65530;
        fclose(file);
    }
    return limit > 2 * SPARE_AREAS ? limit - SPARE_AREAS : limit / 2;
}

static pleat_result check_options(const pleat_host_options *options, pleat_host_options *out)
{
    *out = (pleat_host_options){0};
    if (options != NULL) {
        if (options->size < sizeof(uint32_t))
            return pleat__fail(PLEAT_E_ABI, "host options: size %u", options->size);
        memcpy(out, options, options->size < sizeof *out ? options->size : sizeof *out);
    }
    out->devices = out->devices == 0 ? 1 : out->devices;
    out->granularity = out->granularity == 0 ? DEFAULT_GRANULARITY : out->granularity;
    out->device_bytes = out->device_bytes == 0 ? DEFAULT_DEVICE_BYTES : out->device_bytes;
    if (out->devices < 0 || out->devices > PLEAT__HOST_DEVICES)
        return pleat__fail(PLEAT_E_INVALID, "host options: %d devices; 1 to %d are allowed",
                           out->devices, PLEAT__HOST_DEVICES);
    long page = sysconf(_SC_PAGESIZE);
    if (!pleat__is_power_of_two(out->granularity) || out->granularity < (uint64_t)page ||
        out->granularity > FILE_BYTES || out->device_bytes > FILE_BYTES)
        return pleat__fail(PLEAT_E_INVALID,
                           "host options: granularity %llu: a power of two of at least %ld is "
                           "wanted, and at most 2^62 bytes a device",
                           (unsigned long long)out->granularity, page);
    return PLEAT_OK;
}

static pleat_result open_devices(pleat__host *host)
{
    for (int d = 0; d < host->device_count; d++)
        host->devices[d].file = -1;
    for (int d = 0; d < host->device_count; d++)
        if ((host->devices[d].file = make_file("pleat-device", FILE_BYTES)) < 0)
            return PLEAT_E_IO;
    return PLEAT_OK;
}

pleat_result pleat_vmm_host(const pleat_host_options *options, pleat_vmm *out)
{
    pleat_host_options checked;
    PLEAT_TRY(check_options(options, &checked));
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat__host *host = pleat__arena_calloc(arena, 1, sizeof *host);
    if (host == NULL) {
        pleat__arena_destroy(arena);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the host backend");
    }
    host->arena = arena;
    host->device_count = checked.devices;
    host->granularity = checked.granularity;
    host->device_bytes = checked.device_bytes;
    host->area_limit = read_area_limit();
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->passed, NULL);
    pleat_result result = open_devices(host);
    if (result != PLEAT_OK) {
        destroy(host);
        return result;
    }
    *out = (pleat_vmm){&host_ops, host};
    return PLEAT_OK;
}

/* ---- what only this backend can say ---- */

pleat__host *pleat__host_of(const pleat_vmm *vmm)
{
    if (vmm != NULL && vmm->ops == &host_ops)
        return vmm->self;
    pleat__fail(PLEAT_E_INVALID, "'%s' is not the host backend",
                vmm == NULL || vmm->ops == NULL ? "" : vmm->ops->name);
    return NULL;
}

pleat_result pleat_host_physical(const pleat_vmm *vmm, pleat_va va, uint64_t *device_offset)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pleat_result result = PLEAT_E_NOT_FOUND;
    pthread_mutex_lock(&host->lock);
    size_t at = reservation_before(host, va);
    const pleat__host_reservation *found = at == 0 ? NULL : &host->reservations[at - 1];
    if (found != NULL && va - found->va < found->bytes) {
        const pleat__host_page *page = &found->page[(va - found->va) / host->granularity];
        if (page->memory != 0) {
            *device_offset = host->memories[page->memory - 1].offset +
                             page->index * host->granularity + va % host->granularity;
            result = PLEAT_OK;
        }
    }
    pthread_mutex_unlock(&host->lock);
    return result == PLEAT_OK
               ? result
               : pleat__fail(result, "0x%llx: nothing is mapped there", (unsigned long long)va);
}

pleat_result pleat__host_holdings_of(const pleat_vmm *vmm, pleat__host_holdings *out)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pthread_mutex_lock(&host->lock);
    *out = (pleat__host_holdings){.handles = host->live_handles,
                                  .memories = host->live_memories,
                                  .reservations = host->reservation_count,
                                  .mapped_pages = host->mapped_pages,
                                  .areas = host->areas,
                                  .events = host->live_events};
    for (int d = 0; d < host->device_count; d++)
        out->memory_bytes += host->devices[d].used;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}

pleat_result pleat__host_set_costs(const pleat_vmm *vmm, const pleat__host_costs *costs)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pthread_mutex_lock(&host->lock);
    host->modelled = costs != NULL;
    host->modelled_ns = 0;
    if (costs != NULL)
        host->costs = *costs;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}

pleat_result pleat__host_modelled_ns(const pleat_vmm *vmm, uint64_t *ns)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pthread_mutex_lock(&host->lock);
    *ns = (uint64_t)host->modelled_ns;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}
