/*
 * CUDAPluggableAllocator.h: in the place of torch's, for shim.cpp: as much of its pluggable
 * allocator as the shim uses. What the shim does not override would be missing.
 */
#ifndef PLEAT_TESTS_PYTORCH_FAKE_PLUGGABLE_H
#define PLEAT_TESTS_PYTORCH_FAKE_PLUGGABLE_H

#include <c10/cuda/CUDACachingAllocator.h>

/* As torch 2.6 and 2.7 have it. */
#define PLEAT_HAS_MEMPOOL_CONTEXT
namespace c10::cuda
{

struct MemPool;

struct MemPoolContext {
    static inline MemPool *active = nullptr;

    static MemPool *getActiveMemPool()
    {
        return active;
    }
};

} // namespace c10::cuda

namespace torch::cuda::CUDAPluggableAllocator
{

struct CUDAPluggableAllocator : c10::cuda::CUDACachingAllocator::CUDAAllocator {
    CUDAPluggableAllocator(std::function<void *(size_t, int, cudaStream_t)>,
                           std::function<void(void *, size_t, int, cudaStream_t)>)
    {
    }

    void enable(bool) override
    {
    }

    bool isEnabled() const override
    {
        return true;
    }

    void copy_data(void *to, const void *from, std::size_t bytes) const override
    {
        default_copy_data(to, from, bytes);
    }

  protected:
    bool initialized_ = false;
};

/* In fake_torch.h. */
std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>
createCustomAllocator(std::function<void *(size_t, int, cudaStream_t)> alloc,
                      std::function<void(void *, size_t, int, cudaStream_t)> free);

inline void
changeCurrentAllocator(const std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> &)
{
}

} // namespace torch::cuda::CUDAPluggableAllocator

#endif
