/*
 * device.h: what the parts of the shim share: names of torch's, a device's state, errors.
 */
#ifndef PLEAT_TORCH_DEVICE_H
#define PLEAT_TORCH_DEVICE_H

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#ifdef PLEAT_HAS_PROCESS_FRACTION
#include <c10/cuda/CUDAAllocatorConfig.h>
#endif

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "history.h"
#include "starting.h"

#include <pleat/base.h>
#include <pleat/plan.h>
#include <pleat/ranges.h>
#include <pleat/runtime.h>
#include <pleat/trace.h>
#include <pleat/vmm.h>

namespace pleat_torch
{

/* The PLEAT_HAS_ names say what the installed torch's headers declare; _shim.py defines them. */

using caching::CUDAAllocator;
using Pluggable = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;
using caching::DeviceStats;
using caching::SegmentInfo;
using caching::TraceEntry;
using Stat = std::remove_reference_t<decltype(std::declval<DeviceStats &>().allocation[0])>;
using c10::DeviceIndex;
using MempoolId = c10::cuda::MempoolId_t;

/* What torch's counters start from again after a reset. */
struct Baseline {
    uint64_t requests = 0, frees = 0, allocated_bytes = 0, freed_bytes = 0, out_of_memory = 0;
    uint64_t creates = 0, releases = 0, obtained_bytes = 0, returned_bytes = 0;
    uint64_t asked_bytes = 0, given_up_bytes = 0; /* sizes as asked for */
};

/* Bytes at one time, or the most that they were. */
struct Held {
    uint64_t live = 0, requested = 0, physical = 0;

    void raise(const Held &by)
    {
        live = std::max(live, by.live);
        requested = std::max(requested, by.requested);
        physical = std::max(physical, by.physical);
    }

    Held operator+(const Held &other) const
    {
        return {live + other.live, requested + other.requested, physical + other.physical};
    }
};

/* Private pools that take allocations now, of all devices. */
inline std::atomic<int> open_pools{0};

/* Whether a graph may be captured now: a verb on any device would end the capture. */
inline bool in_capture()
{
    return __builtin_expect(open_pools.load(std::memory_order_relaxed) != 0, 0);
}

class Devices;

/* One device's runtime, made when it is first asked for memory. */
struct Device {
    Devices *all = nullptr; /* it is one of these */
    std::atomic<pleat_runtime *> runtime{nullptr};
    pleat_plan *plan = nullptr;
    std::atomic<uint64_t> allocated_bytes{0}; /* since the start, rounded to 512 */
    std::atomic<bool> pools_lend{false};      /* one was made that serves what would be refused */
    std::atomic<uint64_t> untold_ooms{0};     /* counted by one allocator, served by the other, */
                                              /* or counted by both */
    std::atomic<pleat_ranges *> ranges{nullptr}; /* of its pools' segments (registrable.h) */
    /* Guards peers, and that the runtime and the ranges are made once. */
    std::mutex making;
    std::vector<int> peers; /* that have access */

    std::mutex split_lock;       /* guards the budget's two parts */
    uint64_t limit_bytes = 0;    /* of both allocators together, as asked for; 0: none */
    uint64_t process_bytes = 0;  /* that the environment leaves to the process; 0: no such limit, */
                                 /* or no runtime that knows it */
    bool fraction_taken = false; /* torch's settings are part of it */

    std::atomic<uint64_t> pool_questions{0}; /* to torch's allocator: what it holds for pools */

    /* NCCL's bytes, as far as they were taken while communicators started: of all, and the most of
     * one. */
    std::atomic<uint64_t> communication{0}, most_communication{0};

    std::mutex registered_lock;  /* guards that one allocation at a time goes to the pool, and */
    bool has_registered = false; /* whether the pool was made of what is registered */

    std::mutex stats_lock; /* guards all below */
    Baseline baseline;
    /* What torch's allocator holds for pools: it changes only in calls that end in fold(). */
    Held pool;
    uint64_t pool_answered = 0;
    uint64_t physical = 0; /* of Pleat, when it was last looked at */
    /* Of the device and to it, since the start, as far as looks at now and then show it. */
    uint64_t obtained_bytes = 0, returned_bytes = 0;
    Held both;  /* of the two together, since torch's last reset */
    Held whole; /* of Pleat alone, since the start */
    int64_t most_blocks = 0;
    int64_t most_pieces = 0;
    /* As far as looks show it. */
    uint64_t most_idle = 0;
    uint64_t most_active = 0; /* of the two together: live, or freed and used by other streams */
    int64_t most_active_blocks = 0;

    /* What Pleat holds of the device, and the most since the last look. */
    void follow_physical(uint64_t now, uint64_t most)
    {
        most = std::max({most, now, physical});
        obtained_bytes += most - physical;
        returned_bytes += most - now;
        physical = now;
    }
};

/* Calls that may not be made while any thread captures a graph are made in this scope: what Pleat
 * asks of the driver never touches a capturing stream. */
class Relaxed
{
  public:
    explicit Relaxed(bool wanted = true) : wanted_(wanted)
    {
        if (__builtin_expect(wanted, 0))
            C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_));
    }

    ~Relaxed()
    {
        if (__builtin_expect(wanted_, 0))
            (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    }

    Relaxed(const Relaxed &) = delete;
    Relaxed &operator=(const Relaxed &) = delete;

  private:
    bool wanted_;
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

[[noreturn]] inline void throw_last(const char *doing)
{
    const pleat_error *error = pleat_last_error();
    TORCH_CHECK(false, "pleat: ", doing, ": ", error->text, " (", pleat_result_name(error->result),
                ")");
}

} // namespace pleat_torch

#endif
