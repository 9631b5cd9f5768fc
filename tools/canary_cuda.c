/*
 * canary_cuda.c: see canary_cuda.h.
 *
 * PATTERN  Word n of 8 bytes is seed ^ n * 0x9e3779b97f4a7c15, byte n of what is left over at the
 *          end (seed + n) & 255. The kernels are PTX, which the driver compiles (20 ms); the words
 *          are spread over the grid, the first thread takes the rest.
 */
#include "canary_cuda.h"

#include <internal/error.h>
#include <stdbool.h>
#include <stdlib.h>
#include <vmm/cuda.h>

#define THREADS     256u
#define BLOCKS_MOST 4224u /* 32 for each of an H200's 132 multiprocessors; more is no faster */

/* A kernel named `name` with `more` as further parameters: ACT_WORD does its work on word %rd6
 * wanted at %rd7, ACT_BYTE on byte %rd6 there. */
#define KERNEL(name, more, LOAD, ACT_WORD, ACT_BYTE)                                               \
    ".visible .entry " name "(.param .u64 base, .param .u64 bytes, .param .u64 seed" more ")\n"    \
    "{\n"                                                                                          \
    ".reg .pred %p;\n"                                                                             \
    ".reg .b32 %r<5>;\n"                                                                           \
    ".reg .b64 %rd<12>;\n"                                                                         \
    "ld.param.u64 %rd1, [base];\n"                                                                 \
    "ld.param.u64 %rd2, [bytes];\n"                                                                \
    "ld.param.u64 %rd3, [seed];\n" LOAD "shr.u64 %rd10, %rd2, 3;\n"                                \
    "mov.u32 %r1, %ctaid.x;\n"                                                                     \
    "mov.u32 %r2, %ntid.x;\n"                                                                      \
    "mov.u32 %r3, %tid.x;\n"                                                                       \
    "mov.u32 %r4, %nctaid.x;\n"                                                                    \
    "cvt.u64.u32 %rd4, %r3;\n"                                                                     \
    "mad.wide.u32 %rd4, %r1, %r2, %rd4;\n"                                                         \
    "mul.wide.u32 %rd5, %r4, %r2;\n"                                                               \
    "mov.u64 %rd11, %rd4;\n"                                                                       \
    "next_word:\n"                                                                                 \
    "setp.ge.u64 %p, %rd4, %rd10;\n"                                                               \
    "@%p bra rest;\n"                                                                              \
    "mul.lo.u64 %rd6, %rd4, 0x9E3779B97F4A7C15;\n"                                                 \
    "xor.b64 %rd6, %rd6, %rd3;\n"                                                                  \
    "shl.b64 %rd7, %rd4, 3;\n"                                                                     \
    "add.u64 %rd7, %rd7, %rd1;\n" ACT_WORD "add.u64 %rd4, %rd4, %rd5;\n"                           \
    "bra next_word;\n"                                                                             \
    "rest:\n"                                                                                      \
    "setp.ne.u64 %p, %rd11, 0;\n"                                                                  \
    "@%p bra done;\n"                                                                              \
    "shl.b64 %rd4, %rd10, 3;\n"                                                                    \
    "next_byte:\n"                                                                                 \
    "setp.ge.u64 %p, %rd4, %rd2;\n"                                                                \
    "@%p bra done;\n"                                                                              \
    "add.u64 %rd6, %rd3, %rd4;\n"                                                                  \
    "and.b64 %rd6, %rd6, 255;\n"                                                                   \
    "add.u64 %rd7, %rd4, %rd1;\n" ACT_BYTE "add.u64 %rd4, %rd4, 1;\n"                              \
    "bra next_byte;\n"                                                                             \
    "done:\n"                                                                                      \
    "ret;\n"                                                                                       \
    "}\n"

/* Volatile: read again what another address of the same memory may have written. */
#define VERIFY(type)                                                                               \
    "ld.volatile.global." type " %rd8, [%rd7];\n"                                                  \
    "setp.eq.u64 %p, %rd8, %rd6;\n"                                                                \
    "@!%p red.global.add.u64 [%rd9], 1;\n"

static const char kernels[] =
    ".version 6.4\n.target sm_60\n.address_size 64\n" /* Pascal, CUDA 10.1 */
    KERNEL("canary_write", "", "", "st.global.u64 [%rd7], %rd6;\n", "st.global.u8 [%rd7], %rd6;\n")
        KERNEL("canary_verify", ", .param .u64 wrong", "ld.param.u64 %rd9, [wrong];\n",
               VERIFY("u64"), VERIFY("u8"));

struct canary_cuda {
    pleat_vmm vmm;
    int device;
    pleat__cuda_kernel write, verify;
    bool has_write, has_verify;
    uint64_t granule;
    pleat_va counter; /* of wrong words, since the beginning; a chunk of its own */
    pleat_handle memory;
    bool reserved, created, mapped;
    uint64_t counted; /* what the counter was at the last look */
};

static pleat_result make_counter(canary_cuda *canary)
{
    const pleat_vmm_ops *ops = canary->vmm.ops;
    void *self = canary->vmm.self;
    uint64_t recommended;
    PLEAT_TRY(ops->granularity(self, canary->device, &canary->granule, &recommended));
    PLEAT_TRY(ops->reserve(self, canary->device, canary->granule, 0, &canary->counter));
    canary->reserved = true;
    PLEAT_TRY(ops->create(self, canary->device, canary->granule, 0, &canary->memory));
    canary->created = true;
    PLEAT_TRY(ops->map(self, canary->counter, canary->granule, canary->memory));
    canary->mapped = true;
    PLEAT_TRY(ops->set_access(self, canary->counter, canary->granule, &canary->device, 1));
    return pleat__cuda_copy_in(&canary->vmm, canary->device, canary->counter, &canary->counted,
                               sizeof canary->counted);
}

static pleat_result load(canary_cuda *canary)
{
    PLEAT_TRY(pleat__cuda_kernel_load(&canary->vmm, canary->device, kernels, "canary_write",
                                      &canary->write));
    canary->has_write = true;
    PLEAT_TRY(pleat__cuda_kernel_load(&canary->vmm, canary->device, kernels, "canary_verify",
                                      &canary->verify));
    canary->has_verify = true;
    return make_counter(canary);
}

pleat_result canary_cuda_create(const pleat_vmm *vmm, int device, canary_cuda **out)
{
    canary_cuda *made = calloc(1, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the canary");
    made->vmm = *vmm;
    made->device = device;
    pleat_result result = load(made);
    if (result != PLEAT_OK)
        canary_cuda_destroy(made);
    else
        *out = made;
    return result;
}

/* What cannot be given back goes with the process's context. */
void canary_cuda_destroy(canary_cuda *canary)
{
    if (canary == NULL)
        return;
    const pleat_vmm_ops *ops = canary->vmm.ops;
    void *self = canary->vmm.self;
    if (canary->mapped)
        (void)ops->unmap(self, canary->counter, canary->granule);
    if (canary->created)
        (void)ops->release(self, canary->memory);
    if (canary->reserved)
        (void)ops->free_range(self, canary->counter, canary->granule);
    if (canary->has_verify && pleat__cuda_kernel_unload(&canary->vmm, &canary->verify) != PLEAT_OK)
        canary->has_verify = false;
    if (canary->has_write && pleat__cuda_kernel_unload(&canary->vmm, &canary->write) != PLEAT_OK)
        canary->has_write = false;
    free(canary);
}

static unsigned blocks(uint64_t bytes)
{
    uint64_t wanted = (bytes / 8 + THREADS - 1) / THREADS;
    return wanted < 1 ? 1 : wanted < BLOCKS_MOST ? (unsigned)wanted : BLOCKS_MOST;
}

pleat_result canary_cuda_write(const canary_cuda *canary, pleat_stream stream, pleat_va at,
                               uint64_t bytes, uint64_t seed)
{
    void *arguments[] = {&at, &bytes, &seed};
    return pleat__cuda_launch(&canary->vmm, &canary->write, stream, blocks(bytes), THREADS,
                              arguments);
}

pleat_result canary_cuda_verify(const canary_cuda *canary, pleat_stream stream, pleat_va at,
                                uint64_t bytes, uint64_t seed)
{
    pleat_va counter = canary->counter;
    void *arguments[] = {&at, &bytes, &seed, &counter};
    return pleat__cuda_launch(&canary->vmm, &canary->verify, stream, blocks(bytes), THREADS,
                              arguments);
}

pleat_result canary_cuda_wrong(canary_cuda *canary, uint64_t *wrong)
{
    uint64_t counted;
    PLEAT_TRY(pleat__cuda_copy_out(&canary->vmm, canary->device, &counted, canary->counter,
                                   sizeof counted));
    *wrong = counted - canary->counted;
    canary->counted = counted;
    return PLEAT_OK;
}
