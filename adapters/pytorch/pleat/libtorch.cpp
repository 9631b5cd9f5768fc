/*
 * libtorch.cpp: the shim for C++ programs without Python (pleat/torch.h). With PLEAT=1 in the
 * environment it puts itself in torch's allocator's place as soon as it is loaded, and says at the
 * end what was served.
 */
#include <pleat/torch.h>

#include "shim.cpp"

#include <cstdio>
#include <cstdlib>

namespace
{

std::string variable(const char *name, const char *otherwise = "")
{
    const char *value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : otherwise;
}

bool is_set(const char *name)
{
    return variable(name, "0") != "0";
}

void say(const std::string &text)
{
    std::fprintf(stderr, "pleat: %s\n", text.c_str());
}

void save_plans(const std::string &path)
{
    int first = pleat_torch_first_device();
    for (size_t i = 0; i < Allocator::current->devices().count(); i++) {
        auto device = static_cast<int>(i);
        if (runtime_of(device) == nullptr)
            continue;
        std::string own = device == first ? path : path + ".d" + std::to_string(device);
        if (pleat_torch_save(device, "", own.c_str()) != 0)
            say("no plan was saved: " + failure);
    }
}

/* As `pleat run` does. */
void finish()
{
    std::string plan = variable("PLEAT_SAVE_PLAN");
    if (Allocator::current == nullptr)
        return;
    if (!plan.empty())
        save_plans(plan);
    for (size_t i = 0; i < Allocator::current->devices().count() && !is_set("PLEAT_QUIET"); i++) {
        auto device = static_cast<int>(i);
        if (runtime_of(device) == nullptr)
            continue;
        pleat_stats stats = whole_stats_of(device);
        say("device " + std::to_string(device) + ": peak allocated " + size(stats.peak_live_bytes) +
            ", physical " + size(stats.peak_physical_bytes) + "; " +
            std::to_string(stats.requests) + " requests, " +
            std::to_string(stats.planned + stats.lane) + " of them planned");
    }
    pleat_torch_keep_plans();
    pleat_torch_end_logs();
}

__attribute__((constructor)) void begin()
{
    /* In a Python program the package sees to it. */
    if (!is_set("PLEAT") || dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr)
        return;
    uint64_t budget = 0;
    std::string asked = variable("PLEAT_BUDGET");
    bool is_size = asked.empty() || (pleat_size_parse(asked.c_str(), &budget) != 0 && budget != 0);
    std::string on = variable("PLEAT"), plan = variable("PLEAT_PLAN", "auto");
    bool saves = !variable("PLEAT_SAVE_PLAN").empty();
    if (on != "1") {
        say("PLEAT: it is 1 or 0, not '" + on + "': the program runs without Pleat");
        return;
    }
    if (!is_size) {
        say("PLEAT_BUDGET: '" + asked +
            "' is no size; write 20GiB: the program runs without Pleat");
        return;
    }
    if (pleat_torch_enable(variable("PLEAT_POLICY", "pleat").c_str(), "" /* PLEAT_CONF */,
                           plan == "auto" ? "" : plan.c_str(), budget, saves ? 32 : 0, 0) != 0) {
        say(failure + ": the program runs without Pleat");
        return;
    }
    std::atexit(finish);
}

} // namespace
