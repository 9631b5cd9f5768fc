/*
 * shim_tests.h: what the programs that test the shim's allocator share.
 */
#ifndef PLEAT_TESTS_PYTORCH_SHIM_TESTS_H
#define PLEAT_TESTS_PYTORCH_SHIM_TESTS_H

#include "checks.h"
#include "fake_torch.h"

using namespace pleat_torch;

#ifndef SHIM_TESTS_CALL
/* shim.cpp's, which is not part of the program. */
void pleat_torch::fail_last(const char *doing)
{
    throw_last(doing);
}
#endif

namespace
{

struct Ended {
    void operator()(Allocator *allocator)
    {
        Allocator::current = nullptr;
        delete allocator;
    }
};

std::unique_ptr<Allocator, Ended> make(uint64_t budget = 0, const std::string &plan = "",
                                       const std::string &conf = "share:on")
{
    Settings settings;
    settings.conf = conf;
    settings.plan = plan;
    settings.budget_bytes = budget;
    settings.record = 1;
    std::unique_ptr<Allocator, Ended> made(new Allocator(settings, &fake::native));
    Allocator::current = made.get();
    made->init(2);
    return made;
}

/* The text of what `body` throws as an Error; "" where it throws none. */
template <typename Error, typename Body> std::string thrown(Body &&body)
{
    try {
        body();
    } catch (const Error &error) {
        return error.what_without_backtrace();
    }
    return "";
}

template <typename Tests> int run_shim_tests(const Tests &tests)
{
    setenv("PYTORCH_CUDA_ALLOC_CONF", "read by the fake", 1);
    (void)caching::CUDAAllocatorConfig::instance();
    return run_all(tests);
}

} // namespace

#endif
