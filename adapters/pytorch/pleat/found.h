/*
 * found.h: what a program does with memory that Pleat's window cannot do: send it to a process that
 * is not under Pleat, or register it with a communication library. The first time shows the size;
 * from then on requests of that size are served elsewhere, as long as most of them are used so.
 *
 * Each size has a score: one more for each allocation that was used so, one less for each that was
 * freed and never was; below 0 the size is forgotten.
 *
 * THREADS Any. wanted() takes no lock.
 */
#ifndef PLEAT_TORCH_FOUND_H
#define PLEAT_TORCH_FOUND_H

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace pleat_torch
{

class Found
{
  public:
    enum Use : unsigned { NOTHING = 0, SENT = 1, REGISTERED = 2 };

    Use wanted(size_t bytes) const
    {
        if (__builtin_expect(!any_.load(std::memory_order_relaxed), 1))
            return NOTHING;
        uint64_t entry = table_[slot(bytes)].load(std::memory_order_relaxed);
        return entry >> 2 == bytes ? static_cast<Use>(entry & 3) : NOTHING;
    }

    /* Memory of the window of that size was used so: the next is not to come from there. Of two
     * sizes that share a slot of the table the later one has it. */
    void met(size_t bytes, Use use)
    {
        std::lock_guard<std::mutex> guard(lock_);
        std::atomic<uint64_t> &entry = table_[slot(bytes)];
        if (entry.load() != (uint64_t(bytes) << 2 | use))
            scores_[slot(bytes)] = 0;
        entry.store(uint64_t(bytes) << 2 | use);
        raise(slot(bytes));
        any_.store(true);
    }

    /* It was allocated elsewhere. */
    void taken(const void *address, size_t bytes)
    {
        std::lock_guard<std::mutex> guard(lock_);
        live_[address] = {bytes, false};
        tracks_.store(true);
    }

    /* And is used so. */
    void used(const void *address)
    {
        if (!tracks_.load(std::memory_order_relaxed))
            return;
        std::lock_guard<std::mutex> guard(lock_);
        auto found = live_.find(address);
        if (found == live_.end() || found->second.used)
            return;
        found->second.used = true;
        if (has(found->second.bytes))
            raise(slot(found->second.bytes));
    }

    void freed(const void *address)
    {
        if (__builtin_expect(!tracks_.load(std::memory_order_relaxed), 1))
            return;
        std::lock_guard<std::mutex> guard(lock_);
        auto found = live_.find(address);
        if (found == live_.end())
            return;
        size_t bytes = found->second.bytes;
        bool used = found->second.used;
        live_.erase(found);
        if (!used && has(bytes) && --scores_[slot(bytes)] < 0)
            table_[slot(bytes)].store(0);
    }

  private:
    struct Live {
        size_t bytes;
        bool used;
    };

    static constexpr size_t SLOTS = 1024;
    static constexpr int MOST = 8; /* a size that is not used so any more is soon forgotten */

    static size_t slot(size_t bytes)
    {
        return (uint64_t(bytes) * 0x9e3779b97f4a7c15u) >> 54;
    }

    bool has(size_t bytes) const
    {
        return table_[slot(bytes)].load() >> 2 == bytes;
    }

    void raise(size_t at)
    {
        scores_[at] = scores_[at] < MOST ? scores_[at] + 1 : MOST;
    }

    std::atomic<bool> any_{false}, tracks_{false};
    std::array<std::atomic<uint64_t>, SLOTS> table_{}; /* bytes << 2 | use */
    std::mutex lock_;                                  /* guards all below, and changes above */
    std::array<int, SLOTS> scores_{};
    std::unordered_map<const void *, Live> live_; /* that were allocated elsewhere */
};

} // namespace pleat_torch

#endif
