/*
 * cuda_internal.h: the CUDA backend's state, shared by cuda.c (the verbs), cuda_work.c (copies,
 * streams, kernels), cuda_reader.c (copies by threads) and cuda_process.c (names and figures of a
 * device).
 */
#ifndef PLEAT_VMM_CUDA_INTERNAL_H
#define PLEAT_VMM_CUDA_INTERNAL_H

#include "cuda.h"
#include "cuda_driver.h"
#include "shadow.h"

#include <internal/arena.h>
#include <internal/devices.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The kernel that copies from pinned memory; it stays until the backend goes. */
typedef struct pleat__cuda_reader {
    pleat__cuda_kernel kernel;
    atomic_bool loaded;
} pleat__cuda_reader;

typedef struct pleat__cuda_device {
    CUdevice device;
    _Atomic(CUcontext) context; /* the primary one, retained at first use */
    bool virtual_memory, file_descriptors, rdma, host_memory;
    bool reads_pinned; /* its threads, at the host's address */
    int host_node;     /* the NUMA node nearest to it */
    pleat__cuda_reader reader;
} pleat__cuda_device;

/* Memory of the process that the driver was told to pin. */
typedef struct pleat__cuda_block {
    void *memory;
    uint64_t bytes;
} pleat__cuda_block;

typedef struct pleat__cuda {
    pleat_vmm vmm; /* itself */
    pleat__cuda_driver driver;
    uint32_t process; /* that made it: pleat__process_now() */
    pleat__arena *arena;
    /* Guards contexts' retaining, shadow and blocks; of the verbs only free_range is under it. */
    pthread_mutex_t lock;
    pthread_mutex_t loading;   /* held while a reader is loaded, which may be compiled */
    pleat__shadow shadow;      /* a piece's `native` is the driver's handle */
    pleat__cuda_block *blocks; /* pinned pages of the process; under the lock */
    size_t block_count, block_capacity;
    int device_count;
    pleat__cuda_device devices[PLEAT__DEVICES];
    _Atomic(CUcontext) any_context; /* for verbs that name no device */
} pleat__cuda;

/* The backend behind a pleat_vmm, or NULL with the error set when it is another. */
pleat__cuda *pleat__cuda_of(const pleat_vmm *vmm);

/* Makes the device's primary context current; leave it with pleat__cuda_leave. A device of -1: any
 * context does, also the caller's; `pushed` says what there is to undo. */
PLEAT_NODISCARD pleat_result pleat__cuda_enter(pleat__cuda *cuda, int device, bool *pushed);
void pleat__cuda_leave(const pleat__cuda *cuda, bool pushed);

/* Runs `call` in a context; evaluates to the result. A GCC and Clang statement expression would be
 * shorter and is no C17. */
#define PLEAT__CUDA_RUN(cuda, device, result, call, ...)                                           \
    do {                                                                                           \
        bool pushed_;                                                                              \
        (result) = pleat__cuda_enter((cuda), (device), &pushed_);                                  \
        if ((result) == PLEAT_OK) {                                                                \
            CUresult code_ = (call);                                                               \
            pleat__cuda_leave((cuda), pushed_);                                                    \
            (result) = pleat__cuda_result(&(cuda)->driver, code_, __VA_ARGS__);                    \
        }                                                                                          \
    } while (0)

void pleat__cuda_readers_unload(pleat__cuda *cuda);

/* ---- the table's entries of cuda_work.c, cuda_reader.c and cuda_process.c ---- */

pleat_result pleat__cuda_make_stream(void *self, int device, pleat_stream *stream);
pleat_result pleat__cuda_drop_stream(void *self, int device, pleat_stream stream);
pleat_result pleat__cuda_host_alloc(void *self, int device, uint64_t bytes, void **memory);
pleat_result pleat__cuda_host_free(void *self, int device, void *memory);
pleat_result pleat__cuda_copy(void *self, int device, pleat_stream stream, uint64_t to,
                              uint64_t from, uint64_t bytes);
pleat_result pleat__cuda_copy_by_threads(void *self, int device, pleat_stream stream, uint64_t to,
                                         uint64_t from, uint64_t bytes);
pleat_result pleat__cuda_identify(void *self, int device, char name[PLEAT_DEVICE_NAME_BYTES]);
pleat_result pleat__cuda_process_memory(void *self, int device, uint64_t *used, uint64_t *limit);

#endif
