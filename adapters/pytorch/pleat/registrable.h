/*
 * registrable.h: memory of private pools. torch's allocator cuts it up, and takes each segment of
 * it from here: one handle of the driver, mapped where it stays (pleat/ranges.h), so that NCCL can
 * register it, which it can do with no memory of cudaMalloc's. A segment goes when torch gives it
 * and nobody has it registered any more.
 *
 * LOCKS   torch's allocator calls take_segment and give_segment under its own lock: nothing here
 *         calls it, nor waits for whoever may.
 * THREADS Any.
 */
#ifndef PLEAT_TORCH_REGISTRABLE_H
#define PLEAT_TORCH_REGISTRABLE_H

#include "devices.h"

namespace pleat_torch
{

/* NULL: torch's allocator gives its caches back and asks once more. */
inline void *take_segment(Devices &devices, int device, size_t bytes)
{
    pleat_va address = 0;
    pleat_ranges *ranges = devices.at(static_cast<DeviceIndex>(device)).ranges.load();
    Relaxed relaxed(in_capture());
    if (ranges == nullptr || pleat_range_make(ranges, bytes, &address, nullptr) != PLEAT_OK)
        return nullptr;
    return reinterpret_cast<void *>(address);
}

/* Work that uses it may be left on the device, which cudaFree would wait for. */
inline void give_segment(Devices &devices, int device, void *address)
{
    pleat_ranges *ranges = devices.at(static_cast<DeviceIndex>(device)).ranges.load();
    if (ranges == nullptr)
        return;
    Relaxed relaxed(in_capture());
    c10::cuda::CUDAGuard guard(static_cast<DeviceIndex>(device));
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    if (pleat_range_give(ranges, reinterpret_cast<pleat_va>(address)) != PLEAT_OK)
        throw_last("give a pool's segment back");
}

/* What a pool takes its segments from. */
inline std::shared_ptr<CUDAAllocator> make_segments(Devices &devices)
{
    return torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
        [&devices](size_t bytes, int device, cudaStream_t) {
            return take_segment(devices, device, bytes);
        },
        [&devices](void *address, size_t, int device, cudaStream_t) {
            give_segment(devices, device, address);
        });
}

} // namespace pleat_torch

#endif
