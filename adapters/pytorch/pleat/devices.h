/*
 * devices.h: all devices, each with its runtime, which is made when it is first asked for memory.
 *
 * THREADS  Any. The list is fixed by init; a runtime that is there is read without a lock.
 */
#ifndef PLEAT_TORCH_DEVICES_H
#define PLEAT_TORCH_DEVICES_H

#include "budget.h"
#include "device.h"
#include "figures.h"

#include <functional>
#include <memory>

namespace pleat_torch
{

class Devices
{
  public:
    /* `made` is told of each runtime before it is used. */
    Devices(Settings settings, CUDAAllocator *native, std::function<void(pleat_runtime *)> made)
        : settings_(std::move(settings)), native_(native), budget_(native), told_(std::move(made))
    {
    }

    void init(int count)
    {
        std::vector<Device> devices(static_cast<size_t>(count));
        for (Device &device : devices) {
            device.limit_bytes = settings_.budget_bytes;
            device.all = this;
        }
        list_.swap(devices);
    }

    /* The driver, which is reached when it is first wanted. */
    const pleat_vmm &vmm()
    {
        std::lock_guard<std::mutex> guard(reaching_);
        if (vmm_.ops == nullptr && pleat_vmm_cuda(&vmm_) != PLEAT_OK)
            throw_last("reach the driver");
        return vmm_;
    }

    const Budget &budget() const
    {
        return budget_;
    }

    size_t count() const
    {
        return list_.size();
    }

    Device &at(DeviceIndex index)
    {
        TORCH_CHECK(index >= 0 && static_cast<size_t>(index) < list_.size(),
                    "pleat: there is no device ", static_cast<int>(index));
        return list_[static_cast<size_t>(index)];
    }

    DeviceIndex index_of(const Device &device) const
    {
        return static_cast<DeviceIndex>(&device - list_.data());
    }

    /* The device that was used first; -1 before. */
    int first() const
    {
        return first_;
    }

    pleat_runtime *runtime(DeviceIndex index)
    {
        Device &device = at(index);
        pleat_runtime *made = device.runtime.load(std::memory_order_acquire);
        return __builtin_expect(made != nullptr, 1) ? made : make(index, device);
    }

    /* NULL before the device was first used. */
    pleat_runtime *runtime_or_null(size_t index)
    {
        return index < list_.size() ? list_[index].runtime.load() : nullptr;
    }

    /* Whose memory an address is; NULL: none of Pleat's. */
    Device *owner(const void *address)
    {
        for (Device &device : list_) {
            pleat_runtime *made = device.runtime.load(std::memory_order_acquire);
            if (made != nullptr && pleat_owns(made, reinterpret_cast<pleat_va>(address)))
                return &device;
        }
        return nullptr;
    }

    /* In a forked child: the memory is the parent's, and so are the threads that a runtime waits
     * for. Whatever was held there, a lock for instance, is never let go of here. */
    void leave()
    {
        for (Device &device : list_) {
            left_ |= device.runtime.exchange(nullptr) != nullptr;
            device.ranges = nullptr;
        }
        first_ = claimed_ = -1;
    }

    /* Where a device's private pools take their segments from, made before its first one, under no
     * lock. */
    void prepare_ranges(DeviceIndex index)
    {
        Device &device = at(index);
        std::lock_guard<std::mutex> guard(device.making);
        if (device.ranges.load() != nullptr)
            return;
        pleat_ranges *made = nullptr;
        if (pleat_ranges_create(vmm(), index, &made) != PLEAT_OK)
            throw_last("make a device's ranges");
        std::unique_ptr<pleat_ranges, decltype(&pleat_ranges_destroy)> kept(made,
                                                                            pleat_ranges_destroy);
        for (int peer : device.peers)
            if (pleat_ranges_add_peer(made, peer) != PLEAT_OK)
                throw_last("give another device access");
        device.ranges = kept.release();
    }

    /* The ranges that an address lies in; NULL: none. */
    pleat_ranges *ranges_of(const void *address)
    {
        pleat_va begin;
        uint64_t bytes;
        for (Device &device : list_) {
            pleat_ranges *ranges = device.ranges.load(std::memory_order_acquire);
            if (ranges != nullptr && pleat_range_of(ranges, reinterpret_cast<pleat_va>(address),
                                                    &begin, &bytes) == PLEAT_OK)
                return ranges;
        }
        return nullptr;
    }

    /* Whether memory that nobody owns may be a parent's. */
    bool left() const
    {
        return left_;
    }

    /* As many bytes of a device and no more, nor more than the budget; 0: the budget. */
    void set_limit(Device &device, uint64_t bytes)
    {
        std::lock_guard<std::mutex> guard(device.split_lock);
        device.limit_bytes = within_budget(bytes);
    }

    /* Of each device, those included that are first used from now on. Where the program has set a
     * limit that is less it stays. */
    void set_budget(uint64_t bytes)
    {
        {
            std::lock_guard<std::mutex> guard(settings_lock_);
            settings_.budget_bytes = bytes;
        }
        for (Device &device : list_) {
            {
                std::lock_guard<std::mutex> guard(device.split_lock);
                device.limit_bytes = stricter(device.limit_bytes, bytes);
            }
            budget_.give_rest_to_pleat(device, index_of(device));
        }
    }

    /* The share of a device that torch's settings (PYTORCH_CUDA_ALLOC_CONF) leave to a process is
     * its limit, from when it is first asked about: before that the device is left alone. */
    void take_fraction(DeviceIndex index, Device &device)
    {
#ifdef PLEAT_HAS_PROCESS_FRACTION
        double fraction = caching::CUDAAllocatorConfig::per_process_memory_fraction();
        if (fraction >= 1)
            return;
        std::lock_guard<std::mutex> guard(device.split_lock);
        if (device.fraction_taken)
            return;
        Relaxed relaxed;
        device.limit_bytes = within_budget(fraction_of(index, fraction));
        device.fraction_taken = true;
#else
        (void)index;
        (void)device;
#endif
    }

    /* For devices that are first used from now on. */
    void set_plan(const std::string &path)
    {
        std::lock_guard<std::mutex> guard(settings_lock_);
        settings_.plan = path;
    }

    void add_peer(DeviceIndex owner, DeviceIndex peer)
    {
        Device &device = at(owner);
        std::lock_guard<std::mutex> guard(device.making);
        pleat_runtime *made = device.runtime.load();
        pleat_ranges *ranges = device.ranges.load();
        if ((made != nullptr && pleat_add_peer(made, peer) != PLEAT_OK) ||
            (ranges != nullptr && pleat_ranges_add_peer(ranges, peer) != PLEAT_OK))
            throw_last("give another device access");
        device.peers.push_back(peer);
    }

    void empty_caches()
    {
        for (Device &device : list_) {
            if (device.runtime.load() == nullptr)
                continue;
            Relaxed relaxed(in_capture());
            if (pleat_empty_cache(device.runtime) != PLEAT_OK)
                throw_last("empty the cache");
        }
    }

    /* What Pleat has not taken of the budget is the pools' to take. The device has its runtime from
     * then on, which knows what the environment leaves to the process. */
    void give_rest_to_pools(DeviceIndex index)
    {
        {
            Relaxed relaxed(in_capture());
            (void)runtime(index);
        }
        take_fraction(index, at(index));
        budget_.give_rest_to_pools(at(index), index);
    }

    /* An iteration ends, on one device or (-1) on all, which may give memory back. */
    void mark(int index)
    {
        for (Device &device : list_) {
            if (device.runtime.load() == nullptr || (index >= 0 && index != index_of(device)))
                continue;
            /* An optimizer may step in a graph that is captured. */
            Relaxed relaxed(in_capture());
            if (pleat_mark(device.runtime) != PLEAT_OK)
                throw_last("mark");
        }
    }

    /* Where the program is, on all devices, those included that are first used there. */
    void phase(const std::string &name)
    {
        std::lock_guard<std::mutex> guard(phase_lock_);
        phase_ = name;
        for (Device &device : list_)
            enter_phase(phase_, device.runtime.load());
    }

    /* ---- figures ---- */

    pleat_stats fold(Device &device)
    {
        return pleat_torch::fold(device, index_of(device), native_);
    }

    /* Those that were used. */
    void fold_all()
    {
        for (Device &device : list_)
            if (device.runtime.load() != nullptr)
                fold(device);
    }

    /* Peaks since the start. pre: the device was used. */
    pleat_stats whole_stats(size_t index)
    {
        Device &device = list_[index];
        pleat_stats stats = fold(device);
        std::lock_guard<std::mutex> guard(device.stats_lock);
        stats.peak_live_bytes = device.whole.live;
        stats.peak_requested_bytes = device.whole.requested;
        stats.peak_physical_bytes = device.whole.physical;
        return stats;
    }

    /* Ever asked for, on one device or (-1) on all. */
    uint64_t taken_bytes(int index) const
    {
        uint64_t bytes = 0;
        for (const Device &device : list_)
            if (index < 0 || index == index_of(device))
                bytes += device.allocated_bytes.load(std::memory_order_relaxed);
        return bytes;
    }

  private:
    uint64_t within_budget(uint64_t bytes)
    {
        return stricter(bytes, settings().budget_bytes);
    }

    uint64_t pool_bytes() const
    {
        uint64_t bytes = 0;
        for (size_t i = 0; i < list_.size(); i++)
            bytes += budget_.pool_bytes(static_cast<DeviceIndex>(i));
        return bytes;
    }

    /* Asked before a request is refused. No exception passes through Pleat, which is C: what fails
     * gives nothing back. */
    static int ask_torch(void *asking, uint64_t, pleat_stream)
    {
        try {
            return give_back(asking);
        } catch (const std::exception &) {
            return 0;
        }
    }

    /* Asked by native and expandable before they take new memory. */
    static int run_callbacks(void *, uint64_t, pleat_stream)
    {
        try {
            return run_callbacks();
        } catch (const std::exception &) {
            return 0;
        }
    }

    /* What registered itself with torch (memory received from other processes) gives it back. */
    static bool run_callbacks()
    {
        bool given = false;
        for (const std::string &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
            given |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
        return given;
    }

    /* That, and torch's caches of pools. */
    static bool give_back(void *asking)
    {
        Device &device = *static_cast<Device *>(asking);
        Devices &all = *device.all;
        DeviceIndex index = all.index_of(device);
        bool given = all.budget_.give_rest_to_pleat(device, index);
        given |= run_callbacks();
        if (in_capture())
            return given;
        uint64_t before = all.pool_bytes();
        if (before != 0) {
            all.native_->emptyCache();
            all.fold_all();
        }
        uint64_t after = all.pool_bytes();
        return all.budget_.give_rest_to_pleat(device, index) || given || after < before;
    }

    Settings settings()
    {
        std::lock_guard<std::mutex> guard(settings_lock_);
        return settings_;
    }

    /* One device's runtime: others are made and used meanwhile. */
    pleat_runtime *make(DeviceIndex index, Device &device)
    {
        std::lock_guard<std::mutex> guard(device.making);
        if (device.runtime.load() != nullptr)
            return device.runtime.load();
        int none = -1;
        claimed_.compare_exchange_strong(none, index);
        try {
            return make_claimed(index, device);
        } catch (...) {
            int own = index;
            claimed_.compare_exchange_strong(own, -1);
            throw;
        }
    }

    /* pre: it is known whether the device is the first. */
    pleat_runtime *make_claimed(DeviceIndex index, Device &device)
    {
        const pleat_vmm &driver = vmm();
        const Settings settings = this->settings();
        if (device.plan == nullptr)
            device.plan = read_plan(settings, index, claimed_ == index);
        take_fraction(index, device);
        pleat_runtime_options options = options_of(settings, index, device.plan);
        options.budget_bytes = Budget::limit_of(device);
        options.memory_callback = ask_torch;
        options.memory_context = &device;
        options.early_callback = run_callbacks;
        pleat_runtime *made = nullptr;
        if (create_runtime(driver, options, &made) != PLEAT_OK)
            throw_last("make a runtime");
        std::unique_ptr<pleat_runtime, decltype(&pleat_runtime_destroy)> kept(
            made, pleat_runtime_destroy);
        told_(made);
        for (int peer : device.peers)
            if (pleat_add_peer(made, peer) != PLEAT_OK)
                throw_last("give another device access");
        begin_record(settings, made);
        if (claimed_ == index)
            first_ = index;
        device.runtime.store(kept.release(), std::memory_order_release);
        {
            std::lock_guard<std::mutex> entering(phase_lock_);
            if (!phase_.empty())
                enter_phase(phase_, made);
        }
        Budget::take_environment(device);
        /* Pools may have taken some of the budget before. */
        budget_.give_rest_to_pleat(device, index);
        return made;
    }

    Settings settings_;
    CUDAAllocator *native_;
    Budget budget_;
    std::function<void(pleat_runtime *)> told_;
    std::vector<Device> list_;
    std::mutex reaching_;      /* guards vmm_ */
    std::mutex settings_lock_; /* guards the plan's name and the budget, which may change */
    std::mutex phase_lock_;    /* guards phase_, and that all runtimes are in it */
    std::string phase_;
    std::atomic<int> first_{-1};
    std::atomic<int> claimed_{-1}; /* the device that is made first, or is being */
    bool left_ = false;
    pleat_vmm vmm_ = {};
};

} // namespace pleat_torch

#endif
