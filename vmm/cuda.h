/*
 * cuda.h: what a GPU can do beyond the table of verbs: copies that are waited for, memory pinned in
 * a chosen way, kernels. For what paints and checks memory (paint.h), copies by threads, the
 * conformance suite and `pleat bench`.
 *
 * Every function takes a pleat_vmm that pleat_vmm_cuda made; any other gives PLEAT_E_INVALID.
 * THREADS  Any; the calling thread's current context is left as it was.
 */
#ifndef PLEAT_VMM_CUDA_H
#define PLEAT_VMM_CUDA_H

#include <pleat/vmm.h>
#include <stdbool.h>

/* Whether the backend is the driver's. */
bool pleat__cuda_is(const pleat_vmm *vmm);

/* Copies and waits for the end. */
PLEAT_NODISCARD pleat_result pleat__cuda_copy_in(const pleat_vmm *vmm, int device, pleat_va to,
                                                 const void *from, uint64_t bytes);
PLEAT_NODISCARD pleat_result pleat__cuda_copy_out(const pleat_vmm *vmm, int device, void *to,
                                                  pleat_va from, uint64_t bytes);

/* How host memory comes to be pinned. */
typedef enum pleat__pin_way {
    PLEAT__PIN_DRIVER,     /* memory that the driver makes */
    PLEAT__PIN_PAGES,      /* the process's own, in small pages */
    PLEAT__PIN_HUGE_PAGES, /* in huge ones */
} pleat__pin_way;

/* Whole huge pages, as the verb host_alloc, which picks the way for itself; its host_free gives
 * them back. */
PLEAT_NODISCARD pleat_result pleat__cuda_pin(const pleat_vmm *vmm, int device, pleat__pin_way way,
                                             uint64_t bytes, void **memory);

/* Waits until all work given to the stream is done. */
PLEAT_NODISCARD pleat_result pleat__cuda_stream_finish(const pleat_vmm *vmm, int device,
                                                       pleat_stream stream);

/* A kernel of a PTX text. `module` is for pleat__cuda_kernel_unload. */
typedef struct pleat__cuda_kernel {
    int device;
    void *module, *function;
} pleat__cuda_kernel;
PLEAT_NODISCARD pleat_result pleat__cuda_kernel_load(const pleat_vmm *vmm, int device,
                                                     const char *ptx, const char *name,
                                                     pleat__cuda_kernel *kernel);
/* Another kernel of the same text, which goes with the one that was loaded. */
PLEAT_NODISCARD pleat_result pleat__cuda_kernel_beside(const pleat_vmm *vmm,
                                                       const pleat__cuda_kernel *loaded,
                                                       const char *name,
                                                       pleat__cuda_kernel *kernel);
PLEAT_NODISCARD pleat_result pleat__cuda_kernel_unload(const pleat_vmm *vmm,
                                                       const pleat__cuda_kernel *kernel);
/* `arguments` point to the kernel's parameters, in order. Does not wait. */
PLEAT_NODISCARD pleat_result pleat__cuda_launch(const pleat_vmm *vmm,
                                                const pleat__cuda_kernel *kernel,
                                                pleat_stream stream, unsigned blocks,
                                                unsigned threads, void **arguments);

#endif
