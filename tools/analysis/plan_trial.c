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
#include <plan/trace/import.h>

#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES (2u << 20) /* of the host backend, as of GPUs */
#define ROOM        2u         /* times the plan's memory that the device has at least */
/* Learning does as well or better where the plan takes more of an iteration's time by more than
 * 1/SLOWER (half and twice: docs/decisions.md, D270), or takes more memory. Where over 1/NEARLY of
 * an iteration's requests change from one to the next, also where it saves less than 1/SAVED of the
 * memory while more than 1/SAVED of the requests have no place (D496), or where more than 1/NEARLY
 * have none: another run's will fit it even less (D279). Where they are the same each time those
 * without a place are an evaluation's, say (D536). */
#define SAVED  1000u
#define SLOWER 200u
#define NEARLY 16u

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

/* What speaks against following a plan, by what a replay with it, or with its half's, takes. */
static plan_reason loses(const plan_trial *trial, const plan_figures *with)
{
    const plan_figures *without = &trial->learned;
    bool misses = trial->change && with->planned_share < 1 - 1.0 / SAVED;
    uint64_t least = misses ? without->bytes / SAVED : 0;
    if (with->bytes > without->bytes)
        return PLAN_REASON_MEMORY;
    if (with->bytes + least > without->bytes)
        return PLAN_REASON_SAVING;
    if (with->driver_share > without->driver_share + 1.0 / SLOWER)
        return PLAN_REASON_DRIVER;
    return trial->change && with->planned_share < 1 - 1.0 / NEARLY ? PLAN_REASON_PLACES
                                                                   : PLAN_REASON_NONE;
}

static pleat_result plan_half(const pleat_trace *trace, pleat_plan_options options,
                              uint32_t iterations, pleat_plan **made)
{
    pleat_trace *half;
    PLEAT_TRY(pleat__trace_beginning(trace, options.device, iterations / 2, &half));
    pleat_result result = pleat_plan_make(half, &options, made);
    pleat_trace_free(half);
    return result;
}

static pleat_result replay_half(const pleat_trace *trace, const pleat_plan_options *options,
                                uint32_t iterations, uint64_t device_bytes, plan_figures *half)
{
    pleat_plan *plan;
    replay_result result;
    PLEAT_TRY(plan_half(trace, *options, iterations, &plan));
    pleat_result replayed = replay(trace, plan, device_bytes, &result);
    pleat_plan_free(plan);
    PLEAT_TRY(replayed);
    if (result.oom)
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY, "it runs out of memory");
    *half = figures_of(&result);
    return PLEAT_OK;
}

/* What a plan does for requests that it was not made of, which are another run's wherever they
 * change from iteration to iteration: what one of the first half does for the whole (D292, D500).
 * A half that has no plan, or none that runs, speaks against it. */
static void run_half(const pleat_trace *trace, const pleat_plan_options *options,
                     uint32_t iterations, uint64_t device_bytes, plan_trial *trial)
{
    trial->halved = true;
    trial->serves = replay_half(trace, options, iterations, device_bytes, &trial->half) == PLEAT_OK;
    if (!trial->serves)
        snprintf(trial->why_not, sizeof trial->why_not, "%s", pleat_last_error()->text);
}

/* Whether a plan of requests that change from iteration to iteration serves another run. Where
 * nothing marks iterations a half says little: it tells two of six plans that lose, and costs five
 * of twenty that gain (D500). There it is how many change that counts, from four iterations on
 * (D505). */
static void try_changes(const pleat_trace *trace, const pleat_plan *plan,
                        const pleat_plan_options *options, const replay_result *whole,
                        uint64_t device_bytes, plan_trial *trial)
{
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    pleat_plan_options own = *options;
    own.device = plan->device;
    trial->change = summary.dynamic_requests * NEARLY > summary.iteration_requests;
    if (summary.dynamic_requests == 0 || loses(trial, &trial->planned) != PLAN_REASON_NONE)
        return;
    if (!whole->marked)
        trial->unmarked = whole->iterations > PLEAT__LEAST_PART && trial->change;
    else if (whole->iterations / 2 >= PLEAT__LEAST_PART)
        run_half(trace, &own, whole->iterations, device_bytes, trial);
}

static pleat_result run_all(const pleat_trace *trace, const pleat_plan *plan,
                            const pleat_plan_options *options, plan_trial *trial)
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
    trial->planned = figures_of(&with);
    trial->change = true; /* in a plan for several sizes; in others it is asked below */
    trial->learned = figures_of(&without);
    if (options != NULL)
        try_changes(trace, plan, options, &with, device_bytes, trial);
    return PLEAT_OK;
}

/* A plan for several sizes is laid out for the recording's, if that has but one. If it has several,
 * another run draws others: its largest is above or below the one that the plan is laid out for,
 * and either costs memory (D497). */
static pleat_result run(const pleat_trace *trace, const pleat_plan *plan,
                        const pleat_plan_options *options, plan_trial *trial)
{
    pleat_plan *own;
    PLEAT_TRY(replay_plan_for(trace, plan, &own));
    trial->sizes = plan->recipe != NULL && own == NULL;
    pleat_result result =
        run_all(trace, own != NULL ? own : plan, plan->recipe == NULL ? options : NULL, trial);
    pleat_plan_free(own);
    return result;
}

/* A recording that cannot be replayed here costs no plan: it is written all the same. */
void plan_trial_run(const pleat_plan *plan, const pleat_plan_options *options,
                    const pleat_trace *const *traces, uint32_t count, plan_trial *trials)
{
    memset(trials, 0, count * sizeof *trials);
    for (uint32_t i = 0; i < count; i++) {
        if (plan->chunk_bytes != CHUNK_BYTES)
            strcpy(trials[i].why_not, "no GPU has such chunks");
        else if (run(traces[i], plan, options, &trials[i]) != PLEAT_OK)
            snprintf(trials[i].why_not, sizeof trials[i].why_not, "%s", pleat_last_error()->text);
    }
}

static plan_reason reason_of(const plan_trial *trial)
{
    plan_reason found = trial->run ? loses(trial, &trial->planned) : PLAN_REASON_NONE;
    if (!trial->run || found != PLAN_REASON_NONE)
        return found;
    if (trial->sizes)
        return PLAN_REASON_SIZES;
    if (trial->unmarked)
        return PLAN_REASON_CHANGES;
    return trial->halved && (!trial->serves || loses(trial, &trial->half) != PLAN_REASON_NONE)
               ? PLAN_REASON_HALF
               : PLAN_REASON_NONE;
}

static const struct {
    const char *name, *sentence;
} reasons[] = {
#define REASON(id, name, sentence) {name, sentence},
    PLAN_REASONS(REASON)
#undef REASON
};

const char *plan_trial_sentence(const plan_trial *trial, char text[PLAN_SENTENCE])
{
    plan_reason reason = reason_of(trial);
    char why[PLAN_SENTENCE / 2];
    const char *half = !trial->serves
                           ? cli_plain(trial->why_not, strlen(trial->why_not), why, sizeof why)
                           : reasons[loses(trial, &trial->half)].sentence;
    snprintf(text, PLAN_SENTENCE, "%s%s", reasons[reason].sentence,
             reason == PLAN_REASON_HALF ? half : "");
    return text;
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
    char planned[48], learned[48], sentence[PLAN_SENTENCE];
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
        if (trial->serves)
            printf("its requests change: with a plan of its first half it takes %s (%.1f %% of "
                   "requests planned, %.1f %% of the time in the driver)\n",
                   cli_format_size(trial->half.bytes, planned, sizeof planned),
                   trial->half.planned_share * 100, trial->half.driver_share * 100);
        if (reason_of(trial) != PLAN_REASON_NONE)
            printf("this speaks against the plan: %s\n", plan_trial_sentence(trial, sentence));
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
        if (trial->serves) {
            json_uint(json, "half_planned_bytes", trial->half.bytes);
            json_double(json, "half_planned_share", trial->half.planned_share);
            json_double(json, "half_planned_driver_share", trial->half.driver_share);
        }
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
