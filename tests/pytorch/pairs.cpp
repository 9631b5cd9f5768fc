/*
 * pairs.cpp: how long one allocation and its free take through the allocator that torch has now, as
 * torch's C++ code calls it. jobs.py builds and calls it.
 */
#include <c10/cuda/CUDACachingAllocator.h>

#include <chrono>

extern "C" __attribute__((visibility("default"))) double pair_nanoseconds(size_t bytes, int rounds)
{
    auto *allocator = c10::cuda::CUDACachingAllocator::get();
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; i++)
        allocator->raw_delete(allocator->raw_alloc(bytes));
    auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::nano>(end - begin).count() / rounds;
}
