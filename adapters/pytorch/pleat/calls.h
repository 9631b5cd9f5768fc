/*
 * calls.h: what Python asks of one device's runtime, through ctypes. Each function returns 0 for
 * success, else pleat_torch_failure() says why. shim.cpp and hooks.cpp have the rest, and include
 * this.
 */
#ifndef PLEAT_TORCH_CALLS_H
#define PLEAT_TORCH_CALLS_H

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "starting.h"

#include <pleat/trace.h>

#define PLEAT_TORCH_CALL extern "C" __attribute__((visibility("default")))

namespace pleat_torch
{

/* ---- what each of the two has in its own way ---- */

/* NULL where Pleat is not enabled, the device has not been used, or there is none of that number.
 */
pleat_runtime *runtime_of(int device);
/* The last counters with peaks since the start. pre: runtime_of() has one. */
pleat_stats whole_stats_of(int device);
std::string text_of(const std::exception &error);
/* Whatever else shares a device's budget leaves Pleat what it has not used of it, until it wants
 * that: for questions about what Pleat may take. pre: runtime_of() has one. */
void give_rest_to_pleat(int device);

/* Text of the last failure on this thread, for Python. */
inline thread_local std::string failure;

template <typename Body> int guarded(Body &&body)
{
    try {
        body();
        return 0;
    } catch (const std::exception &error) {
        failure = text_of(error);
    }
    return 1;
}

inline pleat_runtime *used_runtime(int device)
{
    pleat_runtime *runtime = runtime_of(device);
    if (runtime == nullptr)
        fail("device " + std::to_string(device) + " has not been used");
    return runtime;
}

inline uint64_t mixed(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    return hash ^ hash >> 32;
}

using OwnedTrace = std::unique_ptr<pleat_trace, decltype(&pleat_trace_free)>;
using OwnedPlan = std::unique_ptr<pleat_plan, decltype(&pleat_plan_free)>;

inline OwnedTrace recorded_trace(pleat_runtime *runtime)
{
    pleat_trace *trace = nullptr;
    if (pleat_record_copy(runtime, &trace) != PLEAT_OK)
        fail_last("take the recording");
    return {trace, pleat_trace_free};
}

inline OwnedPlan plan_of(const pleat_trace *trace, int device)
{
    pleat_plan *plan = nullptr;
    pleat_plan_options options = {};
    options.size = sizeof options;
    options.device = static_cast<uint32_t>(device);
    if (pleat_plan_make(trace, &options, &plan) != PLEAT_OK)
        fail_last("plan");
    return {plan, pleat_plan_free};
}

/* A job without a plan learns the next time as well: what is wrong is nobody's matter. */
inline void keep_plan(pleat_runtime *runtime)
{
    if (runtime != nullptr)
        (void)pleat_keep_plan(runtime);
}

} // namespace pleat_torch

PLEAT_TORCH_CALL const char *pleat_torch_failure()
{
    return pleat_torch::failure.c_str();
}

/* 0 where it is not known. */
PLEAT_TORCH_CALL int pleat_torch_max_microbatch(int device, uint64_t running, uint64_t *most)
{
    return pleat_torch::guarded([&] {
        *most = 0;
        pleat_runtime *runtime = pleat_torch::runtime_of(device);
        if (runtime == nullptr)
            return;
        pleat_torch::give_rest_to_pleat(device);
        pleat_result result = pleat_max_microbatch(runtime, running, most);
        if (result != PLEAT_OK && result != PLEAT_E_NOT_FOUND)
            pleat_torch::fail_last("say what microbatch fits");
    });
}

/* Whether a device's recording is complete; 0 also where nothing is recorded. */
PLEAT_TORCH_CALL int pleat_torch_recorded(int device)
{
    pleat_runtime *runtime = pleat_torch::runtime_of(device);
    return runtime != nullptr && pleat_record_complete(runtime);
}

/* Whether what was recorded of it is enough for a plan. */
PLEAT_TORCH_CALL int pleat_torch_recorded_enough(int device)
{
    pleat_runtime *runtime = pleat_torch::runtime_of(device);
    return runtime != nullptr && pleat_record_enough(runtime);
}

/* Gives idle memory back until `keep` bytes are left; *given bytes went. Nothing on a device that
 * has not been used. */
PLEAT_TORCH_CALL int pleat_torch_trim(int device, uint64_t keep, uint64_t *given)
{
    return pleat_torch::guarded([&] {
        *given = 0;
        pleat_runtime *runtime = pleat_torch::runtime_of(device);
        if (runtime != nullptr && pleat_trim(runtime, keep, given) != PLEAT_OK)
            pleat_torch::fail_last("trim");
    });
}

/* Of what has that tag, or, where it is "", of all; there may be nothing. The device is done with
 * it. */
PLEAT_TORCH_CALL int pleat_torch_pause(int device, int discard, const char *tag)
{
    return pleat_torch::guarded([&] {
        pleat_pause_options options = {};
        options.size = sizeof options;
        options.offload = discard != 0 ? PLEAT_OFFLOAD_DISCARD : PLEAT_OFFLOAD_HOST;
        options.tag = tag;
        pleat_result result = pleat_pause(pleat_torch::used_runtime(device), &options);
        if (result != PLEAT_OK && result != PLEAT_E_NOT_FOUND)
            pleat_torch::fail_last("pause");
    });
}

/* What is paused of that tag, or, where it is "", all; there may be nothing. */
PLEAT_TORCH_CALL int pleat_torch_resume(int device, const char *tag)
{
    return pleat_torch::guarded([&] {
        pleat_result result = pleat_resume(pleat_torch::used_runtime(device), tag);
        if (result != PLEAT_OK && result != PLEAT_E_NOT_FOUND && result != PLEAT_E_STATE)
            pleat_torch::fail_last("resume");
    });
}

/* Of what this thread allocates from now on; "": of nothing. */
PLEAT_TORCH_CALL int pleat_torch_tag(const char *name)
{
    return pleat_torch::guarded([&] {
        if (pleat_tag(name) != PLEAT_OK)
            pleat_torch::fail_last("tag");
    });
}

/* The cap, what the process may have in all, what of it is not Pleat's, and whether that is known;
 * what set the cap, in `name`. */
PLEAT_TORCH_CALL int pleat_torch_limits(int device, uint64_t values[4], char name[64])
{
    return pleat_torch::guarded([&] {
        pleat_limits limits = {};
        limits.size = sizeof limits;
        pleat_runtime *runtime = pleat_torch::used_runtime(device);
        pleat_torch::give_rest_to_pleat(device);
        if (pleat_limits_of(runtime, &limits) != PLEAT_OK)
            pleat_torch::fail_last("say the limits");
        values[0] = limits.limit_bytes;
        values[1] = limits.process_bytes;
        values[2] = limits.other_bytes;
        values[3] = limits.is_measured;
        std::snprintf(name, sizeof limits.name, "%s", limits.name);
    });
}

/* What was recorded on a device, as a trace and as the plan made of it; each to a file, or not at
 * all where its path is empty. */
PLEAT_TORCH_CALL int pleat_torch_save(int device, const char *trace_path, const char *plan_path)
{
    return pleat_torch::guarded([&] {
        auto trace = pleat_torch::recorded_trace(pleat_torch::used_runtime(device));
        if (*trace_path != '\0' && pleat_trace_write(trace.get(), trace_path) != PLEAT_OK)
            pleat_torch::fail_last("write the recording");
        if (*plan_path == '\0')
            return;
        auto plan = pleat_torch::plan_of(trace.get(), device);
        if (pleat_plan_write(plan.get(), plan_path) != PLEAT_OK)
            pleat_torch::fail_last("write the plan");
    });
}

/* A hash of what was recorded on a device, the same in every process that asked for the same:
 * sizes, order, lives, phases and which requests share a stream, but no stream's or device's
 * number. */
PLEAT_TORCH_CALL int pleat_torch_fingerprint(int device, uint64_t *out)
{
    return pleat_torch::guarded([&] {
        auto trace = pleat_torch::recorded_trace(pleat_torch::used_runtime(device));
        const pleat_trace_event *events = pleat_trace_events(trace.get());
        *out = pleat_trace_label_count(trace.get());
        for (uint32_t i = 0; i < pleat_trace_label_count(trace.get()); i++)
            for (const char *at = pleat_trace_label(trace.get(), i); *at != '\0'; at++)
                *out = pleat_torch::mixed(*out, static_cast<unsigned char>(*at));
        for (size_t i = 0; i < pleat_trace_event_count(trace.get()); i++) {
            const pleat_trace_event &event = events[i];
            /* When other streams were done with it is chance. */
            if (event.kind == PLEAT_EVENT_FREE_COMPLETED)
                continue;
            *out = pleat_torch::mixed(*out, uint64_t(event.kind) << 48 | event.stream);
            *out = pleat_torch::mixed(*out, uint64_t(event.label) << 32 | event.request);
            *out = pleat_torch::mixed(*out, event.size);
        }
    });
}

/* What the canary found on a device: allocations checked, words that were wrong, where one was. Of
 * streams that have not been waited for it counts what they have finished. */
PLEAT_TORCH_CALL int pleat_torch_canary(int device, uint64_t values[3])
{
    return pleat_torch::guarded([&] {
        pleat_canary found;
        if (pleat_canary_of(pleat_torch::used_runtime(device), &found) != PLEAT_OK)
            pleat_torch::fail_last("ask the canary");
        values[0] = found.checked;
        values[1] = found.words;
        values[2] = found.first;
    });
}

/* Counters of a device in the order of PLEAT_COUNTERS; *known is 0 before its first use. */
PLEAT_TORCH_CALL int pleat_torch_stats(int device, uint64_t *values, int *known)
{
    return pleat_torch::guarded([&] {
        *known = pleat_torch::runtime_of(device) != nullptr;
        if (!*known)
            return;
        pleat_stats stats = pleat_torch::whole_stats_of(device);
        size_t i = 0;
#define COPY(name, text) values[i++] = stats.name;
        PLEAT_COUNTERS(COPY)
#undef COPY
    });
}

/* "requests\tallocations asked for\n...": the names of the counters, in order. */
PLEAT_TORCH_CALL const char *pleat_torch_counters()
{
#define NAME(name, text) #name "\t" text "\n"
    return PLEAT_COUNTERS(NAME);
#undef NAME
}

#endif
