/*
 * no_gpu.c: a CUDA runtime without a GPU, for `pleat estimate`. It is preloaded into a program
 * whose torch has CUDA, on a machine that has none, and stands in front of the functions with which
 * torch asks for a device, its streams and events. They say that there is one, or several, on which
 * everything is done at once. No tensor has contents then, so that no kernel is ever started (see
 * _fake.py); functions that are not here are the real runtime's.
 *
 * PLEAT_NO_GPU_BYTES       the memory that the device has
 * PLEAT_NO_GPU_CAPABILITY  its compute capability, "9.0"
 * PLEAT_NO_GPU_DEVICES     how many there are, 1
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA_API __attribute__((visibility("default")))

/* Names of CUDA's, by their numbers in its interface. */
enum { DONE = 0, INVALID = 1, NO_DEVICE = 101, NOT_SUPPORTED = 801 };
enum { MAJOR = 75, MINOR = 76 };

/* Offsets in cudaDeviceProp, which CUDA 12 and 13 have the same, but for the last one. */
enum {
    PROPERTIES_BYTES = 1008,
    AT_MEMORY = 288,
    AT_SHARED = 296,
    AT_REGISTERS = 304,
    AT_WARP = 308,
    AT_THREADS = 320,
    AT_MAJOR = 360,
    AT_MINOR = 364,
    AT_PROCESSORS_13 = 384,
    AT_PROCESSORS_12 = 388,
};

static size_t memory(void)
{
    const char *asked = getenv("PLEAT_NO_GPU_BYTES");
    return asked != NULL ? (size_t)strtoull(asked, NULL, 10) : (size_t)80 << 30;
}

static void capability(int *major, int *minor)
{
    const char *asked = getenv("PLEAT_NO_GPU_CAPABILITY");
    *major = 9;
    *minor = 0;
    if (asked != NULL && sscanf(asked, "%d.%d", major, minor) != 2)
        *major = 9;
}

/* ---- the device ---- */

static int devices(void)
{
    const char *asked = getenv("PLEAT_NO_GPU_DEVICES");
    int count = asked != NULL ? atoi(asked) : 1;
    return count > 0 ? count : 1;
}

static bool is_there(int device)
{
    return device >= 0 && device < devices();
}

static _Thread_local int current;

CUDA_API int cudaGetDeviceCount(int *count)
{
    *count = devices();
    return DONE;
}

CUDA_API int cudaGetDevice(int *device)
{
    *device = current;
    return DONE;
}

CUDA_API int cudaSetDevice(int device)
{
    if (!is_there(device))
        return NO_DEVICE;
    current = device;
    return DONE;
}

CUDA_API int cudaGetDeviceProperties(char *properties, int device)
{
    if (!is_there(device))
        return NO_DEVICE;
    memset(properties, 0, PROPERTIES_BYTES);
    strcpy(properties, "no GPU (pleat estimate)");
    int major, minor;
    capability(&major, &minor);
    size_t bytes = memory(), shared = 48 << 10;
    memcpy(properties + AT_MEMORY, &bytes, sizeof bytes);
    memcpy(properties + AT_SHARED, &shared, sizeof shared);
    const struct {
        int at, value;
    } numbers[] = {{AT_REGISTERS, 65536},  {AT_WARP, 32},     {AT_THREADS, 1024},
                   {AT_MAJOR, major},      {AT_MINOR, minor}, {AT_PROCESSORS_13, 132},
                   {AT_PROCESSORS_12, 132}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        memcpy(properties + numbers[i].at, &numbers[i].value, sizeof(int));
    return DONE;
}

CUDA_API int cudaGetDeviceProperties_v2(char *properties, int device)
{
    return cudaGetDeviceProperties(properties, device);
}

CUDA_API int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    int major, minor;
    capability(&major, &minor);
    *value = attribute == MAJOR ? major : attribute == MINOR ? minor : 1;
    return is_there(device) ? DONE : NO_DEVICE;
}

/* Bytes of tensors that are live, as the recorder counts them. */
CUDA_API _Atomic size_t pleat_no_gpu_live;

CUDA_API int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    size_t live = atomic_load(&pleat_no_gpu_live);
    *total = memory();
    *free_bytes = live < *total ? *total - live : 0;
    return DONE;
}

CUDA_API int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device == peer;
    return DONE;
}

CUDA_API int cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return DONE;
}

/* A context is there. It is the driver's, which need not be installed: this shared object has its
 * name. */
CUDA_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = is_there(device);
    return DONE;
}

/* What torch asks the driver for directly, for memory that can be mapped: that is not to be had. */
static int not_supported(void)
{
    return NOT_SUPPORTED;
}

CUDA_API int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                              unsigned long long flags, int *found)
{
    (void)name, (void)version, (void)flags;
    *function = (void *)(uintptr_t)not_supported;
    if (found != NULL)
        *found = DONE;
    return DONE;
}

CUDA_API int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                     int *found)
{
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, found);
}

/* ---- streams and events, which are numbers ---- */

static void *next_handle(void)
{
    static _Atomic uintptr_t last = 16;
    return (void *)atomic_fetch_add(&last, 16);
}

CUDA_API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return DONE;
}

CUDA_API int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    *stream = next_handle();
    return DONE;
}

CUDA_API int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

CUDA_API int cudaStreamGetPriority(void *stream, int *priority)
{
    (void)stream;
    *priority = 0;
    return DONE;
}

/* Whether a stream captures, which none does: there would be more behind the status. */
#define CAPTURES(name)                                                                             \
    CUDA_API int name(void *stream, int *status)                                                   \
    {                                                                                              \
        (void)stream;                                                                              \
        *status = 0;                                                                               \
        return DONE;                                                                               \
    }

CAPTURES(cudaStreamIsCapturing)
CAPTURES(cudaStreamGetCaptureInfo)
CAPTURES(cudaStreamGetCaptureInfo_v2)
CAPTURES(cudaStreamGetCaptureInfo_v3)

/* A program that captures would have a graph without kernels. */
CUDA_API int cudaStreamBeginCapture(void *stream, int mode)
{
    (void)stream, (void)mode;
    return NOT_SUPPORTED;
}

CUDA_API int cudaEventCreateWithFlags(void **event, unsigned flags)
{
    (void)flags;
    *event = next_handle();
    return DONE;
}

CUDA_API int cudaEventElapsedTime(float *milliseconds, void *begin, void *end)
{
    (void)begin, (void)end;
    *milliseconds = 1;
    return DONE;
}

/* ---- what is done already ---- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define NOTHING(name, ...)                                                                         \
    CUDA_API int name(__VA_ARGS__)                                                                 \
    {                                                                                              \
        return DONE;                                                                               \
    }

NOTHING(cudaDeviceSynchronize, void)
NOTHING(cudaGetLastError, void)
NOTHING(cudaPeekAtLastError, void)
NOTHING(cudaThreadExchangeStreamCaptureMode, int *mode)
NOTHING(cudaStreamQuery, void *stream)
NOTHING(cudaStreamSynchronize, void *stream)
NOTHING(cudaStreamWaitEvent, void *stream, void *event, unsigned flags)
NOTHING(cudaEventRecord, void *event, void *stream)
NOTHING(cudaEventRecordWithFlags, void *event, void *stream, unsigned flags)
NOTHING(cudaEventQuery, void *event)
NOTHING(cudaEventSynchronize, void *event)
NOTHING(cudaEventDestroy, void *event)
NOTHING(cudaFree, void *address)

#pragma GCC diagnostic pop

/* ---- memory: an address that nobody may touch, where torch warms up; the host's where it is to be
 * pinned ---- */

static _Thread_local bool counts;

/* From now on this thread's tensors are counted: what it asks for is torch's own. */
CUDA_API void pleat_no_gpu_counts(void)
{
    counts = true;
}

CUDA_API int cudaMalloc(void **address, size_t bytes)
{
    static _Atomic uintptr_t next = (uintptr_t)1 << 45;
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (counts) {
        *address = (void *)atomic_fetch_add(&next, (bytes + 0x1fffff) / 0x200000 * 0x200000);
        return DONE;
    }
    if (!atomic_flag_test_and_set(&said))
        fprintf(stderr,
                "pleat estimate: error: tensors on the GPU are not counted of a program that "
                "is not Python, nor of a thread that Python's threading did not begin after "
                "torch was imported: there they are refused\n");
    *address = NULL;
    return NOT_SUPPORTED;
}

/* What is pinned of the host's. */
static struct pinned {
    struct pinned *next;
    size_t bytes;
    char *memory;
} * pinned;
static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_pinned(void)
{
    pthread_mutex_lock(&pinned_lock);
}

static void unlock_pinned(void)
{
    pthread_mutex_unlock(&pinned_lock);
}

/* A child has the lock as the thread that forks has it, not as another one had. */
__attribute__((constructor)) static void begin(void)
{
    (void)pthread_atfork(lock_pinned, unlock_pinned, unlock_pinned);
}

/* Where the memory is linked that has an address; where the list ends, if none has. The lock is
 * held. */
static struct pinned **place_of(const void *address)
{
    struct pinned **at = &pinned;
    while (*at != NULL && (uintptr_t)address - (uintptr_t)(*at)->memory >= (*at)->bytes)
        at = &(*at)->next;
    return at;
}

CUDA_API int cudaHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    struct pinned *made = malloc(sizeof *made);
    size_t most = bytes != 0 ? bytes : 1;
    char *memory = made != NULL ? calloc(1, most) : NULL;
    *address = memory;
    if (memory == NULL) {
        free(made);
        return INVALID;
    }
    lock_pinned();
    *made = (struct pinned){.next = pinned, .bytes = most, .memory = memory};
    pinned = made;
    unlock_pinned();
    return DONE;
}

CUDA_API int cudaFreeHost(void *address)
{
    lock_pinned();
    struct pinned **at = place_of(address), *gone = *at;
    if (gone != NULL)
        *at = gone->next;
    unlock_pinned();
    if (gone != NULL)
        free(gone->memory);
    free(gone);
    return DONE;
}

/* The beginning of cudaPointerAttributes: memory of the host, which may be pinned. */
CUDA_API int cudaPointerGetAttributes(void *attributes, const void *address)
{
    lock_pinned();
    bool is_pinned = *place_of(address) != NULL;
    unlock_pinned();
    const struct {
        int type, device;
        const void *on_device, *on_host;
    } told = {.type = is_pinned, .device = is_pinned ? 0 : -1, .on_host = address};
    memcpy(attributes, &told, sizeof told);
    return DONE;
}
