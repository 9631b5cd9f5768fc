/*
 * figures.h: torch's statistics, put together, and sizes as text.
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

/* Pleat has one pool; torch's readers add up small and large ones: it counts as large. The peak
 * given is of both allocators together. */
template <typename Array> void add(Array &array, const Stat &value)
{
    for (size_t which : {size_t(0), size_t(2)}) { /* all, large */
        array[which].current += value.current;
        array[which].peak = std::max({array[which].peak, value.peak, array[which].current});
        array[which].allocated += value.allocated;
        array[which].freed += value.freed;
    }
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

inline std::string size(uint64_t bytes)
{
    char text[32];
    std::snprintf(text, sizeof text, "%.2f %s",
                  static_cast<double>(bytes) / (bytes < (1u << 30) ? 1 << 20 : 1 << 30),
                  bytes < (1u << 30) ? "MiB" : "GiB");
    return text;
}

} // namespace pleat_torch

#endif
