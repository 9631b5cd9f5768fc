/*
 * cuda_driver.h: the driver's entry points, found at run time, and the little of its types that
 * Pleat needs. Written from NVIDIA's public documentation of the driver API, so that Pleat builds
 * with no toolkit. Only vmm/cuda*.c include it.
 *
 * SYMBOLS  One list: X(name, version, parameters). `version` is the CUDA version (1000 * major + 10
 *          * minor) whose form of the function is meant; cuGetProcAddress gives exactly that form.
 */
#ifndef PLEAT_VMM_CUDA_DRIVER_H
#define PLEAT_VMM_CUDA_DRIVER_H

#include <pleat/vmm.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUevent_st *CUevent;
typedef struct CUstream_st *CUstream;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle; /* of physical memory */

/* A place memory can be at: a kind and its number. */
typedef struct CUlocation {
    int kind;
    int number;
} CUlocation;

typedef struct CUproperties {
    int kind;
    int handle_kinds;
    CUlocation location;
    void *win32;
    struct {
        unsigned char compression;
        unsigned char rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} CUproperties;

typedef struct CUaccess {
    CUlocation location;
    int access;
} CUaccess;

_Static_assert(sizeof(CUproperties) == 32, "the driver's layout");
_Static_assert(sizeof(CUaccess) == 12, "the driver's layout");

enum {
    CU_OK = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_STUB_LIBRARY = 34,
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_HANDLE = 400,
    CU_NOT_READY = 600,
    CU_NOT_SUPPORTED = 801,
    CU_CAPTURE_IMPLICIT = 906, /* asked of the default stream, for which another one captures */

    CU_KIND_PINNED = 1,
    CU_LOCATION_DEVICE = 1,
    CU_LOCATION_HOST_NODE = 3, /* a NUMA node of the host */
    CU_HANDLE_FILE_DESCRIPTOR = 1,
    CU_ACCESS_READ_WRITE = 3,
    CU_GRANULARITY_MINIMUM = 0,
    CU_GRANULARITY_RECOMMENDED = 1,
    CU_EVENT_BLOCKING = 1, /* a wait sleeps instead of spinning */
    CU_EVENT_NO_TIMING = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_CAPTURE_RELAXED = 2, /* calls of the thread break no capture of others */
    CU_CAPTURES_NOT = 0,    /* what a stream is doing */

    CU_READS_PINNED = 91, /* attributes of a device: threads read registered memory as it is */
    CU_HAS_VIRTUAL_MEMORY = 102,
    CU_HAS_FILE_DESCRIPTORS = 103,
    CU_HAS_RDMA = 110,
    CU_HOST_NODE = 134,       /* the nearest NUMA node's number, or -1 */
    CU_HAS_HOST_MEMORY = 141, /* of such a node, through the same functions */
};

#define PLEAT__CUDA_SYMBOLS(X)                                                                     \
    X(cuInit, 2000, (unsigned))                                                                    \
    X(cuDriverGetVersion, 2020, (int *))                                                           \
    X(cuGetErrorName, 6000, (CUresult, const char **))                                             \
    X(cuGetErrorString, 6000, (CUresult, const char **))                                           \
    X(cuDeviceGetCount, 2000, (int *))                                                             \
    X(cuDeviceGet, 2000, (CUdevice *, int))                                                        \
    X(cuDeviceGetAttribute, 2000, (int *, int, CUdevice))                                          \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                     \
    X(cuDevicePrimaryCtxRelease, 11000, (CUdevice))                                                \
    X(cuCtxGetCurrent, 4000, (CUcontext *))                                                        \
    X(cuCtxPushCurrent, 4000, (CUcontext))                                                         \
    X(cuCtxPopCurrent, 4000, (CUcontext *))                                                        \
    X(cuThreadExchangeStreamCaptureMode, 10010, (int *))                                           \
    X(cuMemGetInfo, 3020, (size_t *, size_t *))                                                    \
    X(cuMemGetAllocationGranularity, 10020, (size_t *, const CUproperties *, int))                 \
    X(cuMemAddressReserve, 10020,                                                                  \
      (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                            \
    X(cuMemAddressFree, 10020, (CUdeviceptr, size_t))                                              \
    X(cuMemCreate, 10020, (CUhandle *, size_t, const CUproperties *, unsigned long long))          \
    X(cuMemRelease, 10020, (CUhandle))                                                             \
    X(cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long))                \
    X(cuMemSetAccess, 10020, (CUdeviceptr, size_t, const CUaccess *, size_t))                      \
    X(cuMemUnmap, 10020, (CUdeviceptr, size_t))                                                    \
    X(cuMemExportToShareableHandle, 10020, (void *, CUhandle, int, unsigned long long))            \
    X(cuMemImportFromShareableHandle, 10020, (CUhandle *, void *, int))                            \
    X(cuEventCreate, 2000, (CUevent *, unsigned))                                                  \
    X(cuEventDestroy, 4000, (CUevent))                                                             \
    X(cuEventRecord, 2000, (CUevent, CUstream))                                                    \
    X(cuEventQuery, 2000, (CUevent))                                                               \
    X(cuEventSynchronize, 2000, (CUevent))                                                         \
    X(cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned))                                      \
    X(cuStreamCreate, 2000, (CUstream *, unsigned))                                                \
    X(cuStreamIsCapturing, 10000, (CUstream, int *))                                               \
    X(cuStreamDestroy, 4000, (CUstream))                                                           \
    X(cuStreamSynchronize, 2000, (CUstream))                                                       \
    X(cuMemHostAlloc, 2020, (void **, size_t, unsigned))                                           \
    X(cuMemFreeHost, 2000, (void *))                                                               \
    X(cuMemHostRegister, 6050, (void *, size_t, unsigned))                                         \
    X(cuMemHostUnregister, 4000, (void *))                                                         \
    X(cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                           \
    X(cuMemcpyHtoD, 3020, (CUdeviceptr, const void *, size_t))                                     \
    X(cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t))                                           \
    X(cuModuleLoadData, 2000, (CUmodule *, const void *))                                          \
    X(cuModuleUnload, 2000, (CUmodule))                                                            \
    X(cuModuleGetFunction, 2000, (CUfunction *, CUmodule, const char *))                           \
    X(cuLaunchKernel, 4000,                                                                        \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
       void **, void **))

/* Those that a driver may be too old for: what needs them is refused where it is asked for. */
#define PLEAT__CUDA_MORE_SYMBOLS(X) X(cuDeviceGetUuid, 11040, (unsigned char *, CUdevice))

typedef struct pleat__cuda_driver {
    void *library;
    char library_name[256];
    int version; /* the driver's, 1000 * major + 10 * minor */
#define PLEAT__CUDA_POINTER(name, since, parameters) CUresult(*name) parameters;
    PLEAT__CUDA_SYMBOLS(PLEAT__CUDA_POINTER)
    PLEAT__CUDA_MORE_SYMBOLS(PLEAT__CUDA_POINTER)
#undef PLEAT__CUDA_POINTER
} pleat__cuda_driver;

/* Loads the library, finds every symbol and initialises the driver. PLEAT_E_UNSUPPORTED names the
 * library or the symbol that is missing. */
PLEAT_NODISCARD pleat_result pleat__cuda_load(pleat__cuda_driver *driver);

/* PLEAT_OK for CU_OK; else the failure with the driver's number, name and text. */
PLEAT_PRINTF(3, 4)
pleat_result pleat__cuda_result(const pleat__cuda_driver *driver, CUresult code, const char *format,
                                ...);

#endif
