/*
 * bench_contents.c: whether tensors come back from a pause as they were, to the last byte. Each has
 * a pattern of its own, another one each time. See bench_pause.h.
 */
#include <tools/bench/bench_pause.h>

#include <internal/error.h>

#define STEP UINT64_C(0x9e3779b97f4a7c15)

static uint64_t seed_of(const pause_bench *b, size_t tensor)
{
    return (b->written << 32 | tensor) * STEP;
}

/* On the host backend memory is the process's own. The byte at `i`. */
static uint8_t byte_of(uint64_t seed, uint64_t i)
{
    uint64_t word = seed ^ (i / 8 + 1) * STEP;
    return (uint8_t)(word >> i % 8 * 8);
}

static void host_write(pleat_va at, uint64_t bytes, uint64_t seed)
{
    uint8_t *memory = (uint8_t *)(uintptr_t)at;
    for (uint64_t i = 0; i < bytes; i++)
        memory[i] = byte_of(seed, i);
}

static uint64_t host_wrong(pleat_va at, uint64_t bytes, uint64_t seed)
{
    const uint8_t *memory = (const uint8_t *)(uintptr_t)at;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < bytes; i++)
        wrong += memory[i] != byte_of(seed, i);
    return wrong;
}

pleat_result bench_contents_write(pause_bench *b, const pleat_va *tensors, size_t count)
{
    if (b->cuda && b->canary == NULL)
        PLEAT_TRY(canary_cuda_create(&b->vmm, b->device, &b->canary));
    b->written++;
    for (size_t t = 0; t < count; t++)
        if (b->cuda)
            PLEAT_TRY(canary_cuda_write(b->canary, 0, tensors[t], b->tensor_bytes, seed_of(b, t)));
        else
            host_write(tensors[t], b->tensor_bytes, seed_of(b, t));
    return PLEAT_OK;
}

pleat_result bench_contents_check(pause_bench *b, const pleat_va *tensors, size_t count)
{
    uint64_t wrong = 0;
    for (size_t t = 0; t < count; t++)
        if (b->cuda)
            PLEAT_TRY(canary_cuda_verify(b->canary, 0, tensors[t], b->tensor_bytes, seed_of(b, t)));
        else
            wrong += host_wrong(tensors[t], b->tensor_bytes, seed_of(b, t));
    if (b->cuda)
        PLEAT_TRY(canary_cuda_wrong(b->canary, &wrong));
    b->checked_bytes += count * b->tensor_bytes;
    return wrong == 0 ? PLEAT_OK
                      : pleat__fail(PLEAT_E_STATE, "%llu %s came back from a pause as others",
                                    (unsigned long long)wrong, b->cuda ? "words" : "bytes");
}
