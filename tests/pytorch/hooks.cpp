/*
 * hooks.cpp: Pleat behind torch's pluggable allocator, over the tests' libcuda; wheel.py builds and
 * runs it.
 */
#include "checks.h"

#include <hooks.cpp>

#include <cstring>
#include <fstream>
#include <sys/wait.h>
#include <vector>

namespace
{

template <typename Body> std::string thrown(Body &&body)
{
    try {
        body();
    } catch (const std::runtime_error &error) {
        return error.what();
    }
    return "";
}

bool has(const std::string &text, const char *part)
{
    return text.find(part) != std::string::npos;
}

uint64_t counter(int device, const char *name)
{
    uint64_t values[128];
    int known = 0;
    CHECK(pleat_torch_stats(device, values, &known) == 0 && known);
    const char *names = pleat_torch_counters();
    for (size_t i = 0; *names != '\0'; i++, names = std::strchr(names, '\n') + 1)
        if (std::strncmp(names, name, std::strlen(name)) == 0 && names[std::strlen(name)] == '\t')
            return values[i];
    CHECK(!"a counter of that name");
    return 0;
}

/* A budget holds, and what is refused says so in torch's words. */
void hooks_serve_within_the_budget()
{
    void *first = pleat_hooks_alloc(3 * MIB, 1, nullptr);
    CHECK(first != nullptr && pleat_torch_first_device() == 1);
    CHECK(pleat_hooks_alloc(0, 1, nullptr) == nullptr);
    CHECK(counter(1, "live_bytes") == 3 * MIB && pleat_torch_taken(-1) == 3 * MIB);
    std::string refused = thrown([] { pleat_hooks_alloc(1 << 30, 1, nullptr); });
    CHECK(has(refused, "CUDA out of memory. Tried to allocate 1073741824 bytes"));
    size_t bytes = 0;
    CHECK(pleat_hooks_base(static_cast<char *>(first) + 5, &bytes) == first && bytes == 3 * MIB);
    pleat_hooks_record_stream(first, nullptr);
    pleat_hooks_free(first, 3 * MIB, 1, nullptr);
    pleat_hooks_free(nullptr, 0, 1, nullptr);
    pleat_hooks_empty_cache();
    CHECK(counter(1, "frees") == 1 && counter(1, "out_of_memory") == 1);
}

/* On a device that was used before, and on one that was not. */
void hooks_serve_within_a_budget_that_is_set_later()
{
    auto refuses = [](int device) {
        return thrown([&] {
                   pleat_hooks_free(pleat_hooks_alloc(40 * MIB, device, nullptr), 0, device,
                                    nullptr);
               }) != "";
    };
    CHECK(!refuses(1));
    CHECK(pleat_torch_budget(32 * MIB) == 0);
    CHECK(refuses(1) && refuses(2));
    CHECK(pleat_torch_budget(64 * MIB) == 0);
    CHECK(!refuses(1) && !refuses(2));
}

/* As Python's enable() does. */
void hooks_refuse_a_budget_below_a_chunk()
{
    CHECK(pleat_torch_budget(2 * MIB - 1) != 0);
    CHECK(has(pleat_torch_failure(), "a budget of 2097151 bytes holds nothing: write 20GiB"));
    CHECK(pleat_torch_enable("pleat", "", "", 1, 3, 0) != 0);
    CHECK(has(pleat_torch_failure(), "a budget of 1 bytes holds nothing"));
}

void hooks_refuse_pools_and_what_is_not_theirs()
{
    int local = 0;
    CHECK(has(thrown([] { pleat_hooks_refuse_pool(0); }), "CUDA graphs and MemPool need"));
    CHECK(has(thrown([&] { pleat_hooks_free(&local, 1, 0, nullptr); }), "is not Pleat's"));
    CHECK(has(thrown([] { pleat_hooks_alloc(1, -1, nullptr); }), "there is no device -1"));
    CHECK(has(thrown([] { pleat_hooks_alloc(1, 64, nullptr); }), "there is no device 64"));
    CHECK(pleat_hooks_base(&local, nullptr) == &local);
}

/* The same calls again and again: an iteration that is learned, recorded and saved. */
void hooks_learn_and_save_a_plan()
{
    std::string path = std::string(std::getenv("TMPDIR")) + "/job";
    for (int step = 0; step < 6; step++) {
        std::vector<void *> live;
        for (ssize_t i = 1; i <= 80; i++)
            live.push_back(pleat_hooks_alloc(i << 14, 0, nullptr));
        CHECK(pleat_torch_phase("B") == 0);
        for (void *one : live)
            pleat_hooks_free(one, 0, 0, nullptr);
        CHECK(pleat_torch_phase("") == 0 && pleat_torch_mark(-1) == 0);
    }
    CHECK(counter(0, "planned") > 0);
    CHECK(pleat_torch_recorded(0) == 1);
    CHECK(pleat_torch_save(0, (path + ".trace").c_str(), (path + ".plan").c_str()) == 0);
    CHECK(std::ifstream(path + ".plan").good() && std::ifstream(path + ".trace").good());
    CHECK(pleat_torch_save(5, "", "") != 0);
    CHECK(has(pleat_torch_failure(), "device 5 has not been used"));
    uint64_t canary[3], most = 1;
    CHECK(pleat_torch_canary(0, canary) != 0);
    CHECK(pleat_torch_max_microbatch(5, 1, &most) == 0 && most == 0);
    pleat_torch_end_logs();
}

/* What another device, on other streams, was asked for in the same order has the same one. */
void hooks_fingerprint_what_is_asked_for()
{
    uint64_t prints[4] = {};
    for (int device = 4; device < 8; device++) {
        auto stream = reinterpret_cast<void *>(static_cast<uintptr_t>(device * 1000));
        for (ssize_t i = 1; i <= 3; i++) {
            void *one = pleat_hooks_alloc(device == 6 ? i << 11 : i << 10, device, stream);
            void *other = pleat_hooks_alloc(MIB, device, device == 7 ? stream : nullptr);
            pleat_hooks_free(one, 0, device, nullptr);
            pleat_hooks_free(other, 0, device, nullptr);
        }
        CHECK(pleat_torch_fingerprint(device, &prints[device - 4]) == 0);
    }
    CHECK(prints[0] == prints[1] && prints[0] != prints[2] && prints[0] != prints[3]);
    CHECK(pleat_torch_fingerprint(9, prints) != 0);
}

/* A child's frees of what its parent has do nothing, and it may allocate for itself no more than
 * torch could. */
void hooks_leave_a_parents_memory_alone()
{
    void *ours = pleat_hooks_alloc(MIB, 0, nullptr);
    pid_t child = fork();
    if (child == 0) {
        std::string said = thrown([&] { pleat_hooks_free(ours, MIB, 0, nullptr); });
        _exit(said.empty() && pleat_torch_first_device() == -1 ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pleat_hooks_free(ours, MIB, 0, nullptr);
    CHECK(counter(0, "live_bytes") == 0);
}

} // namespace

int main()
{
    if (pleat_torch_enable("pleat", "", "", 64 * MIB, 3, 0) != 0)
        return 1;
    const Test tests[] = {
        TEST(hooks_serve_within_the_budget),
        TEST(hooks_serve_within_a_budget_that_is_set_later),
        TEST(hooks_refuse_a_budget_below_a_chunk),
        TEST(hooks_refuse_pools_and_what_is_not_theirs),
        TEST(hooks_learn_and_save_a_plan),
        TEST(hooks_fingerprint_what_is_asked_for),
        TEST(hooks_leave_a_parents_memory_alone),
    };
    return run_all(tests);
}
