/*
 * verdict.c: what changes for a job under Pleat, in a sentence (see replay.h).
 */
#include <tools/replay/replay.h>

#include <tools/cli.h>

void replay_verdict(FILE *out, const replay_result *native, const replay_result *pleat,
                    const char *strong, const char *weak)
{
    char was[48], is[48], less[48];
    uint64_t before = native->peak_physical_bytes, after = pleat->peak_physical_bytes;
    uint64_t saved = before > after ? before - after : 0;
    cli_format_size(before, was, sizeof was);
    cli_format_size_like(after, before, is, sizeof is);
    cli_format_size_like(saved, before, less, sizeof less);
    if (pleat->oom)
        fputs("This job does not fit under Pleat with this much memory.", out);
    else if (native->oom)
        fprintf(
            out,
            "This job runs out of memory under PyTorch's native allocator; under Pleat it takes "
            "%s%s%s.",
            strong, is, weak);
    else if (saved > 0)
        fprintf(out,
                "Pleat holds this job in %s%s%s where PyTorch's native allocator takes %s: %s%s "
                "(%.1f %%) less%s.",
                strong, is, weak, was, strong, less, 100.0 * (double)saved / (double)before, weak);
    else
        fprintf(out,
                "Pleat would save this job nothing: it takes %s, PyTorch's native allocator %s.",
                is, was);
}
