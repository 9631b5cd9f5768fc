/*
 * hooks.cpp: Pleat behind the functions that torch's pluggable allocator takes from a shared object
 * (torch.cuda.memory.CUDAPluggableAllocator), for where no shim fits the installed torch and none
 * can be compiled. It includes nothing of torch's, so one serves every release; it has what Python
 * calls of the shim.
 *
 * What torch asks of its own allocator alone is not there: statistics, snapshots, private pools. A
 * pool that is begun is refused, because a graph that is replayed writes where it wrote when it was
 * captured.
 *
 * THREADS  Any. A runtime that is there is read without a lock.
 */
#include "calls.h"

#include <array>
#include <atomic>
#include <mutex>
#include <pthread.h>
#include <stdexcept>

#include <pleat/vmm.h>

namespace
{

constexpr int DEVICES_MOST = 64;

struct Device {
    std::atomic<pleat_runtime *> runtime{nullptr};
    std::atomic<uint64_t> allocated_bytes{0}; /* since the start, rounded to 512 */
    pleat_plan *plan = nullptr;
};

pleat_torch::Settings settings;
std::array<Device, DEVICES_MOST> devices;
std::atomic<int> first_used{-1};
std::atomic<bool> left{false}; /* in a forked child, whose parent's memory is not its own */
std::mutex making;             /* guards vmm, phase, and that every runtime is in it */
pleat_vmm vmm;
std::string phase;

pleat_runtime *make(int index)
{
    std::lock_guard<std::mutex> guard(making);
    Device &device = devices[index];
    if (device.runtime.load() != nullptr)
        return device.runtime.load();
    if (vmm.ops == nullptr && pleat_vmm_cuda(&vmm) != PLEAT_OK)
        pleat_torch::fail_last("reach the driver");
    if (device.plan == nullptr)
        device.plan = pleat_torch::read_plan(settings, index, first_used < 0);
    pleat_runtime_options options = pleat_torch::options_of(settings, index, device.plan);
    pleat_runtime *made = nullptr;
    if (pleat_torch::create_runtime(vmm, options, &made) != PLEAT_OK)
        pleat_torch::fail_last("make a runtime");
    std::unique_ptr<pleat_runtime, decltype(&pleat_runtime_destroy)> kept(made,
                                                                          pleat_runtime_destroy);
    pleat_torch::begin_record(settings, made);
    if (!phase.empty())
        pleat_torch::enter_phase(phase, made);
    int none = -1;
    first_used.compare_exchange_strong(none, index);
    device.runtime.store(kept.release(), std::memory_order_release);
    return made;
}

pleat_runtime *runtime(int device)
{
    if (device < 0 || device >= DEVICES_MOST)
        pleat_torch::fail("there is no device " + std::to_string(device));
    pleat_runtime *made = devices[device].runtime.load(std::memory_order_acquire);
    return made != nullptr ? made : make(device);
}

/* Whose memory an address is; NULL: none of Pleat's. */
pleat_runtime *owner(const void *address)
{
    for (Device &device : devices) {
        pleat_runtime *made = device.runtime.load(std::memory_order_acquire);
        if (made != nullptr && pleat_owns(made, reinterpret_cast<pleat_va>(address)))
            return made;
    }
    return nullptr;
}

template <typename Body> void each(int index, Body &&body)
{
    for (int i = 0; i < DEVICES_MOST; i++)
        if ((index < 0 || index == i) && devices[i].runtime.load() != nullptr)
            body(devices[i].runtime.load());
}

void leave()
{
    for (Device &device : devices)
        if (device.runtime.exchange(nullptr) != nullptr)
            left = true;
    first_used = -1;
}

} // namespace

namespace pleat_torch
{

pleat_runtime *runtime_of(int device)
{
    return device < 0 || device >= DEVICES_MOST ? nullptr : devices[device].runtime.load();
}

pleat_stats whole_stats_of(int device)
{
    return pleat_stats_of(devices[device].runtime);
}

void fail(const std::string &text)
{
    throw std::runtime_error("pleat: " + text);
}

void fail_last(const char *doing)
{
    const pleat_error *error = pleat_last_error();
    fail(std::string(doing) + ": " + error->text + " (" + pleat_result_name(error->result) + ")");
}

std::string text_of(const std::exception &error)
{
    return error.what();
}

/* There are no pools. */
void give_rest_to_pleat(int)
{
}

} // namespace pleat_torch

/* ---- what torch calls; what they throw torch hands to Python as a RuntimeError ---- */

PLEAT_TORCH_CALL void *pleat_hooks_alloc(ssize_t bytes, int device, void *stream)
{
    pleat_va address = 0;
    if (bytes <= 0)
        return nullptr;
    pleat_runtime *made = runtime(device);
    pleat_result result = pleat_alloc(made, static_cast<uint64_t>(bytes),
                                      reinterpret_cast<pleat_stream>(stream), &address);
    if (result == PLEAT_E_OUT_OF_MEMORY || result == PLEAT_E_BUDGET)
        throw std::runtime_error("CUDA out of memory. Tried to allocate " + std::to_string(bytes) +
                                 " bytes. Pleat: " + pleat_last_error()->text);
    if (result != PLEAT_OK)
        pleat_torch::fail_last("allocate");
    devices[device].allocated_bytes.fetch_add(pleat_torch::rounded(static_cast<uint64_t>(bytes)),
                                              std::memory_order_relaxed);
    return reinterpret_cast<void *>(address);
}

PLEAT_TORCH_CALL void pleat_hooks_free(void *address, ssize_t, int, void *)
{
    pleat_runtime *made = owner(address);
    if (address == nullptr || (made == nullptr && left))
        return;
    if (made == nullptr)
        pleat_torch::fail("free: this address is not Pleat's");
    if (pleat_free(made, reinterpret_cast<pleat_va>(address)) != PLEAT_OK)
        pleat_torch::fail_last("free");
}

PLEAT_TORCH_CALL void pleat_hooks_record_stream(void *address, void *stream)
{
    pleat_runtime *made = owner(address);
    if (made != nullptr && pleat_record_stream(made, reinterpret_cast<pleat_va>(address),
                                               reinterpret_cast<pleat_stream>(stream)) != PLEAT_OK)
        pleat_torch::fail_last("record a stream");
}

PLEAT_TORCH_CALL void *pleat_hooks_base(void *address, size_t *bytes)
{
    pleat_runtime *made = owner(address);
    pleat_block block;
    if (made == nullptr)
        return address;
    if (pleat_block_of(made, reinterpret_cast<pleat_va>(address), &block) != PLEAT_OK)
        pleat_torch::fail_last("find an allocation");
    if (bytes != nullptr)
        *bytes = block.bytes;
    return reinterpret_cast<void *>(block.address);
}

PLEAT_TORCH_CALL void pleat_hooks_empty_cache()
{
    each(-1, [](pleat_runtime *made) {
        if (pleat_empty_cache(made) != PLEAT_OK)
            pleat_torch::fail_last("empty the cache");
    });
}

/* Whatever it is given besides the device. */
PLEAT_TORCH_CALL void pleat_hooks_refuse_pool(int)
{
    pleat_torch::fail("CUDA graphs and MemPool need the shim that is built for the installed "
                      "torch: install a C++ "
                      "compiler (g++) and CUDA's headers, or run this program without Pleat");
}

/* ---- what Python calls, besides calls.h ---- */

PLEAT_TORCH_CALL int pleat_torch_enable(const char *policy, const char *conf, const char *plan,
                                        uint64_t budget, uint32_t record, uint64_t record_events)
{
    return pleat_torch::guarded([&] {
        static const int told = pthread_atfork(nullptr, nullptr, leave);
        if (told != 0)
            pleat_torch::fail("no host memory");
        settings = {policy, conf, plan, pleat_torch::checked_budget(budget), record, record_events};
    });
}

PLEAT_TORCH_CALL int pleat_torch_plan(const char *path)
{
    return pleat_torch::guarded([&] {
        std::lock_guard<std::mutex> guard(making);
        settings.plan = path;
    });
}

PLEAT_TORCH_CALL int pleat_torch_budget(uint64_t bytes)
{
    return pleat_torch::guarded([&] {
        std::lock_guard<std::mutex> guard(making);
        settings.budget_bytes = pleat_torch::checked_budget(bytes);
        each(-1, [&](pleat_runtime *made) {
            if (pleat_set_budget(made, bytes) != PLEAT_OK)
                pleat_torch::fail_last("set the budget");
        });
    });
}

PLEAT_TORCH_CALL int pleat_torch_mark(int device)
{
    return pleat_torch::guarded([&] {
        each(device, [](pleat_runtime *made) {
            if (pleat_mark(made) != PLEAT_OK)
                pleat_torch::fail_last("mark");
        });
    });
}

PLEAT_TORCH_CALL int pleat_torch_phase(const char *name)
{
    return pleat_torch::guarded([&] {
        std::lock_guard<std::mutex> guard(making);
        phase = name;
        each(-1, [](pleat_runtime *made) { pleat_torch::enter_phase(phase, made); });
    });
}

/* -1: none was used. */
PLEAT_TORCH_CALL int pleat_torch_first_device()
{
    return first_used;
}

PLEAT_TORCH_CALL void pleat_torch_end_logs()
{
    for (Device &device : devices)
        pleat_end_log(device.runtime.load());
}

PLEAT_TORCH_CALL void pleat_torch_keep_plans()
{
    for (Device &device : devices)
        pleat_torch::keep_plan(device.runtime.load());
}

PLEAT_TORCH_CALL uint64_t pleat_torch_taken(int device)
{
    uint64_t bytes = 0;
    for (int i = 0; i < DEVICES_MOST; i++)
        if (device < 0 || device == i)
            bytes += devices[i].allocated_bytes.load(std::memory_order_relaxed);
    return bytes;
}
