/*
 * figures.h: torch's statistics, put together of what both allocators counted, and sizes as text.
 */
#ifndef PLEAT_TORCH_FIGURES_H
#define PLEAT_TORCH_FIGURES_H

#include "device.h"

#include <cstdio>

namespace pleat_torch
{

template <typename Peak>
inline Stat stat(uint64_t current, Peak peak, uint64_t allocated, uint64_t freed)
{
    Stat made;
    made.current = static_cast<int64_t>(current);
    made.peak = static_cast<int64_t>(peak);
    made.allocated = static_cast<int64_t>(allocated);
    made.freed = static_cast<int64_t>(freed);
    return made;
}

/* To all, and of it so much to the small pool and the rest to the large one. Torch's readers add
 * these up; Pleat has one pool, and knows what is small of what is live now alone: what was ever,
 * and the peaks, count as large. The peak given is of both allocators together. */
template <typename Array> void add(Array &array, const Stat &value, uint64_t small = 0)
{
    enum { ALL, SMALL, LARGE };
    for (size_t which : {ALL, LARGE}) {
        array[which].current += value.current - (which == LARGE ? static_cast<int64_t>(small) : 0);
        array[which].peak = std::max({array[which].peak, value.peak, array[which].current});
        array[which].allocated += value.allocated;
        array[which].freed += value.freed;
    }
    array[SMALL].current += static_cast<int64_t>(small);
    array[SMALL].peak = std::max(array[SMALL].peak, array[SMALL].current);
}

/* What the device was asked for, where this torch counts it. */
template <typename Stats>
auto add_calls(Stats &stats, uint64_t creates, uint64_t releases, int)
    -> decltype(stats.num_device_alloc, void())
{
    stats.num_device_alloc += static_cast<int64_t>(creates);
    stats.num_device_free += static_cast<int64_t>(releases);
}

template <typename Stats> void add_calls(Stats &, uint64_t, uint64_t, long)
{
}

/* What Pleat holds now. */
inline Held held_by(const pleat_stats &pleat)
{
    return {pleat.live_bytes, pleat.requested_bytes, pleat.physical_bytes};
}

/* The peaks of two allocators need not come at the same time. But what torch's holds for pools
 * changes only in calls after which this runs, so between two of them it is a constant beside
 * Pleat's own peak. Returns Pleat's counters, whose peaks start anew.
 *
 * torch's allocator is asked under no lock: it frees memory, and so comes here, under its own. An
 * answer counts where none to a later question came before it. */
inline pleat_stats fold(Device &device, DeviceIndex index, CUDAAllocator *native)
{
    pleat_runtime *runtime = device.runtime.load();
    pleat_stats now = {};
    uint64_t question = ++device.pool_questions;
    DeviceStats pools = native->getDeviceStats(index);
    std::lock_guard<std::mutex> guard(device.stats_lock);
    if (runtime != nullptr)
        now = pleat_reset_peaks(runtime);
    Held most = {now.peak_live_bytes, now.peak_requested_bytes, now.peak_physical_bytes};
    device.whole.raise(most);
    device.most_blocks = std::max(device.most_blocks, static_cast<int64_t>(now.peak_blocks));
    device.follow_physical(now.physical_bytes, now.peak_physical_bytes);
    device.both.raise(most + device.pool);
    if (question > device.pool_answered) {
        device.pool_answered = question;
        device.pool = {static_cast<uint64_t>(pools.allocated_bytes[0].current),
                       static_cast<uint64_t>(pools.requested_bytes[0].current),
                       static_cast<uint64_t>(pools.reserved_bytes[0].current)};
    }
    device.both.raise(held_by(now) + device.pool);
    return now;
}

/* A request is counted when it was served: another thread may see it live before. */
inline uint64_t allocated_of(const Device &device, const pleat_stats &pleat)
{
    return std::max(device.allocated_bytes.load(), pleat.live_bytes);
}

/* What is to be added to the refusals that torch's allocator counts; modulo 2^64. */
inline uint64_t refusals_of(const Device &device, const pleat_stats &pleat)
{
    return pleat.out_of_memory - device.untold_ooms;
}

/* Adds what Pleat's runtime counted to what torch's own allocator did. */
inline void add_pleat(DeviceStats &stats, Device &device, const pleat_stats &pleat)
{
    std::lock_guard<std::mutex> guard(device.stats_lock);
    const Baseline &base = device.baseline;
    uint64_t allocated = allocated_of(device, pleat), freed = allocated - pleat.live_bytes;
    auto blocks = static_cast<int64_t>(pleat.requests - pleat.frees);
    Stat count =
        stat(blocks, device.most_blocks, pleat.requests - base.requests, pleat.frees - base.frees);
    Stat bytes = stat(pleat.live_bytes, device.both.live, allocated - base.allocated_bytes,
                      freed - base.freed_bytes);
    Stat physical = stat(pleat.physical_bytes, device.both.physical,
                         device.obtained_bytes - base.obtained_bytes,
                         device.returned_bytes - base.returned_bytes);
    /* A segment is a piece of memory that the device gave. */
    auto pieces = static_cast<int64_t>(pleat.creates - pleat.releases);
    device.most_pieces = std::max(device.most_pieces, pieces);
    Stat segments = stat(pieces, device.most_pieces, pleat.creates - base.creates,
                         pleat.releases - base.releases);
    /* Torch counts as active what other streams still use after its free. */
    auto active_blocks = blocks + static_cast<int64_t>(pleat.waiting_blocks);
    uint64_t active_bytes = pleat.live_bytes + pleat.waiting_bytes;
    uint64_t unused = pleat.physical_bytes - std::min(pleat.physical_bytes, active_bytes);
    device.most_active_blocks =
        std::max({device.most_active_blocks, device.most_blocks, active_blocks});
    device.most_active =
        std::max({device.most_active, device.both.live, active_bytes + device.pool.live});
    device.most_idle = std::max(device.most_idle, unused);
    add(stats.allocation, count, pleat.small_blocks);
    add(stats.active,
        stat(active_blocks, device.most_active_blocks, count.allocated,
             count.freed - static_cast<int64_t>(pleat.waiting_blocks)),
        pleat.small_blocks);
    add(stats.allocated_bytes, bytes, pleat.small_bytes);
    add(stats.active_bytes,
        stat(active_bytes, device.most_active, bytes.allocated,
             bytes.freed - static_cast<int64_t>(pleat.waiting_bytes)),
        pleat.small_bytes);
    add(stats.requested_bytes,
        stat(pleat.requested_bytes, device.both.requested, pleat.asked_bytes - base.asked_bytes,
             pleat.asked_bytes - pleat.requested_bytes - base.given_up_bytes));
    add(stats.reserved_bytes, physical);
    add(stats.segment, segments);
    add(stats.inactive_split_bytes, stat(unused, device.most_idle, 0, 0));
    add_calls(stats, pleat.creates - base.creates, pleat.releases - base.releases, 0);
}

/* Of Pleat's runtime, and of a device that has pools only: torch's allocator counts each time that
 * it was asked. */
inline void add_refusals(DeviceStats &stats, Device &device, const pleat_stats &pleat)
{
    std::lock_guard<std::mutex> guard(device.stats_lock);
    stats.num_ooms +=
        static_cast<int64_t>(refusals_of(device, pleat) - device.baseline.out_of_memory);
}

/* From here on torch's counters count. */
inline void begin_counting(Device &device, const pleat_stats &pleat)
{
    std::lock_guard<std::mutex> guard(device.stats_lock);
    uint64_t allocated = allocated_of(device, pleat);
    device.baseline = {pleat.requests,
                       pleat.frees,
                       allocated,
                       allocated - pleat.live_bytes,
                       refusals_of(device, pleat),
                       pleat.creates,
                       pleat.releases,
                       device.obtained_bytes,
                       device.returned_bytes,
                       pleat.asked_bytes,
                       pleat.asked_bytes - pleat.requested_bytes};
}

/* From here on torch's peaks are taken. */
inline void begin_peaks(Device &device, const pleat_stats &now)
{
    std::lock_guard<std::mutex> guard(device.stats_lock);
    device.both = held_by(now) + device.pool;
    device.most_blocks = static_cast<int64_t>(now.requests - now.frees);
    device.most_pieces = 0;
    device.most_idle = 0;
    device.most_active = 0;
    device.most_active_blocks = 0;
}

/* As torch's own texts have it. */
inline std::string size(uint64_t bytes)
{
    if (bytes < 1 << 10)
        return std::to_string(bytes) + " bytes";
    const char *unit = "GiB";
    double count = static_cast<double>(bytes) / (1 << 30);
    if (bytes < 1 << 20) {
        unit = "KiB";
        count = static_cast<double>(bytes) / (1 << 10);
    } else if (bytes < 1 << 30) {
        unit = "MiB";
        count = static_cast<double>(bytes) / (1 << 20);
    }
    char text[32];
    std::snprintf(text, sizeof text, "%.2f %s", count, unit);
    return text;
}

} // namespace pleat_torch

#endif
