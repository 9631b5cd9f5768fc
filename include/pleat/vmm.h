/*
 * pleat/vmm.h: the table of outside verbs. It is the whole outside world of Pleat: memory, stream
 * events and the clock. A backend fills it: `cuda` (the driver), `host` (mmap over one memfd a
 * device), or one of the program's own.
 *
 * MEMORY    A handle is physical memory: whole chunks of one device, mapped whole, at as many
 *           places as wanted. A range is reserved address space. Memory is usable at an address
 *           after map and set_access.
 *
 * STRICT    Every backend refuses: sizes and addresses off the granularity, a map over a map, a map
 *           of a part of a handle, a map beyond its reservation, an unmap or a set_access that cuts
 *           a map or covers a hole, the use of a handle not known, a reservation freed with maps in
 *           it or in part. Such a call returns PLEAT_E_INVALID and changes nothing.
 *
 * FAILURE   Unless a verb says otherwise a failed call changed nothing. After a failed unmap or
 *           set_access the state of the range is unknown: the caller quarantines it.
 *
 * TEXT      A verb that fails says why by pleat_fail (pleat/base.h), on the thread that called it.
 *           Where a memory verb does not, Pleat says which one gave no reason. PLEAT_E_NOT_READY is
 *           event_query's alone: of a memory verb it counts as PLEAT_E_DRIVER.
 *
 * THREADS   Every verb may be called from any thread; the backend locks for itself. A thread that
 *           is in one must not be cancelled (pthread_cancel).
 *
 * PROCESSES In a child of fork every verb of a backend that its parent made is PLEAT_E_STATE, and
 *           pleat_vmm_destroy gives nothing back: a child makes a backend of its own. Who writes a
 *           backend need not see to it where no child calls one.
 *
 * VERSIONS  `abi` is major << 16 | minor: another major is refused. `size` is the maker's sizeof;
 *           missing entries at the tail read as "not supported", and so does one that is NULL.
 *           Append only.
 *
 * NEEDED    granularity, reserve, free_range, create, release, map, set_access, unmap; for a
 *           runtime memory_info too, and for ranges device_count. A table without these is refused.
 */
#ifndef PLEAT_VMM_H
#define PLEAT_VMM_H

#include <pleat/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PLEAT_VMM_ABI ((1u << 16) | 1u)

typedef uint64_t
    pleat_va; /* an address of the device's (on the host backend: the process's) space */
typedef uint64_t pleat_handle; /* physical memory; 0 is never valid */
typedef uint64_t
    pleat_stream; /* a stream as the framework gives it (CUstream); 0 is the default one */
typedef uint64_t pleat_event; /* a point in a stream; 0 is never valid */

/* Flags of create. */
enum {
    PLEAT_CREATE_SHAREABLE = 1u << 0, /* export will be asked for: a POSIX file descriptor */
    PLEAT_CREATE_RDMA = 1u << 1, /* network cards may read it, where the device supports that */
    /* In the host memory of the NUMA node nearest to the device, mapped and used like the device's
     * own, at the link's speed. PLEAT_E_UNSUPPORTED where the device or the driver has no such. */
    PLEAT_CREATE_HOST = 1u << 2,
};

/* Bytes of a device's name, with the 0 at its end. */
#define PLEAT_DEVICE_NAME_BYTES 64

typedef struct pleat_vmm_ops {
    uint32_t abi;
    uint32_t size;
    const char *name;

    /* Gives the backend's own state back. pre: nothing of it is in use. */
    void (*destroy)(void *self);

    pleat_result (*device_count)(void *self, int *count);
    /* Bytes of a chunk: the least multiple that create, map and reserve take, and the advised one.
     */
    pleat_result (*granularity)(void *self, int device, uint64_t *minimum, uint64_t *recommended);
    /* Free and total bytes of the device, everybody's use counted. */
    pleat_result (*memory_info)(void *self, int device, uint64_t *free_bytes,
                                uint64_t *total_bytes);

    /* Reserves `bytes` (a multiple of the granularity) of address space, aligned to `align` (a
     * power of two, or 0 for the granularity). PLEAT_E_OUT_OF_MEMORY when there is no room. */
    pleat_result (*reserve)(void *self, int device, uint64_t bytes, uint64_t align, pleat_va *va);
    /* Ends a reservation. pre: exactly what reserve gave, nothing mapped in it. */
    pleat_result (*free_range)(void *self, pleat_va va, uint64_t bytes);

    /* Physical memory on `device`. PLEAT_E_OUT_OF_MEMORY when the device has none. */
    pleat_result (*create)(void *self, int device, uint64_t bytes, uint32_t flags,
                           pleat_handle *handle);
    /* Drops the handle. Memory still mapped stays until its last unmap. The handle is not valid
     * afterwards, nor may it be released again. */
    pleat_result (*release)(void *self, pleat_handle handle);
    /* Maps the whole handle, `bytes` long, at `va`. pre: the range is reserved and nothing is
     * mapped in it. post: mapped, no access until set_access. */
    pleat_result (*map)(void *self, pleat_va va, uint64_t bytes, pleat_handle handle);
    /* Read and write access for `devices`. pre: the range covers whole maps, with no hole; it may
     * span many. One call over a long range costs far less than many. */
    pleat_result (*set_access)(void *self, pleat_va va, uint64_t bytes, const int *devices,
                               int device_count);
    /* Unmaps the range. pre: it covers whole maps only, at least one, with no hole. The reservation
     * stays, access is gone. Does not wait for the GPU: the caller knows that nothing uses it.
     * Where one map should be, PLEAT_E_INVALID is taken to say that it is gone. */
    pleat_result (*unmap)(void *self, pleat_va va, uint64_t bytes);

    /* A file descriptor of a shareable handle, for another process; the caller closes it. Programs
     * that this process starts do not have it (FD_CLOEXEC). */
    pleat_result (*export_handle)(void *self, pleat_handle handle, int *fd);
    /* A handle from such a descriptor (which stays open); `bytes` is its size. Release it as usual.
     */
    pleat_result (*import_handle)(void *self, int device, int fd, uint64_t bytes,
                                  pleat_handle *handle);

    pleat_result (*event_create)(void *self, int device, pleat_event *event);
    pleat_result (*event_destroy)(void *self, pleat_event event);
    /* Marks the point that `stream` has reached. An event may be recorded again. PLEAT_E_STATE, and
     * nothing was recorded: the stream captures a graph. */
    pleat_result (*event_record)(void *self, pleat_event event, pleat_stream stream);
    /* PLEAT_OK when the last recorded point has been passed (or none was recorded),
     * PLEAT_E_NOT_READY when not; that is no failure and sets no error text. */
    pleat_result (*event_query)(void *self, pleat_event event);
    /* Blocks the calling thread until the point has been passed. */
    pleat_result (*event_wait)(void *self, pleat_event event);
    /* Makes `stream` wait for the point, without blocking the caller. PLEAT_E_STATE as above. */
    pleat_result (*stream_wait)(void *self, pleat_stream stream, pleat_event event);

    /* Nanoseconds of a monotonic clock. */
    uint64_t (*clock_ns)(void *self);
    /* ---- since 1.0: append only below this line ---- */

    /* ---- since 1.1: each may be missing ---- */

    /* The device's own name, the same in every process and container: "GPU-" and its UUID or that
     * of its part (MIG). */
    pleat_result (*identify)(void *self, int device, char name[PLEAT_DEVICE_NAME_BYTES]);
    /* Bytes of the device that this process has by whatever means (its context, libraries, Pleat),
     * as the driver counts them, and the limit that the driver holds the process to; 0: none.
     * PLEAT_E_UNSUPPORTED where the driver does not say which memory is this process's. May take a
     * millisecond. */
    pleat_result (*process_memory)(void *self, int device, uint64_t *used, uint64_t *limit);

    /* A stream that does not wait for the default one. */
    pleat_result (*stream_create)(void *self, int device, pleat_stream *stream);
    pleat_result (*stream_destroy)(void *self, int device, pleat_stream stream);
    /* Host memory that the device copies from and to at the link's full speed ("pinned"). */
    pleat_result (*host_alloc)(void *self, int device, uint64_t bytes, void **memory);
    pleat_result (*host_free)(void *self, int device, void *memory);
    /* Copies in the stream's order, between memory of the device and of host_alloc either way. Does
     * not wait. */
    pleat_result (*copy)(void *self, int device, pleat_stream stream, uint64_t to, uint64_t from,
                         uint64_t bytes);
    /* The same from host_alloc's memory to the device, whole words of 16 bytes at multiples of 16,
     * by threads of the device instead of its copy engines, which are slow while the driver clears
     * memory. Of no bytes: what it needs is loaded, so that no later one waits for that.
     * PLEAT_E_UNSUPPORTED where threads cannot read the host's memory: `copy` can. */
    pleat_result (*copy_by_threads)(void *self, int device, pleat_stream stream, uint64_t to,
                                    uint64_t from, uint64_t bytes);
} pleat_vmm_ops;

/* A backend: its table and its state. */
typedef struct pleat_vmm {
    const pleat_vmm_ops *ops;
    void *self;
} pleat_vmm;

/* The host backend: `devices` fake devices of `device_bytes` each. Memory is sparse: a chunk costs
 * host memory only where it is touched. */
typedef struct pleat_host_options {
    uint32_t size;         /* sizeof(pleat_host_options) */
    int devices;           /* 0: 1; 64 at most */
    uint64_t device_bytes; /* 0: 140 GiB; 1 to 2^25 granules */
    uint64_t granularity;  /* 0: 2 MiB; a power of two from 32 KiB (or the page) to 2 MiB */
} pleat_host_options;

/* options may be NULL: all defaults. PLEAT_E_INVALID names the option that is out of range.
 * PLEAT_E_IO: a device is a file, and the process may have no more of them, or none so large
 * (ulimit -f). */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_vmm_host(const pleat_host_options *options,
                                                      pleat_vmm *out);
/* Which byte of the device backs an address of the host backend: an offset in the device's memory
 * that no other piece of memory ever has, so two live tensors that share one overlap, whatever the
 * layers above believe. It can exceed device_bytes: offsets are not used twice. PLEAT_E_NOT_FOUND
 * where nothing is mapped, PLEAT_E_INVALID on another backend. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_host_physical(const pleat_vmm *vmm, pleat_va va,
                                                           uint64_t *device_offset);
/* The CUDA driver, loaded at run time: libcuda.so.1, or the library that the environment variable
 * PLEAT_CUDA_LIBRARY names. PLEAT_E_UNSUPPORTED, with the library or the symbol that is missing,
 * where there is none or it is too old; PLEAT_E_NO_DEVICE where it knows no device; PLEAT_E_DRIVER
 * where it does not start. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_vmm_cuda(pleat_vmm *out);
PLEAT_API void pleat_vmm_destroy(pleat_vmm *vmm);

#ifdef __cplusplus
}
#endif

#endif
