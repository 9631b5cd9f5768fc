/*
 * host.c: memory verbs without a GPU. A device is one memfd, a reservation a PROT_NONE range, a map
 * a MAP_SHARED|MAP_FIXED mmap of a part of the file (host_map.c), so aliases and stitches are real
 * and their data can be checked. Memory is sparse: what nobody touches costs nothing, and a hole is
 * punched when the last reference of a piece goes.
 *
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

void pleat__host_cost(pleat__host *host, double ns)
{
    if (host->modelled)
        host->modelled_ns += ns;
}

bool pleat__host_is_device(const pleat__host *host, int device)
{
    return device >= 0 && device < host->device_count;
}

pleat_result pleat__host_no_device(const pleat__host *host, int device)
{
    return pleat__fail(PLEAT_E_NO_DEVICE, "device %d: there are %d", device, host->device_count);
}

bool pleat__host_is_granular(const pleat__host *host, uint64_t bytes)
{
    return bytes != 0 && bytes % host->granularity == 0;
}

pleat__host_handle *pleat__host_find_handle(pleat__host *host, pleat_handle handle)
{
    uint64_t index = (handle & UINT32_MAX) - 1;
    if (handle == 0 || index >= host->handle_count)
        return NULL;
    pleat__host_handle *slot = &host->handles[index];
    return slot->memory != 0 && slot->generation == handle >> 32 ? slot : NULL;
}

pleat_result pleat__host_unknown_handle(const char *verb, pleat_handle handle)
{
    return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx is no handle", verb,
                       (unsigned long long)handle);
}

/* ---- devices ---- */

static pleat_result device_count(void *self, int *count)
{
    *count = ((const pleat__host *)self)->device_count;
    return PLEAT_OK;
}

static pleat_result granularity(void *self, int device, uint64_t *minimum, uint64_t *recommended)
{
    const pleat__host *host = self;
    if (!pleat__host_is_device(host, device))
        return pleat__host_no_device(host, device);
    *minimum = *recommended = host->granularity;
    return PLEAT_OK;
}

static pleat_result memory_info(void *self, int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    pleat__host *host = self;
    if (!pleat__host_is_device(host, device))
        return pleat__host_no_device(host, device);
    pthread_mutex_lock(&host->lock);
    *free_bytes = host->device_bytes - host->devices[device].used;
    pthread_mutex_unlock(&host->lock);
    *total_bytes = host->device_bytes;
    return PLEAT_OK;
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
void pleat__host_drop_if_unused(pleat__host *host, uint32_t slot)
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
    if (!pleat__host_is_device(host, device))
        return pleat__host_no_device(host, device);
    if (!pleat__host_is_granular(host, bytes) ||
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
    pleat__host_cost(host, host->costs.create);
    pthread_mutex_unlock(&host->lock);
    if (result != PLEAT_OK && file >= 0)
        close(file);
    return result;
}

static void drop_handle(pleat__host *host, pleat__host_handle *slot)
{
    uint32_t memory = slot->memory;
    slot->memory = 0;
    slot->next_free = host->free_handle;
    host->free_handle = (uint32_t)(slot - host->handles) + 1;
    host->live_handles--;
    host->memories[memory - 1].handles--;
    pleat__host_drop_if_unused(host, memory);
}

static pleat_result release(void *self, pleat_handle handle)
{
    pleat__host *host = self;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    pleat__host_handle *slot = pleat__host_find_handle(host, handle);
    if (slot == NULL)
        result = pleat__host_unknown_handle("release", handle);
    else
        drop_handle(host, slot);
    pleat__host_cost(host, host->costs.release);
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* ---- sharing ---- */

static pleat_result export_handle(void *self, pleat_handle handle, int *fd)
{
    pleat__host *host = self;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    const pleat__host_handle *slot = pleat__host_find_handle(host, handle);
    int file = slot == NULL ? -1 : host->memories[slot->memory - 1].own_file;
    int copy = -1;
    if (slot == NULL)
        result = pleat__host_unknown_handle("export", handle);
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
    if (!pleat__host_is_device(host, device))
        return pleat__host_no_device(host, device);
    if (!pleat__host_is_granular(host, bytes) || fcntl(fd, F_GET_SEALS) < 0 ||
        fstat(fd, &file) != 0 || (uint64_t)file.st_size != bytes)
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
    .reserve = pleat__host_reserve,
    .free_range = pleat__host_free_range,
    .create = create,
    .release = release,
    .map = pleat__host_map,
    .set_access = pleat__host_set_access,
    .unmap = pleat__host_unmap,
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
    size_t at = pleat__host_reservation_before(host, va);
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
