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

/* Bytes of "512", "64k", "2MiB", "1.5GiB"; -1: it is no size. */
int64_t size_of(const std::string &text)
{
    char *end = nullptr;
    double number = std::strtod(text.c_str(), &end);
    std::string unit = end;
    for (char &letter : unit)
        letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    for (const char *tail : {"ib", "b"}) {
        size_t length = std::string(tail).size();
        if (unit.size() >= length && unit.compare(unit.size() - length, length, tail) == 0) {
            unit.resize(unit.size() - length);
            break;
        }
    }
    size_t power = unit.empty() ? 0 : std::string("kmgt").find(unit) + 1; /* 0: of another letter */
    for (size_t i = 0; i < power && power <= 4; i++)
        number *= 1024;
    bool is_size = end != text.c_str() && unit.size() <= 1 && (power != 0) == !unit.empty() &&
                   number >= 0 && number < 9e18;
    return is_size ? static_cast<int64_t>(number) : -1;
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
    int64_t budget = size_of(variable("PLEAT_BUDGET", "0"));
    std::string plan = variable("PLEAT_PLAN", "auto"), conf = variable("PLEAT_CONF");
    bool saves = !variable("PLEAT_SAVE_PLAN").empty();
    if (budget < 0) {
        say("PLEAT_BUDGET: '" + variable("PLEAT_BUDGET") +
            "' is no size; write 20GiB: the program "
            "runs without Pleat");
        return;
    }
    if (pleat_torch_enable(variable("PLEAT_POLICY", "pleat").c_str(), conf.c_str(),
                           plan == "auto" ? "" : plan.c_str(), static_cast<uint64_t>(budget),
                           saves ? 32 : 0, 0) != 0) {
        say(failure + ": the program runs without Pleat");
        return;
    }
    std::atexit(finish);
}

} // namespace
