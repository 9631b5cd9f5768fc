/*
 * fake_torch.h: what the shim needs of torch's CUDA libraries, for tests without them: devices and
 * streams that are numbers, and an allocator in the place of torch's own, whose memory is the
 * host's. Everything else of torch is its own.
 */
#ifndef PLEAT_TESTS_PYTORCH_FAKE_TORCH_H
#define PLEAT_TESTS_PYTORCH_FAKE_TORCH_H

#include "allocator.h"

#include <cstdlib>
#include <map>
#include <mutex>

namespace fake
{

namespace caching = c10::cuda::CUDACachingAllocator;
using pleat_torch::DeviceIndex;
using pleat_torch::MempoolId;

inline thread_local DeviceIndex device = 0;
inline thread_local c10::StreamId stream = 0;
inline size_t free_bytes = size_t(60) << 30, total_bytes = size_t(80) << 30;
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
inline thread_local int relaxed = 0;                    /* times that it became so */
inline std::atomic<double> *process_fraction = nullptr; /* torch's setting */
inline bool capturing = false;                          /* any stream is */
inline int synchronized = 0;                            /* times that a device was waited for */

/* As much of torch's own allocator as the shim asks. */
class Native : public pleat_torch::Pluggable
{
  public:
    Native() : CUDAPluggableAllocator({}, {})
    {
    }

    std::map<void *, size_t> live;
    bool caches = false; /* keeps what is freed, until it is told not to or refuses a request */
    size_t cached = 0;
    std::recursive_mutex lock; /* torch's holds one while it looks for memory, too */
    std::atomic<int> asked{0};
    bool enabled = true;
    int failing = 0; /* requests from now on that find no memory */
    int ooms = 0;
    int broken = 0; /* questions about limits from now on that fail */
    bool loses_streams = false;
    bool refuses_pools = false;
    double fraction = 1;
    std::vector<caching::OutOfMemoryObserver> observers;
    pleat_torch::History history; /* of refusals */

    void *raw_alloc(size_t bytes) override
    {
        return raw_alloc_with_stream(bytes, nullptr);
    }

    void enable(bool value) override
    {
        enabled = value;
    }

    void *raw_alloc_with_stream(size_t bytes, cudaStream_t) override
    {
        if (failing > 0) {
            failing--;
            ooms++;
            cached = 0;
            history.add(caching::TraceEntry::OOM, "oom", device, free_bytes, bytes, nullptr,
                        nullptr, "");
            for (const caching::OutOfMemoryObserver &observer : observers)
                observer(device, bytes, total_bytes, free_bytes);
            TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory: the fake's");
        }
        void *address = nullptr;
        auto open = std::find_if(pools.begin(), pools.end(), [](auto &one) {
            return one.second.open && one.second.takes(nullptr);
        });
        if (open != pools.end() && open->second.segments != nullptr) {
            address = open->second.segments->raw_alloc(bytes);
            TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "CUDA out of memory: a pool's");
            segments[address] = open->second.segments;
        } else {
            address = std::malloc(bytes);
        }
        live[address] = bytes;
        return address;
    }

    /* A pool that was made; its allocations are segments of their own. */
    struct Pool {
        int uses = 0;
        bool open = false;
        std::function<bool(cudaStream_t)> takes;
        std::shared_ptr<CUDAAllocator> segments;
    };

    std::map<MempoolId, Pool> pools;
    std::map<void *, std::shared_ptr<CUDAAllocator>> segments;

    void createOrIncrefPool(DeviceIndex, MempoolId id,
                            std::shared_ptr<CUDAAllocator> allocator) override
    {
        TORCH_CHECK(allocator == nullptr || pools[id].uses == 0, "the fake has that pool");
        if (allocator != nullptr)
            pools[id].segments = allocator;
        pools[id].uses++;
    }

    int getPoolUseCount(DeviceIndex, MempoolId id) override
    {
        TORCH_CHECK(pools.count(id) != 0, "the fake has no such pool");
        return pools[id].uses;
    }

    c10::DataPtr allocate(size_t bytes) override
    {
        void *address = raw_alloc(bytes);
        return {address, address, raw_deleter(), c10::Device(c10::DeviceType::CUDA, device)};
    }

    void raw_delete(void *address) override
    {
        auto found = live.find(address);
        TORCH_CHECK(found != live.end(), "the fake has no ", address);
        cached += caches ? found->second : 0;
        live.erase(found);
        auto segment = segments.find(address);
        if (segment == segments.end()) {
            std::free(address);
            return;
        }
        std::shared_ptr<CUDAAllocator> from = segment->second;
        segments.erase(segment);
        from->raw_delete(address);
    }

    static void freed(void *address);

    c10::DeleterFnPtr raw_deleter() const override
    {
        return freed;
    }

    void init(int) override
    {
    }

    bool initialized() override
    {
        return true;
    }

    double getMemoryFraction(DeviceIndex) override
    {
        return fraction;
    }

    void setMemoryFraction(double value, DeviceIndex) override
    {
        if (broken > 0) {
            broken--;
            TORCH_CHECK(false, "the fake is broken");
        }
        fraction = value;
    }

    std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override
    {
        return {};
    }

    void emptyCache(MempoolId) override
    {
        cached = 0;
    }

    void cacheInfo(DeviceIndex, size_t *) override
    {
    }

    void *getBaseAllocation(void *address, size_t *) override
    {
        return address;
    }

    void recordStream(const c10::DataPtr &, c10::cuda::CUDAStream) override
    {
        TORCH_CHECK(!loses_streams, "the fake takes no stream");
    }

    caching::DeviceStats getDeviceStats(DeviceIndex) override
    {
        asked++;
        std::lock_guard<std::recursive_mutex> guard(lock);
        caching::DeviceStats stats;
        size_t bytes = 0;
        for (auto [address, one] : live)
            bytes += one;
        stats.allocated_bytes[0].current = stats.requested_bytes[0].current =
            static_cast<int64_t>(bytes);
        stats.reserved_bytes[0].current = static_cast<int64_t>(bytes + cached);
        stats.num_ooms = ooms;
        return stats;
    }

    void resetAccumulatedStats(DeviceIndex) override
    {
        ooms = 0;
    }

    void resetPeakStats(DeviceIndex) override
    {
    }

    caching::SnapshotInfo snapshot(MempoolId, bool) override
    {
        caching::SnapshotInfo info;
        info.device_traces.push_back(history.entries(0));
        return info;
    }

    void beginAllocateToPool(DeviceIndex, MempoolId id,
                             std::function<bool(cudaStream_t)> takes) override
    {
        TORCH_CHECK(!refuses_pools && !pools[id].open, "the fake has that pool open");
        pools[id].open = true;
        pools[id].takes = std::move(takes);
        pools[id].uses++;
    }

    void endAllocateToPool(DeviceIndex, MempoolId id) override
    {
        pools[id].open = false;
    }

    void setUseOnOOM(DeviceIndex, MempoolId, bool) override
    {
    }

    void releasePool(DeviceIndex, MempoolId id) override
    {
        if (--pools[id].uses == 0)
            pools.erase(id);
    }

    std::shared_ptr<void> getIpcDevPtr(std::string) override
    {
        return nullptr;
    }

    caching::ShareableHandle shareIpcHandle(void *) override
    {
        return {};
    }

#ifdef PLEAT_HAS_METADATA_SUPPORTED
    bool supportsUserMetadata() override
    {
        return true;
    }
#endif

#ifdef PLEAT_HAS_ANNOTATE_MEMORY
    std::vector<std::pair<const void *, std::string>> notes;

    void annotateMemory(const void *address, const std::string &note) override
    {
        notes.emplace_back(address, note);
    }
#endif

    void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t most,
                       caching::RecordContext when, bool clear,
                       const std::vector<std::string> &skipped) override
    {
        history.set(enabled, recorder, most, when, clear, skipped);
    }

    void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override
    {
        observers.push_back(std::move(observer));
    }

    void attachOomRejectionObserver(caching::OomRejectionObserver) override
    {
    }

    void attachAllocatorTraceTracker(caching::AllocatorTraceTracker) override
    {
    }

    std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex, MempoolId) override
    {
        return nullptr;
    }

    caching::CheckpointDelta
    setCheckpointPoolState(DeviceIndex, std::shared_ptr<caching::AllocatorState>) override
    {
        return {};
    }

    void enablePeerAccess(DeviceIndex, DeviceIndex) override
    {
    }

    cudaError_t memcpyAsync(void *, int, const void *, int, size_t, cudaStream_t, bool) override
    {
        return cudaSuccess;
    }

    std::string name() override
    {
        return "fake";
    }
};

/* What a program makes of two functions. */
class Custom final : public Native
{
  public:
    Custom(std::function<void *(size_t, int, cudaStream_t)> alloc,
           std::function<void(void *, size_t, int, cudaStream_t)> free)
        : alloc_(std::move(alloc)), free_(std::move(free))
    {
    }

    void *raw_alloc(size_t bytes) override
    {
        return alloc_(bytes, device, nullptr);
    }

    void raw_delete(void *address) override
    {
        free_(address, 0, device, nullptr);
    }

  private:
    std::function<void *(size_t, int, cudaStream_t)> alloc_;
    std::function<void(void *, size_t, int, cudaStream_t)> free_;
};

inline Native native;

inline void Native::freed(void *address)
{
    native.raw_delete(address);
}

inline c10::cuda::CUDAStream stream_of(c10::StreamId id)
{
    return c10::cuda::CUDAStream(
        c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, device), id));
}

} // namespace fake

/* ---- torch's CUDA libraries ---- */

namespace torch::cuda::CUDAPluggableAllocator
{
std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>
createCustomAllocator(std::function<void *(size_t, int, cudaStream_t)> alloc,
                      std::function<void(void *, size_t, int, cudaStream_t)> free)
{
    return std::make_shared<fake::Custom>(std::move(alloc), std::move(free));
}
} // namespace torch::cuda::CUDAPluggableAllocator

namespace c10
{
C10_DEFINE_REGISTRY(FreeCudaMemoryCallbacksRegistry, FreeMemoryCallback)
} // namespace c10

namespace c10::cuda
{
namespace CUDACachingAllocator
{
std::atomic<CUDAAllocator *> allocator{&fake::native};

void CUDAAllocatorConfig::parseArgs(const std::string &)
{
    fake::process_fraction = &m_per_process_memory_fraction;
}
} // namespace CUDACachingAllocator

DeviceIndex device_count() noexcept
{
    return 1;
}

DeviceIndex current_device()
{
    return fake::device;
}

cudaError_t GetDevice(DeviceIndex *device)
{
    *device = fake::device;
    return cudaSuccess;
}

cudaError_t SetDevice(DeviceIndex device, bool)
{
    fake::device = device;
    return cudaSuccess;
}

cudaError_t MaybeSetDevice(DeviceIndex device)
{
    return SetDevice(device, false);
}

DeviceIndex ExchangeDevice(DeviceIndex device)
{
    return std::exchange(fake::device, device);
}

CUDAStream getStreamFromPool(bool, DeviceIndex)
{
    return fake::stream_of(0);
}

CUDAStream getStreamFromPool(int, DeviceIndex)
{
    return fake::stream_of(0);
}

CUDAStream getDefaultCUDAStream(DeviceIndex)
{
    return fake::stream_of(0);
}

CUDAStream getCurrentCUDAStream(DeviceIndex)
{
    return fake::stream_of(fake::stream);
}

void setCurrentCUDAStream(CUDAStream stream)
{
    fake::stream = stream.id();
}

cudaStream_t CUDAStream::stream() const
{
    return reinterpret_cast<cudaStream_t>(id());
}

bool CUDAStream::query() const
{
    return true;
}

void CUDAStream::synchronize() const
{
}

#ifdef PLEAT_FAKE_ERROR_LOG /* of newer torch alone */
CUDAErrorLogCapture::CUDAErrorLogCapture() noexcept = default;

void c10_cuda_check_implementation(const int32_t error, const char *, const char *, const uint32_t,
                                   const bool, CUDAErrorLogCapture *)
#else
void c10_cuda_check_implementation(const int32_t error, const char *, const char *, const uint32_t,
                                   const bool)
#endif
{
    TORCH_CHECK(error == 0, "CUDA error ", error);
}
} // namespace c10::cuda

extern "C" {
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = fake::free_bytes;
    *total = fake::total_bytes;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(fake::capture_mode, *mode);
    fake::relaxed += fake::capture_mode == cudaStreamCaptureModeRelaxed;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    fake::synchronized++;
    return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t)
{
    return "the fake's";
}

/* Not asked for by any test, those below. */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaEventDestroy(cudaEvent_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaEventElapsedTime(float *, cudaEvent_t, cudaEvent_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaEventQuery(cudaEvent_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t)
{
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *, int, const void *, int, size_t, cudaStream_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status)
{
    *status = fake::capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned)
{
    return cudaErrorNotSupported;
}
} // extern "C"

#endif
