/*
 * starting.h: what a device's runtime starts with, whichever of torch's interfaces asks for it: the
 * shim's (devices.h) and the pluggable allocator's (hooks.cpp).
 */
#ifndef PLEAT_TORCH_STARTING_H
#define PLEAT_TORCH_STARTING_H

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

#include <pleat/base.h>
#include <pleat/plan.h>
#include <pleat/runtime.h>

namespace pleat_torch
{

struct Settings {
    std::string policy = "pleat";
    std::string conf;
    std::string plan; /* file; %d stands for the device */
    uint64_t budget_bytes = 0;
    uint32_t record = 0;        /* iterations to record from the first request on; 0: none */
    uint64_t record_events = 0; /* and at most as many events; 0: as many as a recording may have */
};

/* Throws, with a text or with what pleat_last_error() says; each of the two has it in its own way.
 */
[[noreturn]] void fail(const std::string &text);
[[noreturn]] void fail_last(const char *doing);

constexpr uint64_t CHUNK_BYTES = 2 << 20; /* what Pleat takes of a device at a time */

/* What a request takes, as torch's own allocator rounds it. */
inline uint64_t rounded(uint64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

/* A budget that is one: as enable() of the package has it, 0, which is all there is, or at least a
 * chunk. */
inline uint64_t checked_budget(uint64_t bytes)
{
    if (bytes != 0 && bytes < CHUNK_BYTES)
        fail("a budget of " + std::to_string(bytes) +
             " bytes holds nothing: write 20GiB or 512MiB");
    return bytes;
}

/* The plan of a device, NULL where it has none. The first device that is used has the settings'
 * file, further ones FILE.dN, unless %d in its name stands for the device. The caller frees it. */
inline pleat_plan *read_plan(const Settings &settings, int device, bool is_first)
{
    std::string path = settings.plan, number = std::to_string(device);
    if (path.empty())
        return nullptr;
    bool named = path.find("%d") != std::string::npos, must = !named && is_first;
    for (size_t at; (at = path.find("%d")) != std::string::npos;)
        path.replace(at, 2, number);
    if (!named && !is_first)
        path += ".d" + number;
    pleat_plan *plan = nullptr;
    if ((must || access(path.c_str(), F_OK) == 0) &&
        pleat_plan_read(path.c_str(), &plan) != PLEAT_OK)
        fail_last("read the plan, which save_plan or `pleat plan` writes");
    return plan;
}

/* They point into `settings`. */
inline pleat_runtime_options options_of(const Settings &settings, int device,
                                        const pleat_plan *plan)
{
    pleat_runtime_options options = {};
    options.size = sizeof options;
    options.device = device;
    options.policy = settings.policy.c_str();
    options.plan = plan;
    options.budget_bytes = settings.budget_bytes;
    options.conf = settings.conf.empty() ? nullptr : settings.conf.c_str();
    return options;
}

/* Settings, "key:value,...", without the one of that name. */
inline std::string without(const std::string &conf, const std::string &key)
{
    std::string rest;
    for (size_t at = 0, end; at < conf.size(); at = end + 1) {
        end = std::min(conf.find(',', at), conf.size());
        std::string one = conf.substr(at, end - at);
        size_t begin = one.find_first_not_of(' ');
        if (begin != std::string::npos && one.compare(begin, key.size() + 1, key + ":") == 0)
            continue;
        rest += (rest.empty() ? "" : ",") + one;
    }
    return rest;
}

/* A device's runtime. Where its log cannot be written, on a full disk say, the job runs without it,
 * and a line says so. */
inline pleat_result create_runtime(const pleat_vmm &vmm, pleat_runtime_options options,
                                   pleat_runtime **out)
{
    pleat_result result = pleat_runtime_create(vmm, &options, out);
    const char *given = options.conf != nullptr ? options.conf : std::getenv("PLEAT_CONF");
    std::string conf = without(given != nullptr ? given : "", "log");
    if (result != PLEAT_E_IO || given == nullptr || conf == given)
        return result;
    std::string wrong = pleat_last_error()->text;
    options.conf = conf.c_str();
    result = pleat_runtime_create(vmm, &options, out);
    if (result == PLEAT_OK)
        std::fprintf(stderr, "pleat: %s: there is no log of device %d\n", wrong.c_str(),
                     options.device);
    return result;
}

inline void begin_record(const Settings &settings, pleat_runtime *runtime)
{
    pleat_record_options options = {};
    options.size = sizeof options;
    options.iterations = settings.record;
    options.events = settings.record_events;
    if (settings.record != 0 && pleat_record_begin(runtime, &options) != PLEAT_OK)
        fail_last("record");
}

/* runtime: NULL has no phase. */
inline void enter_phase(const std::string &name, pleat_runtime *runtime)
{
    if (runtime != nullptr && pleat_phase(runtime, name.c_str()) != PLEAT_OK)
        fail_last("enter a phase");
}

} // namespace pleat_torch

#endif
