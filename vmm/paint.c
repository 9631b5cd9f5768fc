/*
 * paint.c: see paint.h. The kernels are PTX, which the driver compiles. The first counter is of
 * words that are another, the second one the first address of one.
 */
#include "paint.h"
#include "cuda_pattern.h"

#include <internal/error.h>

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
    pleat__arena *arena;
    bool on_gpu;
    pleat__cuda_pattern pattern;                            /* on the GPU */
    _Atomic uint64_t counted[PLEAT__CUDA_PATTERN_COUNTERS]; /* elsewhere; asked for at any time */
};

pleat_result pleat__paint_create(pleat_vmm vmm, int device, pleat__arena *arena, pleat__paint **out)
{
    pleat__paint *paint = pleat__arena_calloc(arena, 1, sizeof *paint);
    if (paint == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a check of memory");
    *paint = (pleat__paint){.arena = arena, .on_gpu = pleat__cuda_is(&vmm)};
    pleat_result result = paint->on_gpu
                              ? pleat__cuda_pattern_open(&vmm, device, kernels, "paint_fill",
                                                         "paint_verify", &paint->pattern)
                              : PLEAT_OK;
    if (result != PLEAT_OK)
        pleat__arena_free(arena, paint);
    else
        *out = paint;
    return result;
}

void pleat__paint_destroy(pleat__paint *paint)
{
    if (paint == NULL)
        return;
    if (paint->on_gpu)
        pleat__cuda_pattern_close(&paint->pattern);
    pleat__arena_free(paint->arena, paint);
}

pleat_result pleat__paint_fill(pleat__paint *paint, pleat_stream stream, pleat_va at,
                               uint64_t bytes, uint32_t word)
{
    uint64_t words = bytes / 4;
    if (paint->on_gpu) {
        void *arguments[] = {&at, &words, &word};
        return pleat__cuda_pattern_write(&paint->pattern, stream, words, arguments);
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
        pleat_va counter = paint->pattern.counters;
        void *arguments[] = {&at, &words, &word, &counter};
        return pleat__cuda_pattern_verify(&paint->pattern, stream, words, arguments);
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
    uint64_t counted[PLEAT__CUDA_PATTERN_COUNTERS] = {paint->counted[0], paint->counted[1]};
    if (paint->on_gpu)
        PLEAT_TRY(pleat__cuda_pattern_counted(&paint->pattern, counted));
    *words = counted[0];
    *first = counted[1];
    return PLEAT_OK;
}
