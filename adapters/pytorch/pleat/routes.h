/*
 * routes.h: which allocations go to a private pool: between a pool's begin and end, those on the
 * streams that torch's filter takes.
 *
 * THREADS  Any: one lock. Whether a device has any such pool is read without it (in_capture).
 */
#ifndef PLEAT_TORCH_ROUTES_H
#define PLEAT_TORCH_ROUTES_H

#include "device.h"

#include <functional>
#include <set>

namespace pleat_torch
{

class Routes
{
  public:
    void begin(DeviceIndex index, MempoolId pool, std::function<bool(cudaStream_t)> takes)
    {
        (void)know(index, pool);
        std::lock_guard<std::mutex> guard(lock_);
        routes_.push_back({index, pool, std::move(takes)});
        open_pools++;
    }

    void end(DeviceIndex index, MempoolId pool)
    {
        std::lock_guard<std::mutex> guard(lock_);
        auto found = std::find_if(routes_.begin(), routes_.end(), [&](const Route &route) {
            return route.device == index && route.pool == pool;
        });
        if (found == routes_.end())
            return;
        routes_.erase(found);
        open_pools--;
    }

    /* Whether a pool is met for the first time; torch gives no number twice. */
    bool know(DeviceIndex index, MempoolId pool)
    {
        std::lock_guard<std::mutex> guard(lock_);
        return known_.emplace(index, pool).second;
    }

    /* It could not be made: it may be met once more. */
    void forget(DeviceIndex index, MempoolId pool)
    {
        std::lock_guard<std::mutex> guard(lock_);
        known_.erase({index, pool});
    }

    bool takes(DeviceIndex device, cudaStream_t stream)
    {
        std::lock_guard<std::mutex> guard(lock_);
        return std::any_of(routes_.begin(), routes_.end(), [&](const Route &route) {
            return route.device == device && route.takes(stream);
        });
    }

  private:
    struct Route {
        DeviceIndex device;
        MempoolId pool;
        std::function<bool(cudaStream_t)> takes;
    };

    std::mutex lock_;
    std::vector<Route> routes_;
    std::set<std::pair<DeviceIndex, MempoolId>> known_;
};

} // namespace pleat_torch

#endif
