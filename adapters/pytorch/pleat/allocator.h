/*
 * allocator.h: torch's allocator interface over Pleat's runtimes and torch's own allocator.
 *
 * It overrides all that torch's pluggable allocator leaves out: statistics, snapshots, the
 * out-of-memory error, streams, pools, other devices and processes. Memory comes from a Pleat
 * runtime, one a device, except in private pools (CUDA graphs, torch.cuda.MemPool): those stay with
 * torch's own allocator, whose rules about what a captured graph may reuse, checkpoints and pool
 * liveness then hold unchanged. What a pool's segments are is Pleat's matter (registrable.h). Sizes
 * that a program sends to other processes or registers are served by torch's allocator as well
 * (found.h). Statistics add both up, and a budget holds for both together: each
 * has a cap of its own, the two add up to the budget, and who is refused first takes over what the
 * other has not used.
 *
 * THREADS  Any. The list of devices is fixed by init; whether pools take allocations is read
 *          without a lock.
 */
#ifndef PLEAT_TORCH_ALLOCATOR_H
#define PLEAT_TORCH_ALLOCATOR_H

#include "devices.h"
#include "forward.h"
#include "found.h"
#include "ipc.h"
#include "registrable.h"
#include "routes.h"
#include "snapshot.h"

#include <c10/core/Allocator.h>
#include <c10/util/ScopeExit.h>

#include <optional>
#include <pthread.h>
#include <thread>

namespace pleat_torch
{

class Allocator final : public Forward
{
  public:
    Allocator(Settings settings, CUDAAllocator *native)
        : Forward(native), devices_(std::move(settings), native, [this](pleat_runtime *made) {
              if (history_.on())
                  pleat_on_freed(made, freed, nullptr);
          })
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
        /* Torch refuses so, whatever a device has. */
        TORCH_CHECK_WITH(OutOfMemoryError, bytes < EXABYTE,
                         "CUDA out of memory. Tried to allocate more than 1EB memory.");
        if (__builtin_expect(uncached(), 0))
            return native_->allocate(bytes);
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
        devices_.init(device_count);
        static const int told = pthread_atfork(nullptr, nullptr, [] {
            if (current != nullptr)
                current->devices_.leave();
        });
        TORCH_CHECK(told == 0, "pleat: no host memory");
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

#ifdef PLEAT_HAS_ENABLE
    /* torch.cuda.caching_allocator_enable(False): each allocation is the device's own, of which
     * torch's allocator keeps no account, and so it serves them. */
    void enable(bool value) override
    {
        native_->enable(value);
        uncached_ = !value;
    }

    bool isEnabled() const override
    {
        return !uncached_;
    }
#endif

    /* ---- limits and caches ---- */

    void setMemoryFraction(double fraction, DeviceIndex device) override
    {
        TORCH_CHECK(fraction >= 0 && fraction <= 1, "the fraction must lie in [0, 1], not ",
                    fraction);
        uint64_t bytes = fraction < 1 ? fraction_of(device, fraction) : 0;
        pleat_runtime *made = devices_.runtime(device);
        devices_.set_limit(at(device), bytes);
        if (Budget::limit_of(at(device)) == 0) {
            Relaxed relaxed(in_capture());
            native_->setMemoryFraction(1.0, device);
            if (pleat_set_budget(made, 0) != PLEAT_OK)
                throw_last("lift the budget");
        } else {
            devices_.budget().give_rest_to_pleat(at(device), device);
        }
    }

#ifdef PLEAT_HAS_MEMORY_FRACTION
    double getMemoryFraction(DeviceIndex device) override
    {
        devices_.take_fraction(device, at(device));
        uint64_t limit = Budget::limit_of(at(device)), total = total_bytes(device);
        return limit == 0 ? 1.0 : static_cast<double>(limit) / static_cast<double>(total);
    }
#endif

#ifdef PLEAT_HAS_EMPTY_POOL
    void emptyCache(MempoolId pool) override
    {
        if (pool.first == 0 && pool.second == 0)
            devices_.empty_caches();
        native_->emptyCache(pool);
        devices_.fold_all();
    }
#else
    void emptyCache() override
    {
        devices_.empty_caches();
        native_->emptyCache();
        devices_.fold_all();
    }
#endif

    /* cudnn.benchmark asks how much it could have at once. */
    void cacheInfo(DeviceIndex device, size_t *largest) override
    {
        size_t free_bytes = 0, total = 0;
        c10::cuda::CUDAGuard guard(device);
        C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
        pleat_stats stats = pleat_stats_of(devices_.runtime(device));
        uint64_t idle = stats.physical_bytes - std::min(stats.live_bytes, stats.physical_bytes);
        uint64_t limit = Budget::limit_of(at(device)),
                 used = stats.live_bytes + devices_.budget().pool_bytes(device);
        uint64_t room = limit == 0 ? UINT64_MAX : limit - std::min(limit, used);
        *largest = std::max<size_t>(*largest, std::min<uint64_t>(free_bytes + idle, room));
    }

    void *getBaseAllocation(void *address, size_t *size) override
    {
        Device *device = devices_.owner(address);
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
        Device *device = devices_.owner(address);
        if (device == nullptr) {
            /* In a private pool. torch's allocator takes note of what carries its own deleter. */
            c10::DataPtr same(address, address, native_->raw_deleter(), data.device());
            try {
                native_->recordStream(same, stream);
            } catch (...) {
                same.release_context();
                throw;
            }
            same.release_context();
            return;
        }
        if (pleat_record_stream(device->runtime, reinterpret_cast<pleat_va>(address),
                                reinterpret_cast<pleat_stream>(stream.stream())) != PLEAT_OK)
            throw_last("record a stream");
    }

    /* ---- private pools: torch's own allocator ---- */

#ifdef PLEAT_HAS_CREATE_POOL
    /* A pool that is made with no allocator of its own for segments has Pleat's. Of one that is
     * there torch takes none. */
    void createOrIncrefPool(DeviceIndex device, MempoolId pool,
                            std::shared_ptr<CUDAAllocator> allocator) override
    {
        bool is_new = routes_.know(device, pool);
        try {
            if (is_new && allocator == nullptr) {
                devices_.prepare_ranges(device);
                allocator = segments_;
            }
            native_->createOrIncrefPool(device, pool, std::move(allocator));
        } catch (...) {
            if (is_new)
                routes_.forget(device, pool);
            throw;
        }
    }
#endif

    void beginAllocateToPool(DeviceIndex device, MempoolId pool,
                             std::function<bool(cudaStream_t)> filter) override
    {
        devices_.give_rest_to_pools(device);
        native_->beginAllocateToPool(device, pool, filter);
        routes_.begin(device, pool, std::move(filter));
    }

    void endAllocateToPool(DeviceIndex device, MempoolId pool) override
    {
        routes_.end(device, pool);
        native_->endAllocateToPool(device, pool);
    }

#if defined(PLEAT_HAS_USE_ON_OOM_FLAG)
    void setUseOnOOM(DeviceIndex device, MempoolId pool, bool use_on_oom) override
    {
        native_->setUseOnOOM(device, pool, use_on_oom);
        if (use_on_oom)
            at(device).pools_lend = true;
    }
#elif defined(PLEAT_HAS_USE_ON_OOM)
    void setUseOnOOM(DeviceIndex device, MempoolId pool) override
    {
        native_->setUseOnOOM(device, pool);
        at(device).pools_lend = true;
    }
#endif

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
        devices_.fold(at(device));
        return delta;
    }

    /* ---- statistics ---- */

    DeviceStats getDeviceStats(DeviceIndex index) override
    {
        DeviceStats stats = native_->getDeviceStats(index);
        Device &device = at(index);
        pleat_stats pleat = {};
        if (device.runtime.load() != nullptr) {
            pleat = devices_.fold(device);
            add_pleat(stats, device, pleat);
        }
        add_refusals(stats, device, pleat);
        return stats;
    }

    void resetAccumulatedStats(DeviceIndex index) override
    {
        native_->resetAccumulatedStats(index);
        Device &device = at(index);
        begin_counting(device,
                       device.runtime.load() != nullptr ? devices_.fold(device) : pleat_stats{});
    }

    void resetPeakStats(DeviceIndex index) override
    {
        native_->resetPeakStats(index);
        Device &device = at(index);
        begin_peaks(device, devices_.fold(device));
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
        watch_frees();
    }
#elif defined(PLEAT_HAS_CLEAR_HISTORY)
    void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t most,
                       caching::RecordContext when, bool clear) override
    {
        native_->recordHistory(enabled, recorder, most, when, clear);
        history_.set(enabled, recorder, most, when, clear, {});
        watch_frees();
    }
#else
    void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t most,
                       caching::RecordContext when) override
    {
        native_->recordHistory(enabled, recorder, most, when);
        history_.set(enabled, recorder, most, when, false, {});
        watch_frees();
    }
#endif

#if defined(PLEAT_HAS_SNAPSHOT_TRACES)
    caching::SnapshotInfo snapshot(MempoolId pool, bool include_traces) override
    {
        return with_pleat(native_->snapshot(pool, include_traces), of_all(pool), include_traces);
    }
#elif defined(PLEAT_HAS_SNAPSHOT_POOL)
    caching::SnapshotInfo snapshot(MempoolId pool) override
    {
        return with_pleat(native_->snapshot(pool), of_all(pool), true);
    }
#else
    caching::SnapshotInfo snapshot() override
    {
        return with_pleat(native_->snapshot(), of_all({0, 0}), true);
    }
#endif

#ifdef PLEAT_HAS_CONTEXT_FOR_POINTER
    Context getContextForPointer(const void *address) override
    {
        return devices_.owner(address) == nullptr
                   ? native_->getContextForPointer(address)
                   : history_.context_of(reinterpret_cast<size_t>(address));
    }
#endif

#ifdef PLEAT_HAS_ANNOTATE_MEMORY
    /* The program notes something of memory that is live: an event of its own in the history. */
    void annotateMemory(const void *address, const std::string &note) override
    {
        Device *device = devices_.owner(address);
        if (device == nullptr) {
            native_->annotateMemory(address, note);
            return;
        }
        pleat_block block;
        if (pleat_block_of(device->runtime, reinterpret_cast<pleat_va>(address), &block) !=
            PLEAT_OK)
            throw_last("annotate memory");
        if (history_.on())
            history_.add(TraceEntry::ANNOTATE, "annotate", devices_.index_of(*device),
                         block.address, block.requested, reinterpret_cast<void *>(block.stream),
                         history_.context(caching::RecordContext::ALLOC), note);
    }
#endif

    /* What a refusal's text says besides: for an observer that is told of it to say. */
    static void set_remedy(const char *text)
    {
        remedy_ = text;
    }

    void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override
    {
        native_->attachOutOfMemoryObserver(
            [observer](int64_t device, size_t bytes, size_t most, size_t free_bytes) {
                if (!asking_)
                    observer(device, bytes, most, free_bytes);
            });
        std::lock_guard<std::mutex> guard(observers_lock_);
        observers_.push_back(std::move(observer));
    }

    /* ---- between devices and processes ---- */

    /* Kernels of `device` want to use `owner`'s memory; torch has asked the driver whether they
     * can.
     */
    void enablePeerAccess(DeviceIndex device, DeviceIndex owner) override
    {
        native_->enablePeerAccess(device, owner);
        devices_.add_peer(owner, device);
    }

    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device,
                            size_t bytes, cudaStream_t stream, bool) override
    {
        /* Mapped memory wants the peer form, which takes every combination. */
        if (to_device != from_device)
            return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }

#ifdef PLEAT_HAS_SHARE_HANDLE
    caching::ShareableHandle shareIpcHandle(void *address) override
    {
        Device *device = devices_.owner(address);
        if (device == nullptr)
            return native_->shareIpcHandle(address);
        auto [offset, handle] = sender_.share(device->runtime, reinterpret_cast<pleat_va>(address));
        return {offset, handle};
    }
#endif

    std::shared_ptr<void> getIpcDevPtr(std::string handle) override
    {
        std::optional<SharedMemory> shared = SharedMemory::parse(handle);
        if (!shared)
            return native_->getIpcDevPtr(std::move(handle));
        return receiver_.open(devices_.runtime(c10::cuda::current_device()), handle, *shared);
    }

    /* ---- Pleat's own, for the functions below ---- */

    Devices &devices()
    {
        return devices_;
    }

    Found &found()
    {
        return found_;
    }

    /* Whether a graph may go on using the addresses of live tensors. */
    bool has_captured() const
    {
        return captured_.load();
    }

    /* Bytes that were asked for of the allocation in Pleat's window that holds an address; 0: none
     * does. */
    size_t requested(const void *address)
    {
        Device *device = devices_.owner(address);
        pleat_block block = {};
        return device != nullptr &&
                       pleat_block_of(device->runtime, reinterpret_cast<pleat_va>(address),
                                      &block) == PLEAT_OK
                   ? block.requested
                   : 0;
    }

    /* Memory that the driver lets other processes open; NULL: there is none. The current device's,
     * in the order of its current stream. */
    void *take_to_send(size_t bytes)
    {
        DeviceIndex index = c10::cuda::current_device();
        void *address =
            ask_native_within(at(index), index, bytes, c10::cuda::getCurrentCUDAStream(index));
        if (address != nullptr)
            found_.taken(address, bytes);
        return address;
    }

  private:
    /* Whether a snapshot shows all memory, or a pool's alone: torch 2.6 and 2.7 name the pool by a
     * context. */
    static bool of_all(MempoolId pool)
    {
#ifdef PLEAT_HAS_MEMPOOL_CONTEXT
        if (c10::cuda::MemPoolContext::getActiveMemPool() != nullptr)
            return false;
#endif
        return pool.first == 0 && pool.second == 0;
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
        return devices_.at(index);
    }

    bool uncached() const
    {
        return uncached_.load(std::memory_order_relaxed);
    }

    static void freed(void *, pleat_va address)
    {
        current->history_.freed(address);
    }

    void watch_frees()
    {
        for (size_t i = 0; i < devices_.count(); i++) {
            pleat_runtime *made = devices_.runtime_or_null(i);
            if (made != nullptr)
                pleat_on_freed(made, history_.on() ? freed : nullptr, nullptr);
        }
    }

    /* torch's profiler wants to hear of memory. */
    void tell_profiler(DeviceIndex index, void *address, int64_t bytes)
    {
        if (__builtin_expect(!c10::memoryProfilingEnabled(), 1))
            return;
        auto [live, physical] = held(index);
        c10::reportMemoryUsageToProfiler(address, bytes, live, physical,
                                         c10::Device(c10::DeviceType::CUDA, index));
    }

    /* Bytes allocated, and taken of the device, by both allocators. */
    std::pair<size_t, size_t> held(DeviceIndex index)
    {
        Device &device = at(index);
        pleat_stats now = pleat_stats_of(device.runtime);
        std::lock_guard<std::mutex> guard(device.stats_lock);
        return {now.live_bytes + device.pool.live, now.physical_bytes + device.pool.physical};
    }

    void *take(DeviceIndex index, size_t bytes, cudaStream_t stream)
    {
        if (__builtin_expect(uncached(), 0))
            return native_->raw_alloc_with_stream(bytes, stream);
        Device &device = at(index);
        if (in_capture() && routes_.takes(index, stream))
            return take_in_pool(device, index, bytes, stream);
        if (Found::Use use = found_.wanted(bytes); __builtin_expect(use != Found::NOTHING, 0)) {
            void *address = take_elsewhere(device, index, bytes, stream, use);
            if (address != nullptr)
                return address;
        }
        Relaxed relaxed(in_capture());
        pleat_va address;
        pleat_result result = pleat_alloc(devices_.runtime(index), bytes,
                                          reinterpret_cast<pleat_stream>(stream), &address);
        if (__builtin_expect(result != PLEAT_OK, 0)) {
            bool noted = false;
            void *borrowed = borrow(device, bytes, stream, result, noted);
            if (borrowed == nullptr)
                refuse(index, bytes, stream, result, noted);
            return borrowed;
        }
        device.allocated_bytes.fetch_add(rounded(bytes), std::memory_order_relaxed);
        if (__builtin_expect(history_.on(), 0))
            history_.add(TraceEntry::ALLOC, "alloc", index, address, bytes, stream,
                         history_.context(caching::RecordContext::STATE), metadata());
        tell_profiler(index, reinterpret_cast<void *>(address), static_cast<int64_t>(bytes));
        return reinterpret_cast<void *>(address);
    }

    /* Of torch's own allocator, which gives its caches back before it refuses. */
    void *take_of_native(Device &device, size_t bytes, cudaStream_t stream)
    {
        try {
            void *address = native_->raw_alloc_with_stream(bytes, stream);
            devices_.fold(device);
            return address;
        } catch (...) {
            devices_.fold(device);
            throw;
        }
    }

    /* The same; NULL where it has no memory. No observer is told: there is more to try. */
    void *ask_native(Device &device, size_t bytes, cudaStream_t stream)
    {
        asking_ = true;
        try {
            void *address = take_of_native(device, bytes, stream);
            asking_ = false;
            return address;
        } catch (const c10::OutOfMemoryError &) {
            asking_ = false;
            device.untold_ooms++;
            return nullptr;
        } catch (...) {
            asking_ = false;
            throw;
        }
    }

    void *take_in_pool(Device &device, DeviceIndex index, size_t bytes, cudaStream_t stream)
    {
        note_capture(stream);
        void *address = ask_native(device, bytes, stream);
        if (address == nullptr) {
            devices_.give_rest_to_pools(index);
            address = ask_native(device, bytes, stream);
        }
        if (address != nullptr)
            return address;
        make_room_for_pools(device, index);
        return take_of_native(device, bytes, stream);
    }

    void note_capture(cudaStream_t stream)
    {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        if (captured_.load(std::memory_order_relaxed))
            return;
        C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
        if (status != cudaStreamCaptureStatusNone)
            captured_ = true;
    }

    /* What Pleat has cached may be what a pool needs. pre: the device has its runtime. */
    void make_room_for_pools(Device &device, DeviceIndex index)
    {
        Relaxed relaxed;
        if (pleat_empty_cache(device.runtime) == PLEAT_OK)
            devices_.give_rest_to_pools(index);
    }

    /* Of torch's allocator, within the budget; NULL: it has no memory. */
    void *ask_native_within(Device &device, DeviceIndex index, size_t bytes, cudaStream_t stream)
    {
        devices_.give_rest_to_pools(index);
        void *address = ask_native(device, bytes, stream);
        if (address != nullptr)
            return address;
        make_room_for_pools(device, index);
        return ask_native(device, bytes, stream);
    }

    /* What was found to be sent or registered; NULL: Pleat serves it. */
    void *take_elsewhere(Device &device, DeviceIndex index, size_t bytes, cudaStream_t stream,
                         Found::Use use)
    {
        void *address = use == Found::SENT ? ask_native_within(device, index, bytes, stream)
                                           : take_to_register(device, index, bytes, stream);
        if (address != nullptr)
            found_.taken(address, bytes);
        return address;
    }

    /* From a private pool of Pleat's own, whose segments can be registered. */
    void *take_to_register(Device &device, DeviceIndex index, size_t bytes, cudaStream_t stream)
    {
#ifdef PLEAT_HAS_CREATE_POOL
        std::lock_guard<std::mutex> guard(device.registered_lock);
        if (!device.has_registered) {
            createOrIncrefPool(index, REGISTERED_POOL, nullptr);
            device.has_registered = true;
        }
        std::thread::id self = std::this_thread::get_id();
        native_->beginAllocateToPool(index, REGISTERED_POOL, [self](cudaStream_t) {
            return std::this_thread::get_id() == self;
        });
        /* Whatever is thrown, too: an open pool would take this thread's other requests. */
        auto closed = c10::make_scope_exit([&] {
            native_->endAllocateToPool(index, REGISTERED_POOL);
            native_->releasePool(index, REGISTERED_POOL);
        });
        return ask_native_within(device, index, bytes, stream);
#else
        (void)device, (void)index, (void)bytes, (void)stream;
        return nullptr;
#endif
    }

    /* Pools made to be used before memory is refused (torch.cuda.MemPool(use_on_oom=True)) serve
     * requests of torch's allocator that it has no memory for, and so this one. NULL: they cannot;
     * `noted`: the refusal is in torch's own history. */
    void *borrow(Device &device, size_t bytes, cudaStream_t stream, pleat_result result,
                 bool &noted)
    {
        if (!device.pools_lend || (result != PLEAT_E_OUT_OF_MEMORY && result != PLEAT_E_BUDGET))
            return nullptr;
        void *address = ask_native(device, bytes, stream);
        noted = address == nullptr;
        if (!noted)
            device.untold_ooms++; /* Pleat's */
        return address;
    }

    [[noreturn]] void refuse(DeviceIndex device, size_t bytes, cudaStream_t stream,
                             pleat_result result, bool noted)
    {
        std::string text = pleat_last_error()->text;
        size_t free_bytes = 0, total = 0;
        {
            c10::cuda::CUDAGuard guard(device);
            C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
        }
        /* What is larger than the device Pleat may refuse for another reason: no window is so wide.
         */
        if (result != PLEAT_E_OUT_OF_MEMORY && result != PLEAT_E_BUDGET && bytes <= total)
            TORCH_CHECK(false, "pleat: allocate: ", text, " (", pleat_result_name(result), ")");
        if (history_.on() && !noted)
            history_.add(TraceEntry::OOM, "oom", device, free_bytes, bytes, stream,
                         history_.context(caching::RecordContext::STATE), metadata());
        auto [live, physical] = held(device);
        c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), live, physical,
                                         c10::Device(c10::DeviceType::CUDA, device));
        std::vector<caching::OutOfMemoryObserver> observers;
        {
            std::lock_guard<std::mutex> guard(observers_lock_);
            observers = observers_;
        }
        uint64_t limit = Budget::limit_of(at(device));
        remedy_.clear();
        for (const caching::OutOfMemoryObserver &observer : observers)
            observer(device, bytes, limit == 0 ? total : limit, free_bytes);
        std::string message = "CUDA out of memory. Tried to allocate " + size(bytes) + ". GPU " +
                              std::to_string(static_cast<int>(device)) +
                              " has a total capacity of " + size(total) + " of which " +
                              size(free_bytes) + " is free. Pleat: " + text;
        if (!remedy_.empty())
            message += ". " + remedy_;
        TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    }

    void give(void *address)
    {
        if (address == nullptr)
            return;
        Device *device = devices_.owner(address);
        if (__builtin_expect(device == nullptr, 0)) {
            if (devices_.left())
                return;
            found_.freed(address);
            native_->raw_delete(address);
            devices_.fold_all();
            return;
        }
        Relaxed relaxed(in_capture());
        if (__builtin_expect(history_.follows_frees() || c10::memoryProfilingEnabled(), 0))
            note_free(*device, reinterpret_cast<pleat_va>(address));
        sender_.forget(reinterpret_cast<pleat_va>(address));
        if (pleat_free(device->runtime, reinterpret_cast<pleat_va>(address)) != PLEAT_OK)
            throw_last("free");
    }

    void note_free(Device &device, pleat_va address)
    {
        pleat_block block;
        if (pleat_block_of(device.runtime, address, &block) != PLEAT_OK)
            return; /* the free itself says what is wrong */
        DeviceIndex index = devices_.index_of(device);
        if (history_.follows_frees())
            history_.give_up(index, address, block.requested,
                             reinterpret_cast<void *>(block.stream),
                             history_.context(caching::RecordContext::ALL), metadata());
        tell_profiler(index, reinterpret_cast<void *>(address),
                      -static_cast<int64_t>(block.requested));
    }

    /* ---- snapshots ---- */

    caching::SnapshotInfo with_pleat(caching::SnapshotInfo info, bool segments, bool traces)
    {
        for (size_t i = 0; i < devices_.count(); i++) {
            pleat_runtime *made = devices_.runtime_or_null(i);
            auto index = static_cast<DeviceIndex>(i);
            if (made != nullptr && segments)
                add_segments(info, made, index, history_);
            if (traces) {
                if (info.device_traces.size() <= i)
                    info.device_traces.resize(i + 1);
                merge(info.device_traces[i], history_.entries(index));
            }
        }
        return info;
    }

    static constexpr size_t EXABYTE = size_t(1) << 60;
    std::atomic<bool> uncached_{false}, captured_{false};
    static inline thread_local bool asking_ = false; /* ask_native() is */
    static inline thread_local std::string remedy_;  /* of the refusal that observers hear of */

    Devices devices_;
    Sender sender_;
    Receiver receiver_;
    History history_;
    std::mutex observers_lock_;
    std::vector<caching::OutOfMemoryObserver> observers_;
    Routes routes_;
    std::shared_ptr<CUDAAllocator> segments_ = make_segments(devices_);
    Found found_;

    /* No pool of torch's or of the program's: those count from 0. */
    static constexpr MempoolId REGISTERED_POOL = {UINT64_MAX, UINT64_MAX};
};

inline Allocator *Allocator::current = nullptr;

} // namespace pleat_torch

#endif
