/*
 * history.cpp: the shim's history under ThreadSanitizer: what it keeps, and what is done while one
 * thread begins and ends it and another gathers stacks; shim.py builds and runs it.
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

/* The sizes of `count` more events are the numbers from `next` on. */
void record(History &history, size_t next, size_t count)
{
    for (size_t i = 0; i < count; i++)
        history.add(TraceEntry::ALLOC, "alloc", 0, 4096 * (next + i), next + i, nullptr, nullptr,
                    "");
}

bool has(History &history, size_t first, size_t count)
{
    std::vector<TraceEntry> entries = history.entries(0);
    bool equal = entries.size() == count;
    for (size_t i = 0; equal && i < count; i++)
        equal = entries[i].size_ == first + i;
    return equal;
}

void begin(History &history, size_t most)
{
    history.set(true, nullptr, most, caching::RecordContext::ALL, false, {});
}

/* A program may ask for another number of entries while it records, and keep those that are there.
 */
void the_oldest_is_first_however_many_entries_are_asked_for()
{
    History history;
    begin(history, 4);
    record(history, 1, 6);
    CHECK(has(history, 3, 4));
    begin(history, 8);
    CHECK(has(history, 3, 4));
    record(history, 7, 3);
    CHECK(has(history, 3, 7));
    record(history, 10, 5);
    CHECK(has(history, 7, 8));
    begin(history, 4);
    CHECK(has(history, 11, 4));
    record(history, 15, 3);
    CHECK(has(history, 14, 4));
    begin(history, 4);
    record(history, 18, 1);
    CHECK(has(history, 15, 4));
}

const Test tests[] = {
    TEST(the_oldest_is_first_however_many_entries_are_asked_for),
    TEST(stacks_are_gathered_while_another_thread_begins_and_ends_the_history),
};

} // namespace

int main()
{
    return run_all(tests);
}
