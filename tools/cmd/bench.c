/*
 * bench.c: `pleat bench WHAT`: finds the measurement.
 */
#include <tools/bench/bench.h>
#include <tools/nearest.h>

#include <string.h>

static void print_help(FILE *out)
{
    fputs("usage: pleat bench WHAT [OPTION ...]\n\nMeasures this machine.\n\n", out);
#define HELP_LINE(name, help) fprintf(out, "  %-9s %s\n", #name, help);
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
#define NAME(name, help) #name,
    static const char *const names[] = {BENCHES(NAME)};
#undef NAME
    return nearest_refuse("bench", "measurement", argv[1], names, sizeof names / sizeof *names);
}
