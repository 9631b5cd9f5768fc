/*
 * history.cpp: the shim's history under ThreadSanitizer, while one thread begins and ends it and
 * another gathers stacks; shim.py builds and runs it.
 */
#include "history.h"
#include "checks.h"

#include <thread>

using namespace pleat_torch;

namespace
{

struct Stack : c10::GatheredContext {
};

Context gather()
{
    return std::make_shared<Stack>();
}

/* Nothing else orders what the two threads do. */
void stacks_are_gathered_while_another_thread_begins_and_ends_the_history()
{
    History history;
    std::atomic<bool> done{false};
    std::thread switching([&] {
        for (bool on : {true, false, true})
            history.set(on, on ? gather : nullptr, 10, caching::RecordContext::ALL, true, {});
        done.store(true, std::memory_order_relaxed);
    });
    while (!done.load(std::memory_order_relaxed))
        (void)history.context(caching::RecordContext::STATE);
    CHECK(history.context(caching::RecordContext::STATE) != nullptr);
    switching.join();
}

const Test tests[] = {
    TEST(stacks_are_gathered_while_another_thread_begins_and_ends_the_history),
};

} // namespace

int main()
{
    return run_all(tests);
}
