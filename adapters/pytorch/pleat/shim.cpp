/*
 * shim.cpp: Pleat as torch's CUDA allocator: what Python calls, through ctypes.
 *
 * It takes the place of torch's own allocator before CUDA is initialised (see allocator.h). It is
 * built against the installed torch when it is first used (see _shim.py) and needs no binding
 * library.
 */
#include "allocator.h"

#include <chrono>
#include <cmath>
#include <memory>

using namespace pleat_torch;

namespace
{

/* Text of the last failure of a function below, for Python. */
thread_local std::string failure;

template <typename Body> int guarded(Body &&body)
{
    try {
        body();
        return 0;
    } catch (const c10::Error &error) {
        failure = error.what_without_backtrace();
    } catch (const std::exception &error) {
        failure = error.what();
    }
    return 1;
}

/* NULL where pleat is not enabled, the device has not been used, or there is none of that number.
 */
pleat_runtime *runtime_of(int device)
{
    return Allocator::current == nullptr || device < 0
               ? nullptr
               : Allocator::current->devices().runtime_or_null(static_cast<size_t>(device));
}

} // namespace

/* ---- what Python calls through ctypes: 0 for success, else pleat_torch_failure() says why ---- */

extern "C" {

__attribute__((visibility("default"))) const char *pleat_torch_failure()
{
    return failure.c_str();
}

/* Puts Pleat in the place of torch's allocator. Before CUDA is initialised. */
__attribute__((visibility("default"))) int pleat_torch_enable(const char *policy, const char *conf,
                                                              const char *plan, uint64_t budget,
                                                              uint32_t record,
                                                              uint64_t record_events)
{
    return guarded([&] {
        TORCH_CHECK(Allocator::current == nullptr, "pleat is enabled already");
        auto allocator = std::make_shared<Allocator>(
            Settings{policy, conf, plan, budget, record, record_events}, caching::get());
        torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
        Allocator::current = allocator.get();
        /* Tensors may be freed while the process ends: the allocator is never taken down. */
        new std::shared_ptr<Allocator>(allocator);
    });
}

/* -1 for all devices. */
__attribute__((visibility("default"))) int pleat_torch_mark(int device)
{
    return guarded([&] {
        if (Allocator::current != nullptr)
            Allocator::current->devices().mark(device);
    });
}

__attribute__((visibility("default"))) int pleat_torch_phase(const char *name)
{
    return guarded([&] {
        if (Allocator::current != nullptr)
            Allocator::current->devices().phase(name);
    });
}

/* 0 where it is not known. */
__attribute__((visibility("default"))) int pleat_torch_max_microbatch(int device, uint64_t running,
                                                                      uint64_t *most)
{
    return guarded([&] {
        *most = 0;
        pleat_runtime *runtime = runtime_of(device);
        if (runtime == nullptr)
            return;
        pleat_result result = pleat_max_microbatch(runtime, running, most);
        if (result != PLEAT_OK && result != PLEAT_E_NOT_FOUND)
            throw_last("say what microbatch fits");
    });
}

/* The device that was used first; -1: none was. */
__attribute__((visibility("default"))) int pleat_torch_first_device()
{
    return Allocator::current == nullptr ? -1 : Allocator::current->devices().first();
}

/* Whether a device's recording is complete; 0 also where nothing is recorded. */
__attribute__((visibility("default"))) int pleat_torch_recorded(int device)
{
    pleat_runtime *runtime = runtime_of(device);
    return runtime != nullptr && pleat_record_complete(runtime);
}

/* What was recorded on a device, as a trace and as the plan made of it; each to a file, or not at
 * all where its path is empty. */
__attribute__((visibility("default"))) int pleat_torch_save(int device, const char *trace_path,
                                                            const char *plan_path)
{
    return guarded([&] {
        pleat_runtime *runtime = runtime_of(device);
        TORCH_CHECK(runtime != nullptr, "device ", device, " has not been used");
        pleat_trace *made_trace = nullptr;
        if (pleat_record_copy(runtime, &made_trace) != PLEAT_OK)
            throw_last("take the recording");
        std::unique_ptr<pleat_trace, decltype(&pleat_trace_free)> trace(made_trace,
                                                                        pleat_trace_free);
        if (*trace_path != '\0' && pleat_trace_write(trace.get(), trace_path) != PLEAT_OK)
            throw_last("write the recording");
        if (*plan_path == '\0')
            return;
        pleat_plan *made_plan = nullptr;
        pleat_plan_options options = {};
        options.size = sizeof options;
        options.seconds = NAN;
        options.device = static_cast<uint32_t>(device);
        if (pleat_plan_make(trace.get(), &options, &made_plan) != PLEAT_OK)
            throw_last("plan");
        std::unique_ptr<pleat_plan, decltype(&pleat_plan_free)> plan(made_plan, pleat_plan_free);
        if (pleat_plan_write(plan.get(), plan_path) != PLEAT_OK)
            throw_last("write the plan");
    });
}

/* The program ends: so do its logs. The runtimes stay, because tensors may be freed later. */
__attribute__((visibility("default"))) void pleat_torch_end_logs()
{
    for (size_t i = 0; Allocator::current != nullptr && i < Allocator::current->devices().count();
         i++)
        pleat_end_log(Allocator::current->devices().runtime_or_null(i));
}

/* Bytes that were asked for since the start, on a device or (-1) on all. */
__attribute__((visibility("default"))) uint64_t pleat_torch_taken(int device)
{
    return Allocator::current == nullptr ? 0 : Allocator::current->devices().taken_bytes(device);
}

/* What the canary found on a device: allocations checked, words that were wrong, where one was. */
__attribute__((visibility("default"))) int pleat_torch_canary(int device, uint64_t values[3])
{
    return guarded([&] {
        pleat_runtime *runtime = runtime_of(device);
        TORCH_CHECK(runtime != nullptr, "device ", device, " has not been used");
        c10::cuda::CUDAGuard guard(static_cast<DeviceIndex>(device));
        C10_CUDA_CHECK(cudaDeviceSynchronize());
        pleat_canary found;
        if (pleat_canary_of(runtime, &found) != PLEAT_OK)
            throw_last("ask the canary");
        values[0] = found.checked;
        values[1] = found.words;
        values[2] = found.first;
    });
}

/* Counters of a device in the order of PLEAT_COUNTERS; *known is 0 before its first use. */
__attribute__((visibility("default"))) int pleat_torch_stats(int device, uint64_t *values,
                                                             int *known)
{
    return guarded([&] {
        *known = 0;
        pleat_runtime *runtime = runtime_of(device);
        if (runtime == nullptr)
            return;
        pleat_stats stats = Allocator::current->devices().whole_stats(static_cast<size_t>(device));
        size_t i = 0;
#define COPY(name, text) values[i++] = stats.name;
        PLEAT_COUNTERS(COPY)
#undef COPY
        *known = 1;
    });
}

/* "requests\tallocations asked for\n...": the names of the counters, in order. */
__attribute__((visibility("default"))) const char *pleat_torch_counters()
{
#define NAME(name, text) #name "\t" text "\n"
    return PLEAT_COUNTERS(NAME);
#undef NAME
}

/* Nanoseconds of one allocation and free of `bytes` through torch's allocator of now, as its C++
 * code calls it, or through the one whose place it took. */
__attribute__((visibility("default"))) int pleat_torch_pair_ns(uint64_t bytes, int rounds,
                                                               int native, double *nanoseconds)
{
    return guarded([&] {
        TORCH_CHECK(Allocator::current != nullptr, "pleat is not enabled");
        CUDAAllocator *allocator = native ? Allocator::current->native() : caching::get();
        auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < rounds; i++)
            allocator->raw_delete(allocator->raw_alloc(bytes));
        auto end = std::chrono::steady_clock::now();
        *nanoseconds = std::chrono::duration<double, std::nano>(end - begin).count() / rounds;
    });
}

} // extern "C"
