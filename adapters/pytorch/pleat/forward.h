/*
 * forward.h: what torch's own allocator answers alone: private pools that exist, notes for
 * snapshots, listeners. Each call is passed on as it came.
 */
#ifndef PLEAT_TORCH_FORWARD_H
#define PLEAT_TORCH_FORWARD_H

#include "device.h"

namespace pleat_torch
{

class Forward : public Pluggable
{
  public:
    explicit Forward(CUDAAllocator *native)
        : Pluggable([](size_t, int, cudaStream_t) -> void * { return nullptr; },
                    [](void *, size_t, int, cudaStream_t) {}),
          native_(native)
    {
    }

    /* ---- private pools ---- */

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

#ifdef PLEAT_HAS_POOL_USE_COUNT
    int getPoolUseCount(DeviceIndex device, MempoolId pool) override
    {
        return native_->getPoolUseCount(device, pool);
    }
#endif
#ifdef PLEAT_HAS_ENSURE_POOL_FROM
    void ensureExistsAndIncrefPool(DeviceIndex device, MempoolId pool) override
    {
        native_->ensureExistsAndIncrefPool(device, pool);
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

    /* ---- snapshots ---- */

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
#ifdef PLEAT_HAS_METADATA_SUPPORTED
    bool supportsUserMetadata() override
    {
        return native_->supportsUserMetadata();
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

    /* ---- listeners ---- */

#ifdef PLEAT_HAS_REJECTION_OBSERVER
    void attachOomRejectionObserver(caching::OomRejectionObserver observer) override
    {
        native_->attachOomRejectionObserver(std::move(observer));
    }
#endif

    /* Trackers register segments with communication libraries: those of pools alone
     * (registrable.h), since what backs a part of Pleat's window may change. */
    void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override
    {
        native_->attachAllocatorTraceTracker(std::move(tracker));
    }

  protected:
    CUDAAllocator *native_;
};

} // namespace pleat_torch

#endif
