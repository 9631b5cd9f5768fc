/*
 * reclaim.c: out of memory, step by step, the cheapest first, for every policy:
 *
 *   1 frees whose streams have come past them reach the policy
 *   2 cached memory goes back, and the views of it: large pieces, as much as is needed; then all
 *   3 frees that wait for a stream are waited for, and the caches go back once more
 *   4 other tenants of the device are asked to give way, and waited for (tenancy.h)
 *   5 the program is asked to free something
 *   6 what is used least often goes to host memory, where the settings say so (spill.h)
 *   7 the request is refused, with a text that says what there is
 *
 * After every step that gave anything the policy is asked again. Steps 2 and 3 are the last of the
 * five of PyTorch's malloc. No driver verb waits for the GPU, which may still use what was freed on
 * its own stream; so before anything is unmapped the streams that allocate are fenced and waited
 * for (pleat__gate_leave_fenced), by the policy, which takes what it gives back out of reach.
 */
#include <runtime/face/runtime_internal.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/format.h>
#include <internal/range.h>
#include <inttypes.h>
#include <plan/base/plan.h>
#include <stdio.h>
#include <vmm/table.h>

/* Asks the policy to give back, and passes what came on to the device. */
static bool give_kind(pleat_runtime *runtime, pleat__reclaim what, uint64_t bytes,
                      pleat_stream stream)
{
    bool any = runtime->ops->reclaim(runtime->policy, what, bytes, stream);
    pleat__gate_leave(&runtime->gate);
    /* What the mapper was given to unmap holds chunks too. */
    pleat__gate_drain(&runtime->gate);
    any = pleat__space_trim(runtime->space, 0) > 0 || any;
    pleat__gate_enter(&runtime->gate);
    return any;
}

/* Views first: what they show stays. */
static bool give_back(pleat_runtime *runtime, pleat__reclaim what, uint64_t bytes,
                      pleat_stream stream)
{
    bool any = give_kind(runtime, PLEAT__RECLAIM_VIEWS, bytes, stream);
    return give_kind(runtime, what, bytes, stream) || any;
}

void pleat__wait_for_frees(pleat_runtime *runtime)
{
    pleat_event *events;
    size_t count = pleat__pending_events(&runtime->pending, &events);
    pleat__gate_leave(&runtime->gate);
    for (size_t i = 0; i < count; i++)
        (void)pleat__vmm_wait(runtime->vmm, events[i]);
    pleat__arena_free(runtime->arena, events);
    pleat__gate_enter(&runtime->gate);
}

static bool wait_pending(pleat_runtime *runtime)
{
    pleat__wait_for_frees(runtime);
    return pleat__pending_poll(&runtime->pending, UINT64_MAX) > 0;
}

void pleat__reclaim_all(pleat_runtime *runtime)
{
    pleat__pending_poll(&runtime->pending, UINT64_MAX);
    give_back(runtime, PLEAT__RECLAIM_CACHES, UINT64_MAX, 0);
}

uint64_t pleat__trim(pleat_runtime *runtime, uint64_t keep_bytes)
{
    uint64_t before = pleat__space_stats_of(runtime->space).physical_bytes, after;
    pleat__pending_poll(&runtime->pending, UINT64_MAX);
    pleat__gate_leave(&runtime->gate);
    (void)pleat__space_trim(runtime->space, 0);
    pleat__gate_enter(&runtime->gate);
    pleat__spill_let_go(runtime);
    if (runtime->ops->rest != NULL)
        (void)runtime->ops->rest(runtime->policy, keep_bytes);
    else if (pleat__space_stats_of(runtime->space).physical_bytes > keep_bytes)
        give_back(runtime, PLEAT__RECLAIM_CACHES, UINT64_MAX, 0);
    after = pleat__space_stats_of(runtime->space).physical_bytes;
    return before > after ? before - after : 0;
}

/* With the turn; the lock is left. */
static uint64_t room_for_new(pleat_runtime *runtime)
{
    uint64_t free_bytes;
    (void)pleat__limits_free(runtime, &free_bytes);
    uint64_t physical = pleat__space_stats_of(runtime->space).physical_bytes;
    uint64_t limit = pleat__limits_allowed(runtime);
    uint64_t allowed = limit > physical ? limit - physical : 0;
    return pleat__round_down(free_bytes < allowed ? free_bytes : allowed,
                             pleat__space_page_bytes(runtime->space));
}

uint64_t pleat__make_room(pleat_runtime *runtime, uint64_t bytes, bool all)
{
    uint64_t room = room_for_new(runtime);
    room += pleat__space_stats_of(runtime->space).physical_bytes;
    if (all)
        (void)wait_pending(runtime);
    return pleat__trim(runtime, all || room < bytes ? 0 : room - bytes);
}

void pleat__spare(pleat_runtime *runtime)
{
    if (runtime->ops->spare == NULL)
        return;
    pleat__pending_poll(&runtime->pending, UINT64_MAX);
    pleat__gate_leave(&runtime->gate);
    (void)pleat__space_trim(runtime->space, 0);
    pleat__gate_enter(&runtime->gate);
    (void)runtime->ops->spare(runtime->policy);
}

pleat_result pleat_trim(pleat_runtime *runtime, uint64_t keep_bytes, uint64_t *given_bytes)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock_turn(&runtime->gate);
    uint64_t given = pleat__trim(runtime, keep_bytes);
    PLEAT_AUDIT(pleat__audit_policy(runtime));
    pleat__gate_unlock(&runtime->gate);
    if (given_bytes != NULL)
        *given_bytes = given;
    return PLEAT_OK;
}

/* Another thread may allocate and free meanwhile, and the program's own calls fail: the last that
 * does is this thread's last error where the request is served. */
bool pleat__ask_program(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream)
{
    if (runtime->memory_callback == NULL)
        return false;
    pleat__tries_end(PLEAT_OK);
    pleat__gate_unlock(&runtime->gate);
    int again = runtime->memory_callback(runtime->memory_context, bytes, stream);
    pleat__gate_lock_turn(&runtime->gate);
    if (again)
        pleat__reclaim_all(runtime);
    return again != 0;
}

typedef enum step {
    STEP_COMPLETED,
    STEP_LARGE,
    STEP_CACHES,
    STEP_WAIT,
    STEP_TENANTS,
    STEP_CALLBACK,
    STEP_SPILL,
    STEP_COUNT,
} step;

/* Whether the step gave anything, so that asking again may help. */
static bool run_step(pleat_runtime *runtime, step which, uint64_t bytes, pleat_stream stream)
{
    switch (which) {
    case STEP_COMPLETED:
        return pleat__pending_poll(&runtime->pending, UINT64_MAX) > 0;
    case STEP_LARGE:
        return give_back(runtime, PLEAT__RECLAIM_LARGE, bytes, stream);
    case STEP_CACHES:
        return give_back(runtime, PLEAT__RECLAIM_CACHES, bytes, stream);
    case STEP_WAIT:
        if (!wait_pending(runtime))
            return false;
        pleat__reclaim_all(runtime);
        return true;
    case STEP_CALLBACK:
        return pleat__ask_program(runtime, bytes, stream);
    case STEP_SPILL:
        return bytes <= runtime->limits.cap_bytes && pleat__spill_out(runtime, bytes);
    case STEP_TENANTS:
    case STEP_COUNT:
        break;
    }
    return false;
}

/* What two digits behind the point would show as nothing is told in bytes. */
static const char *mib(uint64_t bytes, char *buffer, size_t size)
{
    if (bytes != 0 && bytes < (1 << 20) / 100)
        snprintf(buffer, size, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
    else
        pleat__format(buffer, size, "%.2f MiB", (double)bytes / (1 << 20));
    return buffer;
}

static const char *in_words(uint64_t bytes, char *buffer, size_t size)
{
    if (bytes >= 1 << 20)
        return mib(bytes, buffer, size);
    snprintf(buffer, size, "%" PRIu64 " bytes", bytes);
    return buffer;
}

/* Not above it: what is said is served when it is asked for. */
static const char *mib_below(uint64_t bytes, char *buffer, size_t size)
{
    uint64_t hundredths = (bytes >> 20) * 100 + (bytes & 0xfffff) * 100 / (1 << 20);
    snprintf(buffer, size, "%" PRIu64 ".%02" PRIu64 " MiB", hundredths / 100, hundredths % 100);
    return buffer;
}

/* Why the last attempt ended, where that is not what the figures say: the budget's bytes in use by
 * then include what the attempt itself had got, and has given back. */
static const char *cause_of(const pleat_error *why, char *text, size_t size)
{
    if (why->result == PLEAT_E_BUDGET)
        return "";
    snprintf(text, size, " (%s)", why->text);
    return text;
}

/* The largest request that would be served, were it asked for next; `room` for new memory. */
static uint64_t largest_of(pleat_runtime *runtime, pleat_stream stream, uint64_t room,
                           uint64_t idle)
{
    uint64_t cap = runtime->limits.cap_bytes;
    uint64_t most = runtime->ops->most != NULL ? runtime->ops->most(runtime->policy, stream, room)
                                               : (room > idle ? room : idle);
    most = most > runtime->canary.guard ? most - runtime->canary.guard : 0;
    most = most < PLEAT__REQUEST_MOST ? most : PLEAT__REQUEST_MOST;
    /* One above the limit is refused whatever is idle. */
    return most < cap ? most : cap;
}

/* The text of the refusal. */
static pleat_result refuse(pleat_runtime *runtime, const pleat_error *why, uint64_t bytes,
                           pleat_stream stream)
{
    char asked[32], live[32], physical[32], limit[32], reusable[32], fits[32], plan[96] = "";
    char reason[160], source[160];
    const char *cause = cause_of(why, reason, sizeof reason);
    uint64_t largest = 0, total = 0;
    /* What the last attempt had got before it failed: all else that is idle has gone before. */
    if (bytes <= runtime->limits.cap_bytes)
        give_back(runtime, PLEAT__RECLAIM_CACHES, UINT64_MAX, stream);
    uint64_t room = room_for_new(runtime);
    uint64_t exists = pleat__space_stats_of(runtime->space).physical_bytes;
    runtime->ops->idle(runtime->policy, stream, &largest, &total);
    largest = largest_of(runtime, stream, room, largest);
    if (runtime->plan != NULL) {
        char expected[32];
        snprintf(plan, sizeof plan, "; the plan expects a peak of %s",
                 mib(runtime->plan->physical_bytes, expected, sizeof expected));
    }
    runtime->stats.out_of_memory++;
    return pleat__fail(
        why->result,
        "out of memory: %s asked for on stream %" PRIu64 "; live %s, physical %s of %s %s, "
        "reusable %s, the largest request that would fit now %s%s%s",
        in_words(bytes, asked, sizeof asked), stream,
        mib(runtime->stats.live_bytes, live, sizeof live), mib(exists, physical, sizeof physical),
        pleat__limits_text(runtime, source, sizeof source),
        mib(pleat__limits_allowed(runtime), limit, sizeof limit),
        mib(total, reusable, sizeof reusable), mib_below(largest, fits, sizeof fits), plan, cause);
}

/* With the turn, which a request may leave all the same: then it begins again. *why: what it said
 * where it failed, for what else fails before the request is refused. */
static pleat_result ask_once_more(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream,
                                  pleat_error *why, pleat_va *address)
{
    pleat_result result = PLEAT_E_NOT_READY;
    while (result == PLEAT_E_NOT_READY) {
        pleat__gate_await_turn(&runtime->gate);
        result = runtime->ops->alloc(runtime->policy, bytes, stream, address);
    }
    *why = pleat__failure(result);
    return result;
}

/* As often as others leave more room. */
static pleat_result ask_tenants(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream,
                                pleat_error *why, pleat_va *address)
{
    pleat__room_request request = {0};
    pleat_result result = why->result;
    if (!pleat__round_up(bytes, pleat__space_page_bytes(runtime->space), &request.bytes))
        return result;
    while (pleat__is_shortage(result) && pleat__tenancy_await(runtime->tenancy, &request))
        result = ask_once_more(runtime, bytes, stream, why, address);
    pleat__gate_await_turn(&runtime->gate);
    pleat__tenancy_served(runtime->tenancy, &request);
    return result;
}

/* Whether the cap is higher than when it was last looked at: others have given something back. */
static bool rises(pleat_runtime *runtime)
{
    uint64_t before = runtime->limits.cap_bytes;
    if (runtime->limits.world.bytes != 0)
        pleat__limits_measure(runtime);
    return runtime->limits.cap_bytes > before;
}

pleat_result pleat__alloc_reclaiming(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream,
                                     pleat_result first, pleat_va *address)
{
    pleat_result result = first;
    pleat_error why = pleat__failure(first);
    pleat__gate_await_turn(&runtime->gate);
    if (rises(runtime))
        result = ask_once_more(runtime, bytes, stream, &why, address);
    /* What is larger than everything allowed is refused without giving anything up; only the
     * program may allow more. */
    step begin = bytes > runtime->limits.cap_bytes ? STEP_CALLBACK : STEP_COMPLETED;
    if (bytes > pleat__space_device_bytes(runtime->space))
        begin = STEP_COUNT;
    for (step which = begin; which < STEP_COUNT && pleat__is_shortage(result); which++) {
        if (which == STEP_TENANTS)
            result = ask_tenants(runtime, bytes, stream, &why, address);
        else if (run_step(runtime, which, bytes, stream) && bytes <= runtime->limits.cap_bytes)
            result = ask_once_more(runtime, bytes, stream, &why, address);
    }
    return pleat__is_shortage(result) ? refuse(runtime, &why, bytes, stream) : result;
}
