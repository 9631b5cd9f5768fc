/*
 * budget.h: one budget for two allocators: Pleat's runtime, and torch's own, which holds the
 * private pools. Each has a cap, and the two caps never add up to more than the budget. Who is
 * refused takes over what the other has not used.
 */
#ifndef PLEAT_TORCH_BUDGET_H
#define PLEAT_TORCH_BUDGET_H

#include "device.h"

namespace pleat_torch
{

inline uint64_t total_bytes(DeviceIndex device)
{
    size_t free_bytes = 0, total = 0;
    c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    return total;
}

/* A limit of 0 would be none. */
inline uint64_t fraction_of(DeviceIndex device, double fraction)
{
    auto bytes = static_cast<uint64_t>(fraction * static_cast<double>(total_bytes(device)));
    return std::max<uint64_t>(bytes, 1);
}

class Budget
{
  public:
    explicit Budget(CUDAAllocator *native) : native_(native)
    {
    }

    /* What torch's allocator holds. */
    uint64_t pool_bytes(DeviceIndex index) const
    {
        return static_cast<uint64_t>(native_->getDeviceStats(index).reserved_bytes[0].current);
    }

    static uint64_t limit_of(Device &device)
    {
        std::lock_guard<std::mutex> guard(device.split_lock);
        return device.limit_bytes;
    }

    /* Pleat keeps what it has, torch's allocator may take all else. No limit: nothing to share. */
    void give_rest_to_pools(Device &device, DeviceIndex index) const
    {
        pleat_runtime *made = device.runtime.load();
        std::lock_guard<std::mutex> guard(device.split_lock);
        if (device.limit_bytes == 0)
            return;
        Relaxed relaxed;
        uint64_t has = 0;
        if (made != nullptr) {
            has = pleat_stats_of(made).physical_bytes;
            /* A budget of 0 would be none. */
            if (pleat_set_budget(made, std::max<uint64_t>(has, 1)) != PLEAT_OK)
                throw_last("share the budget");
            has = pleat_stats_of(made).physical_bytes;
        }
        set_pools_cap(index, device.limit_bytes - std::min(device.limit_bytes, has));
    }

    /* The other way round; whether Pleat may take more now than before. */
    bool give_rest_to_pleat(Device &device, DeviceIndex index) const
    {
        pleat_runtime *made = device.runtime.load();
        std::lock_guard<std::mutex> guard(device.split_lock);
        if (device.limit_bytes == 0 || made == nullptr)
            return false;
        Relaxed relaxed;
        set_pools_cap(index, pool_bytes(index));
        uint64_t pools = pool_bytes(index), before = pleat_limit_of(made);
        uint64_t rest = device.limit_bytes - std::min(device.limit_bytes, pools);
        if (pleat_set_budget(made, std::max<uint64_t>(rest, 1)) != PLEAT_OK)
            throw_last("share the budget");
        return rest > before;
    }

  private:
    void set_pools_cap(DeviceIndex index, uint64_t bytes) const
    {
        double total = static_cast<double>(total_bytes(index));
        native_->setMemoryFraction(std::min(1.0, static_cast<double>(bytes) / total), index);
    }

    CUDAAllocator *native_;
};

} // namespace pleat_torch

#endif
