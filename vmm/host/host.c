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
#include <internal/process.h>
#include <internal/range.h>
#include <internal/sized.h>
#include <internal/thread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_DEVICE_BYTES (140ull << 30) /* D480 */
#define DEFAULT_GRANULARITY  (2ull << 20)
#define FILE_BYTES           (1ull << 62)
#define LEAST_GRANULARITY    (32ull << 10) /* that a runtime can account for (D480) */
#define MOST_GRANULARITY     (2ull << 20)
#define MOST_GRANULES        (1ull << 25) /* of a device: 64 TiB of 2 MiB (D480) */
#define SPARE_AREAS          2048 /* left for the process's own libraries, heap and threads */

const pleat__host_costs pleat__host_costs_h200 = {
    .reserve = 2000,
    .free_range = 2000,
    .create_handle = 5700,
    .create_granule = 6,
    .release_handle = 7000,
    .release_granule = 355,
    .map_handle = 420,
    .access_handle = 17500,
    .access_granule = 53,
    .unmap_handle = 12000,
    .unmap_granule = 21,
};

/* ---- looking things up, all under the lock ---- */

void pleat__host_spend(pleat__host *host, double ns)
{
    if (host->modelled)
        *(pleat__on_own_thread() ? &host->aside_ns : &host->modelled_ns) += ns;
}

void pleat__host_cost(pleat__host *host, uint64_t bytes, double handle, double granule)
{
    pleat__host_spend(host, handle + granule * (double)(bytes / host->shadow.granularity));
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
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    *minimum = *recommended = host->shadow.granularity;
    return PLEAT_OK;
}

/* Bytes that are left of a device. */
static uint64_t room_of(const pleat__host *host, int device)
{
    const pleat__host_device *of = &host->devices[device];
    uint64_t taken = of->used + of->other;
    return host->device_bytes > taken ? host->device_bytes - taken : 0;
}

static pleat_result memory_info(void *self, int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    pleat__host *host = self;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    pthread_mutex_lock(&host->lock);
    *free_bytes = room_of(host, device);
    pthread_mutex_unlock(&host->lock);
    *total_bytes = host->device_bytes;
    return PLEAT_OK;
}

static pleat_result identify(void *self, int device, char name[PLEAT_DEVICE_NAME_BYTES])
{
    const pleat__host *host = self;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    snprintf(name, PLEAT_DEVICE_NAME_BYTES, "host-%d", device);
    return PLEAT_OK;
}

static pleat_result process_memory(void *self, int device, uint64_t *used, uint64_t *limit)
{
    pleat__host *host = self;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    pthread_mutex_lock(&host->lock);
    *used = host->devices[device].used + host->devices[device].other;
    *limit = host->devices[device].limit;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}

/* ---- physical memory ---- */

/* The shadow's: nothing refers to the piece any more. */
static void drop_piece(void *owner, const pleat__shadow_piece *piece)
{
    pleat__host *host = owner;
    if (piece->file >= 0)
        close(piece->file);
    else if (fallocate(host->devices[piece->device].file,
                       FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)piece->native,
                       (off_t)piece->bytes) != 0)
        PLEAT_ASSERT(errno == EINTR || errno == ENOMEM); /* the bytes stay until the file goes */
    if (piece->on_host)
        host->devices[piece->device].on_host -= piece->bytes;
    else if (!piece->foreign)
        host->devices[piece->device].used -= piece->bytes;
}

/* A piece with one handle. `file` becomes the piece's on success only. */
static pleat_result add_memory(pleat__host *host, int device, uint64_t bytes, int file,
                               bool foreign, bool on_host, pleat_handle *handle)
{
    pleat__host_device *owner = &host->devices[device];
    if (!foreign && !on_host && bytes > room_of(host, device))
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY,
                           "create: device %d has %llu bytes left, %llu are asked for", device,
                           (unsigned long long)room_of(host, device), (unsigned long long)bytes);
    if (bytes > FILE_BYTES - owner->next_offset)
        return pleat__fail(PLEAT_E_LIMIT, "create: the file of device %d has been used up", device);
    const pleat__shadow_piece piece = {.bytes = bytes,
                                       .native = owner->next_offset,
                                       .device = device,
                                       .file = file,
                                       .foreign = foreign,
                                       .on_host = on_host};
    pleat_handle added = pleat__shadow_add_piece(&host->shadow, &piece);
    if (added == 0)
        return pleat__fail(PLEAT_E_NO_MEMORY, "create: no host memory for its record");
    *handle = added;
    owner->next_offset += bytes;
    if (on_host)
        owner->on_host += bytes;
    else if (!foreign)
        owner->used += bytes;
    return PLEAT_OK;
}

/* A memfd of `bytes`; -1 with the error text set. Beyond what the process's files may have the
 * kernel would end it by a signal, SIGXFSZ. */
static int make_file(const char *name, uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
        pleat__fail_code(PLEAT_E_IO, EFBIG,
                         "memfd of %llu bytes: this process's files may have %llu (ulimit -f)",
                         (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
        return -1;
    }
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
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    PLEAT_TRY(pleat__shadow_check_create(&host->shadow, bytes, flags));
    int file = -1;
    if ((flags & PLEAT_CREATE_SHAREABLE) != 0 && (file = make_file("pleat-shared", bytes)) < 0)
        return PLEAT_E_IO;
    pthread_mutex_lock(&host->lock);
    pleat_result result =
        add_memory(host, device, bytes, file, false, (flags & PLEAT_CREATE_HOST) != 0, handle);
    pleat__host_cost(host, bytes, host->costs.create_handle, host->costs.create_granule);
    pthread_mutex_unlock(&host->lock);
    if (result != PLEAT_OK && file >= 0)
        close(file);
    return result;
}

static pleat_result release(void *self, pleat_handle handle)
{
    pleat__host *host = self;
    uint32_t piece;
    uint64_t bytes = 0;
    pthread_mutex_lock(&host->lock);
    pleat_result result = pleat__shadow_piece_of(&host->shadow, "release", handle, &piece);
    if (result == PLEAT_OK) {
        bytes = pleat__shadow_piece_at(&host->shadow, piece)->bytes;
        pleat__shadow_drop_handle(&host->shadow, handle);
    }
    pleat__host_cost(host, bytes, host->costs.release_handle, host->costs.release_granule);
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* ---- sharing ---- */

static pleat_result export_handle(void *self, pleat_handle handle, int *fd)
{
    pleat__host *host = self;
    uint32_t piece = 0;
    int file = -1, copy = -1;
    pthread_mutex_lock(&host->lock);
    pleat_result result = pleat__shadow_piece_of(&host->shadow, "export", handle, &piece);
    if (result == PLEAT_OK && (file = pleat__shadow_piece_at(&host->shadow, piece)->file) < 0)
        result = pleat__fail(PLEAT_E_INVALID, "export: 0x%llx was not created shareable",
                             (unsigned long long)handle);
    if (result == PLEAT_OK && (copy = fcntl(file, F_DUPFD_CLOEXEC, 0)) < 0)
        result = pleat__fail_errno(PLEAT_E_IO, "export: dup");
    if (result == PLEAT_OK)
        *fd = copy;
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* The piece whose file this is, as index + 1; 0: another process's. */
static uint32_t piece_of_file(const pleat__host *host, const struct stat *file)
{
    for (uint32_t p = 1; p <= host->shadow.piece_count; p++) {
        struct stat own;
        const pleat__shadow_piece *piece = pleat__shadow_piece_at(&host->shadow, p);
        if (piece->bytes != 0 && piece->file >= 0 && fstat(piece->file, &own) == 0 &&
            own.st_dev == file->st_dev && own.st_ino == file->st_ino)
            return p;
    }
    return 0;
}

static pleat_result import_foreign(pleat__host *host, int device, int fd, uint64_t bytes,
                                   pleat_handle *handle)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return pleat__fail_errno(PLEAT_E_IO, "import: dup");
    pleat_result result = add_memory(host, device, bytes, copy, true, false, handle);
    if (result != PLEAT_OK)
        close(copy);
    return result;
}

static pleat_result import_handle(void *self, int device, int fd, uint64_t bytes,
                                  pleat_handle *handle)
{
    pleat__host *host = self;
    struct stat file;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    if (!pleat__shadow_granular(&host->shadow, bytes) || fcntl(fd, F_GET_SEALS) < 0 ||
        fstat(fd, &file) != 0 || (uint64_t)file.st_size != bytes)
        return pleat__fail(PLEAT_E_INVALID,
                           "import: descriptor %d is no exported handle of %llu bytes", fd,
                           (unsigned long long)bytes);
    pthread_mutex_lock(&host->lock);
    pleat_result result = PLEAT_OK;
    pleat_handle added = 0;
    uint32_t piece = piece_of_file(host, &file);
    if (piece == 0)
        result = import_foreign(host, device, fd, bytes, handle);
    else if ((added = pleat__shadow_add_handle(&host->shadow, piece)) == 0)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "import: no host memory for its record");
    else
        *handle = added;
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* ---- copies ---- */

/* In front of what host_alloc gives. */
typedef struct block {
    _Alignas(max_align_t) uint64_t bytes;
} block;

static pleat_result host_alloc(void *self, int device, uint64_t bytes, void **memory)
{
    pleat__host *host = self;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    uint64_t whole;
    block *made =
        pleat__add(sizeof *made, bytes, &whole) ? pleat__arena_alloc(host->arena, whole) : NULL;
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "host_alloc: no host memory for %llu bytes",
                           (unsigned long long)bytes);
    made->bytes = bytes;
    *memory = made + 1;
    pthread_mutex_lock(&host->lock);
    host->live_blocks++;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}

static pleat_result host_free(void *self, int device, void *memory)
{
    pleat__host *host = self;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    block *gone = (block *)memory - 1;
    pthread_mutex_lock(&host->lock);
    pleat__host_copies_lose(host, (uint64_t)(uintptr_t)memory, gone->bytes);
    host->live_blocks--;
    pthread_mutex_unlock(&host->lock);
    pleat__arena_free(host->arena, gone);
    return PLEAT_OK;
}

/* ---- its life ---- */

/* Also what a caller left behind goes. */
static void destroy(void *self)
{
    pleat__host *host = self;
    const pleat__shadow *shadow = &host->shadow;
    for (size_t r = 0; r < shadow->reservation_count; r++)
        munmap((void *)(uintptr_t)shadow->reservations[r].va, shadow->reservations[r].bytes);
    for (size_t p = 0; p < shadow->piece_count; p++)
        if (shadow->pieces[p].bytes != 0 && shadow->pieces[p].file >= 0)
            close(shadow->pieces[p].file);
    for (int d = 0; d < host->device_count; d++)
        if (host->devices[d].file >= 0)
            close(host->devices[d].file);
    pthread_mutex_destroy(&host->lock);
    pthread_cond_destroy(&host->passed);
    pleat__arena_destroy(host->arena);
}

/* ---- the table ---- */

static const pleat_vmm_ops plain = {
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
    .identify = identify,
    .process_memory = process_memory,
    .stream_create = pleat__host_stream_create,
    .stream_destroy = pleat__host_stream_destroy,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .copy = pleat__host_copy,
    .copy_by_threads = pleat__host_copy,
};

static pleat_result here(const void *self)
{
    const pleat__host *host = self;
    return host->process == pleat__process_now() ? PLEAT_OK : pleat__process_forked("backend");
}
PLEAT__VMM_VERBS(PLEAT__VMM_GUARD)

/* A child's copy goes with the child. */
static void here_destroy(void *self)
{
    const pleat__host *host = self;
    if (host->process == pleat__process_now())
        destroy(self);
}

static uint64_t here_clock_ns(void *self)
{
    const pleat__host *host = self;
    return host->process == pleat__process_now() ? pleat__host_clock_ns(self)
                                                 : pleat__vmm_clock_ns(self);
}

static const pleat_vmm_ops host_ops = {
    .abi = PLEAT_VMM_ABI,
    .size = sizeof(pleat_vmm_ops),
    .name = "host",
    .destroy = here_destroy,
    .clock_ns = here_clock_ns,
    PLEAT__VMM_VERBS(PLEAT__VMM_GUARDED) /* every other entry */
};

static uint64_t read_area_limit(void)
{
    unsigned long long limit = 65530;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
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
    PLEAT_TRY(pleat__read_sized("pleat_host_options", options, sizeof *out, out, sizeof *out));
    out->devices = out->devices == 0 ? 1 : out->devices;
    out->granularity = out->granularity == 0 ? DEFAULT_GRANULARITY : out->granularity;
    out->device_bytes = out->device_bytes == 0 ? DEFAULT_DEVICE_BYTES : out->device_bytes;
    if (out->devices < 0 || out->devices > PLEAT__DEVICES)
        return pleat__fail(PLEAT_E_INVALID, "host options: %d devices; 1 to %d are allowed",
                           out->devices, PLEAT__DEVICES);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t least = page > LEAST_GRANULARITY ? page : LEAST_GRANULARITY;
    if (!pleat__is_power_of_two(out->granularity) || out->granularity < least ||
        out->granularity > MOST_GRANULARITY)
        return pleat__fail(PLEAT_E_INVALID,
                           "host options: a granularity of %llu bytes; powers of two from %llu to "
                           "%llu are allowed",
                           (unsigned long long)out->granularity, (unsigned long long)least,
                           MOST_GRANULARITY);
    if (out->device_bytes < out->granularity ||
        out->device_bytes > MOST_GRANULES * out->granularity)
        return pleat__fail(PLEAT_E_INVALID,
                           "host options: device_bytes %llu; from a granule, %llu, to %llu are "
                           "allowed",
                           (unsigned long long)out->device_bytes,
                           (unsigned long long)out->granularity,
                           MOST_GRANULES * (unsigned long long)out->granularity);
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
    PLEAT_TRY(pleat__process_watch());
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat__host *host = pleat__arena_calloc(arena, 1, sizeof *host);
    if (host == NULL) {
        pleat__arena_destroy(arena);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the host backend");
    }
    host->process = pleat__process_now();
    host->arena = arena;
    host->device_count = checked.devices;
    host->shadow = (pleat__shadow){
        .arena = arena, .granularity = checked.granularity, .dropped = drop_piece, .owner = host};
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
    PLEAT_TRY(here(host));
    pleat_result result = PLEAT_E_NOT_FOUND;
    pleat__shadow_span span;
    pthread_mutex_lock(&host->lock);
    if (pleat__shadow_find(&host->shadow, va, &span)) {
        const pleat__shadow_page *page = &span.reservation->page[span.first];
        if (page->piece != 0) {
            *device_offset = pleat__shadow_piece_at(&host->shadow, page->piece)->native +
                             page->index * host->shadow.granularity + va % host->shadow.granularity;
            result = PLEAT_OK;
        }
    }
    pthread_mutex_unlock(&host->lock);
    return result == PLEAT_OK
               ? result
               : pleat__fail(result, "0x%llx: nothing is mapped there", (unsigned long long)va);
}

pleat_result pleat__host_set_costs(const pleat_vmm *vmm, const pleat__host_costs *costs)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pthread_mutex_lock(&host->lock);
    host->modelled = costs != NULL;
    host->modelled_ns = 0;
    host->aside_ns = 0;
    if (costs != NULL)
        host->costs = *costs;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}

pleat_result pleat__host_modelled_ns(const pleat_vmm *vmm, uint64_t *ns, uint64_t *aside_ns)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pthread_mutex_lock(&host->lock);
    *ns = (uint64_t)host->modelled_ns;
    if (aside_ns != NULL)
        *aside_ns = (uint64_t)host->aside_ns;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}

pleat_result pleat__host_most_mapped(const pleat_vmm *vmm, uint64_t *bytes)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pthread_mutex_lock(&host->lock);
    *bytes = host->most_mapped_pages * host->shadow.granularity;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}
