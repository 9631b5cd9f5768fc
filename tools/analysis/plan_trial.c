/*
 * plan_trial.c: see plan_trial.h.
 *
 * A plan may be made of the wrong iteration, or of one that no other is like. Then it is laid out
 * well and serves badly, which only running it shows.
 */
#include <tools/analysis/plan_trial.h>

#include <tools/cli.h>
#include <tools/replay/replay.h>

#include <internal/error.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES (2u << 20) /* of the host backend, as of GPUs */
#define ROOM        2u         /* times the plan's memory that the device has at least */
/* Learning does better where the plan takes more memory, or more of an iteration's time by more
 * than 1/SLOWER (half and twice: docs/decisions.md, D270). */
#define SLOWER 200u
/* So much of the memory a plan of requests that change has to save (D496). */
#define SAVED 1000u
/* Requests change if more than 1/NEARLY of an iteration's do. Where nothing marks iterations that
 * speaks against a plan, and so do as many without a place (D500); FEW iterations say too little
 * of that (D505). */
#define NEARLY 16u
#define FEW    3u

static pleat_result replay(const pleat_trace *trace, const pleat_plan *plan, uint64_t device_bytes,
                           replay_result *result)
{
    replay_options options = {
        .policy = "pleat", .plan = plan, .device_bytes = device_bytes, .own_marks = true};
    return replay_run(trace, &options, result);
}

static plan_figures figures_of(const replay_result *result)
{
    double seconds = (result->steady_driver_ns + result->steady_mapper_ns) * 1e-9;
    double passed = result->steady_recorded_seconds;
    return (plan_figures){.bytes = result->peak_physical_bytes,
                          .planned_share = result->steady_planned_share,
                          .driver_share = passed > 0 ? seconds / passed : 0};
}

/* What speaks against following a plan, by what a replay with it takes. */
static plan_reason loses(const plan_trial *trial)
{
    if (trial->left)
        return PLAN_REASON_LEFT;
    if (trial->planned.bytes > trial->learned.bytes)
        return PLAN_REASON_MEMORY;
    if (trial->change && trial->planned.bytes + trial->learned.bytes / SAVED > trial->learned.bytes)
        return PLAN_REASON_SAVING;
    return trial->planned.driver_share > trial->learned.driver_share + 1.0 / SLOWER
               ? PLAN_REASON_DRIVER
               : PLAN_REASON_NONE;
}

static bool is_change(const pleat_plan *plan)
{
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    return summary.dynamic_requests * NEARLY > summary.iteration_requests;
}

/* Whether nothing marks iterations and much of one changes, or has no place: a run that loses its
 * way then finds it late. */
static bool is_lost_soon(const plan_trial *trial, const replay_result *with)
{
    return !with->marked && with->iterations > FEW &&
           (trial->change || with->steady_planned_share < 1 - 1.0 / NEARLY);
}

static pleat_result run_all(const pleat_trace *trace, const pleat_plan *plan, plan_trial *trial)
{
    uint64_t device_bytes = replay_device_bytes(trace, 0);
    replay_result with, without;
    if (device_bytes / ROOM < plan->physical_bytes)
        device_bytes = plan->physical_bytes * ROOM;
    PLEAT_TRY(replay(trace, plan, device_bytes, &with));
    PLEAT_TRY(replay(trace, NULL, device_bytes, &without));
    if (with.oom || without.oom) {
        snprintf(trial->why_not, sizeof trial->why_not, "it runs out of memory: %s",
                 with.oom ? with.oom_text : without.oom_text);
        return PLEAT_OK;
    }
    trial->run = true;
    trial->left = with.stats.left_at != 0;
    trial->planned = figures_of(&with);
    trial->learned = figures_of(&without);
    trial->change = plan->recipe == NULL && is_change(plan);
    trial->unmarked = plan->recipe == NULL && is_lost_soon(trial, &with);
    return PLEAT_OK;
}

/* A plan for several sizes is laid out for the recording's, if that has but one. If it has several,
 * another run draws others: its largest is above or below the one that the plan is laid out for,
 * and either costs memory (D497). */
static pleat_result run(const pleat_trace *trace, const pleat_plan *plan, plan_trial *trial)
{
    pleat_plan *own;
    PLEAT_TRY(replay_plan_for(trace, plan, &own));
    trial->sizes = plan->recipe != NULL && own == NULL;
    pleat_result result = run_all(trace, own != NULL ? own : plan, trial);
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

static plan_reason reason_of(const plan_trial *trial)
{
    plan_reason found = trial->run ? loses(trial) : PLAN_REASON_NONE;
    if (!trial->run || found != PLAN_REASON_NONE)
        return found;
    if (trial->sizes)
        return PLAN_REASON_SIZES;
    return trial->unmarked ? PLAN_REASON_CHANGES : PLAN_REASON_NONE;
}

static const struct {
    const char *name, *sentence;
} reasons[] = {
#define REASON(id, name, sentence) {name, sentence},
    PLAN_REASONS(REASON)
#undef REASON
};

const char *plan_trial_sentence(const plan_trial *trial)
{
    return reasons[reason_of(trial)].sentence;
}

bool plan_trial_is_lost(const plan_trial *trials, uint32_t count)
{
    uint32_t lost = 0, run = 0;
    for (uint32_t i = 0; i < count; i++) {
        run += trials[i].run;
        lost += reason_of(&trials[i]) != PLAN_REASON_NONE;
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
               "time in the driver), and %s where Pleat learns (%.1f %% of it in the driver)\n",
               names[i], cli_format_size(trial->planned.bytes, planned, sizeof planned),
               trial->planned.planned_share * 100, trial->planned.driver_share * 100,
               cli_format_size(trial->learned.bytes, learned, sizeof learned),
               trial->learned.driver_share * 100);
        if (reason_of(trial) != PLAN_REASON_NONE)
            printf("this speaks against the plan: %s\n", plan_trial_sentence(trial));
    }
    if (plan_trial_is_lost(trials, count))
        puts("THE PLAN IS NOT FOLLOWED: it answers questions, and a job that is given it learns as "
             "without one; with --no-replay it would be followed.");
}

void plan_trial_members(json_writer *json, const plan_trial *trial)
{
    if (trial->run) {
        json_uint(json, "planned_bytes", trial->planned.bytes);
        json_uint(json, "learned_bytes", trial->learned.bytes);
        json_bool(json, "changes", trial->sizes || trial->unmarked);
        json_double(json, "planned_share", trial->planned.planned_share);
        json_double(json, "planned_driver_share", trial->planned.driver_share);
        json_double(json, "learned_driver_share", trial->learned.driver_share);
        plan_reason reason = reason_of(trial);
        json_bool(json, "learning_is_better", reason != PLAN_REASON_NONE);
        if (reason != PLAN_REASON_NONE)
            json_string(json, "reason", reasons[reason].name);
    }
    if (trial->why_not[0] != '\0')
        json_string(json, "why_not", trial->why_not);
}

void plan_trial_json(json_writer *json, const plan_trial *trials, const char *const *names,
                     uint32_t count)
{
    json_array(json, "replayed");
    for (uint32_t i = 0; i < count; i++) {
        json_object(json, NULL);
        json_string(json, "trace", names[i]);
        plan_trial_members(json, &trials[i]);
        json_end_object(json);
    }
    json_end_array(json);
}
