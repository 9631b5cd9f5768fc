/*
 * fake_libcuda.c: a libcuda for machines without a GPU: the driver functions that vmm/cuda.c uses,
 * over the host backend. It keeps the rules about contexts that the real one has, so that a
 * backend that forgets to make one current fails here too.
 *
 * PLEAT_FAKE_CUDA_DEVICES   how many devices (2)
 * PLEAT_FAKE_CUDA_GIB       of memory each (140)
 * PLEAT_FAKE_CUDA_WITHOUT   a function that this driver is too old to have
 *
 * Kernels are known by name: the canaries' do what their PTX says, the conformance suite's keeps
 * its stream busy until the word at its argument is not 0. Any other does nothing.
 */
#include "fake_libcuda.h"
#include "../../vmm/cuda_driver.h"
#include "../host.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_DEVICES 8
#define MOST_STREAMS 256
#define MOST_NESTED  16

enum {
    FAKE_INVALID_CONTEXT = 201,
    FAKE_CAPTURES = 900,
    FAKE_ISOLATION = 905,
    FAKE_IMPLICIT = 906,
    FAKE_CAPTURED_EVENT = 907,
    FAKE_UNKNOWN = 999
};

struct CUctx_st {
    int device;
    int retained;
};

struct CUevent_st {
    pleat_event event;
    struct CUctx_st *context;
    bool captured; /* recorded last on a stream that captured: part of the graph */
};

/* A stream, and the word that its kernel waits for. The default streams lie in front. */
struct CUstream_st {
    struct CUctx_st *context;
    volatile uint32_t *gate;
    atomic_bool captures;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pleat_vmm host;
static int device_count;
static struct CUctx_st contexts[MOST_DEVICES];
static struct CUstream_st streams[MOST_STREAMS];
static int stream_count;
static _Atomic uint64_t modules, registered, fails_in;
static _Thread_local struct CUctx_st *nested[MOST_NESTED];
static _Thread_local int depth;
static atomic_bool capturing;
static _Thread_local int capture_mode; /* 0: global */

static CUresult code_of(pleat_result result)
{
    switch (result) {
    case PLEAT_OK:
        return CU_OK;
    case PLEAT_E_INVALID:
        return CU_INVALID_VALUE;
    case PLEAT_E_OUT_OF_MEMORY:
    case PLEAT_E_LIMIT:
        return CU_OUT_OF_MEMORY;
    case PLEAT_E_NO_DEVICE:
        return CU_INVALID_DEVICE;
    case PLEAT_E_NOT_READY:
        return CU_NOT_READY;
    default:
        return FAKE_UNKNOWN;
    }
}

static struct CUctx_st *current(void)
{
    return depth > 0 ? nested[depth - 1] : NULL;
}

__attribute__((visibility("default"))) bool fake_cuda_fail(uint64_t nth)
{
    return atomic_exchange(&fails_in, nth) == 0;
}

/* Whether the call that asks is the one to fail. */
static bool fails(void)
{
    uint64_t left = atomic_load(&fails_in);
    while (left > 0 && !atomic_compare_exchange_weak(&fails_in, &left, left - 1))
        continue;
    return left == 1;
}

static atomic_int kept;

__attribute__((visibility("default"))) void fake_cuda_keep(int code)
{
    atomic_store(&kept, code);
}

static CUresult keeps(void)
{
    return atomic_load(&kept);
}

__attribute__((visibility("default"))) uint64_t fake_cuda_held(void)
{
    pleat__host_holdings held = {0};
    (void)!pleat__host_holdings_of(&host, &held);
    return held.handles + held.reservations + held.mapped_pages + held.blocks +
           atomic_load(&modules) + atomic_load(&registered);
}

__attribute__((visibility("default"))) void fake_cuda_capture(bool captures)
{
    atomic_store(&capturing, captures);
}

__attribute__((visibility("default"))) void fake_cuda_stream_captures(void *stream, bool captures)
{
    struct CUstream_st *found = stream != NULL ? stream : &streams[0];
    atomic_store(&found->captures, captures);
}

/* Whether the call would break a capture. */
static bool breaks(void)
{
    return atomic_load(&capturing) && capture_mode != CU_CAPTURE_RELAXED;
}

static CUresult fake_cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture_mode;
    if (*mode < 0 || *mode > CU_CAPTURE_RELAXED)
        return CU_INVALID_VALUE;
    capture_mode = *mode;
    *mode = before;
    return CU_OK;
}

static CUresult fake_cuInit(unsigned flags)
{
    pthread_mutex_lock(&lock);
    CUresult code = flags == 0 ? CU_OK : CU_INVALID_VALUE;
    int devices;
    /* A child of fork that begins anew gets devices of its own, as no driver's would. */
    if (host.ops != NULL && host.ops->device_count(host.self, &devices) == PLEAT_E_STATE)
        host.ops = NULL;
    if (code == CU_OK && host.ops == NULL) {
        const char *count = getenv("PLEAT_FAKE_CUDA_DEVICES"), *gib = getenv("PLEAT_FAKE_CUDA_GIB");
        device_count = count != NULL ? atoi(count) : 2;
        device_count = device_count < MOST_DEVICES ? device_count : MOST_DEVICES;
        pleat_host_options options = {.size = sizeof options,
                                      .devices = device_count > 0 ? device_count : 1,
                                      .device_bytes =
                                          gib != NULL ? strtoull(gib, NULL, 10) << 30 : 0};
        code = code_of(pleat_vmm_host(&options, &host));
        for (int d = 0; d < MOST_DEVICES; d++) {
            contexts[d].device = d;
            streams[d].context = &contexts[d];
        }
        stream_count = MOST_DEVICES;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static CUresult fake_cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CU_OK;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CU_OK, "CUDA_SUCCESS", "no error"},
    {CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {FAKE_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult fake_cuGetErrorName(CUresult code, const char **name)
{
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++)
        if (errors[e].code == code) {
            *name = errors[e].name;
            return CU_OK;
        }
    return CU_INVALID_VALUE;
}

static CUresult fake_cuGetErrorString(CUresult code, const char **text)
{
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++)
        if (errors[e].code == code) {
            *text = errors[e].text;
            return CU_OK;
        }
    return CU_INVALID_VALUE;
}

static CUresult fake_cuDeviceGetCount(int *count)
{
    *count = device_count;
    return CU_OK;
}

static CUresult fake_cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < device_count ? CU_OK : CU_INVALID_DEVICE;
}

static CUresult fake_cuDeviceGetAttribute(int *value, int which, CUdevice device)
{
    (void)device;
    *value = which == CU_HAS_VIRTUAL_MEMORY || which == CU_HAS_FILE_DESCRIPTORS ||
             which == CU_HAS_HOST_MEMORY ||
             (which == CU_READS_PINNED && getenv("PLEAT_FAKE_CUDA_READS_NOTHING") == NULL);
    return CU_OK;
}

static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    pthread_mutex_lock(&lock);
    contexts[device].retained++;
    pthread_mutex_unlock(&lock);
    *context = &contexts[device];
    return CU_OK;
}

static CUresult fake_cuDevicePrimaryCtxRelease(CUdevice device)
{
    pthread_mutex_lock(&lock);
    CUresult code = contexts[device].retained > 0 ? CU_OK : FAKE_INVALID_CONTEXT;
    contexts[device].retained -= code == CU_OK;
    pthread_mutex_unlock(&lock);
    return code;
}

static CUresult fake_cuCtxGetCurrent(CUcontext *context)
{
    *context = current();
    return CU_OK;
}

static CUresult fake_cuCtxPushCurrent(CUcontext context)
{
    if (context == NULL || depth == MOST_NESTED)
        return FAKE_INVALID_CONTEXT;
    nested[depth++] = context;
    return CU_OK;
}

static CUresult fake_cuCtxPopCurrent(CUcontext *context)
{
    if (depth == 0)
        return FAKE_INVALID_CONTEXT;
    *context = nested[--depth];
    return CU_OK;
}

static CUresult fake_cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    if (fails())
        return FAKE_UNKNOWN;
    if (current() == NULL)
        return FAKE_INVALID_CONTEXT;
    uint64_t free_now, total;
    CUresult code = code_of(host.ops->memory_info(host.self, current()->device, &free_now, &total));
    *free_bytes = free_now;
    *total_bytes = total;
    return code;
}

static CUresult fake_cuMemGetAllocationGranularity(size_t *bytes, const CUproperties *wanted,
                                                   int which)
{
    if (fails())
        return FAKE_UNKNOWN;
    uint64_t least, advised;
    CUresult code =
        code_of(host.ops->granularity(host.self, wanted->location.number, &least, &advised));
    *bytes = which == CU_GRANULARITY_MINIMUM ? least : advised;
    return code;
}

static CUresult fake_cuMemAddressReserve(CUdeviceptr *start, size_t bytes, size_t align,
                                         CUdeviceptr near_to, unsigned long long flags)
{
    if (fails())
        return FAKE_UNKNOWN;
    if (near_to != 0 || flags != 0)
        return CU_INVALID_VALUE;
    pleat_va va = 0;
    CUresult code = code_of(host.ops->reserve(host.self, 0, bytes, align, &va));
    *start = va;
    return code;
}

static void (*after_free)(void);

__attribute__((visibility("default"))) void fake_cuda_after_free(void (*call)(void))
{
    after_free = call;
}

static CUresult fake_cuMemAddressFree(CUdeviceptr start, size_t bytes)
{
    CUresult code = code_of(host.ops->free_range(host.self, start, bytes));
    if (after_free != NULL)
        after_free();
    return code;
}

static CUresult fake_cuMemCreate(CUhandle *handle, size_t bytes, const CUproperties *wanted,
                                 unsigned long long flags)
{
    if (breaks())
        return FAKE_CAPTURES;
    if (fails())
        return FAKE_UNKNOWN;
    if (flags != 0 || wanted->kind != CU_KIND_PINNED ||
        (wanted->location.kind != CU_LOCATION_DEVICE &&
         wanted->location.kind != CU_LOCATION_HOST_NODE) ||
        wanted->flags.rdma != 0)
        return CU_INVALID_VALUE;
    pleat_handle made = 0;
    uint32_t kind = wanted->handle_kinds == CU_HANDLE_FILE_DESCRIPTOR ? PLEAT_CREATE_SHAREABLE : 0;
    if (wanted->location.kind == CU_LOCATION_HOST_NODE)
        kind |= PLEAT_CREATE_HOST;
    CUresult code =
        code_of(host.ops->create(host.self, wanted->location.number, bytes, kind, &made));
    *handle = made;
    return code;
}

static CUresult fake_cuMemRelease(CUhandle handle)
{
    if (breaks())
        return FAKE_CAPTURES;
    return code_of(host.ops->release(host.self, handle));
}

static CUresult fake_cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUhandle handle,
                              unsigned long long flags)
{
    if (breaks())
        return FAKE_CAPTURES;
    if (fails())
        return FAKE_UNKNOWN;
    if (offset != 0 || flags != 0)
        return CU_INVALID_VALUE;
    return code_of(host.ops->map(host.self, at, bytes, handle));
}

static CUresult fake_cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUaccess *access,
                                    size_t count)
{
    if (breaks())
        return FAKE_CAPTURES;
    if (fails())
        return FAKE_UNKNOWN;
    int devices[MOST_DEVICES];
    if (count == 0 || count > MOST_DEVICES)
        return CU_INVALID_VALUE;
    for (size_t a = 0; a < count; a++) {
        if (access[a].location.kind != CU_LOCATION_DEVICE ||
            access[a].access != CU_ACCESS_READ_WRITE)
            return CU_INVALID_VALUE;
        devices[a] = access[a].location.number;
    }
    return code_of(host.ops->set_access(host.self, at, bytes, devices, (int)count));
}

static CUresult fake_cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    if (breaks())
        return FAKE_CAPTURES;
    if (keeps() != CU_OK)
        return keeps();
    return code_of(host.ops->unmap(host.self, at, bytes));
}

static CUresult fake_cuMemExportToShareableHandle(void *out, CUhandle handle, int kind,
                                                  unsigned long long flags)
{
    if (kind != CU_HANDLE_FILE_DESCRIPTOR || flags != 0)
        return CU_INVALID_VALUE;
    CUresult code = code_of(host.ops->export_handle(host.self, handle, out));
    if (code == CU_OK) /* the driver's documentation does not say that it is closed on exec */
        (void)fcntl(*(int *)out, F_SETFD, 0);
    return code;
}

static CUresult fake_cuMemImportFromShareableHandle(CUhandle *handle, void *from, int kind)
{
    int fd = (int)(intptr_t)from;
    off_t bytes = lseek(fd, 0, SEEK_END);
    if (kind != CU_HANDLE_FILE_DESCRIPTOR || bytes <= 0)
        return CU_INVALID_VALUE;
    pleat_handle made = 0;
    CUresult code = code_of(host.ops->import_handle(host.self, 0, fd, (uint64_t)bytes, &made));
    *handle = made;
    return code;
}

/* ---- streams ---- */

static struct CUstream_st *stream_of(CUstream stream)
{
    if (stream != NULL)
        return stream;
    return current() == NULL ? NULL : &streams[current()->device];
}

static pleat_stream number_of(const struct CUstream_st *stream)
{
    return (pleat_stream)(stream - streams) + 1;
}

/* Lets go the streams whose kernels are over. */
static void run(void)
{
    pthread_mutex_lock(&lock);
    for (int s = 0; s < stream_count; s++)
        if (streams[s].gate != NULL && *streams[s].gate != 0) {
            streams[s].gate = NULL;
            (void)!pleat__host_stream_release(&host, number_of(&streams[s]));
        }
    pthread_mutex_unlock(&lock);
}

static CUresult wait_for(pleat_event event)
{
    pleat_result result;
    while (run(), (result = host.ops->event_query(host.self, event)) == PLEAT_E_NOT_READY)
        usleep(200);
    return code_of(result);
}

static CUresult fake_cuEventCreate(CUevent *event, unsigned flags)
{
    if (current() == NULL)
        return FAKE_INVALID_CONTEXT;
    struct CUevent_st *made =
        flags == (CU_EVENT_BLOCKING | CU_EVENT_NO_TIMING) ? malloc(sizeof *made) : NULL;
    if (made == NULL)
        return CU_INVALID_VALUE;
    *made = (struct CUevent_st){.context = current()};
    CUresult code = code_of(host.ops->event_create(host.self, current()->device, &made->event));
    *event = made;
    return code;
}

static CUresult fake_cuEventDestroy(CUevent event)
{
    if (keeps() != CU_OK)
        return keeps();
    CUresult code = code_of(host.ops->event_destroy(host.self, event->event));
    free(event);
    return code;
}

static CUresult fake_cuEventRecord(CUevent event, CUstream stream)
{
    const struct CUstream_st *found = stream_of(stream);
    if (found == NULL)
        return FAKE_INVALID_CONTEXT;
    if (found->context != event->context)
        return CU_INVALID_HANDLE;
    event->captured = atomic_load(&found->captures);
    return event->captured
               ? CU_OK
               : code_of(host.ops->event_record(host.self, event->event, number_of(found)));
}

static CUresult fake_cuEventQuery(CUevent event)
{
    if (breaks())
        return FAKE_CAPTURES;
    run();
    return event->captured ? FAKE_CAPTURED_EVENT
                           : code_of(host.ops->event_query(host.self, event->event));
}

static CUresult fake_cuEventSynchronize(CUevent event)
{
    return event->captured ? FAKE_CAPTURED_EVENT : wait_for(event->event);
}

static CUresult fake_cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    const struct CUstream_st *found = stream_of(stream);
    if (found == NULL || flags != 0)
        return found == NULL ? FAKE_INVALID_CONTEXT : CU_INVALID_VALUE;
    if (atomic_load(&found->captures) != event->captured)
        return FAKE_ISOLATION;
    return code_of(host.ops->stream_wait(host.self, number_of(found), event->event));
}

static CUresult fake_cuStreamCreate(CUstream *stream, unsigned flags)
{
    if (current() == NULL || flags != CU_STREAM_NON_BLOCKING)
        return FAKE_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    int slot = MOST_DEVICES;
    while (slot < stream_count && streams[slot].context != NULL)
        slot++;
    CUresult code = slot < MOST_STREAMS ? CU_OK : CU_OUT_OF_MEMORY;
    if (code == CU_OK) {
        stream_count = slot < stream_count ? stream_count : slot + 1;
        streams[slot].context = current();
        *stream = &streams[slot];
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static CUresult fake_cuStreamIsCapturing(CUstream stream, int *doing)
{
    const struct CUstream_st *found = stream_of(stream);
    if (found == NULL)
        return FAKE_INVALID_CONTEXT;
    *doing = atomic_load(&found->captures);
    return stream == NULL && *doing ? FAKE_IMPLICIT : CU_OK;
}

static CUresult fake_cuStreamSynchronize(CUstream stream)
{
    const struct CUstream_st *found = stream_of(stream);
    if (found == NULL)
        return FAKE_INVALID_CONTEXT;
    pleat_event event;
    CUresult code = code_of(host.ops->event_create(host.self, found->context->device, &event));
    if (code != CU_OK)
        return code;
    code = code_of(host.ops->event_record(host.self, event, number_of(found)));
    if (code == CU_OK)
        code = wait_for(event);
    host.ops->event_destroy(host.self, event);
    return code;
}

static CUresult fake_cuStreamDestroy(CUstream stream)
{
    CUresult code = fake_cuStreamSynchronize(stream);
    pthread_mutex_lock(&lock);
    stream->context = NULL;
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- work ---- */

static CUresult fake_cuDeviceGetUuid(unsigned char *uuid, CUdevice device)
{
    for (int i = 0; i < 16; i++)
        uuid[i] = (unsigned char)(17 * i + device);
    return device >= 0 && device < device_count ? CU_OK : CU_INVALID_DEVICE;
}

static CUresult fake_cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    if (breaks())
        return FAKE_CAPTURES;
    if (fails())
        return FAKE_UNKNOWN;
    if (current() == NULL || flags != 0)
        return FAKE_INVALID_CONTEXT;
    return code_of(host.ops->host_alloc(host.self, current()->device, bytes, memory));
}

static CUresult fake_cuMemFreeHost(void *memory)
{
    if (current() == NULL)
        return FAKE_INVALID_CONTEXT;
    return code_of(host.ops->host_free(host.self, current()->device, memory));
}

static CUresult fake_cuMemHostRegister(void *memory, size_t bytes, unsigned flags)
{
    if (breaks())
        return FAKE_CAPTURES;
    if (fails())
        return FAKE_UNKNOWN;
    if (current() == NULL || flags != 0)
        return FAKE_INVALID_CONTEXT;
    if (memory == NULL || bytes == 0)
        return CU_INVALID_VALUE;
    atomic_fetch_add(&registered, 1);
    return CU_OK;
}

static CUresult fake_cuMemHostUnregister(void *memory)
{
    if (keeps() != CU_OK)
        return keeps();
    if (current() == NULL)
        return FAKE_INVALID_CONTEXT;
    if (memory == NULL || atomic_load(&registered) == 0)
        return CU_INVALID_VALUE;
    atomic_fetch_sub(&registered, 1);
    return CU_OK;
}

static CUresult fake_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (fails())
        return FAKE_UNKNOWN;
    const struct CUstream_st *found = stream_of(stream);
    if (found == NULL)
        return FAKE_INVALID_CONTEXT;
    return code_of(
        host.ops->copy(host.self, found->context->device, number_of(found), to, from, bytes));
}

static CUresult fake_cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
    if (fails())
        return FAKE_UNKNOWN;
    if (current() == NULL)
        return FAKE_INVALID_CONTEXT;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CU_OK;
}

static CUresult fake_cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
    if (fails())
        return FAKE_UNKNOWN;
    if (current() == NULL)
        return FAKE_INVALID_CONTEXT;
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CU_OK;
}

static CUresult fake_cuModuleLoadData(CUmodule *module, const void *text)
{
    if (fails())
        return FAKE_UNKNOWN;
    if (current() == NULL)
        return FAKE_INVALID_CONTEXT;
    if (strstr(text, ".entry") == NULL)
        return CU_INVALID_VALUE;
    *module = (CUmodule)(uintptr_t)text;
    atomic_fetch_add(&modules, 1);
    return CU_OK;
}

static CUresult fake_cuModuleUnload(CUmodule module)
{
    if (current() == NULL || module == NULL || atomic_load(&modules) == 0)
        return CU_INVALID_VALUE;
    atomic_fetch_sub(&modules, 1);
    return CU_OK;
}

/* A function is the place of its name in the module's text. */
static CUresult fake_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (fails())
        return FAKE_UNKNOWN;
    char entry[128];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    const char *found = strstr((const char *)module, entry);
    if (found == NULL)
        return FAKE_UNKNOWN;
    *function = (CUfunction)(uintptr_t)(found + strlen(".entry "));
    return CU_OK;
}

static bool is_kernel(CUfunction function, const char *name)
{
    return strncmp((const char *)function, name, strlen(name)) == 0;
}

/* What the kernels of the replay's canary do: pattern and counting as tools/replay/canary_cuda.c
 * has them. */
static void run_canary(void **arguments, bool verify)
{
    uint64_t at = *(uint64_t *)arguments[0], bytes = *(uint64_t *)arguments[1];
    uint64_t seed = *(uint64_t *)arguments[2], wrong = 0;
    for (uint64_t i = 0; i < bytes;) {
        uint64_t word = seed ^ i / 8 * 0x9e3779b97f4a7c15u;
        uint8_t byte = (uint8_t)(seed + i);
        const void *wanted = bytes - i < 8 ? (const void *)&byte : &word;
        size_t size = bytes - i < 8 ? sizeof byte : sizeof word;
        void *place = (void *)(uintptr_t)(at + i);
        if (verify)
            wrong += memcmp(place, wanted, size) != 0;
        else
            memcpy(place, wanted, size);
        i += size;
    }
    if (verify)
        __atomic_fetch_add(*(uint64_t **)arguments[3], wrong, __ATOMIC_RELAXED);
}

/* What the kernels of vmm/paint.c do. */
static void run_paint(void **arguments, bool verify)
{
    volatile uint32_t *memory = *(volatile uint32_t **)arguments[0];
    uint64_t words = *(uint64_t *)arguments[1];
    uint32_t word = *(uint32_t *)arguments[2];
    for (uint64_t i = 0; i < words; i++) {
        if (!verify) {
            memory[i] = word;
        } else if (memory[i] != word) {
            uint64_t *counter = *(uint64_t **)arguments[3], none = 0;
            __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
            __atomic_compare_exchange_n(counter + 1, &none, (uintptr_t)&memory[i], false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        }
    }
}

/* What the kernel of vmm/cuda_reader.c does, when its stream comes to it. */
static CUresult run_reader(const struct CUstream_st *stream, void **arguments)
{
    uint64_t to = *(uint64_t *)arguments[0], from = *(uint64_t *)arguments[1];
    uint64_t bytes = *(uint64_t *)arguments[2];
    return code_of(
        host.ops->copy(host.self, stream->context->device, number_of(stream), to, from, bytes));
}

static CUresult fake_cuLaunchKernel(CUfunction function, unsigned blocks_x, unsigned blocks_y,
                                    unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                                    unsigned threads_z, unsigned shared, CUstream stream,
                                    void **arguments, void **extra)
{
    if (fails())
        return FAKE_UNKNOWN;
    struct CUstream_st *found = stream_of(stream);
    if (found == NULL || blocks_y * blocks_z * threads_y * threads_z != 1 || shared != 0 ||
        extra != NULL || blocks_x * threads_x == 0)
        return CU_INVALID_VALUE;
    if (is_kernel(function, "canary_write") || is_kernel(function, "canary_verify"))
        run_canary(arguments, is_kernel(function, "canary_verify"));
    if (is_kernel(function, "paint_fill") || is_kernel(function, "paint_verify"))
        run_paint(arguments, is_kernel(function, "paint_verify"));
    if (is_kernel(function, "pleat_reader"))
        return run_reader(found, arguments);
    if (!is_kernel(function, "pleat_wait"))
        return CU_OK;
    pthread_mutex_lock(&lock);
    found->gate = *(volatile uint32_t **)arguments[0];
    CUresult code = code_of(pleat__host_stream_hold(&host, number_of(found)));
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- NVML, which PLEAT_NVML_LIBRARY finds here too ---- */

typedef struct fake_process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} fake_process;

typedef struct fake_limits {
    const char *group;
    unsigned long long soft, hard, used;
} fake_limits;

static _Atomic uint64_t other_bytes, hard_limit;
static atomic_int stranger;

__attribute__((visibility("default"))) void fake_nvml_set(uint64_t other, uint64_t limit,
                                                          bool is_stranger)
{
    other_bytes = other;
    hard_limit = limit;
    stranger = is_stranger;
    for (int d = 0; host.ops != NULL && d < device_count; d++)
        (void)!pleat__host_set_other(&host, d, other, limit);
}

#define NVML __attribute__((visibility("default")))
NVML int nvmlInit_v2(void);
NVML int nvmlDeviceGetHandleByUUID(const char *name, void **device);
NVML int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                                 fake_process *processes);
NVML int nvmlDeviceGetMemoryLimits_v1(void *device, fake_limits *limits);

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *name, void **device)
{
    unsigned number;
    if (sscanf(name, "GPU-%2x", &number) != 1 || number >= (unsigned)device_count)
        return 6; /* not found */
    *device = &contexts[number];
    return 0;
}

/* A stranger's process is listed first; where this one is a stranger too, its number is another. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, fake_process *processes)
{
    const struct CUctx_st *of = device;
    uint64_t used = 0, limit;
    if (*count < 2)
        return 7; /* insufficient size */
    (void)!host.ops->process_memory(host.self, of->device, &used, &limit);
    *count = 2;
    processes[0] = (fake_process){.pid = 1, .bytes = 12345};
    processes[1] = (fake_process){.pid = stranger ? 2 : (unsigned)getpid(), .bytes = used};
    return 0;
}

int nvmlDeviceGetMemoryLimits_v1(void *device, fake_limits *limits)
{
    (void)device;
    if (strncmp(limits->group, "/sys/fs/cgroup/", 15) != 0)
        return 2; /* invalid argument */
    limits->hard = hard_limit != 0 ? hard_limit : ~0ull;
    return 0;
}

/* The one function that the backend looks for by name. */
__attribute__((visibility("default"))) CUresult
cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                             int *status)
{
    const char *without = getenv("PLEAT_FAKE_CUDA_WITHOUT");
    *function = NULL;
    *status = 1;
    if (flags != 0 || (without != NULL && strcmp(name, without) == 0))
        return CU_OK;
#define OFFER(symbol, since, parameters)                                                           \
    if (strcmp(name, #symbol) == 0) {                                                              \
        CUresult(*found) parameters = fake_##symbol;                                               \
        memcpy(function, &found, sizeof found);                                                    \
        *status = version >= since ? 0 : 2;                                                        \
    }
    PLEAT__CUDA_SYMBOLS(OFFER)
    PLEAT__CUDA_MORE_SYMBOLS(OFFER)
#undef OFFER
    return CU_OK;
}
