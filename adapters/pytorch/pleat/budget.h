/*
 * budget.h: one budget for two allocators: Pleat's runtime, and torch's own, which holds the
 * private pools. Each has a cap, and the two caps never add up to more than the budget. Who is
 * refused takes over what the other has not used.
 *
 * What the environment leaves to the process is shared in the same way, from when the device has a
 * runtime, which knows it. What else the process has there, its context say, is part of that and of
 * no budget: the runtime keeps it free of its own cap, and here it is kept free of the pools'.
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

/* Of two limits; one of 0 bytes is none. */
inline uint64_t stricter(uint64_t one, uint64_t other)
{
    return one == 0 ? other : other == 0 ? one : std::min(one, other);
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
        return stricter(device.limit_bytes, device.process_bytes);
    }

    /* What the environment leaves to the process. pre: the device has its runtime. */
    static void take_environment(Device &device)
    {
        pleat_limits limits = limits_of(device.runtime);
        std::lock_guard<std::mutex> guard(device.split_lock);
        device.process_bytes = limits.process_bytes;
    }

    /* Pleat keeps what it has, torch's allocator may take all else. No limit: nothing to share.
     * pre: the device has its runtime. */
    void give_rest_to_pools(Device &device, DeviceIndex index) const
    {
        pleat_runtime *made = device.runtime.load();
        std::lock_guard<std::mutex> guard(device.split_lock);
        uint64_t most = stricter(device.limit_bytes, device.process_bytes);
        if (most == 0)
            return;
        Relaxed relaxed;
        uint64_t has = pleat_stats_of(made).physical_bytes;
        /* A budget of 0 would be none. */
        if (pleat_set_budget(made, std::max<uint64_t>(has, 1)) != PLEAT_OK)
            throw_last("share the budget");
        has = pleat_stats_of(made).physical_bytes;
        if (device.process_bytes != 0)
            most = stricter(most, left_to_both(device, index));
        set_pools_cap(index, most - std::min(most, has));
    }

    /* The other way round; whether Pleat may take more now than before. */
    bool give_rest_to_pleat(Device &device, DeviceIndex index) const
    {
        pleat_runtime *made = device.runtime.load();
        std::lock_guard<std::mutex> guard(device.split_lock);
        uint64_t most = stricter(device.limit_bytes, device.process_bytes);
        if (most == 0 || made == nullptr)
            return false;
        Relaxed relaxed;
        set_pools_cap(index, pool_bytes(index));
        uint64_t pools = pool_bytes(index), before = pleat_limit_of(made);
        uint64_t rest = std::max<uint64_t>(most - std::min(most, pools), 1);
        /* What the environment leaves the runtime keeps to by itself. */
        bool is_asked = device.limit_bytes != 0 || pools != 0;
        if (pleat_set_budget(made, is_asked ? rest : 0) != PLEAT_OK)
            throw_last("share the budget");
        return pleat_limit_of(made) > before;
    }

  private:
    static pleat_limits limits_of(pleat_runtime *runtime)
    {
        pleat_limits limits = {};
        limits.size = sizeof limits;
        if (pleat_limits_of(runtime, &limits) != PLEAT_OK)
            throw_last("say the limits");
        return limits;
    }

    /* Of what the environment leaves to the process. The runtime counts pools as memory that is not
     * Pleat's: here they are no others'. pre: the split lock, a runtime, and such a limit. */
    uint64_t left_to_both(const Device &device, DeviceIndex index) const
    {
        uint64_t others = limits_of(device.runtime).other_bytes, pools = pool_bytes(index);
        others -= std::min(others, pools);
        /* One of 0 would be none. */
        return std::max<uint64_t>(device.process_bytes - std::min(device.process_bytes, others), 1);
    }

    void set_pools_cap(DeviceIndex index, uint64_t bytes) const
    {
        double total = static_cast<double>(total_bytes(index));
        native_->setMemoryFraction(std::min(1.0, static_cast<double>(bytes) / total), index);
    }

    CUDAAllocator *native_;
};

} // namespace pleat_torch

#endif
