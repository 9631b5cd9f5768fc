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
/* Learning does as well or better where the plan takes more of an iteration's time by more than
 * 1/SLOWER (half and twice: docs/decisions.md, D270), has no place for more than 1/NEARLY of the
 * requests (another run's will fit it even less: D279), takes more memory, or saves less than
 * 1/SAVED of it where more than 1/SAVED of the requests have no place (D496). Where the
 * recording has several values of the plan's parameter another run draws others: its largest is
 * above or below the one that the plan is laid out for, which costs memory either way, so the plan
 * has to save 1/DRAWN (D497). */
#define SAVED  1000u
#define DRAWN  100u
#define SLOWER 200u
#define NEARLY 16u

static pleat_result replay(const pleat_trace *trace, const pleat_plan *plan, uint64_t device_bytes,
                           replay_result *result)
{
    replay_options options = {
        .policy = "pleat", .plan = plan, .device_bytes = device_bytes, .own_marks = true};
    return replay_run(trace, &options, result);
}

static double driver_of(const replay_result *result)
{
    double seconds = (result->steady_driver_ns + result->steady_mapper_ns) * 1e-9;
    return result->steady_recorded_seconds > 0 ? seconds / result->steady_recorded_seconds : 0;
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
        strcpy(trial->why_not, "it runs out of memory");
        return PLEAT_OK;
    }
    trial->run = true;
    trial->planned_bytes = with.peak_physical_bytes;
    trial->learned_bytes = without.peak_physical_bytes;
    trial->planned_share = with.steady_planned_share;
    trial->planned_driver = driver_of(&with);
    trial->learned_driver = driver_of(&without);
    return PLEAT_OK;
}

/* A plan for several sizes is laid out for the recording's, if that has but one. */
static pleat_result run(const pleat_trace *trace, const pleat_plan *plan, plan_trial *trial)
{
    pleat_plan *own;
    PLEAT_TRY(replay_plan_for(trace, plan, &own));
    trial->drawn = plan->recipe != NULL && own == NULL;
    pleat_result result = run_both(trace, own != NULL ? own : plan, trial);
    pleat_plan_free(own);
    return result;
}

/* A recording that cannot be replayed here costs no plan: it is written all the same. */
void plan_trial_run(const pleat_plan *plan, const pleat_trace *const *traces, uint32_t count,
                    plan_trial *trials)
{
    memset(trials, 0, count * sizeof *trials);
    for (uint32_t i = 0; i < count; i++) {
        if (plan->chunk_bytes != CHUNK_BYTES)
            strcpy(trials[i].why_not, "no GPU has such chunks");
        else if (run(traces[i], plan, &trials[i]) != PLEAT_OK)
            snprintf(trials[i].why_not, sizeof trials[i].why_not, "%s", pleat_last_error()->text);
    }
}

static bool pays(const plan_trial *trial)
{
    uint64_t least = trial->planned_share < 1 - 1.0 / SAVED ? trial->learned_bytes / SAVED : 0;
    if (trial->drawn)
        least = trial->learned_bytes / DRAWN;
    return trial->planned_bytes + least <= trial->learned_bytes;
}

static bool learning_is_better(const plan_trial *trial)
{
    return trial->run &&
           (!pays(trial) || trial->planned_driver > trial->learned_driver + 1.0 / SLOWER ||
            trial->planned_share < 1 - 1.0 / NEARLY);
}

bool plan_trial_is_lost(const plan_trial *trials, uint32_t count)
{
    uint32_t lost = 0, run = 0;
    for (uint32_t i = 0; i < count; i++) {
        run += trials[i].run;
        lost += learning_is_better(&trials[i]);
    }
    return run > 0 && lost == run;
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
        printf("replayed, %s takes %s with this plan (%.1f %% of requests planned, %.1f %% of the "
               "time in the driver), and %s where Pleat learns (%.1f %%)\n",
               names[i], cli_format_size(trial->planned_bytes, planned, sizeof planned),
               trial->planned_share * 100, trial->planned_driver * 100,
               cli_format_size(trial->learned_bytes, learned, sizeof learned),
               trial->learned_driver * 100);
    }
    if (plan_trial_is_lost(trials, count))
        puts("LEARNING DOES AS WELL OR BETTER: the plan saves too little on its own recording (a "
             "thousandth is wanted, a hundredth where its iterations are of several sizes), asks "
             "more of the driver, or has no place for many requests. It answers questions, and a "
             "job that is given it learns as without one; with --no-replay it would be followed.");
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
            json_bool(json, "drawn", trial->drawn);
            json_double(json, "planned_share", trial->planned_share);
            json_double(json, "planned_driver_share", trial->planned_driver);
            json_double(json, "learned_driver_share", trial->learned_driver);
            json_bool(json, "learning_is_better", learning_is_better(trial));
        } else {
            json_string(json, "why_not", trial->why_not);
        }
        json_end_object(json);
    }
    json_end_array(json);
}
