/*
 * plan_trial.c: see plan_trial.h.
 *
 * A plan may be made of the wrong iteration, or of one that no other is like. Then it is laid out
 * well and serves badly, which only running it shows.
 */
#include <tools/cmd/plan_trial.h>

#include <tools/cli.h>
#include <tools/replay/replay.h>

#include <internal/error.h>

#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES (2u << 20) /* of the host backend, as of GPUs */
#define ROOM        2u         /* times the plan's memory that the device has at least */
#define WORSE       1000u      /* learning takes less where that is more than 1/WORSE */

static pleat_result replay(const pleat_trace *trace, const pleat_plan *plan, uint64_t device_bytes,
                           replay_result *result)
{
    replay_options options = {.policy = "pleat", .plan = plan, .device_bytes = device_bytes};
    return replay_run(trace, &options, result);
}

static pleat_result run_both(const pleat_trace *trace, const pleat_plan *plan, plan_trial *trial)
{
    uint64_t device_bytes = replay_device_bytes(trace, 0);
    replay_result with, without;
    if (device_bytes / ROOM < plan->physical_bytes)
        device_bytes = plan->physical_bytes * ROOM;
    PLEAT_TRY(replay(trace, plan, device_bytes, &with));
    PLEAT_TRY(replay(trace, NULL, device_bytes, &without));
    if (with.oom || without.oom) {
        trial->why_not = "it runs out of memory";
        return PLEAT_OK;
    }
    trial->run = true;
    trial->planned_bytes = with.peak_physical_bytes;
    trial->learned_bytes = without.peak_physical_bytes;
    trial->planned_share = with.steady_planned_share;
    return PLEAT_OK;
}

static pleat_result run(const pleat_trace *trace, const pleat_plan *plan, plan_trial *trial)
{
    pleat_plan *own;
    PLEAT_TRY(replay_plan_for(trace, plan, &own));
    pleat_result result = run_both(trace, own != NULL ? own : plan, trial);
    pleat_plan_free(own);
    return result;
}

pleat_result plan_trial_run(const pleat_plan *plan, const pleat_trace *const *traces,
                            uint32_t count, plan_trial *trials)
{
    memset(trials, 0, count * sizeof *trials);
    for (uint32_t i = 0; i < count; i++) {
        if (plan->chunk_bytes != CHUNK_BYTES)
            trials[i].why_not = "no GPU has such chunks";
        else
            PLEAT_TRY(run(traces[i], plan, &trials[i]));
    }
    return PLEAT_OK;
}

static bool learning_is_better(const plan_trial *trial)
{
    return trial->run && trial->planned_bytes > trial->learned_bytes &&
           trial->planned_bytes - trial->learned_bytes > trial->learned_bytes / WORSE;
}

void plan_trial_text(const plan_trial *trials, const char *const *names, uint32_t count)
{
    char planned[48], learned[48];
    for (uint32_t i = 0; i < count; i++) {
        const plan_trial *trial = &trials[i];
        if (!trial->run) {
            printf("%s was not replayed: %s\n", names[i], trial->why_not);
            continue;
        }
        printf("replayed, %s takes %s with this plan (%.1f %% of requests planned), and %s where "
               "Pleat learns\n",
               names[i], cli_format_size(trial->planned_bytes, planned, sizeof planned),
               trial->planned_share * 100,
               cli_format_size(trial->learned_bytes, learned, sizeof learned));
        if (learning_is_better(trial))
            printf(
                "LEARNING DOES BETTER: its iterations are less alike than the plan takes them to "
                "be. Give the job no plan, or one of more iterations, or of a recording whose "
                "iterations are marked.\n");
    }
}

void plan_trial_json(json_writer *json, const plan_trial *trials, const char *const *names,
                     uint32_t count)
{
    json_array(json, "replayed");
    for (uint32_t i = 0; i < count; i++) {
        const plan_trial *trial = &trials[i];
        json_object(json, NULL);
        json_string(json, "trace", names[i]);
        if (trial->run) {
            json_uint(json, "planned_bytes", trial->planned_bytes);
            json_uint(json, "learned_bytes", trial->learned_bytes);
            json_double(json, "planned_share", trial->planned_share);
            json_bool(json, "learning_is_better", learning_is_better(trial));
        } else {
            json_string(json, "why_not", trial->why_not);
        }
        json_end_object(json);
    }
    json_end_array(json);
}
