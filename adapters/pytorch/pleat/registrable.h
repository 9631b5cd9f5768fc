/*
 * registrable.h: memory of private pools. torch's allocator cuts it up, and takes each segment of
 * it from here: one handle of the driver, mapped where it stays (pleat/ranges.h), so that NCCL can
 * register it, which it can do with no memory of cudaMalloc's. A segment goes when torch gives it
 * and nobody has it registered any more.
 *
 * LOCKS   torch's allocator calls give_segment and take_segment under its own lock: nothing here
 *         calls it, nor waits for whoever may.
 * THREADS Any.
 */
#ifndef PLEAT_TORCH_REGISTRABLE_H
#define PLEAT_TORCH_REGISTRABLE_H

#include "device.h"

#include <array>
#include <memory>

#include <pleat/ranges.h>

namespace pleat_torch
{

class Registrable
{
  public:
    Registrable()
        : segments_(torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
              [this](size_t bytes, int device, cudaStream_t) { return take(device, bytes); },
              [this](void *address, size_t, int device, cudaStream_t) { give(device, address); }))
    {
    }

    /* What a pool takes its segments from. */
    std::shared_ptr<CUDAAllocator> segments()
    {
        return segments_;
    }

    /* Before the first pool of a device, under no lock. */
    void prepare(DeviceIndex index, const pleat_vmm &vmm)
    {
        if (index < 0 || index >= MOST)
            return;
        std::lock_guard<std::mutex> guard(lock_);
        One &one = devices_[static_cast<size_t>(index)];
        if (one.ranges.load() != nullptr)
            return;
        pleat_ranges *made = nullptr;
        if (pleat_ranges_create(vmm, index, &made) != PLEAT_OK)
            throw_last("make a device's ranges");
        for (int peer : one.peers)
            if (pleat_ranges_add_peer(made, peer) != PLEAT_OK) {
                pleat_ranges_destroy(made);
                throw_last("give another device access");
            }
        one.ranges.store(made);
    }

    void add_peer(DeviceIndex owner, DeviceIndex peer)
    {
        if (owner < 0 || owner >= MOST)
            return;
        std::lock_guard<std::mutex> guard(lock_);
        One &one = devices_[static_cast<size_t>(owner)];
        if (one.ranges.load() == nullptr)
            one.peers.push_back(peer);
        else if (pleat_ranges_add_peer(one.ranges, peer) != PLEAT_OK)
            throw_last("give another device access");
    }

    /* The ranges that an address lies in; NULL: none. */
    pleat_ranges *of(const void *address)
    {
        pleat_va begin;
        uint64_t bytes;
        for (One &one : devices_) {
            pleat_ranges *ranges = one.ranges.load(std::memory_order_acquire);
            if (ranges != nullptr && pleat_range_of(ranges, reinterpret_cast<pleat_va>(address),
                                                    &begin, &bytes) == PLEAT_OK)
                return ranges;
        }
        return nullptr;
    }

    /* In a forked child the memory is its parent's. */
    void leave()
    {
        for (One &one : devices_)
            one.ranges.store(nullptr);
    }

  private:
    struct One {
        std::atomic<pleat_ranges *> ranges{nullptr};
        std::vector<int> peers; /* that asked for access before there were ranges */
    };

    static constexpr DeviceIndex MOST = 64;

    /* NULL: torch's allocator gives its caches back and asks once more. */
    void *take(int device, size_t bytes)
    {
        pleat_va address = 0;
        pleat_ranges *ranges = devices_.at(static_cast<size_t>(device)).ranges.load();
        Relaxed relaxed(in_capture());
        if (ranges == nullptr || pleat_range_make(ranges, bytes, &address, nullptr) != PLEAT_OK)
            return nullptr;
        return reinterpret_cast<void *>(address);
    }

    /* Work that uses it may be left on the device, which cudaFree would wait for. */
    void give(int device, void *address)
    {
        pleat_ranges *ranges = devices_.at(static_cast<size_t>(device)).ranges.load();
        if (ranges == nullptr)
            return;
        Relaxed relaxed(in_capture());
        c10::cuda::CUDAGuard guard(static_cast<DeviceIndex>(device));
        C10_CUDA_CHECK(cudaDeviceSynchronize());
        if (pleat_range_give(ranges, reinterpret_cast<pleat_va>(address)) != PLEAT_OK)
            throw_last("give a pool's segment back");
    }

    std::mutex lock_; /* guards peers, and that no two make a device's ranges */
    std::array<One, MOST> devices_;
    std::shared_ptr<CUDAAllocator> segments_;
};

} // namespace pleat_torch

#endif
