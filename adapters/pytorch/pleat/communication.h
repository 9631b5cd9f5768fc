/*
 * communication.h: what nccl.c tells: what is registered, what collectives send, and when NCCL
 * takes memory of its own.
 */
#ifndef PLEAT_TORCH_COMMUNICATION_H
#define PLEAT_TORCH_COMMUNICATION_H

#include "allocator.h"
#include "nccl.h"

#include <dlfcn.h>

namespace pleat_torch::communication
{

inline std::atomic<bool> registers_all{false}; /* the program asked for it: torch's hook is on */
inline thread_local uint64_t before = 0; /* the communicator starts: bytes free, and idle here */

/* A tensor is used in a way that wants memory which stays. */
inline void note(const void *address, size_t requested)
{
    if (requested != 0)
        Allocator::current->found().met(requested, Found::REGISTERED);
    else
        Allocator::current->found().used(address);
}

/* What is longer than the tensor that begins there is a segment of torch's, which it registers
 * whatever lies in it. */
inline int is_mapped_anew(const void *address, size_t bytes)
{
    size_t requested = Allocator::current->requested(address);
    if (requested == 0 || bytes <= rounded(requested))
        note(address, requested);
    return Allocator::current->devices().owner(address) != nullptr;
}

/* What becomes of the range that an address lies in, if there is one. */
template <pleat_result (*verb)(pleat_ranges *, pleat_va)> void of_range(const void *address)
{
    pleat_ranges *ranges = Allocator::current->devices().ranges_of(address);
    if (ranges != nullptr)
        (void)verb(ranges, reinterpret_cast<pleat_va>(address));
}

constexpr auto hold = of_range<pleat_range_hold>, let_go = of_range<pleat_range_let_go>;

inline void talks(const void *address)
{
    if (registers_all.load(std::memory_order_relaxed))
        note(address, Allocator::current->requested(address));
}

/* Bytes of the device that are free, Pleat's and torch's taken for free; and those that are. */
inline uint64_t not_others(DeviceIndex index, uint64_t *free_now)
{
    size_t free_bytes = 0, total = 0;
    Devices &devices = Allocator::current->devices();
    C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    *free_now = free_bytes;
    pleat_runtime *made = devices.runtime_or_null(static_cast<size_t>(index));
    return free_bytes + devices.budget().pool_bytes(index) +
           (made != nullptr ? pleat_stats_of(made).physical_bytes : 0);
}

/* How much a communicator may want before one was seen: a 32nd of the device. */
inline uint64_t wanted(DeviceIndex index, uint64_t total)
{
    uint64_t most = Allocator::current->devices().at(index).most_communication;
    return most != 0 ? most : total / 32;
}

inline void starts()
{
    try {
        DeviceIndex index = c10::cuda::current_device();
        uint64_t free_now = 0;
        Relaxed relaxed(in_capture());
        before = not_others(index, &free_now);
        pleat_runtime *made =
            Allocator::current->devices().runtime_or_null(static_cast<size_t>(index));
        if (made != nullptr && free_now < wanted(index, total_bytes(index)))
            (void)pleat_trim(made, 0, nullptr);
    } catch (const std::exception &) {
        before = 0; /* no more room is made, and NCCL says whether it has enough */
    }
}

inline void started()
{
    try {
        DeviceIndex index = c10::cuda::current_device();
        uint64_t free_now = 0;
        Relaxed relaxed(in_capture());
        uint64_t after = not_others(index, &free_now), took = before > after ? before - after : 0;
        Device &device = Allocator::current->devices().at(index);
        device.communication += took;
        uint64_t most = device.most_communication;
        while (took > most && !device.most_communication.compare_exchange_weak(most, took))
            ;
    } catch (const std::exception &) {
    }
    before = 0;
}

/* Whether libpleat_nccl.so is there, and was told whom to tell. */
inline bool listen()
{
    static const pleat_nccl_listener listener = {is_mapped_anew, hold,   let_go,
                                                 talks,          starts, started};
    auto tell =
        reinterpret_cast<decltype(&pleat_nccl_listen)>(dlsym(RTLD_DEFAULT, "pleat_nccl_listen"));
    if (tell != nullptr)
        tell(&listener);
    return tell != nullptr;
}

} // namespace pleat_torch::communication

#endif
