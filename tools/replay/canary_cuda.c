/*
 * canary_cuda.c: see canary_cuda.h.
 *
 * PATTERN  Word n of 8 bytes is seed ^ n * 0x9e3779b97f4a7c15, byte n of what is left over at the
 *          end (seed + n) & 255. The kernels are PTX, which the driver compiles (20 ms); the words
 *          are spread over the grid, the first thread takes the rest.
 */
#include <tools/replay/canary_cuda.h>

#include <internal/error.h>
#include <stdlib.h>
#include <vmm/cuda_pattern.h>

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
    pleat__cuda_pattern pattern; /* the first counter is of wrong words, since the beginning */
    uint64_t counted;            /* what it was at the last look */
};

pleat_result canary_cuda_create(const pleat_vmm *vmm, int device, canary_cuda **out)
{
    canary_cuda *made = calloc(1, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the canary");
    pleat_result result = pleat__cuda_pattern_open(vmm, device, kernels, "canary_write",
                                                   "canary_verify", &made->pattern);
    if (result != PLEAT_OK)
        free(made);
    else
        *out = made;
    return result;
}

void canary_cuda_destroy(canary_cuda *canary)
{
    if (canary == NULL)
        return;
    pleat__cuda_pattern_close(&canary->pattern);
    free(canary);
}

pleat_result canary_cuda_write(const canary_cuda *canary, pleat_stream stream, pleat_va at,
                               uint64_t bytes, uint64_t seed)
{
    void *arguments[] = {&at, &bytes, &seed};
    return pleat__cuda_pattern_write(&canary->pattern, stream, bytes / 8, arguments);
}

pleat_result canary_cuda_verify(const canary_cuda *canary, pleat_stream stream, pleat_va at,
                                uint64_t bytes, uint64_t seed)
{
    pleat_va counter = canary->pattern.counters;
    void *arguments[] = {&at, &bytes, &seed, &counter};
    return pleat__cuda_pattern_verify(&canary->pattern, stream, bytes / 8, arguments);
}

pleat_result canary_cuda_wrong(canary_cuda *canary, uint64_t *wrong)
{
    uint64_t counters[PLEAT__CUDA_PATTERN_COUNTERS];
    PLEAT_TRY(pleat__cuda_pattern_counted(&canary->pattern, counters));
    *wrong = counters[0] - canary->counted;
    canary->counted = counters[0];
    return PLEAT_OK;
}
