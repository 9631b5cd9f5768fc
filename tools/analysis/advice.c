/*
 * advice.c: see advice.h.
 */
#include <tools/analysis/advice.h>

#include <tools/cli.h>
#include <tools/progress.h>

#include <internal/error.h>

#include <stdio.h>
#include <string.h>

static uint64_t less(uint64_t before, uint64_t after)
{
    return before > after ? before - after : 0;
}

static uint64_t saved_by(const footprint *f, uint64_t native, const char *policy)
{
    const replay_result *other = &footprint_find(f, policy)->result;
    return other->oom ? 0 : less(native, other->peak_physical_bytes);
}

static void sort_advice(advice *all, int count)
{
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && all[k].saved > all[k - 1].saved; k--) {
            advice other = all[k];
            all[k] = all[k - 1];
            all[k - 1] = other;
        }
}

bool advice_has_plan(const footprint *f)
{
    return f->plan != NULL && f->trial.run && !plan_trial_is_lost(&f->trial, 1);
}

int advise(const footprint *f, const growth *g, advice *all)
{
    const uint64_t *live = f->peak.bytes;
    const replay_result *runs = &footprint_find(f, "native")->result;
    /* What it had when it ran out is nothing to save from. */
    const uint64_t native = runs->oom ? 0 : runs->peak_physical_bytes;
    const advice possible[ADVICE_MOST] = {
        {"pleat", "run it under Pleat, which learns the iteration", saved_by(f, native, "pleat"),
         "measured", .command = "pleat run -- python3 train.py"},
        {"plan", "plan it beforehand (pleat plan), and run it under Pleat with --plan",
         advice_has_plan(f) ? less(native, f->trial.planned.bytes) : 0, "measured",
         .command = f->several
                        ? "pleat plan %s -o job%d.plan && pleat run --plan job%d.plan -- "
                          "python3 train.py"
                        : "pleat plan %s -o job.plan && pleat run --plan job.plan -- python3 "
                          "train.py"},
        {"expandable", "use PyTorch's expandable segments", saved_by(f, native, "expandable"),
         "measured",
         .command = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python3 train.py"},
        {"recompute", "recompute in backward what is kept for it now",
         f->has_gap && f->has_phases ? live[PLEAT__CLASS_SCOPED] : 0, "at most",
         .change =
             "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for each block"},
        {"split", "halve the microbatch (another split of the batch)",
         g->half.step != 0 ? less(native, g->half.physical_bytes) : 0,
         g->scaled ? "estimated" : "measured",
         .change = "half the microbatch, twice the steps of gradient accumulation"},
        {"offload", "keep half of what is persistent elsewhere (sharding, offloading)",
         f->has_gap ? live[PLEAT__CLASS_PERSISTENT] / 2 : 0, "at most",
         .change =
             "torch.distributed.fsdp.fully_shard, or an optimizer whose states are on the host"},
    };
    int count = 0;
    for (int i = 0; i < ADVICE_MOST; i++)
        if (possible[i].saved > f->max_live_bytes / 100)
            all[count++] = possible[i];
    sort_advice(all, count);
    return count;
}

bool advice_is_none(const footprint *f, int count)
{
    return count == 0 && !footprint_find(f, "native")->result.oom;
}

const char *advice_done(const advice *one, const char *recording, char *buffer)
{
    char name[ADVICE_DONE / 2];
    if (one->command == NULL)
        return one->change;
    const char *at = strstr(one->command, "%s");
    if (at == NULL)
        return one->command;
    snprintf(buffer, ADVICE_DONE, "%.*s%s%s", (int)(at - one->command), one->command,
             cli_quote(recording, name, sizeof name), at + 2);
    return buffer;
}

void advice_json(json_writer *json, const footprint *f, const growth *g, const char *recording)
{
    advice all[ADVICE_MOST];
    char done[ADVICE_DONE];
    int count = advise(f, g, all);
    json_array(json, "advice");
    for (int i = 0; i < count; i++) {
        json_object(json, NULL);
        json_string(json, "what", all[i].what);
        json_string(json, "text", all[i].text);
        json_uint(json, "saved_bytes", all[i].saved);
        json_string(json, "how", all[i].how);
        json_string(json, all[i].command != NULL ? "command" : "change",
                    advice_done(&all[i], recording, done));
        json_end_object(json);
    }
    json_end_array(json);
}

const char *growth_words(const fit_result *found, char text[GROWTH_WORDS])
{
    if (found->step == 0)
        return "no microbatch fits, not even a tenth of the recorded one";
    if (found->times == 1)
        return found->bounded
                   ? "the recorded microbatch fits; nothing shows what would grow with it"
                   : "the microbatch cannot grow by a tenth";
    snprintf(text, GROWTH_WORDS, "the microbatch %s %s%.3g times the recorded one",
             found->times < 1 ? "must shrink to" : "can be", found->bounded ? "at least " : "",
             found->times);
    return text;
}

/* What the recording takes under a policy, where that is known. */
static const replay_result *result_of(const footprint *recorded, const char *policy)
{
    return recorded != NULL ? &footprint_find(recorded, policy)->result : NULL;
}

pleat_result growth_find(const pleat_trace *const *traces, uint32_t count, uint64_t device_bytes,
                         const footprint *recorded, growth *g)
{
    const replay_result *native = result_of(recorded, "native");
    const replay_result *pleat = result_of(recorded, "pleat");
    fit f;
    *g = (growth){.device_bytes = replay_device_bytes(traces[0], device_bytes),
                  .device_assumed = device_bytes == 0 && pleat_trace_device_bytes(traces[0]) == 0,
                  .scaled = count == 1};
    PLEAT_TRY(fit_begin(traces, count, NULL, 0, g->device_bytes, &f));
    progress_stage();
    pleat_result result = fit_half(&f, "native", native, &g->half);
    if (result == PLEAT_OK)
        result = fit_policy(&f, "native", native, &g->native);
    progress_stage();
    if (result == PLEAT_OK)
        result = fit_policy(&f, "pleat", pleat, &g->pleat);
    fit_end(&f);
    return result;
}
