/*
 * elsewhere.cpp: what the shim serves from other memory than Pleat's window: pools, what is to be
 * registered, and what is sent to other processes; shim.py builds and runs it.
 */
#define SHIM_TESTS_CALL /* with what Python calls */
#include "shim_tests.h"

#include "../../adapters/pytorch/pleat/shim.cpp"

#include <cmath>

namespace
{

/* What the program makes with torch.cuda.MemPool(), and a tensor in it. */
struct Pool {
    explicit Pool(Allocator &of, std::shared_ptr<CUDAAllocator> segments = nullptr) : allocator(of)
    {
        allocator.createOrIncrefPool(0, {0, 9}, std::move(segments));
    }

    ~Pool()
    {
        allocator.releasePool(0, {0, 9});
    }

    void *tensor(size_t bytes)
    {
        allocator.beginAllocateToPool(0, {0, 9}, [](cudaStream_t) { return true; });
        void *address = allocator.raw_alloc(bytes);
        allocator.endAllocateToPool(0, {0, 9});
        allocator.releasePool(0, {0, 9});
        return address;
    }

    Allocator &allocator;
};

void a_pools_segments_can_be_registered()
{
    auto allocator = make();
    Pool pool(*allocator);
    void *address = pool.tensor(3 * MIB);
    pleat_ranges *ranges = allocator->devices().ranges_of(address);
    CHECK(ranges != nullptr && pleat_ranges_bytes(ranges) == 4 * MIB);
    CHECK(allocator->devices().owner(address) == nullptr);
    int waited = fake::synchronized;
    /* It is held as long as it is registered. */
    CHECK(communication::is_mapped_anew(address, 3 * MIB) == 0);
    communication::hold(address);
    allocator->raw_delete(address);
    CHECK(fake::synchronized > waited && pleat_ranges_bytes(ranges) == 4 * MIB);
    communication::let_go(address);
    CHECK(pleat_ranges_bytes(ranges) == 0);
}

void a_pool_of_the_programs_own_memory_keeps_it()
{
    auto allocator = make();
    auto theirs = std::make_shared<fake::Custom>(
        [](size_t bytes, int, cudaStream_t) { return std::malloc(bytes); },
        [](void *address, size_t, int, cudaStream_t) { std::free(address); });
    Pool pool(*allocator, theirs);
    allocator->createOrIncrefPool(0, {0, 9}, nullptr); /* once more: it has segments */
    allocator->releasePool(0, {0, 9});
    void *address = pool.tensor(MIB);
    CHECK(allocator->devices().ranges_of(address) == nullptr);
    allocator->raw_delete(address);
}

void a_pool_that_could_not_be_made_is_made_of_no_other_memory()
{
    auto allocator = make();
    auto create = [&] {
        return thrown<c10::Error>([&] { allocator->createOrIncrefPool(0, {0, 10}, nullptr); });
    };
    for (DeviceIndex peer = 1; peer <= 64; peer++) /* one more than there may be */
        allocator->enablePeerAccess(peer, 0);
    for (int turn = 0; turn < 2; turn++)
        CHECK(create().find("give another device access") != std::string::npos);
    CHECK(fake::native.pools.count({0, 10}) == 0);
}

/* The driver counts it as the process's, and so among what is not Pleat's. */
void what_a_pool_has_is_not_kept_free_for_others()
{
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "128m", 1);
    auto allocator = make();
    void *kept = allocator->raw_alloc(20 * MIB);
    Pool pool(*allocator);
    void *first = pool.tensor(30 * MIB), *second = pool.tensor(2 * MIB);
    double left = fake::native.fraction * static_cast<double>(fake::total_bytes);
    CHECK(std::llround(left) == static_cast<long long>(108 * MIB));
    CHECK(thrown<c10::OutOfMemoryError>([&] { allocator->raw_alloc(78 * MIB); }) != "");
    allocator->raw_delete(allocator->raw_alloc(76 * MIB));
    for (void *one : {first, second, kept})
        allocator->raw_delete(one);
    unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
}

/* A pool has had the rest of the budget, which is asked for. */
void what_was_paused_has_room_again_beside_pools()
{
    auto allocator = make(64 * MIB);
    void *kept = allocator->raw_alloc(40 * MIB);
    pleat_runtime *runtime = allocator->devices().runtime(0);
    CHECK(pleat_pause(runtime, nullptr) == PLEAT_OK);
    Pool pool(*allocator);
    void *pooled = pool.tensor(2 * MIB);
    CHECK(pleat_torch_resume(0, "") == 0);
    CHECK(pleat_resume(runtime, nullptr) == PLEAT_E_STATE); /* all is back */
    CHECK(pleat_torch_resume(0, "") == 0);
    /* What pools have themselves is theirs. */
    CHECK(pleat_pause(runtime, nullptr) == PLEAT_OK);
    void *more = pool.tensor(40 * MIB);
    CHECK(pleat_torch_resume(0, "") != 0);
    CHECK(std::strstr(pleat_torch_failure(), "would pass the budget") != nullptr);
    allocator->raw_delete(more);
    CHECK(pleat_torch_resume(0, "") == 0);
    for (void *one : {pooled, kept})
        allocator->raw_delete(one);
}

void a_pool_that_finds_no_memory_says_so()
{
    auto allocator = make();
    Pool pool(*allocator);
    CHECK(thrown<c10::OutOfMemoryError>([&] { pool.tensor(size_t(1) << 50); }) != "");
    allocator->endAllocateToPool(0, {0, 9}); /* as torch's guard does */
    fake::native.endAllocateToPool(0, {0, 9});
    allocator->releasePool(0, {0, 9});
}

/* A question to torch's allocator fails, once. */
void what_fails_while_memory_to_register_is_looked_for_leaves_no_pool_open()
{
    auto allocator = make(256 * MIB);
    void *first = allocator->raw_alloc(3 * MIB);
    CHECK(communication::is_mapped_anew(first, 3 * MIB) == 1);
    fake::native.broken = 1;
    CHECK(thrown<c10::Error>([&] { allocator->raw_alloc(3 * MIB); }) != "");
    CHECK(fake::native.broken == 0);
    for (const auto &[id, pool] : fake::native.pools)
        CHECK(!pool.open);
    void *second = allocator->raw_alloc(3 * MIB);
    CHECK(allocator->devices().ranges_of(second) != nullptr);
    for (void *one : {first, second})
        allocator->raw_delete(one);
    fake::native.pools.clear(); /* the next allocator makes its own */
}

void what_is_to_be_registered_comes_to_lie_where_it_can_be()
{
    auto allocator = make();
    auto in_range = [&](void *address) {
        return allocator->devices().ranges_of(address) != nullptr;
    };
    void *first = allocator->raw_alloc(5 * MIB);
    /* A segment of torch's that begins there says nothing of it. */
    CHECK(communication::is_mapped_anew(first, 64 * MIB) == 1);
    allocator->raw_delete(first);
    first = allocator->raw_alloc(5 * MIB);
    CHECK(!in_range(first) && communication::is_mapped_anew(first, 5 * MIB) == 1);
    void *second = allocator->raw_alloc(5 * MIB), *other = allocator->raw_alloc(6 * MIB);
    CHECK(in_range(second) && !in_range(other) &&
          communication::is_mapped_anew(second, 5 * MIB) == 0);
    for (void *one : {first, second, other})
        allocator->raw_delete(one);
    /* No more than a few that are not registered. */
    int elsewhere = 0;
    for (int i = 0; i < 20; i++) {
        void *one = allocator->raw_alloc(5 * MIB);
        elsewhere += in_range(one);
        allocator->raw_delete(one);
    }
    CHECK(elsewhere == 3);
    /* What collectives send counts where all is to be registered. */
    communication::talks(other = allocator->raw_alloc(7 * MIB));
    void *same = allocator->raw_alloc(7 * MIB);
    CHECK(!in_range(same));
    communication::registers_all = true;
    communication::talks(other);
    void *again = allocator->raw_alloc(7 * MIB);
    CHECK(in_range(again));
    communication::registers_all = false;
    for (void *one : {other, same, again})
        allocator->raw_delete(one);
}

void room_is_made_before_a_communicator_takes_it()
{
    auto allocator = make();
    allocator->raw_delete(allocator->raw_alloc(40 * MIB));
    auto physical = [&] {
        return pleat_stats_of(allocator->devices().runtime_or_null(0)).physical_bytes;
    };
    uint64_t had = physical();
    size_t free_bytes = fake::free_bytes;
    communication::starts();
    CHECK(had >= 40 * MIB && physical() == had); /* there is enough */
    fake::free_bytes -= 300 * MIB;
    communication::started();
    const Device &device = allocator->devices().at(0);
    CHECK(device.communication == 300 * MIB && device.most_communication == 300 * MIB);
    fake::free_bytes = 299 * MIB;
    communication::starts();
    CHECK(physical() == 0);
    communication::started();
    fake::free_bytes = free_bytes;
}

c10::StorageImpl stored(Allocator &allocator, size_t bytes)
{
    return {c10::StorageImpl::use_byte_size_t(), bytes, allocator.allocate(bytes), nullptr, false};
}

void what_is_sent_is_moved_once_and_later_lies_there()
{
    auto allocator = make();
    auto sent = [&](c10::StorageImpl &one) { return make_sendable(*allocator, one); };
    auto is_native = [](const c10::StorageImpl &one) {
        return fake::native.live.count(const_cast<void *>(one.data()));
    };
    {
        c10::StorageImpl first = stored(*allocator, 5 * MIB), other = stored(*allocator, 6 * MIB);
        auto *words = static_cast<uint64_t *>(first.mutable_data());
        words[7] = 77;
        CHECK(sent(first) && is_native(first) && first.data() != words);
        CHECK(static_cast<const uint64_t *>(first.data())[7] == 77);
        CHECK(!sent(first)); /* it lies there already */
        c10::StorageImpl second = stored(*allocator, 5 * MIB), last = stored(*allocator, 6 * MIB);
        CHECK(is_native(second) && !sent(second) && !is_native(other) && !is_native(last));
        Pool pool(*allocator);
        void *pooled = pool.tensor(3 * MIB);
        c10::StorageImpl third(c10::StorageImpl::use_byte_size_t(), 3 * MIB,
                               c10::DataPtr(pooled, pooled, allocator->raw_deleter(),
                                            c10::Device(c10::DeviceType::CUDA, 0)),
                               nullptr, false);
        CHECK(sent(third) && allocator->devices().ranges_of(third.data()) == nullptr);
    }
    CHECK(fake::native.live.empty());
    CHECK(pleat_stats_of(allocator->devices().runtime_or_null(0)).live_bytes == 0);
    /* Twenty in turn: the first was moved, all others came there. */
    for (int i = 0; i < 20; i++) {
        c10::StorageImpl one = stored(*allocator, 5 * MIB);
        CHECK(is_native(one) && !sent(one));
    }
    /* Those that are never sent go back to Pleat. */
    int elsewhere = 0;
    for (int i = 0; i < 20; i++)
        elsewhere += static_cast<int>(is_native(stored(*allocator, 5 * MIB)));
    CHECK(elsewhere == 9);
}

void what_cannot_be_moved_is_sent_by_a_socket()
{
    auto allocator = make();
    c10::StorageImpl first = stored(*allocator, 5 * MIB), none = stored(*allocator, 0);
    fake::native.failing = 2;
    CHECK(!make_sendable(*allocator, first) && !make_sendable(*allocator, none));
    CHECK(allocator->devices().owner(first.data()) != nullptr);
    /* Where a graph is captured nothing moves. */
    allocator->beginAllocateToPool(0, {1, 0}, [](cudaStream_t) { return false; });
    CHECK(!make_sendable(*allocator, first));
    allocator->endAllocateToPool(0, {1, 0});
    fake::capturing = true;
    allocator->beginAllocateToPool(0, {1, 0}, [](cudaStream_t) { return true; });
    void *captured = allocator->raw_alloc(MIB);
    allocator->endAllocateToPool(0, {1, 0});
    fake::capturing = false;
    CHECK(!make_sendable(*allocator, first)); /* the graph may read it there */
    allocator->raw_delete(captured);
    /* Nor what is another's. */
    uint64_t word = 0;
    c10::StorageImpl foreign(
        c10::StorageImpl::use_byte_size_t(), 8,
        c10::DataPtr(
            &word, &word, [](void *) {}, c10::Device(c10::DeviceType::CUDA, 0)),
        nullptr, false);
    CHECK(!make_sendable(*allocator, foreign));
}

const Test tests[] = {
    TEST(a_pools_segments_can_be_registered),
    TEST(a_pool_of_the_programs_own_memory_keeps_it),
    TEST(a_pool_that_could_not_be_made_is_made_of_no_other_memory),
    TEST(what_a_pool_has_is_not_kept_free_for_others),
    TEST(what_was_paused_has_room_again_beside_pools),
    TEST(a_pool_that_finds_no_memory_says_so),
    TEST(what_fails_while_memory_to_register_is_looked_for_leaves_no_pool_open),
    TEST(what_is_to_be_registered_comes_to_lie_where_it_can_be),
    TEST(room_is_made_before_a_communicator_takes_it),
    TEST(what_is_sent_is_moved_once_and_later_lies_there),
    TEST(what_cannot_be_moved_is_sent_by_a_socket),
};

} // namespace

int main()
{
    /* It counts the process's memory, too. */
    setenv("PLEAT_NVML_LIBRARY", getenv("PLEAT_CUDA_LIBRARY"), 1);
    return run_shim_tests(tests);
}
