/*
 * limits.c: see limits.h.
 */
#include <runtime/face/limits.h>

#include <runtime/face/runtime_internal.h>

#include <internal/error.h>
#include <internal/format.h>
#include <internal/sized.h>
#include <stdio.h>
#include <string.h>

#define SECOND_NS UINT64_C(1000000000) /* D213 */

/* What the process has beside the runtime's `own` bytes, and beside its tenants'. */
static void note_used(pleat_runtime *runtime, pleat_result known, uint64_t used, uint64_t own,
                      uint64_t tenants)
{
    pleat__limits *limits = &runtime->limits;
    limits->measured_ns = runtime->vmm.ops->clock_ns(runtime->vmm.self);
    limits->is_measured = known == PLEAT_OK;
    if (limits->is_measured) {
        limits->other_bytes = used > own ? used - own : 0;
        limits->untold_bytes = used > tenants ? used - tenants : 0;
    }
}

pleat_result pleat__limits_begin(pleat_runtime *runtime, uint64_t budget_bytes)
{
    pleat__limits *limits = &runtime->limits;
    const pleat_vmm_ops *ops = runtime->vmm.ops;
    char identity[PLEAT_DEVICE_NAME_BYTES];
    uint64_t free_bytes, used = 0, limit = 0;
    *limits = (pleat__limits){.budget_bytes = budget_bytes};
    PLEAT_TRY(
        ops->memory_info(runtime->vmm.self, runtime->device, &free_bytes, &limits->device_bytes));
    if (ops->identify(runtime->vmm.self, runtime->device, identity) != PLEAT_OK)
        identity[0] = '\0';
    PLEAT_TRY(pleat__environment_limit(runtime->device, identity, &limits->world));
    pleat_result known = ops->process_memory(runtime->vmm.self, runtime->device, &used, &limit);
    if (known == PLEAT_OK)
        pleat__limit_take(&limits->world, limit, "the control group's limit");
    /* One that leaves all there is is none. */
    if (limits->world.bytes >= limits->device_bytes)
        limits->world = (pleat__limit){0};
    note_used(runtime, known, used, 0, 0);
    return PLEAT_OK;
}

void pleat__limits_measure(pleat_runtime *runtime)
{
    uint64_t used = 0, limit;
    pleat__gate_leave(&runtime->gate);
    /* Before the question, or memory that Pleat gets meanwhile would count twice. */
    uint64_t own = pleat__space_stats_of(runtime->space).physical_bytes;
    uint64_t tenants = pleat__tenancy_process_bytes(runtime->tenancy);
    pleat_result known =
        runtime->vmm.ops->process_memory(runtime->vmm.self, runtime->device, &used, &limit);
    pleat__gate_enter(&runtime->gate);
    note_used(runtime, known, used, own, tenants);
    pleat__limits_settle(runtime);
}

void pleat__limits_follow(pleat_runtime *runtime)
{
    uint64_t now = runtime->vmm.ops->clock_ns(runtime->vmm.self);
    if (now - runtime->limits.measured_ns >= SECOND_NS &&
        pleat__gate_turn(&runtime->gate) == PLEAT_OK)
        pleat__limits_measure(runtime);
}

void pleat__limits_settle(pleat_runtime *runtime)
{
    pleat__limits *limits = &runtime->limits;
    uint64_t cap = limits->device_bytes, page = pleat__space_page_bytes(runtime->space);
    limits->has_budget = false;
    if (limits->budget_bytes != 0 && limits->budget_bytes < cap) {
        limits->has_budget = true;
        cap = limits->budget_bytes;
    }
    limits->is_limited = false;
    if (limits->world.bytes != 0) {
        uint64_t other = limits->other_bytes, world = limits->world.bytes;
        uint64_t left = world > other + page ? world - other : page;
        limits->is_limited = left < cap;
        cap = limits->is_limited ? left : cap;
    }
    limits->cap_bytes = cap;
    pleat__space_set_budget(runtime->space, limits->has_budget || limits->is_limited ? cap : 0);
    pleat__tenancy_raise(runtime->tenancy, cap);
}

uint64_t pleat__limits_allowed(const pleat_runtime *runtime)
{
    return pleat__tenancy_allowed(runtime->tenancy, runtime->limits.cap_bytes);
}

pleat_result pleat__limits_refusal(const pleat_runtime *runtime, uint64_t bytes)
{
    return bytes <= runtime->limits.device_bytes ? PLEAT_E_BUDGET : PLEAT_E_OUT_OF_MEMORY;
}

bool pleat__limits_free(pleat_runtime *runtime, uint64_t *bytes)
{
    uint64_t free_bytes = 0, total;
    pleat__gate_leave(&runtime->gate);
    pleat_result result =
        runtime->vmm.ops->memory_info(runtime->vmm.self, runtime->device, &free_bytes, &total);
    pleat__gate_enter(&runtime->gate);
    *bytes = result == PLEAT_OK ? free_bytes : 0;
    return result == PLEAT_OK;
}

const char *pleat__limits_text(const pleat_runtime *runtime, char *text, size_t size)
{
    const pleat__limits *limits = &runtime->limits;
    if (pleat__limits_allowed(runtime) < limits->cap_bytes)
        return "what the device's other tenants leave,";
    if (!limits->is_limited)
        return limits->has_budget ? "a budget of" : "the device's";
    if (limits->is_measured)
        pleat__format(text, size, "what %s leaves (%.2f MiB, less %.2f MiB that are not Pleat's),",
                      limits->world.name, (double)limits->world.bytes / (1 << 20),
                      (double)limits->other_bytes / (1 << 20));
    else
        snprintf(text, size, "what %s leaves (what else the process has is not known),",
                 limits->world.name);
    return text;
}

pleat_result pleat_limits_of(pleat_runtime *runtime, pleat_limits *out)
{
    PLEAT__TRY_HERE(runtime);
    PLEAT_TRY(pleat__check_sized("pleat_limits", out->size, sizeof *out));
    pleat__gate_lock_turn(&runtime->gate);
    pleat__limits_measure(runtime);
    const pleat__limits *limits = &runtime->limits;
    pleat_limits all = {.size = out->size,
                        .is_measured = limits->is_measured,
                        .limit_bytes = limits->cap_bytes,
                        .other_bytes = limits->other_bytes,
                        .process_bytes = limits->world.bytes};
    const char *name = limits->is_limited   ? limits->world.name
                       : limits->has_budget ? "the budget"
                                            : "the device";
    snprintf(all.name, sizeof all.name, "%s", name);
    pleat__gate_unlock(&runtime->gate);
    pleat__fill_sized(out, all.size, &all, sizeof all);
    return PLEAT_OK;
}
