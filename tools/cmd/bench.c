/*
 * bench.c: `pleat bench WHAT`: finds the measurement, and what all of them share.
 */
#include <tools/cmd/bench.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t bench_quantile(uint64_t *samples, size_t count, double share)
{
    if (count == 0)
        return 0;
    qsort(samples, count, sizeof *samples, compare);
    size_t at = (size_t)(share * (double)count);
    return samples[at < count ? at : count - 1];
}

static void print_help(FILE *out)
{
    fputs("usage: pleat bench WHAT [OPTION ...]\n\nMeasures this machine.\n\n", out);
#define HELP_LINE(name, help) fprintf(out, "  %-8s %s\n", #name, help);
    BENCHES(HELP_LINE)
#undef HELP_LINE
    fputs("\n'pleat bench WHAT --help' says more.\n", out);
}

int cli_bench(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_BAD_USE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return CLI_DONE;
    }
#define DISPATCH(name, help)                                                                       \
    if (strcmp(argv[1], #name) == 0)                                                               \
        return bench_##name(argc - 1, argv + 1);
    BENCHES(DISPATCH)
#undef DISPATCH
    return cli_bad_use("bench", "there is no '%s' to measure", argv[1]);
}
