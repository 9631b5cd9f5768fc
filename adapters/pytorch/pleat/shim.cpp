/*
 * shim.cpp: Pleat as torch's CUDA allocator: what Python calls, through ctypes.
 *
 * It takes the place of torch's own allocator before CUDA is initialised (see allocator.h). It is
 * built against the installed torch when it is first used (see _shim.py) and needs no binding
 * library.
 */
#include "allocator.h"

#include <chrono>

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

} // namespace

/* ---- what Python calls through ctypes: 0 for success, else pleat_torch_failure() says why ---- */

extern "C" {

__attribute__((visibility("default"))) const char *pleat_torch_failure()
{
    return failure.c_str();
}

/* Puts Pleat in the place of torch's allocator. Before CUDA is initialised. */
__attribute__((visibility("default"))) int pleat_torch_enable(const char *policy, const char *conf,
                                                              const char *plan, uint64_t budget)
{
    return guarded([&] {
        TORCH_CHECK(Allocator::current == nullptr, "pleat is enabled already");
        auto allocator =
            std::make_shared<Allocator>(Settings{policy, conf, plan, budget}, caching::get());
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
        if (Allocator::current == nullptr)
            return;
        for (size_t i = 0; i < Allocator::current->device_count(); i++) {
            pleat_runtime *runtime = Allocator::current->runtime_or_null(i);
            if (runtime != nullptr && (device < 0 || static_cast<size_t>(device) == i) &&
                pleat_mark(runtime) != PLEAT_OK)
                throw_last("mark");
        }
    });
}

__attribute__((visibility("default"))) int pleat_torch_phase(const char *name)
{
    return guarded([&] {
        if (Allocator::current == nullptr)
            return;
        for (size_t i = 0; i < Allocator::current->device_count(); i++) {
            pleat_runtime *runtime = Allocator::current->runtime_or_null(i);
            if (runtime != nullptr && pleat_phase(runtime, name) != PLEAT_OK)
                throw_last("enter a phase");
        }
    });
}

/* Counters of a device in the order of PLEAT_COUNTERS; *known is 0 before its first use. */
__attribute__((visibility("default"))) int pleat_torch_stats(int device, uint64_t *values,
                                                             int *known)
{
    return guarded([&] {
        *known = 0;
        pleat_runtime *runtime =
            Allocator::current == nullptr
                ? nullptr
                : Allocator::current->runtime_or_null(static_cast<size_t>(device));
        if (runtime == nullptr)
            return;
        pleat_stats stats = Allocator::current->whole_stats(static_cast<size_t>(device));
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
 * code calls it. */
__attribute__((visibility("default"))) int pleat_torch_pair_ns(uint64_t bytes, int rounds,
                                                               double *nanoseconds)
{
    return guarded([&] {
        CUDAAllocator *allocator = caching::get();
        auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < rounds; i++)
            allocator->raw_delete(allocator->raw_alloc(bytes));
        auto end = std::chrono::steady_clock::now();
        *nanoseconds = std::chrono::duration<double, std::nano>(end - begin).count() / rounds;
    });
}

} // extern "C"
