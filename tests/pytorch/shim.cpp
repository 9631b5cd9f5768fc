/*
 * shim.cpp: the shim's allocator over the tests' libcuda and a fake of torch's CUDA libraries;
 * shim.py builds and runs it. Each test is a function, and prints its name.
 */
#include "shim_tests.h"

#include <cmath>
#include <csignal>
#include <fstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace
{

void memory_is_given_and_taken_back()
{
    auto allocator = make();
    void *address = allocator->raw_alloc(10 * MIB);
    CHECK(address != nullptr && fake::native.live.empty());
    CHECK(allocator->getDeviceStats(0).allocated_bytes[0].current == 10 * MIB);
    allocator->raw_delete(address);
    DeviceStats stats = allocator->getDeviceStats(0);
    CHECK(stats.allocated_bytes[0].current == 0 && stats.allocated_bytes[0].peak == 10 * MIB);
    CHECK(stats.allocation[0].current == 0 && stats.allocation[0].peak == 1);
    for (int device : {-1, 0, 1})
        CHECK(allocator->devices().taken_bytes(device) == (device == 1 ? 0 : 10 * MIB));
}

void the_device_stands_wherever_its_plans_name_has_it()
{
    char folder[] = "/tmp/pleat-shim-XXXXXX";
    CHECK(mkdtemp(folder) != nullptr);
    std::string file = std::string(folder) + "/0-0";
    std::fclose(std::fopen(file.c_str(), "w"));
    auto allocator = make(0, std::string(folder) + "/%d-%d");
    std::string text = thrown<c10::Error>([&] { allocator->raw_alloc(MIB); });
    CHECK(text.find("'" + file + "': byte 0: the file is empty") != std::string::npos);
    std::remove(file.c_str());
    std::remove(folder);
}

void a_log_that_cannot_be_written_costs_the_log_alone()
{
    auto allocator = make(0, "", "log_ms:5, log:/no/such/folder/run.log,share:on");
    void *address = allocator->raw_alloc(10 * MIB);
    CHECK(address != nullptr && fake::native.live.empty());
    allocator->raw_delete(address);
    /* What else is wrong with a setting is said as ever. */
    for (const char *conf : {"log:/no/such/folder/run.log,small:none", "log_ms:0"}) {
        allocator.reset();
        allocator = make(0, "", conf);
        CHECK(!thrown<c10::Error>([&] { allocator->raw_alloc(MIB); }).empty());
    }
    CHECK(pleat_torch::without("a:1, log:b ,log_ms:2,,c:[>:4]", "log") == "a:1,log_ms:2,,c:[>:4]");
}

void a_device_that_is_first_used_in_a_phase_is_in_it()
{
    auto allocator = make();
    allocator->devices().phase("forward");
    void *first = allocator->raw_alloc(MIB);
    allocator->devices().phase("");
    void *second = allocator->raw_alloc(MIB);
    pleat_trace *trace = nullptr;
    CHECK(pleat_record_copy(allocator->devices().runtime_or_null(0), &trace) == PLEAT_OK);
    const pleat_trace_event *events = pleat_trace_events(trace);
    CHECK(pleat_trace_event_count(trace) == 2);
    CHECK(std::string(pleat_trace_label(trace, events[0].label)) == "phase=forward");
    CHECK(std::string(pleat_trace_label(trace, events[1].label)) != "phase=forward");
    pleat_trace_free(trace);
    allocator->raw_delete(first);
    allocator->raw_delete(second);
}

/* Of this process's address space, most of it windows. */
uint64_t gibibytes()
{
    unsigned long long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages >> 18;
}

void a_device_that_cannot_be_set_up_keeps_nothing()
{
    auto allocator = make();
    for (DeviceIndex peer = 1; peer <= 64; peer++) /* one more than there may be */
        allocator->enablePeerAccess(peer, 0);
    auto refused = [&] {
        return thrown<c10::Error>([&] {
                   allocator->raw_alloc(MIB);
               }).find("give another device access") != std::string::npos;
    };
    CHECK(refused());
    uint64_t before = gibibytes();
    CHECK(refused() && gibibytes() == before);
    CHECK(allocator->devices().first() < 0);
}

void counters_and_peaks_begin_again_when_they_are_reset()
{
    auto allocator = make();
    allocator->raw_delete(allocator->raw_alloc(10 * MIB));
    void *kept = allocator->raw_alloc(4 * MIB), *other = allocator->raw_alloc(MIB);
    allocator->raw_delete(other);
    CHECK(allocator->getDeviceStats(0).allocation[0].peak == 2);
    allocator->resetPeakStats(0);
    allocator->resetAccumulatedStats(0);
    for (size_t pool : {0, 2}) {
        DeviceStats stats = allocator->getDeviceStats(0);
        CHECK(stats.allocated_bytes[pool].current == 4 * MIB);
        CHECK(stats.allocated_bytes[pool].peak == 4 * MIB);
        CHECK(stats.allocated_bytes[pool].allocated == 0 && stats.allocation[pool].freed == 0);
        CHECK(stats.allocation[pool].current == 1 && stats.allocation[pool].peak == 1);
        CHECK(stats.reserved_bytes[pool].peak == stats.reserved_bytes[pool].current);
        CHECK(stats.segment[pool].peak == stats.segment[pool].current);
        CHECK(stats.num_device_alloc == 0 && stats.reserved_bytes[pool].allocated == 0);
    }
    allocator->raw_delete(kept);
    DeviceStats stats = allocator->getDeviceStats(0);
    CHECK(stats.allocated_bytes[0].freed == 4 * MIB && stats.allocation[0].freed == 1);
    CHECK(stats.allocated_bytes[0].allocated == 0 && stats.allocation[0].current == 0);
}

void requested_bytes_are_as_they_were_asked_for()
{
    auto allocator = make();
    allocator->beginAllocateToPool(0, {1, 0}, [](cudaStream_t) { return true; });
    void *pooled = allocator->raw_alloc(3 * MIB);
    allocator->endAllocateToPool(0, {1, 0});
    void *small = allocator->raw_alloc(100), *other = allocator->raw_alloc(MIB + 1);
    auto requested = [&] { return allocator->getDeviceStats(0).requested_bytes[0]; };
    CHECK(requested().current == 4 * MIB + 101 && requested().peak == 4 * MIB + 101);
    CHECK(requested().allocated == MIB + 101 && requested().freed == 0);
    allocator->raw_delete(other);
    CHECK(requested().current == 3 * MIB + 100 && requested().freed == MIB + 1);
    allocator->resetPeakStats(0);
    allocator->resetAccumulatedStats(0);
    CHECK(requested().peak == 3 * MIB + 100 && requested().allocated == 0);
    allocator->emptyCache({0, 0});
    allocator->raw_delete(small);
    allocator->raw_delete(pooled);
    CHECK(requested().current == 0 && requested().freed == 100);
    CHECK(allocator->getDeviceStats(0).allocated_bytes[0].current == 0);
}

/* Each figure that another thread asks for takes the peaks so far away. */
void no_peak_is_lost_between_two_figures()
{
    auto allocator = make();
    allocator->raw_delete(allocator->raw_alloc(64 * MIB));
    allocator->resetPeakStats(0);
    std::atomic<bool> done{false};
    std::thread asking([&] {
        while (!done)
            allocator->getDeviceStats(0);
    });
    int64_t lost = 0;
    for (size_t bytes = 512; bytes <= 20000 * 512; bytes += 512) {
        allocator->raw_delete(allocator->raw_alloc(bytes));
        lost += allocator->getDeviceStats(0).allocated_bytes[0].peak < static_cast<int64_t>(bytes);
    }
    done = true;
    asking.join();
    CHECK(lost == 0);
}

/* A tensor in a private pool. */
void *pooled(Allocator &allocator, size_t bytes)
{
    allocator.beginAllocateToPool(0, {1, 0}, [](cudaStream_t) { return true; });
    void *address = nullptr;
    try {
        address = allocator.raw_alloc(bytes);
    } catch (const c10::OutOfMemoryError &) {
    }
    allocator.endAllocateToPool(0, {1, 0});
    return address;
}

int64_t most_reserved(Allocator &allocator)
{
    return allocator.getDeviceStats(0).reserved_bytes[0].peak;
}

void what_pools_gave_back_is_in_no_later_peak()
{
    auto allocator = make(100 * MIB);
    allocator->raw_delete(allocator->raw_alloc(MIB));
    fake::native.caches = true;
    allocator->raw_delete(pooled(*allocator, 60 * MIB));
    CHECK(fake::native.cached == 60 * MIB);
    void *address = allocator->raw_alloc(96 * MIB); /* has torch's caches given back */
    CHECK(fake::native.cached == 0 && most_reserved(*allocator) <= 100 * int64_t(MIB));
    allocator->raw_delete(address);
    fake::native.caches = false;
}

/* What was used and given back before the device's first request that is no pool's. */
void pools_of_before_are_in_peaks_only_until_they_end()
{
    for (bool reset : {false, true}) {
        auto allocator = make();
        allocator->raw_delete(pooled(*allocator, 1000 * MIB));
        allocator->emptyCache({0, 0});
        if (reset)
            allocator->resetPeakStats(0);
        void *address = allocator->raw_alloc(500 * MIB);
        DeviceStats stats = allocator->getDeviceStats(0);
        for (const Stat &one : {stats.allocated_bytes[0], stats.requested_bytes[0]})
            CHECK(one.peak == static_cast<int64_t>((reset ? 500 : 1000) * MIB));
        CHECK(stats.reserved_bytes[0].peak ==
              (reset ? stats.reserved_bytes[0].current : static_cast<int64_t>(1000 * MIB)));
        allocator->raw_delete(address);
    }
}

/* Twice one that Pleat could help with, by what it has not taken and by what it has cached, and
 * once one that stands. */
void what_a_refused_pool_gave_back_is_in_no_later_peak()
{
    for (int refusals : {1, 2, 3}) {
        auto allocator = make(100 * MIB);
        allocator->raw_delete(allocator->raw_alloc(MIB));
        fake::native.caches = true;
        allocator->raw_delete(pooled(*allocator, 60 * MIB));
        fake::native.failing = refusals;
        void *held = pooled(*allocator, MIB);
        CHECK((held == nullptr) == (refusals == 3) && fake::native.cached == 0);
        void *address = allocator->raw_alloc(90 * MIB);
        CHECK(most_reserved(*allocator) <= 100 * int64_t(MIB));
        allocator->raw_delete(address);
        if (held != nullptr)
            allocator->raw_delete(held);
        fake::native.caches = false;
        fake::native.emptyCache({0, 0});
    }
}

/* One that may serve what would be refused, and cannot. */
void what_a_pool_that_lends_nothing_gave_back_is_in_no_later_peak()
{
    auto allocator = make();
    allocator->setUseOnOOM(0, {1, 0}, true);
    fake::native.caches = true;
    allocator->raw_delete(pooled(*allocator, 60 * MIB));
    allocator->setMemoryFraction(100.0 / 80 / 1024, 0);
    fake::native.failing = 1;
    CHECK(thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(200 * MIB); }) != "");
    void *address = allocator->raw_alloc(90 * MIB);
    CHECK(most_reserved(*allocator) <= 100 * int64_t(MIB));
    allocator->raw_delete(address);
    fake::native.caches = false;
}

void a_fraction_of_nothing_is_nothing()
{
    auto allocator = make();
    allocator->setMemoryFraction(0, 0);
    CHECK(allocator->getMemoryFraction(0) < 1e-6);
    CHECK(thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(MIB); }) != "");
    allocator->setMemoryFraction(1, 0);
    allocator->raw_delete(allocator->raw_alloc(MIB));
}

void the_fraction_that_torchs_settings_leave_to_a_process_holds()
{
    *fake::process_fraction = 1.0 / 1024; /* of 80 GiB */
    for (uint64_t budget : {uint64_t(0), 200 * MIB, 64 * MIB}) {
        auto allocator = make(budget);
        auto refuses = [&](size_t bytes) {
            return thrown<c10::OutOfMemoryError>(
                       [&] { allocator->raw_delete(allocator->raw_alloc(bytes)); }) != "";
        };
        uint64_t most = budget == 64 * MIB ? budget : 80 * MIB;
        CHECK(!refuses(most) && refuses(most + MIB));
        /* The program asks for another one itself. */
        allocator->setMemoryFraction(1, 0);
        CHECK(refuses(150 * MIB) == (budget == 64 * MIB));
    }
    *fake::process_fraction = 1;
}

/* As --recompute sets it, when the model was learned. */
void a_budget_that_is_set_later_is_each_devices()
{
    auto allocator = make();
    auto refuses = [&](DeviceIndex device, size_t bytes) {
        c10::cuda::CUDAGuard guard(device);
        return thrown<c10::OutOfMemoryError>(
                   [&] { allocator->raw_delete(allocator->raw_alloc(bytes)); }) != "";
    };
    CHECK(!refuses(0, 80 * MIB));
    allocator->devices().set_budget(64 * MIB);
    for (DeviceIndex device : {0, 1}) {
        CHECK(!refuses(device, 64 * MIB) && refuses(device, 66 * MIB));
        for (double fraction : {0.9, 1.0}) {
            allocator->setMemoryFraction(fraction, device);
            CHECK(refuses(device, 66 * MIB));
        }
    }
    /* What the program has asked for is less. */
    allocator->setMemoryFraction(0.5 / 1024, 0);
    allocator->devices().set_budget(64 * MIB);
    CHECK(!refuses(0, 40 * MIB) && refuses(0, 42 * MIB));
}

void the_fraction_holds_before_a_request_that_is_not_a_pools()
{
    *fake::process_fraction = 1.0 / 1024; /* of 80 GiB */
    for (uint64_t budget : {uint64_t(0), 200 * MIB, 64 * MIB}) {
        double most = budget == 64 * MIB ? 64.0 / 80 / 1024 : 1.0 / 1024;
        auto asked = make(budget);
        CHECK(asked->getMemoryFraction(0) == most);
        CHECK(asked->devices().runtime_or_null(0) == nullptr);
        auto allocator = make(budget);
        allocator->beginAllocateToPool(0, {1, 0}, [](cudaStream_t) { return true; });
        CHECK(fake::native.fraction == most);
        allocator->endAllocateToPool(0, {1, 0});
        /* The program asks for another one itself, which holds from then on. */
        allocator->setMemoryFraction(0.5 / 1024, 0);
        CHECK(allocator->getMemoryFraction(0) == 0.5 / 1024);
    }
    *fake::process_fraction = 1;
    CHECK(make()->getMemoryFraction(0) == 1);
}

void what_the_environment_leaves_to_the_process_holds_for_pools()
{
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "128m", 1);
    for (uint64_t budget : {uint64_t(0), 64 * MIB, 256 * MIB}) {
        auto allocator = make(budget);
        uint64_t most = budget == 64 * MIB ? budget : 128 * MIB;
        void *kept = allocator->raw_alloc(20 * MIB);
        void *pool = pooled(*allocator, 30 * MIB);
        double left = fake::native.fraction * static_cast<double>(fake::total_bytes);
        CHECK(std::llround(left) == static_cast<long long>(most - 20 * MIB));
        /* Pleat takes over what pools have not used. */
        auto refuses = [&](size_t bytes) {
            return thrown<c10::OutOfMemoryError>(
                       [&] { allocator->raw_delete(allocator->raw_alloc(bytes)); }) != "";
        };
        CHECK(!refuses(most - 50 * MIB) && refuses(most - 48 * MIB));
        allocator->setMemoryFraction(1, 0);
        CHECK(refuses(most - 48 * MIB) && fake::native.fraction < 0.5);
        allocator->raw_delete(pool);
        CHECK(!refuses(most - 20 * MIB) && refuses(most - 18 * MIB));
        allocator->raw_delete(kept);
        /* Where they are the first that a device is used for, too. */
        allocator = make(budget);
        allocator->raw_delete(pooled(*allocator, 30 * MIB));
        left = fake::native.fraction * static_cast<double>(fake::total_bytes);
        CHECK(std::llround(left) == static_cast<long long>(most));
    }
    unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
}

/* Between two refusals what neither has taken is the cap of one of the two. */
void what_pleat_may_take_is_told_whoever_may_take_the_rest_now()
{
    for (const char *limit : {"", "128m"}) {
        if (*limit != '\0')
            setenv("CUDA_DEVICE_MEMORY_LIMIT", limit, 1);
        auto allocator = make(100 * MIB);
        void *kept = allocator->raw_alloc(20 * MIB), *pool = pooled(*allocator, 30 * MIB);
        pleat_runtime *runtime = allocator->devices().runtime(0);
        Devices &devices = allocator->devices();
        CHECK(pleat_limit_of(runtime) == 20 * MIB);
        allocator->raw_delete(allocator->raw_alloc(4 * MIB));
        uint64_t cached = pleat_stats_of(runtime).physical_bytes;
        CHECK(cached > 20 * MIB);
        allocator->beginAllocateToPool(0, {1, 0}, [](cudaStream_t) { return true; });
        CHECK(pleat_limit_of(runtime) == cached);
        devices.budget().give_rest_to_pleat(devices.at(0), 0);
        CHECK(pleat_limit_of(runtime) == 70 * MIB);
        /* A pool that is refused has it again, and what Pleat has cached stays. */
        fake::native.failing = 1;
        void *more = allocator->raw_alloc(40 * MIB);
        allocator->endAllocateToPool(0, {1, 0});
        CHECK(pleat_limit_of(runtime) == cached);
        CHECK(pleat_stats_of(runtime).physical_bytes == cached);
        for (void *one : {more, pool, kept})
            allocator->raw_delete(one);
        allocator->resetAccumulatedStats(0);
        unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
    }
}

/* Told of memory, and of its lack, as torch's profiler is. */
struct Profiler : c10::MemoryReportingInfoBase {
    int64_t refused = 0;
    size_t allocated = 0;

    void reportMemoryUsage(void *, int64_t, size_t, size_t, c10::Device) override
    {
    }

    void reportOutOfMemory(int64_t bytes, size_t allocated_now, size_t, c10::Device) override
    {
        refused += bytes;
        allocated = allocated_now;
    }

    bool memoryProfilingEnabled() const override
    {
        return true;
    }
};

void out_of_memory_reaches_all_who_want_to_know()
{
    auto allocator = make(64 * MIB);
    auto profiler = std::make_shared<Profiler>();
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, profiler);
    size_t told = 0, allowed = 0;
    allocator->attachOutOfMemoryObserver([&](int64_t, size_t bytes, size_t most, size_t) {
        told += bytes;
        allowed = most;
    });
    void *kept = allocator->raw_alloc(10 * MIB);
    std::string text = thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(100 * MIB); });
    CHECK(text.find("CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0") == 0);
    CHECK(told == 100 * MIB && profiler->refused == 100 * MIB && profiler->allocated == 10 * MIB);
    CHECK(allowed == 64 * MIB && allocator->getDeviceStats(0).num_ooms == 1);
    bool knows = true;
    allocator->attachOutOfMemoryObserver([&](int64_t, size_t, size_t, size_t) {
        if (knows)
            Allocator::set_remedy("take less");
    });
    for (int turn = 0; turn < 2; turn++) {
        text = thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(100 * MIB); });
        CHECK((text.find(". take less") != std::string::npos) == knows);
        knows = false;
    }
    allocator->raw_delete(kept);
}

/* As torch's allocator does for its own requests, which is how it is asked. */
void pools_that_may_serve_what_would_be_refused()
{
    auto allocator = make(64 * MIB);
    int told = 0, ooms = fake::native.ooms;
    allocator->attachOutOfMemoryObserver([&](int64_t, size_t, size_t, size_t) { told++; });
    auto refused = [&] {
        return thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(100 * MIB); }) != "";
    };
    auto counted = [&] { return allocator->getDeviceStats(0).num_ooms - ooms; };
    CHECK(refused() && told == 1 && counted() == 1);
    allocator->setUseOnOOM(0, {1, 0}, false);
    CHECK(refused() && told == 2 && counted() == 2);
    allocator->setUseOnOOM(0, {1, 0}, true);
    void *lent = allocator->raw_alloc(100 * MIB);
    CHECK(fake::native.live.count(lent) == 1 && told == 2 && counted() == 2);
    CHECK(allocator->getDeviceStats(0).allocated_bytes[0].peak == 100 * MIB);
    fake::native.failing = 1;
    CHECK(refused() && fake::native.failing == 0 && told == 3 && counted() == 3);
    allocator->raw_delete(lent);
    CHECK(fake::native.live.empty());
    fake::native.observers.clear();
}

/* A pool finds no memory at first, and then what Pleat has given back. */
void a_pools_refusal_is_told_when_it_is_one()
{
    auto allocator = make();
    int told = 0, ooms = fake::native.ooms;
    allocator->attachOutOfMemoryObserver([&](int64_t, size_t, size_t, size_t) { told++; });
    allocator->raw_delete(allocator->raw_alloc(64 * MIB));
    auto counted = [&] { return allocator->getDeviceStats(0).num_ooms - ooms; };
    allocator->beginAllocateToPool(0, {1, 0}, [](cudaStream_t) { return true; });
    fake::native.failing = 2;
    allocator->raw_delete(allocator->raw_alloc(MIB));
    CHECK(allocator->getDeviceStats(0).reserved_bytes[0].current == 0);
    CHECK(told == 0 && counted() == 0);
    fake::native.failing = 3;
    CHECK(thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(MIB); }) != "");
    CHECK(told == 1 && counted() == 1);
    allocator->endAllocateToPool(0, {1, 0});
    fake::native.observers.clear();
}

/* The runtime has counted nothing. */
void a_refusal_is_counted_once_where_there_are_only_pools()
{
    auto allocator = make();
    auto counted = [&] { return allocator->getDeviceStats(0).num_ooms; };
    allocator->beginAllocateToPool(0, {1, 0}, [](cudaStream_t) { return true; });
    allocator->resetAccumulatedStats(0);
    CHECK(counted() == 0);
    for (int refusals : {1, 2}) {
        fake::native.failing = refusals;
        allocator->raw_delete(allocator->raw_alloc(MIB));
        CHECK(counted() == 0);
    }
    fake::native.failing = 3;
    CHECK(thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(MIB); }) != "");
    CHECK(counted() == 1);
    allocator->endAllocateToPool(0, {1, 0});
}

void a_refusal_is_in_the_history_once()
{
    auto allocator = make(64 * MIB);
    allocator->recordHistory(true, nullptr, 100, caching::RecordContext::NEVER, true, {});
    auto refused = [&] {
        size_t found = 0;
        CHECK(thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(100 * MIB); }) != "");
        caching::SnapshotInfo info = allocator->snapshot({0, 0}, true);
        for (const TraceEntry &entry : info.device_traces[0])
            found += entry.action_ == TraceEntry::OOM && entry.size_ == 100 * MIB;
        return found;
    };
    CHECK(refused() == 1);
    allocator->setUseOnOOM(0, {1, 0}, true);
    fake::native.failing = 1;
    CHECK(refused() == 2);
    allocator->recordHistory(false, nullptr, 0, caching::RecordContext::NEVER, true, {});
}

/* What registered itself with torch is asked for memory; here it fails. */
struct Careless : c10::FreeMemoryCallback {
    static int asked;
    static bool fails;

    bool Execute() override
    {
        asked++;
        TORCH_CHECK(!fails, "a callback that fails");
        return false;
    }
};

int Careless::asked = 0;
bool Careless::fails = false;

void what_fails_while_memory_is_looked_for_is_a_refusal()
{
    auto allocator = make(64 * MIB);
    allocator->raw_delete(allocator->raw_alloc(MIB));
    auto refused = [&] {
        return thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(100 * MIB); }) != "";
    };
    Careless::asked = 0;
    Careless::fails = true;
    CHECK(refused() && Careless::asked == 1);
    Careless::fails = false;
    fake::native.broken = 1;
    CHECK(refused() && fake::native.broken == 0);
    void *address = allocator->raw_alloc(60 * MIB);
    CHECK(allocator->getDeviceStats(0).allocated_bytes[0].current == 60 * MIB);
    allocator->raw_delete(address);
}

void a_pool_that_torch_does_not_open_takes_nothing()
{
    auto allocator = make();
    auto all = [](cudaStream_t) { return true; };
    allocator->beginAllocateToPool(0, {1, 0}, all);
    fake::native.refuses_pools = true;
    CHECK(thrown<c10::Error>([&] { allocator->beginAllocateToPool(0, {1, 0}, all); }) != "");
    fake::native.refuses_pools = false;
    void *pooled = allocator->raw_alloc(MIB);
    CHECK(fake::native.live.count(pooled) == 1);
    allocator->endAllocateToPool(0, {1, 0});
    void *address = allocator->raw_alloc(MIB);
    CHECK(fake::native.live.size() == 1);
    allocator->raw_delete(pooled);
    allocator->raw_delete(address);
    CHECK(fake::native.live.empty());
}

/* torch's graphs are captured in the driver's global mode, which a verb of any thread ends. */
void no_call_that_may_issue_verbs_ends_a_capture()
{
    auto allocator = make(64 * MIB);
    allocator->raw_delete(allocator->raw_alloc(MIB));
    allocator->beginAllocateToPool(0, {1, 0}, [](cudaStream_t) { return false; });
    auto relaxes = [](auto &&body) {
        int before = fake::relaxed;
        body();
        return fake::relaxed > before && fake::capture_mode == cudaStreamCaptureModeGlobal;
    };
    void *address = nullptr;
    CHECK(relaxes([&] { address = allocator->raw_alloc(MIB); }));
    CHECK(relaxes([&] { allocator->raw_delete(address); }));
    CHECK(relaxes([&] { allocator->devices().mark(-1); }));
    CHECK(relaxes([&] { allocator->devices().mark(0); }));
    CHECK(!relaxes([&] { allocator->devices().mark(2); }));
    CHECK(relaxes([&] { allocator->emptyCache({0, 0}); }));
    CHECK(relaxes([&] { allocator->setMemoryFraction(0.5, 0); }));
    CHECK(relaxes([&] { allocator->setMemoryFraction(1, 0); }));
    fake::device = 1;
    CHECK(relaxes([&] { address = allocator->raw_alloc(MIB); }));
    CHECK(relaxes([&] { allocator->raw_delete(address); }));
    fake::device = 0;
    allocator->endAllocateToPool(0, {1, 0});
    CHECK(!relaxes([&] { allocator->devices().mark(-1); }));
}

struct Stack : c10::GatheredContext {
};

void stacks_of_live_memory_are_kept_whatever_events_are_left_out()
{
    auto allocator = make();
    auto record = [&](const std::vector<std::string> &skipped) {
        allocator->recordHistory(
            true, [] { return std::shared_ptr<c10::GatheredContext>(new Stack); }, 100,
            caching::RecordContext::ALL, true, skipped);
    };
    for (const char *skipped : {"alloc", "free_completed", "none"}) {
        record({skipped});
        void *address = allocator->raw_alloc(MIB);
        CHECK(allocator->getContextForPointer(address) != nullptr);
        allocator->raw_delete(address);
        CHECK(allocator->getContextForPointer(address) == nullptr);
    }
    allocator->recordHistory(false, nullptr, 0, caching::RecordContext::NEVER, true, {});
}

/* As torch's allocator keeps them, with the block. */
void stacks_of_live_memory_are_kept_when_the_history_is_cleared_or_ends()
{
    auto allocator = make();
    auto record = [&](bool on, bool clear) {
        auto gather = [] { return std::shared_ptr<c10::GatheredContext>(new Stack); };
        allocator->recordHistory(
            on, on ? static_cast<caching::CreateContextFn>(gather) : nullptr, 100,
            on ? caching::RecordContext::ALL : caching::RecordContext::NEVER, clear, {});
    };
    auto has_stack = [&](void *address) {
        return allocator->getContextForPointer(address) != nullptr;
    };
    record(true, true);
    void *first = allocator->raw_alloc(MIB), *second = allocator->raw_alloc(MIB);
    record(true, true);
    CHECK(has_stack(first) && allocator->snapshot({0, 0}, true).device_traces[0].empty());
    allocator->raw_delete(first);
    CHECK(!has_stack(first));
    record(false, false);
    CHECK(has_stack(second) && allocator->snapshot({0, 0}, true).device_traces[0].empty());
    /* What comes to lie at its place has none. */
    allocator->raw_delete(second);
    void *third = allocator->raw_alloc(MIB), *fourth = allocator->raw_alloc(MIB);
    CHECK(third == second || fourth == second);
    CHECK(!has_stack(third) && !has_stack(fourth));
    allocator->raw_delete(third);
    allocator->raw_delete(fourth);
}

void stacks_of_the_live_state_are_not_in_events()
{
    auto allocator = make();
    for (auto when : {caching::RecordContext::STATE, caching::RecordContext::ALLOC}) {
        allocator->recordHistory(true,
                                 [] { return std::shared_ptr<c10::GatheredContext>(new Stack); },
                                 100, when, true, {});
        void *address = allocator->raw_alloc(MIB);
        CHECK(allocator->getContextForPointer(address) != nullptr);
        caching::SnapshotInfo info = allocator->snapshot({0, 0}, true);
        CHECK(info.device_traces[0].size() == 1);
        for (const TraceEntry &entry : info.device_traces[0])
            CHECK((entry.context_ != nullptr) == (when == caching::RecordContext::ALLOC));
        allocator->raw_delete(address);
    }
    allocator->recordHistory(false, nullptr, 0, caching::RecordContext::NEVER, true, {});
}

#ifdef PLEAT_HAS_ANNOTATE_MEMORY
void notes_of_live_memory_are_events()
{
    auto allocator = make();
    void *address = allocator->raw_alloc(MIB);
    allocator->annotateMemory(address, "not recorded");
    allocator->recordHistory(true, [] { return std::shared_ptr<c10::GatheredContext>(new Stack); },
                             100, caching::RecordContext::ALLOC, true, {});
    allocator->annotateMemory(address, "kept for backward");
    caching::SnapshotInfo info = allocator->snapshot({0, 0}, true);
    CHECK(info.device_traces[0].size() == 1);
    for (const TraceEntry &entry : info.device_traces[0]) {
        CHECK(entry.action_ == TraceEntry::ANNOTATE && entry.size_ == MIB);
        CHECK(entry.addr_ == reinterpret_cast<size_t>(address) && entry.context_ != nullptr);
        CHECK(entry.user_metadata_ == "kept for backward");
    }
    /* What is not Pleat's is torch's matter. */
    CHECK(fake::native.notes.empty());
    allocator->annotateMemory(&allocator, "a pool's");
    CHECK(fake::native.notes.size() == 1 && fake::native.notes[0].second == "a pool's");
    allocator->recordHistory(false, nullptr, 0, caching::RecordContext::NEVER, true, {});
    allocator->raw_delete(address);
}
#endif

#ifdef PLEAT_HAS_METADATA_SUPPORTED
void labels_are_kept_where_torchs_own_allocator_keeps_them()
{
    CHECK(make()->supportsUserMetadata());
}
#endif

void what_was_freed_and_waits_is_pending_in_a_snapshot()
{
    auto allocator = make();
    void *kept = allocator->raw_alloc(MIB), *gone = allocator->raw_alloc(MIB);
    CHECK(pleat_pause(allocator->devices().runtime(0), nullptr) == PLEAT_OK);
    allocator->raw_delete(gone);
    size_t live = 0, pending = 0;
    for (const SegmentInfo &segment : allocator->snapshot({0, 0}, true).segments)
        for (const auto &block : segment.blocks) {
            live += block.allocated ? block.size : 0;
            pending += block.active && !block.allocated ? block.size : 0;
        }
    CHECK(live == MIB && pending == MIB);
    CHECK(pleat_resume(allocator->devices().runtime(0), nullptr) == PLEAT_OK);
    allocator->raw_delete(kept);
}

/* NCCL is given all segments of a pool's snapshot. */
void no_snapshot_of_a_pool_shows_pleats_memory()
{
    auto allocator = make();
    void *address = allocator->raw_alloc(MIB);
    auto segments = [&](MempoolId pool) { return allocator->snapshot(pool, true).segments.size(); };
    CHECK(segments({0, 0}) == 1 && segments({1, 0}) == 0);
    int pool = 0;
    c10::cuda::MemPoolContext::active = reinterpret_cast<c10::cuda::MemPool *>(&pool);
    CHECK(segments({0, 0}) == 0);
    c10::cuda::MemPoolContext::active = nullptr;
    CHECK(segments({0, 0}) == 1);
    allocator->raw_delete(address);
}

/* As torch's test_graph_memory_stats_and_use_result_after_destroy_graph reads them. */
void what_is_small_is_in_the_small_pool()
{
    auto allocator = make();
    void *small = allocator->raw_alloc(MIB), *large = allocator->raw_alloc(MIB + 1);
    DeviceStats stats = allocator->getDeviceStats(0);
    CHECK(stats.active[1].current == 1 && stats.active[2].current == 1);
    CHECK(stats.active[0].current == 2 && stats.active[1].peak == 1);
    CHECK(stats.active_bytes[1].current == MIB && stats.active_bytes[2].current == MIB + 512);
    CHECK(stats.allocated_bytes[0].current == 2 * MIB + 512);
    allocator->raw_delete(small);
    stats = allocator->getDeviceStats(0);
    CHECK(stats.active[1].current == 0 && stats.active_bytes[1].current == 0);
    CHECK(stats.active[2].current == 1);
    allocator->raw_delete(large);
    stats = allocator->getDeviceStats(0);
    CHECK(stats.active[2].current == 0 && stats.active_bytes[2].current == 0);
}

/* As torch's test_out_of_memory reads it. */
void what_no_device_has_is_refused_in_torchs_words()
{
    auto allocator = make();
    size_t gib = size_t(1) << 30;
    std::string text = thrown<c10::OutOfMemoryError>([&] { allocator->allocate(800000000 * gib); });
    CHECK(text.find("Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of") !=
          std::string::npos);
    text = thrown<c10::OutOfMemoryError>([&] { allocator->allocate(8000000000 * gib); });
    CHECK(text.find("Tried to allocate more than 1EB memory") != std::string::npos);
    allocator->raw_delete(allocator->raw_alloc(MIB));
}

/* As torch's test_cachingAllocator_raw_alloc does it. */
void without_caching_torchs_own_allocator_serves()
{
    auto allocator = make();
    allocator->enable(false);
    CHECK(!allocator->isEnabled() && !fake::native.enabled);
    void *address = allocator->raw_alloc(MIB);
    CHECK(fake::native.live.size() == 1);
    CHECK(allocator->getDeviceStats(0).requested_bytes[0].allocated == 0 ||
          allocator->devices().runtime_or_null(0) == nullptr);
    allocator->raw_delete(address);
    allocator->enable(true);
    CHECK(allocator->isEnabled() && fake::native.enabled);
    allocator->raw_delete(allocator->raw_alloc(MIB));
    CHECK(allocator->devices().runtime_or_null(0) != nullptr);
}

void sizes_are_told_as_torch_tells_them()
{
    CHECK(size(0) == "0 bytes" && size(1023) == "1023 bytes");
    CHECK(size(2000) == "1.95 KiB" && size(10 * MIB) == "10.00 MiB");
    CHECK(size(1536 * MIB) == "1.50 GiB");
}

void a_stream_that_torchs_own_allocator_does_not_take_frees_nothing()
{
    auto allocator = make();
    void *address = fake::native.raw_alloc(MIB);
    {
        c10::DataPtr data(address, address, allocator->raw_deleter(),
                          c10::Device(c10::DeviceType::CUDA, 0));
        fake::native.loses_streams = true;
        CHECK(thrown<c10::Error>([&] { allocator->recordStream(data, fake::stream_of(3)); }) != "");
        fake::native.loses_streams = false;
        CHECK(fake::native.live.count(address) == 1);
    }
    CHECK(fake::native.live.empty());
}

void memory_of_another_process_is_unmapped_when_the_device_is_done_with_it()
{
    auto allocator = make();
    void *address = allocator->raw_alloc(10 * MIB);
    caching::ShareableHandle handle = allocator->shareIpcHandle(address);
    std::shared_ptr<void> memory = allocator->getIpcDevPtr(handle.handle);
    CHECK(memory != nullptr && allocator->getIpcDevPtr(handle.handle) == memory);
    fake::synchronized = 0;
    memory.reset();
    CHECK(fake::synchronized == 1);
    allocator->raw_delete(address);
}

void a_tensor_that_is_sent_again_has_the_same_handle()
{
    auto allocator = make();
    auto *address = static_cast<char *>(allocator->raw_alloc(10 * MIB));
    caching::ShareableHandle first = allocator->shareIpcHandle(address);
    CHECK(allocator->shareIpcHandle(address).handle == first.handle);
    caching::ShareableHandle inside = allocator->shareIpcHandle(address + 1024);
    CHECK(inside.handle == first.handle && inside.offset == first.offset + 1024);
    void *other = allocator->raw_alloc(10 * MIB);
    CHECK(allocator->shareIpcHandle(other).handle != first.handle);
    allocator->raw_delete(other);
    /* Another tensor at the same place. */
    allocator->raw_delete(address);
    void *next = allocator->raw_alloc(10 * MIB);
    CHECK(next == address || next == other);
    caching::ShareableHandle second = allocator->shareIpcHandle(next);
    CHECK(second.handle != first.handle && allocator->getIpcDevPtr(second.handle) != nullptr);
    allocator->raw_delete(next);
}

/* A profiler's, for instance. */
void signals_end_no_wait_for_another_process()
{
    struct sigaction action = {}, before;
    action.sa_handler = [](int) {};
    sigaction(SIGUSR1, &action, &before);
    int ends[2], descriptor = -1;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    wire::Socket one(ends[0]), other(ends[1]);
    uint64_t number = 0, bytes = 0;
    bool received = false;
    std::thread waiting([&] {
        received = one.receive(&number);
        descriptor = one.receive_piece(&bytes);
    });
    auto interrupt = [&] {
        for (int i = 0; i < 20; i++) {
            pthread_kill(waiting.native_handle(), SIGUSR1);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    };
    interrupt();
    CHECK(other.send(uint64_t(7)));
    interrupt();
    CHECK(other.send_piece(9, ends[1]));
    waiting.join();
    CHECK(received && number == 7 && descriptor >= 0 && bytes == 9);
    close(descriptor);
    sigaction(SIGUSR1, &before, nullptr);
}

/* Whether a fork of this process, in which `body` runs, ends by itself and well. */
template <typename Body> bool forked(Body &&body)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(body() ? 0 : 1);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void a_forked_child_leaves_the_runtime_alone()
{
    auto allocator = make();
    void *address = allocator->raw_alloc(MIB);
    void *pooled = fake::native.raw_alloc(MIB);
    void *received_from = allocator->raw_alloc(MIB);
    std::shared_ptr<void> received =
        allocator->getIpcDevPtr(allocator->shareIpcHandle(received_from).handle);
    std::atomic<bool> done{false};
    std::thread busy([&] {
        while (!done)
            allocator->raw_delete(allocator->raw_alloc(MIB));
    });
    for (int i = 0; i < 60; i++)
        CHECK(forked([&] {
            allocator->raw_delete(address);
            allocator->raw_delete(pooled);
            received.reset();
            allocator->emptyCache({0, 0});
            return allocator->devices().runtime_or_null(0) == nullptr &&
                   allocator->devices().first() < 0;
        }));
    done = true;
    busy.join();
    CHECK(allocator->devices().runtime_or_null(0) != nullptr && allocator->devices().first() == 0);
    allocator->raw_delete(address);
    allocator->raw_delete(received_from);
    allocator->raw_delete(pooled);
}

/* torch's allocator lets its callbacks free memory while it holds its lock. */
void a_pools_memory_is_freed_while_statistics_are_asked_for()
{
    CHECK(forked([] {
        auto allocator = make();
        allocator->raw_delete(allocator->raw_alloc(MIB));
        void *pooled = fake::native.raw_alloc(MIB);
        fake::native.lock.lock();
        int before = fake::native.asked;
        std::thread asking([&] { allocator->resetPeakStats(0); });
        while (fake::native.asked < before + 1)
            std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        allocator->raw_delete(pooled);
        fake::native.lock.unlock();
        asking.join();
        return allocator->getDeviceStats(0).allocated_bytes[0].current == 0;
    }));
}

/* While one device is made, which may take long, another one is. */
void a_device_is_made_while_another_is_being_made()
{
    std::atomic<bool> begun{false}, goes_on{false};
    Devices devices(Settings{}, &fake::native, [&](pleat_runtime *) {
        if (!begun.exchange(true))
            while (!goes_on)
                std::this_thread::yield();
    });
    devices.init(2);
    std::thread slow([&] { devices.runtime(1); });
    while (!begun)
        std::this_thread::yield();
    CHECK(devices.runtime(0) != nullptr && devices.runtime_or_null(1) == nullptr);
    devices.phase("forward");
    goes_on = true;
    slow.join();
    CHECK(devices.runtime_or_null(1) != nullptr && devices.first() == 1);
}

const Test tests[] = {
    TEST(memory_is_given_and_taken_back),
    TEST(a_device_is_made_while_another_is_being_made),
    TEST(the_device_stands_wherever_its_plans_name_has_it),
    TEST(a_log_that_cannot_be_written_costs_the_log_alone),
    TEST(a_device_that_is_first_used_in_a_phase_is_in_it),
    TEST(a_device_that_cannot_be_set_up_keeps_nothing),
    TEST(counters_and_peaks_begin_again_when_they_are_reset),
    TEST(requested_bytes_are_as_they_were_asked_for),
    TEST(no_peak_is_lost_between_two_figures),
    TEST(a_fraction_of_nothing_is_nothing),
    TEST(the_fraction_that_torchs_settings_leave_to_a_process_holds),
    TEST(a_budget_that_is_set_later_is_each_devices),
    TEST(the_fraction_holds_before_a_request_that_is_not_a_pools),
    TEST(what_the_environment_leaves_to_the_process_holds_for_pools),
    TEST(what_pleat_may_take_is_told_whoever_may_take_the_rest_now),
    TEST(out_of_memory_reaches_all_who_want_to_know),
    TEST(pools_that_may_serve_what_would_be_refused),
    TEST(a_pools_refusal_is_told_when_it_is_one),
    TEST(a_refusal_is_counted_once_where_there_are_only_pools),
    TEST(a_refusal_is_in_the_history_once),
    TEST(what_pools_gave_back_is_in_no_later_peak),
    TEST(pools_of_before_are_in_peaks_only_until_they_end),
    TEST(what_a_refused_pool_gave_back_is_in_no_later_peak),
    TEST(what_a_pool_that_lends_nothing_gave_back_is_in_no_later_peak),
    TEST(what_fails_while_memory_is_looked_for_is_a_refusal),
    TEST(a_pool_that_torch_does_not_open_takes_nothing),
    TEST(no_call_that_may_issue_verbs_ends_a_capture),
    TEST(stacks_of_live_memory_are_kept_whatever_events_are_left_out),
    TEST(stacks_of_live_memory_are_kept_when_the_history_is_cleared_or_ends),
    TEST(stacks_of_the_live_state_are_not_in_events),
#ifdef PLEAT_HAS_ANNOTATE_MEMORY
    TEST(notes_of_live_memory_are_events),
#endif
#ifdef PLEAT_HAS_METADATA_SUPPORTED
    TEST(labels_are_kept_where_torchs_own_allocator_keeps_them),
#endif
    TEST(what_was_freed_and_waits_is_pending_in_a_snapshot),
    TEST(no_snapshot_of_a_pool_shows_pleats_memory),
    TEST(what_is_small_is_in_the_small_pool),
    TEST(what_no_device_has_is_refused_in_torchs_words),
    TEST(without_caching_torchs_own_allocator_serves),
    TEST(sizes_are_told_as_torch_tells_them),
    TEST(a_stream_that_torchs_own_allocator_does_not_take_frees_nothing),
    TEST(a_forked_child_leaves_the_runtime_alone),
    TEST(a_pools_memory_is_freed_while_statistics_are_asked_for),
    TEST(a_tensor_that_is_sent_again_has_the_same_handle),
    TEST(signals_end_no_wait_for_another_process),
    TEST(memory_of_another_process_is_unmapped_when_the_device_is_done_with_it),
};

} // namespace

namespace c10
{
REGISTER_FREE_MEMORY_CALLBACK("careless", ::Careless)
} // namespace c10

int main()
{
    return run_shim_tests(tests);
}
