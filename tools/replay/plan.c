/*
 * replay_plan.c: the policies and the plan that a replay is told to take (see replay.h).
 */
#include <tools/replay/replay.h>

#include <tools/cli.h>
#include <tools/nearest.h>

#include <internal/error.h>
#include <plan/sizes/planner.h>
#include <runtime/base/policy.h>
#include <stdio.h>
#include <string.h>

int replay_parse_policies(const char *command, const char *text, const char **names, int most)
{
    char name[32], near[NEAREST_TEXT];
    for (int count = 0; count < most;) {
        size_t length = strcspn(text, ",");
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1),
                 text);
        const pleat__policy_ops *policy = pleat__policy_find(name);
        if (policy == NULL || length >= sizeof name) {
            nearest found = nearest_to(name);
#define TRY_POLICY(policy) nearest_try(&found, #policy);
            PLEAT__POLICIES(TRY_POLICY)
#undef TRY_POLICY
            cli_bad_use(command, "there is no policy '%.*s'; there are:%s%s", (int)length, text,
                        pleat__policy_names(), nearest_text(&found, near));
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
    pleat__x x;
    bool changes;
    *own = NULL;
    if (plan->recipe == NULL)
        return PLEAT_OK;
    pleat_result result = pleat__elastic_infer(plan, trace, &x, &changes);
    if (result != PLEAT_OK || changes)
        return result;
    return pleat__elastic_instance(plan, &x, &options, NULL, own);
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
    pleat_plan_free(*plan);
    *plan = own;
    return PLEAT_OK;
}

pleat_result replay_plan_open(const pleat_trace *trace, const char *policy, const char *path,
                              pleat_plan **plan)
{
    *plan = NULL;
    if (strcmp(path, "auto") != 0) {
        /* What it proves by itself it has proved on being read. A plan of another recording is
         * followed as far as it fits, as in a job. */
        PLEAT_TRY(pleat_plan_read(path, plan));
        if ((*plan)->recipe != NULL)
            return take_instance(trace, path, plan);
        if (pleat_plan_verify(*plan, trace) != PLEAT_OK)
            fprintf(stderr, "pleat: note: %s is not of this trace: %s\n", path,
                    pleat_last_error()->text);
        return PLEAT_OK;
    }
    if (strcmp(policy, "stweaver") != 0)
        return PLEAT_OK;
    pleat_plan_options options = {.size = sizeof options, .algorithm = "stweaver", .no_fold = 1};
    pleat_result result = pleat_plan_make(trace, &options, plan);
    if (result != PLEAT_E_INPUT)
        return result;
    /* Of a job in which nothing repeats there is no static plan: its caching allocator serves all.
     */
    fprintf(stderr, "pleat: note: stweaver runs without a plan: %s\n", pleat_last_error()->text);
    *plan = NULL;
    return PLEAT_OK;
}
