/*
 * cuda_work.c: copies, streams and kernels of the CUDA backend. See cuda.h.
 */
#include "cuda.h"
#include "cuda_internal.h"

#include <internal/error.h>
#include <internal/range.h>
#include <vmm/pages.h>

/* Leaves the function with the call's failure. */
#define IN_CONTEXT(cuda, device, call, ...)                                                        \
    do {                                                                                           \
        pleat_result result_;                                                                      \
        PLEAT__CUDA_RUN(cuda, device, result_, call, __VA_ARGS__);                                 \
        PLEAT_TRY(result_);                                                                        \
    } while (0)

pleat_result pleat__cuda_copy_in(const pleat_vmm *vmm, int device, pleat_va to, const void *from,
                                 uint64_t bytes)
{
    pleat__cuda *cuda = pleat__cuda_of(vmm);
    if (cuda == NULL)
        return PLEAT_E_INVALID;
    IN_CONTEXT(cuda, device, cuda->driver.cuMemcpyHtoD(to, from, bytes), "copy of %llu bytes in",
               (unsigned long long)bytes);
    return PLEAT_OK;
}

pleat_result pleat__cuda_copy_out(const pleat_vmm *vmm, int device, void *to, pleat_va from,
                                  uint64_t bytes)
{
    pleat__cuda *cuda = pleat__cuda_of(vmm);
    if (cuda == NULL)
        return PLEAT_E_INVALID;
    IN_CONTEXT(cuda, device, cuda->driver.cuMemcpyDtoH(to, from, bytes), "copy of %llu bytes out",
               (unsigned long long)bytes);
    return PLEAT_OK;
}

pleat_result pleat__cuda_make_stream(void *self, int device, pleat_stream *stream)
{
    pleat__cuda *cuda = self;
    CUstream made = NULL;
    IN_CONTEXT(cuda, device, cuda->driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING),
               "stream_create");
    *stream = (uintptr_t)made;
    return PLEAT_OK;
}

pleat_result pleat__cuda_drop_stream(void *self, int device, pleat_stream stream)
{
    pleat__cuda *cuda = self;
    IN_CONTEXT(cuda, device, cuda->driver.cuStreamDestroy((CUstream)(uintptr_t)stream),
               "stream_destroy");
    return PLEAT_OK;
}

/* ---- pinned memory ---- */

static pleat_result pin_by_driver(pleat__cuda *cuda, int device, uint64_t bytes, void **memory)
{
    void *made = NULL;
    IN_CONTEXT(cuda, device, cuda->driver.cuMemHostAlloc(&made, bytes, 0),
               "host_alloc of %llu bytes", (unsigned long long)bytes);
    *memory = made;
    return PLEAT_OK;
}

static pleat_result register_pages(pleat__cuda *cuda, int device, void *memory, uint64_t bytes)
{
    IN_CONTEXT(cuda, device, cuda->driver.cuMemHostRegister(memory, bytes, 0), "pinning %llu bytes",
               (unsigned long long)bytes);
    return PLEAT_OK;
}

static pleat_result unregister_pages(pleat__cuda *cuda, int device, void *memory)
{
    IN_CONTEXT(cuda, device, cuda->driver.cuMemHostUnregister(memory), "host_free");
    return PLEAT_OK;
}

static pleat_result note_block(pleat__cuda *cuda, void *memory, uint64_t bytes)
{
    pthread_mutex_lock(&cuda->lock);
    pleat_result result = pleat__arena_grow(cuda->arena, &cuda->blocks, &cuda->block_capacity,
                                            cuda->block_count, sizeof *cuda->blocks);
    if (result == PLEAT_OK)
        cuda->blocks[cuda->block_count++] = (pleat__cuda_block){memory, bytes};
    pthread_mutex_unlock(&cuda->lock);
    return result;
}

/* Under the lock; block_count: it is none of the process's own. */
static size_t find_block(const pleat__cuda *cuda, const void *memory)
{
    size_t b = 0;
    while (b < cuda->block_count && cuda->blocks[b].memory != memory)
        b++;
    return b;
}

/* 0: it is none of the process's own. */
static uint64_t block_bytes(pleat__cuda *cuda, const void *memory)
{
    pthread_mutex_lock(&cuda->lock);
    size_t b = find_block(cuda, memory);
    uint64_t bytes = b < cuda->block_count ? cuda->blocks[b].bytes : 0;
    pthread_mutex_unlock(&cuda->lock);
    return bytes;
}

/* pre: it is one */
static void forget_block(pleat__cuda *cuda, const void *memory)
{
    pthread_mutex_lock(&cuda->lock);
    cuda->blocks[find_block(cuda, memory)] = cuda->blocks[cuda->block_count - 1];
    cuda->block_count--;
    pthread_mutex_unlock(&cuda->lock);
}

static pleat_result pin_pages(pleat__cuda *cuda, int device, uint64_t bytes, bool huge,
                              void **memory)
{
    void *pages;
    PLEAT_TRY(pleat__pages_get(bytes, huge, &pages));
    pleat_result result = register_pages(cuda, device, pages, bytes);
    if (result == PLEAT_OK && (result = note_block(cuda, pages, bytes)) != PLEAT_OK)
        (void)!unregister_pages(cuda, device, pages);
    if (result == PLEAT_OK)
        *memory = pages;
    else
        pleat__pages_give(pages, bytes);
    return result;
}

pleat_result pleat__cuda_pin(const pleat_vmm *vmm, int device, pleat__pin_way way, uint64_t bytes,
                             void **memory)
{
    pleat__cuda *cuda = pleat__cuda_of(vmm);
    if (cuda == NULL)
        return PLEAT_E_INVALID;
    return way == PLEAT__PIN_DRIVER
               ? pin_by_driver(cuda, device, bytes, memory)
               : pin_pages(cuda, device, bytes, way == PLEAT__PIN_HUGE_PAGES, memory);
}

/* Where there is little room the driver makes the memory: it is refused, where a process that
 * touches too much is killed. Where the driver pins none of the process's own, likewise. */
pleat_result pleat__cuda_host_alloc(void *self, int device, uint64_t bytes, void **memory)
{
    pleat__cuda *cuda = self;
    uint64_t size = PLEAT__HUGE_PAGE_BYTES, whole = pleat__ceil_div(bytes, size) * size;
    if (pleat__pages_room() >= whole && pin_pages(cuda, device, whole, true, memory) == PLEAT_OK)
        return PLEAT_OK;
    return pin_by_driver(cuda, device, bytes, memory);
}

pleat_result pleat__cuda_host_free(void *self, int device, void *memory)
{
    pleat__cuda *cuda = self;
    uint64_t bytes = block_bytes(cuda, memory);
    if (bytes == 0) {
        IN_CONTEXT(cuda, device, cuda->driver.cuMemFreeHost(memory), "host_free");
        return PLEAT_OK;
    }
    PLEAT_TRY(unregister_pages(cuda, device, memory));
    forget_block(cuda, memory);
    pleat__pages_give(memory, bytes);
    return PLEAT_OK;
}

/* ---- streams and copies ---- */

pleat_result pleat__cuda_copy(void *self, int device, pleat_stream stream, uint64_t to,
                              uint64_t from, uint64_t bytes)
{
    pleat__cuda *cuda = self;
    IN_CONTEXT(cuda, device,
               cuda->driver.cuMemcpyAsync(to, from, bytes, (CUstream)(uintptr_t)stream),
               "copy of %llu bytes", (unsigned long long)bytes);
    return PLEAT_OK;
}

pleat_result pleat__cuda_stream_finish(const pleat_vmm *vmm, int device, pleat_stream stream)
{
    pleat__cuda *cuda = pleat__cuda_of(vmm);
    if (cuda == NULL)
        return PLEAT_E_INVALID;
    IN_CONTEXT(cuda, device, cuda->driver.cuStreamSynchronize((CUstream)(uintptr_t)stream),
               "stream_finish");
    return PLEAT_OK;
}

/* ---- kernels ---- */

pleat_result pleat__cuda_kernel_load(const pleat_vmm *vmm, int device, const char *ptx,
                                     const char *name, pleat__cuda_kernel *kernel)
{
    pleat__cuda *cuda = pleat__cuda_of(vmm);
    CUmodule module = NULL;
    if (cuda == NULL)
        return PLEAT_E_INVALID;
    IN_CONTEXT(cuda, device, cuda->driver.cuModuleLoadData(&module, ptx), "kernel '%s'", name);
    const pleat__cuda_kernel text = {.device = device, .module = module};
    pleat_result result = pleat__cuda_kernel_beside(vmm, &text, name, kernel);
    pleat_error why = pleat__failure(result);
    if (result != PLEAT_OK)
        (void)!pleat__cuda_kernel_unload(vmm, &text);
    return pleat__fail_again(&why);
}

pleat_result pleat__cuda_kernel_beside(const pleat_vmm *vmm, const pleat__cuda_kernel *loaded,
                                       const char *name, pleat__cuda_kernel *kernel)
{
    pleat__cuda *cuda = pleat__cuda_of(vmm);
    CUfunction function = NULL;
    if (cuda == NULL)
        return PLEAT_E_INVALID;
    IN_CONTEXT(cuda, loaded->device,
               cuda->driver.cuModuleGetFunction(&function, loaded->module, name), "kernel '%s'",
               name);
    *kernel = (pleat__cuda_kernel){loaded->device, loaded->module, function};
    return PLEAT_OK;
}

pleat_result pleat__cuda_kernel_unload(const pleat_vmm *vmm, const pleat__cuda_kernel *kernel)
{
    pleat__cuda *cuda = pleat__cuda_of(vmm);
    if (cuda == NULL)
        return PLEAT_E_INVALID;
    IN_CONTEXT(cuda, kernel->device, cuda->driver.cuModuleUnload(kernel->module), "kernel_unload");
    return PLEAT_OK;
}

pleat_result pleat__cuda_launch(const pleat_vmm *vmm, const pleat__cuda_kernel *kernel,
                                pleat_stream stream, unsigned blocks, unsigned threads,
                                void **arguments)
{
    pleat__cuda *cuda = pleat__cuda_of(vmm);
    if (cuda == NULL)
        return PLEAT_E_INVALID;
    IN_CONTEXT(cuda, kernel->device,
               cuda->driver.cuLaunchKernel(kernel->function, blocks, 1, 1, threads, 1, 1, 0,
                                           (CUstream)(uintptr_t)stream, arguments, NULL),
               "launch");
    return PLEAT_OK;
}
