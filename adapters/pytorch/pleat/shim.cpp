/*
 * shim.cpp: Pleat as torch's CUDA allocator: what Python calls, through ctypes.
 *
 * It takes the place of torch's own allocator before CUDA is initialised (see allocator.h). It is
 * built against the installed torch when it is first used (see _shim.py) and needs no binding
 * library.
 */
#include "allocator.h"
#include "calls.h"
#include "communication.h"
#include "sending.h"

#include <memory>

using namespace pleat_torch;

namespace pleat_torch
{

pleat_runtime *runtime_of(int device)
{
    return Allocator::current == nullptr || device < 0
               ? nullptr
               : Allocator::current->devices().runtime_or_null(static_cast<size_t>(device));
}

pleat_stats whole_stats_of(int device)
{
    return Allocator::current->devices().whole_stats(static_cast<size_t>(device));
}

void fail_last(const char *doing)
{
    throw_last(doing);
}

void fail(const std::string &text)
{
    TORCH_CHECK(false, text);
}

std::string text_of(const std::exception &error)
{
    auto *known = dynamic_cast<const c10::Error *>(&error);
    return known != nullptr ? known->what_without_backtrace() : error.what();
}

void give_rest_to_pleat(int device)
{
    Devices &devices = Allocator::current->devices();
    auto index = static_cast<DeviceIndex>(device);
    (void)devices.budget().give_rest_to_pleat(devices.at(index), index);
}

} // namespace pleat_torch

/* ---- what Python calls through ctypes, besides calls.h ---- */

/* Puts Pleat in the place of torch's allocator. Before CUDA is initialised. */
PLEAT_TORCH_CALL int pleat_torch_enable(const char *policy, const char *conf, const char *plan,
                                        uint64_t budget, uint32_t record, uint64_t record_events)
{
    return guarded([&] {
        TORCH_CHECK(Allocator::current == nullptr, "pleat is enabled already");
        auto allocator = std::make_shared<Allocator>(
            Settings{policy, conf, plan, checked_budget(budget), record, record_events},
            caching::get());
        torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
        Allocator::current = allocator.get();
        /* Tensors may be freed while the process ends: the allocator is never taken down. */
        new std::shared_ptr<Allocator>(allocator);
        (void)communication::listen();
    });
}

/* What the out-of-memory error says besides that is being made: an observer of such errors calls
 * it. */
PLEAT_TORCH_CALL void pleat_torch_remedy(const char *text)
{
    Allocator::set_remedy(text);
}

/* torch registers all memory with NCCL that it is told of (its hook is on): what collectives send
 * is to lie where it can be. */
PLEAT_TORCH_CALL void pleat_torch_register_all(int on)
{
    communication::registers_all = on != 0;
}

/* Bytes of a device that NCCL took while communicators started. */
PLEAT_TORCH_CALL int pleat_torch_communication(int device, uint64_t *bytes)
{
    return guarded([&] {
        *bytes = Allocator::current->devices().at(static_cast<DeviceIndex>(device)).communication;
    });
}

/* Sees that other processes can open a tensor's memory, which may lie elsewhere then; `storage` is
 * torch's StorageImpl. */
PLEAT_TORCH_CALL int pleat_torch_make_sendable(void *storage)
{
    return guarded([&] {
        if (Allocator::current != nullptr)
            (void)make_sendable(*Allocator::current, *static_cast<c10::StorageImpl *>(storage));
    });
}

/* The plans' file, where it is known later than pleat_torch_enable; devices that have been used
 * keep what they have. */
PLEAT_TORCH_CALL int pleat_torch_plan(const char *path)
{
    return guarded([&] {
        TORCH_CHECK(Allocator::current != nullptr, "pleat is not enabled");
        Allocator::current->devices().set_plan(path);
    });
}

/* The budget, where it holds from later on than pleat_torch_enable: of all devices. */
PLEAT_TORCH_CALL int pleat_torch_budget(uint64_t bytes)
{
    return guarded([&] {
        TORCH_CHECK(Allocator::current != nullptr, "pleat is not enabled");
        Allocator::current->devices().set_budget(checked_budget(bytes));
    });
}

/* -1 for all devices. */
PLEAT_TORCH_CALL int pleat_torch_mark(int device)
{
    return guarded([&] {
        if (Allocator::current != nullptr)
            Allocator::current->devices().mark(device);
    });
}

PLEAT_TORCH_CALL int pleat_torch_phase(const char *name)
{
    return guarded([&] {
        if (Allocator::current != nullptr)
            Allocator::current->devices().phase(name);
    });
}

/* The device that was used first; -1: none was. */
PLEAT_TORCH_CALL int pleat_torch_first_device()
{
    return Allocator::current == nullptr ? -1 : Allocator::current->devices().first();
}

/* The program ends: so do its logs. The runtimes stay, because tensors may be freed later. */
PLEAT_TORCH_CALL void pleat_torch_end_logs()
{
    for (size_t i = 0; Allocator::current != nullptr && i < Allocator::current->devices().count();
         i++)
        pleat_end_log(Allocator::current->devices().runtime_or_null(i));
}

/* The program ends: plans are kept for its next run, where the setting keep says so. */
PLEAT_TORCH_CALL void pleat_torch_keep_plans()
{
    for (size_t i = 0; Allocator::current != nullptr && i < Allocator::current->devices().count();
         i++)
        pleat_torch::keep_plan(Allocator::current->devices().runtime_or_null(i));
}

/* Bytes that were asked for since the start, on a device or (-1) on all. */
PLEAT_TORCH_CALL uint64_t pleat_torch_taken(int device)
{
    return Allocator::current == nullptr ? 0 : Allocator::current->devices().taken_bytes(device);
}
