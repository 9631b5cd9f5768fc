/*
 * history.h: what happened to memory, kept as torch's own trace entries for its snapshots.
 *
 * One ring a device, of as many entries as the user asked for: the oldest are lost first. The stack
 * of each live allocation is kept beside it, for the blocks of a snapshot, until that is freed: as
 * in torch's allocator also where what happened is cleared, or nothing is recorded any more.
 *
 * THREADS  Any: one lock. Whether anything is recorded, and with which stacks, is read without it.
 */
#ifndef PLEAT_TORCH_HISTORY_H
#define PLEAT_TORCH_HISTORY_H

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace pleat_torch
{

namespace caching = c10::cuda::CUDACachingAllocator;
using caching::TraceEntry;
using Context = std::shared_ptr<c10::GatheredContext>;

class History
{
  public:
    bool on() const
    {
        return on_.load(std::memory_order_relaxed);
    }

    void set(bool enabled, caching::CreateContextFn recorder, size_t most,
             caching::RecordContext when, bool clear, const std::vector<std::string> &skipped)
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (clear || !enabled)
            rings_.clear();
        if (!enabled) { /* and nobody says when these frees are complete */
            for (const auto &[address, free] : waiting_)
                forget(address);
            waiting_.clear();
        }
        recorder_ = enabled ? recorder : nullptr;
        when_ = when;
        limit(std::max<size_t>(1, most));
        skipped_ = skipped;
        on_.store(enabled, std::memory_order_relaxed);
    }

    /* Whether frees are to be told: give_up(). */
    bool follows_frees() const
    {
        return on() || keeps_.load(std::memory_order_relaxed);
    }

    /* The calling program's stack where it is wanted for events of this kind. Before any lock: it
     * may take Python's. */
    Context context(caching::RecordContext wanted_from) const
    {
        caching::CreateContextFn recorder = recorder_.load();
        return recorder != nullptr && when_.load() >= wanted_from ? recorder() : nullptr;
    }

    void add(TraceEntry::Action action, const char *name, c10::DeviceIndex device, size_t address,
             size_t bytes, void *stream, const Context &context, const std::string &metadata)
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (!on())
            return;
        if (action == TraceEntry::ALLOC && context != nullptr)
            keep(address, context);
        else if (action == TraceEntry::FREE_COMPLETED)
            forget(address);
        if (std::find(skipped_.begin(), skipped_.end(), name) != skipped_.end())
            return;
        Ring &ring = rings_[device];
        /* Else stacks were asked for of what is live alone. */
        bool kept = when_ >= caching::RecordContext::ALLOC;
        TraceEntry entry =
            make(action, device, address, bytes, stream, kept ? context : nullptr, metadata);
        if (ring.entries.size() < most_)
            ring.entries.push_back(std::move(entry));
        else
            ring.entries[ring.next++ % most_] = std::move(entry);
    }

    /* The program gives memory up: freed() comes when it may be used again. */
    void give_up(c10::DeviceIndex device, size_t address, size_t bytes, void *stream,
                 const Context &context, const std::string &metadata)
    {
        add(TraceEntry::FREE_REQUESTED, "free_requested", device, address, bytes, stream, context,
            metadata);
        std::lock_guard<std::mutex> guard(lock_);
        if (on())
            waiting_[address] = {device, bytes, stream, context, metadata};
        else
            forget(address);
    }

    void freed(size_t address)
    {
        Free free;
        {
            std::lock_guard<std::mutex> guard(lock_);
            auto found = waiting_.find(address);
            if (found == waiting_.end())
                return;
            free = std::move(found->second);
            waiting_.erase(found);
        }
        add(TraceEntry::FREE_COMPLETED, "free_completed", free.device, address, free.bytes,
            free.stream, free.context, free.metadata);
    }

    /* Oldest first, with Unix times. */
    std::vector<TraceEntry> entries(c10::DeviceIndex device)
    {
        std::lock_guard<std::mutex> guard(lock_);
        std::vector<TraceEntry> all;
        auto found = rings_.find(device);
        if (found == rings_.end())
            return all;
        const Ring &ring = found->second;
        size_t oldest = oldest_of(ring);
        auto convert = clock_.makeConverter();
        for (size_t i = 0; i < ring.entries.size(); i++) {
            all.push_back(ring.entries[(oldest + i) % ring.entries.size()]);
            all.back().time_.t_ = convert(all.back().time_.approx_t_) / 1000;
        }
        return all;
    }

    Context context_of(size_t address)
    {
        std::lock_guard<std::mutex> guard(lock_);
        auto found = contexts_.find(address);
        return found == contexts_.end() ? nullptr : found->second;
    }

  private:
    struct Ring {
        std::vector<TraceEntry> entries;
        size_t next = 0; /* the oldest one, once the ring is full */
    };

    /* Asked for, not complete. */
    struct Free {
        c10::DeviceIndex device = 0;
        size_t bytes = 0;
        void *stream = nullptr;
        Context context;
        std::string metadata;
    };

    /* The oldest entry comes to the front, where it is in any ring; of more than `most` the newest
     * stay. */
    void limit(size_t most)
    {
        for (auto &[device, ring] : rings_) {
            auto &entries = ring.entries;
            std::rotate(entries.begin(), entries.begin() + oldest_of(ring), entries.end());
            if (entries.size() > most)
                entries.erase(entries.begin(), entries.end() - most);
            ring.next = 0;
        }
        most_ = most;
    }

    std::ptrdiff_t oldest_of(const Ring &ring) const
    {
        return ring.entries.size() < most_ ? 0 : ring.next % ring.entries.size();
    }

    void keep(size_t address, const Context &context)
    {
        contexts_[address] = context;
        keeps_ = true;
    }

    void forget(size_t address)
    {
        contexts_.erase(address);
        keeps_ = !contexts_.empty();
    }

    /* A template, so that the branches not taken need not compile. */
    template <typename Entry = TraceEntry>
    static Entry make(typename Entry::Action action, c10::DeviceIndex device, size_t address,
                      size_t bytes, void *stream, const Context &context,
                      const std::string &metadata)
    {
        using Action = typename Entry::Action;
        using Time = c10::approx_time_t;
        using Pool = c10::cuda::MempoolId_t;
        using Index = c10::DeviceIndex;
        auto time = c10::getApproximateTime();
        auto on = static_cast<cudaStream_t>(stream);
        /* The newest constructor first: arguments were added over time. */
        if constexpr (std::is_constructible_v<Entry, Action, Index, size_t, size_t, cudaStream_t,
                                              Pool, Time, Context, std::string, std::string>)
            return Entry(action, device, address, bytes, on, Pool{0, 0}, time, context,
                         std::string(), metadata);
        else if constexpr (std::is_constructible_v<Entry, Action, Index, size_t, size_t,
                                                   cudaStream_t, Pool, Time, Context>)
            return Entry(action, device, address, bytes, on, Pool{0, 0}, time, context);
        else
            return Entry(action, device, address, bytes, on, time, context);
    }

    mutable std::mutex lock_;
    std::atomic<bool> on_{false};
    std::atomic<caching::CreateContextFn> recorder_{nullptr}; /* NULL where nothing is recorded */
    std::atomic<caching::RecordContext> when_{caching::RecordContext::NEVER};
    size_t most_ = 1;
    std::vector<std::string> skipped_;
    std::map<c10::DeviceIndex, Ring> rings_;
    std::unordered_map<size_t, Context> contexts_;
    std::atomic<bool> keeps_{false}; /* any of them */
    std::unordered_map<size_t, Free> waiting_;
    c10::ApproximateClockToUnixTimeConverter clock_;
};

} // namespace pleat_torch

#endif
