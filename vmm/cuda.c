/*
 * cuda.c: the verbs over the CUDA driver.
 *
 * STRICT    The driver (580.159) takes an unmap of nothing, access over a hole and a map beyond the
 *           end of a reservation, and crashes on a handle that it does not know. The shadow refuses
 *           these first. It is written before the verb (map) or after it (all others). Of the verbs
 *           only free_range holds it: two threads never work on the same range.
 * CONTEXTS  Pleat lives in each device's primary context, the one that frameworks use. It is
 *           retained at the first use of the device and pushed around calls that need one; whatever
 *           context the calling thread has is current again afterwards. Verbs that name no device
 *           run in the thread's context, or, on a thread without one (a mapper), in any retained.
 * EVENTS    An event's record remembers its device, since stream 0 means that device's default
 *           stream.
 * NEVER     Managed memory: asking for more of it than the card has can hang the GPU.
 */
#include "cuda.h"
#include "cuda_internal.h"
#include "table.h"

#include <fcntl.h>
#include <internal/error.h>
#include <internal/process.h>
#include <internal/thread.h>

typedef struct kept_event {
    CUevent event;
    int device;
} kept_event;

/* ---- contexts ---- */

static pleat_result retain(pleat__cuda *cuda, int device, CUcontext *out)
{
    pleat__cuda_device *found = &cuda->devices[device];
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&cuda->lock);
    CUcontext context = atomic_load(&found->context);
    if (context == NULL) {
        result = pleat__cuda_result(&cuda->driver,
                                    cuda->driver.cuDevicePrimaryCtxRetain(&context, found->device),
                                    "device %d: its primary context", device);
        if (result == PLEAT_OK) {
            atomic_store(&found->context, context);
            atomic_store(&cuda->any_context, context);
        }
    }
    pthread_mutex_unlock(&cuda->lock);
    *out = context;
    return result;
}

/* Memory verbs of any thread break a capture that a program began in the driver's global mode,
 * which is PyTorch's, and nobody tells Pleat's own threads of it. They capture nothing themselves,
 * and never touch a stream that does. */
static void relax_own_thread(const pleat__cuda *cuda)
{
    static _Thread_local bool relaxed;
    int mode = CU_CAPTURE_RELAXED;
    if (!relaxed && pleat__on_own_thread())
        relaxed = cuda->driver.cuThreadExchangeStreamCaptureMode(&mode) == CU_OK;
}

pleat_result pleat__cuda_enter(pleat__cuda *cuda, int device, bool *pushed)
{
    CUcontext current = NULL, wanted;
    *pushed = false;
    relax_own_thread(cuda);
    if (device >= 0) {
        PLEAT_TRY(pleat__vmm_check_device(cuda->device_count, device));
        wanted = atomic_load_explicit(&cuda->devices[device].context, memory_order_acquire);
        if (wanted == NULL)
            PLEAT_TRY(retain(cuda, device, &wanted));
    } else {
        wanted = atomic_load_explicit(&cuda->any_context, memory_order_acquire);
    }
    if (cuda->driver.cuCtxGetCurrent(&current) == CU_OK &&
        (current == wanted || (device < 0 && current != NULL)))
        return PLEAT_OK;
    if (wanted == NULL) /* nothing was ever done on any device: the driver will say so */
        return PLEAT_OK;
    PLEAT_TRY(pleat__cuda_result(&cuda->driver, cuda->driver.cuCtxPushCurrent(wanted),
                                 "device %d: its context", device));
    *pushed = true;
    return PLEAT_OK;
}

void pleat__cuda_leave(const pleat__cuda *cuda, bool pushed)
{
    CUcontext popped;
    if (pushed)
        (void)cuda->driver.cuCtxPopCurrent(&popped); /* fails only when nothing is pushed */
}

/* ---- devices ---- */

static pleat_result device_count(void *self, int *count)
{
    *count = ((const pleat__cuda *)self)->device_count;
    return PLEAT_OK;
}

static CUproperties properties(const pleat__cuda *cuda, int device, uint32_t flags)
{
    CUproperties wanted = {.kind = CU_KIND_PINNED,
                           .location = {CU_LOCATION_DEVICE, cuda->devices[device].device}};
    if ((flags & PLEAT_CREATE_HOST) != 0)
        wanted.location = (CUlocation){CU_LOCATION_HOST_NODE, cuda->devices[device].host_node};
    if ((flags & PLEAT_CREATE_SHAREABLE) != 0)
        wanted.handle_kinds = CU_HANDLE_FILE_DESCRIPTOR;
    if ((flags & PLEAT_CREATE_RDMA) != 0 && cuda->devices[device].rdma)
        wanted.flags.rdma = 1;
    return wanted;
}

/* Needs no context, so that no device is woken by it. */
static pleat_result granularity(void *self, int device, uint64_t *minimum, uint64_t *recommended)
{
    const pleat__cuda *cuda = self;
    PLEAT_TRY(pleat__vmm_check_device(cuda->device_count, device));
    CUproperties wanted = properties(cuda, device, 0);
    size_t least = 0, advised = 0;
    CUresult code =
        cuda->driver.cuMemGetAllocationGranularity(&least, &wanted, CU_GRANULARITY_MINIMUM);
    if (code == CU_OK)
        code = cuda->driver.cuMemGetAllocationGranularity(&advised, &wanted,
                                                          CU_GRANULARITY_RECOMMENDED);
    PLEAT_TRY(pleat__cuda_result(&cuda->driver, code, "device %d: granularity", device));
    *minimum = least;
    *recommended = advised;
    return PLEAT_OK;
}

static pleat_result memory_info(void *self, int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    pleat__cuda *cuda = self;
    PLEAT_TRY(pleat__vmm_check_device(cuda->device_count, device));
    size_t free_now = 0, total = 0;
    pleat_result result;
    PLEAT__CUDA_RUN(cuda, device, result, cuda->driver.cuMemGetInfo(&free_now, &total),
                    "device %d: memory_info", device);
    if (result != PLEAT_OK)
        return result;
    *free_bytes = free_now;
    *total_bytes = total;
    return PLEAT_OK;
}

/* ---- memory ---- */

static pleat_result reserve(void *self, int device, uint64_t bytes, uint64_t align, pleat_va *va)
{
    pleat__cuda *cuda = self;
    PLEAT_TRY(pleat__vmm_check_device(cuda->device_count, device));
    PLEAT_TRY(pleat__shadow_check_reserve(&cuda->shadow, bytes, align));
    CUdeviceptr start = 0;
    pleat_result result;
    PLEAT__CUDA_RUN(cuda, device, result,
                    cuda->driver.cuMemAddressReserve(&start, bytes, align, 0, 0),
                    "reserve of %llu bytes aligned to %llu", (unsigned long long)bytes,
                    (unsigned long long)align);
    if (result != PLEAT_OK)
        return result;
    pthread_mutex_lock(&cuda->lock);
    result = pleat__shadow_add_range(&cuda->shadow, start, bytes);
    pthread_mutex_unlock(&cuda->lock);
    if (result == PLEAT_OK)
        *va = start;
    else
        (void)cuda->driver.cuMemAddressFree(start, bytes);
    return result;
}

/* The lock is held over the verb: once the driver has the addresses, another thread's reservation
 * may get them and enter them. */
static pleat_result free_range(void *self, pleat_va va, uint64_t bytes)
{
    pleat__cuda *cuda = self;
    pthread_mutex_lock(&cuda->lock);
    pleat_result result = pleat__shadow_check_free(&cuda->shadow, va, bytes);
    if (result == PLEAT_OK)
        PLEAT__CUDA_RUN(cuda, -1, result, cuda->driver.cuMemAddressFree(va, bytes),
                        "free_range 0x%llx, %llu bytes", (unsigned long long)va,
                        (unsigned long long)bytes);
    if (result == PLEAT_OK)
        pleat__shadow_drop_range(&cuda->shadow, va);
    pthread_mutex_unlock(&cuda->lock);
    return result;
}

/* Enters what the driver gave; gives it back when there is no host memory to do so. */
static pleat_result add_handle(pleat__cuda *cuda, CUhandle native, uint64_t bytes, int device,
                               pleat_handle *handle)
{
    const pleat__shadow_piece piece = {
        .bytes = bytes, .native = native, .device = device, .file = -1};
    pthread_mutex_lock(&cuda->lock);
    pleat_handle added = pleat__shadow_add_piece(&cuda->shadow, &piece);
    pthread_mutex_unlock(&cuda->lock);
    if (added == 0) {
        (void)cuda->driver.cuMemRelease(native);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a handle's record");
    }
    *handle = added;
    return PLEAT_OK;
}

/* The driver's handle. */
static pleat_result native_of(pleat__cuda *cuda, const char *verb, pleat_handle handle,
                              CUhandle *native)
{
    uint32_t piece;
    pthread_mutex_lock(&cuda->lock);
    pleat_result result = pleat__shadow_piece_of(&cuda->shadow, verb, handle, &piece);
    if (result == PLEAT_OK)
        *native = pleat__shadow_piece_at(&cuda->shadow, piece)->native;
    pthread_mutex_unlock(&cuda->lock);
    return result;
}

static pleat_result check_create(const pleat__cuda *cuda, int device, uint64_t bytes,
                                 uint32_t flags)
{
    PLEAT_TRY(pleat__vmm_check_device(cuda->device_count, device));
    PLEAT_TRY(pleat__shadow_check_create(&cuda->shadow, bytes, flags));
    if ((flags & PLEAT_CREATE_SHAREABLE) != 0 && !cuda->devices[device].file_descriptors)
        return pleat__fail(PLEAT_E_UNSUPPORTED,
                           "create: device %d has no memory shareable by file descriptors", device);
    if ((flags & PLEAT_CREATE_HOST) != 0 && !cuda->devices[device].host_memory)
        return pleat__fail(PLEAT_E_UNSUPPORTED,
                           "create: device %d or its driver maps no memory of the host's", device);
    return PLEAT_OK;
}

static pleat_result create(void *self, int device, uint64_t bytes, uint32_t flags,
                           pleat_handle *handle)
{
    pleat__cuda *cuda = self;
    PLEAT_TRY(check_create(cuda, device, bytes, flags));
    CUproperties wanted = properties(cuda, device, flags);
    CUhandle made = 0;
    pleat_result result;
    PLEAT__CUDA_RUN(cuda, device, result, cuda->driver.cuMemCreate(&made, bytes, &wanted, 0),
                    "device %d: create of %llu bytes", device, (unsigned long long)bytes);
    return result == PLEAT_OK ? add_handle(cuda, made, bytes, device, handle) : result;
}

static pleat_result release(void *self, pleat_handle handle)
{
    pleat__cuda *cuda = self;
    CUhandle native = 0;
    pleat_result result = native_of(cuda, "release", handle, &native);
    if (result == PLEAT_OK)
        PLEAT__CUDA_RUN(cuda, -1, result, cuda->driver.cuMemRelease(native), "release of 0x%llx",
                        (unsigned long long)native);
    if (result != PLEAT_OK)
        return result;
    pthread_mutex_lock(&cuda->lock);
    pleat__shadow_drop_handle(&cuda->shadow, handle);
    pthread_mutex_unlock(&cuda->lock);
    return PLEAT_OK;
}

/* Strikes the maps of a range out of the shadow. */
static void forget_maps(pleat__cuda *cuda, pleat_va va, uint64_t bytes)
{
    pleat__shadow_span span;
    pthread_mutex_lock(&cuda->lock);
    if (pleat__shadow_check_maps(&cuda->shadow, "unmap", va, bytes, &span) == PLEAT_OK)
        pleat__shadow_clear_maps(&cuda->shadow, &span);
    pthread_mutex_unlock(&cuda->lock);
}

/* The driver says that it does not support a map which its handle's size or the alignment forbids:
 * of an imported handle only it knows the size. */
static CUresult refusal_of_map(CUresult code)
{
    return code == CU_NOT_SUPPORTED ? CU_INVALID_VALUE : code;
}

static pleat_result map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    pleat__cuda *cuda = self;
    pleat__shadow_span span;
    CUhandle native = 0;
    pthread_mutex_lock(&cuda->lock);
    pleat_result result = pleat__shadow_check_map(&cuda->shadow, va, bytes, handle, &span);
    if (result == PLEAT_OK) {
        native = pleat__shadow_piece_at(&cuda->shadow, span.piece)->native;
        pleat__shadow_set_map(&cuda->shadow, &span);
    }
    pthread_mutex_unlock(&cuda->lock);
    if (result != PLEAT_OK)
        return result;
    PLEAT__CUDA_RUN(cuda, -1, result,
                    refusal_of_map(cuda->driver.cuMemMap(va, bytes, 0, native, 0)),
                    "map at 0x%llx, %llu bytes", (unsigned long long)va, (unsigned long long)bytes);
    if (result != PLEAT_OK)
        forget_maps(cuda, va, bytes);
    return result;
}

static pleat_result check_maps(pleat__cuda *cuda, const char *verb, pleat_va va, uint64_t bytes)
{
    pleat__shadow_span span;
    pthread_mutex_lock(&cuda->lock);
    pleat_result result = pleat__shadow_check_maps(&cuda->shadow, verb, va, bytes, &span);
    pthread_mutex_unlock(&cuda->lock);
    return result;
}

static pleat_result set_access(void *self, pleat_va va, uint64_t bytes, const int *devices,
                               int count)
{
    pleat__cuda *cuda = self;
    CUaccess access[PLEAT__DEVICES];
    PLEAT_TRY(pleat__vmm_check_access(cuda->device_count, devices, count));
    for (int d = 0; d < count; d++)
        access[d] = (CUaccess){{CU_LOCATION_DEVICE, cuda->devices[devices[d]].device},
                               CU_ACCESS_READ_WRITE};
    pleat_result result = check_maps(cuda, "set_access", va, bytes);
    if (result == PLEAT_OK)
        PLEAT__CUDA_RUN(
            cuda, devices[0], result, cuda->driver.cuMemSetAccess(va, bytes, access, (size_t)count),
            "set_access at 0x%llx, %llu bytes", (unsigned long long)va, (unsigned long long)bytes);
    return result;
}

/* PLEAT_E_INVALID says that nothing is mapped there, and the shadow has it that something is. */
static pleat_result refusal_of_unmap(pleat_result result)
{
    pleat_error why = pleat__failure(result);
    why.result = PLEAT_E_DRIVER;
    return result == PLEAT_E_INVALID ? pleat__fail_again(&why) : result;
}

static pleat_result unmap(void *self, pleat_va va, uint64_t bytes)
{
    pleat__cuda *cuda = self;
    pleat_result result;
    PLEAT_TRY(check_maps(cuda, "unmap", va, bytes));
    PLEAT__CUDA_RUN(cuda, -1, result, cuda->driver.cuMemUnmap(va, bytes),
                    "unmap of 0x%llx, %llu bytes", (unsigned long long)va,
                    (unsigned long long)bytes);
    if (result != PLEAT_OK)
        return refusal_of_unmap(result);
    forget_maps(cuda, va, bytes);
    return PLEAT_OK;
}

static pleat_result export_handle(void *self, pleat_handle handle, int *fd)
{
    pleat__cuda *cuda = self;
    CUhandle native = 0;
    int made = -1;
    pleat_result result = native_of(cuda, "export", handle, &native);
    if (result == PLEAT_OK)
        PLEAT__CUDA_RUN(
            cuda, -1, result,
            cuda->driver.cuMemExportToShareableHandle(&made, native, CU_HANDLE_FILE_DESCRIPTOR, 0),
            "export of 0x%llx", (unsigned long long)native);
    if (result != PLEAT_OK)
        return result;
    /* A program that the process starts would keep the memory for as long as it runs. */
    (void)fcntl(made, F_SETFD, FD_CLOEXEC);
    *fd = made;
    return PLEAT_OK;
}

static pleat_result import_handle(void *self, int device, int fd, uint64_t bytes,
                                  pleat_handle *handle)
{
    pleat__cuda *cuda = self;
    PLEAT_TRY(pleat__vmm_check_device(cuda->device_count, device));
    if (!pleat__shadow_granular(&cuda->shadow, bytes))
        return pleat__fail(PLEAT_E_INVALID, "import: %llu bytes: not on the granularity of %llu",
                           (unsigned long long)bytes, (unsigned long long)cuda->shadow.granularity);
    CUhandle made = 0;
    pleat_result result;
    PLEAT__CUDA_RUN(cuda, device, result,
                    cuda->driver.cuMemImportFromShareableHandle(&made, (void *)(intptr_t)fd,
                                                                CU_HANDLE_FILE_DESCRIPTOR),
                    "import from descriptor %d", fd);
    return result == PLEAT_OK ? add_handle(cuda, made, bytes, device, handle) : result;
}

/* ---- events ---- */

static kept_event *of_event(pleat_event handle)
{
    return (kept_event *)(uintptr_t)handle;
}

static pleat_result event_create(void *self, int device, pleat_event *out)
{
    pleat__cuda *cuda = self;
    PLEAT_TRY(pleat__vmm_check_device(cuda->device_count, device));
    kept_event *made = pleat__arena_alloc(cuda->arena, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an event's record");
    pleat_result result;
    made->device = device;
    PLEAT__CUDA_RUN(
        cuda, device, result,
        cuda->driver.cuEventCreate(&made->event, CU_EVENT_BLOCKING | CU_EVENT_NO_TIMING),
        "device %d: event_create", device);
    if (result == PLEAT_OK)
        *out = (uintptr_t)made;
    else
        pleat__arena_free(cuda->arena, made);
    return result;
}

static pleat_result no_event(const char *verb)
{
    return pleat__fail(PLEAT_E_INVALID, "%s: no event", verb);
}

static pleat_result event_destroy(void *self, pleat_event handle)
{
    pleat__cuda *cuda = self;
    kept_event *found = of_event(handle);
    if (found == NULL)
        return no_event("event_destroy");
    pleat_result result;
    PLEAT__CUDA_RUN(cuda, found->device, result, cuda->driver.cuEventDestroy(found->event),
                    "event_destroy");
    if (result == PLEAT_OK)
        pleat__arena_free(cuda->arena, found);
    return result;
}

/* Fails where a stream captures, without asking the driver for what would become part of the graph
 * (an event that nobody can ask or wait for) or break the capture. */
static pleat_result outside_graph(pleat__cuda *cuda, int device, pleat_stream stream,
                                  const char *verb)
{
    int doing = CU_CAPTURES_NOT;
    bool pushed;
    PLEAT_TRY(pleat__cuda_enter(cuda, device, &pushed));
    CUresult code = cuda->driver.cuStreamIsCapturing((CUstream)(uintptr_t)stream, &doing);
    pleat__cuda_leave(cuda, pushed);
    if (code != CU_CAPTURE_IMPLICIT && (code != CU_OK || doing == CU_CAPTURES_NOT))
        return pleat__cuda_result(&cuda->driver, code, "%s", verb);
    return pleat__fail(PLEAT_E_STATE, "%s: stream %#llx captures a graph", verb,
                       (unsigned long long)stream);
}

static pleat_result event_record(void *self, pleat_event handle, pleat_stream stream)
{
    pleat__cuda *cuda = self;
    const kept_event *found = of_event(handle);
    if (found == NULL)
        return no_event("event_record");
    pleat_result result = outside_graph(cuda, found->device, stream, "event_record");
    if (result == PLEAT_OK)
        PLEAT__CUDA_RUN(cuda, found->device, result,
                        cuda->driver.cuEventRecord(found->event, (CUstream)(uintptr_t)stream),
                        "event_record");
    return result;
}

static pleat_result event_query(void *self, pleat_event handle)
{
    pleat__cuda *cuda = self;
    const kept_event *found = of_event(handle);
    if (found == NULL)
        return no_event("event_query");
    bool pushed;
    PLEAT_TRY(pleat__cuda_enter(cuda, found->device, &pushed));
    CUresult code = cuda->driver.cuEventQuery(found->event);
    pleat__cuda_leave(cuda, pushed);
    return code == CU_NOT_READY ? PLEAT_E_NOT_READY
                                : pleat__cuda_result(&cuda->driver, code, "event_query");
}

static pleat_result event_wait(void *self, pleat_event handle)
{
    pleat__cuda *cuda = self;
    const kept_event *found = of_event(handle);
    if (found == NULL)
        return no_event("event_wait");
    pleat_result result;
    PLEAT__CUDA_RUN(cuda, found->device, result, cuda->driver.cuEventSynchronize(found->event),
                    "event_wait");
    return result;
}

static pleat_result stream_wait(void *self, pleat_stream stream, pleat_event handle)
{
    pleat__cuda *cuda = self;
    const kept_event *found = of_event(handle);
    if (found == NULL)
        return no_event("stream_wait");
    pleat_result result = outside_graph(cuda, found->device, stream, "stream_wait");
    if (result == PLEAT_OK)
        PLEAT__CUDA_RUN(
            cuda, found->device, result,
            cuda->driver.cuStreamWaitEvent((CUstream)(uintptr_t)stream, found->event, 0),
            "stream_wait");
    return result;
}

/* ---- life ---- */

static void destroy(void *self)
{
    pleat__cuda *cuda = self;
    pleat__cuda_readers_unload(cuda);
    for (int d = 0; d < cuda->device_count; d++)
        if (atomic_load(&cuda->devices[d].context) != NULL)
            (void)cuda->driver.cuDevicePrimaryCtxRelease(cuda->devices[d].device);
    pthread_mutex_destroy(&cuda->loading);
    pthread_mutex_destroy(&cuda->lock);
    pleat__arena_destroy(cuda->arena);
}

static const pleat_vmm_ops plain = {
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
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_wait = event_wait,
    .stream_wait = stream_wait,
    .identify = pleat__cuda_identify,
    .process_memory = pleat__cuda_process_memory,
    .stream_create = pleat__cuda_make_stream,
    .stream_destroy = pleat__cuda_drop_stream,
    .host_alloc = pleat__cuda_host_alloc,
    .host_free = pleat__cuda_host_free,
    .copy = pleat__cuda_copy,
    .copy_by_threads = pleat__cuda_copy_by_threads,
};

static pleat_result here(const void *self)
{
    const pleat__cuda *cuda = self;
    return cuda->process == pleat__process_now() ? PLEAT_OK : pleat__process_forked("backend");
}
PLEAT__VMM_VERBS(PLEAT__VMM_GUARD)

/* A child's copy goes with the child. */
static void here_destroy(void *self)
{
    const pleat__cuda *cuda = self;
    if (cuda->process == pleat__process_now())
        destroy(self);
}

static const pleat_vmm_ops cuda_ops = {
    .abi = PLEAT_VMM_ABI,
    .size = sizeof(pleat_vmm_ops),
    .name = "cuda",
    .destroy = here_destroy,
    .clock_ns = pleat__vmm_clock_ns,
    PLEAT__VMM_VERBS(PLEAT__VMM_GUARDED) /* every other entry */
};

static pleat_result attribute(const pleat__cuda *cuda, CUdevice device, int which, bool *out)
{
    int value = 0;
    PLEAT_TRY(pleat__cuda_result(&cuda->driver,
                                 cuda->driver.cuDeviceGetAttribute(&value, which, device),
                                 "attribute %d of device %d", which, device));
    *out = value != 0;
    return PLEAT_OK;
}

/* Attributes that an older driver does not know. */
static void find_host_memory(const pleat__cuda *cuda, pleat__cuda_device *device)
{
    int node = -1, has = 0, reads = 0;
    if (cuda->driver.cuDeviceGetAttribute(&has, CU_HAS_HOST_MEMORY, device->device) != CU_OK ||
        cuda->driver.cuDeviceGetAttribute(&node, CU_HOST_NODE, device->device) != CU_OK)
        has = 0;
    if (cuda->driver.cuDeviceGetAttribute(&reads, CU_READS_PINNED, device->device) != CU_OK)
        reads = 0;
    device->host_memory = has != 0;
    device->reads_pinned = reads != 0;
    device->host_node = node < 0 ? 0 : node; /* -1: the host has one node */
}

static pleat_result find_devices(pleat__cuda *cuda)
{
    int count = 0;
    PLEAT_TRY(
        pleat__cuda_result(&cuda->driver, cuda->driver.cuDeviceGetCount(&count), "device count"));
    if (count == 0)
        return pleat__fail(PLEAT_E_NO_DEVICE, "the CUDA driver knows no device");
    count = count < PLEAT__DEVICES ? count : PLEAT__DEVICES;
    for (int d = 0; d < count; d++) {
        pleat__cuda_device *device = &cuda->devices[d];
        PLEAT_TRY(pleat__cuda_result(&cuda->driver, cuda->driver.cuDeviceGet(&device->device, d),
                                     "device %d", d));
        PLEAT_TRY(attribute(cuda, device->device, CU_HAS_VIRTUAL_MEMORY, &device->virtual_memory));
        PLEAT_TRY(
            attribute(cuda, device->device, CU_HAS_FILE_DESCRIPTORS, &device->file_descriptors));
        PLEAT_TRY(attribute(cuda, device->device, CU_HAS_RDMA, &device->rdma));
        find_host_memory(cuda, device);
        if (!device->virtual_memory)
            return pleat__fail(PLEAT_E_UNSUPPORTED,
                               "device %d has no virtual memory management; hide it with "
                               "CUDA_VISIBLE_DEVICES",
                               d);
    }
    cuda->device_count = count;
    return PLEAT_OK;
}

/* The shadow counts in the least granularity of all devices; a coarser one refuses for itself. */
static pleat_result open_shadow(pleat__cuda *cuda)
{
    cuda->shadow = (pleat__shadow){.arena = cuda->arena, .granularity = UINT64_MAX};
    for (int d = 0; d < cuda->device_count; d++) {
        uint64_t least, advised;
        PLEAT_TRY(granularity(cuda, d, &least, &advised));
        if (least < cuda->shadow.granularity)
            cuda->shadow.granularity = least;
    }
    return PLEAT_OK;
}

pleat_result pleat_vmm_cuda(pleat_vmm *out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__process_watch());
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat__cuda *cuda = pleat__arena_calloc(arena, 1, sizeof *cuda);
    pleat_result result = PLEAT_E_NO_MEMORY;
    if (cuda == NULL) {
        pleat__fail(result, "no host memory for the CUDA backend");
        goto arena;
    }
    cuda->vmm = (pleat_vmm){&cuda_ops, cuda};
    cuda->arena = arena;
    cuda->process = pleat__process_now();
    if ((result = pleat__cuda_load(&cuda->driver)) != PLEAT_OK ||
        (result = find_devices(cuda)) != PLEAT_OK)
        goto arena;
    pthread_mutex_init(&cuda->lock, NULL);
    pthread_mutex_init(&cuda->loading, NULL);
    if ((result = open_shadow(cuda)) != PLEAT_OK) {
        destroy(cuda);
        return result;
    }
    *out = cuda->vmm;
    return PLEAT_OK;
arena:
    pleat__arena_destroy(arena);
    return result;
}

bool pleat__cuda_is(const pleat_vmm *vmm)
{
    return vmm->ops == &cuda_ops;
}

pleat__cuda *pleat__cuda_of(const pleat_vmm *vmm)
{
    if (vmm != NULL && vmm->ops == &cuda_ops)
        return vmm->self;
    pleat__fail(PLEAT_E_INVALID, "'%s' is not the CUDA backend",
                vmm == NULL || vmm->ops == NULL ? "" : vmm->ops->name);
    return NULL;
}
