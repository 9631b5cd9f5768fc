/*
 * plan.c: the policies and the plan that a replay is told to take (see replay.h).
 */
#include <tools/replay/replay.h>

#include <tools/cli.h>
#include <tools/nearest.h>
#include <tools/replay/devices.h>

#include <internal/error.h>
#include <plan/sizes/planner.h>
#include <runtime/base/policy.h>
#include <stdio.h>
#include <string.h>

#define LARGE_DEVICE (UINT64_C(1) << 44) /* bytes: no job is refused */

int replay_refuse_policy(const char *command, const char *name)
{
#define NAME(policy) #policy,
    static const char *const names[] = {PLEAT__POLICIES(NAME)};
#undef NAME
    return nearest_refuse(command, "policy", name, names, sizeof names / sizeof *names);
}

int replay_parse_policies(const char *command, const char *text, const char **names, int most)
{
    char name[512]; /* longer ones are cut, and are none */
    for (int count = 0; count < most;) {
        size_t length = strcspn(text, ",");
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1),
                 text);
        const pleat__policy_ops *policy = pleat__policy_find(name);
        if (policy == NULL) {
            (void)replay_refuse_policy(command, name);
            return 0;
        }
        for (int i = 0; i < count; i++)
            if (names[i] == policy->name) {
                cli_bad_use(command, "the policy '%s' is named twice", policy->name);
                return 0;
            }
        names[count++] = policy->name;
        if (text[length] == '\0')
            return count;
        text += length + 1;
    }
    cli_bad_use(command, "more than %d policies", most);
    return 0;
}

bool replay_follows_plans(const char *policy)
{
    return strcmp(policy, "pleat") == 0 || strcmp(policy, "stweaver") == 0;
}

pleat_result replay_plan_for(const pleat_trace *trace, const pleat_plan *plan, pleat_plan **own)
{
    const pleat__instance_options options = {.recipe = true, .first = true};
    pleat__fraction x;
    bool changes;
    *own = NULL;
    if (plan->recipe == NULL)
        return PLEAT_OK;
    pleat_result result = pleat__elastic_infer(plan, trace, &x, &changes);
    if (result != PLEAT_OK || changes)
        return result;
    return pleat__elastic_instance(plan, x, &options, NULL, own);
}

/* Puts an elastic plan's instance at the trace's x in its place. */
static pleat_result take_instance(const pleat_trace *trace, const char *path, pleat_plan **plan)
{
    pleat_plan *own;
    pleat_result result = replay_plan_for(trace, *plan, &own);
    if (result == PLEAT_E_NOT_FOUND) {
        fprintf(stderr, "pleat: note: %s is not for this trace: %s\n", path,
                pleat_last_error()->text);
        return PLEAT_OK;
    }
    PLEAT_TRY(result);
    if (own == NULL)
        return PLEAT_OK;
    own->answers_only = (*plan)->answers_only;
    pleat_plan_free(*plan);
    *plan = own;
    return PLEAT_OK;
}

/* What a replay of stweaver takes at most. */
static pleat_result peak_with(const pleat_trace *trace, const pleat_plan *plan, uint64_t *bytes)
{
    const replay_options options = {
        .policy = "stweaver", .plan = plan, .device_bytes = LARGE_DEVICE};
    replay_result result;
    pleat_result ran = replay_run(trace, &options, &result);
    *bytes = ran == PLEAT_OK && !result.oom ? result.peak_physical_bytes : UINT64_MAX;
    return ran;
}

/* A static plan that costs more than it saves is left out, as whoever uses STWeaver would: its pool
 * is resident whole, and what it has no place for is in the caching allocator beside it. */
static pleat_result keep_if_it_pays(const pleat_trace *trace, pleat_plan **plan)
{
    uint64_t with, without;
    PLEAT_TRY(peak_with(trace, *plan, &with));
    PLEAT_TRY(peak_with(trace, NULL, &without));
    if (with <= without)
        return PLEAT_OK;
    fprintf(stderr,
            "pleat: note: stweaver runs without its plan, with which it would take %.3f GiB, and "
            "%.3f GiB without\n",
            (double)with / (1u << 30), (double)without / (1u << 30));
    pleat_plan_free(*plan);
    *plan = NULL;
    return PLEAT_OK;
}

/* The static plan of a recording. Of a job in which nothing repeats, or whose plan is larger than
 * stweaver's pool may be, there is none: its caching allocator serves all. */
static pleat_result make_static_plan(const pleat_trace *trace, pleat_plan **plan)
{
    pleat_plan_options options = {.size = sizeof options, .algorithm = "stweaver", .no_fold = 1};
    pleat_result result = pleat_plan_make(trace, &options, plan);
    if (result == PLEAT_OK)
        result = keep_if_it_pays(trace, plan);
    if (result != PLEAT_E_INPUT && result != PLEAT_E_LIMIT)
        return result;
    fprintf(stderr, "pleat: note: stweaver runs without a plan: %s\n", pleat_last_error()->text);
    pleat_plan_free(*plan);
    *plan = NULL;
    return PLEAT_OK;
}

/* A rank's plan may serve another rank, whose GPU has another number; two of one recording have
 * plans of their own. */
static void note_device(const pleat_trace *trace, const char *path, const pleat_plan *plan)
{
    int device = device_first(trace);
    if ((int)plan->device != device)
        fprintf(
            stderr,
            "pleat: note: '%s' is a plan for GPU %u, and this is GPU %d: %%d in the name stands "
            "for the number of each\n",
            path, plan->device, device);
}

pleat_result replay_plan_open(const pleat_trace *trace, const char *policy, const char *path,
                              pleat_plan **plan)
{
    char own[DEVICE_PATH_MOST];
    *plan = NULL;
    if (strcmp(path, "auto") != 0) {
        path = device_path(path, trace, own);
        /* What it proves by itself it has proved on being read. A plan of another recording is
         * followed as far as it fits, as in a job. */
        PLEAT_TRY(cli_read_plan(path, plan));
        note_device(trace, path, *plan);
        if ((*plan)->recipe != NULL)
            return take_instance(trace, path, plan);
        if (pleat_plan_verify(*plan, trace) != PLEAT_OK)
            fprintf(stderr, "pleat: note: %s is not of this trace: %s\n", path,
                    pleat_last_error()->text);
        return PLEAT_OK;
    }
    return strcmp(policy, "stweaver") == 0 ? make_static_plan(trace, plan) : PLEAT_OK;
}
