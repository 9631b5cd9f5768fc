/*
 * paint.c: see paint.h. The kernels are PTX, which the driver compiles; a thread takes every
 * so-manieth word. The counter is two words of 8 bytes in a chunk of its own, outside any budget.
 */
#include "paint.h"

#include <internal/error.h>
#include <stdbool.h>
#include <vmm/cuda.h>

#define THREADS     256u
#define BLOCKS_MOST 4224u

#define KERNEL(name, more, LOAD, ACT)                                                              \
    ".visible .entry " name "(.param .u64 base, .param .u64 words, .param .u32 word" more ")\n"    \
    "{\n"                                                                                          \
    ".reg .pred %p;\n"                                                                             \
    ".reg .b32 %r<7>;\n"                                                                           \
    ".reg .b64 %rd<9>;\n"                                                                          \
    "ld.param.u64 %rd1, [base];\n"                                                                 \
    "ld.param.u64 %rd2, [words];\n"                                                                \
    "ld.param.u32 %r5, [word];\n" LOAD "mov.u32 %r1, %ctaid.x;\n"                                  \
    "mov.u32 %r2, %ntid.x;\n"                                                                      \
    "mov.u32 %r3, %tid.x;\n"                                                                       \
    "mov.u32 %r4, %nctaid.x;\n"                                                                    \
    "cvt.u64.u32 %rd4, %r3;\n"                                                                     \
    "mad.wide.u32 %rd4, %r1, %r2, %rd4;\n"                                                         \
    "mul.wide.u32 %rd5, %r4, %r2;\n"                                                               \
    "next:\n"                                                                                      \
    "setp.ge.u64 %p, %rd4, %rd2;\n"                                                                \
    "@%p bra done;\n"                                                                              \
    "shl.b64 %rd6, %rd4, 2;\n"                                                                     \
    "add.u64 %rd6, %rd6, %rd1;\n" ACT "add.u64 %rd4, %rd4, %rd5;\n"                                \
    "bra next;\n"                                                                                  \
    "done:\n"                                                                                      \
    "ret;\n"                                                                                       \
    "}\n"

/* Volatile: read again what another address of the same memory may have written. */
static const char kernels[] =
    ".version 6.4\n.target sm_60\n.address_size 64\n" /* Pascal, CUDA 10.1 */
    KERNEL("paint_fill", "", "", "st.global.u32 [%rd6], %r5;\n")
        KERNEL("paint_verify", ", .param .u64 counter", "ld.param.u64 %rd7, [counter];\n",
               "ld.volatile.global.u32 %r6, [%rd6];\n"
               "setp.eq.u32 %p, %r6, %r5;\n"
               "@!%p red.global.add.u64 [%rd7], 1;\n"
               "@!%p atom.global.cas.b64 %rd8, [%rd7+8], 0, %rd6;\n");

struct pleat__paint {
    pleat_vmm vmm;
    pleat__arena *arena;
    int device;
    bool on_gpu;
    bool reserved, created, mapped, has_fill, has_verify;
    pleat__cuda_kernel fill, verify;
    uint64_t granule;
    pleat_va counter;
    pleat_handle memory;
    uint64_t counted[2]; /* words, first address; on the GPU where they begin */
};

static pleat_result make_counter(pleat__paint *paint)
{
    const pleat_vmm_ops *ops = paint->vmm.ops;
    void *self = paint->vmm.self;
    uint64_t advised;
    PLEAT_TRY(ops->granularity(self, paint->device, &paint->granule, &advised));
    PLEAT_TRY(ops->reserve(self, paint->device, paint->granule, 0, &paint->counter));
    paint->reserved = true;
    PLEAT_TRY(ops->create(self, paint->device, paint->granule, 0, &paint->memory));
    paint->created = true;
    PLEAT_TRY(ops->map(self, paint->counter, paint->granule, paint->memory));
    paint->mapped = true;
    PLEAT_TRY(ops->set_access(self, paint->counter, paint->granule, &paint->device, 1));
    return pleat__cuda_copy_in(&paint->vmm, paint->device, paint->counter, paint->counted,
                               sizeof paint->counted);
}

static pleat_result load(pleat__paint *paint)
{
    PLEAT_TRY(
        pleat__cuda_kernel_load(&paint->vmm, paint->device, kernels, "paint_fill", &paint->fill));
    paint->has_fill = true;
    PLEAT_TRY(pleat__cuda_kernel_load(&paint->vmm, paint->device, kernels, "paint_verify",
                                      &paint->verify));
    paint->has_verify = true;
    return make_counter(paint);
}

pleat_result pleat__paint_create(pleat_vmm vmm, int device, pleat__arena *arena, pleat__paint **out)
{
    pleat__paint *paint = pleat__arena_calloc(arena, 1, sizeof *paint);
    if (paint == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a check of memory");
    *paint = (pleat__paint){.vmm = vmm, .arena = arena, .device = device};
    paint->on_gpu = pleat__cuda_is(&vmm);
    pleat_result result = paint->on_gpu ? load(paint) : PLEAT_OK;
    if (result != PLEAT_OK)
        pleat__paint_destroy(paint);
    else
        *out = paint;
    return result;
}

/* What cannot be given back goes with the process's context. */
void pleat__paint_destroy(pleat__paint *paint)
{
    if (paint == NULL)
        return;
    const pleat_vmm_ops *ops = paint->vmm.ops;
    if (paint->mapped)
        (void)ops->unmap(paint->vmm.self, paint->counter, paint->granule);
    if (paint->created)
        (void)ops->release(paint->vmm.self, paint->memory);
    if (paint->reserved)
        (void)ops->free_range(paint->vmm.self, paint->counter, paint->granule);
    if (paint->has_verify)
        (void)!pleat__cuda_kernel_unload(&paint->vmm, &paint->verify);
    if (paint->has_fill)
        (void)!pleat__cuda_kernel_unload(&paint->vmm, &paint->fill);
    pleat__arena_free(paint->arena, paint);
}

static unsigned blocks(uint64_t words)
{
    uint64_t wanted = (words + THREADS - 1) / THREADS;
    return wanted < 1 ? 1 : wanted < BLOCKS_MOST ? (unsigned)wanted : BLOCKS_MOST;
}

pleat_result pleat__paint_fill(pleat__paint *paint, pleat_stream stream, pleat_va at,
                               uint64_t bytes, uint32_t word)
{
    uint64_t words = bytes / 4;
    if (paint->on_gpu) {
        void *arguments[] = {&at, &words, &word};
        return pleat__cuda_launch(&paint->vmm, &paint->fill, stream, blocks(words), THREADS,
                                  arguments);
    }
    volatile uint32_t *memory = (volatile uint32_t *)(uintptr_t)at;
    for (uint64_t i = 0; i < words; i++)
        memory[i] = word;
    return PLEAT_OK;
}

pleat_result pleat__paint_verify(pleat__paint *paint, pleat_stream stream, pleat_va at,
                                 uint64_t bytes, uint32_t word)
{
    uint64_t words = bytes / 4;
    if (paint->on_gpu) {
        pleat_va counter = paint->counter;
        void *arguments[] = {&at, &words, &word, &counter};
        return pleat__cuda_launch(&paint->vmm, &paint->verify, stream, blocks(words), THREADS,
                                  arguments);
    }
    const volatile uint32_t *memory = (const volatile uint32_t *)(uintptr_t)at;
    for (uint64_t i = 0; i < words; i++) {
        bool wrong = memory[i] != word;
        paint->counted[0] += wrong;
        if (wrong && paint->counted[1] == 0)
            paint->counted[1] = at + i * 4;
    }
    return PLEAT_OK;
}

pleat_result pleat__paint_counted(const pleat__paint *paint, uint64_t *words, pleat_va *first)
{
    uint64_t counted[2] = {paint->counted[0], paint->counted[1]};
    if (paint->on_gpu)
        PLEAT_TRY(pleat__cuda_copy_out(&paint->vmm, paint->device, counted, paint->counter,
                                       sizeof counted));
    *words = counted[0];
    *first = counted[1];
    return PLEAT_OK;
}
