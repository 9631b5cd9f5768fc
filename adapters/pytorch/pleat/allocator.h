/*
 * allocator.h: torch's allocator interface over Pleat's runtimes and torch's own allocator.
 *
 * It overrides all that torch's pluggable allocator leaves out: statistics, snapshots, the
 * out-of-memory error, streams, pools. Memory comes from a Pleat runtime, one a device, except in
 * private pools (CUDA graphs, torch.cuda.MemPool): those stay with torch's own allocator, whose
 * rules about what a captured graph may reuse, checkpoints and pool liveness then hold unchanged.
 * Statistics add both up.
 *
 * THREADS  Any. The list of devices is fixed by init; whether pools take allocations is read
 *          without a lock.
 */
#ifndef PLEAT_TORCH_ALLOCATOR_H
#define PLEAT_TORCH_ALLOCATOR_H

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "history.h"

#include <pleat/base.h>
#include <pleat/plan.h>
#include <pleat/runtime.h>
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

struct Settings {
    std::string policy = "pleat";
    std::string conf;
    std::string plan;
    uint64_t budget_bytes = 0;
};

/* What torch's counters start from again after a reset. */
struct Baseline {
    uint64_t requests = 0, frees = 0, allocated_bytes = 0, freed_bytes = 0, out_of_memory = 0;
};

struct Peaks {
    uint64_t live = 0, physical = 0;

    void raise(uint64_t live_bytes, uint64_t physical_bytes)
    {
        live = std::max(live, live_bytes);
        physical = std::max(physical, physical_bytes);
    }
};

/* One device's runtime, made when it is first asked for memory. */
struct Device {
    std::atomic<pleat_runtime *> runtime{nullptr};
    pleat_plan *plan = nullptr;
    std::atomic<uint64_t> allocated_bytes{0}; /* since the start, rounded to 512 */
    std::atomic<int> pools{0};                /* private pools that take allocations now */

    std::mutex stats_lock; /* guards all below */
    Baseline baseline;
    /* What torch's allocator holds for pools: it changes only in calls that end in fold(). */
    uint64_t pool_live = 0, pool_physical = 0;
    Peaks both;  /* of the two together, since torch's last reset */
    Peaks whole; /* of Pleat alone, since the start */
    int64_t most_blocks = 0;
};

/* Calls that may not be made while any thread captures a graph are made in this scope: what Pleat
 * asks of the driver never touches a capturing stream. */
class Relaxed
{
  public:
    Relaxed()
    {
        C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_));
    }

    ~Relaxed()
    {
        (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    }

    Relaxed(const Relaxed &) = delete;
    Relaxed &operator=(const Relaxed &) = delete;

  private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

[[noreturn]] inline void throw_last(const char *doing)
{
    const pleat_error *error = pleat_last_error();
    TORCH_CHECK(false, "pleat: ", doing, ": ", error->text, " (", pleat_result_name(error->result),
                ")");
}

class Allocator final : public Pluggable
{
  public:
    Allocator(Settings settings, CUDAAllocator *native)
        : Pluggable([](size_t, int, cudaStream_t) -> void * { return nullptr; },
                    [](void *, size_t, int, cudaStream_t) {}),
          settings_(std::move(settings)), native_(native)
    {
    }

    static Allocator *current;

    /* ---- allocation ---- */

    void *raw_alloc(size_t bytes) override
    {
        if (bytes == 0)
            return nullptr;
        DeviceIndex device = c10::cuda::current_device();
        return take(device, bytes, c10::cuda::getCurrentCUDAStream(device));
    }

    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override
    {
        return bytes == 0 ? nullptr : take(c10::cuda::current_device(), bytes, stream);
    }

    c10::DataPtr allocate(size_t bytes) override
    {
        DeviceIndex device = c10::cuda::current_device();
        void *address = nullptr;
        if (bytes != 0)
            address = take(device, bytes, c10::cuda::getCurrentCUDAStream(device));
        return {address, address, raw_deleter(), c10::Device(c10::DeviceType::CUDA, device)};
    }

    c10::DeleterFnPtr raw_deleter() const override
    {
        return [](void *address) { current->give(address); };
    }

    void raw_delete(void *address) override
    {
        give(address);
    }

    /* ---- life ---- */

    void init(int device_count) override
    {
        if (initialized_)
            return;
        native_->init(device_count);
        std::vector<Device> devices(static_cast<size_t>(device_count));
        devices_.swap(devices);
        initialized_ = true;
    }

    bool initialized() override
    {
        return initialized_;
    }

    std::string name() override
    {
        return "pleat";
    }

    /* ---- limits and caches ---- */

    void setMemoryFraction(double fraction, DeviceIndex device) override
    {
        TORCH_CHECK(fraction >= 0 && fraction <= 1, "the fraction must lie in [0, 1], not ",
                    fraction);
        uint64_t total = total_bytes(device);
        uint64_t bytes = static_cast<uint64_t>(fraction * static_cast<double>(total));
        if (pleat_set_budget(runtime(device), fraction >= 1 ? 0 : bytes) != PLEAT_OK)
            throw_last("set the memory fraction");
        native_->setMemoryFraction(fraction, device);
    }

#ifdef PLEAT_HAS_MEMORY_FRACTION
    double getMemoryFraction(DeviceIndex device) override
    {
        uint64_t total = total_bytes(device);
        return static_cast<double>(pleat_limit_of(runtime(device))) / static_cast<double>(total);
    }
#endif

#ifdef PLEAT_HAS_EMPTY_POOL
    void emptyCache(MempoolId pool) override
    {
        if (pool.first == 0 && pool.second == 0)
            empty_runtimes();
        native_->emptyCache(pool);
        fold_all();
    }
#else
    void emptyCache() override
    {
        empty_runtimes();
        native_->emptyCache();
        fold_all();
    }
#endif

    /* cudnn.benchmark asks how much it could have at once. */
    void cacheInfo(DeviceIndex device, size_t *largest) override
    {
        size_t free_bytes = 0, total = 0;
        c10::cuda::CUDAGuard guard(device);
        C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
        pleat_stats stats = pleat_stats_of(runtime(device));
        uint64_t idle = stats.physical_bytes - std::min(stats.live_bytes, stats.physical_bytes);
        uint64_t limit = pleat_limit_of(runtime(device));
        uint64_t room = limit - std::min(limit, stats.live_bytes);
        *largest = std::max<size_t>(*largest, std::min<uint64_t>(free_bytes + idle, room));
    }

    void *getBaseAllocation(void *address, size_t *size) override
    {
        Device *device = owner(address);
        if (device == nullptr)
            return native_->getBaseAllocation(address, size);
        pleat_block block;
        if (pleat_block_of(device->runtime, reinterpret_cast<pleat_va>(address), &block) !=
            PLEAT_OK)
            throw_last("find an allocation");
        if (size != nullptr)
            *size = block.bytes;
        return reinterpret_cast<void *>(block.address);
    }

    /* ---- streams ---- */

    void recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) override
    {
        void *address = data.get();
        /* Memory that is not this allocator's, from another process for instance, is left alone. */
        if (address == nullptr || data.get_deleter() != raw_deleter())
            return;
        Device *device = owner(address);
        if (device == nullptr) {
            /* In a private pool. torch's allocator takes note of what carries its own deleter. */
            c10::DataPtr same(address, address, native_->raw_deleter(), data.device());
            native_->recordStream(same, stream);
            same.release_context();
            return;
        }
        if (pleat_record_stream(device->runtime, reinterpret_cast<pleat_va>(address),
                                reinterpret_cast<pleat_stream>(stream.stream())) != PLEAT_OK)
            throw_last("record a stream");
    }

    /* ---- private pools: torch's own allocator ---- */

    void beginAllocateToPool(DeviceIndex device, MempoolId pool,
                             std::function<bool(cudaStream_t)> filter) override
    {
        {
            std::lock_guard<std::mutex> guard(pools_lock_);
            filters_.push_back({device, pool, filter});
            at(device).pools++;
        }
        native_->beginAllocateToPool(device, pool, std::move(filter));
    }

    void endAllocateToPool(DeviceIndex device, MempoolId pool) override
    {
        {
            std::lock_guard<std::mutex> guard(pools_lock_);
            for (size_t i = 0; i < filters_.size(); i++) {
                if (filters_[i].device == device && filters_[i].pool == pool) {
                    filters_.erase(filters_.begin() + static_cast<std::ptrdiff_t>(i));
                    at(device).pools--;
                    break;
                }
            }
        }
        native_->endAllocateToPool(device, pool);
    }

    void releasePool(DeviceIndex device, MempoolId pool) override
    {
        native_->releasePool(device, pool);
    }

    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId pool,
                                  const std::unordered_set<void *> &expected) override
    {
        return native_->checkPoolLiveAllocations(device, pool, expected);
    }

    std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device,
                                                                MempoolId pool) override
    {
        return native_->getCheckpointState(device, pool);
    }

    caching::CheckpointDelta
    setCheckpointPoolState(DeviceIndex device,
                           std::shared_ptr<caching::AllocatorState> state) override
    {
        caching::CheckpointDelta delta = native_->setCheckpointPoolState(device, std::move(state));
        /* torch tells tensors of its allocator by the deleter of the allocator in use. */
        for (c10::DataPtr &data : delta.dataptrs_allocd) {
            void *address = data.release_context();
            data = c10::DataPtr(address, address, raw_deleter(), data.device());
        }
        fold(at(device), device);
        return delta;
    }

#ifdef PLEAT_HAS_POOL_USE_COUNT
    int getPoolUseCount(DeviceIndex device, MempoolId pool) override
    {
        return native_->getPoolUseCount(device, pool);
    }
#endif
#ifdef PLEAT_HAS_CREATE_POOL
    void createOrIncrefPool(DeviceIndex device, MempoolId pool,
                            std::shared_ptr<CUDAAllocator> allocator) override
    {
        native_->createOrIncrefPool(device, pool, std::move(allocator));
    }
#endif
#ifdef PLEAT_HAS_ENSURE_POOL_FROM
    void ensureExistsAndIncrefPool(DeviceIndex device, MempoolId pool) override
    {
        native_->ensureExistsAndIncrefPool(device, pool);
    }
#endif
#if defined(PLEAT_HAS_USE_ON_OOM_FLAG)
    void setUseOnOOM(DeviceIndex device, MempoolId pool, bool use_on_oom) override
    {
        native_->setUseOnOOM(device, pool, use_on_oom);
    }
#elif defined(PLEAT_HAS_USE_ON_OOM)
    void setUseOnOOM(DeviceIndex device, MempoolId pool) override
    {
        native_->setUseOnOOM(device, pool);
    }
#endif
#ifdef PLEAT_HAS_NO_SPLIT
    void setNoSplit(DeviceIndex device, MempoolId pool) override
    {
        native_->setNoSplit(device, pool);
    }
#endif
#ifdef PLEAT_HAS_MARK_CAPTURE
    void markCaptureBegin(DeviceIndex device) override
    {
        native_->markCaptureBegin(device);
    }

    void markCaptureEnd(DeviceIndex device) override
    {
        native_->markCaptureEnd(device);
    }
#endif
#ifdef PLEAT_HAS_ALLOCATE_WITH_ADDRESS
    c10::DataPtr allocateWithAddress(size_t bytes, void *address) override
    {
        return native_->allocateWithAddress(bytes, address);
    }
#endif
#ifdef PLEAT_HAS_EXPANDABLE_SIZES
    std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override
    {
        return native_->getExpandableSegmentSizes(device);
    }
#endif

    /* ---- statistics ---- */

    DeviceStats getDeviceStats(DeviceIndex index) override
    {
        DeviceStats stats = native_->getDeviceStats(index);
        Device &device = at(index);
        if (device.runtime.load() == nullptr)
            return stats;
        pleat_stats pleat = fold(device, index);
        std::lock_guard<std::mutex> guard(device.stats_lock);
        const Baseline &base = device.baseline;
        uint64_t allocated = std::max(device.allocated_bytes.load(), pleat.live_bytes);
        uint64_t freed = allocated - pleat.live_bytes;
        auto blocks = static_cast<int64_t>(pleat.requests - pleat.frees);
        device.most_blocks = std::max(device.most_blocks, blocks);
        Stat count = stat(blocks, device.most_blocks, pleat.requests - base.requests,
                          pleat.frees - base.frees);
        Stat bytes = stat(pleat.live_bytes, device.both.live, allocated - base.allocated_bytes,
                          freed - base.freed_bytes);
        Stat physical = stat(pleat.physical_bytes, device.both.physical, device.whole.physical,
                             device.whole.physical - pleat.physical_bytes);
        add(stats.allocation, count);
        add(stats.active, count);
        add(stats.allocated_bytes, bytes);
        add(stats.active_bytes, bytes);
        add(stats.requested_bytes, bytes);
        add(stats.reserved_bytes, physical);
        stats.num_ooms += static_cast<int64_t>(pleat.out_of_memory - base.out_of_memory);
        return stats;
    }

    void resetAccumulatedStats(DeviceIndex device) override
    {
        native_->resetAccumulatedStats(device);
        Device &d = at(device);
        if (d.runtime.load() == nullptr)
            return;
        pleat_stats pleat = pleat_stats_of(d.runtime);
        std::lock_guard<std::mutex> guard(d.stats_lock);
        uint64_t allocated = d.allocated_bytes.load();
        d.baseline = {pleat.requests, pleat.frees, allocated, allocated - pleat.live_bytes,
                      pleat.out_of_memory};
    }

    void resetPeakStats(DeviceIndex index) override
    {
        native_->resetPeakStats(index);
        Device &device = at(index);
        if (device.runtime.load() == nullptr)
            return;
        pleat_stats now = fold(device, index);
        std::lock_guard<std::mutex> guard(device.stats_lock);
        device.both = {now.live_bytes + device.pool_live,
                       now.physical_bytes + device.pool_physical};
        device.most_blocks = 0;
    }

    /* ---- history ---- */

#ifdef PLEAT_HAS_HISTORY_ENABLED
    bool isHistoryEnabled() override
    {
        return history_.on();
    }
#endif

#if defined(PLEAT_HAS_SKIP_ACTIONS)
    void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t most,
                       caching::RecordContext when, bool clear,
                       const std::vector<std::string> &skipped) override
    {
        native_->recordHistory(enabled, recorder, most, when, clear, skipped);
        history_.set(enabled, recorder, most, when, clear, skipped);
    }
#elif defined(PLEAT_HAS_CLEAR_HISTORY)
    void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t most,
                       caching::RecordContext when, bool clear) override
    {
        native_->recordHistory(enabled, recorder, most, when, clear);
        history_.set(enabled, recorder, most, when, clear, {});
    }
#else
    void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t most,
                       caching::RecordContext when) override
    {
        native_->recordHistory(enabled, recorder, most, when);
        history_.set(enabled, recorder, most, when, false, {});
    }
#endif

#if defined(PLEAT_HAS_SNAPSHOT_TRACES)
    caching::SnapshotInfo snapshot(MempoolId pool, bool include_traces) override
    {
        return with_pleat(native_->snapshot(pool, include_traces), is_default(pool),
                          include_traces);
    }
#elif defined(PLEAT_HAS_SNAPSHOT_POOL)
    caching::SnapshotInfo snapshot(MempoolId pool) override
    {
        return with_pleat(native_->snapshot(pool), is_default(pool), true);
    }
#else
    caching::SnapshotInfo snapshot() override
    {
        return with_pleat(native_->snapshot(), true, true);
    }
#endif

#ifdef PLEAT_HAS_ANNOTATION
    void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &text) override
    {
        native_->recordAnnotation(text);
    }
#endif
#ifdef PLEAT_HAS_COMPILE_CONTEXT
    void pushCompileContext(std::string &text) override
    {
        native_->pushCompileContext(text);
    }

    void popCompileContext() override
    {
        native_->popCompileContext();
    }
#endif
#ifdef PLEAT_HAS_USER_METADATA
    void setUserMetadata(const std::string &text) override
    {
        native_->setUserMetadata(text);
    }

    std::string getUserMetadata() override
    {
        return native_->getUserMetadata();
    }
#endif
#ifdef PLEAT_HAS_CONTEXT_FOR_POINTER
    Context getContextForPointer(const void *address) override
    {
        return owner(address) == nullptr ? native_->getContextForPointer(address)
                                         : history_.context_of(reinterpret_cast<size_t>(address));
    }
#endif

    void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override
    {
        native_->attachOutOfMemoryObserver(observer);
        std::lock_guard<std::mutex> guard(observers_lock_);
        observers_.push_back(std::move(observer));
    }

#ifdef PLEAT_HAS_REJECTION_OBSERVER
    void attachOomRejectionObserver(caching::OomRejectionObserver observer) override
    {
        native_->attachOomRejectionObserver(std::move(observer));
    }
#endif

    /* Trackers register segments with communication libraries: those of pools alone, since a part
     * of Pleat's window may change what backs it. */
    void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override
    {
        native_->attachAllocatorTraceTracker(std::move(tracker));
    }

    /* ---- between devices and processes ---- */

    void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override
    {
        native_->enablePeerAccess(device, peer);
    }

    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device,
                            size_t bytes, cudaStream_t stream, bool) override
    {
        /* Mapped memory wants the peer form, which takes every combination. */
        if (to_device != from_device)
            return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }

    caching::ShareableHandle shareIpcHandle(void *address) override
    {
        if (owner(address) == nullptr)
            return native_->shareIpcHandle(address);
        TORCH_CHECK(false, "pleat: a CUDA tensor in Pleat's memory cannot be sent to another "
                           "process; copy it to the host, or allocate it in a torch.cuda.MemPool");
    }

    std::shared_ptr<void> getIpcDevPtr(std::string handle) override
    {
        return native_->getIpcDevPtr(std::move(handle));
    }

    /* ---- Pleat's own, for the functions below ---- */

    pleat_runtime *runtime(DeviceIndex index)
    {
        Device &device = at(index);
        pleat_runtime *made = device.runtime.load(std::memory_order_acquire);
        return __builtin_expect(made != nullptr, 1) ? made : make(index, device);
    }

    size_t device_count() const
    {
        return devices_.size();
    }

    pleat_stats whole_stats(size_t index)
    {
        Device &device = devices_[index];
        pleat_stats stats = fold(device, static_cast<DeviceIndex>(index));
        std::lock_guard<std::mutex> guard(device.stats_lock);
        stats.peak_live_bytes = device.whole.live;
        stats.peak_physical_bytes = device.whole.physical;
        return stats;
    }

    /* NULL before the device was first used. */
    pleat_runtime *runtime_or_null(size_t index)
    {
        return index < devices_.size() ? devices_[index].runtime.load() : nullptr;
    }

  private:
    struct Filter {
        DeviceIndex device;
        MempoolId pool;
        std::function<bool(cudaStream_t)> takes;
    };

    static bool is_default(MempoolId pool)
    {
        return pool.first == 0 && pool.second == 0;
    }

    template <typename Peak>
    static Stat stat(uint64_t current, Peak peak, uint64_t allocated, uint64_t freed)
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
    template <typename Array> static void add(Array &array, const Stat &value)
    {
        for (size_t which : {size_t(0), size_t(2)}) { /* all, large */
            array[which].current += value.current;
            array[which].peak = std::max({array[which].peak, value.peak, array[which].current});
            array[which].allocated += value.allocated;
            array[which].freed += value.freed;
        }
    }

    /* The peaks of two allocators need not come at the same time. But what torch's holds for pools
     * changes only in calls after which this runs, so between two of them it is a constant beside
     * Pleat's own peak. Returns Pleat's counters, whose peaks start anew. */
    pleat_stats fold(Device &device, DeviceIndex index)
    {
        pleat_runtime *runtime = device.runtime.load();
        pleat_stats now = {};
        std::lock_guard<std::mutex> guard(device.stats_lock);
        if (runtime != nullptr) {
            now = pleat_stats_of(runtime);
            pleat_reset_peaks(runtime);
        }
        device.whole.raise(now.peak_live_bytes, now.peak_physical_bytes);
        device.both.raise(now.peak_live_bytes + device.pool_live,
                          now.peak_physical_bytes + device.pool_physical);
        DeviceStats pools = native_->getDeviceStats(index);
        device.pool_live = static_cast<uint64_t>(pools.allocated_bytes[0].current);
        device.pool_physical = static_cast<uint64_t>(pools.reserved_bytes[0].current);
        device.both.raise(now.live_bytes + device.pool_live,
                          now.physical_bytes + device.pool_physical);
        return now;
    }

    void fold_all()
    {
        for (size_t i = 0; i < devices_.size(); i++) {
            if (devices_[i].runtime.load() != nullptr)
                fold(devices_[i], static_cast<DeviceIndex>(i));
        }
    }

    std::string metadata()
    {
#ifdef PLEAT_HAS_USER_METADATA
        return native_->getUserMetadata();
#else
        return {};
#endif
    }

    Device &at(DeviceIndex index)
    {
        TORCH_CHECK(index >= 0 && static_cast<size_t>(index) < devices_.size(),
                    "pleat: there is no device ", static_cast<int>(index));
        return devices_[static_cast<size_t>(index)];
    }

    uint64_t total_bytes(DeviceIndex device)
    {
        size_t free_bytes = 0, total = 0;
        c10::cuda::CUDAGuard guard(device);
        C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
        return total;
    }

    /* Asked before a request is refused: torch's caches of pools, and what registered itself with
     * torch (memory received from other processes). */
    static int give_back(void *, uint64_t, pleat_stream)
    {
        Allocator *self = current;
        bool given = false;
        for (const std::string &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
            given |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
        bool capturing = false;
        uint64_t before = 0, after = 0;
        for (size_t i = 0; i < self->devices_.size(); i++)
            capturing |= self->devices_[i].pools.load() != 0;
        if (capturing)
            return given;
        for (size_t i = 0; i < self->devices_.size(); i++)
            before += self->pool_bytes(static_cast<DeviceIndex>(i));
        if (before != 0)
            self->native_->emptyCache();
        for (size_t i = 0; i < self->devices_.size(); i++)
            after += self->pool_bytes(static_cast<DeviceIndex>(i));
        return given || after < before;
    }

    uint64_t pool_bytes(DeviceIndex index)
    {
        return static_cast<uint64_t>(native_->getDeviceStats(index).reserved_bytes[0].current);
    }

    pleat_runtime *make(DeviceIndex index, Device &device)
    {
        std::lock_guard<std::mutex> guard(making_);
        if (device.runtime.load() != nullptr)
            return device.runtime.load();
        if (vmm_.ops == nullptr && pleat_vmm_cuda(&vmm_) != PLEAT_OK)
            throw_last("reach the driver");
        if (!settings_.plan.empty() && device.plan == nullptr &&
            pleat_plan_read(settings_.plan.c_str(), &device.plan) != PLEAT_OK)
            throw_last("read the plan");
        pleat_runtime_options options = {};
        options.size = sizeof options;
        options.device = index;
        options.policy = settings_.policy.c_str();
        options.plan = device.plan;
        options.budget_bytes = settings_.budget_bytes;
        options.conf = settings_.conf.empty() ? nullptr : settings_.conf.c_str();
        options.memory_callback = give_back;
        pleat_runtime *made = nullptr;
        if (pleat_runtime_create(vmm_, &options, &made) != PLEAT_OK)
            throw_last("make a runtime");
        device.runtime.store(made, std::memory_order_release);
        return made;
    }

    void *take(DeviceIndex index, size_t bytes, cudaStream_t stream)
    {
        Device &device = at(index);
        std::optional<Relaxed> relaxed;
        if (__builtin_expect(device.pools.load(std::memory_order_relaxed) != 0, 0)) {
            if (in_pool(index, stream))
                return take_in_pool(device, index, bytes, stream);
            relaxed.emplace();
        }
        pleat_va address;
        pleat_result result =
            pleat_alloc(runtime(index), bytes, reinterpret_cast<pleat_stream>(stream), &address);
        if (__builtin_expect(result != PLEAT_OK, 0))
            refuse(index, bytes, stream, result);
        device.allocated_bytes.fetch_add((bytes + 511) / 512 * 512, std::memory_order_relaxed);
        if (__builtin_expect(history_.on(), 0))
            history_.add(TraceEntry::ALLOC, "alloc", index, address, bytes, stream,
                         history_.context(caching::RecordContext::STATE), metadata());
        return reinterpret_cast<void *>(address);
    }

    void *take_in_pool(Device &device, DeviceIndex index, size_t bytes, cudaStream_t stream)
    {
        void *address = nullptr;
        try {
            address = native_->raw_alloc_with_stream(bytes, stream);
        } catch (const c10::OutOfMemoryError &) {
            /* What Pleat has cached may be what a pool needs. */
            Relaxed relaxed;
            if (device.runtime.load() == nullptr || pleat_empty_cache(device.runtime) != PLEAT_OK)
                throw;
        }
        if (address == nullptr)
            address = native_->raw_alloc_with_stream(bytes, stream);
        fold(device, index);
        return address;
    }

    bool in_pool(DeviceIndex device, cudaStream_t stream)
    {
        std::lock_guard<std::mutex> guard(pools_lock_);
        for (const Filter &filter : filters_) {
            if (filter.device == device && filter.takes(stream))
                return true;
        }
        return false;
    }

    static std::string size(uint64_t bytes)
    {
        char text[32];
        std::snprintf(text, sizeof text, "%.2f %s",
                      static_cast<double>(bytes) / (bytes < (1u << 30) ? 1 << 20 : 1 << 30),
                      bytes < (1u << 30) ? "MiB" : "GiB");
        return text;
    }

    [[noreturn]] void refuse(DeviceIndex device, size_t bytes, cudaStream_t stream,
                             pleat_result result)
    {
        std::string text = pleat_last_error()->text;
        if (result != PLEAT_E_OUT_OF_MEMORY && result != PLEAT_E_BUDGET)
            TORCH_CHECK(false, "pleat: allocate: ", text, " (", pleat_result_name(result), ")");
        size_t free_bytes = 0, total = 0;
        {
            c10::cuda::CUDAGuard guard(device);
            C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
        }
        if (history_.on())
            history_.add(TraceEntry::OOM, "oom", device, free_bytes, bytes, stream,
                         history_.context(caching::RecordContext::STATE), metadata());
        std::vector<caching::OutOfMemoryObserver> observers;
        {
            std::lock_guard<std::mutex> guard(observers_lock_);
            observers = observers_;
        }
        for (const caching::OutOfMemoryObserver &observer : observers)
            observer(device, bytes, total, free_bytes);
        std::string message = "CUDA out of memory. Tried to allocate " + size(bytes) + ". GPU " +
                              std::to_string(static_cast<int>(device)) +
                              " has a total capacity of " + size(total) + " of which " +
                              size(free_bytes) + " is free. Pleat: " + text;
        TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    }

    Device *owner(const void *address)
    {
        for (Device &device : devices_) {
            pleat_runtime *made = device.runtime.load(std::memory_order_acquire);
            if (made != nullptr && pleat_owns(made, reinterpret_cast<pleat_va>(address)))
                return &device;
        }
        return nullptr;
    }

    void give(void *address)
    {
        if (address == nullptr)
            return;
        Device *device = owner(address);
        if (__builtin_expect(device == nullptr, 0)) {
            native_->raw_delete(address);
            fold_all();
            return;
        }
        std::optional<Relaxed> relaxed;
        if (__builtin_expect(device->pools.load(std::memory_order_relaxed) != 0, 0))
            relaxed.emplace();
        if (__builtin_expect(history_.on(), 0))
            note_free(*device, reinterpret_cast<pleat_va>(address));
        if (pleat_free(device->runtime, reinterpret_cast<pleat_va>(address)) != PLEAT_OK)
            throw_last("free");
    }

    void note_free(Device &device, pleat_va address)
    {
        pleat_block block;
        if (pleat_block_of(device.runtime, address, &block) != PLEAT_OK)
            return; /* the free itself says what is wrong */
        auto index = static_cast<DeviceIndex>(&device - devices_.data());
        Context context = history_.context(caching::RecordContext::ALL);
        auto *stream = reinterpret_cast<void *>(block.stream);
        history_.add(TraceEntry::FREE_REQUESTED, "free_requested", index, address, block.requested,
                     stream, context, metadata());
        history_.add(TraceEntry::FREE_COMPLETED, "free_completed", index, address, block.requested,
                     stream, context, metadata());
    }

    void empty_runtimes()
    {
        for (Device &device : devices_) {
            if (device.runtime.load() == nullptr)
                continue;
            std::optional<Relaxed> relaxed;
            if (device.pools.load() != 0)
                relaxed.emplace();
            if (pleat_empty_cache(device.runtime) != PLEAT_OK)
                throw_last("empty the cache");
        }
    }

    /* ---- snapshots ---- */

    /* A run of mapped pages is a segment. */
    static void add_block(void *context, const pleat_block *block)
    {
        auto *segments = static_cast<std::vector<SegmentInfo> *>(context);
        if (segments->empty() ||
            segments->back().address + segments->back().total_size != block->address) {
            segments->emplace_back();
            segments->back().address = block->address;
            segments->back().is_large = true;
            segments->back().is_expandable = true;
        }
        SegmentInfo &segment = segments->back();
        segment.blocks.emplace_back();
        segment.blocks.back().size = block->bytes;
        segment.blocks.back().requested_size = block->requested;
        segment.blocks.back().allocated = block->allocated != 0;
        segment.blocks.back().active = block->allocated != 0;
        segment.total_size += block->bytes;
        segment.requested_size += block->requested;
        segment.allocated_size += block->allocated ? block->bytes : 0;
        segment.active_size += block->allocated ? block->bytes : 0;
        if (block->allocated)
            segment.stream = reinterpret_cast<decltype(segment.stream)>(block->stream);
    }

    caching::SnapshotInfo with_pleat(caching::SnapshotInfo info, bool segments, bool traces)
    {
        for (size_t i = 0; i < devices_.size(); i++) {
            pleat_runtime *made = devices_[i].runtime.load();
            auto index = static_cast<DeviceIndex>(i);
            if (made != nullptr && segments)
                add_segments(info, made, index);
            if (traces) {
                if (info.device_traces.size() <= i)
                    info.device_traces.resize(i + 1);
                merge(info.device_traces[i], history_.entries(index));
            }
        }
        return info;
    }

    void add_segments(caching::SnapshotInfo &info, pleat_runtime *runtime, DeviceIndex index)
    {
        std::vector<SegmentInfo> found;
        if (pleat_walk(runtime, add_block, &found) != PLEAT_OK)
            throw_last("walk the blocks");
        for (SegmentInfo &segment : found) {
            segment.device = index;
            size_t address = segment.address;
            for (auto &block : segment.blocks) {
                if (block.allocated)
                    block.context_when_allocated = history_.context_of(address);
                address += block.size;
            }
            info.segments.push_back(std::move(segment));
        }
    }

    static void merge(std::vector<TraceEntry> &into, std::vector<TraceEntry> more)
    {
        into.insert(into.end(), std::make_move_iterator(more.begin()),
                    std::make_move_iterator(more.end()));
        std::stable_sort(into.begin(), into.end(), [](const TraceEntry &a, const TraceEntry &b) {
            return a.time_.t_ < b.time_.t_;
        });
    }

    Settings settings_;
    CUDAAllocator *native_;
    std::vector<Device> devices_;
    std::mutex making_;
    pleat_vmm vmm_ = {};
    History history_;
    std::mutex observers_lock_;
    std::vector<caching::OutOfMemoryObserver> observers_;
    std::mutex pools_lock_;
    std::vector<Filter> filters_;
};

inline Allocator *Allocator::current = nullptr;

} // namespace pleat_torch

#endif
